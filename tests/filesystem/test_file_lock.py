"""The lock of a log directory: against other processes, and within this one."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage_core.errors import LogDirectoryError, LogDirectoryLockedError, StorageError
from storage_core.filesystem import FileSystem

# A foreign program: it knows nothing of this package, only of POSIX record locks, as a broker does.
TRY = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
try:
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit(7)
"""
HOLD = (
    TRY
    + """
print("locked", flush=True)
sys.stdin.read()
"""
)


def is_locked_for_others(path):
    status = subprocess.run([sys.executable, "-I", "-S", "-c", TRY, str(path)], check=False).returncode
    assert status in (0, 7)
    return status == 7


class ForeignProcess:
    """Holds the lock of a file until its block ends."""

    def __init__(self, path):
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", HOLD, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self):
        assert self.process.stdout.readline() == b"locked\n"
        return self

    def __exit__(self, *_):
        self.process.communicate()


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / ".lock")


# -- One holder --------


def test_it_locks_other_processes_out(filesystem, path):
    with filesystem.lock(path) as lock:
        assert lock.path == path
        assert is_locked_for_others(path)
    assert not is_locked_for_others(path)


def test_another_process_locks_it_out(filesystem, path, count_descriptors):
    before = count_descriptors()
    with ForeignProcess(path):
        with pytest.raises(LogDirectoryLockedError, match="by another process, a broker") as caught:
            filesystem.lock(path)
        assert caught.value.path == path
    filesystem.lock(path).release()
    assert count_descriptors() == before


def test_a_second_lock_in_one_process_is_refused(filesystem, path, count_descriptors):
    """Of the operating system it would get one, and closing it would give the first away."""
    with filesystem.lock(path):
        before = count_descriptors()
        for again in (filesystem, FileSystem()):
            with pytest.raises(LogDirectoryLockedError, match="by another object in this process") as caught:
                again.lock(path)
            assert caught.value.path == path
        assert is_locked_for_others(path)
        # The file was not even opened.
        assert count_descriptors() == before
    filesystem.lock(path).release()


def test_another_path_to_the_same_file_is_refused(filesystem, path, tmp_path):
    (tmp_path / "same").symlink_to(tmp_path)
    with filesystem.lock(path):
        os.link(path, tmp_path / "hard link")
        for other in (tmp_path / "same" / ".lock", tmp_path / "hard link", f"{tmp_path}/./.lock"):
            with pytest.raises(LogDirectoryLockedError, match="in this process"):
                filesystem.lock(str(other))
        assert is_locked_for_others(path)


# -- Opening the file in another way --------


@pytest.mark.parametrize(
    "use",
    [
        lambda filesystem, path: filesystem.open(path),
        lambda filesystem, path: filesystem.open_for_writing(path),
        lambda filesystem, path: filesystem.read_file(path, 100),
    ],
    ids=["open", "open_for_writing", "read_file"],
)
def test_the_locked_file_is_not_opened_again(filesystem, path, use, count_descriptors):
    """Closing any descriptor of the file would silently release the lock."""
    before = count_descriptors()
    with filesystem.lock(path):
        with pytest.raises(LogDirectoryLockedError, match="would release the lock") as caught:
            use(FileSystem(), path)
        assert caught.value.path == path
        assert is_locked_for_others(path)
    # The descriptor that was opened nevertheless is closed with the lock.
    assert count_descriptors() == before
    assert use(filesystem, path) is not None


# -- The file --------


def test_it_is_made_and_left_in_place(filesystem, path):
    with filesystem.lock(path):
        assert Path(path).read_bytes() == b""
    inode = os.stat(path).st_ino
    filesystem.lock(path).release()
    assert os.stat(path).st_ino == inode


@pytest.mark.parametrize(
    "make",
    [os.mkdir, os.mkfifo, lambda path: os.symlink("elsewhere", path)],
    ids=["directory", "FIFO", "link"],
)
def test_only_a_regular_file_is_locked(filesystem, path, tmp_path, make, count_descriptors):
    make(path)
    before = count_descriptors()
    with pytest.raises(LogDirectoryError) as caught:
        filesystem.lock(path)
    assert caught.value.path == path
    assert not isinstance(caught.value, LogDirectoryLockedError)
    assert count_descriptors() == before
    assert os.listdir(tmp_path) == [".lock"]


# -- Replaced while it is locked --------


def replace_before_locking(monkeypatch, path, make_another, times):
    """Between the open and the lock the file is replaced, as by a broker that stops and starts."""
    lockf = fcntl.lockf
    inodes = []

    def replaced(descriptor, operation):
        if len(inodes) < times:
            inodes.append(os.fstat(descriptor).st_ino)
            if make_another:
                Path(path + ".new").write_bytes(b"")
                os.replace(path + ".new", path)
            else:
                os.unlink(path)
        lockf(descriptor, operation)

    monkeypatch.setattr(fcntl, "lockf", replaced)
    return inodes


