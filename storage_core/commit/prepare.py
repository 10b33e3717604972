"""Putting offsets and a leader epoch into a staged segment, in place: no CRC covers them.

The offsets are counted from what is not changed, so doing it twice is harmless.

What becomes of one partition: its part of the journal, and the staged segments that are patched for it.

Whether what a commit is to write to can be written to. Asked before the journal: behind it, it is too late to fail.

The journal of a job: what becomes of each partition. Nothing that is done here is visible.

Staged segments are patched, and a pack of the driver's own may be staged. A crash leaves staged
files, which are swept.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from storage_core.checkpoint import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    write_partition_metadata,
)
from storage_core.checkpoint.checkpoint_file import TEMPORARY_SUFFIX
from storage_core.commit.partition_state import (
    PartitionState,
    SegmentTail,
    new_partition_state,
    read_partition_state,
)
from storage_core.commit.placement import FillStage, Placement, pieces_by_partition, portions_of
from storage_core.commit_files.commits_file import COMMITS_FILE
from storage_core.commit_files.journal import (
    COMMIT_JOURNAL,
    AppendOperation,
    CommitJournal,
    JournalledPartition,
)
from storage_core.commit_replay.staged_batches import (
    BatchHeads,
    batch_heads,
    fingerprint,
    in_parallel,
    write_places,
)
from storage_core.errors import CorruptError, CorruptRecordError, LogDirectoryError, OptionError, StorageError
from storage_core.log.log_root import check_topic_partition, choose_topic_id
from storage_core.record.batch_header import MAX_OFFSET
from storage_core.segment.file_names import (
    LOG_SUFFIX,
    log_file_name,
    offset_index_file_name,
    snapshot_file_name,
    time_index_file_name,
)
from storage_core.segment.offset_index import LARGEST_RELATIVE_OFFSET

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from storage_core.commit.manifest import JobSettings, StagedManifest, StagedPiece
    from storage_core.commit.placement import Portion
    from storage_core.directory import PartitionDirectory
    from storage_core.filesystem import FileSystem

__all__ = [
    "PartitionPlan",
    "SegmentPatch",
    "patch_segment",
    "plan_partition",
    "prepare",
    "require_root",
    "require_space",
    "require_targets",
]


@dataclass(frozen=True, slots=True)
class SegmentPatch:
    """A staged segment, and what it gets.

    Attributes:
        file: Its name without suffix.
        base_offset: The offset of its first batch.
        leader_epoch: The epoch that its batches get.
        size_bytes: Its size.
        fingerprint: That of its batches, as they were staged.
        offset_count: How many offsets they take.
        keep_offsets: Whether the batches have their offsets already.
    """

    file: str
    base_offset: int
    leader_epoch: int
    size_bytes: int
    fingerprint: int
    offset_count: int
    keep_offsets: bool


def patch_segment(filesystem: FileSystem, root: str, segment: SegmentPatch, *, flush: bool) -> None:
    """Give the batches of a staged segment their offsets and their epoch.

    Raises:
        CorruptRecordError: It is not what was staged.
        StorageError: The file system refused.
    """
    path = os.path.join(root, segment.file + LOG_SUFFIX)
    with filesystem.open_for_writing(path) as file:
        if file.size_bytes() != segment.size_bytes:
            raise _not_as_staged(path, segment)
        found, end_offset = 0, segment.base_offset
        for heads in batch_heads(file, 0, segment.size_bytes):
            placed = heads.placed(None if segment.keep_offsets else end_offset, segment.leader_epoch)
            is_changed = placed.headers != heads.headers
            if is_changed.any():
                write_places(file, BatchHeads(placed.positions_bytes[is_changed], placed.headers[is_changed]))
            found = fingerprint([heads], found)
            end_offset = int(placed.last_offsets[-1]) + 1
        if found != segment.fingerprint or end_offset != segment.base_offset + segment.offset_count:
            raise _not_as_staged(path, segment)
        if flush:
            file.flush()


def _not_as_staged(path: str, segment: SegmentPatch) -> CorruptRecordError:
    return CorruptRecordError(
        f"Expected the {segment.size_bytes} bytes of batches that a task has staged, with the fingerprint "
        f"{segment.fingerprint:08x} and {segment.offset_count} offsets, found something else. Abort the job, and "
        "write it again.",
        path=path,
    )


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """What becomes of one partition.

    Attributes:
        partition: Its part of the journal.
        segments: The staged segments that become its own.
    """

    partition: JournalledPartition
    segments: tuple[SegmentPatch, ...]


def plan_partition(
    filesystem: FileSystem,
    root: str,
    settings: JobSettings,
    state: PartitionState,
    pieces: Sequence[StagedPiece],
    topic_id: str | None,
    fill: FillStage,
) -> PartitionPlan:
    """Check what was staged for a partition, and say what becomes of it.

    Args:
        filesystem: Where to read.
        root: The log directory.
        settings: The job.
        state: The partition as it is.
        pieces: What was staged for it, in the order of its rows.
        topic_id: What its ``partition.metadata`` is to say, if it is new.
        fill: Takes batches that stand in for offsets without records.

    Raises:
        OptionError: The offsets that rows are to keep do not fit.
        CorruptError: A staged file is not what its manifest says.
    """
    config = settings.config_of(state.topic)
    keep_offsets = settings.preserve_offsets
    portions = portions_of(filesystem, root, pieces, config, keep_offsets=keep_offsets)
    tail = state.tail
    if settings.mode == "overwrite" and tail is not None and tail.size_bytes:
        # So that what is overwritten can be deleted in whole segments.
        tail = dataclasses.replace(tail, is_open=False)
    placement = Placement(state.log_end_offset, tail, config)
    log_start, restored_end = _restored_bounds(settings, state)
    if keep_offsets:
        _require_within(state, portions, log_start)
        end_offset = portions[-1].end_offset if portions else state.log_end_offset
        if restored_end is not None:
            # In one go with the rows: each segment has at most one append.
            portions = portions + _fill(state, end_offset, log_start, restored_end, fill)
        _begin(placement, state, portions, log_start)
    placement.place_all(portions)
    if restored_end is not None and placement.next_offset < restored_end:
        # Nothing but a place in the order of offsets.
        placement.begin_segment(restored_end)
    segments = tuple(
        SegmentPatch(
            portion.file,
            placement.link_bases[portion.file],
            state.leader_epoch,
            portion.size_bytes,
            portion.fingerprint,
            portion.offset_count,
            keep_offsets,
        )
        for portion in portions
        if portion.file in placement.link_bases
    )
    return PartitionPlan(
        _journalled(state, placement, log_start, topic_id, keep_offsets=keep_offsets), segments
    )


def _journalled(
    state: PartitionState,
    placement: Placement,
    log_start: int,
    topic_id: str | None,
    *,
    keep_offsets: bool,
) -> JournalledPartition:
    log_end = placement.next_offset
    if log_end > MAX_OFFSET:
        raise OptionError(
            f"Expected offsets below {MAX_OFFSET} in {state.topic}-{state.partition}, found rows up to {log_end - 1}. "
            "Leave them out, or write to another partition.",
            offset=log_end - 1,
        )
    epochs = state.epochs_after if log_end > state.log_end_offset else state.epochs
    if epochs != state.epochs and not state.epochs:
        # Of a log that begins behind offset 0, the first epoch does, too.
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
        keep_offsets=keep_offsets,
    )


def _restored_bounds(settings: JobSettings, state: PartitionState) -> tuple[int, int | None]:
    """The log start offset from now on, and the log end that is asked for, if one is."""
    start = state.log_end_offset if settings.mode == "overwrite" else state.log_start_offset
    restored = settings.restored_offsets.get((state.topic, state.partition))
    if restored is None:
        return start, None
    restored_start, restored_end = restored
    if state.is_empty or settings.mode == "overwrite":
        start = max(start, restored_start)
    return start, restored_end


def _require_within(state: PartitionState, portions: Sequence[Portion], log_start: int) -> None:
    """Refuse rows in front of the log's end, or of where it is to start."""
    if not portions:
        return
    first_offset = portions[0].min_offset or 0
    if first_offset < max(state.log_end_offset, log_start):
        raise OptionError(
            f"Expected rows of {state.topic}-{state.partition} from its log end {state.log_end_offset}, and from the "
            f"log start {log_start}, on, found some from offset {first_offset} on: what is there keeps its offsets, "
            "too. Write to another directory, or leave out the rows that are there.",
            offset=first_offset,
        )


