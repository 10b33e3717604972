"""Names of files that are not UTF-8, which Python has as surrogates: every command prints them as escapes."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from storage_core.cli.main import run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ODD_LOG, ODD_FILE = os.fsdecode(b"0\xff.log"), os.fsdecode(b"x\xff")


@pytest.fixture
def odd(tmp_path: Path, example_data: Path) -> Path:
    """Return a log directory with such a name, and in it files and a directory with such names."""
    root = tmp_path / os.fsdecode(b"logs\xfe")
    (root / "clicks-0").parent.mkdir()
    shutil.copytree(example_data / "clicks-0", root / "clicks-0")
    (root / ODD_FILE).touch()
    (root / "clicks-0" / ODD_FILE).touch()
    (root / os.fsdecode(b"e\xff-0")).mkdir()
    return root


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, bytes]]:
    """Runs a command with a standard output that refuses surrogates, as that of a process does; pytest's takes them."""

    def run_strictly(*arguments: object) -> tuple[int, bytes]:
        stream = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(stream, "utf-8", write_through=True))
        with pytest.raises(SystemExit) as ended:
            run([str(argument) for argument in arguments])
        return int(ended.value.code or 0), stream.getvalue()

    return run_strictly


@pytest.mark.parametrize("output", ["table", "json", "jsonl", "csv", "arrow"])
def test_verify(printed, odd, output: str):
    (odd / "clicks-0" / ODD_LOG).touch()
    status, text = printed("verify", odd, "--notes", "--output", output)
    assert status == 1
    if output == "arrow":
        files = pa.ipc.open_stream(text).read_all()["file"].to_pylist()
    elif output == "csv":
        files = [row["file"] for row in csv.DictReader(io.StringIO(text.decode()))]
    elif output == "jsonl":
        files = [json.loads(line)["file"] for line in text.decode().splitlines()]
    elif output == "json":
        (partition,) = json.loads(text)["partitions"]
        files = [each["file"] for each in partition["findings"]]
    else:
        assert "0\\xff.log" in text.decode()
        return
    assert str(odd / "clicks-0" / "0").replace("\udcfe", "\\xfe") + "\\xff.log" in files


@pytest.mark.parametrize("output", ["table", "json", "jsonl", "csv", "arrow"])
def test_inventory(printed, odd, output: str):
    status, text = printed("inventory", odd, "--output", output)
    assert status == 0
    if output in {"table", "json"}:
        assert b"logs\\" in text
    if output == "jsonl":
        assert json.loads(text)["topic"] == "clicks"


@pytest.mark.parametrize("output", ["table", "json"])
def test_index_rebuild(printed, odd, output: str):
    (index,) = (odd / "clicks-0").glob("*0.timeindex")
    index.write_bytes(b"\1" * 24)
    status, text = printed("index", "rebuild", odd, "--in-place", "--output", output)
    assert status == 0
    if output != "table":
        assert "logs\\xfe" in json.loads(text)["partitions"][0]["path"]


@pytest.mark.parametrize("output", ["table", "json"])
def test_recover(printed, odd, tmp_path, output: str):
    target = tmp_path / os.fsdecode(b"new\xfd")
    status, text = printed("recover", odd, "--to", target, "--output", output)
    assert status == 0
    assert b"new\\" in text
    if output != "table":
        assert json.loads(text)["target"] == str(target).replace("\udcfd", "\\xfd")


def test_report(printed, odd, tmp_path):
    page = tmp_path / "page.html"
    status, _ = printed("report", odd, "--output", page)
    assert status == 0
    assert "logs\\udcfe" in page.read_text(encoding="utf-8")
