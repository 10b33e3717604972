"""A broker's directory, read by Spark and written with its offsets into a new root for a new broker.

Rows read with read_committed go to topics with other names in the same cluster. `__consumer_offsets` identifies
partitions by topic name and number only, so a restore commits the same group offsets for the same names through a
client.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, KafkaError

from tests.interop.broker_start import BrokerStart, start_and_watch
from tests.interop.clients import (
    ISOLATION_LEVELS,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Consumed,
    Row,
    consume_partitions,
    create_topic,
    row_of_message,
)
from tests.interop.make_example_data import DAY_MS
from tests.interop.placing import place
from tests.interop.source_broker import (
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
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.interop.broker import KafkaBroker

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
        """The directory that Spark wrote for a partition."""
        topic, partition = source_of(restored)
        level = READ_COMMITTED if restored[0] == COMMITTED else READ_UNCOMMITTED
        return self.own[level] / f"{topic}-{partition}"


def source_of(restored: Place) -> Place:
    """The partition from which this one was restored."""
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
    """What a group member gets from the group's offsets to the end of all partitions."""
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
