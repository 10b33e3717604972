"""What is fetched of an object, how often, and how much of it is held."""

from __future__ import annotations

import random
import threading

import pytest

from storage_core.errors import FileReplacedError
from storage_core.filesystem import remote_file
from storage_core.filesystem.remote_file import WINDOWS_AHEAD, ClosedFiles, RemoteFile
from storage_core.filesystem.values import FileStatus, IoStatistics

# A hundred-and-twenty-eighth of a real one.
MIB = 8 * 1024


@pytest.fixture(autouse=True)
def _small_sizes(monkeypatch):
    """Requests of a hundred-and-twenty-eighth of their size, so that contents may be short."""
    for name in ("WINDOW_BYTES", "_WHOLE_FILE_BYTES", "_LEAST_BYTES", "_KEPT_BYTES", "_CLOSED_BYTES"):
        monkeypatch.setattr(remote_file, name, getattr(remote_file, name) // 128)


class Source:
    """Content that notes which of it is fetched, and by how many threads at a time."""

    def __init__(self, content):
        self.content = content
        self.ranges = []
        self.running = 0
        self.most_running = 0
        self.closed = ClosedFiles()
        self.held = threading.Event()
        self.held.set()
        self._lock = threading.Lock()

    def fetch(self, start, end):
        with self._lock:
            self.ranges.append((start, end))
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        self.held.wait(30)
        with self._lock:
            self.running -= 1
        assert 0 <= start < end <= len(self.content)
        return self.content[start:end]

    def open(self):
        status = FileStatus(len(self.content), 0, "v", 0, True, False)
        return RemoteFile("s3://bucket/0.log", status, self.fetch, IoStatistics(), self.closed)

    def assert_none_twice(self):
        reached = 0
        for start, end in sorted(self.ranges):
            assert start >= reached
            reached = end


def content_of(size_bytes):
    return random.Random(size_bytes).randbytes(size_bytes)


def fetching_threads():
    return [each.name for each in threading.enumerate() if each.name.startswith("segmentlog-fetch")]


# -- Look-ups --------


def test_reading_at_a_position():
    source = Source(b"0123456789")
    with source.open() as opened:
        assert opened.size_bytes() == 10
        assert opened.read_at(4, 3) == b"3456"
        assert opened.read_at(100, 8) == b"89"
        assert opened.read_at(5, 10) == opened.read_at(5, 10_000) == opened.read_at(0, 3) == b""
        assert opened.next_data(4) == 4
        assert opened.next_data(10) is None
    assert source.ranges == [(0, 10)]


def test_reading_into_a_buffer():
    source = Source(b"0123456789")
    buffer = bytearray(b"." * 6)
    with source.open() as opened:
        assert opened.read_into(memoryview(buffer)[1:4], 2) == 3
        assert bytes(buffer) == b".234.."
        assert opened.read_into(memoryview(buffer), 8) == 2
        assert bytes(buffer) == b"8934.."
        assert opened.read_into(memoryview(buffer)[:0], 0) == 0
        assert opened.read_into(memoryview(buffer), 11) == 0


def test_an_empty_object_is_not_fetched():
    source = Source(b"")
    with source.open() as opened:
        opened.expect_reads(0, 100)
        assert opened.read_at(10, 0) == b""
    assert source.ranges == []


def test_an_index_is_fetched_at_once():
    source = Source(content_of(2 * MIB))
    with source.open() as opened:
        for position in (len(source.content) - 8, MIB, 0, 8):
            assert opened.read_at(8, position) == source.content[position : position + 8]
    assert source.ranges == [(0, 2 * MIB)]


def test_a_look_up_in_a_long_file_fetches_a_part_of_it():
    source = Source(content_of(20 * MIB))
    with source.open() as opened:
        for position in (12 * MIB, 12 * MIB + 50, 12 * MIB + 1000, 20 * MIB - 8, 20 * MIB - 50):
            assert opened.read_at(8, position) == source.content[position : position + 8]
    assert len(source.ranges) == 2
    assert sum(end - start for start, end in source.ranges) <= MIB


def test_steps_forward_become_longer_requests():
    source = Source(content_of(40 * MIB))
    with source.open() as opened:
        for position in range(0, 40 * MIB, 32):
            opened.read_at(8, position)
    source.assert_none_twice()
    assert len(source.ranges) <= 10


def test_what_is_held_is_bounded():
    source = Source(content_of(60 * MIB))
    with source.open() as opened:
        for position in range(0, 60 * MIB, MIB):
            opened.read_at(MIB, position)
            assert sum(len(piece.data) for piece in opened._pieces) <= 16 * MIB


def test_requests_and_their_bytes_are_counted():
    source = Source(content_of(1000))
    statistics = IoStatistics()
    opened = RemoteFile("s3://bucket/x", source.open().status, source.fetch, statistics, ClosedFiles())
    opened.read_at(10, 0)
    opened.read_at(10, 500)
    assert (statistics.reads, statistics.bytes_read) == (1, 1000)


def test_what_was_fetched_of_a_closed_file_is_not_fetched_again():
    source = Source(content_of(20 * MIB))
    for _ in range(3):
        with source.open() as opened:
            assert opened.read_at(8, 5 * MIB) == source.content[5 * MIB : 5 * MIB + 8]
            assert opened.read_at(8, 0) == source.content[:8]
    assert len(source.ranges) == 2


def test_what_is_kept_of_closed_files_is_bounded():
    source = Source(content_of(2 * MIB))
    for number in range(40):
        path = f"s3://bucket/{number}"
        with RemoteFile(path, source.open().status, source.fetch, IoStatistics(), source.closed) as opened:
            opened.read_at(8, 0)
    kept = [piece for pieces in source.closed._pieces.values() for piece in pieces]
    assert sum(len(piece.data) for piece in kept) == source.closed._held_bytes == 32 * MIB
    for number in range(11_000):
        source.closed.put(f"s3://bucket/{number}", "v", [])
    assert len(source.closed._pieces) == 10_000


# -- Reading ahead --------


@pytest.mark.parametrize("step", [MIB, 4 * MIB + 1, 30 * MIB])
def test_expected_bytes_are_fetched_once_several_windows_at_a_time(step):
    source = Source(content_of(70 * MIB))
    start, end = MIB - 1, 69 * MIB
    with source.open() as opened:
        source.held.clear()
        opened.expect_reads(start, end)
        while source.most_running < WINDOWS_AHEAD:
            threading.Event().wait(0.001)
        source.held.set()
        buffer = bytearray(step)
        for position in range(start, end, step):
            size = opened.read_into(memoryview(buffer)[: end - position], position)
            assert buffer[:size] == source.content[position : position + size]
    source.assert_none_twice()
    assert (min(source.ranges)[0], max(source.ranges)[1]) == (start, end)
    assert source.most_running == WINDOWS_AHEAD
    assert max(stop - begin for begin, stop in source.ranges) == 8 * MIB
    assert fetching_threads() == []


def test_what_is_expected_again_is_not_fetched_again():
    source = Source(content_of(50 * MIB))
    with source.open() as opened:
        opened.read_at(100, 0)
        opened.expect_reads(0, 50 * MIB)
        opened.expect_reads(0, 50 * MIB)
        opened.read_at(20 * MIB, 0)
        opened.expect_reads(20 * MIB, 50 * MIB)
        assert opened.read_at(30 * MIB, 20 * MIB) == source.content[20 * MIB :]
    source.assert_none_twice()


def test_parts_that_follow_each_other_are_fetched_ahead_together():
    source = Source(content_of(70 * MIB))
    with source.open() as opened:
        opened.expect_reads(0, 34 * MIB + 5)
        assert opened.read_at(8, 0) == source.content[:8]
        opened.expect_reads(34 * MIB + 5, 70 * MIB)
        opened.expect_reads(0, 34 * MIB + 5)
        for position in range(0, 70 * MIB, 2 * MIB):
            assert opened.read_at(2 * MIB, position) == source.content[position : position + 2 * MIB]
    source.assert_none_twice()


def test_what_a_look_up_fetched_outlives_windows():
    source = Source(content_of(70 * MIB))
    with source.open() as opened:
        opened.read_at(8, 34 * MIB)
        opened.read_at(8, 69 * MIB)
        opened.expect_reads(0, 70 * MIB)
        for position in range(0, 70 * MIB, 4 * MIB):
            opened.read_at(4 * MIB, position)
    source.assert_none_twice()


def test_a_file_that_is_closed_early_leaves_no_thread():
    source = Source(content_of(64 * MIB))
    opened = source.open()
    opened.expect_reads(0, 64 * MIB)
    assert opened.read_at(10, 0) == source.content[:10]
    opened.close()
    opened.close()
    assert fetching_threads() == []
    assert source.running == 0


def test_what_is_passed_over_is_not_waited_for():
    source = Source(content_of(64 * MIB))
    with source.open() as opened:
        opened.expect_reads(0, 64 * MIB)
        for position in (50 * MIB, 3 * MIB, 63 * MIB):
            assert opened.read_at(100, position) == source.content[position : position + 100]


def test_a_failure_ahead_is_one_of_the_read():
    source = Source(content_of(20 * MIB))
    with source.open() as opened:

        def fail(start, end):
            raise FileReplacedError("gone")

        opened._fetch = fail
        opened.expect_reads(0, 20 * MIB)
        with pytest.raises(FileReplacedError, match="gone"):
            opened.read_at(10, 0)
    assert fetching_threads() == []


@pytest.mark.parametrize("seed", range(8))
def test_any_reads_see_the_content(seed):
    generator = random.Random(seed)
    source = Source(content_of(30 * MIB if seed % 2 else MIB))
    size = len(source.content)
    with source.open() as opened:
        for _ in range(60):
            position, length = (
                generator.randrange(size + 10),
                generator.choice([1, 61, 600, 9000, 9 * MIB]),
            )
            if generator.random() < 0.3:
                opened.expect_reads(position, position + generator.randrange(30 * MIB))
            assert opened.read_at(length, position) == source.content[position : position + length]
