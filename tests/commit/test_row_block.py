from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.commit.routing import RowBlock, held_bytes

LONG = b"longer than a view holds by itself"
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def first_batch():
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"a", None, LONG], pa.binary()),
            "value": pa.array([LONG + b"1", b"", None], pa.binary()),
            "timestamp": pa.array([1, None, 3], pa.int64()),
            "headers": pa.array([None, [{"key": "h", "value": b"x"}], []], HEADERS),
        }
    )


def second_batch():
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([LONG + b"2", b"b"], pa.binary()),
            "value": pa.array([b"twelve bytes", b"thirteen byte"], pa.binary()),
            "timestamp": pa.array([None, 5], pa.int64()),
            "headers": pa.array([[{"key": "i", "value": None}] * 2, None], HEADERS),
        }
    )


def test_rows_in_any_order():
    batches = [first_batch(), second_batch(), first_batch().slice(1, 2)]
    listed = [row for batch in batches for row in batch.to_pylist()]
    order = np.array([6, 0, 3, 5, 4, 1, 2])
    block, unmoved = RowBlock(batches, np.argsort(order)), RowBlock(batches, np.zeros(7, np.int64))
    for start, stop in [(0, 7), (2, 5), (6, 7), (3, 3)]:
        found = block.rows(start, stop)
        found.validate(full=True)
        assert found.to_pylist() == [listed[row] for row in order[start:stop]]
        as_they_came = unmoved.rows(start, stop)
        as_they_came.validate(full=True)
        assert as_they_came.to_pylist() == listed[start:stop]


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
    ],
    ids=str,
)
def test_each_type_of_byte_strings(kind):
    contents = ["short", None, "", "quite a bit longer"]
    as_bytes = [None if content is None else content.encode() for content in contents]
    array = pa.array(contents).cast(kind) if kind != pa.binary_view() else pa.array(as_bytes, kind)
    block = RowBlock([pa.RecordBatch.from_arrays([array.slice(1)], ["value"])] * 2, np.arange(5, -1, -1))
    found = block.rows(0, 6).column("value")
    found.validate(full=True)
    assert found.to_pylist() == (as_bytes[1:] * 2)[::-1]


def test_byte_strings_of_one_length_and_nulls_alone():
    fixed = pa.RecordBatch.from_arrays(
        [pa.array([b"abc", None], pa.binary(3)), pa.nulls(2)], ["value", "key"]
    )
    found = RowBlock([fixed], np.array([1, 0])).rows(0, 2)
    assert found.to_pylist() == [{"value": None, "key": None}, {"value": b"abc", "key": None}]


def test_offsets_are_kept_apart():
    batch = pa.RecordBatch.from_pydict({"offset": pa.array([7, 9], pa.int64()), "value": [b"a", b"b"]})
    block = RowBlock([batch, batch], np.array([0, 1, 0, 1]))
    assert block.offsets.tolist() == [7, 7, 9, 9]
    assert block.rows(0, 1).to_pylist() == [{"value": b"a"}]
    assert RowBlock([first_batch()], np.zeros(3, np.int64)).offsets is None


def test_long_contents_are_not_copied():
    values = pa.array([b"x" * 1000] * 1000, pa.binary())
    before = pa.total_allocated_bytes()
    block = RowBlock([pa.RecordBatch.from_arrays([values], ["value"])], np.zeros(1000, np.int64))
    assert pa.total_allocated_bytes() - before < 100_000
    assert block.ends.tolist() == [1000]


@given(st.lists(st.integers(0, 5) | st.integers(0, 1 << 17), min_size=1, max_size=200))
def test_rows_are_brought_together_and_keep_their_order(numbers):
    places = pa.RecordBatch.from_pydict({"timestamp": pa.array(range(len(numbers)))})
    block = RowBlock([places], np.array(numbers, np.int64))
    order = block.rows(0, len(numbers)).column("timestamp").to_pylist()
    assert order == sorted(range(len(numbers)), key=lambda row: (numbers[row], row))
    assert block.partitions.tolist() == sorted(set(numbers))
    counts = np.diff(block.ends, prepend=0).tolist()
    assert counts == [numbers.count(number) for number in sorted(set(numbers))]


def test_the_memory_of_rows_includes_their_views():
    batch = pa.RecordBatch.from_pydict({"key": [b"k"] * 100, "value": [b"v"] * 100})
    assert batch.nbytes + 100 * 32 < held_bytes(batch) < batch.nbytes + 100 * 100
