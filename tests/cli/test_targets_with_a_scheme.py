"""What writes takes no URI of another file system for a folder."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest

from storage_core import FileSystem, LogDirectory
from storage_core.commit import CommitJob, JobSpec
from storage_core.errors import OptionError

URIS = ["s3://bucket/logs", "S3A://bucket", "hdfs:/logs", "dbfs:/logs", "abfss://c@a.dfs.core.windows.net/x"]


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with LogDirectory.open(tmp_path / "logs") as logs:
        logs.create("t").append(pa.table({"value": [b"v"]}))
    return "logs"


@pytest.mark.parametrize("uri", URIS)
@pytest.mark.parametrize("read_only", [True, False])
def test_opening(root, uri, read_only):
    with pytest.raises(OptionError, match="has the scheme"):
        LogDirectory.open(uri, read_only=read_only)
    assert os.listdir() == [root]


@pytest.mark.parametrize("uri", URIS)
def test_a_job(root, uri):
    with pytest.raises(OptionError, match="has the scheme"):
        CommitJob(FileSystem(), uri, JobSpec(job_id="0" * 32))
    assert os.listdir() == [root]


@pytest.mark.parametrize("uri", URIS)
@pytest.mark.parametrize(
    "command",
    [
        ["recover", "logs", "--to"],
        ["recover", "logs", "--dry-run", "--manifest"],
        ["recover", "logs", "--in-place", "--aside"],
        ["convert", "logs", "--to"],
        ["index", "rebuild", "logs", "--to"],
        ["report", "logs", "--quiet", "--output"],
    ],
)
def test_commands(segmentlog, root, command, uri):
    ended = segmentlog(*command, uri)
    assert ended.status == 2
    assert "has the scheme" in ended.stderr
    assert os.listdir() == [root]


@pytest.mark.parametrize(
    "command", [["index", "rebuild", "--in-place"], ["recover", "--in-place", "--aside", "copies"]]
)
def test_changes_in_place(segmentlog, root, command):
    ended = segmentlog(
        *command, f"{root},s3a://bucket/logs" if command[0] == "index" else "s3a://bucket/logs"
    )
    assert ended.status == 2
    assert "aws s3 sync s3://bucket/logs <directory>" in ended.stderr
    assert os.listdir() == [root]


def test_a_uri_of_a_file_is_its_path(segmentlog, root, tmp_path):
    with LogDirectory.open(f"file://{tmp_path}/logs") as logs:
        assert [log.topic for log in logs.logs()] == ["t"]
    assert segmentlog("report", "logs", "--quiet", "--output", f"file://{tmp_path}/page.html").status == 0
    assert sorted(os.listdir()) == ["logs", "page.html"]
