"""Closing a log so that the next one to open it, here or in a broker, need not recover it.

What stands in a log directory's root, and whether it may be written to (Kafka's ``LogManager``).

Loading all logs of a log directory, several at a time, and closing them.

Names and ids of topics (Kafka's ``Topic`` and ``Uuid``).
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from storage_core.checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    META_PROPERTIES,
    PARTITION_METADATA,
    read_partition_metadata,
    write_clean_shutdown_file,
    write_partition_metadata,
)
from storage_core.checkpoint.partition_files import is_topic_id
from storage_core.commit_files.commits_file import OWN_PREFIX
from storage_core.directory import (
    CLUSTER_METADATA_TOPIC,
    LogDirectoryFiles,
    PartitionDirectory,
    is_legal_topic_name,
    parse_partition_directory_name,
)
from storage_core.directory.discovery import OTHER_DIRECTORIES
from storage_core.directory.log_directory_files import MAX_PARTITION, is_log_directory
from storage_core.errors import (
    CorruptCheckpointError,
    LogDirectoryError,
    OptionError,
    RecoveryWouldDiscard,
    SegmentLogError,
)
from storage_core.log.append import write_pending
from storage_core.log.local_log import delete_due_files, flush_directory_if_changed, flush_up_to
from storage_core.log.log_loader import LoadOptions, load_log
from storage_core.log.recovery_check import check_directory
from storage_core.segment import base_offset_of
from storage_core.segment.file_names import offset_index_file_name, time_index_file_name
from storage_core.segment.segment_reader import DEFAULT_MAX_BATCH_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from storage_core.filesystem import DirectoryEntry, FileSystem
    from storage_core.log.background import Clock
    from storage_core.log.log_state import LogState
    from storage_core.log.root_checkpoints import RootCheckpoints
    from storage_core.log_config import LogConfig

__all__ = [
    "check_recovery",
    "check_topic_partition",
    "choose_topic_id",
    "close_log",
    "close_logs",
    "create_log",
    "give_missing_ids",
    "has_future_logs",
    "load_logs",
    "make_root",
    "partitions_to_load",
]


def close_log(state: LogState) -> None:
    """Force everything to disk, complete the indexes and close the files. A log that has failed is only closed.

    Raises:
        LogForkedError: Another process opened it.
        StorageError: That failed: the log has to be recovered.
    """
    if state.is_closed:
        return
    state.owner.check(state.path)
    # Without the lock, which it takes at its end.
    state.cleaning.stop()
    with state.lock:
        _close_locked(state)


def _close_locked(state: LogState) -> None:
    if state.is_closed:
        return
    try:
        if state.failure is None:
            with state.writing():
                _close(state)
    finally:
        state.is_closed = True
        state.segments.close_handlers()


def _close(state: LogState) -> None:
    write_pending(state)
    delete_due_files(state)
    log_end_offset = state.offsets.log_end_offset
    state.producers.move_map_end_offset(log_end_offset)
    state.producers.take_snapshot()
    if state.offsets.recovery_point < log_end_offset:
        # Before the flush: then there is one of each file.
        state.segments.active.seal()
    flush_up_to(state, log_end_offset)
    state.leader_epochs.flush()
    state.segments.close()
    _make_index_files(state)
    flush_directory_if_changed(state)


def _make_index_files(state: LogState) -> None:
    """A broker that misses the index of even an empty segment recovers it."""
    base_offset = state.segments.active.base_offset
    for name in (offset_index_file_name(base_offset), time_index_file_name(base_offset)):
        path = os.path.join(state.path, name)
        if state.filesystem.status(path) is None:
            with state.filesystem.open_for_writing(path, create=True) as index_file:
                index_file.flush()
            state.unflushed_directory = True


_log = logging.getLogger(__name__)


def make_root(filesystem: FileSystem, path: str) -> None:
    """Make a log directory, and the directories above it, unless it is there."""
    status = filesystem.status(path, follow_symlinks=True)
    if status is None:
        parent = os.path.dirname(path)
        if parent != path:
            make_root(filesystem, parent)
        filesystem.make_directory(path)
        filesystem.flush_directory(parent)
    elif not status.is_directory:
        raise LogDirectoryError("Expected a directory, found something else. Check the path.", path=path)


def partitions_to_load(
    filesystem: FileSystem, path: str, *, broker_directory: bool
) -> list[PartitionDirectory]:
    """The live partitions of a log directory that is to be written to.

    Raises:
        LogDirectoryError: Something stands there that no log directory holds, or it belongs to a broker
            and ``broker_directory`` is not set.
    """
    entries = filesystem.list_directory(path)
    names = {entry.name for entry in entries}
    if META_PROPERTIES in names and not broker_directory:
        raise LogDirectoryError(
            f"Expected a log directory of our own, found {META_PROPERTIES}: it belongs to a broker. Open it read-only, "
            "or, with the broker stopped, with broker_directory=True; in Spark, with the option brokerDirectory=true.",
            path=path,
        )
    root = LogDirectoryFiles(filesystem, path)
    found = [
        directory for entry in entries if (directory := _partition(filesystem, path, entry, root)) is not None
    ]
    strangers = [entry.name for entry in entries if not entry.name.startswith(".")]
    if strangers and not found and not is_log_directory(entries) and not _has_only_directories(entries):
        raise _no_log_directory(path, strangers[0])
    return found


def has_future_logs(filesystem: FileSystem, path: str) -> bool:
    """Whether there are logs that a broker was moving here. It loads them, and nobody here does."""
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
    # File systems and desktops keep directories of their own in one; a topic's name may begin with a dot, too.
    is_hidden = entry.name.startswith(".")
    if name is None:
        if entry.is_symlink or is_hidden:
            return None
        raise _no_log_directory(path, entry.name)
    if name.suffix is not None or name.topic == CLUSTER_METADATA_TOPIC:
        _log.info("Left alone %s: it is no live partition of a topic.", partition_path)
        return None
    if entry.is_symlink:
        raise LogDirectoryError(
            "Expected a partition's directory, found a symbolic link. Put the directory itself here.",
            path=partition_path,
        )
    if not _is_partition(filesystem, partition_path):
        if is_hidden:
            return None
        raise _no_log_directory(path, entry.name)
    return PartitionDirectory(partition_path, name.topic, name.partition, root)


def _is_partition(filesystem: FileSystem, path: str) -> bool:
    """Whether a directory is more than merely named like a partition. An empty one is a partition just made."""
    known = (LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA)
    if any(filesystem.status(os.path.join(path, each)) is not None for each in known):
        return True
    entries = filesystem.list_directory(path)
    return not entries or any(
        entry.name.startswith(known) or base_offset_of(entry.name) is not None for entry in entries
    )


def _has_only_directories(entries: list[DirectoryEntry]) -> bool:
    return all(entry.is_directory for entry in entries if not entry.name.startswith("."))


def _no_log_directory(path: str, name: str) -> LogDirectoryError:
    return LogDirectoryError(
        f"Expected an empty directory or a log directory, found {name!r} in it, which belongs to neither. Choose "
        "another path, or move it away.",
        path=path,
    )


_MOST_THREADS: Final = 8
# From so many on, logs are closed several at a time.
_MANY_LOGS: Final = 64
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def check_recovery(
    filesystem: FileSystem,
    root: LogDirectoryFiles,
    directories: Sequence[PartitionDirectory],
    config: Callable[[str], LogConfig],
) -> dict[str, tuple[str, ...]]:
    """Refuse to go on if a recovery by Kafka's rules would drop whole batches. Nothing is changed.

    Returns:
        The regular files in each partition's directory.

    Raises:
        RecoveryWouldDiscard: It would.
    """
    found = _in_parallel(
        lambda directory: check_directory(
            filesystem,
            directory.path,
            max(0, root.recovery_points.get(directory.topic_partition, 0)),
            is_clean=root.clean_shutdown,
            max_batch_bytes=max(DEFAULT_MAX_BATCH_BYTES, config(directory.topic).max_message_bytes),
        ),
        directories,
    )
    dropped = tuple(text for checked in found for text in checked.dropped)
    if dropped:
        raise RecoveryWouldDiscard(
            "Expected nothing but torn ends behind the last good batch of each log, found whole batches that a "
            f"recovery by Kafka's rules drops: {'; '.join(dropped)}. Copy the directory first; then open it with "
            "LogDirectory.open and recovery='kafka' to drop them.",
            discarded=dropped,
            path=root.path,
        )
    return {directory.path: checked.file_names for directory, checked in zip(directories, found, strict=True)}


def load_logs(
    filesystem: FileSystem,
    root: LogDirectoryFiles,
    directories: Sequence[PartitionDirectory],
    clock: Clock,
    config: Callable[[str], LogConfig],
    file_names: Mapping[str, tuple[str, ...]],
    *,
    note_cut: Callable[[PartitionDirectory, int], None] | None = None,
) -> list[LogState]:
    """Load logs; all of them are closed again if one of them cannot be loaded.

    Args:
        filesystem: Where to work.
        root: The log directory.
        directories: The logs' directories.
        clock: What time it is.
        config: The configuration of a topic's logs.
        file_names: The regular files in a directory, if that was listed already.
        note_cut: Is told from which offset on whole batches of a log may go, before they do.

    Raises:
        SegmentLogError: Whatever is wrong with the first that cannot be loaded.
    """
    loaded: list[LogState] = []
    marks = _high_watermarks(root)

    def load(directory: PartitionDirectory) -> LogState:
        key = directory.topic_partition
        options = LoadOptions(
            config(directory.topic),
            is_clean=root.clean_shutdown,
            recovery_point=max(0, root.recovery_points.get(key, 0)),
            log_start_offset=max(0, root.log_start_offsets.get(key, 0)),
            high_watermark=marks.get(key),
            file_names=file_names.get(directory.path),
            note_cut=None if note_cut is None else partial(note_cut, directory),
        )
        state = load_log(filesystem, directory, clock, options)
        loaded.append(state)
        return state

    try:
        return _in_parallel(load, directories)
    except BaseException:
        for state in loaded:
            state.segments.close_handlers()
        raise


def create_log(
    filesystem: FileSystem, directory: PartitionDirectory, clock: Clock, config: LogConfig, topic_id: str
) -> LogState:
    """Make an empty log in a partition's directory, which is empty."""
    path, root = directory.path, directory.root
    write_partition_metadata(filesystem, os.path.join(path, PARTITION_METADATA), topic_id)
    # There is nothing to recover, and no checkpoint that knows of it.
    root.clean_shutdown = True
    root.recovery_points, root.log_start_offsets, root.high_watermarks = {}, {}, {}
    (state,) = load_logs(filesystem, root, [directory], clock, lambda _: config, {})
    try:
        filesystem.flush_directory(path)
        filesystem.flush_directory(root.path)
    except BaseException:
        state.segments.close_handlers()
        raise
    return state


