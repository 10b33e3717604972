from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import InvalidRecordError
from storage_core.record.arrow_columns import byte_lengths, byte_slices, chunks_of
from storage_core.record.record_input import check_rows, header_rows_of, measure_rows
from tests.record.encoding import sized, varint
from tests.record.strategies import NOW_MS
from tests.record.written import HEADERS, rows, rows_read, table_of


def tail_of(key, value, headers):
    """Return what a record takes after its offset delta."""
    pairs = b"".join(sized(name) + sized(text) for name, text in headers)
    return len(sized(key) + sized(value) + varint(len(headers)) + pairs)


def spread_out(column, count):
    return column.tolist() if len(column) == count else column.tolist() * count


@given(st.lists(rows, min_size=1, max_size=10))
def test_measured_sizes_are_those_that_are_encoded(table):
    found = measure_rows(table_of(table), 0, 0)
    assert found.count == len(table)
    assert spread_out(found.tails_bytes, found.count) == [tail_of(*row[2:]) for row in rows_read(table)]
    assert spread_out(found.timestamps_ms, found.count) == [row[0] for row in table]


def test_columns_of_equal_values_have_one_row():
    found = measure_rows(pa.table({"value": [b"abc"] * 1000}), NOW_MS, 0)
    assert (found.count, found.timestamps_ms.tolist(), found.tails_bytes.tolist()) == (1000, [NOW_MS], [6])
    some = found.slice(10, 20)
    assert (some.count, some.timestamps_ms.tolist(), some.tails_bytes.tolist()) == (20, [NOW_MS], [6])


def test_some_of_the_rows():
    table = [(NOW_MS + number, None, b"v" * number, []) for number in range(10)]
    some = measure_rows(table_of(table), 0, 0).slice(4, 3)
    assert some.timestamps_ms.tolist() == [NOW_MS + 4, NOW_MS + 5, NOW_MS + 6]
    assert some.tails_bytes.tolist() == [tail_of(None, b"v" * number, ()) for number in (4, 5, 6)]


def test_headers_of_several_chunks():
    lists = [[{"key": "a", "value": b"12"}] * 2, None, [], [{"key": "long", "value": None}]]
    column = pa.array(lists, HEADERS)
    headers = header_rows_of([column.slice(2), column.slice(0, 3)], 0)
    assert headers.counts.tolist() == [0, 1, 2, 0, 0]
    assert headers.key_lengths.tolist() == [4, 1, 1]
    assert headers.value_lengths.tolist() == [-1, 2, 2]
    assert headers.sizes_bytes().tolist() == [0, 6, 10, 0, 0]


@pytest.mark.parametrize("column", [pa.nulls(3), pa.nulls(3, HEADERS), pa.array([[], None, []], HEADERS)])
def test_rows_without_headers(column):
    assert header_rows_of([column], 0) is None


def test_a_column_that_is_not_there_has_no_chunks():
    records = pa.table({"value": pa.chunked_array([[b"a"], [b"b"]])})
    assert chunks_of(records, "key") == ()
    assert len(chunks_of(records, "value")) == 2
    assert len(chunks_of(records.to_batches()[0], "value")) == 1


def test_rows_are_checked_only_if_types_or_sizes_require_it():
    headers = pa.array([[{"key": None, "value": b"v"}]], HEADERS)
    records = pa.table({"value": [b"v"], "headers": headers})
    check_rows(records, sizes_only=True)
    with pytest.raises(InvalidRecordError, match=r"row 0\."):
        check_rows(records)
    with pytest.raises(InvalidRecordError, match=r"row 0\."):
        check_rows(pa.table({"value": [b"v"], "timestamp": pa.array([1 << 62], pa.timestamp("s"))}))


def test_places_are_counted_from_the_first_byte_string():
    array = pa.array([b"x" * 1000, b"abc", b"de"], pa.large_binary()).slice(1)
    buffer, starts = byte_slices([array])
    assert starts.tolist() == [0, 3]
    assert buffer.tobytes() == b"abcde"


def test_one_array_is_not_copied():
    array = pa.array([b"abc", b"de"])
    buffer, _ = byte_slices([array])
    assert buffer.ctypes.data == array.buffers()[2].address


def test_no_chunks_have_no_rows():
    assert byte_lengths([]).tolist() == []
    assert byte_lengths([pa.array([], pa.binary())]).dtype == np.int64
    assert [len(column) for column in byte_slices([])] == [0, 0]


def test_lengths_of_a_dictionary_are_known_without_its_rows():
    words = pa.array([b"x" * (1 << 20)])
    array = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, np.int8)), words)
    before = pa.total_allocated_bytes()
    assert byte_lengths([array]).sum() == 100_000 << 20
    assert pa.total_allocated_bytes() - before < 10 << 20
