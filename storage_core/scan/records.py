"""The records of chosen batches as rows: decompressed, decoded, made into Arrow batches.

Where damage does not end the read, a batch whose records contradict its header, although its CRC is
right, is damaged alone: the others of its section are then decoded one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from storage_core.errors import CorruptError, SegmentLogError, UnsupportedFormatError
from storage_core.record import decode_records
from storage_core.segment import DamagedRange

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    import pyarrow as pa

    from storage_core.record import WantedFields
    from storage_core.record.batch_window import BatchWindow
    from storage_core.scan.damage import DamageReporter
    from storage_core.scan.fitting_rows import Rows
    from storage_core.scan.sections import SectionMaker
    from storage_core.scan.spans import LogSpan

__all__ = ["RecordReader"]

_DAMAGE: Final = (CorruptError, UnsupportedFormatError)


class RecordReader:
    """Makes rows of the records of batches.

    Args:
        sections: Uncompresses records.
        wanted: Which fields of them are decoded.
        rows: Makes rows of them.
        damage: Takes the batches that cannot be decoded.
    """

    def __init__(
        self, sections: SectionMaker, wanted: WantedFields, rows: Rows, damage: DamageReporter
    ) -> None:
        self._sections = sections
        self._wanted = wanted
        self._rows = rows
        self._damage = damage

    def batches(
        self, window: BatchWindow, indexes: npt.NDArray[np.int64], span: LogSpan
    ) -> Iterator[pa.RecordBatch]:
        """The rows of some batches of a window that lie within a span's offsets."""
        while len(indexes):
            # How many batches have given their rows, and how many are being decoded.
            done = pending = 0
            try:
                for section in self._sections.sections(window, indexes):
                    pending = len(section.headers)
                    columns = decode_records(section, self._wanted)
                    yield from self._rows.batches(section, columns, span)
                    done, pending = done + pending, 0
            except _DAMAGE as error:
                if self._damage.is_fatal:
                    raise
                # A batch that its codec refuses has no section.
                end = done + pending if pending else _count_up_to(window, indexes, error, done)
            else:
                return
            for index in indexes[done:end].tolist():
                yield from self._single(window, index, span)
            indexes = indexes[end:]

    def _single(self, window: BatchWindow, index: int, span: LogSpan) -> Iterator[pa.RecordBatch]:
        """The rows of one batch, or the report that it is damaged."""
        made: list[pa.RecordBatch] = []
        try:
            for section in self._sections.sections(window, np.array([index], np.int64)):
                columns = decode_records(section, self._wanted)
                made += self._rows.batches(section, columns, span)
        except _DAMAGE as error:
            end_offset = self._offset_behind(window, index)
            yield from self._damage.report(_damaged_batch(window, index, end_offset, error), span)
            return
        yield from made

    def _offset_behind(self, window: BatchWindow, index: int) -> int:
        """The offset behind all that a damaged batch may have held.

        A wrapper's own offset may be what is wrong with it: then the first one of the next batch tells.
        """
        header = window.header(index)
        if not header.is_wrapper or index + 1 == len(window.starts):
            return header.next_offset
        behind = window.header(index + 1)
        if not behind.is_wrapper:
            return max(header.next_offset, behind.base_offset)
        try:
            (section,) = self._sections.sections(window, np.array([index + 1], np.int64))
            return max(header.next_offset, int(decode_records(section, self._wanted).offsets[0]))
        except _DAMAGE:
            return header.next_offset


def _count_up_to(
    window: BatchWindow, indexes: npt.NDArray[np.int64], error: SegmentLogError, done: int
) -> int:
    """How many of the batches there are up to the one that an error names."""
    if error.position_bytes is None:
        return len(indexes)
    starts = window.starts[indexes] + window.position_bytes
    return max(int(np.searchsorted(starts, error.position_bytes, side="right")), done + 1)


def _damaged_batch(window: BatchWindow, index: int, end_offset: int, error: SegmentLogError) -> DamagedRange:
    header = window.header(index)
    return DamagedRange(
        window.path,
        header.position_bytes,
        header.end_position_bytes,
        header.base_offset,
        end_offset,
        str(error.args[0]),
        type(error),
    )
