"""Writing files: complete or an error, and what each refusal says."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import resource
import signal
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import LogDirectoryError, SegmentLogError, StorageError, UnreadableError
from storage_core.filesystem import FileSystem, WriteStream


def content(path):
    return Path(path).read_bytes()


def failing(number):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    return fail


# -- Writing --------


@pytest.mark.parametrize(
    ("pieces", "position", "expected"),
    [
        ([b"abc"], 0, b"abc3456789"),
        ([b"abc"], 4, b"0123abc789"),
        ([b"abc"], 9, b"012345678abc"),
        ([b"abc"], 12, b"0123456789\0\0abc"),
        ([b"a", b"", b"bc", b""], 0, b"abc3456789"),
        ([bytearray(b"ab"), memoryview(b"xcx")[1:2]], 1, b"0abc456789"),
        ((b"ab",), 0, b"ab23456789"),
        ([], 3, b"0123456789"),
        ([b"", b""], 100, b"0123456789"),
        # A view of wider items counts by its bytes.
        ([memoryview(bytes(8)).cast("q"), b"!"], 1, b"0" + bytes(8) + b"!"),
    ],
)
def test_writing_at_a_position(filesystem, path, pieces, position, expected):
    with filesystem.open_for_writing(path) as file:
        file.write_at(pieces, position)
        assert file.size_bytes() == len(expected)
        assert file.read_at(100, 0) == expected
    assert content(path) == expected


def test_opening_keeps_the_content_and_makes_nothing_unasked(filesystem, path, tmp_path):
    with filesystem.open_for_writing(path, create=True) as file:
        assert (file.path, file.size_bytes()) == (path, 10)
        assert file.read_at(4, 3) == b"3456"
    with pytest.raises(FileNotFoundError):
        filesystem.open_for_writing(str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_a_new_file_is_readable_by_others_and_writable_by_its_owner(filesystem, tmp_path):
    path = str(tmp_path / "new")
    tmp_path.chmod(0o755)
    mask = os.umask(0)
    try:
        filesystem.open_for_writing(path, create=True).close()
    finally:
        os.umask(mask)
    assert os.stat(path).st_mode & 0o777 == 0o644
    assert content(path) == b""


@pytest.mark.parametrize("count", [1023, 1024, 1025, 5000])
def test_more_pieces_than_one_call_takes(filesystem, path, count):
    pieces = [b"%d," % number for number in range(count)]
    with filesystem.open_for_writing(path) as file:
        file.write_at(pieces, 2)
    assert content(path) == b"01" + b"".join(pieces)


@pytest.mark.parametrize("position", [0, 1, 32_767, 32_768, 100_001])
@pytest.mark.parametrize(
    "sizes", [[300_000], [32_768, 1, 65_536], [7] * 30_000, [5, 0, 90_000, 0, 3, 40_000]]
)
def test_long_writes_come_in_parts_that_end_at_blocks(filesystem, path, monkeypatch, position, sizes):
    """Larger ones take memory for the page cache in a way that costs Linux much time."""
    pwritev, calls = os.pwritev, []

    def write(descriptor, given, start):
        calls.append((start, start + sum(map(len, given))))
        return pwritev(descriptor, given, start)

    monkeypatch.setattr(os, "pwritev", write)
    pieces = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    with filesystem.open_for_writing(path) as file:
        file.write_at(pieces, position)
        assert file.read_at(sum(sizes), position) == b"".join(pieces)
    assert all(start // 32_768 == (end - 1) // 32_768 for start, end in calls)
    assert filesystem.statistics.bytes_written == sum(sizes)


@given(st.lists(st.binary(max_size=7), max_size=9), st.lists(st.integers(1, 8), min_size=1, max_size=9))
def test_short_writes_are_continued(tmp_path_factory, pieces, portions):
    """A call may take any part: within a piece, at its end, or some pieces and a part of another."""
    path = str(tmp_path_factory.mktemp("short") / "file")
    calls = []

    def write_short(descriptor, given, position):
        portion = portions[len(calls) % len(portions)]
        calls.append(position)
        return os.pwrite(descriptor, b"".join(given)[:portion], position)

    with pytest.MonkeyPatch.context() as patch, FileSystem().open_for_writing(path, create=True) as file:
        patch.setattr(os, "pwritev", write_short)
        file.write_at(pieces, 3)
    expected = b"".join(pieces)
    assert content(path) == (b"\0\0\0" + expected if expected else b"")
    # Never a call with nothing to write, nor one place twice.
    assert calls == sorted(set(calls))


def test_short_writes_of_views_with_wide_items(filesystem, path, monkeypatch):
    view = memoryview(b"abcdefghijklmnop").cast("q")
    monkeypatch.setattr(
        os,
        "pwritev",
        lambda descriptor, given, position: os.pwrite(descriptor, bytes(given[0])[:7], position),
    )
    with filesystem.open_for_writing(path) as file:
        file.write_at([view], 0)
    assert content(path) == b"abcdefghijklmnop"


def test_interrupted_writes_are_tried_again(filesystem, path, monkeypatch):
    pwritev = os.pwritev
    outcomes = iter([InterruptedError, 3, InterruptedError, InterruptedError, 100])

    def write(descriptor, given, position):
        outcome = next(outcomes)
        if outcome is InterruptedError:
            raise InterruptedError(errno.EINTR, "Interrupted system call")
        return pwritev(descriptor, [b"".join(given)[:outcome]], position)

    monkeypatch.setattr(os, "pwritev", write)
    with filesystem.open_for_writing(path) as file:
        file.write_at([b"abc", b"def"], 0)
    assert content(path) == b"abcdef6789"
    assert next(outcomes, None) is None


def test_a_write_that_takes_nothing_is_an_error(filesystem, path, monkeypatch):
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    with (
        filesystem.open_for_writing(path) as file,
        pytest.raises(StorageError, match="wrote none of the bytes") as caught,
    ):
        file.write_at([b"abc"], 0)
    assert caught.value.path == path


def test_a_disk_that_fills_up_in_the_middle(filesystem, path, monkeypatch):
    pwritev = os.pwritev
    calls = []

    def write(descriptor, given, position):
        calls.append(position)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwritev(descriptor, [b"".join(given)[:4]], position)

    monkeypatch.setattr(os, "pwritev", write)
    with (
        filesystem.open_for_writing(path) as file,
        pytest.raises(StorageError, match=r"No space is left on the device\. Free some") as caught,
    ):
        file.write_at([b"abcdef"], 0)
    assert caught.value.path == path
    # Part of it may be there: the caller knows from where on to distrust the file.
    assert content(path) == b"abcd456789"
    assert filesystem.statistics.bytes_written == 0


def test_a_limit_of_this_process_on_the_size_of_files(filesystem, path):
    """The real system call: the kernel first writes a part, then refuses."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, limits[1]))
    try:
        with filesystem.open_for_writing(path) as file, pytest.raises(StorageError, match="larger than"):
            file.write_at([b"x" * 10, b"y" * 10], 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert content(path) == b"x" * 10 + b"y" * 6


@pytest.mark.parametrize(
    ("function", "use"),
    [
        ("pwritev", lambda file: file.write_at([b"a"], 0)),
        ("ftruncate", lambda file: file.truncate(0)),
        ("fsync", lambda file: file.flush()),
    ],
)
@pytest.mark.parametrize(
    "number", [errno.EIO, errno.EINVAL, errno.EPERM, errno.ENOENT, errno.ESTALE, errno.ENXIO]
)
def test_whatever_befalls_an_open_file_is_an_error_of_storage(
    filesystem, path, monkeypatch, function, use, number
):
    """Callers know by this one class that the file can no longer be trusted."""
    with filesystem.open_for_writing(path) as file:
        monkeypatch.setattr(os, function, failing(number))
        with pytest.raises(StorageError, match="Could not") as caught:
            use(file)
    assert caught.value.path == path


# -- Size, flush, close --------


def test_changing_the_size(filesystem, path):
    with filesystem.open_for_writing(path) as file:
        file.truncate(4)
        assert content(path) == b"0123"
        file.truncate(6)
        assert content(path) == b"0123\0\0"
        file.truncate(0)
        assert file.size_bytes() == 0


def test_a_failed_flush_is_not_tried_again(filesystem, path, monkeypatch):
    calls = []

    def fail(descriptor):
        calls.append(descriptor)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with (
        filesystem.open_for_writing(path) as file,
        pytest.raises(StorageError, match=r"Could not flush this path: .*Input/output error") as caught,
    ):
        file.flush()
    assert caught.value.path == path
    assert len(calls) == 1
    assert filesystem.statistics.flushes == 0


@pytest.mark.parametrize("how", ["open", "open_for_writing"])
def test_closing_twice(filesystem, path, how, count_descriptors):
    before = count_descriptors()
    file = getattr(filesystem, how)(path)
    assert count_descriptors() == before + 1
    file.close()
    file.close()
    assert count_descriptors() == before


@pytest.mark.parametrize(
    "use",
    [
        lambda file: file.write_at([b"a"], 0),
        lambda file: file.truncate(0),
        lambda file: file.flush(),
    ],
    ids=["write", "truncate", "flush"],
)
def test_a_closed_file_takes_nothing(filesystem, path, use):
    file = filesystem.open_for_writing(path)
    file.close()
    with pytest.raises(StorageError):
        use(file)
    assert content(path) == b"0123456789"


def test_a_close_that_fails_is_told_once(filesystem, path, monkeypatch):
    # As network file systems do, which find only then that there is no room.
    file = filesystem.open_for_writing(path)
    descriptor = file._descriptor
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", failing(errno.EDQUOT))
        with pytest.raises(StorageError, match=r"quota of user .* is exhausted"):
            file.close()
        file.close()
    os.close(descriptor)


@pytest.mark.parametrize("how", ["open", "open_for_writing"])
def test_nothing_is_inherited_by_other_processes(filesystem, path, how):
    with getattr(filesystem, how)(path) as file:
        assert not os.get_inheritable(file._descriptor)


# -- What is refused --------


@pytest.mark.parametrize("create", [False, True])
def test_only_regular_files_are_written_to(filesystem, tmp_path, irregular_path, create, count_descriptors):
    path = irregular_path
    before = count_descriptors()
    names = set(os.listdir(tmp_path))
    with pytest.raises(LogDirectoryError) as caught:
        filesystem.open_for_writing(path, create=create)
    assert not isinstance(caught.value, FileNotFoundError)
    assert caught.value.path == path
    assert count_descriptors() == before
    assert set(os.listdir(tmp_path)) == names
    assert filesystem.statistics.files_opened == 0


CALLS = {
    "open_for_writing": ("open", lambda filesystem, path: filesystem.open_for_writing(path, create=True)),
    "rename": ("replace", lambda filesystem, path: filesystem.rename(path, path + "x")),
    "delete": ("unlink", lambda filesystem, path: filesystem.delete(path)),
    "make_directory": ("mkdir", lambda filesystem, path: filesystem.make_directory(path)),
    "delete_directory": ("rmdir", lambda filesystem, path: filesystem.delete_directory(path)),
    "flush_directory": ("open", lambda filesystem, path: filesystem.flush_directory(path)),
    "lock": ("open", lambda filesystem, path: filesystem.lock(path)),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, r"No space is left on the device\. Free some, then open the log again\."),
        (errno.EDQUOT, r"The disk quota of user kim is exhausted\. Free some space"),
        (errno.EROFS, r"mounted read-only\. Open the log directory with read_only=True\."),
        (errno.EMFILE, r"Too many files are open in this process\. Raise its limit"),
        (errno.EIO, r"Could not .* this path: .*Input/output error\. \["),
    ],
)
def test_a_refusal_of_the_file_system_says_what_to_do(filesystem, path, monkeypatch, name, number, message):
    function, call = CALLS[name]
    monkeypatch.setattr("getpass.getuser", lambda: "kim")
    monkeypatch.setattr(os, function, failing(number))
    with pytest.raises(StorageError, match=message) as caught:
        call(filesystem, path)
    assert caught.value.path == path
    assert caught.value.__cause__.errno == number


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_what_this_user_may_not_change_is_named(filesystem, path, monkeypatch, name, number):
    # Root may write everything, so the refusal is made up.
    function, call = CALLS[name]
    monkeypatch.setattr("getpass.getuser", lambda: "kim")
    monkeypatch.setattr(os, function, failing(number))
    with pytest.raises(
        UnreadableError, match=r"User kim may not .* this path\. Grant write access, or run"
    ) as caught:
        call(filesystem, path)
    assert caught.value.path == path


