"""A Python sink that only counts the rows it gets from Spark: the upper bound for any sink written in Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

FORMAT_NAME = "counting"


class CountingSink(DataSource):
    """Option ``rows``: the expected number of rows."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT_NAME

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002  (Spark's signature)
        """Return a writer that writes nothing."""
        return _CountingWriter(int(self.options["rows"]))


@dataclass
class _Counted(WriterCommitMessage):
    rows: int


class _CountingWriter(DataSourceArrowWriter):
    def __init__(self, rows: int) -> None:
        self._rows = rows

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Counted:
        return _Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        found = sum(message.rows for message in messages if isinstance(message, _Counted))
        if found != self._rows:
            raise RuntimeError(f"Expected {self._rows} rows, found {found}.")
