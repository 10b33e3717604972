"""Records framed for a schema registry are read as columns: those that independent decoders make of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import storage_core
from tests.values.expected_rows import differences, rows_of
from tests.values.typed_logs import expected_values
from tests.values.written_logs import append, register

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

TOPICS = [name for name, topic in expected_values()["topics"].items() if topic["value_subject"] is not None]


def read(logs: Path, topic: str, **options: Any) -> pa.Table:
    return storage_core.read_table(
        logs, **{"subscribe": topic, "value_format": "registry", "mode": "PERMISSIVE", **options}
    )


@pytest.mark.parametrize("topic", TOPICS)
def test_values_are_those_of_independent_decoders(typed_logs: Path, topic: str) -> None:
    options = (
        {"value_subject": subject}
        if (subject := expected_values()["topics"][topic]["value_subject"])[0] == ":"
        else {}
    )

    table = read(typed_logs, topic, **options)

    assert differences(rows_of(table), expected_values()["topics"][topic]["partitions"]) == []


@pytest.mark.parametrize("topic", ["avro-keys", "avro-bytes"])
def test_keys_are_those_of_independent_decoders(typed_logs: Path, topic: str) -> None:
    table = read(typed_logs, topic, key_format="registry")

    partitions = expected_values()["topics"][topic]["partitions"]
    assert differences(rows_of(table, "key"), partitions, "key") == []
    assert differences(rows_of(table), partitions) == []


@pytest.mark.parametrize(
    "schema", [{"type": "bytes", "connect.name": "Body"}, {"type": "bytes", "logicalType": "none"}, '"bytes"']
)
def test_values_of_any_schema_of_bytes_have_no_length(tmp_path: Path, schema: Any) -> None:
    register(tmp_path, "orders-value", 1, 1, schema)
    append(tmp_path, "orders", [(None, b"\0\0\0\0\1" + value) for value in (b"\4ab", b"hello", b"")])

    table = storage_core.read_table(tmp_path, subscribe="orders", value_format="registry")

    assert table["value"].to_pylist() == [b"\4ab", b"hello", b""]