READING_CALLS = {name: getattr(FileSystem, name) for name in ("open", "status", "list_directory")}


@pytest.mark.parametrize("name", [*CALLS, *READING_CALLS])
@pytest.mark.parametrize("path", ["a\0b", "\ud800", "x" * 5000])
def test_texts_that_are_no_paths(filesystem, name, path):
    with pytest.raises(SegmentLogError) as caught:
        (READING_CALLS.get(name) or CALLS[name][1])(filesystem, path)
    assert type(caught.value) is LogDirectoryError
    assert caught.value.path == path


@pytest.mark.parametrize("name", ["open_for_writing", "make_directory", "rename", "delete_directory", "lock"])
def test_what_is_not_there(filesystem, tmp_path, name):
    path = str(tmp_path / "nowhere" / "file")
    with pytest.raises(FileNotFoundError, match=r"no such file or directory\. \[.*nowhere/file\]") as caught:
        CALLS[name][1](filesystem, path)
    assert isinstance(caught.value, LogDirectoryError)
    assert pickle.loads(pickle.dumps(caught.value)).path == path


# -- Names and directories --------


def test_renaming_replaces(filesystem, path, tmp_path):
    target = tmp_path / "target"
    target.write_bytes(b"old")
    filesystem.rename(path, str(target))
    assert content(target) == b"0123456789"
    assert os.listdir(tmp_path) == ["target"]


