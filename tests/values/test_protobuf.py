"""Protobuf messages become columns as Protobuf's own parser reads them."""

from __future__ import annotations

import base64
import decimal
import random
from collections import Counter

import pyarrow as pa
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.wrappers_pb2 import StringValue
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import OptionError, SchemaError, SchemaResolutionError
from storage_core.values.decoding import SchemaSource
from storage_core.values.proto_text import parse_proto
from storage_core.values.protobuf import protobuf_decoder
from tests.examples import examples
from tests.values.canonical import canonical, payloads, source_of_schema, values_with_expected
from tests.values.proto_files import proto_files


def proto3(body, *references):
    return SchemaSource(f'syntax = "proto3"; {body}', references)


def decode(source, values, message=None, **options):
    return protobuf_decoder(source, message, **options).decode(payloads(values))


def protobuf_type(source, message=None, paths=None):
    return protobuf_decoder(source, message, paths=paths).arrow_type


def message_class(source, name="M"):
    """Return the class of a message for a file without imports."""
    return class_of_file(parse_proto(source.text, "a.proto").descriptor, name)


def class_of_file(file, name):
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(name))


@pytest.mark.parametrize(
    ("topic", "schema_id", "message", "frames"),
    [("proto-simple", 93, (0,), (b"\0", b"\2\0")), ("proto-nested", 96, (3, 1), (b"\4\6\2",))],
)
def test_values_of_a_topic_are_those_that_googles_parser_reads(typed_logs, topic, schema_id, message, frames):
    rows = values_with_expected(typed_logs, topic)
    framed = [
        (value[5 + len(frame) :], e) for value, e in rows for frame in frames if value[5:].startswith(frame)
    ]
    decoded = decode(source_of_schema(typed_logs, schema_id), [value for value, _ in framed], message)
    malformed = {error.row for error in decoded.errors}
    assert len(framed) > 290
    for row, (value, (_, expected)) in enumerate(zip(canonical(decoded.array), framed, strict=True)):
        assert (value, row in malformed) == (expected.get("v"), "e" in expected), framed[row]


def test_types_are_those_of_spark():
    source = proto3(
        """import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto"; import "google/protobuf/wrappers.proto";
        import "google/type/date.proto"; import "confluent/type/decimal.proto"; import "validate/validate.proto";
        message M { uint32 u32 = 1; fixed64 f64 = 2; google.protobuf.Timestamp t = 3; google.protobuf.Duration d = 4;
        google.protobuf.StringValue w = 5; google.type.Date day = 6; confluent.type.Decimal c = 7; E e = 8; map<int32, N> m = 9;
        N empty = 10; repeated bytes b = 11; float f = 12; } enum E { ZERO = 0; ALSO = 0; TWO = 2; } message N {}""".replace("ALSO = 0;", "")
    )  # fmt: skip
    expected = (
        "struct<u32: int64, f64: decimal128(20, 0), t: timestamp[us, tz=UTC], d: duration[us], w: struct<value: string>, "
        "day: struct<year: int32, month: int32, day: int32>, c: struct<value: binary, precision: int64, scale: int32>, "
        "e: string, m: map<int32, struct<>>, empty: struct<>, b: list<item: binary>, f: float>"
    )
    decoder = protobuf_decoder(source, "M")
    assert str(decoder.arrow_type) == expected
    text = StringValue(value="x").SerializeToString()
    time, duration = (kind(seconds=-1, nanos=1500) for kind in (Timestamp, Duration))
    value = (
        b"\x08\xff\xff\xff\xff\x0f\x11"
        + b"\xff" * 8
        + b"\x1a%c%b" % (len(time.SerializeToString()), time.SerializeToString())
    )
    value += (
        b"\x2a%c%b" % (len(text), text)
        + b"\x32\x03\x08\xe8\x07"
        + b"\x40\x02"
        + b"\x52\x00"
        + b"\x4a\x04\x08\x01\x12\x00"
    )
    decoded = decoder.decode(payloads([value, b"\x40\x07", b""]))
    assert decoded.array.type == decoder.arrow_type
    row, unknown, empty = decoded.array.to_pylist()
    assert (row["u32"], row["f64"], row["w"], row["e"]) == (
        2**32 - 1,
        decimal.Decimal(2**64 - 1),
        {"value": "x"},
        "TWO",
    )
    assert (row["day"], row["empty"], row["m"]) == ({"year": 1000, "month": 0, "day": 0}, {}, [(1, {})])
    assert decoded.array.field("t").cast(pa.int64()).to_pylist() == [-999_999, None, None]
    assert duration.ToMicroseconds() == -999_999
    assert (unknown["e"], empty["e"], empty["f"], empty["w"], empty["b"]) == ("7", "ZERO", 0.0, None, [])


