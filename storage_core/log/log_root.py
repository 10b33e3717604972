"""The root of a log directory (Kafka's ``LogManager``): its checkpoints, and loading and closing its logs."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from storage_core.checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    write_clean_shutdown_file,
    write_offset_checkpoint,
    write_partition_metadata,
)
from storage_core.checkpoint.partition_files import choose_topic_id
from storage_core.commit_files.commits_file import OWN_PREFIX
from storage_core.commit_replay.replay import ROOT_CHECKPOINTS
from storage_core.commit_replay.staged_batches import in_parallel
from storage_core.directory import (
    CLUSTER_METADATA_TOPIC,
    LogDirectoryFiles,
    PartitionDirectory,
    parse_partition_directory_name,
)
from storage_core.directory.log_directory_files import OTHER_DIRECTORIES, is_log_directory
from storage_core.directory.vouched_end import vouchers_of
from storage_core.errors import (
    CorruptCheckpointError,
    LogDirectoryError,
    RecoveryWouldDiscardError,
    SegmentLogError,
)
from storage_core.filesystem.file_system import TEMPORARY_FILE
from storage_core.log.local_log import close_log
from storage_core.log.log_loader import LoadOptions, load_state
from storage_core.log.recovery_check import check_directory
from storage_core.segment import base_offset_of
from storage_core.segment.segment_reader import DEFAULT_MAX_BATCH_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from storage_core.filesystem import DirectoryEntry, FileSystem
    from storage_core.log.clock import Clock
    from storage_core.log.log_state import LogState
    from storage_core.log_config import LogConfig


_log = logging.getLogger(__name__)
_CHECKPOINT_INTERVAL_MS: Final = 60_000
"""Kafka's ``log.flush.offset.checkpoint.interval.ms``."""
_THREADS: Final = min(os.cpu_count() or 1, 8)
# From this number on, logs are closed in parallel.
_MANY_LOGS: Final = 64


@dataclass(frozen=True, slots=True)
class OpenLogDir:
    """A log directory that is open for writing. ``config_of`` returns the configuration of a topic's logs."""

    filesystem: FileSystem
    path: str
    clock: Clock
    config_of: Callable[[str], LogConfig]


class RootCheckpoints:
    """The checkpoints of one log directory. Thread-safe.

    Attributes:
        states: The logs, by topic and partition.
    """

    def __init__(self, filesystem: FileSystem, path: str, clock: Clock) -> None:
        self.states: dict[tuple[str, int], LogState] = {}
        self._filesystem = filesystem
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._written_ms = clock.now_ms()
        # The contents of each file, so that only changes are written.
        self._written: dict[str, dict[tuple[str, int], int]] = {}

    def write(self) -> None:
        """Write what has changed of recovery points, log starts above the first segment, and high watermarks."""
        with self._lock:
            states = dict(self.states)
            views = {key: state.view for key, state in states.items()}
            starts = {
                key: view.offsets.whole_log_start
                for key, view in views.items()
                if view.offsets.checkpointed_start is not None
                or view.offsets.log_start_offset > view.segments[0].base_offset
            }
            starts.update(
                (key, state.restarts_at) for key, state in states.items() if state.restarts_at is not None
            )
            self._write(LOG_START_OFFSET_CHECKPOINT, starts)
            high_watermarks = {
                key: min(view.offsets.high_watermark, view.offsets.batches_end_offset)
                for key, view in views.items()
            }
            self._write(REPLICATION_OFFSET_CHECKPOINT, high_watermarks)
            # Last: once it no longer lists a deleted log, neither do the others.
            recovery_points = {key: view.offsets.recovery_point for key, view in views.items()}
            self._write(RECOVERY_POINT_CHECKPOINT, recovery_points)
            self._written_ms = self._clock.now_ms()

    def write_if_due(self) -> None:
        """Write them if they were last written a minute ago."""
        if self._clock.now_ms() - self._written_ms >= _CHECKPOINT_INTERVAL_MS:
            self.write()

    def _write(self, file_name: str, offsets: dict[tuple[str, int], int]) -> None:
        if self._written.get(file_name) != offsets:
            write_offset_checkpoint(self._filesystem, os.path.join(self._path, file_name), offsets)
            self._written[file_name] = offsets


def make_root(filesystem: FileSystem, path: str) -> None:
    """Create a log directory, and its parents, if it does not exist."""
    filesystem.make_directories(path)


