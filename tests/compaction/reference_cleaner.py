"""What Kafka's cleaner makes of a log, record by record: slow, plain, and independent of the product.

It follows the rules of Kafka 4.1 one by one: which offsets are cleaned, what the offset map holds, which segments
become one, which records, markers, empty batches and entries of the transaction index stay, and what the headers of
a batch say then. Keys are compared as they are, the map is a dict, and nothing is done to any file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tests.compaction.plain_batches import PlainAbort, PlainBatch, PlainRecord, PlainSegment

ABORT, COMMIT = 0, 1
MAX_OFFSET_DELTA = 2**31 - 1


class LastRecord(NamedTuple):
    """What is known of an active producer: its last data offset, or None, and its epoch."""

    last_data_offset: int | None
    producer_epoch: int


@dataclass(frozen=True)
class Rules:
    """The configuration of a log and of a cleaner, as far as it matters.

    Args:
        map_limit: How many keys the map takes.
    """

    delete_retention_ms: int = 86_400_000
    min_compaction_lag_ms: int = 0
    segment_bytes: int = 2**30
    segment_index_bytes: int = 10 * 2**20
    map_limit: int = 10**9


class DirtyRange(NamedTuple):
    """What a pass works on: from the first dirty offset up to the base of the first segment it leaves alone."""

    first_dirty_offset: int
    first_uncleanable_offset: int


@dataclass
class KeyMap:
    """The last offset of each key, and up to which offset the log is mapped."""

    offsets: dict[bytes, int] = field(default_factory=dict)
    latest_offset: int = -1


@dataclass(frozen=True)
class Cleaned:
    """A log after a pass.

    Attributes:
        end_offset: From where it is dirty now: the new checkpoint.
        segments: All segments, those that were left alone included. Of a new one the sizes are not known (0).
        groups: Base offsets of the segments that became one, in order.
        unkeyed_records: How many records without a key were dropped.
    """

    end_offset: int
    segments: tuple[PlainSegment, ...]
    groups: tuple[tuple[int, ...], ...]
    unkeyed_records: int = 0


@dataclass
class _Transaction:
    entry: PlainAbort
    has_been_seen: bool = False


class Transactions:
    """The transactions around the batches that are being read, in order of their offsets."""

    def __init__(self) -> None:
        self.cleaned_aborts: list[PlainAbort] = []
        self._waiting: list[PlainAbort] = []
        self._aborted: dict[int, _Transaction] = {}
        self._committed: set[int] = set()

    def add(self, aborts: Sequence[PlainAbort]) -> None:
        """Aborted transactions that the next batches may belong to."""
        self._waiting = sorted([*self._waiting, *aborts], key=lambda abort: abort.first_offset)

    def can_discard(self, batch: PlainBatch) -> bool:
        """Return whether a batch is data that was aborted, or a marker whose transaction has left no data."""
        while self._waiting and self._waiting[0].first_offset <= batch.last_offset:
            abort = self._waiting.pop(0)
            self._aborted.setdefault(abort.producer_id, _Transaction(abort))
        return self._is_idle_marker(batch) if batch.is_control else self._is_aborted_data(batch)

    def _is_aborted_data(self, batch: PlainBatch) -> bool:
        if not batch.is_transactional:
            return False
        transaction = self._aborted.get(batch.producer_id)
        if transaction is None:
            self._committed.add(batch.producer_id)
            return False
        transaction.has_been_seen = True
        return True

    def _is_idle_marker(self, batch: PlainBatch) -> bool:
        if not batch.records:
            return True
        if batch.control_type == ABORT:
            transaction = self._aborted.pop(batch.producer_id, None)
            if transaction is None or not transaction.has_been_seen:
                return True
            self.cleaned_aborts.append(transaction.entry)
            return False
        if batch.control_type == COMMIT:
            if batch.producer_id not in self._committed:
                return True
            self._committed.remove(batch.producer_id)
        return False


def dirty_range(
    segments: Sequence[PlainSegment],
    rules: Rules,
    *,
    checkpoint: int | None,
    log_start_offset: int,
    log_end_offset: int,
    last_stable_offset: int,
    now_ms: int,
) -> DirtyRange:
    """Return which offsets a pass cleans; the last segment is the active one."""
    first_dirty_offset = log_start_offset if checkpoint is None else checkpoint
    if not log_start_offset <= first_dirty_offset <= log_end_offset:
        first_dirty_offset = log_start_offset
    *inactive, active = segments
    bounds = [last_stable_offset, active.base_offset]
    if rules.min_compaction_lag_ms > 0:
        dirty = _between(inactive, first_dirty_offset, active.base_offset)
        youngest_ms = now_ms - rules.min_compaction_lag_ms
        bounds += [each.base_offset for each in dirty if each.largest_timestamp_ms > youngest_ms]
    bound = max(first_dirty_offset, min(bounds))
    # Whole segments only: from the one that holds the bound on nothing is touched.
    within = _between(inactive, bound, active.base_offset) if bound < active.base_offset else []
    return DirtyRange(first_dirty_offset, within[0].base_offset if within else active.base_offset)


def cleanable_bytes(segments: Sequence[PlainSegment], dirty: DirtyRange) -> int:
    """Return the bytes that a pass has to do with beyond what is clean; without any there is no pass."""
    within = _between(segments, dirty.first_dirty_offset, dirty.first_uncleanable_offset)
    return sum(segment.size_bytes for segment in within)


def clean(
    segments: Sequence[PlainSegment],
    rules: Rules,
    dirty: DirtyRange,
    *,
    last_records: Mapping[int, LastRecord],
    now_ms: int,
) -> Cleaned:
    """Make one pass over a log; the last segment is the active one."""
    key_map = build_map(segments, rules, dirty)
    end_offset = key_map.latest_offset + 1
    clean_before = _between(segments, 0, dirty.first_dirty_offset)
    legacy_horizon_ms = clean_before[-1].modified_ms - rules.delete_retention_ms if clean_before else 0
    groups = group(_between(segments, 0, end_offset), rules, dirty.first_uncleanable_offset)
    transactions = Transactions()
    unkeyed: list[PlainRecord] = []
    log = list(segments)
    for members in groups:
        cleaned = clean_group(
            members,
            log,
            rules,
            key_map,
            transactions,
            upper_bound_offset=dirty.first_uncleanable_offset,
            legacy_horizon_ms=legacy_horizon_ms,
            last_records=last_records,
            now_ms=now_ms,
            unkeyed=unkeyed,
        )
        bases = {member.base_offset for member in members}
        log = sorted(
            [*(each for each in log if each.base_offset not in bases), cleaned],
            key=lambda segment: segment.base_offset,
        )
    bases = tuple(tuple(member.base_offset for member in members) for members in groups)
    return Cleaned(end_offset, tuple(log), bases, len(unkeyed))


def build_map(segments: Sequence[PlainSegment], rules: Rules, dirty: DirtyRange) -> KeyMap:
    """Return the last offset of each key of the dirty segments, as far as the map takes them."""
    key_map, transactions = KeyMap(), Transactions()
    start, end = dirty
    members = _between(segments, start, end)
    transactions.add(_aborts(segments, start, end))
    next_bases = [*(segment.base_offset for segment in members[1:]), end]
    for segment, next_base in zip(members, next_bases, strict=True):
        for batch in segment.batches:
            can_discard = transactions.can_discard(batch)
            if not can_discard and not batch.is_control and _is_full(batch, key_map, rules, start):
                return key_map
            if batch.last_offset >= start:
                key_map.latest_offset = batch.last_offset
        # Offsets that are missing at the end of a segment are no reason to come back.
        key_map.latest_offset = next_base - 1
    return key_map


def _is_full(batch: PlainBatch, key_map: KeyMap, rules: Rules, start: int) -> bool:
    for record in batch.records:
        if record.key is None or record.offset < start:
            continue
        # A full map takes no further record, even of a key that it holds.
        if len(key_map.offsets) >= rules.map_limit:
            return True
        key_map.offsets[record.key] = record.offset
        key_map.latest_offset = record.offset
    return False


def group(
    segments: Sequence[PlainSegment], rules: Rules, first_uncleanable_offset: int
) -> list[list[PlainSegment]]:
    """Segments that become one, because together they are no larger than one may be."""
    groups: list[list[PlainSegment]] = []
    for number, segment in enumerate(segments):
        following = (
            segments[number + 1].base_offset if number + 1 < len(segments) else first_uncleanable_offset
        )
        if groups and _joins(segment, groups[-1], rules, following - 1):
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return groups


def _joins(segment: PlainSegment, members: list[PlainSegment], rules: Rules, last_offset: int) -> bool:
    together = [*members, segment]
    return (
        sum(each.size_bytes for each in together) <= rules.segment_bytes
        and sum(each.offset_index_bytes for each in together) <= rules.segment_index_bytes
        and sum(each.time_index_bytes for each in together) <= rules.segment_index_bytes
        and (segment.size_bytes == 0 or last_offset - members[0].base_offset <= MAX_OFFSET_DELTA)
    )


def clean_group(
    members: Sequence[PlainSegment],
    log: Sequence[PlainSegment],
    rules: Rules,
    key_map: KeyMap,
    transactions: Transactions,
    *,
    upper_bound_offset: int,
    legacy_horizon_ms: int,
    last_records: Mapping[int, LastRecord],
    now_ms: int,
    unkeyed: list[PlainRecord] | None = None,
) -> PlainSegment:
    """Return the segment that takes the place of a group; the whole log tells what was aborted."""
    batches: list[PlainBatch] = []
    transactions.cleaned_aborts = []
    for number, segment in enumerate(members):
        is_last = number + 1 == len(members)
        upper = segment.next_offset if is_last else members[number + 1].base_offset
        transactions.add(_aborts(log, segment.base_offset, upper))
        for batch in segment.batches:
            batches += filter_batch(
                batch,
                rules,
                key_map,
                transactions,
                upper_bound_offset=upper_bound_offset,
                keeps_legacy_tombstones=segment.modified_ms > legacy_horizon_ms,
                last_records=last_records,
                now_ms=now_ms,
                unkeyed=unkeyed,
            )
    return PlainSegment(
        members[0].base_offset, tuple(batches), tuple(transactions.cleaned_aborts), members[-1].modified_ms
    )


def filter_batch(
    batch: PlainBatch,
    rules: Rules,
    key_map: KeyMap,
    transactions: Transactions,
    *,
    upper_bound_offset: int,
    last_records: Mapping[int, LastRecord],
    now_ms: int,
    keeps_legacy_tombstones: bool = True,
    unkeyed: list[PlainRecord] | None = None,
) -> list[PlainBatch]:
    """Return what is left of a batch: one batch, or none."""
    horizon_ms = batch.delete_horizon_ms
    can_discard = transactions.can_discard(batch)
    discards = can_discard
    if batch.is_control:
        discards = can_discard and horizon_ms is not None and horizon_ms <= now_ms
    keeps_empty = _is_last_of_producer(batch, last_records) or batch.last_offset + 1 == upper_bound_offset
    if batch.magic < 2:
        keeps_tombstones = keeps_legacy_tombstones
    else:
        keeps_tombstones = horizon_ms is None or now_ms < horizon_ms
    survivors = [
        record
        for record in batch.records
        if not discards
        and (batch.is_control or _stays(record, key_map, keeps_tombstones=keeps_tombstones, unkeyed=unkeyed))
    ]
    if not survivors:
        return [_emptied(batch)] if keeps_empty else []
    has_tombstone = any(record.value is None for record in survivors)
    is_idle_marker = batch.is_control and can_discard
    needs_horizon = (has_tombstone or is_idle_marker) and horizon_ms is None
    if batch.magic == 2 and len(survivors) == len(batch.records) and not needs_horizon:
        return [batch]
    new_horizon_ms = now_ms + rules.delete_retention_ms if needs_horizon else horizon_ms
    return [_rebuilt(batch, survivors, new_horizon_ms)]


def _stays(
    record: PlainRecord, key_map: KeyMap, *, keeps_tombstones: bool, unkeyed: list[PlainRecord] | None
) -> bool:
    if record.offset > key_map.latest_offset:
        return True
    if record.key is None:
        if unkeyed is not None:
            unkeyed.append(record)
        return False
    is_latest = record.offset >= key_map.offsets.get(record.key, -1)
    return is_latest and (record.value is not None or keeps_tombstones)


def _is_last_of_producer(batch: PlainBatch, last_records: Mapping[int, LastRecord]) -> bool:
    if batch.producer_id < 0 or batch.producer_id not in last_records:
        return False
    last = last_records[batch.producer_id]
    if last.last_data_offset is not None:
        return batch.last_offset == last.last_data_offset
    return batch.is_control and batch.producer_epoch == last.producer_epoch


def _emptied(batch: PlainBatch) -> PlainBatch:
    # Kafka fails here for a message of an old format.
    return replace(
        batch,
        records=(),
        base_timestamp_ms=-1,
        codec=0,
        has_delete_horizon=False,
        magic=2,
        raw=None,
    )


def _rebuilt(batch: PlainBatch, survivors: list[PlainRecord], horizon_ms: int | None) -> PlainBatch:
    # A negative horizon cannot be told from none, and is lost.
    has_horizon = horizon_ms is not None and horizon_ms >= 0
    if batch.magic < 2:
        batch = replace(
            batch,
            base_offset=survivors[0].offset,
            last_offset=survivors[-1].offset,
            is_append_time=batch.is_append_time and batch.magic == 1,
            leader_epoch=-1,
            magic=2,
        )
    largest_ms = max(record.timestamp_ms for record in survivors)
    return replace(
        batch,
        records=tuple(survivors),
        base_timestamp_ms=horizon_ms if has_horizon else survivors[0].timestamp_ms,
        max_timestamp_ms=batch.max_timestamp_ms if batch.is_append_time else max(largest_ms, -1),
        has_delete_horizon=has_horizon,
        raw=None,
    )


def _between(segments: Sequence[PlainSegment], start: int, end: int) -> list[PlainSegment]:
    """Return the segments below an offset, from the one on that holds another."""
    if start >= end:
        return []
    floor = max((segment.base_offset for segment in segments if segment.base_offset <= start), default=start)
    return [segment for segment in segments if floor <= segment.base_offset < end]


def _aborts(segments: Sequence[PlainSegment], start: int, end: int) -> list[PlainAbort]:
    """Aborted transactions that reach into a range: their entries may be in later segments."""
    found = []
    floor = max((segment.base_offset for segment in segments if segment.base_offset <= start), default=None)
    if floor is None:
        return []
    for segment in segments:
        if segment.base_offset < floor:
            continue
        for abort in segment.aborts:
            if abort.last_offset >= start and abort.first_offset < end:
                found.append(abort)
            if abort.last_stable_offset >= end:
                return found
    return found
