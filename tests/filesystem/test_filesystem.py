"""The one module that touches files: what it refuses, explains and counts."""

from __future__ import annotations

import ast
import os
import pickle
from pathlib import Path

import pytest

import storage_core
from storage_core.errors import LogDirectoryError, UnreadableError
from storage_core.filesystem import DirectoryEntry, IoStatistics

# -- Reading --------


def test_reading_at_a_position(filesystem, path):
    with filesystem.open(path) as opened:
        assert opened.read_at(4, 3) == b"3456"
        assert opened.read_at(100, 8) == b"89"
        assert opened.read_at(5, 10) == opened.read_at(5, 10_000) == opened.read_at(0, 3) == b""


def test_reading_into_a_buffer(filesystem, path):
    buffer = bytearray(b"." * 6)
    with filesystem.open(path) as opened:
        assert opened.read_into(memoryview(buffer)[1:4], 2) == 3
        assert bytes(buffer) == b".234.."
        assert opened.read_into(memoryview(buffer), 8) == 2
        assert bytes(buffer) == b"8934.."
        assert opened.read_into(memoryview(buffer)[:0], 0) == 0


def test_short_reads_are_continued(filesystem, path, monkeypatch):
    """A signal or a network file system may give less than was asked for."""
    pread, preadv = os.pread, os.preadv
    monkeypatch.setattr(
        os, "pread", lambda descriptor, size, position: pread(descriptor, min(size, 3), position)
    )
    monkeypatch.setattr(
        os, "preadv", lambda descriptor, buffers, position: preadv(descriptor, [buffers[0][:3]], position)
    )
    buffer = bytearray(8)
    with filesystem.open(path) as opened:
        assert opened.read_at(8, 1) == b"12345678"
        assert opened.read_at(100, 1) == b"123456789"
        assert opened.read_into(memoryview(buffer), 1) == 8
    assert bytes(buffer) == b"12345678"


def test_the_status_of_an_open_file_stays_and_its_size_does_not(filesystem, path):
    with filesystem.open(path) as opened:
        with Path(path).open("ab") as file:
            file.write(b"more")
        assert (opened.status.size_bytes, opened.size_bytes()) == (10, 14)
        assert opened.status.version == os.stat(path).st_ino
        assert opened.path == path


def test_a_file_that_is_renamed_and_removed_is_read_on(filesystem, path):
    with filesystem.open(path) as opened:
        os.unlink(path)
        assert opened.read_at(10, 0) == b"0123456789"


# -- Small files --------


def test_a_small_file(filesystem, path, tmp_path):
    assert filesystem.read_file(path, 10) == b"0123456789"
    assert filesystem.read_file(str(tmp_path / "nothing"), 10) is None
    with pytest.raises(LogDirectoryError, match="at most 9 bytes") as caught:
        filesystem.read_file(path, 9)
    assert caught.value.path == path


# -- What is refused --------


def test_only_regular_files_are_opened(filesystem, irregular_path, count_descriptors):
    path = irregular_path
    before = count_descriptors()
    with pytest.raises(LogDirectoryError) as caught:
        filesystem.open(path)
    assert not isinstance(caught.value, FileNotFoundError)
    assert caught.value.path == path
    with pytest.raises(LogDirectoryError):
        filesystem.read_file(path, 10)
    assert count_descriptors() == before
    assert filesystem.statistics.files_opened == 0


@pytest.mark.parametrize("call", ["open", "list_directory"])
def test_what_is_not_there(filesystem, tmp_path, call):
    path = str(tmp_path / "nothing")
    # Callers tell it apart as they do with any other file.
    with pytest.raises(FileNotFoundError, match=r"No such file or directory\. \[.*nothing\]") as caught:
        getattr(filesystem, call)(path)
    assert isinstance(caught.value, LogDirectoryError)
    assert pickle.loads(pickle.dumps(caught.value)).path == path


def test_a_file_in_the_place_of_a_directory(filesystem, path):
    with pytest.raises(LogDirectoryError, match="Could not list this path"):
        filesystem.list_directory(path)
    with pytest.raises(LogDirectoryError, match="Could not open this path"):
        filesystem.open(path + "/x.log")


