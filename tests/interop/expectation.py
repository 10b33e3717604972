"""What a read of a damaged partition must return, derived from the original files and the damaged ones.

These rules decide the cases that the bytes alone do not:

* An entry survives if each of its bytes does, at whatever position. No CRC covers the base offset and the leader epoch
  of format v2, or the offset of v0 and v1. A changed leader epoch goes unnoticed.
* A changed offset that keeps the order looks like a true one: the broker and we read the entry's records with it. An
  offset that breaks the order is damage. The broker's recovery does not check the order, and its consumers then skip
  or miss records; so the two are compared only up to the first such entry.
* The surrounding entries decide which of two entries is out of order: entries that the damage did not touch are right.
  Of repeated entries, the first ones count, unless more entries are in order with the second ones.
* No CRC covers a magic above 2, either. The broker keeps such a batch, and consumers cannot get past it.
* Bytes after the last whole entry of the last segment are a torn append, not damage, unless they contain a whole entry
  that is out of order. In any other segment they are damage, even if they are too short for a broker's scan to notice:
  recovery truncates them and drops the later segments. Zeros alone, as preallocation leaves them, are no damage
  unless offsets are missing after them; where compaction removed offsets, they may count as damage.
* Damage below the log start offset goes unnoticed, unless a read happens to scan it.
* A lost file leaves an offset gap, as deletion and compaction do. A broker continues after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.interop.log_bytes import Entry, Found, Log, entries_of_log, find_entries

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.interop.clients import Row


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes of a log file that yield no rows.

    Attributes:
        start_offset: The lowest offset that may be lost with them.
        end_offset: One more than the highest such offset.
        is_certain: False for zeros before offsets that compaction may have removed.
    """

    segment: int
    start: int
    end: int
    start_offset: int
    end_offset: int
    is_certain: bool = True


@dataclass(frozen=True, slots=True)
class Remains:
    """What survived of a damaged partition.

    Attributes:
        found: The entries that a read must return, in order.
        misplaced: Whole entries that are out of order.
        damage: The bytes between the entries that a read must return.
        tail: The bytes after the last of them, if they are no damage by themselves.
    """

    found: tuple[Found, ...]
    misplaced: tuple[Found, ...]
    damage: tuple[Gap, ...]
    tail: Gap | None

    @property
    def is_refused_by_a_broker(self) -> bool:
        """Whether a whole entry's offset is below its file's base offset, or too far above it for an index.

        A broker tries to split such a segment, usually fails, and then does not start.
        """
        return any(
            each.base_offset < each.segment or each.last_offset - each.segment >= 1 << 31
            for each in (*self.found, *self.misplaced)
        )

    @property
    def first_misplaced_offset(self) -> int | None:
        """The lowest offset at which a broken order may show; None if the order is intact."""
        offsets = []
        for wrong in self.misplaced:
            place = (wrong.segment, wrong.position)
            before = [each.last_offset + 1 for each in self.found if (each.segment, each.position) < place]
            offsets.append(min(max(before, default=0), wrong.base_offset))
        return min(offsets, default=None)


def remains_of(original: Log, damaged: Log) -> Remains:
    """Find the entries that survived.

    Args:
        original: The files as the broker wrote them.
        damaged: The same files after damage, without lost ones.
    """
    entries = entries_of_log(original)
    whole = [
        found
        for segment, content in sorted(damaged.items())
        for found in find_entries(content, segment, [each for each in entries if each.segment == segment])
    ]
    right = _most_in_order([each for each in whole if each.shift == 0])
    doubtful = [each for each in whole if each not in right]
    # An offset with a missing byte may seem to start with the last byte of the previous entry.
    doubtful = [each for each in doubtful if not any(_overlap(each, other) for other in right)]
    misplaced = []
    for each in doubtful:
        (right if _keeps_order(each, right, damaged) else misplaced).append(each)
    found = sorted(right, key=_place)
    damage = _damage(entries, found, misplaced, damaged)
    return Remains(tuple(found), tuple(misplaced), damage, _tail(found, damage, damaged))


def rows_in(found: Iterable[Found], rows: Sequence[Row], log_start_offset: int) -> list[Row]:
    """The records of these entries, from the rows that a consumer read from the undamaged partition."""
    shifted = (
        row._replace(offset=row.offset + each.shift_of_records)
        for each in found
        for row in rows
        if each.entry.base_offset <= row.offset <= each.entry.last_offset
    )
    return [row for row in shifted if row.offset >= log_start_offset]


def _place(found: Found) -> tuple[int, int]:
    return (found.segment, found.position)


def _most_in_order(found: Sequence[Found]) -> list[Found]:
    """The largest set of entries in order; if several are equally large, the one whose entries come first."""
    longest: list[list[Found]] = []
    for each in found:
        before = [chain for chain in longest if _follows(each, chain[-1])]
        longest.append([*max(before, key=len, default=[]), each])
    return max(longest, key=len, default=[])


def _follows(found: Found, before: Found) -> bool:
    return found.base_offset > before.last_offset and not _overlap(found, before)


def _overlap(one: Found, other: Found) -> bool:
    return one.segment == other.segment and one.position < other.end and other.position < one.end


def _keeps_order(doubtful: Found, right: Iterable[Found], damaged: Log) -> bool:
    place = _place(doubtful)
    if doubtful.entry.magic == 0 and doubtful.entry.is_wrapper and abs(doubtful.shift) >= 1 << 31:
        # Contradicted by the absolute offsets inside.
        return False
    if doubtful.base_offset < doubtful.segment or any(
        segment > doubtful.segment and segment <= doubtful.last_offset for segment in damaged
    ):
        return False
    return all(
        other.last_offset < doubtful.base_offset
        if _place(other) < place
        else doubtful.last_offset < other.base_offset
        for other in right
    )


def _tail(found: Sequence[Found], damage: Iterable[Gap], damaged: Log) -> Gap | None:
    segment = max(damaged)
    position, next_offset, end = 0, segment, len(damaged[segment])
    for each in found:
        if each.segment == segment:
            position, next_offset = each.end, each.last_offset + 1
    is_damage = any((gap.segment, gap.start) == (segment, position) for gap in damage)
    return None if position == end or is_damage else Gap(segment, position, end, next_offset, next_offset)


def _damage(
    entries: Iterable[Entry], found: Sequence[Found], misplaced: Sequence[Found], damaged: Log
) -> tuple[Gap, ...]:
    gaps = []
    last_entries = {entry.segment: entry for entry in entries}
    present = {each.entry for each in found}
    segments = sorted(damaged)
    for segment, next_segment in zip(segments, [*segments[1:], None], strict=True):
        position, next_offset = 0, segment
        for each in found:
            if each.segment == segment:
                if each.position > position:
                    gaps.append(Gap(segment, position, each.position, next_offset, each.base_offset))
                position, next_offset = each.end, each.last_offset + 1
        end = len(damaged[segment])
        if next_segment is None:
            is_damage = any(each.segment == segment and each.position >= position for each in misplaced)
        else:
            is_damage = any(damaged[segment][position:]) or next_offset < next_segment
        if position < end and is_damage:
            end_offset = next_offset if next_segment is None else next_segment
            is_lost = segment in last_entries and last_entries[segment] not in present
            is_certain = is_lost or any(damaged[segment][position:])
            gaps.append(Gap(segment, position, end, next_offset, end_offset, is_certain))
    return tuple(gaps)
