"""A log directory with some hundred partitions of every kind, and what consumers read from each.

A current broker writes most of them. Others come from tests/conformance/cases and replace partitions of the broker:
formats v0 and v1, which a current broker only reads, compacted logs, and logs with many leader epochs.
"""

from __future__ import annotations

import base64
import random
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from conformance.archives import unpack_case

from tests.interop.clients import READ_UNCOMMITTED, Row, consume_partitions, create_topic, new_producer
from tests.interop.workload import Sendable, produce, records_of_every_shape

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from confluent_kafka import Producer

    from tests.interop.broker import KafkaBroker


class Place(NamedTuple):
    """One partition."""

    topic: str
    partition: int

    @property
    def directory(self) -> str:
        return f"{self.topic}-{self.partition}"


class _Kind(NamedTuple):
    """Partitions that a broker writes."""

    partitions: int
    topic: Mapping[str, object]
    producer: Mapping[str, object]
    rounds: int = 14
    records: int = 10
    longest: int = 1000


_SMALL: dict[str, object] = {"internal_segment_bytes": 12_000}
_PRODUCER: dict[str, object] = {"linger_ms": 1000, "batch_size": 8_000}

_WRITTEN: dict[str, _Kind] = {
    **{
        codec: _Kind(16, _SMALL, {**_PRODUCER, "compression_type": codec})
        for codec in ("none", "gzip", "snappy", "lz4", "zstd")
    },
    "idempotent": _Kind(
        14,
        {**_SMALL, "index_interval_bytes": 500},
        {**_PRODUCER, "enable_idempotence": True, "compression_type": "lz4"},
    ),
    "transactions": _Kind(28, {**_SMALL, "index_interval_bytes": 0}, _PRODUCER, rounds=20),
    "append-time": _Kind(8, {**_SMALL, "message_timestamp_type": "LogAppendTime"}, _PRODUCER),
    "log-start": _Kind(16, _SMALL, {**_PRODUCER, "compression_type": "snappy"}),
    "one-segment": _Kind(10, {}, _PRODUCER),
    "large-batches": _Kind(
        8,
        {"internal_segment_bytes": 300_000},
        {"linger_ms": 1000, "batch_size": 200_000, "compression_type": "zstd"},
        rounds=8,
        records=150,
        longest=2_000,
    ),
}
# Case and partition directories, and the number of copies of each.
_PLACED: dict[str, tuple[tuple[str, ...], int]] = {
    "magic0": (("m0-broker-0", "m0-gzip-0", "m0-lz4-0", "m0-none-0", "m0-none-1", "m0-snappy-0"), 4),
    "magic1": (
        ("m1-append-0", "m1-broker-0", "m1-gzip-0", "m1-lz4-0", "m1-none-0", "m1-none-1", "m1-snappy-0"),
        3,
    ),
    "mixed-magic": (("mixed-0", "mixed-1", "mixed-one-segment-0"), 4),
    "legacy-compact": (("lc0-drop-0", "lc0-keep-0", "lc1-drop-0", "lc1-keep-0"), 2),
    "upgrade": (("up0-plain-0", "up0-compact-0", "up1-plain-0", "up1-compact-0"), 2),
    "compact": (("compact-keep-0", "compact-drop-0", "compact-append-0", "compact-zstd-0"), 2),
    "leader-epochs": (("epochs-0", "epochs-1", "epochs-few-0"), 2),
}


def _placed_topics() -> Iterator[tuple[str, str, str, int]]:
    for case, (directories, copies) in _PLACED.items():
        for directory in directories:
            yield f"{case}-{directory.rpartition('-')[0]}-{directory[-1]}", case, directory, copies


_TOPICS: dict[str, int] = {name: kind.partitions for name, kind in _WRITTEN.items()}
_TOPICS.update({topic: copies for topic, _, _, copies in _placed_topics()})

PARTITIONS = tuple(Place(topic, number) for topic, count in _TOPICS.items() for number in range(count))


@dataclass(slots=True)
class Filled:
    """An undamaged log directory after a clean stop.

    Attributes:
        rows: What a read_uncommitted consumer got from each partition before records were deleted.
        log_start_offsets: Those that are not 0.
    """

    directory: Path
    rows: dict[Place, list[Row]] = field(default_factory=dict)
    log_start_offsets: dict[Place, int] = field(default_factory=dict)


