"""Listing a partition directory: which segments make up the log at this moment.

One listing, no file opened, nothing asked of a single file: a log may have 100,000 segments.
The broker may be at work meanwhile, or may have crashed at work. A cleaner that replaces
segments (Kafka's ``LocalLog.replaceSegments``) goes through these names:

    <base>.log.cleaned    output that is not complete: ignored
    <base>.log.swap       complete output, about to replace every segment from its base to its end
    <base>.log.deleted    replaced or expired, waits for its removal: ignored
"""

from __future__ import annotations

import bisect
import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from storage_core.errors import DataLossError, LogDirectoryError
from storage_core.segment.file_names import CLEANED_SUFFIX, LOG_SUFFIX, SWAP_SUFFIX, base_offset_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from storage_core.filesystem import DirectoryEntry, FileSystem

__all__ = ["SegmentListing", "list_segments", "regular_file_names"]

_SWAP_WAIT_SECONDS = 1.0
_SWAP_POLL_SECONDS = 0.05
_SETTLE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class SegmentListing:
    """The files of a partition directory.

    Args:
        base_offsets: Of every segment, ascending.
        file_names: Every regular file that belongs to the log now, for look-ups by name.
        swapped: Base offsets whose log file still carries the suffix ``.swap``.
    """

    base_offsets: tuple[int, ...]
    file_names: Collection[str]
    swapped: frozenset[int]

    def in_front_of(self, offset: int) -> SegmentListing:
        """Without the segments that begin at an offset or behind it."""
        kept = self.base_offsets[: bisect.bisect_left(self.base_offsets, offset)]
        return replace(self, base_offsets=kept)


def list_segments(
    filesystem: FileSystem, path: str, *, is_clean: bool, swap_end_offset: Callable[[int], int]
) -> SegmentListing:
    """List the segments of a partition.

    Args:
        filesystem: Where to read.
        path: The partition's directory.
        is_clean: No broker is at work here: one listing is enough.
        swap_end_offset: Gives the offset behind the last one in ``<base>.log.swap``.

    Raises:
        UnreadableError: The directory may not be listed by this user.
        LogDirectoryError: It does not exist, or what is named like a log file is no regular file.
    """
    names = regular_file_names(filesystem, path) if is_clean else _settled_file_names(filesystem, path)
    swapped: frozenset[int] = frozenset()
    if _has_swap(names):
        try:
            names, swapped = _complete_swaps(names, swap_end_offset)
        except FileNotFoundError:
            # No crash, but a slow broker that has gone on just now.
            names, swapped = _complete_swaps(_settled_file_names(filesystem, path), swap_end_offset)
    base_offsets = _base_offsets(names, LOG_SUFFIX)
    if swapped:
        base_offsets = list(swapped.union(base_offsets))
    # Already in order without swaps: names of 20 digits sort as their numbers do.
    base_offsets.sort()
    # The garbage collector passes over a dict of texts, but looks at every name in a set, again
    # and again: with 100,000 segments that costs more than the look-ups.
    return SegmentListing(tuple(base_offsets), dict.fromkeys(names), swapped)


def regular_file_names(filesystem: FileSystem, path: str) -> list[str]:
    """The names of the regular files in a partition's directory.

    Raises:
        LogDirectoryError: What is named like a log file is none.
    """
    names = []
    for entry in filesystem.list_directory(path):
        if entry.is_regular_file:
            names.append(entry.name)
        elif entry.name.endswith(LOG_SUFFIX) and base_offset_of(entry.name) is not None:
            raise LogDirectoryError(
                f"Expected a regular file as log segment, found {_kind(entry)}. Put the file itself here.",
                path=os.path.join(path, entry.name),
            )
    return names


def _kind(entry: DirectoryEntry) -> str:
    if entry.is_symlink:
        return "a symbolic link, which is never followed"
    return "a directory" if entry.is_directory else "a FIFO, a socket or a device"


def _settled_file_names(filesystem: FileSystem, path: str) -> list[str]:
    """List until listings agree and show no swap, or a swap turns out to be left from a crash.

    A listing during renames may show a file under both names or under neither. Retention takes
    segments from the front, and appends add some at the end, so only what lies between counts.
    A segment that is hidden at the front looks deleted, but comes back: that takes one more look.

    Raises:
        DataLossError: The directory changes faster than it can be listed.
    """
    start = time.monotonic()
    names = regular_file_names(filesystem, path)
    agreements = 0
    while True:
        has_swap = _has_swap(names)
        waited_seconds = time.monotonic() - start
        if has_swap:
            if waited_seconds >= _SWAP_WAIT_SECONDS:
                return names
            time.sleep(_SWAP_POLL_SECONDS)
        elif waited_seconds >= _SETTLE_SECONDS:
            message = (
                "Expected the segments of this log to stay for as long as it takes to list them. Read again."
            )
            raise DataLossError(message, path=path)
        previous, names = names, regular_file_names(filesystem, path)
        if has_swap or _has_swap(names):
            agreements = 0
            continue
        before, after = _base_offsets(previous, LOG_SUFFIX), _base_offsets(names, LOG_SUFFIX)
        agreements = agreements + 1 if _agree(before, after) else 0
        if agreements > 1 or (agreements and before[:1] == after[:1]):
            return names


def _agree(before: list[int], after: list[int]) -> bool:
    """Whether two listings show the same segments from the first of the later to the last of the earlier."""
    if not before or not after:
        return before == after
    first, last = min(after), max(before)
    return sorted(base for base in before if base >= first) == sorted(base for base in after if base <= last)


def _has_swap(names: list[str]) -> bool:
    return any(name.endswith(SWAP_SUFFIX) and base_offset_of(name) is not None for name in names)


def _complete_swaps(
    names: list[str], swap_end_offset: Callable[[int], int]
) -> tuple[list[str], frozenset[int]]:
    """Do on names what a starting broker does on files (passes 1 to 3 of Kafka's ``LogLoader``)."""
    cleaned = _base_offsets(names, CLEANED_SUFFIX)
    swapped = set(_base_offsets(names, LOG_SUFFIX + SWAP_SUFFIX))
    if cleaned:
        # A split had not yet renamed all of its output: the original counts.
        swapped = {base_offset for base_offset in swapped if base_offset < min(cleaned)}
    swap_names = [name for name in names if name.endswith(SWAP_SUFFIX) and base_offset_of(name) in swapped]
    names = [name for name in names if not name.endswith(SWAP_SUFFIX)]
    if swapped:
        start_offset = min(swapped)
        end_offset = max(swap_end_offset(base_offset) for base_offset in swapped)
        names = [name for name in names if not _is_in_range(name, start_offset, end_offset)]
    return names + swap_names, frozenset(swapped)


def _base_offsets(names: list[str], suffix: str) -> list[int]:
    found = [base_offset_of(name) for name in names if name.endswith(suffix)]
    return [base_offset for base_offset in found if base_offset is not None]


def _is_in_range(name: str, start_offset: int, end_offset: int) -> bool:
    base_offset = base_offset_of(name)
    return base_offset is not None and start_offset <= base_offset < end_offset