def _fill(
    state: PartitionState, end_offset: int, log_start: int, restored_end: int, fill: FillStage
) -> list[Portion]:
    """Stand in for what lies between the last row and where the log is to end, if it ends behind it."""
    return fill.portions(max(end_offset, log_start), restored_end, state.leader_epoch)


def _begin(placement: Placement, state: PartitionState, portions: Sequence[Portion], log_start: int) -> None:
    """A new log whose first offset is not its first row's begins with a segment that has it as its name."""
    if not state.is_new or not portions or log_start == portions[0].min_offset:
        return
    gap = (portions[0].min_offset or 0) - log_start
    if portions[0].index_size_bytes is None and gap + portions[0].offset_count <= LARGEST_RELATIVE_OFFSET:
        placement.tail = SegmentTail(log_start)
    else:
        placement.begin_segment(log_start)


# What is appended to; what is replaced is written under another name first.
_ROOT_FILES: Final = (
    COMMITS_FILE,
    *(
        name + TEMPORARY_SUFFIX
        for name in (
            COMMIT_JOURNAL,
            RECOVERY_POINT_CHECKPOINT,
            REPLICATION_OFFSET_CHECKPOINT,
            LOG_START_OFFSET_CHECKPOINT,
            CLEANER_OFFSET_CHECKPOINT,
        )
    ),
)
# Of each partition: a directory, indexes, a snapshot, epochs, each rounded up by the file system.
_SMALL_FILES_BYTES: Final = 24 * 1024
# Of the root: interlock, journal, commits, marker, and a checkpoint that takes the place of another.
_NEW_FILES_OF_ROOT: Final = 5
# A snapshot, epochs; of a new one its directory and its metadata, too.
_NEW_FILES_OF_PARTITION: Final = 2
_NEW_FILES_OF_NEW_PARTITION: Final = 4
_FILES_OF_SEGMENT: Final = 3


