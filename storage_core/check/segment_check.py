"""Checking one segment: all that its files say about themselves, in one pass over its log.

The result is plain data that travels to another process. What several segments say together, and what a broker would do
about it, is compared in `storage_core.check.partition_check`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from storage_core.dump.log_text import find_batches
from storage_core.errors import CorruptError
from storage_core.filesystem import ReadableFile, ReadableFileSystem
from storage_core.record import WantedFields
from storage_core.record.batch_header import (
    CODEC_MASK,
    CONTROL_FLAG,
    CRC_LAYOUTS,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_V2,
    MAX_OFFSET,
    MIN_LENGTH,
    MIN_V2_LENGTH,
    NO_TIMESTAMP_MS,
)
from storage_core.record.batch_window import BatchWindow
from storage_core.record.record_batches import SEQUENCES
from storage_core.record.section import RecordColumns, RecordSection, SectionMaker
from storage_core.scan.read import RecordReader
from storage_core.segment import DamagedRange, DamageScanner, SegmentReader
from storage_core.segment.damage import MAX_ENCODABLE_BATCH_BYTES, BatchProbe, reason_at
from storage_core.segment.index_file import LARGEST_RELATIVE_OFFSET
from storage_core.segment.segment_reader import DEFAULT_MAX_BATCH_BYTES
from storage_core.views.epochs import EpochRun, epoch_runs
from storage_core.views.finding import Finding
from storage_core.views.index_comparison import (
    MOST_REPORTED,
    IndexComparisons,
    SegmentTransactions,
    compare_indexes,
    index_faults,
)
from storage_core.views.segments import SegmentFile

_HEAD: Final = struct.Struct(">qi4xb")
_ALL_FIELDS: Final = WantedFields(timestamp=True, key=True, value=True, headers=True)


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """A segment to check, with the size of its log file when it was listed."""

    file: SegmentFile
    size_bytes: int
    is_deep: bool = False
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES


class Sequence(NamedTuple):
    """A place in a producer's sequence numbers: those of one batch, or of all batches in a segment."""

    producer_id: int
    first_epoch: int
    first_sequence: int
    first_offset: int
    last_epoch: int
    last_sequence: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class Tail:
    """Bytes after the last valid batch: torn if they are the beginning of another one, or only zeros."""

    start_bytes: int
    end_bytes: int
    reason: str
    is_torn: bool
    is_blank: bool


@dataclass(frozen=True, slots=True)
class BrokerScan:
    """Result of reading one log file by a broker's rules.

    Attributes:
        valid_bytes: Where its recovery cuts the file.
        next_offset: The offset after the last batch before that.
        last_damage_bytes: Where the last damage begins; None if there is none.
        is_cut_known: Whether its recovery is known to cut the file there.
        error_bytes: Where a reader that checks no CRC fails; None if it gets to the end.
        end_offset: The offset after the last batch for such a reader; None if that is not known.
    """

    valid_bytes: int
    next_offset: int
    last_damage_bytes: int | None = None
    is_cut_known: bool = True
    error_bytes: int | None = None
    end_offset: int | None = None


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """Result of the check of one segment.

    Attributes:
        gap_count: How many gaps there are; at most `MOST_REPORTED` are described.
        overflow_bytes: The first batch whose offsets the segment's indexes cannot hold; None if there is none.
        last_indexed_bytes: The position in the last entry of the offset index; 0 without entries.
        malformed: Batches whose records contradict a right checksum, and markers that cannot be read.
        has_holes: Whether a batch has fewer records than offsets, which only a compaction makes.
        breaks: Batches whose producer epoch or sequence number does not follow the producer's last one.
        wrong_max_timestamps: None if each header agrees with its records, or if these were not decoded.
    """

    task: SegmentTask
    size_bytes: int
    end_bytes: int
    next_offset: int
    batch_count: int
    record_count: int
    has_holes: bool
    damage: tuple[DamagedRange, ...]
    malformed: tuple[DamagedRange, ...]
    tail: Tail | None
    gaps: tuple[Finding, ...]
    gap_count: int
    epochs: tuple[EpochRun, ...]
    index_faults: tuple[Finding, ...]
    producers: tuple[Sequence, ...]
    breaks: tuple[Finding, ...]
    transactions: SegmentTransactions
    overflow_bytes: int | None
    last_indexed_bytes: int
    scan: BrokerScan
    wrong_max_timestamps: Finding | None

    @property
    def base_offset(self) -> int:
        """The number in its file names."""
        return self.task.file.base_offset

    @property
    def log_name(self) -> str:
        """Name of its log file."""
        return self.task.file.file_name

    @property
    def is_offset_index_right(self) -> bool:
        """Whether the log confirms all entries of its offset index."""
        return not any(
            each.kind == "offset index" and each.severity != "suspect" for each in self.index_faults
        )

    @property
    def log_path(self) -> str:
        """Path of its log file."""
        return self.task.file.path


