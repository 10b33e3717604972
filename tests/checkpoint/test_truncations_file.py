"""The list of truncations: its bytes, what readers learn of it, and that it does not grow for ever."""

from __future__ import annotations

import os

import pytest

from storage_core.checkpoint import truncations_file as module
from storage_core.checkpoint.truncations_file import (
    TRUNCATIONS_FILE,
    TruncationsFile,
    is_truncation_under_way,
    truncated_to,
    truncations_bytes,
)
from storage_core.filesystem import FileSystem

FILES = FileSystem()


class Root:
    def __init__(self, directory) -> None:
        self.directory = str(directory)
        self.path = directory / TRUNCATIONS_FILE

    def open(self) -> TruncationsFile:
        return TruncationsFile(FILES, self.directory)

    def size(self) -> int:
        return truncations_bytes(FILES, self.directory)

    def asked(self, since_bytes, topic="orders", partition=0, **options):
        return truncated_to(FILES, self.directory, topic, partition, since_bytes, **options)

    def is_under_way(self) -> bool:
        return is_truncation_under_way(FILES, self.directory)


@pytest.fixture
def root(tmp_path):
    return Root(tmp_path)


def test_a_directory_in_which_nothing_was_truncated_has_none(root):
    root.open().settle()
    assert not root.path.exists()
    assert (root.size(), root.asked(0), root.asked(0, begun_up_to=10), root.is_under_way()) == (
        0,
        None,
        None,
        False,
    )


def test_one_line_before_and_one_after(root):
    file = root.open()
    with file.noted("orders", 3, 50):
        assert root.path.read_bytes() == b"begin orders 3 50\n"
        assert root.is_under_way()
    assert root.path.read_bytes() == b"begin orders 3 50\nend orders 3 50\n"
    assert not root.is_under_way()
    assert file.size_bytes == root.size() == 34


def test_readers_learn_the_lowest_offset_of_their_log_since_they_looked(root):
    file, sizes = root.open(), [0]
    for topic, offset in [("orders", 50), ("others", 7), ("orders", 20), ("orders", 60)]:
        with file.noted(topic, 0, offset):
            pass
        sizes.append(root.size())
    assert [root.asked(size) for size in sizes] == [20, 20, 20, 60, None]
    assert [root.asked(size, "others") for size in sizes] == [7, 7, None, None, None]
    assert [root.asked(size, partition=1) for size in sizes] == [None] * 5
    # A reader that looked while it was under way learns of its end.
    assert root.asked(len(b"begin orders 0 50\n")) == 20


def test_damage_counts_unless_a_truncation_is_under_way_there(root):
    file = root.open()
    with file.noted("orders", 0, 50):
        size = root.size()
        assert root.asked(size) is None
        assert [root.asked(size, begun_up_to=offset) for offset in (49, 50, 51)] == [None, 50, 50]
        assert root.asked(size, "others", begun_up_to=99) is None
    assert root.asked(root.size(), begun_up_to=99) is None


def test_one_that_failed_stays_under_way_until_the_next_process(root):
    file = root.open()
    with pytest.raises(ZeroDivisionError), file.noted("orders", 0, 50):
        raise ZeroDivisionError
    assert root.is_under_way()
    size = root.size()
    root.open().settle()
    assert root.path.read_bytes() == b"begin orders 0 50\nend orders 0 50\n"
    assert (root.is_under_way(), root.asked(size)) == (False, 50)


@pytest.mark.parametrize(
    "content",
    [
        b"begin orders 0 5",
        b"begin orders 0 5\nen",
        b"\xff\xfe\n",
        b"begin orders 0\n",
        b"begin a/b 0 1\n",
        b"\n",
    ],
)
def test_what_cannot_be_read_may_be_anything(root, content):
    root.path.write_bytes(content)
    assert (root.asked(0), root.asked(len(content)), root.is_under_way()) == (0, None, True)
    file = root.open()
    file.settle()
    # Of another size, so that no reader takes it for the one before.
    assert root.size() == len(content) + 1
    assert root.asked(len(content)) == 0
    with file.noted("orders", 0, 5):
        assert root.is_under_way()
    assert not root.is_under_way()


def test_a_file_that_somebody_removed(root):
    file = root.open()
    with file.noted("orders", 0, 50):
        pass
    size = root.size()
    root.path.unlink()
    assert root.asked(size) == 0
    assert root.asked(0) is None
    with file.noted("orders", 0, 20):
        pass
    assert root.asked(size) == 20
    assert not root.is_under_way()


def test_it_takes_no_more_room_than_for_the_last_lines(root, monkeypatch):
    monkeypatch.setattr(module, "_LARGE_BYTES", 1 << 14)
    file, most, sizes = root.open(), 0, []
    for number in range(3000):
        before = root.size()
        with file.noted("orders", number % 3, number):
            pass
        most = max(most, os.stat(root.path).st_blocks * 512)
        sizes.append(root.size())
        # Unknown, where the lines were replaced just then.
        assert root.asked(before, partition=number % 3) in (number, 0)
        assert root.asked(sizes[-1]) is None
    assert sizes == sorted(set(sizes))
    assert sizes[-1] > 5 << 14
    assert most <= 3 << 14
    assert root.asked(100) == 0
    # Also when it is opened again and again.
    inode = root.path.stat().st_ino
    for _ in range(3):
        root.open().settle()
    assert root.path.stat().st_ino == inode


def test_lines_are_not_replaced_while_a_truncation_is_under_way(root, monkeypatch):
    monkeypatch.setattr(module, "_LARGE_BYTES", 100)
    file = root.open()
    with file.noted("orders", 0, 50):
        for offset in range(20):
            with file.noted("others", 0, offset):
                pass
        assert root.asked(root.size(), begun_up_to=60) == 50
    assert root.path.read_bytes().startswith(b"begin orders 0 50\n")
    with file.noted("others", 0, 99):
        assert root.path.read_bytes().lstrip(b"\0") == b"begin others 0 99\n"
