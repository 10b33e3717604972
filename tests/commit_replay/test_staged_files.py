"""Staged files during a commit: each pack file is opened once, headers are read once, both within limits."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import numpy as np
import pytest

from storage_core.commit_replay import staged_batches
from storage_core.commit_replay.staged_batches import BatchHeads, StagedFiles
from storage_core.errors import StorageError
from storage_core.filesystem import FileSystem
from tests.commit.jobs import JOBS, contents, rows_of, staged_job, values

PARTITIONS = [("orders", number, 3) for number in range(5)]
TASKS = [rows_of(*PARTITIONS, name=f"task{number}") for number in range(4)]


class Counting(FileSystem):
    """Counts how often each pack file is opened, and which files are open."""

    def __init__(self):
        super().__init__()
        self.opened = Counter()
        self.files = []

    def open(self, path, version=None):
        file = super().open(path, version)
        if path.endswith(".pack"):
            self.opened[path] += 1
            self.files.append(file)
        return file


def committed(root, *, threads=2):
    """Return the file system with which a job of several tasks was committed."""
    job = staged_job(FileSystem(), root, JOBS[0], *TASKS, new_partitions={"orders": 5}, threads=threads)
    filesystem = Counting()
    job.commit(filesystem)
    return filesystem


def check_rows(root):
    found = contents(FileSystem(), root)
    for key in ((topic, number) for topic, number, _ in PARTITIONS):
        assert [value for _, value in found[key]] == [row for task in TASKS for row in values(task[key])]


def is_open(file):
    try:
        file.descriptor  # noqa: B018  (raises)
    except OSError:
        return False
    return True


def test_each_pack_file_is_opened_once_and_closed(tmp_path):
    filesystem = committed(tmp_path)
    assert sorted(filesystem.opened.values()) == [1] * 4
    assert not any(map(is_open, filesystem.files))
    check_rows(tmp_path)


def test_pack_files_beyond_the_limit_are_opened_for_each_piece(tmp_path, monkeypatch):
    monkeypatch.setattr(staged_batches, "_MOST_OPEN_PACKS", 2)
    filesystem = committed(tmp_path)
    # 5 pieces, checked and copied.
    assert sorted(filesystem.opened.values()) == [1, 1, 10, 10]
    assert not any(map(is_open, filesystem.files))
    check_rows(tmp_path)


@pytest.mark.parametrize("limit", [0, 7])
def test_headers_beyond_the_limit_are_read_again(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(staged_batches, "_MOST_KEPT_BATCHES", limit)
    committed(tmp_path)
    check_rows(tmp_path)


class Full(Counting):
    """Has no space left."""

    def free_bytes(self, path):
        return 0


def test_a_commit_that_fails_closes_its_files(tmp_path):
    job = staged_job(FileSystem(), tmp_path, JOBS[0], *TASKS, new_partitions={"orders": 5})
    filesystem = Full()
    with pytest.raises(StorageError, match="free space"):
        job.commit(filesystem)
    assert len(filesystem.files) == 4
    assert not any(map(is_open, filesystem.files))


def test_headers_are_given_up_once():
    heads = [BatchHeads(np.zeros(1, np.int64), np.zeros(1, np.int64))]
    with closing(StagedFiles(FileSystem(), "/nowhere")) as files:
        files.keep_heads("p", 7, heads)
        assert files.take_heads("p", 7) is heads
        assert files.take_heads("p", 7) is None