def require_root(filesystem: FileSystem, root: str) -> None:
    """Refuse a log directory whose own files this user may not write to.

    Raises:
        UnreadableError: This user may not write to one of them, or to the directory.
        LogDirectoryError: In the place of one of them stands something else.
    """
    filesystem.require_writable(root)
    for name in _ROOT_FILES:
        _require_file(filesystem, f"{root}/{name}")


def require_targets(filesystem: FileSystem, root: str, partitions: Iterable[JournalledPartition]) -> None:
    """Refuse what this user may not write to, and partitions into whose directories nothing can be linked.

    Raises:
        UnreadableError: This user may not write to a directory, or to a file that is written to.
        LogDirectoryError: A partition's directory is on another file system than the root, or in the place of a file
            stands something else.
    """
    require_root(filesystem, root)
    status = filesystem.status(root, follow_symlinks=True)
    device = None if status is None else status.device
    for partition in partitions:
        if partition.is_new or not partition.operations:
            continue
        directory = f"{root}/{partition.topic}-{partition.partition}"
        filesystem.require_writable(directory)
        status = filesystem.status(directory)
        if status is not None and status.device != device:
            raise LogDirectoryError(
                "Expected the directory of a partition on the file system of its log directory, found it on another "
                "one, to which staged files cannot be linked. Write to the log directory that is on that one, or move "
                "the partition's directory.",
                path=directory,
            )
        for operation in partition.operations:
            if isinstance(operation, AppendOperation):
                for name in (log_file_name, offset_index_file_name, time_index_file_name):
                    filesystem.require_writable(f"{directory}/{name(operation.segment_base_offset)}")
        for file_name in (
            LEADER_EPOCH_CHECKPOINT,
            LEADER_EPOCH_CHECKPOINT + TEMPORARY_SUFFIX,
            snapshot_file_name(partition.log_end_after),
        ):
            _require_file(filesystem, f"{directory}/{file_name}")


