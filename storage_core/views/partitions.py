"""The view ``partitions``: what each partition's directory holds, those included that no read takes.

One listing of a directory gives its sizes; of the log files, only the first and the last are opened. With ``exact``, the
header of every batch is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Final

import numpy as np
import pyarrow as pa

from storage_core.checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    read_leader_epoch_checkpoint,
    read_partition_metadata,
)
from storage_core.directory import LogDirectoryFiles, PartitionDirectory, PartitionLog
from storage_core.directory.consistent import list_again_if_gone
from storage_core.directory.discovery import preferred_replica
from storage_core.directory.segment_listing import FileNames, SegmentFiles
from storage_core.directory.visibility import NO_COMMITS
from storage_core.errors import CorruptError, DataLossError, LogDirectoryError, SegmentLogError
from storage_core.filesystem import ReadableFileSystem
from storage_core.filesystem.values import MissingError
from storage_core.options import ReadOptions
from storage_core.record.batch_header import CODEC_MASK, NO_TIMESTAMP_MS, BatchHeader
from storage_core.scan.isolation import last_stable_offset
from storage_core.segment import SegmentReader
from storage_core.segment.file_names import (
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    base_offset_of,
    offset_index_file_name,
    time_index_file_name,
)
from storage_core.segment.offset_index import ENTRY_SIZE_BYTES as OFFSET_ENTRY_BYTES
from storage_core.segment.time_index import ENTRY_SIZE_BYTES as TIME_ENTRY_BYTES
from storage_core.views.files import LOG_KIND, UNKNOWN, NamedFile, name_in_partition
from storage_core.views.roots import LIVE, PartitionLocation, require_listed, roots_of, selected_locations
from storage_core.views.segments import (
    HeaderStatistics,
    codec_names,
    first_timestamp_ms,
    index_state,
    segment_files,
    summarize_segment,
    under_present_name,
)
from storage_core.views.texts import key_of
from storage_core.views.view import TIMESTAMP, Column, View, rows_read

# fmt: off
_COLUMNS: Final = (
    Column("topic", pa.string(), "The topic; of a `delete` or `stray` directory, only the beginning of a long name."),
    Column("partition", pa.int32(), "The partition."),
    Column("state", pa.string(), "`live`, or by the directory's name: `delete` awaits its deletion, `future` is being "
           "moved here from another disk, `stray` is unknown to the cluster. `uncommitted`: a job creates it, and "
           "has not committed yet. `remote`: it is in remote storage."),
    Column("isRead", pa.bool_(), "Whether a read of the same paths takes this directory."),
    Column("replicas", pa.list_(pa.string()), "Every live directory of this partition in the given paths."),
    Column("replicaConflict", pa.string(), "Why a read cannot choose one of them; null if it can."),
    Column("topicId", pa.string(), "The topic's id; null without `partition.metadata`."),
    Column("leaderEpoch", pa.int32(), "The newest leader epoch; null if none is known."),
    Column("logStartOffset", pa.int64(), "The log start offset: the first segment's base offset, or as checkpointed."),
    Column("logEndOffset", pa.int64(), "The offset after the last whole batch."),
    Column("highWatermark", pa.int64(), "The checkpointed high watermark; null if there is none."),
    Column("lastStableOffset", pa.int64(), "The first offset of the oldest open transaction; without one, the log end "
           "offset."),
    Column("recoveryPoint", pa.int64(), "The checkpointed recovery point; null if there is none."),
    Column("isClean", pa.bool_(), "Whether the broker closed the log before it stopped."),
    Column("segmentCount", pa.int64(), "How many segments there are."),
    Column("logBytes", pa.int64(), "Length of the log files of these segments."),
    Column("sizeBytes", pa.int64(), "Length of all files in the directory."),
    Column("allocatedBytes", pa.int64(), "What they take on the disk."),
    Column("preallocatedBytes", pa.int64(), "Length of the last segment's files after their last batch or entry."),
    Column("minTimestamp", TIMESTAMP, "Timestamp of the first record; with `exact`, the earliest that a header states, "
           "of the first record of a batch."),
    Column("maxTimestamp", TIMESTAMP, "The largest timestamp of the last segment; with `exact`, of the log."),
    Column("batchCount", pa.int64(), "How many batches there are. Only with `exact`."),
    Column("recordCount", pa.int64(), "How many records there are from the log start offset on, markers not counted. "
           "Only with `exact`, and null if compressed messages of format v0 or v1 do not tell."),
    Column("codecs", pa.list_(pa.string()), "The codecs of the first and the last batch; with `exact`, of all."),
    Column("magics", pa.list_(pa.int32()), "Their format versions, likewise."),
    Column("isDamaged", pa.bool_(), "Whether bytes or files were found that contradict their format."),
    Column("damage", pa.string(), "What was expected, and what was found."),
    Column("root", pa.string(), "Path of the log directory."),
    Column("directory", pa.string(), "Path of the partition's directory."),
)
# fmt: on
UNCOMMITTED: Final = "uncommitted"
_PARTITIONS_IN_A_TASK: Final = 64
# An unlikely run of empty segments is not followed further.
_MOST_EMPTY: Final = 16
_MOST_NAMED: Final = 100
_BASE_OFFSET_DIGITS: Final = 20


@dataclass(frozen=True, slots=True)
class FileTally:
    """Files of one kind, or of one kind with a suffix after their names, such as ``.deleted``."""

    kind: str
    leftover: str | None
    count: int
    size_bytes: int
    allocated_bytes: int


@dataclass(frozen=True, slots=True)
class ReplicaChoice:
    """A partition's directory among all that a user named, and why none of them can be chosen, if so."""

    location: PartitionLocation
    is_read: bool
    replicas: tuple[str, ...]
    conflict: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """Content of one directory of a partition. Unknown values are None.

    Attributes:
        state: That of its location, or `UNCOMMITTED`.
        is_read: Whether a read of the same paths takes it.
        replicas: Every live directory of the partition in these paths.
        allocated_bytes: What they take on the disk.
        unknown_files: Names of some files that are neither Kafka's nor segmentlog's.
        orphan_files: How many index files and snapshots belong to no segment.
        preallocated_bytes: Of the last segment's files, what follows the last batch or entry.
        record_count: From the log start offset on, without markers.
        is_exact: Whether counts, times, codecs and formats are those of all headers.
        damage: What contradicts its format, a sentence each.
    """

    topic: str
    partition: int
    state: str
    root: str
    directory: str
    is_read: bool = False
    replicas: tuple[str, ...] = ()
    replica_conflict: str | None = None
    topic_id: str | None = None
    leader_epoch: int | None = None
    is_clean: bool | None = None
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    high_watermark: int | None = None
    last_stable_offset: int | None = None
    recovery_point: int | None = None
    segment_count: int = 0
    log_bytes: int = 0
    size_bytes: int = 0
    allocated_bytes: int = 0
    files: tuple[FileTally, ...] = ()
    unknown_files: tuple[str, ...] = ()
    orphan_files: int = 0
    preallocated_bytes: int = 0
    min_timestamp_ms: int | None = None
    max_timestamp_ms: int | None = None
    is_exact: bool = False
    batch_count: int | None = None
    record_count: int | None = None
    codecs: tuple[str, ...] = ()
    magics: tuple[int, ...] = ()
    damage: tuple[str, ...] = ()
    unreadable: str | None = None

    @property
    def name(self) -> str:
        """Topic and partition."""
        return f"{self.topic}-{self.partition}"

    @property
    def offset_count(self) -> int | None:
        """How many offsets there are: at least as many as records."""
        if self.log_start_offset is None or self.log_end_offset is None:
            return None
        return self.log_end_offset - self.log_start_offset


