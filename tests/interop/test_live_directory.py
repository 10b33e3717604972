"""Reads of directories that a broker changes at the same time: it appends, rolls, compacts, deletes, and is killed.

Each read is planned, waits briefly, and then runs task by task with pauses. Planned data has often moved or gone by
the time it is read.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Self

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient

from storage_core import read_table
from storage_core.errors import DataLossError, SegmentLogError
from storage_core.filesystem import FileSystem
from storage_core.scan import parse_read_options, plan_scan, project, read_task, record_schema
from storage_core.views.inventory import inventory
from tests.faults.transaction_reader import pausing_filesystem
from tests.interop.broker import KafkaBroker
from tests.interop.clients import (
    ISOLATION_LEVELS,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Deliveries,
    Row,
    assert_same_rows,
    consume,
    create_topic,
    end_offset,
    new_producer,
    rows_of,
    start_offset,
    wait_for_markers,
    wait_until,
)
from tests.interop.conftest import EAGER_SETTINGS
from tests.interop.workload import BASE_TIMESTAMP_MS, BackgroundProducer, Sendable, TransactionWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from confluent_kafka import Producer

# How long each test keeps reading beside a broker, at least.
QUICK_S, SOAK_S = 2.0, float(os.environ.get("SEGMENTLOG_INTEROP_SECONDS", "60"))

# Options that lead to different plans.
WAYS: tuple[dict[str, object], ...] = (
    {},
    {"use_indexes": False},
    {"max_bytes_per_partition": 16_384},
    {"min_partitions": 7},
)


@pytest.fixture(params=[QUICK_S, pytest.param(SOAK_S, marks=pytest.mark.soak)])
def duration_s(request: pytest.FixtureRequest) -> float:
    return request.param


class Read(NamedTuple):
    """The rows of one read, and the planned offsets."""

    start_offset: int
    end_offset: int
    rows: list[Row]


def read_slowly(
    directory: Path,
    topic: str,
    pause_s: float = 0.3,
    filesystem: FileSystem | None = None,
    **options: object,
) -> Read:
    """Read partition 0 of a topic; the pauses sum up to at most twice ``pause_s``."""
    options |= {"path": str(directory), "subscribe": topic, "include_headers": True}
    parsed = parse_read_options(options)
    schema = project(record_schema(include_headers=True, include_metadata=False), None)
    filesystem = filesystem or FileSystem()
    plan = plan_scan(filesystem, parsed)
    time.sleep(pause_s)
    batches = []
    for task in plan.tasks:
        for number, batch in enumerate(read_task(filesystem, task, schema)):
            batches.append(batch)
            if number < 2:
                time.sleep(pause_s / 2 / len(plan.tasks))
    table = pa.Table.from_batches(batches, schema=schema)
    offsets = table.column("offset").to_pylist()
    assert all(before < after for before, after in itertools.pairwise(offsets)), "not in order, or twice"
    if not plan.partitions:
        return Read(0, 0, rows_of(table))
    [planned] = plan.partitions
    return Read(planned.start_offset, planned.end_offset, rows_of(table))


def rounds(duration_s: float, is_seen: Callable[[], bool]) -> Iterator[dict[str, object]]:
    """Yield options for one read after another until the time is up and the reads saw what they are for.

    Each way of reading comes at least once.

    Raises:
        AssertionError: They did not see it in many times as long.
    """
    deadline = time.monotonic() + duration_s
    for number in itertools.count():
        if number >= len(WAYS) and time.monotonic() > deadline:
            if is_seen():
                return
            assert time.monotonic() < deadline + 300, (
                "what is to be read beside did not happen: the test proves nothing"
            )
        yield dict(WAYS[number % len(WAYS)])


def numbered(number: int) -> Sendable:
    """Return a unique record of about 200 bytes."""
    value = b"%d " % number + random.Random(number).randbytes(150)
    return Sendable(
        b"key-%d" % (number % 40), value, [("number", b"%d" % number)], BASE_TIMESTAMP_MS + number
    )


def assert_delivered(reads: list[Read], deliveries: Deliveries) -> None:
    """Assert that every returned record is the one that the broker acknowledged at that offset."""
    assert not deliveries.errors
    delivered = deliveries.snapshot()
    for read in reads:
        for row in read.rows:
            assert delivered[row[:3]] == (row.key, row.value)
            assert row.headers == (("number", row.value.split(b" ")[0] if row.value else b""),)


def assert_complete(read: Read) -> None:
    assert [row.offset for row in read.rows] == list(range(read.start_offset, read.end_offset))


def small_batches(broker: KafkaBroker, **settings: object) -> Producer:
    """Return a producer whose batches fit into the small segments of these topics."""
    return new_producer(broker, batch_size=8_000, **settings)


def last_acknowledged(deliveries: Deliveries) -> int:
    return max((offset for _, _, offset in deliveries.snapshot()), default=-1)


def wait_for_records(deliveries: Deliveries, topic: str, count: int) -> None:
    wait_until(
        lambda: sum(each == topic for each, *_ in deliveries.snapshot()) >= count,
        f"Not {count} records were acknowledged.",
    )


class Sweeper:
    """Removes files from a thread as soon as the broker has renamed them, until the block ends.

    The broker removes them a minute later. With a short `file.delete.delay.ms`, it would close them before a busy machine
    has flushed them, which it does some time after they have rolled, and shut down.
    """

    def __init__(self, broker: KafkaBroker, topic: str) -> None:
        self._directory = broker.log_directory / f"{topic}-0"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sweep {topic}")

    def _run(self) -> None:
        while not self._ended.wait(0.02):
            for path in self._directory.glob("*.deleted"):
                path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._ended.set()
        self._thread.join()


def partition_files(broker: KafkaBroker, topic: str) -> set[str]:
    return set(os.listdir(broker.log_directory / f"{topic}-0"))


def test_while_it_rolls(broker: KafkaBroker, duration_s: float) -> None:
    topic = f"rolling-{duration_s}"
    create_topic(broker, topic, internal_segment_bytes=20_000)
    producer = small_batches(broker, enable_idempotence=True, compression_type="lz4")
    deliveries = Deliveries()
    reads = []

    def has_rolled() -> bool:
        return sum(name.endswith(".log") for name in partition_files(broker, topic)) > 10

    with BackgroundProducer(producer, topic, numbered, deliveries):
        for way in rounds(duration_s, has_rolled):
            acknowledged = last_acknowledged(deliveries)
            read = read_slowly(broker.log_directory, topic, **way)
            assert read.end_offset > acknowledged
            assert_complete(read)
            reads.append(read)
    producer.flush()
    assert_delivered(reads, deliveries)
    consumed = consume(broker, topic)
    for read in reads:
        assert_same_rows(read.rows, consumed[: read.end_offset])
    assert has_rolled()


def test_while_retention_deletes(broker: KafkaBroker, duration_s: float) -> None:
    """Deleted segments keep their files for a minute, as by default: no planned record may be missing."""
    topic = f"retained-{duration_s}"
    create_topic(broker, topic, internal_segment_bytes=20_000, retention_bytes=100_000)
    producer = small_batches(broker, enable_idempotence=True)
    deliveries = Deliveries()
    reads = []
    with BackgroundProducer(producer, topic, numbered, deliveries):
        for way in rounds(duration_s, lambda: reads[-1].start_offset > 0):
            acknowledged = last_acknowledged(deliveries)
            read = read_slowly(broker.log_directory, topic, **way)
            assert read.end_offset > acknowledged
            assert_complete(read)
            reads.append(read)
    producer.flush()
    assert_delivered(reads, deliveries)
    assert reads[-1].start_offset > 0
    assert any(name.endswith(".deleted") for name in partition_files(broker, topic))


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_while_deleted_files_vanish_at_once(
    broker: KafkaBroker, duration_s: float, fail_on_data_loss: bool
) -> None:
    topic = f"vanishing-{fail_on_data_loss}-{duration_s}"
    create_topic(broker, topic, internal_segment_bytes=20_000, retention_bytes=60_000)
    producer = small_batches(broker, enable_idempotence=True)
    deliveries = Deliveries()
    reads = []
    losses: list[str] = []
    with BackgroundProducer(producer, topic, numbered, deliveries), Sweeper(broker, topic):
        for way in rounds(duration_s, lambda: bool(losses)):
            acknowledged = last_acknowledged(deliveries)
            try:
                read = read_slowly(broker.log_directory, topic, fail_on_data_loss=fail_on_data_loss, **way)
            except DataLossError as error:
                assert fail_on_data_loss
                losses.append(str(error))
                continue
            assert read.end_offset > acknowledged
            if fail_on_data_loss:
                assert_complete(read)
            else:
                still_there = set(range(start_offset(broker, topic), read.end_offset))
                found = {row.offset for row in read.rows}
                assert still_there <= found <= set(range(read.start_offset, read.end_offset))
                if len(found) < read.end_offset - read.start_offset:
                    losses.append(f"{len(found)} rows of {read.start_offset} to {read.end_offset}")
            reads.append(read)
    producer.flush()
    assert_delivered(reads, deliveries)
    assert losses, "nothing vanished between planning and reading: the test proves nothing"


def test_while_it_compacts(broker: KafkaBroker, duration_s: float) -> None:
    topic = f"compacted-{duration_s}"
    settings = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.01}
    create_topic(broker, topic, internal_segment_bytes=20_000, **settings)
    producer = small_batches(broker, enable_idempotence=True, compression_type="zstd")
    deliveries = Deliveries()
    reads: list[Read] = []

    def is_compacted() -> bool:
        return sum(len(read.rows) < read.end_offset for read in reads) > 3

    with BackgroundProducer(producer, topic, numbered, deliveries), Sweeper(broker, topic):
        for way in rounds(duration_s, is_compacted):
            acknowledged = last_acknowledged(deliveries)
            read = read_slowly(broker.log_directory, topic, **way)
            assert read.end_offset > acknowledged
            assert read.start_offset == 0
            # The cleaner only removes records: those that a consumer still gets afterwards existed all the time.
            found = set(read.rows)
            missing = [
                row for row in consume(broker, topic) if row.offset < read.end_offset and row not in found
            ]
            assert not missing
            reads.append(read)
    producer.flush()
    assert_delivered(reads, deliveries)
    assert is_compacted(), "the cleaner did not run: the test proves nothing"


@pytest.mark.parametrize("cleanup_policy", ["delete", "compact"])
def test_while_transactions_commit_and_abort(
    broker: KafkaBroker, duration_s: float, cleanup_policy: str
) -> None:
    topic = f"transacted-{cleanup_policy}-{duration_s}"
    settings = {
        "cleanup_policy": cleanup_policy,
        "min_cleanable_dirty_ratio": 0.01,
        "delete_retention_ms": 100,
        # Reads can meet aborted records before a cleaner that has nothing else to do removes them.
        "min_compaction_lag_ms": 1000,
    }
    create_topic(broker, topic, internal_segment_bytes=20_000, **settings)
    producers = [
        small_batches(broker, transactional_id=f"{topic}-{number}", compression_type=codec)
        for number, codec in enumerate(("zstd", "none"))
    ]
    reads: dict[str, list[Read]] = {level: [] for level in ISOLATION_LEVELS}
    afterwards: dict[str, list[list[Row]]] = {level: [] for level in ISOLATION_LEVELS}

    def has_aborted(level: str) -> bool:
        return any((row.value or b"").endswith(b"abort") for read in reads[level] for row in read.rows)

    def has_ended() -> bool:
        return any(read.rows for read in reads[READ_COMMITTED]) and has_aborted(READ_UNCOMMITTED)

    with TransactionWriter(producers, topic, numbered):
        ways = rounds(duration_s, has_ended)
        for level, way in zip(itertools.cycle(ISOLATION_LEVELS), ways, strict=False):
            reads[level].append(read_slowly(broker.log_directory, topic, isolation_level=level, **way))
            if cleanup_policy == "compact":
                afterwards[level].append(consume(broker, topic, level))
    for level in ISOLATION_LEVELS:
        assert any(read.rows for read in reads[level])
        if cleanup_policy == "delete":
            consumed = consume(broker, topic, level)
            for read in reads[level]:
                assert_same_rows(read.rows, [row for row in consumed if row.offset < read.end_offset])
        else:
            for read, consumed in zip(reads[level], afterwards[level], strict=True):
                found = set(read.rows)
                assert not [row for row in consumed if row.offset < read.end_offset and row not in found]
    # Each record says whether its transaction will be committed.
    assert not has_aborted(READ_COMMITTED)
    assert has_aborted(READ_UNCOMMITTED)


_CHANGES = {
    "delete": {"retention_bytes": 60_000},
    "compact": {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.01},
}


@pytest.mark.parametrize("change", list(_CHANGES))
def test_inventory_is_complete_and_calls_nothing_damaged(
    broker: KafkaBroker, duration_s: float, change: str
) -> None:
    topic = f"inventory-{change}-{duration_s}"
    create_topic(broker, topic, internal_segment_bytes=20_000, segment_index_bytes=4096, **_CHANGES[change])
    deliveries = Deliveries()
    ends: list[int] = []
    changed: list[bool] = []
    producer = small_batches(broker)
    with BackgroundProducer(producer, topic, numbered, deliveries), Sweeper(broker, topic):
        for number, _ in enumerate(rounds(duration_s, lambda: any(changed))):
            found = inventory(FileSystem(), [str(broker.log_directory)], exact=number % 2 == 1)
            assert (found.has_damage, found.is_complete) == (False, True), found.findings
            (summary,) = [each for each in found.topics if each.topic == topic]
            (partition,) = [each for each in found.partitions if each.topic == topic]
            assert partition.log_end_offset is not None
            ends.append(partition.log_end_offset)
            records = summary.record_count
            is_compacted = records is not None and records < partition.log_end_offset
            changed.append(is_compacted or bool(partition.log_start_offset))
            read_table(broker.log_directory, view="files", columns=["path", "kind"])
            rows = read_table(broker.log_directory, view="segments", subscribe=topic).to_pylist()
            assert not any(row["isDamaged"] for row in rows)
    # What is queued would be sent meanwhile.
    assert producer.flush(300) == 0
    assert ends == sorted(ends)
    assert not deliveries.errors
    (row,) = read_table(broker.log_directory, view="partitions", subscribe=topic).to_pylist()
    assert row["logEndOffset"] == end_offset(broker, topic)
    assert row["isClean"] is False


class CommittedReads:
    """Reads committed rows from a thread until the block ends, whether or not the broker runs.

    Attributes:
        settled_offset: All transactions up to here have ended, as their producers know.
        reads: Each read with the settled offset at its start.
    """

    def __init__(self, directory: Path, topic: str) -> None:
        self.settled_offset = -1
        self.reads: list[tuple[int, Read]] = []
        self._directory = directory
        self._topic = topic
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"read {topic}")

    def _run(self) -> None:
        rng = random.Random(1)
        try:
            while not self._ended.is_set():
                settled_offset = self.settled_offset
                # Planning pauses so that the broker can abort, roll and advance its recovery point meanwhile.
                stops = itertools.chain(
                    itertools.repeat(0.0, rng.randrange(60)), [1.3], itertools.repeat(0.0)
                )
                read = read_slowly(
                    self._directory,
                    self._topic,
                    rng.choice((0.02, 0.06)),
                    pausing_filesystem(partial(next, stops)),
                    isolation_level=READ_COMMITTED,
                    **rng.choice((WAYS[0], *WAYS)),
                )
                self.reads.append((settled_offset, read))
        except BaseException as error:  # noqa: BLE001  (raised again by the thread that waits)
            self._failure = error

    def settle(self, offset: int) -> None:
        """Take a settled offset, and wait until two reads that began after it have ended."""
        self.settled_offset = offset
        while self._thread.is_alive() and [settled for settled, _ in self.reads].count(offset) < 2:
            time.sleep(0.01)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure


def transact(producers: list[Producer], topic: str, rng: random.Random, seconds: float) -> int:
    """Run overlapping transactions, most of which are aborted, over several segments; return the highest offset."""
    deliveries = Deliveries()
    end = time.monotonic() + seconds
    for number in itertools.count():
        # A round writes about 4 KiB.
        if number >= 15 and time.monotonic() > end:
            break
        for producer in producers:
            producer.begin_transaction()
        for _ in range(3):
            for producer in producers:
                for _ in range(rng.randint(1, 8)):
                    producer.produce(topic, value=rng.randbytes(150), partition=0, on_delivery=deliveries)
                producer.flush()
        for producer in rng.sample(producers, len(producers)):
            if rng.random() < 0.4:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    assert not deliveries.errors
    return last_acknowledged(deliveries)


def test_committed_rows_while_a_broker_is_stopped_and_killed(tmp_path: Path, duration_s: float) -> None:
    """Each read returns what a consumer gets in the end, up to the last stable offset that the read found."""
    topic, rng = "committed", random.Random(1)
    with KafkaBroker(tmp_path / "broker", EAGER_SETTINGS) as broker:
        create_topic(broker, topic, internal_segment_bytes=20_000)
        with CommittedReads(broker.log_directory, topic) as reading:
            for end in (broker.stop, broker.kill, None):
                producers = [
                    small_batches(broker, transactional_id=f"{topic}-{number}", compression_type=codec)
                    for number, codec in enumerate(("zstd", "none"))
                ]
                for producer in producers:
                    # This aborts the producer's open transaction.
                    producer.init_transactions()
                settled_offset = transact(producers, topic, rng, duration_s / 4)
                wait_for_markers(broker, [(topic, 0)])
                reading.settle(settled_offset)
                if end is not None:
                    producers[0].begin_transaction()
                    producers[0].produce(topic, value=b"left open", partition=0)
                    producers[0].flush()
                    end()
                    broker.start()
        consumed = consume(broker, topic, READ_COMMITTED)
    assert len(reading.reads) > 5
    assert len({settled_offset for settled_offset, _ in reading.reads}) > 2
    for settled_offset, read in reading.reads:
        assert read.end_offset > settled_offset
        assert_same_rows(read.rows, [row for row in consumed if row.offset < read.end_offset])
    assert not [row for row in consumed if row.value == b"left open"]
    assert len(list(broker.log_directory.glob(f"{topic}-0/*.txnindex"))) > 3


def test_topic_deleted_between_planning_and_reading(broker: KafkaBroker) -> None:
    create_topic(broker, "doomed")
    producer = new_producer(broker)
    deliveries = Deliveries()
    for number in range(100):
        producer.produce("doomed", value=b"%d" % number, on_delivery=deliveries)
    producer.flush()
    directory = str(broker.log_directory)
    schema = project(record_schema(include_headers=True, include_metadata=False), None)
    plan = plan_scan(FileSystem(), parse_read_options({"path": directory, "subscribe": "doomed"}))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_topics(["doomed"])["doomed"].result(60)
    wait_until(lambda: not (broker.log_directory / "doomed-0").exists(), "The topic was not deleted.")
    with pytest.raises(SegmentLogError, match="doomed"):
        [batch for task in plan.tasks for batch in read_task(FileSystem(), task, schema)]


def test_killed_while_it_appends(tmp_path: Path) -> None:
    """After a kill, we read what the broker serves after its own recovery."""
    with KafkaBroker(tmp_path / "broker", EAGER_SETTINGS) as broker:
        create_topic(broker, "plain", internal_segment_bytes=30_000)
        create_topic(broker, "preallocated", internal_segment_bytes=30_000, preallocate="true")
        for _ in range(2):
            known = {topic: end_offset(broker, topic) for topic in ("plain", "preallocated")}
            producers = [small_batches(broker, compression_type=codec) for codec in ("zstd", "none")]
            deliveries = Deliveries()
            writers = [
                BackgroundProducer(producer, topic, numbered, deliveries)
                for producer, topic in zip(producers, known, strict=True)
            ]
            with writers[0], writers[1]:
                for topic in known:
                    wait_for_records(deliveries, topic, 1000)
                broker.kill()
            killed = {topic: read_slowly(broker.log_directory, topic, 0.0) for topic in known}
            acknowledged = deliveries.snapshot()
            for producer in producers:
                producer.purge()
            broker.start()
            for topic, read in killed.items():
                assert_complete(read)
                assert read.end_offset > known[topic]
                found = {row[:3]: (row.key, row.value) for row in read.rows}
                assert {
                    place: acknowledged[place] for place in acknowledged if place[0] == topic
                }.items() <= found.items()
                consumed = consume(broker, topic, READ_UNCOMMITTED)
                assert_same_rows(read.rows, [row for row in consumed if row.offset < read.end_offset])
                assert len(consumed) == len(read.rows)


class _Ears(logging.Handler):
    """Keeps the warnings of this package."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@pytest.mark.parametrize("count", [40, pytest.param(2_000, marks=pytest.mark.soak)])
