"""The entries of a segment's indexes, and whether the log agrees with each: the view ``index``.

The log is read from beginning to end, with every CRC, and each entry is compared with the batches when they come by. So
an entry counts as wrong only where a valid batch, or the end of the log, contradicts it; where the log itself is damaged,
nothing is known about it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from storage_core.errors import CorruptError, DataLossError, LogDirectoryError, UnreadableError
from storage_core.log.producer_batches import ProducerBatch, ProducerBatches
from storage_core.record.batch_header import MAX_OFFSET, NO_TIMESTAMP_MS
from storage_core.scan.span_reader import FileReplacedError, SpanReader
from storage_core.scan.spans import LogSpan
from storage_core.segment import DamagedRange, SegmentEnd, SegmentReader, TimestampOffset
from storage_core.segment.batch_windows import WINDOW_BYTES, WindowBuffer
from storage_core.segment.file_names import (
    offset_index_file_name,
    time_index_file_name,
    transaction_index_file_name,
)
from storage_core.segment.index_file import read_index_file
from storage_core.segment.offset_index import ENTRY_SIZE_BYTES as OFFSET_ENTRY_BYTES
from storage_core.segment.offset_index import decode_offset_entries
from storage_core.segment.time_index import ENTRY_SIZE_BYTES as TIME_ENTRY_BYTES
from storage_core.segment.time_index import decode_time_entries
from storage_core.segment.transaction_index import ENTRY_SIZE_BYTES as TRANSACTION_ENTRY_BYTES
from storage_core.segment.transaction_index import (
    MAX_TRANSACTION_INDEX_SIZE_BYTES,
    decode_transaction_entries,
)
from storage_core.views.segments import SegmentFile, segment_files
from storage_core.views.view import PARTITION_COLUMNS, TIMESTAMP, Column, View, resolved_ranges, timestamps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from storage_core.filesystem import FileSystem, OpenFile
    from storage_core.options import ReadOptions
    from storage_core.record.batch_window import BatchWindow
    from storage_core.scan.offset_ranges import PartitionRange


OFFSET: Final = "offset"
TIME: Final = "time"
TRANSACTION: Final = "transaction"
MISSING: Final = "the file is missing"
BEYOND_LOG: Final = "the log ends before it"

MOST_REPORTED: Final = 100
"""Of one kind of fault, this many are described for each segment; the rest is counted."""
_MAX_ROWS: Final = 65_536
_SEGMENTS_IN_A_TASK: Final = 32
# One for each code, which is its number here.
_PROBLEMS: Final = (
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
    _FINE,
    _DAMAGED,
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
) = range(len(_PROBLEMS))


@dataclass(frozen=True, slots=True, eq=False)
class IndexComparison:
    """The whole entries of one index file, and what the log says about each.

    Attributes:
        kind: OFFSET, TIME or TRANSACTION.
        path: The file.
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
        return np.flatnonzero(self.codes > _DAMAGED)

    def problem_of(self, number: int) -> str | None:
        """Return what is wrong with an entry.

        Returns:
            None if nothing is.
        """
        return _PROBLEMS[self.codes[number]]


@dataclass(frozen=True, slots=True, eq=False)
class IndexComparisons:
    """The indexes of one segment, compared by its log.

    Attributes:
        indexes: Offset index, time index, transaction index.
        end: Where the valid batches of the log end.
        largest_timestamp: The largest timestamp, and the last offset of the first batch that holds it.
        transactions: The transactions of the log.
        damage: The damaged ranges of the log.
        size_bytes: Size of the log file.
    """

    indexes: tuple[IndexComparison, IndexComparison, IndexComparison]
    end: SegmentEnd
    largest_timestamp: TimestampOffset
    transactions: SegmentTransactions
    damage: tuple[DamagedRange, ...]
    size_bytes: int

    @property
    def indexed_offset(self) -> int:
        """Return the offset after the last one that an index knows, if the log contradicts it only in being shorter."""
        return 1 + max(
            (
                int(index.columns["offset"][-1])
                for index in self.indexes[:2]
                if len(index) and index.problem is None and np.isin(index.codes, (_FINE, _BEYOND_END)).all()
            ),
            default=-1,
        )