def close_logs(
    filesystem: FileSystem,
    path: str,
    checkpoints: RootCheckpoints,
    marker: bytes | None,
    *,
    is_marked: bool = True,
) -> None:
    """Close logs, write their checkpoints, and the marker of a clean shutdown if all is well.

    Args:
        filesystem: Where to write.
        path: The log directory.
        checkpoints: Its checkpoints, and its logs.
        marker: The marker that was there when it was opened.
        is_marked: Whether the marker may be written at all.

    Raises:
        SegmentLogError: A log could not be closed; the others are.
    """
    states = list(checkpoints.states.values())
    if len(states) < _MANY_LOGS:
        failures = [_close_or_failure(state) for state in states]
    else:
        with contextlib.suppress(SegmentLogError):
            # Then there is little left to wait for at each flush of each log.
            filesystem.sync(path)
        failures = _in_parallel(_close_or_failure, states)
    for failure in failures:
        if failure is not None:
            raise failure
    checkpoints.write()
    # A log that failed before is recovered by whoever opens the directory next.
    if is_marked and all(state.failure is None for state in states):
        write_clean_shutdown_file(filesystem, path, marker)


def _close_or_failure(state: LogState) -> Exception | None:
    try:
        close_log(state)
    except Exception as error:  # noqa: BLE001  (the other logs are closed all the same)
        return error
    return None


