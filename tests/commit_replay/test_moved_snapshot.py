"""The producer snapshot at the former log end gets the name of the new one, instead of a copy, where that is safe."""

from __future__ import annotations

import os
import shutil

import pytest

from storage_core import LogDirectory
from storage_core.commit_replay import finish_commit
from storage_core.errors import StorageError, UnreadableError
from storage_core.filesystem import FileSystem
from tests.commit.commit_crashes import crash_at
from tests.commit.jobs import CONFIG, JOBS, ROOT, commit, contents, fill, rows_of, staged_job
from tests.faults.simulated_filesystem import SimulatedFileSystem
from tests.log.logs import Clock

FORMER, LATER = (f"orders-0/{end:020d}.snapshot" for end in (5, 9))
ROWS = rows_of(("orders", 0, 4))


def inodes(filesystem, root):
    """Return the inode of each snapshot."""
    found = {name: filesystem.status(f"{root}/{name}") for name in (FORMER, LATER)}
    return {name: status.version for name, status in found.items() if status is not None}


@pytest.fixture
def root(tmp_path):
    """Return a log of five records."""
    fill(FileSystem(), str(tmp_path), ("orders", 0, 5))
    return tmp_path


def test_the_snapshot_at_the_former_end_is_renamed(root):
    before = inodes(FileSystem(), root)
    commit(FileSystem(), root, JOBS[0], ROWS)
    assert inodes(FileSystem(), root) == {LATER: before[FORMER]}
    assert (root / LATER).stat().st_nlink == 1


def test_a_snapshot_that_stays_is_copied(root):
    # Its first batch begins a segment at the former end.
    commit(FileSystem(), root, JOBS[0], rows_of(("orders", 0, 4)), mode="overwrite")
    assert len(set(inodes(FileSystem(), root).values())) == 2
    assert (root / LATER).read_bytes() == (root / FORMER).read_bytes()


def test_a_snapshot_with_another_name_is_copied(root):
    os.link(root / FORMER, root.parent / "backup")
    before = inodes(FileSystem(), root)[FORMER]
    commit(FileSystem(), root, JOBS[0], ROWS)
    assert list(inodes(FileSystem(), root)) == [LATER]
    assert inodes(FileSystem(), root)[LATER] != before


@pytest.mark.parametrize(
    ("refuses", "error"),
    [("link", UnreadableError), ("require_writable", UnreadableError), ("link", StorageError)],
)
def test_a_snapshot_that_cannot_be_linked_is_copied(root, monkeypatch, refuses, error):
    """It is another user's, or the directory was copied to where there are no links."""
    call = getattr(FileSystem, refuses)

    def refused(filesystem, path, *target):
        if path.endswith(FORMER):
            raise error("Operation not permitted", path=path)
        call(filesystem, path, *target)

    before = inodes(FileSystem(), root)[FORMER]
    job = staged_job(FileSystem(), root, JOBS[0], ROWS)
    monkeypatch.setattr(FileSystem, refuses, refused)
    job.commit()
    assert list(inodes(FileSystem(), root)) == [LATER]
    assert inodes(FileSystem(), root)[LATER] != before


def crashed(number):
    """Return what a power cut or a kill at one call of a commit leaves; None beyond the last."""
    filesystem = SimulatedFileSystem()
    fill(filesystem, ROOT, ("orders", 0, 5))
    job = staged_job(filesystem, ROOT, JOBS[0], ROWS)
    return crash_at(filesystem, job.commit, number, f"snapshot {number}", only_killed=True)


def test_an_interrupted_commit_is_completed_whichever_names_there_are():
    seen = set()
    number = 1
    while (filesystem := crashed(number)) is not None:
        names = tuple(inodes(filesystem, ROOT))
        seen.add(names)
        finish_commit(filesystem, ROOT, lambda _: CONFIG)
        rows = len(contents(filesystem, ROOT)["orders", 0])
        assert list(inodes(filesystem, ROOT)) == [LATER if rows == 9 else FORMER], number
        number += 1
    assert seen == {(FORMER,), (FORMER, LATER), (LATER,)}


def test_a_copy_of_an_interrupted_commit_in_which_links_are_files_is_completed(root):
    """As `cp -r` and most backups make it."""
    job, copy = staged_job(FileSystem(), root, JOBS[0], ROWS), root.parent / "copy"
    link = FileSystem.link

    class Killed(FileSystem):
        def link(self, source, target):
            link(self, source, target)
            if source.endswith(".snapshot"):
                shutil.copytree(root, copy)

    job.commit(Killed())
    assert len(set(inodes(FileSystem(), copy).values())) == 2
    with LogDirectory.open(str(copy), config=CONFIG, clock=Clock()) as logs:
        assert logs.get("orders", 0).log_end_offset == 9
    assert list(inodes(FileSystem(), copy)) == [LATER]
