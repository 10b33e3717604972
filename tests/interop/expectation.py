"""What a read of a damaged partition must give, from what the broker wrote and what is left of it.

These rules decide where bytes alone do not:

* An entry survives if each of its bytes does, wherever it stands in its file by now. The base offset and the leader
  epoch of format v2 and the offset of v0 and v1 are under no CRC. A changed leader epoch is not seen.
* A changed offset that keeps the order cannot be told from a true one: the entry's records are read with it, by the
  broker and by us. One that breaks the order is damage. The broker's recovery does not look at the order, and its
  consumers then skip or miss records; so the two are compared only up to the first such entry.
* Which of two entries is out of order follows from all that surrounds them: those that the damage did not touch are
  right. Of entries that stand there twice, the first ones count, unless more are in order with the second ones.
* A magic above 2 is under no CRC either. The broker keeps such a batch, and no consumer gets past it.
* What is behind the last whole entry of the last segment is a torn append, not damage, unless a whole entry out of
  order is among it. In any other segment it is
  damage, also where it is so short that a broker's walk ignores it: its recovery cuts it off and drops the segments
  behind. Only zeros, as preallocation leaves them, are no damage where no offset is missing; where compaction took
  offsets away, they may be taken for damage.
* Damage below the log start offset is not looked at, unless a read happens to walk over it.
* A lost file leaves a gap between two offsets, as deletion and compaction do. A broker reads on behind it.
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
    """Bytes of a log file that give no rows.

    Attributes:
        start_offset: The least offset that may be lost with them.
        end_offset: Behind the greatest one.
        is_certain: False for zeros in front of offsets that compaction may have taken away.
    """

    segment: int
    start: int
    end: int
    start_offset: int
    end_offset: int
    is_certain: bool = True


@dataclass(frozen=True, slots=True)
class Remains:
    """What is left of a damaged partition.

    Attributes:
        found: The entries that a read must give, in order.
        misplaced: Whole entries that are out of order.
        damage: What lies between those that a read must give.
    """

    found: tuple[Found, ...]
    misplaced: tuple[Found, ...]
    damage: tuple[Gap, ...]

    @property
    def is_refused_by_a_broker(self) -> bool:
        """Whether a whole entry has an offset below its file's name, or so far above that no index can say it.

        A broker tries to split such a segment, mostly in vain, and then does not start.
        """
        return any(
            each.base_offset < each.segment or each.last_offset - each.segment >= 1 << 31
            for each in (*self.found, *self.misplaced)
        )

    @property
    def first_misplaced_offset(self) -> int | None:
        """The lowest offset at which a disorder may begin to show; None if there is none."""
        offsets = []
        for wrong in self.misplaced:
            place = (wrong.segment, wrong.position)
            before = [each.last_offset + 1 for each in self.found if (each.segment, each.position) < place]
            offsets.append(min(max(before, default=0), wrong.base_offset))
        return min(offsets, default=None)


def remains_of(original: Log, damaged: Log) -> Remains:
    """Find out what survived.

    Args:
        original: As the broker wrote it.
        damaged: The same files after damage; lost ones are missing.
    """
    entries = entries_of_log(original)
    whole = [
        found
        for segment, content in sorted(damaged.items())
        for found in find_entries(content, segment, [each for each in entries if each.segment == segment])
    ]
    right = _most_in_order([each for each in whole if each.shift == 0])
    doubtful = [each for each in whole if each not in right]
    # An offset of which a byte is gone seems to begin with the last byte of the entry before.
    doubtful = [each for each in doubtful if not any(_overlap(each, other) for other in right)]
    misplaced = []
    for each in doubtful:
        (right if _keeps_order(each, right, damaged) else misplaced).append(each)
    found = sorted(right, key=_place)
    return Remains(tuple(found), tuple(misplaced), _damage(entries, found, misplaced, damaged))


def rows_in(found: Iterable[Found], rows: Sequence[Row], log_start_offset: int) -> list[Row]:
    """The records of entries, from the rows that a consumer read of the undamaged partition."""
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
    """As many as can stand one behind the other; of equally many, those that stand first."""
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
        # The absolute offsets inside contradict it.
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
