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
from tests.faults.observed_filesystem import before_each_call


@pytest.mark.parametrize("content", [b"", b'{"version":0,"brokerEpoch":9}', b"\0garbage"])
def test_only_its_existence_matters(tmp_path, content):
    assert not has_clean_shutdown_file(FileSystem(), str(tmp_path))
    (tmp_path / CLEAN_SHUTDOWN_FILE).write_bytes(content)
    assert has_clean_shutdown_file(FileSystem(), str(tmp_path))


def test_it_has_kafkas_name():
    assert CLEAN_SHUTDOWN_FILE == ".kafka_cleanshutdown"


# -- Writing and deleting --------


def recording():
    """Return a file system, and in which order the directory is changed and flushed."""
    effects = []

    def note(call, path):
        if call == "flush_directory":
            # What the file itself still lacks would be counted after this.
            effects.append(f"flush directory after {filesystem.statistics.flushes} flushes")
        elif call in {"open_for_writing", "delete"}:
            effects.append(call)

    filesystem = before_each_call(note)
    return filesystem, effects


@pytest.mark.parametrize("before", [None, b"", b"longer than what is written by a good deal of bytes"])
def test_writes_the_bytes_of_kafka(tmp_path, before):
    path = tmp_path / ".kafka_cleanshutdown"
    if before is not None:
        path.write_bytes(before)
    filesystem, effects = recording()
    write_clean_shutdown_file(filesystem, str(tmp_path))
    assert path.read_bytes() == b'{"version":0,"brokerEpoch":-1}'
    # In place: no other name ever stood in the directory.
    assert effects == ["open_for_writing", "flush directory after 1 flushes"]
    assert list(tmp_path.iterdir()) == [path]


def test_deletes_for_good(tmp_path):
    write_clean_shutdown_file(FileSystem(), str(tmp_path))
    filesystem, effects = recording()
    assert delete_clean_shutdown_file(filesystem, str(tmp_path)) is True
    assert not has_clean_shutdown_file(FileSystem(), str(tmp_path))
    assert effects == ["delete", "flush directory after 0 flushes"]


def test_a_deletion_that_may_not_have_been_flushed_is_flushed_now(tmp_path):
    filesystem, effects = recording()
    assert delete_clean_shutdown_file(filesystem, str(tmp_path)) is False
    assert effects == ["delete", "flush directory after 0 flushes"]


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
