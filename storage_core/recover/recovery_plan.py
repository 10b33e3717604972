"""What a recovery keeps of each partition, and what it leaves out, by policy. Nothing is written.

kafka     what a broker's own recovery keeps: of unflushed segments the batches before the first invalid one, and
          nothing after it; flushed segments, and all of a log that was closed cleanly, are kept unread
tail      the same, but refused if that discards a complete batch
salvage   every valid batch; the gaps between them stay gaps
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np

from storage_core.check.index_rebuild import SegmentCheck, check_segments, new_producers
from storage_core.checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    EpochEntry,
    ProducerStateEntry,
    read_leader_epoch_checkpoint,
    read_partition_metadata,
    read_producer_snapshot,
)
from storage_core.directory import PartitionDirectory
from storage_core.directory.segment_listing import FileNames, SegmentFiles, list_segments
from storage_core.errors import (
    CorruptCheckpointError,
    CorruptError,
    CorruptSnapshotError,
    OffsetOverflowError,
)
from storage_core.filesystem import FileStatus, ReadableFileSystem
from storage_core.log.producer_state_manager import ProducerStateManager
from storage_core.log.recovery_check import (
    list_regular_files,
    log_base_offsets,
    scan_as_recovery,
    segments_to_recover,
)
from storage_core.record.batch_header import CONTROL_FLAG, MAGIC_V2
from storage_core.record.batch_window import BatchWindow
from storage_core.record.control_records import read_marker
from storage_core.recover.missing_offsets import LeftOut, Missing, OffsetAccount
from storage_core.segment import SegmentReader
from storage_core.segment.file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    base_offset_of,
    log_file_name,
)
from storage_core.segment.index_file import LARGEST_RELATIVE_OFFSET
from storage_core.views.index_comparison import compare_indexes

Policy = Literal["kafka", "tail", "salvage"]
_SEGMENT_SUFFIXES: Final = (".log", *INDEX_SUFFIXES, SNAPSHOT_SUFFIX)


@dataclass(frozen=True, slots=True)
class LeftOutFile:
    """A file or directory that is left out as a whole, and why."""

    path: str
    reason: str


_ByteRange = tuple[int, int]
"""Bytes of a file, from the first to before the last."""


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """Parts of one segment that are kept.

    Attributes:
        suffix: The suffix of its file names: of the output of an interrupted compaction.
        kept: The parts of the log file that are kept, ascending; none if there is no valid batch.
        has_indexes: Whether its index files are kept; otherwise they are made again.
    """

    base_offset: int
    suffix: str
    status: FileStatus
    kept: tuple[_ByteRange, ...]
    next_offset: int
    has_indexes: bool

    @property
    def size_bytes(self) -> int:
        """Size of the log file that is kept."""
        return sum(end_byte - start_byte for start_byte, end_byte in self.kept)

    @property
    def is_whole(self) -> bool:
        """Whether the log file is kept as it is."""
        return self.size_bytes == self.status.size_bytes

    @property
    def name(self) -> str:
        """Name of the log file as it is found."""
        return log_file_name(self.base_offset) + self.suffix


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """Parts of one partition that are kept, and those that are left out.

    Attributes:
        is_clean: Whether its log counts as closed cleanly when it is loaded.
        recovery_point: The offset below which it counts as flushed when it is loaded.
        log_start_offset: The checkpointed log start; 0 for none.
        compacted: Offsets that are not there because of a compaction.
        suspect: Segments that are kept, and may be those of another log.
        file_names: The regular files in the directory that are kept beside segments and their indexes.
        epochs: What replaces a leader epoch checkpoint that is missing or damaged; None to keep it.
        producers: What replaces the producer snapshots of a log that was closed cleanly; None to keep them.
        topic_id: The topic id that is kept, or is written because the partition's own is lost; None if it is not known.
        unserved: Why a broker would not serve the partition; None if it would.
        record_count: The records that are kept. Of a compressed set in format v0 or v1, its offsets are counted.
    """

    directory: PartitionDirectory
    is_clean: bool
    recovery_point: int
    log_start_offset: int
    log_end_offset: int
    segments: tuple[SegmentPlan, ...]
    left_out: tuple[LeftOut, ...]
    missing: tuple[LeftOut, ...]
    compacted: tuple[LeftOut, ...]
    damaged: tuple[LeftOut, ...]
    suspect: tuple[LeftOut, ...]
    left_out_files: tuple[LeftOutFile, ...]
    file_names: tuple[str, ...]
    epochs: tuple[EpochEntry, ...] | None
    producers: tuple[ProducerStateEntry, ...] | None
    record_count: int
    batch_count: int
    topic_id: str | None
    unserved: str | None = None

    @property
    def size_bytes(self) -> int:
        """Size of the log files that are kept."""
        return sum(segment.size_bytes for segment in self.segments)


@dataclass(frozen=True, slots=True)
class _Cut:
    """From which byte on a log file is cut off, and why."""

    position_bytes: int
    reason: str


def plan_partition(
    filesystem: ReadableFileSystem,
    directory: PartitionDirectory,
    policy: Policy,
    max_batch_bytes: int,
    advance: Callable[[int], object] = lambda _: None,
) -> PartitionPlan:
    """Plan what is kept of a partition. All of its log is read, once or twice.

    Raises:
        LogDirectoryError: Something other than a file has the name of a segment's file.
        SegmentLogError: A file cannot be read.
    """
    return _Planner(filesystem, directory, policy, max_batch_bytes, advance).plan()


@dataclass(slots=True)
class _Counted:
    """Counts of one segment."""

    batches: int = 0
    records: int = 0
    cut_batches: int = 0
    cut_records: int = 0
    # After the last batch that is kept.
    next_offset: int = 0
    # Batches with a valid CRC and a malformed marker, which the recovery refuses.
    refused: list[LeftOut] = field(default_factory=list)


class _Planner:
    def __init__(
        self,
        filesystem: ReadableFileSystem,
        directory: PartitionDirectory,
        policy: Policy,
        max_batch_bytes: int,
        advance: Callable[[int], object],
    ) -> None:
        root, key = directory.root, directory.topic_partition
        self._filesystem = filesystem
        self._directory = directory
        self._path = directory.path
        self._is_salvage = policy == "salvage"
        self._max_batch_bytes = max_batch_bytes
        self._advance = advance
        self._is_clean = root.clean_shutdown
        self._recovery_point = max(0, root.recovery_points.get(key, 0))
        self._log_start_offset = max(0, root.log_start_offsets.get(key, 0))
        self._left_out_files: list[LeftOutFile] = []
        self._names = tuple(list_regular_files(filesystem, directory.path))
        listing = self._list()
        self._bases = tuple(listing.base_offsets)
        self._suffixes = dict.fromkeys(listing.swapped, SWAP_SUFFIX)
        self._present = listing.file_names
        self._counted: dict[int, _Counted] = {base: _Counted() for base in self._bases}
        self._checkpointed_epochs = self._read_epochs()
        self._has_other_epochs = False
        # Epochs never descend in a log, and no CRC covers them.
        self._has_damaged_epochs = False
        self._epochs: list[EpochEntry] = []
        self._account = OffsetAccount(filesystem, directory, self._names, self._checkpointed_epochs)
        # Segments that a recovery reads, and so makes the indexes of.
        self._recovered: set[int] = set()
        self._cuts: dict[int, _Cut] = {}
        self._left_out: list[LeftOut] = []
        self._damaged: list[LeftOut] = []

    def plan(self) -> PartitionPlan:
        if not self._is_salvage:
            self._find_cuts()
        producers = new_producers(self._filesystem, self._path)
        segments = self._kept_segments(producers)
        log_end_offset = segments[-1].next_offset if segments else self._log_start_offset
        checkpointed_start = self._log_start_offset
        if self._log_start_offset > log_end_offset:
            if self._is_salvage:
                # An impossible checkpoint must not cost the records.
                self._log_start_offset = 0
            else:
                segments, log_end_offset = self._without_all(segments), self._log_start_offset
        missing, compacted = self._missing(checkpointed_start)
        self._name_open_transactions(producers)
        epochs = self._rebuilt_epochs()
        topic_id = self._topic_id()
        names, has_snapshot = self._other_files(log_end_offset)
        is_clean = self._is_clean and not (self._is_salvage and self._left_out)
        # Everything below the last segment has been read.
        last_base = segments[-1].base_offset if segments else 0
        return PartitionPlan(
            self._directory,
            is_clean,
            last_base if self._is_salvage else self._recovery_point,
            self._log_start_offset,
            log_end_offset,
            tuple(segments),
            tuple(self._left_out),
            missing,
            compacted,
            tuple(self._damaged),
            tuple(self._account.falls()),
            tuple(self._left_out_files),
            names,
            epochs,
            None
            if has_snapshot or not is_clean or self._left_out
            else tuple(state.snapshot_entry() for state in producers.producers.values()) or None,
            sum(each.records for each in self._counted.values()),
            sum(each.batches for each in self._counted.values()),
            topic_id,
        )

    def _kept_segments(self, producers: ProducerStateManager) -> list[SegmentPlan]:
        checks = check_segments(
            self._filesystem,
            self._path,
            {base: self._suffixes.get(base, "") for base in self._bases},
            is_clean=self._is_clean,
            producers=producers,
            max_batch_bytes=self._max_batch_bytes,
            observe=self._observe,
            advance=self._advance,
        )
        segments = [plan for check in checks if (plan := self._plan_of(check)) is not None]
        if not self._damaged:
            return segments
        # A recovery of one segment reads those after it for their producers, and would fail at damage that is kept.
        return [
            replace(each, has_indexes=each.is_whole and each.base_offset not in self._recovered)
            for each in segments
        ]

    def _missing(self, log_start_offset: int) -> tuple[tuple[LeftOut, ...], tuple[LeftOut, ...]]:
        """Find the missing offsets, and those that a compaction accounts for. Damaged ends take what follows."""
        missing, compacted = [], []
        parts = [(each.start_offset, each.end_offset) for each in (*self._left_out, *self._damaged)]
        for each in self._account.missing(parts, log_start_offset):
            place = (each.file, each.position_bytes, each.position_bytes)
            part = LeftOut(*place, each.start_offset, each.end_offset, reason=each.reason)
            if each.is_compacted:
                compacted.append(part)
            elif not any(self._add_to_end(kept, each) for kept in (self._left_out, self._damaged)):
                missing.append(part)
        return tuple(missing), tuple(compacted)

    def _name_open_transactions(self, producers: ProducerStateManager) -> None:
        """Name the producers whose transactions may have ended in the parts left out: they stay open, and consumers wait."""
        if not self._is_salvage:
            return
        for producer_id, state in sorted(producers.producers.items()):
            first_offset = state.current_transaction_first_offset
            after = [
                number
                for number, each in enumerate(self._left_out)
                if first_offset is not None and each.end_offset > first_offset
            ]
            if after:
                part = self._left_out[after[0]]
                reason = (
                    f"{part.reason} The end of the transaction of producer {producer_id} from offset {first_offset} on may "
                    "have been in it: as long as it is open, consumers of committed records stop there, and "
                    "kafka-transactions.sh abort ends it."
                )
                self._left_out[after[0]] = replace(part, reason=reason)

    def _add_to_end(self, ranges: list[LeftOut], missing: Missing) -> bool:
        last = ranges[-1] if ranges else None
        if last is None or (last.file, last.end_byte, last.end_offset) != missing[:3]:
            return False
        reason = (
            f"It is damaged or cut off. {missing.reason}"
            if "torn" in last.reason
            else f"{last.reason} {missing.reason}"
        )
        ranges[-1] = replace(last, end_offset=missing.end_offset, reason=reason)
        return True

    def _list(self) -> SegmentFiles:
        names = self._names
        if self._is_salvage and (
            swaps := damaged_swaps(self._filesystem, self._path, names, self._max_batch_bytes)
        ):
            reason = "Output of a compaction that is damaged. What it was to replace is whole."
            for name in swaps:
                self._leave_out(name, reason)
            self._names = names = tuple(name for name in names if name not in swaps)
        if not any(name.endswith(SWAP_SUFFIX) for name in names):
            return SegmentFiles(tuple(log_base_offsets(names)), FileNames(names))
        # No process changes the directory.
        end_of = self._swap_end_offset
        return list_segments(self._filesystem, self._path, is_clean=True, swap_end_offset=end_of)

    def _swap_end_offset(self, base_offset: int) -> int:
        segment = self._open(base_offset, SWAP_SUFFIX)
        if self._is_salvage:
            return compare_indexes(self._filesystem, segment).end.next_offset
        return segment.end().next_offset

    def _open(self, base_offset: int, suffix: str) -> SegmentReader:
        return SegmentReader(
            self._filesystem, self._path, base_offset, suffix=suffix, max_batch_bytes=self._max_batch_bytes
        )

    # What a broker's recovery cuts off.

    def _find_cuts(self) -> None:
        chosen = segments_to_recover(
            self._filesystem,
            self._path,
            self._bases,
            self._present,
            self._recovery_point,
            is_clean=self._is_clean,
            open_segment=lambda base_offset: self._open(base_offset, self._suffixes.get(base_offset, "")),
            suffixes=self._suffixes,
        )
        for number, is_unflushed in chosen:
            base_offset = self._bases[number]
            self._recovered.add(base_offset)
            found = self._cut_of(self._open(base_offset, self._suffixes.get(base_offset, "")))
            if found is None:
                continue
            cut, drops_rest = found
            self._cuts[base_offset] = cut
            if is_unflushed or drops_rest:
                reason = f"A recovery discards it after the end of {log_file_name(base_offset)}: {cut.reason}"
                self._cuts.update(dict.fromkeys(self._bases[number + 1 :], _Cut(0, reason)))
                self._cut_parts_after(number, reason)
                return

    def _cut_parts_after(self, last: int, reason: str) -> None:
        """Cut the parts that a recovery splits off segments before the last one it keeps, only to discard them."""
        for base_offset in self._bases[:last]:
            if base_offset in self._cuts or base_offset not in self._recovered:
                continue
            part_base = base_offset
            for header in self._open(base_offset, self._suffixes.get(base_offset, "")).batches():
                if header.last_offset - part_base <= LARGEST_RELATIVE_OFFSET:
                    continue
                part_base = header.base_offset
                if part_base > self._bases[last]:
                    self._cuts[base_offset] = _Cut(header.position_bytes, reason)
                    break

    def _cut_of(self, segment: SegmentReader) -> tuple[_Cut, bool] | None:
        """Find where a recovery cuts a segment.

        Returns:
            The cut, and whether it removes all later segments in any case; None if it cuts nothing off.
        """
        with segment.open_log() as log_file:
            size_bytes = log_file.status.size_bytes
            try:
                scan = scan_as_recovery(log_file, segment)
            except OffsetOverflowError as error:
                return _Cut(error.position_bytes or 0, str(error.args[0])), True
        if scan.end_position_bytes == size_bytes:
            return None
        reason = "The last append was torn." if scan.problem is None else str(scan.problem.args[0])
        return _Cut(scan.end_position_bytes, reason), False

    def _without_all(self, segments: list[SegmentPlan]) -> list[SegmentPlan]:
        """Leave out every segment, as a broker does with a log that ends below its start."""
        reason = f"The log ends below its checkpointed start, {self._log_start_offset}."
        for segment in segments:
            counted = self._counted[segment.base_offset]
            if segment.status.size_bytes:
                ranges = (0, segment.status.size_bytes, segment.base_offset, segment.next_offset)
                counts = (counted.batches, counted.records)
                self._left_out.append(LeftOut(segment.name, *ranges, *counts, reason))
            self._counted[segment.base_offset] = _Counted()
        return []

    # One segment.

    def _observe(self, base_offset: int, window: BatchWindow) -> None:
        counted = self._counted[base_offset]
        cut = self._cuts.get(base_offset)
        refused = _malformed_markers(window) if self._is_salvage else []
        counted.refused += [self._refused(base_offset, window, number, text) for number, text in refused]
        is_kept = np.ones(len(window.starts), np.bool_)
        is_kept[[number for number, _ in refused]] = False
        records = _record_counts(window)
        if cut is not None:
            is_cut = window.position_bytes + window.starts >= cut.position_bytes
            counted.cut_batches += int(is_cut.sum())
            counted.cut_records += int(records[is_cut].sum())
            is_kept &= ~is_cut
        counted.batches += int(is_kept.sum())
        counted.records += int(records[is_kept].sum())
        if is_kept.any():
            counted.next_offset = window.header(int(np.flatnonzero(is_kept)[-1])).next_offset
        self._note_epochs(window, is_kept)
        self._account.see(base_offset, window)

    def _refused(self, base_offset: int, window: BatchWindow, number: int, reason: str) -> LeftOut:
        header = window.header(number)
        name = log_file_name(base_offset) + self._suffixes.get(base_offset, "")
        place = (name, header.position_bytes, header.end_position_bytes)
        reason += f" It is the marker of a transaction of producer {header.producer_id}, epoch {header.producer_epoch}."
        return LeftOut(*place, header.base_offset, header.next_offset, reason=reason)

    def _note_epochs(self, window: BatchWindow, is_kept: np.ndarray) -> None:
        latest = self._epochs[-1].epoch if self._epochs else -1
        epochs = np.where(is_kept, window.headers["leader_epoch"], -1)
        known = self._checkpointed_epochs
        if known:
            starts = np.array([entry.start_offset for entry in known])
            numbers = starts.searchsorted(window.headers["base_offset"], side="right") - 1
            expected = np.array([entry.epoch for entry in known])[numbers]
            self._has_other_epochs |= bool(((epochs >= 0) & (numbers >= 0) & (epochs != expected)).any())
        running = np.maximum.accumulate(np.append(latest, epochs))
        self._has_damaged_epochs |= bool(((epochs >= 0) & (epochs < running[:-1])).any())
        for number in np.flatnonzero(np.diff(running)).tolist():
            self._epochs.append(
                EpochEntry(int(running[number + 1]), int(window.headers["base_offset"][number]))
            )

    def _plan_of(self, check: SegmentCheck) -> SegmentPlan | None:
        base_offset = check.base_offset
        self._account.close(check)
        path = os.path.join(self._path, log_file_name(base_offset) + check.suffix)
        status = self._filesystem.status(path)
        assert status is not None  # noqa: S101  (it was just read)
        is_last = base_offset == self._bases[-1]
        kept = self._kept(check, is_last=is_last)
        size_bytes = sum(end_byte - start_byte for start_byte, end_byte in kept)
        counted = self._counted[base_offset]
        # A refused marker may be the last batch.
        next_offset = counted.next_offset if counted.refused else check.compared.end.next_offset
        cut = self._cuts.get(base_offset)
        if cut is not None:
            if base_offset not in self._recovered:
                # A recovery removes it after another one.
                return None
            next_offset = self._next_offset_at(check, cut.position_bytes)
        elif not size_bytes and status.size_bytes and not is_last:
            return None
        is_kept = size_bytes == status.size_bytes and base_offset not in self._recovered
        # Indexes are made again by a recovery of the segment, which must not cut what is kept in spite of damage.
        has_indexes = is_kept and (not check.findings or not _is_valid_throughout(check))
        return SegmentPlan(
            base_offset, check.suffix, status, kept, max(next_offset, base_offset), has_indexes
        )

    def _next_offset_at(self, check: SegmentCheck, position_bytes: int) -> int:
        """Return the offset after the batches before a position."""
        next_offset = check.base_offset
        if position_bytes:
            segment = self._open(check.base_offset, check.suffix)
            for header in segment.batches(0, position_bytes):
                next_offset = header.next_offset
        return next_offset

    def _kept(self, check: SegmentCheck, *, is_last: bool) -> tuple[_ByteRange, ...]:
        """Return the parts of a log file to keep, and note those that are left out."""
        compared, counted = check.compared, self._counted[check.base_offset]
        name = log_file_name(check.base_offset) + check.suffix
        cut = self._cuts.get(check.base_offset)
        if cut is not None:
            return self._cut_range(check, cut, counted)
        damage = [
            LeftOut(
                *(name, each.start_bytes, each.end_bytes, each.start_offset, each.end_offset),
                reason=each.reason,
            )
            for each in compared.damage
        ]
        end_bytes = compared.size_bytes
        if is_last or (self._is_salvage and self._is_blank(check, compared.end.position_bytes)):
            # Consumers stop at zeros within a log.
            end_bytes = compared.end.position_bytes
        if end_bytes < compared.size_bytes and not self._is_blank(check, end_bytes):
            reason = "No valid batch follows: the last append was torn, or its bytes are damaged."
            next_offset = compared.end.next_offset
            place = (name, end_bytes, compared.size_bytes)
            damage.append(LeftOut(*place, next_offset, next_offset, reason=reason))
        if not self._is_salvage:
            self._damaged += damage
            return _non_empty([(0, compared.size_bytes)])
        damage = sorted([*damage, *counted.refused], key=lambda each: each.start_byte)
        self._left_out += damage
        return _non_empty(_between(damage, end_bytes))

    def _cut_range(self, check: SegmentCheck, cut: _Cut, counted: _Counted) -> tuple[_ByteRange, ...]:
        size_bytes = check.compared.size_bytes
        if size_bytes > cut.position_bytes and not self._is_blank(check, cut.position_bytes):
            start_offset = self._next_offset_at(check, cut.position_bytes)
            place = (log_file_name(check.base_offset) + check.suffix, cut.position_bytes, size_bytes)
            offsets = (start_offset, max(start_offset, check.compared.end.next_offset))
            counts = (counted.cut_batches, counted.cut_records)
            self._left_out.append(LeftOut(*place, *offsets, *counts, cut.reason))
        return _non_empty([(0, cut.position_bytes)])

    def _is_blank(self, check: SegmentCheck, position_bytes: int) -> bool:
        """Return True if only zeros follow, which a broker preallocated."""
        return self._open(check.base_offset, check.suffix).is_preallocated_after(position_bytes, 0)

    # The other files.

    def _read_epochs(self) -> tuple[EpochEntry, ...]:
        path = os.path.join(self._path, LEADER_EPOCH_CHECKPOINT)
        try:
            return read_leader_epoch_checkpoint(self._filesystem, path)
        except CorruptCheckpointError as error:
            self._leave_out(LEADER_EPOCH_CHECKPOINT, f"{error.args[0]} It is made again from the log.")
            return ()

    def _rebuilt_epochs(self) -> tuple[EpochEntry, ...] | None:
        if self._has_other_epochs and not self._has_damaged_epochs:
            reason = "Batches of the log have other leader epochs. It is made again from the log."
            self._leave_out(LEADER_EPOCH_CHECKPOINT, reason)
        elif self._checkpointed_epochs:
            return None
        return tuple(self._epochs)

    def _other_files(self, log_end_offset: int) -> tuple[tuple[str, ...], bool]:
        """Choose the files beside segments that are kept.

        Returns:
            Their names, and whether there are snapshots among them.
        """
        kept, has_snapshot = [], False
        for name in self._names:
            if name.endswith(SNAPSHOT_SUFFIX) and (offset := base_offset_of(name)) is not None:
                if self._is_readable_snapshot(name) and offset <= log_end_offset:
                    kept.append(name)
                    has_snapshot = True
            elif name in (PARTITION_METADATA, LEADER_EPOCH_CHECKPOINT):
                kept.append(name)
            elif not _belongs_to_segment(name):
                self._leave_out(name, "It is not a file of a broker's.")
        left_out = {os.path.basename(each.path) for each in self._left_out_files}
        return tuple(name for name in kept if name not in left_out), has_snapshot

    def _is_readable_snapshot(self, name: str) -> bool:
        try:
            read_producer_snapshot(self._filesystem, os.path.join(self._path, name))
        except CorruptSnapshotError as error:
            self._leave_out(name, f"{error.args[0]} It is made again from the log.")
            return False
        return True

    def _topic_id(self) -> str | None:
        try:
            return read_partition_metadata(self._filesystem, os.path.join(self._path, PARTITION_METADATA))
        except CorruptCheckpointError as error:
            self._leave_out(PARTITION_METADATA, str(error.args[0]))
            return None

    def _leave_out(self, name: str, reason: str) -> None:
        self._left_out_files.append(LeftOutFile(os.path.join(self._path, name), reason))


def damaged_swaps(
    filesystem: ReadableFileSystem, path: str, names: Sequence[str], max_batch_bytes: int
) -> tuple[str, ...]:
    """Find the output of an interrupted compaction that is worse than the segments that it was to replace.

    Returns:
        The names of all of its files, of the indexes first, if a log file among them is damaged, no original was removed
        yet, and these have no damage; otherwise nothing.
    """
    swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
    bases = sorted(base for name in swaps if (base := base_offset_of(name)) is not None and ".log" in name)
    originals = log_base_offsets(names)
    if not set(bases) <= set(originals) or any(name.endswith(".log" + DELETED_SUFFIX) for name in names):
        return ()

    def compared(base_offset: int, suffix: str) -> tuple[bool, int]:
        """Determine whether a segment is valid, and where it ends."""
        segment = SegmentReader(
            filesystem, path, base_offset, suffix=suffix, max_batch_bytes=max_batch_bytes, skip_damage=True
        )
        found = compare_indexes(filesystem, segment)
        is_valid = not found.damage and found.end.position_bytes == found.size_bytes
        return is_valid, max(found.end.next_offset, base_offset + 1)

    outputs = {base: compared(base, SWAP_SUFFIX) for base in bases}
    replaced = {each for base, (_, end) in outputs.items() for each in originals if base <= each < end}
    is_worse = not all(is_valid for is_valid, _ in outputs.values())
    if is_worse and all(compared(base, "")[0] for base in replaced):
        return tuple(sorted(swaps, key=lambda name: ".log" in name))
    return ()


def _is_valid_throughout(check: SegmentCheck) -> bool:
    """Return True if a recovery of a segment cuts nothing off and splits nothing."""
    compared = check.compared
    return (
        not compared.damage
        and compared.end.position_bytes == compared.size_bytes
        and compared.end.next_offset - 1 - check.base_offset <= LARGEST_RELATIVE_OFFSET
    )


def _belongs_to_segment(name: str) -> bool:
    """Return True if a file is one of a segment, or awaits its deletion, or the end of a compaction."""
    plain = name
    for suffix in (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX):
        plain = plain.removesuffix(suffix)
    return base_offset_of(plain) is not None and plain.endswith(_SEGMENT_SUFFIXES)


def _between(damage: list[LeftOut], end_bytes: int) -> list[_ByteRange]:
    """Return the parts of a file between damaged ones."""
    kept, start_byte = [], 0
    for each in damage:
        kept.append((start_byte, min(each.start_byte, end_bytes)))
        start_byte = max(start_byte, each.end_byte)
    return [*kept, (start_byte, end_bytes)]


def _non_empty(ranges: list[_ByteRange]) -> tuple[_ByteRange, ...]:
    return tuple((start_byte, end_byte) for start_byte, end_byte in ranges if end_byte > start_byte)


def _record_counts(window: BatchWindow) -> np.ndarray:
    """Count the records of each batch, without markers. A wrapper counts as its offsets."""
    headers = window.headers
    counts = np.where(
        headers["magic"] < MAGIC_V2,
        headers["last_offset_delta"].astype(np.int64) + 1,
        headers["record_count"],
    )
    return np.where(headers["attributes"] & CONTROL_FLAG, 0, counts)


def _malformed_markers(window: BatchWindow) -> list[tuple[int, str]]:
    """Find the control batches that hold no marker that a recovery can read.

    Returns:
        Their numbers in the window, and why.
    """
    headers = window.headers
    is_control = (headers["attributes"] & CONTROL_FLAG != 0) & (headers["magic"] >= MAGIC_V2)
    is_control &= (headers["producer_id"] >= 0) & (headers["record_count"] > 0)
    found = []
    for number in np.flatnonzero(is_control).tolist():
        header = window.header(number)
        start = int(window.starts[number])
        batch = window.buffer.data[start : start + header.size_bytes]
        try:
            read_marker(batch, header, path=window.path)
        except CorruptError as error:
            found.append((number, str(error.args[0])))
    return found
