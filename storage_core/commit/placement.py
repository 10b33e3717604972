"""Which offsets a partition's staged pieces get, and in which segments they go: the operations of the journal.

A large piece becomes a segment as it is. Runs of others are appended to what is the last segment at
that point, a large piece too, or make a new one where Kafka's rules say roll. So each segment has at
most one append.

Batches without records, where restored offsets have none: behind the last row, up to where the log ended.

From the pieces that tasks have staged to portions that can be placed, each of them checked.

Of what is appended the headers are checked: behind the journal it is too late to find that it is not what was
staged. Those of a large piece are checked when they are patched.
"""

from __future__ import annotations

import dataclasses
import os
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from storage_core.commit.manifest import read_manifest
from storage_core.commit.partition_state import SegmentTail
from storage_core.commit_files.journal import AppendOperation, LinkOperation, PackRange
from storage_core.commit_files.stage_names import StageId
from storage_core.commit_replay.staged_batches import BatchHeads, batch_heads, fingerprint
from storage_core.errors import CorruptRecordError, OptionError
from storage_core.record.batch_header import MAX_OFFSET_DELTA, NO_TIMESTAMP_MS
from storage_core.record.control_records import empty_batch
from storage_core.segment.file_names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from storage_core.segment.log_segment import exceeds_segment
from storage_core.segment.offset_index import ENTRY_SIZE_BYTES as OFFSET_ENTRY_BYTES
from storage_core.segment.offset_index import LARGEST_RELATIVE_OFFSET
from storage_core.segment.time_index import ENTRY_SIZE_BYTES as TIME_ENTRY_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from storage_core.commit.manifest import JobSettings, StagedManifest, StagedPiece
    from storage_core.filesystem import FileSystem, OpenFile
    from storage_core.log_config import LogConfig

__all__ = ["FillStage", "Placement", "Portion", "pieces_by_partition", "portions_of"]


_LINKED_SHARE: Final = 4
# Of what is larger, a copy takes longer than a few more segments are a burden.
_COPIED_AT_MOST_BYTES: Final = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Portion:
    """Batches of one partition, back to back in one staged file, that stay together.

    Attributes:
        file: The file's name without suffix.
        position_bytes: Where they begin.
        size_bytes: Their size.
        offset_count: How many offsets they take.
        first_timestamp_ms: The largest timestamp of the first of them.
        max_timestamp_ms: The largest timestamp of all.
        min_offset: The first one's base offset, if they keep their offsets.
        fingerprint: Of a staged segment.
        index_size_bytes: Of a staged segment's offset index; None if it is none, or too small to become one.
        time_index_size_bytes: Likewise.
    """

    file: str
    position_bytes: int
    size_bytes: int
    offset_count: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    min_offset: int | None = None
    fingerprint: int = 0
    index_size_bytes: int | None = None
    time_index_size_bytes: int = 0

    @property
    def end_offset(self) -> int:
        """The offset behind the last one, if they keep their offsets."""
        return (self.min_offset or 0) + self.offset_count


