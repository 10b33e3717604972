"""The sink under test, unchanged, which also writes the duration of its commit to a file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_segmentlog.data_source import SegmentLogDataSource

FORMAT_NAME = "timed_segmentlog"
# The file for the commit's duration in seconds.
TIMES_OPTION = "times"


class TimedSegmentLog(SegmentLogDataSource):
    """Options: those of the sink, and ``times``."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT_NAME

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the sink's own writer with a timer."""
        options = {name: value for name, value in self.options.items() if name != TIMES_OPTION}
        sink = SegmentLogDataSource(CaseInsensitiveDict(options))
        return _TimedWriter(sink.writer(schema, overwrite), self.options[TIMES_OPTION])


class _TimedWriter(DataSourceArrowWriter):
    def __init__(self, writer: DataSourceArrowWriter, times_path: str) -> None:
        self._writer = writer
        self._times_path = times_path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._writer.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        started = time.perf_counter()
        self._writer.commit(messages)
        Path(self._times_path).write_text(str(time.perf_counter() - started), encoding="utf-8")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._writer.abort(messages)
