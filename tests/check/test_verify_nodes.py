"""What `segmentlog verify` foretells of the whole node: where a broker does not start, or serves nothing of a partition."""

from __future__ import annotations

import os
import shutil

import pytest

from storage_core.check.verify import plan_verification, verify
from storage_core.directory import find_partitions
from storage_core.filesystem import FileSystem
from storage_core.internal_records.internal_records import CLUSTER_METADATA
from storage_core.options import options_of
from storage_core.views.roots import find_roots
from tests.internal_records.message_bytes import framed_bytes
from tests.log.logs import name, open_directory, table, unclean, write

TOPIC_ID, OTHER_ID = "AAAAAAAAQACAAAAAAAAAqg", "AAAAAAAAQACAAAAAAAAAqw"
DISK_IDS = ("AAAAAAAAQACAAAAAAAAA1A", "AAAAAAAAQACAAAAAAAAA1Q")
CLUSTER = "c2VnbWVudGxvZy1kYXRhMQ"
UNIQUE = "0123456789abcdef0123456789abcdef"
META, METADATA = "meta.properties", "partition.metadata"


def report_of(*paths, **options):
    filesystem = FileSystem()
    return verify(filesystem, plan_verification(filesystem, options_of(list(map(str, paths)), options)))


def found(report):
    return [
        (each.severity, each.kind, os.path.basename(each.file), each.action)
        for each in report.findings
        if each.severity != "note"
    ]


def owned(disk, number=0, *, node_id=1, cluster_id=CLUSTER):
    """Make a broker the owner of a log directory."""
    lines = [
        "version=1",
        f"node.id={node_id}",
        f"cluster.id={cluster_id}",
        f"directory.id={DISK_IDS[number]}",
    ]
    (disk / META).write_text("\n".join(lines))
    return disk


def identified(partition, topic_id=TOPIC_ID):
    (partition / METADATA).write_text(f"version: 0\ntopic_id: {topic_id}")
    return partition


def cluster_metadata(disk, *records, voters=(1,)):
    """Write the log of the cluster's metadata: records are a name, a version and fields."""
    values = [framed_bytes(CLUSTER_METADATA[kind], version, fields) for kind, version, fields in records]
    scratch = disk.with_name("scratch")
    with open_directory(scratch) as logs:
        log = logs.create("metadata")
        for value in values:
            log.append(table(value))
    path = disk / "__cluster_metadata-0"
    shutil.move(scratch / "metadata-0", path)
    ids = ",".join(f'{{"voterId":{voter}}}' for voter in voters)
    (path / "quorum-state").write_text(f'{{"leaderId":1,"currentVoters":[{ids}],"data_version":0}}')


def topic(name, topic_id):
    return ("TopicRecord", 0, {"name": name, "topicId": topic_id})


def partition_of(topic_id, partition, replicas=(1,), directory_ids=DISK_IDS[:1]):
    fields = {
        "partitionId": partition,
        "topicId": topic_id,
        "replicas": list(replicas),
        "isr": list(replicas),
    }
    fields |= {
        "removingReplicas": [],
        "addingReplicas": [],
        "leader": 1,
        "leaderEpoch": 0,
        "partitionEpoch": 0,
    }
    return ("PartitionRecord", 1, {**fields, "directories": list(directory_ids)})


@pytest.fixture
def disk(tmp_path):
    """Return a broker's log directory with the partition orders-0, closed cleanly."""
    write(tmp_path / "disk0", 5)
    identified(tmp_path / "disk0" / "orders-0")
    return owned(tmp_path / "disk0")


def second_disk(disk):
    """Another log directory of the same broker, with events-0."""
    other = disk.with_name("disk1")
    write(other, 5)
    (other / "orders-0").rename(other / "events-0")
    identified(other / "events-0", OTHER_ID)
    return owned(other, 1)


def test_a_sound_node(disk):
    cluster_metadata(disk, topic("orders", TOPIC_ID), partition_of(TOPIC_ID, 0))
    report = report_of(disk, second_disk(disk))
    assert [each for each in found(report) if each[2] != "partition.metadata"] == []


# Directories that hold no partition.