def fill(broker: KafkaBroker, scratch: Path, seed: object) -> Filled:
    """Let a running broker write its partitions, stop it, and place the others into a copy of its directory."""
    for topic, count in _TOPICS.items():
        create_topic(broker, topic, count, **(_WRITTEN[topic].topic if topic in _WRITTEN else {}))
    for topic in _WRITTEN:
        if topic == "transactions":
            _write_transactions(broker, seed)
        else:
            _write(broker, topic, seed)
    filled = Filled(scratch / "filled")
    written = [place for place in PARTITIONS if place.topic in _WRITTEN]
    for place, consumed in consume_partitions(broker, written, READ_UNCOMMITTED).items():
        assert not consumed.error, consumed.error
        filled.rows[Place(*place)] = consumed.rows
    filled.log_start_offsets = _delete_records(broker, seed)
    broker.stop()
    shutil.copytree(broker.log_directory, filled.directory)
    unpacked: dict[str, tuple[Path, dict[str, Any]]] = {}
    for topic, case, directory, copies in _placed_topics():
        if case not in unpacked:
            unpacked[case] = unpack_case(case, scratch / "cases" / case)
        logs, expected = unpacked[case]
        for number in range(copies):
            _put(logs / directory, filled.directory / f"{topic}-{number}")
            records = expected["partitions"][directory]["records"]
            filled.rows[Place(topic, number)] = [_row(topic, number, record) for record in records]
    return filled


def _records(topic: str, partition: int, seed: object, longest: int) -> Iterator[Sendable]:
    """Records without the one huge value, which exceeds a segment."""
    shapes = records_of_every_shape(100_000, f"{seed} {topic} {partition}")
    return (record for record in shapes if len(record.value or b"") <= longest)


def _write(broker: KafkaBroker, topic: str, seed: object) -> None:
    """Fill a topic's partitions in rounds of one batch, or a few, for each."""
    kind = _WRITTEN[topic]
    source = random.Random(f"{seed} {topic}")
    producer = new_producer(broker, **kind.producer)
    records = [_records(topic, number, seed, kind.longest) for number in range(kind.partitions)]
    errors: list[str] = []
    for _ in range(kind.rounds):
        for number in range(kind.partitions):
            _produce(producer, topic, number, records[number], source.randint(1, kind.records), errors)
        producer.flush()
    assert not errors, errors[0]


def _produce(
    producer: Producer,
    topic: str,
    partition: int,
    records: Iterator[Sendable],
    count: int,
    errors: list[str],
) -> None:
    for record, _ in zip(records, range(count), strict=False):
        produce(
            producer,
            topic,
            partition,
            record,
            lambda error, _: errors.append(str(error)) if error else None,
        )


def _write_transactions(broker: KafkaBroker, seed: object) -> None:
    """Interleave two producers' committed and aborted transactions with plain records; some stay open."""
    kind = _WRITTEN["transactions"]
    source = random.Random(f"{seed} transactions")
    plain = new_producer(broker, **kind.producer)
    transactional = [
        new_producer(
            broker,
            transactional_id=f"transactions-{codec}",
            transaction_timeout_ms=86_400_000,
            compression_type=codec,
            **kind.producer,
        )
        for codec in ("zstd", "none", "lz4")
    ]
    for producer in transactional:
        producer.init_transactions()
    *finishing, staying_open = transactional
    records = [_records("transactions", number, seed, kind.longest) for number in range(kind.partitions)]
    errors: list[str] = []

    def some(producer: Producer, share: float) -> None:
        for number in range(kind.partitions):
            if source.random() < share:
                count = source.randint(1, kind.records // 2)
                _produce(producer, "transactions", number, records[number], count, errors)
        producer.flush()

    for round_number in range(kind.rounds):
        if round_number == kind.rounds - 3:
            staying_open.begin_transaction()
            some(staying_open, 0.4)
        for producer in finishing:
            producer.begin_transaction()
            some(producer, 0.7)
        some(source.choice([plain, finishing[0]]), 0.4)
        for producer in finishing:
            source.choice((producer.commit_transaction, producer.abort_transaction))()
    assert not errors, errors[0]


def _delete_records(broker: KafkaBroker, seed: object) -> dict[Place, int]:
    """Raise the log start offset of most partitions of one topic, usually into the middle of a batch."""
    source = random.Random(f"{seed} log start")
    offsets = {
        Place("log-start", number): source.randint(1, 60)
        for number in range(_WRITTEN["log-start"].partitions)
        if number % 4
    }
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    answers = admin.delete_records([TopicPartition(*place, offset) for place, offset in offsets.items()])
    for answer in answers.values():
        answer.result(60)
    return offsets


def _put(source: Path, target: Path) -> None:
    """Replace a partition's segments; `partition.metadata`, which ties it to its topic, stays."""
    for path in target.glob("0*"):
        path.unlink()
    for path in source.glob("0*"):
        if not path.name.endswith(".deleted"):
            shutil.copy2(path, target)


def _row(topic: str, partition: int, record: list[Any]) -> Row:
    offset, timestamp_ms, timestamp_type, key, value, headers = record
    pairs = tuple((name, _bytes(content)) for name, content in headers)
    return Row(topic, partition, offset, _bytes(key), _bytes(value), pairs, timestamp_ms, timestamp_type)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
