"""Preparing a commit: decides what happens to each partition, and assembles the journal.

Nothing here is visible to readers: staged segments get their offsets and leader epoch in place, and a pack file that
fills gaps may be staged. A crash leaves staged files, which a later commit removes. Everything that may make the commit
fail is checked here, before the journal is written.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Final

from storage_core.checkpoint import (
    CLEAN_SHUTDOWN_FILE,
    LEADER_EPOCH_CHECKPOINT,
    META_PROPERTIES,
    PARTITION_METADATA,
    write_partition_metadata,
)
from storage_core.checkpoint.partition_files import choose_topic_id
from storage_core.checkpoint.truncations_file import truncations_bytes
from storage_core.commit.partition_state import PartitionState, SegmentTail, read_partition_state
from storage_core.commit.placement import Placement, checked_batches, not_as_staged, staged_by_partition
from storage_core.commit.repeated import RowsDigest
from storage_core.commit.restored_offsets import GapFill
from storage_core.commit_files.commits_file import COMMITS_FILE, CommitEntry, WrittenRange
from storage_core.commit_files.journal import AppendOperation, CommitJournal, JournalledPartition
from storage_core.commit_replay.publish import require_own_directory
from storage_core.commit_replay.staged_batches import (
    BatchHeads,
    StagedFiles,
    batch_heads,
    fingerprint,
    in_parallel,
    write_places,
)
from storage_core.directory import check_topic_partition
from storage_core.directory.log_directory_files import LOCK_FILE
from storage_core.errors import CorruptError, LogDirectoryError, OptionError, SegmentLogError, StorageError
from storage_core.record.batch_header import MAX_OFFSET, last_offsets
from storage_core.segment.file_names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    log_file_name,
    snapshot_file_name,
)
from storage_core.segment.index_file import LARGEST_RELATIVE_OFFSET

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from storage_core.commit.job_spec import JobContext, JobSpec
    from storage_core.commit.manifest import StagedBatches, StagedManifest
    from storage_core.directory import PartitionDirectory
    from storage_core.filesystem import FileSystem


# Per partition: directory, indexes, snapshot and epochs, each rounded up by the file system.
_SMALL_FILES_BYTES: Final = 24 * 1024
# Interlock, journal, commits file, clean-shutdown file, and a checkpoint that replaces another.
_NEW_FILES_OF_ROOT: Final = 5
# Snapshot and epochs; a new partition also has its directory and metadata.
_NEW_FILES_OF_PARTITION: Final = 2
_NEW_FILES_OF_NEW_PARTITION: Final = 4
_FILES_OF_SEGMENT: Final = 3
_MAX_CLEAN_SHUTDOWN_BYTES: Final = 4096


def prepare(
    job: JobContext,
    manifests: Sequence[StagedManifest],
    directories: Sequence[PartitionDirectory],
    files: StagedFiles,
    *,
    generation: int,
    time_ms: int,
    rows: RowsDigest | None = None,
) -> CommitJournal:
    """Prepare a job's commit. The log directory is locked and clean.

    Raises:
        OptionError: The rows or the job do not fit the existing partitions.
        LogDirectoryError: A partition cannot be written to.
        CorruptError: A staged file or a partition is damaged.
        StorageError: The file system refused, or has too little space.
    """
    filesystem, root, spec = job.filesystem, job.root, job.spec
    staged = staged_by_partition(job, manifests)
    rows = _counted(staged, rows)
    states = _states(job, staged, directories)
    topic_ids = _topic_ids(job, states, directories)
    gaps = GapFill(job)
    plans = [
        journal_partition(job, files, state, staged.get(key, ()), topic_ids[state.topic], gaps)
        for key, state in sorted(states.items())
    ]
    gaps.write()
    partitions = tuple(partition for partition, _ in plans)
    require_targets(filesystem, root, partitions)
    require_space(filesystem, root, partitions)
    in_parallel(
        lambda args: assign_offsets(job, *args),
        [(*segment, partition.leader_epoch) for partition, linked in plans for segment in linked],
        spec.threads,
    )
    _write_missing_topic_ids(job, states, topic_ids)
    _delete_due_files(job, states.values(), time_ms)
    return CommitJournal(
        entry=_commit_entry(job, generation, time_ms, rows, partitions),
        clean_shutdown=_clean_shutdown(job),
        manifests=tuple(manifest.name for manifest in manifests),
        partitions=partitions,
        is_flushed=spec.flush,
    )


def _clean_shutdown(job: JobContext) -> bytes:
    """Return the content of the clean-shutdown file, which a job that flushes restores."""
    content = job.filesystem.read_file(job.path(CLEAN_SHUTDOWN_FILE), _MAX_CLEAN_SHUTDOWN_BYTES)
    if content is None and job.spec.flush:
        raise CorruptError(
            f"Expected {CLEAN_SHUTDOWN_FILE} to exist while the log directory is locked, found it deleted. Stop the "
            "program that deletes it, and write again.",
            path=job.root,
        )
    return content or b""


def _counted(
    staged: Mapping[tuple[str, int], Sequence[StagedBatches]], reported: RowsDigest | None
) -> RowsDigest:
    """Return what identifies the rows, after a check that they are as many as the tasks have reported."""
    count = sum(each.record_count for batches in staged.values() for each in batches)
    if reported is None:
        return RowsDigest(count, checksum=None)
    if reported.count != count:
        raise OptionError(
            f"Expected {reported.count} staged rows, which the tasks have reported, found {count}: while they ran, the "
            "version of this job was forgotten, or another program has removed rows. Write again."
        )
    return reported


def _commit_entry(
    job: JobContext,
    generation: int,
    time_ms: int,
    rows: RowsDigest,
    partitions: Iterable[JournalledPartition],
) -> CommitEntry:
    """Return the line of the commit. That of an application shows later whether a job is repeated, and its rows are there."""
    spec = job.spec
    entry = CommitEntry(generation, spec.job_id, time_ms, spec.txn_app_id, spec.txn_version, spec.query_id)
    if spec.txn_app_id is None:
        return entry
    ranges = tuple(
        WrittenRange(each.topic, each.partition, each.log_end_before, each.log_end_after)
        for each in partitions
        if each.log_end_before < each.log_end_after
    )
    entry = dataclasses.replace(entry, row_count=rows.count, checksum=rows.checksum)
    return entry.with_ranges(ranges, truncations_bytes(job.filesystem, job.root))


def assign_offsets(job: JobContext, staged: StagedBatches, base_offset: int, leader_epoch: int) -> None:
    """Write the final offsets and the leader epoch to the batches of a staged segment, in place.

    No CRC covers these fields. Offsets are derived from fields that do not change, so this can be repeated.

    Raises:
        CorruptRecordError: The segment is not what was staged.
    """
    path = job.path(staged.file + LOG_SUFFIX)
    has_offsets = staged.min_offset is not None
    with job.filesystem.open_for_writing(path) as file:
        if file.size_bytes() != staged.size_bytes:
            raise not_as_staged(path, staged)
        found, end_offset = 0, base_offset
        for heads in batch_heads(file, 0, staged.size_bytes):
            placed = heads.placed(None if has_offsets else end_offset, leader_epoch)
            is_changed = placed.headers != heads.headers
            if is_changed.any():
                write_places(file, BatchHeads(placed.positions_bytes[is_changed], placed.headers[is_changed]))
            found = fingerprint([heads], found)
            end_offset = int(last_offsets(placed.headers)[-1]) + 1
        if found != staged.fingerprint or end_offset != base_offset + staged.offset_count:
            raise not_as_staged(path, staged)
        if job.spec.flush:
            file.flush()


def journal_partition(
    job: JobContext,
    files: StagedFiles,
    state: PartitionState,
    staged: Sequence[StagedBatches],
    topic_id: str | None,
    gaps: GapFill,
) -> tuple[JournalledPartition, list[tuple[StagedBatches, int]]]:
    """Check what was staged for a partition, in the order of its rows, and place it.

    Returns:
        Its part of the journal, and the staged segments that are linked, each with its base offset.
    """
    spec = job.spec
    config = spec.config_of(state.topic)
    tail, log_start, restored_end = state.tail, state.log_start_offset, 0
    is_overwritten = spec.mode == "overwrite" and tail is not None and tail.size_bytes > 0
    if spec.mode == "overwrite":
        log_start = state.log_end_offset
    if tail is not None and is_overwritten:
        # Begin a new segment, so that retention can delete the overwritten ones.
        tail = dataclasses.replace(tail, is_open=False)
    begins_segment = tail is None or not tail.size_bytes or not tail.is_open
    batches = checked_batches(
        job, files, staged, config, begins_segment=begins_segment and not spec.preserve_offsets
    )
    placement = Placement(state.log_end_offset, tail, config)
    if spec.preserve_offsets:
        log_start, restored_end = _restored_bounds(spec, state)
        _require_after_log_end(state, batches, log_start)
        end_offset = (batches[-1].max_offset or 0) + 1 if batches else state.log_end_offset
        # Placed together with the rows, because each segment has at most one append.
        batches += gaps.batches(state, max(end_offset, log_start), restored_end)
        _begin_log(placement, state, batches, log_start)
    placement.place_all(batches)
    if is_overwritten and not placement.operations:
        # Without rows, too, so that the last segment of overwritten ones goes.
        placement.begin_segment(state.log_end_offset)
    if placement.next_offset < restored_end:
        # Too far for batches without records: an empty segment marks the log end.
        placement.begin_segment(restored_end)
    return _journalled(spec, state, placement, log_start, topic_id), placement.linked


def _journalled(
    spec: JobSpec, state: PartitionState, placement: Placement, log_start: int, topic_id: str | None
) -> JournalledPartition:
    log_end = placement.next_offset
    if log_end > MAX_OFFSET:
        raise OptionError(
            f"Expected offsets below {MAX_OFFSET} in {state.topic}-{state.partition}, found rows up to {log_end - 1}. "
            "Leave those out, or write them to another partition.",
            offset=log_end - 1,
        )
    epochs = state.epochs_after if log_end > state.log_end_offset else state.epochs
    if epochs != state.epochs and not state.epochs:
        # The first epoch of a log begins at the log start.
        epochs = (dataclasses.replace(epochs[-1], start_offset=max(log_start, state.log_end_offset)),)
    return JournalledPartition(
        topic=state.topic,
        partition=state.partition,
        is_new=state.is_new,
        topic_id=topic_id if state.is_new else None,
        leader_epoch=state.leader_epoch,
        log_start_before=state.log_start_offset,
        log_start_after=log_start,
        log_end_before=state.log_end_offset,
        log_end_after=log_end,
        epochs_after=epochs,
        snapshot_from=state.snapshot_from,
        operations=tuple(placement.operations),
        keep_offsets=spec.preserve_offsets,
    )


def _restored_bounds(spec: JobSpec, state: PartitionState) -> tuple[int, int]:
    """Return the log start offset after the commit, and the log end offset to restore; 0 if rows alone decide."""
    start, end = spec.restored_offsets.get((state.topic, state.partition), (0, 0))
    return max(start, state.log_start_offset) if state.is_empty else state.log_start_offset, end


def _require_after_log_end(state: PartitionState, staged: Sequence[StagedBatches], log_start: int) -> None:
    """Refuse rows before the log end or the new log start."""
    first_offset = (staged[0].min_offset or 0) if staged else MAX_OFFSET
    if first_offset < max(state.log_end_offset, log_start):
        raise OptionError(
            f"Expected rows of {state.topic}-{state.partition} at or after its log end {state.log_end_offset} and log "
            f"start {log_start}, found offset {first_offset}: existing rows keep their offsets, too. Write to another "
            "directory, or leave out the rows that exist.",
            offset=first_offset,
        )


def _begin_log(
    placement: Placement, state: PartitionState, staged: Sequence[StagedBatches], log_start: int
) -> None:
    """Name the first segment of a new log after its start offset, even if the first row comes later."""
    if not state.is_new or not staged or log_start == staged[0].min_offset:
        return
    gap = (staged[0].min_offset or 0) - log_start
    if staged[0].index_size_bytes is None and gap + staged[0].offset_count <= LARGEST_RELATIVE_OFFSET:
        placement.tail = SegmentTail(log_start)
    else:
        placement.begin_segment(log_start)


def require_root(filesystem: FileSystem, root: str) -> None:
    """Refuse a log directory in which this user may not write to the directory or the files of a commit."""
    filesystem.require_writable(root)
    # It is appended to. Other files are replaced.
    _require_file(filesystem, f"{root}/{COMMITS_FILE}")


def require_targets(filesystem: FileSystem, root: str, partitions: Iterable[JournalledPartition]) -> None:
    """Refuse partitions that this user may not write to, or into whose directories files cannot be linked.

    Raises:
        UnreadableError: This user may not write to a directory or file of the commit.
        LogDirectoryError: A partition's directory is on another file system than the root, or something else has the
            name of a file.
    """
    require_root(filesystem, root)
    status = filesystem.status(root, follow_symlinks=True)
    device = None if status is None else status.device
    for partition in partitions:
        if partition.is_new or not partition.operations:
            continue
        directory = f"{root}/{partition.topic}-{partition.partition}"
        require_own_directory(filesystem, directory)
        filesystem.require_writable(directory)
        status = filesystem.status(directory)
        if status is not None and status.device != device:
            raise LogDirectoryError(
                "Expected the directory of a partition on the file system of its log directory, found it on another "
                "one, to which staged files cannot be linked. Write to a log directory on that file system, or move "
                "the partition's directory.",
                path=directory,
            )
        for operation in partition.operations:
            if isinstance(operation, AppendOperation):
                for suffix in (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
                    filesystem.require_writable(f"{directory}/{operation.segment_base_offset:020d}{suffix}")
        snapshot = snapshot_file_name(partition.log_end_after)
        for name in (LEADER_EPOCH_CHECKPOINT, snapshot):
            _require_file(filesystem, f"{directory}/{name}")


def require_space(filesystem: FileSystem, root: str, partitions: Sequence[JournalledPartition]) -> None:
    """Refuse a commit for which the file system has too few free bytes or inodes. Quotas are not known."""
    operations = [operation for partition in partitions for operation in partition.operations]
    appends = [operation for operation in operations if isinstance(operation, AppendOperation)]
    needed_bytes = len(partitions) * _SMALL_FILES_BYTES
    needed_bytes += sum(staged.size_bytes for operation in appends for staged in operation.ranges)
    needed_bytes += sum(_copied_bytes(filesystem, root, partition) for partition in partitions)
    free_bytes = filesystem.free_bytes(root)
    if free_bytes < needed_bytes:
        raise StorageError(
            f"Expected {needed_bytes} bytes of free space for the commit, found {free_bytes}. Free some space and "
            "write again.",
            path=root,
        )
    # Linked files exist already, but tmpfs counts an inode for each name.
    new_segments = len(operations) - sum(operation.size_before_bytes > 0 for operation in appends)
    needed_files = _NEW_FILES_OF_ROOT + _FILES_OF_SEGMENT * new_segments
    for partition in partitions:
        needed_files += _NEW_FILES_OF_NEW_PARTITION if partition.is_new else _NEW_FILES_OF_PARTITION
        needed_files += 0 if partition.operations else _FILES_OF_SEGMENT
    free_files = filesystem.free_files(root)
    if free_files is not None and free_files < needed_files:
        raise StorageError(
            f"Expected room for {needed_files} more files (inodes) for the commit, found room for {free_files}. Delete "
            "some files on this file system and write again.",
            path=root,
        )


def _copied_bytes(filesystem: FileSystem, root: str, partition: JournalledPartition) -> int:
    """Return the size of the log files to append to that have a second name, as in a backup: a copy takes their place."""
    directory = f"{root}/{partition.topic}-{partition.partition}"
    found = (
        filesystem.status(f"{directory}/{log_file_name(operation.segment_base_offset)}")
        for operation in partition.operations
        if isinstance(operation, AppendOperation) and operation.size_before_bytes
    )
    return sum(status.size_bytes for status in found if status is not None and status.link_count > 1)


def _require_file(filesystem: FileSystem, path: str) -> None:
    status = filesystem.status(path)
    if status is None:
        return
    if not status.is_regular_file:
        raise LogDirectoryError(
            "Expected a regular file or nothing where a commit writes a file, found something else. Move it away.",
            path=path,
        )
    filesystem.require_writable(path)


def _states(
    job: JobContext,
    staged: Mapping[tuple[str, int], Sequence[StagedBatches]],
    directories: Sequence[PartitionDirectory],
) -> dict[tuple[str, int], PartitionState]:
    """Return the present state of every partition that changes."""
    spec = job.spec
    known = {directory.topic_partition: directory for directory in directories}
    restored = set(spec.restored_offsets)
    targeted = {topic for topic, _ in staged} | set(spec.targeted_topics)
    changed = set(staged) | restored
    for topic, count in spec.new_partitions.items():
        _require_count(job, topic, count, sum(name == topic for name, _ in known))
        changed |= {(topic, number) for number in range(count) if (topic, number) not in known}
    if spec.mode == "overwrite":
        changed |= {key for key in known if key[0] in targeted}
    for key in changed:
        check_topic_partition(*key)
    _require_distinct_names(
        job, {topic for topic, _ in changed - known.keys()}, {topic for topic, _ in known}
    )
    states = {}
    for key in changed:
        directory = known.get(key)
        if directory is not None:
            start = directory.root.log_start_offsets.get(key, 0)
            states[key] = read_partition_state(job.filesystem, directory, start)
            continue
        if key[1] >= spec.new_partitions.get(key[0], 0) and key not in restored:
            raise OptionError(
                f"Expected rows for existing partitions, or for new ones of a topic with a given number of partitions, "
                f"found some for {key[0]}-{key[1]}. Set the number with 'partitions'."
            )
        path = job.path(f"{key[0]}-{key[1]}")
        if job.filesystem.status(path) is not None:
            raise LogDirectoryError(
                "Expected nothing at the path of a new partition's directory, found something. Move it away.",
                path=path,
            )
        states[key] = PartitionState(*key)
    return states


def _require_distinct_names(job: JobContext, new: set[str], known: set[str]) -> None:
    """Refuse new topics whose directories would be those of others, on a file system that ignores case."""
    spelled: dict[str, str] = {}
    for topic in sorted(new | known):
        other = spelled.setdefault(topic.lower(), topic)
        if other == topic or new.isdisjoint((other, topic)):
            continue
        if job.filesystem.ignores_case(job.path(LOCK_FILE)):
            raise OptionError(
                f"The topics {other!r} and {topic!r} on a file system that ignores case would share a directory. Give one "
                "of them another name, or write to another file system.",
                path=job.root,
            )


def _require_count(job: JobContext, topic: str, count: int, found: int) -> None:
    """Refuse rows that were routed by another number of partitions than the topic has by now."""
    if found not in (0, count) and not job.spec.restored_offsets:
        raise OptionError(
            f"Rows were distributed to {count} partitions of topic {topic}, which has {found}: another job has created it "
            "in the meantime. Write again.",
            path=job.root,
        )


def _topic_ids(
    job: JobContext,
    states: dict[tuple[str, int], PartitionState],
    directories: Sequence[PartitionDirectory],
) -> dict[str, str | None]:
    """Return the id that the metadata file of each topic is written with, or None where no file is written."""
    found: dict[str, str | None] = {}
    is_brokers = job.filesystem.status(job.path(META_PROPERTIES)) is not None
    for topic in sorted({topic for topic, _ in states}):
        wanted = job.spec.topic_ids.get(topic)
        of_topic = [state for state in states.values() if state.topic == topic]
        has_new = any(state.is_new for state in of_topic)
        # Partitions that a broker created are not changed.
        is_complete = is_brokers or all(state.has_metadata for state in of_topic)
        if not has_new and wanted is None and is_complete:
            found[topic] = None
            continue
        paths = [directory.path for directory in directories if directory.topic == topic]
        if is_brokers and has_new and not paths and wanted is None:
            raise OptionError(
                f"Expected the id that the cluster gave to topic {topic}, found none: a broker moves a directory "
                "with another id aside and creates an empty log in its place. Create the topic first, and pass its "
                "id with topicIds.",
                path=job.root,
            )
        found[topic] = choose_topic_id(job.filesystem, topic, paths, wanted)
    return found


def _delete_due_files(job: JobContext, states: Iterable[PartitionState], now_ms: int) -> None:
    """Delete the files of segments that earlier jobs overwrote, once ``file.delete.delay.ms`` has passed."""
    for state in states:
        delay_ms = job.spec.config_of(state.topic).file_delete_delay_ms
        for name in state.deleted_files:
            path = job.path(f"{state.topic}-{state.partition}/{name}")
            status = job.filesystem.status(path)
            if status is not None and now_ms - status.modified_ms >= delay_ms:
                # What cannot be deleted costs space only.
                with contextlib.suppress(SegmentLogError):
                    job.filesystem.delete(path)


def _write_missing_topic_ids(
    job: JobContext, states: dict[tuple[str, int], PartitionState], topic_ids: dict[str, str | None]
) -> None:
    """Write the topic id of partitions without one, as `LogDirectory.open` does: a broker would move them aside."""
    without = [state for state in states.values() if not state.has_metadata]
    if without and job.filesystem.status(job.path(META_PROPERTIES)) is None:
        for state in without:
            topic_id = topic_ids[state.topic]
            if topic_id is not None:
                path = job.path(f"{state.topic}-{state.partition}/{PARTITION_METADATA}")
                write_partition_metadata(job.filesystem, path, topic_id)
