"""The header of a record batch (Kafka's ``DefaultRecordBatch``, ``LegacyRecord``): one, or a column of them.

A segment file is a sequence of batches, back to back, from byte 0. Messages of formats v0 and v1, which brokers
wrote before 0.11, are batches of one record; they may be before, after or between batches of format v2. All integers
are big-endian.
"""
# ruff: noqa: I001, PLC0414  (importers need not know that the layout has a module of its own)

from __future__ import annotations

import dataclasses
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from storage_core.errors import CorruptRecordError
from storage_core.record.batch_layout import (
    CHECKED_HEADER as CHECKED_HEADER,
    CODEC_MASK as CODEC_MASK,
    CODEC_NAMES as CODEC_NAMES,
    CONTROL_FLAG as CONTROL_FLAG,
    CRC_START as CRC_START,
    DELETE_HORIZON_FLAG as DELETE_HORIZON_FLAG,
    HEADER_SIZE_BYTES as HEADER_SIZE_BYTES,
    KEY_LENGTH_POSITIONS as KEY_LENGTH_POSITIONS,
    KNOWN_ATTRIBUTES as KNOWN_ATTRIBUTES,
    LEGACY_CODEC_COUNT as LEGACY_CODEC_COUNT,
    LENGTH_AND_MAGIC as LENGTH_AND_MAGIC,
    LENGTH_BYTES as LENGTH_BYTES,
    LENGTH_POSITION as LENGTH_POSITION,
    LOG_APPEND_TIME_FLAG as LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD_BYTES as LOG_OVERHEAD_BYTES,
    MAGIC_POSITION as MAGIC_POSITION,
    MAGIC_V2 as MAGIC_V2,
    MAX_OFFSET as MAX_OFFSET,
    MAX_OFFSET_DELTA as MAX_OFFSET_DELTA,
    MESSAGE,
    MESSAGE_LAYOUT,
    MESSAGE_SIZE_BYTES as MESSAGE_SIZE_BYTES,
    MIN_LENGTH as MIN_LENGTH,
    MIN_LENGTH_BY_MAGIC as MIN_LENGTH_BY_MAGIC,
    MIN_V2_LENGTH as MIN_V2_LENGTH,
    NO_TIMESTAMP_MS as NO_TIMESTAMP_MS,
    SMALLEST_RECORD_BYTES as SMALLEST_RECORD_BYTES,
    TRANSACTIONAL_FLAG as TRANSACTIONAL_FLAG,
    UNCHECKED_HEADER as UNCHECKED_HEADER,
    V2_HEADER as V2_HEADER,
    V2_LAYOUT,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    BytesLike: TypeAlias = bytes | bytearray | memoryview


HEADER_DTYPE: Final = np.dtype([(name, kind) for name, _, kind in V2_LAYOUT])
MESSAGE_DTYPE: Final = np.dtype([(name, kind) for name, _, kind in MESSAGE_LAYOUT])
LENGTH_DTYPE: Final = np.dtype(">i4")
# By magic.
_LEGACY_ATTRIBUTES: Final = (CODEC_MASK, CODEC_MASK | LOG_APPEND_TIME_FLAG)


class CrcLayout(NamedTuple):
    """The position of a batch's CRC, where the bytes that it covers start, and the function that computes it.

    ``compute`` takes bytes and, optionally, the CRC of the bytes before them.
    """

    position: int
    start: int
    compute: Callable[..., int]


_LEGACY_CRC: Final = CrcLayout(12, 16, zlib.crc32)
# By magic.
CRC_LAYOUTS: Final = (_LEGACY_CRC, _LEGACY_CRC, CrcLayout(17, CRC_START, crc32c))


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The header of one batch, and the batch's position in its file.

    ``size_bytes`` is the size of the whole batch, header included. A message of format v0 or v1 is a batch of
    its own, with -1 for the fields it does not have. A wrapper has only its last offset: its base offset is
    a lower bound, and its record count is 1.
    """

    position_bytes: int
    base_offset: int
    size_bytes: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        """Offset of the last record that the batch was written with."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset to continue from. Batches may have gaps or be empty, so the record count does not tell."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def end_position_bytes(self) -> int:
        """Position of the first byte after the batch."""
        return self.position_bytes + self.size_bytes

    @property
    def codec(self) -> int:
        """The codec's number; 0 for none."""
        return self.attributes & CODEC_MASK

    @property
    def is_wrapper(self) -> bool:
        """Whether this is a message of format v0 or v1 that holds others."""
        return self.magic < MAGIC_V2 and self.codec != 0

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        """Whether the batch holds markers instead of data."""
        return bool(self.attributes & CONTROL_FLAG)

    def error_location(self, path: str) -> dict[str, Any]:
        """Return the location of the batch, as keyword arguments of an error about it."""
        return {
            "path": path,
            "position_bytes": self.position_bytes,
            "end_position_bytes": self.end_position_bytes,
            "offset": self.base_offset,
            "last_offset": self.last_offset,
        }

    def with_base_offset(self, offset: int) -> BatchHeader:
        """Return the header with a lower base offset, if it is a wrapper that does not end before it."""
        if not self.is_wrapper or offset > self.last_offset:
            return self
        base_offset = max(offset, self.last_offset - MAX_OFFSET_DELTA)
        return dataclasses.replace(
            self, base_offset=base_offset, last_offset_delta=self.last_offset - base_offset
        )


def unpack_message(data: bytes | bytearray | memoryview, start: int) -> tuple[int, int, int, int, int, int]:
    """Return the offset, length, CRC, magic, attributes and timestamp (-1 in v0) of a message."""
    offset, length, crc, magic, attributes, timestamp_ms = MESSAGE.unpack_from(data, start)
    return offset, length, crc, magic, attributes, timestamp_ms if magic else NO_TIMESTAMP_MS


def parse_batch_header(data: BytesLike, start: int, position_bytes: int, *, path: str) -> BatchHeader:
    """Parse the header at ``data[start:]``, which is at ``position_bytes`` of ``path``.

    There are at least 61 bytes, or a whole message of format v0 or v1. A wrapper's base offset is its last offset,
    until ``with_base_offset`` lowers it.

    Raises:
        CorruptRecordError: The magic is unknown, or the length is too small.
    """
    if data[start + MAGIC_POSITION] != MAGIC_V2:
        return _parse_legacy(data, start, position_bytes, path)
    (base_offset, batch_length, leader_epoch, magic, *rest) = V2_HEADER.unpack_from(data, start)
    if batch_length < MIN_V2_LENGTH:
        raise header_error(path, position_bytes, batch_length, magic)
    return BatchHeader(
        position_bytes, base_offset, batch_length + LOG_OVERHEAD_BYTES, leader_epoch, magic, *rest
    )


def _parse_legacy(data: BytesLike, start: int, position_bytes: int, path: str) -> BatchHeader:
    offset, length, crc, magic, attributes, timestamp_ms = unpack_message(data, start)
    if magic not in (0, 1) or length < MIN_LENGTH_BY_MAGIC[magic]:
        raise header_error(path, position_bytes, length, magic)
    return BatchHeader(
        position_bytes=position_bytes,
        base_offset=offset,
        size_bytes=length + LOG_OVERHEAD_BYTES,
        leader_epoch=-1,
        magic=magic,
        crc=crc,
        attributes=attributes & _LEGACY_ATTRIBUTES[magic],
        last_offset_delta=0,
        base_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=1,
    )


def header_error(path: str, position_bytes: int, batch_length: int, magic: int) -> CorruptRecordError:
    """Return the error for a header with a wrong magic or length."""
    if 0 <= magic <= MAGIC_V2:
        kind = "batch" if magic == MAGIC_V2 else "message"
        found = (
            f"Expected a {kind} length of at least {MIN_LENGTH_BY_MAGIC[magic]} bytes, found {batch_length}."
        )
    else:
        found = f"Expected the magic byte of a record batch to be 0, 1 or 2, found {magic}."
    return CorruptRecordError(
        f"{found} These bytes are no record batch: the file is damaged here.",
        path=path,
        position_bytes=position_bytes,
    )


def batch_crc_matches(batch: BytesLike) -> bool:
    """Return True if the CRC of a whole batch, header included, equals the one in its header."""
    view = memoryview(batch).cast("B")
    magic = view[MAGIC_POSITION]
    if magic >= len(CRC_LAYOUTS):
        return False
    position, start, compute = CRC_LAYOUTS[magic]
    return compute(view[start:]) == int.from_bytes(view[position : position + 4], "big")


# All of a header but its base offset and its leader epoch.
_FINGERPRINTED: Final = np.r_[LENGTH_POSITION:LOG_OVERHEAD_BYTES, MAGIC_POSITION:HEADER_SIZE_BYTES]
FINGERPRINTED_BYTES: Final = len(_FINGERPRINTED)


def batch_fingerprint(headers: npt.NDArray[Any], fingerprint: int = 0) -> int:
    """Return the CRC-32C of headers without their base offsets and leader epochs, which an append assigns.

    As each header holds the CRC of its batch, the fingerprint covers all bytes of the batches, of format v2. It
    continues that of the batches before them.
    """
    return int(crc32c(fingerprinted_bytes(headers), fingerprint))


def fingerprinted_bytes(headers: npt.NDArray[Any]) -> memoryview:
    """Return the bytes that the fingerprint covers: `FINGERPRINTED_BYTES` per batch, back to back."""
    rows = np.frombuffer(headers.tobytes(), np.uint8).reshape(-1, HEADER_SIZE_BYTES)
    return memoryview(rows[:, _FINGERPRINTED].tobytes())


def gather(
    buffer: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], kind: np.dtype[Any]
) -> npt.NDArray[Any]:
    """Return the item of a type at each position, aligned or not.

    Raises:
        IndexError: An item does not lie within the buffer.
    """
    size_bytes = kind.itemsize
    position_count = max(len(buffer) - size_bytes + 1, 0)
    # Plain bytes are quicker to take than fields.
    items = np.ndarray((position_count,), f"V{size_bytes}", buffer, 0, (1,))
    found: npt.NDArray[Any] = items[positions].view(kind)
    return found


