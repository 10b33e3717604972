"""Spark writes into the directory of a stopped broker: the broker loads and serves it, and old clients continue.

The broker starts empty. Clients write, the broker stops, jobs append and overwrite, the broker starts again, and the
earlier clients, which have stayed alive, continue with the same producer ids, sequence numbers and transactions. Then
commits are killed, and the broker refuses to start until their replay; a last start serves everything.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow.compute as pc
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from storage_core import LogDirectory
from tests.interop.broker import MAX_TRANSACTION_TIMEOUT_MS, BrokerError, KafkaBroker
from tests.interop.broker_start import BrokerStart, start_and_watch
from tests.interop.clients import Deliveries, Place, create_topic, log_offsets, new_producer, wait_for_markers
from tests.interop.conftest import broker_in
from tests.interop.consumed_columns import consume_columns
from tests.interop.dump_log_segments import complaints_about_indexes
from tests.interop.event_rows import SCHEMA, Events, Seen, numbers_of, row_maker
from tests.interop.killed_commit import ROWS_OF_KILLED_JOB, commit_until_killed, values_of_killed_job
from tests.interop.partition_state import ProducerEntry, state_of
from tests.interop.produced import BROKER_SETTINGS
from tests.interop.spark_jobs import error_of_save, save

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa
    from confluent_kafka import Producer
    from pyspark.sql import SparkSession

    from tests.interop.broker import KafkaBroker
    from tests.interop.clients import Place


EMPTY, FILLED, ROLLED = "into-empty", "into-filled", "into-rolled"
TRANSACTIONS, IDEMPOTENT, LOST = "into-transactions", "into-idempotent", "into-lost"
OVERWRITTEN, KILLED, OPEN = "into-overwritten", "into-killed", "into-open"
_SMALL_SEGMENTS: Final = {"internal_segment_bytes": 20_000}
# Topic: partition count and settings.
TOPICS: Final[dict[str, tuple[int, dict[str, object]]]] = {
    EMPTY: (3, {}),
    FILLED: (3, {}),
    ROLLED: (2, _SMALL_SEGMENTS),
    TRANSACTIONS: (2, {}),
    IDEMPOTENT: (2, {}),
    LOST: (2, {}),
    OVERWRITTEN: (3, _SMALL_SEGMENTS),
    KILLED: (2, {}),
    OPEN: (1, {}),
}
# The topics to which jobs append.
GROWN: Final = (EMPTY, FILLED, ROLLED, TRANSACTIONS, IDEMPOTENT, LOST)
# Records per partition and round; topics with small segments get some hundred.
SENT: Final = 40
_MANY: Final = 600
_TIMEOUT_S = 300.0


def places_of(*topics: str) -> list[Place]:
    """Return all partitions of these topics."""
    return [(topic, number) for topic in topics for number in range(TOPICS[topic][0])]


class EarlierClients:
    """Creates the topics and writes to them, once before the jobs and once after the restart."""

    def __init__(self, broker: KafkaBroker) -> None:
        for topic, (count, settings) in TOPICS.items():
            create_topic(broker, topic, count, **settings)
        self._broker = broker
        self._deliveries = Deliveries()
        self._idempotent = new_producer(broker, enable_idempotence=True, linger_ms=5)
        self._transactional, self._open = (
            new_producer(
                broker, transactional_id=name, transaction_timeout_ms=MAX_TRANSACTION_TIMEOUT_MS, linger_ms=5
            )
            for name in ("of-before", "open")
        )
        for producer in (self._transactional, self._open):
            producer.init_transactions()

    def write(self) -> None:
        """Write to every topic except the one that stays empty."""
        plain = new_producer(self._broker, linger_ms=5, batch_num_messages=10)
        for place in places_of(FILLED, ROLLED, LOST, OVERWRITTEN, KILLED):
            count = _MANY if TOPICS[place[0]][1] else SENT
            self._produce(plain, [place], (b"before %d " % number + b"." * 100 for number in range(count)))
        plain.flush()
        self._produce(self._idempotent, places_of(IDEMPOTENT), _values("before"))
        self._idempotent.flush()
        for end in (self._transactional.commit_transaction, self._transactional.abort_transaction) * 2:
            self._transactional.begin_transaction()
            self._produce(self._transactional, places_of(TRANSACTIONS), _values("before"))
            self._transactional.flush()
            end()
        # A marker that comes later would be behind the end that is noted for the jobs.
        wait_for_markers(self._broker, places_of(TRANSACTIONS))
        self._open.begin_transaction()
        self._produce(self._open, places_of(OPEN), _values("before"))
        self._open.flush()
        self._delete_some()

    def go_on(self) -> dict[tuple[str, int, int], tuple[bytes | None, bytes | None]]:
        """Write more with the same producers.

        Returns:
            Key and value of each acknowledged record, by topic, partition and offset.
        """
        self._deliveries = Deliveries()
        self._produce(self._idempotent, places_of(IDEMPOTENT), _values("after"))
        self._idempotent.flush()
        self._transactional.begin_transaction()
        self._produce(self._transactional, places_of(TRANSACTIONS), _values("after"))
        self._transactional.commit_transaction()
        self._open.commit_transaction()
        wait_for_markers(self._broker, [*places_of(TRANSACTIONS), *places_of(OPEN)])
        assert not self._deliveries.errors, self._deliveries.errors[0]
        return self._deliveries.snapshot()

    def _produce(self, producer: Producer, places: list[Place], values: Iterable[bytes]) -> None:
        for value in values:
            for topic, partition in places:
                producer.produce(topic, value, partition=partition, on_delivery=self._deliveries)

    def _delete_some(self) -> None:
        """Raise the log start of a partition that will be lost; the root's checkpoint still names it."""
        admin = AdminClient({"bootstrap.servers": self._broker.bootstrap_servers})
        for answer in admin.delete_records([TopicPartition(LOST, 0, SENT // 2)]).values():
            answer.result(_TIMEOUT_S)


def _values(when: str) -> Iterable[bytes]:
    return (f"{when} {number}".encode() for number in range(SENT))


# The row numbers of each job.
SMALL_JOBS: Final = (range(6_000), range(6_000, 9_000))
LARGE_JOB: Final = range(100_000, 140_000)
OVERWRITTEN_ROWS: Final = 30
BEFORE, AFTER_THE_JOBS, AFTER_THE_REPLAYS = "before", "after the jobs", "after the replays"


# Its repr, which a failing assertion prints, would hold every row.
@dataclass(slots=True, repr=False)
class WrittenIntoBroker:
    """The directories and the observations on them.

    Attributes:
        before: A copy of the root before the jobs.
        root: The broker's root.
        seen: What the tasks of the job with large pieces saw.
        topic_ids: The cluster's topic ids.
        consumed: What a read_committed consumer got, by occasion, topic and partition.
        offsets: Log start and log end offsets, by occasion, topic and partition.
        producers: The producers in the snapshot at the log end, by occasion, including the one before the clean start.
        continued: What the earlier producers appended, by topic, partition and offset.
        clean_start: The start after the jobs.
        errors: Why jobs to a topic with an open transaction and jobs on a running broker were refused; by topic.
        refusals: Why the broker did not start after each killed commit.
        last_start: The start after the replays.
    """

    before: Path
    root: Path
    seen: Seen
    topic_ids: dict[str, str] = field(default_factory=dict)
    consumed: dict[str, dict[Place, pa.Table]] = field(default_factory=dict)
    offsets: dict[str, dict[Place, tuple[int, int]]] = field(default_factory=dict)
    producers: dict[str, dict[Place, list[ProducerEntry]]] = field(default_factory=dict)
    continued: dict[tuple[str, int, int], tuple[bytes | None, bytes | None]] = field(default_factory=dict)
    clean_start: BrokerStart = field(default_factory=lambda: BrokerStart(""))
    errors: dict[str, str] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    last_start: BrokerStart = field(default_factory=lambda: BrokerStart(""))

    def look(self, broker: KafkaBroker, occasion: str) -> None:
        """Note what a consumer gets now."""
        self.consumed[occasion] = consume_columns(broker, places_of(*TOPICS))
        self.offsets[occasion] = log_offsets(broker, places_of(*TOPICS))

    def look_at_producers(self, occasion: str) -> None:
        """Note the snapshots of the closed logs."""
        self.producers[occasion] = {
            place: max(state_of(self.root / f"{place[0]}-{place[1]}").snapshots.items(), default=("", []))[1]
            for place in places_of(IDEMPOTENT, TRANSACTIONS)
        }


def write_into_broker(spark: SparkSession, broker: KafkaBroker, scratch: Path) -> WrittenIntoBroker:
    """Write with clients, then Spark, then clients; then kill commits."""
    broker.start()
    written = WrittenIntoBroker(scratch / "before", broker.log_directory, Seen(scratch, "large"))
    clients = EarlierClients(broker)
    clients.write()
    written.look(broker, BEFORE)
    broker.stop()
    written.look_at_producers(BEFORE)
    written.topic_ids = {topic: _topic_id(broker.log_directory / f"{topic}-0") for topic in TOPICS}
    shutil.copytree(broker.log_directory, written.before)

    for topic, partition in places_of(LOST):
        shutil.rmtree(broker.log_directory / f"{topic}-{partition}")
    _run_jobs(spark, written)
    written.look_at_producers(AFTER_THE_JOBS)
    row = spark.sql("SELECT 'is not written' AS value")
    options: dict[str, object] = {"brokerDirectory": "true"}
    written.errors[OPEN] = error_of_save(row, written.root, topic=OPEN, **options)
    written.clean_start = start_and_watch(broker)
    written.errors[EMPTY] = error_of_save(row, written.root, topic=EMPTY, **options)
    written.look(broker, AFTER_THE_JOBS)
    written.continued = clients.go_on()
    broker.stop()
    written.look_at_producers(AFTER_THE_REPLAYS)

    commit_until_killed(broker.log_directory, KILLED, version=1)
    written.refusals.append(_refusal(broker))
    with LogDirectory.open(broker.log_directory, broker_directory=True):
        # Opening replays the commit.
        pass
    commit_until_killed(broker.log_directory, KILLED, version=2)
    written.refusals.append(_refusal(broker))
    # The commit was replayed, so this job is a no-op.
    save(row, broker.log_directory, topic=KILLED, txnAppId="killed", txnVersion=2, **options)
    written.last_start = start_and_watch(broker)
    written.look(broker, AFTER_THE_REPLAYS)
    broker.stop()
    return written


def _topic_id(partition: Path) -> str:
    return (partition / "partition.metadata").read_text().split()[-1]


def _run_jobs(spark: SparkSession, written: WrittenIntoBroker) -> None:
    """Run two jobs with small pieces, one with large ones, one that overwrites."""
    root = written.root
    for job in (*SMALL_JOBS, LARGE_JOB):
        rows = spark.range(job.start, job.stop, 1, 3)
        options: dict[str, object] = {}
        seen = Seen(written.seen.directory, "small")
        if job is LARGE_JOB:
            seen = written.seen
            options = {"internal__segment__bytes": 30_000, "batch__size": 4_096}
        save(
            rows.mapInArrow(row_maker(Events(GROWN), root, seen), SCHEMA),
            root,
            brokerDirectory="true",
            partitions=TOPICS[LOST][0],
            topicIds=f'{{"{LOST}":"{written.topic_ids[LOST]}"}}',
            **options,
        )
    new = spark.range(OVERWRITTEN_ROWS).selectExpr("CONCAT('new ', id) AS value", "1 AS partition")
    save(new.coalesce(1), root, "overwrite", brokerDirectory="true", topic=OVERWRITTEN)


def _refusal(broker: KafkaBroker) -> str:
    try:
        broker.start()
    except BrokerError as error:
        return str(error)
    raise AssertionError("the broker started with an unfinished commit")


pytestmark = pytest.mark.spark

# The directory name of a topic and partition.
NAME = "{0[0]}-{0[1]}".format

WRITTEN = places_of(*GROWN, OVERWRITTEN)
DELETED_BELOW_THE_LOG_START = r"Deleting segments due to log start offset 600 breach: "
VERSIONS_OF_KILLED_JOBS = (1, 2)


@pytest.fixture(scope="module")
def written_into_broker(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WrittenIntoBroker]:
    """Yield a broker's directory into which Spark jobs wrote while the broker was stopped."""
    scratch = tmp_path_factory.mktemp("written-into-broker")
    with broker_in(scratch, BROKER_SETTINGS) as broker:
        yield write_into_broker(spark, broker, scratch)


def values(table: pa.Table) -> list[bytes]:
    return table["value"].to_pylist()


def contents(partition: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in partition.iterdir()}


def added(written: WrittenIntoBroker, topic: str, partition: int) -> pa.Table:
    """Return what a consumer gets after the earlier records, which must be unchanged."""
    before = written.consumed[BEFORE][topic, partition]
    after = written.consumed[AFTER_THE_JOBS][topic, partition]
    if topic == LOST:
        return after
    assert after.slice(0, before.num_rows).equals(before)
    return after.slice(before.num_rows)


@pytest.mark.parametrize(("topic", "partition"), WRITTEN)
def test_broker_loads_it_without_complaints(
    written_into_broker: WrittenIntoBroker, topic: str, partition: int
) -> None:
    start = written_into_broker.clean_start
    assert start.skipped_recovery
    assert not start.recovered_segments(topic, partition)
    loaded = start.loaded()[topic, partition]
    assert loaded.topic_id == written_into_broker.topic_ids[topic]
    offsets = (loaded.log_start_offset, loaded.log_end_offset)
    assert offsets == written_into_broker.offsets[AFTER_THE_JOBS][topic, partition]
    complaints = start.complaints(topic, partition)
    if topic == OVERWRITTEN:
        # The broker soon deletes records below the log start, as after DeleteRecords.
        complaints = [line for line in complaints if not re.search(DELETED_BELOW_THE_LOG_START, line)]
    assert not complaints


def test_starts_log_no_warnings(written_into_broker: WrittenIntoBroker) -> None:
    for start in (written_into_broker.clean_start, written_into_broker.last_start):
        assert set(WRITTEN) <= set(start.loaded())
        assert not start.unusual()
    assert not list(written_into_broker.root.glob("*-stray"))


def test_dump_log_segments_accepts_every_index(written_into_broker: WrittenIntoBroker) -> None:
    root = written_into_broker.root
    assert not complaints_about_indexes(root / f"{topic}-{number}" for topic, number in WRITTEN)


@pytest.mark.parametrize("topic", GROWN)
def test_three_jobs_append_after_the_existing_records(
    written_into_broker: WrittenIntoBroker, topic: str
) -> None:
    expected = np.concatenate([np.arange(job.start, job.stop) for job in (*SMALL_JOBS, LARGE_JOB)])
    found = []
    for _, partition in places_of(topic):
        table = added(written_into_broker, topic, partition)
        _, end_before = written_into_broker.offsets[BEFORE][topic, partition]
        first = 0 if topic == LOST else end_before
        assert table["offset"].to_pylist() == list(range(first, first + table.num_rows))
        numbers = numbers_of(table["value"], table["timestamp_ms"])
        assert (np.diff(numbers) > 0).all()
        rows = Events(GROWN).rows(numbers, null_headers=False)
        for column in ("key", "value", "headers"):
            assert table[column].combine_chunks().equals(rows[column]), column
        explicit = rows["timestamp"].is_valid()
        expected_ms = pc.divide(rows["timestamp"].cast("int64"), 1000).filter(explicit)
        assert table["timestamp_ms"].combine_chunks().filter(explicit).equals(expected_ms)
        found.append(numbers)
    of_topic = expected[expected // 3 % len(GROWN) == GROWN.index(topic)]
    assert sorted(np.concatenate(found).tolist()) == of_topic.tolist()


@pytest.mark.parametrize(("topic", "partition"), places_of(*(topic for topic in GROWN if topic != LOST)))
def test_small_pieces_are_appended_and_large_ones_become_segments(
    written_into_broker: WrittenIntoBroker, topic: str, partition: int
) -> None:
    """The jobs change no existing byte."""
    large = written_into_broker.seen
    assert large.large_pieces.exists()
    assert not dataclasses.replace(large, name="small").large_pieces.exists()
    name = f"{topic}-{partition}"
    before = {
        name: content
        for name, content in contents(written_into_broker.before / name).items()
        if name.endswith(".log")
    }
    after = contents(written_into_broker.root / name)
    *closed, last = sorted(before)
    assert all(after[log] == before[log] for log in closed)
    assert after[last].startswith(before[last])
    assert len(after[last]) > len(before[last])
    assert len([log for log in after if log.endswith(".log")]) >= len(before) + 2


def test_a_lost_partition_starts_empty(written_into_broker: WrittenIntoBroker) -> None:
    """The root's checkpoints still name the lost partition."""
    assert written_into_broker.offsets[BEFORE][LOST, 0] == (SENT // 2, SENT)
    for place in places_of(LOST):
        start, end = written_into_broker.offsets[AFTER_THE_JOBS][place]
        assert start == 0
        assert end == written_into_broker.consumed[AFTER_THE_JOBS][place].num_rows > 0


def test_overwriting_leaves_only_the_new_rows(written_into_broker: WrittenIntoBroker) -> None:
    for place in places_of(OVERWRITTEN):
        _, end_before = written_into_broker.offsets[BEFORE][place]
        start, end = written_into_broker.offsets[AFTER_THE_JOBS][place]
        table = written_into_broker.consumed[AFTER_THE_JOBS][place]
        has_rows = place[1] == 1
        assert end_before == 600
        assert start == end_before
        assert end == end_before + (OVERWRITTEN_ROWS if has_rows else 0)
        assert table["offset"].to_pylist() == list(range(start, end))
        assert values(table) == [b"new %d" % number for number in range(end - start)]


@pytest.mark.parametrize("place", places_of(IDEMPOTENT, TRANSACTIONS), ids=NAME)
def test_snapshot_after_the_rows_keeps_the_earlier_producers(
    written_into_broker: WrittenIntoBroker, place: tuple[str, int]
) -> None:
    before = written_into_broker.producers[BEFORE][place]
    assert len(before) == 1
    assert written_into_broker.producers[AFTER_THE_JOBS][place] == before


@pytest.mark.parametrize("place", places_of(IDEMPOTENT, TRANSACTIONS), ids=NAME)
def test_earlier_producers_continue(written_into_broker: WrittenIntoBroker, place: tuple[str, int]) -> None:
    _, end = written_into_broker.offsets[AFTER_THE_JOBS][place]
    continued = {each[2]: row for each, row in written_into_broker.continued.items() if each[:2] == place}
    assert continued == {end + number: (None, b"after %d" % number) for number in range(SENT)}
    table = written_into_broker.consumed[AFTER_THE_REPLAYS][place]
    assert values(table)[-SENT:] == [b"after %d" % number for number in range(SENT)]


@pytest.mark.parametrize("place", places_of(IDEMPOTENT), ids=NAME)
def test_sequence_numbers_continue(written_into_broker: WrittenIntoBroker, place: tuple[str, int]) -> None:
    (before,) = written_into_broker.producers[BEFORE][place]
    (after,) = written_into_broker.producers[AFTER_THE_REPLAYS][place]
    assert before.last_sequence == SENT - 1
    assert after[:3] == (before.producer_id, before.producer_epoch, 2 * SENT - 1)


def test_a_job_after_an_open_transaction_is_refused(written_into_broker: WrittenIntoBroker) -> None:
    """Consumers would not see its rows. The transaction continues and is committed."""
    assert (
        f"Expected no open transaction in {OPEN}-0, found one from offset 0"
        in written_into_broker.errors[OPEN]
    )
    assert written_into_broker.offsets[AFTER_THE_JOBS][OPEN, 0] == (0, SENT)
    assert written_into_broker.consumed[AFTER_THE_JOBS][OPEN, 0].num_rows == 0
    table = written_into_broker.consumed[AFTER_THE_REPLAYS][OPEN, 0]
    assert values(table) == [b"before %d" % number for number in range(SENT)]


def test_a_job_on_a_running_broker_is_refused(written_into_broker: WrittenIntoBroker) -> None:
    assert "LogDirectoryLockedError" in written_into_broker.errors[EMPTY]
    assert str(written_into_broker.root) in written_into_broker.errors[EMPTY]


def test_broker_refuses_to_start_with_an_unfinished_commit(written_into_broker: WrittenIntoBroker) -> None:
    assert len(written_into_broker.refusals) == 2
    for refusal in written_into_broker.refusals:
        assert f"{written_into_broker.root}/segmentlog.commit-in-progress" in refusal
        assert "not in the form of topic-partition" in refusal


@pytest.mark.parametrize("place", places_of(KILLED), ids=NAME)
def test_rows_of_killed_commits_appear_once_after_the_replays(
    written_into_broker: WrittenIntoBroker, place: tuple[str, int]
) -> None:
    topic, partition = place
    before = written_into_broker.consumed[AFTER_THE_JOBS][place]
    after = written_into_broker.consumed[AFTER_THE_REPLAYS][place]
    assert after.slice(0, before.num_rows).equals(before)
    expected = [
        value
        for version in VERSIONS_OF_KILLED_JOBS
        for value in values_of_killed_job(topic, partition, version)
    ]
    assert values(after.slice(before.num_rows)) == expected
    assert len(expected) == 2 * ROWS_OF_KILLED_JOB
    assert after["offset"].to_pylist() == list(range(after.num_rows))


def test_broker_starts_clean_after_the_replays(written_into_broker: WrittenIntoBroker) -> None:
    start = written_into_broker.last_start
    assert start.skipped_recovery
    for place in places_of(KILLED, *GROWN, OVERWRITTEN):
        assert not start.complaints(*place)
        assert not start.recovered_segments(*place)
    names = {path.name for path in written_into_broker.root.iterdir()}
    assert not [name for name in names if name.startswith((".segmentlog-journal", ".segmentlog-stage"))]
    assert "segmentlog.commit-in-progress" not in names


@pytest.mark.parametrize("place", places_of(EMPTY, LOST, OVERWRITTEN), ids=NAME)
def test_partitions_without_later_jobs_are_unchanged(
    written_into_broker: WrittenIntoBroker, place: tuple[str, int]
) -> None:
    before = written_into_broker.consumed[AFTER_THE_JOBS][place]
    assert written_into_broker.consumed[AFTER_THE_REPLAYS][place].equals(before)
