"""Encode records one by one: what the encoder by column is measured against, and quicker for a few."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from storage_core.record.varint_encode import varint_bytes

__all__ = ["PlainBatch", "PlainHeaders", "PlainRecord", "encode_one_batch", "encode_one_by_one"]

PlainHeaders: TypeAlias = Sequence[tuple[bytes, bytes | None]]
# Timestamp (ms), key, value, headers.
PlainRecord: TypeAlias = tuple[int, bytes | None, bytes | None, PlainHeaders]

_NULL = varint_bytes(-1)


@dataclass(frozen=True, slots=True)
class PlainBatch:
    """The uncompressed records of one batch, and what its header says of them."""

    records: bytes
    count: int
    base_timestamp_ms: int
    max_timestamp_ms: int


def encode_one_by_one(rows: Sequence[PlainRecord], records_limit_bytes: int) -> Iterator[PlainBatch]:
    """Encode rows into batches.

    Args:
        rows: The records.
        records_limit_bytes: The most that the records of one batch may take; a single one may take more.
    """
    records: list[bytes] = []
    size_bytes = base_timestamp_ms = max_timestamp_ms = 0
    for timestamp_ms, key, value, headers in rows:
        tail = _sized(key) + _sized(value) + _headers(headers)
        if records:
            record = _record(timestamp_ms - base_timestamp_ms, len(records), tail)
            if size_bytes + len(record) <= records_limit_bytes:
                records.append(record)
                size_bytes += len(record)
                max_timestamp_ms = max(max_timestamp_ms, timestamp_ms)
                continue
            yield PlainBatch(b"".join(records), len(records), base_timestamp_ms, max_timestamp_ms)
        base_timestamp_ms = max_timestamp_ms = timestamp_ms
        records = [_record(0, 0, tail)]
        size_bytes = len(records[0])
    if records:
        yield PlainBatch(b"".join(records), len(records), base_timestamp_ms, max_timestamp_ms)


def encode_one_batch(rows: Sequence[PlainRecord], offset_deltas: Sequence[int]) -> bytes:
    """Encode the rows of one batch, of which there is at least one."""
    base_timestamp_ms = rows[0][0]
    return b"".join(
        [
            _record(timestamp_ms - base_timestamp_ms, delta, _sized(key) + _sized(value) + _headers(headers))
            for (timestamp_ms, key, value, headers), delta in zip(rows, offset_deltas, strict=True)
        ]
    )


def _record(timestamp_delta_ms: int, offset_delta: int, tail: bytes) -> bytes:
    body = b"\0" + varint_bytes(timestamp_delta_ms) + varint_bytes(offset_delta) + tail
    return varint_bytes(len(body)) + body


def _headers(headers: PlainHeaders) -> bytes:
    if not headers:
        return b"\0"
    pairs = b"".join([_sized(key) + _sized(value) for key, value in headers])
    return varint_bytes(len(headers)) + pairs


def _sized(content: bytes | None) -> bytes:
    return _NULL if content is None else varint_bytes(len(content)) + content