class _Batches(NamedTuple):
    """Batches back to back, by column, and the position after the last one."""

    positions: npt.NDArray[np.int64]
    base_offsets: npt.NDArray[np.int64]
    last_offsets: npt.NDArray[np.int64]
    max_timestamps_ms: npt.NDArray[np.int64]
    end_bytes: int


class _OffsetEntries:
    """An offset index beside the log.

    An entry is right if a look-up that begins there misses no batch, and if its offset belongs to the append that begins
    there: brokers before 4.0 name the last offset of several batches, the oldest their first.
    """

    def __init__(self, entries: npt.NDArray[np.int64], base_offset: int) -> None:
        self.relative_offsets, self.positions = entries[:, 0], entries[:, 1]
        self.offsets = self.relative_offsets + base_offset
        self.codes = np.full(len(entries), _NO_BATCH, np.int8)
        self._batch_offsets = np.full(len(entries), MAX_OFFSET, np.int64)
        self._order = np.argsort(self.positions, kind="stable")
        self._sorted = self.positions[self._order]

    def add(self, batches: _Batches) -> None:
        chosen = self._between(int(batches.positions[0]), batches.end_bytes)
        if not len(chosen):
            return
        numbers = batches.positions.searchsorted(self.positions[chosen], side="right") - 1
        begins = batches.positions[numbers] == self.positions[chosen]
        base_offsets = batches.base_offsets[numbers]
        is_below = self.offsets[chosen] < base_offsets
        self.codes[chosen] = np.where(begins, np.where(is_below, _BELOW_BATCH, _FINE), _NO_BATCH)
        self._batch_offsets[chosen[begins]] = base_offsets[begins]

    def add_damage(self, damage: DamagedRange) -> None:
        self.codes[self._between(damage.start_bytes, damage.end_bytes)] = _DAMAGED

    def finish(self, end: SegmentEnd) -> npt.NDArray[np.int8]:
        codes = self.codes
        codes[(codes == _NO_BATCH) & (self.positions >= end.position_bytes)] = _BEYOND_END
        limits = np.minimum(np.append(self._batch_offsets[1:], MAX_OFFSET), min(end.next_offset, MAX_OFFSET))
        codes[(codes == _FINE) & (self.offsets >= limits)] = _ABOVE_BATCH
        if len(codes) and not self.relative_offsets[0] and not self.positions[0]:
            # Of the first batch, which a broker never indexes. It says nothing.
            codes[0] = _FINE
        is_later = (np.diff(self.offsets) > 0) & (np.diff(self.positions) > 0)
        codes[1:][~is_later] = _NOT_ASCENDING
        codes[(self.relative_offsets < 0) | (self.positions < 0)] = _NEGATIVE
        return codes

    def _between(self, start_bytes: int, end_bytes: int) -> npt.NDArray[np.int64]:
        start, end = self._sorted.searchsorted([start_bytes, end_bytes])
        return self._order[start:end]