@pytest.mark.parametrize(
    ("function", "call", "action"),
    [("open", "open", "open"), ("scandir", "list_directory", "list"), ("stat", "status", "examine")],
)
def test_what_this_user_may_not_read_is_named(filesystem, path, monkeypatch, function, call, action):
    # Root may read everything, so the refusal is made up.
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("getpass.getuser", lambda: "kim")
    monkeypatch.setattr(os, function, refuse)
    with pytest.raises(UnreadableError, match=f"User kim may not {action} this path") as caught:
        getattr(filesystem, call)(path)
    assert caught.value.path == path
    assert "Grant read access, or run as its owner." in str(caught.value)


@pytest.mark.parametrize(
    ("function", "read"),
    [
        ("pread", lambda opened: opened.read_at(4, 0)),
        ("preadv", lambda opened: opened.read_into(memoryview(bytearray(4)), 0)),
    ],
)
def test_a_disk_that_fails_is_named(filesystem, path, monkeypatch, function, read):
    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, function, fail)
    with (
        filesystem.open(path) as opened,
        pytest.raises(LogDirectoryError, match=r"Could not read this path: .*Input/output error") as caught,
    ):
        read(opened)
    assert caught.value.path == path


def test_a_user_without_a_name(filesystem, path, monkeypatch):
    # As in a container that runs under an arbitrary number.
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    def nameless():
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr("getpass.getuser", nameless)
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UnreadableError, match=f"User {os.getuid()} may not"):
        filesystem.open(path)


def test_what_may_be_written_to_is_only_asked_for(filesystem, path, monkeypatch):
    modes = []

    def refuse(path, mode, **options):
        modes.append((path, mode))
        return False

    filesystem.require_writable(path)
    monkeypatch.setattr("getpass.getuser", lambda: "kim")
    monkeypatch.setattr(os, "access", refuse)
    with pytest.raises(UnreadableError, match="User kim may not write to this path") as caught:
        filesystem.require_writable(path)
    assert caught.value.path == path
    assert modes == [(path, os.R_OK | os.W_OK)]
    # Of what is not there, nothing is said.
    filesystem.require_writable(f"{path}.not-there")
    assert filesystem.read_file(path, 100) == b"0123456789"


# -- Directories --------


def test_a_listing_is_in_order_and_follows_no_links(filesystem, tmp_path):
    (tmp_path / "b.log").write_bytes(b"")
    (tmp_path / "a-0").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a-0")
    os.mkfifo(tmp_path / "pipe")
    assert filesystem.list_directory(str(tmp_path)) == [
        DirectoryEntry("a-0", is_directory=True, is_regular_file=False, is_symlink=False),
        DirectoryEntry("b.log", is_directory=False, is_regular_file=True, is_symlink=False),
        DirectoryEntry("link", is_directory=False, is_regular_file=False, is_symlink=True),
        DirectoryEntry("pipe", is_directory=False, is_regular_file=False, is_symlink=False),
    ]


def test_a_directory_is_walked_in_any_order(filesystem, tmp_path):
    for name in ("b", "a", "c"):
        (tmp_path / name).write_bytes(b"")
    walked = filesystem.walk_directory(str(tmp_path))
    assert filesystem.statistics.directories_listed == 0
    assert set(walked) == set(filesystem.list_directory(str(tmp_path)))
    assert filesystem.statistics.directories_listed == 2
    with pytest.raises(LogDirectoryError):
        next(filesystem.walk_directory(str(tmp_path / "nothing")))


def test_status(filesystem, path, tmp_path):
    os.utime(path, ns=(0, 1_234_567_999_999))
    status = filesystem.status(path)
    assert (status.size_bytes, status.modified_ms) == (10, 1_234_567)
    assert (status.is_regular_file, status.is_directory) == (True, False)
    assert (status.version, status.device) == (os.stat(path).st_ino, os.stat(path).st_dev)
    assert filesystem.status(str(tmp_path)).is_directory
    assert filesystem.status(str(tmp_path / "nothing")) is None


def test_status_follows_links_only_when_told(filesystem, path, tmp_path):
    link = str(tmp_path / "link")
    os.symlink(path, link)
    assert not filesystem.status(link).is_regular_file
    assert filesystem.status(link, follow_symlinks=True).size_bytes == 10


# -- Counting --------


