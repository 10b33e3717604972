from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from storage_core.errors import InvalidRecordError
from storage_core.partitioning import KeyedRows

SIZES = np.array([10, 20, 30, 40])
INDEXES = np.array([1, 0, 1, 1], np.int8)


def test_as_many_rows_as_sizes():
    assert len(KeyedRows(("t",), (3,), SIZES)) == 4


def test_rows_by_topic():
    rows = KeyedRows(("t", "u", "v"), (3, 5, 7), SIZES, topic_indexes=INDEXES)
    assert [(topic, count, numbers.tolist()) for topic, count, numbers in rows.by_topic()] == [
        ("t", 3, [1]),
        ("u", 5, [0, 2, 3]),
    ]
    assert rows.counts_by_row().tolist() == [5, 3, 5, 5]


def test_rows_of_one_topic():
    rows = KeyedRows(("t",), (3,), SIZES)
    assert [(topic, count, numbers.tolist()) for topic, count, numbers in rows.by_topic()] == [
        ("t", 3, [0, 1, 2, 3])
    ]
    assert rows.counts_by_row() == 3


def test_no_rows():
    none = np.zeros(0, np.int64)
    assert list(KeyedRows((), (), none).by_topic()) == []
    assert list(KeyedRows((), (), none, topic_indexes=none).by_topic()) == []
    assert len(KeyedRows((), (), none, partitions=pa.array([], pa.int32()))) == 0


def test_some_of_the_rows():
    keys = pa.array([b"a", None, b"c", b"d"])
    rows = KeyedRows(("t", "u"), (3, 5), SIZES, keys, INDEXES, pa.array([0, 1, 2, None], pa.int32()))
    some = rows.take(np.array([1, 3]))
    assert some.sizes_bytes.tolist() == [20, 40]
    assert some.keys.to_pylist() == [None, b"d"]
    assert some.topic_indexes.tolist() == [0, 1]
    assert some.partitions is None


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"topics": ("t", "u")},
            "Expected a number of partitions for each topic; found 2 topics and 1 numbers.",
        ),
        (
            {"topics": (), "partition_counts": ()},
            "Expected a number of partitions for each topic; found 0 topics and 0 numbers.",
        ),
        ({"keys": pa.array([b"a"])}, "Expected 4 keys, one a row; found 1."),
        ({"topic_indexes": np.zeros(5, np.int64)}, "Expected 4 topic_indexes, one a row; found 5."),
        ({"partitions": pa.array([1], pa.int32())}, "Expected 4 partitions, one a row; found 1."),
        (
            {"partition_counts": (0,)},
            "Topic t has 0 partitions. It needs at least one to take rows.",
        ),
        ({"topic_indexes": INDEXES}, "Expected topic_indexes from 0 to 0; found 0 to 1."),
        ({"topic_indexes": -INDEXES}, "Expected topic_indexes from 0 to 0; found -1 to 0."),
        (
            {"partitions": pa.array([1, 2, 3, 4])},
            "Column `partition` must be int32; found int64. Cast it to int.",
        ),
        (
            {"partitions": pa.array([1, None, -1, 3], pa.int32())},
            "Invalid partition: -1. Partition number should always be non-negative or null. Found in row 2, of topic t.",
        ),
        (
            {"partitions": pa.array([1, None, 2, 3], pa.int32())},
            "Partition 3 of topic t with partition count 3 is not present. Found in row 3: use 0 to 2, or null to have one chosen.",
        ),
    ],
)
def test_what_does_not_fit_is_refused(columns, message):
    with pytest.raises(InvalidRecordError) as caught:
        KeyedRows(**{"topics": ("t",), "partition_counts": (3,), "sizes_bytes": SIZES, **columns})
    assert str(caught.value) == message


def test_a_partition_is_checked_against_its_own_topic():
    indexes, asked = np.array([0, 1, 1, 0]), pa.array([2, 4, 4, None], pa.int32())
    KeyedRows(("t", "u"), (3, 5), SIZES, topic_indexes=indexes, partitions=asked)
    with pytest.raises(
        InvalidRecordError, match=r"Partition 4 of topic t with partition count 3 .* in row 2:"
    ):
        KeyedRows(("u", "t"), (5, 3), SIZES, topic_indexes=np.array([0, 0, 1, 1]), partitions=asked)
