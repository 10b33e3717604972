"""`segmentlog verify`: what it prints in each format, and how it ends."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil

import pytest

from storage_core import LogConfig
from storage_core.filesystem import FileSystem
from tests.log.logs import append, flip, name, open_directory, small, table, unclean


@pytest.fixture
def root(tmp_path):
    """Return two topics, orders with damage in one batch of a segment in the middle."""
    with open_directory(tmp_path / "data", config=small()) as logs:
        append(logs.create("orders"), 25)
        append(logs.create("clicks"), 3)
    flip(tmp_path / "data" / "orders-0" / name(10), 350)
    return tmp_path / "data"


def test_sound_directories_end_with_status_0(segmentlog, example_data):
    ended = segmentlog("verify", example_data)
    assert (ended.status, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[-1] == (
        "Sound: 7 partitions, 24 segments, 939 batches, 1,560,106 bytes of log; findings: none."
    )


def test_damage_is_shown_with_its_place_and_what_a_broker_would_do(segmentlog, root):
    unclean(root)
    ended = segmentlog("verify", root)
    assert ended.status == 1
    lines = [" ".join(line.split()) for line in ended.stdout.splitlines()]
    assert (
        "orders-0 damage 3 24 0 25 truncates it to offset 13, removes 1 segment, recovers 2 segments" in lines
    )
    assert "clicks-0 sound 1 3 0 3 recovers 1 segment" in lines
    (finding,) = [line for line in lines if line.startswith("damage batch")]
    assert finding.startswith(
        f"damage batch orders-0/{name(10)} 300 to 399 13 truncate to 13 Expected a record batch with CRC "
    )
    assert lines[-1].startswith("Damage: 2 partitions, 4 segments, 27 batches, ")
    assert lines[-1].endswith("; findings: 1 damage.")


def test_a_batch_that_is_too_large_to_look_into_is_no_damage(segmentlog, tmp_path):
    with open_directory(tmp_path / "data", config=LogConfig(compression_type="zstd")) as logs:
        logs.create("orders").append(table(b"x" * 5_000))
    ended = segmentlog("verify", tmp_path / "data", "--deep", "--max-decompressed-batch-bytes", "1k")
    assert ended.status == 0
    (finding,) = [line for line in ended.stdout.splitlines() if line.startswith("suspect")]
    assert "Expected a batch to inflate to at most 1024 bytes, found more." in finding
    assert "raise --max-decompressed-batch-bytes" in finding
    sound = segmentlog("verify", tmp_path / "data", "--deep", "--max-decompressed-batch-bytes", "6k")
    assert "findings: none" in sound.stdout


def test_json_is_the_whole_report(segmentlog, root):
    ended = segmentlog("verify", root, "--output", "json", "--deep")
    report = json.loads(ended.stdout)
    assert (ended.status, report["verdict"], report["isDeep"]) == (1, "damage", True)
    assert report["counts"] == {"damage": 1, "unreadable": 0, "suspect": 0, "unclean": 0, "note": 0}
    clicks, orders = report["partitions"]
    assert (clicks["topic"], clicks["verdict"], clicks["findings"]) == ("clicks", "sound", [])
    assert (orders["logEndOffset"], orders["start"]["refusal"]) == (25, None)
    (finding,) = orders["findings"]
    assert finding["file"] == str(root / "orders-0" / name(10))
    assert {each: finding[each] for each in ("severity", "kind", "action", "startByte", "endOffset")} == {
        "severity": "damage",
        "kind": "batch",
        "action": "unnoticed",
        "startByte": 300,
        "endOffset": 14,
    }


@pytest.mark.parametrize("output", ["jsonl", "csv"])
def test_one_line_for_each_finding(segmentlog, root, output):
    ended = segmentlog("verify", root, "-o", output)
    assert ended.status == 1
    if output == "csv":
        (row,) = csv.DictReader(io.StringIO(ended.stdout))
    else:
        row = {key: "" if value is None else str(value) for key, value in json.loads(ended.stdout).items()}
    assert row.pop("reason").startswith("Expected a record batch with CRC ")
    assert row == {
        "topic": "orders",
        "partition": "0",
        "severity": "damage",
        "kind": "batch",
        "file": str(root / "orders-0" / name(10)),
        "startByte": "300",
        "endByte": "400",
        "startOffset": "13",
        "endOffset": "14",
        "action": "unnoticed",
        "actionOffset": "",
    }


def test_topics_are_chosen_by_the_flags_of_reads(segmentlog, root):
    assert segmentlog("verify", root, "--subscribe", "clicks").status == 0
    assert segmentlog("verify", root, "--assign", '{"orders": [0]}').status == 1
    assert segmentlog("verify", root, "--subscribe-pattern", "ord.*").status == 1


def test_notes_are_shown_if_asked_for(segmentlog, root):
    (root / "clicks-0" / (name(0) + ".deleted")).write_bytes(b"")
    assert ".deleted" not in segmentlog("verify", root).stdout
    assert "note file clicks-0/" + name(0) + ".deleted remove" in " ".join(
        segmentlog("verify", root, "--notes").stdout.split()
    )


def test_names_and_bytes_of_hostile_files_are_never_printed_raw(segmentlog, root):
    (root / "clicks-0" / "\x1b[2Jevil.log").write_bytes(b"")
    ended = segmentlog("verify", root)
    assert "\x1b" not in ended.stdout
    assert "\\e[2Jevil.log" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 2, "Missing argument 'DIR...'"),
        (["--nonsense", "."], 2, "No such option"),
        (["/nowhere"], 3, "found nothing. Check the path."),
        (["{root}", "--subscribe", "nosuch"], 2, "UnknownTopicOrPartition"),
        (["{root}", "--jobs", "0"], 2, "0 is not in the range x>=1"),
        (["{root}/orders-0/" + name(10)], 3, "found one file of a log"),
    ],
)
def test_wrong_use_is_one_line_and_its_status(segmentlog, root, arguments, status, message):
    ended = segmentlog("verify", *(each.format(root=root) for each in arguments))
    assert ended.refused(status, message)


def test_a_partition_that_vanishes_meanwhile_is_a_note(segmentlog, root, monkeypatch):
    """As on the directory of a running broker."""
    status = FileSystem.status

    def delete_first(self, path, **options):
        found = status(self, path, **options)
        if path.endswith(name(0)) and "clicks" in path:
            shutil.rmtree(root / "clicks-0", ignore_errors=True)
            (root / "clicks-0").mkdir(exist_ok=True)
        return found

    monkeypatch.setattr(FileSystem, "status", delete_first)
    ended = segmentlog("verify", root, "--subscribe", "clicks", "--notes")
    assert ended.status == 0
    assert "Not verified: its files are being replaced or removed by another process." in ended.stdout


def test_what_cannot_be_read_is_status_3_even_beside_damage(segmentlog, root):
    os.mkfifo(root / "clicks-0" / name(7))
    ended = segmentlog("verify", root)
    assert (ended.status, ended.stderr) == (3, "")
    assert "not known, because it cannot be read" in ended.stdout
    assert ended.stdout.splitlines()[-1].endswith("findings: 1 damage, 1 unreadable.")


def test_of_several_log_directories_each_finding_says_which_one(segmentlog, root, tmp_path):
    shutil.copytree(root, tmp_path / "other")
    (root / "clicks-0" / "notes.txt").touch()
    ended = segmentlog("verify", root, tmp_path / "other", "--notes")
    lines = [" ".join(line.split()[:3]) for line in ended.stdout.splitlines()]
    assert lines.count(f"damage batch data/orders-0/{name(10)}") == 1
    assert lines.count(f"damage batch other/orders-0/{name(10)}") == 1
    assert "note file data/clicks-0/notes.txt" in lines
    assert {"data/clicks-0 sound 1", "other/clicks-0 sound 1"} <= set(lines)


def test_no_partition_is_what_a_broker_makes_of_it_in_a_directory_that_it_does_not_start_with(
    segmentlog, root
):
    (root / "meta.properties").write_text("")
    ended = segmentlog("verify", root)
    lines = [" ".join(line.split()) for line in ended.stdout.splitlines()]
    assert "clicks-0 sound 1 3 0 3 does not start with its log directory" in lines


def test_nothing_verified_is_not_sound(segmentlog, root):
    shutil.rmtree(root / "orders-0")
    shutil.rmtree(root / "clicks-0")
    ended = segmentlog("verify", root)
    assert "nothing was looked at" in ended.stdout
    assert ended.stdout.splitlines()[-1].startswith("Suspect: 0 partitions, ")
