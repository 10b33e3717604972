"""`segmentlog verify --indexes-only` and `segmentlog index rebuild`."""

from __future__ import annotations

import json
import os
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


def test_only_what_is_wrong_with_index_files_is_shown(segmentlog, damaged):
    (damaged / "orders-0" / "00000000000000001787.index").with_suffix(".snapshot").write_bytes(b"nonsense")
    ended = segmentlog("verify", damaged, "--indexes-only", "--output", "jsonl")
    assert ended.status == 1
    (found,) = [json.loads(line) for line in ended.stdout.splitlines()]
    assert (found["kind"], found["reason"]) == ("offset index", "The file is missing.")


def test_no_records_are_decoded_for_index_files(segmentlog, root):
    ended = segmentlog("verify", root, "--indexes-only", "--deep")
    assert ended.status == 2
    assert "--deep" in ended.stderr


def test_json_has_every_finding_and_what_was_rebuilt(segmentlog, damaged):
    ended = segmentlog("index", "rebuild", damaged, "--in-place", "--output", "json")
    (found,) = [each for each in json.loads(ended.stdout)["partitions"] if each["findings"]]
    assert (found["topic"], found["partition"], found["segments"]) == ("orders", 0, 5)
    assert found["rebuilt"] == ["00000000000000001787.log"]
    (finding,) = found["findings"]
    assert finding["file"].endswith("orders-0/00000000000000001787.index")
    assert (finding["kind"], finding["reason"]) == ("offset index", "The file is missing.")


def test_json_says_which_entries_are_wrong_or_absent(segmentlog, root):
    folder = root / "orders-0"
    (folder / "00000000000000001787.timeindex").write_bytes(b"")
    os.truncate(folder / "00000000000000003614.timeindex", 5)
    path = folder / "00000000000000001787.index"
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(content)
    for index in root.glob("payments-*/*.txnindex"):
        index.unlink()
    ended = segmentlog("index", "rebuild", root, "--in-place", "--output", "json")
    found = [finding for each in json.loads(ended.stdout)["partitions"] for finding in each["findings"]]
    assert [(each["kind"], each["startByte"], each["endByte"]) for each in found[:3]] == [
        ("offset index", 0, 8),
        ("time index", 0, 0),
        ("time index", None, None),
    ]
    assert {each["kind"] for each in found[3:]} == {"transaction index"}
    assert all(each["reason"].startswith("No entry for ") for each in found[3:])


def test_rebuilt_indexes_agree(segmentlog, damaged):
    ended = segmentlog("index", "rebuild", damaged, "--in-place")
    assert ended.status == 0
    assert "The file is missing." in ended.stdout
    assert segmentlog("verify", damaged, "--indexes-only").status == 0
    ended = segmentlog("index", "rebuild", damaged, "--in-place")
    assert ended.stdout.endswith("every index agrees with its log.\n")


def test_nothing_is_written_without_being_told_where(segmentlog, damaged):
    before = fingerprint(damaged)
    ended = segmentlog("index", "rebuild", damaged)
    assert ended.status == 2
    assert ended.stderr.count("\n") == 1
    assert fingerprint(damaged) == before
