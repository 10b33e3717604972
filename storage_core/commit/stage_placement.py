"""A piece that is still being written.

Encoded batches that stand partition after partition, and what has to be known of any run of them.

The files that a task stages its rows in: any number of them, written to by turns, few open at a time.

A staged segment: the batches of one partition with their indexes, ready to be given its place in a log.

Index entries are relative to its base offset, so that they stay right when it gets another one.

Which batches go where: those of a partition with few of them to the pack file, others to segments.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from storage_core.commit.manifest import StagedPiece, encode_piece
from storage_core.errors import StorageError
from storage_core.filesystem import PooledFile
from storage_core.record.batch_header import FINGERPRINTED_BYTES, fingerprinted_bytes
from storage_core.segment.file_names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from storage_core.segment.log_segment import exceeds_segment
from storage_core.segment.offset_index import LARGEST_RELATIVE_OFFSET
from storage_core.segment.segment_indexes import IndexBuilder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from storage_core.commit_files.stage_names import StageId
    from storage_core.filesystem import FileSystem
    from storage_core.log_config import LogConfig
    from storage_core.record.batch_header import BytesLike
    from storage_core.record.record_batches import RecordBatches

__all__ = [
    "BatchRuns",
    "OpenFiles",
    "OpenPiece",
    "PartitionStage",
    "PlacedRun",
    "RunFigures",
    "StagePlacement",
    "StagedSegment",
]


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What a piece has to know of batches that are added to it.

    Attributes:
        size_bytes: Their size.
        batch_count: How many there are.
        record_count: How many records they hold.
        offset_count: How many offsets they take.
        first_timestamp_ms: The largest timestamp of the first of them.
        max_timestamp_ms: The largest timestamp of all.
        first_offset: The first one's base offset, if they keep their offsets.
        last_offset: The last one's last offset, likewise.
        fingerprinted: What the fingerprint is computed of.
    """

    size_bytes: int
    batch_count: int
    record_count: int
    offset_count: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    first_offset: int | None
    last_offset: int | None
    fingerprinted: BytesLike


@dataclass(slots=True)
class OpenPiece:
    """Batches of one partition, back to back in one staged file, to which more are added."""

    topic: str
    partition: int
    file: str
    position_bytes: int
    size_bytes: int = 0
    batch_count: int = 0
    record_count: int = 0
    offset_count: int = 0
    first_timestamp_ms: int = 0
    max_timestamp_ms: int = 0
    fingerprint: int = 0
    min_offset: int | None = None
    max_offset: int | None = None

    def add(self, run: RunFigures) -> None:
        """Count batches that were put behind the last."""
        if self.batch_count:
            self.max_timestamp_ms = max(self.max_timestamp_ms, run.max_timestamp_ms)
        else:
            self.first_timestamp_ms, self.max_timestamp_ms = run.first_timestamp_ms, run.max_timestamp_ms
            self.min_offset = run.first_offset
        self.max_offset = run.last_offset
        self.size_bytes += run.size_bytes
        self.batch_count += run.batch_count
        self.record_count += run.record_count
        self.offset_count += run.offset_count
        self.fingerprint = int(crc32c(run.fingerprinted, self.fingerprint))

    def staged(self) -> StagedPiece:
        """What the manifest says of it."""
        return StagedPiece(
            topic=self.topic,
            partition=self.partition,
            file=self.file,
            position_bytes=self.position_bytes,
            size_bytes=self.size_bytes,
            batch_count=self.batch_count,
            record_count=self.record_count,
            first_timestamp_ms=self.first_timestamp_ms,
            max_timestamp_ms=self.max_timestamp_ms,
            fingerprint=self.fingerprint,
            min_offset=self.min_offset,
            max_offset=self.max_offset,
        )


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
        if config is None:
            is_beyond = spans > LARGEST_RELATIVE_OFFSET
        else:
            first_ms = piece.first_timestamp_ms if piece.batch_count else int(self._max_timestamps_ms[start])
            waited_ms = self._max_timestamps_ms[start:stop] - first_ms if first_ms >= 0 else None
            is_beyond = np.asarray(exceeds_segment(config, ends + piece.size_bytes, waited_ms, spans))
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


