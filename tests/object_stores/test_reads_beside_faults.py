"""Reads from a store that fails at random: the right rows or one clear error, in bounded time, and nothing left running.

What is right, a read of local files tells: of what the bucket held before a fault changed it, or of what it held after.
"""

from __future__ import annotations

import gc
import random
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import storage_core
from storage_core.errors import CorruptRecordError, SegmentLogError
from storage_core.options import parse_stream_options
from storage_core.scan.read import read_schema, read_task
from storage_core.scan.stream import MicroBatchPlanner
from storage_core.tier import open_file_system
from tests.conformance.archives import unpack_case
from tests.object_stores import faults
from tests.object_stores.http_server import THREAD_PREFIX, Answer, Request
from tests.object_stores.object_server import SECRET_ACCESS_KEY, Rule, files_below

if TYPE_CHECKING:
    from tests.object_stores.object_server import Bucket

_CASES = ("txn", "compact-txn", "v2-zstd", "magic1", "leader-epochs")
_LIMITS = {"storage.max-retries": "2", "storage.timeout": "5"}
# Only a read that hangs takes as long.
_HANGS_AFTER_S = 120.0
_LEFT_AFTER_S = 20.0

_STREAM = {"starting_offsets": "earliest", "ending_at": "logEnd", "max_offsets_per_trigger": 400}

Files = dict[str, bytes]
Read = Callable[[str, Mapping[str, Any]], "pa.Table | SegmentLogError"]


class Campaign:
    """One run: a log in a bucket, a read of it, and faults.

    Attributes:
        read: How to read it.
        options: Of the read.
        rules: The faults.
        hidden: The keys that no listing shows.
        states: What the bucket holds when the read begins, and after each fault that changes it.
    """

    def __init__(self, source: random.Random, files: Files, bucket: Bucket) -> None:
        self.read: Read = source.choice([read_table, read_table, read_stream])
        self.options = read_options(source)
        self.hidden: set[str] = set()
        self.states = [files]
        self._bucket = bucket
        self._lock = threading.Lock()
        for key, data in files.items():
            bucket.put(key, data)
        self.rules = [self._rule(source) for _ in range(source.randrange(1, 4))]

    def visible_states(self) -> list[Files]:
        """Return what a read may take the log for."""
        return [{key: data for key, data in state.items() if key not in self.hidden} for state in self.states]

    def _rule(self, source: random.Random) -> Rule:
        """Return one fault, somewhere: once or for good; early or late; for some of the requests in any order."""
        kind = source.choice(["LIST", "GET", "GET", "GET", ""])
        place: dict[str, Any] = source.choice(
            [
                {"skip": source.randrange(40), "times": source.choice([1, 1, 2, 5, None])},
                {"seed": source.randrange(1_000_000), "permille": source.choice([50, 300, 1000])},
            ]
        )
        passing = [
            faults.throttled(),
            faults.broken(),
            faults.closed(),
            faults.reset(),
            faults.cut(source.randrange(1001), is_reset=source.random() < 0.5),
            faults.slow(0.05),
        ]
        lasting = [
            faults.denied(),
            faults.missing(),
            faults.changed(),
            faults.expired(),
            faults.elsewhere(),
            faults.no_bucket(),
        ]
        chance = source.random()
        if chance < 0.65:
            return Rule(source.choice(passing if chance < 0.5 else lasting), kind, **place)
        key = source.choice(sorted(self.states[0]))
        if chance < 0.75:
            # A listing of an upload that is under way.
            self.hidden.add(key)
            return Rule(self._list_what_is_seen, "LIST", times=None)
        content = self.states[0][key]
        # Less of it, or as much of it under another ETag.
        part = None if chance < 0.85 else content[: source.randrange(len(content) + 1)]
        return Rule(faults.before(lambda: self._change(key, part)), kind, skip=source.randrange(20))

    def _list_what_is_seen(self, request: Request, answer: Callable[[], Answer]) -> Answer:
        seen = [entry for entry in self._bucket.entries() if entry.key not in self.hidden]
        return faults.listing_of(self._bucket.name, seen)(request, answer)

    def _change(self, key: str, content: bytes | None) -> None:
        with self._lock:
            state = {name: data for name, data in self.states[-1].items() if name != key}
            if content is None:
                self._bucket.delete(key)
            else:
                self._bucket.put(key, content)
                state[key] = content
            self.states.append(state)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Files]:
    """Return the files of some cases, by key."""
    folder = tmp_path_factory.mktemp("logs")
    found = {}
    for name in _CASES:
        directory, _ = unpack_case(name, folder / name)
        found[name] = {key: Path(path).read_bytes() for key, path in files_below(directory, "logs")}
    return found


