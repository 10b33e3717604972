"""Planning a write on the driver: everything is checked that can be before there are rows."""

from __future__ import annotations

import os
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_segmentlog.write_plan import TopicPlan, WritePlan
from spark_segmentlog.write_schema import write_columns
from storage_core.checkpoint import PARTITION_METADATA
from storage_core.commit.job import CommitJob
from storage_core.directory import find_partitions, parse_partition_directory_name
from storage_core.errors import CorruptError, LogDirectoryError, OptionError, UnreadableError
from storage_core.scan.options import parse_read_options
from storage_core.scan.resolve import resolve, split_paths
from storage_core.segment import base_offset_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql.types import StructType

    from spark_segmentlog.write_options import WriteOptions
    from storage_core.filesystem import FileSystem

__all__ = ["plan_write"]


def plan_write(
    filesystem: FileSystem, schema: StructType, options: WriteOptions, *, is_overwrite: bool
) -> WritePlan:
    """Check everything that can be checked before there are rows; make the log directory if it is not there.

    Raises:
        SegmentLogError: The frame, the options or the log directory are not fit for this write.
    """
    columns = write_columns(schema, options)
    if is_overwrite and options.preserve_offsets:
        raise OptionError(
            "preserveOffsets does not go with mode overwrite, whose rows stand behind those that are there. "
            "Use mode append, and an empty log directory."
        )
    root = _root(filesystem, options.path)
    restored = _source_offsets(filesystem, options)
    plan = WritePlan(
        root, uuid.uuid4().hex, options, columns, int(time.time() * 1000), is_overwrite=is_overwrite
    )
    is_committed = not CommitJob(filesystem, root, plan.settings()).begin()
    return replace(
        plan,
        is_committed=is_committed,
        topics=_topics(filesystem, root, restored, options),
        restored_offsets=restored,
    )


def _root(filesystem: FileSystem, path: str) -> str:
    """The log directory; tasks may run with another working directory."""
    if "," in path and filesystem.status(path, follow_symlinks=True) is None:
        raise OptionError(
            f"path {path!r} names several directories, or one that is not there. A write goes to one log directory; "
            "if its name is to have a comma, make it first."
        )
    root = os.path.abspath(path)
    above = root
    while above != os.path.dirname(above):
        if parse_partition_directory_name(os.path.basename(above)) is not None and _holds_log(
            filesystem, above
        ):
            raise LogDirectoryError(
                f"Expected a log directory, found a path in a partition of one. Write to {os.path.dirname(above)} "
                "with the option topic, or to a directory elsewhere.",
                path=root,
            )
        above = os.path.dirname(above)
    return root


def _holds_log(filesystem: FileSystem, path: str) -> bool:
    status = filesystem.status(path, follow_symlinks=True)
    if status is None or not status.is_directory:
        return False
    try:
        entries = filesystem.list_directory(path)
    except UnreadableError:
        # Whoever may pass through a directory need not be allowed to list it.
        return False
    return any(
        entry.name == PARTITION_METADATA or base_offset_of(entry.name) is not None for entry in entries
    )


def _topics(
    filesystem: FileSystem, root: str, restored: Mapping[tuple[str, int], object], options: WriteOptions
) -> dict[str, TopicPlan]:
    names = (entry.name for entry in filesystem.list_directory(root) if entry.is_directory)
    parsed = [
        name
        for each in names
        if (name := parse_partition_directory_name(each)) is not None
        # Of another program's: the others are partitions, or the job would have been refused.
        and (not each.startswith(".") or _holds_log(filesystem, os.path.join(root, each)))
    ]
    found = _by_topic((name.topic, name.partition) for name in parsed if name.suffix is None)
    # Other partitions of a cluster's topic may stand on other brokers' disks.
    least_count = options.partition_count if options.broker_directory else 0
    plans = {topic: _topic_plan(numbers, least_count) for topic, numbers in found.items()}
    for topic, numbers in _by_topic(restored).items():
        if topic not in plans:
            known = _topic_plan(numbers, is_new=True)
            is_larger = (options.partitions or 0) >= known.partition_count
            plans[topic] = TopicPlan(options.partition_count, is_new=True) if is_larger else known
    return plans


def _topic_plan(numbers: set[int], least_count: int = 0, *, is_new: bool = False) -> TopicPlan:
    count = max(max(numbers) + 1, least_count)
    return TopicPlan(count, None if count == len(numbers) else frozenset(numbers), is_new)


def _by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for topic, partition in partitions:
        found.setdefault(topic, set()).add(partition)
    return found


def _source_offsets(filesystem: FileSystem, options: WriteOptions) -> dict[tuple[str, int], tuple[int, int]]:
    """Log start and log end of each partition under ``offsetsFrom``."""
    if options.offsets_from is None:
        return {}
    paths = split_paths(filesystem, [options.offsets_from])
    topics = sorted({directory.topic for directory in find_partitions(filesystem, paths)})
    if options.topic is not None:
        if options.topic not in topics:
            raise OptionError(
                f"offsetsFrom is {options.offsets_from!r}, which has no topic {options.topic!r}. It has "
                f"{', '.join(topics) or 'none'}."
            )
        topics = [options.topic]
    read_options = parse_read_options({"path": paths, "subscribe": topics or None})
    try:
        resolved = resolve(filesystem, read_options)
    except CorruptError as error:
        # Where a damaged log ends is a guess, and a guess is not to be published as its end.
        raise OptionError(
            f"Expected offsetsFrom to name logs whose ends can be told, found damage: {error} Leave offsetsFrom out: "
            "each log then ends behind its last row, and starts at its first one."
        ) from error
    return {each.log.directory.topic_partition: (each.start_offset, each.end_offset) for each in resolved}
