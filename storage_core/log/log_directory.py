"""The logs of a log directory: found, made, and told by topic and partition (the table of Kafka's ``LogManager``).

A log directory that is open: its partitions' logs, its lock and its marker (Kafka's ``LogManager``).
"""

from __future__ import annotations

import contextlib
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, Self

from storage_core.checkpoint import delete_clean_shutdown_file, read_clean_shutdown_file
from storage_core.checkpoint.truncations_file import TruncationsFile
from storage_core.commit_replay import finish_commit
from storage_core.directory import LogDirectoryFiles, PartitionDirectory, find_partitions
from storage_core.directory.log_directory_files import LOCK_FILE
from storage_core.directory.visibility import CommitWatch, read_consistently
from storage_core.errors import (
    LogClosedError,
    LogDirectoryError,
    LogFailedError,
    LogReadOnlyError,
    OptionError,
    SegmentLogError,
)
from storage_core.filesystem import FileSystem, OwningProcess
from storage_core.log.background import (
    RETENTION_CHECK_INTERVAL_MS,
    Housekeeping,
    PeriodicFlush,
    PeriodicTask,
    PeriodicTasks,
    SystemClock,
    tasks_of_logs,
)
from storage_core.log.cleaner_config import CleanerConfig
from storage_core.log.log import Log
from storage_core.log.log_cleaner import LogCleaner
from storage_core.log.log_cleaner_manager import find_first_dirty_offset
from storage_core.log.log_deletion import DeletedLogs, delete_log
from storage_core.log.log_root import (
    check_recovery,
    check_topic_partition,
    choose_topic_id,
    close_logs,
    create_log,
    give_missing_ids,
    has_future_logs,
    load_logs,
    make_root,
    partitions_to_load,
)
from storage_core.log.retention import apply_retention_to_all
from storage_core.log.root_checkpoints import CleanerCheckpoint, RootCheckpoints
from storage_core.log_config import LogConfig, altered_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType
    from typing import Any

    from storage_core.filesystem import FileLock
    from storage_core.log.background import Clock
    from storage_core.log.cleaner_config import CleanerStatistics
    from storage_core.log.log_state import LogState

__all__ = ["LogDirectory", "LogTable"]


# One for all logs.
_DEFAULT_CONFIG: Final = LogConfig()


