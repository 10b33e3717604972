"""Replacing a small file: interrupted anywhere, it has its old content or the new one."""

from __future__ import annotations

import os

import pytest

from storage_core.checkpoint.checkpoint_file import replace_file
from storage_core.errors import StorageError
from storage_core.filesystem import FileSystem, WritableFile
from storage_core.filesystem.file_system import TEMPORARY_FILE

OLD = b"old content, longer than the new one"
NEW = b"new content"


class Crash(BaseException):
    """The process ends here."""


class CrashingFileSystem(FileSystem):
    """Ends the process right before its n-th effect, or in the middle of it if that is a write."""

    def __init__(self, effects_left=10**6):
        super().__init__()
        self.effects = []
        self.effects_left = effects_left

    def will(self, effect):
        if self.effects_left == 0:
            raise Crash
        self.effects_left -= 1
        self.effects.append(effect)

    def create_temporary(self, path, *, like=()):
        self.will("create temporary")
        opened = super().create_temporary(path, like=like)
        with opened:
            return CrashingFile(self, opened.path, os.dup(opened.descriptor), opened.status, self.statistics)

    def rename(self, source, target):
        self.will(f"rename to {os.path.basename(target)}")
        super().rename(source, target)

    def flush_directory(self, path):
        self.will(f"flush directory {os.path.basename(path)}")
        super().flush_directory(path)


class CrashingFile(WritableFile):
    def __init__(self, filesystem, *arguments):
        super().__init__(*arguments)
        self.filesystem = filesystem

    def write_at(self, pieces, position_bytes):
        data = b"".join(pieces)
        if self.filesystem.effects_left == 0:
            super().write_at([data[: len(data) // 2]], position_bytes)
        self.filesystem.will("write")
        super().write_at([data], position_bytes)

    def truncate(self, size_bytes):
        self.filesystem.will(f"truncate {size_bytes}")
        super().truncate(size_bytes)

    def flush(self):
        self.filesystem.will("flush")
        super().flush()


@pytest.fixture
def path(tmp_path):
    (tmp_path / "root").mkdir()
    return tmp_path / "root" / "checkpoint"


def test_the_order_of_effects(path):
    """The content is on the disk before it gets the name, and the name before the call returns."""
    filesystem = CrashingFileSystem()
    replace_file(filesystem, str(path), NEW)
    assert filesystem.effects == [
        "create temporary",
        "write",
        "flush",
        "rename to checkpoint",
        "flush directory root",
    ]
    assert path.read_bytes() == NEW
    assert os.listdir(path.parent) == ["checkpoint"]


def test_without_a_flush(path):
    filesystem = CrashingFileSystem()
    replace_file(filesystem, str(path), NEW, flush=False)
    assert not [effect for effect in filesystem.effects if "flush" in effect]
    assert path.read_bytes() == NEW


@pytest.mark.parametrize("flush", [True, False])
@pytest.mark.parametrize("old", [OLD, None], ids=["replaced", "made"])
@pytest.mark.parametrize("effects_before_crash", range(6))
def test_a_crash_at_each_step(path, old, effects_before_crash, flush):
    if old is not None:
        path.write_bytes(old)
    filesystem = CrashingFileSystem(effects_before_crash)
    is_complete = True
    try:
        replace_file(filesystem, str(path), NEW, flush=flush)
    except Crash:
        is_complete = False
    found = path.read_bytes() if path.exists() else None
    assert found in (old, NEW)
    if is_complete:
        assert found == NEW
    # What was left over does no harm.
    replace_file(FileSystem(), str(path), b"third")
    assert path.read_bytes() == b"third"
    assert all(name == "checkpoint" or TEMPORARY_FILE.fullmatch(name) for name in os.listdir(path.parent))


def test_all_steps_are_crashed_at(path):
    filesystem = CrashingFileSystem()
    replace_file(filesystem, str(path), NEW)
    assert len(filesystem.effects) < len(range(6))


@pytest.mark.parametrize("function", ["pwritev", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_content(path, monkeypatch, function):
    path.write_bytes(OLD)

    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, function, refuse)
    with pytest.raises(StorageError, match="No space is left"):
        replace_file(FileSystem(), str(path), NEW)
    assert path.read_bytes() == OLD
    assert os.listdir(path.parent) == ["checkpoint"]


def test_what_a_crash_left_behind_may_be_longer(path):
    path.with_suffix(".tmp").write_bytes(b"x" * 1000)
    replace_file(FileSystem(), str(path), NEW)
    assert path.read_bytes() == NEW


def test_an_empty_file(path):
    path.write_bytes(OLD)
    replace_file(FileSystem(), str(path), b"")
    assert path.read_bytes() == b""


def test_a_path_without_a_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    replace_file(FileSystem(), "checkpoint", NEW)
    assert (tmp_path / "checkpoint").read_bytes() == NEW


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(path, tmp_path):
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    path.with_suffix(".tmp").symlink_to(target)
    replace_file(FileSystem(), str(path), NEW)
    assert target.read_bytes() == b"precious"
