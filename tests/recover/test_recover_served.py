"""A recovery is complete only if a broker would serve what it made: topic ids, ``meta.properties``, and every partition."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.conformance.archives import unpack_case
from tests.recover.recovering import EXAMPLES, run, run_in_place

IDS = "partition.metadata"


@pytest.fixture
def source(tmp_path):
    """Return a broker's directory, stopped cleanly."""
    shutil.copytree(EXAMPLES, tmp_path / "source", ignore=shutil.ignore_patterns("README.md", ".git*"))
    (tmp_path / "source" / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":5}')
    return tmp_path / "source"


def unserved(report):
    assert report.is_complete == (not report.unserved)
    return {os.path.basename(each.path): each.reason for each in report.unserved}


def recovered(source, tmp_path, is_in_place):
    """Return the report, and where the recovered directory is."""
    if is_in_place:
        return run_in_place(source, tmp_path / "aside"), source
    return run(source, tmp_path / "target"), tmp_path / "target"


BROKEN = [
    None,
    b"",
    *(
        pytest.param(content, marks=pytest.mark.thorough)
        for content in (
            b"garbage",
            b"version: 0\n",
            b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
        )
    ),
]


def spoil(path, content):
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


@pytest.mark.parametrize("is_in_place", [False, True])
@pytest.mark.parametrize("content", BROKEN)
def test_a_lost_topic_id_is_that_of_another_partition(source, tmp_path, content, is_in_place):
    expected = (source / "orders-1" / IDS).read_bytes()
    spoil(source / "orders-1" / IDS, content)
    report, root = recovered(source, tmp_path, is_in_place)
    assert unserved(report) == {}
    assert (root / "orders-1" / IDS).read_bytes() == expected


def test_a_lost_topic_id_is_that_of_a_partition_that_was_not_chosen(source, tmp_path):
    expected = (source / "orders-1" / IDS).read_bytes()
    (source / "orders-1" / IDS).unlink()
    report = run(source / "orders-1", tmp_path / "target")
    assert unserved(report) == {}
    assert (tmp_path / "target" / "orders-1" / IDS).read_bytes() == expected


@pytest.mark.parametrize("is_in_place", [False, True])
@pytest.mark.parametrize("content", BROKEN[:3])
def test_a_topic_id_that_nothing_knows_is_not_invented(source, tmp_path, content, is_in_place):
    spoil(source / "clicks-0" / IDS, content)
    report, root = recovered(source, tmp_path, is_in_place)
    (reason,) = unserved(report).values()
    assert list(unserved(report)) == ["clicks-0"]
    assert "stray" in reason
    assert not (root / "clicks-0" / IDS).exists()


def test_a_topic_id_is_not_invented_without_meta_properties(source, tmp_path):
    """Copies of partitions are often without it."""
    (source / "meta.properties").unlink()
    (source / ".kafka_cleanshutdown").unlink()
    (source / "clicks-0" / IDS).unlink()
    report = run(source, tmp_path / "target")
    assert list(unserved(report)) == ["clicks-0"]
    assert not (tmp_path / "target" / "clicks-0" / IDS).exists()


def test_a_broker_with_zookeeper_needs_no_topic_id(source, tmp_path):
    (source / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=abc\n")
    (source / "clicks-0" / IDS).unlink()
    assert unserved(run(source, tmp_path / "target")) == {}


@pytest.fixture
def combined(tmp_path):
    """Return the directory of a node that is broker and controller."""
    logs, _ = unpack_case("internal", tmp_path / "case")
    return logs


@pytest.mark.parametrize("content", BROKEN)
def test_the_metadata_of_the_cluster_knows_every_topic_id(combined, tmp_path, content):
    expected = {path.parent.name: path.read_bytes() for path in combined.glob(f"*/{IDS}")}
    for path in combined.glob(f"*/{IDS}"):
        if not path.parent.name.startswith("__cluster_metadata"):
            spoil(path, content)
    report = run(combined, tmp_path / "target")
    assert unserved(report) == {}
    found = {path.parent.name: path.read_bytes() for path in (tmp_path / "target").glob(f"*/{IDS}")}
    assert found == expected


def test_the_snapshot_of_the_metadata_is_enough(combined, tmp_path):
    (path,) = combined.glob("data-0/partition.metadata")
    expected = path.read_bytes()
    path.unlink()
    for each in combined.glob("__cluster_metadata-0/*.log"):
        each.write_bytes(b"")
    assert unserved(run(combined, tmp_path / "target")) == {}
    assert (tmp_path / "target" / "data-0" / IDS).read_bytes() == expected


def test_an_id_that_the_cluster_does_not_have_is_named(combined, tmp_path):
    path = combined / "data-0" / IDS
    path.write_text("version: 0\ntopic_id: abcdefghijklmnopqrstug")
    report = run(combined, tmp_path / "target")
    assert "as in __cluster_metadata" in unserved(report)["data-0"]


def test_partitions_with_different_ids_are_named(source, tmp_path):
    (source / "orders-1" / IDS).write_text("version: 0\ntopic_id: abcdefghijklmnopqrstug")
    assert set(unserved(run(source, tmp_path / "target"))) == {"orders-0", "orders-1", "orders-2"}


@pytest.mark.parametrize("is_in_place", [False, True])
@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        *(
            pytest.param(content, marks=pytest.mark.thorough)
            for content in (b"version=1\ncluster.id=abc\n", b"version=7\n", b"cluster.id=abc\n", b"\\u00")
        ),
    ],
)
def test_meta_properties_that_a_broker_does_not_take_are_not_copied(source, tmp_path, content, is_in_place):
    spoil(source / "meta.properties", content)
    report, root = recovered(source, tmp_path, is_in_place)
    assert "does not start" in unserved(report)["meta.properties"]
    assert is_in_place or not (root / "meta.properties").exists()


def test_a_directory_of_no_broker_needs_no_meta_properties(source, tmp_path):
    (source / "meta.properties").unlink()
    (source / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}')
    assert unserved(run(source, tmp_path / "target")) == {}


def test_a_partition_that_only_checkpoints_know_is_named(source, tmp_path):
    shutil.rmtree(source / "orders-1")
    (reason,) = unserved(run(source, tmp_path / "target")).values()
    assert "reached offset 8632" in reason
    assert unserved(run(source, None, is_dry_run=True, options={"subscribe": "payments"})) == {}


def test_a_partition_that_awaits_its_deletion_is_not_missing(source, tmp_path):
    (source / "orders-1").rename(source / "orders-1.0123456789abcdef0123456789abcdef-delete")
    assert unserved(run(source, tmp_path / "target")) == {}


def test_a_directory_without_a_log_is_named(source, tmp_path):
    (source / "orders-7").mkdir()
    (source / "orders-7" / "00000000000000000000.index").touch()
    assert set(unserved(run(source, tmp_path / "target"))) == {"orders-7"}


@pytest.mark.parametrize("name", ["lost+found", ".snapshot", "notes"])
def test_what_keeps_a_broker_from_starting_is_named_if_it_stays(source, tmp_path, name):
    (source / name).mkdir()
    assert unserved(run(source, None, is_dry_run=True)) == {}
    assert set(unserved(run(source, None, is_dry_run=True, is_in_place=True))) == {name}
    assert set(unserved(run_in_place(source, tmp_path / "aside"))) == {name}
    (source / name).rename(source / "remote-log-index-cache")
    assert unserved(run(source, None, is_dry_run=True, is_in_place=True)) == {}
