"""One partition's log (Kafka's ``UnifiedLog``): append, read, roll, truncate, delete records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from storage_core.log.cleaner_config import CleanerConfig
from storage_core.log.log_append import write_pending
from storage_core.log.log_appender import LogAppender
from storage_core.log.log_cleaner import LogCleaner
from storage_core.log.log_close import close_log
from storage_core.log.log_flush import flush_up_to
from storage_core.log.log_records import readable_batch_bytes
from storage_core.log.log_roll import roll
from storage_core.log.log_truncate import (
    delete_records,
    truncate_fully_and_start_at,
    truncate_to,
)
from storage_core.log.retention import apply_retention
from storage_core.log.segment_deletion import delete_due_files
from storage_core.log_config import altered_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from storage_core.log.cleaner_statistics import CleanerStatistics
    from storage_core.log_config import LogConfig

__all__ = ["Log"]


class Log(LogAppender):
    """One partition's log, as a `LogDirectory` gives it. One thread at a time writes, any number read meanwhile.

    A log that has failed still reads what was acknowledged.
    """

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

    def apply_retention(self, now_ms: int | None = None) -> tuple[int, ...]:
        """Delete the old segments that the configuration does not keep, as ``cleanup.policy`` says.

        Below the log start offset: always. With the word delete: while ``retention.bytes`` are left without them, and
        while their youngest record is older than ``retention.ms``. What not every replica has is kept.

        Args:
            now_ms: The time; the clock's if None.

        Returns:
            The base offsets of the segments that were deleted. The log starts behind them, also after a crash.
        """
        state = self._writable()
        with state.writing():
            write_pending(state)
            return apply_retention(state, state.clock.now_ms() if now_ms is None else now_ms)

    def clean(
        self, config: CleanerConfig | None = None, *, now_ms: int | None = None
    ) -> CleanerStatistics | None:
        """Drop the records of closed segments that a later record with the same key supersedes (compaction).

        One pass: as many keys as fit the memory for them. Whatever the dirty ratio is, what ``min.compaction.lag.ms``
        protects stays, and so does what belongs to an undecided transaction. Appends and reads go on meanwhile.
        Then retention is applied, as ``cleanup.policy`` says.

        Args:
            config: How; Kafka's defaults if None.
            now_ms: The time; the clock's if None.

        Returns:
            None if there was nothing to clean, or the log was truncated or closed meanwhile.

        Raises:
            OptionError: ``cleanup.policy`` does not have the word compact.
            CorruptError: A segment holds bytes that are no batches; the log is as it was, or cleaned in front of them.
            StorageError: The file system refused.
        """
        state = self._writable()
        return LogCleaner(config or CleanerConfig()).clean_alone(state, now_ms)

    def alter_config(self, config: LogConfig | Mapping[str, Any]) -> LogConfig:
        """Go on with another configuration, at once: whatever begins later, in any thread, has all of it.

        What is open keeps what it was begun with, as in a broker: ``index.interval.bytes``, ``segment.index.bytes``,
        ``segment.jitter.ms`` and ``preallocate`` count from the next segment on, ``file.delete.delay.ms`` for what is
        deleted from now on. A cleaning that is under way gives up if the log is not to be compacted any more.

        Like a topic's configuration in Kafka, it is kept in no file of the log directory: give it again when you open that.

        Args:
            config: The keys that change, by Kafka's names, as ``{"retention.ms": 3_600_000}``; or all of it.

        Returns:
            The configuration that it has now.

        Raises:
            OptionError: There is no such key, or a value is wrong; nothing has changed.
            NotWritableError: The log is closed, read-only, or has failed before.
        """
        state = self._writable()
        with state.writing():
            before, altered = state.config, altered_config(state.config, config)
            write_pending(state)
            # First: nothing is written that is too large to be read.
            self._max_batch_bytes = max(self._max_batch_bytes, readable_batch_bytes(altered))
            state.alter_config(altered)
        if before.is_compacted and not altered.is_compacted:
            # Without the lock, which it takes at its end.
            state.cleaning.interrupt()
        return altered

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
            LogForkedError: Another process opened it, from which this one was forked.
            StorageError: That failed: the log is recovered when its log directory is opened the next time.
        """
        if self._state is not None:
            close_log(self._state)

    def __repr__(self) -> str:
        return f"Log({self.path!r})"
