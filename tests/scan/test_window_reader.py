"""Windows of a segment file: bounded buffers, and any place to go on from."""

from __future__ import annotations

import dataclasses
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import LogDirectoryError
from storage_core.filesystem import FileSystem
from storage_core.scan.span_reader import FileReplacedError, open_span
from storage_core.segment.batch_windows import WindowBuffer, WindowReader


@pytest.fixture
def log(log_root):
    """Ten batches of some 360 bytes."""
    log = log_root.rows()
    for _ in range(10):
        log.values(10, b"x" * 20)
    return log.write()


def read_windows(opened, span, buffer):
    """Yield the windows of a span without damage, one after the other."""
    source = WindowReader(opened, span.position_bytes, span.end_position_bytes, buffer)
    while not source.is_at_end:
        window = source.window(0)
        if len(window.starts):
            yield window
        if source.is_last:
            assert window.end == source.size_bytes
        source.advance(window)


@pytest.fixture
def read(log, span_of):
    """Reads bytes of the log, all of them unless told otherwise: (position, batches) of every window."""

    def read(start_bytes=0, end_bytes=None, *, window_bytes=1000):
        filesystem = FileSystem()
        path = str(log.log_path())
        end_bytes = os.stat(path).st_size if end_bytes is None else end_bytes
        span = span_of(position_bytes=start_bytes, end_position_bytes=end_bytes)
        with filesystem.open(path) as opened:
            return [
                (window.position_bytes, window.headers["base_offset"].tolist())
                for window in read_windows(opened, span, WindowBuffer(window_bytes))
            ]

    return read


def positions(log):
    return [place[0] for place in log.places[0]]


# -- Windows --------


def test_a_window_holds_as_many_whole_batches_as_fit(log, read):
    at = positions(log)
    assert read(window_bytes=3 * at[1]) == [
        (0, [0, 10, 20]),
        (at[3], [30, 40, 50]),
        (at[6], [60, 70, 80]),
        (at[9], [90]),
    ]


def test_a_large_window_holds_all(read):
    assert read(window_bytes=1 << 20) == [(0, list(range(0, 100, 10)))]


