"""Files with another name, as in a backup by hard links, stay as they are; what is made of private files is private."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat

import pyarrow as pa
import pytest

from storage_core import LogConfig, LogDirectory, read_table
from storage_core.checkpoint.checkpoint_file import replace_file
from storage_core.errors import SegmentLogError
from storage_core.filesystem import FileSystem
from storage_core.filesystem.file_system import TEMPORARY_FILE
from storage_core.log import CleanerConfig
from tests.faults.faulty_filesystem import Fault, FaultyCalls


def rows(start, count=5, key=None):
    values = [b"%d" % number for number in range(start, start + count)]
    return pa.table({"key": pa.array([key or value for value in values], pa.binary()), "value": values})


def linked_copy(source, target):
    """Copy as ``cp -al`` does."""
    shutil.copytree(source, target, copy_function=os.link)
    return contents(target)


def contents(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def modes(root):
    return {str(path.relative_to(root)): stat.S_IMODE(path.stat().st_mode) for path in root.rglob("*")}


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "logs"
    with LogDirectory.open(root) as logs:
        log = logs.create("t", 0)
        for start in range(0, 30, 5):
            log.append(rows(start))
            if start == 10:
                log.roll()
    return root


def append(log):
    log.append(rows(100), acks="all")


def truncate_the_active_segment(log):
    log.truncate_to(20)


def truncate_a_closed_segment(log):
    log.truncate_to(5)


def roll(log):
    log.append(rows(100))
    log.roll()


def delete_records(log):
    log.delete_records(20)


@pytest.mark.parametrize(
    "change", [append, truncate_the_active_segment, truncate_a_closed_segment, roll, delete_records]
)
@pytest.mark.parametrize("is_open", [True, False], ids=["linked while open", "linked while closed"])
def test_a_backup_by_hard_links_is_not_changed(root, tmp_path, change, is_open):
    if not is_open:
        before = linked_copy(root, tmp_path / "backup")
    with LogDirectory.open(root) as logs:
        log = logs.get("t")
        if is_open:
            log.append(rows(50), acks="all")
            before = linked_copy(root, tmp_path / "backup")
        change(log)
    assert contents(tmp_path / "backup") == before
    with LogDirectory.open(root) as logs:
        logs.get("t").append(rows(200))
    assert contents(tmp_path / "backup") == before
    assert read_table(root)["value"].to_pylist()[-1] == b"204"


def test_a_recovery_does_not_cut_a_backup_by_hard_links(root, tmp_path):
    (root / ".kafka_cleanshutdown").unlink()
    with (root / "t-0" / f"{15:020d}.log").open("ab") as file:
        file.write(b"torn")
    before = linked_copy(root, tmp_path / "backup")
    with LogDirectory.open(root) as logs:
        assert logs.get("t").log_end_offset == 30
    assert contents(tmp_path / "backup") == before


def test_a_copy_has_the_mode_and_the_time_of_the_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    path.chmod(0o664)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    os.link(path, tmp_path / "other")
    with FileSystem().open_for_writing(str(path)) as file:
        file.unshare()
        assert path.stat().st_nlink == 1
        assert stat.S_IMODE(path.stat().st_mode) == 0o664
        assert path.stat().st_mtime == 1_000_000_000
        assert path.read_bytes() == b"content"
    assert sorted(os.listdir(tmp_path)) == ["file", "other"]


def test_what_a_private_log_is_rewritten_to_is_private(tmp_path):
    """Cleaned segments, their indexes, rolled segments and checkpoints."""
    root = tmp_path / "logs"
    config = LogConfig.from_dict({"cleanup.policy": "compact", "index.interval.bytes": 1})
    with LogDirectory.open(root, config=config) as logs:
        log = logs.create("t", 0)
        for start in range(0, 20, 5):
            log.append(rows(start, key=b"key"))
            log.roll()
    for path in root.rglob("*"):
        if path.is_file():
            path.chmod(0o600)
    with LogDirectory.open(root, config=config) as logs:
        log = logs.get("t")
        log.clean(CleanerConfig())
        assert len(log.segment_base_offsets) < 5
        log.append(rows(100))
        log.roll()
    found = modes(root)
    for name, mode in found.items():
        if name.endswith((".log", "index", "-checkpoint")):
            assert mode == 0o600, name


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o755])
def test_what_is_made_in_a_private_directory_is_private(tmp_path, mode):
    root = tmp_path / "logs"
    root.mkdir()
    root.chmod(mode)
    with LogDirectory.open(root) as logs:
        logs.create("t", 0).append(rows(0))
    for name, found in modes(root).items():
        # The lock is empty.
        assert found & ~(mode | 0o600) == 0 or name == ".lock", name
        assert mode != 0o755 or found in (0o755, 0o644), name


def test_a_new_log_directory_belongs_to_the_group_of_a_shared_one(tmp_path):
    """A directory with the set-group-id bit gives it to those that are made in it."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2775)
    root = shared / "new" / "logs"
    with LogDirectory.open(root, config=LogConfig()) as logs:
        logs.create("t", 0)
    assert all((path.stat().st_mode & stat.S_ISGID) for path in (root.parent, root, root / "t-0"))


def test_a_temporary_name_cannot_be_taken_beforehand(tmp_path):
    names = []

    class Told(FileSystem):
        def rename(self, source, target):
            names.append(os.path.basename(source))
            super().rename(source, target)

    path = tmp_path / "checkpoint"
    (tmp_path / "checkpoint.tmp").mkdir()
    for _ in range(2):
        replace_file(Told(), str(path), b"content")
    assert len(set(names)) == 2
    assert all(TEMPORARY_FILE.fullmatch(name) for name in names)


def test_temporary_files_of_a_killed_process_are_removed(root):
    left = [
        f"t-0/{0:020d}.log",
        "t-0/leader-epoch-checkpoint",
        ".segmentlog-journal",
        "replication-offset-checkpoint",
    ]
    for name in left:
        (root / f"{name}.0123456789abcdef.tmp").write_bytes(b"left")
    (root / "notes.0123456789abcdef.tmp").write_bytes(b"somebody else's")
    with LogDirectory.open(root):
        pass
    assert [path.name for path in root.rglob("*.tmp")] == ["notes.0123456789abcdef.tmp"]


@pytest.mark.parametrize("number", [errno.ENOSPC, pytest.param(errno.EIO, marks=pytest.mark.thorough)])
def test_a_copy_that_fails_changes_neither_the_backup_nor_what_was_acknowledged(root, tmp_path, number):
    before = linked_copy(root, tmp_path / "backup")
    rows_before = read_table(root).num_rows
    for at in range(1, 100):
        copy = tmp_path / str(at)
        linked_copy(tmp_path / "backup", copy)
        appended = 0
        with (
            FaultyCalls(Fault(number, at)) as calls,
            contextlib.suppress(SegmentLogError),
            LogDirectory.open(copy) as logs,
        ):
            logs.get("t").append(rows(100), acks="all")
            appended = 5
        assert contents(tmp_path / "backup") == before
        with LogDirectory.open(copy):
            assert read_table(copy).num_rows in {rows_before + appended, rows_before + 5}
        assert not list(copy.rglob("*.tmp"))
        if calls.happened is None:
            break
    assert 10 < at < 99
