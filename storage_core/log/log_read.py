"""Reading a log (Kafka's ``UnifiedLog.read`` and ``fetchOffsetByTimestamp``).

Every read takes the files of one moment, as a `PartitionLog`, and uses the read path of ``scan``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from storage_core.directory import LogDirectoryFiles, PartitionDirectory, PartitionLog
from storage_core.directory.consistent import list_again_if_gone, read_consistently
from storage_core.directory.visibility import CommitMonitor, VisibleCommits
from storage_core.errors import LogTruncationError, OffsetOutOfRangeError, OptionError, SegmentLogError
from storage_core.log.leader_epoch_cache import epoch_for_offset
from storage_core.log.log_state import LogOffsets, LogState, partition_log_of_view
from storage_core.options import parse_read_options
from storage_core.options.column_choice import FORMAT_OPTIONS
from storage_core.record.batch_window import walk_window
from storage_core.record.section import PADDING_BYTES
from storage_core.scan import ReadOptions
from storage_core.scan.isolation import aborted_transactions, last_stable_offset
from storage_core.scan.offset_ranges import PartitionRange
from storage_core.scan.plan import plan_ranges
from storage_core.scan.read import read_schema, read_tasks
from storage_core.segment import SegmentReader, TimestampOffset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from storage_core.checkpoint import EpochEntry
    from storage_core.filesystem import FileSystem
    from storage_core.record.batch_header import BatchHeader
    from storage_core.segment.file_names import AbortedTransaction


# Kafka's ListOffsetsRequest gives these negative timestamps a meaning.
_LATEST: Final = -1
_EARLIEST: Final = -2
_MAX_TIMESTAMP: Final = -3
_EARLIEST_LOCAL: Final = -4
_LATEST_TIERED: Final = -5
_NONE: Final = -1
# Log.read has parameters of its own for these, or no use for them.
_NOT_FOR_A_LOG: Final = frozenset(
    {"path", "paths", "subscribe", "subscribepattern", "assign", "startingoffsets", "endingoffsets"}
    # Schemas are those of a directory.
    | {option.name.lower() for option in FORMAT_OPTIONS}
)
_MAX_BATCH_BYTES: Final = "maxdecompressedbatchbytes"
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """The result of a look-up by timestamp.

    Attributes:
        offset: The offset; -1 for the latest tiered offset, which never exists.
        timestamp_ms: The record's timestamp; -1 if no record was asked for.
        leader_epoch: The leader epoch of the offset; None if unknown.
    """

    offset: int
    timestamp_ms: int
    leader_epoch: int | None


class LogQueries:
    """Answers queries about one log, each from one consistent state of it.

    If this process has the log open for writing, that state is what the writer last published. Otherwise it is what is
    on disk now.

    Attributes:
        max_batch_bytes: The largest decompressed batch that a read accepts.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        directory: PartitionDirectory,
        state: LogState | None,
        max_batch_bytes: int,
    ) -> None:
        self.max_batch_bytes = max_batch_bytes
        self._filesystem = filesystem
        self._directory = directory
        self._state = state
        # Where the next search for visible commits may begin. The mapping is replaced, never changed.
        self._known_commits: Mapping[str, VisibleCommits] = {}

    def ask_either(
        self, of_state: Callable[[LogState], _Answer], of_disk: Callable[[PartitionLog], _Answer]
    ) -> _Answer:
        """Query the open log, or the log on disk if this process does not have it open."""
        state = self._live_state
        return self.ask_disk(of_disk) if state is None else of_state(state)

    def ask_disk(self, query: Callable[[PartitionLog], _Answer]) -> _Answer:
        """Query the log as it is on disk now, with all rows of a job's commit or none."""
        watch = CommitMonitor(self._filesystem, self._known_commits)
        answer = read_consistently(watch, lambda watch: query(self._log_on_disk(watch)))
        self._known_commits = watch.known
        return answer

    def ask(
        self, query: Callable[[PartitionLog, LogOffsets | None], _Answer], *, with_file_names: bool = False
    ) -> _Answer:
        """Query the files of the log, again if segments that the answer needs were removed meanwhile.

        The query receives the log, and its offsets if this process has it open. Queries about transactions need file
        names, for which the directory is listed.

        Raises:
            LogTruncationError: The log was truncated or deleted meanwhile.
        """
        state = self._live_state
        if state is None:
            return self.ask_disk(lambda log: query(log, None))

        def wait_for_removal() -> None:
            # A thread that removes segments publishes the remaining ones only at the end.
            with state.lock:
                pass

        return list_again_if_gone(
            lambda: self._ask_state(state, query, with_file_names=with_file_names), wait_for_removal
        )

    @property
    def _live_state(self) -> LogState | None:
        """The state, if this process opened the log. A forked process has a stale copy, whose locks may be held."""
        state = self._state
        return state if state is not None and state.owner.is_this else None

    def _log_on_disk(self, watch: CommitMonitor) -> PartitionLog:
        """Load the files of the log as they are on disk now. Nothing that was read earlier is reused."""
        directory = self._directory
        root = LogDirectoryFiles(self._filesystem, directory.root.path)
        root.visibility = watch.visibility_of(root.path)
        fresh = PartitionDirectory(directory.path, directory.topic, directory.partition, root)
        return PartitionLog.load(self._filesystem, fresh, max_batch_bytes=self.max_batch_bytes)

    def _ask_state(
        self,
        state: LogState,
        query: Callable[[PartitionLog, LogOffsets | None], _Answer],
        *,
        with_file_names: bool,
    ) -> _Answer:
        # Read before the view: the view contains every truncation noted by now, or the end of one will be noted.
        truncations_file, truncations = state.truncations_file, state.truncations
        truncations_bytes = 0 if truncations_file is None else truncations_file.size_bytes
        if state.is_truncating:
            # The files agree neither with the view nor with the producer state.
            raise _truncated(state)
        # After these, because a deletion that ends before them leaves no other trace.
        state.check_open()
        view = state.view
        try:
            log = partition_log_of_view(state, view, truncations_bytes, with_file_names=with_file_names)
            answer = query(log, view.offsets)
        except SegmentLogError as error:
            # Bytes that are cut off while they are read can look like any kind of damage.
            if not state.has_been_truncated(truncations):
                raise
            raise _truncated(state) from error
        if state.truncations != truncations:
            raise _truncated(state)
        return answer


