"""The true content of a damaged log by a slow and simple rule: the oracle for judging reads.

The oracle scans a file from its first byte. A whole entry counts if its CRC is valid and its offsets follow those
before it. Otherwise the scan advances by one byte. The bytes between two entries that count are one damaged range.

An entry is *astray* if its CRC is valid, but it is at another offset, in another file or in another partition. It is
*surplus* if it is repeated or out of order. Only order and file names can show that; no CRC does. The reader may then
choose which of the entries around it count, so segments with such entries are not checked for completeness.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.damage.base_log import (
    BaseLog,
    TopicPartition,
    base_offset_of,
    parse_offset_checkpoint,
    segments_of,
)
from tests.damage.contents import is_recognised, last_offset_of
from tests.damage.entries import Entry, Row, is_valid_entry, size_of_entry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


MAX_OFFSET = 2**63 - 1


@dataclass(frozen=True)
class Found:
    """An entry found in a file.

    Attributes:
        position: Its position.
        size: Its size.
        original: The entry with the same bytes under the CRC; None if its CRC was recomputed.
        shift: The difference between its offset and the original one.
        has_other_epoch: Whether its leader epoch was changed.
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
        # A compressed v0 message set holds absolute offsets, so the outer offset does not shift them.
        shift = 0 if original.magic == 0 and original.is_wrapper else self.shift
        for offset, row in original.rows:
            yield offset + shift, row


@dataclass(frozen=True)
class DamagedBytes:
    """Bytes outside all entries that count, with the offsets that may be lost with them; none at the end of a cut log."""

    start: int
    end: int
    first_offset: int
    end_offset: int

    def meets(self, start: int, end: int) -> bool:
        """Return whether a range of bytes is partly the same, or also none at the same place."""
        if self.start == self.end:
            return (self.start, self.end) == (start, end)
        return start < self.end and self.start < end


@dataclass(frozen=True)
class SegmentTruth:
    """One log file.

    Attributes:
        next_base_offset: The next segment's base offset; None for the last one.
        entries: Those that count, in order.
        damage: The bytes between them.
        tail: For the last segment, the bytes after its last entry: the end of the log, not damage, unless a marker or a
            checkpoint says that the log went on.
        doubtful: Such bytes below nothing but a high watermark: damage, unless they look like a torn append.
        astray: Entries that are out of place.
        surplus: Entries of this file that are out of order, or reach into the next segment.
        has_inner: Whether damage exposes a message of a wrapper or a value with a valid CRC of its own. A reader may
            take it for an entry, and the bytes before it for damage.
        ambiguous: The first and last offsets of exposed messages and batches that no rule identifies as inner ones.
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
    doubtful: DamagedBytes | None = None
    has_inner: bool = False
    ambiguous: tuple[tuple[int, int], ...] = ()

    @property
    def end_offset(self) -> int:
        """The offset after its last entry, or its base offset if there is none."""
        return self.entries[-1].last_offset + 1 if self.entries else self.base_offset

    @property
    def known(self) -> Iterator[Found]:
        """Every entry with a valid CRC."""
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
    def is_doubtful(self) -> bool:
        return any(segment.doubtful for segment in self.segments)

    @property
    def has_astray(self) -> bool:
        return any(segment.astray for segment in self.segments)

    @property
    def is_changed(self) -> bool:
        """Whether its files contain anything that was not written there."""
        return self.is_damaged or self.has_astray or self.has_surplus or any(s.tail for s in self.segments)

    @property
    def has_inner(self) -> bool:
        return any(segment.has_inner for segment in self.segments)

    @property
    def has_surplus(self) -> bool:
        return any(segment.surplus for segment in self.segments)

    @property
    def end_offset(self) -> int:
        """The offset after the last entry of the last segment, or that segment's base offset if it is empty."""
        return self.segments[-1].end_offset if self.segments else 0