def choose_replicas(
    filesystem: ReadableFileSystem, locations: Iterable[PartitionLocation], roots: RootFiles
) -> list[ReplicaChoice]:
    """Choose the directory of each partition that a read takes, in the order of `selected_locations`."""
    choices: list[ReplicaChoice] = []
    for _, group in groupby(locations, key=attrgetter("topic_partition")):
        members = list(group)
        live = [location for location in members if location.state == LIVE]
        paths = tuple(location.path for location in live)
        conflict: str | None = None
        chosen: str | None = None
        if live:
            try:
                chosen = preferred_replica(filesystem, [roots.directory(location) for location in live]).path
            except SegmentLogError as error:
                conflict = str(error)
        choices += [
            ReplicaChoice(
                location, location.path == chosen, paths, conflict if location.state == LIVE else None
            )
            for location in members
        ]
    return choices


class RootFiles:
    """The files of log directories, each read once.

    Attributes:
        problems: By log directory, why the journal or the list of commits cannot be read.
    """

    def __init__(self, filesystem: ReadableFileSystem) -> None:
        self.problems: dict[str, str] = {}
        self._filesystem = filesystem
        self._roots: dict[str, LogDirectoryFiles] = {}

    def of(self, root: str) -> LogDirectoryFiles:
        """Return those of a log directory."""
        files = self._roots.get(root)
        if files is None:
            files = self._roots[root] = LogDirectoryFiles(self._filesystem, root)
            try:
                _ = files.visibility
            except SegmentLogError as error:
                self.problems[root] = str(error)
                files.visibility = NO_COMMITS
        return files

    def directory(self, location: PartitionLocation) -> PartitionDirectory:
        """Return a location as the directory of a partition."""
        return location.in_root(self.of(location.root))


