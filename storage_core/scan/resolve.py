"""Resolve options to offset ranges of partitions: the first step of every read.

Only what the answer needs is read: a partition's end, which takes a walk over the tail of its last
segment, is looked up only if the range may reach beyond it.

As in Spark's Kafka source, a topic that is named must exist, a partition that is named need not, and a pattern may match
no topic; whoever types a command is told (`matches_required`). Internal topics are read only if they are named.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from storage_core.cached_property import cached_property
from storage_core.directory import PartitionDirectory, PartitionLog, find_partitions
from storage_core.directory.discovery import directories_that_match, is_glob, partition_named_by
from storage_core.directory.joined_log import join_copies
from storage_core.directory.remote_half import join_halves, with_remote_halves
from storage_core.errors import (
    CorruptRecordError,
    LogDirectoryError,
    OffsetOutOfRangeError,
    OptionError,
    SegmentLogError,
    TimestampNotFoundError,
    UnreadableError,
    first_of,
    visible,
)
from storage_core.options.bounds import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Bound,
    EarliestBound,
    LatestBound,
    OffsetsBound,
    TimestampBound,
    TimestampsBound,
    TopicPartition,
    format_topic_partitions,
)
from storage_core.options.java_pattern import compile_java_pattern
from storage_core.options.option import nearest_hint
from storage_core.options.paths import path_to_read
from storage_core.scan.isolation import last_stable_offset
from storage_core.scan.offset_ranges import PartitionRange, report_data_loss
from storage_core.scan.pruning import prune_partition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from storage_core.directory.visibility import CommitMonitor
    from storage_core.filesystem import ReadableFileSystem
    from storage_core.options import ReadOptions
    from storage_core.options.predicate import Predicate

_log = logging.getLogger(__name__)
# No log is known to have reached this offset.
_REMOTE_HALF: Final = -1
_TOPICS_NAMED: Final = 3
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class ReadLimit:
    """End of what may be read of a log, which ``latest`` means.

    Args:
        log: The log.
        ending_at: Whether the log is read to its end, or to its high watermark.
        isolation_level: Whether the last stable offset ends it earlier.
    """

    def __init__(
        self, log: PartitionLog, ending_at: str = "logEnd", isolation_level: str = "read_uncommitted"
    ) -> None:
        self._log = log
        self._ending_at = ending_at
        self._is_committed = isolation_level == "read_committed"

    @cached_property
    def offset(self) -> int:
        """Return the first offset that is not read.

        Raises:
            LogDirectoryError: The high watermark is asked for and not known.
            SegmentLogError: The log cannot be read.
        """
        return last_stable_offset(self._log, self._end_offset) if self._is_committed else self._end_offset

    @cached_property
    def _end_offset(self) -> int:
        log = self._log
        if self._ending_at != "highWatermark":
            return log.log_end_offset
        high_watermark = log.high_watermark
        if high_watermark is None:
            raise LogDirectoryError(
                f"endingAt=highWatermark needs the high watermark of {log.topic}-{log.partition}, and no "
                "replication-offset-checkpoint beside the partition names it. Use endingAt=logEnd.",
                path=log.path,
            )
        return high_watermark

    def end_read(self) -> int:
        """Return the end offset of a read unchanged, and report if it may be lower because records were lost.

        If a transaction is open where the end of the log is lost, its marker may have been there.

        Raises:
            CorruptRecordError: They may be, and damage is not skipped.
            SegmentLogError: As for `offset`.
        """
        log, stable_offset = self._log, self.offset
        if stable_offset == self._end_offset:
            return stable_offset
        lost_from = log.valid_end_offset
        if stable_offset <= lost_from < log.log_end_offset:
            segment, damage = log.read_segment(
                len(log.segments) - 1, lambda segment: (segment, segment.locate_offset(lost_from).damage)
            )
            error = CorruptRecordError(
                f"A transaction is open at offset {stable_offset}, and its marker may have been at the end of the log, which is "
                "damaged or missing: committed records from there on are not read. Read them with "
                "isolationLevel=read_uncommitted.",
                path=segment.log_path,
                position_bytes=segment.size_bytes if damage is None else damage.start_bytes,
                end_position_bytes=segment.size_bytes if damage is None else damage.end_bytes,
                offset=lost_from,
                last_offset=log.log_end_offset - 1,
            )
            if not log.skip_damage:
                raise error
            _log.warning("%s", error)
        return stable_offset

    @property
    def name(self) -> str:
        """Kafka's name of this offset."""
        if self._is_committed:
            return "last stable offset"
        return "high watermark" if self._ending_at == "highWatermark" else "log end offset"

    def reaches(self, offset: int) -> bool:
        """Return True if an offset is not after the limit, which is looked up only if it has to be."""
        is_plain = self._ending_at == "logEnd" and not self._is_committed
        segments = self._log.segments
        # The listing alone says that the log reaches to its last segment.
        if is_plain and segments and offset <= segments.base_offsets[-1]:
            return True
        return offset <= self.offset