def _high_watermarks(root: LogDirectoryFiles) -> Mapping[tuple[str, int], int]:
    # After a crash of ours they are as old as the last checkpoint; the only replica has what it has. A broker's
    # other replicas may lack what is behind it.
    if not root.clean_shutdown and root.meta_properties is None:
        return {}
    try:
        return root.high_watermarks
    except CorruptCheckpointError:
        return {}


def _in_parallel(work: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    if len(items) <= 1:
        return [work(item) for item in items]
    threads = min(len(items), os.cpu_count() or 1, _MOST_THREADS)
    with ThreadPoolExecutor(threads, thread_name_prefix="segmentlog-load") as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()


_ID_CHARACTERS: Final = 22


def check_topic_partition(topic: object, partition: object) -> None:
    """Refuse what Kafka does not take as a topic's name or a partition's number, and the names of our own files.

    Raises:
        OptionError: It is none.
    """
    if not isinstance(topic, str) or not is_legal_topic_name(topic) or topic == CLUSTER_METADATA_TOPIC:
        raise OptionError(
            "Expected 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-' as the name of a topic, found "
            f"{topic!r}."
        )
    if topic.startswith(OWN_PREFIX):
        raise OptionError(
            f"Expected the name of a topic not to begin with {OWN_PREFIX!r}, as the names of this package's own files "
            f"in a log directory do, found {topic!r}. Choose another name; what a broker wrote to such a topic can be "
            "read."
        )
    if not isinstance(partition, int) or isinstance(partition, bool) or not 0 <= partition <= MAX_PARTITION:
        raise OptionError(f"Expected a partition number from 0 to {MAX_PARTITION}, found {partition!r}.")


def choose_topic_id(
    filesystem: FileSystem, topic: str, partition_paths: Iterable[str], wanted_id: str | None
) -> str:
    """The id that the topic's other partitions have, or the one that is wanted, or a new one.

    Raises:
        OptionError: What is wanted is no id.
        LogDirectoryError: The other partitions have another id than the one that is wanted.
    """
    if wanted_id is not None and not is_topic_id(wanted_id):
        raise OptionError(
            f"Expected the 22 characters that kafka-topics.sh --describe shows as the id of topic {topic}, found "
            f"{wanted_id!r}. Leave it out for a random one."
        )
    known = (
        read_partition_metadata(filesystem, os.path.join(path, PARTITION_METADATA))
        for path in partition_paths
    )
    known_id = next((each for each in known if each is not None), None)
    if wanted_id is not None and known_id is not None and wanted_id != known_id:
        raise LogDirectoryError(
            f"Expected {known_id} as the id of topic {topic}, which its other partitions have, found {wanted_id}. "
            "Leave it out, or choose another topic."
        )
    return known_id or wanted_id or _random_id()


def give_missing_ids(
    filesystem: FileSystem, root: LogDirectoryFiles, directories: Sequence[PartitionDirectory]
) -> None:
    """Give an id to the partitions that a crash kept from getting one. What a broker made is left as it is."""
    if root.meta_properties is not None:
        return
    for directory in directories:
        path = os.path.join(directory.path, PARTITION_METADATA)
        if filesystem.status(path) is None:
            siblings = [each.path for each in directories if each.topic == directory.topic]
            write_partition_metadata(
                filesystem, path, choose_topic_id(filesystem, directory.topic, siblings, None)
            )


def _random_id() -> str:
    """A random UUID as Kafka writes it: none that begins with a dash, which looks like an option in a shell."""
    while True:
        topic_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii")[:_ID_CHARACTERS]
        if not topic_id.startswith("-"):
            return topic_id
