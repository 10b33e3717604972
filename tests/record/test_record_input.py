from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from storage_core.errors import InvalidRecordError
from storage_core.record import encode
from storage_core.record.encode import BatchEncoding, encode_records
from tests.record.sections import decode_window
from tests.record.strategies import NOW_MS
from tests.record.written import HEADERS, rows_read, table_of, write, write_both_ways

BOTH_WAYS = pytest.mark.parametrize("few_rows", [0, 100], ids=["by column", "one by one"])


def refuses(records, match):
    with pytest.raises(InvalidRecordError, match=match):
        encode_records(records, BatchEncoding(), default_timestamp_ms=0)
    return True


# -- Names and types --------


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ({}, "column value, found no columns"),
        ({"key": [b"k"]}, "column value, found key"),
        ({"Value": [b"v"], "key": [b"k"]}, "column value, found Value, key"),
        ({"value": [b"v"], "Key": [b"k"]}, r"found Key\. Did you mean key\?"),
        ({"value": [b"v"], "timestmp": [1]}, r"found timestmp\. Did you mean timestamp\?"),
        ({"value": [b"v"], "customer": [1]}, r"found customer\. Drop it"),
        ({"value": [b"v"], "topic": ["orders"], "partition": [0]}, "found topic"),
    ],
)
def test_a_column_of_another_name_is_refused(columns, match):
    assert refuses(pa.table(columns), match)


@pytest.mark.parametrize("records", [None, 7, "text", [b"a"], {"value": [b"v"]}, pa.array([b"v"])])
def test_records_that_are_no_table_are_refused(records):
    assert refuses(records, f"Table or RecordBatch, found {type(records).__name__}")


def test_the_same_column_twice_is_refused():
    column = pa.array([b"v"])
    records = pa.RecordBatch.from_arrays([column, column], names=["value", "value"])
    assert refuses(records, "found value, value")


WRONG_TYPES = [
    ("value", pa.array([1])),
    ("value", pa.array([[b"v"]])),
    ("value", pa.array([{"a": b"v"}])),
    ("value", pa.array([1, 2]).dictionary_encode()),
    ("key", pa.array([1.5])),
    ("key", pa.array([True])),
    ("timestamp", pa.array([1.0])),
    ("timestamp", pa.array([1], pa.int32())),
    ("timestamp", pa.array([1], pa.uint64())),
    ("timestamp", pa.array([1], pa.date64())),
    ("timestamp", pa.array([1], pa.time64("us"))),
    ("timestamp", pa.array(["2026-01-01"])),
    ("headers", pa.array(["a=b"])),
    ("headers", pa.array([["a"]])),
    ("headers", pa.array([{"key": "a", "value": b"b"}])),
    ("headers", pa.array([[("a", b"b")]], pa.map_(pa.string(), pa.binary()))),
    (
        "headers",
        pa.array(
            [[{"value": b"b", "key": "a"}]], pa.list_(pa.struct({"value": pa.binary(), "key": pa.string()}))
        ),
    ),
    ("headers", pa.array([[{"key": "a"}]], pa.list_(pa.struct({"key": pa.string()})))),
    ("headers", pa.array([[{"key": b"a", "value": b"b"}]])),
    ("headers", pa.array([[{"key": "a", "value": 1}]])),
]


@pytest.mark.parametrize(("name", "column"), WRONG_TYPES, ids=lambda item: str(getattr(item, "type", item)))
def test_a_column_of_a_wrong_type_is_refused_by_name_and_type(name, column):
    columns = {"value": pa.nulls(len(column), pa.binary()), name: column}
    with pytest.raises(InvalidRecordError, match=f"column {name} to be .*Cast it") as caught:
        encode_records(pa.table(columns), BatchEncoding(), default_timestamp_ms=0)
    assert str(column.type) in str(caught.value)


def test_a_wrong_type_is_refused_even_without_rows():
    assert refuses(pa.table({"value": pa.array([], pa.int64())}), "column value")


# -- Byte strings of every kind --------