class _Listing:
    """The files of a partition's directory, tallied in one pass.

    Attributes:
        unknown: Names of some files of no known kind.
        not_regular: Names like those of segment files, which are links or special files.
    """

    def __init__(self, filesystem: ReadableFileSystem, path: str) -> None:
        self.tallies: dict[tuple[str, str | None], list[int]] = {}
        self.unknown: list[str] = []
        self.not_regular: list[str] = []
        self._filesystem = filesystem
        self._path = path
        self._by_suffix: dict[str, list[int]] = {}
        self.names = FileNames(self._regular_names())
        for suffix, tally in self._by_suffix.items():
            self._add(name_in_partition("0" * _BASE_OFFSET_DIGITS + suffix), *tally)

    def _regular_names(self) -> Iterator[str]:
        by_suffix = self._by_suffix
        for name, kind, size_bytes, allocated_bytes, _ in self._filesystem.examine_directory(self._path):
            if kind != "file":
                self._note_other(name, kind)
                continue
            suffix = name[_BASE_OFFSET_DIGITS:]
            tally = by_suffix.get(suffix)
            if tally is not None and base_offset_of(name) is not None:
                tally[0] += 1
                tally[1] += size_bytes
                tally[2] += allocated_bytes
            else:
                self._note(name, suffix, [1, size_bytes, allocated_bytes])
            yield name

    def _note(self, name: str, suffix: str, tally: list[int]) -> None:
        found = name_in_partition(name)
        if found.kind != UNKNOWN and base_offset_of(name) is not None:
            self._by_suffix[suffix] = tally
            return
        if found.kind == UNKNOWN and len(self.unknown) < _MOST_NAMED:
            self.unknown.append(name)
        self._add(found, *tally)

    def _note_other(self, name: str, kind: str) -> None:
        if kind != "directory" and base_offset_of(name) is not None:
            if len(self.not_regular) < _MOST_NAMED:
                self.not_regular.append(name)
        elif len(self.unknown) < _MOST_NAMED:
            self.unknown.append(name)

    def _add(self, found: NamedFile, count: int, size_bytes: int, allocated_bytes: int) -> None:
        tally = self.tallies.setdefault((found.kind, found.leftover), [0, 0, 0])
        tally[0] += count
        tally[1] += size_bytes
        tally[2] += allocated_bytes

    def files(self) -> tuple[FileTally, ...]:
        """Return the tallies, the largest first."""
        tallies = [FileTally(kind, leftover, *tally) for (kind, leftover), tally in self.tallies.items()]
        return tuple(sorted(tallies, key=attrgetter("size_bytes"), reverse=True))

    def orphan_count(self) -> int:
        """Count the indexes without a log file, and the snapshots, but the newest one, that begin no segment."""
        logs = self.names.base_offsets(LOG_SUFFIX)
        indexes = sum(
            int(np.count_nonzero(~np.isin(self.names.base_offsets(suffix), logs)))
            for suffix in INDEX_SUFFIXES
        )
        snapshots = self.names.base_offsets(SNAPSHOT_SUFFIX)[:-1]
        return indexes + int(np.count_nonzero(~np.isin(snapshots, logs)))


