"""The view ``segments``: the segments of each log, with those that a cleaner or a deletion has left behind.

Two levels: names, sizes, the first and the last batch and the indexes tell most. With ``exact``, the header of every batch
is read, which tells how many batches and records there are, in which formats and codecs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.directory import PartitionDirectory, PartitionLog
from storage_core.errors import CorruptError, DataLossError, LogDirectoryError
from storage_core.filesystem import ReadableFileSystem
from storage_core.options import ReadOptions
from storage_core.options.bounds import EarliestBound, LatestBound
from storage_core.record.batch_header import (
    CODEC_MASK,
    CODEC_NAMES,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    LOG_APPEND_TIME_FLAG,
    MAGIC_V2,
    NO_TIMESTAMP_MS,
    BatchHeader,
    batch_crc_matches,
    wrapper_rows,
)
from storage_core.record.decode import batch_timestamps
from storage_core.scan.offset_ranges import PartitionRange
from storage_core.scan.pruning import prune
from storage_core.scan.spans import ReadSettings
from storage_core.segment import DamagedRange
from storage_core.segment.file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    SegmentEnd,
    base_offset_of,
    log_file_name,
    offset_index_file_name,
    time_index_file_name,
)
from storage_core.segment.offset_index import ENTRY_SIZE_BYTES as OFFSET_ENTRY_BYTES
from storage_core.segment.segment_reader import DEFAULT_MAX_BATCH_BYTES, SegmentReader
from storage_core.segment.time_index import ENTRY_SIZE_BYTES as TIME_ENTRY_BYTES
from storage_core.views.span_headers import HeaderChunk, iter_header_chunks, whole_span
from storage_core.views.view import PARTITION_COLUMNS, TIMESTAMP, Column, View, resolved_ranges, rows_read

_Answer = TypeVar("_Answer")
# fmt: off
_COLUMNS: Final = (
    *PARTITION_COLUMNS,
    Column("baseOffset", pa.int64(), "The offset in the segment's name: a lower bound of the offsets in it."),
    Column("lastOffset", pa.int64(), "Offset of the last record of the last batch; null without batches."),
    Column("nextOffset", pa.int64(), "The offset after it; the base offset without batches."),
    Column("state", pa.string(), "`active` for the last segment of a log, `closed` for the others. Files that do not "
           "belong to the log: `deleted` and `cleaned`. `swap`: it belongs to the log, but has not got its final "
           "name yet."),
    Column("isActive", pa.bool_(), "Whether it is the segment that is appended to."),
    Column("sizeBytes", pa.int64(), "Length of the log file."),
    Column("batchBytes", pa.int64(), "Where its whole batches end; zeros or torn batches may follow."),
    Column("minTimestamp", TIMESTAMP, "Timestamp of its first record; with `exact`, the earliest that a header states, "
           "of the first record of a batch."),
    Column("maxTimestamp", TIMESTAMP, "The largest timestamp, from the time index or the headers."),
    Column("batchCount", pa.int64(), "How many batches it has. Only with `exact`."),
    Column("recordCount", pa.int64(), "How many records it has, markers not counted. Only with `exact`, and null if it "
           "has compressed messages of format v0 or v1, whose headers do not tell."),
    Column("controlBatchCount", pa.int64(), "How many of its batches hold markers. Only with `exact`."),
    Column("codecs", pa.list_(pa.string()), "The codecs of its batches. Only with `exact`."),
    Column("magics", pa.list_(pa.int32()), "The format versions of its batches. Only with `exact`."),
    Column("offsetIndex", pa.string(), "`ok`, `preallocated` if zeros follow its entries, `missing`, or `corrupt` if "
           "it contradicts itself."),
    Column("timeIndex", pa.string(), "Likewise."),
    Column("transactionIndex", pa.string(), "Likewise; `missing` unless a transaction was aborted in the segment."),
    Column("modified", TIMESTAMP, "When the log file was last modified; null in an object store."),
    Column("isDamaged", pa.bool_(), "Whether bytes that are no batch were found; without `exact`, only at its end."),
    Column("damage", pa.string(), "What was expected there, and what was found."),
    Column("file", pa.string(), "Path of the log file."),
)
# fmt: on
_EXACT_SPAN_BYTES: Final = 256 << 20
_MOST_IN_A_TASK: Final = 512
_STATES: Final = {SWAP_SUFFIX: "swap", DELETED_SUFFIX: "deleted", CLEANED_SUFFIX: "cleaned"}


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A log file of a partition's directory.

    Attributes:
        suffix: What follows ``.log`` in its name.
        end_offset: No batch reaches it; None if that is not known.
        visible_end: Where readers see the log end, if a commit is changing it.
    """

    topic: str
    partition: int
    directory: str
    base_offset: int
    suffix: str = ""
    end_offset: int | None = None
    is_active: bool = False
    visible_end: int | None = None

    @property
    def file_name(self) -> str:
        """Name of the log file."""
        return f"{log_file_name(self.base_offset)}{self.suffix}"

    @property
    def path(self) -> str:
        """Path of the log file."""
        return f"{self.directory}/{self.file_name}"

    def reader(
        self,
        filesystem: ReadableFileSystem,
        *,
        skip_damage: bool = False,
        max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
    ) -> SegmentReader:
        """Return a reader of the segment, which opens nothing yet."""
        return SegmentReader(
            filesystem,
            self.directory,
            self.base_offset,
            suffix=self.suffix,
            max_batch_bytes=max_batch_bytes,
            offset_limit=self.end_offset,
            skip_damage=skip_damage,
        )


