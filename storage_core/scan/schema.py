"""The columns of a read and their Arrow types: those of Spark's Kafka source, `_metadata`, and one for damage.

Spark compares schemas to the letter, so names, order, types and nullability are fixed here.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from storage_core.errors import OptionError
from storage_core.record import HEADERS_TYPE

__all__ = ["METADATA_TYPE", "project", "record_schema"]

METADATA_TYPE: Final = pa.struct(
    [
        ("segment", pa.string()),
        ("position", pa.int64()),
        ("batchOffset", pa.int64()),
        ("leaderEpoch", pa.int32()),
        ("producerId", pa.int64()),
        ("producerEpoch", pa.int32()),
        ("sequence", pa.int32()),
        ("isTransactional", pa.bool_()),
        ("compression", pa.string()),
        ("magic", pa.int32()),
        ("timestampMs", pa.int64()),
    ]
)

_FIELDS: Final = (
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", tz="UTC")),
    ("timestampType", pa.int32()),
)


def record_schema(
    *,
    include_headers: bool = False,
    include_metadata: bool = False,
    corrupt_record_column: str | None = None,
) -> pa.Schema:
    """The full schema of a read; the column that describes damage, if it has one, comes last."""
    fields = list(_FIELDS)
    if include_headers:
        fields.append(("headers", HEADERS_TYPE))
    if include_metadata:
        fields.append(("_metadata", METADATA_TYPE))
    if corrupt_record_column is not None:
        fields.append((corrupt_record_column, pa.string()))
    return pa.schema(fields)


def project(schema: pa.Schema, columns: tuple[str, ...] | None) -> pa.Schema:
    """The chosen columns, in the order asked for; None means all.

    Raises:
        OptionError: The schema has no such column, or it is named twice.
    """
    if columns is None:
        return schema
    for name in columns:
        if name not in schema.names:
            available = ", ".join(schema.names)
            message = f"columns: no column is named {name!r}. Choose from {available}."
            raise OptionError(message)
        if columns.count(name) > 1:
            message = f"columns: {name!r} is named twice."
            raise OptionError(message)
    return pa.schema([schema.field(name) for name in columns])
