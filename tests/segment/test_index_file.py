from __future__ import annotations

import os

import pytest

from storage_core.errors import LogDirectoryError
from storage_core.segment.index_file import MAX_INDEX_SIZE_BYTES, read_index_file


def read(filesystem, path, entry_size_bytes=8):
    return read_index_file(filesystem, str(path), entry_size_bytes)


def test_missing_file_is_a_problem(filesystem, tmp_path):
    content = read(filesystem, tmp_path / "absent.index")
    assert (content.data, content.problem) == (b"", "the file is missing")


def test_empty_file_is_no_problem(filesystem, tmp_path):
    path = tmp_path / "empty.index"
    path.write_bytes(b"")
    content = read(filesystem, path)
    assert (content.data, content.file_size_bytes, content.problem) == (b"", 0, None)


@pytest.mark.parametrize("size_bytes", [1, 7, 9, 15])
def test_part_of_an_entry_is_a_problem(filesystem, tmp_path, size_bytes):
    path = tmp_path / "cut.index"
    path.write_bytes(b"\1" * size_bytes)
    content = read(filesystem, path)
    assert content.data == b"\1" * (size_bytes // 8 * 8)
    assert content.problem == f"the file has {size_bytes} bytes, which is no multiple of 8"


def test_a_file_beyond_the_limit_is_a_problem_and_not_read(filesystem, tmp_path):
    path = tmp_path / "huge.index"
    with path.open("wb") as file:
        file.truncate(MAX_INDEX_SIZE_BYTES + 8)
    content = read(filesystem, path)
    assert content.data == b""
    assert "more than" in content.problem
    assert filesystem.statistics.bytes_read == 0


@pytest.mark.parametrize("zeros", [0, 1, 511, 512, 513, 4096, 10_485_760 // 8 - 3])
@pytest.mark.parametrize("last", [b"\0\0\0\1\1\0\0\0", b"\0\0\0\1\0\0\0\1", b"\1\0\0\0\0\0\0\0"])
def test_the_zero_tail_is_cut_at_a_whole_entry(filesystem, tmp_path, zeros, last):
    path = tmp_path / "active.index"
    entries = b"\0\0\0\0\0\0\1\0" + b"\0\0\0\0\0\0\2\0" + last
    path.write_bytes(entries + bytes(8 * zeros))
    assert read(filesystem, path).data == entries


def test_a_preallocated_tail_is_not_read(filesystem, tmp_path):
    path = tmp_path / "active.index"
    path.write_bytes(b"\0\0\0\1\0\0\1\0")
    os.truncate(path, 10_485_760)
    assert len(read(filesystem, path).data) == 8
    assert filesystem.statistics.bytes_read <= 64 * 1024


@pytest.mark.parametrize("entries", [4095, 4096, 4097, 20_000, 100_000])
@pytest.mark.parametrize("zeros", [0, 3, 2000])
def test_blocks_join_without_a_seam(filesystem, tmp_path, entries, zeros):
    content = b"".join(number.to_bytes(8, "big") for number in range(1, entries + 1))
    path = tmp_path / "long.index"
    path.write_bytes(content + bytes(8 * zeros))
    assert read(filesystem, path).data == content


def test_a_fifo_is_refused_and_does_not_block(filesystem, tmp_path):
    path = tmp_path / "fifo.index"
    os.mkfifo(path)
    with pytest.raises(LogDirectoryError):
        read(filesystem, path)


def test_a_link_is_refused(filesystem, tmp_path):
    (tmp_path / "real.index").write_bytes(b"")
    (tmp_path / "link.index").symlink_to(tmp_path / "real.index")
    with pytest.raises(LogDirectoryError):
        read(filesystem, tmp_path / "link.index")
