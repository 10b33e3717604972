"""A full disk, an I/O error, an interrupted or short write while a log is cleaned, retained, or transacted with.

An error says so; the log is as it was, or as it was to become, or between two steps of that; and what was not done is
done by the next one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import LogConfig, LogDirectory
from storage_core.errors import SegmentLogError
from storage_core.log import CleanerConfig
from tests.damage.campaign import fast_folder
from tests.descriptors import open_below
from tests.faults.counting import cases
from tests.faults.faulty_filesystem import FAULTS, INVISIBLE, Fault, FaultyCalls
from tests.log.logs import Clock

TOPIC = "orders"
CONFIG = LogConfig(
    internal_segment_bytes=1_500,
    segment_index_bytes=240,
    index_interval_bytes=200,
    cleanup_policy="compact",
    delete_retention_ms=1_000,
)
RETAINED = CONFIG.replace(cleanup_policy="delete", retention_bytes=3_000)

Found = dict[int, tuple[bytes, bytes | None]]


@dataclass
class Work:
    """Something that is done to a log that was prepared."""

    name: str
    config: LogConfig = CONFIG

    def run(self, log) -> None:
        getattr(self, self.name)(log)

    def cleans(self, log) -> None:
        log.clean(CleanerConfig(dedupe_buffer_size=24_000))

    def cleans_a_little(self, log) -> None:
        log.clean(CleanerConfig(dedupe_buffer_size=96))

    def retains(self, log) -> None:
        log.apply_retention()

    def commits(self, log) -> None:
        with log.transaction(5, flush=True) as transaction:
            transaction.append(table((b"a", b"of 5"), (b"z", b"of 5")))
            transaction.append(table((b"b", b"of 5")))

    def aborts(self, log) -> None:
        transaction = log.transaction(5)
        transaction.append(table((b"a", b"of 5")))
        transaction.abort(flush=True)

    def gives_up(self, log) -> None:
        log.abort_transaction(9)
        log.flush()


WORKS = [
    Work("cleans"), Work("cleans_a_little"), Work("retains", RETAINED), Work("commits"), Work("aborts"),
    Work("gives_up"),
]  # fmt: skip


def table(*pairs) -> pa.Table:
    keys, values = zip(*pairs, strict=True)
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def prepare(root: str, *, leaves_open: bool) -> None:
    """Write some segments: keys again and again, tombstones, transactions of all kinds."""
    with LogDirectory.open(root, config=CONFIG, clock=Clock()) as logs:
        log = logs.create(TOPIC)
        for number in range(3):
            for key in (b"a", b"b", b"c"):
                log.append(table((key, b"%d:" % number + b"v" * 300), (b"only %d" % number, b"v" * 30)))
            with log.transaction(1) as transaction:
                transaction.append(table((b"d", b"committed %d" % number)))
            transaction = log.transaction(2)
            transaction.append(table((b"e", b"aborted %d" % number)))
            transaction.abort()
            log.append(table((b"f", None if number % 2 else b"v")))
        log.roll()
        if leaves_open:
            log.transaction(9).append(table((b"a", b"never committed")))


def contents(log) -> tuple[Found, Found]:
    """Return what readers see who take everything, and who wait for decisions."""
    return records_of(log), records_of(log, isolation_level="read_committed")


def records_of(log, **options) -> Found:
    return {
        row["offset"]: (row["key"], row["value"])
        for batch in log.read(columns=["offset", "key", "value"], **options)
        for row in batch.to_pylist()
    }


def latest(found: Found) -> dict[bytes, bytes]:
    return {key: value for key, value in dict(found.values()).items() if value is not None}


@contextlib.contextmanager
def folders(work: Work):
    """Yield a prepared root, and what is in its log before and after work that nothing disturbs."""
    with tempfile.TemporaryDirectory(dir=fast_folder(), prefix="segmentlog-faults-") as folder:
        prepare(f"{folder}/made", leaves_open=work.name == "gives_up")
        shutil.copytree(f"{folder}/made", f"{folder}/undisturbed")
        with LogDirectory.open(f"{folder}/undisturbed", config=work.config, clock=Clock()) as logs:
            log = logs.get(TOPIC, 0)
            before = contents(log)
            work.run(log)
            after = contents(log)
        yield folder, before, after


def is_between(found: Found, before: Found, after: Found) -> bool:
    """Return whether records are those before, or after, or those of steps in between."""
    return all(
        pair == before.get(offset, after.get(offset)) for offset, pair in found.items()
    ) and found.keys() >= (before.keys() & after.keys())


def fail_once(work: Work, folder: str, before, after, fault: Fault) -> str | None:
    """Do the work with one fault; say what came of it, or None if it was over before."""
    root = f"{folder}/disturbed"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(f"{folder}/made", root)
    logs = LogDirectory.open(root, config=work.config, clock=Clock())
    log, error = logs.get(TOPIC, 0), None
    with FaultyCalls(fault) as calls:
        try:
            work.run(log)
        except SegmentLogError as caught:
            error = caught
    name = f"{work.name}, {fault}: {calls.happened}"
    if error is not None:
        assert fault.error_number not in INVISIBLE, name
        assert os.strerror(fault.error_number) in str(error), f"{name}: {error}"
        assert root in str(error), f"{name}: {error}"
    outcome = "worked" if error is None else goes_on(log)
    with contextlib.suppress(SegmentLogError):
        logs.close()
    if outcome == "failed":
        assert not Path(root, ".kafka_cleanshutdown").exists(), name
    check_afterwards(work, root, before, after, name)
    assert open_below(root) == [], name
    return outcome if calls.happened else None


def goes_on(log) -> str:
    """Return whether a log accepts records after an error; if so, they are readable."""
    try:
        info = log.append(table((b"more", b"more")), acks="all")
    except SegmentLogError:
        return "failed"
    assert records_of(log)[info.last_offset] == (b"more", b"more")
    return "went on"


def check_afterwards(work: Work, root: str, before, after, name: str) -> None:
    """Check that the log opens, holds what it should, and that the same work leads where it was to lead."""
    with LogDirectory.open(root, config=work.config, clock=Clock()) as logs:
        log = logs.get(TOPIC, 0)
        everything, committed = map(without_more, contents(log))
        assert is_between(everything, before[0], after[0]), name
        if work.name in {"cleans", "cleans_a_little"}:
            assert latest(committed) == latest(before[1]), name
        if work.name in {"commits", "aborts", "gives_up"}:
            # All of the transaction, or nothing.
            assert committed in (before[1], after[1]), name
        if work.name in {"cleans", "retains"}:
            work.run(log)
            assert without_more(records_of(log)) == after[0], name
        assert not [each for each in os.listdir(log.path) if each.endswith((".cleaned", ".swap"))], name


def without_more(found: Found) -> Found:
    return {offset: pair for offset, pair in found.items() if pair[0] != b"more"}


@pytest.mark.cases(2, 8)
@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
@pytest.mark.parametrize("kind", FAULTS)
def test_each_call_fails(work, kind, record_property):
    error_number, is_lasting = FAULTS[kind]
    outcomes: Counter[str] = Counter()
    with folders(work) as (folder, before, after):
        number = 1
        while outcome := fail_once(work, folder, before, after, Fault(error_number, number, is_lasting)):
            outcomes[outcome] += 1
            number += 1
    record_property(
        cases("The n-th call fails while a log is cleaned, retained, or transacted with"), number - 1
    )
    if error_number in INVISIBLE:
        assert set(outcomes) <= {"worked"}
    else:
        assert outcomes.total() > 0