def partition_truths(
    log: BaseLog, files: Mapping[str, bytes], root: str = "", *, is_forged: bool = False
) -> dict[TopicPartition, PartitionTruth]:
    """Return the true content of every partition of a damaged directory.

    Args:
        log: The directory before the damage.
        files: The damaged directory.
        root: The root to examine.
        is_forged: Whether some CRC was recomputed. Otherwise an entry that was never written to a log file is part of
            another one: a record whose value is a batch, or an inner message of a wrapper.
    """
    truths = {}
    for key, paths in segments_of(files, root).items():
        bases = [base_offset_of(path) for path in paths]
        segments = [
            _segment(log, key, path, files[path], base, next_base, is_forged=is_forged)
            for path, base, next_base in zip(paths, bases, [*bases[1:], None], strict=True)
        ]
        if segments and segments[-1].end_offset >= log.log_start_offsets(files, root).get(key, 0):
            segments[-1] = _with_vouched_tail(
                segments[-1], files[paths[-1]], *_vouched(log, key, files, root)
            )
        truths[key] = PartitionTruth(key, tuple(segments))
    return truths


def _vouched(
    log: BaseLog, key: TopicPartition, files: Mapping[str, bytes], root: str
) -> tuple[bool, int, int]:
    """Return whether the log was closed, up to which offset it was flushed, and up to which it was written."""
    prefix = f"{root}/" if root else ""
    is_closed = f"{prefix}.kafka_cleanshutdown" in files
    written = log.high_watermarks(files, root).get(key, 0)
    points = parse_offset_checkpoint(files.get(f"{prefix}recovery-point-offset-checkpoint", b""))
    flushed = points.get(key, 0)
    return is_closed, max(flushed, written) if is_closed else flushed, max(flushed, written)


def _with_vouched_tail(
    truth: SegmentTruth, data: bytes, is_closed: bool, flushed: int, written: int
) -> SegmentTruth:
    next_offset = truth.end_offset
    start = truth.entries[-1].end if truth.entries else 0
    is_blank = truth.tail is None
    end_offset = written if written > next_offset else MAX_OFFSET + 1
    rest = DamagedBytes(start, len(data), next_offset, end_offset)
    if flushed > next_offset or (is_closed and not is_blank):
        return dataclasses.replace(truth, damage=(*truth.damage, rest), tail=None)
    if written > next_offset and not is_blank:
        return dataclasses.replace(truth, doubtful=rest)
    return truth


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
    # Zeros at the end of the last segment are always preallocated space.
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
                # The damage before it is as long as the entry: a copy, which a reader may interpret either way.
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
        # Offsets are missing after the batches of a closed segment: the zeros may have been what is lost.
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
    return dataclasses.replace(truth, has_inner=bool(inner), ambiguous=tuple(_ambiguous(truth, data, inner)))


def _ambiguous(truth: SegmentTruth, data: bytes, inner: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the first and last offsets of inner entries that a reader cannot tell from entries of the log.

    Once a reader takes one of them, the damage begins after it.
    """
    borders = {*(entry.position for entry in truth.entries), len(data)}
    taken: list[tuple[int, int]] = []
    for start, position in inner:
        starts = {start, *(end for end, last in taken if _is_damage_from(truth, end, last, position))}
        is_choice = bool(truth.astray or truth.surplus)
        if is_choice or not all(is_recognised(data, each, position, borders) for each in starts):
            last_offset = last_offset_of(data, position)
            taken.append((position + (size_of_entry(data, position) or 0), last_offset))
            yield int.from_bytes(data[position : position + 8], "big"), last_offset


def _is_damage_from(truth: SegmentTruth, end: int, last_offset: int, position: int) -> bool:
    """Return whether damage may reach from the end of an inner entry to a position: what lies between is out of order."""
    between = (entry for entry in truth.entries if end <= entry.position < position)
    return end <= position and all(entry.first_offset <= last_offset for entry in between)


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
        # In a wrapper at offset 0, inner offsets count as they are: early producers wrote them so.
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
    """Return the position and size of every entry with a valid CRC. Cached, because cases share most files."""
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