@dataclass(slots=True)
class HeaderStatistics:
    """Statistics of some batches, from their headers.

    Attributes:
        wrapper_count: How many are compressed messages of format v0 or v1, whose headers do not count their records.
    """

    batch_count: int = 0
    record_count: int = 0
    control_batch_count: int = 0
    wrapper_count: int = 0
    size_bytes: int = 0
    min_timestamp_ms: int = NO_TIMESTAMP_MS
    max_timestamp_ms: int = NO_TIMESTAMP_MS
    codecs: set[int] = field(default_factory=set)
    magics: set[int] = field(default_factory=set)

    def add(self, chunk: HeaderChunk, start_offset: int = 0) -> None:
        """Count more batches, and their records from an offset on."""
        headers = chunk.window.headers
        attributes = headers["attributes"]
        is_control = (attributes & CONTROL_FLAG) != 0
        self.batch_count += len(headers)
        self.control_batch_count += int(np.count_nonzero(is_control))
        self.record_count += int(_record_counts(chunk, start_offset)[~is_control].sum())
        self.wrapper_count += int(np.count_nonzero(wrapper_rows(headers)))
        self.size_bytes += int(chunk.sizes_bytes.sum())
        self.codecs.update(np.unique(attributes & CODEC_MASK).tolist())
        self.magics.update(np.unique(headers["magic"]).tolist())
        has_no_base = (attributes & (DELETE_HORIZON_FLAG | LOG_APPEND_TIME_FLAG)) != 0
        first_ms = np.where(has_no_base, headers["max_timestamp_ms"], headers["base_timestamp_ms"])
        first_ms = first_ms[first_ms >= 0]
        self._extend(
            int(first_ms.min()) if len(first_ms) else NO_TIMESTAMP_MS, int(headers["max_timestamp_ms"].max())
        )

    def merge(self, other: HeaderStatistics) -> None:
        """Add the statistics of other batches."""
        self.batch_count += other.batch_count
        self.record_count += other.record_count
        self.control_batch_count += other.control_batch_count
        self.wrapper_count += other.wrapper_count
        self.size_bytes += other.size_bytes
        self.codecs |= other.codecs
        self.magics |= other.magics
        self._extend(other.min_timestamp_ms, other.max_timestamp_ms)

    def _extend(self, smallest_ms: int, largest_ms: int) -> None:
        known_ms = [each for each in (self.min_timestamp_ms, smallest_ms) if each != NO_TIMESTAMP_MS]
        self.min_timestamp_ms = min(known_ms, default=NO_TIMESTAMP_MS)
        self.max_timestamp_ms = max(self.max_timestamp_ms, largest_ms)