def test_no_false_alarm_while_a_broker_is_killed(tmp_path: Path, count: int) -> None:
    """Nothing vouches for more than there is, whatever a broker does: no read fails, none warns, none is too short."""
    topic, rng = "alarmed", random.Random(count)
    ears = _Ears()
    reads = kills = 0
    with KafkaBroker(tmp_path / "broker", EAGER_SETTINGS) as broker:
        create_topic(broker, topic, internal_segment_bytes=30_000, retention_bytes=300_000)
        while reads < count:
            producers = [small_batches(broker, compression_type=codec) for codec in ("zstd", "none")]
            deliveries = Deliveries()
            writers = [BackgroundProducer(each, topic, numbered, deliveries) for each in producers]
            logging.getLogger("storage_core").addHandler(ears)
            with writers[0], writers[1]:
                wait_for_records(deliveries, topic, 1)
                until_kill = reads + min(count // 4, 250)
                while reads < until_kill:
                    acknowledged = last_acknowledged(deliveries)
                    read = read_slowly(
                        broker.log_directory,
                        topic,
                        0.0,
                        mode=rng.choice(("FAILFAST", "DROPMALFORMED")),
                        **rng.choice(WAYS),
                    )
                    assert read.end_offset > acknowledged
                    assert_complete(read)
                    reads += 1
                (broker.kill if rng.random() < 0.7 else broker.stop)()
                kills += 1
            acknowledged = last_acknowledged(deliveries)
            for producer in producers:
                producer.purge()
            for mode in ("FAILFAST", "DROPMALFORMED"):
                read = read_slowly(broker.log_directory, topic, 0.0, mode=mode)
                assert read.end_offset > acknowledged
                assert_complete(read)
            logging.getLogger("storage_core").removeHandler(ears)
            broker.start()
    assert kills >= 4
    assert not ears.said