def test_what_ptars_reads_otherwise_is_as_googles_parser_reads_it():
    source = proto3(
        """message M { oneof o { string a = 1; int32 b = 2; N c = 3; } map<string, N> m = 4; map<string, int32> n = 5; }
        message N { int32 x = 1; }"""
    )
    kind = message_class(source)
    both = kind(a="x").SerializeToString() + kind(b=5).SerializeToString()
    merged = kind(c={"x": 1}).SerializeToString() + b"\x1a\x00"
    twice = (
        kind(m={"k": {"x": 1}}).SerializeToString()
        + kind(m={"k": {"x": 2}}).SerializeToString()
        + kind(n={"k": 1}).SerializeToString()
        + kind(n={"k": 2}).SerializeToString()
    )
    without = b"\x22\x03\x0a\x01k" + b"\x22\x00" + b"\x2a\x00"
    empty = {"a": None, "b": None, "c": None, "m": [], "n": []}
    for values in (
        [both, merged, twice, without],
        [kind(b=n).SerializeToString() for n in range(200)] + [both, merged, twice, without],
    ):
        *rows, last = decode(source, values, "M").array.to_pylist()[-4:]
        assert rows == [
            empty | {"b": 5},
            empty | {"c": {"x": 1}},
            empty | {"m": [("k", {"x": 2})], "n": [("k", 2)]},
        ]
        assert (dict(last["m"]), last["n"]) == ({"": {"x": 0}, "k": {"x": 0}}, [("", 0)])
    hidden = decode(source, [both, both + kind(c={}).SerializeToString()], "M", paths=(("b",),))
    assert hidden.array.to_pylist() == [{"b": 5}, {"b": None}]


