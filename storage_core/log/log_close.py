"""Closing a log so that the next one to open it, here or in a broker, need not recover it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from storage_core.log.log_append import write_pending
from storage_core.log.log_flush import flush_directory_if_changed, flush_up_to
from storage_core.log.segment_deletion import delete_due_files
from storage_core.segment.file_names import offset_index_file_name, time_index_file_name

if TYPE_CHECKING:
    from storage_core.log.log_state import LogState

__all__ = ["close_log"]


def close_log(state: LogState) -> None:
    """Force everything to disk, complete the indexes and close the files. A log that has failed is only closed.

    Raises:
        LogForkedError: Another process opened it.
        StorageError: That failed: the log has to be recovered.
    """
    if state.is_closed:
        return
    state.owner.check(state.path)
    # Without the lock, which it takes at its end.
    state.cleaning.stop()
    with state.lock:
        _close_locked(state)


def _close_locked(state: LogState) -> None:
    if state.is_closed:
        return
    try:
        if state.failure is None:
            with state.writing():
                _close(state)
    finally:
        state.is_closed = True
        state.segments.close_handlers()


def _close(state: LogState) -> None:
    write_pending(state)
    delete_due_files(state)
    log_end_offset = state.offsets.log_end_offset
    state.producers.move_map_end_offset(log_end_offset)
    state.producers.take_snapshot()
    if state.offsets.recovery_point < log_end_offset:
        # Before the flush: then there is one of each file.
        state.segments.active.seal()
    flush_up_to(state, log_end_offset)
    state.leader_epochs.flush()
    state.segments.close()
    _make_index_files(state)
    flush_directory_if_changed(state)


def _make_index_files(state: LogState) -> None:
    """A broker that misses the index of even an empty segment recovers it."""
    base_offset = state.segments.active.base_offset
    for name in (offset_index_file_name(base_offset), time_index_file_name(base_offset)):
        path = os.path.join(state.path, name)
        if state.filesystem.status(path) is None:
            with state.filesystem.open_for_writing(path, create=True) as index_file:
                index_file.flush()
            state.unflushed_directory = True
