"""Finding out which segments a recovery must process, and what it would discard, before anything is changed.

Kafka's recovery keeps the batches before the first invalid one, and discards the rest of that segment and every later
segment. A batch that a crash tore is no loss; complete batches are.
"""

from __future__ import annotations

import functools
import logging
import os
from bisect import bisect_right
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from storage_core.directory.segment_listing import FileNames, SegmentFiles, list_segments
from storage_core.errors import CorruptError, LogDirectoryError, OffsetOverflowError
from storage_core.log.producer_batches import ProducerBatches
from storage_core.segment import DamageScanner, SegmentEnd, SegmentReader, TransactionIndex
from storage_core.segment.damage import MAX_ENCODABLE_BATCH_BYTES
from storage_core.segment.file_names import (
    LOG_SUFFIX,
    SWAP_SUFFIX,
    base_offset_of,
    offset_index_file_name,
    transaction_index_file_name,
)
from storage_core.segment.segment_recovery import SegmentScan, scan_segment

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from storage_core.directory.vouched_end import Vouchers
    from storage_core.filesystem import ReadableFile, ReadableFileSystem
    from storage_core.record.batch_window import BatchWindow


_log = logging.getLogger(__name__)
_MAX_REPORTED: Final = 20


@dataclass(frozen=True, slots=True)
class CheckedDirectory:
    """The result of checking a partition's directory.

    Attributes:
        dropped: What a recovery by Kafka's rules would discard, one phrase each.
        file_names: The regular files in the directory, sorted.
        lacking: What was on disk after the last valid batch, and is damaged or missing; None if nothing is known of it.
    """

    dropped: tuple[str, ...]
    file_names: tuple[str, ...]
    lacking: str | None = None


def check_directory(
    filesystem: ReadableFileSystem,
    path: str,
    recovery_point: int,
    *,
    is_clean: bool,
    max_batch_bytes: int,
    vouchers: Vouchers | None = None,
) -> CheckedDirectory:
    """Find out what a recovery by Kafka's rules would discard, without changing anything.

    No other process changes the directory. Everything below the recovery point is on disk. ``vouchers`` say what else the
    log is known to have held.

    Raises:
        BatchTooLargeError: A valid batch is larger than ``max_batch_bytes``.
        LogDirectoryError: Something other than a file has the name of a segment's file.
    """
    names = list_regular_files(filesystem, path)
    listing = _segments_of_recovery(filesystem, path, names)
    base_offsets, present = listing.base_offsets, listing.file_names
    suffixes = dict.fromkeys(listing.swapped, SWAP_SUFFIX)

    @functools.cache
    def open_segment(base_offset: int) -> SegmentReader:
        suffix = suffixes.get(base_offset, "")
        return SegmentReader(
            filesystem, path, base_offset, present, suffix=suffix, max_batch_bytes=max_batch_bytes
        )

    chosen = segments_to_recover(
        filesystem,
        path,
        base_offsets,
        present,
        recovery_point,
        is_clean=is_clean,
        open_segment=open_segment,
        suffixes=suffixes,
    )
    for index, is_unflushed in chosen:
        later = [open_segment(each) for each in base_offsets[index + 1 :]] if is_unflushed else []
        dropped = _dropped_with(open_segment(base_offsets[index]), later)
        if dropped:
            return CheckedDirectory(tuple(dropped), tuple(names))
        if dropped is not None:
            break
    if vouchers is None or not base_offsets:
        return CheckedDirectory((), tuple(names))
    return CheckedDirectory((), tuple(names), _lacking_at_end(open_segment(base_offsets[-1]), vouchers))


def _segments_of_recovery(filesystem: ReadableFileSystem, path: str, names: list[str]) -> SegmentFiles:
    """List the segments that a recovery finds: with those of a replacement that it finishes."""
    if not any(name.endswith(SWAP_SUFFIX) for name in names):
        return SegmentFiles(tuple(log_base_offsets(names)), FileNames(names))

    def end_of_swap(base_offset: int) -> int:
        return SegmentReader(filesystem, path, base_offset, None, suffix=SWAP_SUFFIX).end().next_offset

    return list_segments(filesystem, path, is_clean=True, swap_end_offset=end_of_swap)


def _lacking_at_end(segment: SegmentReader, vouchers: Vouchers) -> str | None:
    """Compare the end of a log with what is known to have been on disk.

    Returns:
        What the last segment lacks, or None if nothing is known to be missing.
    """
    end = segment.end()
    known_end = vouchers.flushed_end_after(end.next_offset, *segment.tail_after(end))
    if known_end is None:
        return None
    return (
        f"{segment.log_path}: offsets {end.next_offset} to {known_end - 1}, which were on disk, are damaged or missing "
        f"from byte {end.position_bytes} on"
    )


def list_regular_files(filesystem: ReadableFileSystem, path: str) -> list[str]:
    """List the names of the regular files in a partition's directory, sorted.

    Raises:
        LogDirectoryError: A link, FIFO, device or directory has the name of a segment's file: without it, the log would
            assign its offsets again.
    """
    names = []
    for entry in filesystem.list_directory(path):
        if entry.is_regular_file:
            names.append(entry.name)
        elif base_offset_of(entry.name) is not None:
            raise LogDirectoryError(
                "Expected a regular file with the name of a segment's file, found something else. Replace it by the "
                "file itself.",
                path=os.path.join(path, entry.name),
            )
    return names


def log_base_offsets(file_names: Iterable[str]) -> list[int]:
    """Return the base offsets of the log files among file names, ascending."""
    found = (base_offset_of(name) for name in file_names if name.endswith(LOG_SUFFIX))
    return sorted(base_offset for base_offset in found if base_offset is not None)


