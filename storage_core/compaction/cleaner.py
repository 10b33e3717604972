"""The log cleaner: which records a pass retains, and the segments that they are written to (Kafka's ``Cleaner``).

Unlike a broker, it checks the CRC of every batch before it uses the batch, and refuses a segment that is not made of
complete batches up to its end: what it discards is lost, and what it rewrites gets a new CRC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field
from operator import add
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from storage_core.compaction.cleaned_transactions import CleanedTransactions, read_transactions
from storage_core.compaction.rewriting import OutputBatches, SectionRewriter, WindowOutput
from storage_core.errors import CorruptRecordError
from storage_core.record.batch_header import CONTROL_FLAG, DELETE_HORIZON_FLAG, HEADER_SIZE_BYTES, MAGIC_V2
from storage_core.record.decode import decode_records
from storage_core.record.section import RecordColumns, RecordSection, SectionMaker, WantedFields
from storage_core.segment.batch_windows import WINDOW_BYTES
from storage_core.segment.segment_reader import DEFAULT_MAX_BATCH_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from storage_core.compaction.offset_map import OffsetMap
    from storage_core.record.batch_window import BatchWindow
    from storage_core.segment.file_names import AbortedTransaction
    from storage_core.segment.log_segment import LogSegment


_KEYS_WANTED: Final = WantedFields(timestamp=False, value=False)
# Headers are decoded to check them, because malformed ones must not get a new CRC.
_RECORDS_WANTED: Final = WantedFields(headers=True, tails=True)
_NO_OFFSET: Final = -1
_Int64Array = npt.NDArray[np.int64]
_BoolArray = npt.NDArray[np.bool_]


Throttle: TypeAlias = Callable[[int], None]
"""Called with the number of bytes read or written since the last call. It may wait, or raise an error to stop."""


def _unthrottled(size_bytes: int) -> None:
    """Neither wait nor stop."""


class LastRecord(NamedTuple):
    """The last record of an active producer.

    Attributes:
        last_data_offset: The last offset of its last data batch; None if it only has a marker.
        producer_epoch: The producer's epoch.
    """

    last_data_offset: int | None
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class CleanRules:
    """The rules of retention, besides the offset map and the transactions.

    Attributes:
        now_ms: The time of the pass.
        delete_retention_ms: ``delete.retention.ms``: how long a tombstone or a marker is retained from now on.
        legacy_delete_horizon_ms: Tombstones of formats v0 and v1 are retained in segments modified after this time.
        upper_bound_offset: The first offset that this pass does not clean.
        last_records: The last records of the active producers, by producer id.
        window_bytes: How much of a segment is read at once, unless a batch is larger.
        max_batch_bytes: The maximum size of a decompressed batch.
    """

    now_ms: int
    delete_retention_ms: int
    legacy_delete_horizon_ms: int
    upper_bound_offset: int
    last_records: Mapping[int, LastRecord] = field(default_factory=dict)
    window_bytes: int = WINDOW_BYTES
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES


@dataclass(frozen=True, slots=True)
class MapStatistics:
    """Statistics of building an offset map. ``is_full`` tells that it was full before the last record."""

    records_read: int
    bytes_read: int
    is_full: bool


@dataclass(frozen=True, slots=True)
class CleanStatistics:
    """Statistics of cleaning. Those of several groups of segments can be added.

    Attributes:
        records_read: Number of records read, without those of batches that were discarded as a whole.
        invalid_records: Number of records that were discarded because they have no key.
    """

    records_read: int = 0
    bytes_read: int = 0
    records_retained: int = 0
    bytes_retained: int = 0
    invalid_records: int = 0

    def __add__(self, other: CleanStatistics) -> CleanStatistics:
        return CleanStatistics(*map(add, astuple(self), astuple(other)))


def source_windows(
    segment: LogSegment, start_position_bytes: int = 0, *, window_bytes: int = WINDOW_BYTES
) -> Iterator[BatchWindow]:
    """Read a segment from a batch boundary on, window by window. A window's bytes are valid until the next one.

    Raises:
        CorruptRecordError: Bytes are not a batch, a CRC does not match, or batches are out of order.
        BatchTooLargeError: A batch is larger than the segment's configuration allows to read.
    """
    # A window must hold at least a header, which tells how large the batch is.
    window_bytes = max(window_bytes, HEADER_SIZE_BYTES)
    position_bytes = start_position_bytes
    lowest_offset = segment.base_offset
    for window in segment.windows(start_position_bytes, window_bytes=window_bytes):
        position_bytes = window.position_bytes + window.end
        if len(window.starts):
            lowest_offset = _check(window, lowest_offset)
            yield window
        if window.error is not None:
            raise window.error
    if position_bytes != segment.size_bytes:
        raise CorruptRecordError(
            f"Expected complete record batches up to the segment's end at {segment.size_bytes}, found other bytes. The "
            "log is not cleaned before it is recovered.",
            path=segment.path,
            position_bytes=position_bytes,
        )


def _check(window: BatchWindow, lowest_offset: int) -> int:
    """Check CRCs and offsets of a window, and return the offset after the last batch."""
    wrong = window.crc_mismatches(np.arange(len(window.starts)))
    if len(wrong):
        _fail(window, int(wrong[0]), "the CRC in its header", "another one")
    base_offsets = window.headers["base_offset"].astype(np.int64)
    last_offsets = window.last_offsets
    lowest = np.append(lowest_offset, last_offsets[:-1] + 1)
    misfits = np.flatnonzero((base_offsets < lowest) | (last_offsets < base_offsets))
    if len(misfits):
        index = int(misfits[0])
        found = f"offsets {base_offsets[index]} to {last_offsets[index]}"
        _fail(window, index, f"offsets from {lowest[index]} on", found)
    return int(last_offsets[-1]) + 1


def _fail(window: BatchWindow, index: int, expected: str, found: str) -> NoReturn:
    header = window.header(index)
    raise CorruptRecordError(
        f"Expected a record batch with {expected}, found one with {found}. The file is damaged, so the log is not "
        "cleaned.",
        **header.error_location(window.path),
    )


@dataclass(frozen=True, slots=True)
class BatchDecisions:
    """The decisions about the batches of a window, by column (``checkBatchRetention``).

    Attributes:
        discards_records: Whether all records are discarded, regardless of their keys.
        retains_empty: Whether the batch is retained even without records, as the last one of its producer or the pass.
        is_idle_marker: Whether it is the marker of a transaction without data, discarded once its delete horizon has
            passed.
        kept_transactions: The aborted transactions whose markers are retained.
    """

    discards_records: _BoolArray
    retains_empty: _BoolArray
    is_idle_marker: _BoolArray
    kept_transactions: list[AbortedTransaction]


class ActiveProducers:
    """The last records of the active producers, by column."""

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
        """Return True for each batch with the last record of its producer: its last data, or else its last marker."""
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
    """Decide about the batches of a window, which follows the previous one."""
    headers = window.headers
    last_offsets = window.last_offsets
    may_go, kept_transactions = read_transactions(window, transactions)
    attributes = headers["attributes"]
    is_idle_marker = may_go & ((attributes & CONTROL_FLAG) != 0)
    has_passed = (attributes & DELETE_HORIZON_FLAG) != 0
    has_passed &= headers["base_timestamp_ms"] <= rules.now_ms
    retains_empty = producers.last_batches(headers, last_offsets)
    # The next pass begins after the last batch of this one.
    retains_empty |= last_offsets == rules.upper_bound_offset - 1
    return BatchDecisions(
        may_go & (~is_idle_marker | has_passed), retains_empty, is_idle_marker, kept_transactions
    )


def retained_records(
    section: RecordSection,
    columns: RecordColumns,
    offset_map: OffsetMap,
    *,
    now_ms: int,
    keeps_legacy_tombstones: bool,
) -> _BoolArray:
    """Return True for each retained record of batches that are not discarded as a whole (``shouldRetainRecord``).

    A record without a key is discarded, unless it is a control record or the map does not cover its offset.
    Records after the ``latest_offset`` of the map are retained, and with ``keeps_legacy_tombstones`` tombstones of
    formats v0 and v1.
    """
    keys, values = columns.keys, columns.values
    assert keys is not None and values is not None  # noqa: S101, PT018  (requested above)
    is_retained: _BoolArray = columns.offsets > offset_map.latest_offset
    is_control = (section.headers["attributes"] & CONTROL_FLAG) != 0
    if is_control.any():
        is_retained |= np.repeat(is_control, columns.row_counts)
    rows = np.flatnonzero(~is_retained & (keys.lengths >= 0))
    found = offset_map.get_many(section.buffer, keys.take(rows))
    is_retained[rows] = columns.offsets[rows] >= found
    is_tombstone = values.lengths[rows] < 0
    if is_tombstone.any():
        # Until the delete horizon of the batch has passed, or while it is not set yet.
        headers = section.headers
        protects = (headers["attributes"] & DELETE_HORIZON_FLAG) == 0
        protects |= headers["base_timestamp_ms"] > now_ms
        protects = np.where(headers["magic"] < MAGIC_V2, keeps_legacy_tombstones, protects)
        is_retained[rows] &= ~is_tombstone | np.repeat(protects, columns.row_counts)[rows]
    return is_retained


def clean_into(
    destination: LogSegment,
    sources: Sequence[LogSegment],
    offset_map: OffsetMap,
    transactions: CleanedTransactions,
    rules: CleanRules,
    *,
    throttle: Throttle = _unthrottled,
) -> CleanStatistics:
    """Append the retained batches of some segments to another one, which is neither sealed nor flushed.

    A window of batches is read at a time, and its records are decoded section by section, which bounds the memory
    that compressed batches take.

    The sources are adjacent, and the destination has the base offset of the first. ``transactions`` is one object for
    all groups of a pass, in order. The aborted transactions that reach into the sources must have been added to it (see
    `CleanedTransactions.add_aborted`), possibly more than once.

    Raises:
        CorruptRecordError: Bytes of a source are not a batch, or a CRC does not match.
        BatchTooLargeError: A batch, or its decompressed content, is larger than allowed.
        OffsetOverflowError: An offset does not fit the destination.
    """
    cleaner = _Cleaner(destination, offset_map, transactions, rules, throttle)
    for source in sources:
        cleaner.clean(source)
    return cleaner.statistics


@dataclass(eq=False)
class _Cleaner:
    """Cleans segments in order; see `clean_into`."""

    destination: LogSegment
    offset_map: OffsetMap
    transactions: CleanedTransactions
    rules: CleanRules
    throttle: Throttle
    statistics: CleanStatistics = CleanStatistics()

    def __post_init__(self) -> None:
        self._producers = ActiveProducers(self.rules.last_records)
        self._sections = SectionMaker(self.rules.max_batch_bytes, _RECORDS_WANTED)
        self._rewriter = SectionRewriter(self.rules.now_ms + self.rules.delete_retention_ms)

    def clean(self, source: LogSegment) -> None:
        """Append the retained batches of one segment."""
        keeps_legacy_tombstones = source.modified_ms > self.rules.legacy_delete_horizon_ms
        for window in source_windows(source, window_bytes=self.rules.window_bytes):
            self.throttle(window.end)
            decisions = decide_batches(window, self.transactions, self._producers, self.rules)
            self._clean_window(window, decisions, keeps_legacy_tombstones)
            self.statistics += CleanStatistics(bytes_read=window.end)
            self.destination.transaction_index.extend(decisions.kept_transactions)

    def _clean_window(
        self, window: BatchWindow, decisions: BatchDecisions, keeps_legacy_tombstones: bool
    ) -> None:
        has_records = ~decisions.discards_records & (window.headers["record_count"] != 0)
        output = WindowOutput(window, np.flatnonzero(decisions.retains_empty & ~has_records))
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
        assert columns.keys is not None  # noqa: S101  (requested above)
        is_retained = retained_records(
            section,
            columns,
            self.offset_map,
            now_ms=self.rules.now_ms,
            keeps_legacy_tombstones=keeps_legacy_tombstones,
        )
        self.statistics += CleanStatistics(
            records_read=len(is_retained),
            records_retained=int(np.count_nonzero(is_retained)),
            invalid_records=int(np.count_nonzero(~is_retained & (columns.keys.lengths < 0))),
        )
        filtered = self._rewriter.rewrite(section, columns, is_retained, decisions.is_idle_marker[indexes])
        output.add_unchanged(indexes[filtered.is_unchanged])
        output.add_rewritten(indexes[filtered.rewritten], filtered.headers, filtered.bodies)
        retains_empty = decisions.retains_empty[indexes[filtered.emptied]]
        output.add_empty(indexes[filtered.emptied[retains_empty]], filtered.emptied_headers[retains_empty])

    def _append(self, batches: OutputBatches | None) -> None:
        if batches is None:
            return
        self.destination.append_pieces(batches.headers, batches.pieces)
        self.statistics += CleanStatistics(bytes_retained=batches.size_bytes)
        self.throttle(batches.size_bytes)


def build_offset_map(
    segments: Sequence[LogSegment],
    first_dirty_offset: int,
    end_offset: int,
    offset_map: OffsetMap,
    transactions: CleanedTransactions,
    *,
    throttle: Throttle = _unthrottled,
    window_bytes: int = WINDOW_BYTES,
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
) -> MapStatistics:
    """Fill an offset map with the keys of the dirty records, until it is full (``Cleaner.buildOffsetMap``).

    The map then covers all offsets up to its ``latest_offset``. Records after it must not be cleaned.

    Args:
        segments: The dirty segments in order. The first may begin below the first dirty offset.
        first_dirty_offset: Records below this offset have been cleaned.
        end_offset: The base offset of the first segment after them.
        offset_map: The map, which is cleared first.
        transactions: An object of its own, not that of the cleaning that follows. The aborted transactions that reach
            into the dirty offsets must have been added.
        throttle: Called with the bytes read.
        window_bytes: How much is read at once, unless a batch is larger.
        max_batch_bytes: The maximum size of a decompressed batch.
    """
    offset_map.clear()
    builder = _MapBuilder(offset_map, transactions, first_dirty_offset, max_batch_bytes)
    next_bases = [*(segment.base_offset for segment in segments[1:]), end_offset]
    for segment, next_base in zip(segments, next_bases, strict=True):
        start_position_bytes = segment.offset_index.lookup(first_dirty_offset).position_bytes
        for window in source_windows(segment, start_position_bytes, window_bytes=window_bytes):
            throttle(window.end)
            builder.add(window)
            if builder.is_full:
                return builder.statistics()
        # Missing offsets at the end of a segment need no further pass.
        offset_map.latest_offset = next_base - 1
    return builder.statistics()


@dataclass(eq=False)
class _MapBuilder:
    """Adds the keys of windows, in order, to an offset map; see `build_offset_map`."""

    offset_map: OffsetMap
    transactions: CleanedTransactions
    first_dirty_offset: int
    max_batch_bytes: int
    is_full: bool = False
    records_read: int = 0
    bytes_read: int = 0

    def __post_init__(self) -> None:
        self._sections = SectionMaker(self.max_batch_bytes, _KEYS_WANTED)

    def statistics(self) -> MapStatistics:
        return MapStatistics(self.records_read, self.bytes_read, self.is_full)

    def add(self, window: BatchWindow) -> None:
        """Add the keys of a window until the map is full."""
        headers = window.headers
        last_offsets = window.last_offsets
        may_go, _ = read_transactions(window, self.transactions)
        is_wanted = ~may_go & ((headers["attributes"] & CONTROL_FLAG) == 0)
        is_wanted &= (headers["record_count"] != 0) & (last_offsets >= self.first_dirty_offset)
        self.bytes_read += window.end
        for section in self._sections.sections(window, np.flatnonzero(is_wanted)):
            columns = decode_records(section, _KEYS_WANTED)
            keys = columns.keys
            assert keys is not None  # noqa: S101  (requested above)
            self.records_read += len(columns.offsets)
            rows = np.flatnonzero((keys.lengths >= 0) & (columns.offsets >= self.first_dirty_offset))
            offsets = columns.offsets[rows]
            slices = keys.take(rows)
            taken = self.offset_map.put_many(section.buffer, slices, offsets)
            if taken < len(rows):
                self.is_full = True
                self._end_before(int(offsets[taken]), last_offsets)
                return
        self._raise_latest_offset(int(last_offsets[-1]))

    def _end_before(self, offset: int, last_offsets: _Int64Array) -> None:
        """End the map before a record that it had no room for.

        It then covers the last key added, and all batches before it.
        """
        number = int(last_offsets.searchsorted(offset))
        if number:
            self._raise_latest_offset(int(last_offsets[number - 1]))

    def _raise_latest_offset(self, last_offset: int) -> None:
        if last_offset >= self.first_dirty_offset:
            self.offset_map.latest_offset = max(self.offset_map.latest_offset, last_offset)