@dataclass(slots=True)
class _PartitionFacts:
    """Facts about a partition, learnt step by step; problems of one step do not stop the others."""

    values: dict[str, object] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)

    def compute_or_record_error(self, name: str, find: Callable[[], object]) -> None:
        try:
            self.values[name] = find()
        except CorruptError as error:
            self.damage.append(str(error))


def _summarize_partition(
    filesystem: ReadableFileSystem,
    roots: RootFiles,
    exact: bool,
    with_last_stable_offset: bool,
    choice: ReplicaChoice,
) -> PartitionSummary | None:
    """Examine one directory of a partition.

    Returns:
        None if the directory is gone.
    """
    location = choice.location
    root = roots.of(location.root)
    is_hidden = location.state == LIVE and root.visibility.is_hidden(*location.topic_partition)
    summary = PartitionSummary(
        location.topic,
        location.partition,
        UNCOMMITTED if is_hidden else location.state,
        location.root,
        location.path,
        choice.is_read and not is_hidden,
        choice.replicas,
        choice.conflict,
    )
    try:
        return list_again_if_gone(
            lambda: _summarized(filesystem, summary, location, root, exact, with_last_stable_offset)
        )
    except (MissingError, DataLossError):
        if filesystem.status(location.path) is None:
            return None
        return replace(
            summary,
            unreadable=f"Its files were replaced faster than they could be examined. [{location.path}]",
        )
    except LogDirectoryError as error:
        return replace(summary, unreadable=str(error))


def summarize_partitions(
    filesystem: ReadableFileSystem,
    choices: Collection[ReplicaChoice],
    roots: RootFiles,
    *,
    exact: bool = False,
    with_last_stable_offset: bool = False,
) -> Iterator[PartitionSummary]:
    """Examine directories of partitions. Damage, and what may not be read, is part of the result.

    Those that are gone are left out.
    """
    for choice in choices:
        roots.of(choice.location.root).read_once()
    summarized = partial(_summarize_partition, filesystem, roots, exact, with_last_stable_offset)
    # Where every header is read, each log takes buffers.
    each = map if exact else filesystem.map
    return filter(None, each(summarized, choices))


