"""The topic and partition of each row, and rows without a valid one."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest
from pyarrow import compute

from storage_core.errors import InvalidRecordError, OptionError
from storage_core.partitioning import partition_for_key
from tests.spark.writers import batch, rows, staged_files, write, writer_of

# Kafka's partitions for these keys: murmur2, masked to a positive number, modulo 12.
PARTITIONS_OF_12 = {
    b"21": 0,
    b"foobar": 6,
    b"a-little-bit-long-string": 8,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": 5,
    b"abc": 3,
}


def test_keyed_rows_are_partitioned_as_by_kafkas_producer(root):
    keys = list(PARTITIONS_OF_12)
    write(writer_of(root, "key", "value", topic="t", partitions="12"), [batch(key=keys, value=keys)])
    found = rows(root)
    assert (
        dict(zip(found["key"].to_pylist(), found["partition"].to_pylist(), strict=True)) == PARTITIONS_OF_12
    )


def test_keyless_rows_stay_in_a_partition_until_a_batch_is_full(root):
    given = batch(value=[b"x" * 92] * 400)
    write(writer_of(root, "value", topic="t", partitions="4", batch__size="10000"), [given])
    counts = rows(root).group_by("partition").aggregate([("value", "count")])["value_count"].to_pylist()
    assert sorted(counts) == [100, 100, 100, 100]


def test_round_robin_and_random_ignore_keys(root, tmp_path):
    given = batch(key=[b"k"] * 40, value=[b"v"] * 40)
    write(writer_of(root, "key", "value", topic="t", partitions="4", partitioner="roundRobin"), [given])
    counts = rows(root).group_by("partition").aggregate([("value", "count")])["value_count"].to_pylist()
    assert counts == [10, 10, 10, 10]
    other = tmp_path / "random"
    write(writer_of(other, "key", "value", topic="t", partitions="4", partitioner="random"), [given])
    assert len(set(rows(other)["partition"].to_pylist())) == 4


def test_a_partition_column_wins_where_it_is_not_null(root):
    given = batch(key=[b"abc", b"abc"], value=[b"1", b"2"], partition=pa.array([7, None], pa.int32()))
    write(writer_of(root, "key", "value", "partition", topic="t", partitions="12"), [given])
    assert rows(root)["partition"].to_pylist() == [3, 7]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"topic": pa.array(["t", None])},
            "^null topic present in the data. Use the topic option for setting a default topic.",
        ),
        ({"topic": ["t", "a/b"]}, "as the name of a topic, found 'a/b'"),
        ({"topic": ["t", ".."]}, "as the name of a topic, found '..'"),
        ({"topic": ["t", "__cluster_metadata"]}, "'__cluster_metadata', the log of a cluster's own metadata"),
        (
            {"topic": pa.array([b"t", b"caf\xe9"]).view(pa.string())},
            r"found bytes that are no UTF-8 text: b'caf\\xe9'",
        ),
        (
            {"topic": ["t", "t"], "partition": pa.array([0, 2], pa.int32())},
            "^Partition 2 of topic t with partition count 2",
        ),
        ({"topic": ["t", "t"], "partition": pa.array([0, -1], pa.int32())}, "^Invalid partition: -1."),
    ],
)
def test_rows_without_a_valid_partition_fail_their_task_and_leave_nothing(root, columns, message):
    writer = writer_of(root, "value", *columns, partitions="2")
    with pytest.raises((InvalidRecordError, OptionError), match=message):
        writer.write(iter([batch(value=[b"1", b"2"], **columns)]))
    assert staged_files(root) == []


@pytest.mark.parametrize("columns", [{}, {"key": pa.array([b"k", None], pa.binary())}])
def test_rows_of_a_compacted_topic_have_keys(root, columns):
    writer = writer_of(root, "value", *columns, topic="t", cleanup__policy="delete,compact")
    with pytest.raises(InvalidRecordError, match=r"^Compacted topic cannot accept message without key"):
        writer.write(iter([batch(value=[b"1", b"2"], **columns)]))
    assert staged_files(root) == []
    write(
        writer_of(root, "key", "value", topic="t", cleanup__policy="compact"),
        [batch(key=[b"k"], value=[b"1"])],
    )
    assert rows(root)["key"].to_pylist() == [b"k"]


@pytest.mark.parametrize("column", ["offset", "partition"])
def test_preserved_offsets_and_their_partitions_are_never_null(root, column):
    columns = {"offset": pa.array([5], pa.int64()), "partition": pa.array([0], pa.int32())}
    columns[column] = pa.array([None], columns[column].type)
    writer = writer_of(root, "value", "offset", "partition", topic="t", preserveOffsets="true")
    with pytest.raises(InvalidRecordError, match=f"^null {column} present in the data. With preserveOffsets"):
        writer.write(iter([batch(value=[b"1"], **columns)]))


def test_partitions_that_may_be_on_another_disk_are_not_created(root):
    write(
        writer_of(root, "value", "partition", topic="t", partitions="3"),
        [batch(value=[b"1"], partition=pa.array([0], pa.int32()))],
    )
    for name in os.listdir(root / "t-1"):
        (root / "t-1" / name).unlink()
    (root / "t-1").rmdir()
    writer = writer_of(root, "value", "partition", topic="t")
    with pytest.raises(
        InvalidRecordError,
        match=r"Partition 1 of topic t is not in this log directory, which holds its partitions 0, 2\.",
    ):
        writer.write(iter([batch(value=[b"1"], partition=pa.array([1], pa.int32()))]))
    write(writer, [batch(value=[b"2"], partition=pa.array([2], pa.int32()))])
    assert rows(root)["partition"].to_pylist() == [0, 2]


def test_a_brokers_disk_may_hold_the_first_partitions_of_a_topic_only(root):
    """Keys are hashed over all partitions in the cluster, as a producer does."""
    write(writer_of(root, "value", topic="t", partitions="2"), [batch(value=[b"1"])])
    (root / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=4L6g3nShT-eMCtK--X86sw\n")
    options = {"topic": "t", "brokerDirectory": "true", "partitions": "6"}
    writer = writer_of(root, "key", "value", **options)
    with pytest.raises(
        InvalidRecordError, match=r"^Partition [2-5] of topic t is not .* holds its partitions 0, 1\."
    ):
        writer.write(iter([batch(key=[b"%d" % number for number in range(50)], value=[b"v"] * 50)]))
    places = {key: partition_for_key(key, 6) for key in (b"k%d" % number for number in range(40))}
    here = [key for key, place in places.items() if place < 2]
    write(writer_of(root, "key", "value", **options), [batch(key=here, value=[b"v"] * len(here))])
    found = rows(root).filter(compute.field("key").is_valid())
    assert {row["key"]: row["partition"] for row in found.to_pylist()} == {key: places[key] for key in here}


def test_tasks_side_by_side_fill_different_partitions(root):
    given = [batch(value=[b"1"])]
    write(writer_of(root, "value", topic="t", partitions="3"), given, given, given)
    assert rows(root)["partition"].to_pylist() == [0, 1, 2]
