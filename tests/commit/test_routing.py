from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.commit.routing import PartitionNumbers, RoutedRows
from storage_core.errors import InvalidRecordError, OptionError


def rows(topics, indexes, partitions):
    records = pa.RecordBatch.from_pydict({"value": [b"v"] * len(partitions)})
    return RoutedRows(
        records,
        topics,
        None if indexes is None else np.array(indexes, np.int64),
        np.array(partitions, np.int32),
    )


def test_each_partition_gets_a_number_and_keeps_it():
    numbers = PartitionNumbers()
    first = numbers.of_rows(rows(["a", "b"], [0, 1, 0, 1], [5, 0, 5, 7]))
    assert [numbers.topic_partition(number) for number in first] == [("a", 5), ("b", 0), ("a", 5), ("b", 7)]
    # Topics may come in another order.
    second = numbers.of_rows(rows(["b", "c", "a"], [2, 0, 1, 2], [5, 7, 2**31 - 1, 0]))
    assert second[0] == first[0]
    assert second[1] == first[3]
    assert numbers.topic_partition(int(second[2])) == ("c", 2**31 - 1)
    assert len(numbers) == 5
    assert sorted({*first.tolist(), *second.tolist()}) == [0, 1, 2, 3, 4]


def test_all_rows_of_the_first_topic():
    numbers = PartitionNumbers()
    found = numbers.of_rows(rows(["b", "a"], None, [1, 0, 1]))
    assert [numbers.topic_partition(number) for number in found] == [("b", 1), ("b", 0), ("b", 1)]


@given(st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50)), max_size=30), max_size=6))
def test_partitions_are_numbered(batches):
    numbers = PartitionNumbers()
    for batch in batches:
        found = numbers.of_rows(rows(["x", "y", "z"], [row[0] for row in batch], [row[1] for row in batch]))
        named = [("xyz"[topic], partition) for topic, partition in batch]
        assert [numbers.topic_partition(number) for number in found] == named
    assert len(numbers) == len({row for batch in batches for row in batch})


@given(
    st.lists(
        st.lists(st.integers(0, 40) | st.sampled_from([70, 65_534, 65_535, 65_536, 1 << 30])), max_size=6
    )
)
def test_partitions_of_one_topic_are_numbered(batches):
    numbers = PartitionNumbers()
    for partitions in batches:
        found = numbers.of_rows(rows(["x"], None, partitions))
        assert [numbers.topic_partition(number) for number in found] == [("x", each) for each in partitions]
        other = numbers.of_rows(rows(["y", "x"], None, partitions[:1]))
        assert [numbers.topic_partition(number) for number in other] == [
            ("y", each) for each in partitions[:1]
        ]
    distinct = {each for partitions in batches for each in partitions}
    firsts = {partitions[0] for partitions in batches if partitions}
    assert len(numbers) == len(distinct) + len(firsts)


def test_more_partitions_than_a_table_holds_numbers_of():
    numbers = PartitionNumbers()
    partitions = list(range(66_000))
    for _ in range(2):
        found = numbers.of_rows(rows(["x"], None, partitions))
        assert found.tolist() == partitions


@pytest.mark.parametrize(
    ("topics", "indexes", "partitions", "message"),
    [
        (["t"], None, [0, -3], "Invalid partition: -3. Partition number should always be non-negative"),
        (["t"], [0, 1], [0, 0], "from 0 to 0, found 0 to 1"),
        (["t"], [-1, 0], [0, 0], "found -1 to 0"),
        ([], None, [0], "from 0 to -1"),
    ],
)
def test_invalid_partitions_and_topic_indexes_are_refused(topics, indexes, partitions, message):
    with pytest.raises(InvalidRecordError, match=message):
        rows(topics, indexes, partitions)


@pytest.mark.parametrize(
    ("topic", "partition"),
    [("", 0), ("..", 0), ("a/b", 0), ('t"', 0), ("t" * 250, 0), ("__cluster_metadata", 0), ("t", 2**31)],
)
def test_invalid_names_of_topics_are_refused(topic, partition):
    records = pa.RecordBatch.from_pydict({"value": [b"v"]})
    with pytest.raises(OptionError):
        PartitionNumbers().of_rows(RoutedRows(records, [topic], None, np.array([partition])))


def test_columns_of_another_length():
    records = pa.RecordBatch.from_pydict({"value": [b"v"] * 3})
    with pytest.raises(InvalidRecordError, match="3 partitions, one for each row, found 2"):
        RoutedRows(records, ["t"], None, np.zeros(2, np.int32))
    with pytest.raises(InvalidRecordError, match="3 topic_indexes, one for each row, found 4"):
        RoutedRows(records, ["t"], np.zeros(4, np.int32), np.zeros(3, np.int32))


def test_no_rows_at_all():
    assert rows([], None, []).records.num_rows == 0
