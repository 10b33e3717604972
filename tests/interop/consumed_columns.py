"""Consumed records as Arrow tables, for partitions with too many records for Python objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from tests.interop.event_rows import HEADERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from confluent_kafka import Message

    from tests.interop.broker import KafkaBroker

COLUMNS = pa.schema(
    [
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("timestamp_ms", pa.int64()),
        ("timestamp_type", pa.int32()),
    ]
)

_MESSAGES_PER_CALL = 10_000
# How long one call waits for its last message.
_CALL_TIMEOUT_S = 0.1
_PATIENCE_CALLS = 1800
_ROWS_PER_BATCH = 50_000


@dataclass(slots=True)
class _Partition:
    messages: list[Message] = field(default_factory=list)
    batches: list[pa.RecordBatch] = field(default_factory=list)

    def flush(self) -> None:
        """Convert the messages to columns, which take a tenth of the memory."""
        columns = zip(*map(_fields, self.messages), strict=True)
        if self.messages:
            arrays = [pa.array(column, kind.type) for column, kind in zip(columns, COLUMNS, strict=True)]
            self.batches.append(pa.RecordBatch.from_arrays(arrays, schema=COLUMNS))
        self.messages = []


def _fields(message: Message) -> tuple[object, ...]:
    timestamp_type, timestamp_ms = message.timestamp()
    return (
        message.offset(),
        message.key(),
        message.value(),
        message.headers() or [],
        timestamp_ms,
        timestamp_type - 1,
    )


def consume_columns(
    broker: KafkaBroker, places: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], pa.Table]:
    """Return all records of these partitions from log start to log end, in the order in which a consumer gets them.

    Returns:
        By topic and partition; missing headers are an empty list.

    Raises:
        AssertionError: The consumer met an error, or timed out.
    """
    partitions = {(topic, partition): _Partition() for topic, partition in places}
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "interop",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "check.crcs": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in partitions])
        _consume_all(consumer, partitions)
    finally:
        consumer.close()
    tables = {}
    for place, partition in partitions.items():
        partition.flush()
        tables[place] = pa.Table.from_batches(partition.batches, COLUMNS)
    return tables


def _consume_all(consumer: Consumer, partitions: dict[tuple[str, int], _Partition]) -> None:
    unfinished = set(partitions)
    patience = _PATIENCE_CALLS
    while unfinished:
        messages = consumer.consume(_MESSAGES_PER_CALL, _CALL_TIMEOUT_S)
        patience = _PATIENCE_CALLS if messages else patience - 1
        assert patience, f"no more records of {sorted(unfinished)}"
        for message in messages:
            error = message.error()
            place = (message.topic(), message.partition())
            if error is None:
                partition = partitions[place]
                partition.messages.append(message)
                if len(partition.messages) == _ROWS_PER_BATCH:
                    partition.flush()
            else:
                assert error.code() == KafkaError._PARTITION_EOF, str(error)
                unfinished.discard(place)
