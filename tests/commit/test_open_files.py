from __future__ import annotations

import os

import pytest

from storage_core.commit.stage_placement import OpenFiles
from storage_core.errors import StorageError
from storage_core.filesystem import FileSystem, WritableFile
from tests.faults.simulated_filesystem import SimulatedFileSystem


def test_many_files_and_few_of_them_open(tmp_path, count_descriptors):
    files = OpenFiles(FileSystem(max_open_files=5), str(tmp_path))
    for number in range(40):
        files.create(f"f{number}")
    for round_number in range(3):
        for number in range(40):
            files.write(f"f{number}", [b"%d;" % number, b"%d;" % round_number], 2 * round_number * 3)
    assert 0 < count_descriptors() <= 5
    files.flush()
    assert count_descriptors() == 0
    assert (tmp_path / "f12").read_bytes().replace(b"\0", b"") == b"12;0;12;1;12;2;"
    assert sorted(os.listdir(tmp_path)) == sorted(f"f{number}" for number in range(40))


def test_the_file_written_to_last_stays_open(tmp_path):
    filesystem = FileSystem(max_open_files=2)
    files = OpenFiles(filesystem, str(tmp_path))
    files.create("pack")
    for number in range(10):
        files.create(f"f{number}")
        files.write("pack", [b"x"], number)
    assert filesystem.statistics.files_opened == 11
    files.close()


def test_every_file_is_flushed_those_closed_before_too():
    filesystem = SimulatedFileSystem(max_open_files=2)
    flushed = []
    filesystem.observe = lambda call: flushed.append(call.path) if call.name == "flush" else None
    files = OpenFiles(filesystem, "/")
    for number in range(20):
        files.create(f"f{number}")
        files.write(f"f{number}", [b"x"], 0)
    files.flush()
    assert sorted(flushed) == sorted(f"/f{number}" for number in range(20))


@pytest.mark.parametrize(
    ("begins_flushes", "expected"), [(True, [(0, 9 << 20), (9 << 20, 10 << 20)]), (False, [])]
)
def test_writeback_of_a_large_file_begins_early(tmp_path, monkeypatch, begins_flushes, expected):
    begun = []
    monkeypatch.setattr(
        WritableFile, "begin_flush", lambda file, position, size: begun.append((position, size))
    )
    files = OpenFiles(FileSystem(max_open_files=2), str(tmp_path), begins_flushes=begins_flushes)
    for name in ("pack", "small"):
        files.create(name)
    for start, size in [(0, 5), (5, 4), (9, 10), (19, 7), (26, 1)]:
        files.write("pack", [bytes(size << 20)], start << 20)
        files.write("small", [b"x"], start)
    files.flush()
    # What was written last is left to the flush.
    assert begun == expected


def test_a_file_that_exists_is_refused_and_kept(tmp_path):
    (tmp_path / "f").write_bytes(b"x")
    files = OpenFiles(FileSystem(max_open_files=2), str(tmp_path))
    with pytest.raises(StorageError, match="Two attempts at a task have the same number"):
        files.create("f")
    files.close()
    # It is not ours to delete.
    assert files.delete() == []
    assert os.listdir(tmp_path) == ["f"]


def test_created_files_are_deleted(tmp_path):
    (tmp_path / "other").write_bytes(b"x")
    files = OpenFiles(FileSystem(max_open_files=2), str(tmp_path))
    for name in "abc":
        files.create(name)
    (tmp_path / "b").unlink()
    files.close()
    assert files.delete() == []
    assert os.listdir(tmp_path) == ["other"]


def test_a_file_that_cannot_be_deleted_is_reported_and_the_others_are_deleted():
    filesystem = SimulatedFileSystem()
    files = OpenFiles(filesystem, "/")
    for name in "abc":
        files.create(name)
    filesystem.fail = lambda call: OSError("no") if (call.name, call.path) == ("delete", "/b") else None
    (error,) = files.delete()
    assert "/b" in str(error)
    assert list(filesystem.files()) == ["/b"]