def read_options(source: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {"isolation_level": source.choice(["read_uncommitted", "read_committed"])}
    options |= source.choice(
        [
            {},
            {"use_indexes": False},
            {"max_bytes_per_partition": 4096},
            {"min_partitions": 7},
            {"starting_timestamp": 1, "starting_offsets_by_timestamp_strategy": "latest"},
            {"columns": ("offset", "topic", "partition")},
        ]
    )
    return {**options, "include_headers": "columns" not in options}


def read_table(path: str, options: Mapping[str, Any]) -> pa.Table | SegmentLogError:
    try:
        return storage_core.read_table(path, **options)
    except SegmentLogError as error:
        return error


def read_stream(path: str, options: Mapping[str, Any]) -> pa.Table | SegmentLogError:
    """Read in micro-batches to the end that the log had at the beginning."""
    words = {name: value for name, value in options.items() if not name.startswith("starting")}
    parsed = parse_stream_options({**words, **_STREAM, "path": path})
    schema = read_schema(parsed.read)
    batches = []
    try:
        filesystem = open_file_system(parsed.read.storage)
        planner = MicroBatchPlanner(filesystem, parsed)
        start = planner.initial_offsets()
        while (end := planner.latest_offsets(start)) != start:
            for task in planner.plan(start, end).tasks:
                batches += read_task(open_file_system(parsed.read.storage), task, schema)
            start = end
    except SegmentLogError as error:
        return error
    return pa.Table.from_batches(batches, schema)


def outcome(read: Read, path: str, options: Mapping[str, Any]) -> pa.Table | BaseException:
    """Read in a thread, which must end."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(read(path, options))
        except BaseException as error:  # noqa: BLE001  (any other error than those is a failure of the test)
            found.append(error)

    thread = threading.Thread(target=run, name="campaign", daemon=True)
    thread.start()
    thread.join(_HANGS_AFTER_S)
    assert found, f"the read hangs: {threads_left()}"
    return found[0]


def threads_left() -> list[str]:
    names = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    return [name for name in names if not name.startswith((THREAD_PREFIX, "pytest", "execnet"))]


def check_error(error: BaseException) -> None:
    """Check that it is one of ours, in one line, without a secret, also in what it was raised from."""
    text = "".join(traceback.format_exception(error))
    assert isinstance(error, SegmentLogError), text
    assert "\n" not in str(error)
    assert SECRET_ACCESS_KEY not in text


def same(actual: pa.Table, expected: pa.Table | SegmentLogError) -> bool:
    if isinstance(expected, SegmentLogError):
        return False
    return rows_of(actual) == rows_of(expected)


def is_part(actual: pa.Table, expected: pa.Table | SegmentLogError) -> bool:
    if isinstance(expected, SegmentLogError):
        return False
    rows = rows_of(actual)
    return set(rows) <= set(rows_of(expected)) and len(set(rows)) == len(rows)


def rows_of(table: pa.Table) -> list[str]:
    # Timestamps as numbers: not all of them have a year.
    columns = [
        column.cast(pa.int64()) if column.type == pa.timestamp("us", "UTC") else column for column in table
    ]
    return sorted(map(repr, zip(*(column.to_pylist() for column in columns), strict=True)))


def written(files: Files, folder: Path) -> str:
    for key, data in files.items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return str(folder / "logs")


def run_campaign(seed: int, logs: Mapping[str, Files], bucket: Bucket, folder: Path) -> str:
    """Run one; return what came of it."""
    source = random.Random(f"faults {seed}")
    before = set(threads_left())
    run = Campaign(source, logs[source.choice(_CASES)], bucket)
    bucket.rules[:] = run.rules
    options = {**run.options, "storage_options": {**bucket.storage_options, **_LIMITS}}
    found = outcome(run.read, bucket.uri("logs"), options)
    bucket.rules.clear()
    states = [written(state, folder / f"{seed}-{at}") for at, state in enumerate(run.visible_states())]
    what = f"seed {seed}: {found!r} with {run.options} {run.rules}"
    if isinstance(found, pa.Table):
        wholes = [run.read(state, run.options) for state in states]
        # Micro-batches before and after a change may see several states.
        is_right = is_part if run.read is read_stream and len(states) > 1 else same
        assert any(is_right(found, whole) for whole in wholes), what
        name = "rows"
    else:
        check_error(found)
        assert run.hidden or any(rule.hits for rule in run.rules), what
        # A fault of the store is no damage of the log.
        if isinstance(found, CorruptRecordError):
            assert any(isinstance(run.read(state, run.options), CorruptRecordError) for state in states), what
        name = type(found).__name__
    # The frames of an error hold what was under way.
    del found
    check_threads(before)
    return name


def check_threads(before: set[str]) -> None:
    """Check that all that the read has started has ended, or does so at once."""
    # Errors that it has handled hold what was under way, until they are collected.
    gc.collect()
    deadline = time.monotonic() + _LEFT_AFTER_S
    while (left := set(threads_left()) - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left


@pytest.mark.thorough
def test_reads_beside_faults(logs, small_server, tmp_path):
    found = campaigns(range(16), logs, small_server, tmp_path)
    # Most faults pass, some do not.
    assert found.count("rows") >= 4
    assert len(set(found)) >= 3


@pytest.mark.soak
def test_many_reads_beside_faults(logs, small_server, tmp_path):
    campaigns(range(16, 540), logs, small_server, tmp_path)


def campaigns(seeds: range, logs: Mapping[str, Files], server: Any, folder: Path) -> list[str]:
    found = []
    for seed in seeds:
        bucket = server.create_bucket()
        found.append(run_campaign(seed, logs, bucket, folder))
        server.delete_bucket(bucket.name)
    return found