def test_everything_is_counted(filesystem, path, tmp_path):
    assert filesystem.statistics == IoStatistics()
    filesystem.list_directory(str(tmp_path))
    filesystem.status(path)
    filesystem.status(str(tmp_path / "nothing"))
    with filesystem.open(path) as opened:
        opened.read_at(4, 0)
        opened.read_at(100, 5)
        opened.read_into(memoryview(bytearray(3)), 9)
    filesystem.read_file(path, 100)
    assert filesystem.statistics == IoStatistics(
        bytes_read=4 + 5 + 1 + 10, reads=4, files_opened=2, directories_listed=1, files_examined=2
    )


# -- The only one --------


FILE_MODULES = {"fcntl", "fileinput", "io", "mmap", "pathlib", "posix", "shutil", "tempfile"}


# What a command prints: standard output and its pipe.
OF_PROCESSES = {"main.py"}


def test_no_class_has_a_finalizer():
    """Python ignores an interrupt that arrives in one, and a read that goes through many files would miss a Ctrl-C."""
    sources = Path(storage_core.__file__).parent.rglob("*.py")
    assert [source.name for source in sources if "def __del__" in source.read_text(encoding="utf-8")] == []


def test_no_other_module_touches_files():
    """Faults are injected under this package, and bytes counted in it: nothing may go around it."""
    allowed = {
        "os." + name
        for name in (
            "PathLike",
            "cpu_count",
            "environ",
            "fspath",
            "getcwd",
            "getpid",
            "pardir",
            "path",
            "register_at_fork",
            "sched_getaffinity",
            "strerror",
        )
    }
    names = (
        "abspath",
        "basename",
        "commonpath",
        "commonprefix",
        "dirname",
        "join",
        "relpath",
        "split",
        "splitext",
    )
    allowed |= {"os.path." + name for name in names}
    found = set()
    for source in Path(storage_core.__file__).parent.rglob("*.py"):
        if source.parent.name == "filesystem" or source.name in OF_PROCESSES:
            continue
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "open":
                found.add((source.name, "open"))
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in {"os", "os.path"}:
                found |= {(source.name, name) for name in {ast.unparse(node)} - allowed}
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {getattr(node, "module", None), *(alias.name for alias in node.names)}
                found |= {(source.name, name) for name in names & FILE_MODULES}
                # `from os import ...` or `import os as ...` would go unseen above.
                if getattr(node, "module", None) == "os" or any(
                    alias.name == "os" and alias.asname for alias in node.names
                ):
                    found.add((source.name, ast.unparse(node)))
    assert found == set()


# -- Links and space --------


def test_a_link_is_a_second_name(filesystem, path, tmp_path):
    target = str(tmp_path / "other.log")
    filesystem.link(path, target)
    assert filesystem.status(target).version == filesystem.status(path).version
    assert filesystem.delete(path)
    assert filesystem.read_file(target, 100) == b"0123456789"


def test_a_link_replaces_nothing(filesystem, path, tmp_path):
    target = tmp_path / "other.log"
    target.write_bytes(b"old")
    with pytest.raises(FileExistsError) as caught:
        filesystem.link(path, str(target))
    assert isinstance(caught.value, LogDirectoryError)
    assert str(target) in str(caught.value)
    assert target.read_bytes() == b"old"


def test_a_symbolic_link_is_not_followed_by_a_link(filesystem, path, tmp_path):
    (tmp_path / "symbolic").symlink_to(path)
    filesystem.link(str(tmp_path / "symbolic"), str(tmp_path / "other"))
    assert (tmp_path / "other").is_symlink()


def test_all_that_was_written_may_be_brought_to_the_disk(filesystem, path, tmp_path):
    filesystem.sync(str(tmp_path))
    filesystem.sync(path)
    with pytest.raises(FileNotFoundError):
        filesystem.sync(str(tmp_path / "missing"))


def test_the_free_space(filesystem, tmp_path):
    assert filesystem.free_bytes(str(tmp_path)) > 0
    with pytest.raises(FileNotFoundError):
        filesystem.free_bytes(str(tmp_path / "missing"))


@pytest.mark.parametrize(("files", "expected"), [((100, 7), 7), ((100, 0), 0), ((0, 0), None)])
def test_the_room_for_files(filesystem, tmp_path, monkeypatch, files, expected):
    """Some file systems have no fixed number of them, and say 0 of 0."""
    status = os.statvfs(tmp_path)
    values = list(status)
    values[5], values[7] = files
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(values))
    assert filesystem.free_files(str(tmp_path)) == expected
