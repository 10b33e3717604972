"""What becomes of one partition: its part of the journal, and the staged segments that are patched for it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage_core.checkpoint.commit_journal import JournalledPartition
from storage_core.commit.partition_state import SegmentTail
from storage_core.commit.patch import SegmentPatch
from storage_core.commit.placement import Placement
from storage_core.commit.portions import portions_of
from storage_core.errors import OptionError
from storage_core.record.batch_header import MAX_OFFSET
from storage_core.segment.offset_index_file import LARGEST_RELATIVE_OFFSET

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage_core.commit.fill import FillStage
    from storage_core.commit.manifest import StagedPiece
    from storage_core.commit.partition_state import PartitionState
    from storage_core.commit.placement import Portion
    from storage_core.commit.settings import JobSettings
    from storage_core.filesystem import FileSystem

__all__ = ["PartitionPlan", "plan_partition"]


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
