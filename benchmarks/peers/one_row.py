"""A Python data source of one row a task: what starting takes that has nothing to read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

FORMAT_NAME = "one_row"
TASKS_OPTION = "tasks"


class OneRowSource(DataSource):
    """Option ``tasks``: how many tasks read a row each."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT_NAME

    def schema(self) -> str:
        """Return the one column."""
        return "value binary"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  (Spark's signature)
        """Return a reader of these rows."""
        return _OneRowReader(int(self.options[TASKS_OPTION]))


@dataclass
class _Numbered(InputPartition):
    number: int


class _OneRowReader(DataSourceReader):
    def __init__(self, tasks: int) -> None:
        self._tasks = tasks

    def partitions(self) -> list[InputPartition]:
        return [_Numbered(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  (Spark's signature)
        yield pa.record_batch({"value": pa.array([b"v"], pa.binary())})