def resolve_range(
    log: PartitionLog,
    start_offset: int,
    end_offset: int,
    limit: ReadLimit | None = None,
    *,
    fail_on_data_loss: bool = True,
) -> PartitionRange:
    """Restrict a range of offsets to those that a log has.

    Args:
        log: The log.
        start_offset: The first offset that is asked for.
        end_offset: The first offset after those that are asked for.
        limit: Where the log ends for this read; by default, at its end.
        fail_on_data_loss: Whether it is an error that the log lacks some of them; otherwise a warning is logged.

    Raises:
        OffsetOutOfRangeError: The log lacks some of them.
        OptionError: The start is after the end, and no loss of records explains that.
    """
    limit = limit or ReadLimit(log)
    log_start_offset = log.log_start_offset

    def report_loss(first_offset: int, end: int, reason: str) -> None:
        report_data_loss(
            "[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Could not read records in offset "
            f"[{first_offset}, {end}) for topic partition {log.topic}-{log.partition}: {reason}.",
            fails=fail_on_data_loss,
            error_type=OffsetOutOfRangeError,
            path=log.path,
        )

    if start_offset < log_start_offset:
        reason = f"the log starts at offset {log_start_offset}"
        if log.start_below_segments is not None:
            reason += ", and older records are in remote storage, or lost: see remoteStorage"
        report_loss(start_offset, log_start_offset, reason)
        start_offset = log_start_offset
    if not limit.reaches(end_offset):
        limit_offset = limit.end_read()
        report_loss(limit_offset, end_offset, f"the {limit.name} is {limit_offset}")
        end_offset = limit_offset
    if start_offset > end_offset:
        is_lost = end_offset < log_start_offset or not limit.reaches(start_offset)
        if fail_on_data_loss or not is_lost:
            raise OptionError(
                f"[RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] The resolved start offset {start_offset} is greater "
                f"than the resolved end offset {end_offset} for topic {log.topic} partition {log.partition}. "
                "Start with an earlier offset or timestamp, or end with a later one."
            )
        _log.warning(
            "Nothing is read of %s-%d: its offsets go from %d to %d, and a range from %d to %d was asked for.",
            *(log.topic, log.partition, log_start_offset, limit.offset, start_offset, end_offset),
        )
        start_offset = end_offset
    return PartitionRange(log, start_offset, end_offset)


def resolve_start(log: PartitionLog, options: ReadOptions, limit: ReadLimit) -> int:
    """Find the offset that a read of a partition starts with, which the log may not have any more.

    Raises:
        TimestampNotFoundError: No record is at or after the starting timestamp.
    """
    requested = requested_bound(options.starting, log)
    if not isinstance(requested, TimestampBound):
        return _named_offset(requested, log, limit)
    found = log.offset_for_timestamp(requested.timestamp_ms, limit.offset)
    if found is not None:
        return found.offset
    if options.starting_timestamp_strategy == "latest":
        return limit.offset
    raise TimestampNotFoundError(
        f"No offset matched from request of topic-partition {log.topic}-{log.partition} and timestamp "
        f"{requested.timestamp_ms}. Set startingOffsetsByTimestampStrategy=latest to read nothing from such partitions.",
        path=log.path,
    )


