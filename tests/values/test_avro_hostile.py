"""Schemas and values that ask for too much: one clear error, in bounded time and memory."""

from __future__ import annotations

import json
import random
import time

import pyarrow as pa
import pytest

from storage_core.errors import SchemaError
from storage_core.values import avro, decode_avro
from storage_core.values.avro import avro_decoder
from storage_core.values.decoding import SchemaSource
from tests.values.canonical import payloads
from tests.values.random_avro import number, sized


@pytest.fixture(autouse=True)
def _bounded():
    """Fail a test that takes long."""
    begin = time.process_time()
    yield
    assert time.process_time() - begin < 20


def record(name, *fields):
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": f"f{i}", "type": kind} for i, kind in enumerate(fields)],
    }


def nested(levels, before, after):
    return SchemaSource("".join(before % level for level in range(levels)) + '"int"' + after * levels)


def doubling(count):
    """Records that each have the one before twice."""
    records = [record("R0", "int"), *(record(f"R{i}", f"R{i - 1}", f"R{i - 1}") for i in range(1, count))]
    return SchemaSource(f'"R{count - 1}"', tuple((each["name"], json.dumps(each)) for each in records))


def recursive(count):
    """Records that each contain all the others."""
    names = [f"R{i}" for i in range(count)]
    last = record(names[-1], *({"type": "array", "items": name} for name in names))
    for name in reversed(names[:-1]):
        last = record(name, last)
    return json.dumps(last)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (SchemaSource('{"type": "string", "doc": "' + "x" * 10_000_000 + '"}'), "10,000,029 characters"),
        (SchemaSource("[" * 10_000), "nests deeper"),
        (SchemaSource("9" * 10_000), "not JSON"),
        (nested(1000, '{"type": "array", "items": %.0s', "}"), "nests deeper"),
        (
            nested(300, '{"type": "record", "name": "R%d", "fields": [{"name": "f", "type": ', "}]}"),
            "nests deeper",
        ),
        (nested(300, '{"type": %.0s', "}"), "nests deeper"),
        (SchemaSource(json.dumps(record("R", "int")).replace('"name": "', '"name": "\\ud800')), "surrogates"),
        (doubling(40), "more than 50,000 columns"),
        (doubling(1000), "nests deeper|more than 50,000 columns"),
        (SchemaSource(json.dumps({"type": "fixed", "name": "F", "size": 1 << 40})), "size"),
    ],
)
def test_a_schema_that_is_too_large(schema, message):
    with pytest.raises(SchemaError, match=message):
        avro_decoder(schema)


@pytest.mark.thorough
def test_a_schema_with_ten_thousand_fields():
    schema = json.dumps(record("R", *(["long", "string", ["null", "double"]] * 3334)))
    value = b"\x02\x02a\x00" * 3334
    array, errors = decode_avro(pa.array([value] * 100 + [value[:-1]]), schema)
    assert [error.row for error in errors] == [100]
    assert array.type.num_fields == 10_002
    assert array[99].as_py() == array[0].as_py()
    assert list(array[0].as_py().values())[-3:] == [1, "a", None]


def test_a_default_that_would_fill_the_memory():
    writer = json.dumps(record("R"))
    reader = json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string", "default": "x" * 70_000}]}
    )
    with pytest.raises(SchemaError, match="defaults"):
        decode_avro(pa.array([b""]), writer, reader)


def test_records_that_all_contain_each_other():
    decoder = avro_decoder(SchemaSource(recursive(40)))
    decoded = decoder.decode(payloads([b"\0" * 40, b"\0" * 39 + b"\x02", b"\0" * 39] * 50))
    assert len(decoded.errors) == 100
    assert decoded.array.null_count == 100


@pytest.mark.cases(9, 100)
@pytest.mark.parametrize("rows", [1, 1000])
@pytest.mark.parametrize(
    ("items", "data"),
    [
        ("null", number(1 << 40) + b"\0"),
        ("null", number(-(1 << 40)) + b"\0\0"),
        ("null", number(4_000) + number(4_000) + b"\0"),
        (record("E"), number(1 << 40) + b"\0"),
        ({"type": "fixed", "name": "F", "size": 0}, number(1 << 62) + b"\0"),
        ({"type": "array", "items": "null"}, number(2) + (number(4_000) + b"\0") * 2 + b"\0"),
        ({"type": "fixed", "name": "F", "size": 1 << 30}, number(3) + b"\0" * 50),
        ("boolean", number(1 << 40) + b"\0" * 50),
        (["null", "int"], number(40) + b"\0" * 30),
    ],
)
def test_items_that_cannot_be(items, data, rows):
    schema = json.dumps({"type": "array", "items": items})
    array, errors = decode_avro(pa.array([data, b"\0"] * rows), schema)
    assert [(error.row, error.reason) for error in errors] == [(2 * row, "malformed") for row in range(rows)]
    assert array.to_pylist() == [None, []] * rows


