"""Batches as plain values, read from files and written to them by the format alone.

Nothing here comes from the package under test: what it writes is read by other code than its own.
"""

from __future__ import annotations

import gzip
import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
from crc32c import crc32c

from tests.record import encoding, legacy_encoding
from tests.record.encoding import (
    CONTROL,
    DELETE_HORIZON,
    GZIP,
    LOG_APPEND_TIME,
    LZ4,
    NONE,
    SNAPPY,
    TRANSACTIONAL,
)

# Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base and maximum timestamp, producer id,
# epoch and base sequence, count.
_HEADER = struct.Struct(">qiibIhiqqqhii")
_MAGIC_POSITION = 16
_ABORT = struct.Struct(">hqqqq")
_LOG_FILE = re.compile(r"([0-9]{20})\.log")


@dataclass(frozen=True)
class PlainRecord:
    """One record; its value is None in a tombstone."""

    offset: int
    timestamp_ms: int = 0
    key: bytes | None = None
    value: bytes | None = b"v"
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


@dataclass(frozen=True)
class PlainBatch:
    """One batch: every field of its header, and its records.

    Attributes:
        has_delete_horizon: Whether the base timestamp is the delete horizon.
        raw: The bytes it was read from, if it was.
    """

    base_offset: int
    last_offset: int
    records: tuple[PlainRecord, ...] = ()
    base_timestamp_ms: int = -1
    max_timestamp_ms: int = -1
    leader_epoch: int = 0
    codec: int = NONE
    is_append_time: bool = False
    is_transactional: bool = False
    is_control: bool = False
    has_delete_horizon: bool = False
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    magic: int = 2
    raw: bytes | None = field(default=None, compare=False, repr=False)

    @property
    def delete_horizon_ms(self) -> int | None:
        return self.base_timestamp_ms if self.has_delete_horizon else None

    @property
    def control_type(self) -> int | None:
        """0 for ABORT, 1 for COMMIT; None if it holds no record."""
        return struct.unpack_from(">hh", self.records[0].key)[1] if self.records else None


@dataclass(frozen=True)
class PlainAbort:
    """An entry of a transaction index."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True)
class PlainSegment:
    """A segment; the sizes of its files decide how segments are grouped."""

    base_offset: int
    batches: tuple[PlainBatch, ...] = ()
    aborts: tuple[PlainAbort, ...] = ()
    modified_ms: int = 0
    size_bytes: int = 0
    offset_index_bytes: int = 0
    time_index_bytes: int = 0

    @property
    def next_offset(self) -> int:
        """The offset after its last batch."""
        return self.batches[-1].last_offset + 1 if self.batches else self.base_offset

    @property
    def largest_timestamp_ms(self) -> int:
        """The largest timestamp of a batch; when the file was modified if there is none."""
        largest = max((batch.max_timestamp_ms for batch in self.batches), default=-1)
        return largest if largest >= 0 else self.modified_ms


# -- Reading --------


def read_segments(directory: str | os.PathLike[str]) -> list[PlainSegment]:
    """Return the segments of a partition's directory, in order."""
    names = sorted(name for name in os.listdir(directory) if _LOG_FILE.fullmatch(name))
    return [read_segment(Path(directory, name)) for name in names]


def read_segment(log_file: Path) -> PlainSegment:
    """Return a segment, by the name of its log file."""
    aborts = _content(log_file.with_suffix(".txnindex"))
    return PlainSegment(
        int(log_file.stem),
        tuple(batches_of(log_file.read_bytes())),
        tuple(PlainAbort(*fields[1:]) for fields in _ABORT.iter_unpack(aborts)),
        log_file.stat().st_mtime_ns // 1_000_000,
        log_file.stat().st_size,
        len(_content(log_file.with_suffix(".index"))),
        len(_content(log_file.with_suffix(".timeindex"))),
    )


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def batches_of(data: bytes) -> Iterator[PlainBatch]:
    """Yield the batches of a log file, of any format, all of them whole."""
    for raw in _entries(data):
        yield _batch(raw) if raw[_MAGIC_POSITION] == 2 else _message(raw)


def _entries(data: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position + 8)
        end = position + 12 + length
        assert end <= len(data), f"half a batch at {position}"
        yield data[position:end]
        position = end


def _batch(raw: bytes) -> PlainBatch:
    (
        base_offset, _, leader_epoch, magic, crc, attributes, last_offset_delta,
        base_timestamp_ms, max_timestamp_ms, producer_id, producer_epoch, base_sequence, count,
    ) = _HEADER.unpack_from(raw)  # fmt: skip
    assert magic == 2, f"expected format v2, found {magic}"
    assert crc32c(raw[21:]) == crc, f"the checksum of the batch at offset {base_offset} is wrong"
    codec = attributes & 7
    is_append_time = bool(attributes & LOG_APPEND_TIME)
    records = []
    body = _Reader(_decompress(codec, raw[_HEADER.size :]) if count else b"")
    for _ in range(count):
        offset_delta, timestamp_delta, *content = body.record()
        timestamp_ms = max_timestamp_ms if is_append_time else base_timestamp_ms + timestamp_delta
        records.append(PlainRecord(base_offset + offset_delta, timestamp_ms, *content))
    assert body.position == len(body.data), f"bytes after the records of the batch at offset {base_offset}"
    return PlainBatch(
        base_offset, base_offset + last_offset_delta, tuple(records), base_timestamp_ms, max_timestamp_ms,
        leader_epoch, codec, is_append_time, bool(attributes & TRANSACTIONAL), bool(attributes & CONTROL),
        bool(attributes & DELETE_HORIZON), producer_id, producer_epoch, base_sequence, magic, raw,
    )  # fmt: skip


