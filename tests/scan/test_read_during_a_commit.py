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
from tests.faults.observed_filesystem import before_each_call
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
    """Return a root in which a job has written its journal, and nothing after it."""
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

        def open(self, path, version=None):
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


WATCHED = [".segmentlog-journal", ".segmentlog-commits"]


@pytest.fixture
def asked():
    """Return the calls of `counting`, and the name that each is about."""
    return []


@pytest.fixture
def counting(asked):
    return before_each_call(lambda call, path: asked.append((call, os.path.basename(path))))


def opened_for_commits(asked):
    return [name for call, name in asked if call == "open" and name.startswith(".segmentlog")]


@pytest.mark.parametrize("path", ["logs", ".", "logs/grown-0"])
def test_a_root_without_commits_costs_two_opens_that_fail(tmp_path, path, counting, asked):
    new_root(tmp_path / "logs", has_commits=False)
    read_table(tmp_path / path, filesystem=counting)
    assert opened_for_commits(asked) == WATCHED
    assert asked.count(("walk_directory", "logs")) == (path != "logs/grown-0")


def test_a_root_with_commits_costs_four_opens_and_a_listing(tmp_path, counting, asked):
    new_root(tmp_path / "logs")
    read_table(tmp_path / "logs", filesystem=counting)
    assert opened_for_commits(asked) == 2 * WATCHED
    assert asked.count(("walk_directory", "logs")) == 2
    # The partitions are looked at once.
    assert asked.count(("walk_directory", "grown-0")) == asked.count(("walk_directory", "rolled-0"))


def test_a_log_that_is_polled_costs_two_opens_an_answer(tmp_path, counting, asked):
    root = new_root(tmp_path / "logs")
    with LogDirectory.open(root, read_only=True, filesystem=counting, config=CONFIG) as logs:
        log = logs.get("grown", 0)
        assert log.log_end_offset == 20
        asked.clear()
        assert log.log_end_offset == 20
        assert opened_for_commits(asked) == WATCHED
