"""List a partition directory: which segments make up the log at this moment.

A log may have 100,000 segments, so the directory is listed once, and files are neither opened nor
examined. A broker may be changing the directory, or may have crashed while it did. A cleaner that
replaces segments (Kafka's ``LocalLog.replaceSegments``) uses these names:

    <base>.log.cleaned    incomplete output: ignored
    <base>.log.swap       complete output, about to replace every segment from its base to its end
    <base>.log.deleted    replaced or expired, to be deleted: ignored
"""

from __future__ import annotations

import bisect
import os
import time
from array import array
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from storage_core.errors import DataLossError, LogDirectoryError
from storage_core.segment.file_names import CLEANED_SUFFIX, LOG_SUFFIX, SWAP_SUFFIX, base_offset_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from storage_core.filesystem import DirectoryEntry, ReadableFileSystem


_SWAP_WAIT_SECONDS = 1.0
_SWAP_POLL_SECONDS = 0.05
_SETTLE_SECONDS = 5.0
# A listing of a huge directory may take longer than that.
_SETTLE_LISTINGS: Final = 6
_BASE_OFFSET_DIGITS: Final = 20
_NO_OFFSETS: Final[Sequence[int]] = ()


class FileNames(Collection[str]):
    """Names of files in a partition's directory, compact: a segment's file takes some bytes."""

    __slots__ = ("_base_offsets", "_others")

    def __init__(self, names: Iterable[str] = ()) -> None:
        others = []
        by_suffix: dict[str, array[int]] = {}
        for name in names:
            base_offset = base_offset_of(name)
            if base_offset is None:
                others.append(name)
                continue
            suffix = name[_BASE_OFFSET_DIGITS:]
            base_offsets = by_suffix.get(suffix)
            if base_offsets is None:
                base_offsets = by_suffix[suffix] = array("q")
            base_offsets.append(base_offset)
        for base_offsets in by_suffix.values():
            np.frombuffer(base_offsets, np.int64).sort()
        self._base_offsets = by_suffix
        self._others = frozenset(others)

    @property
    def suffixes(self) -> Collection[str]:
        """The suffixes of segments' files after the base offset, such as ``.log`` and ``.index.swap``."""
        return self._base_offsets.keys()

    def base_offsets(self, suffix: str) -> Sequence[int]:
        """Return the base offsets of the files with a suffix, ascending."""
        return self._base_offsets.get(suffix, _NO_OFFSETS)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        base_offset = base_offset_of(name)
        if base_offset is None:
            return name in self._others
        base_offsets = self.base_offsets(name[_BASE_OFFSET_DIGITS:])
        index = bisect.bisect_left(base_offsets, base_offset)
        return index < len(base_offsets) and base_offsets[index] == base_offset

    def __iter__(self) -> Iterator[str]:
        yield from self._others
        for suffix, base_offsets in self._base_offsets.items():
            for base_offset in base_offsets:
                yield f"{base_offset:0{_BASE_OFFSET_DIGITS}d}{suffix}"

    def __len__(self) -> int:
        return len(self._others) + sum(map(len, self._base_offsets.values()))


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """The files of a partition directory.

    Attributes:
        base_offsets: Of every segment, ascending.
        file_names: Every regular file that belongs to the log now, for look-ups by name.
        swapped: Base offsets whose log file still carries the suffix ``.swap``.
    """

    base_offsets: Sequence[int]
    file_names: FileNames
    swapped: frozenset[int] = frozenset()

    def before(self, offset: int) -> SegmentFiles:
        """Return the listing without the segments that begin at or after an offset."""
        kept = self.base_offsets[: bisect.bisect_left(self.base_offsets, offset)]
        return replace(self, base_offsets=kept)


def list_segments(
    filesystem: ReadableFileSystem,
    path: str,
    *,
    is_clean: bool,
    swap_end_offset: Callable[[int], int],
    is_still_clean: Callable[[], bool] = lambda: True,
) -> SegmentFiles:
    """List the segments of a partition.

    If no broker uses the directory (``is_clean``, and still so after the listing), or files do not change, one listing is
    enough.
    ``swap_end_offset`` returns the next offset after ``<base>.log.swap``.

    Raises:
        UnreadableError: This user may not list the directory.
        LogDirectoryError: It does not exist, or an entry named like a log file is not a regular file.
    """
    is_fixed = filesystem.traits_of(path).are_files_fixed
    names = regular_file_names(filesystem, path) if is_clean or is_fixed else None
    if names is None or not (is_fixed or is_still_clean()):
        names = _settled_file_names(filesystem, path)
    if not _has_swap(names):
        return SegmentFiles(names.base_offsets(LOG_SUFFIX), names)
    try:
        names, swapped = _complete_swaps(names, swap_end_offset)
    except FileNotFoundError:
        # The broker had not crashed, and has just gone on.
        names, swapped = _complete_swaps(_settled_file_names(filesystem, path), swap_end_offset)
    return SegmentFiles(sorted(swapped.union(names.base_offsets(LOG_SUFFIX))), names, swapped)


