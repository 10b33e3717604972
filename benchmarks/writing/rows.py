"""What is written: rows made from their numbers, the same in every Spark."""

from __future__ import annotations

from benchmarks.settings import Settings
from benchmarks.spark.session import Frame

_ROWS = 2_000_000
KEY_BYTES = 10
VALUE_BYTES = 100
# Of key and value alone: what MB/s counts.
ROW_BYTES = KEY_BYTES + VALUE_BYTES
INPUT_PARTITIONS = 4


def rows_of(settings: Settings) -> int:
    """Return how many rows a write has."""
    return settings.scaled(_ROWS)


def frame_of(rows: int, *, value_bytes: int = VALUE_BYTES, is_cached: bool = False) -> Frame:
    """Keys and values as cheap as Spark makes them: the row's number, padded."""
    columns = (
        f"CAST(lpad(CAST(id AS STRING), {KEY_BYTES}, '0') AS BINARY) AS key",
        f"CAST(rpad(CAST(id AS STRING), {value_bytes}, '.') AS BINARY) AS value",
    )
    return Frame(rows, columns, INPUT_PARTITIONS, is_cached)
