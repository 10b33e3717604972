"""What a recovery would drop, found out before anything is changed.

Kafka's recovery keeps the batches in front of the first bad one, and drops everything behind it: the
rest of that segment and every later one. What a crash tore is no loss; whole batches are.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from storage_core.directory.segment_listing import FileNames, SegmentListing, list_segments
from storage_core.errors import CorruptError, LogDirectoryError, OffsetOverflowError
from storage_core.log.producer_batches import ProducerBatches
from storage_core.segment import Resynchroniser, SegmentEnd, SegmentReader, TransactionIndex
from storage_core.segment.batch_candidates import MAX_ENCODABLE_BATCH_BYTES
from storage_core.segment.file_names import (
    LOG_SUFFIX,
    SWAP_SUFFIX,
    base_offset_of,
    offset_index_file_name,
    transaction_index_file_name,
)
from storage_core.segment.segment_recovery import scan_segment

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from storage_core.filesystem import FileSystem, OpenFile
    from storage_core.record.batch_window import BatchWindow
    from storage_core.segment.segment_recovery import SegmentScan

__all__ = [
    "CheckedDirectory",
    "ascends_to_its_end",
    "check_directory",
    "ends_whole",
    "indexes_to_recover",
    "list_regular_files",
    "log_base_offsets",
    "with_corrupt_transaction_index",
]


_log = logging.getLogger(__name__)
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
        LogDirectoryError: Something is named like a segment's file, and is none.
    """
    names = tuple(list_regular_files(filesystem, path))
    if any(name.endswith(SWAP_SUFFIX) for name in names):
        listing = list_segments(
            filesystem,
            path,
            is_clean=True,
            swap_end_offset=lambda base_offset: (
                SegmentReader(filesystem, path, base_offset, None, suffix=SWAP_SUFFIX).end().next_offset
            ),
        )
    else:
        listing = SegmentListing(tuple(log_base_offsets(names)), FileNames(names))
    swapped, base_offsets, present = listing.swapped, listing.base_offsets, listing.file_names
    chosen = indexes_to_recover(
        base_offsets, {name.removesuffix(SWAP_SUFFIX) for name in present}, recovery_point, is_clean=is_clean
    )
    suffixes = dict.fromkeys(swapped, SWAP_SUFFIX)
    corrupt = with_corrupt_transaction_index(filesystem, path, base_offsets, present, suffixes)
    chosen = sorted({*chosen, *corrupt})
    last = len(base_offsets) - 1

    def segment(index: int) -> SegmentReader:
        base_offset = base_offsets[index]
        return SegmentReader(
            filesystem,
            path,
            base_offset,
            present,
            suffix=suffixes.get(base_offset, ""),
            max_batch_bytes=max_batch_bytes,
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


def list_regular_files(filesystem: FileSystem, path: str) -> list[str]:
    """The names of the regular files in a partition's directory, in order.

    Raises:
        LogDirectoryError: Something is named like a segment's file, and is a link, FIFO, device or directory:
            to go on without it would give its offsets away again.
    """
    names = []
    for entry in filesystem.list_directory(path):
        if entry.is_regular_file:
            names.append(entry.name)
        elif base_offset_of(entry.name) is not None:
            raise LogDirectoryError(
                "Expected a regular file under the name of a segment's file, found something else. Put the file "
                "itself here.",
                path=os.path.join(path, entry.name),
            )
    return names


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


def with_corrupt_transaction_index(
    filesystem: FileSystem,
    path: str,
    base_offsets: Sequence[int],
    file_names: Collection[str],
    suffixes: Mapping[int, str],
) -> list[int]:
    """Which segments have a transaction index that cannot be right: they are recovered, too.

    Args:
        filesystem: Where to read.
        path: The partition's directory.
        base_offsets: Those of all segments.
        file_names: The files in the directory.
        suffixes: What follows the file names of a segment, by its base offset; nothing if it is not there.
    """
    corrupt = []
    for index, base_offset in enumerate(base_offsets):
        name = transaction_index_file_name(base_offset) + suffixes.get(base_offset, "")
        if name in file_names:
            problem = TransactionIndex.read(filesystem, os.path.join(path, name), base_offset).problem
            if problem is not None:
                _log.warning("%s in %s is damaged (%s), so its segment is recovered.", name, path, problem)
                corrupt.append(index)
    return corrupt


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
            scan = _scan(log_file, segment)
        except OffsetOverflowError as error:
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


def _scan(log_file: OpenFile, segment: SegmentReader) -> SegmentScan:
    """Scan as the recovery does, which splits a segment where its offsets ascend out of its reach.

    Raises:
        OffsetOverflowError: They are out of its reach, and do not ascend.
    """
    size_bytes = log_file.status.size_bytes
    base_offset, position_bytes = segment.base_offset, 0
    while True:
        try:
            return scan_segment(
                log_file,
                base_offset,
                size_bytes,
                # No entry is of interest.
                size_bytes,
                max_batch_bytes=segment.max_batch_bytes,
                observe=_read_markers,
                start_position_bytes=position_bytes,
            )
        except OffsetOverflowError as error:
            # A single batch fits a segment that begins with it, so each turn gets on.
            if error.position_bytes is None or not ascends_to_its_end(segment):
                raise
            position_bytes = error.position_bytes
            base_offset = int.from_bytes(log_file.read_at(8, position_bytes), "big")


def _read_markers(window: BatchWindow) -> None:
    """Refuse a malformed marker, as the observer of a recovery does."""
    ProducerBatches.of_window(window)


def _dropped_from(log_file: OpenFile, base_offset: int, scan: SegmentScan, size_bytes: int) -> list[str]:
    """Whole batches behind the end of the good ones in one file."""
    resynchroniser = Resynchroniser(log_file, base_offset, size_bytes, None, MAX_ENCODABLE_BATCH_BYTES)
    position_bytes = scan.end_position_bytes
    if resynchroniser.is_blank(position_bytes):
        return []
    found = resynchroniser.next_log_batch(position_bytes, scan.next_offset)
    if found is not None and found.position_bytes == position_bytes and scan.problem is not None:
        what = f"from a whole batch on that is refused: {scan.problem.args[0]}"
    elif found is not None:
        what = f"from a whole batch at byte {found.position_bytes} on, which begins at offset {found.base_offset}"
    elif resynchroniser.is_intact(position_bytes):
        what = f"from a whole batch at byte {position_bytes} on, whose offsets do not follow"
    elif resynchroniser.probe.is_exhausted:
        what = "perhaps whole batches: too much looks like one to tell"
    else:
        return []
    return [f"{log_file.path}: bytes {position_bytes} to {size_bytes - 1}, {what}"]
