"""Segments that leave a log: first their names change, their bytes go later."""

from __future__ import annotations

import errno
import os

import pytest

from storage_core.errors import LogFailedError, StorageError
from storage_core.log.local_log import (
    delete_due_files,
    remove_segments,
    segments_below_log_start,
    take_due_files,
)
from tests.log.logs import append, name, names, offsets, small


@pytest.fixture
def log(logs):
    log = logs.create("orders", config=small(file_delete_delay_ms=5_000))
    append(log, 35)
    assert log.segment_base_offsets == (0, 10, 20, 30)
    return log


@pytest.fixture
def state(log):
    return log._state


def deleted(log):
    return [each for each in names(log.path) if each.endswith(".log.deleted")]


def test_they_are_gone_from_the_log_and_their_files_wait(log, state):
    remove_segments(state, state.segments.values()[1:3])
    assert state.segments.base_offsets == [0, 30]
    assert deleted(log) == [name(10, "log.deleted"), name(20, "log.deleted")]
    # A crash may bring the old names back, until the directory is forced to disk.
    assert state.unflushed_directory


def test_nothing_to_remove_is_nothing(log, state):
    state.unflushed_directory = False
    remove_segments(state, [])
    assert state.segments.base_offsets == [0, 10, 20, 30]
    assert not state.unflushed_directory


def test_files_are_due_together_and_one_by_one(log, state, clock):
    first, second, *_ = state.segments.values()
    remove_segments(state, [first])
    clock.time_ms += 1_000
    remove_segments(state, [second])
    clock.time_ms += 3_999
    delete_due_files(state)
    assert deleted(log) == [name(0, "log.deleted"), name(10, "log.deleted")]
    clock.time_ms += 1
    delete_due_files(state)
    assert deleted(log) == [name(10, "log.deleted")]
    clock.time_ms += 1_000
    delete_due_files(state)
    assert [each for each in names(log.path) if each.endswith(".deleted")] == []
    assert state.scheduled_deletions == []


def test_what_is_taken_is_the_takers_to_delete(log, state, clock):
    remove_segments(state, state.segments.values()[:2])
    assert take_due_files(state) == []
    clock.time_ms += 5_000
    taken = take_due_files(state)
    assert take_due_files(state) == []
    assert len(deleted(log)) == 2
    for delete in taken:
        delete()
    assert [each for each in names(log.path) if each.endswith(".deleted")] == []


def test_a_rename_that_fails_leaves_the_others_in_the_log(log, state, monkeypatch):
    replaced = os.replace

    def fail(source, target):
        if source.endswith(name(20)):
            raise OSError(errno.EIO, "Input/output error")
        replaced(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(StorageError, match="Input/output error"), state.writing():
        remove_segments(state, state.segments.values()[:3])
    assert state.segments.base_offsets == [20, 30]
    # Readers hold what they held: the files are found under their new names.
    assert offsets(log) == list(range(35))
    with pytest.raises(LogFailedError):
        log.flush()


@pytest.mark.parametrize(
    ("log_start", "below"),
    [(0, []), (9, []), (10, [0]), (19, [0]), (20, [0, 10]), (34, [0, 10, 20]), (35, [0, 10, 20])],
)
def test_a_segment_lies_below_the_log_start_as_a_whole_or_not_at_all(state, log_start, below):
    state.publish(state.offsets.with_log_start(log_start))
    assert [segment.base_offset for segment in segments_below_log_start(state)] == below