def regular_file_names(filesystem: ReadableFileSystem, path: str) -> FileNames:
    """Return the names of the regular files in a partition's directory."""
    return FileNames(_regular_files(filesystem, path))


def _regular_files(filesystem: ReadableFileSystem, path: str) -> Iterator[str]:
    for entry in filesystem.walk_directory(path):
        if entry.is_regular_file:
            yield entry.name
        elif entry.name.endswith(LOG_SUFFIX) and base_offset_of(entry.name) is not None:
            raise LogDirectoryError(
                f"Expected a regular file as log segment, found {_kind(entry)}. Put the file itself here.",
                path=os.path.join(path, entry.name),
            )


def _kind(entry: DirectoryEntry) -> str:
    if entry.is_symlink:
        return "a symbolic link, which is never followed"
    return "a directory" if entry.is_directory else "a FIFO, a socket or a device"


def _settled_file_names(filesystem: ReadableFileSystem, path: str) -> FileNames:
    """List until listings agree and show no swap, or until a swap must be left from a crash.

    A listing during renames may show a file under both names or under neither. Retention removes
    segments at the front, and appends add some at the end, so only the segments between must agree.
    A renamed segment at the front may look deleted and then reappear: that takes one more listing.

    Raises:
        DataLossError: The directory changes faster than it can be listed.
    """
    start = time.monotonic()
    names = regular_file_names(filesystem, path)
    agreements, listings = 0, 1
    while True:
        has_swap = _has_swap(names)
        waited_seconds = time.monotonic() - start
        if has_swap:
            if waited_seconds >= _SWAP_WAIT_SECONDS and listings > 1:
                return names
            time.sleep(_SWAP_POLL_SECONDS)
        elif waited_seconds >= _SETTLE_SECONDS and listings >= _SETTLE_LISTINGS:
            message = (
                "Expected the segments of this log to stay for as long as it takes to list them. Read again."
            )
            raise DataLossError(message, path=path)
        previous, names = names, regular_file_names(filesystem, path)
        listings += 1
        if has_swap or _has_swap(names):
            agreements = 0
            continue
        before, after = previous.base_offsets(LOG_SUFFIX), names.base_offsets(LOG_SUFFIX)
        agreements = agreements + 1 if _agree(before, after) else 0
        if agreements > 1 or (agreements and before[:1] == after[:1]):
            return names


def _agree(before: Sequence[int], after: Sequence[int]) -> bool:
    """Return True if two listings agree from the first segment of the later to the last one of the earlier."""
    if not before or not after:
        return len(before) == len(after)
    return before[bisect.bisect_left(before, after[0]) :] == after[: bisect.bisect_right(after, before[-1])]


def _has_swap(names: FileNames) -> bool:
    return any(suffix.endswith(SWAP_SUFFIX) for suffix in names.suffixes)


def _complete_swaps(
    listed: FileNames, swap_end_offset: Callable[[int], int]
) -> tuple[FileNames, frozenset[int]]:
    """Apply to names what a starting broker does to files (passes 1 to 3 of Kafka's ``LogLoader``)."""
    cleaned = [
        base_offset
        for suffix in listed.suffixes
        if suffix.endswith(CLEANED_SUFFIX)
        for base_offset in listed.base_offsets(suffix)
    ]
    swapped = frozenset(listed.base_offsets(LOG_SUFFIX + SWAP_SUFFIX))
    if cleaned:
        # A split had not yet renamed all of its output: the original segment counts.
        swapped = frozenset(base_offset for base_offset in swapped if base_offset < min(cleaned))
    names = list(listed)
    swap_names = [name for name in names if name.endswith(SWAP_SUFFIX) and base_offset_of(name) in swapped]
    names = [name for name in names if not name.endswith(SWAP_SUFFIX)]
    if swapped:
        start_offset = min(swapped)
        end_offset = max(swap_end_offset(base_offset) for base_offset in swapped)
        names = [name for name in names if not _is_in_range(name, start_offset, end_offset)]
    return FileNames(names + swap_names), swapped


def _is_in_range(name: str, start_offset: int, end_offset: int) -> bool:
    base_offset = base_offset_of(name)
    return base_offset is not None and start_offset <= base_offset < end_offset