def _record_counts(chunk: HeaderChunk, start_offset: int) -> npt.NDArray[np.int64]:
    """Count the records of each batch from an offset on."""
    counts: npt.NDArray[np.int64] = chunk.window.headers["record_count"].astype(np.int64)
    if chunk.window.base_offsets[0] >= start_offset:
        return counts
    last_offsets = chunk.window.last_offsets
    counts[last_offsets < start_offset] = 0
    # One batch at most: offsets ascend.
    for index in np.flatnonzero(
        (chunk.window.base_offsets < start_offset) & (last_offsets >= start_offset)
    ).tolist():
        counts[index] = _count_from(chunk, index, start_offset)
    return counts


def _count_from(chunk: HeaderChunk, index: int, start_offset: int) -> int:
    """Count the records of a batch at or after an offset within it."""
    header = chunk.window.header(index)
    below = start_offset - header.base_offset
    # Without holes, the header tells. Of wrappers, nothing does.
    if header.magic == MAGIC_V2 and header.record_count <= header.last_offset - header.base_offset:
        batch = chunk.batch(index, DEFAULT_MAX_BATCH_BYTES)
        # Damage is found elsewhere.
        with contextlib.suppress(CorruptError):
            if batch is not None and batch_crc_matches(batch):
                offsets, _ = batch_timestamps(
                    batch, header, path=chunk.opened.path, limit_bytes=DEFAULT_MAX_BATCH_BYTES
                )
                return int(np.count_nonzero(offsets >= start_offset))
    return max(0, header.record_count - below)


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """Summary of a segment: statistics if every header was read, and damage if something is not a batch."""

    file: SegmentFile
    size_bytes: int
    modified_ms: int | None
    end: SegmentEnd
    min_timestamp_ms: int
    max_timestamp_ms: int
    statistics: HeaderStatistics | None = None
    damage: str | None = None

    @property
    def last_offset(self) -> int | None:
        """Offset of the last record; None without batches."""
        return self.end.next_offset - 1 if self.end.position_bytes else None


def summarize_segment(
    filesystem: ReadableFileSystem,
    file: SegmentFile,
    *,
    exact: bool,
    is_complete: bool = False,
    start_offset: int = 0,
) -> SegmentSummary:
    """Examine one segment. Damage is no error. Records below ``start_offset`` are not counted.

    A segment is complete if a broker has closed it, and so its time index has the largest timestamp.

    Raises:
        FileNotFoundError: It was removed meanwhile.
        LogDirectoryError: It is no regular file, or this user may not read it.
    """
    found = _summarized(filesystem, file, exact, is_complete, start_offset)
    if found.damage is None or file.end_offset is None or _has_segment(filesystem, file, file.end_offset):
        return found
    # A cleaner has merged the next segment into this one since they were listed.
    return _summarized(
        filesystem, dataclasses.replace(file, end_offset=None), exact, is_complete, start_offset
    )


def _has_segment(filesystem: ReadableFileSystem, file: SegmentFile, base_offset: int) -> bool:
    """Return True if another segment is still in the directory of one."""
    path = f"{file.directory}/{log_file_name(base_offset)}"
    return filesystem.status(path) is not None or filesystem.status(path + SWAP_SUFFIX) is not None


