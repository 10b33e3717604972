"""The logs of a log directory: found, made, and told by topic and partition (the table of Kafka's ``LogManager``)."""

from __future__ import annotations

import contextlib
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Final

from storage_core.checkpoint.truncations_file import TruncationsFile
from storage_core.directory import LogDirectoryFiles, PartitionDirectory, find_partitions
from storage_core.directory.visibility import CommitWatch, look_until_settled
from storage_core.errors import (
    LogClosedError,
    LogDirectoryError,
    LogFailedError,
    LogReadOnlyError,
    OptionError,
    SegmentLogError,
)
from storage_core.filesystem import OwningProcess
from storage_core.log.cleaner_checkpoint import CleanerCheckpoint
from storage_core.log.log import Log
from storage_core.log.log_deletion import DeletedLogs, delete_log
from storage_core.log.periodic_flush import PeriodicFlush
from storage_core.log.root_checkpoints import RootCheckpoints
from storage_core.log.root_loading import create_log
from storage_core.log.topic_ids import check_topic_partition, choose_topic_id
from storage_core.log_config import LogConfig, altered_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from storage_core.filesystem import FileSystem
    from storage_core.log.clock import Clock
    from storage_core.log.log_state import LogState

__all__ = ["LogTable"]

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
        found = look_until_settled(
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
