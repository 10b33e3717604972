"""`segmentlog convert`."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest


def test_a_table_of_what_was_written(segmentlog, example_data, tmp_path):
    ended = segmentlog("convert", example_data, "--to", tmp_path / "out", "--where", "partition = 0")
    assert ended.status == 0
    lines = [line.split() for line in ended.stdout.splitlines()]
    assert lines[0] == ["topic", "days", "files", "rows", "size"]
    assert [line[:4] for line in lines[1:4]] == [
        ["clicks", "1", "1", "1,200"],
        ["inventory", "5", "5", "626"],
        ["orders", "7", "7", "8,234"],
    ]
    assert (tmp_path / "out" / "_SUCCESS").exists()
    assert ended.stderr == ""


def test_json(segmentlog, example_data, tmp_path):
    ended = segmentlog(
        "convert", example_data, "--to", tmp_path / "out", "--subscribe", "clicks", "-o", "json"
    )
    done = json.loads(ended.stdout)
    (file,) = done["files"]
    assert (done["rows"], file["date"], file["path"]) == (
        1200,
        "2026-03-06",
        "topic=clicks/date=2026-03-06/part-00000.parquet",
    )
    assert pq.read_metadata(tmp_path / "out" / file["path"]).row_group(0).column(0).compression == "ZSTD"


def test_compression_and_headers(segmentlog, example_data, tmp_path):
    segmentlog(
        *("convert", example_data, "--to", tmp_path / "out", "--subscribe", "clicks"),
        *("--compression", "snappy", "--include-headers", "true", "--threads", "2"),
    )
    (path,) = (tmp_path / "out").rglob("*.parquet")
    assert "headers" in pq.read_schema(path).names
    assert pq.read_metadata(path).row_group(0).column(0).compression == "SNAPPY"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "Missing option '--to'"),
        (("--to", "{data}/out"), "which is read"),
        (("--to", "{out}", "--compression", "rar"), "'rar' is not one of"),
        (("--to", "{out}", "--subscribe", "nothing"), "does not exist"),
        (("--to", "{full}"), "Expected an empty directory"),
    ],
)
def test_wrong_use_writes_nothing(segmentlog, example_data, tmp_path, flags, message):
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").write_text("x")
    named = {"data": example_data, "out": tmp_path / "out", "full": full}
    before = sorted(example_data.rglob("*"))
    ended = segmentlog("convert", example_data, *(flag.format(**named) for flag in flags))
    assert ended.refused(2, message)
    assert not (tmp_path / "out").exists()
    assert sorted(example_data.rglob("*")) == before


def test_a_parent_that_does_not_exist(segmentlog, example_data, tmp_path):
    ended = segmentlog("convert", example_data, "--to", tmp_path / "no" / "out")
    assert (ended.status, ended.stdout) == (3, "")