def _summarized(
    filesystem: ReadableFileSystem,
    summary: PartitionSummary,
    location: PartitionLocation,
    root: LogDirectoryFiles,
    exact: bool,
    with_last_stable_offset: bool,
) -> PartitionSummary:
    listing = _Listing(filesystem, location.path)
    found = _PartitionFacts()
    found.damage += [
        f"Expected a regular file, found a link or a special file. [{location.path}/{name}]"
        for name in listing.not_regular
    ]
    metadata = os.path.join(location.path, PARTITION_METADATA)
    found.compute_or_record_error("topic_id", lambda: read_partition_metadata(filesystem, metadata))
    found.compute_or_record_error("leader_epoch", lambda: _leader_epoch(filesystem, location))
    log = _load(filesystem, location, root, listing)
    try:
        _ = log.log_end_offset
    except CorruptError as error:
        found.damage.append(str(error))
        log = _load(filesystem, location, root, listing, skip_damage=True)
    values = found.values
    values |= {
        "is_clean": root.clean_shutdown,
        "log_start_offset": log.log_start_offset,
        "log_end_offset": log.log_end_offset,
        "segment_count": len(log.segments),
    }
    if location.state == LIVE:
        values["recovery_point"] = root.recovery_points.get(location.topic_partition)
        try:
            values["high_watermark"] = log.high_watermark
        except CorruptError:
            # It is the log directory's, which reports it.
            values["high_watermark"] = None
    if with_last_stable_offset:
        found.compute_or_record_error("last_stable_offset", lambda: last_stable_offset(log))
    values["preallocated_bytes"] = _preallocated_bytes(filesystem, log)
    if exact:
        _add_exact_facts(filesystem, log, found)
    else:
        found.compute_or_record_error("min_timestamp_ms", lambda: _note_first_and_last(log, values))
    files = listing.files()
    values |= {
        "files": files,
        "log_bytes": sum(each.size_bytes for each in files if (each.kind, each.leftover) == (LOG_KIND, None)),
        "size_bytes": sum(each.size_bytes for each in files),
        "allocated_bytes": sum(each.allocated_bytes for each in files),
        "unknown_files": tuple(listing.unknown),
        "orphan_files": listing.orphan_count(),
        "damage": tuple(dict.fromkeys(found.damage)),
    }
    return replace(summary, **values)  # type: ignore[arg-type]  # by name


def _leader_epoch(filesystem: ReadableFileSystem, location: PartitionLocation) -> int | None:
    entries = read_leader_epoch_checkpoint(filesystem, os.path.join(location.path, LEADER_EPOCH_CHECKPOINT))
    return entries[-1].epoch if entries else None


def _load(
    filesystem: ReadableFileSystem,
    location: PartitionLocation,
    root: LogDirectoryFiles,
    listing: _Listing,
    *,
    skip_damage: bool = False,
) -> PartitionLog:
    """Load the log, without another listing unless segments are being swapped.

    Directories in other states than live have no checkpoints.
    """
    names = listing.names
    has_swap = any(suffix.endswith(SWAP_SUFFIX) for suffix in names.suffixes)
    known = None if has_swap else SegmentFiles(names.base_offsets(LOG_SUFFIX), names)
    directory = location.in_root(root)
    log = PartitionLog.load(filesystem, directory, skip_damage=skip_damage, listing=known)
    if location.state != LIVE:
        log.log_start_offset = log.segments.base_offsets[0] if log.segments else 0
    return log


def _preallocated_bytes(filesystem: ReadableFileSystem, log: PartitionLog) -> int:
    """Measure what follows the last batch and the last entries in the files of the last segment."""
    if not log.segments:
        return 0
    segment = log.segments[-1]
    total_bytes = 0
    status = filesystem.status(segment.log_path)
    if status is not None:
        total_bytes += max(0, status.size_bytes - segment.end().position_bytes)
    for name, entry_bytes, index in (
        (offset_index_file_name(segment.base_offset), OFFSET_ENTRY_BYTES, segment.offset_index),
        (time_index_file_name(segment.base_offset), TIME_ENTRY_BYTES, segment.time_index),
    ):
        path = f"{segment.directory}/{name}{segment.suffix}"
        if index_state(filesystem, path, entry_bytes, index.problem) == "preallocated":
            index_status = filesystem.status(path)
            if index_status is not None:
                total_bytes += max(0, index_status.size_bytes - len(index) * entry_bytes)
    return total_bytes


def _note_first_and_last(log: PartitionLog, values: dict[str, object]) -> int | None:
    """Note what the first and the last batch say.

    Returns:
        The first record's timestamp in milliseconds; None if there is none.
    """
    if log.log_start_offset >= log.log_end_offset:
        return None
    first = log.first_batch_at_or_after(log.log_start_offset)
    last: BatchHeader | None = None
    largest_ms = NO_TIMESTAMP_MS
    for index in reversed(range(max(0, len(log.segments) - _MOST_EMPTY), len(log.segments))):
        is_complete = index + 1 < len(log.segments) or log.is_clean
        last, largest_ms = log.read_segment(index, partial(_last_batch, is_complete=is_complete))
        if last is not None:
            break
    headers = [header for header in (None if first is None else first[1], last) if header is not None]
    values["max_timestamp_ms"] = None if largest_ms == NO_TIMESTAMP_MS else largest_ms
    values["codecs"] = tuple(codec_names({header.attributes & CODEC_MASK for header in headers}))
    values["magics"] = tuple(sorted({header.magic for header in headers}))
    smallest_ms = NO_TIMESTAMP_MS if first is None else first_timestamp_ms(first[1])
    return None if smallest_ms == NO_TIMESTAMP_MS else smallest_ms


