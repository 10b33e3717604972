"""The batches of a segment that is to be cleaned, window by window, and nothing that is not whole and right.

What the cleaner leaves out is gone for good, and what it writes anew gets a new CRC. So, other than a broker, it checks
the CRC of every batch before it believes a word of it, and wants the batches to reach up to the segment's end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import numpy as np
import numpy.typing as npt

from storage_core.errors import CorruptRecordError
from storage_core.record.batch_header import HEADER_SIZE_BYTES
from storage_core.segment.segment_windows import WINDOW_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.record.batch_window import BatchWindow
    from storage_core.segment.log_segment import LogSegment

__all__ = ["last_offsets_of", "source_windows"]

_Int64Array = npt.NDArray[np.int64]


def source_windows(
    segment: LogSegment, start_position_bytes: int = 0, *, window_bytes: int = WINDOW_BYTES
) -> Iterator[BatchWindow]:
    """The batches of a segment from a boundary on. A window's bytes are valid until the next one is asked for.

    Raises:
        CorruptRecordError: Bytes are no batch, a CRC is wrong, or batches are out of order.
        BatchTooLargeError: A batch is larger than the segment's configuration allows to read.
    """
    # With less than a header, nobody could tell how much is missing.
    window_bytes = max(window_bytes, HEADER_SIZE_BYTES)
    position_bytes = start_position_bytes
    lowest_offset = segment.base_offset
    for window in segment.windows(start_position_bytes, window_bytes=window_bytes):
        position_bytes = window.position_bytes + window.end
        if len(window.starts):
            lowest_offset = _checked(window, lowest_offset)
            yield window
        if window.error is not None:
            raise window.error
    if position_bytes != segment.size_bytes:
        raise CorruptRecordError(
            f"Expected whole record batches up to the segment's end at {segment.size_bytes}, found bytes that are none. "
            "Nothing of this log is cleaned before it is recovered.",
            path=segment.path,
            position_bytes=position_bytes,
        )


def last_offsets_of(window: BatchWindow) -> _Int64Array:
    """Per batch, its last offset."""
    last_offsets: _Int64Array = window.headers["base_offset"].astype(np.int64)
    last_offsets += window.headers["last_offset_delta"]
    return last_offsets


def _checked(window: BatchWindow, lowest_offset: int) -> int:
    """Check the batches of a window; return the offset behind the last one."""
    wrong = window.crc_mismatches(np.arange(len(window.starts)))
    if len(wrong):
        _fail(window, int(wrong[0]), "the CRC that its header states", "another one")
    base_offsets = window.headers["base_offset"].astype(np.int64)
    last_offsets = last_offsets_of(window)
    lowest = np.append(lowest_offset, last_offsets[:-1] + 1)
    misfits = np.flatnonzero((base_offsets < lowest) | (last_offsets < base_offsets))
    if len(misfits):
        index = int(misfits[0])
        found = f"offsets {base_offsets[index]} to {last_offsets[index]}"
        _fail(window, index, f"offsets from {lowest[index]} on", found)
    return int(last_offsets[-1]) + 1


def _fail(window: BatchWindow, index: int, expected: str, found: str) -> NoReturn:
    header = window.header(index)
    raise CorruptRecordError(
        f"Expected a record batch with {expected}, found one with {found}. The file is damaged here: its log is not "
        "cleaned.",
        path=window.path,
        position_bytes=header.position_bytes,
        end_position_bytes=header.end_position_bytes,
        offset=header.base_offset,
        last_offset=header.last_offset,
    )
