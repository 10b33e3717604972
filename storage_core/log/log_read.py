"""Reading a log: its files at one moment, for the one read path of ``scan``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from storage_core.directory import LogDirectoryFiles, PartitionDirectory, PartitionLog, Segments
from storage_core.directory.segment_listing import FileNames, SegmentListing
from storage_core.directory.visibility import Visibility
from storage_core.errors import OptionError
from storage_core.log.log_fetch import require_within
from storage_core.scan import project, read_task, record_schema
from storage_core.scan.options import parse_read_options
from storage_core.scan.partition_resolver import ResolvedPartition
from storage_core.scan.plan import plan_partition
from storage_core.segment import SegmentEnd, SegmentReader

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import pyarrow as pa

    from storage_core.directory.visibility import CommitWatch
    from storage_core.filesystem import FileSystem
    from storage_core.log.log_state import LogView
    from storage_core.scan import ReadOptions

__all__ = ["partition_log_of_view", "partition_log_on_disk", "read_options", "read_records"]

# Log.read has these as parameters of its own, or has no use for them.
_NOT_FOR_A_LOG: Final = frozenset(
    {"path", "paths", "subscribe", "subscribepattern", "assign", "startingoffsets", "endingoffsets"}
)
_MAX_BATCH_BYTES: Final = "maxdecompressedbatchbytes"


def partition_log_of_view(
    filesystem: FileSystem,
    directory: PartitionDirectory,
    view: LogView,
    truncations_bytes: int,
    *,
    with_file_names: bool,
) -> PartitionLog:
    """The files of a log as a view shows them: what is appended later is not seen.

    Args:
        filesystem: Where to read.
        directory: The partition.
        view: What the log's writer showed last.
        truncations_bytes: The size of the log directory's list of truncations before that.
        with_file_names: Whether the directory is listed, which only transactions need.
    """
    offsets = view.offsets
    readers = {segment.base_offset: segment for segment in view.segments}
    base_offsets = tuple(readers)
    ends = dict(zip(base_offsets, (*base_offsets[1:], offsets.log_end_offset), strict=True))

    def open_segment(base_offset: int, file_names: Collection[str] | None, suffix: str) -> SegmentReader:
        if suffix or file_names is None:
            return SegmentReader(filesystem, directory.path, base_offset, None, suffix=suffix)
        reader = readers[base_offset].reader()
        reader.end_offset = ends[base_offset]
        if base_offset == base_offsets[-1]:
            reader.known_status = replace(reader.status, size_bytes=view.active_size_bytes)
            reader.known_end = SegmentEnd(offsets.log_end_offset, view.active_size_bytes)
        return reader

    names = FileNames()
    if with_file_names:
        names = FileNames(entry.name for entry in filesystem.walk_directory(directory.path))
    root = LogDirectoryFiles(filesystem, directory.root.path)
    # The files of the root are as old as the last checkpoint.
    root.is_own, root.clean_shutdown = True, False
    root.visibility = Visibility(truncations_bytes=truncations_bytes)
    root.recovery_points = {directory.topic_partition: offsets.recovery_point}
    root.log_start_offsets = {directory.topic_partition: offsets.log_start_offset}
    root.high_watermarks = {directory.topic_partition: offsets.high_watermark}
    log = PartitionLog(
        filesystem,
        PartitionDirectory(directory.path, directory.topic, directory.partition, root),
        Segments(SegmentListing(base_offsets, names), open_segment),
    )
    log.log_start_offset = offsets.log_start_offset
    log.log_end_offset = offsets.log_end_offset
    return log


def partition_log_on_disk(
    filesystem: FileSystem, directory: PartitionDirectory, watch: CommitWatch, max_batch_bytes: int
) -> PartitionLog:
    """The files of a log as they stand on disk now. Nothing that was read of them before counts."""
    root = LogDirectoryFiles(filesystem, directory.root.path)
    root.visibility = watch.visibility_of(root.path)
    fresh = PartitionDirectory(directory.path, directory.topic, directory.partition, root)
    return PartitionLog.load(filesystem, fresh, max_batch_bytes=max_batch_bytes)


def read_options(
    path: str, isolation_level: str, options: Mapping[str, Any], max_batch_bytes: int
) -> ReadOptions:
    """The options of one log's read, which takes batches of a size unless they say otherwise.

    Raises:
        OptionError: An option is unknown or wrong, or is about something else than records.
    """
    for name in options:
        if name.lower().replace("_", "") in _NOT_FOR_A_LOG:
            raise OptionError(
                f"Option '{name}' is not for the read of one log. Use start_offset and end_offset, or "
                "storage_core.read_table."
            )
    parsed = parse_read_options({"path": [path], "isolationLevel": isolation_level, **options})
    if any(name.lower().replace("_", "") == _MAX_BATCH_BYTES for name in options):
        return parsed
    return replace(parsed, max_decompressed_batch_bytes=max_batch_bytes)


def read_records(
    filesystem: FileSystem,
    log: PartitionLog,
    start_offset: int | None,
    end_offset: int | None,
    limit_offset: int,
    options: ReadOptions,
    max_bytes: int | None,
) -> Iterator[pa.RecordBatch]:
    """Read a range of a log's offsets. The range is checked before the first batch is asked for.

    Args:
        filesystem: Where to read.
        log: The log as it is at this moment.
        start_offset: The first offset wanted; the log start if None.
        end_offset: The first offset not wanted any more; None for the limit.
        limit_offset: Nothing at or behind it is read: the log end, or the last stable offset.
        options: What is wanted of the records.
        max_bytes: No more batches are given out once they hold this many bytes; at least one is.

    Raises:
        OffsetOutOfRangeError: The start lies below the log start or behind the log end.
    """
    start_offset = log.log_start_offset if start_offset is None else start_offset
    require_within(log, start_offset)
    if max_bytes is not None and max_bytes < 0:
        raise OptionError(f"Expected max_bytes of 0 or more, found {max_bytes}.")
    end_offset = limit_offset if end_offset is None else min(end_offset, limit_offset)
    schema = project(
        record_schema(
            include_headers=options.include_headers,
            include_metadata=options.include_metadata,
            corrupt_record_column=options.corrupt_record_column if options.mode == "PERMISSIVE" else None,
        ),
        options.columns,
    )
    if start_offset >= end_offset or max_bytes == 0:
        return iter(())
    plan = plan_partition(ResolvedPartition(log, start_offset, end_offset), options)
    batches = (batch for task in plan.tasks for batch in read_task(filesystem, task, schema))
    return batches if max_bytes is None else _up_to(batches, max_bytes)


def _up_to(batches: Iterator[pa.RecordBatch], max_bytes: int) -> Iterator[pa.RecordBatch]:
    taken_bytes = 0
    for batch in batches:
        yield batch
        taken_bytes += batch.nbytes
        if taken_bytes >= max_bytes:
            return
