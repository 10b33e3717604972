"""A broker's directory restored by Spark with its offsets: a new broker serves every record at its old offset.

Rows read with read_committed go to topics with other names in the same cluster. `__consumer_offsets` identifies
partitions by topic name and number only, so a restore commits the same group offsets for the same names through a
client.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka import Consumer, KafkaError

from tests.interop.broker_start import BrokerStart, start_and_watch
from tests.interop.clients import (
    ISOLATION_LEVELS,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Consumed,
    Row,
    assert_same_rows,
    consume_partitions,
    create_topic,
    row_of_message,
)
from tests.interop.conftest import broker_in
from tests.interop.dump_log_segments import complaints_about_indexes
from tests.interop.make_example_data import DAY_MS
from tests.interop.placing import place
from tests.interop.produced import BROKER_SETTINGS
from tests.interop.source_broker import (
    COMPACTED,
    DELETED,
    EXPIRED,
    GROUP,
    SOURCE_TOPICS,
    TRANSACTIONS,
    Place,
    Source,
    commit_group_offsets,
    log_offsets,
)
from tests.interop.spark_jobs import save

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.interop.broker import KafkaBroker
    from tests.interop.written_into_broker import WrittenIntoBroker


# Restored from committed records only.
COMMITTED: Final = "committed-transactions"
# All restored partitions.
RESTORED: Final[list[Place]] = [
    *((topic, number) for topic, (count, _) in SOURCE_TOPICS.items() for number in range(count)),
    *((COMMITTED, number) for number in range(SOURCE_TOPICS[TRANSACTIONS][0])),
]
_TIMEOUT_S = 300.0


# Its repr, which a failing assertion prints, would hold every row.
@dataclass(slots=True, repr=False)
class Restored:
    """What the new broker served.

    Attributes:
        source: What was restored.
        root: The new broker's root.
        own: The roots that Spark wrote, by isolation level.
        start: The new broker's start with the restored logs.
        offsets: The new broker's log start and log end offsets.
        consumed: By isolation level, topic and partition.
        continued: What the consumer group got after its committed offsets.
    """

    source: Source
    root: Path
    own: dict[str, Path]
    start: BrokerStart = field(default_factory=lambda: BrokerStart(""))
    offsets: dict[Place, tuple[int, int]] = field(default_factory=dict)
    consumed: dict[str, dict[Place, Consumed]] = field(default_factory=dict)
    continued: dict[Place, list[Row]] = field(default_factory=dict)

    def own_partition(self, restored: Place) -> Path:
        """Return the directory that Spark wrote for a partition."""
        topic, partition = source_of(restored)
        level = READ_COMMITTED if restored[0] == COMMITTED else READ_UNCOMMITTED
        return self.own[level] / f"{topic}-{partition}"


def source_of(restored: Place) -> Place:
    """Return the partition from which this one was restored."""
    topic, partition = restored
    return (TRANSACTIONS if topic == COMMITTED else topic), partition


def restore(spark: SparkSession, source: Source, broker: KafkaBroker, scratch: Path) -> Restored:
    """Restore with Spark, give the partitions to the broker, and observe it."""
    restored = Restored(source, broker.log_directory, {level: scratch / level for level in ISOLATION_LEVELS})
    topics = {READ_UNCOMMITTED: list(SOURCE_TOPICS), READ_COMMITTED: [TRANSACTIONS]}
    for level, subscribed in topics.items():
        read = spark.read.format("segmentlog").option("includeHeaders", "true")
        read = read.option("subscribe", ",".join(subscribed)).option("isolationLevel", level)
        save(
            read.load(str(source.directory)),
            restored.own[level],
            preserveOffsets="true",
            offsetsFrom=str(source.directory),
            compression__type="lz4",
            internal__segment__bytes=20_000,
            batch__size=4_000,
        )

    with broker:
        for topic, (count, settings) in {**SOURCE_TOPICS, COMMITTED: SOURCE_TOPICS[TRANSACTIONS]}.items():
            # Otherwise the cleaner could run before the comparison.
            create_topic(broker, topic, count, **{**settings, "min_compaction_lag_ms": 1000 * DAY_MS})
    for topic, (count, _) in SOURCE_TOPICS.items():
        place(restored.own[READ_UNCOMMITTED], broker.log_directory, topic, partitions=count)
    count, _ = SOURCE_TOPICS[TRANSACTIONS]
    committed = restored.own[READ_COMMITTED]
    place(committed, broker.log_directory, COMMITTED, source_topic=TRANSACTIONS, partitions=count)

    restored.start = start_and_watch(broker)
    restored.offsets = log_offsets(broker, RESTORED)
    for level in ISOLATION_LEVELS:
        restored.consumed[level] = consume_partitions(broker, RESTORED, level)
    commit_group_offsets(broker, source.group_offsets)
    restored.continued = _continue_as_group(broker, source.places)
    broker.stop()
    return restored


def _continue_as_group(broker: KafkaBroker, places: list[Place]) -> dict[Place, list[Row]]:
    """Return what a group member gets from the group's offsets to the end of all partitions."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": GROUP,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": READ_UNCOMMITTED,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    rows: dict[Place, list[Row]] = {place: [] for place in places}
    unfinished = set(places)
    try:
        consumer.subscribe(list(SOURCE_TOPICS))
        while unfinished:
            message = consumer.poll(_TIMEOUT_S)
            assert message is not None, f"no more records of {sorted(unfinished)}"
            error = message.error()
            if error is None:
                row = row_of_message(message)
                rows[row.topic, row.partition].append(row)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, str(error)
                unfinished.discard((message.topic(), message.partition()))
    finally:
        consumer.close()
    return rows