WORDS = [b"", b"short", b"twelve bytes", b"a longer byte string", None, b"x" * 300]
TEXTS = [None if word is None else word.decode() for word in WORDS]
COLUMNS = {
    "binary": pa.array(WORDS, pa.binary()),
    "large binary": pa.array(WORDS, pa.large_binary()),
    "binary view": pa.array(WORDS, pa.binary_view()),
    "string": pa.array(TEXTS, pa.string()),
    "large string": pa.array(TEXTS, pa.large_string()),
    "string view": pa.array(TEXTS, pa.string_view()),
    "dictionary of strings": pa.array(TEXTS).dictionary_encode(),
    "dictionary of binaries": pa.array(WORDS).dictionary_encode(),
    "dictionary with a null in it": pa.array(WORDS).dictionary_encode(null_encoding="encode"),
}


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("name", ["value", "key"])
def test_a_column_of_bytes_may_have_any_type(kind, name):
    plain = {"value": pa.array(WORDS), "key": pa.array(WORDS)}
    data = write_both_ways(pa.table({**plain, name: COLUMNS[kind]}))
    assert data == write(pa.table(plain))
    assert [row[3] for row in decode_window(data)] == WORDS


@pytest.mark.parametrize("kind", COLUMNS)
def test_only_the_slice_of_a_column_is_written(kind):
    column = COLUMNS[kind]
    long = pa.chunked_array([column.slice(2), column.slice(0, 0), column.slice(1, 4), column])
    expected = [*WORDS[2:], *WORDS[1:5], *WORDS]
    data = write_both_ways(pa.table({"value": long, "key": long}))
    assert [row[2:4] for row in decode_window(data)] == [(word, word) for word in expected]
    data = write_both_ways(pa.table({"value": long}).slice(3, 8))
    assert [row[3] for row in decode_window(data)] == expected[3:11]


@pytest.mark.parametrize("width", [0, 3, 12, 20])
def test_byte_strings_of_a_fixed_size(width):
    words = [b"x" * width, None, b"y" * width, b"z" * width]
    column = pa.array(words, pa.binary(width))
    data = write_both_ways(pa.table({"value": column.slice(1), "key": column.slice(0, 3)}))
    assert [row[2:4] for row in decode_window(data)] == list(pairwise(words))


def test_texts_are_written_as_utf8():
    data = write_both_ways(pa.table({"value": ["é☃\U0001f600"]}))
    assert decode_window(data)[0][3] == b"\xc3\xa9\xe2\x98\x83\xf0\x9f\x98\x80"


@pytest.mark.parametrize("last", [b"", b"x", b"123456789012", b"1234567890123"])
def test_nothing_is_read_behind_the_last_byte(last):
    # As tight as a buffer can be.
    words = [b"twelve bytes", last]
    content = np.frombuffer(b"".join(words) or b"\0", np.uint8).copy()
    borders = np.cumsum([0, *map(len, words)]).astype(np.int32)
    column = pa.Array.from_buffers(pa.binary(), 2, [None, pa.py_buffer(borders), pa.py_buffer(content)])
    data = write_both_ways(pa.table({"value": column}))
    assert [row[3] for row in decode_window(data)] == words


# -- Headers --------


@pytest.mark.parametrize(
    "kind",
    [
        HEADERS,
        pa.large_list(HEADERS.value_type),
        pa.list_(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])),
        pa.list_(pa.struct([("key", pa.string_view()), ("value", pa.binary_view())])),
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])),
    ],
    ids=str,
)
def test_headers_may_have_any_of_these_types(kind):
    table = [
        (NOW_MS, None, b"v", headers)
        for headers in (
            [("a", b"1")],
            [],
            [("b", b"2"), ("b", None), ("", b"")],
            [],
            [("long" * 10, b"value" * 10)] * 70,
        )
    ]
    records = table_of(table)
    pairs = [None if pair is None else list(pair) for pair in records["headers"].to_pylist()]
    if pa.types.is_string(kind.value_type[1].type):
        pairs = [
            None
            if headers is None
            else [
                {"key": h["key"], "value": None if h["value"] is None else h["value"].decode()}
                for h in headers
            ]
            for headers in pairs
        ]
    column = pa.array(pairs, kind)
    data = write_both_ways(records.set_column(3, "headers", column))
    assert decode_window(data) == rows_read(table)
    sliced = pa.chunked_array([column.slice(2), column.slice(0, 2)])
    data = write_both_ways(records.set_column(3, "headers", sliced))
    assert [row[4] for row in decode_window(data)] == [row[4] for row in rows_read(table[2:] + table[:2])]


