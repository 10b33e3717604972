"""What cannot be written to is refused before anything is visible, and the job can be aborted."""

from __future__ import annotations

import dataclasses
import os

import pytest

from storage_core import FileSystem
from storage_core.errors import LogDirectoryError, UnreadableError
from tests.commit.jobs import JOBS, ROOT, commit, contents, fill, rows_of, staged_job
from tests.faults.simulated_filesystem import SimulatedFileSystem

TAIL = "00000000000000000000"


class Mounted(SimulatedFileSystem):
    """`orders-1` is on another device."""

    def status(self, path, *, follow_symlinks=False):
        status = super().status(path, follow_symlinks=follow_symlinks)
        is_mounted = status is not None and "/orders-1" in path
        return dataclasses.replace(status, device=2) if is_mounted else status


def refused(filesystem, *rows, **settings):
    """Commit what is refused; all is as it was. Return the error."""
    before = filesystem.files()
    job = staged_job(filesystem, ROOT, JOBS[0], rows_of(*rows), **settings)
    with pytest.raises(LogDirectoryError) as caught:
        job.commit()
    assert f"{ROOT}/.segmentlog-journal" not in filesystem.files()
    assert job.job.abort()
    assert {**filesystem.files(), f"{ROOT}/.lock": b""} == {**before, f"{ROOT}/.lock": b""}
    return caught.value


@pytest.mark.parametrize("name", ["", f"/{TAIL}.log", f"/{TAIL}.index", f"/{TAIL}.timeindex"])
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_partition_that_this_user_may_not_write_to(name, mode):
    filesystem = SimulatedFileSystem()
    fill(filesystem, ROOT, ("orders", 0, 5), ("orders", 1, 5))
    filesystem.unwritable.add(f"{ROOT}/orders-1{name}")
    if mode == "overwrite" and name:
        # Only whole segments are made then.
        commit(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 3), ("orders", 1, 3)), mode=mode)
        assert len(contents(filesystem, ROOT)["orders", 1]) == 3
        return
    error = refused(filesystem, ("orders", 0, 3), ("orders", 1, 3), mode=mode)
    assert isinstance(error, UnreadableError)
    assert error.path == f"{ROOT}/orders-1{name}"
    commit(filesystem, ROOT, JOBS[1], rows_of(("orders", 0, 3)))
    assert len(contents(filesystem, ROOT)["orders", 0]) == 8


def test_a_partition_on_another_device():
    filesystem = Mounted()
    fill(filesystem, ROOT, ("orders", 0, 5), ("orders", 1, 5))
    error = refused(filesystem, ("orders", 0, 3), ("orders", 1, 3))
    assert "on the file system of its log directory" in str(error)
    assert error.path == f"{ROOT}/orders-1"
    commit(filesystem, ROOT, JOBS[1], rows_of(("orders", 0, 3)))
    assert len(contents(filesystem, ROOT)["orders", 0]) == 8


def test_on_a_disk_it_changes_nothing(tmp_path):
    filesystem = FileSystem()
    fill(filesystem, tmp_path, ("orders", 0, 5))
    commit(filesystem, tmp_path, JOBS[0], rows_of(("orders", 0, 3)))
    assert len(contents(filesystem, tmp_path)["orders", 0]) == 8


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("name", ["", f"{TAIL}.log"])
def test_on_a_disk_it_is_seen(tmp_path, name):
    filesystem = FileSystem()
    fill(filesystem, tmp_path, ("orders", 0, 5))
    path = tmp_path / "orders-0" / name
    path.chmod(0o555)
    try:
        with pytest.raises(UnreadableError, match="may not write to this path"):
            commit(filesystem, tmp_path, JOBS[0], rows_of(("orders", 0, 3)))
    finally:
        path.chmod(0o755)
    assert not (tmp_path / ".segmentlog-journal").exists()


def test_a_segment_that_is_a_symbolic_link(tmp_path):
    """It is never followed; without it, the log would end in front of it."""
    filesystem = FileSystem()
    fill(filesystem, tmp_path, ("orders", 0, 5))
    log = tmp_path / "orders-0" / f"{TAIL}.log"
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere.log"
    log.rename(elsewhere)
    log.symlink_to(elsewhere)
    time_index = log.with_suffix(".timeindex").read_bytes()
    job = staged_job(filesystem, tmp_path, JOBS[0], rows_of(("orders", 0, 3)))
    with pytest.raises(LogDirectoryError, match="as log segment, found a symbolic link") as caught:
        job.commit()
    assert caught.value.path == str(log)
    assert not (tmp_path / ".segmentlog-journal").exists()
    assert log.with_suffix(".timeindex").read_bytes() == time_index
    assert job.job.abort()