class _TimeEntries:
    """A time index beside the log."""

    def __init__(
        self,
        timestamps_ms: npt.NDArray[np.int64],
        relative_offsets: npt.NDArray[np.int64],
        base_offset: int,
    ) -> None:
        self.timestamps_ms, self.relative_offsets = timestamps_ms, relative_offsets
        self.offsets = relative_offsets + base_offset
        self.codes = np.full(len(timestamps_ms), _NO_HOLDER, np.int8)
        self.largest = TimestampOffset(NO_TIMESTAMP_MS, base_offset)
        self._next_offset = base_offset
        self._order = np.argsort(self.offsets, kind="stable")
        self._sorted = self.offsets[self._order]

    def add(self, batches: _Batches) -> None:
        next_offset = int(batches.last_offsets[-1]) + 1
        chosen = self._between(self._next_offset, next_offset)
        largest = np.maximum.accumulate(np.append(self.largest.timestamp_ms, batches.max_timestamps_ms))
        if len(chosen):
            numbers = batches.last_offsets.searchsorted(self.offsets[chosen])
            timestamps_ms = self.timestamps_ms[chosen]
            codes = np.where(largest[numbers] > timestamps_ms, _LATER_TIMESTAMP, _FINE)
            codes[batches.max_timestamps_ms[numbers] != timestamps_ms] = _OTHER_TIMESTAMP
            codes[batches.base_offsets[numbers] > self.offsets[chosen]] = _NO_HOLDER
            self.codes[chosen] = codes
        if largest[-1] > self.largest.timestamp_ms:
            holder = int(batches.max_timestamps_ms.argmax())
            self.largest = TimestampOffset(int(largest[-1]), int(batches.last_offsets[holder]))
        self._next_offset = next_offset

    def add_damage(self, damage: DamagedRange) -> None:
        self.codes[self._between(damage.start_offset, damage.end_offset)] = _DAMAGED
        self._next_offset = max(self._next_offset, damage.end_offset)

    def finish(self, end: SegmentEnd) -> npt.NDArray[np.int8]:
        codes = self.codes
        codes[(codes == _NO_HOLDER) & (self.offsets >= end.next_offset)] = _BEYOND_END
        is_later = (self.timestamps_ms[1:] > self.timestamps_ms[:-1]) & (np.diff(self.offsets) >= 0)
        codes[1:][~is_later] = _NOT_ASCENDING
        codes[(self.relative_offsets < 0) | (self.timestamps_ms < 0)] = _NEGATIVE
        return codes

    def _between(self, start_offset: int, end_offset: int) -> npt.NDArray[np.int64]:
        start, end = self._sorted.searchsorted([start_offset, end_offset])
        return self._order[start:end]