def _last_batch(segment: SegmentReader, *, is_complete: bool) -> tuple[BatchHeader | None, int]:
    """Find a segment's last batch.

    Returns:
        Its header, None without batches, and the segment's largest timestamp in milliseconds.
    """
    end = segment.end()
    if not end.position_bytes:
        return None, NO_TIMESTAMP_MS
    largest = segment.largest_timestamp(is_complete=is_complete)
    return segment.translate_offset(end.next_offset - 1), largest.timestamp_ms


def _add_exact_facts(filesystem: ReadableFileSystem, log: PartitionLog, found: _PartitionFacts) -> None:
    """Add the facts that take reading every batch header."""
    statistics = HeaderStatistics()
    examine = partial(summarize_segment, filesystem, exact=True, start_offset=log.log_start_offset)
    for file in segment_files(log):
        segment = under_present_name(file, examine)
        if segment is None:
            # Retention has removed it since the listing.
            continue
        if segment.statistics is not None:
            statistics.merge(segment.statistics)
        if segment.damage is not None:
            found.damage.append(segment.damage)
    smallest_ms, largest_ms = statistics.min_timestamp_ms, statistics.max_timestamp_ms
    found.values |= {
        "is_exact": True,
        "batch_count": statistics.batch_count,
        "record_count": None if statistics.wrapper_count else statistics.record_count,
        "min_timestamp_ms": None if smallest_ms == NO_TIMESTAMP_MS else smallest_ms,
        "max_timestamp_ms": None if largest_ms == NO_TIMESTAMP_MS else largest_ms,
        "codecs": tuple(codec_names(statistics.codecs)),
        "magics": tuple(sorted(statistics.magics)),
    }


@dataclass(frozen=True, slots=True)
class PartitionsTask:
    """Directories to examine."""

    choices: tuple[ReplicaChoice, ...]
    exact: bool


def _plan(filesystem: ReadableFileSystem, options: ReadOptions) -> Sequence[PartitionsTask]:
    roots = roots_of(filesystem, options)
    require_listed(roots)
    locations = selected_locations(filesystem, roots, options)
    choices = choose_replicas(filesystem, locations, RootFiles(filesystem))
    size = 1 if options.exact else _PARTITIONS_IN_A_TASK
    return [
        PartitionsTask(tuple(choices[start : start + size]), options.exact)
        for start in range(0, len(choices), size)
    ]


def _rows(
    filesystem: ReadableFileSystem, task: PartitionsTask, wanted: frozenset[str]
) -> Iterator[tuple[object, ...]]:
    roots, with_stable = RootFiles(filesystem), "lastStableOffset" in wanted
    for summary in summarize_partitions(
        filesystem, task.choices, roots, exact=task.exact, with_last_stable_offset=with_stable
    ):
        if summary.unreadable is not None:
            raise LogDirectoryError(
                f"A partition could not be examined: {summary.unreadable}", path=summary.directory
            )
        values = {key_of(each.name): getattr(summary, each.name) for each in fields(summary)}
        values |= {"isDamaged": bool(summary.damage), "damage": " ".join(summary.damage) or None}
        yield tuple(values[column.name] for column in _COLUMNS)


PARTITIONS_VIEW: Final = View(
    "partitions",
    "A partition's directory: one that is read, another replica, or one that is being deleted or moved, or is stray. "
    "Internal topics need not be named.",
    _COLUMNS,
    _plan,
    rows_read(_COLUMNS, _rows),
)
