from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.partitioning import (
    DefaultPartitioner,
    KeyedRows,
    PartitionerState,
    RandomPartitioner,
    RoundRobinPartitioner,
    partition_for_key,
    partition_rows,
)

EVERY = [
    DefaultPartitioner(batch_size_bytes=100),
    DefaultPartitioner(batch_size_bytes=100, seed=5),
    RoundRobinPartitioner(),
    RandomPartitioner(),
]

# By Utils.toPositive(Utils.murmur2(key)) % numPartitions of Kafka 4.1.0.
PARTITIONS_BY_KAFKA = {
    b"": {1: 0, 3: 0, 6: 3, 10: 1, 12: 9, 50: 31},
    b"a": {1: 0, 3: 1, 6: 4, 10: 4, 12: 4, 50: 24},
    b"key": {1: 0, 3: 1, 6: 1, 10: 1, 12: 1, 50: 31},
    b"foobar": {1: 0, 3: 0, 6: 0, 10: 6, 12: 6, 50: 16},
    b"user-1": {1: 0, 3: 2, 6: 2, 10: 8, 12: 8, 50: 28},
    b"user-2": {1: 0, 3: 2, 6: 2, 10: 6, 12: 8, 50: 6},
    b"user-3": {1: 0, 3: 2, 6: 5, 10: 7, 12: 11, 50: 17},
}


def rows_of(count=None, *, partitions=4, sizes=None, **columns):
    """Rows of one topic."""
    sizes = np.full(count, 10) if sizes is None else np.array(sizes)
    return KeyedRows(("t",), (partitions,), sizes, **columns)


def choose(partitioner, rows, state=None):
    found = partition_rows(partitioner, rows, PartitionerState() if state is None else state)
    assert found.dtype == np.int32
    return found.tolist()


def turns(found):
    """Return how many rows in a row went to the same partition."""
    bounds = [0, *(np.flatnonzero(np.diff(found)) + 1), len(found)]
    return np.diff(bounds).tolist()


# -- Keys --------


@pytest.mark.parametrize("key", PARTITIONS_BY_KAFKA)
def test_a_key_has_kafkas_partition(key):
    for count, partition in PARTITIONS_BY_KAFKA[key].items():
        assert partition_for_key(key, count) == partition
        assert choose(DefaultPartitioner(), rows_of(2, partitions=count, keys=pa.array([key] * 2))) == [
            partition,
            partition,
        ]


def test_each_topic_counts_its_own_partitions():
    rows = KeyedRows(
        ("t", "u"), (10, 3), np.full(4, 9), pa.array([b"key", b"user-1"] * 2), np.array([0, 0, 1, 1])
    )
    assert choose(DefaultPartitioner(), rows) == [1, 8, 1, 2]


def test_a_key_stays_where_it_is_whatever_came_before():
    state = PartitionerState()
    keys = pa.array([b"user-2", None, b"user-2"])
    for _ in range(3):
        found = choose(DefaultPartitioner(batch_size_bytes=1), rows_of(3, partitions=10, keys=keys), state)
        assert (found[0], found[2]) == (6, 6)


# -- No keys: default --------


def test_rows_without_a_key_stay_together_until_a_batch_went_there():
    found = choose(DefaultPartitioner(batch_size_bytes=100), rows_of(35))
    assert turns(found) == [10, 10, 10, 5]
    assert len(set(found)) == 4


def test_the_row_that_exceeds_the_batch_is_its_last():
    found = choose(DefaultPartitioner(batch_size_bytes=100), rows_of(sizes=[99, 1, 60, 60, 500, 99, 2, 1]))
    assert turns(found) == [2, 2, 1, 2, 1]


def test_the_partitions_are_taken_in_a_circle():
    found = choose(DefaultPartitioner(batch_size_bytes=1), rows_of(9))
    assert [(number - found[0]) % 4 for number in found] == [0, 1, 2, 3, 0, 1, 2, 3, 0]


def test_a_batch_goes_on_in_the_next_call():
    state = PartitionerState()
    partitioner = DefaultPartitioner(batch_size_bytes=100)
    found = [*choose(partitioner, rows_of(7), state), *choose(partitioner, rows_of(7), state)]
    assert turns(found) == [10, 4]


def test_a_batch_of_no_size_is_one_row():
    assert turns(choose(DefaultPartitioner(batch_size_bytes=0), rows_of(5))) == [1, 1, 1, 1, 1]


def test_rows_with_a_key_fill_no_batch():
    keys = pa.array([None, b"a", b"a"] * 8, pa.binary())
    found = choose(DefaultPartitioner(batch_size_bytes=40), rows_of(24, keys=keys))
    assert turns(found[::3]) == [4, 4]


def test_neighbouring_seeds_begin_with_neighbouring_partitions():
    first = [choose(DefaultPartitioner(seed=seed), rows_of(1))[0] for seed in range(8)]
    assert sorted(first) == [0, 0, 1, 1, 2, 2, 3, 3]
    # Values that must not change between versions: a repeated task writes the same rows to the same partitions.
    assert first[:4] == [1, 2, 3, 0]


