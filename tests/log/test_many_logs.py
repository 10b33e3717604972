"""Many logs in one process, with few open files."""

from __future__ import annotations

import os

import pytest

from storage_core import FileSystem
from storage_core.errors import StorageError
from tests.descriptors import open_below
from tests.log.logs import MARKER, append, contents, offsets, open_directory, small

COUNT = 12


def work(root, filesystem, check=lambda: None):
    """Whatever logs do, to each of many in turn."""
    with open_directory(root, filesystem=filesystem, config=small(index_interval_bytes=100)) as logs:
        # One id, so that directories can be compared.
        made = [logs.create("orders", number, topic_id="AAAAAAAAAAAAAAAAAAAAAg") for number in range(COUNT)]
        steps = [
            lambda log: append(log, 4),
            lambda log: append(log, 9, acks=-1),
            lambda log: append(log, 2),
            lambda log: log.roll(),
            lambda log: append(log, 3),
            lambda log: log.truncate_to(16),
            lambda log: append(log, 15, leader_epoch=3),
            lambda log: log.delete_records(12),
            lambda log: log.flush(),
            append,
        ]
        for step in steps:
            for log in made:
                step(log)
                check()
        for log in made:
            assert offsets(log) == list(range(12, 32))
        check()


def test_few_open_files_leave_the_same_bytes_as_many(tmp_path):
    most = 0

    def check():
        nonlocal most
        names = [os.path.relpath(path, tmp_path / "few") for path in open_below(tmp_path / "few")]
        most = max(most, sum(name.startswith("orders") for name in names))

    work(tmp_path / "many", FileSystem())
    work(tmp_path / "few", FileSystem(max_open_files=5), check)
    assert contents(tmp_path / "few") == contents(tmp_path / "many")
    assert 0 < most <= 5


@pytest.mark.parametrize("count", [1, 70])
def test_all_logs_are_closed_though_some_cannot_be(tmp_path, count, monkeypatch):
    """Many are closed several at a time."""
    logs = open_directory(tmp_path)
    made = [logs.create("orders", number) for number in range(count)]
    for log in made:
        append(log, 2)
    made[-1]._state.producers.take_snapshot = fail
    with pytest.raises(StorageError, match="No space left"):
        logs.close()
    assert all(log._state.is_closed for log in made)
    assert not (tmp_path / MARKER).exists()
    with open_directory(tmp_path) as logs:
        assert [offsets(log) for log in logs.logs()] == [[0, 1]] * count


def fail():
    raise StorageError("No space left on device.")


def test_a_file_system_that_cannot_be_synced_as_a_whole_keeps_no_log_from_being_closed(tmp_path, monkeypatch):
    logs = open_directory(tmp_path)
    for number in range(70):
        append(logs.create("orders", number))
    monkeypatch.setattr(FileSystem, "sync", lambda filesystem, path: fail())
    logs.close()
    assert (tmp_path / MARKER).exists()
