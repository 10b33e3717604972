"""Topics that clients write through a broker, to compare our recovery and our bytes with the broker's.

Where the codec matters, clients send uncompressed batches and the topic's `compression.type` makes the broker compress
them, so that the bytes come from Kafka's own code.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from tests.interop.broker import MAX_TRANSACTION_TIMEOUT_MS
from tests.interop.clients import new_producer, offsets_at, wait_for_markers, wait_until
from tests.interop.workload import BASE_TIMESTAMP_MS, Sendable, records_of_every_shape, send

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from confluent_kafka import Producer

    from tests.interop.broker import KafkaBroker

BROKER_SETTINGS: dict[str, object] = {
    # A killed broker leaves two preallocated indexes for each log, and they are copied.
    "log.index.size.max.bytes": 65_536,
    "num.recovery.threads.per.data.dir": 2,
    "transaction.max.timeout.ms": 86_400_000,
}

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

TRANSACTIONS = "kafka-transactions"
IDEMPOTENT = "kafka-idempotent"
TINY = "kafka-tiny"
EMPTY = "kafka-empty"
# Records are appended to it while the broker is stopped.
CONTINUED = "kafka-continued"

_SMALL_SEGMENTS = {"internal_segment_bytes": 190_000}
_TIMEOUT_S = 300.0
HOUR_MS = 60 * 60 * 1000

# Topic: its settings.
PRODUCED: dict[str, dict[str, object]] = {
    **{
        f"kafka-codec-{codec}": {**_SMALL_SEGMENTS, "compression_type": codec.replace("none", "uncompressed")}
        for codec in CODECS
    },
    "kafka-append-time": {**_SMALL_SEGMENTS, "message_timestamp_type": "LogAppendTime"},
    IDEMPOTENT: {**_SMALL_SEGMENTS, "index_interval_bytes": 100},
    TRANSACTIONS: {"internal_segment_bytes": 40_000, "index_interval_bytes": 1000},
    TINY: {"internal_segment_bytes": 4_000, "index_interval_bytes": 0},
    CONTINUED: {"internal_segment_bytes": 6_000},
    EMPTY: {},
}
# Those that are read while their broker runs.
READ: dict[str, dict[str, object]] = {**PRODUCED, "rolled-by-time": {"segment_ms": 30 * HOUR_MS}}


def small_records(count: int, *, first: int = 0, step_ms: int = 10) -> list[Sendable]:
    """Return records with ascending timestamps: value ``record <number>``, a key for every third."""
    return [
        Sendable(
            b"key %d" % (number % 7) if number % 3 == 0 else None,
            b"record %d" % number,
            [],
            BASE_TIMESTAMP_MS + number * step_ms,
        )
        for number in range(first, first + count)
    ]


def alter_topic(broker: KafkaBroker, topic: str, name: str, value: object) -> None:
    """Change a setting of a topic."""
    entry = ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result(_TIMEOUT_S)


class Produced:
    """Writes topics, those of `PRODUCED` by default, once or several times.

    Attributes:
        sent: The records sent by topic, without those of transactions.
    """

    def __init__(self, broker: KafkaBroker, topics: Iterable[str] = PRODUCED) -> None:
        self.sent: dict[str, list[Sendable]] = {topic: [] for topic in topics if topic != TRANSACTIONS}
        self._broker = broker
        # Closing a producer would abort its transaction.
        self._open_producers: list[Producer] = []
        self._now_ms = int(time.time() * 1000)

    def write(self, occasion: str) -> None:
        """Write to every topic except the empty one."""
        plain = new_producer(self._broker, linger_ms=1000)
        idempotent = new_producer(self._broker, linger_ms=1000, enable_idempotence=True)
        for topic, sent in self.sent.items():
            if topic == EMPTY:
                continue
            if topic in {TINY, CONTINUED}:
                records = small_records(400, first=len(sent))
            else:
                records = list(records_of_every_shape(400, f"{topic} {occasion}"))
            send(idempotent if topic == IDEMPOTENT else plain, topic, iter(records))
            sent.extend(records)
        self._write_transactions(occasion, plain)

    def _write_transactions(self, occasion: str, plain: Producer) -> None:
        """Interleave two transactional producers with a plain one; leave a third one's transaction open."""
        source = random.Random(f"transactions {occasion}")
        transactional = [
            new_producer(
                self._broker,
                transactional_id=f"{occasion}-{name}",
                transaction_timeout_ms=MAX_TRANSACTION_TIMEOUT_MS,
                compression_type=codec,
                linger_ms=1000,
            )
            for name, codec in (("first", "zstd"), ("second", "none"), ("open", "lz4"))
        ]
        for producer in transactional:
            producer.init_transactions()
        # The value of 110 KB exceeds a segment.
        records = (
            self._made_recent(record)
            for record in records_of_every_shape(3_000, f"transactional {occasion}")
            if len(record.value or b"") < 1000
        )
        for producer in self._open_producers:
            # Its transaction spans a restart of the broker.
            producer.commit_transaction()
        self._open_producers.clear()
        *finishing, staying_open = transactional
        for _ in range(8):
            for producer in finishing:
                producer.begin_transaction()
            for _ in range(source.randrange(1, 4)):
                _send_some(source.choice([*finishing, plain]), records, source)
            for producer in finishing:
                if source.random() < 0.4:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
        # Committed rows can be read up to the transaction that stays open, and not up to one whose marker is late.
        wait_for_markers(self._broker, [(TRANSACTIONS, 0)])
        staying_open.begin_transaction()
        _send_some(staying_open, records, source)
        # A complete transaction after the first unstable offset.
        finishing[0].begin_transaction()
        _send_some(finishing[0], records, source)
        end = self._end_of_transactions()
        finishing[0].abort_transaction()
        # A broker that is killed between the marker and its entry in the transaction index has one without the other.
        # Records after the marker show that it has both.
        wait_until(lambda: self._end_of_transactions() > end, "No marker follows the aborted transaction.")
        _send_some(plain, records, source)
        self._open_producers.append(staying_open)

    def _end_of_transactions(self) -> int:
        place = (TRANSACTIONS, 0)
        return offsets_at(self._broker, [place], OffsetSpec.latest())[place].offset

    def _made_recent(self, record: Sendable) -> Sendable:
        """Return the same record with a timestamp of some hours ago: brokers forget producers after a day."""
        distance_ms = (record.timestamp_ms - BASE_TIMESTAMP_MS) // 50
        return record._replace(timestamp_ms=self._now_ms - 6 * HOUR_MS + distance_ms)


def _send_some(producer: Producer, records: Iterator[Sendable], source: random.Random) -> None:
    send(producer, TRANSACTIONS, (next(records) for _ in range(source.randrange(1, 30))))
