"""Which batches go where: those of a partition with few of them to the pack file, others to segments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from storage_core.commit.batch_runs import PlacedRun
from storage_core.commit.manifest import encode_piece
from storage_core.commit.piece import OpenPiece
from storage_core.commit.staged_segment import StagedSegment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from storage_core.checkpoint.stage_names import StageId
    from storage_core.commit.batch_runs import BatchRuns
    from storage_core.commit.open_files import OpenFiles
    from storage_core.log_config import LogConfig

__all__ = ["PartitionStage", "StagePlacement"]

_NONE: Final = -1


@dataclass(slots=True)
class PartitionStage:
    """What was staged for one partition.

    Attributes:
        topic: Its topic.
        partition: Its number in the topic.
        packed_bytes: How much of it is in the pack file.
        segment: The segment that takes what comes next; None: the pack file does, or a new segment.
        piece: The piece that the last segment is; None: there was none.
        last_offset: The last offset that was given with its rows.
    """

    topic: str
    partition: int
    packed_bytes: int = 0
    segment: StagedSegment | None = None
    piece: OpenPiece | None = None
    last_offset: int = _NONE


class StagePlacement:
    """Finds a place for each run of batches, and keeps the account of what is where.

    Files are made here, and written to by whoever asks.

    Args:
        files: Where files are made.
        stage: Whose they are.
        config: When segments end.
        piece_bytes: So much of one partition is worth a segment.
    """

    def __init__(self, files: OpenFiles, stage: StageId, config: LogConfig, piece_bytes: int) -> None:
        self._files = files
        self._stage = stage
        self._config = config
        # What is in the pack file has to fit a segment, too.
        self._piece_bytes = min(piece_bytes, config.max_segment_bytes)
        # As the manifest will have them: there may be very many.
        self._finished: list[bytes] = []
        self._pack_piece: OpenPiece | None = None
        self._pack_size_bytes = 0
        self._segment_count = 0
        # They take no more; what was placed into them may still have to be written.
        self._full_segments: list[StagedSegment] = []

    def place(self, runs: BatchRuns, stages: Sequence[PartitionStage]) -> list[PlacedRun]:
        """Find a place for each run, given what was staged of each partition by its number.

        What is placed is to be written before `seal_full_segments`, and that is to be called before this is again.
        """
        placed: list[PlacedRun] = []
        columns = (runs.starts, runs.stops, runs.partitions, runs.sizes_bytes)
        for start, stop, number, size_bytes in zip(*(column.tolist() for column in columns), strict=True):
            stage = stages[number]
            if stage.piece is None and stage.packed_bytes + size_bytes < self._piece_bytes:
                stage.packed_bytes += size_bytes
                placed.extend(self._place_in_pack(runs, start, stop, stage))
            else:
                placed.extend(self._place_in_segments(runs, start, stop, stage))
        return placed

    def seal_full_segments(self) -> None:
        """Complete the indexes of segments that take no more."""
        while self._full_segments:
            self._full_segments.pop().seal()

    def complete(self, stages: Sequence[PartitionStage]) -> list[bytes]:
        """Complete the indexes of all segments; the pieces as the manifest has them."""
        self._end_pack_piece()
        for stage in stages:
            self._end_segment(stage)
        self.seal_full_segments()
        return self._finished

    def _place_in_pack(
        self, runs: BatchRuns, start: int, stop: int, stage: PartitionStage
    ) -> Iterator[PlacedRun]:
        while start < stop:
            piece = self._pack_piece
            if piece is None or (piece.topic, piece.partition) != (stage.topic, stage.partition):
                piece = self._begin_pack_piece(stage)
            end = runs.fitting(start, stop, piece, None) if runs.keeps_offsets else stop
            if end > start:
                yield PlacedRun(start, end, None, piece.offset_count)
                figures = runs.figures(start, end)
                piece.add(figures)
                self._pack_size_bytes += figures.size_bytes
            if end < stop:
                self._end_pack_piece()
            start = end

    def _begin_pack_piece(self, stage: PartitionStage) -> OpenPiece:
        if not self._pack_size_bytes:
            self._files.create(self._stage.pack_name)
        self._end_pack_piece()
        piece = OpenPiece(stage.topic, stage.partition, self._stage.base_name, self._pack_size_bytes)
        self._pack_piece = piece
        return piece

    def _end_pack_piece(self) -> None:
        if self._pack_piece is not None:
            self._finished.append(encode_piece(self._pack_piece.staged()))
            self._pack_piece = None

    def _place_in_segments(
        self, runs: BatchRuns, start: int, stop: int, stage: PartitionStage
    ) -> Iterator[PlacedRun]:
        if stage.segment is not None and stage.segment.has_full_index:
            self._end_segment(stage)
        while start < stop:
            segment, piece = stage.segment, stage.piece
            if segment is None or piece is None:
                base_offset = int(runs.base_offsets[start]) if runs.keeps_offsets else 0
                segment, piece = self._begin_segment(stage, base_offset)
            end = runs.fitting(start, stop, piece, self._config)
            if end > start:
                yield PlacedRun(start, end, segment, piece.offset_count)
                piece.add(runs.figures(start, end))
            if end < stop:
                self._end_segment(stage)
            start = end

    def _begin_segment(self, stage: PartitionStage, base_offset: int) -> tuple[StagedSegment, OpenPiece]:
        if stage.packed_bytes and stage.piece is None:
            # The pieces of a partition are listed in their order.
            self._end_pack_piece()
        base_name = self._stage.segment_base_name(self._segment_count)
        self._segment_count += 1
        segment = StagedSegment(self._files, base_name, base_offset, self._config)
        piece = OpenPiece(stage.topic, stage.partition, base_name, position_bytes=0)
        stage.segment, stage.piece = segment, piece
        return segment, piece

    def _end_segment(self, stage: PartitionStage) -> None:
        if stage.segment is not None and stage.piece is not None:
            self._finished.append(encode_piece(stage.piece.staged()))
            self._full_segments.append(stage.segment)
            stage.segment = None
