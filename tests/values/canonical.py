"""Decoded columns in the form in which `expected.json.gz` has their values (README.md)."""

from __future__ import annotations

import base64
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa

import storage_core
from storage_core.values.decoding import Payloads, SchemaSource
from tests.values.typed_logs import expected_values


def canonical(array: pa.Array) -> list[Any]:
    """Return the values of a column: integers of times and days, base64 of bytes, text of decimals."""
    kind = array.type
    if pa.types.is_struct(kind):
        fields = [(kind.field(i).name, canonical(array.field(i))) for i in range(kind.num_fields)]
        valid = array.is_valid().to_pylist()
        return [
            {name: column[row] for name, column in fields} if valid[row] else None
            for row in range(len(array))
        ]
    if pa.types.is_list(kind):
        return _groups(array, canonical(array.values))
    if pa.types.is_map(kind):
        keys = [_key(key) for key in array.keys.to_pylist()]
        entries = _groups(array, list(zip(keys, canonical(array.items), strict=True)))
        return [None if pairs is None else dict(pairs) for pairs in entries]
    if pa.types.is_timestamp(kind):
        return array.cast(pa.int64()).to_pylist()
    if pa.types.is_date(kind):
        return array.cast(pa.int32()).to_pylist()
    return [_leaf(value) for value in array.to_pylist()]


def payloads(values: list[bytes]) -> Payloads:
    return Payloads.of_array(pa.array(values, pa.binary()))


def _groups(array: pa.Array, items: list[Any]) -> list[Any]:
    offsets = array.offsets.to_pylist()
    valid = array.is_valid().to_pylist()
    return [items[offsets[row] : offsets[row + 1]] if valid[row] else None for row in range(len(array))]


def _key(key: Any) -> str:
    return json.dumps(key) if isinstance(key, bool) else str(key)


def _leaf(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def source_of_schema(logs: str, schema_id: int, topic: str = "") -> SchemaSource:
    """Return a schema of the topic `_schemas` with those that it refers to. Where an id was given twice, a subject of the topic wins."""
    values = storage_core.read_table(logs, subscribe="_schemas")["value"].to_pylist()
    schemas = [json.loads(value) for value in values if value and value.startswith(b'{"')]
    schemas = [schema for schema in schemas if "schema" in schema]
    named = [s for s in schemas if s["id"] == schema_id]
    found = next((s for s in named if f"{topic}-value" in s["subject"]), named[0])
    return SchemaSource(found["schema"], tuple(_references(found, schemas)))


def _references(schema: dict[str, Any], schemas: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the schemas that one refers to, those that others need first."""
    found: dict[tuple[str, str], None] = {}
    for reference in schema.get("references", ()):
        [wanted] = {
            s["schema"]: s
            for s in schemas
            if (s["subject"], s["version"]) == (reference["subject"], reference["version"])
        }.values()
        found |= dict.fromkeys(_references(wanted, schemas))
        found[reference["name"], wanted["schema"]] = None
    return list(found)


def values_with_expected(logs: str, topic: str) -> list[tuple[bytes, dict[str, Any]]]:
    """Return the values of a topic that are not null, each with what is expected of it."""
    partitions = expected_values()["topics"][topic]["partitions"]
    expected = {(int(partition), row[0]): row[2] for partition, rows in partitions.items() for row in rows}
    rows = storage_core.read_table(logs, subscribe=topic).to_pylist()
    return [
        (row["value"], expected[row["partition"], row["offset"]]) for row in rows if row["value"] is not None
    ]