def _summarized(
    filesystem: ReadableFileSystem, file: SegmentFile, exact: bool, is_complete: bool, start_offset: int
) -> SegmentSummary:
    segment = file.reader(filesystem)
    # Before its end is known, which then counts as its size.
    size_bytes, modified_ms = segment.size_bytes, segment.modified_ms
    damage: str | None = None
    try:
        if file.visible_end is not None:
            segment.end_before(file.visible_end)
        end = segment.end()
        if not file.is_active and not segment.is_preallocated_after(end.position_bytes, end.next_offset):
            damage = _damage_after(file.reader(filesystem), end)
    except CorruptError as error:
        damage = str(error)
        segment = file.reader(filesystem, skip_damage=True)
        end = segment.end()
    statistics = None
    if exact:
        statistics = HeaderStatistics()
        ranges: list[DamagedRange] = []
        settings = ReadSettings(segment.max_batch_bytes)
        if end.position_bytes:
            span = whole_span(segment, end)
            for chunk in iter_header_chunks(filesystem, span, settings, on_damage=ranges.append):
                statistics.add(chunk, start_offset)
        smallest_ms, largest_ms = statistics.min_timestamp_ms, statistics.max_timestamp_ms
        damage = damage or (str(ranges[0].error()) if ranges else None)
    else:
        smallest_ms, largest_ms, found = _timestamps(segment, end, is_complete)
        damage = damage or found
    return SegmentSummary(file, size_bytes, modified_ms, end, smallest_ms, largest_ms, statistics, damage)


def under_present_name(file: SegmentFile, examine: Callable[[SegmentFile], _Answer]) -> _Answer | None:
    """Examine a segment that a cleaner may replace meanwhile.

    For a moment, the file that replaces it has another name.

    Returns:
        What ``examine`` returns; None if the segment was removed.
    """
    names: tuple[SegmentFile, ...] = (file,)
    if file.suffix in ("", SWAP_SUFFIX):
        names = (file, dataclasses.replace(file, suffix=SWAP_SUFFIX), dataclasses.replace(file, suffix=""))
    for present in names:
        try:
            return examine(present)
        except (FileNotFoundError, DataLossError):
            continue
    return None


def _damage_after(segment: SegmentReader, end: SegmentEnd) -> str:
    """Say why the bytes after the last batch are not a batch."""
    damage = segment.locate_offset(end.next_offset).damage
    if damage is not None:
        return str(damage.error())
    return f"Expected whole batches up to the end, found other bytes. [{segment.log_path}, byte {end.position_bytes}]"


def _timestamps(segment: SegmentReader, end: SegmentEnd, is_complete: bool) -> tuple[int, int, str | None]:
    """Find the timestamps of a segment.

    Returns:
        The first record's timestamp and the largest one, in milliseconds, and the damage on the way to them.
    """
    if not end.position_bytes:
        return NO_TIMESTAMP_MS, NO_TIMESTAMP_MS, None
    try:
        first = next(segment.batches(), None)
        largest = segment.largest_timestamp(is_complete=is_complete)
    except CorruptError as error:
        return NO_TIMESTAMP_MS, NO_TIMESTAMP_MS, str(error)
    first_ms = NO_TIMESTAMP_MS if first is None else first_timestamp_ms(first)
    return first_ms, largest.timestamp_ms, None


def first_timestamp_ms(header: BatchHeader) -> int:
    """Return the timestamp of a batch's first record as its header states it, or else its largest one."""
    has_no_base = header.attributes & (DELETE_HORIZON_FLAG | LOG_APPEND_TIME_FLAG)
    return header.max_timestamp_ms if has_no_base else header.base_timestamp_ms


def index_state(filesystem: ReadableFileSystem, path: str, entry_bytes: int, problem: str | None) -> str:
    """Describe the state of an offset or time index in a word, given why it cannot be used."""
    try:
        opened = filesystem.open(path)
    except FileNotFoundError:
        return "missing"
    if problem is not None:
        opened.close()
        return "corrupt"
    with opened:
        size_bytes = opened.status.size_bytes
        # Twelve zeros alone are an entry of a time index.
        if size_bytes <= entry_bytes:
            return "ok"
        last_entry = opened.read_at(entry_bytes, size_bytes - entry_bytes)
    return "ok" if any(last_entry) else "preallocated"


