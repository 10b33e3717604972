"""The headers of the batches in a staged file, which hold all that offsets and a fingerprint are made of."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from storage_core.errors import CorruptRecordError
from storage_core.record.batch_fingerprint import batch_fingerprint
from storage_core.record.batch_header import (
    HEADER_DTYPE,
    HEADER_SIZE_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC_V2,
    MINIMUM_LENGTHS,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["BatchHead", "batch_heads", "fingerprint"]

# Base offset, batch length, leader epoch, magic, last offset delta, max timestamp.
_FIELDS: Final = struct.Struct(">qiib6xi8xq")
_BLOCK_BYTES: Final = 64 * 1024
# Of larger batches, only the headers are read.
_LARGEST_READ_WHOLE_BYTES: Final = 4096
_FINGERPRINTED_AT_ONCE: Final = 4096


class _Readable(Protocol):
    path: str

    def read_at(self, size_bytes: int, position_bytes: int) -> bytes: ...


class BatchHead(NamedTuple):
    """One batch, by its header."""

    position_bytes: int
    size_bytes: int
    base_offset: int
    leader_epoch: int
    last_offset_delta: int
    max_timestamp_ms: int
    data: bytes


def batch_heads(file: _Readable, end_position_bytes: int) -> Iterator[BatchHead]:
    """Walk the batches of format v2 from the beginning of a file up to where it ends.

    Raises:
        CorruptRecordError: Bytes are no batch, or the last one is cut.
    """
    position_bytes = block_start = 0
    block = b""
    read_bytes = _BLOCK_BYTES
    while position_bytes < end_position_bytes:
        start = position_bytes - block_start
        if start + HEADER_SIZE_BYTES > len(block):
            block, block_start, start = file.read_at(read_bytes, position_bytes), position_bytes, 0
        if len(block) < start + HEADER_SIZE_BYTES:
            raise _no_batch(file.path, position_bytes)
        base_offset, length, epoch, magic, delta, max_timestamp_ms = _FIELDS.unpack_from(block, start)
        size_bytes = length + LOG_OVERHEAD_BYTES
        if (
            magic != MAGIC_V2
            or length < MINIMUM_LENGTHS[MAGIC_V2]
            or delta < 0
            or position_bytes + size_bytes > end_position_bytes
        ):
            raise _no_batch(file.path, position_bytes)
        head = block[start : start + HEADER_SIZE_BYTES]
        yield BatchHead(position_bytes, size_bytes, base_offset, epoch, delta, max_timestamp_ms, head)
        position_bytes += size_bytes
        read_bytes = HEADER_SIZE_BYTES if size_bytes > _LARGEST_READ_WHOLE_BYTES else _BLOCK_BYTES


def fingerprint(heads: Iterable[BatchHead]) -> int:
    """The fingerprint of batches: a CRC of what an offset and an epoch do not change."""
    found, pending = 0, []
    for head in heads:
        pending.append(head.data)
        if len(pending) == _FINGERPRINTED_AT_ONCE:
            found = batch_fingerprint(np.frombuffer(b"".join(pending), HEADER_DTYPE), found)
            pending.clear()
    return batch_fingerprint(np.frombuffer(b"".join(pending), HEADER_DTYPE), found)


def _no_batch(path: str, position_bytes: int) -> CorruptRecordError:
    return CorruptRecordError(
        "Expected a whole record batch of format v2 in a staged file, found something else. Abort the job, and "
        "write it again.",
        path=path,
        position_bytes=position_bytes,
    )
