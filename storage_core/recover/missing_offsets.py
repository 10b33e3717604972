"""Which offsets of a log are not there, from its start to where anything beside it says that it reached.

Nothing in a log file says what came before or after it. What does:

    the next segment       it begins where this one ended, unless a compaction removed the batches in between
    files without a log    an index or a producer snapshot, whose log file is gone
    checkpoints            the log's start, its leader epochs, what was flushed and what was replicated

Only a compaction leaves out offsets. The cleaner checkpoint says up to where there was one, and accounts for gaps below that.
In a copy without it, an internal topic or a batch with fewer records than offsets shows that the log is compacted: that
accounts for gaps within a log file, whose bytes are all there, but not for those between two files.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from storage_core.check.index_rebuild import SegmentCheck
from storage_core.check.segment_check import gaps_in
from storage_core.checkpoint import EpochEntry
from storage_core.directory import PartitionDirectory
from storage_core.directory.log_directory_files import INTERNAL_TOPICS
from storage_core.errors import CorruptCheckpointError
from storage_core.filesystem import ReadableFileSystem
from storage_core.record.batch_header import MAX_OFFSET
from storage_core.record.batch_window import BatchWindow
from storage_core.segment.file_names import (
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    base_offset_of,
    log_file_name,
    offset_index_file_name,
)
from storage_core.segment.index_file import read_index_file
from storage_core.segment.offset_index import ENTRY_SIZE_BYTES as OFFSET_ENTRY_BYTES
from storage_core.segment.offset_index import decode_offset_entries

# So many gaps between the batches of a log are described; the last one reaches to the end of all others.
_MOST_GAPS: Final = 1_000
_UNEXPLAINED: Final = (
    "No batch has these offsets. A compaction, a truncation within a batch, or a recovery by the policy salvage may have "
    "removed them: nothing says which."
)


class Missing(NamedTuple):
    """Missing offsets, the place in a log file where they should be, and whether a compaction accounts for them."""

    file: str
    position_bytes: int
    start_offset: int
    end_offset: int
    reason: str
    is_compacted: bool = False


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A part of a log file that is left out, or that is kept although it is damaged.

    Attributes:
        end_byte: The byte after it.
        start_offset: The first offset that may be in it.
        end_offset: The offset after the last one; equal if no record is known to be in it.
    """

    file: str
    start_byte: int
    end_byte: int
    start_offset: int
    end_offset: int
    batch_count: int = 0
    record_count: int = 0
    reason: str = ""


class _Span(NamedTuple):
    """A segment: its bytes, the offset after its last valid batch, and the one after its last index entry."""

    base_offset: int
    size_bytes: int
    end_offset: int
    indexed_offset: int


