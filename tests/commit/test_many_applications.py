"""Jobs that each have a txnAppId of their own: what each costs does not grow, and neither does the list without bound."""

from __future__ import annotations

import uuid

import pytest

from storage_core import LogDirectory
from storage_core.commit import job as commit_job
from storage_core.commit.job import CommitJob
from storage_core.commit.job_spec import JobSpec
from storage_core.commit_files import commits_file
from storage_core.commit_files.commits_file import CommitEntry, commit_line, read_commits_file
from storage_core.directory.visibility import read_visible_commits
from storage_core.errors import OptionError
from storage_core.filesystem import FileSystem
from tests.commit.commit_crashes import crashes_of_job, replay
from tests.commit.jobs import CONFIG, ROOT, commit, contents, rows_of, stage
from tests.faults.simulated_filesystem import SimulatedFileSystem
from tests.log.logs import Clock

DAY_MS = 24 * 60 * 60 * 1000
NOW_MS = 1_800_000_000_000


def write(root, filesystem=None, *, now_ms=NOW_MS, **settings):
    """Write a row with a job of its own; return whether it was new."""
    filesystem, job_id = filesystem or FileSystem(), uuid.uuid4().hex
    new = {"new_partitions": {"t": 1}, "flush": False, "threads": 1}
    job = CommitJob(
        filesystem, str(root), JobSpec(job_id=job_id, config=CONFIG, **new, **settings), Clock(now_ms)
    )
    job.begin()
    outcome = job.commit([stage(filesystem, str(root), job_id, rows_of(("t", 0, 1)))])
    return not outcome.was_committed_before


def as_after(root, count, time_ms=NOW_MS, padding=0):
    """Write the list that an older release leaves after a number of jobs."""
    entries = (
        CommitEntry(number, f"{number:032x}", time_ms, f"run {number} " + "y" * padding, 1)
        for number in range(1, count + 1)
    )
    (root / ".segmentlog-commits").write_bytes(b"".join(map(commit_line, entries)))


def test_a_job_costs_the_same_after_very_many_applications(tmp_path):
    root = tmp_path / "logs"
    write(root)
    read_bytes = []
    for count in (200, 10_000):
        as_after(root, count)
        assert write(root, txn_app_id=f"first after {count}", txn_version=1)
        filesystem = FileSystem()
        assert write(root, filesystem, txn_app_id=f"second after {count}", txn_version=1)
        read_bytes.append(filesystem.statistics.bytes_read)
        assert not write(root, txn_app_id=f"run {count // 2} ", txn_version=1)
        assert not write(root, txn_app_id=f"first after {count}", txn_version=1)
        reading = FileSystem()
        assert read_visible_commits(reading, str(root)).last_commit.generation == count + 2
        assert reading.statistics.bytes_read < 20_000
    assert read_bytes[1] < read_bytes[0] + 400_000


def test_an_application_is_remembered_for_its_retention(tmp_path):
    root = tmp_path / "logs"
    write(root)
    as_after(root, 600, NOW_MS - 30 * DAY_MS)
    assert not write(root, txn_app_id="run 7 ", txn_version=1)
    as_after(root, 600, NOW_MS - 30 * DAY_MS)
    assert write(root, now_ms=NOW_MS + 1, txn_app_id="run 7 ", txn_version=1)
    assert not write(root, now_ms=NOW_MS + 1, txn_app_id="run 599 ", txn_version=1)
    as_after(root, 600, NOW_MS - 30 * DAY_MS)
    assert not write(
        root, now_ms=NOW_MS + 1, txn_retention_ms=31 * DAY_MS, txn_app_id="run 7 ", txn_version=1
    )


def test_a_full_list_refuses_new_applications_before_anything_is_changed_and_no_other_job(
    tmp_path, monkeypatch
):
    for module in (commit_job, commits_file):
        monkeypatch.setattr(module, "MAX_COMMITS_BYTES", 70_000)
    root = tmp_path / "logs"
    write(root)
    as_after(root, 500, padding=20)
    before = (root / ".segmentlog-commits").stat().st_size
    assert before > 70_000
    count = len(contents(FileSystem(), root)["t", 0])
    for _ in range(2):
        with pytest.raises(
            OptionError, match=r"room for another txnAppId in a list of commits of at most 70000 bytes"
        ):
            write(root, txn_app_id="new", txn_version=1)
    assert not (root / ".segmentlog-journal").exists()
    for _ in range(20):
        write(root)
    assert write(root, txn_app_id="run 7 " + "y" * 20, txn_version=2)
    assert not write(root, txn_app_id="run 8 " + "y" * 20, txn_version=1)
    assert len(contents(FileSystem(), root)["t", 0]) == count + 21
    with LogDirectory.open(root, config=CONFIG) as logs:
        assert logs.get("t").log_end_offset == count + 21
    assert (root / ".segmentlog-commits").stat().st_size < before + 100_000
    assert write(root, now_ms=NOW_MS + 31 * DAY_MS, txn_app_id="new", txn_version=1)
    assert (root / ".segmentlog-commits").stat().st_size < 100_000


def test_the_list_stays_short_if_each_application_is_forgotten(tmp_path):
    root = tmp_path / "logs"
    for number in range(3):
        write(root, txn_app_id=f"a{number}", txn_version=1)
        if number == 0:
            as_after(root, 5_000, 1)
    assert len(read_commits_file(FileSystem(), str(root)).entries) == 130
    assert (root / ".segmentlog-commits").stat().st_size < 50_000


@pytest.mark.thorough
def test_a_crash_at_any_call_of_a_job_that_shortens_the_list_forgets_no_version(monkeypatch):
    monkeypatch.setattr(commit_job, "_MANY_COMMITS", 6)
    monkeypatch.setattr(commits_file, "_LINES_KEPT", 2)
    filesystem = SimulatedFileSystem()

    def write_version(filesystem, number):
        settings = {"txn_app_id": f"app {number}", "txn_version": 1, "new_partitions": {"t": 1}}
        outcome = commit(filesystem, ROOT, uuid.uuid4().hex, rows_of(("t", 0, 1)), **settings)
        return not outcome.was_committed_before

    for number in range(6):
        assert write_version(filesystem, number)
    outcomes = set()
    crashes = crashes_of_job(filesystem, lambda filesystem: write_version(filesystem, 6), seed=4, variants=2)
    for crashed in crashes[::3]:
        found = crashed.filesystem
        replay(found)
        assert [number for number in range(6) if write_version(found, number)] == [], crashed.name
        outcomes.add(write_version(found, 6))
        assert len(contents(found, ROOT)["t", 0]) == 7, crashed.name
    assert outcomes == {True, False}
    assert b'{"archived_bytes":' in filesystem.files()[f"{ROOT}/.segmentlog-commits"]
