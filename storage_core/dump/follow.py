"""Follow logs while others write to them: records as they come, of new segments, partitions and topics too.

`PartitionMonitor` tells which logs have changed, and only these are read. Their files tell what else happened since the
last round: what retention deleted is passed over, and what was truncated is read again from there. Leader epochs and
topic ids reveal truncations, as they do to consumers (KIP-320, KIP-516).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from storage_core.directory import PartitionLog
from storage_core.directory.consistent import read_consistently
from storage_core.directory.visibility import CommitMonitor
from storage_core.errors import DataLossError, LogTruncationError, OptionError, SegmentLogError
from storage_core.filesystem import ReadableFileSystem
from storage_core.log.leader_epoch_cache import end_offset_for, epoch_for_offset
from storage_core.options import StreamOptions
from storage_core.options.bounds import LatestBound, OffsetsBound, TimestampBound, TopicPartition
from storage_core.options.read_options import ReadOptions
from storage_core.scan.offset_ranges import PartitionRange, report_data_loss
from storage_core.scan.plan import plan_ranges
from storage_core.scan.read import read_task
from storage_core.scan.resolve import resolve, resolve_start
from storage_core.scan.tail import PartitionMonitor, TailedPartition
from storage_core.scan.typed_columns import PinnedFormats
from storage_core.values.column_format import ColumnFormat

_log = logging.getLogger(__name__)
# What looks like damage while a broker truncates or replaces files is gone in the next rounds.
_ATTEMPTS: Final = 3


@dataclass(slots=True)
class _Position:
    """Position up to which a partition was read, and the leader epoch of the last record, if it is known."""

    first_offset: int
    next_offset: int
    epoch: int | None = None
    failures: int = 0


class LogFollower:
    """Records that the options ask for, which must have no ends, and then those that are appended.

    With ``fail_on_data_loss``, records that were deleted or truncated are an error; otherwise a warning is logged, and reading
    goes on. ``last`` limits the offsets of each partition that are there at the beginning. ``formats`` are of columns that are
    not bytes; they are planned here if None.
    """

    def __init__(
        self,
        filesystem: ReadableFileSystem,
        options: ReadOptions,
        schema: pa.Schema,
        *,
        last: int | None = None,
        formats: PinnedFormats | None = None,
    ) -> None:
        if not isinstance(options.ending, LatestBound):
            raise OptionError("What is followed has no end. Leave out the options that end a read.")
        self._filesystem = filesystem
        self._options = replace(options, starting_timestamp_strategy="latest")
        self._schema = schema
        self._last = last
        self._formats = formats or PinnedFormats(filesystem, self._options)
        # As planned in this round, which is after the ends of logs were seen: what they hold is registered by then.
        self._formats_now: tuple[ColumnFormat, ...] | None = None
        stream = StreamOptions(self._options, is_end_given=True)
        self._monitor = PartitionMonitor(filesystem, stream, options.where)
        self._positions: dict[TopicPartition, _Position] | None = None

    def read_new(self) -> Iterator[pa.RecordBatch]:
        """Read what there is on the first call, and what is new on the others, by topic, partition and offset.

        Raises:
            SegmentLogError: A log cannot be read, in several calls one after the other.
        """
        is_first = self._positions is None
        self._formats_now = None
        if self._positions is None:
            self._positions = self._first_positions()
        else:
            self._monitor.poll()
        positions = self._positions
        for gone in sorted(positions.keys() - self._monitor.partitions.keys()):
            del positions[gone]
            _log.warning("%s-%d is gone: its directory was deleted or moved away.", *gone)
        for key, log in sorted(self._monitor.examined.items()):
            if key not in positions:
                if not is_first:
                    _log.info("Follows %s-%d, which is new.", *key)
                first_offset = log.log_start_offset
                if isinstance(self._options.starting, TimestampBound):
                    first_offset = resolve_start(log, self._options, self._monitor.limit_of(log))
                positions[key] = _Position(first_offset, first_offset)
            yield from self._attempt(positions[key], self._monitor.partitions[key], log)

    def _first_positions(self) -> dict[TopicPartition, _Position]:
        resolution = read_consistently(
            CommitMonitor(self._filesystem),
            lambda watch: resolve(self._filesystem, self._options, self._options.where, watch),
        )
        ends = self._monitor.poll()
        positions = {}
        for each in resolution.partitions:
            key = each.topic, each.partition
            # Records that checkpoints know, and that the files do not have yet, are waited for.
            end_offset = ends[key] if key in self._monitor.examined else each.end_offset
            start_offset = each.start_offset
            if not isinstance(self._options.starting, OffsetsBound):
                start_offset = min(start_offset, end_offset)
            if self._last is not None:
                start_offset = max(start_offset, end_offset - self._last)
            positions[key] = _Position(each.start_offset, start_offset)
        return positions

    def _attempt(
        self, position: _Position, tailed: TailedPartition, log: PartitionLog
    ) -> Iterator[pa.RecordBatch]:
        """Read the part of a log that was not read yet. What fails is tried again in the next rounds."""
        try:
            self._fit_to_log(position, tailed, log)
            yield from self._read_on(position, log, tailed.end_offset)
        except SegmentLogError:
            if self._monitor.refresh_next_time(tailed):
                position.failures += 1
            if position.failures >= _ATTEMPTS:
                raise
        else:
            position.failures = 0

    def _fit_to_log(self, position: _Position, tailed: TailedPartition, log: PartitionLog) -> None:
        """Go back or forward where the log no longer fits what was read."""
        # The offset up to which the log still has what was read.
        offset = min(position.next_offset, max(log.log_end_offset, log.log_start_offset))
        if tailed.truncated_to is not None:
            offset = min(offset, tailed.truncated_to)
        if position.epoch is not None:
            # Read after the log end, because an epoch is noted before its first record is appended.
            end = end_offset_for(log.leader_epochs, position.epoch, log.log_end_offset).end_offset
            # None is known of an epoch above all others.
            offset = min(offset, log.log_end_offset if end < 0 else end)
        if offset < position.next_offset:
            self._go_back_to(position, offset, log)
        tailed.truncated_to = None
        if position.next_offset < log.log_start_offset:
            report_data_loss(
                f"Expected to read {log.topic}-{log.partition} on from offset {position.next_offset}, found that it "
                f"starts at offset {log.log_start_offset}: records were deleted before they were read.",
                fails=self._options.fail_on_data_loss,
                then="Reads on from there",
                path=log.path,
                offset=position.next_offset,
                last_offset=log.log_start_offset - 1,
            )
            position.next_offset = log.log_start_offset

    def _go_back_to(self, position: _Position, offset: int, log: PartitionLog) -> None:
        report_data_loss(
            f"Expected {log.topic}-{log.partition} to keep its records up to offset {position.next_offset - 1}, which "
            f"were read, found that it was truncated to offset {offset}, or created anew.",
            fails=self._options.fail_on_data_loss,
            then="Reads on from there",
            error_type=LogTruncationError,
            path=log.path,
            offset=offset,
            last_offset=position.next_offset - 1,
        )
        position.next_offset = offset
        position.epoch = None

    def _read_on(self, position: _Position, log: PartitionLog, end_offset: int) -> Iterator[pa.RecordBatch]:
        start_offset = position.next_offset
        if start_offset < end_offset:
            is_first = start_offset == position.first_offset
            wanted = PartitionRange(log, start_offset, end_offset, is_first=is_first)
            if self._formats_now is None:
                self._formats_now = self._formats.plan_anew()
            plan = plan_ranges(self._filesystem, (wanted,), self._options, formats=self._formats_now)
            if self._options.isolation_level == "read_committed":
                self._require_untruncated(log)
            for task in plan.tasks:
                for batch in read_task(self._filesystem, task, self._schema):
                    # Before it is handed on: what the caller has must not come again.
                    offset = batch["offset"][-1].as_py()
                    if offset is not None:
                        position.next_offset = offset + 1
                    yield batch
            position.next_offset = end_offset
        position.epoch = epoch_for_offset(log.leader_epochs, position.next_offset - 1)

    def _require_untruncated(self, log: PartitionLog) -> None:
        """Require that a log was not truncated since its end was found: markers of transactions below it may be gone."""
        if self._monitor.was_truncated(log.directory.topic_partition):
            raise DataLossError(
                "Expected the log to stay as it was when its end was found, found it truncated since. Read again.",
                path=log.path,
            )