pytestmark = pytest.mark.spark

# The directory name of a topic and partition.
NAME = "{0[0]}-{0[1]}".format


def expected_rows(restored: Restored, place: tuple[str, int]) -> list[Row]:
    """Return what a consumer of the source got: all records, or only the committed ones where only those were restored."""
    level = READ_COMMITTED if place[0] == COMMITTED else READ_UNCOMMITTED
    rows = restored.source.consumed[level][source_of(place)].rows
    return [row._replace(topic=place[0]) for row in rows]


@pytest.fixture(scope="module")
def restored_by_spark(
    spark: SparkSession,
    written_into_broker: WrittenIntoBroker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Restored]:
    """Yield a broker's partitions, restored for another broker."""
    scratch = tmp_path_factory.mktemp("restored-by-spark")
    with broker_in(scratch, BROKER_SETTINGS) as broker:
        yield restore(spark, written_into_broker.source, broker, scratch)


def test_the_source_has_gaps_of_all_kinds(restored_by_spark: Restored) -> None:
    source = restored_by_spark.source
    all_rows, committed = source.consumed[READ_UNCOMMITTED], source.consumed[READ_COMMITTED]
    start, end = source.offsets[TRANSACTIONS, 0]
    last = all_rows[TRANSACTIONS, 0].rows[-1].offset
    assert last < end - 1, "no marker at the end"
    assert committed[TRANSACTIONS, 0].rows[-1].offset < last, "no aborted records at the end"
    assert source.offsets[DELETED, 0] == (137, 300)
    assert source.offsets[DELETED, 1] == (100, 100)
    assert source.offsets[DELETED, 2] == (0, 0)
    assert source.offsets[EXPIRED, 0] == (60, 60)
    start, end = source.offsets[COMPACTED, 0]
    assert 40 <= len(all_rows[COMPACTED, 0].rows) < (end - start) // 2
    assert any(None in dict(row.headers).values() for row in all_rows[DELETED, 0].rows)


@pytest.mark.parametrize("place", RESTORED, ids=NAME)
def test_broker_loads_it_without_complaints(restored_by_spark: Restored, place: tuple[str, int]) -> None:
    start = restored_by_spark.start
    assert start.skipped_recovery
    assert not start.recovered_segments(*place)
    loaded = start.loaded()[place]
    assert (loaded.log_start_offset, loaded.log_end_offset) == restored_by_spark.offsets[place]
    assert not start.complaints(*place)


def test_start_logs_no_warnings(restored_by_spark: Restored) -> None:
    assert set(RESTORED) <= set(restored_by_spark.start.loaded())
    assert not restored_by_spark.start.unusual()


def test_dump_log_segments_accepts_every_index(restored_by_spark: Restored) -> None:
    uncommitted = [place for place in RESTORED if place[0] != COMMITTED]
    committed = [place for place in RESTORED if place[0] == COMMITTED]
    for places in (uncommitted, committed):
        assert not complaints_about_indexes(map(restored_by_spark.own_partition, places))


@pytest.mark.parametrize("place", RESTORED, ids=NAME)
def test_log_start_and_log_end_are_those_of_the_source(
    restored_by_spark: Restored, place: tuple[str, int]
) -> None:
    assert restored_by_spark.offsets[place] == restored_by_spark.source.offsets[source_of(place)]


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
@pytest.mark.parametrize("place", RESTORED, ids=NAME)
def test_every_record_is_where_it_was(
    restored_by_spark: Restored, place: tuple[str, int], isolation_level: str
) -> None:
    """The restored logs contain no transactions, so both isolation levels read the same."""
    consumed = restored_by_spark.consumed[isolation_level][place]
    assert consumed.error is None
    assert_same_rows(consumed.rows, expected_rows(restored_by_spark, place))
    assert consumed.end_offset == restored_by_spark.source.offsets[source_of(place)][1]


@pytest.mark.parametrize("place", [place for place in RESTORED if place[0] != COMMITTED], ids=NAME)
def test_group_continues_where_it_was(restored_by_spark: Restored, place: tuple[str, int]) -> None:
    committed = restored_by_spark.source.group_offsets[place]
    rows = restored_by_spark.source.consumed[READ_UNCOMMITTED][place].rows
    assert_same_rows(restored_by_spark.continued[place], [row for row in rows if row.offset >= committed])


def test_group_had_read_part_of_the_records(restored_by_spark: Restored) -> None:
    source = restored_by_spark.source
    for each in ((TRANSACTIONS, 0), (TRANSACTIONS, 1), (DELETED, 0), (COMPACTED, 0)):
        start, end = source.offsets[each]
        assert start < source.group_offsets[each] < end
        assert restored_by_spark.continued[place]