def test_deleting(filesystem, path, tmp_path):
    assert filesystem.delete(path) is True
    assert filesystem.delete(path) is False
    with pytest.raises(LogDirectoryError):
        filesystem.delete(str(tmp_path))
    assert tmp_path.is_dir()


def test_a_link_is_deleted_and_not_its_target(filesystem, path, tmp_path):
    link = str(tmp_path / "link")
    os.symlink(path, link)
    assert filesystem.delete(link) is True
    assert content(path) == b"0123456789"


def test_making_and_deleting_a_directory(filesystem, path, tmp_path):
    directory = str(tmp_path / "orders-0")
    filesystem.make_directory(directory)
    with pytest.raises(FileExistsError, match="exists already") as caught:
        filesystem.make_directory(directory)
    assert isinstance(caught.value, LogDirectoryError)
    assert pickle.loads(pickle.dumps(caught.value)).path == directory
    with pytest.raises(FileExistsError):
        filesystem.make_directory(path)
    filesystem.open_for_writing(directory + "/file", create=True).close()
    with pytest.raises(LogDirectoryError, match="not empty"):
        filesystem.delete_directory(directory)
    filesystem.delete(directory + "/file")
    filesystem.delete_directory(directory)
    assert not os.path.exists(directory)


def test_flushing_a_directory(filesystem, path, tmp_path, monkeypatch, count_descriptors):
    flushed = []
    fsync = os.fsync

    def record(descriptor):
        flushed.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    before = count_descriptors()
    filesystem.flush_directory(str(tmp_path))
    assert flushed == [os.stat(tmp_path).st_ino]
    with pytest.raises(LogDirectoryError):
        filesystem.flush_directory(path)
    # A log directory that the user names may be a link.
    (tmp_path / "link").symlink_to(tmp_path)
    filesystem.flush_directory(str(tmp_path / "link"))
    assert flushed == [os.stat(tmp_path).st_ino] * 2
    for number in (errno.EIO, errno.EINVAL):
        monkeypatch.setattr(os, "fsync", failing(number))
        with pytest.raises(StorageError, match="Could not flush this path"):
            filesystem.flush_directory(str(tmp_path))
    assert count_descriptors() == before
    assert filesystem.statistics.flushes == 2