def test_a_null_list_over_headers_is_no_headers():
    pairs = pa.array([{"key": "a", "value": b"1"}, {"key": None, "value": b"2"}], HEADERS.value_type)
    column = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pairs, mask=pa.array([False, True]))
    data = write_both_ways(pa.table({"value": [b"v"] * 2, "headers": column}))
    assert [row[4] for row in decode_window(data)] == [((b"a", b"1"),), ()]


@BOTH_WAYS
@pytest.mark.parametrize("bad", [{"key": None, "value": b"1"}, None])
@pytest.mark.parametrize("row", [0, 3, 49])
def test_a_header_without_a_key_is_refused_by_its_row(monkeypatch, few_rows, bad, row):
    monkeypatch.setattr(encode, "_FEW_ROWS", few_rows)
    good = {"key": "a", "value": b"1"}
    headers = [None if number % 3 == 1 else [good] * (number % 4) for number in range(50)]
    headers[row] = [good, bad]
    column = pa.chunked_array([pa.array(headers[:2], HEADERS), pa.array(headers[2:], HEADERS)])
    assert refuses(
        pa.table({"value": [b"v"] * 50, "headers": column}), rf"null in the column headers of row {row}\."
    )


def test_all_rows_are_checked_before_any_is_encoded(monkeypatch):
    monkeypatch.setattr(encode, "_FEW_ROWS", 0)
    headers = [None] * 200_000 + [[{"key": None, "value": b"1"}]]
    records = pa.table({"value": pa.nulls(200_001, pa.binary()), "headers": pa.array(headers, HEADERS)})
    assert refuses(records, "row 200000")


# -- Sizes --------


def huge_column(*sizes):
    """Byte strings of zeros that no memory is spent on."""
    borders = np.cumsum([0, *sizes])
    content = np.zeros(int(borders[-1]), np.uint8)
    return pa.Array.from_buffers(
        pa.large_binary(), len(sizes), [None, pa.py_buffer(borders), pa.py_buffer(content)]
    )


@BOTH_WAYS
def test_a_value_beyond_32_bits_is_refused(monkeypatch, few_rows):
    monkeypatch.setattr(encode, "_FEW_ROWS", few_rows)
    records = pa.table({"value": huge_column(1, 2**31, 5)})
    assert refuses(records, r"at most \d+ bytes, found \d+ in row 1\.")


@BOTH_WAYS
def test_a_record_beyond_32_bits_is_refused(monkeypatch, few_rows):
    monkeypatch.setattr(encode, "_FEW_ROWS", few_rows)
    half = huge_column(5, 2**30)
    assert refuses(pa.table({"value": half, "key": half}), r"in row 1\.")


@BOTH_WAYS
def test_a_record_that_shares_its_bytes_is_refused_all_the_same(monkeypatch, few_rows):
    monkeypatch.setattr(encode, "_FEW_ROWS", few_rows)
    words = pa.array([b"x" * (1 << 20)] * 2)
    shared = words.dictionary_encode()
    headers = pa.ListArray.from_arrays(
        pa.array([0, 2048, 2048], pa.int32()),
        pa.StructArray.from_arrays(
            [
                pa.array(["k"] * 2048),
                pa.DictionaryArray.from_arrays(pa.array([0] * 2048, pa.int8()), words.slice(0, 1)),
            ],
            names=["key", "value"],
        ),
    )
    assert refuses(pa.table({"value": shared, "headers": headers}), r"in row 0\.")
