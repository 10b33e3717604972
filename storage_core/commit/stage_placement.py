"""Where a task stages its batches: those of small partitions in a pack file, others in segments of their own.

A staged segment has indexes with entries relative to its base offset, so that they stay valid when the commit assigns
another one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from storage_core.commit.manifest import StagedBatches, encode_staged
from storage_core.commit_replay.staged_batches import in_parallel
from storage_core.errors import StorageError
from storage_core.filesystem import FileSystem, PooledFile
from storage_core.record.batch_header import FINGERPRINTED_BYTES, fingerprinted_bytes
from storage_core.segment.file_names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from storage_core.segment.index_file import LARGEST_RELATIVE_OFFSET
from storage_core.segment.log_segment import exceeds_segment
from storage_core.segment.segment_indexes import IndexBuilder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from storage_core.commit_files.stage_names import StageId
    from storage_core.log_config import LogConfig
    from storage_core.record.batch_header import BytesLike
    from storage_core.record.record_batches import RecordBatches


_NONE: Final = -1
_FLUSHING_THREADS: Final = 8
_FLUSHED_AT_ONCE_BYTES: Final = 8 << 20
# A new log's first run of this size goes to a segment at once.
_LINKED_RUN_BYTES: Final = 1 << 20
# Index entries are buffered up to this size.
_SPILL_BYTES: Final = 4096
_Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """A run of adjacent batches of one partition, and its place.

    Attributes:
        segment: The segment that the run is appended to; None: the pack file.
        first_offset: How many offsets precede the run in its piece.
    """

    start: int
    stop: int
    segment: StagedSegment | None
    first_offset: int


class BatchRuns:
    """Encoded batches, grouped into runs of one partition each.

    Args:
        partitions: Per batch, the number of its partition.
        keeps_offsets: Whether the batches have their final offsets; otherwise their offsets have no meaning.

    ``starts``, ``stops``, ``partitions`` and ``sizes_bytes`` have a value for each run, ``base_offsets`` for each batch.
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
        # Most runs have few batches, for which lists are faster than arrays.
        self._listed_size_ends = self._size_ends.tolist()
        self._listed_record_ends = _ends(headers["record_count"]).tolist()
        self._listed_timestamps_ms = self._max_timestamps_ms.tolist()

    def added_to(self, piece: StagedBatches, start: int, stop: int) -> StagedBatches:
        """Return a piece with the batches of a run appended to it."""
        timestamps_ms = self._listed_timestamps_ms[start:stop]
        max_timestamp_ms = max(timestamps_ms)
        min_offset, max_offset = piece.min_offset, None
        if self.keeps_offsets:
            if min_offset is None:
                min_offset = int(self.base_offsets[start])
            max_offset = int(self.base_offsets[stop - 1] + self._last_offset_deltas[stop - 1])
        fingerprinted = self._fingerprinted[start * FINGERPRINTED_BYTES : stop * FINGERPRINTED_BYTES]
        sizes, records = self._listed_size_ends, self._listed_record_ends
        return StagedBatches(
            piece.topic,
            piece.partition,
            piece.file,
            piece.position_bytes,
            size_bytes=piece.size_bytes + sizes[stop] - sizes[start],
            batch_count=piece.batch_count + stop - start,
            record_count=piece.record_count + records[stop] - records[start],
            first_timestamp_ms=piece.first_timestamp_ms if piece.batch_count else timestamps_ms[0],
            max_timestamp_ms=max(piece.max_timestamp_ms, max_timestamp_ms)
            if piece.batch_count
            else max_timestamp_ms,
            fingerprint=int(crc32c(fingerprinted, piece.fingerprint)),
            min_offset=min_offset,
            max_offset=max_offset,
        )

    def fitting(self, start: int, stop: int, piece: StagedBatches, config: LogConfig | None) -> int:
        """Return the end of the batches of a run that fit a piece, whose offsets must fit an index.

        With a configuration, the limits of a segment apply, too (``LogSegment.shouldRoll``).
        """
        ends = self._size_ends[start + 1 : stop + 1] - self._size_ends[start]
        if self.keeps_offsets:
            first_offset = int(self.base_offsets[start]) if piece.min_offset is None else piece.min_offset
            spans = self.base_offsets[start:stop] + self._last_offset_deltas[start:stop] - first_offset
        else:
            spans = (
                self._offset_ends[start + 1 : stop + 1] - self._offset_ends[start] + piece.offset_count - 1
            )
        if config is None:
            is_beyond = spans > LARGEST_RELATIVE_OFFSET
        else:
            first_ms = piece.first_timestamp_ms if piece.batch_count else int(self._max_timestamps_ms[start])
            waited_ms = self._max_timestamps_ms[start:stop] - first_ms if first_ms >= 0 else None
            is_beyond = np.asarray(exceeds_segment(config, ends + piece.size_bytes, waited_ms, spans))
        return start + int(is_beyond.argmax()) if is_beyond.any() else stop

    def with_offsets(self, placed: Sequence[PlacedRun]) -> RecordBatches:
        """Return the batches with their offsets relative to their piece, unless they keep their own."""
        if self.keeps_offsets:
            return self.batches
        starts = np.array([each.start for each in placed], np.int64)
        counts = np.array([each.stop - each.start for each in placed], np.int64)
        firsts = np.array([each.first_offset for each in placed], np.int64)
        return self.batches.with_base_offsets(
            self._offset_ends[:-1] + np.repeat(firsts - self._offset_ends[starts], counts)
        )