class LogTable:
    """The logs of a directory that is open, and what they share. A directory that is only read is listed again and again.

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
        *,
        read_only: bool,
    ) -> None:
        self.path = path
        self.read_only = read_only
        self._filesystem = filesystem
        self._clock = clock
        self._config = config
        self._altered: dict[str, LogConfig] = {}
        self._logs: dict[tuple[str, int], Log] = {}
        self._paths_by_topic: dict[str, list[str]] = {}
        self._checkpoints = RootCheckpoints(filesystem, path, clock)
        self._cleaner_checkpoint = CleanerCheckpoint(filesystem, path, self._logs)
        self._truncations_file = TruncationsFile(filesystem, path)
        self._periodic_flush = PeriodicFlush()
        self._deleted_logs = DeletedLogs(filesystem, clock)
        self._owner = OwningProcess()
        # For changes: who looks takes what there is. A forked process may never get it.
        self._lock = threading.RLock()
        self._is_closed = False
        # Set before anything is closed: what takes long in the background gives up.
        self._is_closing = threading.Event()
        # Whether the marker may be written: it speaks of everything in the directory.
        self._is_whole = True

    def create(
        self, topic: str, partition: int = 0, config: LogConfig | None = None, *, topic_id: str | None = None
    ) -> Log:
        """Make a new log.

        Args:
            topic: Its topic, by Kafka's rules for names.
            partition: Its partition's number.
            config: Its configuration.
            topic_id: The id of the topic, 22 characters; that of its other partitions, or a random one, if None.

        Raises:
            LogDirectoryError: There is one already, or the topic has another id.
            OptionError: A name, a number or an id that Kafka does not know, or no configuration.
            NotWritableError: The log directory is closed, read-only, or was opened by another process.
            StorageError: The file system refused; nothing is left of it.
        """
        check_topic_partition(topic, partition)
        config = config or self._config_of(topic)
        if not isinstance(config, LogConfig):
            raise OptionError(
                f"Expected a LogConfig, found {type(config).__name__}. Make one, as by LogConfig.from_dict."
            )
        with self._changing():
            key = (topic, partition)
            if key in self._logs:
                raise LogDirectoryError(
                    f"Expected no log of {topic}-{partition}, found one. Take it with get().", path=self.path
                )
            siblings = self._paths_by_topic.get(topic, ())
            topic_id = choose_topic_id(self._filesystem, topic, siblings, topic_id)
            path = os.path.join(self.path, f"{topic}-{partition}")
            self._deleted_logs.remove_due()
            root = LogDirectoryFiles(self._filesystem, self.path)
            if key in root.log_start_offsets or key in root.recovery_points:
                # Of a log whose directory is gone: after a crash they would count for the new one.
                self._checkpoints.write()
            self._cleaner_checkpoint.forget(key)
            self._filesystem.make_directory(path)
            try:
                state = create_log(
                    self._filesystem,
                    PartitionDirectory(path, topic, partition, root),
                    self._clock,
                    config,
                    topic_id,
                )
            except BaseException:
                self._remove_unmade(path)
                raise
            return self._add(state)

    def get(self, topic: str, partition: int = 0) -> Log:
        """The log of a partition.

        Raises:
            LogDirectoryError: There is none.
        """
        self._check_open()
        logs = self._present_logs()
        log = logs.get((topic, partition))
        if log is None:
            raise self._missing(topic, partition, "Make it with create().")
        return log

    def get_or_create(self, topic: str, partition: int = 0) -> Log:
        """The log of a partition, which is made if there is none."""
        if (topic, partition) in self:
            return self.get(topic, partition)
        with self._changing():
            return self.get(topic, partition) if (topic, partition) in self else self.create(topic, partition)

    def delete(self, topic: str, partition: int = 0) -> None:
        """Delete a log with all of its records. It is gone, also after a crash, when this returns.

        Its directory gets a name that ends with ``-delete``, as a broker does it; the files are removed
        ``file.delete.delay.ms`` later, or when the log directory is closed. A read that is under way gets a
        `LogTruncationError`, the `Log` raises `LogClosedError`, and transactions that are open are gone with it. A log of
        the same name may be made at once, and has nothing of this one.

        Raises:
            LogDirectoryError: There is no such log.
            NotWritableError: The log directory is closed, read-only, or was opened by another process.
            StorageError: The file system refused. The log has failed, or, if it is not among the logs any more, is gone.
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
            # Not before its name was off the disk: a log that a crash brings back begins where it began.
            del self._checkpoints.states[key]
            self._checkpoints.write()
            self._deleted_logs.remove_due()

    def alter_config(self, topic: str, config: LogConfig | Mapping[str, Any]) -> None:
        """Go on with another configuration for all logs of a topic, see `Log.alter_config`, and for those made later.

        Logs that are closed, or have failed, stay as they are.

        Args:
            topic: The topic; it need not have a log yet.
            config: The keys that change, in the configuration of each log; or all of it, for all.

        Raises:
            OptionError: There is no such key, or a value is wrong; no log has changed.
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
        """All logs, by topic and partition."""
        self._check_open()
        return tuple(log for _, log in sorted(self._present_logs().copy().items()))

    def checkpoint(self) -> None:
        """Write the checkpoints, so that a recovery after a crash begins where the logs are flushed up to."""
        self._check_writable()
        self._checkpoints.write()
        self._deleted_logs.remove_due()

    def __contains__(self, topic_partition: object) -> bool:
        """Whether there is a log of a (topic, partition)."""
        return topic_partition in self._present_logs()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, {len(self._logs)} logs)"

    def _missing(self, topic: str, partition: int, advice: str) -> LogDirectoryError:
        names = [f"{name}-{number}" for name, number in sorted(self._logs.copy())[:10]]
        known = ", ".join(names) or "no log at all"
        return LogDirectoryError(
            f"Expected a log of {topic}-{partition}, found {known}. {advice}", path=self.path
        )

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
        log = self._logs[key] = Log(self._filesystem, state.directory, state.config, state)
        return log

    def _remove_unmade(self, path: str) -> None:
        """Remove the directory of a log that could not be made."""
        # If that fails, too, the next open completes what there is of it.
        is_whole, self._is_whole = self._is_whole, False
        with contextlib.suppress(SegmentLogError):
            for entry in self._filesystem.list_directory(path):
                self._filesystem.delete(os.path.join(path, entry.name))
            self._filesystem.delete_directory(path)
            self._filesystem.flush_directory(self.path)
            self._is_whole = is_whole

    def _present_logs(self) -> dict[tuple[str, int], Log]:
        """The logs that there are. Where another process writes, it may make new ones at any time."""
        if not self.read_only and self._owner.is_this:
            return self._logs
        watch = CommitWatch(self._filesystem)
        found = read_consistently(
            watch, lambda watch: find_partitions(self._filesystem, [self.path], watch=watch)
        )
        known = self._logs
        present = {
            each.topic_partition: known.get(each.topic_partition)
            or Log(self._filesystem, each, self._config_of(each.topic), None)
            for each in found
        }
        self._logs = present
        return present

    def _config_of(self, topic: str) -> LogConfig:
        config = self._altered.get(topic) or self._config
        if isinstance(config, LogConfig):
            return config
        return _DEFAULT_CONFIG if config is None else config.get(topic) or _DEFAULT_CONFIG

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
        """Hold the lock for a change of the table."""
        # First: a forked process might wait for the lock for ever.
        self._check_writable()
        with self._lock:
            self._check_writable()
            yield


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
