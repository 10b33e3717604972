from __future__ import annotations

import pytest

from storage_core.errors import LogDirectoryError, RecordBatchTooLargeError
from storage_core.filesystem import FileSystem
from storage_core.segment.file_records import LogFile


@pytest.fixture
def path(tmp_path):
    return tmp_path / "0.log"


def log_file(path):
    return LogFile(FileSystem(), str(path))


def write(log, *pieces):
    size_bytes = sum(map(len, pieces))
    log.write(pieces, size_bytes)
    log.advance(size_bytes)


def test_a_new_file_is_empty(path):
    log = log_file(path)
    log.create()
    assert path.read_bytes() == b""
    assert log.size_bytes == 0
    assert log.is_open


def test_a_file_with_content_is_not_made_anew(path):
    path.write_bytes(b"left over")
    with pytest.raises(LogDirectoryError, match="one of 9 bytes"):
        log_file(path).create()
    assert path.read_bytes() == b"left over"


def test_a_preallocated_file_is_filled_from_its_beginning_and_trimmed(path):
    log = log_file(path)
    log.create(1000)
    assert (path.stat().st_size, log.size_bytes) == (1000, 0)
    write(log, b"one", b"two")
    assert path.read_bytes() == b"onetwo" + bytes(994)
    assert log.size_bytes == 6
    log.trim()
    assert path.read_bytes() == b"onetwo"


def test_an_existing_file_is_continued_at_its_end(path):
    path.write_bytes(b"one")
    log = log_file(path)
    write(log, b"two")
    assert path.read_bytes() == b"onetwo"
    log.close()
    assert not log.is_open
    write(log, b"three")
    assert path.read_bytes() == b"onetwothree"


def test_what_is_not_counted_is_written_over(path):
    log = log_file(path)
    log.create()
    log.write([b"lost bytes"], 10)
    assert log.size_bytes == 0
    write(log, b"one")
    assert path.read_bytes() == b"onet bytes"
    log.trim()
    assert path.read_bytes() == b"one"


def test_truncate(path):
    path.write_bytes(b"onetwothree")
    log = log_file(path)
    assert log.truncate_to(11) == 0
    assert log.truncate_to(20) == 0
    assert path.read_bytes() == b"onetwothree"
    assert log.truncate_to(6) == 5
    assert path.read_bytes() == b"onetwo"
    write(log, b"four")
    assert path.read_bytes() == b"onetwofour"


def test_a_preallocated_rest_is_cut_only_with_batches_before_it(path):
    log = log_file(path)
    log.create(100)
    write(log, b"onetwo")
    assert log.truncate_to(6) == 0
    assert path.stat().st_size == 100
    assert log.truncate_to(3) == 3
    assert path.read_bytes() == b"one"


def test_no_file_is_larger_than_positions_in_an_index(path):
    path.touch()
    log = log_file(path)
    log.advance(2**31 - 3)
    with pytest.raises(RecordBatchTooLargeError, match=r"at most 2 bytes.*found 3.*Roll the segment"):
        log.write([b"abc"], 3)
    log.write([b"ab"], 2)
    assert path.stat().st_size == 2**31 - 1


def test_a_missing_file(path):
    with pytest.raises(FileNotFoundError):
        _ = log_file(path).size_bytes
    with pytest.raises(LogDirectoryError):
        log_file(path).trim()
    assert log_file(path).delete() is False
    assert not path.exists()


def test_rename_and_delete(path):
    log = log_file(path)
    log.create()
    log.rename(f"{path}.deleted")
    write(log, b"one")
    log.flush()
    assert path.with_name("0.log.deleted").read_bytes() == b"one"
    assert log.delete() is True
    assert list(path.parent.iterdir()) == []
