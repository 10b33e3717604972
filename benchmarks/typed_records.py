"""Records of Avro schemas in a schema registry's frames: 8 flat fields, or a list of structs and a map."""

from __future__ import annotations

import io
import json
import random
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_BATCH_RECORDS = 500
_SCHEMA_IDS = {"flat": 1, "nested": 2}

_FLAT = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "paid", "type": "boolean"},
        {"name": "items", "type": "int"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "weight", "type": "float"},
    ],
}
_LINE = {
    "type": "record",
    "name": "Line",
    "fields": [
        {"name": "sku", "type": "string"},
        {"name": "quantity", "type": "int"},
        {"name": "price", "type": ["null", "double"]},
    ],
}
_NESTED = {
    "type": "record",
    "name": "Cart",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "lines", "type": {"type": "array", "items": _LINE}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
    ],
}
AVRO_SCHEMAS = {"flat": _FLAT, "nested": _NESTED}


def write_typed_log_directory(directory: Path, counts: Mapping[str, int], partitions: int = 1) -> None:
    """Write a registry's topic, and the given number of records of each other topic."""
    import pyarrow as pa

    from storage_core import LogDirectory

    directory.mkdir(parents=True, exist_ok=True)
    with LogDirectory.open(str(directory)) as logs:
        for topic, schema_id in _SCHEMA_IDS.items():
            subject = f"{topic}-value"
            key = {"keytype": "SCHEMA", "subject": subject, "version": 1, "magic": 1}
            value = {
                "subject": subject,
                "version": 1,
                "id": schema_id,
                "schema": json.dumps(AVRO_SCHEMAS[topic]),
            }
            record = pa.table({"key": [json.dumps(key).encode()], "value": [json.dumps(value).encode()]})
            logs.get_or_create("_schemas").append(record, acks="all")
        for topic, count in counts.items():
            values = list(_avro_values(topic, count))
            for number, start in enumerate(range(0, count, _BATCH_RECORDS)):
                batch = pa.array(values[start : start + _BATCH_RECORDS], pa.binary())
                logs.get_or_create(topic, number % partitions).append(pa.table({"value": batch}))


def _avro_values(topic: str, count: int) -> Iterator[bytes]:
    import fastavro

    schema = fastavro.parse_schema(AVRO_SCHEMAS[topic])
    frame = b"\0" + struct.pack(">i", _SCHEMA_IDS[topic])
    chance = random.Random(11)
    for number in range(count):
        buffer = io.BytesIO()
        record = order(number, chance) if topic == "flat" else _cart(number, chance)
        fastavro.schemaless_writer(buffer, schema, record)
        yield frame + buffer.getvalue()


def order(number: int, chance: random.Random) -> dict[str, Any]:
    """Return a record of the flat schema."""
    return {
        "id": number,
        "customer": f"customer-{chance.randrange(100_000)}",
        "amount": chance.random() * 1000,
        "paid": chance.random() < 0.5,
        "items": chance.randrange(100),
        "note": None if chance.random() < 0.5 else "as soon as possible",
        "at": 1_700_000_000_000 + number,
        "weight": 1.5,
    }


def _cart(number: int, chance: random.Random) -> dict[str, Any]:
    lines = [
        {"sku": f"sku-{chance.randrange(1000)}", "quantity": 1, "price": chance.choice([None, 9.5])}
        for _ in range(chance.randrange(6))
    ]
    return {"id": number, "lines": lines, "counts": {f"k{i}": i for i in range(chance.randrange(4))}}