def test_topics_begin_with_different_partitions():
    names = tuple(f"topic-{number}" for number in range(50))
    rows = KeyedRows(names, (4,) * 50, np.full(50, 10), topic_indexes=np.arange(50))
    assert set(choose(DefaultPartitioner(), rows)) == {0, 1, 2, 3}


# -- Round robin, random --------


def test_round_robin_goes_round_from_the_first_partition():
    state = PartitionerState()
    keys = pa.array([b"a"] * 6)
    assert choose(RoundRobinPartitioner(), rows_of(6, keys=keys), state) == [0, 1, 2, 3, 0, 1]
    assert choose(RoundRobinPartitioner(), rows_of(3), state) == [2, 3, 0]
    assert choose(RoundRobinPartitioner(seed=3), rows_of(3)) == [3, 0, 1]


def test_round_robin_counts_each_topic():
    rows = KeyedRows(("t", "u"), (2, 3), np.full(7, 9), topic_indexes=np.array([0, 1, 1, 0, 1, 0, 1]))
    state = PartitionerState()
    assert choose(RoundRobinPartitioner(), rows, state) == [0, 0, 1, 1, 2, 0, 0]
    assert choose(RoundRobinPartitioner(), rows, state) == [1, 1, 2, 0, 0, 1, 1]


def test_the_counter_loses_its_sign_where_kafkas_overflows():
    assert choose(RoundRobinPartitioner(seed=2**31 - 1), rows_of(3, partitions=5)) == [2, 0, 1]


def test_random_takes_every_partition_about_as_often():
    state = PartitionerState()
    counts = np.bincount(choose(RandomPartitioner(), rows_of(40_000, partitions=7), state))
    assert len(counts) == 7
    # 5,714 of each are expected; 75 is one standard deviation.
    assert abs(counts - 40_000 / 7).max() < 5 * 75


def test_random_has_no_period_of_its_own():
    found = np.array(choose(RandomPartitioner(), rows_of(10_000)))
    for distance in (1, 2, 3, 4, 8, 16):
        assert abs(np.mean(found[distance:] == found[:-distance]) - 0.25) < 0.03


def test_random_depends_on_its_seed():
    # Values that must not change between versions.
    first = choose(RandomPartitioner(), rows_of(12))
    assert first == [1, 0, 3, 0, 1, 1, 3, 0, 1, 0, 1, 0]
    others = [choose(RandomPartitioner(seed=seed), rows_of(12)) for seed in (1, 2, -1, 2**63)]
    assert len({tuple(each) for each in [first, *others]}) == 5


# -- All --------


@pytest.mark.parametrize("partitioner", EVERY)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 2), st.none() | st.binary(max_size=9), st.integers(1, 150)), max_size=60
    ),
    cuts=st.lists(st.integers(0, 60), max_size=5),
)
def test_calls_and_other_topics_change_nothing(partitioner, rows, cuts):
    def found_in(pieces):
        state = PartitionerState()
        found = []
        for piece in pieces:
            indexes, keys, sizes = zip(*piece, strict=True) if piece else ((), (), ())
            columns = KeyedRows(
                ("t", "u", "v"),
                (4, 1, 7),
                np.array(sizes, np.int64),
                pa.array(keys, pa.binary()),
                np.array(indexes, int),
            )
            found += choose(partitioner, columns, state)
            state = pickle.loads(pickle.dumps(state))
        return found

    together = found_in([rows])
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    assert found_in([rows[a:b] for a, b in pairwise(bounds)]) == together
    assert all(0 <= partition < (4, 1, 7)[row[0]] for partition, row in zip(together, rows, strict=True))
    alone = found_in([[row for row in rows if row[0] == 2]])
    assert alone == [partition for partition, row in zip(together, rows, strict=True) if row[0] == 2]


@pytest.mark.parametrize("partitioner", EVERY)
@given(asked=st.lists(st.none() | st.integers(0, 3), max_size=50), with_keys=st.booleans())
def test_a_partition_that_is_asked_for_wins_and_is_not_counted(partitioner, asked, with_keys):
    keys = [b"%d" % number if with_keys and number % 3 else None for number in range(len(asked))]
    rows = rows_of(len(asked), keys=pa.array(keys, pa.binary()), partitions=4)
    rows = KeyedRows(
        rows.topics, rows.partition_counts, rows.sizes_bytes, rows.keys, None, pa.array(asked, pa.int32())
    )
    found = choose(partitioner, rows)
    free = [number for number, partition in enumerate(asked) if partition is None]
    others = rows_of(len(free), keys=pa.array([keys[number] for number in free], pa.binary()))
    assert [found[number] for number in free] == choose(partitioner, others)
    assert [found[number] for number, partition in enumerate(asked) if partition is not None] == [
        partition for partition in asked if partition is not None
    ]


@pytest.mark.parametrize("partitioner", EVERY)
def test_the_result_may_be_written_to(partitioner):
    asked = pa.array([1, 2], pa.int32())
    found = partition_rows(
        partitioner, KeyedRows(("t",), (4,), np.array([1, 1]), partitions=asked), PartitionerState()
    )
    found[0] = 3
    assert asked.to_pylist() == [1, 2]


@pytest.mark.parametrize("partitioner", EVERY)
def test_no_rows(partitioner):
    assert choose(partitioner, KeyedRows((), (), np.zeros(0, np.int64))) == []
