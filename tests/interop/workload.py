"""Records of every shape, and a producer that runs in the background."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, NamedTuple, Self

from tests.interop.clients import Deliveries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from confluent_kafka import KafkaError, Message, Producer

BASE_TIMESTAMP_MS = 1_772_409_600_000
THREE_DAYS_MS = 3 * 24 * 60 * 60 * 1000

Headers = list[tuple[str, bytes | None]]

_HEADERS: tuple[Headers, ...] = (
    [],
    [],
    [("trace-id", b"0af7651916cd43dd")],
    [("null", None), ("empty", b"")],
    [("twice", b"1"), ("other", b"2"), ("twice", b"3"), ("twice", None)],
    [("", b"empty name"), ("ключ-鍵-🔑", bytes(range(256)))],
    [("many-" + str(number), b"x" * number) for number in range(70)],
)


class Sendable(NamedTuple):
    """A record for a producer."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


def records_of_every_shape(count: int, seed: object) -> Iterator[Sendable]:
    """Null, empty, short and long keys and values; headers of all kinds; timestamps out of order."""
    source = random.Random(f"shapes {seed}")
    for number in range(count):
        timestamp_ms = BASE_TIMESTAMP_MS + source.randrange(-THREE_DAYS_MS, THREE_DAYS_MS)
        if number % 7 < 3:
            # Includes runs of equal timestamps.
            timestamp_ms = BASE_TIMESTAMP_MS + number // 50
        key = _bytes_or_null(source, 60)
        value = source.randbytes(110_000) if number == count // 2 else _bytes_or_null(source, 400)
        yield Sendable(key, value, source.choice(_HEADERS), timestamp_ms)


def _bytes_or_null(source: random.Random, longest: int) -> bytes | None:
    shape = source.randrange(8)
    if shape == 0:
        return None
    if shape == 1:
        return b""
    if shape < 5:
        # Compressible, like most real values.
        return (b"segment %d " % source.randrange(50)) * source.randrange(1, max(2, longest // 12))
    return source.randbytes(source.randrange(1, longest))


def produce(
    producer: Producer,
    topic: str,
    partition: int,
    record: Sendable,
    on_delivery: Callable[[KafkaError | None, Message], None] | None = None,
) -> None:
    """Pass a record to a producer."""
    producer.produce(
        topic,
        key=record.key,
        value=record.value,
        headers=list(record.headers),
        timestamp=record.timestamp_ms,
        partition=partition,
        on_delivery=on_delivery,
    )


def send(producer: Producer, topic: str, records: Iterator[Sendable]) -> None:
    """Produce to partition 0 in batches of varying size, and wait for all acknowledgements."""
    deliveries = Deliveries()
    left_in_batch = 1
    batch_size = 1
    for record in records:
        produce(producer, topic, 0, record, deliveries)
        left_in_batch -= 1
        if left_in_batch == 0:
            producer.flush()
            batch_size = batch_size % 97 + 8
            left_in_batch = batch_size
    producer.flush()
    if deliveries.errors:
        raise RuntimeError(f"{len(deliveries.errors)} records were refused: {deliveries.errors[0]}")


class BackgroundProducer:
    """Produces records from a thread until the block ends.

    Args:
        producer: Flushed at the end, unless ``abandon`` was called.
        topic: Partition 0 of it is written.
        next_record: Returns the record with a number.
        deliveries: Collects the acknowledgements.
        pause_s: The pause between two groups of records.
    """

    def __init__(
        self,
        producer: Producer,
        topic: str,
        next_record: Callable[[int], Sendable],
        deliveries: Deliveries,
        *,
        group_size: int = 25,
        pause_s: float = 0.005,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._next_record = next_record
        self._deliveries = deliveries
        self._group_size = group_size
        self._pause_s = pause_s
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"produce {topic}")

    def _run(self) -> None:
        number = 0
        try:
            while not self._ended.wait(self._pause_s):
                for _ in range(self._group_size):
                    record = self._next_record(number)
                    produce(self._producer, self._topic, 0, record, self._deliveries)
                    number += 1
                self._producer.poll(0)
        except BaseException as error:  # noqa: BLE001  (raised again by the thread that waits)
            self._failure = error

    def end(self) -> None:
        """Stop producing; queued records stay queued."""
        self._ended.set()
        self._thread.join()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        if self._failure is not None and error is None:
            raise self._failure


class TransactionWriter:
    """Runs transactions from a thread until the block ends. Record values end in ``commit`` or ``abort``.

    Transactions of two producers overlap.
    """

    def __init__(
        self, producers: list[Producer], topic: str, next_record: Callable[[int], Sendable], *, seed: int = 1
    ) -> None:
        self._producers = producers
        self._topic = topic
        self._next_record = next_record
        self._source = random.Random(seed)
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"transactions {topic}")

    def _run(self) -> None:
        try:
            for producer in self._producers:
                producer.init_transactions()
            number = 0
            while not self._ended.is_set():
                number = self._one_round(number)
        except BaseException as error:  # noqa: BLE001  (raised again by the thread that waits)
            self._failure = error

    def _one_round(self, number: int) -> int:
        endings = [self._source.choice(("commit", "commit", "abort")) for _ in self._producers]
        for producer in self._producers:
            producer.begin_transaction()
        for _ in range(2):
            for producer, ending in zip(self._producers, endings, strict=True):
                for _ in range(self._source.randrange(1, 15)):
                    record = self._next_record(number)
                    value = b"%d %s" % (number, ending.encode())
                    producer.produce(self._topic, key=record.key, value=value, partition=0)
                    number += 1
                producer.flush()
        for producer, ending in zip(self._producers, endings, strict=True):
            if ending == "commit":
                producer.commit_transaction()
            else:
                producer.abort_transaction()
        return number

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure
