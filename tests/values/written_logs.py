"""Small log directories with a schema registry's topic, written for a test."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from storage_core import LogDirectory

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Record = tuple[bytes | None, bytes | None]


def append(
    logs: Path, topic: str, records: Iterable[Record], *, partition: int = 0, per_batch: int | None = None
) -> None:
    """Append keys and values to a partition, so many in a batch."""
    records = list(records)
    step = per_batch or max(len(records), 1)
    with LogDirectory.open(logs) as directory:
        log = directory.get_or_create(topic, partition)
        for start in range(0, len(records), step):
            keys, values = zip(*records[start : start + step], strict=True)
            log.append(pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}))


def register(logs: Path, subject: str, version: int, schema_id: int, schema: Any, **more: Any) -> None:
    """Append a schema to the registry's topic."""
    key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
    text = schema if isinstance(schema, str) else json.dumps(schema)
    value = {
        "subject": subject,
        "version": version,
        "id": schema_id,
        "schema": text,
        "deleted": False,
        **more,
    }
    append(logs, "_schemas", [(json.dumps(key).encode(), json.dumps(value).encode())])


def record_schema(name: str = "Order", **fields: Any) -> dict[str, Any]:
    """Return the Avro schema of a record; a field is a type, or a type and its default in a tuple."""
    listed = [
        {"name": field, "type": kind[0], "default": kind[1]}
        if isinstance(kind, tuple)
        else {"name": field, "type": kind}
        for field, kind in fields.items()
    ]
    return {"type": "record", "name": name, "fields": listed}


def read_parquet(folder: Path) -> pa.Table:
    """Read all Parquet files below a folder."""
    tables = []
    for path in sorted(folder.rglob("*.parquet")):
        with pq.ParquetFile(path) as file:
            tables.append(file.read())
    return pa.concat_tables(tables)


def encoded(schema: Any, value: Any) -> bytes:
    """Encode a value as Avro."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def framed(schema_id: int, schema: Any, value: Any) -> bytes:
    """Encode a value as Avro, behind Confluent's prefix."""
    return b"\0" + schema_id.to_bytes(4, "big") + encoded(schema, value)