class SegmentToRecover(NamedTuple):
    """The number of a segment in its log, and whether it may have unflushed bytes."""

    number: int
    is_unflushed: bool


def segments_to_recover(
    filesystem: ReadableFileSystem,
    path: str,
    base_offsets: Sequence[int],
    file_names: Collection[str],
    recovery_point: int,
    *,
    is_clean: bool,
    open_segment: Callable[[int], SegmentReader],
    suffixes: Mapping[int, str] = MappingProxyType({}),
) -> list[SegmentToRecover]:
    """Choose the segments to recover, in order.

    These are the segments at or after the recovery point of a log that was not closed cleanly, those without an offset
    index or with a corrupt transaction index, and the last one if it does not end with a valid batch. ``suffixes`` has
    the suffix of a segment's file names, by its base offset, if it has one.
    """
    chosen: set[int] = set()
    first_unflushed = max(0, bisect_right(base_offsets, recovery_point) - 1)
    for index, base_offset in enumerate(base_offsets):
        suffix = suffixes.get(base_offset, "")
        index_name = offset_index_file_name(base_offset)
        has_index = index_name in file_names or index_name + SWAP_SUFFIX in file_names
        if not has_index or (not is_clean and index >= first_unflushed):
            chosen.add(index)
        name = transaction_index_file_name(base_offset) + suffix
        if name in file_names:
            problem = TransactionIndex.read(filesystem, os.path.join(path, name), base_offset).problem
            if problem is not None:
                _log.warning("%s in %s is damaged (%s), so its segment is recovered.", name, path, problem)
                chosen.add(index)
    last = len(base_offsets) - 1
    if (
        is_clean
        and base_offsets
        and last not in chosen
        and not _ends_with_batch(open_segment(base_offsets[last]))
    ):
        chosen.add(last)
    return [
        SegmentToRecover(index, not is_clean and (index == last or base_offsets[index + 1] > recovery_point))
        for index in sorted(chosen)
    ]


def _ends_with_batch(segment: SegmentReader) -> bool:
    """Return True if a segment ends with a valid batch, and no index entry points beyond it.

    A log that was closed cleanly does, unless its last file was cut or replaced since.
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


def has_ascending_offsets(segment: SegmentReader) -> bool:
    """Return True if headers with ascending offsets cover every byte of a segment. CRCs are not checked."""
    position_bytes = 0
    try:
        for header in segment.batches():
            position_bytes = header.end_position_bytes
    except CorruptError:
        return False
    return position_bytes == segment.size_bytes


def _dropped_with(segment: SegmentReader, later: Sequence[SegmentReader]) -> list[str] | None:
    """Describe what is discarded when a segment is cut after its last valid batch.

    Returns:
        A sentence each, or None if nothing is cut off.
    """
    with segment.open_log() as log_file:
        size_bytes = log_file.status.size_bytes
        try:
            scan = scan_as_recovery(log_file, segment)
        except OffsetOverflowError as error:
            return [
                f"{error.path}: bytes {error.position_bytes} to {size_bytes - 1}, from a damaged offset on"
            ]
        if scan.end_position_bytes == size_bytes:
            return None
        dropped = _dropped_from(log_file, segment.base_offset, scan, size_bytes)
    for number, each in enumerate(segment for segment in later if segment.size_bytes):
        if number == _MAX_REPORTED:
            dropped.append("and later segments")
            break
        dropped.append(f"{each.log_path}: the whole segment of {each.size_bytes} bytes")
    return dropped


def scan_as_recovery(log_file: ReadableFile, segment: SegmentReader) -> SegmentScan:
    """Scan a segment as the recovery does, which splits one whose ascending offsets exceed its indexes.

    Raises:
        OffsetOverflowError: Offsets exceed the indexes, and do not ascend.
    """
    size_bytes = log_file.status.size_bytes
    base_offset, position_bytes = segment.base_offset, 0
    while True:
        try:
            return scan_segment(
                log_file,
                base_offset,
                size_bytes,
                # Larger than the file, so no index entry is made.
                size_bytes,
                max_batch_bytes=segment.max_batch_bytes,
                observe=_read_markers,
                start_position_bytes=position_bytes,
            )
        except OffsetOverflowError as error:
            # A segment that begins with a batch can hold it, so each iteration makes progress.
            if error.position_bytes is None or not has_ascending_offsets(segment):
                raise
            position_bytes = error.position_bytes
            base_offset = int.from_bytes(log_file.read_at(8, position_bytes), "big")


def _read_markers(window: BatchWindow) -> None:
    """Reject a malformed marker, as the recovery does."""
    ProducerBatches.of_window(window)


def _dropped_from(log_file: ReadableFile, base_offset: int, scan: SegmentScan, size_bytes: int) -> list[str]:
    """Describe what a recovery drops of a file: complete batches after the last valid one."""
    scanner = DamageScanner(log_file, base_offset, size_bytes, None, MAX_ENCODABLE_BATCH_BYTES)
    position_bytes = scan.end_position_bytes
    if scanner.is_blank(position_bytes):
        return []
    lost = scanner.lost_after(position_bytes, scan.next_offset)
    if scan.problem is not None and scanner.is_intact(position_bytes):
        lost = f"from a complete batch on that is rejected: {scan.problem.args[0]}"
    if lost is None:
        return []
    return [f"{log_file.path}: bytes {position_bytes} to {size_bytes - 1}, {lost}"]
