"""Changes that no reader can detect because they break no rule of the format. The campaign counts them by kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.damage.observation import LOG_START_CHECKPOINT, Observation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.damage.entries import Entry
    from tests.damage.reference import PartitionTruth, SegmentTruth

KINDS = {
    "offset": "A base offset, or the offset of a v0 or v1 message, was changed",
    "epoch": "A leader epoch was changed",
    "tail": "Batches are gone at the end of the log",
    "gap": "Batches are gone within the log, and no byte of them is left",
    "file": "A log file is gone, or has another name",
    "partition": "A log file holds batches of another partition",
    "segment": "A log file holds batches of another segment",
    "order": "Batches are out of order, before or after those that are read",
    "marker": "A transaction's marker is gone or damaged",
    "transactions": "A transaction index or a producer snapshot was changed or is gone",
    "times": "A time index was changed or is gone",
    "look-up": "A time was looked up in a log with damage, among headers whose CRC is not checked on the way",
    "checkpoint": "A checkpoint says another log start, high watermark, recovery point or leader epoch",
    "shutdown": "The marker of a clean shutdown is gone",
}


def unprovable_kinds(seen: Observation) -> set[str]:
    """Return the kinds that happened to a directory."""
    kinds = set()
    for truth in seen.truths.values():
        kinds |= set(_kinds_of_entries(truth))
        kinds |= set(_kinds_of_losses(seen, truth))
        if _has_surplus_beside(seen, truth):
            kinds.add("order")
    originals = {path for path, entries in seen.log.entries.items() if entries and path.startswith(seen.root)}
    if originals - seen.files.keys():
        kinds.add("file")
    if seen.touched & {"txnindex", "snapshot"}:
        kinds.add("transactions")
    if "timeindex" in seen.touched:
        kinds.add("times")
    looks_up_time = seen.read.has_times or (
        seen.read.condition is not None and "timestamp" in seen.read.condition.text
    )
    if looks_up_time and any(truth.is_changed for truth in seen.truths.values()):
        kinds.add("look-up")
    if ".kafka_cleanshutdown" in seen.touched_names and ".kafka_cleanshutdown" not in seen.files:
        kinds.add("shutdown")
    checkpoints = {LOG_START_CHECKPOINT, "replication-offset-checkpoint", "recovery-point-offset-checkpoint"}
    if len(seen.log.roots) > 1:
        # It decides which of several copies is the newest.
        checkpoints.add("leader-epoch-checkpoint")
    if seen.touched_names & checkpoints:
        kinds.add("checkpoint")
    return kinds


def _kinds_of_entries(truth: PartitionTruth) -> Iterator[str]:
    for segment in truth.segments:
        for found in segment.known:
            original = found.original
            if original is None:
                continue
            if original.topic_partition != truth.topic_partition:
                yield "partition"
            elif original.path != segment.path:
                yield "segment"
            elif found.shift:
                yield "offset"
            elif found.has_other_epoch:
                yield "epoch"


def _kinds_of_losses(seen: Observation, truth: PartitionTruth) -> Iterator[str]:
    standing = {found.original for segment in truth.segments for found in segment.known}
    for segment in truth.segments:
        lost = [entry for entry in seen.log.entries.get(segment.path, []) if entry not in standing]
        if any(entry.is_control for entry in lost):
            yield "marker"
        last_offset = segment.entries[-1].last_offset if segment.entries else -1
        if segment.next_base_offset is None and any(entry.first_offset > last_offset for entry in lost):
            yield "tail"
        if any(_is_without_trace(segment, entry) for entry in lost):
            yield "gap"


def _is_without_trace(segment: SegmentTruth, lost: Entry) -> bool:
    """Return whether no damaged byte is at the position of a lost entry."""
    before = [found.end for found in segment.entries if found.last_offset < lost.first_offset]
    following = [found.position for found in segment.entries if found.first_offset > lost.last_offset]
    if not following and segment.next_base_offset is None:
        return False
    start, end = max(before, default=0), min(following, default=segment.size)
    return not any(start <= each.start and each.end <= end for each in segment.damage)


def _has_surplus_beside(seen: Observation, truth: PartitionTruth) -> bool:
    """Return whether batches out of order lie before or after the entries that a read by offsets needs."""
    bounds = seen.bounds(truth.topic_partition)
    if bounds is None or not (seen.read.is_bounded or bounds[0] > truth.segments[0].base_offset):
        return False
    start_offset, end_offset = bounds
    entries = [(number, found) for number, segment in enumerate(truth.segments) for found in segment.entries]
    after_all = (len(truth.segments), 0)
    start = next(
        ((number, each.position) for number, each in entries if each.last_offset >= start_offset), after_all
    )
    end = next(
        ((number, each.end) for number, each in entries if each.last_offset >= end_offset - 1), after_all
    )
    return any(
        not start <= (number, found.position) < end
        for number, segment in enumerate(truth.segments)
        for found in segment.surplus
    )
