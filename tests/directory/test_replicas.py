from __future__ import annotations

import pytest

from storage_core.directory import find_partitions
from storage_core.errors import ReplicaConflictError
from storage_core.filesystem import FileSystem

META = "version=1\nnode.id={node}\ncluster.id={cluster}\n"
TOPIC = "version: 0\ntopic_id: {id}"
ID_1 = "wFqg4oNsJ1B1z71xLHGZAw"
ID_2 = "6CgXJDfKuDjbrA9bquEYTg"


@pytest.fixture
def copies(tmp_path, make_partition, make_batch):
    """Make copies of one partition, each from (cluster id, topic id, leader epoch, records)."""

    def make(*descriptions):
        for number, (cluster_id, topic_id, epoch, record_count) in enumerate(descriptions, start=1):
            files = {}
            if topic_id is not None:
                files["partition.metadata"] = TOPIC.format(id=topic_id)
            if epoch is not None:
                files["leader-epoch-checkpoint"] = f"0\n1\n{epoch} 0\n"
            make_partition(f"broker-{number}/orders-0", {0: make_batch(0, list(range(record_count)))}, files)
            if cluster_id is not None:
                meta_properties = META.format(node=number, cluster=cluster_id)
                (tmp_path / f"broker-{number}/meta.properties").write_text(meta_properties)
        return [str(tmp_path / f"broker-{number}") for number in range(1, len(descriptions) + 1)]

    return make


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # The higher leader epoch wins, even with a shorter log.
        (("abc", ID_1, 5, 9), ("abc", ID_1, 7, 3), "broker-2"),
        (("abc", ID_1, 7, 3), ("abc", ID_1, 5, 9), "broker-1"),
        # Then the higher log end.
        (("abc", ID_1, 5, 3), ("abc", ID_1, 5, 9), "broker-2"),
        (("abc", ID_1, 5, 9), ("abc", ID_1, 5, 3), "broker-1"),
        # Then the path that was named first.
        (("abc", ID_1, 5, 3), ("abc", ID_1, 5, 3), "broker-1"),
        # A copy without ids matches any other.
        ((None, None, None, 3), ("abc", ID_1, 0, 3), "broker-2"),
        (("abc", None, None, 3), (None, ID_1, None, 9), "broker-2"),
        ((None, None, None, 3), (None, None, None, 9), "broker-2"),
    ],
)
def test_alternatives(copies, caplog, first, second, expected):
    paths = copies(first, second)
    (directory,) = find_partitions(FileSystem(), paths)
    assert directory.root.path.endswith(expected)
    assert len(caplog.records) == 1
    assert all(path in caplog.text for path in paths)


def test_three_copies(copies, caplog):
    paths = copies(("abc", ID_1, 5, 3), (None, None, 6, 3), ("abc", ID_1, 6, 9))
    (directory,) = find_partitions(FileSystem(), paths)
    assert directory.root.path == paths[2]
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("descriptions", "what"),
    [
        ([("abc", ID_1, 5, 3), ("xyz", ID_1, 6, 3)], "cluster.id, abc and xyz"),
        ([("abc", ID_1, 5, 3), ("abc", ID_2, 6, 3)], f"topic id, {ID_1} and {ID_2}"),
        ([("abc", None, 5, 3), (None, None, 6, 3), ("xyz", None, 6, 3)], "cluster.id, abc and xyz"),
    ],
)
def test_conflicts(copies, descriptions, what):
    paths = copies(*descriptions)
    with pytest.raises(ReplicaConflictError) as caught:
        find_partitions(FileSystem(), paths)
    assert what in str(caught.value)
    assert paths[0] in str(caught.value)
    assert paths[-1] in str(caught.value)


def test_two_directories_in_one_root_are_no_alternatives(tmp_path, make_partition):
    make_partition("logs/orders-1", {0: b""})
    make_partition("logs/orders-01", {0: b""})
    with pytest.raises(ReplicaConflictError, match="in one log directory"):
        find_partitions(FileSystem(), [str(tmp_path / "logs")])


def test_a_copy_with_corrupt_epochs_counts_as_old(copies, tmp_path, caplog):
    paths = copies(("abc", ID_1, 5, 9), ("abc", ID_1, 0, 3))
    (tmp_path / "broker-1/orders-0/leader-epoch-checkpoint").write_text("garbage")
    (directory,) = find_partitions(FileSystem(), paths)
    assert directory.root.path == paths[1]
    assert "A copy of orders-0 counts as an old one" in caplog.text


@pytest.mark.parametrize(
    ("file_name", "content"),
    [
        ("meta.properties", "version=7\n"),
        ("meta.properties", "node.id=1\nversion=1\nclust"),
        ("meta.properties", "\\u12"),
        ("orders-0/partition.metadata", ""),
        ("orders-0/partition.metadata", "version: 0\n"),
        ("orders-0/partition.metadata", "version: 0\ntopic_id: \xff"),
        ("orders-0/partition.metadata", "\0" * 10_000),
    ],
)
def test_a_copy_whose_ids_cannot_be_read_matches_any_other(copies, tmp_path, caplog, file_name, content):
    paths = copies(("abc", ID_1, 5, 9), ("abc", ID_1, 0, 3))
    (tmp_path / "broker-1" / file_name).write_text(content)
    (directory,) = find_partitions(FileSystem(), paths)
    assert directory.root.path == paths[0]
    assert f"Ignored a file, so that it is not known whether {paths[0]}" in caplog.text
    assert f"{paths[0]}/{file_name}" in caplog.text


def test_ids_that_can_be_read_must_agree_beside_one_that_cannot(copies, tmp_path):
    paths = copies(("abc", ID_1, 5, 3), (None, "damaged", 5, 3), ("abc", ID_2, 5, 3))
    with pytest.raises(ReplicaConflictError, match="topic id"):
        find_partitions(FileSystem(), paths)


@pytest.mark.parametrize("start_offset", [3, 4, 5_000])
def test_an_epoch_without_a_batch_does_not_count(copies, tmp_path, start_offset):
    paths = copies(("abc", ID_1, 5, 9), ("abc", ID_1, 5, 3))
    checkpoint = tmp_path / "broker-2/orders-0/leader-epoch-checkpoint"
    checkpoint.write_text(f"0\n2\n5 0\n7 {start_offset}\n")
    (directory,) = find_partitions(FileSystem(), paths)
    assert directory.root.path == paths[0]


def test_different_partitions_of_one_cluster_are_no_copies(tmp_path, make_partition):
    make_partition("broker-1/orders-0", {0: b""})
    make_partition("broker-2/orders-1", {0: b""})
    paths = [str(tmp_path / "broker-1"), str(tmp_path / "broker-2")]
    assert [directory.partition for directory in find_partitions(FileSystem(), paths)] == [0, 1]
