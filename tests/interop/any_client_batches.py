"""Batches of format v2 with a valid CRC, many of them malformed, as a buggy or malicious client could send them."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.log.logs import NOW_MS
from tests.record.encoding import (
    CODECS,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Batch,
    compress,
    sized,
    varint,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_INT = 1 << 31
_LONG = 1 << 63
_COUNTS = (1, 1, 2, 3, 5, 40)


def any_batches(seed: int, count: int) -> Iterator[Batch]:
    """Yield this many batches, each from a different producer; the same seed gives the same batches."""
    generator = random.Random(seed)
    for number in range(count):
        yield _any_batch(generator, producer_id=number)


def _any_batch(generator: random.Random, producer_id: int) -> Batch:
    codec = generator.choice([0, 0, *CODECS.values()])
    count = generator.choice(_COUNTS)
    wrong = generator.randrange(count) if generator.random() < 0.4 else -1
    rows = [_Fields(generator, delta) for delta in range(count)]
    if wrong >= 0:
        generator.choice(_FIELD_CHANGES)(generator, rows[wrong])
    records = b"".join(row.encode() for row in rows)
    if generator.random() < 0.05:
        records = _flipped(generator, records)
    payload = compress(codec, records)
    if codec and generator.random() < 0.1:
        payload = generator.choice(_PAYLOAD_CHANGES)(generator, payload)
    batch = Batch(
        codec=codec,
        payload=payload,
        count=count,
        leader_epoch=generator.choice([-1, 0, 7]),
        last_offset_delta=count - 1,
        base_timestamp_ms=NOW_MS,
        max_timestamp_ms=NOW_MS + generator.choice([0, 0, 5, -5, 1 << 40]),
    )
    if generator.random() < 0.3:
        sequence = generator.choice([0, 17, _INT - 2])
        batch = replace(batch, producer_id=producer_id, producer_epoch=3, base_sequence=sequence)
    if generator.random() < 0.2:
        batch = generator.choice(_HEADER_CHANGES)(generator, batch)
    return batch


class _Fields:
    """A record, field by field."""

    def __init__(self, generator: random.Random, delta: int) -> None:
        self.delta = delta
        self.attributes = bytes([generator.choice([0, 0, 0, 0x7F, 0xFF])])
        self.timestamp = varint(generator.choice([0, 0, 1, -1, 3000, -3000]))
        self.offset = varint(delta)
        self.key = sized(generator.choice([None, b"", b"key", b"key"]))
        self.value = sized(generator.choice([None, b"", b"value", b"x" * 300]))
        self.headers = [
            sized(generator.choice([b"", b"name", b"\xff\xfe"]))
            + sized(generator.choice([None, b"", b"content"]))
            for _ in range(generator.choice([0, 0, 0, 1, 2, 3]))
        ]
        self.header_count = len(self.headers)
        self.length_error = 0

    def encode(self) -> bytes:
        body = self.attributes + self.timestamp + self.offset + self.key + self.value
        body += varint(self.header_count) + b"".join(self.headers)
        return varint(len(body) + self.length_error) + body

    def add_header(self, header: bytes) -> None:
        self.headers.append(header)
        self.header_count += 1


def _wrong_length(generator: random.Random, row: _Fields) -> None:
    row.length_error = generator.choice([-2, -1, 1, 2, 100, -1000, _INT - 1000])


def _wrong_header_count(generator: random.Random, row: _Fields) -> None:
    row.header_count += generator.choice([1, -1, 1000, -100, _INT - 1000])


def _wrong_offset(generator: random.Random, row: _Fields) -> None:
    row.offset = varint(generator.choice([-1, 0, row.delta + 1, row.delta + 1000]))


def _far_timestamp(generator: random.Random, row: _Fields) -> None:
    far = [10**8, -(10**8), -NOW_MS - 1, -NOW_MS - 2, _LONG - 1, -_LONG + 1]
    row.timestamp = varint(generator.choice(far))


def _wrong_slice(generator: random.Random, row: _Fields) -> None:
    length = varint(generator.choice([-1, -2, -_INT, 1, 50, 100_000, _INT - 1]))
    if generator.random() < 0.5:
        row.key = length + row.key[1:]
    else:
        row.value = length + row.value[1:]


def _wrong_header_key(generator: random.Random, row: _Fields) -> None:
    row.add_header(varint(generator.choice([-1, -2, 1000, 1])) + sized(b"content"))


def _wrong_header_value(generator: random.Random, row: _Fields) -> None:
    row.add_header(sized(b"name") + varint(generator.choice([-2, 1000, 1, _INT - 1])))


def _wrong_varint(generator: random.Random, row: _Fields) -> None:
    wrong = generator.choice([b"", b"\x80" * 5 + b"\0", b"\x80" * 11, b"\x80\0", b"\0\0"])
    name = generator.choice(["timestamp", "offset", "key", "value"])
    setattr(row, name, wrong)


def _long_varint(_generator: random.Random, row: _Fields) -> None:
    """Write a varint that is longer than necessary, which is valid."""
    row.offset = varint(row.delta, 4)


def _no_key(_generator: random.Random, row: _Fields) -> None:
    row.key = sized(None)


_FIELD_CHANGES: list[Callable[[random.Random, _Fields], None]] = [
    _wrong_length,
    _wrong_header_count,
    _wrong_offset,
    _far_timestamp,
    _wrong_slice,
    _wrong_header_key,
    _wrong_header_value,
    _wrong_varint,
    _long_varint,
    _no_key,
]


def _flipped(generator: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(generator.choice([1, 1, 3])):
        changed[generator.randrange(len(changed))] = generator.randrange(256)
    return bytes(changed)


def _cut_off(generator: random.Random, payload: bytes) -> bytes:
    return payload[: generator.randrange(len(payload))]


def _followed(generator: random.Random, payload: bytes) -> bytes:
    return payload + generator.choice([b"\0", b"\0" * 20, payload, b"\xff" * 9])


_PAYLOAD_CHANGES: list[Callable[[random.Random, bytes], bytes]] = [_flipped, _flipped, _cut_off, _followed]

_ATTRIBUTES = [
    CONTROL,
    TRANSACTIONAL,
    LOG_APPEND_TIME,
    LOG_APPEND_TIME,
    DELETE_HORIZON,
    0x80,
    0x100,
    0x4000,
    CONTROL | TRANSACTIONAL,
]
_HEADER_CHANGES: list[Callable[[random.Random, Batch], Batch]] = [
    lambda generator, batch: replace(batch, base_offset=generator.choice([1, -1, 1 << 40])),
    lambda generator, batch: replace(batch, count=batch.count + generator.choice([1, -1, 1000, -1000])),
    lambda generator, batch: replace(
        batch, last_offset_delta=batch.last_offset_delta + generator.choice([1, -1, -1000])
    ),
    lambda _, batch: replace(batch, count=batch.count + 1, last_offset_delta=batch.last_offset_delta + 1),
    lambda _, batch: replace(batch, count=0, last_offset_delta=-1),
    lambda generator, batch: replace(batch, attributes=generator.choice(_ATTRIBUTES)),
    lambda generator, batch: replace(batch, attributes=generator.choice(_ATTRIBUTES)),
    lambda generator, batch: replace(batch, codec=generator.choice([5, 6, 7])),
    lambda generator, batch: replace(batch, codec=generator.randrange(5)),
    lambda generator, batch: replace(batch, base_sequence=generator.choice([-1, -2])),
    lambda _, batch: replace(batch, producer_epoch=-1),
    lambda generator, batch: replace(batch, producer_id=generator.choice([-1, -2])),
    lambda generator, batch: replace(
        batch, base_timestamp_ms=generator.choice([-1, 0, 1 << 62, -(1 << 62), _LONG - 1])
    ),
]
