"""A file that is closed and opened again by itself, and what a flush says of one that was closed meanwhile."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from storage_core.errors import StorageError
from storage_core.filesystem import FileSystem, WritableFile
from storage_core.filesystem import files as _held_file
from tests.pooled_files import open_files

pytestmark = pytest.mark.usefixtures("closes_pooled_files")


@pytest.fixture
def flushed(monkeypatch):
    """Return the names of the files that were forced to disk, in order."""
    names = []
    flush = WritableFile.flush

    def note(file):
        names.append(os.path.basename(file.path))
        flush(file)

    monkeypatch.setattr(WritableFile, "flush", note)
    return names


def test_all_that_can_be_done_to_a_file_is_done_to_one_that_was_closed_meanwhile(tmp_path):
    filesystem = FileSystem(max_open_files=1)
    file, other = open_files(filesystem, tmp_path, 2)
    file.write_at([b"01", b"23456"], 0)
    other.size_bytes()
    assert file.read_at(3, 2) == b"234"
    other.size_bytes()
    file.truncate(5)
    other.size_bytes()
    assert file.size_bytes() == 5
    other.size_bytes()
    file.flush()
    other.size_bytes()
    file.write_at([b"x"], 4)
    assert (tmp_path / "0").read_bytes() == b"0123x"


def test_another_file_under_its_name_is_not_written_to(tmp_path, count_descriptors):
    filesystem = FileSystem(max_open_files=1)
    file, other = open_files(filesystem, tmp_path, 2)
    other.size_bytes()
    (tmp_path / "new").write_bytes(b"another")
    os.replace(tmp_path / "new", tmp_path / "0")
    with pytest.raises(StorageError, match="Expected the file that was written to before, found another one"):
        file.write_at([b"x"], 0)
    assert (tmp_path / "0").read_bytes() == b"another"
    assert count_descriptors() <= 1


def test_a_file_that_is_renamed_is_found_under_its_new_name(tmp_path):
    filesystem = FileSystem(max_open_files=1)
    file, other = open_files(filesystem, tmp_path, 2)
    other.size_bytes()
    filesystem.rename(file.path, f"{tmp_path}/0.deleted")
    file.path = f"{tmp_path}/0.deleted"
    file.write_at([b"x"], 0)
    assert (tmp_path / "0.deleted").read_bytes() == b"x"


def test_a_file_that_is_gone_is_missed_when_it_is_used_again(tmp_path):
    filesystem = FileSystem(max_open_files=1)
    file, other = open_files(filesystem, tmp_path, 2)
    other.size_bytes()
    os.unlink(tmp_path / "0")
    with pytest.raises(FileNotFoundError):
        file.write_at([b"x"], 0)
    # The room that was made for it is free again.
    other.size_bytes()
    assert len(filesystem._pool) == 1


def test_a_closed_file_is_not_opened_again(tmp_path):
    (file,) = open_files(FileSystem(), tmp_path, 1)
    file.close()
    file.close()
    with pytest.raises(StorageError, match="found one that was closed"):
        file.flush()
    # A flush that was never prepared blocks no thread.
    file.close()


def test_a_flush_counts_for_what_was_written_before_it_began(tmp_path, monkeypatch):
    (file,) = open_files(FileSystem(), tmp_path, 1)
    file.write_at([b"x"], 0)
    monkeypatch.setattr(os, "fsync", lambda descriptor: file.write_at([b"y"], 1))
    file.flush()
    assert file.is_unflushed
    monkeypatch.undo()
    file.flush()
    assert not file.is_unflushed


def test_a_file_is_not_closed_while_it_is_flushed(tmp_path, count_descriptors):
    filesystem = FileSystem(max_open_files=1)
    file = filesystem.open_pooled(f"{tmp_path}/0", create=True)
    file.write_at([b"x"], 0)
    prepared = file.prepare_flush()
    other = filesystem.open_pooled(f"{tmp_path}/1", create=True)
    assert count_descriptors() == 2
    closing = threading.Thread(target=file.close)
    closing.start()
    # However long it takes, the file is not closed before it was flushed.
    closing.join(0.05)
    assert closing.is_alive()
    opened = filesystem.statistics.files_opened
    prepared()
    assert filesystem.statistics.files_opened == opened
    closing.join()
    other.close()
    assert count_descriptors() == 0


def test_two_flushes_of_a_file_run_one_after_the_other(tmp_path, monkeypatch):
    # Of two at a time, the system tells only one of a failure.
    (file,) = open_files(FileSystem(), tmp_path, 1)
    file.write_at([b"x"], 0)
    calls, others = [], []

    def flush_again():
        with pytest.raises(StorageError):
            file.flush()

    def fail(descriptor):
        if not others:
            others.append(threading.Thread(target=flush_again))
            others[0].start()
        calls.append(descriptor)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match="Input/output error"):
        file.flush()
    others[0].join()
    # The second one is told without having been tried.
    assert len(calls) == 1
    with pytest.raises(StorageError, match="An earlier flush of this file has failed"):
        file.flush()
    file.close()


class Held:
    """A held file: the kernel has failed to write its bytes to disk, or not."""

    def __init__(self, error=None):
        self.error = error
        self.is_released = False

    def check(self):
        if self.error is not None:
            raise self.error

    def release(self):
        self.is_released = True


def test_a_failure_that_happened_while_the_file_was_closed_is_told_by_the_next_flush(tmp_path, monkeypatch):
    filesystem = FileSystem(max_open_files=1)
    file, other = open_files(filesystem, tmp_path, 2)
    file.write_at([b"x"], 0)
    held = Held(OSError(errno.EIO, "Input/output error"))
    monkeypatch.setattr(WritableFile, "hold", lambda opened: held)
    other.size_bytes()
    # By itself, the new descriptor knows of nothing.
    with pytest.raises(StorageError, match=r"Could not flush this path.*Input/output error"):
        file.flush()
    held.error = None
    with pytest.raises(StorageError, match="An earlier flush of this file has failed"):
        file.write_at([b"y"], 1)
    file.close()
    assert held.is_released


def test_what_was_flushed_is_held_no_longer(tmp_path, monkeypatch):
    filesystem = FileSystem(max_open_files=1)
    file, other = open_files(filesystem, tmp_path, 2)
    held = []
    monkeypatch.setattr(WritableFile, "hold", lambda opened: held.append(Held()) or held[-1])
    other.size_bytes()
    assert held == []
    file.write_at([b"x"], 0)
    other.size_bytes()
    # Once for all that was written before the next flush: that is the oldest account there is.
    file.write_at([b"y"], 1)
    other.size_bytes()
    assert [each.is_released for each in held] == [False]
    file.flush()
    assert [each.is_released for each in held] == [True]


def test_where_nothing_can_be_held_a_file_is_flushed_before_it_is_closed(tmp_path, monkeypatch, flushed):
    filesystem = FileSystem(max_open_files=1)
    file, other = open_files(filesystem, tmp_path, 2)
    monkeypatch.setattr(WritableFile, "hold", lambda opened: None)
    file.write_at([b"x"], 0)
    assert flushed == []
    other.size_bytes()
    assert flushed == ["0"]
    assert not file.is_unflushed
    file.size_bytes()
    assert flushed == ["0"]


def test_a_flush_before_closing_that_fails_is_told_to_who_owns_the_file(tmp_path, monkeypatch):
    filesystem = FileSystem(max_open_files=1)
    file, other = open_files(filesystem, tmp_path, 2)
    monkeypatch.setattr(WritableFile, "hold", lambda opened: None)
    file.write_at([b"x"], 0)

    def fail(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    other.write_at([b"x"], 0)
    monkeypatch.undo()
    for use in (lambda: file.write_at([b"y"], 1), file.flush, file.size_bytes):
        with pytest.raises(StorageError, match=r"An earlier flush of this file has failed.*Input/output"):
            use()
    other.flush()


def test_a_file_that_cannot_be_closed_is_told_to_who_owns_it(tmp_path, monkeypatch):
    filesystem = FileSystem(max_open_files=1)
    file, other = open_files(filesystem, tmp_path, 2)
    file.size_bytes()
    close = os.close

    def fail(descriptor):
        close(descriptor)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "close", fail)
    other.size_bytes()
    monkeypatch.undo()
    with pytest.raises(StorageError, match="Input/output error"):
        file.size_bytes()


# -- Held files --------


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
