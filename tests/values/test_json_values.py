"""JSON and text become columns: by schema, without one, and beside values that are damaged."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import OptionError, SchemaError
from storage_core.values.decoding import SchemaSource
from storage_core.values.json_values import json_decoder, string_decoder
from tests.examples import examples
from tests.values.canonical import canonical, payloads, source_of_schema, values_with_expected

_ORDER = SchemaSource("""{
    "type": "object",
    "properties": {
        "id": {"type": "integer"}, "price": {"type": "number"}, "paid": {"type": "boolean"}, "note": {"type": ["string", "null"]},
        "at": {"type": "string", "format": "date-time"}, "day": {"type": "string", "format": "date"},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}, "day": {"type": "string", "format": "date"}}}}
    }
}""")
_GOOD = b'{"id": 7, "price": 1.5, "paid": true, "note": "x", "at": "2024-02-29T12:00:00Z", "day": "2024-02-29", "lines": [{"sku": "a"}]}'


def decode(source, values, paths=None):
    return json_decoder(source, paths).decode(payloads(values))


def decode_one(kind, text):
    """Decode a value of a field."""
    decoded = decode(
        SchemaSource(json.dumps({"type": "object", "properties": {"v": kind}})),
        [b'{"v": %s}' % text.encode()],
    )
    return decoded.array.field("v").to_pylist()[0] if not decoded.errors else decoded.errors[0].message


def test_values_of_a_schema_with_references_are_those_that_python_reads(typed_logs):
    rows = values_with_expected(typed_logs, "json-schema")
    decoded = decode(source_of_schema(typed_logs, 102), [value[5:] for value, _ in rows])
    got = canonical(decoded.array)
    malformed = {error.row for error in decoded.errors}
    assert Counter("v" in expected for _, expected in rows) == {True: 210, False: 11}
    for row, (_, expected) in enumerate(rows):
        assert (got[row], row in malformed) == (expected.get("v"), "e" in expected), rows[row]


def test_values_without_a_schema_are_text_of_one_document(typed_logs):
    rows = values_with_expected(typed_logs, "json-plain")
    decoded = decode(None, [value for value, _ in rows])
    assert decoded.errors == []
    assert [text.encode() for text in decoded.array.to_pylist()] == [value for value, _ in rows]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ({"type": "integer"}, "1.0", 1),
        ({"type": "integer"}, "1e3", 1000),
        ({"type": "integer"}, "9223372036854775807", 2**63 - 1),
        ({"type": "integer"}, "9223372036854775808", "Field 'v' does not fit 64 bits."),
        ({"type": "integer"}, "1.5", "Field 'v' is not an integer."),
        ({"type": "integer"}, '"1"', "Field 'v' is not an integer."),
        ({"type": "integer"}, "true", "Field 'v' is not an integer."),
        ({"type": "integer"}, "9" * 5000, "Field 'v' does not fit 64 bits."),
        ({"type": "integer"}, "-9223372036854775808", -(2**63)),
        ({"type": "integer"}, "9007199254740993.0", 2**53 + 1),
        ({"type": "integer"}, "1e400", "Field 'v' does not fit 64 bits."),
        ({"type": "integer"}, "1e" + "9" * 20, "Field 'v' has an exponent that no decimal has."),
        ({"type": "number"}, "7", 7.0),
        ({"type": "number"}, "1e400", "Field 'v' does not fit a double."),
        ({"type": "number"}, "9" * 400, "Field 'v' does not fit a double."),
        ({"type": "number"}, "NaN", "The value is not JSON: NaN is not a number."),
        ({"type": "number"}, "-Infinity", "The value is not JSON: -Infinity is not a number."),
        ({"type": "boolean"}, "0", "Field 'v' is not a boolean."),
        ({"type": "string"}, r'"\u0000\ud83d\ude00"', "\0😀"),
        ({"type": "string"}, r'"\ud83d"', "Field 'v' has half of a surrogate pair, which is not text."),
        ({"type": ["null", "string"]}, "null", None),
        ({"type": "string", "format": "date"}, '"2024-02-29"', dt.date(2024, 2, 29)),
        ({"type": "string", "format": "date"}, '"2023-02-29"', "Field 'v' is not a date of RFC 3339."),
        ({"type": "string", "format": "date"}, '"2023-02-28\\n"', "Field 'v' is not a date of RFC 3339."),
        (
            {"type": "string", "format": "date-time"},
            '"2024-02-29"',
            "Field 'v' is not a date and time of RFC 3339.",
        ),
        (
            {"type": "string", "format": "date-time"},
            '"2024-02-29T25:00:00Z"',
            "Field 'v' is not a date and time of RFC 3339.",
        ),
        ({"type": "string", "format": "uuid"}, '"x"', "x"),
        ({"type": ["integer", "number"]}, "1", 1.0),
        ({"type": ["integer", "string"]}, '{"a":[1, "ä"]}', '{"a":[1,"ä"]}'),
        ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, "1", 1),
        ({"anyOf": [{"type": "number"}, {"type": "integer"}]}, "1", 1.0),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "1", "1"),
        ({"enum": ["low", "high", None]}, '"low"', "low"),
        ({"const": 1}, "1", 1),
        ({}, "[1]", "[1]"),
        (True, "1.50", "1.50"),
        (True, "12345678901234567890.10", "12345678901234567890.10"),
        (
            {"type": "object"},
            '{"a": [1E400, -0, "\\n\\u00e4"], "b": null}',
            '{"a":[1E400,-0,"\\nä"],"b":null}',
        ),
        (True, '{"\\ud83d": 1}', "Field 'v' has half of a surrogate pair, which is not text."),
        (True, "[" * 400 + "]" * 400, "[" * 400 + "]" * 400),
        ({"type": "array", "items": {"type": "integer"}}, "[1, null, 2]", [1, None, 2]),
        (
            {"type": "array", "items": {"type": "integer"}},
            '[1, "x"]',
            "An item of field 'v' is not an integer.",
        ),
        ({"type": "array"}, '[1, "x"]', ["1", '"x"']),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, '{"a": 1}', [("a", 1)]),
        (
            {"type": "object", "additionalProperties": {"properties": {"b": {"type": "string"}}}},
            '{"a": {}}',
            [("a", {"b": None})],
        ),
        ({"type": "object"}, '{"a": {}}', '{"a":{}}'),
        (
            {
                "allOf": [
                    {"properties": {"a": {"type": "integer"}}},
                    {"properties": {"b": {"type": "string"}}},
                ]
            },
            '{"a": 1}',
            {"a": 1, "b": None},
        ),
        ({"properties": {"a": {"type": "integer"}}}, '{"a": 1, "a": 2}', {"a": 2}),
        ({"properties": {"a": {"type": "integer"}}}, "[]", "Field 'v' is not an object."),
    ],
)
def test_a_field_has_the_type_that_its_schema_says(kind, text, expected):
    assert decode_one(kind, text) == expected


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01t00:00:00.5z", 500_000),
        ("1970-01-01T00:00:00.123456789+00:00", 123_456),
        ("1970-01-01T01:30:00-01:30", 3 * 3_600_000_000),
        ("0001-01-01T00:00:00Z", -62_135_596_800_000_000),
        ("9999-12-31T23:59:59.999999Z", 253_402_300_799_999_999),
    ],
)
def test_a_time_is_microseconds_in_utc(text, microseconds):
    source = SchemaSource('{"properties": {"v": {"type": "string", "format": "date-time"}}}')
    decoded = decode(source, [json.dumps({"v": text}).encode()] * 65)
    assert decoded.array.field("v").cast(pa.int64()).to_pylist() == [microseconds] * 65


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"{",
        b"}",
        b"[]",
        b"7",
        b'{"id": 1} {"id": 2}',
        b'{"id": 1}\n{"id": 2}',
        b'{"id": 1} null {}',
        b'{"id": 1}, {"id": 2}',
        b'{"id": NaN}',
        b'{"ignored": NaN}',
        b'{"ignored": Infinity}',
        b'{"note": "\xff"}',
        b'{"note": "line\nend"}',
        b'{"note": "}',
        b'{"lines": [{"sku": "a"}',
        b'{"id": 01}',
        b'\xef\xbb\xbf{"id": 1}',
        b'{"at": "yesterday"}',
        b'{"lines": [{"day": "2023-02-29"}]}',
        b'{"ignored": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_a_bad_value_is_an_error_of_its_row_alone(bad):
    for neighbours in (1, 100):
        decoded = decode(_ORDER, [*[_GOOD] * neighbours, bad, *[_GOOD] * neighbours])
        assert [(error.row, error.reason) for error in decoded.errors] == [(neighbours, "malformed")]
        values = decoded.array.to_pylist()
        assert values.pop(neighbours) is None
        assert values == decode(_ORDER, [_GOOD]).array.to_pylist() * 2 * neighbours


def test_text_that_is_indented_or_null_is_a_document():
    texts = [
        json.dumps(json.loads(_GOOD), indent=2).encode().replace(b"\n", b"\r\n"),
        b" {} \n",
        b"null",
        b'{"id": 1, "id": 2}',
    ]
    assert [value and value["id"] for value in decode(_ORDER, texts * 50).array.to_pylist()] == [
        7,
        None,
        None,
        2,
    ] * 50
    assert decode(None, [*texts, b"1", b"{} {}"]).errors[0].row == 5


def test_paths_leave_only_the_wanted_fields_whatever_the_others_hold():
    paths = (("lines", "sku"), ("id",))
    decoded = decode(_ORDER, [_GOOD, b'{"id": 8, "at": "yesterday"}'], paths)
    assert decoded.array.to_pylist() == [{"id": 7, "lines": [{"sku": "a"}]}, {"id": 8, "lines": None}]
    assert decoded.array.type == json_decoder(_ORDER, paths).arrow_type
    with pytest.raises(OptionError, match=r"'lines' has no field 'price': it has sku, day\."):
        json_decoder(_ORDER, (("lines", "price"),))
    with pytest.raises(OptionError, match=r"The JSON schema has no field 'x'"):
        json_decoder(_ORDER, (("x",),))


def test_a_path_names_fields_with_dots():
    inner = {"properties": {"c.d": {"type": "integer"}, "e": {"type": "integer"}}}
    source = SchemaSource(
        json.dumps({"properties": {"a.b": inner, "a": {"properties": {"x": {"type": "string"}}}}})
    )
    value = b'{"a.b": {"c.d": 1, "e": 2}, "a": {"x": "y"}}'
    for path, expected in [
        ("a.b", {"a.b": {"c.d": 1, "e": 2}}),
        ("a.b.c.d", {"a.b": {"c.d": 1}}),
        ("a.x", {"a": {"x": "y"}}),
    ]:
        assert decode(source, [value], (tuple(path.split(".")),)).array.to_pylist() == [expected]
    with pytest.raises(OptionError, match=r"The JSON schema has no field 'b': it has a\.b, a\."):
        json_decoder(source, (("b",),))
    with pytest.raises(OptionError, match=r"'a\.b' has no field 'c': it has c\.d, e\."):
        json_decoder(source, (("a", "b", "c"),))


def test_references_are_followed_until_they_lead_back():
    text = """{"$id": "https://a.example/order", "$ref": "#/definitions/node", "definitions": {
        "node": {"type": "object", "properties": {"next": {"$ref": "#/definitions/node"}, "place": {"$ref": "place.json#/$defs/p"}}}}}"""
    source = SchemaSource(text, (("https://a.example/place.json", '{"$defs": {"p": {"type": "integer"}}}'),))
    decoded = decode(source, [b'{"next": {"next": {"place": 3}}, "place": 1}'])
    assert decoded.array.to_pylist() == [{"next": '{"next":{"place":3}}', "place": 1}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "neither an object nor"),
        ('{"type": "strange"}', "'strange' is not a type"),
        ('{"type": {}}', "'type' must be a name"),
        ('{"oneOf": {}}', "'oneOf' must be a list"),
        ('{"$ref": "other.json"}', "'other.json', which is not among its references"),
        ('{"$ref": "#/definitions/a"}', "'#/definitions/a', which it does not define"),
        ('{"$ref": "#/a/' + "9" * 5000 + '", "a": [{}]}', "which it does not define"),
        ('{"$ref": "http://[x#/a"}', r"'http://\[x#/a', which is not among its references"),
        ('{"$id": "http://[x", "$ref": "y#/a"}', "'y#/a', which is not among its references"),
        ('{"properties": {"\\ud800": {}}}', "surrogates"),
        ('{"items": ' * 200 + "{}" + "}" * 200, "too large"),
        (json.dumps({"properties": {f"f{i}": {} for i in range(30_000)}}), "too large"),
        (
            json.dumps({"$ref": "#/$defs/0", "$defs": {str(i): {"properties": {c: {"$ref": f"#/$defs/{i + 1}"} for c in "ab"}} for i in range(30)}, "x": 1}).replace("/30", "/29"),
            "too large",
        ),
    ],
)  # fmt: skip
def test_a_schema_that_is_none_or_too_large_is_one_clear_error(text, message):
    with pytest.raises(SchemaError, match=message):
        json_decoder(SchemaSource(text))


def test_text_is_checked_to_be_utf8():
    decoded = string_decoder().decode(
        payloads([b"", "ä\0".encode(), b"a\xff", b"\xed\xa0\x80"] + [b"x"] * 100)
    )
    assert decoded.array.to_pylist() == ["", "ä\0", None, None] + ["x"] * 100
    assert [error.row for error in decoded.errors] == [2, 3]
    assert decoded.errors[0].message == "The text is not UTF-8: invalid start byte at byte 1."


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=5) | st.sampled_from(["2024-02-29", "2024-02-29T00:00:00Z", "2024-02-29T00:00:00.1+23:59"]),
    lambda child: st.lists(child, max_size=3) | st.dictionaries(st.sampled_from(["id", "price", "at", "day", "lines", "sku", "x"]), child, max_size=4),
    max_leaves=8,
)  # fmt: skip
_FITTING = st.fixed_dictionaries(
    {},
    optional={
        "id": st.integers(-5, 5),
        "price": st.floats(allow_nan=False, allow_infinity=False),
        "paid": st.booleans(),
        "note": st.text(max_size=5),
        "at": st.datetimes(timezones=st.timezones()).map(dt.datetime.isoformat),
        "day": st.dates().map(str),
        "lines": st.lists(
            st.fixed_dictionaries({}, optional={"sku": st.text(max_size=3), "day": st.dates().map(str)}),
            max_size=3,
        ),
        "x": _JSON,
    },
)


@st.composite
def _texts(draw):
    document = draw(_FITTING | _JSON)
    text = json.dumps(document, indent=draw(st.none() | st.just(1)), ensure_ascii=draw(st.booleans())).encode(
        errors="replace"
    )
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(text)))
        text = (
            text[:at]
            + draw(st.sampled_from([b"", b"{", b"}", b"]", b'"', b",", b"\n", b"\xff", b"\0", b"0", b"NaN"]))
            + text[at + draw(st.integers(0, 2)) :]
        )
    return text


@examples(300)
@given(st.lists(_texts(), min_size=1, max_size=8), st.booleans())
def test_values_decode_together_as_each_alone(texts, with_schema):
    decoder = json_decoder(_ORDER if with_schema else None)
    together = decoder.decode(payloads(texts * 10))
    alone = [
        decoder.decode_one(text) if not decoder.decode(payloads([text])).errors else None for text in texts
    ]
    assert together.array.equals(pa.array(alone * 10, decoder.arrow_type))
    for text, value in zip(texts, alone, strict=True):
        assert (
            decoder.decode(payloads([text])).array.to_pylist()
            == pa.array([value], decoder.arrow_type).to_pylist()
        )


def test_values_in_any_order_of_the_buffer_decode():
    ranges = payloads([b'{"id": 1}', b'{"id": 2}', b'{"id": 3}'])
    backwards = ranges._replace(starts=ranges.starts[::-1], ends=ranges.ends[::-1])
    assert json_decoder(_ORDER, (("id",),)).decode(backwards).array.to_pylist() == [
        {"id": 3},
        {"id": 2},
        {"id": 1},
    ]
    assert len(json_decoder(_ORDER).decode(payloads([])).array) == 0


def test_damage_anywhere_never_changes_a_good_row():
    chance = random.Random(5)
    documents = [
        {"id": n, "note": "ä" * (n % 7), "at": "2024-01-01T00:00:00.25Z", "x": [{}]} for n in range(2000)
    ]
    texts = [json.dumps(document).encode() for document in documents]
    damaged = set(chance.sample(range(2000), 60))
    for row in damaged:
        at = chance.randrange(len(texts[row]))
        texts[row] = texts[row][:at] + bytes([chance.randrange(256)]) + texts[row][at + chance.randrange(4) :]
    decoded = decode(_ORDER, texts, (("id",), ("note",), ("at",)))
    values = decoded.array.to_pylist()
    assert {error.row for error in decoded.errors} <= damaged
    assert all(
        values[n]["id"] == n and values[n]["note"] == "ä" * (n % 7) for n in range(2000) if n not in damaged
    )


def test_a_time_in_the_year_0_is_the_same_beside_what_is_no_time():
    source = SchemaSource(
        '{"properties": {"t": {"type": "string", "format": "date-time"}, "d": {"type": "string", "format": "date"}}}'
    )
    times = [b'{"t": "0000-02-29T23:59:59.5+01:00"}', b'{"d": "0000-12-31"}', b'{"d": "0001-01-01"}']
    alone = [
        json_decoder(source)
        .decode(payloads([text]))
        .array.cast(pa.struct([("t", pa.timestamp("us")), ("d", pa.date32())]))
        for text in times
    ]
    decoded = json_decoder(source).decode(payloads([*times, b'{"t": "0000-02-30T00:00:00Z"}']))
    assert [error.row for error in decoded.errors] == [3]
    days = decoded.array.field("d").cast(pa.int32()).to_pylist()
    assert days[1:3] == [-719_163, -719_162]
    found = decoded.array.field("t").cast(pa.int64())[0].as_py()
    assert found == pa.scalar("0000-02-29T22:59:59.5").cast(pa.timestamp("us")).cast(pa.int64()).as_py()
    assert [value.field("t").cast(pa.int64())[0].as_py() for value in alone] == [found, None, None]
    assert [value.field("d").cast(pa.int32())[0].as_py() for value in alone] == [None, *days[1:3]]
