"""Commands print and write decoded values: as JSON, as typed Parquet, and which schema they are read with."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from storage_core.dump.plain_values import plain_values
from tests.values.written_logs import append, framed, read_parquet, record_schema, register

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SCHEMA = record_schema(
    id="long",
    at={"type": "long", "logicalType": "timestamp-millis"},
    total={"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    data="bytes",
    tags={"type": "array", "items": "string"},
    empty=["null", record_schema("Empty")],
)
VALUE = {
    "id": 7,
    "at": dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
    "total": Decimal("10.50"),
    "data": b"\xff\0",
    "tags": ['a"b', "\x9b"],
    "empty": None,
}
PLAIN = {
    "id": 7,
    "at": "2026-01-02T03:04:05.000000Z",
    "total": "10.50",
    "data": "/wA=",
    "tags": ['a"b', "\x9b"],
    "empty": None,
}
TYPED = ("--subscribe", "orders", "--value-format", "registry")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Return two records: one of each field, and a tombstone."""
    folder = tmp_path / "logs"
    register(folder, "orders-value", 1, 11, SCHEMA)
    append(folder, "orders", [(b"k1", framed(11, SCHEMA, VALUE)), (b"k2", None)])
    return folder


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_cat_prints_values_as_json(segmentlog: Callable[..., Any], logs: Path) -> None:
    ended = segmentlog("cat", logs, *TYPED, "-J")

    assert ended.status == 0
    assert "\x9b" not in ended.stdout
    first, second = lines(ended.stdout)
    assert (first["key"], first["payload"]) == ("k1", PLAIN)
    assert second["payload"] is None
    ended = segmentlog("cat", logs, *TYPED, "-f", r"%o %S %s\n", "-Z", "--key-format", "string")
    assert ended.stdout.splitlines()[1] == "1 -1 NULL"
    offset, size, text = ended.stdout.splitlines()[0].split(" ", 2)
    assert (offset, int(size), json.loads(text)) == ("0", len(text.encode()), PLAIN)


def test_cat_in_turn_and_of_the_last_records(segmentlog: Callable[..., Any], logs: Path) -> None:
    assert lines(segmentlog("cat", logs, *TYPED, "-J", "-c", "1").stdout)[0]["payload"] == PLAIN
    assert lines(segmentlog("cat", logs, *TYPED, "-J", "-n", "1").stdout)[0]["payload"] is None


def test_dump_prints_values_as_json(segmentlog: Callable[..., Any], logs: Path) -> None:
    first, second = lines(
        segmentlog("dump", logs, *TYPED, "--output", "jsonl", "--key-format", "string").stdout
    )

    assert (first["key"], first["value"], second["value"]) == ("k1", PLAIN, None)


def test_convert_writes_typed_parquet(segmentlog: Callable[..., Any], logs: Path, tmp_path: Path) -> None:
    columns = "value.id,value.at,value.total,offset"

    ended = segmentlog("convert", logs, "--to", tmp_path / "out", *TYPED, "--columns", columns)

    assert ended.status == 0
    table = read_parquet(tmp_path / "out")
    assert table["value"].to_pylist() == [{"id": 7, "at": VALUE["at"], "total": VALUE["total"]}, None]
    assert table["value"].type.field("total").type == pa.decimal128(9, 2)


def test_convert_says_what_parquet_cannot_hold(
    segmentlog: Callable[..., Any], logs: Path, tmp_path: Path
) -> None:
    ended = segmentlog("convert", logs, "--to", tmp_path / "out", *TYPED)

    assert ended.refused(2, "Parquet files cannot hold value.empty, a record without fields")
    assert not (tmp_path / "out").exists()


def test_plan_names_the_schema_of_a_column(segmentlog: Callable[..., Any], logs: Path) -> None:
    register(logs, "orders-value", 2, 12, record_schema("Other", id="long"))

    ended = segmentlog("plan", logs, *TYPED, "--value-schema-id", "11")
    assert "value is read by orders-value version 1 (id 11) as struct<" in ended.stdout
    assert "  not read: orders-value version 2 (id 12, live): " in ended.stdout
    found = json.loads(segmentlog("plan", logs, *TYPED, "--output", "json", "--value-schema-id", "11").stdout)
    assert found["columns"][0]["subject"] == "orders-value"


def test_a_record_that_does_not_decode_ends_a_command(segmentlog: Callable[..., Any], logs: Path) -> None:
    append(logs, "orders", [(None, b"text")])
    size = len(json.dumps(PLAIN, ensure_ascii=False, separators=(",", ":")).encode())

    ended = segmentlog("cat", logs, *TYPED, "-f", r"%o %S\n")
    assert ended.status == 1
    assert ended.stdout == f"0 {size}\n1 -1\n"
    assert "The value of orders-0 at offset 2 does not decode: unframed" in ended.stderr
    assert "--value-format=bytes reads all records" in ended.stderr
    ended = segmentlog("cat", logs, *TYPED, "-f", r"%o %S\n", "--mode", "DROPMALFORMED")
    assert (ended.status, ended.stdout) == (0, f"0 {size}\n1 -1\n")
    assert "orders-0: 1 records do not decode (1 unframed)" in ended.stderr


def test_values_that_json_lacks_are_texts() -> None:
    assert plain_values(pa.array([float("nan"), float("-inf"), 1.5, None])) == ["NaN", "-Infinity", 1.5, None]
    years = pa.array([-(1 << 62), 1 << 62], pa.timestamp("us"))
    assert plain_values(years)[1].startswith("+148108-") or plain_values(years)[1].startswith("148108-")
    pairs = pa.array([[(1, b"a")], None, []], pa.map_(pa.int32(), pa.binary()))
    assert plain_values(pairs.slice(1)) == [None, {}]
    assert plain_values(pairs) == [{"1": "YQ=="}, None, {}]
    flags = pa.array([[(True, 1)]], pa.map_(pa.bool_(), pa.int32()))
    assert plain_values(flags) == [{"true": 1}]
    assert plain_values(pa.array([{}, None], pa.struct([]))) == [{}, None]
    assert plain_values(pa.array([[1, 2], [3]]).slice(1)) == [[3]]