def test_entries_of_a_map_are_in_the_order_of_the_wire_with_the_last_value_of_each_key():
    source = proto3(
        """message M { map<string, N> m = 1; oneof o { int32 a = 2; int32 b = 3; } map<int32, int32> n = 4; string text = 5; }
        message N { int32 x = 1; }"""
    )
    kind = message_class(source)
    keys = ["z", "y", "k1", "a", "k2", "y", "b"]
    entries = b"".join(kind(m={key: {"x": place}}).SerializeToString() for place, key in enumerate(keys))
    numbers = b"".join(kind(n={key: key}).SerializeToString() for key in (9, -1, 5, 9, 3, 200))
    both = kind(a=1).SerializeToString() + kind(b=2).SerializeToString()
    expected = [("z", 0), ("k1", 2), ("a", 3), ("k2", 4), ("y", 5), ("b", 6)]
    for value in (entries + numbers, both + entries + numbers, entries + numbers + both + b"\x5a\x01x"):
        for count in (1, 300):
            full = decode(source, [value, kind(text="x").SerializeToString()] * count, "M").array
            pruned = decode(source, [value] * count, "M", paths=(("m",), ("n",))).array
            for row in (full[0], full[-2], pruned[0], pruned[-1]):
                assert [(key, n["x"]) for key, n in row["m"].as_py()] == expected
                assert row["n"].as_py() == [(-1, -1), (5, 5), (9, 9), (3, 3), (200, 200)]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (b"\x0a\x07\x0a\x01a\x10\x01\x18\x05", {"a": "ONE"}),  # an unknown field after the value
        (b"\x0a\x07\x18\x05\x0a\x01a\x10\x01", {"a": "ONE"}),  # before the key
        (b"\x0a\x07\x0a\x01a\x10\x01\x1b\x1c", {"a": "ONE"}),  # an unknown group
        # a second key with the wire type of a number
        (b"\x0a\x05\x0a\x01a\x08\x46\x0a\x05\x0a\x01b\x10\x01", {"a": "ZERO", "b": "ONE"}),
        (b"\x0a\x06\x0a\x01a\x12\x01b", {"a": "ZERO"}),  # a value with the wire type of a string
        # in the last of two entries
        (b"\x0a\x05\x0a\x01a\x10\x01\x0a\x07\x0a\x01a\x10\x00\x18\x05", {"a": "ZERO"}),
    ],
)
def test_an_entry_of_a_map_with_an_unknown_field_in_it_counts(entries, expected):
    source = proto3(
        """message M { map<string, E> m = 1; map<bool, N> n = 2; oneof o { int32 a = 3; int32 b = 4; } }
        message N { map<string, E> m = 1; } enum E { ZERO = 0; ONE = 1; }"""
    )
    below = b"\x12%c\x08\x01\x12%c%b\x18\x05" % (len(entries) + 6, len(entries), entries)
    both = b"\x18\x01\x20\x02"
    rows = [
        (entries, {"m": expected, "n": {}, "a": None, "b": None}),
        (below, {"m": {}, "n": {"true": {"m": expected}}, "a": None, "b": None}),
        (entries + both + below, {"m": expected, "n": {"true": {"m": expected}}, "a": None, "b": 2}),
    ]
    decoded = decode(source, [value for value, _ in rows], "M")
    assert (canonical(decoded.array), decoded.errors) == ([row for _, row in rows], [])
    for value, row in rows:
        assert expected_of(message_class(source), value, is_refused=False) == row


def test_an_optional_boolean_may_be_absent():
    decoded = decode(proto3("message M { optional bool a = 1; }"), [b"\x08\x00", b"", b"\x08\x01"], "M")

    assert decoded.array.to_pylist() == [{"a": False}, {"a": None}, {"a": True}]
    assert decoded.errors == []


def test_a_time_in_two_parts_is_one_time():
    source = proto3(
        """import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
        message M { google.protobuf.Timestamp t = 1; google.protobuf.Duration d = 2; }"""
    )
    value = b"\x0a\x02\x08\x05\x0a\x03\x10\xe8\x07\x12\x02\x08\x07\x12\x03\x10\xd0\x0f"
    [row] = decode(source, [value]).array.to_pylist()
    assert (row["t"].timestamp(), row["d"].total_seconds()) == (5.000001, 7.000002)


@pytest.mark.parametrize(
    ("value", "is_good"),
    [
        (b"\x88\x80\x80\x80\x80\x10\x05", False),  # a tag of more than 32 bits
        (b"\x80\x80\x80\x80\x10\x05", False),  # field number 2^29
        (b"\x12" + b"\xff" * 9 + b"\x01", False),  # a length of 2^64 - 1
        (b"\x42\xf6" + b"\xff" * 8 + b"\x01\x08\x05", False),
        (b"\x12\x81\x80\x80\x80\x80\x00a", False),  # a length of six bytes
        (b"\x1a\x05abcde", False),  # packed numbers of four bytes, five bytes long
        (b"\xa3\x01\x08\x01\xac\x01", False),  # the end of another group
        (b"\xa3\x01" * 101 + b"\xa4\x01" * 101, False),
        (b"\xa3\x01" * 99 + b"\xa4\x01" * 99, True),
        (b"\xa3\x01\x00\x01\xa4\x01\x08\x05", True),  # field 0 in an unknown group
        (b"\xa3\x01\x08\x01\xa4\x01\x08\x05", True),
        (b"\x88\x00\x05", True),  # a tag that is longer than it must be
        (b"\x08" + b"\xff" * 9 + b"\x01", True),
        (b"\x2d" + b"\0" * 4 + b"\x20\x00\x12\x00", True),  # zeros that could be left out
    ],
)
def test_a_value_is_what_googles_parser_takes(value, is_good, capfd):
    source = proto3(
        "message M { int32 a = 1; string b = 2; repeated fixed32 c = 3; bool d = 4; float e = 5; sint64 f = 6; }"
    )
    kind = message_class(source)
    good = kind(a=7, b="\N{SNOWMAN}", c=[1, 2], d=True, e=-0.5, f=-3)
    if is_good:
        expected = expected_value(kind.FromString(value))
    else:
        with pytest.raises(DecodeError):
            kind.FromString(value)
    for neighbours in (0, 1, 300):
        values = [good.SerializeToString()] * neighbours
        decoded = decode(source, [*values, value, *values])
        assert [error.row for error in decoded.errors] == ([] if is_good else [neighbours])
        got = canonical(decoded.array)
        assert got.pop(neighbours) == (expected if is_good else None)
        assert got == [expected_value(good)] * 2 * neighbours
    assert capfd.readouterr().err == "", "a panic is printed"


