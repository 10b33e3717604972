"""The headers of the batches in a buffer, of any format, as rows of one structured array."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from storage_core.record.batch_header import (
    CODEC_MASK,
    HEADER_DTYPE,
    LEGACY_ATTRIBUTES,
    MAGIC_POSITION,
    MAGIC_V2,
    MAX_OFFSET,
    MAX_OFFSET_DELTA,
)
from storage_core.record.gather import gather
from storage_core.record.legacy_message import MESSAGE_DTYPE, NO_TIMESTAMP_MS

__all__ = ["header_rows", "wrapper_rows"]

_ATTRIBUTES_BY_MAGIC: Final = np.array(LEGACY_ATTRIBUTES, np.int16)

_Bytes = npt.NDArray[np.uint8]
_Int64Array = npt.NDArray[np.int64]
_Rows = npt.NDArray[Any]


def _legacy_row() -> _Rows:
    """What a message does not have; the rest is put in."""
    row = np.zeros(1, HEADER_DTYPE)
    for name in ("leader_epoch", "producer_id", "producer_epoch", "base_sequence"):
        row[name] = -1
    row["record_count"] = 1
    return row


_LEGACY_ROW: Final = _legacy_row()


def header_rows(buffer: _Bytes, starts: _Int64Array, lowest_offset: int) -> _Rows:
    """The header of each batch in a buffer: a structured array of `HEADER_DTYPE`.

    Args:
        buffer: Whole batches, of any format.
        starts: Where they begin, ascending and back to back.
        lowest_offset: The first batch's offsets do not lie below it. A wrapper begins behind the batch
            before, as far as its header tells.
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


def wrapper_rows(headers: _Rows) -> npt.NDArray[np.bool_]:
    """Per header: whether it is that of a wrapper."""
    is_wrapper: npt.NDArray[np.bool_] = headers["magic"] < MAGIC_V2
    is_wrapper &= (headers["attributes"] & CODEC_MASK) != 0
    return is_wrapper


def _legacy_rows(buffer: _Bytes, starts: _Int64Array) -> _Rows:
    # No more is read than the shortest message has: nothing behind the last one is looked at.
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
    """Let wrappers begin behind the batch before. One that is out of order is left as it is."""
    is_wrapper = wrapper_rows(rows)
    if not is_wrapper.any():
        return
    last_offsets = rows["base_offset"].astype(np.int64) + rows["last_offset_delta"]
    lowest = np.empty_like(last_offsets)
    # The offset behind the largest one is no integer of numpy's.
    lowest[0] = min(lowest_offset, MAX_OFFSET)
    lowest[1:] = last_offsets[:-1] + 1
    lowest = np.maximum(lowest, last_offsets - MAX_OFFSET_DELTA)
    wrappers = np.flatnonzero(is_wrapper & (lowest <= last_offsets) & (lowest >= 0))
    rows["base_offset"][wrappers] = lowest[wrappers]
    rows["last_offset_delta"][wrappers] = (last_offsets - lowest)[wrappers]
