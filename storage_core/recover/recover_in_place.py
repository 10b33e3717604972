"""Recovering a log directory where it is, under its lock.

Nothing is changed before copies of what is cut, and of the small files, are on disk in another directory. `docs/decisions`
0014 says why each step is where it is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from storage_core.checkpoint import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    delete_clean_shutdown_file,
    write_clean_shutdown_file,
    write_offset_checkpoint,
)
from storage_core.checkpoint.checkpoint_file import replace_file
from storage_core.checkpoint.truncations_file import TruncationsFile
from storage_core.commit_files.commits_file import COMMITS_FILE
from storage_core.commit_replay.replay import ROOT_CHECKPOINTS
from storage_core.directory import PartitionDirectory
from storage_core.directory.log_directory_files import LOCK_FILE
from storage_core.errors import LogDirectoryError, OptionError
from storage_core.filesystem import FileSystem
from storage_core.log.local_log import rename_files
from storage_core.log.log_loader import complete_interrupted_swaps
from storage_core.log.log_root import has_future_logs
from storage_core.log.recovery_check import list_regular_files, log_base_offsets
from storage_core.log_config import LogConfig
from storage_core.options import ReadOptions
from storage_core.options.paths import path_to_write
from storage_core.recover.recover import (
    IN_PROGRESS_FILE,
    RecoveryReport,
    RecoveryScan,
    copy_flushed,
    copy_ranges,
    manifest_bytes,
    report_of,
    scan_for_recovery,
    warn_of_damaged_commits,
    with_ends,
    write_manifest,
)
from storage_core.recover.recovered_logs import cleaner_offsets, load_recovered, path_in, write_missing_files
from storage_core.recover.recovery_plan import PartitionPlan, Policy, SegmentPlan, damaged_swaps
from storage_core.segment.file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    index_file_names,
    log_file_name,
    offset_index_file_name,
)
from storage_core.segment.log_segment import LogSegment
from storage_core.views.files import RECOVERY_MANIFEST
from storage_core.views.roots import require_empty, require_outside

# Files that completing an interrupted compaction, and loading, remove or replace unread.
_REPLACED: Final = (SWAP_SUFFIX, DELETED_SUFFIX, CLEANED_SUFFIX)
_SET_ASIDE: Final = (CLEAN_SHUTDOWN_FILE, COMMITS_FILE, *ROOT_CHECKPOINTS)


def recover_in_place(
    filesystem: FileSystem,
    options: ReadOptions,
    aside: str,
    *,
    policy: Policy = "kafka",
    advance: Callable[[int], object] = lambda _: None,
) -> RecoveryReport:
    """Recover a log directory where it is, under its lock.

    What is cut is first copied to ``aside``, a directory outside that does not exist or is empty, with the files that change,
    and is on disk there before the first change. A crash leaves a directory that this function, or a broker, recovers.

    Raises:
        LogDirectoryLockedError: A broker or another process has it open.
        OptionError: The path is not one log directory, topics are chosen, or ``aside`` is inside of it.
        RecoveryWouldDiscardError: The policy is ``tail``, and complete batches would be lost. Nothing was changed.
        StorageError: The file system refused.
    """
    aside = os.path.abspath(path_to_write(aside))
    root = _whole(scan_for_recovery(filesystem, options)).root.path
    require_outside(filesystem, aside, [root])
    require_empty(filesystem, aside)
    with contextlib.ExitStack() as locked:
        locked.callback(filesystem.lock(os.path.join(root, LOCK_FILE)).release)
        # Another process may have changed it until then.
        found = _whole(scan_for_recovery(filesystem, options, is_in_place=True))
        if found.root.path != root:
            raise LogDirectoryError(
                f"Expected the log directory {root}, found another one.", path=found.root.path
            )
        warn_of_damaged_commits(filesystem, found)
        if policy == "tail":
            found.require_nothing_discarded(filesystem, options.max_decompressed_batch_bytes)
        for directory in found.directories:
            _complete_replacements(filesystem, directory, aside, policy, options.max_decompressed_batch_bytes)
        plans = found.plans(filesystem, policy, options.max_decompressed_batch_bytes, advance)
        report = replace(report_of(found, plans, policy, root), aside=aside)
        _InPlace(filesystem, found, aside, report).change(plans)
        ends = load_recovered(filesystem, root, plans, options.max_decompressed_batch_bytes)
        if found.marker is not None or not has_future_logs(filesystem, root):
            # Logs that are being moved here are not recovered, and a broker would load them as closed cleanly.
            write_clean_shutdown_file(filesystem, root, found.marker_of(report))
        filesystem.delete(os.path.join(root, IN_PROGRESS_FILE))
        filesystem.flush_directory(root)
    return with_ends(report, ends)


def _whole(found: RecoveryScan) -> RecoveryScan:
    if found.is_selection:
        raise OptionError(
            "In place, a log directory is recovered as a whole. Leave out the choice of topics."
        )
    return found


def _complete_replacements(
    filesystem: FileSystem,
    directory: PartitionDirectory,
    aside: str,
    policy: Policy,
    max_batch_bytes: int,
) -> None:
    """Complete what a compaction was about to replace.

    First, the log files that are removed unread are put aside: the output of an interrupted compaction, what it replaces, and
    what a broker's own recovery has discarded.
    """
    names = list_regular_files(filesystem, directory.path)
    if not any(name.endswith(_REPLACED) for name in names):
        return
    folder = os.path.join(aside, f"{directory.topic}-{directory.partition}")
    filesystem.make_directories(folder, like=[directory.root.path, directory.path])
    has_swap = any(name.endswith(LOG_SUFFIX + SWAP_SUFFIX) for name in names)
    for name in names:
        if name.endswith(_REPLACED) or (has_swap and name.endswith(LOG_SUFFIX)):
            copy_flushed(filesystem, os.path.join(directory.path, name), os.path.join(folder, name))
    filesystem.flush_directory(folder)
    if policy == "salvage":
        for name in damaged_swaps(filesystem, directory.path, names, max_batch_bytes):
            filesystem.delete(os.path.join(directory.path, name))
    complete_interrupted_swaps(filesystem, directory.path, keep_orphans=True)


class _InPlace:
    """Puts aside what changes, then changes it."""

    def __init__(
        self, filesystem: FileSystem, scan: RecoveryScan, aside: str, report: RecoveryReport
    ) -> None:
        self._filesystem = filesystem
        self._scan = scan
        self._aside = aside
        self._report = report

    def change(self, plans: Sequence[PartitionPlan]) -> None:
        self._put_aside(plans)
        root = self._scan.root.path
        if self._report.policy == "salvage" or self._scan.root.clean_shutdown:
            # Should a broker start before this is done, it must not discard what comes after damage.
            self._flush_logs(plans)
            points = {
                plan.directory.topic_partition: max(
                    plan.recovery_point, plan.segments[-1].base_offset if plan.segments else 0
                )
                for plan in plans
            }
            write_offset_checkpoint(self._filesystem, os.path.join(root, RECOVERY_POINT_CHECKPOINT), points)
        truncations = TruncationsFile(self._filesystem, root)
        for plan in plans:
            if plan.left_out:
                # Reads that are under way must not take what is cut for the log's end.
                cut_offset = min(each.start_offset for each in plan.left_out)
                truncations.note_begin(plan.directory.topic, plan.directory.partition, cut_offset)
        delete_clean_shutdown_file(self._filesystem, root)
        if any(each.path == self._scan.commits_path for each in self._report.left_out_files):
            self._filesystem.delete(self._scan.commits_path)
        for plan in plans:
            self._change_partition(plan)
        cleaned = cleaner_offsets(plans)
        path = os.path.join(root, CLEANER_OFFSET_CHECKPOINT)
        if self._filesystem.status(path) is not None:
            write_offset_checkpoint(self._filesystem, path, cleaned)

    def _flush_logs(self, plans: Sequence[PartitionPlan]) -> None:
        """Flush what the recovery points are going to call flushed, unless a clean shutdown did."""
        if self._scan.root.clean_shutdown:
            return
        self._filesystem.sync(self._scan.root.path)
        for plan in plans:
            for segment in plan.segments:
                path = os.path.join(plan.directory.path, segment.name)
                with self._filesystem.open_for_writing(path) as file:
                    file.flush()

    def _put_aside(self, plans: Sequence[PartitionPlan]) -> None:
        filesystem, root = self._filesystem, self._scan.root.path
        filesystem.make_directories(self._aside, like=[root])
        for name in _SET_ASIDE:
            copy_flushed(filesystem, os.path.join(root, name), os.path.join(self._aside, name))
        for plan in plans:
            if not (plan.left_out or plan.left_out_files or plan.epochs or plan.damaged):
                continue
            folder = path_in(self._aside, plan)
            filesystem.make_directories(folder, like=[root, plan.directory.path])
            for each in plan.left_out:
                name = f"{each.file}.{each.start_byte}-{each.end_byte}.cut"
                part = (each.start_byte, each.end_byte)
                source = os.path.join(plan.directory.path, each.file)
                copy_flushed(filesystem, source, os.path.join(folder, name), part)
            names = [os.path.basename(each.path) for each in plan.left_out_files]
            # Until the marker is back, a start would cut the last segment at damage that is kept.
            last = plan.segments[-1].name if plan.segments else None
            names += [each.file for each in plan.damaged if each.file == last]
            for name in sorted({LEADER_EPOCH_CHECKPOINT, *names, *plan.file_names}):
                copy_flushed(filesystem, os.path.join(plan.directory.path, name), os.path.join(folder, name))
            filesystem.flush_directory(folder)
        write_manifest(filesystem, os.path.join(self._aside, RECOVERY_MANIFEST), self._report)
        # Should this process be killed, the next recovery tells what this one has left out.
        replace_file(filesystem, os.path.join(root, IN_PROGRESS_FILE), manifest_bytes(self._report))

    def _change_partition(self, plan: PartitionPlan) -> None:
        filesystem, path = self._filesystem, plan.directory.path
        kept = {segment.base_offset: segment for segment in plan.segments}
        # The last first, so that a crash leaves no gap that nobody knows of.
        for base_offset in reversed(log_base_offsets(list_regular_files(filesystem, path))):
            segment = kept.get(base_offset)
            if segment is None:
                for name in (log_file_name(base_offset), *index_file_names(base_offset)):
                    filesystem.delete(os.path.join(path, name))
                filesystem.flush_directory(path)
            elif not segment.has_indexes:
                self._cut(path, segment)
        for each in plan.left_out_files:
            name = os.path.basename(each.path)
            if name in (LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA) or name.endswith(".snapshot"):
                filesystem.delete(each.path)
        filesystem.flush_directory(path)
        write_missing_files(filesystem, path, plan)

    def _cut(self, path: str, segment: SegmentPlan) -> None:
        """Cut a log file without its offset index, so that any later start recovers it, or replace it as a compaction does."""
        filesystem, name = self._filesystem, os.path.join(path, segment.name)
        is_prefix = not segment.kept or (segment.kept[0][0] == 0 and len(segment.kept) == 1)
        if not is_prefix:
            copy_ranges(filesystem, name, name + CLEANED_SUFFIX, segment)
            with filesystem.open_for_writing(name + CLEANED_SUFFIX) as made:
                made.flush()
            old, new = self._segment(path, segment, ""), self._segment(path, segment, CLEANED_SUFFIX)
            rename_files(filesystem, path, [new], [old])
            old.delete()
            return
        filesystem.delete(os.path.join(path, offset_index_file_name(segment.base_offset)))
        filesystem.flush_directory(path)
        if not segment.is_whole:
            with filesystem.open_for_writing(name) as file:
                file.truncate(segment.size_bytes)
                file.flush()
            filesystem.set_modified_ms(name, segment.status.modified_ms)

    def _segment(self, path: str, segment: SegmentPlan, suffix: str) -> LogSegment:
        return LogSegment(self._filesystem, path, segment.base_offset, LogConfig(), now_ms=0, suffix=suffix)
