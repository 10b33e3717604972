"""Values of a writer's schema become a column of a reader's: defaults, aliases, promotions, and what does not resolve."""

from __future__ import annotations

import json
import struct
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from storage_core.errors import SchemaError, SchemaResolutionError
from storage_core.values import avro
from storage_core.values.avro import avro_decoder
from storage_core.values.decoding import SchemaSource
from tests.values.canonical import payloads
from tests.values.random_avro import number


@pytest.fixture(params=["plain", "by column"], autouse=True)
def _path(request, monkeypatch):
    monkeypatch.setattr(avro, "_PLAIN_ROWS", 1 << 40 if request.param == "plain" else 0)
    monkeypatch.setattr(avro, "_PLAIN_BYTES", 1 << 40)


def decode(values, writer, reader):
    writer, reader = (SchemaSource(json.dumps(schema)) for schema in (writer, reader))
    decoded = avro_decoder(writer, reader).decode(payloads(values))
    assert decoded.array.type == avro.avro_decoder(reader).arrow_type
    return decoded


def record(*fields, name="R", **attributes):
    return {"type": "record", "name": name, "fields": list(fields), **attributes}


def field(name, schema, **attributes):
    return {"name": name, "type": schema, **attributes}


def enum(*symbols, **attributes):
    return {"type": "enum", "name": "E", "symbols": list(symbols), **attributes}


_LARGE = 0x7FFFFFBFFFFFFFFF
_MEMBER = {
    "type": "record",
    "name": "P",
    "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "int", "default": 5}],
}


@pytest.mark.cases(100, 100)
@pytest.mark.parametrize(
    ("writer", "reader", "data", "expected"),
    [
        ("int", "long", b"\x02", 1),
        ("int", "float", b"\x02", 1.0),
        ("int", "double", b"\x02", 1.0),
        (
            "long",
            "float",
            number(_LARGE),
            float(np.int64(_LARGE).astype(np.float32)),
        ),
        ("long", "double", b"\x02", 1.0),
        ("float", "double", struct.pack("<f", 0.1), struct.unpack("<f", struct.pack("<f", 0.1))[0]),
        ("string", "bytes", b"\x02a", b"a"),
        ("string", "bytes", b"\x02\xff", b"\xff"),
        ("bytes", "string", b"\x02a", "a"),
        ("int", {"type": "long", "logicalType": "time-micros"}, b"\x02", 1),
        ("string", ["null", "string"], b"\x02a", "a"),
        ("null", ["null", "string"], b"", None),
        ("int", ["null", "double"], b"\x02", 1.0),
        (["null", "int"], ["double", "null"], b"\x02\x02", 1.0),
        (["null", "int"], "long", b"\x02\x02", 1),
        (["int", "string"], ["string", "long"], b"\x00\x02", {"member0": None, "member1": 1}),
        ("string", ["bytes", "string"], b"\x02a", {"member0": None, "member1": "a"}),
        (
            {"type": "array", "items": "int"},
            {"type": "array", "items": ["null", "long"]},
            b"\x02\x02\x00",
            [1],
        ),
        (
            {"type": "map", "values": "int"},
            {"type": "map", "values": "double"},
            b"\x02\x02k\x02\x00",
            [("k", 1.0)],
        ),
        (enum("A", "B"), enum("B", "A"), b"\x00", "A"),
        (enum("A", "B"), enum("A", default="A"), b"\x02", "A"),
        (
            record(field("a", "int"), field("b", "string")),
            record(field("c", "long", aliases=["a"]), field("d", "int", default=3)),
            b"\x02\x02x",
            {"c": 1, "d": 3},
        ),
        (
            record(field("a", "int"), field("b", "int")),
            record(field("b", "int"), field("c", "int", aliases=["b", "a"])),
            b"\x02\x04",
            {"b": 2, "c": 1},
        ),
        (record(name="old.R"), record(name="new.R"), b"", {}),
        (record(name="Old"), record(name="New", aliases=["Old"]), b"", {}),
        (
            record(),
            record(
                field("m", ["null", "string", _MEMBER], default=None),
                field("n", ["string", "P"], default="s"),
                field("p", "P", default={"x": 1}),
                field("q", {"type": "array", "items": "P"}, default=[{"x": 1, "y": 2}]),
                field("r", {"type": "map", "values": "int"}, default={"k": 1}),
                field(
                    "s",
                    {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
                    default="\u0085",
                ),
                field("t", {"type": "fixed", "name": "F", "size": 2}, default="\u00ff\u0000"),
                field("u", enum("A", "B"), default="B"),
                field("v", ["P", "string"], default={"x": 9}),
            ),
            b"",
            {
                "m": None,
                "n": {"member0": "s", "member1": None},
                "p": {"x": 1, "y": 5},
                "q": [{"x": 1, "y": 2}],
                "r": [("k", 1)],
                "s": Decimal("-1.23"),
                "t": b"\xff\x00",
                "u": "B",
                "v": {"member0": {"x": 9, "y": 5}, "member1": None},
            },
        ),
        (
            record(field("v", "int"), field("next", ["null", "R"])),
            record(field("v", "long"), field("w", "bytes", default="a"), field("next", ["null", "R"])),
            b"\x02\x02\x04\x00",
            '{"v":1,"w":"YQ==","next":{"v":2,"w":"YQ==","next":null}}',
        ),
        (
            record(field("v", "int"), field("next", ["null", "R"])),
            record(field("v", "int")),
            b"\x02\x02\x04\x00",
            {"v": 1},
        ),
        (
            record(field("v", "double")),
            record(field("v", "double"), field("kids", {"type": "array", "items": "R"}, default=[])),
            struct.pack("<d", float("nan")),
            '{"v":"NaN","kids":[]}',
        ),
    ],
)
def test_a_value_is_read_by_a_later_schema(writer, reader, data, expected):
    decoded = decode([data] * 3, writer, reader)
    assert decoded.errors == []
    assert decoded.array.to_pylist() == [expected] * 3


@pytest.mark.parametrize(
    ("writer", "reader", "message"),
    [
        ("string", "int", "string cannot be read as int"),
        ("long", "int", "long cannot be read as int"),
        (
            record(name="OrderPlaced"),
            record(name="OrderCancelled"),
            "OrderPlaced cannot be read as OrderCancelled",
        ),
        (enum("A"), {**enum("A"), "name": "Other"}, "cannot be read as Other"),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3}, "2 bytes"),
        (record(), record(field("a", "int")), "'a'"),
        (
            record(field("a", record(field("b", "int"), name="S"))),
            record(field("a", record(field("b", "string"), name="S"))),
            "field a.b",
        ),
        (["null", "string"], "int", "null cannot be read as int"),
        ("int", ["null", "string"], "no type of the reader's union"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3},
            "decimal",
        ),
    ],
)
def test_schemas_that_do_not_resolve(writer, reader, message):
    with pytest.raises(SchemaResolutionError, match=message):
        decode([], writer, reader)


