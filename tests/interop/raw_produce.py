"""Hand-made produce requests, for batches with a given producer id, epoch and sequence."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tests.interop.clients import end_offset
from tests.record.encoding import TRANSACTIONAL, Batch, Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.interop.broker import KafkaBroker
    from tests.interop.partition_state import ProducerEntry

OUT_OF_ORDER = 45

_PRODUCE, _VERSION, _CORRELATION = 0, 3, 7
_TIMEOUT_S = 60.0
_SEQUENCES = 1 << 31


class Answer(NamedTuple):
    """A broker's answer to a batch: an error code, 0 for none, and the offset of its first record."""

    error: int
    base_offset: int


@dataclass(frozen=True, slots=True)
class ProducerAnswers:
    """A broker's answers to a producer that continues.

    Attributes:
        entry: The producer's state before.
        log_end_offset: The log end before.
        repeated: For its last batch, sent again.
        gap: For a batch with too high a sequence.
        next: For the batch with the next sequence.
    """

    entry: ProducerEntry
    log_end_offset: int
    repeated: Answer
    gap: Answer
    next: Answer


def produced_batch(
    records: Sequence[tuple[bytes, bytes | None]],
    *,
    timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    is_transactional: bool = False,
) -> bytes:
    """Return a batch as an idempotent producer sends it."""
    return Batch(
        tuple(Record(number, timestamp_ms, key, value) for number, (key, value) in enumerate(records)),
        leader_epoch=-1,
        attributes=TRANSACTIONAL if is_transactional else 0,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    ).encode()


def produce_batch(
    broker: KafkaBroker, topic: str, batch: bytes, partition: int = 0, *, transactional_id: str | None = None
) -> Answer:
    """Send a batch with acks=all and wait for the answer. A transactional one needs a transactional id."""
    name = topic.encode()
    body = struct.pack(">h", -1)
    if transactional_id is not None:
        body = struct.pack(">h", len(transactional_id.encode())) + transactional_id.encode()
    body += struct.pack(">hii", -1, 30_000, 1) + struct.pack(">h", len(name)) + name
    body += struct.pack(">iii", 1, partition, len(batch)) + batch
    header = struct.pack(">hhih", _PRODUCE, _VERSION, _CORRELATION, -1)
    host, port = broker.bootstrap_servers.split(":")
    with socket.create_connection((host, int(port)), _TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
        answer = _receive(connection, struct.unpack(">i", _receive(connection, 4))[0])
    correlation, count, name_size = struct.unpack_from(">iih", answer)
    assert (correlation, count) == (_CORRELATION, 1)
    partitions, index, error, base_offset = struct.unpack_from(">iihq", answer, 10 + name_size)
    assert (partitions, index) == (1, partition)
    return Answer(error, base_offset)


def go_on(broker: KafkaBroker, topic: str, entry: ProducerEntry) -> ProducerAnswers:
    """Continue as an idempotent producer: repeat the last batch, skip sequence numbers, then send the next one."""
    end = end_offset(broker, topic)

    def produce(first: int, count: int) -> Answer:
        batch = produced_batch(
            [(b"continued %d" % number, b"value") for number in range(count)],
            timestamp_ms=entry.timestamp_ms,
            producer_id=entry.producer_id,
            producer_epoch=entry.producer_epoch,
            base_sequence=first % _SEQUENCES,
        )
        return produce_batch(broker, topic, batch)

    return ProducerAnswers(
        entry,
        end,
        repeated=produce(entry.last_sequence - entry.offset_delta, entry.offset_delta + 1),
        gap=produce(entry.last_sequence + 6, 1),
        next=produce(entry.last_sequence + 1, 1),
    )


def _receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        some = connection.recv(size - len(received))
        assert some, "the broker closed the connection"
        received += some
    return received
