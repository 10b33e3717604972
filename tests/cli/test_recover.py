"""`segmentlog recover`."""

from __future__ import annotations

import errno
import json
import os
import shutil

import pytest

from storage_core import LogDirectory, read_table
from tests.conformance.archives import fingerprint
from tests.faults.faulty_filesystem import Fault, FaultyCalls
from tests.scan.halves import cut, make_whole


@pytest.fixture
def sound(example_data, tmp_path):
    shutil.copytree(example_data, tmp_path / "data", ignore=shutil.ignore_patterns("README.md", ".git*"))
    return tmp_path / "data"


@pytest.fixture
def damaged(sound):
    """Damage a byte in a closed segment of orders-0."""
    path = sound / "orders-0" / "00000000000000001787.log"
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    return sound


@pytest.fixture
def torn(sound):
    """Tear the end, as if the broker was killed while it appended."""
    (sound / ".kafka_cleanshutdown").unlink()
    path = sound / "orders-0" / "00000000000000007209.log"
    os.truncate(path, path.stat().st_size - 10)
    (sound / "recovery-point-offset-checkpoint").unlink()
    return sound


def test_a_sound_directory_is_status_0(segmentlog, sound, tmp_path):
    before = fingerprint(sound)
    ended = segmentlog("recover", sound, "--to", tmp_path / "new")
    assert (ended.status, ended.stderr) == (0, "")
    assert "Nothing was lost." in ended.stdout
    assert fingerprint(sound) == before


def test_what_is_left_out_is_shown_and_ends_with_status_1(segmentlog, damaged, tmp_path):
    ended = segmentlog("recover", damaged, "--to", tmp_path / "new", "--policy", "salvage")
    assert ended.status == 1
    assert "orders-0/00000000000000001787.log: bytes" in ended.stdout.replace("\n", " ")
    with LogDirectory.open(tmp_path / "new", broker_directory=True, recovery="tail") as logs:
        assert logs.get("orders", 0).log_end_offset > 0


def test_json_is_the_manifest(segmentlog, damaged, tmp_path):
    ended = segmentlog(
        "recover", damaged, "--to", tmp_path / "new", "--policy", "salvage", "--output", "json"
    )
    assert json.loads(ended.stdout) == json.loads(
        (tmp_path / "new" / ".segmentlog-recovery.json").read_text()
    )


def test_a_torn_end_is_cut_by_policy_tail(segmentlog, torn, tmp_path):
    ended = segmentlog("recover", torn, "--to", tmp_path / "new", "--policy", "tail", "--output", "json")
    assert ended.status == 1
    (lost,) = (lost for each in json.loads(ended.stdout)["partitions"] for lost in each["leftOut"])
    assert (lost["file"], lost["batchCount"]) == ("00000000000000007209.log", 0)


def test_policy_tail_refuses_more(segmentlog, damaged, tmp_path):
    (damaged / ".kafka_cleanshutdown").unlink()
    (damaged / "recovery-point-offset-checkpoint").unlink()
    before = fingerprint(damaged)
    ended = segmentlog("recover", damaged, "--to", tmp_path / "new", "--policy", "tail")
    assert ended.refused(2, "00000000000000001787.log: bytes")
    assert not (tmp_path / "new").exists()
    assert fingerprint(damaged) == before


def test_a_dry_run_needs_no_target_and_writes_nothing(segmentlog, damaged, tmp_path):
    before = fingerprint(tmp_path)
    ended = segmentlog("recover", damaged, "--dry-run", "--policy", "salvage")
    assert ended.status == 1
    assert "Nothing was written." in ended.stdout
    assert fingerprint(tmp_path) == before


def test_in_place(segmentlog, torn, tmp_path):
    ended = segmentlog("recover", torn, "--in-place", "--aside", tmp_path / "cut")
    assert ended.status == 1
    assert (torn / ".kafka_cleanshutdown").exists()
    assert len(list((tmp_path / "cut" / "orders-0").glob("*.cut"))) == 1
    assert segmentlog("recover", torn, "--dry-run").status == 0


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--in-place"],
        ["--in-place", "--aside", "cut", "--to", "new"],
        ["--to", "new", "--aside", "cut"],
        ["--to", "new", "--policy", "all"],
        ["--to", "data/inside"],
        ["--to", "full"],
        ["--in-place", "--aside", "cut", "--subscribe", "orders"],
    ],
)
def test_wrong_usage_is_one_line_and_writes_nothing(segmentlog, sound, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    before = fingerprint(tmp_path)
    ended = segmentlog("recover", sound, *arguments)
    assert ended.status in (2, 3)
    assert (ended.stderr.count("\n"), "Traceback" in ended.stderr) == (1, False)
    assert fingerprint(tmp_path) == before


def test_a_directory_in_use_is_refused_in_place(segmentlog, sound, tmp_path):
    with LogDirectory.open(sound, broker_directory=True):
        ended = segmentlog("recover", sound, "--in-place", "--aside", tmp_path / "cut")
    assert ended.status == 2
    assert ended.stderr.count("\n") == 1


def test_a_full_disk_is_one_line_and_leaves_nothing(segmentlog, damaged, tmp_path):
    before = fingerprint(damaged)
    with FaultyCalls(Fault(errno.ENOSPC, at=40, is_lasting=True)):
        ended = segmentlog("recover", damaged, "--to", tmp_path / "new", "--no-link")
    assert ended.refused(3, "No space left on device")
    assert sorted(os.listdir(tmp_path)) == ["data"]
    assert fingerprint(damaged) == before


def test_both_halves_of_a_tiered_topic(segmentlog, tmp_path):
    whole = make_whole(tmp_path / "whole")
    local, remote = cut(whole, tmp_path, 5, 5)
    ended = segmentlog("recover", local, "--remote-storage", remote, "--to", tmp_path / "target", "--quiet")
    assert ended.status == 0
    assert read_table(str(tmp_path / "target")) == read_table(str(whole))
    in_place = ("--in-place", "--aside", tmp_path / "aside")
    ended = segmentlog("recover", local, "--remote-storage", remote, *in_place)
    assert ended.refused(2, "--remote-storage is for a new directory")


def test_links_of_objects_are_refused(segmentlog, tmp_path):
    ended = segmentlog("recover", "s3://bucket/logs", "--to", tmp_path / "target", "--link")
    assert ended.refused(2, "--link is for a local DIR: files of an object store are copied. Leave it out.")
