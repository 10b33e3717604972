"""Loading recovered logs as a broker does, and proving that a broker then has nothing to recover."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from storage_core.checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    write_leader_epoch_checkpoint,
    write_partition_metadata,
    write_producer_snapshot,
)
from storage_core.checkpoint.truncations_file import TruncationsFile
from storage_core.directory import LogDirectoryFiles, PartitionDirectory
from storage_core.errors import CorruptCheckpointError, StorageError
from storage_core.filesystem import FileSystem
from storage_core.log.clock import SystemClock
from storage_core.log.log_root import OpenLogDir, RootCheckpoints, close_logs, load_logs
from storage_core.log.recovery_check import list_regular_files, log_base_offsets, segments_to_recover
from storage_core.log_config import LogConfig
from storage_core.record.batch_header import LOG_OVERHEAD_BYTES
from storage_core.recover.recovery_plan import PartitionPlan
from storage_core.segment import SegmentReader
from storage_core.segment.file_names import log_file_name, snapshot_file_name


def path_in(root: str, plan: PartitionPlan) -> str:
    """Return the directory of a recovered partition in a root: in place its own, which may be named orders-01."""
    if root == plan.directory.root.path:
        return plan.directory.path
    return os.path.join(root, f"{plan.directory.topic}-{plan.directory.partition}")


def write_missing_files(filesystem: FileSystem, path: str, plan: PartitionPlan) -> None:
    """Write the topic id, the leader epochs and the producer snapshot that a partition does not have."""
    metadata = os.path.join(path, PARTITION_METADATA)
    if plan.topic_id is not None and filesystem.status(metadata) is None:
        write_partition_metadata(filesystem, metadata, plan.topic_id)
    if plan.epochs:
        write_leader_epoch_checkpoint(filesystem, os.path.join(path, LEADER_EPOCH_CHECKPOINT), plan.epochs)
    if plan.producers is not None:
        snapshot = os.path.join(path, snapshot_file_name(plan.log_end_offset))
        write_producer_snapshot(filesystem, snapshot, plan.producers)


def cleaner_offsets(plans: Sequence[PartitionPlan]) -> dict[tuple[str, int], int]:
    """Determine up to where the recovered logs were compacted.

    Returns:
        By topic and partition; empty if the checkpoint is damaged, so that all is compacted again.
    """
    return {
        key: min(cleaned[key], plan.segments[-1].base_offset if plan.segments else 0)
        for plan in plans
        if (key := plan.directory.topic_partition) in (cleaned := plan.directory.root.cleaner_offsets)
    }


def load_recovered(
    filesystem: FileSystem, root: str, plans: Sequence[PartitionPlan], max_batch_bytes: int
) -> dict[tuple[str, int], int]:
    """Load the logs, rebuild what is missing, and close them again, so that a broker has nothing to recover.

    Returns:
        Where each log ends. Damage that is kept may end it elsewhere than planned.

    Raises:
        CorruptRecordError: Damage that is kept prevents the load, of a broker too.
        StorageError: The file system refused, or a log is not the planned one.
    """
    config = LogConfig(file_delete_delay_ms=0, max_message_bytes=max_batch_bytes - LOG_OVERHEAD_BYTES)
    log_root = OpenLogDir(filesystem, root, SystemClock(), lambda _: config)
    checkpoints = RootCheckpoints(filesystem, root, log_root.clock)
    truncations = TruncationsFile(filesystem, root)
    try:
        for is_clean in (True, False):
            chosen = [plan for plan in plans if plan.is_clean == is_clean]
            files = _files_of(filesystem, root, chosen, is_clean=is_clean)
            found = [
                PartitionDirectory(path_in(root, plan), plan.directory.topic, plan.directory.partition, files)
                for plan in chosen
            ]
            if chosen:
                for state in load_logs(log_root, files, found, {}):
                    checkpoints.states[state.directory.topic_partition] = state
        ends = {key: state.offsets.log_end_offset for key, state in checkpoints.states.items()}
        close_logs(log_root, checkpoints, None, is_marked=False)
        truncations.settle()
    except BaseException:
        for state in checkpoints.states.values():
            state.segments.close_handlers()
        raise
    for plan in plans:
        _require_loadable(filesystem, root, plan, ends[plan.directory.topic_partition])
    return ends


def _files_of(
    filesystem: FileSystem, root: str, plans: Sequence[PartitionPlan], *, is_clean: bool
) -> LogDirectoryFiles:
    """Return the root's files as the loader is to see them."""
    files = LogDirectoryFiles(filesystem, root)
    source = plans[0].directory.root if plans else None
    files.clean_shutdown = is_clean
    files.recovery_points = {plan.directory.topic_partition: plan.recovery_point for plan in plans}
    files.log_start_offsets = {
        key: plan.log_start_offset
        for plan in plans
        if (key := plan.directory.topic_partition) in plan.directory.root.log_start_offsets
    }
    files.high_watermarks = {}
    if source is not None:
        with contextlib.suppress(CorruptCheckpointError):
            starts = files.log_start_offsets
            files.high_watermarks = {
                key: offset
                for key, offset in source.high_watermarks.items()
                # A log start is never raised beyond the high watermark: this one was not checkpointed in time, and the
                # log end counts instead.
                if not 0 < starts.get(key, 0) >= offset
            }
    return files


def _require_loadable(filesystem: FileSystem, root: str, plan: PartitionPlan, log_end_offset: int) -> None:
    """Check that the recovered log is the planned one, and that a broker has nothing to recover."""
    path = path_in(root, plan)
    names = list_regular_files(filesystem, path)
    bases = log_base_offsets(names)
    sizes = [filesystem.status(os.path.join(path, log_file_name(base))) for base in bases]
    size_bytes = sum(status.size_bytes for status in sizes if status is not None)
    is_planned_end = log_end_offset == plan.log_end_offset or bool(plan.damaged)
    if size_bytes != plan.size_bytes or not is_planned_end:
        raise StorageError(
            f"Expected a recovered log of {plan.size_bytes} bytes that ends at offset {plan.log_end_offset}, found one of "
            f"{size_bytes} bytes that ends at offset {log_end_offset}.",
            path=path,
        )
    left = segments_to_recover(
        filesystem,
        path,
        bases,
        names,
        log_end_offset,
        is_clean=True,
        open_segment=lambda base_offset: SegmentReader(filesystem, path, base_offset),
    )
    if left and not plan.damaged:
        raise StorageError(
            f"Expected a recovered log, found one whose segment {log_file_name(bases[left[0].number])} is to be recovered.",
            path=path,
        )
