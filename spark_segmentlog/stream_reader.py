"""The reader of a streaming query: Spark's words for `storage_core.scan.stream`.

One reader plans all micro-batches, in a process on the driver that lives as long as the query. Another one, made of the
same options, is sent to tasks and only reads. Spark stores offsets as the JSON that it is given, and compares them as
text.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from spark_segmentlog.reader import arrow_schema, read_records_of
from spark_segmentlog.tracebacks import raises_without_frames, without_frames
from spark_segmentlog.workers import SentToWorkers
from storage_core.scan.stream import MicroBatchPlanner, json_of_offsets, offsets_of_json, schema_ids_of_json
from storage_core.scan.typed_columns import PinnedFormats
from storage_core.tier import open_file_system

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from spark_segmentlog.schema import ProjectedColumn
    from storage_core.errors import SegmentLogError
    from storage_core.options import StreamOptions
    from storage_core.scan.stream import Offsets
    from storage_core.values.column_format import ColumnFormat

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    HAS_ADMISSION_CONTROL = True
    """Whether Spark tells a source how much to read, and by which trigger: from 4.2 on."""
except ImportError:
    HAS_ADMISSION_CONTROL = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stand-in for a class that Spark before 4.2 does not have."""


_logger = logging.getLogger(__name__)
_Json = dict[str, dict[str, int]]


class SegmentLogStreamReader(SentToWorkers, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the records that are appended to logs, as Arrow batches."""

    def __init__(
        self,
        options: StreamOptions,
        columns: tuple[ProjectedColumn, ...],
        notices: Sequence[str] = (),
        formats: tuple[ColumnFormat, ...] = (),
    ) -> None:
        super().__init__()
        self._formats = formats
        self._options = options
        self._columns = columns
        self._notices = tuple(notices)
        self._stream: MicroBatchPlanner | None = None

    @property
    def _planner(self) -> MicroBatchPlanner:
        # The reader that is sent to tasks has none.
        if self._stream is None:
            filesystem = open_file_system(self._options.read.storage)
            formats = PinnedFormats(filesystem, self._options.read, self._formats)
            self._stream = MicroBatchPlanner(filesystem, self._options, formats)
            for notice in self._notices:
                _logger.warning(notice)
            if self._options.limits.are_given and not HAS_ADMISSION_CONTROL:
                _logger.warning(
                    "Before Spark 4.2, a query with the trigger availableNow or once reads a single batch, and the "
                    "limits per trigger apply to it: records beyond them are left for the next run."
                )
        return self._stream

    @raises_without_frames
    def initialOffset(self) -> _Json:  # noqa: N802
        """Return where a new query starts."""
        return self._json(self._planner.initial_offsets())

    @raises_without_frames
    def latestOffset(self, start: _Json | None = None, limit: ReadLimit | None = None) -> _Json:  # noqa: N802
        """Return where the next micro-batch ends. Before Spark 4.2, there is neither a start nor a limit."""
        offsets = None if start is None else offsets_of_json(start)
        if start is not None:
            self._planner.formats.pin(schema_ids_of_json(start))
        is_limited = limit is None or not isinstance(limit, ReadAllAvailable)
        latest = self._planner.latest_offsets(offsets, is_limited=is_limited)
        # An idle source returns the start itself.
        return start if start is not None and latest is offsets else self._json(latest)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that Spark hands to `latestOffset`, which only learns from it whether the batch is limited."""
        limits = self._options.limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        if limits.min_offsets is not None:
            return ReadMinRows(limits.min_offsets)
        return ReadAllAvailable()

    @raises_without_frames
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read what there is now, and no more."""
        self._planner.stop_at_present_ends()

    def reportLatestOffset(self) -> _Json:  # noqa: N802
        """Return where the partitions ended at the last poll, whatever a micro-batch took."""
        return self._json(self._planner.newest_offsets())

    def _json(self, offsets: Offsets) -> _Json:
        return json_of_offsets(offsets, self._planner.formats.ids)

    @raises_without_frames
    def partitions(self, start: _Json, end: _Json) -> Sequence[InputPartition]:
        """Plan a micro-batch: one partition per task. After a restart, it is planned again."""
        # A run begins with a batch that an earlier one has ended, or at its end; before Spark 4.2, with an empty one there.
        self._planner.formats.pin(schema_ids_of_json(end))
        plan = self._planner.plan(offsets_of_json(start), offsets_of_json(end))
        return [InputPartition(task) for task in plan.tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition. Runs in tasks, once for every attempt."""
        schema = arrow_schema(self._columns, self._options.read)
        return read_records_of(partition.value, schema, self._planned_on)

    def commit(self, end: _Json) -> None:
        """Do nothing: nothing is kept of batches that are done."""

    def stop(self) -> None:
        """Do nothing: nothing is open between two calls."""


class RefusedStreamReader(DataSourceStreamReader):
    """Reader that raises an error in its first call: if the constructor raised it, Spark would bury it under another."""

    def __init__(self, error: SegmentLogError) -> None:
        self._error = error

    def initialOffset(self) -> _Json:  # noqa: N802
        """Raise the error."""
        raise without_frames(self._error)

    def latestOffset(self, start: _Json | None = None, limit: ReadLimit | None = None) -> _Json:  # noqa: ARG002, N802
        """Raise the error."""
        raise without_frames(self._error)

    def partitions(self, start: _Json, end: _Json) -> Sequence[InputPartition]:  # noqa: ARG002
        """Raise the error."""
        raise without_frames(self._error)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Raise the error."""
        raise without_frames(self._error)
