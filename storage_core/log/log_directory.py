"""A log directory that is open: its logs, its lock and its clean-shutdown marker (Kafka's ``LogManager``)."""

from __future__ import annotations

import contextlib
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, Self

from storage_core.checkpoint import delete_clean_shutdown_file, read_clean_shutdown_file
from storage_core.checkpoint.partition_files import choose_topic_id
from storage_core.checkpoint.root_files import CleanerCheckpoint
from storage_core.checkpoint.truncations_file import TruncationsFile
from storage_core.commit_files.commits_file import forget_application
from storage_core.commit_replay import finish_commit
from storage_core.directory import LogDirectoryFiles, PartitionDirectory, find_partitions
from storage_core.directory.consistent import read_consistently
from storage_core.directory.log_directory_files import LOCK_FILE, check_topic_partition
from storage_core.directory.visibility import CommitMonitor, read_visible_commits
from storage_core.errors import (
    LogClosedError,
    LogDirectoryError,
    LogFailedError,
    LogReadOnlyError,
    OptionError,
    SegmentLogError,
)
from storage_core.filesystem import FileLock, FileSystem, OwningProcess
from storage_core.log.background import (
    RETENTION_CHECK_INTERVAL_MS,
    Housekeeping,
    PeriodicFlush,
    PeriodicTask,
    PeriodicTasks,
    tasks_of_logs,
)
from storage_core.log.clock import Clock, SystemClock
from storage_core.log.log import Log
from storage_core.log.log_cleaner import CleanerConfig, CleanerStatistics, LogCleaner
from storage_core.log.log_cleaner_manager import find_first_dirty_offset
from storage_core.log.log_deletion import DeletedLogs, delete_log
from storage_core.log.log_root import (
    OpenLogDir,
    RootCheckpoints,
    check_recovery,
    close_logs,
    create_log,
    give_missing_ids,
    has_future_logs,
    load_logs,
    make_root,
    partitions_to_load,
    remove_temporary_files,
)
from storage_core.log.retention import apply_retention_to_all
from storage_core.log_config import LogConfig, altered_config
from storage_core.options.paths import path_to_write

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType
    from typing import Any

    from storage_core.log.log_state import LogState


# Shared by all logs without a configuration.
_DEFAULT_CONFIG: Final = LogConfig()