def test_many_items_without_bytes_are_read():
    array, errors = decode_avro(pa.array([number(4_000) + b"\0"] * 40), '{"type": "array", "items": "null"}')
    assert errors == []
    assert array.value_lengths().to_pylist() == [4_000] * 40


@pytest.mark.parametrize("chunk", [b"", b"\xff", b"\x80", b"\x7f", b"\x02", b"\x01"])
def test_values_of_a_single_byte_repeated(chunk):
    kinds = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
    parts = [
        *kinds,
        {"type": "array", "items": "string"},
        {"type": "map", "values": "long"},
        ["null", *kinds[1:]],
    ]
    for schema in (record("R", *parts), {"type": "array", "items": record("R", *parts)}):
        values = [chunk * size for size in (*range(40), 5000, 100_000)]
        _, errors = decode_avro(pa.array(values), json.dumps(schema))
        assert {error.reason for error in errors} <= {"malformed"}


def test_a_row_with_many_blocks_among_others():
    schema = json.dumps({"type": "array", "items": "string"})
    blocks = b"".join(number(1) + sized(b"x") for _ in range(100_000)) + b"\0"
    small = number(2) + sized(b"a") + sized(b"b") + b"\0"
    array, errors = decode_avro(
        pa.array([small] * 500 + [blocks] * 2 + [blocks[:-1]] + [small] * 500), schema
    )
    assert [error.row for error in errors] == [502]
    assert array.value_lengths().to_pylist() == [2] * 500 + [100_000] * 2 + [None] + [2] * 500


def test_chains_of_records_up_to_the_limit():
    schema = '{"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}'
    array, errors = decode_avro(pa.array([b"\x02" * count + b"\0" for count in (0, 99, 100, 10_000)]), schema)
    assert [error.row for error in errors] == [2, 3]
    assert array[1].as_py().count("{") == 100


def test_decoding_in_small_parts_is_the_same(monkeypatch):
    rnd = random.Random(5)
    schema = json.dumps({"type": "array", "items": {"type": "map", "values": ["null", "string"]}})
    entry = [sized(b"k") + b"\0", sized(b"key") + b"\x02" + sized(b"value")]
    values = []
    for _ in range(400):
        maps = [number(2) + rnd.choice(entry) + rnd.choice(entry) + b"\0" for _ in range(rnd.randrange(4))]
        values.append((number(len(maps)) + b"".join(maps) if maps else b"") + b"\0")
    values[77] = b"\x7f"
    whole = decode_avro(pa.array(values), schema)
    monkeypatch.setattr(avro, "_BYTES_AT_ONCE", 100)
    monkeypatch.setattr(avro, "_PLAIN_ROWS", 2)
    assert decode_avro(pa.array(values), schema) == whole
    monkeypatch.undo()
    monkeypatch.setattr("storage_core.values.avro_columns._ITEMS_AT_ONCE", 50)
    assert decode_avro(pa.array(values), schema) == whole
    monkeypatch.undo()
    monkeypatch.setattr(avro, "_PIECE_BYTES", 200)
    array, errors = decode_avro(pa.array(values, pa.large_binary()), schema)
    assert isinstance(array, pa.ChunkedArray)
    assert array.num_chunks > 2
    assert (array.combine_chunks(), errors) == whole


def test_a_value_beyond_two_gibibytes(monkeypatch):
    monkeypatch.setattr(avro, "_BYTES_AT_ONCE", 100_000)
    monkeypatch.setattr(avro, "_LARGEST_BYTES", 200_000)
    values = pa.array([sized(b"a" * 10), sized(b"a" * 300_000)], pa.large_binary())
    array, errors = decode_avro(values, '"string"')
    assert array.to_pylist() == ["a" * 10, None]
    assert [error.message for error in errors] == ["a value of 300,003 bytes is too large: at most 200,000"]