def require_space(filesystem: FileSystem, root: str, partitions: Sequence[JournalledPartition]) -> None:
    """Refuse to begin what the disk has no room for: bytes, or files where it takes only so many.

    What a quota of this user allows, no file system says.

    Raises:
        StorageError: There is too little.
    """
    operations = [operation for partition in partitions for operation in partition.operations]
    appends = [operation for operation in operations if isinstance(operation, AppendOperation)]
    needed_bytes = len(partitions) * _SMALL_FILES_BYTES
    needed_bytes += sum(staged.size_bytes for operation in appends for staged in operation.ranges)
    free_bytes = filesystem.free_bytes(root)
    if free_bytes < needed_bytes:
        raise StorageError(
            f"Expected {needed_bytes} bytes of free space for the commit, found {free_bytes}. Free some, and write "
            "again.",
            path=root,
        )
    # What is linked is there already, but tmpfs takes each name for a file.
    new_segments = len(operations) - sum(operation.size_before_bytes > 0 for operation in appends)
    needed_files = _NEW_FILES_OF_ROOT + _FILES_OF_SEGMENT * new_segments
    for partition in partitions:
        needed_files += _NEW_FILES_OF_NEW_PARTITION if partition.is_new else _NEW_FILES_OF_PARTITION
        needed_files += 0 if partition.operations else _FILES_OF_SEGMENT
    free_files = filesystem.free_files(root)
    if free_files is not None and free_files < needed_files:
        raise StorageError(
            f"Expected room for {needed_files} more files (inodes) for the commit, found room for {free_files}. Delete "
            "some files on this file system, and write again.",
            path=root,
        )


def _require_file(filesystem: FileSystem, path: str) -> None:
    status = filesystem.status(path)
    if status is None:
        return
    if not status.is_regular_file:
        raise LogDirectoryError(
            "Expected a regular file, or nothing, where a commit writes one, found something else. Move it away.",
            path=path,
        )
    filesystem.require_writable(path)


_MAX_MARKER_BYTES: Final = 4096


def prepare(
    filesystem: FileSystem,
    root: str,
    settings: JobSettings,
    manifests: Sequence[StagedManifest],
    directories: Sequence[PartitionDirectory],
    *,
    generation: int,
    time_ms: int,
) -> CommitJournal:
    """Find out what a job does to each partition, and do what of it nobody sees. The root is clean, and locked.

    Args:
        filesystem: Where to read and write.
        root: The log directory.
        settings: The job.
        manifests: What its tasks have reported.
        directories: The partitions that are there.
        generation: That of this commit.
        time_ms: The time.

    Raises:
        OptionError: The rows, or the settings, do not fit what is there.
        LogDirectoryError: A partition cannot be written to.
        CorruptError: A staged file, or a partition, is damaged.
        StorageError: The file system refused, or has no room for what is to be written.
    """
    pieces = pieces_by_partition(filesystem, root, settings, manifests)
    states = _states(filesystem, root, settings, pieces, directories)
    topic_ids = _topic_ids(filesystem, root, settings, states, directories)
    fill = FillStage(filesystem, root, settings.job_id)
    placed = [
        plan_partition(filesystem, root, settings, state, pieces.get(key, ()), topic_ids[state.topic], fill)
        for key, state in sorted(states.items())
    ]
    fill.write(flush=settings.flush)
    partitions = tuple(each.partition for each in placed)
    require_targets(filesystem, root, partitions)
    require_space(filesystem, root, partitions)
    segments = [segment for each in placed for segment in each.segments]
    in_parallel(
        lambda segment: patch_segment(filesystem, root, segment, flush=settings.flush),
        segments,
        settings.threads,
    )
    _complete(filesystem, root, states, topic_ids)
    marker = filesystem.read_file(os.path.join(root, CLEAN_SHUTDOWN_FILE), _MAX_MARKER_BYTES)
    if marker is None and not settings.flush:
        # Nobody puts it back.
        marker = b""
    if marker is None:
        raise CorruptError(
            f"Expected {CLEAN_SHUTDOWN_FILE} to stay, it was deleted. Stop who does so, and write again.",
            path=root,
        )
    return CommitJournal(
        job_id=settings.job_id,
        generation=generation,
        time_ms=time_ms,
        txn_app_id=settings.txn_app_id,
        txn_version=settings.txn_version,
        clean_shutdown=marker,
        manifests=tuple(manifest.name for manifest in manifests),
        partitions=partitions,
        is_flushed=settings.flush,
    )