def check_segment(filesystem: ReadableFileSystem, task: SegmentTask) -> SegmentFacts:
    """Check one segment. All of its log is read.

    Raises:
        SegmentLogError: A file cannot be read.
        FileNotFoundError: The log file is gone.
    """
    file = task.file
    segment = file.reader(filesystem, skip_damage=True, max_batch_bytes=task.max_batch_bytes)
    observer = _Observer(task)
    compared = compare_indexes(filesystem, segment, observer.see)
    with segment.open_log() as log_file:
        tail = _tail(log_file, segment, compared)
        scan = _scan(log_file, compared, tail, does_overflow=observer.overflow_bytes is not None)
    return observer.facts(compared, tail, scan)


def _scan(
    log_file: ReadableFile, compared: IndexComparisons, tail: Tail | None, *, does_overflow: bool
) -> BrokerScan:
    end, damage = compared.end, compared.damage
    places = [each.start_bytes for each in damage] + ([] if tail is None else [tail.start_bytes])
    if not places:
        return BrokerScan(end.position_bytes, end.next_offset)
    next_offset = damage[0].start_offset if damage else end.next_offset
    return scan_as_broker(log_file, places[0], places[-1], next_offset, does_overflow=does_overflow)


def _tail(log_file: ReadableFile, segment: SegmentReader, compared: IndexComparisons) -> Tail | None:
    """Examine the bytes after the last valid batch of a segment.

    A damaged range is only reported where a batch follows.

    Returns:
        None if nothing follows it.
    """
    start_bytes = compared.end.position_bytes
    if compared.damage:
        start_bytes = max(start_bytes, compared.damage[-1].end_bytes)
    if start_bytes >= compared.size_bytes:
        return None
    scanner = DamageScanner(
        log_file, segment.base_offset, compared.size_bytes, segment.offset_limit, MAX_ENCODABLE_BATCH_BYTES
    )
    error = reason_at(
        scanner.probe, scanner.limits, start_bytes, compared.end.next_offset, segment.max_batch_bytes
    )
    kind = scanner.tail_kind(start_bytes)
    reason = "Expected a record batch, found other bytes." if error is None else str(error.args[0])
    return Tail(start_bytes, compared.size_bytes, reason, is_torn=kind != "bad", is_blank=kind == "blank")


def scan_as_broker(
    log_file: ReadableFile,
    first_damage_bytes: int,
    last_damage_bytes: int,
    next_offset: int,
    *,
    does_overflow: bool,
) -> BrokerScan:
    """Read a damaged log file by a broker's rules, given where its first valid batches end, and its last damage begins."""
    size_bytes = log_file.status.size_bytes
    is_cut_known = not does_overflow and not _is_valid_to_broker(log_file, first_damage_bytes)
    end_offset, error_bytes, is_end_known = next_offset, None, True
    try:
        for found in find_batches(log_file, first_damage_bytes, size_bytes):
            # A broker decompresses old wrappers on its way, and its sums of offsets wrap.
            is_end_known &= found.magic >= MAGIC_V2 and 0 <= found.last_offset < MAX_OFFSET
            end_offset = found.last_offset + 1
    except CorruptError as error:
        error_bytes = error.position_bytes
    return BrokerScan(
        first_damage_bytes,
        next_offset,
        last_damage_bytes,
        is_cut_known,
        error_bytes,
        end_offset if is_end_known else None,
    )


