"""The first staged segment becomes one of the log where one begins in any case, and never an additional one."""

from __future__ import annotations

import pytest

from storage_core.filesystem import FileSystem
from tests.commit.jobs import JOBS, commit, contents, fill, rows_of, stage, staged_job, values

TASKS = [rows_of(("orders", 0, 9), name=f"task{number}") for number in range(3)]


def staged(root, *, piece_bytes=1, **settings):
    """Return a job whose tasks are done. Their pieces are too small to be linked, too large for the pack file."""
    settings = {"new_partitions": {"orders": 1}, **settings}
    job = staged_job(FileSystem(), root, JOBS[0], **settings)
    job.manifests = [
        stage(FileSystem(), str(root), JOBS[0], rows, task=number, piece_bytes=piece_bytes)
        for number, rows in enumerate(TASKS)
    ]
    return job


def inodes(root, pattern):
    return [path.stat().st_ino for path in sorted(root.glob(pattern))]


def committed(root, job):
    """Commit it; return how many of its staged files are in the log, after checking the rows."""
    files = inodes(root, ".segmentlog-stage-*-0-0-0.*")
    job.commit()
    found = [value for _, value in contents(FileSystem(), root)["orders", 0][-27:]]
    assert found == [row for rows in TASKS for row in values(rows["orders", 0])]
    return len(set(files) & set(inodes(root, "orders-0/*")))


def test_a_new_log_begins_with_the_first_task_and_has_one_segment(tmp_path):
    assert committed(tmp_path, staged(tmp_path)) == 3
    assert [path.name for path in tmp_path.glob("orders-0/*.log")] == [f"{0:020d}.log"]


def test_the_segment_of_an_empty_log_is_replaced(tmp_path):
    fill(FileSystem(), str(tmp_path), ("orders", 0, 0))
    assert committed(tmp_path, staged(tmp_path)) == 3
    assert [path.name for path in tmp_path.glob("orders-0/*.log")] == [f"{0:020d}.log"]


def test_rows_that_overwrite_others_begin_with_the_first_task(tmp_path):
    fill(FileSystem(), str(tmp_path), ("orders", 0, 5))
    assert committed(tmp_path, staged(tmp_path, mode="overwrite")) == 3
    assert [path.name for path in tmp_path.glob("orders-0/*.log")] == [f"{5:020d}.log"]


def test_a_log_with_records_gets_no_additional_segment(tmp_path):
    fill(FileSystem(), str(tmp_path), ("orders", 0, 5))
    assert committed(tmp_path, staged(tmp_path)) == 0
    assert [path.name for path in tmp_path.glob("orders-0/*.log")] == [f"{0:020d}.log"]


def test_what_follows_is_as_if_all_of_it_had_been_copied(tmp_path):
    """The same bytes, indexes and all, as from pack files."""
    roots = [tmp_path / name for name in ("linked", "copied")]
    for root, piece_bytes in zip(roots, (1, 1 << 20), strict=True):
        root.mkdir()
        job = staged(root, piece_bytes=piece_bytes, topic_ids={"orders": "AbCdEfGhIjKlMnOpQrStUg"})
        assert committed(root, job) == (3 if piece_bytes == 1 else 0)
    linked, copied = ({path.name: path.read_bytes() for path in root.glob("orders-0/*")} for root in roots)
    assert linked == copied


@pytest.mark.parametrize("end", [27, 40])
def test_rows_that_keep_their_offsets_are_placed_as_before(tmp_path, end):
    """A restored log may begin before its first row."""
    rows = {("orders", 0): [(5 + number, b"row %d" % number) for number in range(9)]}
    job = staged_job(
        FileSystem(),
        tmp_path,
        JOBS[0],
        preserve_offsets=True,
        restored_offsets={("orders", 0): (0, end)},
    )
    job.manifests = [stage(FileSystem(), str(tmp_path), JOBS[0], rows, piece_bytes=1)]
    files = inodes(tmp_path, ".segmentlog-stage-*-0-0-0.*")
    job.commit()
    assert not set(files) & set(inodes(tmp_path, "orders-0/*"))
    assert [path.name for path in tmp_path.glob("orders-0/*.log")] == [f"{0:020d}.log"]
    commit(FileSystem(), tmp_path, JOBS[1], TASKS[0])
    assert [offset for offset, _ in contents(FileSystem(), tmp_path)["orders", 0]] == [
        *range(5, 14),
        *range(end, end + 9),
    ]
