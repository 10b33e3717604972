"""What a commit journal names: only partitions and staged files of this package, and nothing behind a symbolic link."""

from __future__ import annotations

import dataclasses

import pytest

from storage_core import FileSystem, LogDirectory
from storage_core.commit import job as commit_job
from storage_core.commit_files.commits_file import CommitEntry
from storage_core.commit_files.journal import (
    COMMIT_IN_PROGRESS,
    AppendOperation,
    CommitJournal,
    JournalledPartition,
    LinkOperation,
    StagedFileRange,
    read_commit_journal,
    write_commit_journal,
)
from storage_core.commit_replay import finish_commit
from storage_core.directory import check_topic_partition
from storage_core.directory.visibility import read_visible_commits
from storage_core.errors import CorruptCheckpointError, LogDirectoryError, OptionError, SegmentLogError
from tests.commit.jobs import CONFIG, JOBS, commit, rows_of, staged_job
from tests.commit_replay.test_append import batch

STAGED = f".segmentlog-stage-{JOBS[0]}-0-0"
VICTIM = b"the bytes of somebody else" * 9
NAMES = ("00000000000000000000.log", "00000000000000000000.txnindex", "leader-epoch-checkpoint")


def partition(topic="t", operations=None):
    return JournalledPartition(
        topic=topic,
        partition=0,
        is_new=False,
        topic_id=None,
        leader_epoch=0,
        log_start_before=0,
        log_start_after=0,
        log_end_before=0,
        log_end_after=1,
        epochs_after=(),
        snapshot_from="empty",
        operations=operations
        or (AppendOperation((StagedFileRange(STAGED, 0, len(batch())),), 0, 0, 0, 0, 0),),
    )


def journal(*partitions, manifests=()):
    return CommitJournal(CommitEntry(1, JOBS[0], 0), b"", manifests, partitions)


def interrupted(root, journalled):
    """Make a log directory with t-0 and a forged commit."""
    commit(FileSystem(), root, JOBS[1], rows_of(("t", 0, 3)), new_partitions={"t": 1})
    (root / f"{STAGED}.pack").write_bytes(batch())
    (root / COMMIT_IN_PROGRESS).mkdir()
    write_commit_journal(FileSystem(), str(root), journalled)


def victim(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    for name in NAMES:
        (home / name).write_bytes(VICTIM)
    return home


def content(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def refused(root, match):
    """Nothing opens this directory, or reads it, and nothing in it changes."""
    before = content(root.parent)
    for call in (
        lambda: LogDirectory.open(root),
        lambda: LogDirectory.open(root, broker_directory=True),
        lambda: finish_commit(FileSystem(), str(root), lambda _: CONFIG),
        lambda: staged_job(FileSystem(), root, JOBS[2]),
        lambda: read_commit_journal(FileSystem(), str(root)),
        lambda: read_visible_commits(FileSystem(), str(root)),
    ):
        with pytest.raises(CorruptCheckpointError, match=match):
            call()
    after = content(root.parent)
    assert {path: data for path, data in after.items() if path.name != ".lock"} == {
        path: data for path, data in before.items() if path.name != ".lock"
    }


@pytest.mark.parametrize("topic", ["__cluster_metadata", ".segmentlog-x", ".", ".."])
def test_a_topic_that_no_job_writes_to_is_refused_whole(tmp_path, topic):
    root = tmp_path / "logs"
    interrupted(root, journal(partition(), partition(topic)))
    if topic == "__cluster_metadata":
        (root / f"{topic}-0").symlink_to(victim(tmp_path))
    refused(root, "name of a topic that jobs may write to")


LEGAL = ("t", "t-0", "...", "a" * 249, "__consumer_offsets", "__cluster_metadata_", ".segmentlog", "_")
ILLEGAL = (".", "..", "a" * 250, "", "t/x", "t\n", "__cluster_metadata", ".segmentlog-", "größe")


@pytest.mark.parametrize("topic", LEGAL + ILLEGAL)
def test_the_rule_is_that_of_a_topic_that_is_written(tmp_path, topic):
    try:
        check_topic_partition(topic, 0)
        is_legal = True
    except OptionError:
        is_legal = False
    try:
        write_commit_journal(FileSystem(), str(tmp_path), journal(partition(topic)))
        assert read_commit_journal(FileSystem(), str(tmp_path)) is not None
        is_read = True
    except CorruptCheckpointError:
        is_read = False
    assert is_read is is_legal


OTHERS = (f".segmentlog-stage-{JOBS[2]}-0-0", f"{STAGED}.pack", ".segmentlog-stage-x")


@pytest.mark.parametrize(
    "journalled",
    [
        *(journal(partition(operations=(LinkOperation(name, 3, 1, 0),))) for name in OTHERS),
        *(
            journal(partition(operations=(AppendOperation((StagedFileRange(name, 0, 1),), 3, 0, 9, 0, 0),)))
            for name in OTHERS
        ),
        *(journal(partition(), manifests=(f"{name}.manifest",)) for name in OTHERS),
        journal(partition(), manifests=(".segmentlog-stage-and-more",)),
    ],
)
def test_a_file_that_the_job_has_not_staged_is_refused_whole(tmp_path, journalled):
    root = tmp_path / "logs"
    interrupted(root, journalled)
    refused(root, f"name of a file that job {JOBS[0]} has staged")


@pytest.mark.parametrize("is_new", [True, False])
def test_a_link_in_place_of_a_partition_is_found_before_anything_is_changed(tmp_path, is_new):
    root, home = tmp_path / "logs", victim(tmp_path)
    interrupted(root, journal(partition(), dataclasses.replace(partition("x"), is_new=is_new)))
    (root / "x-0").symlink_to(home)
    before = content(tmp_path)
    with pytest.raises(LogDirectoryError, match="found a symbolic link"):
        finish_commit(FileSystem(), str(root), lambda _: CONFIG)
    assert content(tmp_path) == before


@pytest.mark.parametrize("flush", [True, False])
@pytest.mark.parametrize("count", [3, 60])
def test_a_directory_that_becomes_a_link_during_the_commit_is_not_followed(
    tmp_path, monkeypatch, flush, count
):
    root, home = tmp_path / "logs", victim(tmp_path)
    commit(FileSystem(), root, JOBS[1], rows_of(("t", 0, 3)), new_partitions={"t": 1})
    job = staged_job(FileSystem(), root, JOBS[0], rows_of(("t", 0, count)), flush=flush)
    write = commit_job.write_commit_journal

    def write_and_swap(*args):
        write(*args)
        (root / "t-0").rename(root / "aside")
        (root / "t-0").symlink_to(home)

    before = content(home)
    with monkeypatch.context() as patch:
        patch.setattr(commit_job, "write_commit_journal", write_and_swap)
        with pytest.raises(SegmentLogError, match="found a symbolic link"):
            job.commit()
    assert content(home) == before
    (root / "t-0").unlink()
    (root / "aside").rename(root / "t-0")
    with LogDirectory.open(root) as logs:
        assert logs.get("t", 0).log_end_offset == 3 + count
