"""Segments whose rows a job has overwritten await their deletion, as those that a broker deletes."""

from __future__ import annotations

import dataclasses

import pytest

from storage_core import FileSystem, read_table
from storage_core.commit.job import CommitJob
from storage_core.errors import SegmentLogError, UnreadableError
from storage_core.options import parse_read_options
from storage_core.scan.plan import plan_scan
from storage_core.scan.read import read_schema, read_task
from tests.commit.jobs import CONFIG, JOBS, ROOT, commit, contents, fill, rows_of, staged_job, states
from tests.faults.simulated_filesystem import SimulatedFileSystem
from tests.log.logs import NOW_MS, Clock

DELAY_MS = CONFIG.file_delete_delay_ms


def names_in(filesystem, suffix, directory=f"{ROOT}/t-0"):
    return sorted(entry.name for entry in filesystem.list_directory(directory) if entry.name.endswith(suffix))


def overwrite(filesystem, number, count=60, at_ms=NOW_MS, root=ROOT, **settings):
    job = staged_job(
        filesystem,
        root,
        JOBS[number],
        rows_of(("t", 0, count), name=f"job{number}"),
        mode="overwrite",
        **settings,
    )
    later = CommitJob(filesystem, str(root), job.job.spec, Clock(at_ms))
    return later.commit(job.manifests)


def filled(filesystem):
    fill(filesystem, ROOT, ("t", 0, 60))
    return filesystem


def test_the_commit_renames_overwritten_segments_and_a_later_job_deletes_them():
    filesystem = filled(SimulatedFileSystem())
    before = names_in(filesystem, (".log", "index", ".snapshot"))
    overwrite(filesystem, 0)
    assert names_in(filesystem, ".log")[0] == f"{60:020d}.log"
    marked = names_in(filesystem, ".deleted")
    assert [name.removesuffix(".deleted") for name in marked] == [
        name for name in before if name < f"{60:020d}"
    ]
    overwrite(filesystem, 1, at_ms=NOW_MS + DELAY_MS - 1)
    assert set(marked) < set(names_in(filesystem, ".deleted"))
    overwrite(filesystem, 2, at_ms=NOW_MS + DELAY_MS)
    assert not set(marked) & set(names_in(filesystem, ".deleted"))
    assert len(contents(filesystem, ROOT)["t", 0]) == 60
    assert states(filesystem, ROOT)["t", 0] == (180, 240)
    # The log directory was opened.
    assert names_in(filesystem, ".deleted") == []


def test_overwrites_do_not_add_up():
    filesystem = SimulatedFileSystem()
    config = dataclasses.replace(CONFIG, file_delete_delay_ms=0)
    commit(filesystem, ROOT, JOBS[0], rows_of(("t", 0, 60)), new_partitions={"t": 1}, config=config)
    sizes = []
    for number in range(1, 9):
        overwrite(filesystem, number, config=config)
        sizes.append(sum(len(data) for path, data in filesystem.files().items() if "/t-0/" in path))
    assert max(sizes) < 1.1 * sizes[0]


def test_an_append_deletes_what_is_due():
    filesystem = filled(SimulatedFileSystem())
    overwrite(filesystem, 0)
    job = staged_job(filesystem, ROOT, JOBS[1], rows_of(("t", 0, 1)))
    CommitJob(filesystem, ROOT, job.job.spec, Clock(NOW_MS + DELAY_MS)).commit(job.manifests)
    assert names_in(filesystem, ".deleted") == []
    assert len(contents(filesystem, ROOT)["t", 0]) == 61


def test_an_append_deletes_the_copy_that_a_kill_has_left():
    """A linked segment is copied under another name before it is changed."""
    filesystem = filled(SimulatedFileSystem())
    for foreign in ("", ".bak"):
        path = f"{ROOT}/t-0/{0:020d}.log.0123456789abcdef{foreign}.tmp"
        with filesystem.open_for_writing(path, create=True) as file:
            file.write_at([b"copy"], 0)
        filesystem.set_modified_ms(path, NOW_MS - DELAY_MS)
    commit(filesystem, ROOT, JOBS[0], rows_of(("t", 0, 1)))
    assert names_in(filesystem, ".tmp") == [f"{0:020d}.log.0123456789abcdef.bak.tmp"]
    assert len(contents(filesystem, ROOT)["t", 0]) == 61


