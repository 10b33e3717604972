"""A log directory that is open: its partitions' logs, its lock and its marker (Kafka's ``LogManager``)."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Literal, Self

from storage_core.checkpoint import delete_clean_shutdown_file, read_clean_shutdown_file
from storage_core.directory import LogDirectoryFiles
from storage_core.directory.log_directory_files import LOCK_FILE
from storage_core.errors import OptionError
from storage_core.filesystem import FileSystem
from storage_core.log.cleanable_state import find_first_dirty_offset
from storage_core.log.cleaner_config import CleanerConfig
from storage_core.log.clock import SystemClock
from storage_core.log.housekeeping import (
    RETENTION_CHECK_INTERVAL_MS,
    Housekeeping,
    PeriodicTask,
    PeriodicTasks,
    tasks_of_logs,
)
from storage_core.log.log_cleaner import LogCleaner
from storage_core.log.log_table import LogTable
from storage_core.log.retention import apply_retention_to_all
from storage_core.log.root_directory import has_future_logs, make_root, partitions_to_load
from storage_core.log.root_loading import check_recovery, close_logs, load_logs
from storage_core.log.topic_ids import give_missing_ids
from storage_core.publishing import finish_commit

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from storage_core.directory import PartitionDirectory
    from storage_core.filesystem import FileLock
    from storage_core.log.cleaner_statistics import CleanerStatistics
    from storage_core.log.clock import Clock
    from storage_core.log_config import LogConfig

__all__ = ["LogDirectory"]


class LogDirectory(LogTable):
    """A directory of logs. Open it with `open`, and close it: then a stock broker takes it without recovery.

    Attributes:
        path: The directory.
        read_only: Whether it was opened without the right to write.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        path: str,
        clock: Clock,
        config: LogConfig | Mapping[str, LogConfig] | None,
        lock: FileLock | None,
    ) -> None:
        super().__init__(filesystem, path, clock, config, read_only=lock is None)
        self._file_lock = lock
        self._housekeeping = Housekeeping()
        # One at a time, and none while the directory is closed: log starts are raised, then noted, then files go.
        self._retention_lock = threading.Lock()
        self._marker: bytes | None = None

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        recovery: Literal["tail", "kafka"] = "tail",
        config: LogConfig | Mapping[str, LogConfig] | None = None,
        broker_directory: bool = False,
        filesystem: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> Self:
        """Open a log directory, which is made if it does not exist, and load its logs.

        A job's commit that was interrupted is completed first.

        Args:
            path: The directory.
            read_only: Nothing is written and no lock is taken: a broker, or another process, may be at work.
            recovery: What a crash may cost. ``tail``: only what is torn at the end of a log is cut off, and an
                error is raised before whole batches would be dropped. ``kafka``: everything behind the first bad
                batch goes, as a broker does it.
            config: Of the logs that are there, and of new ones unless they bring their own; or by topic.
            broker_directory: Whether a directory may be written to that belongs to a broker, which is stopped.
            filesystem: Through which everything is read and written.
            clock: What time it is.

        Raises:
            LogDirectoryLockedError: A broker, another process, or this one has it open for writing.
            LogDirectoryError: It is no log directory.
            RecoveryWouldDiscard: Whole batches would be dropped; nothing was changed.
            StorageError: The file system refused.
        """
        if recovery not in ("tail", "kafka"):
            raise OptionError(f"Expected recovery 'tail' or 'kafka', found {recovery!r}.")
        filesystem, clock = filesystem or FileSystem(), clock or SystemClock()
        root_path = os.path.abspath(os.fspath(path))
        if read_only:
            logs = cls(filesystem, root_path, clock, config, None)
            logs._present_logs()
            return logs
        make_root(filesystem, root_path)
        # Looked at before the lock leaves a file behind in somebody's home.
        partitions_to_load(filesystem, root_path, broker_directory=broker_directory)
        lock = filesystem.lock(os.path.join(root_path, LOCK_FILE))
        try:
            logs = cls(filesystem, root_path, clock, config, lock)
            # What a job was about to make visible, before anybody else writes.
            finish_commit(filesystem, root_path, logs._config_of)
            directories = partitions_to_load(filesystem, root_path, broker_directory=broker_directory)
            logs._load(directories, is_checked=recovery == "tail")
        except BaseException:
            lock.release()
            raise
        return logs

    def apply_retention(self, now_ms: int | None = None) -> dict[tuple[str, int], tuple[int, ...]]:
        """Delete the old segments of all logs that their configurations do not keep, see `Log.apply_retention`.

        A log that fails does not keep the others from it.

        Args:
            now_ms: The time; the clock's if None.

        Returns:
            The base offsets of the segments that were deleted, by topic and partition.

        Raises:
            StorageError: The first log that could not do it has failed; the others are done.
        """
        return self._apply_retention(now_ms)

    def clean(
        self, config: CleanerConfig | None = None, *, now_ms: int | None = None
    ) -> list[CleanerStatistics]:
        """Clean the compacted logs whose dirty ratio or age asks for it, the dirtiest first, see `Log.clean`.

        Args:
            config: How; Kafka's defaults if None.
            now_ms: The time; the clock's if None.

        Returns:
            What was done, pass by pass. A log of which something cannot be read is logged, and left alone from then on.

        Raises:
            SegmentLogError: The file system refused. The other logs are done.
        """
        self._check_writable()
        states = [state for _, state in sorted(self._checkpoints.states.copy().items())]
        return LogCleaner(config or CleanerConfig(), self._is_closing.is_set).clean(states, now_ms)

    def start_housekeeping(
        self,
        *,
        retention_check_interval_ms: int = RETENTION_CHECK_INTERVAL_MS,
        cleaner: CleanerConfig | None = None,
    ) -> None:
        """Look after the logs in the background, until the log directory is closed.

        Old segments are deleted, files of deleted segments and logs removed once ``file.delete.delay.ms`` is over, silent
        producers forgotten and checkpoints written. What fails is logged, and tried again.

        Args:
            retention_check_interval_ms: How long between two looks for segments that are to be deleted.
            cleaner: How to clean the compacted logs, by a thread of its own; they are not cleaned if None.

        Raises:
            OptionError: The interval is not positive, or housekeeping was started before.
        """
        self._check_writable()
        # Who cleans compacted logs also deletes their old segments: not both at once.
        tasks = tasks_of_logs(
            self._checkpoints,
            self._deleted_logs,
            lambda: self._apply_retention(with_compacted=cleaner is None),
            retention_check_interval_ms,
        )
        threads = [PeriodicTasks("segmentlog-housekeeping", self._clock, tasks)]
        if cleaner is not None:
            cleaning = PeriodicTask("Cleaning", cleaner.backoff_ms, lambda: self.clean(cleaner))
            threads.append(PeriodicTasks("segmentlog-cleaner", self._clock, [cleaning]))
        self._housekeeping.start(threads)

    def close(self) -> None:
        """Close all logs, write the checkpoints, and say that all is well if it is; a second call does nothing.

        Raises:
            LogForkedError: Another process opened it, from which this one was forked.
            StorageError: A log could not be closed: the next one to open the directory recovers it.
        """
        if self._file_lock is None or (self._is_closed and not self._owner.is_this):
            self._is_closed = True
            return
        self._owner.check(self.path)
        self._is_closing.set()
        # Without the lock, which a task may be waiting for.
        self._housekeeping.stop()
        with self._retention_lock, self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                self._periodic_flush.stop()
                close_logs(
                    self._filesystem, self.path, self._checkpoints, self._marker, is_marked=self._is_whole
                )
                self._deleted_logs.remove_all()
            finally:
                for state in self._checkpoints.states.values():
                    # Also one that an interrupt kept from being closed: nothing is written without the lock.
                    state.is_closed = True
                self._file_lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A forked process has nothing to close: it could not write anything.
        if self._owner.is_this:
            self.close()

    def _apply_retention(
        self, now_ms: int | None = None, *, with_compacted: bool = True
    ) -> dict[tuple[str, int], tuple[int, ...]]:
        self._check_writable()
        with self._retention_lock:
            self._check_writable()
            return apply_retention_to_all(
                self._checkpoints,
                self._clock.now_ms() if now_ms is None else now_ms,
                with_compacted=with_compacted,
            )

    def _note_cut(self, directory: PartitionDirectory, offset: int) -> None:
        self._truncations_file.note_begin(directory.topic, directory.partition, offset)

    def _load(self, directories: list[PartitionDirectory], *, is_checked: bool) -> None:
        root = LogDirectoryFiles(self._filesystem, self.path)
        # Read while it is there: it is gone before the first log is loaded.
        is_clean = root.clean_shutdown
        file_names = (
            check_recovery(self._filesystem, root, directories, self._config_of) if is_checked else {}
        )
        self._marker = read_clean_shutdown_file(self._filesystem, self.path) if is_clean else None
        # Forces the directory to disk in any case: what was made just before a crash may not be there yet.
        delete_clean_shutdown_file(self._filesystem, self.path)
        if not is_clean:
            give_missing_ids(self._filesystem, root, directories)
            self._is_whole = not has_future_logs(self._filesystem, self.path)
        for state in load_logs(
            self._filesystem,
            root,
            directories,
            self._clock,
            self._config_of,
            file_names,
            # After a check, nothing goes but what is torn, which was never read.
            note_cut=None if is_checked else self._note_cut,
        ):
            self._add(state)
        # Whatever of a truncation was interrupted is as it is going to be, and nothing has been appended yet.
        self._truncations_file.settle()
        for state in self._checkpoints.states.values():
            # Before anything is appended: what a crash has cost was cleaned, what is going to stand there was not.
            find_first_dirty_offset(state)
        self._deleted_logs.remove_left_over(self.path)