def test_a_time_beyond_microseconds_is_malformed():
    source = proto3(
        'import "google/protobuf/timestamp.proto"; message M { repeated google.protobuf.Timestamp t = 1; }'
    )
    times = [Timestamp(seconds=s).SerializeToString() for s in (0, 2**62, -(2**62), 9_223_372_036_854)]
    values = [b"\x0a%c%b" % (len(time), time) for time in times]
    decoded = decode(source, values * 40)
    assert [error.row % 4 for error in decoded.errors] == [1, 2] * 40
    assert {error.message for error in decoded.errors} == {
        "A message 'M' has a time that does not fit microseconds."
    }
    assert decoded.array.field("t").take([0, 3]).values.cast(pa.int64()).to_pylist() == [
        0,
        9_223_372_036_854_000_000,
    ]


@pytest.mark.parametrize(
    "bad",
    [
        b"\x08",
        b"\x0f\x01",
        b"\x12\x7fabc",
        b"\x12\x02\xff\xfe",
        b"\x00\x00",
        b"\x0b",
        b"\x0c",
        b"\x08" + b"\xff" * 10 + b"\x01",
        b"\x4b" * 1_000_000,
    ],
)
def test_a_bad_value_is_an_error_of_its_row_alone(bad):
    source = proto3("message M { int32 a = 1; string b = 2; optional int32 c = 3; }")
    good = message_class(source)(a=1, b="ä").SerializeToString()
    for neighbours in (0, 1, 500):
        decoded = decode(source, [*[good] * neighbours, bad, *[good] * neighbours])
        [error] = decoded.errors
        assert error == (neighbours, "malformed", "The value is not a message 'M'.", None)
        assert decoded.array.to_pylist() == [
            *[{"a": 1, "b": "ä", "c": None}] * neighbours,
            None,
            *[{"a": 1, "b": "ä", "c": None}] * neighbours,
        ]


def test_many_bad_values_cost_no_more_than_a_look_at_each():
    source = proto3("message M { string b = 2; }")
    decoder, good = protobuf_decoder(source, None), b"\x12\x01x"
    calls = Counter()
    read, check = decoder._read, decoder._is_refused
    decoder._read = lambda values: calls.update(read=len(values)) or read(values)
    decoder._is_refused = lambda value: calls.update(checked=1) or check(value)
    for share in (0.0001, 0.01, 0.5, 1):
        chance = random.Random(2)
        calls.clear()
        decoded = decoder.decode(
            payloads([good if chance.random() > share else b"\x12" for _ in range(10_000)])
        )
        assert decoded.array.null_count == len(decoded.errors)
        assert calls["read"] <= 2 * 10_000
        assert calls["checked"] <= min(10_000, 256 * len(decoded.errors))


