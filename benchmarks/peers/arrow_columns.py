"""The columns that every contender builds: those of Spark's Kafka source, as Arrow arrays."""

from __future__ import annotations

import pyarrow as pa

# Maximum rows per batch, the same as in segmentlog.
_ROWS = 65_536


class RecordColumns:
    """Collects records of one partition and converts them to Arrow batches of at most 65,536 rows."""

    def __init__(self, topic: str, partition: int) -> None:
        # Built once, as any efficient program would.
        self._topics = pa.array([topic] * _ROWS, pa.string())
        self._partitions = pa.array([partition] * _ROWS, pa.int32())
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.offsets: list[int] = []
        self.timestamps_ms: list[int] = []
        self.timestamp_types: list[int] = []

    @property
    def is_full(self) -> bool:
        """Whether to take a batch now."""
        return len(self.offsets) >= _ROWS

    def take(self) -> int:
        """Build Arrow batches from everything collected; return the number of rows."""
        rows = len(self.offsets)
        arrays = (
            pa.array(self.keys, pa.binary()),
            pa.array(self.values, pa.binary()),
            pa.array(self.offsets, pa.int64()),
            pa.array(self.timestamps_ms, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")),
            pa.array(self.timestamp_types, pa.int32()),
        )
        for start in range(0, rows, _ROWS):
            count = min(_ROWS, rows - start)
            keys, values, offsets, timestamps, types = (array.slice(start, count) for array in arrays)
            constants = self._topics.slice(0, count), self._partitions.slice(0, count)
            pa.RecordBatch.from_arrays([keys, values, *constants, offsets, timestamps, types], names=_NAMES)
        for column in (self.keys, self.values, self.offsets, self.timestamps_ms, self.timestamp_types):
            column.clear()
        return rows


_NAMES = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