_ATTRIBUTES_BY_MAGIC: Final = np.array(_LEGACY_ATTRIBUTES, np.int16)
_Bytes = npt.NDArray[np.uint8]
_Int64Array = npt.NDArray[np.int64]
_Rows = npt.NDArray[Any]


def _legacy_row() -> _Rows:
    """Return a header with the fields that no message has."""
    row = np.zeros(1, HEADER_DTYPE)
    for name in ("leader_epoch", "producer_id", "producer_epoch", "base_sequence"):
        row[name] = -1
    row["record_count"] = 1
    return row


_LEGACY_ROW: Final = _legacy_row()


def header_rows(buffer: _Bytes, starts: _Int64Array, lowest_offset: int) -> _Rows:
    """Return the header of each batch in a buffer: a structured array of `HEADER_DTYPE`.

    The batches, of any format, are back to back. The base offset of a wrapper, which its header does not have, becomes
    the offset after the batch before; of the first one, ``lowest_offset``.
    """
    is_legacy = buffer[starts + MAGIC_POSITION] != MAGIC_V2
    if not is_legacy.any():
        return gather(buffer, starts, HEADER_DTYPE)
    if is_legacy.all():
        rows = _legacy_rows(buffer, starts)
    else:
        rows = np.empty(len(starts), HEADER_DTYPE)
        rows.put(np.flatnonzero(~is_legacy), gather(buffer, starts[~is_legacy], HEADER_DTYPE))
        rows.put(np.flatnonzero(is_legacy), _legacy_rows(buffer, starts[is_legacy]))
    _lower_bases(rows, lowest_offset)
    return rows


