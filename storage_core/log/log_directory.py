"""A log directory that is open: its partitions' logs, its lock and its marker (Kafka's ``LogManager``)."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Literal, Self

from storage_core.checkpoint import (
    PARTITION_METADATA,
    delete_clean_shutdown_file,
    read_clean_shutdown_file,
    write_partition_metadata,
)
from storage_core.directory import (
    LogDirectoryFiles,
    PartitionDirectory,
    find_partitions,
)
from storage_core.directory.visibility import CommitWatch, look_until_settled
from storage_core.errors import LogClosedError, LogDirectoryError, LogReadOnlyError, OptionError
from storage_core.filesystem import FileSystem
from storage_core.log.clock import SystemClock
from storage_core.log.log import Log
from storage_core.log.periodic_flush import PeriodicFlush
from storage_core.log.root_checkpoints import RootCheckpoints
from storage_core.log.root_directory import LOCK_FILE, has_future_logs, make_root, partitions_to_load
from storage_core.log.root_loading import check_recovery, close_logs, load_logs
from storage_core.log.topic_ids import check_topic_partition, choose_topic_id
from storage_core.log_config import LogConfig
from storage_core.publishing import finish_commit

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from storage_core.filesystem import FileLock
    from storage_core.log.clock import Clock
    from storage_core.log.log_state import LogState

__all__ = ["LogDirectory"]


class LogDirectory:
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
        self.path = path
        self.read_only = lock is None
        self._filesystem = filesystem
        self._clock = clock
        self._config = config
        self._file_lock = lock
        self._logs: dict[tuple[str, int], Log] = {}
        self._checkpoints = RootCheckpoints(filesystem, path, clock)
        self._periodic_flush = PeriodicFlush()
        self._lock = threading.RLock()
        self._is_closed = False
        self._marker: bytes | None = None
        # Whether the marker may be written: it speaks of everything in the directory.
        self._is_whole = True

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
            logs._find_logs()
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
            OptionError: A name or number that Kafka does not know.
        """
        check_topic_partition(topic, partition)
        with self._lock:
            self._check_writable()
            key = (topic, partition)
            if key in self._logs:
                raise LogDirectoryError(
                    f"Expected no log of {topic}-{partition}, found one. Take it with get().", path=self.path
                )
            siblings = [log.path for (name, _), log in self._logs.items() if name == topic]
            topic_id = choose_topic_id(self._filesystem, topic, siblings, topic_id)
            path = os.path.join(self.path, f"{topic}-{partition}")
            root = LogDirectoryFiles(self._filesystem, self.path)
            if key in root.log_start_offsets or key in root.recovery_points:
                # Of a log whose directory was removed: after a crash they would count for the new one.
                self._checkpoints.write()
            self._filesystem.make_directory(path)
            try:
                state = self._create(PartitionDirectory(path, topic, partition, root), config, topic_id)
            except BaseException:
                # Whoever opens the directory next completes what there is of it.
                self._is_whole = False
                raise
            return self._add(state)

    def get(self, topic: str, partition: int = 0) -> Log:
        """The log of a partition.

        Raises:
            LogDirectoryError: There is none.
        """
        with self._lock:
            self._check_open()
            if self.read_only:
                self._find_logs()
            log = self._logs.get((topic, partition))
        if log is None:
            known = (
                ", ".join(f"{name}-{number}" for name, number in sorted(self._logs)[:10]) or "no log at all"
            )
            raise LogDirectoryError(
                f"Expected a log of {topic}-{partition}, found {known}. Make it with create().",
                path=self.path,
            )
        return log

    def get_or_create(self, topic: str, partition: int = 0) -> Log:
        """The log of a partition, which is made if there is none."""
        with self._lock:
            return self.get(topic, partition) if (topic, partition) in self else self.create(topic, partition)

    def logs(self) -> tuple[Log, ...]:
        """All logs, by topic and partition."""
        with self._lock:
            self._check_open()
            if self.read_only:
                self._find_logs()
            return tuple(log for _, log in sorted(self._logs.items()))

    def checkpoint(self) -> None:
        """Write the checkpoints, so that a recovery after a crash begins where the logs are flushed up to."""
        self._check_writable()
        self._checkpoints.write()

    def close(self) -> None:
        """Close all logs, write the checkpoints, and say that all is well if it is; a second call does nothing.

        Raises:
            StorageError: A log could not be closed: the next one to open the directory recovers it.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if self._file_lock is not None:
                try:
                    self._periodic_flush.stop()
                    close_logs(
                        self._filesystem,
                        self.path,
                        self._checkpoints,
                        self._marker,
                        is_marked=self._is_whole,
                    )
                finally:
                    for state in self._checkpoints.states.values():
                        # Also one that an interrupt kept from being closed: nobody writes without the lock.
                        state.is_closed = True
                    self._file_lock.release()

    def __contains__(self, topic_partition: object) -> bool:
        """Whether there is a log of a (topic, partition)."""
        with self._lock:
            if self.read_only:
                self._find_logs()
            return topic_partition in self._logs

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LogDirectory({self.path!r}, {len(self._logs)} logs)"

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
            self._complete(directories, root)
            self._is_whole = not has_future_logs(self._filesystem, self.path)
        for state in load_logs(self._filesystem, root, directories, self._clock, self._config_of, file_names):
            self._add(state)

    def _complete(self, directories: list[PartitionDirectory], root: LogDirectoryFiles) -> None:
        """Give an id to those that a crash kept from getting one. What a broker made is left as it is."""
        paths = {directory: os.path.join(directory.path, PARTITION_METADATA) for directory in directories}
        for directory, path in paths.items():
            if root.meta_properties is None and self._filesystem.status(path) is None:
                siblings = [each.path for each in directories if each.topic == directory.topic]
                topic_id = choose_topic_id(self._filesystem, directory.topic, siblings, None)
                write_partition_metadata(self._filesystem, path, topic_id)

    def _create(self, directory: PartitionDirectory, config: LogConfig | None, topic_id: str) -> LogState:
        path, root = directory.path, directory.root
        write_partition_metadata(self._filesystem, os.path.join(path, PARTITION_METADATA), topic_id)
        # There is nothing to recover, and no checkpoint that knows of it.
        root.clean_shutdown = True
        root.recovery_points, root.log_start_offsets, root.high_watermarks = {}, {}, {}
        (state,) = load_logs(
            self._filesystem,
            root,
            [directory],
            self._clock,
            lambda _: config or self._config_of(directory.topic),
            {},
        )
        self._filesystem.flush_directory(path)
        self._filesystem.flush_directory(self.path)
        return state

    def _add(self, state: LogState) -> Log:
        state.checkpoint = self._checkpoints.write
        state.checkpoint_if_due = self._checkpoints.write_if_due
        key = state.directory.topic_partition
        self._checkpoints.states[key] = state
        self._periodic_flush.add(state)
        log = self._logs[key] = Log(self._filesystem, state.directory, state.config, state)
        return log

    def _find_logs(self) -> None:
        """List the logs of a directory that is only read, in which another process may make new ones."""
        watch = CommitWatch(self._filesystem)
        found = look_until_settled(
            watch, lambda watch: find_partitions(self._filesystem, [self.path], watch=watch)
        )
        for directory in found:
            key = directory.topic_partition
            if key not in self._logs:
                self._logs[key] = Log(self._filesystem, directory, self._config_of(directory.topic), None)

    def _config_of(self, topic: str) -> LogConfig:
        config = self._config
        if isinstance(config, LogConfig):
            return config
        return LogConfig() if config is None else config.get(topic) or LogConfig()

    def _check_open(self) -> None:
        if self._is_closed:
            raise LogClosedError("This log directory is closed. Open it again.", path=self.path)

    def _check_writable(self) -> None:
        self._check_open()
        if self.read_only:
            raise LogReadOnlyError(
                "This log directory was opened read-only. Open it without read_only to write.", path=self.path
            )
