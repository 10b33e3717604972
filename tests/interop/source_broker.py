"""A broker's directory worth restoring: offset gaps of all kinds, raised log starts, a group's offsets."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.interop.clients import (
    ISOLATION_LEVELS,
    Consumed,
    consume_partitions,
    create_topic,
    new_producer,
    offsets_at,
    when_it_leads,
)
from tests.interop.make_example_data import TEN_YEARS_MS, wait_until_compacted
from tests.interop.workload import Sendable, produce, records_of_every_shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from confluent_kafka import Producer

    from tests.interop.broker import KafkaBroker

Place = tuple[str, int]

TRANSACTIONS, DELETED, COMPACTED = "from-transactions", "from-deleted", "from-compacted"
EXPIRED = "from-expired"
_SMALL: Final = {"internal_segment_bytes": 20_000, "segment_ms": TEN_YEARS_MS, "retention_ms": -1}
# Topic: partition count and settings.
SOURCE_TOPICS: Final[dict[str, tuple[int, dict[str, object]]]] = {
    TRANSACTIONS: (2, _SMALL),
    DELETED: (3, _SMALL),
    EXPIRED: (1, _SMALL),
    COMPACTED: (
        1,
        {
            **_SMALL,
            "cleanup_policy": "compact",
            "min_cleanable_dirty_ratio": 0.01,
            "file_delete_delay_ms": 1000,
        },
    ),
}
GROUP: Final = "readers"
_TIMEOUT_S = 300.0


# Its repr, which a failing assertion prints, would hold every row.
@dataclass(slots=True, repr=False)
class Source:
    """What was written, and what a consumer got.

    Attributes:
        directory: A copy of the broker's root after a clean stop.
        consumed: By isolation level, topic and partition.
        offsets: Log start and log end offsets.
        group_offsets: The group's committed offsets.
    """

    directory: Path
    consumed: dict[str, dict[Place, Consumed]] = field(default_factory=dict)
    offsets: dict[Place, tuple[int, int]] = field(default_factory=dict)
    group_offsets: dict[Place, int] = field(default_factory=dict)

    @property
    def places(self) -> list[Place]:
        """All partitions."""
        return [(topic, number) for topic, (count, _) in SOURCE_TOPICS.items() for number in range(count)]


def write_source(broker: KafkaBroker, directory: Path) -> Source:
    """Write the topics; the directory is copied later."""
    source = Source(directory)
    for topic, (count, settings) in SOURCE_TOPICS.items():
        create_topic(broker, topic, count, **settings)
    _write_transactions(broker)
    _write_deleted(broker)
    _write_compacted(broker)
    for level in ISOLATION_LEVELS:
        source.consumed[level] = consume_partitions(broker, source.places, level)
    source.offsets = log_offsets(broker, source.places)
    source.group_offsets = {place: sum(source.offsets[place]) // 2 for place in source.places}
    commit_group_offsets(broker, source.group_offsets)
    return source


def commit_group_offsets(broker: KafkaBroker, offsets: dict[Place, int]) -> None:
    """Commit offsets for the consumer group."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": GROUP, "log_level": 0})
    try:
        committed = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        when_it_leads(lambda: consumer.commit(offsets=committed, asynchronous=False))
    finally:
        consumer.close()


def log_offsets(broker: KafkaBroker, places: Iterable[Place]) -> dict[Place, tuple[int, int]]:
    """Return the earliest and latest offsets from ListOffsets."""
    places = list(places)
    earliest = offsets_at(broker, places, OffsetSpec.earliest())
    latest = offsets_at(broker, places, OffsetSpec.latest())
    return {place: (earliest[place].offset, latest[place].offset) for place in places}


def _records(seed: str) -> Iterator[Sendable]:
    """Return records without the one huge value, which exceeds a segment."""
    return (each for each in records_of_every_shape(10_000, seed) if len(each.value or b"") < 1000)


def _produce(producer: Producer, topic: str, partition: int, records: Iterable[Sendable]) -> None:
    for record in records:
        produce(producer, topic, partition, record)
    assert producer.flush(_TIMEOUT_S) == 0


def _some(records: Iterator[Sendable], count: int) -> list[Sendable]:
    return [next(records) for _ in range(count)]


def _write_transactions(broker: KafkaBroker) -> None:
    """Overlap two producers' transactions, with plain records between; one partition ends with an aborted one."""
    source = random.Random("source transactions")
    records = _records("source transactions")
    plain = new_producer(broker, linger_ms=1000, compression_type="lz4")
    producers = [new_producer(broker, transactional_id=f"source-{name}", linger_ms=1000) for name in "ab"]
    for producer in producers:
        producer.init_transactions()
    for number in range(12):
        for producer in producers:
            producer.begin_transaction()
        for producer in (*producers, plain, *producers):
            for partition in (0, 1):
                _produce(producer, TRANSACTIONS, partition, _some(records, source.randrange(1, 12)))
        for producer in producers:
            if number == 11 or source.random() < 0.4:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    _produce(plain, TRANSACTIONS, 1, _some(records, 7))


def _write_deleted(broker: KafkaBroker) -> None:
    """Delete some records of one partition and all of another; the third stays empty. Delete all of one topic."""
    records = _records("source deleted")
    producer = new_producer(broker, linger_ms=1000, compression_type="zstd")
    for topic, partition, count in ((DELETED, 0, 300), (DELETED, 1, 100), (EXPIRED, 0, 60)):
        for _ in range(0, count, 20):
            _produce(producer, topic, partition, _some(records, 20))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    before = [
        TopicPartition(DELETED, 0, 137),
        TopicPartition(DELETED, 1, 100),
        TopicPartition(EXPIRED, 0, 60),
    ]
    for answer in admin.delete_records(before).values():
        answer.result(_TIMEOUT_S)


def _write_compacted(broker: KafkaBroker) -> None:
    producer = new_producer(broker, linger_ms=1000, compression_type="gzip")
    records = (
        each._replace(key=b"key %d" % (n * 31 % 40)) for n, each in enumerate(_records("source compacted"))
    )
    for _ in range(60):
        _produce(producer, COMPACTED, 0, _some(records, 15))
    wait_until_compacted(broker.log_directory, COMPACTED, 0)