def _ends(counts: npt.NDArray[Any]) -> _Int64Array:
    """Return the cumulative sums of the counts, after a 0."""
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends


class OpenFiles:
    """The new files of a task attempt, any number of them, in one directory. The file system limits how many are open.

    With ``begins_flushes``, the files will be flushed, so writeback begins early.
    """

    def __init__(self, filesystem: FileSystem, directory: str, *, begins_flushes: bool = False) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._files: dict[str, PooledFile] = {}
        self._begins_flushes = begins_flushes
        # By name, the position up to which writeback has begun.
        self._begun_bytes: dict[str, int] = {}

    def exists(self, name: str) -> bool:
        """Return True if the directory has something of this name, not only of this attempt."""
        return self._filesystem.exists(os.path.join(self._directory, name))

    def create(self, name: str) -> None:
        """Create an empty file.

        Raises:
            StorageError: A file of this name has content, or the file system refused.
        """
        path = os.path.join(self._directory, name)
        file = self._filesystem.open_pooled(path, create=True)
        if file.size_bytes():
            file.close()
            raise StorageError(
                "Expected no file of this name, found one with content. Two attempts at a task have the same number: "
                "assign each its own.",
                path=path,
            )
        self._files[name] = file

    def write(self, name: str, pieces: Sequence[BytesLike], position_bytes: int) -> None:
        """Write to one of the files, and begin writeback of a large one.

        The last write is left out, because its last page may still change.
        """
        file = self._files[name]
        file.write_at(pieces, position_bytes)
        if self._begins_flushes:
            begun_bytes = self._begun_bytes.get(name, 0)
            if position_bytes - begun_bytes >= _FLUSHED_AT_ONCE_BYTES:
                file.begin_flush(begun_bytes, position_bytes - begun_bytes)
                self._begun_bytes[name] = position_bytes

    def flush(self) -> None:
        """Flush and close all files. The directory is not flushed. After an error, what is on disk is unknown."""
        in_parallel(PooledFile.flush, list(self._files.values()), _FLUSHING_THREADS)
        self.close()

    def close(self) -> None:
        """Close all files without a flush."""
        for file in self._files.values():
            file.close()

    def delete(self) -> list[StorageError]:
        """Delete all files; return the errors for those that the file system refused to delete."""
        errors = []
        for name in self._files:
            try:
                self._filesystem.delete(os.path.join(self._directory, name))
            except StorageError as error:
                errors.append(error)
        return errors