def _states(
    filesystem: FileSystem,
    root: str,
    settings: JobSettings,
    pieces: dict[tuple[str, int], list[StagedPiece]],
    directories: Sequence[PartitionDirectory],
) -> dict[tuple[str, int], PartitionState]:
    """Every partition that changes, as it is now."""
    known = {directory.topic_partition: directory for directory in directories}
    restored = set(settings.restored_offsets)
    targeted = {topic for topic, _ in pieces} | set(settings.targeted_topics)
    changed = set(pieces) | restored
    for topic, count in settings.new_partitions.items():
        _require_count(root, settings, topic, count, sum(name == topic for name, _ in known))
        changed |= {(topic, number) for number in range(count) if (topic, number) not in known}
    if settings.mode == "overwrite":
        changed |= {key for key in known if key[0] in targeted}
    states = {}
    for key in changed:
        check_topic_partition(*key)
        directory = known.get(key)
        if directory is not None:
            start = directory.root.log_start_offsets.get(key, 0)
            states[key] = read_partition_state(filesystem, directory, start)
            continue
        if key[1] >= settings.new_partitions.get(key[0], 0) and key not in restored:
            raise OptionError(
                f"Expected rows for partitions that exist, or for new ones of a topic whose number of partitions is "
                f"given, found some for {key[0]}-{key[1]}. Say with 'partitions' how many the topic has."
            )
        if filesystem.status(os.path.join(root, f"{key[0]}-{key[1]}")) is not None:
            raise LogDirectoryError(
                "Expected nothing where a partition's directory is to be made, found something. Move it away.",
                path=os.path.join(root, f"{key[0]}-{key[1]}"),
            )
        states[key] = new_partition_state(*key)
    return states


def _require_count(root: str, settings: JobSettings, topic: str, count: int, found: int) -> None:
    """Rows were routed by how many partitions there are: nobody may have made others meanwhile."""
    if found not in (0, count) and not settings.restored_offsets:
        raise OptionError(
            f"Expected topic {topic} to be new, or to have {count} partitions, found {found}: another job has made "
            "it meanwhile. Write again.",
            path=root,
        )


def _topic_ids(
    filesystem: FileSystem,
    root: str,
    settings: JobSettings,
    states: dict[tuple[str, int], PartitionState],
    directories: Sequence[PartitionDirectory],
) -> dict[str, str | None]:
    """The id of each topic of which a partition is made, or which has to have the id that is asked for."""
    found: dict[str, str | None] = {}
    is_brokers = filesystem.status(os.path.join(root, META_PROPERTIES)) is not None
    for topic in sorted({topic for topic, _ in states}):
        wanted = settings.topic_ids.get(topic)
        of_topic = [state for state in states.values() if state.topic == topic]
        has_new = any(state.is_new for state in of_topic)
        # What a broker made is left as it is.
        is_complete = is_brokers or all(state.has_metadata for state in of_topic)
        if not has_new and wanted is None and is_complete:
            found[topic] = None
            continue
        paths = [directory.path for directory in directories if directory.topic == topic]
        if is_brokers and has_new and not paths and wanted is None:
            raise OptionError(
                f"Expected the id that the cluster gave to topic {topic}, found none: a broker puts a directory "
                "with another id aside, and makes an empty log in its place. Create the topic first, and give its "
                "id with topicIds.",
                path=root,
            )
        found[topic] = choose_topic_id(filesystem, topic, paths, wanted)
    return found


def _complete(
    filesystem: FileSystem,
    root: str,
    states: dict[tuple[str, int], PartitionState],
    topic_ids: dict[str, str | None],
) -> None:
    """Give an id to partitions without one, as `LogDirectory.open` does: a broker would put them aside."""
    without = [state for state in states.values() if not state.has_metadata]
    if without and filesystem.status(os.path.join(root, META_PROPERTIES)) is None:
        for state in without:
            topic_id = topic_ids[state.topic]
            if topic_id is not None:
                path = os.path.join(root, f"{state.topic}-{state.partition}", PARTITION_METADATA)
                write_partition_metadata(filesystem, path, topic_id)
