"""Loading all logs of a log directory, several at a time, and closing them."""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from storage_core.checkpoint import (
    PARTITION_METADATA,
    write_clean_shutdown_file,
    write_partition_metadata,
)
from storage_core.errors import CorruptCheckpointError, RecoveryWouldDiscard, SegmentLogError
from storage_core.log.log_close import close_log
from storage_core.log.log_loader import load_log
from storage_core.log.recovery import LoadOptions
from storage_core.log.recovery_check import check_directory
from storage_core.segment.segment_files import DEFAULT_MAX_BATCH_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from storage_core.directory import LogDirectoryFiles, PartitionDirectory
    from storage_core.filesystem import FileSystem
    from storage_core.log.clock import Clock
    from storage_core.log.log_state import LogState
    from storage_core.log.root_checkpoints import RootCheckpoints
    from storage_core.log_config import LogConfig

__all__ = ["check_recovery", "close_logs", "create_log", "load_logs"]

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