@pytest.mark.parametrize(
    "directory",
    ["lost+found", ".snapshot", "archive", "orders-0.bak", "orders-x", "-0", "orders-", "orders-0-delete", "x-stray"],
)  # fmt: skip
def test_a_broker_does_not_start_with_a_directory_that_is_no_partition(disk, directory):
    (disk / directory).mkdir()
    report = report_of(disk)
    assert found(report) == [("damage", "file", directory, "refuse")]
    assert report.roots[0].is_refused


def test_a_broker_does_not_start_with_a_link_to_a_foreign_directory(disk, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (disk / "elsewhere").symlink_to(tmp_path / "elsewhere")
    assert found(report_of(disk)) == [("damage", "file", "elsewhere", "refuse")]


def test_a_broker_does_not_start_while_a_job_commits(disk):
    (disk / "segmentlog.commit-in-progress").mkdir()
    assert found(report_of(disk)) == [("suspect", "file", "segmentlog.commit-in-progress", "refuse")]


def test_caches_files_and_directories_in_deletion_may_be_in_a_log_directory(disk):
    (disk / "remote-log-index-cache").mkdir()
    (disk / "notes.txt").write_text("keep")
    shutil.copytree(disk / "orders-0", disk / f"orders-1.{UNIQUE}-delete")
    assert found(report_of(disk)) == []


def test_a_directory_with_a_partitions_name_that_holds_nothing_is_set_aside(disk):
    (disk / ".Trash-1000").mkdir()
    assert found(report_of(disk)) == [("suspect", "file", ".Trash-1000", "set aside")]


# meta.properties.


@pytest.mark.parametrize("content", ["", "#\n#Mon", "node.id=1\n", "version=2\nnode.id=1\ncluster.id=x"])
def test_a_broker_does_not_start_without_its_node_id(disk, content):
    (disk / META).write_text(content)
    assert ("damage", "metadata", META, "refuse") in found(report_of(disk))


@pytest.mark.parametrize("directory_id", ["AA", "AAAAAAAAAAAAAAAAAAAAAQ", "no id of a directory at all"])
def test_a_broker_does_not_start_with_a_wrong_directory_id(disk, directory_id):
    text = (disk / META).read_text()
    (disk / META).write_text(text.replace(DISK_IDS[0], directory_id))
    assert found(report_of(disk)) == [("damage", "metadata", META, "refuse")]


@pytest.mark.parametrize("sign", ["__cluster_metadata-0", "bootstrap.checkpoint", ".kafka_cleanshutdown"])
def test_a_brokers_log_directory_without_its_owner(disk, sign):
    if sign == "__cluster_metadata-0":
        cluster_metadata(disk, topic("orders", TOPIC_ID))
    else:
        (disk / sign).write_text('{"version":0,"brokerEpoch":12}')
    (disk / META).unlink()
    assert found(report_of(disk)) == [("damage", "metadata", META, "refuse")]


def test_a_directory_that_no_broker_wrote_needs_no_owner(disk):
    (disk / META).unlink()
    assert found(report_of(disk)) == []


# Topic ids.


def test_a_partition_without_a_topic_id_is_set_aside(disk):
    (disk / "orders-0" / METADATA).unlink()
    report = report_of(disk)
    assert found(report) == [("damage", "metadata", METADATA, "set aside")]
    assert report.partitions[0].start.stray is not None


def test_the_missing_topic_id_is_named_where_the_cluster_knows_it(disk):
    cluster_metadata(disk, topic("orders", TOPIC_ID), partition_of(TOPIC_ID, 0))
    (disk / "orders-0" / METADATA).unlink()
    (finding,) = report_of(disk).findings
    assert f"Write the topic id, {TOPIC_ID}, into it." in finding.reason


def test_an_empty_partition_without_a_topic_id_is_what_a_crash_leaves(disk):
    for path in (disk / "orders-0").iterdir():
        path.unlink()
    (disk / "orders-0" / name(0)).write_bytes(b"")
    (disk / "orders-0" / name(0, "index")).write_bytes(b"")
    unclean(disk)
    assert ("unclean", "metadata", METADATA, "set aside") in found(report_of(disk))


@pytest.mark.parametrize(
    ("records", "is_known"),
    [
        ([topic("orders", OTHER_ID)], True),
        ([topic("events", OTHER_ID)], True),
        ([topic("orders", TOPIC_ID), partition_of(TOPIC_ID, 1, directory_ids=())], True),
        ([topic("orders", TOPIC_ID), ("RemoveTopicRecord", 0, {"topicId": TOPIC_ID})], True),
        ([topic("orders", TOPIC_ID), partition_of(TOPIC_ID, 0, (7,), ())], False),
    ],
)
def test_a_partition_that_the_cluster_does_not_have_here_is_set_aside(disk, records, is_known):
    cluster_metadata(disk, *records)
    report = report_of(disk)
    severity = "damage" if is_known else "suspect"
    assert found(report) == [(severity, "metadata", METADATA, "set aside")]
    assert (report.partitions[1].start.stray is not None) == is_known


def test_the_id_of_another_topic_of_the_cluster(disk):
    cluster_metadata(disk, topic("events", TOPIC_ID), partition_of(TOPIC_ID, 0, directory_ids=()))
    report = report_of(disk)
    assert found(report) == [("damage", "metadata", METADATA, "refuse")]
    assert report.partitions[1].start.refusal == "its topic id is that of events"


def test_a_broken_state_of_the_quorum(disk):
    cluster_metadata(disk, topic("orders", TOPIC_ID), partition_of(TOPIC_ID, 0))
    (disk / "__cluster_metadata-0" / "quorum-state").write_bytes(b"\xff{")
    report = report_of(disk)
    assert found(report) == [("damage", "metadata", "quorum-state", "refuse")]
    assert report.roots[0].is_refused


def test_a_topic_that_only_other_controllers_may_know(disk):
    cluster_metadata(disk, topic("events", OTHER_ID), voters=(1, 2, 3))
    report = report_of(disk)
    assert found(report) == [("suspect", "metadata", METADATA, "set aside")]
    assert report.partitions[1].start.stray is None


def test_every_start_rebuilds_the_indexes_of_the_metadata_log(disk):
    """`recover` copies it as a killed broker leaves it."""
    cluster_metadata(disk, topic("orders", TOPIC_ID), partition_of(TOPIC_ID, 0))
    (disk / "__cluster_metadata-0" / name(0, "timeindex")).write_bytes(b"")
    assert report_of(disk).verdict == "sound"
    unclean(disk)
    assert ("unclean", "time index", name(0, "timeindex"), "rebuild index") in found(report_of(disk))


def test_metadata_that_inflates_without_end_says_nothing(disk, monkeypatch):
    monkeypatch.setattr("storage_core.check.cluster_topics._MOST_INFLATED_BYTES", 200)
    cluster_metadata(disk, topic("events", OTHER_ID), *[topic("many", OTHER_ID)] * 9)
    assert found(report_of(disk)) == []


def test_metadata_that_cannot_be_read_says_nothing(disk):
    cluster_metadata(disk, topic("events", OTHER_ID))
    path = disk / "__cluster_metadata-0" / name(0)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert METADATA not in [each[2] for each in found(report_of(disk))]


def test_a_partition_that_the_cluster_has_here_is_not_there(disk):
    records = [topic("orders", TOPIC_ID), partition_of(TOPIC_ID, 0), partition_of(TOPIC_ID, 1)]
    cluster_metadata(disk, *records)
    assert found(report_of(disk)) == [("suspect", "file", "orders-1", "unnoticed")]


def test_a_log_directory_that_the_cluster_knows_by_another_id(disk):
    cluster_metadata(disk, topic("orders", TOPIC_ID), partition_of(TOPIC_ID, 0, directory_ids=DISK_IDS[1:]))
    assert found(report_of(disk)) == [("suspect", "metadata", META, "unnoticed")]


def test_a_log_directory_that_the_cluster_knows_as_that_of_another_broker(disk):
    other = owned(second_disk(disk), 1, node_id=7)
    records = [topic("orders", TOPIC_ID), partition_of(TOPIC_ID, 0)]
    records += [topic("events", OTHER_ID), partition_of(OTHER_ID, 0, directory_ids=DISK_IDS[1:])]
    cluster_metadata(disk, *records)
    report = report_of(disk, other)
    assert [root.is_refused for root in report.roots] == [False, True]
    assert ("damage", "metadata", META, "refuse") in found(report)


# Several log directories.


def test_a_partition_in_two_log_directories_of_a_broker(disk):
    other = second_disk(disk)
    shutil.copytree(disk / "orders-0", other / "orders-0")
    report = report_of(disk, other)
    assert found(report) == [("damage", "file", "orders-0", "refuse")] * 2
    assert all(root.is_refused for root in report.roots)


def test_two_brokers_and_two_copies_of_one_log_directory_are_no_two_disks(disk):
    shutil.copytree(disk, disk.with_name("copy"))
    assert {each[0] for each in found(report_of(disk, disk.with_name("copy")))} == {"suspect"}
    owned(disk.with_name("copy"), 1, node_id=2)
    assert found(report_of(disk, disk.with_name("copy"))) == []


def test_a_move_beside_its_original(disk):
    shutil.copytree(disk / "orders-0", disk / f"orders-0.{UNIQUE}-future")
    assert found(report_of(disk)) == [("damage", "file", f"orders-0.{UNIQUE}-future", "refuse")]


def test_a_move_between_log_directories(disk):
    other = second_disk(disk)
    shutil.copytree(disk / "orders-0", other / f"orders-0.{UNIQUE}-future")
    assert found(report_of(disk, other)) == []


def test_log_directories_of_one_broker_in_two_clusters(disk):
    other = owned(second_disk(disk), 1, cluster_id="AAAAAAAAQACAAAAAAAAAqg")
    assert found(report_of(disk, other)) == [("suspect", "metadata", META, "unnoticed")]


# What is looked at.


@pytest.mark.parametrize("state", ["delete", "stray", "future"])
def test_a_directory_in_another_state_is_verified_if_it_is_named(disk, state):
    path = disk / f"orders-0.{UNIQUE}-{state}"
    (disk / "orders-0").rename(path)
    report = report_of(path)
    assert [each.log_end_offset for each in report.partitions] == [5]
    assert report.verdict == "suspect"
    assert report_of(disk).verdict == "suspect"


def test_nothing_looked_at_is_not_sound(disk):
    shutil.rmtree(disk / "orders-0")
    report = report_of(disk)
    assert (report.verdict, report.partitions) == ("suspect", ())


def test_compressed_log_files_are_no_log(disk):
    path = disk / "orders-0" / name(0)
    path.rename(path.with_name(path.name + ".gz"))
    assert ("suspect", "file", f"{path.name}.gz", "unnoticed") in found(report_of(disk))


@pytest.mark.parametrize(
    ("file", "action"),
    [
        ("a.log", "refuse"), ("a.snapshot", "refuse"), ("copy of 1.index", "refuse"), ("0000.log", "unnoticed"),
        ("7.snapshot", "unnoticed"),
    ],
)  # fmt: skip
def test_a_file_whose_name_has_no_offset(disk, file, action):
    (disk / "orders-0" / file).write_bytes(b"")
    report = report_of(disk)
    assert found(report) == [("damage", "file", file, action)]
    assert (report.partitions[0].start.refusal is None) == (action == "unnoticed")


def test_the_search_finds_what_a_read_finds(tmp_path):
    backup = tmp_path / "backup"
    write(backup / "disk0", 3)
    (backup / ".lock").touch()
    shutil.copytree(backup / "disk0", backup / "2024-01")
    shutil.copytree(backup / "disk0" / "orders-0", backup / f"orders-7.{UNIQUE}-stray")
    filesystem = FileSystem()
    roots = find_roots(filesystem, [str(backup)])
    places = {location.path for root in roots for location in root.locations if location.state == "live"}
    assert places == {str(backup / "disk0" / "orders-0"), str(backup / "2024-01" / "orders-0")}
    assert find_partitions(filesystem, [str(backup)])[0].path in places
    assert len(report_of(backup).partitions) == 2