@given(window_bytes=st.integers(0, 4000), first=st.integers(0, 9), last=st.integers(0, 9))
def test_windows_of_any_size_give_every_batch_once(log, read, window_bytes, first, last):
    at = [*positions(log), log.log_path().stat().st_size]
    windows = read(at[first], at[last + 1], window_bytes=window_bytes)
    assert [offset for _, found in windows for offset in found] == list(range(first * 10, last * 10 + 1, 10))
    for position, found in windows:
        assert position == at[found[0] // 10]


def test_the_buffer_grows_for_a_batch_and_no_further(log, span_of):
    buffer = WindowBuffer(100)
    span = span_of(end_position_bytes=log.log_path().stat().st_size)
    with FileSystem().open(str(log.log_path())) as opened:
        assert len(list(read_windows(opened, span, buffer))) == 10
    assert buffer.size_bytes == positions(log)[1]


def test_nothing_is_read_twice_but_what_a_window_cuts_off(log, span_of):
    filesystem = FileSystem()
    size = log.log_path().stat().st_size
    with filesystem.open(str(log.log_path())) as opened:
        list(read_windows(opened, span_of(end_position_bytes=size), WindowBuffer(1000)))
    assert filesystem.statistics.bytes_read == size


def test_a_buffer_too_small_for_a_header_makes_progress(read):
    # As when a stub of a file was planned, and it is complete when it is read.
    assert len(read(window_bytes=0)) == 10


# -- Going on elsewhere --------


@pytest.mark.parametrize("window_bytes", [100, 1000, 100_000])
@pytest.mark.parametrize("number", range(1, 10))
def test_after_damage_the_windows_begin_anew(log, span_of, window_bytes, number):
    at = positions(log)
    size = log.log_path().stat().st_size
    with FileSystem().open(str(log.log_path())) as opened:
        source = WindowReader(opened, 0, size, WindowBuffer(window_bytes))
        source.window(0)
        source.skip_damage(at[number])
        found = []
        while not source.is_at_end:
            window = source.window(0)
            assert window.position_bytes == source.position_bytes
            found += window.headers["base_offset"].tolist()
            source.advance(window)
    assert found == list(range(10 * number, 100, 10))


def test_after_damage_what_the_buffer_holds_is_not_read_again(log, span_of):
    filesystem = FileSystem()
    size = log.log_path().stat().st_size
    with filesystem.open(str(log.log_path())) as opened:
        source = WindowReader(opened, 0, size, WindowBuffer(1 << 20))
        source.window(0)
        for position in positions(log)[1:]:
            source.skip_damage(position)
            source.window(0)
    assert filesystem.statistics.bytes_read == size


def test_after_damage_windows_are_small_at_first(log_root, span_of):
    log = log_root.rows()
    for _ in range(1000):
        log.values(1, b"x" * 100)
    log.write()
    size = log.log_path().stat().st_size
    sizes = []
    with FileSystem().open(str(log.log_path())) as opened:
        source = WindowReader(opened, 0, size, WindowBuffer(1 << 20))
        source.skip_damage(log.places[0][1][0])
        while not source.is_at_end:
            source.advance(source.window(0))
            sizes.append(source.size_bytes)
    assert sizes[:3] == [4096, 4 * 4096, 16 * 4096]
    assert len(sizes) < 8


# -- Files that change --------


def test_a_file_that_becomes_shorter(log, span_of):
    filesystem = FileSystem()
    size = log.log_path().stat().st_size
    with filesystem.open(str(log.log_path())) as opened:
        source = WindowReader(opened, 0, size, WindowBuffer(1000))
        source.advance(source.window(0))
        os.truncate(log.log_path(), 1100)
        source.window(0)
        assert source.end_position_bytes == 1100


class TestOpening:
    @pytest.fixture
    def span(self, log, span_of):
        status = log.log_path().stat()
        return span_of(directory=str(log.path), version=status.st_ino, end_position_bytes=status.st_size)

    def test_the_file_that_was_planned(self, log, span):
        with open_span(FileSystem(), span) as opened:
            assert opened.path == str(log.log_path())

    def test_the_same_file_with_more_in_it(self, log, span):
        with log.log_path().open("ab") as file:
            file.write(b"more")
        open_span(FileSystem(), span).close()

    @pytest.mark.parametrize("change_bytes", [-1, 1])
    def test_a_closed_segment_of_another_size_is_another_file(self, log, span, change_bytes):
        # Its inode may be that of the old one, which was removed before this one was made.
        size = span.end_position_bytes
        span = dataclasses.replace(span, end_position_bytes=100, file_size_bytes=size)
        open_span(FileSystem(), span).close()
        os.truncate(log.log_path(), size + change_bytes)
        with pytest.raises(FileReplacedError):
            open_span(FileSystem(), span)

    def test_the_same_file_that_awaits_its_removal(self, log, span):
        log.log_path().rename(f"{log.log_path()}.deleted")
        with open_span(FileSystem(), span) as opened:
            assert opened.path.endswith(".log.deleted")

    def test_another_file_of_the_name_leads_to_the_one_that_awaits_its_removal(self, log, span):
        log.log_path().rename(f"{log.log_path()}.deleted")
        log.log_path().write_bytes(b"x" * span.end_position_bytes)
        with open_span(FileSystem(), span) as opened:
            assert opened.path.endswith(".log.deleted")

    def test_another_file_of_the_name(self, log, span, count_descriptors):
        content = log.log_path().read_bytes()
        log.log_path().rename(log.path / "aside")
        log.log_path().write_bytes(content)
        before = count_descriptors()
        with pytest.raises(FileReplacedError):
            open_span(FileSystem(), span)
        assert count_descriptors() == before

    def test_a_shorter_file(self, log, span):
        os.truncate(log.log_path(), span.end_position_bytes - 1)
        with pytest.raises(FileReplacedError):
            open_span(FileSystem(), span)

    def test_no_file(self, log, span):
        log.log_path().unlink()
        with pytest.raises(FileReplacedError):
            open_span(FileSystem(), span)

    def test_something_else_under_the_name_is_refused(self, log, span):
        log.log_path().unlink()
        os.mkfifo(log.log_path())
        with pytest.raises(LogDirectoryError, match="regular file"):
            open_span(FileSystem(), span)
