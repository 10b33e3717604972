"""A part of a file comes into another one, whatever the kernel can do for it."""

from __future__ import annotations

import errno
import os

import pytest

from storage_core import FileSystem
from storage_core.errors import StorageError
from tests.faults.faulty_filesystem import SHORT_WRITE, Fault, FaultyCalls

DATA = bytes(range(256)) * 1000


@pytest.fixture
def files(tmp_path):
    """Yield a file to copy from, and one to copy into."""
    (tmp_path / "source").write_bytes(DATA)
    (tmp_path / "target").write_bytes(b"before")
    filesystem = FileSystem()
    with (
        filesystem.open(f"{tmp_path}/source") as source,
        filesystem.open_for_writing(f"{tmp_path}/target") as target,
    ):
        yield source, target


def content(target):
    return target.read_at(len(DATA) * 2, 0)


@pytest.mark.parametrize(("start", "size"), [(0, len(DATA)), (5, 0), (5, 1), (77, 100_000), (255_999, 1)])
def test_a_part_is_copied(files, start, size):
    source, target = files
    target.copy_from(source, start, size, 6)
    assert content(target) == b"before" + DATA[start : start + size]


def test_what_stands_behind_stays(files):
    source, target = files
    target.copy_from(source, 0, 2, 2)
    assert content(target) == b"be\0\1re"


@pytest.mark.parametrize("error", ["EXDEV", "EINVAL", "ENOSYS", "EOPNOTSUPP", "EPERM"])
def test_without_the_kernel_it_is_read_and_written(files, monkeypatch, error):
    number = getattr(errno, error)

    def refuse(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "copy_file_range", refuse)
    source, target = files
    target.copy_from(source, 77, 100_000, 6)
    assert content(target) == b"before" + DATA[77:100_077]


def test_where_the_call_is_not_known(files, monkeypatch):
    monkeypatch.delattr(os, "copy_file_range")
    source, target = files
    target.copy_from(source, 77, 100_000, 6)
    assert content(target) == b"before" + DATA[77:100_077]


def test_the_kernel_may_copy_less_each_time_and_stop_early(files, monkeypatch):
    copy, counts = os.copy_file_range, iter([1000, 1, InterruptedError, 70_000, 0])

    def some(source, target, count, start, position):
        most = next(counts)
        if most is InterruptedError:
            raise InterruptedError(errno.EINTR, "Interrupted system call")
        return copy(source, target, min(count, most), start, position) if most else 0

    monkeypatch.setattr(os, "copy_file_range", some)
    source, target = files
    target.copy_from(source, 77, 100_000, 6)
    assert content(target) == b"before" + DATA[77:100_077]
    assert next(counts, None) is None


def test_a_source_that_ends_before_is_an_error(files):
    source, target = files
    with pytest.raises(
        StorageError, match="source ends 10 bytes before the end of the part to copy"
    ) as caught:
        target.copy_from(source, 10, len(DATA), 0)
    assert caught.value.path.endswith("target")


def test_a_disk_that_is_full_is_an_error(files):
    source, target = files
    with FaultyCalls(Fault(errno.ENOSPC, at=1)), pytest.raises(StorageError, match="No space is left"):
        target.copy_from(source, 0, len(DATA), 0)


def test_half_a_copy_is_continued(files):
    source, target = files
    with FaultyCalls(Fault(SHORT_WRITE, at=1)) as calls:
        target.copy_from(source, 0, len(DATA), 0)
    assert calls.happened.startswith("copy_file_range")
    assert content(target) == DATA


def test_closed_files_are_refused(files):
    source, target = files
    source.close()
    with pytest.raises(StorageError, match="closed"):
        target.copy_from(source, 0, 1, 0)
