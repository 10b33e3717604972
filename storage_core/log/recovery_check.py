"""What a recovery would drop, found out before anything is changed.

Kafka's recovery keeps the batches in front of the first bad one, and drops everything behind it: the
rest of that segment and every later one. What a crash tore is no loss; whole batches are.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from storage_core.directory.segment_listing import list_segments
from storage_core.errors import CorruptError, OffsetOverflowError
from storage_core.record.batch_search import LARGEST_BATCH_BYTES
from storage_core.segment import Resynchroniser, SegmentEnd, SegmentReader
from storage_core.segment.file_names import LOG_SUFFIX, SWAP_SUFFIX, base_offset_of, offset_index_file_name
from storage_core.segment.segment_recovery import scan_segment

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from storage_core.filesystem import FileSystem, OpenFile
    from storage_core.segment.segment_recovery import SegmentScan

__all__ = [
    "CheckedDirectory",
    "ascends_to_its_end",
    "check_directory",
    "ends_whole",
    "indexes_to_recover",
    "log_base_offsets",
]

_MOST_TOLD: Final = 20


@dataclass(frozen=True, slots=True)
class CheckedDirectory:
    """What was found out about a partition's directory.

    Attributes:
        dropped: What would be lost if Kafka's rules were followed, a sentence each.
        file_names: The regular files that are there, in order.
    """

    dropped: tuple[str, ...]
    file_names: tuple[str, ...]


def check_directory(
    filesystem: FileSystem, path: str, recovery_point: int, *, is_clean: bool, max_batch_bytes: int
) -> CheckedDirectory:
    """Find out what would be lost if Kafka's rules were followed now; nothing is changed.

    Args:
        filesystem: Where to read.
        path: The partition's directory. Nobody else is at work there.
        recovery_point: Below it, everything is on disk.
        is_clean: Whether the log was closed.
        max_batch_bytes: The largest batch for which memory is taken.

    Raises:
        BatchTooLargeError: There is an undamaged batch that is larger.
    """
    names = tuple(entry.name for entry in filesystem.list_directory(path) if entry.is_regular_file)
    if any(name.endswith(SWAP_SUFFIX) for name in names):
        listing = list_segments(
            filesystem,
            path,
            is_clean=True,
            swap_end_offset=lambda base_offset: (
                SegmentReader(filesystem, path, base_offset, None, suffix=SWAP_SUFFIX).end().next_offset
            ),
        )
        swapped, base_offsets, present = listing.swapped, listing.base_offsets, listing.file_names
    else:
        present = dict.fromkeys(names)
        swapped, base_offsets = frozenset[int](), tuple(log_base_offsets(names))
    chosen = indexes_to_recover(
        base_offsets, {name.removesuffix(SWAP_SUFFIX) for name in present}, recovery_point, is_clean=is_clean
    )
    last = len(base_offsets) - 1

    def segment(index: int) -> SegmentReader:
        base_offset = base_offsets[index]
        suffix = SWAP_SUFFIX if base_offset in swapped else ""
        return SegmentReader(
            filesystem, path, base_offset, present, suffix=suffix, max_batch_bytes=max_batch_bytes
        )

    if is_clean and base_offsets and last not in chosen and not ends_whole(segment(last)):
        chosen.append(last)
    for index in chosen:
        is_unflushed = not is_clean and (index == last or base_offsets[index + 1] > recovery_point)
        later = [segment(number) for number in range(index + 1, last + 1)] if is_unflushed else []
        dropped = _dropped_with(segment(index), later)
        if dropped is not None:
            return CheckedDirectory(tuple(dropped), names)
    return CheckedDirectory((), names)


def log_base_offsets(file_names: Iterable[str]) -> list[int]:
    """The base offsets of all log files among some names, ascending."""
    found = (base_offset_of(name) for name in file_names if name.endswith(LOG_SUFFIX))
    return sorted(base_offset for base_offset in found if base_offset is not None)


def indexes_to_recover(
    base_offsets: Sequence[int], file_names: Collection[str], recovery_point: int, *, is_clean: bool
) -> list[int]:
    """Which segments are recovered: those that may have unflushed bytes, and those without an offset index."""
    chosen = {
        index
        for index, base_offset in enumerate(base_offsets)
        if offset_index_file_name(base_offset) not in file_names
    }
    if not is_clean and base_offsets:
        first = max(0, bisect_right(base_offsets, recovery_point) - 1)
        chosen.update(range(first, len(base_offsets)))
    return sorted(chosen)


def ends_whole(segment: SegmentReader) -> bool:
    """Whether the last bytes of a segment are a valid batch, and its indexes name nothing behind it.

    So it is with a log that was closed, unless its last file was cut or exchanged since.
    """
    try:
        end = segment.end() if segment.size_bytes else SegmentEnd(segment.base_offset, 0)
    except CorruptError:
        return False
    offset_index, time_index = segment.offset_index, segment.time_index
    if offset_index.problem is not None or time_index.problem is not None:
        return False
    return end.position_bytes == segment.size_bytes and all(
        entry is None or entry.offset < end.next_offset
        for entry in (offset_index.last_entry, time_index.last_entry)
    )


def ascends_to_its_end(segment: SegmentReader) -> bool:
    """Whether headers with ascending offsets account for every byte of a segment. No CRC is looked at."""
    position_bytes = 0
    try:
        for header in segment.batches():
            position_bytes = header.end_position_bytes
    except CorruptError:
        return False
    return position_bytes == segment.size_bytes


def _dropped_with(segment: SegmentReader, later: Sequence[SegmentReader]) -> list[str] | None:
    """What goes when a segment is cut behind its last good batch; None if nothing is cut off."""
    with segment.open_log() as log_file:
        size_bytes = log_file.status.size_bytes
        try:
            scan = scan_segment(
                log_file,
                segment.base_offset,
                size_bytes,
                # No entry is of interest.
                size_bytes,
                max_batch_bytes=segment.max_batch_bytes,
            )
        except OffsetOverflowError as error:
            # What ascends is split, which drops nothing.
            if ascends_to_its_end(segment):
                return None
            return [
                f"{error.path}: bytes {error.position_bytes} to {size_bytes - 1}, from a damaged offset on"
            ]
        if scan.end_position_bytes == size_bytes:
            return None
        dropped = _dropped_from(log_file, segment.base_offset, scan, size_bytes)
    for number, each in enumerate(segment for segment in later if segment.size_bytes):
        if number == _MOST_TOLD:
            dropped.append("and later segments")
            break
        dropped.append(f"{each.log_path}: the whole segment of {each.size_bytes} bytes")
    return dropped


def _dropped_from(log_file: OpenFile, base_offset: int, scan: SegmentScan, size_bytes: int) -> list[str]:
    """Whole batches behind the end of the good ones in one file."""
    resynchroniser = Resynchroniser(log_file, base_offset, size_bytes, None, LARGEST_BATCH_BYTES)
    position_bytes = scan.end_position_bytes
    if resynchroniser.is_blank(position_bytes):
        return []
    found = resynchroniser.next_accepted(position_bytes, scan.next_offset)
    if found is not None:
        what = f"from a whole batch at byte {found.position_bytes} on, which begins at offset {found.base_offset}"
    elif resynchroniser.is_intact(position_bytes):
        what = f"from a whole batch at byte {position_bytes} on, whose offsets do not follow"
    elif resynchroniser.probe.is_exhausted:
        what = "perhaps whole batches: too much looks like one to tell"
    else:
        return []
    return [f"{log_file.path}: bytes {position_bytes} to {size_bytes - 1}, {what}"]
