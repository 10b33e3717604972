"""A Python data source with precomputed batches: the upper bound for any reader written in Python.

It serves the batches that segmentlog's tasks produced, one Arrow file per task. Worker processes keep the files mapped
from run to run, so after the first run nothing is read, decoded or paged in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

FORMAT_NAME = "ready_made"

_SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
# Per worker process: the batches of each file.
_mapped: dict[str, list[pa.RecordBatch]] = {}


def write_ready_made(path: Path, batches: Iterator[pa.RecordBatch]) -> int:
    """Store the batches of one task; return the number of rows."""
    rows = 0
    writer = None
    with pa.OSFile(str(path), "wb") as sink:
        for batch in batches:
            writer = writer or pa.ipc.new_file(sink, batch.schema)
            writer.write_batch(batch)
            rows += batch.num_rows
        if writer is not None:
            writer.close()
    if writer is None:
        path.unlink()
    return rows


class ReadyMadeSource(DataSource):
    """Option ``path``: a directory of Arrow files."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT_NAME

    def schema(self) -> str:
        """Spark's Kafka columns."""
        return _SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  (Spark's signature)
        """Return a reader of everything."""
        return _ReadyMadeReader(self.options["path"])


@dataclass
class _FilePartition(InputPartition):
    path: str


class _ReadyMadeReader(DataSourceReader):
    def __init__(self, directory: str) -> None:
        self._directory = directory

    def partitions(self) -> list[InputPartition]:
        return [_FilePartition(str(path)) for path in sorted(Path(self._directory).glob("*.arrow"))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _FilePartition)
        batches = _mapped.get(partition.path)
        if batches is None:
            file = pa.ipc.open_file(pa.memory_map(partition.path))
            batches = [file.get_batch(index) for index in range(file.num_record_batches)]
            _mapped[partition.path] = batches
        yield from batches