_FLUSHING_THREADS: Final = 8
_FLUSHED_AT_ONCE_BYTES: Final = 8 << 20


class OpenFiles:
    """New files in one directory, of which as many are open at a time as the file system allows.

    Args:
        filesystem: Through which they are written.
        directory: Where they are.
        begins_flushes: Whether they will be flushed: then the system is asked early to write them to the disk.
    """

    def __init__(self, filesystem: FileSystem, directory: str, *, begins_flushes: bool = False) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._files: dict[str, PooledFile] = {}
        self._begins_flushes = begins_flushes
        # By name, up to where a file is being written to the disk.
        self._begun_bytes: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        """The files, in the order in which they were made."""
        return list(self._files)

    def create(self, name: str) -> None:
        """Make an empty file.

        Raises:
            StorageError: There is a file of this name, or the file system refused.
        """
        path = os.path.join(self._directory, name)
        file = self._filesystem.open_pooled(path, create=True)
        if file.size_bytes():
            file.close()
            raise StorageError(
                "Expected no file of this name, found one with content. Two attempts at a task go by one number: "
                "give each its own.",
                path=path,
            )
        self._files[name] = file

    def write(self, name: str, pieces: Sequence[BytesLike], position_bytes: int) -> None:
        """Write to one of the files.

        Raises:
            StorageError: The file system refused; a part may have been written.
        """
        file = self._files[name]
        file.write_at(pieces, position_bytes)
        if self._begins_flushes:
            self._begin_flush(name, file, position_bytes)

    def flush(self) -> None:
        """Bring all of them to the disk itself, and close them. The directory is not flushed.

        Raises:
            StorageError: The file system refused; what is on the disk is not known.
        """
        with ThreadPoolExecutor(min(_FLUSHING_THREADS, len(self._files) or 1)) as threads:
            for _ in threads.map(PooledFile.flush, self._files.values()):
                pass
        self.close()

    def close(self) -> None:
        """Close them without flushing."""
        for file in self._files.values():
            file.close()

    def delete(self) -> list[StorageError]:
        """Delete those made here, as far as the file system lets that happen; what it says otherwise is returned."""
        errors = []
        for name in self._files:
            try:
                self._filesystem.delete(os.path.join(self._directory, name))
            except StorageError as error:
                errors.append(error)
        return errors

    def _begin_flush(self, name: str, file: PooledFile, position_bytes: int) -> None:
        """Once there is much of a file, have it written: all of it but what was written last, which may be added to."""
        begun_bytes = self._begun_bytes.get(name, 0)
        if position_bytes - begun_bytes >= _FLUSHED_AT_ONCE_BYTES:
            file.begin_flush(begun_bytes, position_bytes - begun_bytes)
            self._begun_bytes[name] = position_bytes


# So much of an index is kept before it is written.
_SPILL_BYTES: Final = 4096


class _IndexFile:
    """The entries of an index, written some at a time."""

    def __init__(self, files: OpenFiles, name: str) -> None:
        self._files = files
        self._name = name
        self._written_bytes = 0
        self._kept = bytearray()

    def add(self, entries: bytes) -> None:
        """Add entries."""
        self._kept += entries
        if len(self._kept) >= _SPILL_BYTES and self._written_bytes + len(self._kept) > _SPILL_BYTES:
            self._write()

    def complete(self) -> None:
        """Write what is left; make the file if there was nothing."""
        self._write()

    def _write(self) -> None:
        if not self._written_bytes:
            self._files.create(self._name)
        self._files.write(self._name, [bytes(self._kept)], self._written_bytes)
        self._written_bytes += len(self._kept)
        self._kept.clear()


class StagedSegment:
    """A segment that batches are appended to until it is sealed.

    Args:
        files: Where its files are made.
        base_name: Their name without suffix.
        base_offset: What its index entries count from.
        config: Where index entries are due, and how many there may be.
    """

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
        """Whether an index takes no more entries: then a segment ends."""
        return self._indexes.is_full

    def append(self, batches: RecordBatches) -> None:
        """Write batches behind the last, with their final distance from the base offset.

        Raises:
            StorageError: The file system refused.
        """
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