def _is_valid_to_broker(log_file: ReadableFile, position_bytes: int) -> bool:
    """Return True if a batch has a right CRC, whatever its offsets and its magic: no CRC covers either."""
    head = log_file.read_at(MAGIC_POSITION + 1, position_bytes)
    if len(head) <= MAGIC_POSITION:
        return False
    _, length, magic = _HEAD.unpack(head)
    end_bytes = position_bytes + LOG_OVERHEAD_BYTES + length
    # A magic above 2 counts as 2.
    layout_magic = min(max(magic, 0), MAGIC_V2)
    if length < (MIN_V2_LENGTH if layout_magic == MAGIC_V2 else MIN_LENGTH):
        return False
    layout = CRC_LAYOUTS[layout_magic]
    probe = BatchProbe(log_file, log_file.status.size_bytes)
    if end_bytes > probe.end_bytes:
        return False
    expected = int.from_bytes(probe.read_at(4, position_bytes + layout.position), "big")
    return probe.crc(layout_magic, position_bytes + layout.start, end_bytes) == expected


def gaps_in(
    window: BatchWindow, next_offset: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Find the gaps before the batches of a window, whose first one should begin at an offset.

    Returns:
        The first offset of each gap, the one after its last, and where the next batch begins.
    """
    base_offsets = window.base_offsets
    lowest_offsets = np.append(min(next_offset, MAX_OFFSET), window.last_offsets[:-1] + 1)
    # A wrapper's first offset is known only after it is decoded.
    is_gap = (base_offsets > lowest_offsets) & (
        (window.headers["magic"] == MAGIC_V2) | ((window.headers["attributes"] & CODEC_MASK) == 0)
    )
    return lowest_offsets[is_gap], base_offsets[is_gap], window.position_bytes + window.starts[is_gap]


class _Observer:
    """Sees the valid batches and the damage of a segment's log in order."""

    def __init__(self, task: SegmentTask) -> None:
        self._task = task
        self._batch_count = self._record_count = 0
        self._has_holes = False
        self.overflow_bytes: int | None = None
        self._next_offset = task.file.base_offset
        self._gaps: list[Finding] = []
        self._gap_count = 0
        self._epochs: list[EpochRun] = []
        self._producers = _Producers(task.file.path)
        self._malformed: list[DamagedRange] = []
        self._deep = _DeepReader(task) if task.is_deep else None

    def see(self, item: BatchWindow | DamagedRange) -> None:
        if isinstance(item, DamagedRange):
            self._next_offset = max(self._next_offset, item.end_offset)
            self._producers.are_doubtful.update(self._producers.known)
            return
        headers, base_offsets, last_offsets = item.headers, item.base_offsets, item.last_offsets
        self._batch_count += len(headers)
        self._record_count += int(headers["record_count"].sum(dtype=np.int64))
        self._has_holes = self._has_holes or item.has_holes
        self._find_gaps(item)
        self._find_epochs(item)
        largest_offset = self._task.file.base_offset + LARGEST_RELATIVE_OFFSET
        if self.overflow_bytes is None and last_offsets[-1] > largest_offset:
            self.overflow_bytes = item.position_bytes + int(
                item.starts[(last_offsets > largest_offset).argmax()]
            )
        is_data = (headers["producer_id"] >= 0) & ((headers["attributes"] & CONTROL_FLAG) == 0)
        rows = np.flatnonzero(is_data & (headers["base_sequence"] >= 0))
        if len(rows):
            self._producers.take(headers[rows], base_offsets[rows], last_offsets[rows])
        if self._deep is not None:
            self._malformed += self._deep.malformed(item)
        self._next_offset = int(last_offsets[-1]) + 1

    def _find_gaps(self, window: BatchWindow) -> None:
        starts, ends, positions = gaps_in(window, self._next_offset)
        self._gap_count += len(starts)
        most = max(0, MOST_REPORTED - len(self._gaps))
        gaps = zip(starts[:most].tolist(), ends[:most].tolist(), positions[:most].tolist(), strict=True)
        self._gaps += [self._gap(*gap) for gap in gaps]

    def _gap(self, start_offset: int, end_offset: int, position_bytes: int | None = None) -> Finding:
        where = "at the end of the segment" if position_bytes is None else "before this batch"
        return Finding(
            "suspect", "gap", self._task.file.path,
            f"Expected consecutive offsets in a log that is not compacted, found none from {start_offset} to "
            f"{end_offset - 1} {where}.",
            start_byte=position_bytes, end_byte=position_bytes, start_offset=start_offset, end_offset=end_offset,
        )  # fmt: skip

    def _find_epochs(self, window: BatchWindow) -> None:
        for run in epoch_runs(window):
            if self._epochs and self._epochs[-1].epoch == run.epoch:
                self._epochs[-1] = self._epochs[-1].followed_by(run)
            else:
                self._epochs.append(run)

    def facts(self, compared: IndexComparisons, tail: Tail | None, scan: BrokerScan) -> SegmentFacts:
        gaps = self._gaps
        end_offset = self._task.file.end_offset
        # Damage at the end covers what is missing there.
        if end_offset is not None and self._next_offset < end_offset:
            gaps = [*gaps, self._gap(self._next_offset, end_offset)]
            self._gap_count += 1
        malformed = [_damage_of(self._task.file.path, error) for error in compared.transactions.malformed]
        return SegmentFacts(
            self._task,
            compared.size_bytes,
            compared.end.position_bytes,
            compared.end.next_offset,
            self._batch_count,
            self._record_count,
            self._has_holes,
            compared.damage,
            (*self._malformed, *malformed),
            tail,
            tuple(gaps),
            self._gap_count,
            tuple(self._epochs),
            tuple(index_faults(compared)),
            tuple(self._producers.known.values()),
            tuple(self._producers.breaks),
            compared.transactions,
            self.overflow_bytes,
            int(compared.indexes[0].columns["position"][-1]) if len(compared.indexes[0]) else 0,
            scan,
            None if self._deep is None else self._deep.wrong_max_timestamps(),
        )


class _Producers:
    """The sequence numbers of each producer in a segment."""

    def __init__(self, path: str) -> None:
        self.breaks: list[Finding] = []
        self._path = path
        self.known: dict[int, Sequence] = {}
        # Damage may have held any of their batches.
        self.are_doubtful: set[int] = set()

    def take(
        self,
        headers: npt.NDArray[Any],
        base_offsets: npt.NDArray[np.int64],
        last_offsets: npt.NDArray[np.int64],
    ) -> None:
        producer_ids = headers["producer_id"].astype(np.int64)
        order = np.argsort(producer_ids, kind="stable")
        producer_ids = producer_ids[order]
        epochs = headers["producer_epoch"][order].astype(np.int64)
        firsts = headers["base_sequence"][order].astype(np.int64)
        lasts = (firsts + headers["last_offset_delta"][order]) % SEQUENCES
        base_offsets, last_offsets = base_offsets[order], last_offsets[order]
        expected = np.where(epochs[1:] > epochs[:-1], 0, (lasts[:-1] + 1) % SEQUENCES)
        continues = (producer_ids[1:] == producer_ids[:-1]) & (epochs[1:] >= epochs[:-1])
        continues &= firsts[1:] == expected
        begins = np.flatnonzero(np.append(True, ~continues))
        ends = np.append(begins[1:] - 1, len(producer_ids) - 1)
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            self._join(
                Sequence(
                    int(producer_ids[begin]), int(epochs[begin]), int(firsts[begin]), int(base_offsets[begin]),
                    int(epochs[end]), int(lasts[end]), int(last_offsets[end]),
                )
            )  # fmt: skip

    def _join(self, found: Sequence) -> None:
        producer_id = found.producer_id
        before = self.known.get(producer_id)
        if before is None:
            self.known[producer_id] = found
            return
        broken = None if producer_id in self.are_doubtful else break_between(before, found, self._path)
        self.are_doubtful.discard(producer_id)
        if broken is not None and len(self.breaks) < MOST_REPORTED:
            self.breaks.append(broken)
        self.known[producer_id] = before._replace(
            last_epoch=found.last_epoch, last_sequence=found.last_sequence, last_offset=found.last_offset
        )


def break_between(before: Sequence, after: Sequence, path: str) -> Finding | None:
    """Compare where a producer's batches continue, in a log file, with where they should.

    Returns:
        The difference; None if there is none.
    """
    last_epoch, epoch, sequence = before.last_epoch, after.first_epoch, after.first_sequence
    expected = 0 if epoch > last_epoch else (before.last_sequence + 1) % SEQUENCES
    if epoch >= last_epoch and sequence == expected:
        return None
    return Finding(
        "suspect", "sequence", path,
        f"Expected producer {before.producer_id} to continue with epoch {max(last_epoch, epoch)} and sequence {expected}, "
        f"found epoch {epoch} and sequence {sequence}.",
        start_offset=after.first_offset,
    )  # fmt: skip


def _damage_of(path: str, error: CorruptError) -> DamagedRange:
    start_bytes = error.position_bytes or 0
    start_offset = error.offset or 0
    return DamagedRange(
        path,
        start_bytes,
        start_bytes if error.end_position_bytes is None else error.end_position_bytes,
        start_offset,
        start_offset if error.last_offset is None else error.last_offset + 1,
        str(error.args[0]),
        type(error),
    )


class _DeepReader:
    """Decodes every record of a segment, and compares their timestamps with the headers."""

    def __init__(self, task: SegmentTask) -> None:
        self._path = task.file.path
        self._wrong_count = 0
        # The first header that disagrees, where its batch begins, and the largest timestamp of its records.
        self._first_wrong: tuple[npt.NDArray[Any], int, int] | None = None
        self._records = RecordReader(SectionMaker(task.max_batch_bytes, _ALL_FIELDS), _ALL_FIELDS)

    def malformed(self, window: BatchWindow) -> list[DamagedRange]:
        """Find the batches of a window with a right checksum whose records cannot be decoded."""
        headers = window.headers
        has_records = (headers["record_count"] != 0) & ((headers["attributes"] & CONTROL_FLAG) == 0)
        found: list[DamagedRange] = []

        def note(damage: DamagedRange) -> tuple[()]:
            found.append(damage)
            return ()

        # To the end; there are no rows.
        list(self._records.batches(window, np.flatnonzero(has_records), self._compare, note))
        return found

    def _compare(self, section: RecordSection, columns: RecordColumns) -> tuple[()]:
        """Compare the timestamps of decoded records with the headers of their batches."""
        headers, timestamps_ms = section.headers, columns.timestamps_ms
        # Of old formats, a wrapper's timestamp is not checked by brokers, either.
        if timestamps_ms is not None and headers["magic"][0] == MAGIC_V2:
            first_rows = np.cumsum(columns.row_counts) - columns.row_counts
            largest_ms = np.maximum(np.maximum.reduceat(timestamps_ms, first_rows), NO_TIMESTAMP_MS)
            wrong = np.flatnonzero(headers["max_timestamp_ms"] != largest_ms)
            if len(wrong) and self._first_wrong is None:
                first = wrong[0]
                self._first_wrong = headers[first], int(section.positions[first]), int(largest_ms[first])
            self._wrong_count += len(wrong)
        return ()

    def wrong_max_timestamps(self) -> Finding | None:
        """Say how many headers disagree with their records.

        Returns:
            None if there are none.
        """
        if self._first_wrong is None:
            return None
        header, start_bytes, largest_ms = self._first_wrong
        base_offset = int(header["base_offset"])
        return Finding(
            "suspect", "record", self._path,
            f"Expected each header's max timestamp to be the largest of its records, found {self._wrong_count} batches "
            f"with another one: the header of the first one says {header['max_timestamp_ms']} ms, its records {largest_ms} "
            "ms. Look-ups by time and retention of a broker go by the header.",
            start_byte=start_bytes, end_byte=start_bytes + LOG_OVERHEAD_BYTES + int(header["batch_length"]),
            start_offset=base_offset,
            end_offset=min(base_offset + int(header["last_offset_delta"]) + 1, MAX_OFFSET),
        )  # fmt: skip
