"""Jobs that are the micro-batches of a stream: each once, under one name only, and without traces that add up."""

from __future__ import annotations

import uuid

import pytest

from storage_core import LogConfig
from storage_core.commit_files.commits_file import read_commits_file
from storage_core.errors import OptionError
from storage_core.filesystem import FileSystem
from tests.commit.jobs import commit, contents, rows_of, staged_job

BATCH = rows_of(("t", 0, 3), ("t", 1, 2))


def write_batch(root, number, *, config=None, **settings):
    """Commit one batch; return whether it was this run that wrote it."""
    settings = {"txn_app_id": "stream", "query_id": "q-1", "new_partitions": {"t": 2}, **settings}
    if config is not None:
        settings["config"] = config
    job_id = uuid.uuid4().hex
    outcome = commit(FileSystem(), root, job_id, BATCH, txn_version=number, **settings)
    return not outcome.was_committed_before


def test_a_batch_that_is_repeated_is_known_by_its_number(tmp_path):
    assert [write_batch(tmp_path / "logs", number) for number in (0, 1, 1, 0, 2)] == [
        True,
        True,
        False,
        False,
        True,
    ]
    assert len(contents(FileSystem(), tmp_path / "logs")["t", 0]) == 9


def test_another_query_under_the_same_name_is_an_error_before_and_after_its_rows_are_staged(tmp_path):
    root = tmp_path / "logs"
    write_batch(root, 0)
    settings = {"txn_app_id": "stream", "txn_version": 1, "query_id": "q-2"}
    with pytest.raises(OptionError, match="the streaming query q-1 has written batch 0 with it"):
        staged_job(FileSystem(), root, uuid.uuid4().hex, BATCH, **settings)
    tried = staged_job(FileSystem(), root, uuid.uuid4().hex, BATCH, is_begun=False, **settings)
    with pytest.raises(OptionError, match="restore the checkpoint, or give the query another txnAppId"):
        tried.commit()
    tried.job.abort()
    assert not [path.name for path in root.iterdir() if "stage" in path.name]


def test_a_name_of_batch_jobs_may_be_continued_by_a_query_but_not_repeated(tmp_path):
    root = tmp_path / "logs"
    write_batch(root, 4, query_id=None)
    with pytest.raises(OptionError, match="a job that is no stream has written batch 4 with it"):
        write_batch(root, 4)
    assert write_batch(root, 5)


def test_the_id_of_a_query_needs_a_name(tmp_path):
    with pytest.raises(OptionError, match="Expected a txnAppId besides the id of a streaming query"):
        staged_job(FileSystem(), tmp_path / "logs", uuid.uuid4().hex, BATCH, query_id="q-1")


def check_bounds(root, batches):
    """What is left of many batches: their records, and files whose number does not depend on the batches."""
    commits = read_commits_file(FileSystem(), str(root))
    assert commits.generation == batches
    assert len(commits.entries) <= 512
    assert (root / ".segmentlog-commits").stat().st_size <= 512 * 200
    assert len(list(root.iterdir())) < 10
    for number in (0, 1):
        names = sorted(path.name for path in (root / f"t-{number}").iterdir())
        segments = [name for name in names if name.endswith(".log")]
        snapshots = [name for name in names if name.endswith(".snapshot")]
        assert len(snapshots) <= len(segments) + 1
        assert len(names) <= 4 * len(segments) + 4


def write_many(root, batches):
    # Segments of 1 MiB: more than one, so that those that a segment needs are seen to stay.
    config = LogConfig(segment_bytes=1 << 20)
    for number in range(batches):
        assert write_batch(root, number, config=config, flush=False)
    check_bounds(root, batches)


@pytest.mark.thorough
def test_what_many_batches_leave_is_bounded(tmp_path):
    write_many(tmp_path / "logs", 600)


@pytest.mark.soak
def test_what_ten_thousand_batches_leave_is_bounded(tmp_path):
    write_many(tmp_path / "logs", 10_000)