@dataclass(frozen=True, slots=True)
class SegmentsTask:
    """Segments to examine, and the offsets of which batches are wanted.

    Attributes:
        start_offset: Segments that end below it, or at it, are left out.
        is_clean: Whether a broker closed the log, and so its last segment.
    """

    files: tuple[SegmentFile, ...]
    exact: bool
    start_offset: int
    is_clean: bool


@dataclass(frozen=True, slots=True)
class NotALogFile:
    """Directory, link or FIFO with the name of a log file. The partition cannot be read."""

    topic: str
    partition: int
    path: str
    damage: str

    def row(self) -> tuple[object, ...]:
        """Return its row, which says only why the partition cannot be read."""
        values: dict[str, object] = {
            "topic": self.topic,
            "partition": self.partition,
            "baseOffset": base_offset_of(os.path.basename(self.path)),
            "isDamaged": True,
            "damage": self.damage,
            "file": self.path,
        }
        return tuple(values.get(column.name) for column in _COLUMNS)


def _plan(filesystem: ReadableFileSystem, options: ReadOptions) -> Sequence[SegmentsTask | NotALogFile]:
    tasks: list[SegmentsTask | NotALogFile] = []

    def refused(directory: PartitionDirectory, error: LogDirectoryError) -> None:
        tasks.append(
            NotALogFile(directory.topic, directory.partition, error.path or directory.path, str(error))
        )

    for found in resolved_ranges(filesystem, options, with_internal_topics=True, refused=refused):
        all_files = (*segment_files(found.log), *_left_behind(found.log))
        files = [file for file in all_files if _is_wanted(file, found, options)]
        is_clean = found.log.is_clean
        tasks += [
            SegmentsTask(part, options.exact, _start_offset(found, options), is_clean)
            for part in _parts(filesystem, files, exact=options.exact)
        ]
    return tasks


def segment_files(log: PartitionLog) -> Iterator[SegmentFile]:
    """List the segments of a log."""
    base_offsets = log.segments.base_offsets
    changing = log.directory.root.visibility.partitions.get(log.directory.topic_partition)
    visible_end = None if changing is None else changing.log_end_before
    for index in range(len(base_offsets)):
        is_active = index + 1 == len(base_offsets)
        source, own_index = log.source_of(index)
        base_offset = source.segments.base_offsets[own_index]
        following = source.segments.next_base_offset(own_index)
        yield SegmentFile(
            log.topic,
            log.partition,
            source.path,
            base_offset,
            SWAP_SUFFIX if log_file_name(base_offset) not in source.segments.file_names else "",
            None if is_active else following or base_offsets[index + 1],
            is_active,
            visible_end if is_active else None,
        )


def _left_behind(log: PartitionLog) -> Iterator[SegmentFile]:
    """List the log files in the directory of a log that do not belong to it."""
    for suffix in (DELETED_SUFFIX, CLEANED_SUFFIX):
        for base_offset in log.segments.file_names.base_offsets(LOG_SUFFIX + suffix):
            yield SegmentFile(log.topic, log.partition, log.path, base_offset, suffix)


def _is_wanted(file: SegmentFile, found: PartitionRange, options: ReadOptions) -> bool:
    if options.where is not None:
        bounds = prune(options.where)
        if bounds.offset_start is not None and file.base_offset < bounds.offset_start:
            return False
        if bounds.offset_end is not None and file.base_offset >= bounds.offset_end:
            return False
    # Without bounds, segments that retention is about to delete count, too.
    has_end = not isinstance(options.ending, LatestBound)
    if has_end and file.base_offset >= found.end_offset:
        return False
    return file.end_offset is None or file.end_offset > _start_offset(found, options)


def _start_offset(found: PartitionRange, options: ReadOptions) -> int:
    return 0 if isinstance(options.starting, EarliestBound) else found.start_offset