# -- Counting --------


def test_what_is_written_is_counted(filesystem, path, tmp_path):
    with filesystem.open_for_writing(path) as file:
        file.write_at([b"abc", b"de"], 0)
        file.write_at([], 0)
        file.read_at(3, 0)
        file.flush()
    filesystem.flush_directory(str(tmp_path))
    counted = filesystem.statistics
    assert (counted.writes, counted.bytes_written, counted.flushes) == (1, 5, 2)
    assert (counted.reads, counted.bytes_read, counted.files_opened) == (1, 3, 1)


def test_a_flush_that_is_begun_changes_nothing(filesystem, path):
    with filesystem.open_for_writing(path) as file:
        file.write_at([b"abc" * 10_000], 0)
        file.begin_flush(0, 30_000)
        file.begin_flush(10**9, 1)
        assert file.read_at(40_000, 0) == b"abc" * 10_000
        file.flush()
    assert filesystem.statistics.flushes == 1


@pytest.mark.parametrize("how", ["open", "open_for_writing", "open_pooled"])
def test_a_file_that_is_given_up_costs_no_descriptor(tmp_path, how, count_descriptors):
    path = tmp_path / "f"
    path.write_bytes(b"x")
    for _ in range(20):
        filesystem = FileSystem()
        getattr(filesystem, how)(str(path))
        del filesystem
    gc.collect()
    assert count_descriptors() == 0


# -- As a file object of Python --------


def test_a_stream_appends_and_closes(tmp_path):
    file = FileSystem().open_for_writing(str(tmp_path / "file"), create=True)
    stream = WriteStream(file)
    assert stream.writable()
    assert stream.write(b"abc") == 3
    assert stream.write(memoryview(array("i", [1]))) == 4
    assert stream.tell() == 7
    stream.close()
    stream.close()
    assert content(tmp_path / "file") == b"abc" + array("i", [1]).tobytes()
    with pytest.raises(OSError, match="closed"):
        file.descriptor  # noqa: B018
    with pytest.raises(ValueError, match="closed"):
        stream.write(b"x")
