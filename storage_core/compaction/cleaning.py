"""Cleaning segments into another one (Kafka's ``Cleaner.cleanSegments`` and ``cleanInto``).

A window of batches at a time is read and judged; what survives is appended section by section, so that memory does not
grow with what a window inflates to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from storage_core.compaction.batch_decisions import ActiveProducers, decide_batches
from storage_core.compaction.record_decisions import count_of_unkeyed, surviving_records
from storage_core.compaction.rewriting import SectionRewriter
from storage_core.compaction.source_windows import source_windows
from storage_core.compaction.values import CleanStatistics
from storage_core.compaction.window_output import WindowOutput
from storage_core.record.decode import decode_records
from storage_core.record.section import WantedFields
from storage_core.scan.sections import SectionMaker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage_core.compaction.batch_decisions import BatchDecisions
    from storage_core.compaction.offset_map import OffsetMap
    from storage_core.compaction.transactions import CleanedTransactions
    from storage_core.compaction.values import CleanRules, Throttle
    from storage_core.compaction.window_output import OutputBatches
    from storage_core.record.batch_window import BatchWindow
    from storage_core.record.section import RecordSection
    from storage_core.segment.log_segment import LogSegment

__all__ = ["clean_into"]

# Headers are asked for so that they are checked: what is malformed does not get a new CRC.
_WANTED: Final = WantedFields(headers=True, tails=True)

_Int64Array = npt.NDArray[np.int64]


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
        self._sections = SectionMaker(rules.max_batch_bytes, _WANTED)
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
        columns = decode_records(section, _WANTED)
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