@pytest.mark.parametrize(
    ("schema", "default"),
    [
        ("int", "x"),
        ("int", 1 << 31),
        ("int", True),
        ("string", 1),
        ("bytes", "€"),
        (["null", "int"], "x"),
        (enum("A"), "B"),
        ({"type": "array", "items": "int"}, 1),
        (_MEMBER, {}),
    ],
)
def test_a_default_that_is_none_of_its_type(schema, default):
    with pytest.raises(SchemaError, match="default"):
        decode([], record(), record(field("a", schema, default=default)))


@pytest.mark.parametrize(
    ("writer", "reader", "good", "bad"),
    [
        (["null", "int"], "int", b"\x02\x02", b"\x00"),
        (["int", "string"], ["null", "int"], b"\x00\x02", b"\x02\x02a"),
        (enum("A", "B"), enum("A"), b"\x00", b"\x02"),
    ],
)
def test_a_value_that_the_reader_has_no_place_for(writer, reader, good, bad):
    decoded = decode([good, bad, good], writer, reader)
    assert [(error.row, error.reason) for error in decoded.errors] == [(1, "unresolvable")]
    assert decoded.array.null_count == 1


def test_types_that_other_schemas_define():
    references = (
        ("G", json.dumps(record(field("x", "int"), name="n.G"))),
        ("A", json.dumps(record(field("g", "n.G"), name="n.A"))),
    )
    schema = SchemaSource(json.dumps(record(field("a", "n.A"), field("g", "G"), namespace="n")), references)
    decoded = avro_decoder(schema).decode(payloads([b"\x02\x04"]))
    assert decoded.array.to_pylist() == [{"a": {"g": {"x": 1}}, "g": {"x": 2}}]
    assert pa.types.is_struct(decoded.array.type)


def test_a_branch_that_does_not_resolve_beside_a_recursive_record():
    def chain(kind):
        other = record(field("x", kind), field("next", ["null", "S"]), name="S")
        return record(field("a", ["null", "R"]), field("b", ["null", other]))

    decoded = decode([b"\x02\x00\x00\x00", b"\x00\x02\x02\x00"], chain("int"), chain("string"))
    assert decoded.array.to_pylist() == ['{"a":{"a":null,"b":null},"b":null}', None]
    assert [error.reason for error in decoded.errors] == ["unresolvable"]
