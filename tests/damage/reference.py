"""What stands in a damaged log by a slow and simple rule: the oracle that reads are judged by.

A file is walked from its first byte. Where a whole entry stands whose CRC is right and whose offsets follow
those before it, it counts. Otherwise the next byte is tried, and so on: what lies between two entries that
count is one damaged range.

An entry is *astray* if its CRC is right, but it stands at another offset, in another file or in another
partition; it is *surplus* if it stands twice or out of order. No CRC tells that; only order and file names may.
Which of the entries beside it count is then the reader's choice, so completeness is not asked of segments that hold
one.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.damage.base_log import BaseLog, TopicPartition, base_offset_of, segments_of
from tests.damage.contents import is_told, last_offset_of
from tests.damage.entries import Entry, Row, is_valid_entry, size_of_entry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


MAX_OFFSET = 2**63 - 1


@dataclass(frozen=True)
class Found:
    """An entry that stands in a file.

    Attributes:
        position: Where.
        size: Its size.
        original: What it is a copy of, as far as its CRC reaches; None if its CRC was made right again.
        shift: What was added to its offset.
        has_other_epoch: Whether its leader epoch is another one than was written.
    """

    position: int
    size: int
    stored_offset: int
    original: Entry | None
    shift: int = 0
    has_other_epoch: bool = False

    @property
    def end(self) -> int:
        return self.position + self.size

    @property
    def first_offset(self) -> int:
        return self.stored_offset if self.original is None else self.original.first_offset + self.shift

    @property
    def last_offset(self) -> int:
        return self.stored_offset if self.original is None else self.original.last_offset + self.shift

    def rows(self) -> Iterator[tuple[int, Row]]:
        original = self.original
        if original is None:
            return
        # A compressed v0 message set holds absolute offsets: its own offset moves nothing.
        shift = 0 if original.magic == 0 and original.is_wrapper else self.shift
        for offset, row in original.rows:
            yield offset + shift, row


@dataclass(frozen=True)
class DamagedBytes:
    """Bytes that are no entry, or none that counts, with the offsets that may be lost with them."""

    start: int
    end: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True)
class SegmentTruth:
    """One log file.

    Attributes:
        next_base_offset: Where the next segment begins; None for the last one.
        entries: Those that count, in order.
        damage: What lies between them.
        tail: Of the last segment: the damage behind its last entry, which is the end of the log and no damage.
        astray: Entries that are not where they belong, wherever they were found.
        surplus: Entries that belong here, but follow what they should precede, or reach into the next segment.
        has_inner: Whether a message of a wrapper or of a value shows in what is damaged, with a CRC of its own that is
            right: a reader may take it for an entry, and what stands in front of it for damage.
        untold: The first and last offsets of those messages and batches of which nothing says that they are content.
    """

    path: str
    base_offset: int
    next_base_offset: int | None
    size: int
    entries: tuple[Found, ...]
    damage: tuple[DamagedBytes, ...]
    tail: DamagedBytes | None
    astray: tuple[Found, ...]
    surplus: tuple[Found, ...]
    has_inner: bool = False
    untold: tuple[tuple[int, int], ...] = ()

    @property
    def known(self) -> Iterator[Found]:
        """Every entry whose CRC is right."""
        yield from self.entries
        yield from self.astray
        yield from self.surplus


@dataclass(frozen=True)
class PartitionTruth:
    topic_partition: TopicPartition
    segments: tuple[SegmentTruth, ...]

    @property
    def is_damaged(self) -> bool:
        return any(segment.damage for segment in self.segments)

    @property
    def has_astray(self) -> bool:
        return any(segment.astray for segment in self.segments)

    @property
    def is_changed(self) -> bool:
        """Whether there is anything in its files that was not written there."""
        return self.is_damaged or self.has_astray or self.has_surplus or any(s.tail for s in self.segments)

    @property
    def has_inner(self) -> bool:
        return any(segment.has_inner for segment in self.segments)

    @property
    def has_surplus(self) -> bool:
        return any(segment.surplus for segment in self.segments)

    @property
    def end_offset(self) -> int:
        """The offset behind the last entry of the last segment; of an empty one, where it begins."""
        if not self.segments:
            return 0
        last = self.segments[-1]
        return last.entries[-1].last_offset + 1 if last.entries else last.base_offset


def partition_truths(
    log: BaseLog, files: Mapping[str, bytes], root: str = "", *, is_forged: bool = False
) -> dict[TopicPartition, PartitionTruth]:
    """What stands in every partition of a directory that was damaged.

    Args:
        log: The directory before.
        files: The directory now.
        root: The root that is looked at.
        is_forged: Whether some CRC was made right again. Otherwise an entry that was never written to a log file is
            the content of another one: a record that is a batch, a message in a wrapper that shows.
    """
    truths = {}
    for key, paths in segments_of(files, root).items():
        bases = [base_offset_of(path) for path in paths]
        segments = [
            _segment(log, key, path, files[path], base, next_base, is_forged=is_forged)
            for path, base, next_base in zip(paths, bases, [*bases[1:], None], strict=True)
        ]
        truths[key] = PartitionTruth(key, tuple(segments))
    return truths


def _segment(
    log: BaseLog,
    key: TopicPartition,
    path: str,
    data: bytes,
    base: int,
    next_base: int | None,
    *,
    is_forged: bool,
) -> SegmentTruth:
    entries: list[Found] = []
    astray: list[Found] = []
    surplus: list[Found] = []
    damage: list[DamagedBytes] = []
    limit = MAX_OFFSET + 1 if next_base is None else next_base
    next_offset = base
    position = damage_start = 0
    # Zeros at the end are preallocated space, in the last segment always.
    end = len(data.rstrip(b"\0"))
    sizes = _sizes_by_position(data)
    while (position := next((each for each in sizes if each >= position), end)) < end:
        found = _found(log, path, data, position, is_forged=is_forged)
        if found is not None and _is_astray(found, key, path):
            astray.append(found)
        if found is None or not (next_offset <= found.first_offset and found.last_offset < limit):
            if found is not None and found not in astray:
                surplus.append(found)
            position += 1
            continue
        if damage_start < position:
            damage.append(DamagedBytes(damage_start, position, next_offset, found.first_offset))
            if data[damage_start : damage_start + 8] == data[position : position + 8]:
                # As much of it as was damaged stands in front of it: a copy, of which a reader may think what it likes.
                surplus.append(found)
        entries.append(found)
        position = damage_start = found.end
        next_offset = found.last_offset + 1
    tail = None
    if damage_start < end:
        tail = DamagedBytes(damage_start, len(data), next_offset, limit)
        if next_base is not None:
            damage.append(tail)
            tail = None
    elif damage_start < len(data) and next_base is not None and next_offset < next_base:
        # Zeros behind the batches of a closed segment, and offsets are missing: they may be what was lost.
        damage.append(DamagedBytes(damage_start, len(data), next_offset, next_base))
    truth = SegmentTruth(
        path, base, next_base, len(data), tuple(entries), tuple(damage), tail, tuple(astray), tuple(surplus)
    )  # fmt: skip
    return _with_inner(truth, data)


def _with_inner(truth: SegmentTruth, data: bytes) -> SegmentTruth:
    known = {found.position for found in truth.known}
    sizes = _sizes_by_position(data)
    inner = [
        (each.start, position)
        for each in (*truth.damage, *filter(None, [truth.tail]))
        for position in range(each.start, each.end)
        if position not in known and position in sizes
    ]
    return dataclasses.replace(truth, has_inner=bool(inner), untold=tuple(_untold(truth, data, inner)))


def _untold(truth: SegmentTruth, data: bytes, inner: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """First and last offset of what a reader cannot tell from an entry.

    Once such a one is taken, damage begins where it ends, for all that follows.
    """
    borders = {*(entry.position for entry in truth.entries), len(data)}
    ends: set[int] = set()
    for start, position in inner:
        starts = {start, *(end for end in ends if start < end <= position)}
        is_choice = bool(truth.astray or truth.surplus)
        if is_choice or not all(is_told(data, each, position, borders) for each in starts):
            ends.add(position + (size_of_entry(data, position) or 0))
            yield int.from_bytes(data[position : position + 8], "big"), last_offset_of(data, position)


def _found(log: BaseLog, path: str, data: bytes, position: int, *, is_forged: bool) -> Found | None:
    size = _sizes_by_position(data).get(position)
    if size is None:
        return None
    stored = int.from_bytes(data[position : position + 8], "big", signed=True)
    original = log.original(data[position : position + size], path)
    if original is None and not is_forged:
        return None
    if (
        stored == 0
        and original is not None
        and original.magic == 1
        and original.is_wrapper
        and original.stored_offset
    ):
        # Of a wrapper at offset 0 the offsets inside count as they are: once, producers wrote them so.
        original = None
    shift = 0 if original is None else stored - original.stored_offset
    is_other_epoch = (
        original is not None
        and original.magic == 2
        and original.data[12:16] != data[position + 12 : position + 16]
    )
    return Found(position, size, stored, original, shift, is_other_epoch)


@functools.lru_cache(maxsize=512)
def _sizes_by_position(data: bytes) -> dict[int, int]:
    """Every position at which something stands whose CRC is right, with its size. Most files are those of many cases."""
    return {
        position: size
        for position, magic in enumerate(data[16:])
        if magic <= 2
        and (size := size_of_entry(data, position)) is not None
        and is_valid_entry(data, position, size)
    }


def _is_astray(found: Found, key: TopicPartition, path: str) -> bool:
    original = found.original
    return original is None or found.shift != 0 or original.topic_partition != key or original.path != path
