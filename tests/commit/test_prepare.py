"""The ids of topics whose partitions a commit finds, or makes."""

from __future__ import annotations

import pytest

from storage_core.checkpoint import read_partition_metadata
from storage_core.errors import OptionError
from tests.commit.jobs import CONFIG, JOBS, ROOT, TOPIC_ID, commit, contents, fill, rows_of, staged_job
from tests.faults.simulated_filesystem import SimulatedFileSystem

METADATA = f"version: 0\ntopic_id: {TOPIC_ID}".encode()


def log_directory(*directories):
    """A clean root with one old log, and empty directories."""
    filesystem = SimulatedFileSystem()
    fill(filesystem, ROOT, ("orders", 0, 2))
    for name in directories:
        filesystem.make_directory(f"{ROOT}/{name}")
    return filesystem


def topic_id(filesystem, name):
    return read_partition_metadata(filesystem, f"{ROOT}/{name}/partition.metadata")


def test_an_empty_directory_gets_a_topic_id_with_the_commit():
    """Without it, a broker puts the directory aside."""
    filesystem = log_directory("t-0")
    commit(filesystem, ROOT, JOBS[0], rows_of(("t", 0, 3)))
    assert len(contents(filesystem, ROOT)["t", 0]) == 3
    assert topic_id(filesystem, "t-0") is not None


def test_a_partition_gets_the_id_of_its_topics_other_partitions():
    filesystem = log_directory("t-0", "t-1")
    filesystem.put(f"{ROOT}/t-1/partition.metadata", METADATA)
    commit(filesystem, ROOT, JOBS[0], rows_of(("t", 0, 3)))
    assert topic_id(filesystem, "t-0") == TOPIC_ID


def test_partitions_of_one_commit_get_the_same_topic_id():
    filesystem = log_directory("t-0", "t-1")
    commit(filesystem, ROOT, JOBS[0], rows_of(("t", 0, 3), ("t", 1, 3)))
    assert topic_id(filesystem, "t-0") == topic_id(filesystem, "t-1") is not None


def test_a_log_that_lost_its_topic_id_gets_one():
    filesystem = log_directory()
    filesystem.delete(f"{ROOT}/orders-0/partition.metadata")
    commit(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 3)), topic_ids={"orders": TOPIC_ID})
    assert topic_id(filesystem, "orders-0") == TOPIC_ID
    assert len(contents(filesystem, ROOT)["orders", 0]) == 5


def test_in_a_brokers_directory_no_partition_gets_a_topic_id():
    """What a broker made is left as it is."""
    filesystem = log_directory()
    filesystem.put(f"{ROOT}/meta.properties", b"version=1\ncluster.id=c\nnode.id=1\n")
    filesystem.delete(f"{ROOT}/orders-0/partition.metadata")
    commit(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 3)), broker_directory=True, config=CONFIG)
    assert topic_id(filesystem, "orders-0") is None


def test_partitions_with_a_topic_id_keep_it():
    filesystem = log_directory()
    before = topic_id(filesystem, "orders-0")
    written = []
    filesystem.observe = lambda call: written.append(call.path)
    commit(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 3)))
    assert topic_id(filesystem, "orders-0") == before
    assert [path for path in written if "partition.metadata" in path] == []


@pytest.mark.parametrize("wanted", ["abc", "A" * 22, TOPIC_ID + "A"])
def test_an_invalid_topic_id_is_refused_before_anything_is_done(wanted):
    filesystem = log_directory()
    job = staged_job(
        filesystem, ROOT, JOBS[0], rows_of(("t", 0, 3)), new_partitions={"t": 1}, topic_ids={"t": wanted}
    )
    before = filesystem.files()
    with pytest.raises(OptionError, match=f"as the id of topic t, found '{wanted}'"):
        job.commit()
    assert filesystem.files() == before
