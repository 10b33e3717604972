"""Reading beside a commit that does not end, or not well, and what the look for commits costs."""

from __future__ import annotations

import os

import pytest

from storage_core import LogDirectory, read_table
from storage_core.commit_files.commits_file import CommitEntry, commit_line
from storage_core.directory import visibility
from storage_core.errors import CorruptCheckpointError, DataLossError
from storage_core.filesystem import FileSystem
from tests.commit.jobs import CONFIG, JOBS, ROOT, commit, fill, rows_of, staged_job
from tests.faults.simulated_filesystem import SimulatedFileSystem

OLD_ROWS = 42


def new_root(path, *, has_commits=True):
    path.mkdir()
    fill(FileSystem(), path, ("grown", 0, 20), ("rolled", 0, 22))
    if has_commits:
        commit(FileSystem(), path, JOBS[0])
    return path


@pytest.fixture
def interrupted(tmp_path):
    """A root in which a job has written its journal, and nothing after it."""
    filesystem, states = SimulatedFileSystem(), []
    fill(filesystem, ROOT, ("grown", 0, 20), ("rolled", 0, 22))
    commit(filesystem, ROOT, JOBS[0])
    job = staged_job(
        filesystem, ROOT, JOBS[1], rows_of(("grown", 0, 30), ("fresh", 0, 5)), new_partitions={"fresh": 1}
    )
    filesystem.observe = lambda _: states.append(filesystem.kill().files())
    job.commit()
    root = tmp_path / "logs"
    for path, content in next(files for files in states if f"{ROOT}/.segmentlog-journal" in files).items():
        target = root / os.path.relpath(path, ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return root


@pytest.mark.parametrize("tail", [bytes(4096), b"\xff" * 200, bytes(150) + b"\2" * 300, None])
def test_what_stands_after_the_log_end_of_the_journal_is_not_read(interrupted, tail):
    log = max((interrupted / "grown-0").glob("*.log"))
    whole = log.read_bytes()
    log.write_bytes(whole + (whole[:70] if tail is None else tail))
    log.with_suffix(".index").write_bytes(bytes(21))
    for options in ({}, {"use_indexes": False}, {"mode": "PERMISSIVE"}):
        assert read_table(interrupted, **options).num_rows == OLD_ROWS
    assert read_table(interrupted / "grown-0").num_rows == 20


def test_it_gives_up_when_commits_never_stop(tmp_path):
    root = new_root(tmp_path / "logs")

    class Restless(FileSystem):
        looks = 0

        def open(self, path):
            if path.endswith(".segmentlog-commits"):
                self.looks += 1
                line = commit_line(CommitEntry(100 + self.looks, f"{self.looks:032x}", 0))
                (root / ".segmentlog-commits").write_bytes(line)
            return super().open(path)

    filesystem = Restless()
    with pytest.raises(DataLossError, match="each of 10 attempts"):
        read_table(root, filesystem=filesystem)
    assert filesystem.looks < 50


def test_a_damaged_journal_is_reported(interrupted):
    journal = interrupted / ".segmentlog-journal"
    journal.write_bytes(journal.read_bytes()[:-1])
    for path in (interrupted, interrupted / "grown-0"):
        with pytest.raises(CorruptCheckpointError, match="CRC-32C"):
            read_table(path)


def test_a_journal_that_is_no_file_is_reported(tmp_path):
    root = new_root(tmp_path / "logs")
    (root / ".segmentlog-journal").mkdir()
    with pytest.raises(CorruptCheckpointError):
        read_table(root)


def test_journals_are_not_parsed_twice(interrupted, monkeypatch):
    parsed = []
    parse = visibility.parse_own_journal
    monkeypatch.setattr(visibility, "parse_own_journal", lambda *args: parsed.append(1) or parse(*args))
    assert read_table(interrupted).num_rows == OLD_ROWS
    assert len(parsed) == 1


# -- What it costs --------


class Counting(FileSystem):
    def __init__(self):
        super().__init__()
        self.asked = []

    def open(self, path):
        self.asked.append(("open", os.path.basename(path)))
        return super().open(path)

    def status(self, path, *, follow_symlinks=False):
        self.asked.append(("status", os.path.basename(path)))
        return super().status(path, follow_symlinks=follow_symlinks)

    def walk_directory(self, path):
        self.asked.append(("list", os.path.basename(path)))
        return super().walk_directory(path)


WATCHED = [".segmentlog-journal", ".segmentlog-commits"]


def opened_for_commits(filesystem):
    return [name for how, name in filesystem.asked if how == "open" and name.startswith(".segmentlog")]


@pytest.mark.parametrize("path", ["logs", ".", "logs/grown-0"])
def test_a_root_without_commits_costs_two_opens_that_fail(tmp_path, path):
    new_root(tmp_path / "logs", has_commits=False)
    filesystem = Counting()
    read_table(tmp_path / path, filesystem=filesystem)
    assert opened_for_commits(filesystem) == WATCHED
    assert filesystem.asked.count(("list", "logs")) == (path != "logs/grown-0")


def test_a_root_with_commits_costs_four_opens_and_a_listing(tmp_path):
    new_root(tmp_path / "logs")
    filesystem = Counting()
    read_table(tmp_path / "logs", filesystem=filesystem)
    assert opened_for_commits(filesystem) == 2 * WATCHED
    assert filesystem.asked.count(("list", "logs")) == 2
    # The partitions are looked at once.
    assert filesystem.asked.count(("list", "grown-0")) == filesystem.asked.count(("list", "rolled-0"))


def test_a_log_that_is_polled_costs_two_opens_an_answer(tmp_path):
    root = new_root(tmp_path / "logs")
    filesystem = Counting()
    with LogDirectory.open(root, read_only=True, filesystem=filesystem, config=CONFIG) as logs:
        log = logs.get("grown", 0)
        assert log.log_end_offset == 20
        filesystem.asked.clear()
        assert log.log_end_offset == 20
        assert opened_for_commits(filesystem) == WATCHED