def test_messages_are_found_by_name_and_by_index():
    source = proto3(
        "package p; message A { map<int32, int32> m = 1; message B { int32 b = 1; } } enum E { Z = 0; } message C { int32 c = 1; }"
    )
    names = {
        name: protobuf_type(source, name).field(0).name
        for name in ("A", "A.B", "p.A.B", "p.C", (0,), (0, 0), (1,))
    }
    assert list(names.values()) == ["m", "b", "b", "c", "m", "b", "c"]
    assert protobuf_type(source, (2,)).field(0).name == "c", "counted with the enum before it"
    for message in ("B", "q.A", (3,), (0, 1), (-1,), ()):
        with pytest.raises(SchemaError, match=r"no message .*; its messages: p\.A, p\.A\.B, p\.C\."):
            protobuf_type(source, message)
    with pytest.raises(SchemaError, match="Name the message of the values with valueMessage"):
        protobuf_type(source, None)


def test_paths_leave_only_the_wanted_fields():
    source = proto3(
        "message M { int32 a = 1; repeated N n = 2; M self = 3; map<int32, N> m = 4; } message N { int32 x = 1; string y = 2; }"
    )
    value = message_class(source)(a=1, n=[{"x": 2, "y": "z"}], m={1: {}}).SerializeToString()
    decoded = decode(source, [value], "M", paths=(("n", "x"), ("m",)))
    assert decoded.array.to_pylist() == [{"n": [{"x": 2}], "m": [(1, {"x": 0, "y": ""})]}]
    for path, message in [
        (("z",), "'M' has no field 'z'"),
        (("n", "z"), "'N' has no field 'z'"),
        (("a", "z"), "'a' has no field"),
        (("m", "x"), "into maps"),
    ]:
        with pytest.raises(OptionError, match=message):
            protobuf_type(source, "M", (path,))
    with pytest.raises(SchemaError, match="'M' contains itself"):
        protobuf_type(source, "M")
    grouped = SchemaSource("message M { oneof o { group G = 1 { } int32 a = 2; } optional int32 b = 3; }")
    assert decode(grouped, [b"\x18\x05"], paths=(("b",),)).array.to_pylist() == [{"b": 5}]
    timed = proto3('import "google/protobuf/timestamp.proto"; message M { google.protobuf.Timestamp t = 1; }')
    with pytest.raises(OptionError, match="'t' has no field 'seconds'"):
        protobuf_type(timed, None, (("t", "seconds"),))
    with pytest.raises(SchemaError, match="is a group"):
        protobuf_type(grouped, None, (("a",),))


def test_a_reader_sees_its_own_fields_of_what_was_written():
    writer = proto3(
        "package old; message M { int32 a = 1; string b = 2; N n = 3; int32 gone = 4; } message N { uint32 x = 1; }"
    )
    reader = proto3(
        "package new; message M { int64 renamed = 1; bytes b = 2; N n = 3; optional int32 more = 9; } message N { bool x = 1; } message O { int32 a = 1; }"
    )
    value = message_class(writer, "old.M")(a=1, b="x", n={"x": 1}, gone=5).SerializeToString()
    decoded = decode(writer, [value], (0,), reader=reader, reader_message="M")
    assert decoded.array.to_pylist() == [{"renamed": 1, "b": b"x", "n": {"x": True}, "more": None}]
    with pytest.raises(SchemaResolutionError, match=r"'old\.M' is not 'new\.O'"):
        protobuf_decoder(writer, "M", reader, "O")
    with pytest.raises(
        SchemaResolutionError, match="Field 1 of 'M' was written with a type that 's' cannot have"
    ):
        protobuf_decoder(writer, "M", proto3("message M { string s = 1; }"))