def _parts(
    filesystem: ReadableFileSystem, files: Iterable[SegmentFile], *, exact: bool
) -> Iterator[tuple[SegmentFile, ...]]:
    """Divide segments among tasks."""
    part: list[SegmentFile] = []
    size_bytes = 0
    for file in files:
        part.append(file)
        if exact:
            status = filesystem.status(file.path)
            size_bytes += 0 if status is None else status.size_bytes
        if len(part) == _MOST_IN_A_TASK or size_bytes >= _EXACT_SPAN_BYTES:
            yield tuple(part)
            part, size_bytes = [], 0
    if part:
        yield tuple(part)


def _rows(
    filesystem: ReadableFileSystem, task: SegmentsTask | NotALogFile, wanted: frozenset[str]
) -> Iterator[tuple[object, ...]]:
    if isinstance(task, NotALogFile):
        yield task.row()
        return

    def row_of(file: SegmentFile) -> tuple[object, ...] | None:
        is_complete = not file.is_active or task.is_clean
        summary = summarize_segment(filesystem, file, exact=task.exact, is_complete=is_complete)
        is_wanted = not task.start_offset or summary.end.next_offset > task.start_offset
        return _row(filesystem, summary, wanted) if is_wanted else None

    # Where every header is read, each segment takes buffers.
    each = map if task.exact else filesystem.map
    yield from filter(None, each(lambda file: under_present_name(file, row_of), task.files))


def _row(
    filesystem: ReadableFileSystem, summary: SegmentSummary, wanted: frozenset[str]
) -> tuple[object, ...]:
    file, statistics = summary.file, summary.statistics
    states = (
        _index_states(filesystem, file)
        if wanted & {"offsetIndex", "timeIndex", "transactionIndex"}
        else (None,) * 3
    )
    return (
        file.topic,
        file.partition,
        file.base_offset,
        summary.last_offset,
        summary.end.next_offset,
        _STATES.get(file.suffix, "active" if file.is_active else "closed"),
        file.is_active,
        summary.size_bytes,
        summary.end.position_bytes,
        summary.min_timestamp_ms,
        summary.max_timestamp_ms,
        None if statistics is None else statistics.batch_count,
        None if statistics is None or statistics.wrapper_count else statistics.record_count,
        None if statistics is None else statistics.control_batch_count,
        None if statistics is None else codec_names(statistics.codecs),
        None if statistics is None else sorted(statistics.magics),
        *states,
        summary.modified_ms,
        summary.damage is not None,
        summary.damage,
        file.path,
    )


def codec_names(codecs: Iterable[int]) -> list[str]:
    """Return the names of codecs, in the order of their numbers."""
    return [
        CODEC_NAMES[codec] if codec < len(CODEC_NAMES) else f"unknown ({codec})" for codec in sorted(codecs)
    ]


def _index_states(filesystem: ReadableFileSystem, file: SegmentFile) -> tuple[str, str, str]:
    segment = file.reader(filesystem)
    base_offset, directory, suffix = file.base_offset, file.directory, file.suffix
    offset_path = f"{directory}/{offset_index_file_name(base_offset)}{suffix}"
    time_path = f"{directory}/{time_index_file_name(base_offset)}{suffix}"
    transactions = segment.transaction_index
    transaction_state = "corrupt" if transactions.problem else "ok" if transactions.exists else "missing"
    return (
        index_state(filesystem, offset_path, OFFSET_ENTRY_BYTES, segment.offset_index.problem),
        index_state(filesystem, time_path, TIME_ENTRY_BYTES, segment.time_index.problem),
        transaction_state,
    )


SEGMENTS_VIEW: Final = View(
    "segments",
    "A segment: a log file with its indexes. A log file that was replaced, deleted or never finished has a row, too. A "
    "segment is in the view if it may hold an offset of the range. Internal topics need not be named.",
    _COLUMNS,
    _plan,
    rows_read(_COLUMNS, _rows),
)
