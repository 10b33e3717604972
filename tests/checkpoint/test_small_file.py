"""Replacing a small file: interrupted anywhere, it has its old content or the new one."""

from __future__ import annotations

import os

import pytest

from storage_core.checkpoint.checkpoint_file import replace_file
from storage_core.errors import StorageError
from storage_core.filesystem import FileSystem

OLD = b"old content, longer than the new one"
NEW = b"new content"


class RecordingFileSystem(FileSystem):
    """Notes the effects of a replacement, in order."""

    def __init__(self):
        super().__init__()
        self.effects = []

    def create_temporary(self, path, *, like=()):
        self.effects.append("create temporary")
        opened = super().create_temporary(path, like=like)
        for name in ("write_at", "truncate", "flush"):
            setattr(opened, name, self._noting(name, getattr(opened, name)))
        return opened

    def rename(self, source, target):
        self.effects.append(f"rename to {os.path.basename(target)}")
        super().rename(source, target)

    def flush_directory(self, path):
        self.effects.append(f"flush directory {os.path.basename(path)}")
        super().flush_directory(path)

    def _noting(self, name, call):
        def note(*arguments):
            self.effects.append(name)
            return call(*arguments)

        return note


@pytest.fixture
def path(tmp_path):
    (tmp_path / "root").mkdir()
    return tmp_path / "root" / "checkpoint"


def test_the_order_of_effects(path):
    """The content is on the disk before it gets the name, and the name before the call returns."""
    filesystem = RecordingFileSystem()
    replace_file(filesystem, str(path), NEW)
    assert filesystem.effects == [
        "create temporary",
        "write_at",
        "flush",
        "rename to checkpoint",
        "flush directory root",
    ]
    assert path.read_bytes() == NEW
    assert os.listdir(path.parent) == ["checkpoint"]


def test_without_a_flush(path):
    filesystem = RecordingFileSystem()
    replace_file(filesystem, str(path), NEW, flush=False)
    assert not [effect for effect in filesystem.effects if "flush" in effect]
    assert path.read_bytes() == NEW


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
