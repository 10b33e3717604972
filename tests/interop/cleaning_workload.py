"""Compacted topics that real producers write through a broker: every case that a cleaner must decide.

Each topic ends with records of unique keys, so that the relevant records are not in the active segment.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from storage_core import LogDirectory, Transaction
from tests.interop.broker import MAX_TRANSACTION_TIMEOUT_MS
from tests.interop.clients import Deliveries, new_producer, wait_for_markers
from tests.interop.produced import CODECS, alter_topic
from tests.interop.workload import Headers, Sendable, produce, send
from tests.interop.writing import config_of, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from confluent_kafka import Producer

    from tests.interop.broker import KafkaBroker


HOUR_MS = 60 * 60 * 1000
DAY_MS = 24 * HOUR_MS

TRANSACTIONS = "cleaned-transactions"
KEPT_TRANSACTIONS = "cleaned-kept-transactions"
# Ends in an open transaction.
OPEN = "cleaned-open-transaction"
IDEMPOTENT = "cleaned-idempotent"
# Overflows the offset map.
MANY_KEYS = "cleaned-many-keys"
LARGE = "cleaned-large-batches"
# The compaction lag protects its last records.
YOUNG = "cleaned-young"
# First written under the delete policy, with null keys.
ONCE_DELETED = "cleaned-once-deleted"
# Its producers bump their epoch with each transaction, as Kafka's newest clients do and librdkafka does not.
OURS = "cleaned-our-transactions"

_COMPACTED: dict[str, object] = {
    "cleanup_policy": "compact",
    "internal_segment_bytes": 12_000,
    "index_interval_bytes": 500,
    # A delete horizon set in one pass has expired by the next.
    "delete_retention_ms": 100,
    "segment_index_bytes": 65_536,
}
_KEPT = {**_COMPACTED, "delete_retention_ms": 10 * DAY_MS}

# Topic: its settings.
CLEANED: dict[str, dict[str, object]] = {
    **{
        f"cleaned-codec-{codec}": {**_COMPACTED, "compression_type": codec.replace("none", "uncompressed")}
        for codec in CODECS
    },
    "cleaned-append-time": {**_COMPACTED, "message_timestamp_type": "LogAppendTime"},
    "cleaned-kept-tombstones": _KEPT,
    "cleaned-small-indexes": {**_COMPACTED, "segment_index_bytes": 200, "index_interval_bytes": 0},
    "cleaned-preallocated": {**_COMPACTED, "preallocate": "true"},
    "cleaned-and-deleted": {**_COMPACTED, "cleanup_policy": "compact,delete", "retention_ms": 3 * HOUR_MS},
    YOUNG: {**_COMPACTED, "min_compaction_lag_ms": 3 * HOUR_MS},
    ONCE_DELETED: {**_COMPACTED, "cleanup_policy": "delete"},
    LARGE: {**_COMPACTED, "internal_segment_bytes": 600_000},
    MANY_KEYS: {**_COMPACTED, "internal_segment_bytes": 150_000},
    IDEMPOTENT: _COMPACTED,
    TRANSACTIONS: _COMPACTED,
    KEPT_TRANSACTIONS: _KEPT,
    OPEN: _COMPACTED,
    OURS: _COMPACTED,
}
# The topics that get the same records with few keys.
OF_EVERY_SHAPE = tuple(
    topic
    for topic in CLEANED
    if topic not in {LARGE, MANY_KEYS, IDEMPOTENT, TRANSACTIONS, KEPT_TRANSACTIONS, OPEN, OURS}
)


_HEADERS: tuple[Headers, ...] = (
    [],
    [],
    [("trace-id", b"0af7651916cd43dd")],
    [("null", None), ("empty", b""), ("ключ-鍵-🔑", bytes(range(256)))],
)
# None is larger than a segment.
_BATCHES: dict[str, object] = {"linger_ms": 1000, "batch_size": 6_000}
# The offset map of the tests has room for 39,321 keys.
_MANY_KEYS = 60_000
_OUR_PRODUCERS = 4_000_000_000


class CleaningWorkload:
    """Writes the topics of `CLEANED`, once or several times.

    Args:
        now_ms: The time from which record timestamps are computed: some hours ago, as brokers forget producers after a day.
    """

    def __init__(self, now_ms: int | None = None) -> None:
        self._now_ms = int(time.time() * 1000) if now_ms is None else now_ms
        # Closing a producer would abort its transaction.
        self._open_producers: list[Producer] = []

    def write(self, broker: KafkaBroker, occasion: str) -> None:
        """Write to every topic."""
        plain = new_producer(broker, **_BATCHES)
        for topic in OF_EVERY_SHAPE:
            # A compacted topic rejects null keys.
            nulls = topic == ONCE_DELETED and occasion == "first"
            send(plain, topic, self._records(f"{topic} {occasion}", 500, with_null_keys=nulls))
            send(plain, topic, self._rest(occasion))
        if occasion == "first":
            alter_topic(broker, ONCE_DELETED, "cleanup.policy", "compact")
        self._write_large(broker, occasion)
        self._write_many_keys(broker, occasion)
        self._write_idempotent(broker, occasion, plain)
        for topic in (TRANSACTIONS, KEPT_TRANSACTIONS):
            self._write_transactions(broker, topic, occasion, plain)
        self._write_open(broker, occasion, plain)
        # A marker that is late comes after the root is copied, to one of the copies.
        wait_for_markers(broker, [(topic, 0) for topic in (TRANSACTIONS, KEPT_TRANSACTIONS, MANY_KEYS)])

    def write_ours(self, root: Path, occasion: str) -> None:
        """Write transactions into a closed root, then records outside any transaction."""
        source = random.Random(f"{OURS} {occasion}")
        with LogDirectory.open(
            root, broker_directory=True, config={OURS: config_of({**CLEANED[OURS], "batch_size": 6_000})}
        ) as logs:
            log = logs.get(OURS, 0)
            for number in range(24):
                # One producer writes on the first occasion only.
                name = source.choice([1, 2, 3, 4 if occasion == "first" else 1])
                transaction = log.transaction(_OUR_PRODUCERS + name)
                for _ in range(source.randrange(1, 4)):
                    transaction.append(table_of(self._records(f"{OURS} {occasion} {source.random()}", 15)))
                if number == 6:
                    log.append(table_of(self._records(f"{OURS} {occasion} plain", 60)))
                _end(transaction, is_abort=source.random() < 0.4)
            log.append(table_of(self._rest(occasion)))

    def _records(
        self, seed: object, count: int, *, with_null_keys: bool = False, first_key: int = 0
    ) -> Iterator[Sendable]:
        """Few keys, one record in eight a tombstone; timestamps run from six hours ago to two, not monotonically."""
        source = random.Random(f"cleaned {seed}")
        for number in range(count):
            key: bytes | None = b"key %d" % (first_key + source.randrange(60))
            if source.randrange(100) == 0:
                key = b""
            elif with_null_keys and source.randrange(4) == 0:
                key = None
            value = None if source.randrange(8) == 0 else b"value %d " % number * source.randrange(1, 12)
            age_ms = 6 * HOUR_MS - 4 * HOUR_MS * number // count + source.randrange(-1000, 1000)
            yield Sendable(key, value, source.choice(_HEADERS), self._now_ms - age_ms)

    def _rest(self, occasion: str) -> Iterator[Sendable]:
        """Write records that fill more than a segment, compressed or not."""
        source = random.Random(f"rest {occasion}")
        for number in range(40):
            key = b"rest %s %d" % (occasion.encode(), number)
            yield Sendable(key, source.randbytes(500), [], self._now_ms - HOUR_MS + number)

    def _write_large(self, broker: KafkaBroker, occasion: str) -> None:
        producer = new_producer(broker, linger_ms=1000, batch_size=300_000, message_max_bytes=400_000)
        source = random.Random(f"large {occasion}")
        deliveries = Deliveries()
        for number in range(24):
            # Values of 5 and of 110 KB: the large ones exceed the cleaner's buffer.
            value = source.randbytes(110_000 if number % 4 == 0 else 5_000)
            produce(
                producer, LARGE, 0, Sendable(b"key %d" % (number % 7), value, [], self._now_ms), deliveries
            )
            if number % 3 == 0:
                producer.flush()
        producer.flush()
        assert not deliveries.errors

    def _write_many_keys(self, broker: KafkaBroker, occasion: str) -> None:
        """Overflow the offset map. Transactions lie mostly around that point, some after it in the same segment."""
        count = _MANY_KEYS if occasion == "first" else 12_000
        producer = new_producer(broker, linger_ms=20, batch_size=30_000, queue_buffering_max_messages=200_000)
        aborting, committing = (_transactional(broker, f"{MANY_KEYS}-{name}", "none") for name in ("a", "b"))
        deliveries = Deliveries()
        for number in range(count):
            # The last sixth repeats the first keys.
            key = b"%d" % (number % (_MANY_KEYS * 5 // 6))
            producer.produce(
                MANY_KEYS, key=key, value=b"value %d" % number, partition=0, on_delivery=deliveries
            )
            if number % (50 if 39_000 <= number < 39_600 else 1_500) == 0:
                producer.flush()
                for each in (aborting, committing):
                    each.begin_transaction()
                    send(each, MANY_KEYS, self._records(f"{MANY_KEYS} {occasion} {number}", 20))
                    _end(each, is_abort=each is aborting)
        producer.flush()
        assert not deliveries.errors

    def _write_idempotent(self, broker: KafkaBroker, occasion: str, plain: Producer) -> None:
        """Three producers: cleaning leaves nothing of one, part of the next, and the last batch of the third."""
        producers = [new_producer(broker, **_BATCHES, enable_idempotence=True) for _ in range(4)]
        seed = f"idempotent {occasion}"
        for number, producer in enumerate(producers):
            send(producer, IDEMPOTENT, self._records(f"{seed} {number}", 120, first_key=number * 40))
        # Overwrite all keys of the first producer and half of the second's.
        for key in range(100):
            record = Sendable(b"key %d" % key, b"again", [], self._now_ms - HOUR_MS)
            send(plain, IDEMPOTENT, iter([record]))
        send(producers[3], IDEMPOTENT, self._records(f"{seed} last", 30, first_key=120))
        send(plain, IDEMPOTENT, self._rest(occasion))

    def _write_transactions(self, broker: KafkaBroker, topic: str, occasion: str, plain: Producer) -> None:
        source = random.Random(f"{topic} {occasion}")
        short = [
            _transactional(broker, f"{topic}-{name}", codec) for name, codec in (("a", "none"), ("b", "zstd"))
        ]
        long = [_transactional(broker, f"{topic}-{name}", "none") for name in ("commits", "aborts")]
        for producer in long:
            producer.begin_transaction()
        for number in range(12):
            for producer in short:
                producer.begin_transaction()
            for _ in range(3):
                producer = source.choice([*short, *long, plain])
                send(producer, topic, self._records(f"{topic} {occasion} {source.random()}", 25))
            for producer in short:
                _end(producer, is_abort=source.random() < 0.4)
            if number == 8:
                # Both span segments.
                for producer, is_abort in zip(long, (False, True), strict=True):
                    _end(producer, is_abort=is_abort)
                    producer.begin_transaction()
        for producer in long:
            _end(producer, is_abort=False)
        self._write_empty_transaction(broker, topic, occasion)
        send(plain, topic, self._rest(occasion))

    def _write_empty_transaction(self, broker: KafkaBroker, topic: str, occasion: str) -> None:
        """Write a transaction whose only record is rejected for its null key; the marker follows no data."""
        producer = _transactional(broker, f"{topic}-empty-{occasion}", "none")
        deliveries = Deliveries()
        producer.begin_transaction()
        producer.produce(topic, key=None, value=b"refused", partition=0, on_delivery=deliveries)
        producer.flush()
        assert len(deliveries.errors) == 1
        assert "INVALID_RECORD" in deliveries.errors[0], deliveries.errors[0]
        producer.abort_transaction()

    def _write_open(self, broker: KafkaBroker, occasion: str, plain: Producer) -> None:
        """Nothing is cleaned from the first record of an open transaction on."""
        # This also ends the transaction of the previous occasion.
        producer = _transactional(broker, f"{OPEN}-open", "lz4")
        self._open_producers.append(producer)
        send(plain, OPEN, self._records(f"before {occasion}", 200))
        producer.begin_transaction()
        send(producer, OPEN, self._records(f"open {occasion}", 20))
        send(plain, OPEN, self._records(f"behind {occasion}", 200))
        send(plain, OPEN, self._rest(occasion))


def _transactional(broker: KafkaBroker, name: str, codec: str) -> Producer:
    producer = new_producer(
        broker,
        transactional_id=name,
        transaction_timeout_ms=MAX_TRANSACTION_TIMEOUT_MS,
        compression_type=codec,
        **_BATCHES,
    )
    producer.init_transactions()
    return producer


def _end(producer: Producer | Transaction, *, is_abort: bool) -> None:
    if isinstance(producer, Transaction):
        producer.abort() if is_abort else producer.commit()
    elif is_abort:
        producer.abort_transaction()
    else:
        producer.commit_transaction()
