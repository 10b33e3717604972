"""From options to partitions with offset ranges: the first step of every read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage_core.directory import PartitionLog, find_partitions
from storage_core.errors import OptionError
from storage_core.scan.bounds import OffsetsBound, TimestampsBound
from storage_core.scan.offset_json import format_topic_partitions
from storage_core.scan.option_values import path_of
from storage_core.scan.partition_resolver import ResolvedPartition, resolve_partition
from storage_core.scan.topic_selection import select_partitions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from storage_core.directory import PartitionDirectory
    from storage_core.directory.visibility import CommitWatch
    from storage_core.filesystem import FileSystem
    from storage_core.scan.bounds import Bound
    from storage_core.scan.offset_json import TopicPartition
    from storage_core.scan.options import ReadOptions

__all__ = ["Resolution", "ResolvedPartition", "resolve", "resolve_wanted", "split_paths"]


@dataclass(frozen=True, slots=True)
class Resolution:
    """What becomes of each partition that was found.

    Attributes:
        partitions: Those that are read, by topic and partition; also those of which there is nothing to read.
        not_asked_for: Those that the options do not ask for.
        ruled_out: Those that they ask for, and that are not wanted; none of their files was opened.
    """

    partitions: tuple[ResolvedPartition, ...]
    not_asked_for: tuple[PartitionDirectory, ...] = ()
    ruled_out: tuple[PartitionDirectory, ...] = ()


def resolve(filesystem: FileSystem, options: ReadOptions) -> tuple[ResolvedPartition, ...]:
    """Find the partitions that a read takes, and where each starts and stops; see `resolve_wanted`."""
    return resolve_wanted(filesystem, options, lambda *_: True).partitions


def resolve_wanted(
    filesystem: FileSystem,
    options: ReadOptions,
    is_wanted: Callable[[str, int], bool],
    watch: CommitWatch | None = None,
) -> Resolution:
    """Find the partitions that a read takes, and where each starts and stops.

    Args:
        filesystem: Where to look.
        options: What to read.
        is_wanted: Whether a partition that the options ask for is wanted, by topic and number.
        watch: Is told of each log directory, and says what of it is visible.

    Raises:
        OptionError: A topic is not there, or bounds name other partitions than those read, or
            a start lies behind its end.
        LogDirectoryError: A path is no log directory.
        OffsetOutOfRangeError: Offsets are asked for that are not there.
        TimestampNotFoundError: A partition has no record as young as the starting timestamp.
    """
    paths = split_paths(filesystem, options.paths)
    found = find_partitions(
        filesystem,
        paths,
        follow_symlinks=options.follow_symlinks,
        watch=watch,
        must_be_log_directory=True,
    )
    selected = select_partitions(found, options)
    assigned = {directory.topic_partition for directory in selected}
    _check_assigned(options.starting, "starting", assigned)
    _check_assigned(options.ending, "ending", assigned)
    wanted = [directory for directory in selected if is_wanted(*directory.topic_partition)]
    return Resolution(
        tuple(resolve_partition(_load(filesystem, directory, options), options) for directory in wanted),
        _without(found, selected),
        _without(selected, wanted),
    )


def _without(
    directories: Iterable[PartitionDirectory], others: Iterable[PartitionDirectory]
) -> tuple[PartitionDirectory, ...]:
    names = {other.topic_partition for other in others}
    return tuple(directory for directory in directories if directory.topic_partition not in names)


def split_paths(filesystem: FileSystem, texts: Iterable[str]) -> list[str]:
    """Split path texts at commas, but for those that exist as a whole; resolve ``file:`` URIs.

    Raises:
        OptionError: A path is a URI of another scheme.
    """
    paths = []
    for text in texts:
        whole = path_of(text.strip())
        if text != text.strip() and filesystem.status(path_of(text), follow_symlinks=True) is not None:
            # Blanks at its ends may belong to a name.
            paths.append(path_of(text))
        elif "," not in text or filesystem.status(whole, follow_symlinks=True) is not None:
            paths.append(whole)
        else:
            paths += [path_of(part.strip()) for part in text.split(",") if part.strip()]
    return paths


def _load(filesystem: FileSystem, directory: PartitionDirectory, options: ReadOptions) -> PartitionLog:
    return PartitionLog.load(
        filesystem,
        directory,
        use_indexes=options.use_indexes,
        max_batch_bytes=options.max_decompressed_batch_bytes,
        skip_damage=options.mode != "FAILFAST",
    )


def _check_assigned(bound: Bound, position: str, assigned: set[TopicPartition]) -> None:
    """Values for partitions must name exactly the partitions read, so that none is forgotten."""
    if isinstance(bound, OffsetsBound):
        specified = _specified(bound.offsets, bound.topic_offsets, assigned)
        if specified != assigned:
            raise OptionError(
                "[KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED] Partitions specified for Kafka start offsets don't "
                f"match what are assigned ({position}Offsets names other partitions than those read). Use -1 for "
                "latest, -2 for earliest. "
                f"Specified: {format_topic_partitions(specified)} Assigned: {format_topic_partitions(assigned)}"
            )
    if isinstance(bound, TimestampsBound):
        specified = _specified(bound.timestamps_ms, bound.topic_timestamps_ms, assigned)
        if specified != assigned:
            raise OptionError(
                "[KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED] Partitions specified for Kafka timestamp based "
                f"{position} offsets don't match what are assigned, or you didn't specify all the partitions. "
                f"Specified: {format_topic_partitions(specified)} Assigned: {format_topic_partitions(assigned)}"
            )


def _specified(
    by_partition: Iterable[TopicPartition], by_topic: Iterable[str], assigned: set[TopicPartition]
) -> set[TopicPartition]:
    specified = set(by_partition)
    topics = {topic for topic, _ in assigned}
    for topic in by_topic:
        if topic not in topics:
            raise OptionError(
                f"An offset or timestamp is given for the topic '{topic}', which is not read. "
                f"Assigned: {format_topic_partitions(assigned)}"
            )
        specified |= {pair for pair in assigned if pair[0] == topic}
    return specified
