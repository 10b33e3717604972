"""Which offsets and segments a partition's staged batches get: the operations of the journal.

A large staged segment becomes a segment of the log as it is, and so does the first one of any size where one begins in
any case. Other batches are appended to the last segment at that point, which may be a linked one, or to a new segment
where Kafka's rules say roll. Each segment therefore has at most one append.

All staged files are checked against their manifest here, because a commit must not fail after its journal is written.
Batches that are appended are checked by their headers; segments that are linked are checked when they get their
offsets (see `prepare`).
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from storage_core.commit.manifest import StagedBatches, StagedManifest, read_manifest
from storage_core.commit.partition_state import SegmentTail
from storage_core.commit_files.journal import AppendOperation, LinkOperation, StagedFileRange
from storage_core.commit_replay.staged_batches import BatchHeads, StagedFiles, batch_heads, fingerprint
from storage_core.errors import CorruptRecordError, OptionError
from storage_core.record.batch_header import batch_sizes_bytes, last_offsets
from storage_core.segment.file_names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from storage_core.segment.index_file import LARGEST_RELATIVE_OFFSET
from storage_core.segment.log_segment import exceeds_segment
from storage_core.segment.offset_index import ENTRY_SIZE_BYTES as OFFSET_ENTRY_BYTES
from storage_core.segment.time_index import ENTRY_SIZE_BYTES as TIME_ENTRY_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from storage_core.commit.job_spec import JobContext
    from storage_core.filesystem import OpenFile
    from storage_core.log_config import LogConfig


# A staged segment of at least this share of segment.bytes is linked.
_LINKED_SHARE: Final = 4
# Copying a larger one costs more than an additional segment in the log.
_MAX_COPIED_BYTES: Final = 32 * 1024 * 1024
# A segment that is not linked is appended in parts of this size.
_PART_BYTES: Final = 4 * 1024 * 1024


@dataclass(slots=True)
class Placement:
    """Assigns offsets and segments to the staged batches of one partition, in order.

    Args:
        next_offset: The log end offset, which advances.
        tail: The end of the last segment, if there is one.

    Attributes:
        operations: The operations for the journal.
        linked: The staged segments that are linked, each with its base offset.
    """

    next_offset: int
    tail: SegmentTail | None
    config: LogConfig
    operations: list[AppendOperation | LinkOperation] = field(default_factory=list)
    linked: list[tuple[StagedBatches, int]] = field(default_factory=list)
    _ranges: list[StagedFileRange] = field(default_factory=list)
    _begun: AppendOperation | None = None

    @staticmethod
    def is_linked(size_bytes: int, config: LogConfig) -> bool:
        """Return True if a staged segment of this size is linked; a smaller one is appended to another segment."""
        return size_bytes >= min(config.max_segment_bytes // _LINKED_SHARE, _MAX_COPIED_BYTES)

    def begin_segment(self, base_offset: int) -> None:
        """Begin an empty segment, even if no batch follows."""
        self._end_append()
        self.operations.append(AppendOperation((), base_offset, base_offset, 0, 0, 0))
        self.tail = SegmentTail(base_offset)
        self.next_offset = base_offset

    def place_all(self, staged: Iterable[StagedBatches]) -> None:
        """Place staged batches in the order of their offsets."""
        for each in staged:
            offset = self.next_offset if each.min_offset is None else each.min_offset
            if each.index_size_bytes is not None:
                self._link(each, offset)
            else:
                self._append(each, offset)
            self.next_offset = offset + each.offset_count
        self._end_append()

    def _end_append(self) -> None:
        """Complete the append operation; the next batches go to another segment."""
        if self._begun is not None:
            self.operations.append(dataclasses.replace(self._begun, ranges=tuple(self._ranges)))
            self._ranges.clear()
            self._begun = None

    def _link(self, staged: StagedBatches, offset: int) -> None:
        self._end_append()
        self.operations.append(LinkOperation(staged.file, offset, staged.size_bytes, staged.fingerprint))
        self.linked.append((staged, offset))
        self.tail = SegmentTail(
            offset,
            staged.size_bytes,
            staged.index_size_bytes or 0,
            staged.time_index_size_bytes,
            staged.first_timestamp_ms,
        )

    def _append(self, staged: StagedBatches, offset: int) -> None:
        tail = self.tail
        if tail is None or self._must_roll(tail, staged, offset):
            self._end_append()
            tail = SegmentTail(offset)
        if self._begun is None:
            self._begun = AppendOperation(
                (),
                offset,
                tail.base_offset,
                tail.size_bytes,
                tail.index_size_bytes,
                tail.time_index_size_bytes,
            )
        self._ranges.append(StagedFileRange(staged.file, staged.position_bytes, staged.size_bytes))
        self.tail = dataclasses.replace(
            tail,
            size_bytes=tail.size_bytes + staged.size_bytes,
            first_timestamp_ms=(
                staged.first_timestamp_ms if tail.first_timestamp_ms is None else tail.first_timestamp_ms
            ),
        )

    def _must_roll(self, tail: SegmentTail, staged: StagedBatches, offset: int) -> bool:
        """Kafka's ``LogSegment.shouldRoll``; an empty segment only rolls if the offsets do not fit."""
        if not tail.is_open:
            return True
        config = self.config
        relative_offset = offset + staged.offset_count - 1 - tail.base_offset
        if tail.size_bytes == 0:
            return relative_offset > LARGEST_RELATIVE_OFFSET
        first_ms = tail.first_timestamp_ms
        waited_ms = None if first_ms is None or first_ms < 0 else staged.max_timestamp_ms - first_ms
        return (
            bool(exceeds_segment(config, tail.size_bytes + staged.size_bytes, waited_ms, relative_offset))
            or tail.index_size_bytes // OFFSET_ENTRY_BYTES >= config.segment_index_bytes // OFFSET_ENTRY_BYTES
            or tail.time_index_size_bytes // TIME_ENTRY_BYTES
            >= config.segment_index_bytes // TIME_ENTRY_BYTES - 1
        )


