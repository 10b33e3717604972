"""What the system keeps of a file that was closed."""

from __future__ import annotations

import os

import pytest

from storage_core.filesystem import FileSystem
from storage_core.filesystem import files as _held_file


def mappings(path):
    with open("/proc/self/maps", encoding="utf-8") as lines:
        return [line.split()[1] for line in lines if line.rstrip().endswith(str(path))]


def test_a_held_file_is_a_mapping_that_nobody_can_touch(tmp_path):
    path = tmp_path / "0"
    with FileSystem().open_for_writing(str(path), create=True) as file:
        file.write_at([b"x"], 0)
        held = file.hold()
    assert mappings(path) == ["---s"]
    held.check()
    # Cut, renamed and deleted meanwhile: it does not matter.
    os.truncate(path, 0)
    os.rename(path, tmp_path / "1")
    held.check()
    os.unlink(tmp_path / "1")
    held.check()
    held.release()
    held.release()
    assert mappings(f"{tmp_path}/1 (deleted)") == []


def test_what_the_system_says_of_a_held_file_is_raised(tmp_path):
    with FileSystem().open_for_writing(f"{tmp_path}/0", create=True) as file:
        held = file.hold()
    held.release()
    # There is nothing at its address any more.
    with pytest.raises(OSError, match="Cannot allocate memory"):
        held.check()


def test_no_more_files_are_held_than_a_process_may_map(tmp_path, monkeypatch):
    monkeypatch.setattr(_held_file, "_MAX_HELD", 2)
    monkeypatch.setattr(_held_file, "_count", _held_file._Count())
    with FileSystem().open_for_writing(f"{tmp_path}/0", create=True) as file:
        first, second = file.hold(), file.hold()
        assert file.hold() is None
        first.release()
        third = file.hold()
        assert third is not None
        second.release()
        third.release()


def test_what_cannot_be_mapped_is_not_held(tmp_path):
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        assert _held_file.hold_file(descriptor) is None
    finally:
        os.close(descriptor)


def test_only_linux_is_known_to_keep_what_it_has_to_tell(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")
    with FileSystem().open_for_writing(f"{tmp_path}/0", create=True) as file:
        assert file.hold() is None