def test_an_aborted_or_refused_job_frees_nothing():
    filesystem = filled(SimulatedFileSystem())
    before = names_in(filesystem, "")
    staged_job(filesystem, ROOT, JOBS[0], rows_of(("t", 0, 60)), mode="overwrite").job.abort()
    job = staged_job(filesystem, ROOT, JOBS[1], rows_of(("t", 0, 60)), mode="overwrite")
    filesystem.space_bytes = 0
    with pytest.raises(SegmentLogError):
        job.commit()
    assert names_in(filesystem, "") == before


def test_overwritten_segments_of_another_user_stay(caplog, monkeypatch):
    """Who may write to a directory need not own its files; only the owner may set their time."""
    filesystem = filled(SimulatedFileSystem())
    before = names_in(filesystem, ".log")

    def refuse(path, modified_ms):
        raise UnreadableError("User 7 may not change the time of this path.", path=path)

    monkeypatch.setattr(filesystem, "set_modified_ms", refuse)
    for number in range(2):
        overwrite(filesystem, number)
    assert [(each.name, each.getMessage()[:57]) for each in caplog.records] == [
        ("storage_core.commit_replay.replay", "Overwritten segments stay where they are, and take space:")
    ] * 2
    assert set(before) < set(names_in(filesystem, ".log"))
    assert names_in(filesystem, ("journal", "commit-in-progress"), ROOT) == []
    assert [offset for offset, _ in contents(filesystem, ROOT)["t", 0]] == list(range(120, 180))
    monkeypatch.undo()
    overwrite(filesystem, 2)
    assert names_in(filesystem, ".log")[0] == f"{180:020d}.log"


def test_a_read_that_was_planned_before_goes_on(tmp_path):
    root = str(tmp_path / "logs")
    filesystem = FileSystem()
    fill(filesystem, root, ("t", 0, 60))
    options = parse_read_options({"path": root, "columns": ["offset"]})
    plan = plan_scan(filesystem, options)
    for number in range(2):
        overwrite(filesystem, number, root=root)
    rows = [
        offset
        for task in plan.tasks
        for batch in read_task(filesystem, task, read_schema(options))
        for offset in batch["offset"].to_pylist()
    ]
    assert rows == list(range(60))
    assert read_table(root, columns=["offset"])["offset"].to_pylist() == list(range(120, 180))


@pytest.mark.parametrize("settings", [{}, {"flush": False}], ids=str)
def test_segments_below_the_former_log_start_are_freed_too(settings):
    """Also files without a log file, which a power cut may leave."""
    filesystem = filled(SimulatedFileSystem())
    filesystem.delete(f"{ROOT}/t-0/{0:020d}.log")
    overwrite(filesystem, 0, **settings)
    assert names_in(filesystem, (".log", "index"))[0].startswith(f"{60:020d}")
    assert len(contents(filesystem, ROOT)["t", 0]) == 60


@pytest.mark.parametrize("is_again", [True, False])
def test_a_partition_that_gets_no_rows_is_freed_whole(is_again):
    filesystem = SimulatedFileSystem()
    fill(filesystem, ROOT, ("t", 0, 60), ("t", 1, 60))
    overwrite(filesystem, 0)
    if is_again:
        overwrite(filesystem, 1)
    names = names_in(filesystem, (".log", ".index", ".timeindex"), f"{ROOT}/t-1")
    assert names == [f"{60:020d}.{suffix}" for suffix in ("index", "log", "timeindex")]
    assert contents(filesystem, ROOT)["t", 1] == []
    assert states(filesystem, ROOT)["t", 1] == (60, 60)
    commit(filesystem, ROOT, JOBS[2], rows_of(("t", 1, 3), name="new"))
    assert [offset for offset, _ in contents(filesystem, ROOT)["t", 1]] == [60, 61, 62]