class _IndexFile:
    """An index file with a write buffer."""

    def __init__(self, files: OpenFiles, name: str) -> None:
        self._files = files
        self._name = name
        self._written_bytes = 0
        self._kept = bytearray()

    def add(self, entries: bytes) -> None:
        self._kept += entries
        if len(self._kept) > _SPILL_BYTES:
            self.complete()

    def complete(self) -> None:
        """Write the buffered entries, and create the file if there are none."""
        if not self._written_bytes:
            self._files.create(self._name)
        self._files.write(self._name, [bytes(self._kept)], self._written_bytes)
        self._written_bytes += len(self._kept)
        self._kept.clear()


class StagedSegment:
    """A staged segment, which takes batches until it is sealed. Index entries are relative to its base offset."""

    def __init__(self, files: OpenFiles, base_name: str, base_offset: int, config: LogConfig) -> None:
        self.size_bytes = 0
        self._files = files
        self._name = base_name + LOG_SUFFIX
        self._indexes = IndexBuilder(base_offset, config)
        self._offsets = _IndexFile(files, base_name + OFFSET_INDEX_SUFFIX)
        self._times = _IndexFile(files, base_name + TIME_INDEX_SUFFIX)
        files.create(self._name)

    @property
    def has_full_index(self) -> bool:
        """Whether an index is full, so that the segment must end."""
        return self._indexes.is_full

    def append(self, batches: RecordBatches) -> None:
        """Append batches, whose offsets relative to the base offset are final."""
        offset_entries, time_entries = self._indexes.add(
            batches.last_offsets, batches.headers["max_timestamp_ms"], batches.sizes_bytes, self.size_bytes
        )
        self._files.write(self._name, batches.pieces, self.size_bytes)
        self._offsets.add(offset_entries)
        self._times.add(time_entries)
        self.size_bytes += batches.size_bytes

    def seal(self) -> None:
        """Complete the indexes, as a broker does when it closes a segment."""
        self._times.add(self._indexes.last_entry())
        self._times.complete()
        self._offsets.complete()


@dataclass(slots=True)
class PartitionStage:
    """The staging state of one partition.

    Attributes:
        packed_bytes: Size of its batches in the pack file.
        segment: The segment that takes its next batches; None: the pack file, or a new segment.
        piece: What the last segment holds; None before its first segment.
        last_offset: The last offset given with its rows.
    """

    topic: str
    partition: int
    packed_bytes: int = 0
    segment: StagedSegment | None = None
    piece: StagedBatches | None = None
    last_offset: int = _NONE