def _resolve_end(log: PartitionLog, options: ReadOptions, limit: ReadLimit) -> int:
    requested = requested_bound(options.ending, log)
    if requested == LATEST_OFFSET:
        return limit.end_read()
    if not isinstance(requested, TimestampBound):
        return _named_offset(requested, log, limit)
    found = log.offset_for_timestamp(requested.timestamp_ms, limit.offset)
    return limit.end_read() if found is None else found.offset


def _named_offset(requested: int, log: PartitionLog, limit: ReadLimit) -> int:
    if requested == EARLIEST_OFFSET:
        return log.log_start_offset
    return limit.offset if requested == LATEST_OFFSET else requested


def requested_bound(bound: Bound, log: PartitionLog) -> int | TimestampBound:
    """Return the bound of one partition: an offset, -1 for latest, -2 for earliest, or a timestamp."""
    topic_partition = log.directory.topic_partition
    match bound:
        case EarliestBound():
            return EARLIEST_OFFSET
        case LatestBound():
            return LATEST_OFFSET
        case OffsetsBound(by_partition, by_topic):
            return by_partition.get(topic_partition, by_topic.get(log.topic, LATEST_OFFSET))
        case TimestampBound():
            return bound
        case TimestampsBound(by_partition, by_topic):
            timestamp_ms = by_partition.get(topic_partition)
            timestamp_ms = by_topic[log.topic] if timestamp_ms is None else timestamp_ms
            return TimestampBound(timestamp_ms) if timestamp_ms >= 0 else timestamp_ms


@dataclass(frozen=True, slots=True)
class Resolution:
    """Every partition that was found: read, or not read for one of two reasons.

    Attributes:
        partitions: Those to read, by topic and partition, empty ranges among them.
        not_asked_for: Those that the options do not ask for.
        ruled_out: Those that the condition rules out; none of their files was opened.
    """

    partitions: tuple[PartitionRange, ...]
    not_asked_for: tuple[PartitionDirectory, ...] = ()
    ruled_out: tuple[PartitionDirectory, ...] = ()


def resolve(
    filesystem: ReadableFileSystem,
    options: ReadOptions,
    condition: Predicate | None = None,
    watch: CommitMonitor | None = None,
) -> Resolution:
    """Find the partitions to read, and where each starts and stops.

    Partitions that the condition rules out are not opened. The watch says what is visible in each log directory.

    Raises:
        OptionError: A topic does not exist, or bounds name other partitions than those read, or
            a start is after its end.
        LogDirectoryError: A path is no log directory, or a high watermark is asked for and not known.
        OffsetOutOfRangeError: Offsets are asked for that the log does not have.
        TimestampNotFoundError: A partition has no record at or after the starting timestamp.
    """
    found = find_directories(filesystem, options, watch)
    selected = select_partitions(found, options)
    wanted = directories_to_open(selected, options, condition)
    return Resolution(
        tuple(without_errors(resolve_partitions(filesystem, wanted, options))),
        _without(found, selected),
        _without(selected, wanted),
    )


_are_matches_required: ContextVar[bool] = ContextVar("are_matches_required", default=False)


@contextmanager
def matches_required() -> Iterator[None]:
    """Make it an error, while this is open, that a pattern or a named partition matches nothing."""
    token = _are_matches_required.set(True)
    try:
        yield
    finally:
        _are_matches_required.reset(token)


def report_no_match(message: str) -> None:
    """Log that an option matches nothing, or fail on it if matches are required."""
    if _are_matches_required.get():
        raise OptionError(message)
    _log.warning("%s", message)


def select_partitions(
    directories: Sequence[PartitionDirectory], options: ReadOptions, *, may_be_absent: bool = False
) -> list[PartitionDirectory]:
    """Select the partitions that the options ask for, in the order given.

    Args:
        directories: Those that there are.
        options: What to read.
        may_be_absent: Whether topics and partitions that are named may come later.

    Raises:
        OptionError: A topic that is named does not exist; or a match is required, and there is none.
    """
    if options.subscribe is not None:
        if not may_be_absent:
            _check_topics("subscribe", options.subscribe, directories)
        return [directory for directory in directories if directory.topic in options.subscribe]
    if options.assign is not None:
        return _select_assigned(directories, options.assign, may_be_absent=may_be_absent)
    if options.subscribe_pattern is not None:
        pattern = compile_java_pattern("subscribePattern", options.subscribe_pattern)
        matching = {each.topic for each in _unnamed(directories, options) if pattern.search(each.topic)}
        if not matching and not may_be_absent:
            report_no_match(f"subscribePattern {options.subscribe_pattern!r} matches no topic.")
        return [directory for directory in directories if directory.topic in matching]
    return _unnamed(directories, options)


