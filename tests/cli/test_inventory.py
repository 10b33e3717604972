"""`segmentlog inventory`: its output for people and for programs, its exit status, and names from hostile directories."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from tests.scan.halves import cut, make_whole

DATA = Path(__file__).parent.parent.parent / "examples" / "data"


@pytest.fixture
def logs(tmp_path):
    """Return a copy of the example data that a test may change."""
    return Path(shutil.copytree(DATA, tmp_path / "logs"))


def test_topics_by_size_and_what_fills_the_disk(segmentlog):
    ended = segmentlog("inventory", DATA)
    assert (ended.status, ended.stderr) == (0, "")
    lines = [line.split() for line in ended.stdout.splitlines()]
    assert lines[0][:3] == [f"{DATA}:", "broker", "1;"]
    topics = lines[4:8]
    assert [line[0] for line in topics] == ["orders", "payments", "inventory", "clicks"]
    assert topics[0][:5] == ["orders", "3", "14", "1.2", "MiB"]
    assert topics[0][-7:] == ["24,000", "2026-03-02", "00:00:12", "2026-03-08", "23:59:59", "zstd", "v2"]
    assert ["log", "segment", "24", "1.5", "MiB"] in [line[:5] for line in lines]
    assert "note: Neither Kafka nor segmentlog has such files, 2:" in ended.stdout


def test_times_are_those_of_the_zone_that_the_heading_names(segmentlog):
    assert "first (UTC)" in segmentlog("inventory", DATA).stdout
    shown = segmentlog("inventory", DATA, "--time-zone", "+01:00").stdout
    assert "first (UTC+01:00)" in shown
    assert "2026-03-02 01:00:12" in shown


def test_a_line_for_each_partition(segmentlog):
    ended = segmentlog("inventory", DATA, "--partitions", "--exact")
    assert ended.status == 0
    line = next(line for line in ended.stdout.splitlines() if line.startswith("payments-1 "))
    assert line.split()[:6] == ["payments-1", "live", "0", "1,584", "1,584", "0"]
    assert "1,463" in line.split()
    assert "242" in line.split()


def test_json_is_the_whole_report_and_nothing_else(segmentlog):
    ended = segmentlog("inventory", DATA, "-o", "json")
    assert (ended.status, ended.stderr) == (0, "")
    report = json.loads(ended.stdout)
    assert sorted(report) == [
        "files",
        "findings",
        "foreignFiles",
        "isExact",
        "partitions",
        "roots",
        "topics",
    ]
    assert [topic["topic"] for topic in report["topics"]] == ["clicks", "inventory", "orders", "payments"]
    assert report["partitions"][0]["logEndOffset"] == 1200
    assert report["partitions"][0]["minTimestamp"] == "2026-03-06T18:00:02.018Z"
    assert report["roots"][0]["clusterId"] == "c2VnbWVudGxvZy1kYXRhMQ"
    assert [file["path"] for file in report["foreignFiles"]] == [
        str(DATA / ".gitattributes"),
        str(DATA / "README.md"),
    ]


def test_findings_in_json_say_where_they_are_unless_in_several_places(segmentlog):
    warning, *_, note = json.loads(segmentlog("inventory", DATA, "-o", "json").stdout)["findings"]
    assert warning == {
        "severity": "warning",
        "kind": "recovery-point-offset-checkpoint",
        "message": "The checkpoint names partitions that have no directory here: __transaction_state-0.",
        "path": str(DATA / "recovery-point-offset-checkpoint"),
    }
    assert list(note) == ["severity", "kind", "message", "path"]
    assert (note["kind"], note["path"]) == ("foreign files", None)


def test_lines_of_json_and_csv(segmentlog):
    lines = segmentlog("inventory", DATA, "-o", "jsonl").stdout.splitlines()
    assert [json.loads(line)["topic"] for line in lines] == ["clicks", "inventory", "orders", "payments"]
    rows = list(csv.DictReader(segmentlog("inventory", DATA, "-o", "csv", "-p").stdout.splitlines()))
    assert [(row["topic"], row["partition"], row["logEndOffset"]) for row in rows][:2] == [
        ("clicks", "0", "1200"),
        ("inventory", "0", "4000"),
    ]
    assert rows[0]["minTimestamp"] == "2026-03-06T18:00:02.018Z"
    assert rows[0]["isClean"] == "true"


def test_columns_of_arrow_have_their_type_whatever_is_known(segmentlog_process, logs):
    def columns_of(*flags):
        process = segmentlog_process("inventory", logs, "--partitions", *flags, "-o", "arrow")
        with pa.ipc.open_stream(process.communicate()[0]) as rows:
            return rows.read_all().schema

    columns = columns_of()
    assert columns == columns_of("--exact")
    assert columns.field("maxTimestamp").type == pa.timestamp("us", "UTC")
    assert (columns.field("recordCount").type, columns.field("codecs").type) == (
        pa.int64(),
        pa.list_(pa.string()),
    )


@pytest.mark.parametrize("output", ["table", "json", "csv"])
def test_damage_ends_with_1(segmentlog, logs, output):
    (logs / "clicks-0" / "partition.metadata").write_text("?")
    ended = segmentlog("inventory", logs, "-o", output)
    assert ended.status == 1
    assert ended.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("{tmp}/missing",), 3, "found nothing. Check the path."),
        (("{tmp}/file",), 3, "found a file. Name a log directory"),
        (("{tmp}/empty",), 3, "found an empty directory"),
        ((), 2, "Missing argument"),
        (("{tmp}/logs", "--no-such-flag"), 2, "No such option"),
        (("{tmp}/logs", "--subscribe", "nothere"), 2, "names the topic 'nothere'"),
        (("{tmp}/logs", "--subscribe", "clicks", "--assign", "{{}}"), 2, "Only one of the following options"),
        (("{tmp}/logs", "-o", "xml"), 2, "'xml' is not one of"),
    ],
)
def test_wrong_arguments_end_with_one_line(segmentlog, logs, tmp_path, arguments, status, message):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    ended = segmentlog("inventory", *(argument.format(tmp=tmp_path) for argument in arguments))
    assert ended.refused(status, message)


def test_a_directory_that_may_not_be_read(segmentlog, logs, monkeypatch):
    from storage_core.errors import UnreadableError
    from storage_core.filesystem import FileSystem

    examine = FileSystem.examine_directory

    def refuse(self, path):
        if path.endswith("/orders-1"):
            raise UnreadableError("User nobody may not list this path.", path=path)
        return examine(self, path)

    monkeypatch.setattr(FileSystem, "examine_directory", refuse)
    ended = segmentlog("inventory", logs)
    assert ended.status == 3
    assert "unreadable: User nobody may not list this path." in ended.stdout
    assert "payments" in ended.stdout


def test_what_is_in_remote_storage_has_columns_of_its_own(segmentlog, tmp_path):
    local, remote = cut(make_whole(tmp_path / "whole"), tmp_path, 5, 7)
    ended = segmentlog("inventory", local, "--remote-storage", remote)
    assert (ended.status, ended.stderr) == (0, "")
    assert f"{remote}: remote storage; 1 partition, 7 segments" in ended.stdout
    headings = next(line for line in ended.stdout.splitlines() if "topic" in line)
    assert "remote segments" in headings
    assert "remote segments" not in segmentlog("inventory", local).stdout
    by_partition = segmentlog("inventory", local, "--remote-storage", remote, "--partitions").stdout
    assert [line.split()[1] for line in by_partition.splitlines() if line.startswith("orders-0")] == [
        "live",
        "remote",
    ]