def _truncated(state: LogState) -> LogTruncationError:
    # A log that was deleted cannot be read again.
    state.check_open()
    # The log may have grown again since then.
    offset = state.truncated_to
    return LogTruncationError(
        f"Expected the log to stay unchanged during a read, found it truncated to offset {offset}. Read again.",
        path=state.path,
        offset=offset,
    )


def high_watermark_of(log: PartitionLog) -> int:
    """Return the high watermark of a log on disk, or its end if no checkpoint has one."""
    return log.log_end_offset if log.high_watermark is None else log.high_watermark


def last_stable_offset_of(log: PartitionLog, offsets: LogOffsets | None = None) -> int:
    """Return the last stable offset of a log, given its offsets if it is open in this process."""
    return last_stable_offset(log, high_watermark_of(log)) if offsets is None else offsets.last_stable_offset


def options_of_read(
    path: str, isolation_level: str, options: Mapping[str, Any], max_batch_bytes: int
) -> ReadOptions:
    """Parse the options of `Log.read`.

    ``max_batch_bytes`` is the default of ``maxDecompressedBatchBytes``.
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


def read_range(
    log: PartitionLog,
    offsets: LogOffsets | None,
    *,
    filesystem: FileSystem,
    start_offset: int | None,
    end_offset: int | None,
    options: ReadOptions,
    max_bytes: int | None,
) -> Iterator[pa.RecordBatch]:
    """Read a range of a log's offsets, as `Log.read` does.

    The range is checked before the first batch is requested. ``offsets`` are those of the log if it is open in this
    process. With ``max_bytes``, at least one batch is returned.
    """
    is_committed = options.isolation_level == "read_committed"
    limit_offset = last_stable_offset_of(log, offsets) if is_committed else log.log_end_offset
    start_offset = log.log_start_offset if start_offset is None else start_offset
    _require_within(log, start_offset)
    if max_bytes is not None and max_bytes < 0:
        raise OptionError(f"Expected max_bytes of 0 or more, found {max_bytes}.")
    end_offset = limit_offset if end_offset is None else min(end_offset, limit_offset)
    schema = read_schema(options)
    if start_offset >= end_offset or max_bytes == 0:
        return iter(())
    plan = plan_ranges(filesystem, (PartitionRange(log, start_offset, end_offset),), options)
    batches = read_tasks(filesystem, plan.tasks, schema)
    return batches if max_bytes is None else _up_to(batches, max_bytes)


def _up_to(batches: Iterator[pa.RecordBatch], max_bytes: int) -> Iterator[pa.RecordBatch]:
    taken_bytes = 0
    for batch in batches:
        yield batch
        taken_bytes += batch.nbytes
        if taken_bytes >= max_bytes:
            return


def _require_within(log: PartitionLog, offset: int) -> None:
    if not log.log_start_offset <= offset <= log.log_end_offset:
        raise OffsetOutOfRangeError(
            f"Expected an offset from {log.log_start_offset}, the log start, to {log.log_end_offset}, the log end, "
            f"found {offset}. Start the read within this range.",
            path=log.path,
            offset=offset,
        )


@dataclass(frozen=True, slots=True)
class FetchedData:
    """The bytes of batches, from the one that holds the requested offset on.

    Args:
        base_offset: The first batch's base offset. Of a wrapper of format v0 or v1 it is a lower bound.
        data: The bytes. The last batch may be cut off.
        is_first_entry_incomplete: Whether the first batch is larger than the requested size.
        aborted_transactions: The aborted transactions that overlap the whole batches, in the order of their
            markers, if only committed records were requested; otherwise None.
    """

    base_offset: int
    position_bytes: int
    data: bytes
    is_first_entry_incomplete: bool
    aborted_transactions: tuple[AbortedTransaction, ...] | None = None


def fetch(
    log: PartitionLog,
    offsets: LogOffsets | None,
    *,
    start_offset: int,
    max_size_bytes: int,
    isolation_level: str | None,
    min_one_message: bool,
) -> FetchedData:
    """Read bytes of one segment, from the batch that holds an offset or the first one after it, as `Log.fetch` does."""
    is_committed = isolation_level == "read_committed"
    if isolation_level is None:
        limit_offset = log.log_end_offset
    elif is_committed:
        limit_offset = last_stable_offset_of(log, offsets)
    elif isolation_level == "read_uncommitted":
        limit_offset = high_watermark_of(log)
    else:
        raise OptionError(
            f"Expected isolation_level read_uncommitted or read_committed, found {isolation_level!r}."
        )
    if max_size_bytes < 0:
        raise OptionError(f"Expected a size of at least 0 bytes to fetch, found {max_size_bytes}.")
    _require_within(log, start_offset)
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
    """Add the aborted transactions whose records a consumer of the batches must skip."""
    end_offset = start_offset
    if fetched.data:
        size_bytes = len(fetched.data)
        buffer = np.zeros(size_bytes + PADDING_BYTES, np.uint8)
        buffer[:size_bytes] = np.frombuffer(fetched.data, np.uint8)
        window = walk_window(log.path, fetched.position_bytes, buffer, size_bytes, fetched.base_offset)
        # No record of a batch that is cut off can be read.
        end_offset = window.header(-1).next_offset if len(window.starts) else first.next_offset
    return replace(fetched, aborted_transactions=aborted_transactions(log, start_offset, end_offset))


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


def offset_for_timestamp(
    log: PartitionLog, timestamp_ms: int, epochs: Sequence[EpochEntry]
) -> OffsetAndTimestamp | None:
    """Look up a timestamp, or one of the special negative timestamps of Kafka's ``ListOffsetsRequest``.

    -1 is the log end, -2 and -4 the log start, -3 the first record with the largest timestamp, wherever the log starts,
    and -5 the end of the tiered part of the log.

    Returns:
        The offset with its timestamp and epoch, or None if there is no such record.
    """
    if timestamp_ms >= 0:
        return _answer(log.offset_for_timestamp(timestamp_ms), epochs)
    if timestamp_ms == _LATEST:
        return _answer(TimestampOffset(_NONE, log.log_end_offset), epochs)
    if timestamp_ms in (_EARLIEST, _EARLIEST_LOCAL):
        return _answer(TimestampOffset(_NONE, log.log_start_offset), epochs)
    if timestamp_ms == _MAX_TIMESTAMP:
        return _answer(_offset_of_max_timestamp(log), epochs)
    if timestamp_ms == _LATEST_TIERED:
        return OffsetAndTimestamp(_NONE, _NONE, None)
    raise OptionError(f"Expected a timestamp of 0 or more, or a number from -5 to -1, found {timestamp_ms}.")


def _offset_of_max_timestamp(log: PartitionLog) -> TimestampOffset | None:
    largest_ms, largest_index = _NONE, None
    last = len(log.segments) - 1
    # Once the log end is known, bytes after it are ignored.
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