def _message(raw: bytes) -> PlainBatch:
    """Return a message of format v0 or v1, or the batch that a compressed set of them is."""
    offset, _, crc, magic, attributes = struct.unpack_from(">qiIbB", raw)
    assert magic in {0, 1}, f"expected format v0 or v1, found {magic}"
    assert zlib.crc32(raw[16:]) == crc, f"the checksum of the message at offset {offset} is wrong"
    timestamp_ms = struct.unpack_from(">q", raw, 18)[0] if magic else -1
    key, position = _sized(raw, 26 if magic else 18)
    value, _ = _sized(raw, position)
    codec = attributes & 7
    records: tuple[PlainRecord, ...] = (PlainRecord(offset, timestamp_ms, key, value),)
    is_append_time = bool(magic and attributes & LOG_APPEND_TIME)
    if codec:
        inner = [_message(each).records[0] for each in _entries(_decompress(codec, value or b""))]
        # Of v1, offsets of a set are relative, and the message around it has that of the last one.
        shift = offset - inner[-1].offset if magic else 0
        records = tuple(
            replace(
                each,
                offset=each.offset + shift,
                timestamp_ms=timestamp_ms if is_append_time else each.timestamp_ms,
            )
            for each in inner
        )
    return PlainBatch(
        records[0].offset, offset, records, -1, timestamp_ms, -1, codec, is_append_time, magic=magic, raw=raw
    )  # fmt: skip


def _sized(data: bytes, position: int) -> tuple[bytes | None, int]:
    (length,) = struct.unpack_from(">i", data, position)
    position += 4
    return (None, position) if length < 0 else (data[position : position + length], position + length)


class _Reader:
    """Takes the fields of records from bytes."""

    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value >> 1 ^ -(value & 1)

    def sized(self) -> bytes | None:
        length = self.varint()
        if length < 0:
            return None
        self.position += length
        return self.data[self.position - length : self.position]

    def record(self) -> tuple:
        length = self.varint()
        end = self.position + length
        self.position += 1
        timestamp_delta, offset_delta = self.varint(), self.varint()
        key, value = self.sized(), self.sized()
        headers = tuple((self.sized(), self.sized()) for _ in range(self.varint()))
        assert self.position == end, "a record is longer than its fields"
        return offset_delta, timestamp_delta, key, value, headers


def _decompress(codec: int, data: bytes) -> bytes:
    if codec == NONE:
        return data
    if codec == GZIP:
        return gzip.decompress(data)
    if codec == SNAPPY:
        return _snappy(data)
    with pa.CompressedInputStream(pa.py_buffer(data), "lz4" if codec == LZ4 else "zstd") as stream:
        return stream.read()


def _snappy(data: bytes) -> bytes:
    assert data.startswith(b"\x82SNAPPY\0"), "expected the framing of xerial"
    content, position = b"", 16
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position)
        position += 4 + length
        block = data[position - length : position]
        size, shift = 0, 0
        for byte in block:
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        content += pa.Codec("snappy").decompress(block, size, asbytes=True)
    return content


# -- Writing --------


def encode(batches: Iterable[PlainBatch]) -> bytes:
    """Batches as a log file holds them."""
    return b"".join(_encoded(batch) if batch.magic == 2 else _encoded_messages(batch) for batch in batches)


def _encoded_messages(batch: PlainBatch) -> bytes:
    flags = LOG_APPEND_TIME * batch.is_append_time
    messages = tuple(
        legacy_encoding.Message(record.offset, record.timestamp_ms, record.key, record.value, batch.magic)
        for record in batch.records
    )
    if batch.codec == NONE:
        (message,) = messages
        return replace(message, attributes=flags).encode()
    return legacy_encoding.Wrapper(
        messages, batch.codec, batch.magic, timestamp_ms=batch.max_timestamp_ms, attributes=flags
    ).encode()


def _encoded(batch: PlainBatch) -> bytes:
    flags = (
        LOG_APPEND_TIME * batch.is_append_time
        | TRANSACTIONAL * batch.is_transactional
        | CONTROL * batch.is_control
        | DELETE_HORIZON * batch.has_delete_horizon
    )
    records = tuple(
        encoding.Record(
            record.offset - batch.base_offset, record.timestamp_ms, record.key, record.value, record.headers
        )
        for record in batch.records
    )
    return encoding.Batch(
        records,
        batch.base_offset,
        batch.codec if records else NONE,
        batch.leader_epoch,
        flags,
        batch.last_offset - batch.base_offset,
        batch.base_timestamp_ms,
        batch.max_timestamp_ms,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.magic,
        payload=None if records else b"",
    ).encode()