def test_a_field_is_read_of_messages_that_are_nested_deeply():
    nested = "".join(f"message M{i} {{ int32 a = 1; M{i + 1} b = 2; }}" for i in range(2000))
    source = proto3(nested + "message M2000 { int32 a = 1; }")
    decoder = protobuf_decoder(source, "M0", source, "M0", (("a",),))
    assert decoder.decode(payloads([b"\x08\x05"])).array.to_pylist() == [{"a": 5}]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (proto3(""), "its messages: none"),
        (proto3("message M { N n = 1; }"), "malformed: .*N"),
        (proto3('import "n.proto"; message M { N n = 1; }'), r"It imports n\.proto, which is not among its references\. .*: copy what it needs into the text\."),
        (proto3("message M { int32 a = 1; int32 b = 1; }"), "malformed"),
        (proto3("message M { int32 a = 19000; }"), "reserved"),
        (SchemaSource("message M { optional group G = 1 { } }"), "is a group"),
        (proto3("message M { int32 a = 1; } message M { }"), "malformed"),
        (proto3("message M { N n = 1; } message N { repeated M m = 1; }"), "contains itself"),
        (proto3("message M { map<string, M> m = 1; }"), "'M' contains itself"),
        (proto3("message M { int32 a = 536870911; }"), "'M' has too high numbers of fields"),
        (proto3("message M {" + "".join(f"optional int32 a{i} = {i};" for i in range(1, 10_000)) + "}"), "too large for Protobuf's parser|malformed: .*maximum size"),
        (proto3("message M { google.protobuf.Struct s = 1; }", ("google/protobuf/struct.proto", "")), "malformed"),
        (proto3("".join(f"message M{i} {{ M{i + 1} a = 1; M{i + 1} b = 2; }}" for i in range(20)) + "message M20 { int32 a = 1; }"), "more than 20,000 fields"),
        (proto3("".join(f"message M{i} {{ M{i + 1} a = 1; }}" for i in range(80)) + "message M80 { int32 a = 1; }"), "more than 64 deep"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_a_column_is_one_error(source, message):
    with pytest.raises(SchemaError, match=message):
        protobuf_type(
            source, "M0" if "message M0" in source.text else "M" if "message M" in source.text else None
        )


def test_imports_come_from_references_in_their_order():
    references = (("c.proto", 'syntax = "proto3"; package c; message C { int32 c = 1; }'), ("b.proto", 'syntax = "proto2"; import public "c.proto"; message B { optional c.C c = 1; }'))  # fmt: skip
    source = proto3('import "b.proto"; message M { B b = 1; c.C c = 2; }', *references)
    assert str(protobuf_type(source, "M")) == "struct<b: struct<c: struct<c: int32>>, c: struct<c: int32>>"
    encoded = base64.b64encode(parse_proto(source.text, "x").descriptor.SerializeToString()).decode()
    assert protobuf_type(SchemaSource(encoded, references)) == protobuf_type(source)


def expected_value(message):
    """Return what a message is in the form of `expected.json.gz`."""
    return {field.name: _expected_field(message, field) for field in message.DESCRIPTOR.fields}


def _expected_field(message, field):
    value = getattr(message, field.name)
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        part = entry.fields_by_name["value"]
        return {
            str(k).lower() if isinstance(k, bool) else str(k): _expected_leaf(part, value[k]) for k in value
        }
    if field.is_repeated:
        return [_expected_leaf(field, item) for item in value]
    return None if field.has_presence and not message.HasField(field.name) else _expected_leaf(field, value)


def _expected_leaf(field, value):
    if field.message_type is not None:
        return expected_value(value)
    if field.enum_type is not None:
        names = field.enum_type.values_by_number
        return names[value].name if value in names else str(value)
    if field.type in {FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64}:
        return str(value)
    return canonical(pa.array([value]))[0]


def fill(message, chance, depth=0):
    """Set some fields to random values."""
    for field in message.DESCRIPTOR.fields:
        if chance.random() < 0.3 or (depth > 3 and field.message_type):
            continue
        entry = field.message_type
        target = getattr(message, field.name)
        if entry is not None and entry.GetOptions().map_entry:
            for _ in range(chance.randrange(3)):
                key = random_leaf(entry.fields_by_name["key"], chance)
                if entry.fields_by_name["value"].message_type:
                    fill(target[key], chance, depth + 1)
                else:
                    target[key] = random_leaf(entry.fields_by_name["value"], chance)
        elif field.is_repeated:
            for _ in range(chance.randrange(4)):
                if field.message_type:
                    fill(target.add(), chance, depth + 1)
                else:
                    target.append(random_leaf(field, chance))
        elif field.message_type:
            target.SetInParent()
            fill(target, chance, depth + 1)
        else:
            setattr(message, field.name, random_leaf(field, chance))


def random_leaf(field, chance):
    if field.enum_type:
        return chance.choice(field.enum_type.values).number
    kind = field.cpp_type
    if kind in {FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT}:
        return chance.choice([0.0, -0.0, 1.5, float("inf"), float("nan"), -(2.0**100)])
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return chance.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_STRING:
        text = chance.choice(["", "a", "ä\0", "😀" * 20])
        return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
    bits = 32 if kind in {FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32} else 64
    is_signed = kind in {FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64}
    value = chance.choice([0, 1, 127, 128, 2 ** (bits - 1) - 1, chance.getrandbits(bits - 1)])
    return value if not is_signed or chance.random() < 0.5 else -value - 1


def damaged(value, chance):
    at = chance.randrange(len(value) + 1)
    return (
        value[:at]
        + bytes(chance.randrange(256) for _ in range(chance.randrange(3)))
        + value[at + chance.randrange(3) :]
    )


@examples(60)
@given(text=proto_files(decodable=True), seed=st.integers(0, 2**32))
def test_values_of_random_schemas_are_those_of_googles_parser_beside_damage(text, seed):
    chance = random.Random(seed)
    source = SchemaSource(text)
    name = parse_proto(text, "a.proto").descriptor.message_type[-1].name
    package = parse_proto(text, "a.proto").descriptor.package
    try:
        decoder = protobuf_decoder(source, name)
    except SchemaError as error:
        assert "contains itself" in str(error)  # noqa: PT017  (one that does not is compared below)
        return
    kind = message_class(source, f"{package}.{name}".lstrip("."))
    messages = [kind() for _ in range(100)]
    for message in messages:
        fill(message, chance)
    # Otherwise the entries of a map have another order in each process, and a seed that fails would not fail again.
    values = [message.SerializePartialToString(deterministic=True) for message in messages]
    bad = {row for row in range(100) if chance.random() < 0.1}
    for row in bad:
        values[row] = damaged(values[row], chance)
    decoded = decoder.decode(payloads(values))
    assert decoded.array.type == decoder.arrow_type
    decoded.array.validate(full=True)
    got = canonical(decoded.array)
    refused = {error.row for error in decoded.errors}
    assert refused <= bad
    for row in range(100):
        if row not in bad:
            assert got[row] == expected_value(messages[row])
        elif text.startswith('syntax = "proto3"'):
            # Of proto2 that parser keeps strings that are not UTF-8, and hides numbers that an enum does not name.
            assert got[row] == expected_of(kind, values[row], is_refused=row in refused)
        else:
            assert got[row] == canonical(decoder.decode(payloads([values[row]])).array)[0]


def expected_of(kind, value, *, is_refused):
    """Return what Protobuf's parsers make of a value, and check that it is refused if it should be."""
    try:
        kind.FromString(value)
    except DecodeError:
        assert is_refused
        return None
    assert not is_refused
    # An entry of a map with an unknown field in it counts in Java and C++; upb, the parser of Python, leaves it out.
    return expected_value(kind.FromString(without_unknown_fields(kind, value)))


def without_unknown_fields(kind, value):
    """Remove the unknown fields from the bytes of a message, also from the entries of its maps.

    Python's parser drops such entries. So the message is parsed with lists of entries in place of maps: the bytes are the
    same.
    """
    file = FileDescriptorProto()
    kind.DESCRIPTOR.file.CopyToProto(file)
    for message in file.message_type:
        make_maps_lists(message)
    message = class_of_file(file, kind.DESCRIPTOR.full_name).FromString(value)
    message.DiscardUnknownFields()
    return message.SerializePartialToString()


def make_maps_lists(message):
    """Turn the maps of a message type, and of those nested in it, into lists of entries."""
    message.options.ClearField("map_entry")
    for nested in message.nested_type:
        make_maps_lists(nested)