def _unnamed(directories: Iterable[PartitionDirectory], options: ReadOptions) -> list[PartitionDirectory]:
    """Return the partitions that are read without being named: not those of internal topics or of the values' schemas."""
    schemas = options.schemas_topic if options.reads_framed_columns else None
    return [each for each in directories if not each.is_internal and each.topic != schemas]


def _select_assigned(
    directories: Sequence[PartitionDirectory], assign: Mapping[str, tuple[int, ...]], *, may_be_absent: bool
) -> list[PartitionDirectory]:
    if not may_be_absent:
        _check_topics("assign", assign, directories)
    assigned = {(topic, partition) for topic, partitions in assign.items() for partition in partitions}
    selected = [directory for directory in directories if directory.topic_partition in assigned]
    missing = assigned - {directory.topic_partition for directory in selected}
    if missing and not may_be_absent:
        report_no_match(f"assign names partitions that do not exist: {format_topic_partitions(missing)}.")
    return selected


def _check_topics(option: str, wanted: Iterable[str], directories: Sequence[PartitionDirectory]) -> None:
    topics = {directory.topic for directory in directories}
    for topic in wanted:
        if topic not in topics:
            public = {directory.topic for directory in directories if not directory.is_internal}
            hint = nearest_hint(topic, sorted(public) or topics)
            raise OptionError(
                f"UnknownTopicOrPartition: {option} names the topic '{topic}', which does not exist.{hint}"
            )


def find_directories(
    filesystem: ReadableFileSystem, options: ReadOptions, watch: CommitMonitor | None = None
) -> list[PartitionDirectory]:
    """Find all partitions, whether they are asked for or not. Raises as `resolve` does."""
    found = find_partitions(
        filesystem,
        split_paths(filesystem, options.paths),
        follow_symlinks=options.follow_symlinks,
        monitor=watch,
        must_be_log_directory=True,
    )
    return with_remote_halves(filesystem, found, split_paths(filesystem, options.remote_storage or ()))


def directories_to_open(
    selected: Iterable[PartitionDirectory], options: ReadOptions, condition: Predicate | None
) -> list[PartitionDirectory]:
    """Leave out those of the selected partitions that a condition rules out.

    Raises:
        OptionError: Bounds name other partitions than those that are selected.
    """
    selected = list(selected)
    check_bounds(options, selected)
    return [
        directory
        for directory in selected
        if condition is None or not prune_partition(condition, *directory.topic_partition).is_empty
    ]


def check_bounds(options: ReadOptions, selected: Iterable[PartitionDirectory]) -> None:
    """Check that bounds by partition name exactly the partitions that are selected.

    Raises:
        OptionError: They name others.
    """
    assigned = {directory.topic_partition for directory in selected}
    _check_assigned(options.starting, "starting", assigned)
    _check_assigned(options.ending, "ending", assigned)


def outcomes(
    filesystem: ReadableFileSystem, resolve: Callable[[_Item], _Result], partitions: Iterable[_Item]
) -> Iterator[_Result | SegmentLogError]:
    """Resolve partitions, several at a time where requests take long. Yield the error in place of each that has one."""

    def outcome(partition: _Item) -> _Result | SegmentLogError:
        try:
            return resolve(partition)
        except SegmentLogError as error:
            return error

    return filesystem.map(outcome, partitions)


def without_errors(found: Iterable[_Result | SegmentLogError]) -> list[_Result]:
    """Raise the first error. If some partitions have no record at a starting timestamp, one error counts them and their topics."""
    results: list[_Result] = []
    missing: list[TimestampNotFoundError] = []
    for each in found:
        if isinstance(each, TimestampNotFoundError):
            missing.append(each)
        elif isinstance(each, SegmentLogError):
            raise each
        else:
            results.append(each)
    if not missing:
        return results
    first = missing[0]
    if len(missing) == 1:
        raise first
    names = (partition_named_by(each.path or "") for each in missing)
    topics = list(dict.fromkeys(name.topic for name in names if name is not None))
    raise TimestampNotFoundError(
        f"{first.args[0]} It is one of {len(missing)} such partitions, of {len(missing) + len(results)} in all; their topics: "
        f"{first_of(topics, _TOPICS_NAMED)}.",
        path=first.path,
    )