def batch_sizes_bytes(headers: _Rows) -> _Int64Array:
    """Return the size of each batch, header included."""
    sizes: _Int64Array = headers["batch_length"] + np.int64(LOG_OVERHEAD_BYTES)
    return sizes


def last_offsets(headers: _Rows) -> _Int64Array:
    """Return the offset of the last record that each batch was written with."""
    offsets: _Int64Array = headers["base_offset"].astype(np.int64)
    offsets += headers["last_offset_delta"]
    return offsets


def wrapper_rows(headers: _Rows) -> npt.NDArray[np.bool_]:
    """Return True for each header of a wrapper."""
    is_wrapper: npt.NDArray[np.bool_] = headers["magic"] < MAGIC_V2
    is_wrapper &= (headers["attributes"] & CODEC_MASK) != 0
    return is_wrapper


def _legacy_rows(buffer: _Bytes, starts: _Int64Array) -> _Rows:
    # The shortest message is as long as this, so nothing after the last one is read.
    messages = gather(buffer, starts, MESSAGE_DTYPE)
    magics = messages["magic"]
    timestamps_ms = np.where(magics == 0, NO_TIMESTAMP_MS, messages["timestamp_ms"])
    rows = _LEGACY_ROW.repeat(len(starts))
    rows["base_offset"] = messages["offset"]
    rows["batch_length"] = messages["length"]
    rows["magic"] = magics
    rows["crc"] = messages["crc"]
    rows["attributes"] = messages["attributes"] & _ATTRIBUTES_BY_MAGIC[magics]
    rows["base_timestamp_ms"] = timestamps_ms
    rows["max_timestamp_ms"] = timestamps_ms
    return rows


def _lower_bases(rows: _Rows, lowest_offset: int) -> None:
    """Let wrappers begin after the batch before. A wrapper out of order stays unchanged."""
    is_wrapper = wrapper_rows(rows)
    if not is_wrapper.any():
        return
    last = last_offsets(rows)
    lowest = np.empty_like(last)
    # The offset after the largest one exceeds int64.
    lowest[0] = min(lowest_offset, MAX_OFFSET)
    lowest[1:] = last[:-1] + 1
    lowest = np.maximum(lowest, last - MAX_OFFSET_DELTA)
    wrappers = np.flatnonzero(is_wrapper & (lowest <= last) & (lowest >= 0))
    rows["base_offset"][wrappers] = lowest[wrappers]
    rows["last_offset_delta"][wrappers] = (last - lowest)[wrappers]
