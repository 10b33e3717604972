"""`segmentlog index check` and `segmentlog index rebuild`."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.conformance.archives import fingerprint


@pytest.fixture
def root(example_data, tmp_path):
    shutil.copytree(example_data, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def damaged(root):
    (root / "orders-0" / "00000000000000001787.index").unlink()
    return root


def test_sound_indexes_end_with_status_0(segmentlog, root):
    ended = segmentlog("index", "check", root)
    assert (ended.status, ended.stderr) == (0, "")
    assert ended.stdout.endswith("every index agrees with its log.\n")


def test_a_finding_is_shown_and_ends_with_status_1(segmentlog, damaged):
    before = fingerprint(damaged)
    ended = segmentlog("index", "check", damaged)
    assert ended.status == 1
    assert "orders-0" in ended.stdout
    assert "missing" in ended.stdout
    assert fingerprint(damaged) == before


def test_json_has_every_finding(segmentlog, damaged):
    report = json.loads(segmentlog("index", "check", damaged, "--output", "json").stdout)
    (found,) = [each for each in report["partitions"] if each["findings"]]
    assert (found["topic"], found["partition"], found["segments"]) == ("orders", 0, 5)
    assert found["findings"] == [
        {
            "file": "00000000000000001787.index",
            "kind": "offset",
            "fault": "missing",
            "entries": 0,
            "detail": "the file is missing",
        }
    ]


def test_rebuilt_indexes_agree(segmentlog, damaged):
    assert segmentlog("index", "rebuild", damaged, "--in-place").status == 0
    assert segmentlog("index", "check", damaged).status == 0


def test_nothing_is_written_without_being_told_where(segmentlog, damaged):
    before = fingerprint(damaged)
    ended = segmentlog("index", "rebuild", damaged)
    assert ended.status == 2
    assert ended.stderr.count("\n") == 1
    assert fingerprint(damaged) == before


@pytest.mark.parametrize("action", ["check", "rebuild"])
def test_a_path_that_does_not_exist_is_one_line(segmentlog, tmp_path, action):
    arguments = ["--in-place"] if action == "rebuild" else []
    ended = segmentlog("index", action, tmp_path / "absent", *arguments)
    assert ended.status == 3
    assert ended.stderr.count("\n") == 1