def partitions_to_load(
    filesystem: FileSystem, path: str, *, broker_directory: bool
) -> list[PartitionDirectory]:
    """List the partitions of a log directory to open for writing, without deleted, stray and future ones.

    Raises:
        LogDirectoryError: It holds something that no log directory holds, or belongs to a broker and
            ``broker_directory`` is not set.
    """
    entries = filesystem.list_directory(path)
    names = {entry.name for entry in entries}
    if META_PROPERTIES in names and not broker_directory:
        raise LogDirectoryError(
            f"Expected a log directory that is not a broker's, found {META_PROPERTIES}. Open it read-only, "
            "or, with the broker stopped, with broker_directory=True; in Spark, with the option brokerDirectory=true.",
            path=path,
        )
    root = LogDirectoryFiles(filesystem, path)
    found = [
        directory for entry in entries if (directory := _partition(filesystem, path, entry, root)) is not None
    ]
    visible = [entry for entry in entries if not entry.name.startswith(".")]
    if not found and not is_log_directory(entries) and not all(entry.is_directory for entry in visible):
        raise _no_log_directory(path, visible[0].name)
    return found


def remove_temporary_files(filesystem: FileSystem, path: str) -> None:
    """Delete files of a locked log directory that were going to replace others when a process was killed."""
    for entry in filesystem.walk_directory(path):
        plain = entry.name.rsplit(".", 2)[0]
        is_known = plain.startswith(OWN_PREFIX) or plain in ROOT_CHECKPOINTS
        if is_known and entry.is_regular_file and TEMPORARY_FILE.fullmatch(entry.name):
            filesystem.delete(os.path.join(path, entry.name))


def has_future_logs(filesystem: FileSystem, path: str) -> bool:
    """Return True if a broker was moving logs here. A broker loads such logs, this package does not."""
    names = (parse_partition_directory_name(entry.name) for entry in filesystem.list_directory(path))
    return any(name is not None and name.suffix == "future" for name in names)


def _partition(
    filesystem: FileSystem, path: str, entry: DirectoryEntry, root: LogDirectoryFiles
) -> PartitionDirectory | None:
    if not (entry.is_directory or entry.is_symlink):
        return None
    if entry.name in OTHER_DIRECTORIES:
        return None
    partition_path = os.path.join(path, entry.name)
    name = parse_partition_directory_name(entry.name)
    # File systems and desktops create hidden directories; a topic's name may also begin with a dot.
    is_hidden = entry.name.startswith(".")
    if name is None:
        if entry.is_symlink or is_hidden:
            return None
        raise _no_log_directory(path, entry.name)
    if name.suffix is not None or name.topic == CLUSTER_METADATA_TOPIC:
        _log.info("Skipped %s: it is not a live partition of a topic.", partition_path)
        return None
    if entry.is_symlink:
        raise LogDirectoryError(
            "Expected a partition's directory, found a symbolic link. Replace it by the directory itself.",
            path=partition_path,
        )
    if not _is_partition(filesystem, partition_path):
        if is_hidden:
            return None
        raise _no_log_directory(path, entry.name)
    return PartitionDirectory(partition_path, name.topic, name.partition, root)


def _is_partition(filesystem: FileSystem, path: str) -> bool:
    """Return True if a directory with a partition's name holds a partition. An empty one was just created."""
    known = (LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA)
    if any(filesystem.status(os.path.join(path, each)) is not None for each in known):
        return True
    entries = filesystem.list_directory(path)
    return not entries or any(
        entry.name.startswith(known) or base_offset_of(entry.name) is not None for entry in entries
    )


def _no_log_directory(path: str, name: str) -> LogDirectoryError:
    return LogDirectoryError(
        f"Expected an empty directory or a log directory, found {name!r} in it, which belongs to neither. Choose "
        "another path, or move it away.",
        path=path,
    )


def check_recovery(
    root: OpenLogDir, files: LogDirectoryFiles, directories: Sequence[PartitionDirectory]
) -> dict[str, tuple[str, ...]]:
    """Check that a recovery by Kafka's rules would discard no complete batch. Nothing is changed.

    Returns:
        The regular files in each partition's directory.

    Raises:
        RecoveryWouldDiscardError: It would discard some.
    """
    found = in_parallel(
        lambda directory: check_directory(
            root.filesystem,
            directory.path,
            max(0, files.recovery_points.get(directory.topic_partition, 0)),
            is_clean=files.clean_shutdown,
            max_batch_bytes=max(DEFAULT_MAX_BATCH_BYTES, root.config_of(directory.topic).max_message_bytes),
            vouchers=vouchers_of(replace(directory, root=files)),
        ),
        directories,
        _THREADS,
    )
    dropped = tuple(text for checked in found for text in checked.dropped)
    if dropped:
        raise RecoveryWouldDiscardError(
            "Expected only torn bytes after the last valid batch of each log, found complete batches that a "
            f"recovery by Kafka's rules discards: {'; '.join(dropped)}. Copy the directory first; then open it with "
            "LogDirectory.open and recovery='kafka' to discard them.",
            discarded=dropped,
            path=root.path,
        )
    for checked in found:
        if checked.lacking is not None:
            _log.warning(
                "The log goes on before them, so other records will get their offsets: %s", checked.lacking
            )
    return {directory.path: checked.file_names for directory, checked in zip(directories, found, strict=True)}


