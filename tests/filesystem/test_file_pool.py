"""A bounded number of open files, whatever they belong to."""

from __future__ import annotations

import os
import threading

import pytest

from storage_core.errors import LogDirectoryError, OptionError
from storage_core.filesystem import FileSystem
from tests.faults.forked import in_child
from tests.pooled_files import open_files

pytestmark = pytest.mark.usefixtures("closes_pooled_files")


def test_no_more_files_are_open_than_is_said(tmp_path, count_descriptors):
    filesystem = FileSystem(max_open_files=5)
    files = open_files(filesystem, tmp_path, 12)
    for round_number in range(3):
        for number, file in enumerate(files):
            file.write_at([b"%d" % (number % 10)], round_number)
            assert count_descriptors() <= 5
    assert [(tmp_path / str(number)).read_bytes() for number in range(12)] == [
        b"%d" % (number % 10) * 3 for number in range(12)
    ]
    for file in files:
        file.close()
    assert count_descriptors() == 0


def test_a_forked_child_closes_no_file_of_its_parent(tmp_path, count_descriptors):
    filesystem = FileSystem(max_open_files=1)
    filesystem.open_pooled(str(tmp_path / "parent"), create=True).write_at([b"x"], 0)

    def open_another():
        filesystem.open_pooled(str(tmp_path / "child"), create=True).write_at([b"x"], 0)
        return count_descriptors()

    assert in_child(open_another) == 2


@pytest.mark.parametrize("most", [0, -1])
def test_at_least_one_file_may_be_open(most):
    with pytest.raises(OptionError, match=f"Expected max_open_files of 1 or more, found {most}"):
        FileSystem(max_open_files=most)


def test_a_file_that_is_used_again_and_again_stays_open(tmp_path):
    filesystem = FileSystem(max_open_files=3)
    often, *others = open_files(filesystem, tmp_path, 8)
    often.size_bytes()
    for file in others * 3:
        opened = filesystem.statistics.files_opened
        often.write_at([b"x"], 0)
        assert filesystem.statistics.files_opened == opened
        file.size_bytes()


def test_one_without_unflushed_bytes_is_closed_first(tmp_path):
    filesystem = FileSystem(max_open_files=3)
    unflushed, clean, another = open_files(filesystem, tmp_path, 3)
    for file in (unflushed, clean, another):
        file.write_at([b"x"], 0)
    clean.flush()
    newest = filesystem.open_pooled(f"{tmp_path}/newest", create=True)
    opened = filesystem.statistics.files_opened
    for file in (unflushed, another, newest):
        file.size_bytes()
    assert filesystem.statistics.files_opened == opened
    clean.size_bytes()
    assert filesystem.statistics.files_opened == opened + 1


def test_any_number_of_threads_share_few_open_files(tmp_path, count_descriptors):
    filesystem = FileSystem(max_open_files=4)
    files = open_files(filesystem, tmp_path, 40)
    threads, max_open = 8, 0

    def work(thread):
        nonlocal max_open
        for turn in range(60):
            # Each thread has a byte of its own in each file.
            for number in range(thread % 3, 40, 3):
                files[number].write_at([b"%d" % (turn % 10)], thread)
            if turn % 20 == thread:
                files[thread].flush()
                max_open = max(max_open, len(filesystem._pool))

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    # A file at work is never closed: so one for each thread.
    assert 4 <= max_open <= threads
    for number in range(40):
        mine = [thread for thread in range(threads) if thread % 3 == number % 3]
        content = (tmp_path / str(number)).read_bytes()
        assert [content[thread : thread + 1] for thread in mine] == [b"9"] * len(mine)
    for file in files:
        file.close()
    assert count_descriptors() == 0
    assert len(filesystem._pool) == 0


def test_files_that_are_all_in_use_are_not_closed(tmp_path, count_descriptors):
    filesystem = FileSystem(max_open_files=2)
    files = open_files(filesystem, tmp_path, 2)
    prepared = [file.prepare_flush() for file in files]
    third = filesystem.open_pooled(f"{tmp_path}/third", create=True)
    assert count_descriptors() == 3
    for each in prepared:
        each()
    # Once they are not, there are no more than is said again.
    fourth = filesystem.open_pooled(f"{tmp_path}/fourth", create=True)
    assert count_descriptors() == 2
    for file in (*files, third, fourth):
        file.close()


def test_an_interrupt_while_files_are_closed_leaves_none_of_them_locked(
    tmp_path, monkeypatch, count_descriptors
):
    filesystem = FileSystem(max_open_files=1)
    files = open_files(filesystem, tmp_path, 1)
    for number in range(1, 3):
        # They are not closed meanwhile, though more than may be open.
        prepared = [file.prepare_flush() for file in files]
        files.append(filesystem.open_pooled(f"{tmp_path}/{number}", create=True))
        for each in prepared:
            each()
    for file in files:
        file.write_at([b"x"], 0)

    def interrupt(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr("storage_core.filesystem.files.hold_file", lambda descriptor: None)
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        filesystem.open_pooled(f"{tmp_path}/another", create=True)
    assert [file._lock.locked() for file in files] == [False] * 3
    for file in files:
        file.close()
    assert count_descriptors() == 0


def test_a_file_that_is_no_regular_one_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    filesystem = FileSystem(max_open_files=1)
    with pytest.raises(LogDirectoryError):
        filesystem.open_pooled(f"{tmp_path}/pipe")
    assert len(filesystem._pool) == 0
