"""The inventory: what directories add up to, and what it says of damage, strays, replicas and what may not be read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from conformance.archives import unpack_case

from storage_core import read_table
from storage_core.errors import OptionError
from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from storage_core.views.inventory import inventory
from tests.damage.broker_logs import broker_logs
from tests.damage.verified_copies import draw_copy
from tests.faults.observed_filesystem import before_each_call, refusing

DATA = Path(__file__).parent.parent.parent / "examples" / "data"


@pytest.fixture
def logs(tmp_path):
    """Return a copy of the example data, without foreign files, that a test may change."""
    target = Path(shutil.copytree(DATA, tmp_path / "logs"))
    for name in ("README.md", ".gitattributes"):
        (target / name).unlink()
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        lines = [line for line in (target / name).read_text().splitlines()[2:] if not line.startswith("__")]
        (target / name).write_text("\n".join(["0", str(len(lines)), *lines, ""]))
    return target


def look(*paths, filesystem=None, exact=False, **options):
    parsed = options_of(paths, options)
    return inventory(filesystem or FileSystem(), parsed.paths, options=parsed, exact=exact)


def findings(found):
    return [(finding.severity, finding.kind) for finding in found.findings]


def test_the_example_data(logs):
    found = look(logs)
    (root,) = found.roots
    assert (root.node_id, root.cluster_id, root.directory_id, root.is_clean, root.partition_count) == (
        1,
        "c2VnbWVudGxvZy1kYXRhMQ",
        "3W3dPxBfe--lbXjd4sj7oQ",
        True,
        7,
    )
    assert root.segment_count == 24
    assert root.size_bytes == sum(path.stat().st_size for path in logs.rglob("*") if path.is_file())
    assert [
        (topic.topic, topic.partition_count, topic.segment_count, topic.offset_count)
        for topic in found.topics
    ] == [
        ("clicks", 1, 1, 1200),
        ("inventory", 1, 5, 4000),
        ("orders", 3, 14, 24000),
        ("payments", 2, 4, 3267),
    ]
    orders = found.topics[2]
    assert (orders.log_bytes, orders.codecs, orders.magics, orders.record_count) == (
        1282796,
        ("zstd",),
        (2,),
        None,
    )
    assert (orders.min_timestamp_ms, orders.max_timestamp_ms) == (1772409612053, 1773014399292)
    assert found.files[0].kind == "log segment"
    assert sum(tally.size_bytes for tally in found.files) == root.size_bytes
    assert (found.findings, found.foreign_files, found.is_exact) == ((), (), False)
    assert (found.has_damage, found.is_complete) == (False, True)


def test_with_exact_records_are_counted(logs):
    found = look(logs, exact=True)
    assert [(topic.topic, topic.record_count, topic.batch_count) for topic in found.topics] == [
        ("clicks", 1200, 12),
        ("inventory", 626, 41),
        ("orders", 24000, 402),
        ("payments", 3025, 484),
    ]
    assert found.is_exact


def test_an_unclean_shutdown_is_a_warning_and_no_damage(tmp_path):
    logs, _ = unpack_case("torn-tail", tmp_path / "case")
    found = look(logs)
    assert ("warning", "unclean shutdown") in findings(found)
    assert not found.has_damage
    assert ("note", "preallocated space") in findings(found)
    assert sum(topic.preallocated_bytes for topic in found.topics) > 7 * 4092


def test_damage_is_a_finding_that_says_where(logs):
    log = logs / "payments-0" / f"{932:020d}.log"
    data = bytearray(log.read_bytes())
    data[16] = 77
    log.write_bytes(data)
    found = look(logs, exact=True)
    assert found.has_damage
    (finding,) = [finding for finding in found.findings if finding.severity == "damage"]
    assert finding.file == str(logs / "payments-0")
    assert "found 77" in finding.reason
    assert [topic.damaged_partition_count for topic in found.topics] == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("meta.properties", "version=7\n"),
        ("recovery-point-offset-checkpoint", "0\n5\nclicks 0 1\n"),
        ("replication-offset-checkpoint", "garbage"),
        ("cleaner-offset-checkpoint", "0\n1\nclicks zero 1\n"),
        ("clicks-0/partition.metadata", "\x00\x01"),
        ("clicks-0/leader-epoch-checkpoint", "0\n1\n-4 0\n"),
        (".segmentlog-journal", "{}\n"),
    ],
)
def test_a_small_file_that_cannot_be_parsed_is_damage_and_the_rest_goes_on(logs, name, content):
    (logs / name).write_text(content)
    found = look(logs)
    assert found.has_damage
    assert any(name in finding.reason or name in finding.file for finding in found.findings)
    assert [topic.offset_count for topic in found.topics] == [1200, 4000, 24000, 3267]


def test_a_log_segment_that_is_a_fifo_is_damage(logs):
    os.mkfifo(logs / "clicks-0" / f"{9999:020d}.log")
    found = look(logs)
    assert [finding.reason for finding in found.findings] == [
        f"Expected a regular file, found a link or a special file. [{logs}/clicks-0/{9999:020d}.log]"
    ]
    assert found.has_damage


def test_foreign_files(logs):
    (logs / "core.1234").write_bytes(b"x" * 5000)
    (logs / "lost+found").mkdir()
    (logs / "orders-0" / "notes.txt").touch()
    found = look(logs)
    assert [(file.path, file.size_bytes) for file in found.foreign_files] == [
        (str(logs / "orders-0" / "notes.txt"), None),
        (str(logs / "core.1234"), 5000),
        (str(logs / "lost+found"), None),
    ]
    assert findings(found) == [("note", "foreign files")]


def test_directories_in_deletion_strays_and_leftovers(logs):
    for name, state in (("orders-0", "delete"), ("orders-1", "future"), ("orders-2", "stray")):
        (logs / name).rename(logs / f"{name}.{'ab' * 16}-{state}")
    log = logs / "inventory-0" / f"{0:020d}.log"
    log.rename(f"{log}.deleted")
    found = look(logs)
    assert findings(found) == [
        ("warning", "stray directories"),
        ("note", "delete directories"),
        ("note", "future directories"),
        ("note", "orphans"),
        ("note", ".deleted files"),
    ]
    assert [topic.topic for topic in found.topics] == ["clicks", "inventory", "payments"]
    assert [partition.state for partition in found.partitions if partition.topic == "orders"] == [
        "delete",
        "future",
        "stray",
    ]


def test_a_checkpoint_that_names_missing_partitions(logs):
    shutil.rmtree(logs / "orders-1")
    found = look(logs)
    assert [finding.reason for finding in found.findings] == [
        "The checkpoint names partitions that have no directory here: orders-1."
    ] * 2
    assert not found.has_damage


def test_replicas_are_counted_once(logs, tmp_path):
    other = Path(shutil.copytree(logs, tmp_path / "other"))
    found = look(logs, other)
    clicks = found.topics[0]
    assert (clicks.partition_count, clicks.directory_count, clicks.offset_count) == (1, 2, 1200)
    assert clicks.log_bytes == 2 * 31969
    assert findings(found) == [("note", "replicas")]
    assert "clicks-0, inventory-0, orders-0 and 4 more" in found.findings[0].reason


def test_conflicting_replicas_are_reported(logs, tmp_path):
    other = Path(shutil.copytree(logs, tmp_path / "other"))
    (other / "meta.properties").write_text("version=1\nnode.id=2\ncluster.id=another\n")
    found = look(logs, other, subscribe="clicks")
    assert findings(found) == [("warning", "replicas"), ("warning", "clusters")]
    assert found.topics[0].offset_count == 1200
    assert not found.has_damage


def test_two_directories_of_a_partition_in_one_log_directory(logs):
    shutil.copytree(logs / "clicks-0", logs / "clicks-00")
    found = look(logs)
    assert findings(found) == [("warning", "replicas")]
    assert "in one log directory" in found.findings[0].reason


def test_what_may_not_be_read_is_named_and_the_rest_goes_on(logs, tmp_path):
    shutil.copytree(logs, tmp_path / "private")
    found = look(logs, tmp_path / "private", filesystem=refusing("orders-1", "private"))
    assert findings(found)[:2] == [("unreadable", "log directory"), ("unreadable", "partition")]
    assert not found.is_complete
    assert [topic.topic for topic in found.topics] == ["clicks", "inventory", "orders", "payments"]
    assert found.topics[2].offset_count is None
    assert (found.roots[0].unreadable, found.roots[1].partition_count) == (None, 0)
    assert "kim may not read" in found.roots[1].unreadable


def test_a_partition_that_vanishes_meanwhile(logs):
    """After the log directory was listed."""
    victim = logs / "orders-1"

    def vanish(call, path):
        if call == "examine_directory" and path == str(victim) and victim.exists():
            shutil.rmtree(victim)

    found = look(logs, filesystem=before_each_call(vanish))
    assert [partition.partition for partition in found.partitions if partition.topic == "orders"] == [0, 2]
    assert found.is_complete


def test_a_segment_that_vanishes_between_listing_and_reading(logs):
    class Slow(FileSystem):
        def examine_directory(self, path):
            yield from super().examine_directory(path)
            if path.endswith("/orders-1"):
                (logs / "orders-1" / f"{0:020d}.log").rename(logs / "orders-1" / f"{0:020d}.log.deleted")

    found = look(logs, filesystem=Slow())
    assert [topic.offset_count for topic in found.topics] == [1200, 4000, 24000, 3267]
    assert found.is_complete


def test_topics_that_are_named(logs):
    found = look(logs, subscribe="payments")
    assert [topic.topic for topic in found.topics] == ["payments"]
    assert {tally.kind for tally in found.files} <= {
        "log segment",
        "offset index",
        "time index",
        "transaction index",
        "producer snapshot",
        "leader epoch checkpoint",
        "partition metadata",
    }
    with pytest.raises(OptionError, match="nothere"):
        look(logs, subscribe="nothere")


def test_an_empty_log_directory(tmp_path):
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=4\ncluster.id=c\n")
    found = look(tmp_path)
    assert (found.topics, found.roots[0].node_id) == ((), 4)


def test_one_listing_for_each_directory(logs):
    filesystem = FileSystem()
    look(logs, filesystem=filesystem)
    # The log directory is listed to find partitions, and again for its own files.
    assert filesystem.statistics.directories_listed == 2 + 7


@pytest.mark.parametrize(
    "numbers", [range(1), pytest.param(range(1, 4), marks=pytest.mark.thorough)], ids=str
)
def test_damage_of_any_kind_is_reported_and_never_raised(tmp_path, numbers):
    for log in broker_logs().values():
        for number in numbers:
            logs = tmp_path / f"{log.name}-{number}"
            draw_copy(log, number).write(logs)
            for exact in (False, True):
                found = look(logs, exact=exact)
                assert found.is_complete
                assert {(each.topic, each.partition) for each in found.partitions} == set(log.rows)
                assert read_table(logs, view="partitions", exact=exact).num_rows == len(log.rows)
                read_table(logs, view="segments", exact=exact)
            files = read_table(logs, view="files", columns=["root", "path", "kind"])
            assert files.num_rows >= len([path for path in logs.rglob("*") if path.is_file()])