def staged_by_partition(
    job: JobContext, manifests: Sequence[StagedManifest]
) -> dict[tuple[str, int], list[StagedBatches]]:
    """Return what was staged for each partition, by task and in the order of its rows.

    Raises:
        CorruptCheckpointError: A manifest is not the one that was reported.
        OptionError: A manifest belongs to another job, two belong to one task, or rows have offsets though the job
            does not preserve them, or the other way round.
    """
    read = [read_manifest(job.filesystem, job.root, reported) for reported in manifests]
    tasks = {manifest.stage.task for manifest in read}
    foreign = [each.stage.manifest_name for each in read if each.stage.job_id != job.spec.job_id]
    if foreign or len(tasks) != len(read):
        raise OptionError(
            f"Expected one manifest of job {job.spec.job_id} for each task, found "
            f"{foreign[0] if foreign else f'{len(read)} of {len(tasks)} tasks'}. Commit each task once."
        )
    found: dict[tuple[str, int], list[StagedBatches]] = defaultdict(list)
    for manifest in sorted(read, key=lambda each: each.stage.task):
        for staged in manifest.pieces:
            found[staged.topic_partition].append(staged)
    check = _require_offsets if job.spec.preserve_offsets else _require_no_offsets
    for each in found.values():
        check(each)
    return found


def checked_batches(
    job: JobContext,
    files: StagedFiles,
    staged: Sequence[StagedBatches],
    config: LogConfig,
    *,
    begins_segment: bool,
) -> list[StagedBatches]:
    """Check what was staged for one partition against its files, and decide what is linked and what is appended.

    If the first batches begin a segment of the log in any case, a staged one of any size is linked.

    Raises:
        CorruptError: A staged file does not match its manifest.
    """
    found: list[StagedBatches] = []
    for each in staged:
        if each.suffix != LOG_SUFFIX:
            with files.open(each.file) as pack:
                files.keep_heads(each.file, each.position_bytes, _checked_heads(pack, each))
            found.append(each)
        elif Placement.is_linked(each.size_bytes, config) or (begins_segment and not found):
            found.append(_with_index_sizes(job, each))
        else:
            found += _split_segment(files, each)
    return found


def _require_no_offsets(staged: list[StagedBatches]) -> None:
    """Refuse rows that were staged with offsets, which a job that appends cannot keep."""
    for each in staged:
        if each.min_offset is not None:
            raise OptionError(
                f"Expected staged rows without offsets for {each.topic}-{each.partition}, found some with offsets from "
                f"{each.min_offset} on. Commit them with preserveOffsets, or stage them without.",
                offset=each.min_offset,
            )


