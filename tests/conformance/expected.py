"""What real consumers read, as Arrow tables, and how a read is compared with it.

The format of ``expected.json`` is explained in README.md next to this file.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# The columns of a read with headers. Timestamps are compared as whole microseconds, so that
# values that no calendar knows survive the comparison.
ROW_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("timestampType", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)

# What identifies a row: enough for tests of which rows are read, not how they are decoded.
PLACE_COLUMNS = ("topic", "partition", "offset", "timestamp")

_ROW_ORDER = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]


@dataclass(frozen=True, slots=True)
class TimeLookup:
    """A broker's ListOffsets answer: offset and timestamp are None where it found nothing."""

    query_ms: int
    offset: int | None
    timestamp_ms: int | None


@dataclass(frozen=True, slots=True)
class ExpectedPartition:
    """One partition as the broker and its consumers saw it."""

    topic: str
    partition: int
    log_start_offset: int
    end_offset: int
    high_watermark: int
    last_stable_offset: int
    time_lookups: tuple[TimeLookup, ...]
    damaged_offsets: tuple[int, int] | None
    table: pa.Table
    offsets: np.ndarray[Any, np.dtype[np.int64]]
    committed: np.ndarray[Any, np.dtype[np.bool_]]

    @property
    def name(self) -> str:
        """The name of the partition's directory."""
        return f"{self.topic}-{self.partition}"

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> ExpectedPartition:
        """Make one from its value under ``partitions`` in ``expected.json``."""
        records = fields["records"]
        offsets = np.array([record[0] for record in records], dtype=np.int64)
        damaged = fields.get("corrupt_offsets")
        return cls(
            topic=fields["topic"],
            partition=fields["partition"],
            log_start_offset=fields["log_start_offset"],
            end_offset=fields["end_offset"],
            high_watermark=fields["high_watermark"],
            last_stable_offset=fields["last_stable_offset"],
            time_lookups=tuple(TimeLookup(*lookup) for lookup in fields.get("time_lookups", ())),
            damaged_offsets=None if damaged is None else (damaged[0], damaged[1]),
            table=_table(fields["topic"], fields["partition"], records),
            offsets=offsets,
            committed=np.isin(offsets, fields["committed_offsets"]),
        )

    def rows(self, start_offset: int, end_offset: int, *, committed_only: bool) -> pa.Table:
        """Return the records with ``start_offset <= offset < end_offset``."""
        first, last = np.searchsorted(self.offsets, [start_offset, end_offset])
        rows = self.table.slice(first, max(last - first, 0))
        return rows.filter(pa.array(self.committed[first : max(first, last)])) if committed_only else rows


def comparable(table: pa.Table) -> pa.Table:
    """Bring rows that were read into the order and types of ROW_SCHEMA, as far as it has their columns."""
    fields = [field for field in ROW_SCHEMA if field.name in table.column_names]
    columns = []
    for field in fields:
        column = table.column(field.name)
        if pa.types.is_timestamp(column.type):
            if column.type.unit != "us":
                raise AssertionError(f"expected timestamps in microseconds, found {column.type}")
            column = column.cast(pa.timestamp("us")).cast(pa.int64())
        columns.append(column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields)).sort_by(_ROW_ORDER).combine_chunks()


def concatenated(tables: list[pa.Table]) -> pa.Table:
    """Expected rows of several partitions, in the order that `comparable` gives."""
    if not tables:
        return ROW_SCHEMA.empty_table()
    return pa.concat_tables(tables).sort_by(_ROW_ORDER).combine_chunks()


def first_difference(actual: pa.Table, expected: pa.Table) -> str | None:
    """Say how two tables in ROW_SCHEMA differ; None if they do not."""
    if actual.equals(expected):
        return None
    found = [(row["topic"], row["partition"], row["offset"], row) for row in actual.to_pylist()]
    wanted = [(row["topic"], row["partition"], row["offset"], row) for row in expected.to_pylist()]
    found_places, wanted_places = [row[:3] for row in found], [row[:3] for row in wanted]
    if found_places != wanted_places:
        missing = sorted(set(wanted_places) - set(found_places))
        surplus = sorted(set(found_places) - set(wanted_places))
        return (
            f"expected {len(wanted)} rows, found {len(found)};"
            f" {len(missing)} missing {missing[:3]}, {len(surplus)} too many {surplus[:3]},"
            f" {len(found) - len(set(found_places))} twice"
        )
    for (topic, partition, offset, row), (_, _, _, wanted_row) in zip(found, wanted, strict=True):
        for column, value in row.items():
            if value != wanted_row[column]:
                where = f"{topic}-{partition} offset {offset}, {column}"
                return f"{where}: expected {_short(wanted_row[column])}, found {_short(value)}"
    return "the rows are equal, but their tables are not"


def _table(topic: str, partition: int, records: list[list[Any]]) -> pa.Table:
    columns = [
        pa.repeat(pa.scalar(topic, pa.string()), len(records)),
        pa.repeat(pa.scalar(partition, pa.int32()), len(records)),
        pa.array([record[0] for record in records], pa.int64()),
        # Multiplied in 64 bits, and an overflow is an error: a wrapped value would be no expectation.
        pc.multiply_checked(pa.array([record[1] for record in records], pa.int64()), 1000),
        pa.array([record[2] for record in records], pa.int32()),
        pa.array([_bytes(record[3]) for record in records], pa.binary()),
        pa.array([_bytes(record[4]) for record in records], pa.binary()),
        # As in Spark's Kafka source: null, not an empty list, for a record without headers.
        pa.array([_headers(record[5]) for record in records], ROW_SCHEMA.field("headers").type),
    ]
    return pa.Table.from_arrays(columns, schema=ROW_SCHEMA)


def _headers(headers: list[list[str | None]]) -> list[dict[str, Any]] | None:
    return [{"key": name, "value": _bytes(value)} for name, value in headers] or None


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}… ({len(text)} characters)"
