from __future__ import annotations

import pytest

from storage_core.checkpoint import (
    CLEAN_SHUTDOWN_FILE,
    delete_clean_shutdown_file,
    has_clean_shutdown_file,
    read_clean_shutdown_file,
    write_clean_shutdown_file,
)
from storage_core.filesystem import FileSystem


@pytest.mark.parametrize("content", [b"", b'{"version":0,"brokerEpoch":9}', b"\0garbage"])
def test_only_its_existence_matters(tmp_path, content):
    assert not has_clean_shutdown_file(FileSystem(), str(tmp_path))
    (tmp_path / CLEAN_SHUTDOWN_FILE).write_bytes(content)
    assert has_clean_shutdown_file(FileSystem(), str(tmp_path))


def test_it_has_kafkas_name():
    assert CLEAN_SHUTDOWN_FILE == ".kafka_cleanshutdown"


# -- Writing and deleting --------


class RecordingFileSystem(FileSystem):
    """Tells in which order the directory was changed and flushed."""

    def __init__(self):
        super().__init__()
        self.effects = []

    def open_for_writing(self, path, *, create=False, **options):
        self.effects.append("open")
        return super().open_for_writing(path, create=create, **options)

    def delete(self, path):
        self.effects.append("delete")
        return super().delete(path)

    def flush_directory(self, path):
        # What the file itself still lacks would be counted after this.
        self.effects.append(f"flush directory after {self.statistics.flushes} flushes")
        super().flush_directory(path)


@pytest.mark.parametrize("before", [None, b"", b"longer than what is written by a good deal of bytes"])
def test_writes_the_bytes_of_kafka(tmp_path, before):
    path = tmp_path / ".kafka_cleanshutdown"
    if before is not None:
        path.write_bytes(before)
    filesystem = RecordingFileSystem()
    write_clean_shutdown_file(filesystem, str(tmp_path))
    assert path.read_bytes() == b'{"version":0,"brokerEpoch":-1}'
    # In place: no other name ever stood in the directory.
    assert filesystem.effects == ["open", "flush directory after 1 flushes"]
    assert list(tmp_path.iterdir()) == [path]


def test_deletes_for_good(tmp_path):
    write_clean_shutdown_file(FileSystem(), str(tmp_path))
    filesystem = RecordingFileSystem()
    assert delete_clean_shutdown_file(filesystem, str(tmp_path)) is True
    assert not has_clean_shutdown_file(FileSystem(), str(tmp_path))
    assert filesystem.effects == ["delete", "flush directory after 0 flushes"]


def test_a_deletion_that_may_not_have_been_flushed_is_flushed_now(tmp_path):
    filesystem = RecordingFileSystem()
    assert delete_clean_shutdown_file(filesystem, str(tmp_path)) is False
    assert filesystem.effects == ["delete", "flush directory after 0 flushes"]


def test_the_marker_that_was_there_comes_back(tmp_path):
    assert read_clean_shutdown_file(FileSystem(), str(tmp_path)) is None
    (tmp_path / CLEAN_SHUTDOWN_FILE).write_bytes(b'{"version":0,"brokerEpoch":9}')
    content = read_clean_shutdown_file(FileSystem(), str(tmp_path))
    write_clean_shutdown_file(FileSystem(), str(tmp_path))
    assert (tmp_path / CLEAN_SHUTDOWN_FILE).read_bytes() == b'{"version":0,"brokerEpoch":-1}'
    write_clean_shutdown_file(FileSystem(), str(tmp_path), content)
    assert (tmp_path / CLEAN_SHUTDOWN_FILE).read_bytes() == b'{"version":0,"brokerEpoch":9}'
    (tmp_path / CLEAN_SHUTDOWN_FILE).write_bytes(bytes(5000))
    assert read_clean_shutdown_file(FileSystem(), str(tmp_path)) is None