def load_logs(
    root: OpenLogDir,
    files: LogDirectoryFiles,
    directories: Sequence[PartitionDirectory],
    file_names: Mapping[str, tuple[str, ...]],
    *,
    note_cut: Callable[[PartitionDirectory, int], None] | None = None,
) -> list[LogState]:
    """Load logs in parallel. If one cannot be loaded, all are closed again.

    ``file_names`` are the regular files in each directory, if already listed. ``note_cut`` is called with the first
    offset of a log that is about to be cut off, if valid batches may go.
    """
    loaded: list[LogState] = []
    high_watermarks = _high_watermarks(files)

    def load(directory: PartitionDirectory) -> LogState:
        key = directory.topic_partition
        options = LoadOptions(
            root.config_of(directory.topic),
            is_clean=files.clean_shutdown,
            recovery_point=max(0, files.recovery_points.get(key, 0)),
            log_start_offset=max(0, files.log_start_offsets[key]) if key in files.log_start_offsets else None,
            high_watermark=high_watermarks.get(key),
            file_names=file_names.get(directory.path),
            note_cut=None if note_cut is None else partial(note_cut, directory),
        )
        state = load_state(root.filesystem, directory, root.clock, options)
        loaded.append(state)
        return state

    try:
        return in_parallel(load, directories, _THREADS)
    except BaseException:
        for state in loaded:
            state.segments.close_handlers()
        raise


def create_log(root: OpenLogDir, directory: PartitionDirectory, config: LogConfig, topic_id: str) -> LogState:
    """Create a log in a partition's directory, which exists and is empty."""
    filesystem, path, files = root.filesystem, directory.path, directory.root
    write_partition_metadata(filesystem, os.path.join(path, PARTITION_METADATA), topic_id)
    # There is nothing to recover, and no checkpoint to apply.
    files.clean_shutdown = True
    files.recovery_points, files.log_start_offsets, files.high_watermarks = {}, {}, {}
    (state,) = load_logs(replace(root, config_of=lambda _: config), files, [directory], {})
    try:
        filesystem.flush_directory(path)
        filesystem.flush_directory(files.path)
    except BaseException:
        state.segments.close_handlers()
        raise
    return state


def close_logs(
    root: OpenLogDir, checkpoints: RootCheckpoints, marker: bytes | None, *, is_marked: bool
) -> None:
    """Close logs, write their checkpoints, and the clean-shutdown marker if it may be written and no log has failed.

    ``marker`` is the content of the marker when the directory was opened.

    Raises:
        SegmentLogError: A log could not be closed; the others are.
    """
    states = list(checkpoints.states.values())
    if len(states) < _MANY_LOGS:
        failures = [_close_or_failure(state) for state in states]
    else:
        with contextlib.suppress(SegmentLogError):
            # Afterwards each log has little left to flush.
            root.filesystem.sync(root.path)
        failures = in_parallel(_close_or_failure, states, _THREADS)
    for failure in failures:
        if failure is not None:
            raise failure
    checkpoints.write()
    # The next open of the directory recovers a log that has failed.
    if is_marked and all(state.failure is None for state in states):
        write_clean_shutdown_file(root.filesystem, root.path, marker)


def _close_or_failure(state: LogState) -> Exception | None:
    try:
        close_log(state)
    except Exception as error:  # noqa: BLE001  (the other logs are closed anyway)
        return error
    return None


def _high_watermarks(files: LogDirectoryFiles) -> Mapping[tuple[str, int], int]:
    # After a crash, the checkpointed ones are out of date. Without a broker, this is the only replica, so its log end is
    # the high watermark. Other replicas of a broker's log may lack records beyond the checkpoint.
    if not files.clean_shutdown and files.meta_properties is None:
        return {}
    try:
        return files.high_watermarks
    except CorruptCheckpointError:
        return {}


def give_missing_ids(
    filesystem: FileSystem, root: LogDirectoryFiles, directories: Sequence[PartitionDirectory]
) -> None:
    """Write the topic ids that are missing after a crash. Partitions of a broker are not changed."""
    if root.meta_properties is not None:
        return
    for directory in directories:
        path = os.path.join(directory.path, PARTITION_METADATA)
        if filesystem.status(path) is None:
            siblings = [each.path for each in directories if each.topic == directory.topic]
            write_partition_metadata(
                filesystem, path, choose_topic_id(filesystem, directory.topic, siblings, None)
            )
