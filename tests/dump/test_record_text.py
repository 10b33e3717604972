"""Records as text, compared with a format that goes row by row."""

from __future__ import annotations

import base64
import json
import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.dump.record_text import JsonLines, delimited_text, literal_text
from storage_core.errors import OptionError
from storage_core.scan.spans import record_schema
from tests.examples import examples

SCHEMA = record_schema(include_headers=True)
BYTES = st.one_of(
    st.none(),
    st.binary(max_size=8),
    st.text(max_size=8).map(lambda text: text.encode("utf-8", "replace")),
    st.sampled_from([b'{"a":"\\n"}', b'\n\t\r\\"', b"\x00\x1b[2J\x7f", "\x80\x9f\u202eé".encode()]),
)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
HEADERS = st.one_of(st.none(), st.lists(st.tuples(NAMES, BYTES), max_size=3))
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "key": BYTES,
            "value": BYTES,
            "topic": st.sampled_from(["a", "b-c.d_e"]),
            "partition": st.integers(0, 2**31 - 1),
            "offset": st.integers(0, 2**63 - 1),
            "timestamp": st.integers(-1, 10**12).map(lambda ms: ms * 1000),
            "timestampType": st.integers(-1, 1),
            "headers": HEADERS,
        }
    ),
    max_size=6,
)


def batch(rows):
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def row(**fields):
    plain = {
        "topic": "orders",
        "partition": 3,
        "offset": 42,
        "timestamp": 1_700_000_000_123_000,
        "timestampType": 0,
    }
    return {**plain, "key": None, "value": None, "headers": None, **fields}


def text(template, *rows, **options):
    return bytes(delimited_text(template, **options).render(batch(rows)))


class TestTokens:
    @pytest.mark.parametrize(
        ("template", "expected"),
        [
            ("%t|%p|%o|%T\\n", b"orders|3|42|1700000000123\n"),
            ("%k %K %s %S\\n", b"k1 2 value 5\n"),
            ("%h", b"a=1,b=NULL,a="),
            ("%R", b"\x00\x00\x00\x05"),
            ("100%% %s", b"100% value"),
            ("", b""),
            ("plain", b"plain"),
        ],
    )
    def test_each_token(self, template, expected):
        headers = [("a", b"1"), ("b", None), ("a", b"")]
        assert text(template, row(key=b"k1", value=b"value", headers=headers)) == expected

    @pytest.mark.parametrize(
        ("template", "expected"),
        [("%k|%s", b"|"), ("%K|%S", b"-1|-1"), ("%R", b"\xff\xff\xff\xff"), ("%h", b"")],
    )
    def test_without_key_value_and_headers(self, template, expected):
        assert text(template, row()) == expected

    def test_null_is_shown_if_asked_for(self):
        assert text("%k=%s;", row(), row(key=b"", value=b""), null=b"NULL") == b"NULL=NULL;=;"

    def test_a_missing_timestamp_is_minus_one(self):
        assert text("%T;", row(timestamp=-1000, timestampType=-1), row(timestamp=None)) == b"-1;-1;"

    @pytest.mark.parametrize(
        ("template", "expected"),
        [
            (r"\n\r\t\e\\", b"\n\r\t\x1b\\"),
            (r"\x00\xff\x4a\x9", b"\x00\xff\x4a\x09"),
            (r"\0\033\65\256", b"\x00\x1b\x41\x00"),
            (r"\q\"\é", 'q"é'.encode()),
            ("\\", b"\\"),
            ("é", "é".encode()),
        ],
    )
    def test_escapes(self, template, expected):
        assert text(template, row()) == expected

    def test_a_text_without_tokens(self):
        assert text(literal_text(r"%s\t"), row(value=b"x")) == b"%s\t"

    @pytest.mark.parametrize("template", ["%x", "a%", "%%%", "%\n"])
    def test_unknown_tokens_are_refused(self, template):
        with pytest.raises(OptionError, match="no token"):
            delimited_text(template)

    def test_too_many_tokens_are_refused(self):
        with pytest.raises(OptionError, match="at most 128"):
            delimited_text("%s" * 129)

    def test_a_format_reads_only_the_columns_it_needs(self):
        assert delimited_text("%s %S %o").columns == ("offset", "value")
        assert delimited_text("x").columns == ("offset",)


def test_a_terminal_sees_no_control_characters():
    hostile = row(key=b"\x1b[2J\x9b", value="\u202eé\n".encode(), headers=[("\x07", b"\x1b")])
    found = text("%k|%s|%h\\n", hostile, is_for_terminal=True)
    assert found.decode() == "\\x1b[2J\\x9b|\\u202eé\\n|\\x07=\\x1b\n"
    (line,) = bytes(JsonLines(is_for_terminal=True).render(batch([hostile]))).decode().splitlines()
    assert line.isprintable()
    assert json.loads(line)["payload"] == "\u202eé\n"


class TestJsonLines:
    def render(self, *rows):
        return bytes(JsonLines().render(batch(rows))).decode()

    def test_objects_have_the_shape_of_kcat(self):
        headers = [("a", b"1"), ("b", None)]
        assert self.render(row(key=b"k", value=b'{"x":1}', headers=headers)) == (
            '{"topic":"orders","partition":3,"offset":42,"tstype":"create","ts":1700000000123,'
            '"headers":["a","1","b",null],"key":"k","payload":"{\\"x\\":1}"}\n'
        )

    def test_without_headers_and_timestamp_there_are_no_fields(self):
        assert self.render(row(timestamp=-1000, timestampType=-1)) == (
            '{"topic":"orders","partition":3,"offset":42,"key":null,"payload":null}\n'
        )

    def test_append_time(self):
        assert '"tstype":"logappend"' in self.render(row(timestampType=1))

    def test_bytes_that_are_not_utf8_become_base64(self):
        assert self.render(row(value=b"\xff\x00")).endswith('"payload":{"base64":"/wA="}}\n')


def as_json(data):
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def as_object(fields):
    made = {name: fields[name] for name in ("topic", "partition", "offset")}
    if fields["timestampType"] != -1:
        made["tstype"] = ("create", "logappend")[fields["timestampType"]]
        made["ts"] = fields["timestamp"] // 1000
    if fields["headers"] is not None:
        made["headers"] = [each for name, value in fields["headers"] for each in (name, as_json(value))]
    return {**made, "key": as_json(fields["key"]), "payload": as_json(fields["value"])}


def as_text(fields):
    key, value = fields["key"], fields["value"]
    headers = b",".join(
        name.encode() + b"=" + (b"NULL" if value is None else value)
        for name, value in fields["headers"] or ()
    )
    return b"".join(
        [
            b"%s %d " % (fields["topic"].encode(), fields["partition"]),
            b"-" if key is None else key,
            struct.pack(">i", -1 if value is None else len(value)),
            b"-" if value is None else value,
            b"%d %s\n" % (fields["timestamp"] // 1000, headers),
        ]
    )


@examples(100)
@given(ROWS, st.integers(0, 3), st.booleans())
def test_json_lines_give_each_row_back(rows, start, is_for_terminal):
    part = batch(rows).slice(start)
    lines = bytes(JsonLines(is_for_terminal).render(part)).decode().split("\n")
    assert lines.pop() == ""
    assert [json.loads(line) for line in lines] == [as_object(each) for each in rows[start:]]


@examples(100)
@given(ROWS, st.integers(0, 3))
def test_columns_give_the_text_of_single_rows(rows, start):
    rendered = delimited_text(r"%t %p %k%R%s%T %h\n", null=b"-").render(batch(rows).slice(start))
    assert bytes(rendered) == b"".join(as_text(each) for each in rows[start:])
