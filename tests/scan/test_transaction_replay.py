from __future__ import annotations

import pytest

from storage_core.directory import PartitionLog, find_partitions
from storage_core.errors import CorruptRecordError, DataLossError
from storage_core.filesystem import FileSystem
from storage_core.scan.isolation import TransactionReplay
from storage_core.segment import AbortedTransaction


def replay_of(builder):
    filesystem = FileSystem()
    (directory,) = find_partitions(filesystem, [str(builder.path)])
    return TransactionReplay(PartitionLog.load(filesystem, directory))


def test_markers_close_transactions(log_root):
    log = log_root.partition("orders").transactional(7, 2).transactional(8).data().abort(7).transactional(9)
    replay = replay_of(log.commit(8).write())
    assert replay.aborted_transactions(7) == [AbortedTransaction(7, 0, 4, 2)]
    assert replay.transactions.open_or_doubtful() == {9: 5}
    assert replay.next_offset == 7


def test_it_goes_on_where_it_stopped(log_root):
    log = log_root.partition("orders").transactional(7).data().roll().transactional(7).data().abort(7).data()
    replay = replay_of(log.write(snapshots=False))
    assert replay.aborted_transactions(1) == []
    assert replay.transactions.open_or_doubtful() == {7: 0}
    assert replay.aborted_transactions(3) == []
    assert replay.aborted_transactions(6) == [AbortedTransaction(7, 0, 4, 5)]
    assert replay.aborted_transactions(6) == []


def test_snapshots_save_the_walk(log_root):
    log = log_root.partition("orders").transactional(7).transactional(8).roll().commit(8).data()
    log.write()
    # Nothing of the first segment is looked at.
    (log.path / f"{0:020d}.log").write_bytes(b"\xff" * 200)
    replay = replay_of(log)
    replay.advance_to(4)
    assert replay.transactions.open_or_doubtful() == {7: 0}


def test_snapshots_after_the_offset_do_not_count(log_root):
    log = log_root.partition("orders").transactional(7).roll().abort(7).take_snapshot().write()
    replay = replay_of(log)
    replay.advance_to(1)
    assert replay.transactions.open_or_doubtful() == {7: 0}


def test_empty_control_batches_and_markers_without_data_say_nothing(log_root):
    log = log_root.partition("orders").transactional(7).empty_control(7).abort(8).data().write()
    replay = replay_of(log)
    assert replay.aborted_transactions(4) == []
    assert replay.transactions.open_or_doubtful() == {7: 0}


def test_it_stops_once_everything_below_the_bound_has_ended(log_root):
    log = log_root.partition("orders").transactional(7).data().abort(7).data().transactional(8).data()
    replay = replay_of(log.write())
    assert replay.aborted_transactions(6, 1) == [AbortedTransaction(7, 0, 2, 3)]
    assert replay.is_complete
    assert replay.next_offset == 3


def test_it_does_not_stop_before(log_root):
    log = log_root.partition("orders").transactional(7).data(3).roll().data().abort(7).write()
    replay = replay_of(log)
    assert replay.aborted_transactions(6, 2) == [AbortedTransaction(7, 0, 5, 6)]
    assert not replay.is_complete


def test_a_segment_that_ends_early_hides_markers(log_root):
    log = log_root.partition("orders").transactional(7).roll().data().write(snapshots=False)
    file = log.path / f"{0:020d}.log"
    file.write_bytes(file.read_bytes() + log.segments[0].data[:40])
    with pytest.raises(CorruptRecordError, match=r"first 40 bytes.*isolationLevel=read_uncommitted"):
        replay_of(log).aborted_transactions(2)


def test_a_segment_that_a_live_broker_has_renamed(log_root):
    log = log_root.partition("orders").transactional(7).roll().abort(7).write(snapshots=False)
    replay = replay_of(log)
    file = log.path / f"{0:020d}.log"
    file.rename(f"{file}.deleted")
    assert replay.aborted_transactions(2) == [AbortedTransaction(7, 0, 1, 2)]
    replay = replay_of(log.write(snapshots=False))
    file.unlink()
    (log.path / f"{0:020d}.log.deleted").unlink()
    with pytest.raises(DataLossError, match="Read again"):
        replay.aborted_transactions(2)
