"""Rewrite ``examples/typed`` with a real Kafka broker: topics framed for a schema registry, and the registry's own topic.

Run from the root of the repository; needs the development packages, Java 17 and Maven::

    PYTHONPATH=. python -m tests.interop.make_typed_example
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import random
import struct
import subprocess
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
from confluent_kafka.admin import AdminClient, NewTopic
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tests.interop.broker import KafkaBroker
from tests.interop.make_example_data import (
    SEED,
    ExampleRecord,
    ExampleTopic,
    copy_logs,
    in_groups,
    producer_for,
    send,
    timestamps_over_a_week,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

ITEM = {
    "type": "record",
    "name": "Item",
    "fields": [
        {"name": "sku", "type": "string"},
        {"name": "quantity", "type": "int"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
    ],
}
ORDER_1 = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "order_id", "type": "string"},
        {"name": "customer", "type": "int"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "placed_at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "items", "type": {"type": "array", "items": ITEM}},
    ],
}
# Version 2 widens a number, adds a field with a default, and one that may be null.
ORDER_2: dict[str, Any] = {
    **ORDER_1,
    "fields": [
        ORDER_1["fields"][0],
        {"name": "customer", "type": "long"},
        *ORDER_1["fields"][2:],
        {"name": "currency", "type": "string", "default": "EUR"},
        {"name": "coupon", "type": ["null", "string"], "default": None},
    ],
}
SHIPMENT = """syntax = "proto3";
package shop;

import "google/protobuf/timestamp.proto";

// A parcel on its way.
message Shipment {
  enum State {
    PACKED = 0;
    SENT = 1;
    DELIVERED = 2;
  }
  string order_id = 1;
  State state = 2;
  google.protobuf.Timestamp at = 3;
  repeated string parcels = 4;
  optional double weight_kg = 5;
}
"""
ORDER_IDS = (1, 2)
SHIPMENT_ID = 3


def registrations() -> Iterator[ExampleRecord]:
    """Records of ``_schemas``, as Confluent's registry writes them."""
    texts = (
        ("orders-value", 1, ORDER_IDS[0], json.dumps(ORDER_1), {}),
        ("shipments-value", 1, SHIPMENT_ID, SHIPMENT, {"schemaType": "PROTOBUF"}),
        ("orders-value", 2, ORDER_IDS[1], json.dumps(ORDER_2), {}),
    )
    moment = timestamps_over_a_week(1, random.Random(SEED))[0]
    for subject, version, schema_id, text, others in texts:
        key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
        digest = base64.b64encode(hashlib.md5(text.encode(), usedforsecurity=False).digest()).decode()
        value = {
            "subject": subject,
            "version": version,
            "id": schema_id,
            "md5": digest,
            **others,
            "schema": text,
            "deleted": False,
        }
        yield ExampleRecord(json.dumps(key), json.dumps(value).encode(), moment)


def orders(source: random.Random) -> Iterator[ExampleRecord]:
    """Orders as Avro: the first half by version 1, the others by version 2; three are not framed."""
    schemas = [fastavro.parse_schema(schema) for schema in (ORDER_1, ORDER_2)]
    moments = timestamps_over_a_week(3_000, source)
    for number, moment in enumerate(moments):
        version = int(number >= len(moments) // 2)
        items = [
            {
                "sku": f"sku-{source.randrange(150):04d}",
                "quantity": source.choice((1, 1, 1, 2, 3)),
                "price": Decimal(source.randrange(299, 14_999, 50)) / 100,
            }
            for _ in range(source.choice((1, 1, 2, 3)))
        ]
        order = {
            "order_id": f"order-{number:06d}",
            "customer": int(2_000 * source.random() ** 2),
            "amount": sum((item["quantity"] * item["price"] for item in items), Decimal()),
            "placed_at": moment,
            "items": items,
            "currency": source.choice(("EUR", "EUR", "SEK", "PLN")),
            "coupon": source.choice((None, None, None, "SPRING")),
        }
        body = io.BytesIO()
        fastavro.schemaless_writer(body, schemas[version], order)
        value = _framed(ORDER_IDS[version], body.getvalue())
        if number % 1_000 == 500:
            value = json.dumps(order, default=str).encode()
        yield ExampleRecord(f"customer-{order['customer']}", value, moment)


def shipments(source: random.Random) -> Iterator[ExampleRecord]:
    """Shipments as Protobuf."""
    shipment = _message_class("shop.Shipment")
    for number, moment in enumerate(timestamps_over_a_week(800, source)):
        message = shipment(order_id=f"order-{number:06d}", state=source.randrange(3))
        message.at.FromMilliseconds(moment)
        message.parcels.extend(f"parcel-{source.getrandbits(32):08x}" for _ in range(source.randrange(1, 3)))
        if source.random() < 0.5:
            message.weight_kg = round(source.uniform(0.1, 20), 2)
        # The single byte 0 stands for the message indexes [0].
        value = _framed(SHIPMENT_ID, b"\0" + message.SerializeToString(deterministic=True))
        yield ExampleRecord(message.order_id, value, moment)


def _framed(schema_id: int, body: bytes) -> bytes:
    return struct.pack(">bI", 0, schema_id) + body


def _message_class(name: str) -> Any:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "shipment.proto").write_text(SHIPMENT, encoding="utf-8")
        command = ["protoc", f"-I{folder}", "--include_imports", f"-o{folder / 'set'}", "shipment.proto"]
        subprocess.run(command, check=True)
        files = descriptor_pb2.FileDescriptorSet.FromString((folder / "set").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def write_schemas(bootstrap_servers: str, _source: random.Random) -> None:
    """Write ``_schemas``."""
    send(producer_for(bootstrap_servers), "_schemas", list(registrations()))


def write_orders(bootstrap_servers: str, source: random.Random) -> None:
    """Write ``orders``: zstd."""
    producer = producer_for(bootstrap_servers, **{"compression.type": "zstd"})
    for group in in_groups(orders(source), 500):
        send(producer, "orders", group)


def write_shipments(bootstrap_servers: str, source: random.Random) -> None:
    """Write ``shipments``: lz4."""
    producer = producer_for(bootstrap_servers, **{"compression.type": "lz4"})
    for group in in_groups(shipments(source), 400):
        send(producer, "shipments", group)


TOPICS = (
    ExampleTopic("_schemas", 1, {"cleanup.policy": "compact"}, write_schemas),
    ExampleTopic("orders", 2, {}, write_orders),
    ExampleTopic("shipments", 1, {}, write_shipments),
)


def make(target: Path) -> None:
    """Replace the broker's files in ``target`` with newly written ones."""
    with tempfile.TemporaryDirectory() as scratch:
        with KafkaBroker(scratch, {}) as broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
            for topic in TOPICS:
                new = NewTopic(topic.name, topic.partitions, 1, config=topic.settings)
                admin.create_topics([new])[topic.name].result(30)
                topic.write(broker.bootstrap_servers, random.Random(f"{SEED} {topic.name}"))
        copy_logs(broker.log_directory, target, TOPICS)


def main() -> None:
    """Parse the command line and write the data."""
    parser = argparse.ArgumentParser(
        description="Write the example data with schemas with a real Kafka broker."
    )
    default = Path(__file__).resolve().parents[2] / "examples" / "typed"
    parser.add_argument("--target", type=Path, default=default, help="default: examples/typed")
    make(parser.parse_args().target)


if __name__ == "__main__":
    main()
