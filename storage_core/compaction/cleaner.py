"""What is to become of batches, as far as their headers and their transactions tell (``checkBatchRetention``).

Which records survive (``Cleaner.shouldRetainRecord``), by column.

Cleaning segments into another one (Kafka's ``Cleaner.cleanSegments`` and ``cleanInto``).

A window of batches at a time is read and judged; what survives is appended section by section, so that memory does not
grow with what a window inflates to.

Building the offset map of a pass (Kafka's ``Cleaner.buildOffsetMap``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from storage_core.compaction.rewriting import SectionRewriter, WindowOutput
from storage_core.compaction.values import (
    CleanStatistics,
    MapStatistics,
    TransactionalBatches,
    last_offsets_of,
    source_windows,
)
from storage_core.record.batch_header import (
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    MAGIC_V2,
    TRANSACTIONAL_FLAG,
    gather,
)
from storage_core.record.control_records import CONTROL_KEY, MOST_CONTROL_BYTES, ControlType, control_type
from storage_core.record.decode import decode_records
from storage_core.record.section import Slices, WantedFields
from storage_core.record.sections import SectionMaker
from storage_core.segment.batch_windows import WINDOW_BYTES
from storage_core.segment.segment_reader import DEFAULT_MAX_BATCH_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from storage_core.compaction.offset_map import OffsetMap
    from storage_core.compaction.rewriting import OutputBatches
    from storage_core.compaction.values import CleanedTransactions, CleanRules, LastRecord, Throttle
    from storage_core.record.batch_window import BatchWindow
    from storage_core.record.section import RecordColumns, RecordSection
    from storage_core.segment.file_names import AbortedTransaction
    from storage_core.segment.log_segment import LogSegment

__all__ = [
    "ActiveProducers",
    "BatchDecisions",
    "build_offset_map",
    "clean_into",
    "count_of_unkeyed",
    "decide_batches",
    "read_transactions",
    "surviving_records",
]


_CONTROL_KEY = np.dtype([("version", ">i2"), ("type", ">i2")])
_KEYS_WANTED = WantedFields(timestamp=False, value=False)
_NO_OFFSET = -1
_Int64Array = npt.NDArray[np.int64]
_BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BatchDecisions:
    """What is decided of the batches of a window, by column.

    Attributes:
        discards_records: Whether no record survives, whatever it is.
        stays_empty: Whether the batch stays if no record survives: it is the last one of its producer, or of the pass.
        is_idle_marker: Whether it is a marker whose transaction has left no data: it goes once its delete horizon has
            passed.
        kept_transactions: The aborted transactions whose markers stay.
    """

    discards_records: _BoolArray
    stays_empty: _BoolArray
    is_idle_marker: _BoolArray
    kept_transactions: list[AbortedTransaction]


class ActiveProducers:
    """What is known of the active producers, by column."""

    def __init__(self, last_records: Mapping[int, LastRecord]) -> None:
        producer_ids = sorted(last_records)
        known = [last_records[producer_id] for producer_id in producer_ids]
        self._producer_ids = np.array(producer_ids, np.int64)
        self._has_data = np.array([last.last_data_offset is not None for last in known], np.bool_)
        self._last_offsets = np.array(
            [_NO_OFFSET if last.last_data_offset is None else last.last_data_offset for last in known],
            np.int64,
        )
        self._epochs = np.array([last.producer_epoch for last in known], np.int64)

    def last_batches(self, headers: npt.NDArray[Any], last_offsets: _Int64Array) -> _BoolArray:
        """Per batch, whether it holds the last that is known of its producer: its last data, or else its last marker."""
        is_last = np.zeros(len(headers), np.bool_)
        producer_ids = headers["producer_id"].astype(np.int64)
        rows = np.flatnonzero(producer_ids >= 0)
        if not len(rows) or not len(self._producer_ids):
            return is_last
        places = self._producer_ids.searchsorted(producer_ids[rows])
        places[places == len(self._producer_ids)] = 0
        is_active = self._producer_ids[places] == producer_ids[rows]
        is_control = (headers["attributes"][rows] & CONTROL_FLAG) != 0
        is_of_epoch = headers["producer_epoch"][rows] == self._epochs[places]
        is_last[rows] = is_active & np.where(
            self._has_data[places],
            last_offsets[rows] == self._last_offsets[places],
            is_control & is_of_epoch,
        )
        return is_last


def decide_batches(
    window: BatchWindow, transactions: CleanedTransactions, producers: ActiveProducers, rules: CleanRules
) -> BatchDecisions:
    """Decide about the batches of a window, which stands behind those decided before."""
    headers = window.headers
    last_offsets = last_offsets_of(window)
    may_go, kept_transactions = read_transactions(window, transactions)
    attributes = headers["attributes"]
    is_idle_marker = may_go & ((attributes & CONTROL_FLAG) != 0)
    has_passed = (attributes & DELETE_HORIZON_FLAG) != 0
    has_passed &= headers["base_timestamp_ms"] <= rules.now_ms
    stays_empty = producers.last_batches(headers, last_offsets)
    # Without the last batch of the pass, the next one would not know where this one ended.
    stays_empty |= last_offsets == rules.upper_bound_offset - 1
    return BatchDecisions(
        may_go & (~is_idle_marker | has_passed), stays_empty, is_idle_marker, kept_transactions
    )


def read_transactions(
    window: BatchWindow, transactions: CleanedTransactions
) -> tuple[_BoolArray, list[AbortedTransaction]]:
    """Per batch of a window, whether it is no longer needed, and the transactions that stay; see `CleanedTransactions`."""
    attributes = window.headers["attributes"]
    indexes = np.flatnonzero(attributes & (TRANSACTIONAL_FLAG | CONTROL_FLAG))
    headers = window.headers.take(indexes)
    is_control = (headers["attributes"] & CONTROL_FLAG) != 0
    batches = TransactionalBatches(
        indexes,
        headers["producer_id"].astype(np.int64),
        last_offsets_of(window)[indexes],
        is_control,
        _control_types(window, indexes[is_control]),
    )
    return transactions.discardable(batches, len(attributes))


def _control_types(window: BatchWindow, indexes: _Int64Array) -> dict[int, ControlType | None]:
    """By index, the type of the first record of a control batch; None if it has no record."""
    types: dict[int, ControlType | None] = dict.fromkeys(indexes.tolist())
    indexes = indexes[window.headers["record_count"][indexes] > 0]
    if not len(indexes):
        return types
    known = {int(kind): kind for kind in ControlType}
    for section in SectionMaker(MOST_CONTROL_BYTES, _KEYS_WANTED).sections(window, indexes):
        columns = decode_records(section, _KEYS_WANTED)
        assert columns.keys is not None  # noqa: S101  (they were asked for)
        firsts = np.cumsum(columns.row_counts) - columns.row_counts
        starts, lengths = columns.keys.starts[firsts], columns.keys.lengths[firsts]
        numbers = np.searchsorted(window.starts, section.positions - window.position_bytes)
        for index in numbers[lengths < CONTROL_KEY.size].tolist():
            _fail_control(window, index)
        keys = gather(section.buffer, starts, _CONTROL_KEY)
        for index in numbers[keys["version"] < 0].tolist():
            _fail_control(window, index)
        for index, number in zip(numbers.tolist(), keys["type"].tolist(), strict=True):
            types[index] = known.get(number, ControlType.UNKNOWN)
    return types


def _fail_control(window: BatchWindow, index: int) -> None:
    """Raise the error for a control record without a proper key."""
    header = window.header(index)
    start = int(window.starts[index])
    control_type(window.buffer.data[start : start + header.size_bytes], header, path=window.path)


def surviving_records(
    section: RecordSection,
    columns: RecordColumns,
    offset_map: OffsetMap,
    *,
    now_ms: int,
    keeps_legacy_tombstones: bool,
) -> _BoolArray:
    """Per record of some batches that are not discarded as a whole, whether it survives.

    Args:
        section: Where the records lie.
        columns: Their offsets, keys and values.
        offset_map: The last offset of each key. What lies above all that it knows survives.
        now_ms: The time of the pass.
        keeps_legacy_tombstones: Whether tombstones of formats v0 and v1 survive.
    """
    keys, values = columns.keys, columns.values
    assert keys is not None and values is not None  # noqa: S101, PT018  (they were asked for)
    survives = ~_is_judged(section, columns, offset_map)
    rows = np.flatnonzero(~survives & (keys.lengths >= 0))
    found = offset_map.get_many(section.buffer, Slices(keys.starts[rows], keys.lengths[rows]))
    survives[rows] = columns.offsets[rows] >= found
    is_tombstone = values.lengths[rows] < 0
    if is_tombstone.any():
        protects = _protects_tombstones(section.headers, now_ms, keeps_legacy_tombstones)
        survives[rows] &= ~is_tombstone | np.repeat(protects, columns.row_counts)[rows]
    return survives


def count_of_unkeyed(section: RecordSection, columns: RecordColumns, offset_map: OffsetMap) -> int:
    """How many of the records do not survive because they have no key."""
    assert columns.keys is not None  # noqa: S101  (they were asked for)
    is_unkeyed = columns.keys.lengths < 0
    if not is_unkeyed.any():
        return 0
    return int(np.count_nonzero(is_unkeyed & _is_judged(section, columns, offset_map)))


def _is_judged(section: RecordSection, columns: RecordColumns, offset_map: OffsetMap) -> _BoolArray:
    """Per record, whether its key decides: it is data, and the map knows about its offset."""
    is_judged: _BoolArray = columns.offsets <= offset_map.latest_offset
    is_control = (section.headers["attributes"] & CONTROL_FLAG) != 0
    if is_control.any():
        is_judged &= ~np.repeat(is_control, columns.row_counts)
    return is_judged


def _protects_tombstones(headers: npt.NDArray[Any], now_ms: int, keeps_legacy_tombstones: bool) -> _BoolArray:
    """Per batch, whether its tombstones survive: its delete horizon has not passed, or is yet to be set."""
    protects: _BoolArray = (headers["attributes"] & DELETE_HORIZON_FLAG) == 0
    protects |= headers["base_timestamp_ms"] > now_ms
    return np.where(headers["magic"] < MAGIC_V2, keeps_legacy_tombstones, protects)


# Headers are asked for so that they are checked: what is malformed does not get a new CRC.
_RECORDS_WANTED: Final = WantedFields(headers=True, tails=True)


def clean_into(
    destination: LogSegment,
    sources: Sequence[LogSegment],
    offset_map: OffsetMap,
    transactions: CleanedTransactions,
    rules: CleanRules,
    *,
    throttle: Throttle | None = None,
) -> CleanStatistics:
    """Append to a segment what survives of others, batches and aborted transactions. It is neither sealed nor flushed.

    Args:
        destination: A new segment with the base offset of the first source.
        sources: Neighbouring segments, in order.
        offset_map: The last offset of each key, up to its ``latest_offset``.
        transactions: One for all groups of a pass, in order. It has to know the aborted transactions that reach into
            the sources (see `CleanedTransactions.add_aborted`); to know some twice does no harm.
        rules: What else decides.
        throttle: Is told of what was read and written.

    Raises:
        CorruptRecordError: Bytes of a source are no batch, or a CRC is wrong.
        BatchTooLargeError: A batch is larger than may be read, or inflates to more.
        OffsetOverflowError: An offset does not fit the destination.
    """
    cleaner = _Cleaner(destination, offset_map, transactions, rules, throttle)
    for source in sources:
        cleaner.clean(source)
    return cleaner.statistics


class _Cleaner:
    """Cleans one segment after the other."""

    def __init__(
        self,
        destination: LogSegment,
        offset_map: OffsetMap,
        transactions: CleanedTransactions,
        rules: CleanRules,
        throttle: Throttle | None,
    ) -> None:
        self.statistics = CleanStatistics()
        self._destination = destination
        self._offset_map = offset_map
        self._transactions = transactions
        self._rules = rules
        self._throttle = throttle
        self._producers = ActiveProducers(rules.last_records)
        self._sections = SectionMaker(rules.max_batch_bytes, _RECORDS_WANTED)
        self._rewriter = SectionRewriter(rules.now_ms + rules.delete_retention_ms)

    def clean(self, source: LogSegment) -> None:
        """Append what survives of one segment."""
        keeps_legacy_tombstones = source.modified_ms > self._rules.legacy_delete_horizon_ms
        for window in source_windows(source, window_bytes=self._rules.window_bytes):
            if self._throttle is not None:
                self._throttle(window.end)
            decisions = decide_batches(window, self._transactions, self._producers, self._rules)
            self._clean_window(window, decisions, keeps_legacy_tombstones)
            self.statistics += CleanStatistics(bytes_read=window.end)
            self._destination.transaction_index.extend(decisions.kept_transactions)

    def _clean_window(
        self, window: BatchWindow, decisions: BatchDecisions, keeps_legacy_tombstones: bool
    ) -> None:
        has_records = ~decisions.discards_records & (window.headers["record_count"] != 0)
        output = WindowOutput(window, np.flatnonzero(decisions.stays_empty & ~has_records))
        for section in self._sections.sections(window, np.flatnonzero(has_records)):
            indexes = np.searchsorted(window.starts, section.positions - window.position_bytes)
            self._clean_section(section, indexes, decisions, output, keeps_legacy_tombstones)
            self._append(output.take(int(indexes[-1]) + 1))
        self._append(output.take(len(window.starts)))

    def _clean_section(
        self,
        section: RecordSection,
        indexes: _Int64Array,
        decisions: BatchDecisions,
        output: WindowOutput,
        keeps_legacy_tombstones: bool,
    ) -> None:
        columns = decode_records(section, _RECORDS_WANTED)
        survives = surviving_records(
            section,
            columns,
            self._offset_map,
            now_ms=self._rules.now_ms,
            keeps_legacy_tombstones=keeps_legacy_tombstones,
        )
        self.statistics += CleanStatistics(
            records_read=len(survives),
            records_retained=int(np.count_nonzero(survives)),
            invalid_records=count_of_unkeyed(section, columns, self._offset_map),
        )
        rewritten = self._rewriter.rewrite(section, columns, survives, decisions.is_idle_marker[indexes])
        output.add_unchanged(indexes[rewritten.stays])
        output.add(indexes[rewritten.rewritten], rewritten.headers, rewritten.bodies)
        stays_empty = decisions.stays_empty[indexes[rewritten.emptied]]
        output.add_empty(indexes[rewritten.emptied[stays_empty]], rewritten.emptied_headers[stays_empty])

    def _append(self, batches: OutputBatches | None) -> None:
        if batches is None:
            return
        self._destination.append_pieces(batches.headers, batches.pieces)
        size_bytes = batches.size_bytes
        self.statistics += CleanStatistics(bytes_retained=size_bytes)
        if self._throttle is not None:
            self._throttle(size_bytes)


def build_offset_map(
    segments: Sequence[LogSegment],
    first_dirty_offset: int,
    end_offset: int,
    offset_map: OffsetMap,
    transactions: CleanedTransactions,
    *,
    throttle: Throttle | None = None,
    window_bytes: int = WINDOW_BYTES,
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
) -> MapStatistics:
    """Clear a map, and put the keys of the dirty records into it, as many as it takes.

    Its ``latest_offset`` is then the last offset that it knows all about: what lies above it is not to be cleaned.

    Args:
        segments: The dirty segments, in order; the first one may begin below the first dirty offset.
        first_dirty_offset: Records below it were cleaned before.
        end_offset: The base offset of the first segment behind them.
        offset_map: The map.
        transactions: Of its own, not that of the cleaning which follows. It has to know the aborted transactions that
            reach into the dirty offsets.
        throttle: Is told of what was read.
        window_bytes: How much is read at once, unless a batch is larger.
        max_batch_bytes: The most that a batch may inflate to.

    Raises:
        CorruptRecordError: Bytes of a segment are no batch, or a CRC is wrong.
        BatchTooLargeError: A batch is larger than may be read, or inflates to more.
    """
    offset_map.clear()
    builder = _MapBuilder(offset_map, transactions, first_dirty_offset, max_batch_bytes)
    next_bases = [*(segment.base_offset for segment in segments[1:]), end_offset]
    for segment, next_base in zip(segments, next_bases, strict=True):
        start_position_bytes = segment.offset_index.lookup(first_dirty_offset).position_bytes
        for window in source_windows(segment, start_position_bytes, window_bytes=window_bytes):
            if throttle is not None:
                throttle(window.end)
            builder.add(window)
            if builder.is_full:
                return builder.statistics()
        # Offsets that are missing at the end of a segment are no reason to come back.
        offset_map.latest_offset = next_base - 1
    return builder.statistics()


class _MapBuilder:
    """Puts the keys of one window after the other into a map."""

    def __init__(
        self,
        offset_map: OffsetMap,
        transactions: CleanedTransactions,
        first_dirty_offset: int,
        max_batch_bytes: int,
    ) -> None:
        self.is_full = False
        self._offset_map = offset_map
        self._transactions = transactions
        self._first_dirty_offset = first_dirty_offset
        self._sections = SectionMaker(max_batch_bytes, _KEYS_WANTED)
        self._records_read = 0
        self._bytes_read = 0

    def statistics(self) -> MapStatistics:
        """What it took so far."""
        return MapStatistics(self._records_read, self._bytes_read, self.is_full)

    def add(self, window: BatchWindow) -> None:
        """Put the keys of a window, up to where the map is full."""
        headers = window.headers
        last_offsets = last_offsets_of(window)
        may_go, _ = read_transactions(window, self._transactions)
        is_wanted = ~may_go & ((headers["attributes"] & CONTROL_FLAG) == 0)
        is_wanted &= (headers["record_count"] != 0) & (last_offsets >= self._first_dirty_offset)
        self._bytes_read += window.end
        for section in self._sections.sections(window, np.flatnonzero(is_wanted)):
            columns = decode_records(section, _KEYS_WANTED)
            keys = columns.keys
            assert keys is not None  # noqa: S101  (they were asked for)
            self._records_read += len(columns.offsets)
            rows = np.flatnonzero((keys.lengths >= 0) & (columns.offsets >= self._first_dirty_offset))
            offsets = columns.offsets[rows]
            slices = Slices(keys.starts[rows], keys.lengths[rows])
            taken = self._offset_map.put_many(section.buffer, slices, offsets)
            if taken < len(rows):
                self.is_full = True
                self._end_in_front_of(int(offsets[taken]), last_offsets)
                return
        self._raise_latest_offset(int(last_offsets[-1]))

    def _end_in_front_of(self, offset: int, last_offsets: _Int64Array) -> None:
        """The record at an offset was not taken: all is known up to the last key taken, or the last batch before."""
        number = int(last_offsets.searchsorted(offset))
        if number:
            self._raise_latest_offset(int(last_offsets[number - 1]))

    def _raise_latest_offset(self, last_offset: int) -> None:
        if last_offset >= self._first_dirty_offset:
            self._offset_map.latest_offset = max(self._offset_map.latest_offset, last_offset)
