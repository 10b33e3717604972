"""The bytes of a log, as a follower fetches them (Kafka's ``UnifiedLog.read``).

Reading a log: its files at one moment, for the one read path of ``scan``.

Offsets for timestamps (Kafka's ``UnifiedLog.fetchOffsetByTimestamp``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from storage_core.directory import LogDirectoryFiles, PartitionDirectory, PartitionLog, Segments
from storage_core.directory.segment_listing import FileNames, SegmentListing
from storage_core.directory.visibility import Visibility
from storage_core.errors import OffsetOutOfRangeError, OptionError
from storage_core.log.leader_epoch_cache import epoch_for_offset
from storage_core.record.batch_window import walk_window
from storage_core.record.section import PADDING_BYTES
from storage_core.scan import project, read_task, record_schema
from storage_core.scan.isolation import aborted_transactions
from storage_core.scan.offset_ranges import PartitionRange
from storage_core.scan.options import parse_read_options
from storage_core.scan.plan import plan_partition
from storage_core.segment import SegmentEnd, SegmentReader, TimestampOffset
from storage_core.segment.file_records import FetchedData

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import pyarrow as pa

    from storage_core.checkpoint import EpochEntry
    from storage_core.directory.visibility import CommitWatch
    from storage_core.filesystem import FileSystem
    from storage_core.log.log_state import LogView
    from storage_core.record.batch_header import BatchHeader
    from storage_core.scan import ReadOptions

__all__ = [
    "OffsetAndTimestamp",
    "fetch",
    "fetch_isolation",
    "offset_for_timestamp",
    "partition_log_of_view",
    "partition_log_on_disk",
    "read_options",
    "read_records",
    "require_within",
]


_OF_CONSUMERS: Final = {"read_uncommitted": "high_watermark", "read_committed": "committed"}


def fetch(
    log: PartitionLog,
    start_offset: int,
    max_size_bytes: int,
    limit_offset: int,
    *,
    min_one_message: bool,
    is_committed: bool = False,
) -> FetchedData:
    """Read bytes of one segment, from the batch on that holds an offset.

    Args:
        log: The log as it is at this moment.
        start_offset: The offset. If it lies in a gap, the batch behind the gap comes first.
        max_size_bytes: So many bytes at the most.
        limit_offset: No batch at or behind it is given out.
        min_one_message: Whether the first batch comes as a whole, however large it is.
        is_committed: Whether the aborted transactions among the batches are to be told.

    Raises:
        OffsetOutOfRangeError: The start lies below the log start or behind the log end.
    """
    if max_size_bytes < 0:
        raise OptionError(f"Expected a size of at least 0 bytes to fetch, found {max_size_bytes}.")
    require_within(log, start_offset)
    bases = log.segments.base_offsets
    if start_offset < limit_offset:
        for index in range(log.segment_index_for(start_offset) or 0, len(bases)):
            if bases[index] >= limit_offset:
                break
            is_limited = index + 1 == len(bases) or bases[index + 1] > limit_offset
            fetch_part = partial(
                _fetch_of_segment,
                start_offset=start_offset,
                max_size_bytes=max_size_bytes,
                limit_offset=limit_offset if is_limited else None,
                min_one_message=min_one_message,
            )
            found = log.read_segment(index, fetch_part)
            if found is not None:
                return _with_aborted(log, start_offset, *found) if is_committed else found[0]
    nothing = FetchedData(min(start_offset, log.log_end_offset), 0, b"", is_first_entry_incomplete=False)
    return replace(nothing, aborted_transactions=()) if is_committed else nothing


def _with_aborted(
    log: PartitionLog, start_offset: int, fetched: FetchedData, first: BatchHeader
) -> FetchedData:
    """With the aborted transactions that a consumer of the batches has to leave out."""
    end_offset = start_offset
    if fetched.data:
        size_bytes = len(fetched.data)
        buffer = np.zeros(size_bytes + PADDING_BYTES, np.uint8)
        buffer[:size_bytes] = np.frombuffer(fetched.data, np.uint8)
        window = walk_window(log.path, fetched.position_bytes, buffer, size_bytes, fetched.base_offset)
        # Of a batch that is cut off nothing can be read.
        end_offset = window.header(-1).next_offset if len(window.starts) else first.next_offset
    return replace(fetched, aborted_transactions=aborted_transactions(log, start_offset, end_offset))


def fetch_isolation(isolation: str | None, isolation_level: str | None) -> str:
    """What limits a fetch, as it was asked for by one word or the other (Kafka's ``FetchIsolation``).

    Raises:
        OptionError: There is no such isolation, or both are given.
    """
    if isolation_level is None:
        if isolation not in (None, "log_end", "high_watermark", "committed"):
            raise OptionError(
                f"Expected isolation log_end, high_watermark or committed, found {isolation!r}."
            )
        return isolation or "log_end"
    if isolation is not None:
        raise OptionError("Expected isolation or isolation_level, found both. Give one of them.")
    if isolation_level not in _OF_CONSUMERS:
        raise OptionError(
            f"Expected isolation_level read_uncommitted or read_committed, found {isolation_level!r}."
        )
    return _OF_CONSUMERS[isolation_level]


def require_within(log: PartitionLog, offset: int) -> None:
    """Refuse an offset that a log does not have.

    Raises:
        OffsetOutOfRangeError: It lies below the log start or behind the log end.
    """
    if not log.log_start_offset <= offset <= log.log_end_offset:
        raise OffsetOutOfRangeError(
            f"Expected an offset from {log.log_start_offset}, the log start, to {log.log_end_offset}, the log end, "
            f"found {offset}. Read from one of them on.",
            path=log.path,
            offset=offset,
        )


def _fetch_of_segment(
    segment: SegmentReader,
    start_offset: int,
    max_size_bytes: int,
    limit_offset: int | None,
    *,
    min_one_message: bool,
) -> tuple[FetchedData, BatchHeader] | None:
    first = segment.translate_offset(start_offset)
    if first is None:
        return None
    known_end = segment.known_end
    end_bytes = segment.size_bytes if known_end is None else known_end.position_bytes
    if limit_offset is not None and (known_end is None or limit_offset < known_end.next_offset):
        at_limit = segment.translate_offset(limit_offset)
        end_bytes = end_bytes if at_limit is None else min(end_bytes, at_limit.position_bytes)
    wanted_bytes = max(max_size_bytes, first.size_bytes) if min_one_message else max_size_bytes
    size_bytes = max(0, min(wanted_bytes, end_bytes - first.position_bytes))
    data = b""
    if size_bytes:
        with segment.open_log() as log_file:
            data = log_file.read_at(size_bytes, first.position_bytes)
    fetched = FetchedData(
        first.base_offset,
        first.position_bytes,
        data,
        is_first_entry_incomplete=wanted_bytes < first.size_bytes,
    )
    return fetched, first


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
    plan = plan_partition(PartitionRange(log, start_offset, end_offset), options)
    batches = (batch for task in plan.tasks for batch in read_task(filesystem, task, schema))
    return batches if max_bytes is None else _up_to(batches, max_bytes)


def _up_to(batches: Iterator[pa.RecordBatch], max_bytes: int) -> Iterator[pa.RecordBatch]:
    taken_bytes = 0
    for batch in batches:
        yield batch
        taken_bytes += batch.nbytes
        if taken_bytes >= max_bytes:
            return


LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
_NONE: Final = -1


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """The answer to a look-up by time.

    Attributes:
        offset: The offset; -1 for the latest tiered one, of which there is none.
        timestamp_ms: The record's own timestamp; -1 where no record was asked for.
        leader_epoch: The epoch that the offset belongs to; None if it is not known.
    """

    offset: int
    timestamp_ms: int
    leader_epoch: int | None


def offset_for_timestamp(
    log: PartitionLog, timestamp_ms: int, epochs: Sequence[EpochEntry]
) -> OffsetAndTimestamp | None:
    """Look up a timestamp, or one of the negative numbers that Kafka gives a meaning.

    Args:
        log: The log as it is at this moment.
        timestamp_ms: From 0 on, the first record that young is looked for. -1: the log end; -2 and -4: the log
            start; -3: the first record with the largest timestamp, wherever the log starts; -5: the end of what
            was moved to another tier.
        epochs: The log's leader epochs.

    Returns:
        What was found; None if there is no such record.

    Raises:
        OptionError: Another negative number.
    """
    if timestamp_ms >= 0:
        return _answer(log.offset_for_timestamp(timestamp_ms), epochs)
    if timestamp_ms == LATEST:
        return _answer(TimestampOffset(_NONE, log.log_end_offset), epochs)
    if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
        return _answer(TimestampOffset(_NONE, log.log_start_offset), epochs)
    if timestamp_ms == MAX_TIMESTAMP:
        return _answer(_offset_of_max_timestamp(log), epochs)
    if timestamp_ms == LATEST_TIERED:
        return OffsetAndTimestamp(_NONE, _NONE, None)
    raise OptionError(f"Expected a timestamp of 0 or more, or a number from -5 to -1, found {timestamp_ms}.")


def _offset_of_max_timestamp(log: PartitionLog) -> TimestampOffset | None:
    largest_ms, largest_index = _NONE, None
    last = len(log.segments) - 1
    # What is behind the log end in a file is not seen once the end is known.
    log_end_offset = log.log_end_offset
    for index in range(len(log.segments)):
        is_complete = index < last or log.is_clean
        found = log.read_segment(index, lambda segment: segment.largest_timestamp(is_complete=is_complete))  # noqa: B023
        if found.timestamp_ms > largest_ms:
            largest_ms, largest_index = found.timestamp_ms, index
    if largest_index is None:
        return None
    answer = log.read_segment(largest_index, lambda segment: segment.offset_for_timestamp(largest_ms))
    return answer if answer is not None and answer.offset < log_end_offset else None


def _answer(found: TimestampOffset | None, epochs: Sequence[EpochEntry]) -> OffsetAndTimestamp | None:
    if found is None:
        return None
    return OffsetAndTimestamp(found.offset, found.timestamp_ms, epoch_for_offset(epochs, found.offset))
