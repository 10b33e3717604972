"""Encoded batches that stand partition after partition, and what has to be known of any run of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from storage_core.commit.piece import RunFigures
from storage_core.record.batch_fingerprint import FINGERPRINTED_BYTES, fingerprinted_bytes
from storage_core.segment.offset_index_file import LARGEST_RELATIVE_OFFSET

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage_core.commit.piece import OpenPiece
    from storage_core.commit.staged_segment import StagedSegment
    from storage_core.log_config import LogConfig
    from storage_core.record.record_batches import RecordBatches

__all__ = ["BatchRuns", "PlacedRun"]

_NONE: Final = -1

_Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """A run of batches of one partition, and where it goes.

    Attributes:
        start: Number of its first batch.
        stop: Number behind that of its last.
        segment: The segment that it is appended to; None: the pack file.
        first_offset: How many offsets stand before it in its piece.
    """

    start: int
    stop: int
    segment: StagedSegment | None
    first_offset: int


class BatchRuns:
    """Batches, and the runs of those of one partition.

    Args:
        batches: The batches.
        partitions: Per batch, the number of its partition.
        keeps_offsets: Whether batches have their final offsets; otherwise theirs mean nothing.

    Attributes:
        starts: Per run, its first batch.
        stops: Per run, the batch behind its last.
        partitions: Per run, its partition.
        sizes_bytes: Per run, its size.
        base_offsets: Per batch, its base offset.
    """

    def __init__(self, batches: RecordBatches, partitions: _Int64Array, *, keeps_offsets: bool) -> None:
        headers = batches.headers
        self.batches = batches
        self.keeps_offsets = keeps_offsets
        self.starts = np.flatnonzero(np.diff(partitions, prepend=_NONE))
        self.stops = np.append(self.starts[1:], len(partitions))
        self.partitions = partitions[self.starts]
        self.base_offsets: _Int64Array = headers["base_offset"].astype(np.int64)
        self._size_ends = _ends(batches.sizes_bytes)
        self.sizes_bytes = self._size_ends[self.stops] - self._size_ends[self.starts]
        self._last_offset_deltas: _Int64Array = headers["last_offset_delta"].astype(np.int64)
        self._offset_ends = _ends(self._last_offset_deltas + 1)
        self._max_timestamps_ms: _Int64Array = headers["max_timestamp_ms"].astype(np.int64)
        self._fingerprinted = fingerprinted_bytes(headers)
        # Of most runs there are few batches: for these, lists are quicker than arrays.
        ends = (self._size_ends, _ends(headers["record_count"]), self._offset_ends)
        self._listed_ends = [column.tolist() for column in ends]
        self._listed_timestamps_ms = self._max_timestamps_ms.tolist()

    def figures(self, start: int, stop: int) -> RunFigures:
        """What a piece has to know of a run."""
        first_offset = last_offset = None
        if self.keeps_offsets:
            first_offset = int(self.base_offsets[start])
            last_offset = int(self.base_offsets[stop - 1] + self._last_offset_deltas[stop - 1])
        size_bytes, record_count, offset_count = (ends[stop] - ends[start] for ends in self._listed_ends)
        timestamps_ms = self._listed_timestamps_ms[start:stop]
        return RunFigures(
            size_bytes=size_bytes,
            batch_count=stop - start,
            record_count=record_count,
            offset_count=offset_count,
            first_timestamp_ms=timestamps_ms[0],
            max_timestamp_ms=max(timestamps_ms),
            first_offset=first_offset,
            last_offset=last_offset,
            fingerprinted=self._fingerprinted[start * FINGERPRINTED_BYTES : stop * FINGERPRINTED_BYTES],
        )

    def fitting(self, start: int, stop: int, piece: OpenPiece, config: LogConfig | None) -> int:
        """Behind which batch of a run a piece is full: its offsets must fit an index.

        With a configuration, what Kafka asks for in a segment counts, too (``LogSegment.shouldRoll``).
        """
        ends = self._size_ends[start + 1 : stop + 1] - self._size_ends[start]
        if self.keeps_offsets:
            first_offset = int(self.base_offsets[start]) if piece.min_offset is None else piece.min_offset
            spans = self.base_offsets[start:stop] + self._last_offset_deltas[start:stop] - first_offset
        else:
            spans = (
                self._offset_ends[start + 1 : stop + 1] - self._offset_ends[start] + piece.offset_count - 1
            )
        is_beyond = spans > LARGEST_RELATIVE_OFFSET
        if config is not None:
            is_beyond |= ends + piece.size_bytes > config.max_segment_bytes
            first_ms = piece.first_timestamp_ms if piece.batch_count else int(self._max_timestamps_ms[start])
            if first_ms >= 0:
                is_beyond |= self._max_timestamps_ms[start:stop] - first_ms > config.max_segment_ms
        return start + int(is_beyond.argmax()) if is_beyond.any() else stop

    def with_offsets(self, placed: Sequence[PlacedRun]) -> RecordBatches:
        """The batches with the offsets that they have in their pieces, if they do not keep their own."""
        if self.keeps_offsets:
            return self.batches
        starts = np.array([each.start for each in placed], np.int64)
        counts = np.array([each.stop - each.start for each in placed], np.int64)
        firsts = np.array([each.first_offset for each in placed], np.int64)
        return self.batches.with_base_offsets(
            self._offset_ends[:-1] + np.repeat(firsts - self._offset_ends[starts], counts)
        )


def _ends(counts: npt.NDArray[Any]) -> _Int64Array:
    """0, and behind it the sums of the first one, the first two, and so on."""
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends
