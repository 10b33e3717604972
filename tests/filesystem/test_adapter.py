"""File systems of pyarrow and of fsspec, read as stores are."""

from __future__ import annotations

import os
import sys
import traceback

import fsspec
import pytest
from pyarrow import fs as pyarrow_fs

from storage_core.errors import FileReplacedError, OptionError, StorageError, UnreadableError
from storage_core.filesystem.adapter import adapt
from storage_core.filesystem.object_store import ObjectStoreFileSystem
from storage_core.filesystem.values import MissingError
from storage_core.options.storage_options import NO_STORAGE_OPTIONS
from storage_core.tier import open_file_system

SECRET = "hush-and-tell-nobody"


@pytest.fixture(
    params=[
        (pyarrow_fs.LocalFileSystem, "file://{}"),
        (lambda: fsspec.filesystem("file"), "file://{}"),
        (lambda: pyarrow_fs.PyFileSystem(pyarrow_fs.FSSpecHandler(fsspec.filesystem("file"))), "x://{}"),
        (lambda: pyarrow_fs.SubTreeFileSystem("/", pyarrow_fs.LocalFileSystem()), "mine:/{}"),
    ],
    ids=["pyarrow", "fsspec", "fsspec in pyarrow", "subtree"],
)
def adapted(request, tmp_path):
    """Return a file system, and the URI of a directory in it."""
    make, uri = request.param
    (tmp_path / "logs" / "t-0").mkdir(parents=True)
    (tmp_path / "logs" / "t-0" / "0 ä.log").write_bytes(b"0123456789")
    (tmp_path / "logs" / "empty-0").mkdir()
    (tmp_path / "logs" / "meta.properties").write_bytes(b"")
    return ObjectStoreFileSystem(NO_STORAGE_OPTIONS, adapt(make())), uri.format(tmp_path / "logs")


def names(filesystem, path):
    return [entry.name for entry in filesystem.list_directory(path)]


def test_a_directory_is_read_as_one_of_a_store(adapted):
    filesystem, root = adapted
    assert filesystem.status(root).is_directory
    # As in a store, nothing is empty.
    assert names(filesystem, root) == ["meta.properties", "t-0"]
    assert names(filesystem, f"{root}/t-0") == ["0 ä.log"]
    assert filesystem.read_file(f"{root}/t-0/0 ä.log", 10) == b"0123456789"
    assert filesystem.read_file(f"{root}/meta.properties", 10) == b""
    assert not filesystem.exists(f"{root}/t-1")
    with pytest.raises(MissingError):
        filesystem.list_directory(f"{root}/t-1")


def test_a_level_is_listed_alone(adapted):
    filesystem, root = adapted
    assert names(filesystem, root) == ["empty-0", "meta.properties", "t-0"]
    assert names(filesystem, f"{root}/t-0") == ["0 ä.log"]


def test_a_single_file(adapted):
    filesystem, root = adapted
    status = filesystem.status(f"{root}/t-0/0 ä.log")
    assert status.size_bytes == 10
    with filesystem.open(f"{root}/t-0/0 ä.log", status.version) as opened:
        assert opened.read_at(3, 4) == b"456"
    assert filesystem.status(f"{root}/t-0/1.log") is None


@pytest.mark.parametrize("content", [b"012", b"9876543210", None])
def test_a_replaced_file_is_noticed(adapted, content):
    filesystem, root = adapted
    path = root[root.index("/", root.index(":") + 2) :].replace("//", "/") + "/t-0/0 ä.log"
    with filesystem.open(f"{root}/t-0/0 ä.log", filesystem.status(f"{root}/t-0/0 ä.log").version) as opened:
        os.unlink(path)
        if content is not None:
            with open(path, "wb") as file:
                file.write(content)
            os.utime(path, ns=(0, 0))
        with pytest.raises(FileReplacedError, match="t-0"):
            opened.read_at(10, 0)


class Failing(fsspec.AbstractFileSystem):
    """Fails as it is told."""

    cachable = False

    def __init__(self, error):
        super().__init__()
        self.error = error

    def find(self, path, **_):
        raise self.error

    ls = info = cat_file = find


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PermissionError(SECRET), UnreadableError),
        (OSError(SECRET), StorageError),
        (RuntimeError(SECRET), StorageError),
    ],
)
def test_a_failure_is_one_line_with_the_uri_and_no_secret(error, kind):
    filesystem = ObjectStoreFileSystem(NO_STORAGE_OPTIONS, adapt(Failing(error)))
    for ask in (filesystem.status, filesystem.list_directory, filesystem.open):
        with pytest.raises(kind, match="x://bucket/logs") as caught:
            ask("x://bucket/logs")
        assert SECRET not in "".join(traceback.format_exception(caught.value))
        assert caught.value.__cause__ is caught.value.__context__ is None


def test_times_and_versions_of_other_file_systems():
    memory = fsspec.filesystem("memory")
    memory.pipe("/adapted/logs/0.log", b"x")
    filesystem = ObjectStoreFileSystem(NO_STORAGE_OPTIONS, adapt(memory))
    # Its `modified` gives a second look at the clock.
    created_ms = memory.info("/adapted/logs/0.log")["created"].timestamp() * 1000
    assert filesystem.status("memory://adapted/logs/0.log").modified_ms == int(created_ms)
    memory.rm("/adapted", recursive=True)


def test_what_is_no_file_system_is_refused():
    with pytest.raises(OptionError, match="found str"):
        adapt("s3")


def test_without_hdfs_native_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(OptionError, match="pip install hdfs-native fsspec"):
        ObjectStoreFileSystem(NO_STORAGE_OPTIONS).status("hdfs://namenode:8020/logs")


def test_a_file_system_of_the_caller_takes_the_uris(tmp_path):
    (tmp_path / "here").write_bytes(b"local")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "there").write_bytes(b"remote")
    beneath = pyarrow_fs.SubTreeFileSystem(str(tmp_path), pyarrow_fs.LocalFileSystem())
    filesystem = open_file_system(NO_STORAGE_OPTIONS, beneath)
    assert filesystem.read_file("gs://logs/there", 10) == b"remote"
    assert filesystem.traits_of("gs://logs").are_files_fixed
    assert filesystem.read_file(str(tmp_path / "here"), 10) == b"local"
    assert not filesystem.traits_of(str(tmp_path)).are_files_fixed
    with pytest.raises(OptionError, match="found str"):
        open_file_system(NO_STORAGE_OPTIONS, "s3")
