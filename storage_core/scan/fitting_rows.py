"""Rows without those whose timestamp does not fit the column: what DROPMALFORMED makes of them."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Protocol

import numpy as np

from storage_core.scan.rows import unfit_timestamps

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from storage_core.record import RecordColumns, RecordSection
    from storage_core.scan.spans import LogSpan

__all__ = ["FittingRows", "Rows"]

_log = logging.getLogger(__name__)


class Rows(Protocol):
    """Makes rows: a `RowMaker`, `FilteredRows` or `FittingRows`."""

    def batches(
        self, section: RecordSection, columns: RecordColumns, span: LogSpan
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a section that lie within a span's offsets."""
        ...


class FittingRows:
    """Makes the rows that others make, but for those whose timestamp does not fit."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def batches(
        self, section: RecordSection, columns: RecordColumns, span: LogSpan
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a section that lie within a span's offsets."""
        timestamps_ms = columns.timestamps_ms
        unfit = None if timestamps_ms is None else unfit_timestamps(timestamps_ms)
        if unfit is None or timestamps_ms is None:
            yield from self._rows.batches(section, columns, span)
            return
        unfit_rows = np.flatnonzero(unfit)
        offsets = columns.offsets[unfit_rows]
        within = (offsets >= span.start_offset) & (offsets <= span.end_offset - 1)
        if within.any():
            _log.warning(
                "Left out %d records of %s-%d whose timestamps do not fit microseconds, the first of them at "
                "offset %d of %s with %d ms.",
                within.sum(),
                span.topic,
                span.partition,
                offsets[within][0],
                section.path,
                timestamps_ms[unfit_rows[within][0]],
            )
        start_offset = span.start_offset
        # Between two that do not fit, and behind the last one.
        for offset in [*offsets[within].tolist(), span.end_offset]:
            if start_offset < offset:
                part = dataclasses.replace(span, start_offset=start_offset, end_offset=offset)
                yield from self._rows.batches(section, columns, part)
            start_offset = offset + 1
