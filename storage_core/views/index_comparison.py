"""Compare the entries of a segment's indexes with its log.

The log is read from beginning to end, with every CRC, and each entry is compared with the batches when they come by. So
an entry counts as wrong only where a valid batch, or the end of the log, contradicts it; where the log itself is damaged,
nothing is known about it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from storage_core.errors import (
    CorruptError,
    DataLossError,
    FileReplacedError,
    LogDirectoryError,
    UnreadableError,
)
from storage_core.log.producer_batches import ProducerBatch, ProducerBatches
from storage_core.record.batch_header import MAX_OFFSET, NO_TIMESTAMP_MS
from storage_core.scan.span_reader import SpanReader
from storage_core.segment import DamagedRange, SegmentEnd, SegmentReader, TimestampOffset
from storage_core.segment.batch_windows import WINDOW_BYTES, WindowBuffer
from storage_core.segment.file_names import (
    offset_index_file_name,
    time_index_file_name,
    transaction_index_file_name,
)
from storage_core.segment.index_file import MISSING, read_index_file
from storage_core.segment.offset_index import ENTRY_SIZE_BYTES as OFFSET_ENTRY_BYTES
from storage_core.segment.offset_index import decode_offset_entries
from storage_core.segment.time_index import ENTRY_SIZE_BYTES as TIME_ENTRY_BYTES
from storage_core.segment.time_index import decode_time_entries
from storage_core.segment.transaction_index import ENTRY_SIZE_BYTES as TRANSACTION_ENTRY_BYTES
from storage_core.segment.transaction_index import (
    MAX_TRANSACTION_INDEX_SIZE_BYTES,
    decode_transaction_entries,
)
from storage_core.views.finding import Finding, sentence
from storage_core.views.span_headers import whole_span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from storage_core.filesystem import ReadableFile, ReadableFileSystem
    from storage_core.record.batch_window import BatchWindow


OFFSET: Final = "offset"
TIME: Final = "time"
TRANSACTION: Final = "transaction"
BEYOND_LOG: Final = "the log ends before it"

MOST_REPORTED: Final = 100
"""Of one kind of fault, this many are described for each segment; the rest is counted."""
# One for each code, which is its number here.
PROBLEMS: Final = (
    None,
    "the log is damaged there",
    BEYOND_LOG,
    "no batch begins at its position",
    "its offset is below those of the batch at its position",
    "its offset is that of a later batch than the one at its position",
    "it does not ascend from the entry before it",
    "it is negative",
    "no batch holds its offset",
    "the batch that holds its offset has another largest timestamp",
    "a batch before the one that holds its offset has a larger timestamp",
    "no abort marker of its producer is at its last offset",
    "its first offset is not where the transaction begins",
    "its last stable offset is beyond the marker",
    "its version is unknown",
)
(
    FINE,
    DAMAGED,
    _BEYOND_END,
    _NO_BATCH,
    _BELOW_BATCH,
    _ABOVE_BATCH,
    _NOT_ASCENDING,
    _NEGATIVE,
    _NO_HOLDER,
    _OTHER_TIMESTAMP,
    _LATER_TIMESTAMP,
    _NO_MARKER,
    _OTHER_BEGINNING,
    _BEYOND_MARKER,
    _UNKNOWN_VERSION,
) = range(len(PROBLEMS))


@dataclass(frozen=True, slots=True, eq=False)
class IndexComparison:
    """The whole entries of one index file, and what the log says about each.

    Attributes:
        problem: Why the file as a whole is not sound; None if it is.
        columns: The entries by column of the view.
        codes: Per entry, what is wrong with it.
    """

    kind: str
    path: str
    problem: str | None
    columns: dict[str, npt.NDArray[np.int64]]
    codes: npt.NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def finding_kind(self) -> str:
        """The kind of findings about it."""
        return f"{self.kind} index"

    @property
    def is_unusable(self) -> bool:
        """Whether the file as a whole is not sound. A transaction index may be missing."""
        return self.problem is not None and not (self.kind == TRANSACTION and self.problem == MISSING)

    @property
    def wrong_numbers(self) -> npt.NDArray[np.int64]:
        """The numbers of the entries that the log, or the entries before them, contradict."""
        return np.flatnonzero(self.codes > DAMAGED)

    def problem_of(self, number: int) -> str | None:
        """Return what is wrong with an entry.

        Returns:
            None if nothing is.
        """
        return PROBLEMS[self.codes[number]]


@dataclass(frozen=True, slots=True, eq=False)
class IndexComparisons:
    """The indexes of one segment, compared with its log.

    Attributes:
        indexes: Offset index, time index, transaction index.
        largest_timestamp: The largest timestamp, and the last offset of the first batch that holds it.
    """

    indexes: tuple[IndexComparison, IndexComparison, IndexComparison]
    end: SegmentEnd
    largest_timestamp: TimestampOffset
    transactions: SegmentTransactions
    damage: tuple[DamagedRange, ...]
    size_bytes: int

    @property
    def indexed_offset(self) -> int:
        """The offset after the last one of an offset or time index that the log contradicts only by ending earlier."""
        return 1 + max(
            (
                int(index.columns["offset"][-1])
                for index in self.indexes[:2]
                if len(index) and index.problem is None and np.isin(index.codes, (FINE, _BEYOND_END)).all()
            ),
            default=-1,
        )


class _Entries:
    """Whole entries of one index file, compared with the log as it comes by."""

    def __init__(
        self,
        kind: str,
        path: str,
        problem: str | None,
        columns: dict[str, npt.NDArray[np.int64]],
        code: int,
        keys: npt.NDArray[np.int64],
    ) -> None:
        self._of_file = kind, path, problem, columns
        # What is wrong with an entry unless something is found where its key, a position or an offset, says.
        self.codes = np.full(len(keys), code, np.int8)
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]

    def between(self, start: int, end: int) -> npt.NDArray[np.int64]:
        """Return the numbers of the entries whose keys are in a range."""
        first, last = self._sorted.searchsorted([start, end])
        return self._order[first:last]

    def comparison(self) -> IndexComparison:
        """Return the outcome."""
        return IndexComparison(*self._of_file, self.codes)


class _OffsetEntries(_Entries):
    """An offset index beside the log.

    An entry is right if a look-up that begins there misses no batch, and if its offset belongs to the append that begins
    there: brokers before 4.0 name the last offset of several batches, the oldest their first.
    """

    def __init__(self, filesystem: ReadableFileSystem, segment: SegmentReader) -> None:
        path = _path(segment, offset_index_file_name)
        content = read_index_file(filesystem, path, OFFSET_ENTRY_BYTES)
        entries = decode_offset_entries(_whole(content.data, OFFSET_ENTRY_BYTES))
        self.relative_offsets, self.positions = entries[:, 0], entries[:, 1]
        self.offsets = self.relative_offsets + segment.base_offset
        self._batch_offsets = np.full(len(entries), MAX_OFFSET, np.int64)
        columns = {"offset": self.offsets, "position": self.positions}
        super().__init__(OFFSET, path, content.problem, columns, _NO_BATCH, self.positions)

    def add(self, window: BatchWindow) -> None:
        positions = window.position_bytes + window.starts
        chosen = self.between(int(positions[0]), window.position_bytes + window.end)
        if not len(chosen):
            return
        numbers = positions.searchsorted(self.positions[chosen], side="right") - 1
        begins = positions[numbers] == self.positions[chosen]
        base_offsets = window.base_offsets[numbers]
        is_below = self.offsets[chosen] < base_offsets
        self.codes[chosen] = np.where(begins, np.where(is_below, _BELOW_BATCH, FINE), _NO_BATCH)
        self._batch_offsets[chosen[begins]] = base_offsets[begins]

    def add_damage(self, damage: DamagedRange) -> None:
        self.codes[self.between(damage.start_bytes, damage.end_bytes)] = DAMAGED

    def finish(self, end: SegmentEnd) -> None:
        """Compare the entries with the end of the log, and with each other."""
        codes = self.codes
        codes[(codes == _NO_BATCH) & (self.positions >= end.position_bytes)] = _BEYOND_END
        limits = np.minimum(np.append(self._batch_offsets[1:], MAX_OFFSET), min(end.next_offset, MAX_OFFSET))
        codes[(codes == FINE) & (self.offsets >= limits)] = _ABOVE_BATCH
        if len(codes) and not self.relative_offsets[0] and not self.positions[0]:
            # Of the first batch, which a broker never indexes. It says nothing.
            codes[0] = FINE
        is_later = (np.diff(self.offsets) > 0) & (np.diff(self.positions) > 0)
        codes[1:][~is_later] = _NOT_ASCENDING
        codes[(self.relative_offsets < 0) | (self.positions < 0)] = _NEGATIVE


class _TimeEntries(_Entries):
    """A time index beside the log."""

    def __init__(self, filesystem: ReadableFileSystem, segment: SegmentReader) -> None:
        path, base_offset = _path(segment, time_index_file_name), segment.base_offset
        content = read_index_file(filesystem, path, TIME_ENTRY_BYTES)
        data = content.data
        if not data and content.file_size_bytes == TIME_ENTRY_BYTES:
            # Timestamp 0 at the base offset; in a longer file, preallocated space.
            data = bytes(TIME_ENTRY_BYTES)
        self.timestamps_ms, self.relative_offsets = decode_time_entries(_whole(data, TIME_ENTRY_BYTES))
        self.offsets = self.relative_offsets + base_offset
        self.largest = TimestampOffset(NO_TIMESTAMP_MS, base_offset)
        self._next_offset = base_offset
        columns = {"offset": self.offsets, "timestampMs": self.timestamps_ms}
        super().__init__(TIME, path, content.problem, columns, _NO_HOLDER, self.offsets)

    def add(self, window: BatchWindow) -> None:
        last_offsets, next_offset = window.last_offsets, window.next_offset
        max_timestamps_ms = window.headers["max_timestamp_ms"].astype(np.int64)
        chosen = self.between(self._next_offset, next_offset)
        largest = np.maximum.accumulate(np.append(self.largest.timestamp_ms, max_timestamps_ms))
        if len(chosen):
            numbers = last_offsets.searchsorted(self.offsets[chosen])
            timestamps_ms = self.timestamps_ms[chosen]
            codes = np.where(largest[numbers] > timestamps_ms, _LATER_TIMESTAMP, FINE)
            codes[max_timestamps_ms[numbers] != timestamps_ms] = _OTHER_TIMESTAMP
            codes[window.base_offsets[numbers] > self.offsets[chosen]] = _NO_HOLDER
            self.codes[chosen] = codes
        if largest[-1] > self.largest.timestamp_ms:
            holder = int(max_timestamps_ms.argmax())
            self.largest = TimestampOffset(int(largest[-1]), int(last_offsets[holder]))
        self._next_offset = next_offset

    def add_damage(self, damage: DamagedRange) -> None:
        self.codes[self.between(damage.start_offset, damage.end_offset)] = DAMAGED
        self._next_offset = max(self._next_offset, damage.end_offset)

    def finish(self, end: SegmentEnd) -> None:
        """Compare the entries with the end of the log, and with each other."""
        codes = self.codes
        codes[(codes == _NO_HOLDER) & (self.offsets >= end.next_offset)] = _BEYOND_END
        is_later = (self.timestamps_ms[1:] > self.timestamps_ms[:-1]) & (np.diff(self.offsets) >= 0)
        codes[1:][~is_later] = _NOT_ASCENDING
        codes[(self.relative_offsets < 0) | (self.timestamps_ms < 0)] = _NEGATIVE


class ProducerTransactions(NamedTuple):
    """State of a producer's transactions in a log up to an offset.

    Attributes:
        marker_offset: The offset of its last marker; -1 if there is none.
        first_offset: Where the transaction that is open begins; -1 if none is open.
    """

    marker_offset: int = -1
    first_offset: int = -1

    def then(self, later: ProducerTransactions) -> ProducerTransactions:
        """Extend the state by that of the next part of the log."""
        if later.marker_offset >= 0:
            return later
        return self._replace(first_offset=self.first_offset if self.first_offset >= 0 else later.first_offset)


class EndedTransaction(NamedTuple):
    """A transaction that a marker ends.

    Attributes:
        first_offset: Where its records in the segment begin; -1 if there are none.
        indexed_offset: Where it begins by the segment's transaction index; None if that has no entry for the marker.
    """

    producer_id: int
    first_offset: int
    marker_offset: int
    is_abort: bool
    indexed_offset: int | None

    @property
    def is_index_wrong(self) -> bool:
        """Return True if the index lacks an aborted transaction, or its beginning, which a compaction may have removed."""
        is_late = self.indexed_offset is None or self.indexed_offset > self.first_offset
        return self.is_abort and self.first_offset >= 0 and is_late


@dataclass(frozen=True, slots=True)
class SegmentTransactions:
    """The transactions of a segment, and what its transaction index says of those that are aborted.

    Attributes:
        first_ended: Of each producer that has a marker, what its first one ends: that may begin in an earlier segment.
        wrong: Other aborted transactions that the index omits or misplaces.
        producers: What is known at the end of the segment, by producer.
        refused_version: The version of the first entry that a broker objects to; None if it reads all of them.
        malformed: Errors of the control batches that cannot be read, under a right CRC.
    """

    first_ended: tuple[EndedTransaction, ...]
    wrong: tuple[EndedTransaction, ...]
    producers: dict[int, ProducerTransactions]
    refused_version: int | None
    malformed: tuple[CorruptError, ...]


class _TransactionEntries(_Entries):
    """A transaction index beside the log.

    A transaction may begin in an earlier segment, and compaction may have removed its first batches. So a beginning is
    wrong only if data of the transaction precedes it, or if another marker of the producer is in between.
    """

    def __init__(self, filesystem: ReadableFileSystem, segment: SegmentReader) -> None:
        path = _path(segment, transaction_index_file_name)
        problem: str | None = None
        data: bytes | None = b""
        try:
            data = filesystem.read_file(path, MAX_TRANSACTION_INDEX_SIZE_BYTES)
        except UnreadableError:
            raise
        except LogDirectoryError as error:
            problem = str(error.args[0])
        if data is None:
            problem, data = MISSING, b""
        whole = _whole(data, TRANSACTION_ENTRY_BYTES)
        if len(whole) < len(data):
            problem = f"the file has {len(data)} bytes, which is no multiple of {TRANSACTION_ENTRY_BYTES}"
        self.table = table = decode_transaction_entries(whole)
        self._last_offsets = table["last_offset"].astype(np.int64)
        columns = {
            "offset": table["first_offset"].astype(np.int64),
            "lastOffset": self._last_offsets,
            "producerId": table["producer_id"].astype(np.int64),
            "lastStableOffset": table["last_stable_offset"].astype(np.int64),
        }
        super().__init__(TRANSACTION, path, problem, columns, _NO_MARKER, self._last_offsets)
        self._producers: dict[int, ProducerTransactions] = {}
        self._numbers = {offset: number for number, offset in enumerate(self._last_offsets.tolist())}
        self._first_ended: dict[int, EndedTransaction] = {}
        self._wrong: list[EndedTransaction] = []
        self._malformed: list[CorruptError] = []
        versions = table["version"].astype(np.int64)
        refused = np.flatnonzero((versions >> 8 > 0) | (self._last_offsets < segment.base_offset))
        self._refused_version = int(versions[refused[0]]) if len(refused) else None

    def add(self, window: BatchWindow) -> None:
        try:
            batches = ProducerBatches.of_window(window).batches
        except CorruptError as error:
            # The producer itself is to blame, not the index.
            self._malformed.append(error)
            self._forget()
            return
        for batch in batches:
            self._add(batch)

    def _add(self, batch: ProducerBatch) -> None:
        producer_id, marker = batch.producer_id, batch.marker
        known = self._producers.get(producer_id, ProducerTransactions())
        if marker is None:
            if batch.is_transactional and known.first_offset < 0:
                self._producers[producer_id] = known._replace(first_offset=batch.base_offset)
            return
        number = self._numbers.get(batch.base_offset) if marker.is_abort else None
        indexed_offset = None
        if number is not None:
            indexed_offset = int(self.table["first_offset"][number])
            self.codes[number] = self._code_of(self.table[number], producer_id, known)
        ended = EndedTransaction(
            producer_id, known.first_offset, batch.base_offset, marker.is_abort, indexed_offset
        )
        if self._first_ended.setdefault(producer_id, ended) is not ended and ended.is_index_wrong:
            self._wrong.append(ended)
        self._producers[producer_id] = ProducerTransactions(batch.base_offset)

    def add_damage(self, damage: DamagedRange) -> None:
        self.codes[self.between(damage.start_offset, damage.end_offset)] = DAMAGED
        self._forget()

    def _forget(self) -> None:
        # A marker may have been lost, so it is not known where the next transactions begin.
        for producer_id, known in self._producers.items():
            self._producers[producer_id] = known._replace(first_offset=-1)

    def finish(self, end: SegmentEnd) -> None:
        """Compare the entries with the end of the log, and with each other."""
        codes, last_offsets = self.codes, self._last_offsets
        codes[(codes == _NO_MARKER) & (last_offsets >= end.next_offset)] = _BEYOND_END
        codes[1:][last_offsets[1:] <= last_offsets[:-1]] = _NOT_ASCENDING
        codes[self.table["version"] != 0] = _UNKNOWN_VERSION

    def found(self) -> SegmentTransactions:
        return SegmentTransactions(
            tuple(self._first_ended.values()),
            tuple(self._wrong[:MOST_REPORTED]),
            self._producers,
            self._refused_version,
            tuple(self._malformed),
        )

    @staticmethod
    def _code_of(entry: npt.NDArray[Any], producer_id: int, known: ProducerTransactions) -> int:
        first_offset, last_offset = int(entry["first_offset"]), int(entry["last_offset"])
        if int(entry["producer_id"]) != producer_id:
            return _NO_MARKER
        is_late = 0 <= known.first_offset < first_offset
        if first_offset < 0 or first_offset >= last_offset or first_offset <= known.marker_offset or is_late:
            return _OTHER_BEGINNING
        return FINE if int(entry["last_stable_offset"]) <= last_offset + 1 else _BEYOND_MARKER


def compare_indexes(
    filesystem: ReadableFileSystem,
    segment: SegmentReader,
    observe: Callable[[BatchWindow | DamagedRange], object] | None = None,
) -> IndexComparisons:
    """Compare the indexes of a segment with its log. All of the log is read, and every CRC checked.

    The segment is a fresh one: its log may have grown since another was opened.

    Args:
        filesystem: Where to read.
        segment: The segment.
        observe: Receives what is in the log, in order: the valid batches, window by window, and damaged ranges.

    Raises:
        SegmentLogError: A file cannot be read.
        FileNotFoundError: The log file is gone.
    """
    # Before the size of the log file: a running broker appends to the log first.
    offsets, times = _OffsetEntries(filesystem, segment), _TimeEntries(filesystem, segment)
    transactions = _TransactionEntries(filesystem, segment)
    damage: list[DamagedRange] = []
    end = SegmentEnd(segment.base_offset, 0)
    with segment.open_log() as log_file:
        for item in _windows_and_damage(log_file, segment):
            if observe is not None:
                observe(item)
            if isinstance(item, DamagedRange):
                damage.append(item)
            else:
                end = SegmentEnd(item.next_offset, item.position_bytes + item.end)
            for entries in (offsets, times, transactions):
                if isinstance(item, DamagedRange):
                    entries.add_damage(item)
                else:
                    entries.add(item)
    for entries in (offsets, times, transactions):
        entries.finish(end)
    return IndexComparisons(
        (offsets.comparison(), times.comparison(), transactions.comparison()),
        end,
        times.largest,
        transactions.found(),
        tuple(damage),
        segment.size_bytes,
    )


def _path(segment: SegmentReader, name_of: Callable[[int], str]) -> str:
    return os.path.join(segment.directory, name_of(segment.base_offset) + segment.suffix)


def _whole(data: bytes, entry_bytes: int) -> bytes:
    return data[: len(data) // entry_bytes * entry_bytes]


def _windows_and_damage(
    log_file: ReadableFile, segment: SegmentReader
) -> Iterator[BatchWindow | DamagedRange]:
    """Read windows of at least one batch each, all valid and in order, and the damaged ranges between them."""
    size_bytes, offset_limit = segment.size_bytes, segment.offset_limit
    if not size_bytes:
        return
    span = whole_span(segment, SegmentEnd(MAX_OFFSET + 1, size_bytes))
    buffer = WindowBuffer(min(WINDOW_BYTES, size_bytes))
    # A batch that is too large to be decoded is no damage.
    max_batch_bytes = max(segment.max_batch_bytes, WINDOW_BYTES)
    try:
        for part in SpanReader(log_file, span, buffer, max_batch_bytes).parts():
            if not isinstance(part, DamagedRange):
                yield part.valid_window()
            # Damage at the end of an unknown extent is a torn append.
            elif part.end_bytes < size_bytes or offset_limit is not None:
                yield part
    except FileReplacedError as error:
        raise DataLossError(
            f"Expected {size_bytes} bytes, found a shorter file: the log was truncated meanwhile. Read again.",
            path=segment.log_path,
        ) from error


_STALE: Final = (BEYOND_LOG, MISSING)
ENTRY_BYTES: Final = {
    OFFSET: OFFSET_ENTRY_BYTES,
    TIME: TIME_ENTRY_BYTES,
    TRANSACTION: TRANSACTION_ENTRY_BYTES,
}
# An entry is due with each append after `index.interval.bytes`. Followers of brokers before 4.0 append up to
# `replica.fetch.max.bytes` at once, and after a start twice as much passes without an entry.
_LONGEST_GAP_BYTES: Final = 8 << 20


def index_faults(compared: IndexComparisons, *, is_complete: bool = True) -> Iterator[Finding]:
    """Find what is wrong with the index files of a segment, but for transactions that are not in the transaction index.

    A fault is ``unclean`` if the file only has less than the log, or more, as after a crash. Otherwise it is ``damage``, or
    ``suspect`` where the topic's configuration may be the reason.

    Args:
        compared: The indexes, compared with the log.
        is_complete: Whether the time index should have the largest timestamp, as that of a closed segment has.
    """
    for index in compared.indexes:
        if index.is_unusable:
            reason = sentence(str(index.problem))
            yield Finding(
                "unclean" if index.problem in _STALE else "damage", index.finding_kind, index.path, reason
            )
        numbers = index.wrong_numbers
        borders = np.flatnonzero(np.diff(index.codes[numbers])) + 1
        for run in np.split(numbers, borders)[:MOST_REPORTED]:
            if len(run):
                yield _wrong_entries(index, run)
    yield from _missing_offset_entries(compared)
    if is_complete:
        yield from _missing_largest_timestamp(compared)


def _wrong_entries(index: IndexComparison, numbers: npt.NDArray[np.int64]) -> Finding:
    """Describe neighbouring entries with the same problem."""
    count, first, entry_bytes = len(numbers), int(numbers[0]), ENTRY_BYTES[index.kind]
    problem = index.problem_of(first)
    entries, ending = ("1 index entry", "s") if count == 1 else (f"{count} index entries", "")
    reason = (
        f"{entries} point{ending} past the end of the log."
        if problem == BEYOND_LOG
        else f"{entries} contradict{ending} the log. Of entry {first}: {problem}."
    )
    return Finding(
        "unclean" if problem in _STALE else "damage",
        index.finding_kind,
        index.path,
        reason,
        start_byte=first * entry_bytes,
        end_byte=(first + count) * entry_bytes,
        start_offset=int(index.columns["offset"][first]),
    )


def _missing_offset_entries(compared: IndexComparisons) -> Iterator[Finding]:
    offsets = compared.indexes[0]
    if offsets.is_unusable or compared.damage:
        return
    positions = np.concatenate([[0], np.sort(offsets.columns["position"]), [compared.end.position_bytes]])
    gaps = np.diff(positions)
    number = int(gaps.argmax())
    if gaps[number] > _LONGEST_GAP_BYTES:
        reason = (
            f"No entry for {int(gaps[number])} bytes of the log, from byte {int(positions[number])} on. A read of them is "
            "slow. The topic may have a large index.interval.bytes."
        )
        yield Finding("suspect", offsets.finding_kind, offsets.path, reason)


def _missing_largest_timestamp(compared: IndexComparisons) -> Iterator[Finding]:
    """Compare the last entry of a time index with the segment's largest timestamp: look-ups by time rely on it."""
    times = compared.indexes[1]
    largest_ms = compared.largest_timestamp.timestamp_ms
    if largest_ms == NO_TIMESTAMP_MS or compared.damage or times.is_unusable or len(times.wrong_numbers):
        return
    found_ms = int(times.columns["timestampMs"][-1]) if len(times) else NO_TIMESTAMP_MS
    if found_ms < largest_ms:
        size_bytes = TIME_ENTRY_BYTES * len(times)
        yield Finding(
            "unclean", times.finding_kind, times.path,
            f"Expected the largest timestamp {largest_ms} as last entry, found {found_ms}: entries are missing.",
            start_byte=size_bytes, end_byte=size_bytes, start_offset=compared.largest_timestamp.offset,
        )  # fmt: skip