class LogDirectory(contextlib.AbstractContextManager["LogDirectory"]):
    """A directory of logs. Open it with `open`, and close it: then a stock broker loads it without recovery.

    A directory that is open read-only is listed again for each call.

    Attributes:
        path: The directory.
        read_only: Whether it was opened read-only.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        path: str,
        clock: Clock,
        config: LogConfig | Mapping[str, LogConfig] | None,
        lock: FileLock | None,
    ) -> None:
        self.path = path
        self.read_only = lock is None
        self._root = OpenLogDir(filesystem, path, clock, self._config_of)
        self._config = config
        self._altered: dict[str, LogConfig] = {}
        self._logs: dict[tuple[str, int], Log] = {}
        self._was_searched = False
        self._paths_by_topic: dict[str, list[str]] = {}
        self._checkpoints = RootCheckpoints(filesystem, path, clock)
        self._cleaner_checkpoint = CleanerCheckpoint(filesystem, path, self._logs)
        self._truncations_file = TruncationsFile(filesystem, path)
        self._periodic_flush = PeriodicFlush()
        self._housekeeping = Housekeeping()
        self._deleted_logs = DeletedLogs(filesystem, clock)
        self._owner = OwningProcess()
        self._file_lock = lock
        # Held for changes only. In a forked process it may stay locked for ever.
        self._lock = threading.RLock()
        # Retention runs once at a time, and not during close: it raises log starts, writes them, then removes files.
        self._retention_lock = threading.Lock()
        self._is_closed = False
        # Set before anything is closed, so that long-running background work gives up.
        self._is_closing = threading.Event()
        # The marker covers everything in the directory, so one incomplete log forbids it.
        self._may_mark_clean = True
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
        """Open a log directory, creating it if it does not exist, and load its logs.

        If a job's commit was interrupted, it is completed first.

        Args:
            path: The directory.
            read_only: Write nothing and take no lock: a broker, or another process, may be writing.
            recovery: What a recovery may discard. ``tail``: only what is torn at the end of a log is cut off; an error
                is raised before complete batches would be lost. ``kafka``: everything after the first invalid batch is
                discarded, as by a broker.
            config: The configuration of all logs, or by topic; `create` may override it for a new log.
            broker_directory: Whether to allow writes to the directory of a broker, which must be stopped.
            filesystem: The file system for all reads and writes.
            clock: The clock.

        Raises:
            LogDirectoryLockedError: A broker, another process, or this one has it open for writing.
            LogDirectoryError: It is not a log directory.
            RecoveryWouldDiscardError: Complete batches would be lost; nothing was changed.
            CorruptCheckpointError: The journal of a job, or the list of commits, is damaged; nothing was changed.
            StorageError: The file system reported an error.
        """
        if recovery not in ("tail", "kafka"):
            raise OptionError(f"Expected recovery 'tail' or 'kafka', found {recovery!r}.")
        filesystem, clock = filesystem or FileSystem(), clock or SystemClock()
        root_path = os.path.abspath(path_to_write(os.fspath(path)))
        if read_only:
            logs = cls(filesystem, root_path, clock, config, None)
            logs._present_logs()
            return logs
        make_root(filesystem, root_path)
        # Checked before the lock creates a file in what may be an unrelated directory.
        partitions_to_load(filesystem, root_path, broker_directory=broker_directory)
        lock = filesystem.lock(os.path.join(root_path, LOCK_FILE))
        try:
            logs = cls(filesystem, root_path, clock, config, lock)
            # Complete an interrupted job before anything else is written.
            finish_commit(filesystem, root_path, logs._config_of)
            # Without the list of commits no reader accepts what would be appended.
            read_visible_commits(filesystem, root_path)
            remove_temporary_files(filesystem, root_path)
            directories = partitions_to_load(filesystem, root_path, broker_directory=broker_directory)
            logs._load(directories, is_checked=recovery == "tail")
        except BaseException:
            lock.release()
            raise
        return logs

    def create(
        self, topic: str, partition: int = 0, config: LogConfig | None = None, *, topic_id: str | None = None
    ) -> Log:
        """Create a log.

        Args:
            topic: The topic; Kafka's rules for names apply.
            partition: The partition's number.
            config: The log's configuration.
            topic_id: The topic's id, 22 characters; if None, that of its other partitions, or a random one.

        Raises:
            LogDirectoryError: The log exists, or the topic has another id.
            OptionError: The topic, partition, id or configuration is invalid.
            NotWritableError: The log directory is closed, read-only, or was opened by another process.
            StorageError: The file system reported an error; no log was created.
        """
        check_topic_partition(topic, partition)
        config = config or self._config_of(topic)
        if not isinstance(config, LogConfig):
            raise OptionError(
                f"Expected a LogConfig, found {type(config).__name__}. Make one, for example with LogConfig.from_dict."
            )
        filesystem = self._root.filesystem
        with self._changing():
            key = (topic, partition)
            if key in self._logs:
                raise LogDirectoryError(
                    f"A log of {topic}-{partition} exists already. Get it with get().", path=self.path
                )
            siblings = self._paths_by_topic.get(topic, ())
            topic_id = choose_topic_id(filesystem, topic, siblings, topic_id)
            path = os.path.join(self.path, f"{topic}-{partition}")
            self._deleted_logs.remove_due()
            root = LogDirectoryFiles(filesystem, self.path)
            if key in root.log_start_offsets or key in root.recovery_points:
                # Checkpoints of a log that no longer exists: after a crash they would apply to the new one.
                self._checkpoints.write()
            self._cleaner_checkpoint.forget(key)
            filesystem.make_directory(path)
            try:
                directory = PartitionDirectory(path, topic, partition, root)
                state = create_log(self._root, directory, config, topic_id)
            except BaseException:
                self._remove_incomplete(path)
                raise
            return self._add(state)

    def get(self, topic: str, partition: int = 0) -> Log:
        """Return the log of a partition.

        Raises:
            LogDirectoryError: The log does not exist.
        """
        self._check_open()
        logs = self._present_logs()
        log = logs.get((topic, partition))
        if log is None:
            raise self._missing(topic, partition, "Make it with create().")
        return log

    def get_or_create(self, topic: str, partition: int = 0) -> Log:
        """Return the log of a partition, creating it if it does not exist."""
        if (topic, partition) in self:
            return self.get(topic, partition)
        with self._changing():
            return self.get(topic, partition) if (topic, partition) in self else self.create(topic, partition)

    def delete(self, topic: str, partition: int = 0) -> None:
        """Delete a log with all of its records. When this returns, it is gone, also after a crash.

        As in a broker, its directory is renamed to end with ``-delete``, and the files are deleted
        ``file.delete.delay.ms`` later, or when the log directory is closed. Reads in progress raise
        `LogTruncationError`, and its `Log` raises `LogClosedError`; open transactions are lost. A log of the same name may
        be created at once, and shares nothing with this one.

        Raises:
            LogDirectoryError: The log does not exist.
            NotWritableError: The log directory is closed, read-only, or was opened by another process.
            StorageError: The file system reported an error. The log has failed, or is deleted if it is no longer listed.
        """
        with self._changing():
            key = (topic, partition)
            state = self._checkpoints.states.get(key)
            if state is None:
                raise self._missing(topic, partition, "There is nothing to delete.")
            path = delete_log(state)
            del self._logs[key]
            self._paths_by_topic[topic].remove(state.path)
            self._periodic_flush.remove(state)
            self._deleted_logs.add(path, state.config.file_delete_delay_ms)
            # Only after the rename is on disk: a log that a crash restores must keep its log start.
            del self._checkpoints.states[key]
            self._checkpoints.write()
            self._deleted_logs.remove_due()

    def forget_versions(self, txn_app_id: str) -> bool:
        """Forget which versions an application has committed here, so that jobs can write them again.

        The rows stay. The application may also be a streaming query, by its id.

        Returns:
            True if some were known.

        Raises:
            NotWritableError: The log directory is closed, read-only, or was opened by another process.
            CorruptCheckpointError: The list of commits is damaged.
            StorageError: The file system reported an error; nothing was forgotten.
        """
        with self._changing():
            return forget_application(self._root.filesystem, self.path, txn_app_id)

    def alter_config(self, topic: str, config: LogConfig | Mapping[str, Any]) -> None:
        """Change the configuration of all logs of a topic, see `Log.alter_config`, and of logs created later.

        Logs that are closed, or have failed, do not change.

        Args:
            topic: The topic; it need not have a log yet.
            config: The keys to change in the configuration of each log; or a complete configuration for all.

        Raises:
            OptionError: A key is unknown, or a value is invalid; no log has changed.
            NotWritableError: The log directory is closed, read-only, or was opened by another process.
        """
        check_topic_partition(topic, 0)
        with self._changing():
            logs = [log for key, log in sorted(self._logs.items()) if key[0] == topic]
            altered = altered_config(self._config_of(topic), config)
            for log in logs:
                altered_config(log.config, config)
            self._altered[topic] = altered
            for log in logs:
                with contextlib.suppress(LogClosedError, LogFailedError):
                    log.alter_config(config)

    def logs(self) -> tuple[Log, ...]:
        """Return all logs, by topic and partition."""
        self._check_open()
        return tuple(log for _, log in sorted(self._present_logs().copy().items()))

    def checkpoint(self) -> None:
        """Write the checkpoints, so that recovery after a crash begins where the logs were last flushed."""
        self._check_writable()
        self._checkpoints.write()
        self._deleted_logs.remove_due()

    def apply_retention(self, now_ms: int | None = None) -> dict[tuple[str, int], tuple[int, ...]]:
        """Delete the old segments of all logs, see `Log.apply_retention`. A log that fails does not affect the others.

        Args:
            now_ms: The time; the clock's if None.

        Returns:
            The base offsets of the deleted segments, by topic and partition.

        Raises:
            StorageError: The error of the first log that failed; the other logs are done.
        """
        return self._apply_retention(now_ms)

    def clean(
        self, config: CleanerConfig | None = None, *, now_ms: int | None = None
    ) -> list[CleanerStatistics]:
        """Clean the compacted logs whose dirty ratio or age requires it, the dirtiest first, see `Log.clean`.

        Args:
            config: The cleaner's configuration; Kafka's defaults if None.
            now_ms: The time; the clock's if None.

        Returns:
            The statistics of each pass. A log with unreadable data is reported in the program's log, and skipped from
            then on.

        Raises:
            SegmentLogError: The file system reported an error. The other logs are done.
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
        """Maintain the logs in the background until the log directory is closed.

        This deletes old segments, deletes files of removed segments and logs after ``file.delete.delay.ms``, removes
        expired producers, and writes checkpoints. Errors are logged, and the work is retried.

        Args:
            retention_check_interval_ms: The interval between two checks for segments to delete.
            cleaner: The configuration of a thread that cleans the compacted logs; if None, they are not cleaned.

        Raises:
            OptionError: The interval is not positive, or housekeeping was started before.
        """
        self._check_writable()
        # The cleaner also deletes old segments of compacted logs, so this task leaves them to it.
        tasks = tasks_of_logs(
            self._checkpoints,
            self._deleted_logs,
            lambda: self._apply_retention(with_compacted=cleaner is None),
            retention_check_interval_ms,
        )
        clock = self._root.clock
        threads = [PeriodicTasks("segmentlog-housekeeping", clock, tasks)]
        if cleaner is not None:
            cleaning = PeriodicTask("Cleaning", cleaner.backoff_ms, lambda: self.clean(cleaner))
            threads.append(PeriodicTasks("segmentlog-cleaner", clock, [cleaning]))
        self._housekeeping.start(threads)

    def close(self) -> None:
        """Close all logs, write the checkpoints, and mark the shutdown as clean if it is.

        A second call does nothing.

        Raises:
            LogForkedError: The directory was opened by the process that this one was forked from.
            StorageError: A log could not be closed: the next open of the directory recovers it.
        """
        if self._file_lock is None or (self._is_closed and not self._owner.is_this):
            self._is_closed = True
            return
        self._owner.check(self.path)
        self._is_closing.set()
        # Without the lock, which a background task may be waiting for.
        self._housekeeping.stop()
        with self._retention_lock, self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                self._periodic_flush.stop()
                close_logs(self._root, self._checkpoints, self._marker, is_marked=self._may_mark_clean)
                self._deleted_logs.remove_all()
            finally:
                for state in self._checkpoints.states.values():
                    # Also after an interrupt: nothing may be written without the file lock.
                    state.is_closed = True
                self._file_lock.release()

    def __contains__(self, topic_partition: object) -> bool:
        """Return True if a log of a (topic, partition) exists."""
        return topic_partition in self._present_logs()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, {len(self._logs)} logs)"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A forked process cannot write, so it has nothing to close.
        if self._owner.is_this:
            self.close()

    def _load(self, directories: list[PartitionDirectory], *, is_checked: bool) -> None:
        root, filesystem = self._root, self._root.filesystem
        files = LogDirectoryFiles(filesystem, self.path)
        # Read before the marker is deleted, which happens before the first log is loaded.
        is_clean = files.clean_shutdown
        file_names = check_recovery(root, files, directories) if is_checked else {}
        self._marker = read_clean_shutdown_file(filesystem, self.path) if is_clean else None
        # This flushes the directory in any case: entries made just before a crash may not be on disk yet.
        delete_clean_shutdown_file(filesystem, self.path)
        if not is_clean:
            give_missing_ids(filesystem, files, directories)
            self._may_mark_clean = not has_future_logs(filesystem, self.path)
        # After a check, only torn batches are cut off, and no reader has returned those.
        note_cut = None if is_checked else self._note_cut
        for state in load_logs(root, files, directories, file_names, note_cut=note_cut):
            self._add(state)
        # Interrupted truncations are complete by now, and nothing has been appended yet.
        self._truncations_file.settle()
        for state in self._checkpoints.states.values():
            # Before any append: offsets that a crash lost may be checkpointed as clean, but new records there are dirty.
            find_first_dirty_offset(state)
        self._deleted_logs.remove_left_over(self.path)

    def _note_cut(self, directory: PartitionDirectory, offset: int) -> None:
        self._truncations_file.note_begin(directory.topic, directory.partition, offset)

    def _add(self, state: LogState) -> Log:
        state.checkpoint = self._checkpoints.write
        state.checkpoint_if_due = self._checkpoints.write_if_due
        state.cleaning.checkpoint = self._cleaner_checkpoint
        state.truncations_file = self._truncations_file
        key = state.directory.topic_partition
        self._checkpoints.states[key] = state
        state.config_altered = partial(self._periodic_flush.update, state)
        self._periodic_flush.update(state)
        self._paths_by_topic.setdefault(state.directory.topic, []).append(state.path)
        log = self._logs[key] = Log(state.filesystem, state.directory, state.config, state)
        return log

    def _remove_incomplete(self, path: str) -> None:
        """Remove the directory of a log whose creation failed."""
        filesystem = self._root.filesystem
        # If this fails too, the next open completes the log.
        may_mark_clean, self._may_mark_clean = self._may_mark_clean, False
        with contextlib.suppress(SegmentLogError):
            for entry in filesystem.list_directory(path):
                filesystem.delete(os.path.join(path, entry.name))
            filesystem.delete_directory(path)
            filesystem.flush_directory(self.path)
            self._may_mark_clean = may_mark_clean

    def _present_logs(self) -> dict[tuple[str, int], Log]:
        """Return the logs that exist now.

        Without the lock file, another process may create some at any time.
        """
        if not self.read_only and self._owner.is_this:
            return self._logs
        filesystem = self._root.filesystem
        watch = CommitMonitor(filesystem)
        found = read_consistently(
            watch,
            lambda watch: find_partitions(
                filesystem, [self.path], monitor=watch, is_repeated=self._was_searched or bool(self._logs)
            ),
        )
        self._was_searched = True
        known = self._logs
        present = {
            each.topic_partition: known.get(each.topic_partition)
            or Log(filesystem, each, self._config_of(each.topic), None)
            for each in found
        }
        self._logs = present
        return present

    def _config_of(self, topic: str) -> LogConfig:
        config = self._altered.get(topic) or self._config
        if isinstance(config, LogConfig):
            return config
        return _DEFAULT_CONFIG if config is None else config.get(topic) or _DEFAULT_CONFIG

    def _missing(self, topic: str, partition: int, advice: str) -> LogDirectoryError:
        names = [f"{name}-{number}" for name, number in sorted(self._logs.copy())[:10]]
        known = ", ".join(names) or "no log at all"
        return LogDirectoryError(
            f"Expected a log of {topic}-{partition}, found {known}. {advice}", path=self.path
        )

    def _apply_retention(
        self, now_ms: int | None = None, *, with_compacted: bool = True
    ) -> dict[tuple[str, int], tuple[int, ...]]:
        self._check_writable()
        with self._retention_lock:
            self._check_writable()
            return apply_retention_to_all(
                self._checkpoints,
                self._root.clock.now_ms() if now_ms is None else now_ms,
                with_compacted=with_compacted,
            )

    def _check_open(self) -> None:
        if self._is_closed:
            raise LogClosedError("This log directory is closed. Open it again.", path=self.path)

    def _check_writable(self) -> None:
        self._check_open()
        if self.read_only:
            raise LogReadOnlyError(
                "This log directory was opened read-only. Open it without read_only to write.", path=self.path
            )
        self._owner.check(self.path)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock for a change of the directory."""
        # Checked first: in a forked process, the lock may never be released.
        self._check_writable()
        with self._lock:
            self._check_writable()
            yield