@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize("make_another", [True, False], ids=["replaced", "removed"])
def test_a_file_that_is_replaced_meanwhile_is_noticed(
    filesystem, path, monkeypatch, make_another, times, count_descriptors
):
    before = count_descriptors()
    inodes = replace_before_locking(monkeypatch, path, make_another, times)
    with filesystem.lock(path) as lock:
        assert len(inodes) == times
        assert os.fstat(lock._descriptor).st_ino == os.stat(path).st_ino
        assert is_locked_for_others(path)
        assert count_descriptors() == before + 1
    assert count_descriptors() == before


def test_a_file_that_is_replaced_for_ever(filesystem, path, monkeypatch, count_descriptors):
    before = count_descriptors()
    replace_before_locking(monkeypatch, path, make_another=True, times=10**9)
    with pytest.raises(LogDirectoryLockedError, match="it was replaced 100 times"):
        filesystem.lock(path)
    assert count_descriptors() == before


def test_a_locked_file_that_is_moved_there_meanwhile(filesystem, path, tmp_path, monkeypatch):
    """The file of a lock of this process turns up under another name between look and open."""
    other = str(tmp_path / "other")
    real_open = os.open

    def move_and_open(name, *arguments):
        if name == path:
            os.replace(other, path)
        return real_open(name, *arguments)

    with filesystem.lock(other) as lock:
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", move_and_open)
            with pytest.raises(LogDirectoryLockedError, match="by another object in this process"):
                filesystem.lock(path)
        assert lock.path == other
        assert is_locked_for_others(path)
    assert not is_locked_for_others(path)


def test_after_the_file_was_removed_under_a_holder_a_new_one_is_another_lock(filesystem, path):
    """As with a broker: who removes the file of a running process breaks its lock."""
    with filesystem.lock(path):
        os.unlink(path)
        with filesystem.lock(path):
            assert is_locked_for_others(path)


# -- Release --------


def test_releasing_twice(filesystem, path, count_descriptors):
    before = count_descriptors()
    lock = filesystem.lock(path)
    lock.release()
    with filesystem.lock(path):
        lock.release()
        assert is_locked_for_others(path)
    assert count_descriptors() == before


def test_an_error_in_the_block_releases_it(filesystem, path):
    with pytest.raises(KeyError), filesystem.lock(path):
        raise KeyError
    assert not is_locked_for_others(path)


def test_the_end_of_the_process_releases_it(path):
    script = (
        "import os, sys\n"
        "from storage_core.filesystem import FileSystem\n"
        "lock = FileSystem().lock(sys.argv[1])\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", script, path], check=True)
    assert not is_locked_for_others(path)


def test_a_forked_child_neither_holds_it_nor_gives_it_away(path):
    # In a process of its own: this one may have threads, which a fork would not take along.
    script = """
import os, sys
from storage_core.errors import LogDirectoryLockedError
from storage_core.filesystem import FileSystem

lock = FileSystem().lock(sys.argv[1])
child = os.fork()
if child == 0:
    try:
        FileSystem().lock(sys.argv[1])
    except LogDirectoryLockedError as error:
        assert "by another process" in str(error), error
        lock.release()
        os._exit(0)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
child = os.fork()
if child == 0:
    try:
        FileSystem().lock(sys.argv[1])
    except LogDirectoryLockedError:
        os._exit(0)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
lock.release()
child = os.fork()
if child == 0:
    FileSystem().lock(sys.argv[1])
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-c", script, path], check=True)


def test_a_forked_child_that_locks_for_itself_keeps_its_lock(path):
    """What it has inherited of its parent's lock must not be closed: that would give its own away."""
    script = """
import os, subprocess, sys
from storage_core.filesystem import FileSystem

inherited = FileSystem().lock(sys.argv[1])
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.read(reader, 1)
    lock = FileSystem().lock(sys.argv[1])
    inherited.release()
    status = subprocess.run([sys.executable, "-I", "-S", "-c", sys.argv[2], sys.argv[1]]).returncode
    os._exit(0 if status == 7 else 1)
inherited.release()
os.write(writer, b"x")
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-c", script, path, TRY], check=True)


# -- Where there are no locks --------


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks(filesystem, path, monkeypatch, number, count_descriptors):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    before = count_descriptors()
    monkeypatch.setattr(fcntl, "lockf", fail)
    with pytest.raises(StorageError, match="Could not lock this path") as caught:
        filesystem.lock(path)
    assert caught.value.path == path
    assert count_descriptors() == before


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EACCES])
def test_both_words_for_a_lock_that_is_taken(filesystem, path, monkeypatch, number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "lockf", fail)
    with pytest.raises(LogDirectoryLockedError, match="Stop it first"):
        filesystem.lock(path)