@dataclass(slots=True)
class Placement:
    """Places the portions of one partition, one after the other.

    Args:
        next_offset: The log end offset, which moves on.
        tail: The end of the last segment; None if there is none.
        config: Says when to roll.

    Attributes:
        operations: What is to be done.
        link_bases: Where each linked file goes, by its name.
    """

    next_offset: int
    tail: SegmentTail | None
    config: LogConfig
    operations: list[AppendOperation | LinkOperation] = field(default_factory=list)
    link_bases: dict[str, int] = field(default_factory=dict)
    _ranges: list[PackRange] = field(default_factory=list)
    _run_base_offset: int = 0
    _run_tail: SegmentTail | None = None

    @staticmethod
    def is_linked(size_bytes: int, config: LogConfig) -> bool:
        """Whether a staged segment of this size becomes one of the log; a smaller one is appended to another."""
        return size_bytes >= min(config.max_segment_bytes // _LINKED_SHARE, _COPIED_AT_MOST_BYTES)

    def begin_segment(self, base_offset: int) -> None:
        """Begin a segment in which nothing may be."""
        self.end_run()
        self.operations.append(AppendOperation((), base_offset, base_offset, 0, 0, 0))
        self.tail = SegmentTail(base_offset)
        self.next_offset = base_offset

    def place_all(self, portions: Iterable[Portion]) -> None:
        """Place portions in their order, which is that of their offsets."""
        for portion in portions:
            offset = self.next_offset if portion.min_offset is None else portion.min_offset
            if portion.index_size_bytes is not None:
                self._link(portion, offset)
            else:
                self._append(portion, offset)
            self.next_offset = offset + portion.offset_count
        self.end_run()

    def end_run(self) -> None:
        """What comes next does not go where the portions before it went."""
        if self._ranges and self._run_tail is not None:
            tail = self._run_tail
            self.operations.append(
                AppendOperation(
                    tuple(self._ranges),
                    self._run_base_offset,
                    tail.base_offset,
                    tail.size_bytes,
                    tail.index_size_bytes,
                    tail.time_index_size_bytes,
                )
            )
        self._ranges.clear()
        self._run_tail = None

    def _link(self, portion: Portion, offset: int) -> None:
        self.end_run()
        self.operations.append(LinkOperation(portion.file, offset, portion.size_bytes, portion.fingerprint))
        self.link_bases[portion.file] = offset
        self.tail = SegmentTail(
            offset,
            portion.size_bytes,
            portion.index_size_bytes or 0,
            portion.time_index_size_bytes,
            portion.first_timestamp_ms,
        )

    def _append(self, portion: Portion, offset: int) -> None:
        tail = self.tail
        if tail is None or self._must_roll(tail, portion, offset):
            self.end_run()
            tail = SegmentTail(offset)
        if self._run_tail is None:
            self._run_tail, self._run_base_offset = tail, offset
        self._ranges.append(PackRange(portion.file, portion.position_bytes, portion.size_bytes))
        self.tail = dataclasses.replace(
            tail,
            size_bytes=tail.size_bytes + portion.size_bytes,
            first_timestamp_ms=(
                portion.first_timestamp_ms if tail.first_timestamp_ms is None else tail.first_timestamp_ms
            ),
        )

    def _must_roll(self, tail: SegmentTail, portion: Portion, offset: int) -> bool:
        """Kafka's ``LogSegment.shouldRoll``. An empty segment takes what it can hold."""
        if not tail.is_open:
            return True
        config = self.config
        relative_offset = offset + portion.offset_count - 1 - tail.base_offset
        if tail.size_bytes == 0:
            return relative_offset > LARGEST_RELATIVE_OFFSET
        first_ms = tail.first_timestamp_ms
        waited_ms = None if first_ms is None or first_ms < 0 else portion.max_timestamp_ms - first_ms
        return (
            bool(exceeds_segment(config, tail.size_bytes + portion.size_bytes, waited_ms, relative_offset))
            or tail.index_size_bytes // OFFSET_ENTRY_BYTES >= config.segment_index_bytes // OFFSET_ENTRY_BYTES
            or tail.time_index_size_bytes // TIME_ENTRY_BYTES
            >= config.segment_index_bytes // TIME_ENTRY_BYTES - 1
        )


# No task has this number: those of Spark are below 2^31.
_DRIVER_TASK: Final = 1 << 31
# Each is a segment of three files.
_MOST_BATCHES: Final = 16


class FillStage:
    """Stages such batches in a pack of the driver's own.

    Args:
        filesystem: Where to write.
        root: The log directory.
        job_id: The job.
    """

    def __init__(self, filesystem: FileSystem, root: str, job_id: str) -> None:
        self._filesystem = filesystem
        self._root = root
        self._stage = StageId(job_id, _DRIVER_TASK, 0)
        self._pieces: list[bytes] = []
        self._size_bytes = 0

    def portions(self, start_offset: int, end_offset: int, leader_epoch: int) -> list[Portion]:
        """Stand in for all offsets from one to before another; for more than some batches can, nothing does."""
        if end_offset - start_offset > _MOST_BATCHES * (MAX_OFFSET_DELTA + 1):
            return []
        found = []
        while start_offset < end_offset:
            last_offset = min(end_offset - 1, start_offset + MAX_OFFSET_DELTA)
            batch = empty_batch(
                start_offset, last_offset, leader_epoch=leader_epoch, max_timestamp_ms=NO_TIMESTAMP_MS
            )
            self._pieces += [bytes(piece) for piece in batch.pieces]
            found.append(
                Portion(
                    self._stage.base_name,
                    self._size_bytes,
                    batch.size_bytes,
                    last_offset + 1 - start_offset,
                    NO_TIMESTAMP_MS,
                    NO_TIMESTAMP_MS,
                    start_offset,
                )
            )
            self._size_bytes += batch.size_bytes
            start_offset = last_offset + 1
        return found

    def write(self, *, flush: bool) -> None:
        """Write the pack, if there is anything in it.

        Raises:
            StorageError: The file system refused.
        """
        if not self._pieces:
            return
        path = os.path.join(self._root, self._stage.pack_name)
        with self._filesystem.open_for_writing(path, create=True) as pack:
            pack.truncate(0)
            pack.write_at(self._pieces, 0)
            if flush:
                pack.flush()
        if flush:
            self._filesystem.flush_directory(self._root)


# How much is read at once of a staged segment that is too small to become one.
_PORTION_BYTES: Final = 4 * 1024 * 1024


def pieces_by_partition(
    filesystem: FileSystem, root: str, settings: JobSettings, manifests: Sequence[StagedManifest]
) -> dict[tuple[str, int], list[StagedPiece]]:
    """What was staged for each partition: in the order of tasks, and in a task as written.

    Raises:
        CorruptCheckpointError: A manifest is not the one that was reported.
        OptionError: It belongs to another job, or two belong to one task.
    """
    read = [read_manifest(filesystem, root, reported) for reported in manifests]
    tasks = {manifest.stage.task for manifest in read}
    strangers = [each.stage.manifest_name for each in read if each.stage.job_id != settings.job_id]
    if strangers or len(tasks) != len(read):
        raise OptionError(
            f"Expected one manifest of job {settings.job_id} for each task, found "
            f"{strangers[0] if strangers else f'{len(read)} of {len(tasks)} tasks'}. Commit each task once."
        )
    found: dict[tuple[str, int], list[StagedPiece]] = defaultdict(list)
    for manifest in sorted(read, key=lambda each: each.stage.task):
        for piece in manifest.pieces:
            found[piece.topic_partition].append(piece)
    if settings.preserve_offsets:
        for pieces in found.values():
            _require_offsets(pieces)
    return found


def portions_of(
    filesystem: FileSystem,
    root: str,
    pieces: Sequence[StagedPiece],
    config: LogConfig,
    *,
    keep_offsets: bool,
) -> list[Portion]:
    """Check the pieces of one partition, and say what of them stays together.

    Raises:
        CorruptError: A staged file is not what its manifest says.
    """
    portions: list[Portion] = []
    for (file, suffix), group in groupby(pieces, key=attrgetter("file", "suffix")):
        if suffix == LOG_SUFFIX:
            portions += _of_segments(filesystem, root, group, config, keep_offsets=keep_offsets)
            continue
        with filesystem.open(os.path.join(root, file + suffix)) as pack:
            portions += [_appended(pack, piece, keep_offsets=keep_offsets) for piece in group]
    return portions


def _of_segments(
    filesystem: FileSystem,
    root: str,
    pieces: Iterable[StagedPiece],
    config: LogConfig,
    *,
    keep_offsets: bool,
) -> list[Portion]:
    portions: list[Portion] = []
    for piece in pieces:
        if Placement.is_linked(piece.size_bytes, config):
            portions.append(_linked(filesystem, root, piece, keep_offsets=keep_offsets))
        else:
            portions += _parts(filesystem, root, piece, keep_offsets=keep_offsets)
    return portions


def _require_offsets(pieces: list[StagedPiece]) -> None:
    """Put pieces into the order of their offsets, of which no two may have the same."""
    next_offset = 0
    for piece in sorted(pieces, key=lambda each: each.min_offset or 0):
        if piece.min_offset is None or piece.max_offset is None:
            raise OptionError(
                f"Expected staged rows with offsets for {piece.topic}-{piece.partition}, found some without. Stage "
                "them with preserveOffsets, too."
            )
        if piece.min_offset < next_offset:
            raise OptionError(
                f"Expected the rows for {piece.topic}-{piece.partition} that one task writes to have offsets behind or "
                f"in front of those of another task, found offset {piece.min_offset} below {next_offset}. Repartition "
                "by topic and partition and sort by offset before the write, and see that no offset is there twice.",
                offset=piece.min_offset,
            )
        next_offset = piece.max_offset + 1
    pieces.sort(key=lambda each: each.min_offset or 0)


def _appended(pack: OpenFile, piece: StagedPiece, *, keep_offsets: bool) -> Portion:
    end_bytes = piece.position_bytes + piece.size_bytes
    found = taken = 0
    is_whole = end_bytes <= pack.status.size_bytes
    for heads in batch_heads(pack, piece.position_bytes, end_bytes) if is_whole else ():
        found = fingerprint([heads], found)
        if keep_offsets:
            taken = int(heads.last_offsets[-1]) + 1 - (piece.min_offset or 0)
        else:
            taken += heads.offset_count
    if found != piece.fingerprint or taken != piece.offset_count:
        raise not_as_staged(pack.path, piece)
    return _portion(piece)


def _linked(filesystem: FileSystem, root: str, piece: StagedPiece, *, keep_offsets: bool) -> Portion:
    stem = os.path.join(root, piece.file)
    log, index, time_index = (
        filesystem.status(stem + suffix) for suffix in (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
    )
    if (
        log is None
        or index is None
        or time_index is None
        or log.size_bytes != piece.size_bytes
        or piece.position_bytes != 0
    ):
        raise not_as_staged(stem + LOG_SUFFIX, piece)
    return Portion(
        piece.file,
        0,
        piece.size_bytes,
        piece.offset_count,
        piece.first_timestamp_ms,
        piece.max_timestamp_ms,
        piece.min_offset if keep_offsets else None,
        piece.fingerprint,
        index.size_bytes,
        time_index.size_bytes,
    )


def _parts(filesystem: FileSystem, root: str, piece: StagedPiece, *, keep_offsets: bool) -> Iterator[Portion]:
    """A staged segment that is appended, in parts of bounded size."""
    path = os.path.join(root, piece.file + piece.suffix)
    with filesystem.open(path) as file:
        if file.status.size_bytes != piece.size_bytes:
            raise not_as_staged(path, piece)
        blocks = list(batch_heads(file, 0, piece.size_bytes))
    if fingerprint(blocks) != piece.fingerprint:
        raise not_as_staged(path, piece)
    offset_count = 0
    for heads in _cut(blocks):
        count = heads.offset_count
        first_offset = int(heads.headers["base_offset"][0])
        if keep_offsets:
            count = int(heads.last_offsets[-1]) + 1 - first_offset
        yield Portion(
            piece.file,
            heads.start_bytes,
            heads.size_bytes,
            count,
            int(heads.headers["max_timestamp_ms"][0]),
            int(heads.headers["max_timestamp_ms"].max()),
            first_offset if keep_offsets else None,
        )
        offset_count += count
    if not keep_offsets and offset_count != piece.offset_count:
        raise not_as_staged(path, piece)


def _cut(blocks: Sequence[BatchHeads]) -> Iterator[BatchHeads]:
    """The same batches in parts of bounded size, each with one batch at least."""
    for heads in blocks:
        ends_bytes = heads.positions_bytes + heads.sizes_bytes
        first = 0
        while first < len(ends_bytes):
            goal_bytes = int(heads.positions_bytes[first]) + _PORTION_BYTES
            stop = max(first + 1, int(ends_bytes.searchsorted(goal_bytes, "right")))
            yield BatchHeads(heads.positions_bytes[first:stop], heads.headers[first:stop])
            first = stop


def _portion(piece: StagedPiece) -> Portion:
    return Portion(
        piece.file,
        piece.position_bytes,
        piece.size_bytes,
        piece.offset_count,
        piece.first_timestamp_ms,
        piece.max_timestamp_ms,
        piece.min_offset,
    )


def not_as_staged(path: str, piece: StagedPiece) -> CorruptRecordError:
    """The error for a staged file that is not what its manifest says."""
    return CorruptRecordError(
        f"Expected {piece.size_bytes} bytes of batches for {piece.topic}-{piece.partition}, with the fingerprint "
        f"{piece.fingerprint:08x} as their task has reported, found something else. Abort the job, and write it again.",
        path=path,
        position_bytes=piece.position_bytes,
    )