def _require_offsets(staged: list[StagedBatches]) -> None:
    """Sort batches by their offsets, which must not overlap."""
    staged.sort(key=lambda each: each.min_offset or 0)
    next_offset = 0
    for each in staged:
        if each.min_offset is None or each.max_offset is None:
            raise OptionError(
                f"Expected staged rows with offsets for {each.topic}-{each.partition}, found some without. Stage "
                "them with preserveOffsets, too."
            )
        if each.min_offset < next_offset:
            raise OptionError(
                f"Expected the offsets that one task writes to {each.topic}-{each.partition} to be before or after "
                f"those of another task, found offset {each.min_offset} below {next_offset}. Repartition by topic and "
                "partition and sort by offset before the write, and make sure that no offset occurs twice.",
                offset=each.min_offset,
            )
        next_offset = each.max_offset + 1


def _checked_heads(file: OpenFile, staged: StagedBatches) -> list[BatchHeads]:
    """Return the headers of the staged batches, after checking them against the manifest."""
    end_bytes = staged.position_bytes + staged.size_bytes
    blocks: list[BatchHeads] = []
    if end_bytes <= file.status.size_bytes:
        blocks = list(batch_heads(file, staged.position_bytes, end_bytes))
    offset_count = sum(heads.offset_count for heads in blocks)
    if blocks and staged.min_offset is not None:
        offset_count = int(last_offsets(blocks[-1].headers)[-1]) + 1 - staged.min_offset
    if fingerprint(blocks) != staged.fingerprint or offset_count != staged.offset_count:
        raise not_as_staged(file.path, staged)
    return blocks


def _with_index_sizes(job: JobContext, staged: StagedBatches) -> StagedBatches:
    stem = job.path(staged.file)
    log = job.filesystem.status(stem + LOG_SUFFIX)
    index = job.filesystem.status(stem + OFFSET_INDEX_SUFFIX)
    time_index = job.filesystem.status(stem + TIME_INDEX_SUFFIX)
    is_whole = log is not None and log.size_bytes == staged.size_bytes and staged.position_bytes == 0
    if index is None or time_index is None or not is_whole:
        raise not_as_staged(stem + LOG_SUFFIX, staged)
    return dataclasses.replace(
        staged, index_size_bytes=index.size_bytes, time_index_size_bytes=time_index.size_bytes
    )


def _split_segment(files: StagedFiles, staged: StagedBatches) -> list[StagedBatches]:
    """Return the batches of a staged segment in parts of bounded size, to be appended to other segments."""
    with files.open(staged.file) as file:
        if file.status.size_bytes != staged.size_bytes:
            raise not_as_staged(file.path, staged)
        parts = list(_split(_checked_heads(file, staged)))
    for heads in parts:
        files.keep_heads(staged.file, heads.start_bytes, [heads])
    return [_part(staged, heads) for heads in parts]


def _part(staged: StagedBatches, heads: BatchHeads) -> StagedBatches:
    has_offsets = staged.min_offset is not None
    timestamps_ms = heads.headers["max_timestamp_ms"]
    return StagedBatches(
        staged.topic,
        staged.partition,
        staged.file,
        heads.start_bytes,
        heads.size_bytes,
        len(heads.headers),
        # Without offsets of their own, batches have as many offsets as records.
        record_count=heads.offset_count,
        first_timestamp_ms=int(timestamps_ms[0]),
        max_timestamp_ms=int(timestamps_ms.max()),
        min_offset=int(heads.headers["base_offset"][0]) if has_offsets else None,
        max_offset=int(last_offsets(heads.headers)[-1]) if has_offsets else None,
    )


def _split(blocks: Sequence[BatchHeads]) -> Iterator[BatchHeads]:
    """Yield the same batches in parts of bounded size, at least one batch each."""
    for heads in blocks:
        ends_bytes = heads.positions_bytes + batch_sizes_bytes(heads.headers)
        first = 0
        while first < len(ends_bytes):
            goal_bytes = int(heads.positions_bytes[first]) + _PART_BYTES
            stop = max(first + 1, int(ends_bytes.searchsorted(goal_bytes, "right")))
            yield BatchHeads(heads.positions_bytes[first:stop], heads.headers[first:stop])
            first = stop


def not_as_staged(path: str, staged: StagedBatches) -> CorruptRecordError:
    """Return the error for a staged file that does not match its manifest."""
    return CorruptRecordError(
        f"Expected {staged.size_bytes} bytes of batches for {staged.topic}-{staged.partition}, with the fingerprint "
        f"{staged.fingerprint:08x} and {staged.offset_count} offsets that a task has staged, found something else. "
        "Abort the job and write again.",
        path=path,
        position_bytes=staged.position_bytes,
    )
