"""Windows of a segment file: bounded buffers, whole batches, and what is wrong with a file."""

from __future__ import annotations

import dataclasses
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage_core.errors import (
    BatchTooLargeError,
    CorruptRecordError,
    LogDirectoryError,
    UnsupportedFormatError,
)
from storage_core.filesystem import FileSystem
from storage_core.scan.window_reader import FileReplacedError, WindowBuffer, open_span, read_windows

LIMIT = 1 << 20
V1_MESSAGE = bytes.fromhex("0000000000000000 00000016 a4d5b3a4 01 00 0000000000000000 ffffffff 00000000")


@pytest.fixture
def log(log_root):
    """Ten batches of some 360 bytes."""
    log = log_root.rows()
    for _ in range(10):
        log.values(10, b"x" * 20)
    return log.write()


@pytest.fixture
def read(log, span_of):
    """Reads bytes of the log, all of them unless told otherwise: (position, batches) of every window."""

    def read(start_bytes=0, end_bytes=None, *, start_offset=0, window_bytes=1000, limit_bytes=LIMIT):
        filesystem = FileSystem()
        path = str(log.log_path())
        end_bytes = os.stat(path).st_size if end_bytes is None else end_bytes
        span = span_of(start_offset=start_offset, position_bytes=start_bytes, end_position_bytes=end_bytes)
        with filesystem.open(path) as opened:
            return [
                (window.position_bytes, window.headers["base_offset"].tolist())
                for window in read_windows(opened, span, WindowBuffer(window_bytes), limit_bytes)
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


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(window_bytes=st.integers(0, 4000), first=st.integers(0, 9), last=st.integers(0, 9))
def test_windows_of_any_size_give_every_batch_once(log, read, window_bytes, first, last):
    at = [*positions(log), log.log_path().stat().st_size]
    windows = read(at[first], at[last + 1], start_offset=10 * first, window_bytes=window_bytes)
    assert [offset for _, found in windows for offset in found] == list(range(first * 10, last * 10 + 1, 10))
    for position, found in windows:
        assert position == at[found[0] // 10]


def test_the_buffer_grows_for_a_batch_and_no_further(log, span_of):
    buffer = WindowBuffer(100)
    span = span_of(end_position_bytes=log.log_path().stat().st_size)
    with FileSystem().open(str(log.log_path())) as opened:
        assert len(list(read_windows(opened, span, buffer, LIMIT))) == 10
    assert buffer.size_bytes == positions(log)[1]


def test_nothing_is_read_twice_but_what_a_window_cuts_off(log, span_of):
    filesystem = FileSystem()
    size = log.log_path().stat().st_size
    with filesystem.open(str(log.log_path())) as opened:
        list(read_windows(opened, span_of(end_position_bytes=size), WindowBuffer(1000), LIMIT))
    assert filesystem.statistics.bytes_read == size


def test_a_buffer_too_small_for_a_header_makes_progress(read):
    # As when a stub of a file was planned, and a whole one stands there by the time it is read.
    assert len(read(window_bytes=0)) == 10


# -- What is wrong with a file --------


def raised(kind, call, *arguments, **options):
    with pytest.raises(kind) as caught:
        call(*arguments, **options)
    return caught.value


def test_the_end_of_a_file_that_is_cut_off(log, read):
    at, size = positions(log), log.log_path().stat().st_size
    os.truncate(log.log_path(), size - 1)
    error = raised(CorruptRecordError, read, end_bytes=size - 1)
    assert "found only its first" in str(error)
    assert (error.path, error.position_bytes, error.end_position_bytes) == (
        str(log.log_path()),
        at[9],
        size - 1,
    )


# The first bytes of an offset are zeros, which may end a file.
@pytest.mark.parametrize("left", [8, 12, 60, 61, 100])
def test_stubs_of_any_length(log, read, left):
    end = positions(log)[9] + left
    os.truncate(log.log_path(), end)
    assert raised(CorruptRecordError, read, end_bytes=end).position_bytes == positions(log)[9]


@pytest.mark.parametrize("zeros", [1, 60, 61, 5000])
@pytest.mark.parametrize("window_bytes", [100, 1000, 100_000])
def test_zeros_at_the_end_are_preallocated_space(log, read, zeros, window_bytes):
    with log.log_path().open("ab") as file:
        file.write(bytes(zeros))
    assert sum(len(found) for _, found in read(window_bytes=window_bytes)) == 10


@pytest.mark.parametrize("window_bytes", [100, 1000, 100_000])
def test_zeros_with_something_behind_them_are_a_hole(log, read, window_bytes):
    size = log.log_path().stat().st_size
    with log.log_path().open("ab") as file:
        file.write(bytes(5000) + b"\x01")
    error = raised(CorruptRecordError, read, window_bytes=window_bytes)
    assert error.position_bytes == size
    assert error.path == str(log.log_path())


def test_a_hole_that_ends_in_another_window_names_its_bytes(log, read):
    size = log.log_path().stat().st_size
    with log.log_path().open("ab") as file:
        file.write(bytes(5000) + b"\x01")
    error = raised(CorruptRecordError, read, window_bytes=1000)
    assert "zeros with something else behind them" in str(error)
    assert (error.position_bytes, error.end_position_bytes) == (size, size + 5001)


def test_bytes_that_are_no_batch(log, read, overwrite):
    overwrite(log.log_path(), positions(log)[4] + 16, b"\x09")
    error = raised(CorruptRecordError, read)
    assert "magic byte of a record batch to be 2, found 9" in str(error)
    assert error.position_bytes == positions(log)[4]


@pytest.mark.parametrize("length", [0, 1, 48, -1, -(2**31)])
def test_a_length_that_no_batch_has(log, read, overwrite, length):
    overwrite(log.log_path(), positions(log)[4] + 8, length.to_bytes(4, "big", signed=True))
    error = raised(CorruptRecordError, read)
    assert f"batch length of at least 49 bytes, found {length}" in str(error)


def test_an_old_message_is_named_by_its_magic(log, read):
    with log.log_path().open("ab") as file:
        file.write(V1_MESSAGE + bytes(61))
    error = raised(UnsupportedFormatError, read)
    assert "format v1 (magic 1)" in str(error)


# -- The limit --------


@pytest.mark.parametrize("window_bytes", [200, 1000, 100_000])
def test_a_batch_above_the_limit_is_refused_wherever_its_window_ends(log, read, window_bytes):
    size = positions(log)[1]
    assert sum(len(found) for _, found in read(window_bytes=window_bytes, limit_bytes=size)) == 10
    error = raised(BatchTooLargeError, read, window_bytes=window_bytes, limit_bytes=size - 1)
    assert "maxDecompressedBatchBytes" in str(error)
    assert f"at most {size - 1} bytes, found one that declares {size}" in str(error)
    assert (error.path, error.position_bytes, error.end_position_bytes, error.offset) == (
        str(log.log_path()),
        0,
        size,
        0,
    )


def test_a_length_that_is_made_up_is_no_allocation(log, read, overwrite):
    overwrite(log.log_path(), positions(log)[1] + 8, (2**31 - 1).to_bytes(4, "big"))
    error = raised(BatchTooLargeError, read, window_bytes=1000)
    assert error.position_bytes == positions(log)[1]
    assert error.offset == 10


# -- Files that change --------


def test_a_first_batch_behind_the_planned_offsets(log, read):
    # Some of the planned offsets stand in front of it by now, as after a compaction.
    with pytest.raises(FileReplacedError):
        read(positions(log)[1], start_offset=9)
    assert read(positions(log)[1], start_offset=10)


def test_a_file_that_becomes_shorter(log, span_of):
    filesystem = FileSystem()
    size = log.log_path().stat().st_size
    with filesystem.open(str(log.log_path())) as opened:
        windows = read_windows(opened, span_of(end_position_bytes=size), WindowBuffer(1000), LIMIT)
        next(windows)
        os.truncate(log.log_path(), 1100)
        with pytest.raises(FileReplacedError):
            next(windows)


def test_a_file_that_becomes_shorter_within_its_zeros(log, span_of):
    with log.log_path().open("ab") as file:
        file.write(bytes(10_000))
    size = log.log_path().stat().st_size
    with FileSystem().open(str(log.log_path())) as opened:
        windows = read_windows(opened, span_of(end_position_bytes=size), WindowBuffer(1000), LIMIT)
        for window in windows:
            if window.is_blank_behind:
                os.truncate(log.log_path(), size - 9000)
                break
        with pytest.raises(FileReplacedError):
            next(windows)


class TestOpening:
    @pytest.fixture
    def span(self, log, span_of):
        status = log.log_path().stat()
        return span_of(directory=str(log.path), inode=status.st_ino, end_position_bytes=status.st_size)

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