class ProducerTransactions(NamedTuple):
    """What a log says of a producer's transactions up to an offset.

    Attributes:
        marker_offset: The offset of its last marker; -1 if there is none.
        first_offset: Where the transaction that is open begins; -1 if none is open.
    """

    marker_offset: int = -1
    first_offset: int = -1

    def then(self, later: ProducerTransactions) -> ProducerTransactions:
        """Return what the log says up to the end of the next part, of which something is known by itself."""
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
        wrong: Others that are aborted, and of which the index does not say so.
        producers: What is known at the end of the segment, by producer.
        refused_version: The version of the first entry that a broker objects to; None if it reads all of them.
        malformed: Errors of the control batches that cannot be read, under a right CRC.
    """

    first_ended: tuple[EndedTransaction, ...]
    wrong: tuple[EndedTransaction, ...]
    producers: dict[int, ProducerTransactions]
    refused_version: int | None
    malformed: tuple[CorruptError, ...]


class _TransactionEntries:
    """A transaction index beside the log.

    A transaction may begin in an earlier segment, and compaction may have removed its first batches. So a beginning is
    wrong only if data of the transaction precedes it, or if another marker of the producer is in between.
    """

    def __init__(self, table: npt.NDArray[Any], base_offset: int) -> None:
        self.table = table
        self.codes = np.full(len(table), _NO_MARKER, np.int8)
        self._producers: dict[int, ProducerTransactions] = {}
        self._numbers = {offset: number for number, offset in enumerate(table["last_offset"].tolist())}
        self._first_ended: dict[int, EndedTransaction] = {}
        self._wrong: list[EndedTransaction] = []
        self._malformed: list[CorruptError] = []
        versions = table["version"].astype(np.int64)
        refused = np.flatnonzero((versions >> 8 > 0) | (table["last_offset"] < base_offset))
        self._refused_version = int(versions[refused[0]]) if len(refused) else None

    def add_window(self, window: BatchWindow) -> None:
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
        last_offsets = self.table["last_offset"]
        self.codes[(last_offsets >= damage.start_offset) & (last_offsets < damage.end_offset)] = _DAMAGED
        self._forget()

    def _forget(self) -> None:
        # A marker may have been lost, so it is not known where the next transactions begin.
        for producer_id, known in self._producers.items():
            self._producers[producer_id] = known._replace(first_offset=-1)

    def finish(self, end: SegmentEnd) -> npt.NDArray[np.int8]:
        codes, last_offsets = self.codes, self.table["last_offset"].astype(np.int64)
        codes[(codes == _NO_MARKER) & (last_offsets >= end.next_offset)] = _BEYOND_END
        codes[1:][last_offsets[1:] <= last_offsets[:-1]] = _NOT_ASCENDING
        codes[self.table["version"] != 0] = _UNKNOWN_VERSION
        return codes

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
        return _FINE if int(entry["last_stable_offset"]) <= last_offset + 1 else _BEYOND_MARKER


def compare_indexes(
    filesystem: FileSystem,
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
    offset_problem, offsets = _read_offset_entries(filesystem, segment)
    time_problem, times = _read_time_entries(filesystem, segment)
    transaction_problem, transactions = _read_transaction_entries(filesystem, segment)
    damage: list[DamagedRange] = []
    end = SegmentEnd(segment.base_offset, 0)
    with segment.open_log() as log_file:
        for item in _windows_and_damage(log_file, segment):
            if observe is not None:
                observe(item)
            if isinstance(item, DamagedRange):
                damage.append(item)
                for entries in (offsets, times, transactions):
                    entries.add_damage(item)
                continue
            batches = _columns_of(item)
            offsets.add(batches)
            times.add(batches)
            transactions.add_window(item)
            end = SegmentEnd(int(batches.last_offsets[-1]) + 1, batches.end_bytes)
    return IndexComparisons(
        (
            _compared_offsets(_path(segment, offset_index_file_name), offset_problem, offsets, end),
            _compared_times(_path(segment, time_index_file_name), time_problem, times, end),
            _compared_transactions(
                _path(segment, transaction_index_file_name), transaction_problem, transactions, end
            ),
        ),
        end,
        times.largest,
        transactions.found(),
        tuple(damage),
        segment.size_bytes,
    )


def _path(segment: SegmentReader, name_of: Callable[[int], str]) -> str:
    return os.path.join(segment.directory, name_of(segment.base_offset) + segment.suffix)


def _read_offset_entries(filesystem: FileSystem, segment: SegmentReader) -> tuple[str | None, _OffsetEntries]:
    content = read_index_file(filesystem, _path(segment, offset_index_file_name), OFFSET_ENTRY_BYTES)
    entries = decode_offset_entries(_whole(content.data, OFFSET_ENTRY_BYTES))
    return content.problem, _OffsetEntries(entries, segment.base_offset)


def _read_time_entries(filesystem: FileSystem, segment: SegmentReader) -> tuple[str | None, _TimeEntries]:
    content = read_index_file(filesystem, _path(segment, time_index_file_name), TIME_ENTRY_BYTES)
    data = content.data
    if not data and content.file_size_bytes == TIME_ENTRY_BYTES:
        # Timestamp 0 at the base offset; in a longer file, preallocated space.
        data = bytes(TIME_ENTRY_BYTES)
    timestamps_ms, relative_offsets = decode_time_entries(_whole(data, TIME_ENTRY_BYTES))
    return content.problem, _TimeEntries(timestamps_ms, relative_offsets, segment.base_offset)


def _read_transaction_entries(
    filesystem: FileSystem, segment: SegmentReader
) -> tuple[str | None, _TransactionEntries]:
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
    return problem, _TransactionEntries(decode_transaction_entries(whole), segment.base_offset)


def _whole(data: bytes, entry_bytes: int) -> bytes:
    return data[: len(data) // entry_bytes * entry_bytes]


def _windows_and_damage(log_file: OpenFile, segment: SegmentReader) -> Iterator[BatchWindow | DamagedRange]:
    """Read windows of at least one batch each, all valid and in order, and the damaged ranges between them."""
    size_bytes, offset_limit = segment.size_bytes, segment.offset_limit
    if not size_bytes:
        return
    span = LogSpan(
        topic="",
        partition=0,
        directory=segment.directory,
        base_offset=segment.base_offset,
        file_name=os.path.basename(segment.log_path),
        start_offset=segment.base_offset,
        end_offset=MAX_OFFSET + 1,
        position_bytes=0,
        end_position_bytes=size_bytes,
        inode=segment.inode,
        segment_end_offset=offset_limit,
    )
    buffer = WindowBuffer(min(WINDOW_BYTES, size_bytes))
    try:
        for part in SpanReader(log_file, span, buffer, segment.max_batch_bytes).parts():
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


def _columns_of(window: BatchWindow) -> _Batches:
    headers = window.headers
    base_offsets = headers["base_offset"].astype(np.int64)
    return _Batches(
        window.position_bytes + window.starts,
        base_offsets,
        base_offsets + headers["last_offset_delta"],
        headers["max_timestamp_ms"].astype(np.int64),
        window.position_bytes + window.end,
    )


def _compared_offsets(
    path: str, problem: str | None, judge: _OffsetEntries, end: SegmentEnd
) -> IndexComparison:
    columns = {"offset": judge.offsets, "position": judge.positions}
    return IndexComparison(OFFSET, path, problem, columns, judge.finish(end))


def _compared_times(path: str, problem: str | None, judge: _TimeEntries, end: SegmentEnd) -> IndexComparison:
    columns = {"offset": judge.offsets, "timestampMs": judge.timestamps_ms}
    return IndexComparison(TIME, path, problem, columns, judge.finish(end))


def _compared_transactions(
    path: str, problem: str | None, judge: _TransactionEntries, end: SegmentEnd
) -> IndexComparison:
    fields = {
        "offset": "first_offset",
        "lastOffset": "last_offset",
        "producerId": "producer_id",
        "lastStableOffset": "last_stable_offset",
    }
    columns = {column: judge.table[name].astype(np.int64) for column, name in fields.items()}
    return IndexComparison(TRANSACTION, path, problem, columns, judge.finish(end))


@dataclass(frozen=True, slots=True)
class IndexTask:
    """Some segments of a partition, the indexes of which are listed.

    Attributes:
        start_offset: Entries of lower offsets are left out; None for no bound.
        end_offset: Entries from this offset on are left out; None for no bound.
    """

    segments: tuple[SegmentFile, ...]
    start_offset: int | None
    end_offset: int | None
    max_batch_bytes: int


def _plan(filesystem: FileSystem, options: ReadOptions) -> list[IndexTask]:
    return [
        task
        for wanted in resolved_ranges(filesystem, options)
        for task in _tasks_of(wanted, options.max_decompressed_batch_bytes)
    ]


def _tasks_of(wanted: PartitionRange, max_batch_bytes: int) -> Iterator[IndexTask]:
    log = wanted.log
    # Entries outside the log, which are wrong, are listed too unless the options give a bound.
    start_offset = wanted.start_offset if wanted.start_offset > log.log_start_offset else None
    end_offset = wanted.end_offset if wanted.end_offset < log.log_end_offset else None
    chosen = [
        file
        for file in segment_files(log)
        if (start_offset is None or file.end_offset is None or file.end_offset > start_offset)
        and (end_offset is None or file.base_offset < end_offset)
    ]
    for first in range(0, len(chosen), _SEGMENTS_IN_A_TASK):
        files = tuple(chosen[first : first + _SEGMENTS_IN_A_TASK])
        yield IndexTask(files, start_offset, end_offset, max_batch_bytes)


def _read(filesystem: FileSystem, task: IndexTask, _wanted: frozenset[str]) -> Iterator[pa.RecordBatch]:
    for file in task.segments:
        segment = file.reader(filesystem, skip_damage=True, max_batch_bytes=task.max_batch_bytes)
        try:
            compared = compare_indexes(filesystem, segment)
        except FileNotFoundError:
            # A live broker deletes old segments.
            continue
        for index in compared.indexes:
            yield from _batches_of(task, file, index)


def _batches_of(task: IndexTask, file: SegmentFile, index: IndexComparison) -> Iterator[pa.RecordBatch]:
    if index.is_unusable:
        yield _rows(file, index, None)
    is_inside = np.ones(len(index), np.bool_)
    if task.start_offset is not None:
        is_inside &= index.columns.get("lastOffset", index.columns["offset"]) >= task.start_offset
    if task.end_offset is not None:
        is_inside &= index.columns["offset"] < task.end_offset
    numbers = np.flatnonzero(is_inside)
    for first in range(0, len(numbers), _MAX_ROWS):
        yield _rows(file, index, numbers[first : first + _MAX_ROWS])


def _rows(file: SegmentFile, index: IndexComparison, numbers: npt.NDArray[np.int64] | None) -> pa.RecordBatch:
    """Make the rows of some entries, or the row about the file as a whole."""
    count = 1 if numbers is None else len(numbers)
    arrays: dict[str, pa.Array] = {
        "topic": pa.repeat(file.topic, count),
        "partition": pa.repeat(pa.scalar(file.partition, pa.int32()), count),
        "segment": pa.repeat(file.file_name, count),
        "kind": pa.repeat(index.kind, count),
    }
    if numbers is None:
        arrays |= {"agrees": pa.array([False]), "problem": pa.array([index.problem])}
    else:
        arrays |= _entry_columns(index, numbers)
    schema = INDEX_VIEW.schema
    columns = [
        arrays[field.name] if field.name in arrays else pa.nulls(count, field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _entry_columns(index: IndexComparison, numbers: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
    codes = index.codes[numbers]
    arrays = {name: pa.array(column[numbers]) for name, column in index.columns.items()}
    arrays["entry"] = pa.array(numbers)
    arrays["agrees"] = pa.array(codes == _FINE, mask=codes == _DAMAGED)
    arrays["problem"] = pa.array(_PROBLEMS, pa.string()).take(pa.array(codes))
    if index.kind == TIME:
        timestamps_ms = index.columns["timestampMs"][numbers]
        arrays["timestamp"] = timestamps(timestamps_ms, is_null=timestamps_ms < 0)
    return arrays


INDEX_VIEW: Final = View(
    "index",
    "Every entry of the offset, time and transaction indexes, and whether the log agrees. A file that is missing or cut "
    "within an entry has a row without an entry number. The whole log is read.",
    (
        *PARTITION_COLUMNS,
        Column("segment", pa.string(), "Name of the segment's log file."),
        Column("kind", pa.string(), "`offset`, `time` or `transaction`."),
        Column("entry", pa.int64(), "Number of the entry in its file, from 0."),
        Column("offset", pa.int64(), "The entry's offset; of an aborted transaction, its first one."),
        Column("lastOffset", pa.int64(), "Offset of the transaction's abort marker."),
        Column(
            "position",
            pa.int64(),
            "Position in the log file of the batch that an entry of an offset index names.",
        ),
        Column(
            "timestamp",
            TIMESTAMP,
            "The largest timestamp up to the entry's batch; null if it is out of range.",
        ),
        Column("timestampMs", pa.int64(), "The same in milliseconds, as it is in the file."),
        Column("producerId", pa.int64(), "The producer whose transaction was aborted."),
        Column("lastStableOffset", pa.int64(), "The last stable offset when the transaction was aborted."),
        Column("agrees", pa.bool_(), "Whether the log agrees; null where the log itself is damaged."),
        Column("problem", pa.string(), "What is wrong with the entry, or with the file; null if nothing is."),
    ),
    _plan,
    _read,
)
