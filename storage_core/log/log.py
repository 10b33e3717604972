"""One partition's log (Kafka's ``UnifiedLog``): append, read, roll, truncate, delete records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa

from storage_core.errors import InvalidRecordError, LogReadOnlyError, OffsetOverflowError, OptionError
from storage_core.log.append_validation import validate_follower_append
from storage_core.log.log_append import AppendInfo, append_chunks, append_replicated, write_pending
from storage_core.log.log_close import close_log
from storage_core.log.log_flush import flush_up_to
from storage_core.log.log_reader import LogReader
from storage_core.log.log_records import batches_of_records, encoding_of
from storage_core.log.log_roll import roll
from storage_core.log.log_truncate import (
    delete_due_files,
    delete_records,
    truncate_fully_and_start_at,
    truncate_to,
)
from storage_core.record.batch_header import MAX_OFFSET
from storage_core.record.record_batches import RecordBatches

if TYPE_CHECKING:
    from storage_core.directory import PartitionDirectory
    from storage_core.filesystem import BytesLike, FileSystem
    from storage_core.log.log_state import LogState
    from storage_core.log_config import LogConfig

__all__ = ["Log"]

_ACKS: Final = (0, 1, -1, "all")


class Log(LogReader):
    """One partition's log, as a `LogDirectory` gives it. One thread at a time writes, any number read meanwhile.

    A log that has failed still reads what was acknowledged.
    """

    def __init__(
        self, filesystem: FileSystem, directory: PartitionDirectory, config: LogConfig, state: LogState | None
    ) -> None:
        super().__init__(filesystem, directory, state)
        self._config = config
        self._encoding = encoding_of(config)

    @property
    def config(self) -> LogConfig:
        """The configuration that it was opened with."""
        return self._config

    def append(
        self,
        records: pa.Table | pa.RecordBatch,
        *,
        acks: Literal[0, 1, -1, "all"] = 1,
        flush: bool = False,
        leader_epoch: int | None = None,
    ) -> AppendInfo:
        """Append records at the log end.

        Args:
            records: Columns ``value`` and, if wanted, ``key``, ``timestamp`` and ``headers``.
            acks: What has happened when this returns. 0: the records are in memory; 1: the operating system has
                them; -1 or "all": they are on disk.
            flush: The same as ``acks="all"``.
            leader_epoch: Under which they are written; the latest one of the log, or 0, if None.

        Raises:
            AppendError: The records are refused, and nothing of them is written.
            NotWritableError: The log is closed, read-only, or has failed before.
            StorageError: They could not be written, or not forced to disk: the log has failed.
        """
        if acks not in _ACKS:
            raise OptionError(f"Expected acks of 0, 1, -1 or 'all', found {acks!r}.")
        if not isinstance(records, (pa.Table, pa.RecordBatch)):
            raise InvalidRecordError(
                f"Expected a pyarrow.Table or pyarrow.RecordBatch to append, found {type(records).__name__}."
            )
        state, config = self._writable(), self._config
        is_flushed = flush or acks in (-1, "all")
        now_ms = state.clock.now_ms()
        chunks = batches_of_records(records, config, self._encoding, now_ms, self.path)
        with state.writing():
            self._require_room(state, records.num_rows)
            info = append_chunks(
                state,
                chunks,
                self._epoch(state, leader_epoch),
                now_ms,
                is_pending=acks == 0 and not is_flushed,
                log_append_time_ms=now_ms if config.message_timestamp_type == "LogAppendTime" else None,
            )
            if is_flushed:
                flush_up_to(state, state.offsets.log_end_offset, with_indexes=False)
        return info

    def append_batches(self, batches: BytesLike | RecordBatches, *, flush: bool = False) -> AppendInfo:
        """Append batches as a replica does: they keep their offsets and leader epochs.

        From then on the high watermark follows `update_high_watermark` alone.

        Args:
            batches: Batches of any format; of bytes, an incomplete last batch is left out.
            flush: Whether they are on disk when this returns.

        Raises:
            CorruptRecordError: A batch is damaged; nothing is written.
            AppendError: The batches are refused, and nothing of them is written.
            NotWritableError: The log is closed, read-only, or has failed before.
            StorageError: They could not be written, or not forced to disk: the log has failed.
        """
        state = self._writable()
        if not isinstance(batches, RecordBatches):
            batches = RecordBatches.parse(batches, lowest_offset=state.next_offset)
        with state.writing():
            write_pending(state)
            validate_follower_append(batches, self._config, state.offsets.log_end_offset, path=self.path)
            info = append_replicated(state, batches, state.clock.now_ms())
            if flush:
                flush_up_to(state, state.offsets.log_end_offset, with_indexes=False)
        return info

    def roll(self) -> None:
        """Close the active segment, which is on disk then, and begin another at the log end."""
        state = self._writable()
        with state.writing():
            write_pending(state)
            roll(state)
            delete_due_files(state)

    def flush(self) -> None:
        """Force everything to disk that was appended.

        Raises:
            StorageError: That failed. It is never tried again: the log has failed.
        """
        state = self._writable()
        with state.writing():
            write_pending(state)
            flush_up_to(state, state.offsets.log_end_offset)
            delete_due_files(state)

    def truncate_to(self, offset: int) -> bool:
        """Remove all records from an offset on: the log ends there exactly.

        The batch that holds the offset goes as a whole, with its records below the offset.

        Returns:
            Whether there was anything to remove.
        """
        state = self._writable()
        with state.writing():
            write_pending(state)
            return truncate_to(state, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything: the log begins and ends at an offset."""
        state = self._writable()
        with state.writing():
            write_pending(state)
            truncate_fully_and_start_at(state, offset)

    def delete_records(self, before_offset: int) -> int:
        """Delete the records below an offset; -1 stands for the high watermark.

        Returns:
            The log start offset, which is lower than asked for never, and higher if it was before.

        Raises:
            OffsetOutOfRangeError: The offset is above the high watermark.
        """
        state = self._writable()
        with state.writing():
            write_pending(state)
            return delete_records(state, before_offset)

    def update_high_watermark(self, high_watermark: int) -> int:
        """Say how far every replica is; from then on appends do not move it.

        Returns:
            The high watermark, within the bounds of the log.
        """
        state = self._writable()
        with state.writing():
            write_pending(state)
            state.is_only_replica = False
            state.publish(state.offsets.with_high_watermark(high_watermark))
            return state.offsets.high_watermark

    def close(self) -> None:
        """Close this log alone, with everything on disk. Its log directory stays open; a second call does nothing.

        Raises:
            StorageError: That failed: the log is recovered when its log directory is opened the next time.
        """
        if self._state is not None:
            close_log(self._state)

    def _require_room(self, state: LogState, count: int) -> None:
        if state.next_offset > MAX_OFFSET - count:
            raise OffsetOverflowError(
                f"Expected offsets below {MAX_OFFSET}, the largest that a log may end with, found {count} records to be "
                f"appended from {state.next_offset} on. Go on in another partition.",
                path=self.path,
                offset=state.next_offset,
            )

    def _epoch(self, state: LogState, leader_epoch: int | None) -> int:
        latest = state.leader_epochs.latest_epoch or 0
        if state.pending.batches:
            # Their epoch becomes known to the log with the first of them that is written.
            latest = max(latest, int(state.pending.batches[-1].headers["leader_epoch"][-1]))
        if leader_epoch is None:
            return latest
        if leader_epoch < latest:
            raise InvalidRecordError(
                f"Expected a leader epoch of at least {latest}, which the log has seen, found {leader_epoch}.",
                path=self.path,
            )
        return leader_epoch

    def _writable(self) -> LogState:
        if self._state is None:
            raise LogReadOnlyError(
                "This log directory was opened read-only. Open it without read_only to write.", path=self.path
            )
        return self._state

    def __repr__(self) -> str:
        return f"Log({self.path!r})"
