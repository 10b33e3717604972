"""The view files: what each name means, what is expected where, and that nothing is opened."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core import read_table
from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from storage_core.views import plan_view, read_view_task, view_schema
from storage_core.views.files import RECOVERY_MANIFEST, UNKNOWN, name_in_partition, name_in_root

DATA = Path(__file__).parent.parent.parent / "examples" / "data"
BASE = f"{42:020d}"


@pytest.fixture
def logs(tmp_path):
    """Return a copy of the example data that a test may change."""
    return Path(shutil.copytree(DATA, tmp_path / "logs"))


def files(*paths, filesystem=None, **options):
    table = read_table(*paths, view="files", filesystem=filesystem, **options)
    return {row["path"]: row for row in table.to_pylist()}


def test_the_example_data():
    found = files(DATA)
    assert Counter(row["kind"] for row in found.values()) == {
        "log segment": 24,
        "offset index": 24,
        "time index": 24,
        "producer snapshot": 24,
        "transaction index": 2,
        "partition": 7,
        "partition metadata": 7,
        "leader epoch checkpoint": 7,
        "unknown": 2,
        "clean shutdown marker": 1,
        "cleaner checkpoint": 1,
        "log start offset checkpoint": 1,
        "recovery point checkpoint": 1,
        "high watermark checkpoint": 1,
        "meta.properties": 1,
    }
    assert sorted(path for path, row in found.items() if not row["isExpected"]) == [
        ".gitattributes",
        "README.md",
    ]
    row = found["inventory-0/00000000000000001760.log"]
    assert (row["sizeBytes"], row["topic"], row["partition"], row["baseOffset"], row["state"]) == (
        1109,
        "inventory",
        0,
        1760,
        "live",
    )
    assert row["modified"].timestamp() == pytest.approx(
        (DATA / "inventory-0/00000000000000001760.log").stat().st_mtime, abs=0.001
    )


@pytest.mark.parametrize(
    ("name", "kind", "leftover", "base_offset"),
    [
        (f"{BASE}.log", "log segment", None, 42),
        (f"{BASE}.index", "offset index", None, 42),
        (f"{BASE}.timeindex.deleted", "time index", ".deleted", 42),
        (f"{BASE}.txnindex.swap", "transaction index", ".swap", 42),
        (f"{BASE}.log.cleaned", "log segment", ".cleaned", 42),
        (f"{BASE}.snapshot", "producer snapshot", None, 42),
        (f"{BASE}-0000000007.checkpoint", "metadata snapshot", None, 42),
        (f"{BASE}-0000000007.checkpoint.deleted", "metadata snapshot", ".deleted", 42),
        (f"{BASE}-0000000007-8193.checkpoint.part", "metadata snapshot", ".part", 42),
        ("leader-epoch-checkpoint", "leader epoch checkpoint", None, None),
        ("leader-epoch-checkpoint.tmp", "leader epoch checkpoint", ".tmp", None),
        ("partition.metadata", "partition metadata", None, None),
        ("quorum-state", "quorum state", None, None),
        ("42.log", UNKNOWN, None, None),
        (f"{BASE}.log.bak", UNKNOWN, None, None),
        (f"{BASE}", UNKNOWN, None, None),
        ("notes.deleted", UNKNOWN, None, None),
        ("99999999999999999999.log", UNKNOWN, None, None),
    ],
)
def test_a_name_in_a_partition_directory(name, kind, leftover, base_offset):
    assert name_in_partition(name) == (kind, leftover, base_offset)


@pytest.mark.parametrize(
    ("name", "kind", "leftover"),
    [
        ("meta.properties", "meta.properties", None),
        (".kafka_cleanshutdown", "clean shutdown marker", None),
        (".lock", "lock", None),
        ("recovery-point-offset-checkpoint", "recovery point checkpoint", None),
        ("replication-offset-checkpoint.tmp", "high watermark checkpoint", ".tmp"),
        ("bootstrap.checkpoint", "bootstrap metadata", None),
        (".segmentlog-commits", "segmentlog commits", None),
        (".segmentlog-journal", "segmentlog commit journal", None),
        (".segmentlog-truncations", "segmentlog truncations", None),
        (f".segmentlog-stage-{'0' * 32}-0-1.pack", "segmentlog staged file", None),
        (RECOVERY_MANIFEST, "segmentlog recovery manifest", None),
        (".segmentlog-other", "segmentlog file", None),
        (f"{BASE}.log", "log segment", None),
        ("core.1234", UNKNOWN, None),
    ],
)
def test_a_name_in_a_log_directory(name, kind, leftover):
    found = name_in_root(name)
    assert (found.kind, found.leftover) == (kind, leftover)


@given(st.text())
def test_any_name_is_something(name):
    for found in (name_in_partition(name), name_in_root(name)):
        assert found.kind
        assert found.kind != UNKNOWN or found == (UNKNOWN, None, None)


def test_files_that_are_not_expected_say_why(logs):
    for name in ("core.1", ".segmentlog-journal", f"{BASE}.log", "cleaner-offset-checkpoint.tmp"):
        (logs / name).touch()
    partition = logs / "orders-0"
    for name in (f"{BASE}.index", f"{BASE}.snapshot", f"{BASE}.log.deleted", "quorum-state", "notes.txt"):
        (partition / name).touch()
    found = files(logs)
    reasons = {path: row["reason"] for path, row in found.items() if not row["isExpected"]}
    assert reasons.pop("README.md") == "neither Kafka nor segmentlog has a file of this name here"
    del reasons[".gitattributes"]
    assert reasons == {
        "core.1": "neither Kafka nor segmentlog has a file of this name here",
        ".segmentlog-journal": "a commit is under way, or was interrupted: the next writer completes it",
        f"{BASE}.log": "it belongs into the directory of a partition",
        "cleaner-offset-checkpoint.tmp": "it was never finished: a broker writes it again",
        f"orders-0/{BASE}.index": "it has no log file: a broker removes it when it starts",
        f"orders-0/{BASE}.snapshot": "no segment begins at its offset: a broker removes it when it starts",
        f"orders-0/{BASE}.log.deleted": (
            "it awaits its removal: a broker removes it a minute after the rename, or when it starts"
        ),
        "orders-0/quorum-state": "only __cluster_metadata-0 has such a file",
        "orders-0/notes.txt": "neither Kafka nor segmentlog has a file of this name here",
    }
    assert found[f"orders-0/{BASE}.log.deleted"]["leftover"] == ".deleted"


def test_the_newest_snapshot_is_at_the_log_end(logs):
    assert files(logs)["inventory-0/00000000000000004000.snapshot"]["isExpected"]
    (logs / "inventory-0" / f"{4100:020d}.snapshot").touch()
    found = files(logs)
    assert not found["inventory-0/00000000000000004000.snapshot"]["isExpected"]
    assert found["inventory-0/00000000000000004100.snapshot"]["isExpected"]


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [("delete", "partition in deletion"), ("future", "future partition"), ("stray", "stray partition")],
)
def test_directories_that_no_read_takes(logs, suffix, kind):
    name = f"clicks-0.{'a1' * 16}-{suffix}"
    (logs / "clicks-0").rename(logs / name)
    found = files(logs)
    assert (found[name]["kind"], found[name]["topic"], found[name]["state"]) == (kind, "clicks", suffix)
    inside = found[f"{name}/00000000000000000000.log"]
    assert (inside["kind"], inside["state"], inside["isExpected"]) == ("log segment", suffix, False)
    assert inside["reason"].startswith("its directory")


def test_links_and_special_files_are_named_and_never_opened(logs):
    os.mkfifo(logs / "orders-0" / f"{BASE}.log")
    (logs / "orders-0" / "loop.log").symlink_to("loop.log")
    (logs / "link-0").symlink_to(logs / "clicks-0")
    filesystem = FileSystem()
    found = files(logs, filesystem=filesystem)
    assert filesystem.statistics.files_opened == 0
    assert (found[f"orders-0/{BASE}.log"]["kind"], found[f"orders-0/{BASE}.log"]["reason"]) == (
        "special file",
        "a FIFO, a socket or a device, which is never opened",
    )
    for path in ("orders-0/loop.log", "link-0"):
        assert found[path]["kind"] == "symbolic link"
        assert found[path]["reason"] == "a symbolic link, which is not followed"
    assert not any(path.startswith("link-0/") for path in found)


def test_links_are_followed_if_that_is_asked_for(logs, tmp_path):
    (logs / "clicks-0").rename(tmp_path / "elsewhere")
    (logs / "clicks-0").symlink_to(tmp_path / "elsewhere")
    found = files(logs, follow_symlinks=True)
    assert found["clicks-0/00000000000000000000.log"]["kind"] == "log segment"


def test_other_directories_are_listed_to_their_depth(logs):
    for path in ("lost+found/#1/inner", "remote-log-index-cache/8_abc.index", "orders-0/.snap/file"):
        target = logs / path
        target.parent.mkdir(parents=True)
        target.touch()
    found = files(logs)
    assert (
        found["lost+found"]["reason"] == "not the directory of a partition: a broker does not start with it"
    )
    assert (found["lost+found/#1/inner"]["kind"], found["lost+found/#1/inner"]["isExpected"]) == (
        "unknown",
        False,
    )
    cached = found["remote-log-index-cache/8_abc.index"]
    assert (cached["kind"], cached["isExpected"]) == ("remote log index cache", True)
    assert found["orders-0/.snap/file"]["topic"] == "orders"


def test_a_partition_directory_that_was_copied_alone(logs):
    found = files(logs / "clicks-0")
    assert {path.partition("/")[0] for path in found} == {"clicks-0"}
    assert {row["root"] for row in found.values()} == {str(logs)}


def test_a_folder_of_log_directories(logs, tmp_path):
    shutil.copytree(logs, tmp_path / "second")
    table = read_table(tmp_path, view="files")
    assert Counter(table["root"].to_pylist()) == {str(logs): 127, str(tmp_path / "second"): 127}


def test_named_topics_leave_out_everything_else():
    assert {row["topic"] for row in files(DATA, subscribe="payments").values()} == {"payments"}
    assert {row["topic"] for row in files(DATA, where="topic = 'payments'").values()} == {"payments"}


def test_a_condition_opens_the_directories_of_its_partitions_alone():
    filesystem = FileSystem()
    options = options_of((DATA,), {"view": "files", "where": "topic = 'orders' AND partition = 1"})
    locations = [task.part.location for task in plan_view(filesystem, options)]
    assert [None if each is None else each.path for each in locations] == [None, str(DATA / "orders-1")]


def test_names_that_are_not_utf_8(logs):
    (Path(os.fsdecode(os.fsencode(logs) + b"/orders-0/\xff\xfe"))).touch()
    assert files(logs)["orders-0/\\xff\\xfe"]["kind"] == "unknown"


def test_a_partition_that_a_broker_deletes_meanwhile(logs):
    filesystem = FileSystem()
    options = options_of((logs,), {"view": "files"})
    tasks = plan_view(filesystem, options)
    shutil.rmtree(logs / "clicks-0")
    paths = [
        path
        for task in tasks
        for batch in read_view_task(filesystem, task, view_schema(options))
        for path in batch.column("path").to_pylist()
    ]
    assert not any(path.startswith("clicks-0") for path in paths)
    assert "orders-0/00000000000000000000.log" in paths