def resolve_partitions(
    filesystem: ReadableFileSystem, directories: Collection[PartitionDirectory], options: ReadOptions
) -> Iterator[PartitionRange | SegmentLogError]:
    """Find where partitions start and stop. Yield the error in place of each that cannot be read."""
    roots = {each.root.path: each.root for one in directories for each in (one, *one.copies)}
    for root in () if options.ignore_checkpoints else roots.values():
        root.read_once()
    return outcomes(filesystem, partial(resolve_partition, filesystem, options=options), directories)


def resolve_partition(
    filesystem: ReadableFileSystem, directory: PartitionDirectory, options: ReadOptions
) -> PartitionRange:
    """Find where a partition starts and stops. Raises as `resolve` does."""
    log = load_log(filesystem, directory, options)
    for notice in log.notices:
        _log.warning("%s", visible(notice))
    limit = ReadLimit(log, options.ending_at, options.isolation_level)
    start_offset = resolve_start(log, options, limit)
    end_offset = _resolve_end(log, options, limit)
    return resolve_range(log, start_offset, end_offset, limit, fail_on_data_loss=options.fail_on_data_loss)


def _without(
    directories: Iterable[PartitionDirectory], others: Iterable[PartitionDirectory]
) -> tuple[PartitionDirectory, ...]:
    names = {other.topic_partition for other in others}
    return tuple(directory for directory in directories if directory.topic_partition not in names)


def split_paths(filesystem: ReadableFileSystem, texts: Iterable[str]) -> list[str]:
    """Split path texts at commas, resolve ``file:`` URIs, and expand globs. A text that exists as a whole stays as it is.

    Raises:
        OptionError: A path is a URI of another scheme, a glob that matches no directory, or begins with ``~``.
    """
    paths = []
    for text in texts:
        if text != text.strip() and _exists(filesystem, path_to_read(text)):
            # Blanks at its ends may be part of a name.
            paths.append(path_to_read(text))
        elif "," not in text or _exists(filesystem, path_to_read(text.strip())):
            paths += _expanded(filesystem, path_to_read(text.strip()))
        else:
            for part in _split_at_commas(text):
                paths += _expanded(filesystem, path_to_read(part))
    return paths


def _split_at_commas(text: str) -> list[str]:
    """Split a text at commas, but not at those in the braces and brackets of a glob. Empty parts are left out."""
    parts, depth = [""], 0
    nesting: dict[str, int] = {}
    for opening, closing in ("{}", "[]"):
        if text.count(opening) == text.count(closing):
            nesting |= {opening: 1, closing: -1}
    for character in text:
        if character == "," and depth == 0:
            parts.append("")
            continue
        depth = max(0, depth + nesting.get(character, 0))
        parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _expanded(filesystem: ReadableFileSystem, path: str) -> list[str]:
    """Return the directories that a glob matches, or the path itself unless it is a glob."""
    is_glob_or_home = is_glob(path) or path.startswith("~")
    if not is_glob_or_home or _exists(filesystem, path):
        return [path]
    if path.startswith("~"):
        raise OptionError(f"path {path!r} does not exist: only a shell replaces ~. Give the full path.")
    return directories_that_match(filesystem, path)


def _exists(filesystem: ReadableFileSystem, path: str) -> bool:
    try:
        return filesystem.exists(path)
    except UnreadableError:
        raise
    except LogDirectoryError:
        # A list or a glob may be longer than a path.
        return False