class OffsetAccount:
    """Follows the valid batches of a log, to tell at its end which offsets none of them holds."""

    def __init__(
        self,
        filesystem: ReadableFileSystem,
        directory: PartitionDirectory,
        names: Iterable[str],
        epochs: Sequence[EpochEntry],
    ) -> None:
        root, key = directory.root, directory.topic_partition
        self._cleaner_offset = root.cleaner_offsets.get(key)
        self._is_compacted = key[0] in INTERNAL_TOPICS
        self._filesystem, self._path = filesystem, directory.path
        self._root, self._key = root, key
        self._names = frozenset(names)
        # The offsets in the names of files without a log file. One that a compaction was about to replace is there.
        bases = {base_offset_of(name) for name in self._names if f"{LOG_SUFFIX}." in f"{name}."}
        self._indexes = _offsets_of(self._names, INDEX_SUFFIXES, bases)
        self._snapshots = _offsets_of(self._names, (SNAPSHOT_SUFFIX,), bases)
        self._epochs = epochs
        self._spans: list[_Span] = []
        self._gaps: list[Missing] = []
        self._falls: list[tuple[int, int, int]] = []
        self._base_offset = self._epoch = -1
        self._next_offset = 0

    def see(self, base_offset: int, window: BatchWindow) -> None:
        """Add the next valid batches of a segment."""
        epochs = window.headers["leader_epoch"]
        if base_offset != self._base_offset:
            self._base_offset = self._next_offset = base_offset
            if 0 <= epochs[0] < self._epoch:
                self._falls.append((base_offset, self._epoch, int(epochs[0])))
        self._epoch = max(int(epochs[-1]), -1)
        self._is_compacted = self._is_compacted or window.has_holes
        starts, ends, positions = (column.tolist() for column in gaps_in(window, self._next_offset))
        for start_offset, end_offset, position_bytes in zip(starts, ends, positions, strict=True):
            if len(self._gaps) < _MOST_GAPS:
                place = (log_file_name(base_offset), position_bytes)
                self._gaps.append(Missing(*place, start_offset, end_offset, _UNEXPLAINED))
            else:
                self._gaps[-1] = self._gaps[-1]._replace(end_offset=end_offset)
        self._next_offset = window.next_offset

    def close(self, check: SegmentCheck) -> None:
        """Add what was found out about the whole segment."""
        compared = check.compared
        end_offset = max(
            check.base_offset, compared.end.next_offset, *(each.end_offset for each in compared.damage)
        )
        self._spans.append(
            _Span(
                check.base_offset, compared.size_bytes, end_offset, min(compared.indexed_offset, MAX_OFFSET)
            )
        )

    def falls(self) -> Iterator[LeftOut]:
        """Find segments that cannot continue the one before them: the leader epochs of a log never fall."""
        spans = {span.base_offset: span for span in self._spans}
        for base_offset, before, epoch in self._falls:
            span = spans[base_offset]
            yield LeftOut(
                log_file_name(base_offset), 0, span.size_bytes, base_offset, span.end_offset,
                reason=f"Expected leader epochs that never fall, found {epoch} after {before}: the segments before it may be of "
                "another log, such as a deleted topic of the same name.",
            )  # fmt: skip

    def missing(self, accounted: Iterable[tuple[int, int]], log_start_offset: int) -> Iterator[Missing]:
        """Find the offsets that are not there, ascending, but for ranges that are accounted for elsewhere."""
        ranges = sorted(each for each in accounted if each[0] < each[1])
        gaps = [
            gap._replace(start_offset=max(gap.start_offset, log_start_offset))
            for gap in (*self._at_start(log_start_offset), *self._within(), *self._between())
        ]
        reached_offset = max([0, *(span.end_offset for span in self._spans), *(end for _, end in ranges)])
        gaps += self._at_end(reached_offset, log_start_offset)
        for gap in sorted(gaps, key=lambda each: each.start_offset):
            for start_offset, end_offset in _without(gap.start_offset, gap.end_offset, ranges):
                yield gap._replace(start_offset=start_offset, end_offset=end_offset)

    def _at_start(self, log_start_offset: int) -> Iterator[Missing]:
        first_offset = self._spans[0].base_offset if self._spans else MAX_OFFSET
        said = {"the log start checkpoint says": log_start_offset or MAX_OFFSET}
        if self._epochs:
            said["the leader epochs say"] = self._epochs[0].start_offset
        said["files of its segments say"] = min(_from_to(self._indexes, 0, first_offset), default=MAX_OFFSET)
        who = min(said, key=lambda each: said[each])
        start_offset = max(said[who], log_start_offset)
        if self._spans and start_offset < first_offset:
            else_text = ", unless they are in remote storage"
            if not self._root.clean_shutdown:
                else_text += ", or retention removed them before the broker was killed"
            yield Missing(
                log_file_name(first_offset), 0, start_offset, first_offset,
                f"The log began at offset {start_offset}, {who}: its first segments are missing{else_text}.",
            )  # fmt: skip

    def _within(self) -> Iterator[Missing]:
        for gap in self._gaps:
            if not (self._is_cleaned(gap.end_offset) or self._may_be_cleaned()):
                yield gap

    def _between(self) -> Iterator[Missing]:
        for span, following in zip(self._spans, self._spans[1:], strict=False):
            start_offset, end_offset = span.end_offset, following.base_offset
            if start_offset >= end_offset:
                continue
            orphans = _from_to(self._indexes, start_offset, end_offset)
            snapshots = _from_to(self._snapshots, start_offset, end_offset)
            is_cleaned = False
            if orphans:
                reason = f"The log file of the segment that begins at offset {orphans[0]} is missing: its other files are there."
            elif span.indexed_offset > start_offset:
                reason = (
                    f"Its indexes say that the segment reached offset {span.indexed_offset}: records at its end are "
                    "missing."
                )
            elif snapshots and (self._is_cleaned(end_offset) or self._may_be_cleaned()):
                reason = (
                    f"A producer snapshot says that a segment, or a run of the broker, ended at offset {snapshots[0]}. A "
                    "compaction may have removed these offsets, or a segment is missing."
                )
            elif is_cleaned := self._is_cleaned(end_offset):
                reason = "A compaction removed them: the cleaner checkpoint says that there was one."
            elif self._may_be_cleaned():
                reason = "A compaction may have removed them, or a segment is missing: no cleaner checkpoint says which."
            else:
                reason = (
                    f"Expected the next segment to begin at offset {start_offset}, found one that begins at {end_offset}: "
                    "the records between them are missing."
                )
            yield Missing(
                log_file_name(span.base_offset), span.size_bytes, start_offset, end_offset, reason, is_cleaned
            )

    def _at_end(self, reached_offset: int, log_start_offset: int) -> Iterator[Missing]:
        said = {"The log start checkpoint says": log_start_offset}
        with contextlib.suppress(CorruptCheckpointError):
            said["The checkpoints say"] = self._root.recovery_points.get(self._key, 0)
        with contextlib.suppress(CorruptCheckpointError):
            said["The high watermark says"] = self._root.high_watermarks.get(self._key, 0)
        said["The leader epochs say"] = self._epochs[-1].start_offset if self._epochs else 0
        orphans = _from_to(sorted([*self._indexes, *self._snapshots]), reached_offset, MAX_OFFSET)
        said["Files of its segments say"] = max(map(self._end_of_orphan, orphans), default=0)
        said["Its indexes say"] = self._spans[-1].indexed_offset if self._spans else 0
        who = max(said, key=lambda each: said[each])
        if said[who] > reached_offset:
            last = self._spans[-1] if self._spans else _Span(reached_offset, 0, 0, 0)
            yield Missing(
                log_file_name(last.base_offset), last.size_bytes, reached_offset, said[who],
                f"{who} that the log reached offset {said[who]}: records at its end are missing.",
            )  # fmt: skip

    def _end_of_orphan(self, offset: int) -> int:
        """Return the offset up to which a file without a log file knows the log.

        Returns:
            The offset after the last one in an index; for a snapshot, its own.
        """
        name = offset_index_file_name(offset)
        if name not in self._names:
            return offset
        path = os.path.join(self._path, name)
        entries = decode_offset_entries(read_index_file(self._filesystem, path, OFFSET_ENTRY_BYTES).data)
        return offset + 1 + (int(entries[-1, 0]) if len(entries) else 0)

    def _is_cleaned(self, end_offset: int) -> bool:
        """Return True if the log was compacted up to an offset."""
        return self._cleaner_offset is not None and end_offset <= self._cleaner_offset

    def _may_be_cleaned(self) -> bool:
        """Return True if the log was compacted, and it is not known how far."""
        return self._cleaner_offset is None and self._is_compacted


def _offsets_of(names: Iterable[str], suffixes: tuple[str, ...], known: set[int | None]) -> list[int]:
    found = {base_offset_of(name) for name in names if name.endswith(suffixes)}
    return sorted(offset for offset in found - known if offset is not None)


def _from_to(offsets: list[int], start_offset: int, end_offset: int) -> list[int]:
    return offsets[bisect_left(offsets, start_offset) : bisect_left(offsets, end_offset)]


def _without(
    start_offset: int, end_offset: int, ranges: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Find what is left of a range of offsets without others, ascending."""
    for start, end in ranges:
        if start >= end_offset:
            break
        if start > start_offset:
            yield start_offset, start
        start_offset = max(start_offset, end)
    if start_offset < end_offset:
        yield start_offset, end_offset
