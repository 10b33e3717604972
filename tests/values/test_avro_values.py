"""Avro values become columns: each type byte by byte, and all that real serializers wrote."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal

import pyarrow as pa
import pytest

from storage_core.errors import OptionError, SchemaError, SchemaResolutionError
from storage_core.values import avro, decode_avro
from storage_core.values.avro import avro_decoder
from storage_core.values.decoding import SchemaSource
from tests.values.canonical import canonical, payloads, source_of_schema, values_with_expected
from tests.values.typed_logs import expected_values

_LONG_MIN, _LONG_MAX = b"\xff" * 9 + b"\x01", b"\xfe" + b"\xff" * 8 + b"\x01"
_NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "Node"], "default": None}],
}


@pytest.fixture(params=["plain", "by column"])
def path(request, monkeypatch):
    """Decode by one of the two decoders, whatever the number of rows."""
    monkeypatch.setattr(avro, "_PLAIN_ROWS", 1 << 40 if request.param == "plain" else 0)
    monkeypatch.setattr(avro, "_PLAIN_BYTES", 1 << 40)


def source(schema):
    return SchemaSource(schema if isinstance(schema, str) and schema[:1] in '{["' else json.dumps(schema))


def decode(values, schema, reader=None, paths=None, **options):
    decoder = avro_decoder(source(schema), None if reader is None else source(reader), paths, **options)
    decoded = decoder.decode(payloads(values))
    assert decoded.array.type == decoder.arrow_type
    decoded.array.validate(full=True)
    return decoded


def record(*fields, name="R"):
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name, schema, **attributes):
    return {"name": name, "type": schema, **attributes}


def logical(kind, logical_type, **attributes):
    return {"type": kind, "logicalType": logical_type, **attributes}


_DECIMAL = logical("bytes", "decimal", precision=38, scale=2)
_FIXED = {"type": "fixed", "name": "F", "size": 3}
_ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
_MEMBERS = ["null", "string", "long", record(field("x", "double"), name="P")]
_TYPES = [
    ("null", b"", pa.null(), None),
    ("boolean", b"\x01", pa.bool_(), True),
    ("int", b"\x01", pa.int32(), -1),
    ("int", b"\xff\xff\xff\xff\x0f", pa.int32(), -(1 << 31)),
    ("long", _LONG_MIN, pa.int64(), -(1 << 63)),
    ("long", _LONG_MAX, pa.int64(), (1 << 63) - 1),
    ("long", b"\x80\x01", pa.int64(), 64),
    ("long", b"\x80\x80\x80\x80\x80\x80\x80\x80\x01", pa.int64(), 1 << 55),
    ("float", b"\x00\x00\xc0\x3f", pa.float32(), 1.5),
    ("double", b"\x00\x00\x00\x00\x00\x00\xf8\xbf", pa.float64(), -1.5),
    ("bytes", b"\x04\xff\x00", pa.binary(), b"\xff\x00"),
    ("string", b"\x06\xe2\x82\xac", pa.string(), "€"),
    ("string", b"\x00", pa.string(), ""),
    (_FIXED, b"abc", pa.binary(), b"abc"),
    (_ENUM, b"\x02", pa.string(), "B"),
    ({"type": "array", "items": "int"}, b"\x04\x02\x04\x00", pa.list_(pa.int32()), [1, 2]),
    ({"type": "array", "items": "int"}, b"\x03\x04\x02\x04\x02\x06\x00", pa.list_(pa.int32()), [1, 2, 3]),
    ({"type": "array", "items": "null"}, b"\x06\x00", pa.list_(pa.null()), [None] * 3),
    ({"type": "array", "items": record()}, b"\x04\x00", pa.list_(pa.struct([])), [{}, {}]),
    ({"type": "map", "values": "int"}, b"\x02\x02a\x06\x00", pa.map_(pa.string(), pa.int32()), [("a", 3)]),
    (["null", "int"], b"\x00", pa.int32(), None),
    (["null", {**_FIXED, "size": 0}], b"\x02", pa.binary(), b""),
    (["int", "null"], b"\x00\x02", pa.int32(), 1),
    (["null", "int", "long"], b"\x02\x02", pa.int64(), 1),
    (["float", "double"], b"\x00\x00\x00\xc0\x3f", pa.float64(), 1.5),
    (["string"], b"\x00\x02a", pa.string(), "a"),
    (_MEMBERS, b"\x02\x02a", None, {"member0": "a", "member1": None, "member2": None}),
    (_MEMBERS, b"\x00", None, None),
    (_DECIMAL, b"\x02\x85", pa.decimal128(38, 2), Decimal("-1.23")),
    (_DECIMAL, b"\x00", pa.decimal128(38, 2), Decimal(0)),
    (_DECIMAL, b"\x22" + b"\xff" * 16 + b"\x85", pa.decimal128(38, 2), Decimal("-1.23")),
    (_DECIMAL, b"\x24\x01" + bytes(8), pa.decimal128(38, 2), None),
    (logical("int", "date"), b"\x02", pa.date32(), 1),
    (logical("long", "timestamp-millis"), b"\x02", pa.timestamp("us", "UTC"), 1000),
    (logical("long", "timestamp-micros"), b"\x02", pa.timestamp("us", "UTC"), 1),
    (logical("long", "local-timestamp-millis"), b"\x02", pa.timestamp("us"), 1000),
    (logical("long", "local-timestamp-micros"), b"\x02", pa.timestamp("us"), 1),
    (logical("int", "time-millis"), b"\x02", pa.int32(), 1),
    (logical("long", "time-micros"), b"\x02", pa.int64(), 1),
    (logical("string", "uuid"), b"\x02a", pa.string(), "a"),
    (logical("int", "unheard-of"), b"\x02", pa.int32(), 1),
    (logical("bytes", "decimal", precision=2, scale=3), b"\x02a", pa.binary(), b"a"),
    (record(field("a", "int"), field("b", record(name="S"))), b"\x02", None, {"a": 1, "b": {}}),
    (_NODE, b"\x02\x02\x04\x00", pa.string(), '{"v":1,"next":{"v":2,"next":null}}'),
]


@pytest.mark.cases(100, 100)
@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(("schema", "data", "arrow_type", "expected"), _TYPES)
def test_a_value_of_each_type(schema, data, arrow_type, expected):
    if data == b"\x24\x01" + bytes(8):
        data = b"\x24" + bytes(18)
        expected = Decimal(0)
    decoded = decode([data, data], schema)
    assert decoded.errors == []
    assert arrow_type is None or decoded.array.type == arrow_type
    values = decoded.array
    if pa.types.is_timestamp(values.type) or pa.types.is_date(values.type):
        values = values.cast(pa.int32() if values.type == pa.date32() else pa.int64())
    assert values.to_pylist() == [expected, expected]


_MALFORMED = [
    ("boolean", b"\x02"),
    ("boolean", b""),
    ("int", b"\x80\x80\x80\x80\x10"),
    ("long", b"\x80"),
    ("long", b"\xff" * 9 + b"\x02"),
    ("long", b"\x80" * 10 + b"\x00"),
    ("long", b"\x02\x02"),
    ("float", b"\0\0\0"),
    ("bytes", b"\x01"),
    ("bytes", b"\x04a"),
    ("bytes", _LONG_MAX),
    ("string", b"\x02\xff"),
    ("string", b"\x06\xed\xa0\x80"),
    (_FIXED, b"ab"),
    (_ENUM, b"\x04"),
    (_ENUM, b"\x01"),
    (["null", "int"], b"\x04"),
    (["null", "int"], b"\x01"),
    (_MEMBERS, b"\x08"),
    ({"type": "array", "items": "int"}, b"\x06\x02\x04"),
    ({"type": "array", "items": "int"}, _LONG_MIN + b"\x00"),
    ({"type": "array", "items": "int"}, b"\x01\x03\x02\x00"),
    ({"type": "array", "items": "double"}, b"\x04" + bytes(9)),
    ({"type": "array", "items": "null"}, b"\x80\x80\x80\x80\x80\x80\x01\x00"),
    ({"type": "map", "values": "null"}, b"\x80\x80\x80\x80\x80\x80\x01\x00"),
    ({"type": "map", "values": "int"}, b"\x02\x02\xff\x02\x00"),
    (logical("bytes", "decimal", precision=4), b"\x04\x27\x10"),
    (logical("bytes", "decimal", precision=38), b"\x20\x7f" + b"\xff" * 15),
    (logical("bytes", "decimal", precision=38), b"\x22\x01" + bytes(16)),
    (logical("long", "timestamp-millis"), _LONG_MAX),
    (logical("long", "timestamp-millis"), _LONG_MIN),
    (_NODE, b"\x02\x02" * 2000 + b"\x02\x00"),
]


@pytest.mark.cases(100, 100)
@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(("schema", "data"), _MALFORMED)
def test_a_value_that_does_not_decode_is_an_error_of_its_row(schema, data):
    wrapped = record(field("first", "string"), field("v", schema), field("last", "string"))
    decoded = decode([b"\x02a" + data + b"\x02b"], wrapped)
    assert decoded.array.to_pylist() == [None]
    assert [(error.row, error.reason) for error in decoded.errors] == [(0, "malformed")]


def test_an_error_says_where_it_is():
    schema = record(
        field("a", "int"), field("items", {"type": "array", "items": record(field("s", "string"), name="I")})
    )
    [error] = decode([b"\x02\x02\x14a"], schema).errors
    assert error.message == "field items.s: 10 bytes at byte 3 of a value of 4"
    [error] = decode([b"\x02\x00\x00"], schema).errors
    assert error.message == "1 bytes follow the value: is this its schema?"


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    "topic", [topic for topic in expected_values()["topics"] if topic.startswith("avro-")]
)
def test_all_topics_of_the_log_directory(typed_logs, topic):
    logs = str(typed_logs)
    expected = expected_values()["topics"][topic]
    by_schema: dict[int, list[tuple[bytes, object]]] = {}
    for value, row in values_with_expected(logs, topic):
        # Frames without a schema's id at the beginning are not those of a decoder.
        if row.keys() <= {"v", "t"} or row.get("e") in {"malformed", "unresolvable"}:
            by_schema.setdefault(int.from_bytes(value[1:5], "big"), []).append((value[5:], row))
    read = Counter()
    for schema_id, rows in by_schema.items() if topic != "avro-header-guid" else ():
        reader_id = expected["value_schema_id"] or schema_id
        outcome = [{"e": "unresolvable"}] * len(rows)
        try:
            decoder = avro_decoder(
                source_of_schema(logs, schema_id, topic),
                source_of_schema(logs, reader_id, topic),
                has_raw_bytes=True,
            )
            decoded = decoder.decode(payloads([value for value, _ in rows]))
            wrong = {error.row: {"e": error.reason} for error in decoded.errors}
            outcome = [wrong.get(row, {"v": value}) for row, value in enumerate(canonical(decoded.array))]
        except SchemaResolutionError:
            pass
        for got, (_, want) in zip(outcome, rows, strict=True):
            assert _with_objects(got) == {key: want[key] for key in want.keys() & {"v", "e"}}
        read[reader_id] += len(rows)
    assert read.total() > 100 or topic == "avro-header-guid"


def _with_objects(got):
    """Turn the texts of recursive records into objects."""
    value = got.get("v")
    if isinstance(value, dict) and "tree" in value:
        value |= {name: value[name] and json.loads(value[name]) for name in ("tree", "chain")}
    return got


def test_columns_have_the_types_of_spark(typed_logs):
    for topic, expected in expected_values()["topics"].items():
        if "spark_type" in expected:
            reader = source_of_schema(str(typed_logs), expected["value_schema_id"], topic)
            assert _spark_type(avro_decoder(reader).arrow_type) == expected["spark_type"]


def _spark_type(kind):
    match kind:
        case pa.StructType():
            return f"struct<{','.join(f'{part.name}:{_spark_type(part.type)}' for part in kind)}>"
        case pa.ListType():
            return f"array<{_spark_type(kind.value_type)}>"
        case pa.MapType():
            return f"map<{_spark_type(kind.key_type)},{_spark_type(kind.item_type)}>"
        case pa.Decimal128Type():
            return f"decimal({kind.precision},{kind.scale})"
        case pa.TimestampType():
            return "timestamp" if kind.tz else "timestamp_ntz"
    names = {"null": "void", "bool": "boolean", "int32": "int", "int64": "bigint", "date32[day]": "date"}
    return names.get(str(kind), str(kind))


@pytest.mark.usefixtures("path")
def test_only_what_is_asked_for_is_made():
    item = record(field("sku", "string"), field("price", "double"), name="I")
    schema = record(
        field("a", "int"),
        field("tree", _NODE),
        field("items", {"type": "array", "items": ["null", item]}),
        field("u", _MEMBERS),
        field("m", {"type": "map", "values": "int"}),
        field("z", ["null", "string"]),
    )
    value = b"\x02\x02\x00\x04\x02\x02s" + bytes(8) + b"\x00\x00" + b"\x04\x0e" + b"\x00" + b"\x02\x02z"
    paths = (("items", "sku"), ("z",), ("u", "member1"))
    decoded = decode([value] * 3, schema, paths=paths)
    expected = {"items": [{"sku": "s"}, None], "u": {"member1": 7}, "z": "z"}
    assert decoded.array.to_pylist() == [expected] * 3
    assert decoded.errors == []
    assert avro_decoder(source(schema), None, paths).arrow_type == decoded.array.type
    for path, message in [
        (("nope",), "nope"),
        (("items", "nope"), "nope"),
        (("m", "k"), "map"),
        (("tree", "v"), "JSON"),
        (("a", "b"), "int"),
    ]:
        with pytest.raises(OptionError, match=message):
            avro_decoder(source(schema), paths=(path,))


@pytest.mark.usefixtures("path")
def test_bytes_without_a_length_in_front():
    assert decode([b"", b"abc"], "bytes", has_raw_bytes=True).array.to_pylist() == [b"", b"abc"]
    assert decode([b"", b"abc"], "bytes", ["null", "string"], has_raw_bytes=True).array.to_pylist() == [
        "",
        "abc",
    ]
    [error] = decode([b"\xff"], "bytes", "string", has_raw_bytes=True).errors
    assert error.reason == "malformed"
    assert decode([b"\x02a"], "string", has_raw_bytes=True).array.to_pylist() == ["a"]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_arrays_with_nulls_slices_and_chunks(kind):
    values = pa.array([b"junk", b"\x02", None, b"\x80", b"\x04"], kind)[1:]
    array, errors = decode_avro(values, '"long"')
    assert array.to_pylist() == [1, None, None, 2]
    assert [(error.row, error.reason) for error in errors] == [(2, "malformed")]
    chunked, errors = decode_avro(pa.chunked_array([values, values]), '"long"', '["null", "double"]')
    assert chunked.to_pylist() == [1.0, None, None, 2.0] * 2
    assert [error.row for error in errors] == [2, 6]
    assert decode_avro(pa.chunked_array([], kind), '"long"')[0].type == pa.int64()
    assert decode_avro(pa.array([], kind), '"long"')[0].to_pylist() == []


def test_values_in_any_order_and_far_apart():
    data = pa.array([b"\x02a", b"\x04bc", b"\x06def"] * 30, pa.binary())
    whole = payloads(data.to_pylist())
    rows = [5, 5, 0, 89, 1] * 20
    decoded = avro_decoder(source("string")).decode(
        whole._replace(starts=whole.starts[rows], ends=whole.ends[rows])
    )
    assert decoded.array.to_pylist() == ["def", "def", "a", "def", "bc"] * 20


@pytest.mark.parametrize(
    "schema",
    [
        "{",
        "[" * 100_000,
        '{"type": "record"}',
        '"nope"',
        "[]",
        '["int", "int"]',
        '["null", ["int"]]',
        '{"type": "record", "name": "R", "fields": [{"name": "a"}]}',
        '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]}',
        '{"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "record", "name": "R", "fields": []}}]}',
        '{"type": "fixed", "name": "F", "size": -1}',
        '{"type": "enum", "name": "E", "symbols": ["A", "A"]}',
        '{"type": "bytes", "logicalType": "decimal", "precision": 39}',
        "7",
    ],
)
def test_a_schema_that_is_none(schema):
    with pytest.raises(SchemaError):
        avro_decoder(SchemaSource(schema))


@pytest.mark.parametrize(
    ("values", "schemas", "message"),
    [
        (pa.array([1, 2]), ['"long"'], "bytes, not int64"),
        (pa.chunked_array([pa.array([1.5])]), ['"long"'], "bytes, not double"),
        ([b"\x02"], ['"long"'], "bytes, not list"),
        (pa.array([b"\x02"]), [{"type": "long"}], "JSON text, not dict: use json.dumps"),
        (pa.array([b"\x02"]), ['"long"', b'"long"'], "JSON text, not bytes"),
    ],
)
def test_arguments_of_the_wrong_type(values, schemas, message):
    with pytest.raises(OptionError, match=message):
        decode_avro(values, *schemas)


def test_arrays_of_bytes_of_any_type():
    for kind in (pa.binary(), pa.large_binary(), pa.binary(1), pa.binary_view()):
        array, errors = decode_avro(pa.array([b"\x02", None, b"\x04"], kind), '"long"')
        assert (array.to_pylist(), errors) == ([1, None, 2], [])