def load_log(
    filesystem: ReadableFileSystem,
    directory: PartitionDirectory,
    options: ReadOptions,
    *,
    is_followed: bool = False,
    start_offset: int = 0,
) -> PartitionLog:
    """List a partition's directory and its copies, as `PartitionLog.load` does, for a read with these options.

    Remote storage is listed, too, if offsets below the first local segment may be read, from ``start_offset`` on.
    """
    if options.ignore_checkpoints:
        directory = directory.without_checkpoints()
    load = partial(
        PartitionLog.load,
        filesystem,
        use_indexes=options.use_indexes,
        max_batch_bytes=options.max_decompressed_batch_bytes,
        skip_damage=options.mode != "FAILFAST",
        is_followed=is_followed,
    )
    logs = [load(each) for each in (directory, *directory.copies)]
    for log in logs:
        _note_end_below_start(log)
    log = logs[0] if len(logs) == 1 else join_copies(filesystem, logs)
    may_begin_before = start_offset < log.log_start_offset or not log.segments
    if may_begin_before and directory.remote:
        log = join_halves(filesystem, log, directory.remote, load)
    if may_begin_before or not options.remote_storage:
        _note_remote_half(log, has_remote_storage=bool(options.remote_storage))
    return log


def _note_remote_half(log: PartitionLog, *, has_remote_storage: bool) -> None:
    """Add a notice to a log that lacks its first records. Without remote storage, one log stands for all of its directory."""
    root, start_offset = log.directory.root, log.start_below_segments
    if start_offset is None:
        return
    if has_remote_storage:
        missing = f"offsets {start_offset} to {log.log_start_offset - 1} of {log.topic}-{log.partition}"
        log.notices.append(f"Neither {log.path} nor remote storage has {missing}.")
        return
    if (root.path, _REMOTE_HALF) in root.reported:
        return
    root.reported.add((root.path, _REMOTE_HALF))
    log.notices.append(
        f"{log.topic}-{log.partition}, and maybe other logs in {root.path}, begins at offset {start_offset} by "
        f"log-start-offset-checkpoint, and its first segment here at {log.log_start_offset}: the records between are in remote "
        "storage, or lost. Set remoteStorage to where the broker has uploaded them to read them."
    )


def _note_end_below_start(log: PartitionLog) -> None:
    """Add a notice to a log that ends below its checkpointed start: an old copy beside newer checkpoints."""
    start_offset = log.directory.root.log_start_offsets.get(log.directory.topic_partition, 0)
    bases = log.segments.base_offsets
    if not bases or start_offset <= bases[-1] or log.directory.root.visibility.partitions:
        return
    try:
        end_offset = log.read_segment(len(bases) - 1, lambda segment: segment.end()).next_offset
    except SegmentLogError:
        # Whoever reads there will say so.
        return
    if end_offset < start_offset:
        log.notices.append(
            f"Nothing is read of {log.path}: its log ends at offset {end_offset}, below the log start offset "
            f"{start_offset} in log-start-offset-checkpoint. If this is an old copy beside newer checkpoints, set "
            f"ignoreCheckpoints to read it from offset {bases[0]} on."
        )


def _check_assigned(bound: Bound, position: str, assigned: set[TopicPartition]) -> None:
    """Require that bounds by partition name exactly the partitions to read, so that none is forgotten."""
    if not isinstance(bound, OffsetsBound | TimestampsBound):
        return
    specified = _specified(bound, assigned)
    if specified == assigned:
        return
    if isinstance(bound, OffsetsBound):
        mismatch = (
            "[KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED] Partitions specified for Kafka start offsets don't "
            f"match what are assigned ({position}Offsets names other partitions than those read). Use -1 for "
            "latest, -2 for earliest."
        )
    else:
        mismatch = (
            "[KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED] Partitions specified for Kafka timestamp based "
            f"{position} offsets don't match what are assigned, or you didn't specify all the partitions."
        )
    raise OptionError(
        f"{mismatch} Specified: {format_topic_partitions(specified)} Assigned: {format_topic_partitions(assigned)}"
    )


def _specified(bound: OffsetsBound | TimestampsBound, assigned: set[TopicPartition]) -> set[TopicPartition]:
    specified = set(bound.by_partition)
    topics = {topic for topic, _ in assigned}
    for topic in bound.by_topic:
        if topic not in topics:
            raise OptionError(
                f"An offset or timestamp is given for the topic '{topic}', which is not read. "
                f"Assigned: {format_topic_partitions(assigned)}"
            )
        specified |= {pair for pair in assigned if pair[0] == topic}
    return specified