class StagePlacement:
    """Writes each run of batches to its place, and records the pieces for the manifest.

    A partition of at least ``piece_bytes`` gets a segment, that of a new log sooner; ``config`` decides when that ends.
    """

    def __init__(self, files: OpenFiles, stage: StageId, config: LogConfig, piece_bytes: int) -> None:
        self._files = files
        self._stage = stage
        self._config = config
        # A piece of the pack file must fit a segment, too.
        self._piece_bytes = min(piece_bytes, config.max_segment_bytes)
        # Encoded for the manifest, because there may be very many.
        self._finished: list[bytes] = []
        self._pack_piece: StagedBatches | None = None
        self._pack_size_bytes = 0
        self._segment_count = 0
        # Their last batches may still have to be written.
        self._full_segments: list[StagedSegment] = []

    def write(self, runs: BatchRuns, stages: Sequence[PartitionStage]) -> list[PlacedRun]:
        """Write the batches of each run to a place, given the states of partitions by their number."""
        pack_position_bytes = self._pack_size_bytes
        placed = self._place(runs, stages)
        batches = runs.with_offsets(placed)
        # Adjacent runs for the pack file are written with one call.
        for segment, adjacent in groupby(placed, key=attrgetter("segment")):
            first, *others = adjacent
            written = batches.select(first.start, (others[-1] if others else first).stop)
            if segment is not None:
                segment.append(written)
            else:
                self._files.write(self._stage.pack_name, written.pieces, pack_position_bytes)
                pack_position_bytes += written.size_bytes
        self._seal_full_segments()
        return placed

    def _place(self, runs: BatchRuns, stages: Sequence[PartitionStage]) -> list[PlacedRun]:
        placed: list[PlacedRun] = []
        columns = (runs.starts, runs.stops, runs.partitions, runs.sizes_bytes)
        for start, stop, number, size_bytes in zip(*(column.tolist() for column in columns), strict=True):
            stage = stages[number]
            is_small = stage.packed_bytes + size_bytes < self._piece_bytes
            if stage.piece is None and is_small and not self._begins_log(stage, size_bytes):
                stage.packed_bytes += size_bytes
                placed.extend(self._place_in_pack(runs, start, stop, stage))
            else:
                placed.extend(self._place_in_segments(runs, start, stop, stage))
        return placed

    def _begins_log(self, stage: PartitionStage, size_bytes: int) -> bool:
        """Return True if a run is likely to begin a new log, so that the commit can link its segment.

        Files of their own cost more than copying a short run.
        """
        return (
            self._stage.task == 0
            and not stage.packed_bytes
            and size_bytes >= _LINKED_RUN_BYTES
            and not self._files.exists(f"{stage.topic}-{stage.partition}")
        )

    def _seal_full_segments(self) -> None:
        while self._full_segments:
            self._full_segments.pop().seal()

    def complete(self, stages: Sequence[PartitionStage]) -> list[bytes]:
        """Complete the indexes of all segments, and return the encoded pieces for the manifest."""
        self._end_pack_piece()
        for stage in stages:
            self._end_segment(stage)
        self._seal_full_segments()
        return self._finished

    def _place_in_pack(
        self, runs: BatchRuns, start: int, stop: int, stage: PartitionStage
    ) -> Iterator[PlacedRun]:
        while start < stop:
            piece = self._pack_piece
            if piece is None or piece.topic_partition != (stage.topic, stage.partition):
                piece = self._begin_pack_piece(stage)
            end = runs.fitting(start, stop, piece, None) if runs.keeps_offsets else stop
            if end > start:
                yield PlacedRun(start, end, None, piece.offset_count)
                self._pack_piece = runs.added_to(piece, start, end)
                self._pack_size_bytes += self._pack_piece.size_bytes - piece.size_bytes
            if end < stop:
                self._end_pack_piece()
            start = end

    def _begin_pack_piece(self, stage: PartitionStage) -> StagedBatches:
        if not self._pack_size_bytes:
            self._files.create(self._stage.pack_name)
        self._end_pack_piece()
        piece = StagedBatches(stage.topic, stage.partition, self._stage.base_name, self._pack_size_bytes)
        self._pack_piece = piece
        return piece

    def _end_pack_piece(self) -> None:
        if self._pack_piece is not None:
            self._finished.append(encode_staged(self._pack_piece))
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
                stage.piece = runs.added_to(piece, start, end)
            if end < stop:
                self._end_segment(stage)
            start = end

    def _begin_segment(self, stage: PartitionStage, base_offset: int) -> tuple[StagedSegment, StagedBatches]:
        if stage.packed_bytes and stage.piece is None:
            # The manifest lists the pieces of a partition in order.
            self._end_pack_piece()
        base_name = self._stage.segment_base_name(self._segment_count)
        self._segment_count += 1
        segment = StagedSegment(self._files, base_name, base_offset, self._config)
        piece = StagedBatches(stage.topic, stage.partition, base_name, position_bytes=0)
        stage.segment, stage.piece = segment, piece
        return segment, piece

    def _end_segment(self, stage: PartitionStage) -> None:
        if stage.segment is not None and stage.piece is not None:
            self._finished.append(encode_staged(stage.piece))
            self._full_segments.append(stage.segment)
            stage.segment = None
