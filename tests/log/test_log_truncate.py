"""Removing records from either end: truncation, deleted records, and the files that go with them."""

from __future__ import annotations

import contextlib
import errno
import threading
from functools import partial

import pytest

from storage_core import read_table
from storage_core.check.verify import plan_verification, verify
from storage_core.checkpoint import (
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
)
from storage_core.checkpoint.truncations_file import TRUNCATIONS_FILE
from storage_core.errors import (
    DataLossError,
    LogTruncationError,
    OffsetOutOfRangeError,
    OptionError,
    SegmentLogError,
    StorageError,
)
from storage_core.filesystem import FileSystem
from storage_core.log.local_log import create_segment
from storage_core.options import options_of
from storage_core.segment.log_segment import LogSegment
from tests.faults.observed_filesystem import ObservedFileSystem
from tests.log.logs import (
    Clock,
    append,
    contents,
    crash,
    names,
    offsets,
    open_directory,
    small,
    table,
    value,
)
from tests.log.producing import data, transactional


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def logs(tmp_path, clock):
    with open_directory(tmp_path, clock=clock) as opened:
        yield opened


@pytest.fixture
def log(logs):
    log = logs.create("orders")
    append(log, 35, timestamps=range(100, 3600, 100))
    assert log.segment_base_offsets == (0, 10, 20, 30)
    return log


@pytest.mark.parametrize("target", [35, 36, 1000])
def test_truncating_at_the_log_end_or_after_it_changes_nothing(log, target):
    assert log.truncate_to(target) is False
    assert (log.log_end_offset, log.high_watermark) == (35, 35)
    assert offsets(log) == list(range(35))


@pytest.mark.parametrize("target", [34, 31, 30, 29, 15, 10, 1, 0])
def test_the_log_ends_at_the_target_and_goes_on_there(log, target):
    assert log.truncate_to(target) is True
    assert (log.log_end_offset, log.high_watermark) == (target, target)
    assert offsets(log) == list(range(target))
    assert log.segment_base_offsets == tuple(base for base in (0, 10, 20, 30) if base <= target)
    assert append(log, 12).last_offset == target + 11
    assert offsets(log) == list(range(target + 12))
    found = log.offset_for_timestamp(50)
    assert found is not None
    assert found.offset == 0


def test_a_batch_goes_as_a_whole_and_the_log_ends_at_the_target_all_the_same(logs):
    log = logs.create("batches")
    log.append(table(*map(value, range(5))))
    log.append(table(*map(value, range(5, 10))))
    log.truncate_to(7)
    assert log.log_end_offset == 7
    assert offsets(log) == [0, 1, 2, 3, 4]
    append(log, 2)
    assert offsets(log) == [0, 1, 2, 3, 4, 7, 8]


def test_truncating_in_a_gap_removes_what_is_after_it(logs):
    log = logs.create("gaps")
    log.append_batches(data(0) + data(10))
    log.truncate_to(5)
    assert (log.log_end_offset, offsets(log)) == (5, [0])


def checkpointed(root):
    """Return the recovery point and the high watermark of batches-0 on disk."""
    names = (RECOVERY_POINT_CHECKPOINT, REPLICATION_OFFSET_CHECKPOINT)
    return tuple(read_offset_checkpoint(FileSystem(), str(root / name))["batches", 0] for name in names)


class TestCheckpointsOfATruncationWithinABatch:
    """They end with the last batch that is left: files say no more of the log's end."""

    @pytest.fixture
    def log(self, logs):
        log = logs.create("batches")
        log.append(table(*map(value, range(5))))
        log.append(table(*map(value, range(5, 10))), acks="all")
        return log

    def test_before_a_byte_goes(self, log, logs, tmp_path, monkeypatch):
        found = []
        truncate_to = LogSegment.truncate_to

        def look(self, offset, **named):
            found.append(checkpointed(tmp_path))
            return truncate_to(self, offset, **named)

        logs.checkpoint()
        assert checkpointed(tmp_path) == (10, 10)
        monkeypatch.setattr(LogSegment, "truncate_to", look)
        log.truncate_to(7)
        log.truncate_to(6)
        assert found == [(5, 5), (5, 5)]

    def test_in_a_gap(self, logs, tmp_path):
        log = logs.create("batches")
        log.append_batches(data(0) + data(10), flush=True)
        log.update_high_watermark(11)
        log.truncate_to(5)
        assert checkpointed(tmp_path) == (1, 1)

    def test_until_what_is_appended_is_flushed(self, log, logs, tmp_path):
        log.truncate_to(7)
        log.flush()
        assert log.recovery_point == 5
        append(log, 1)
        logs.checkpoint()
        assert checkpointed(tmp_path) == (5, 8)
        log.flush()
        logs.checkpoint()
        assert checkpointed(tmp_path) == (8, 8)

    def test_a_new_segment_says_where_the_log_goes_on(self, log, logs, tmp_path):
        log.truncate_to(7)
        log.roll()
        log.flush()
        logs.checkpoint()
        assert checkpointed(tmp_path) == (7, 7)

    @pytest.mark.parametrize("is_closed", [True, False])
    def test_the_next_process_goes_on_without_a_word(self, log, logs, tmp_path, is_closed, caplog):
        log.truncate_to(7)
        if is_closed:
            logs.close()
            assert checkpointed(tmp_path) == (5, 5)
            plan = plan_verification(FileSystem(), options_of([str(tmp_path)], {}))
            assert verify(FileSystem(), plan).verdict == "sound"
        else:
            crash(logs)
        with caplog.at_level("WARNING"):
            assert read_table(str(tmp_path)).num_rows == 5
            with open_directory(tmp_path) as again:
                assert again.get("batches").log_end_offset == 5
        assert not caplog.text


def test_truncating_below_the_first_segment_empties_the_log(log):
    log.delete_records(25)
    assert log.segment_base_offsets == (20, 30)
    log.truncate_to(15)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (15, 15, 15)
    assert log.segment_base_offsets == (15,)
    append(log)
    assert offsets(log) == [15]


def test_truncating_below_the_log_start_lowers_it(log):
    log.delete_records(25)
    log.truncate_to(22)
    assert (log.log_start_offset, log.log_end_offset) == (22, 22)
    assert offsets(log) == []


def test_truncating_fully_starts_anew(log):
    append(log, leader_epoch=3)
    log.truncate_fully_and_start_at(100)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (100, 100, 100)
    assert log.segment_base_offsets == (100,)
    assert log.leader_epochs == ()
    append(log, 2)
    assert offsets(log) == [100, 101]


def test_epochs_after_the_end_and_before_the_start_are_forgotten(log):
    append(log, leader_epoch=2)
    append(log, leader_epoch=4)
    assert [(each.epoch, each.start_offset) for each in log.leader_epochs] == [(0, 0), (2, 35), (4, 36)]
    log.truncate_to(36)
    assert [(each.epoch, each.start_offset) for each in log.leader_epochs] == [(0, 0), (2, 35)]
    log.delete_records(12)
    assert [(each.epoch, each.start_offset) for each in log.leader_epochs] == [(0, 12), (2, 35)]
    log.delete_records(35)
    assert [(each.epoch, each.start_offset) for each in log.leader_epochs] == [(2, 35)]


def test_after_a_truncation_the_active_indexes_have_their_full_size_again(logs, tmp_path):
    log = logs.create("indexed", config=small(segment_index_bytes=1000))
    append(log, 25)
    log.truncate_to(15)
    path = tmp_path / "indexed-0"
    assert (path / "00000000000000000010.index").stat().st_size == 1000
    assert (path / "00000000000000000010.timeindex").stat().st_size == 996
    assert (path / "00000000000000000000.index").stat().st_size < 100
    log.roll()
    assert (path / "00000000000000000010.index").stat().st_size < 100


@pytest.mark.parametrize(("target", "stable"), [(4, 2), (3, 2), (2, 2), (1, 1), (0, 0)])
def test_a_transaction_that_begins_after_the_end_is_open_no_more(logs, target, stable):
    log = logs.create("transactions")
    log.append_batches(data(0, 2) + transactional(2, producer=7, sequence=0) + data(3, 2))
    log.update_high_watermark(5)
    assert log.last_stable_offset == 2
    log.truncate_to(target)
    assert log.last_stable_offset == stable
    is_open = target > 2
    assert [each.producer_id for each in log.open_transactions()] == [7] * is_open
    # What comes next is stable at once, unless the transaction is still open.
    log.append_batches(data(log.log_end_offset, 2))
    log.update_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == (2 if is_open else log.log_end_offset)


@pytest.mark.parametrize("target", [-1, 2**63 - 1])
def test_no_offset_of_a_record_is_no_target(log, target):
    with pytest.raises(OptionError, match=f"found {target}"):
        log.truncate_to(target)
    with pytest.raises(OptionError, match=f"found {target}"):
        log.truncate_fully_and_start_at(target)
    assert offsets(log) == list(range(35))


def test_deleted_records_are_gone_from_reads_at_once(log):
    assert log.delete_records(13) == 13
    assert (log.log_start_offset, log.segment_base_offsets) == (13, (10, 20, 30))
    assert offsets(log) == list(range(13, 35))
    with pytest.raises(OffsetOutOfRangeError):
        log.read(12)
    assert log.offset_for_timestamp(0).offset == 13


def test_deleting_all_records_keeps_the_log_end(log):
    assert log.delete_records(-1) == 35
    assert (log.log_start_offset, log.log_end_offset) == (35, 35)
    # The active segment stays, with records that do not count any more.
    assert log.segment_base_offsets == (30,)
    assert offsets(log) == []
    append(log)
    assert offsets(log) == [35]


def test_no_record_above_the_high_watermark_is_deleted(log):
    log.update_high_watermark(20)
    with pytest.raises(OffsetOutOfRangeError, match="at most 20, the high watermark, found 21"):
        log.delete_records(21)
    assert log.delete_records(20) == 20


def test_deleted_records_stay_deleted_after_a_crash(log, logs, tmp_path):
    log.flush()
    log.delete_records(13)
    crash(logs)
    with open_directory(tmp_path) as again:
        assert again.get("orders").log_start_offset == 13
        assert offsets(again.get("orders")) == list(range(13, 35))
    logs._checkpoints.states.clear()


def test_removed_files_wait_for_their_time(log, clock, tmp_path):
    path = tmp_path / "orders-0"
    log.delete_records(13)
    deleted = [name for name in names(path) if name.endswith(".deleted")]
    assert deleted == [
        "00000000000000000000.index.deleted",
        "00000000000000000000.log.deleted",
        "00000000000000000000.timeindex.deleted",
    ]
    clock.time_ms += 59_999
    log.flush()
    assert [name for name in names(path) if name.endswith(".deleted")] == deleted
    clock.time_ms += 1
    log.flush()
    assert [name for name in names(path) if name.endswith(".deleted")] == []


def test_a_reader_that_had_begun_goes_on_in_a_removed_segment(log):
    batches = log.read(columns=["offset"])
    first = next(batches)["offset"].to_pylist()
    log.delete_records(25)
    rest = [offset for batch in batches for offset in batch["offset"].to_pylist()]
    assert first + rest == list(range(35))


def test_the_recovery_point_on_disk_is_lowered_before_a_file_is_cut(log, tmp_path, monkeypatch):
    # Records that are appended later would count as flushed.
    log.flush()
    before = contents(tmp_path / "orders-0")

    def fail():
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(log._state, "checkpoint", fail)
    with pytest.raises(OSError, match="No space"):
        log.truncate_to(13)
    assert contents(tmp_path / "orders-0") == before


def test_while_a_log_begins_anew_a_checkpoint_tells_where(log, tmp_path, monkeypatch):
    # No file name does: the old segments are gone, and the new one is not there yet.
    seen = []

    def create_segment_later(state, base_offset):
        seen.append((tmp_path / "log-start-offset-checkpoint").read_text())
        return create_segment(state, base_offset)

    monkeypatch.setattr("storage_core.log.local_log.create_segment", create_segment_later)
    log.delete_records(25)
    log.truncate_fully_and_start_at(10)
    log.truncate_fully_and_start_at(1000)
    assert seen == ["0\n1\norders 0 10\n", "0\n1\norders 0 1000\n"]


def transact(log, *, rolls=True) -> None:
    """Write an aborted and a committed transaction, whose markers have the offsets 8 and 9."""
    append(log, 3)
    aborted, committed = log.transaction(1), log.transaction(2)
    aborted.append(table(value(3), value(4)))
    committed.append(table(value(5), value(6)))
    if rolls:
        log.roll()
    append(log)
    aborted.abort()
    committed.commit()


class Undecided:
    """A log with two transactions, and four rows after them."""

    def __init__(self, path, filesystem) -> None:
        self.filesystem = filesystem
        self.logs = open_directory(path, filesystem=filesystem)
        self.log = self.logs.create("orders")
        transact(self.log)
        self.log.roll()
        append(self.log, 4)

    @property
    def committed(self) -> list[int]:
        return offsets(self.log, isolation_level="read_committed")


BEFORE = [0, 1, 2, 5, 6, 7, 10, 11, 12, 13]
AFTER = {5: [0, 1, 2], 8: [0, 1, 2], 9: [0, 1, 2], 12: [0, 1, 2, 5, 6, 7, 10, 11]}


@pytest.mark.parametrize("target", AFTER)
def test_a_reader_beside_a_truncation_meets_no_transaction_whose_marker_goes(tmp_path, target):
    """Look in front of each call of the truncation."""
    undecided = Undecided(tmp_path, ObservedFileSystem())
    assert undecided.committed == BEFORE
    calls, found = [], []

    def look(call) -> None:
        undecided.filesystem.tell = None
        calls.append(call)
        with contextlib.suppress(LogTruncationError):
            found.append(undecided.committed)
        undecided.filesystem.tell = look

    undecided.filesystem.tell = look
    undecided.log.truncate_to(target)
    undecided.filesystem.tell = None
    assert len(calls) > 5
    for each in found:
        assert each in (BEFORE, AFTER[target])
    assert undecided.committed == AFTER[target]
    undecided.logs.close()


@pytest.mark.thorough
@pytest.mark.parametrize("target", AFTER)
def test_a_truncation_that_failed_shows_no_transaction_whose_marker_went(tmp_path, target):
    """Let each of its calls fail once."""
    at, is_done = 0, False
    while not is_done:
        at += 1
        undecided = Undecided(tmp_path / str(at), ObservedFileSystem())
        calls = []

        def fail(call, calls=calls, at=at) -> None:
            calls.append(call)
            if len(calls) == at:
                raise OSError(errno.EIO, "the disk does not answer")

        undecided.filesystem.tell = fail
        with contextlib.suppress(OSError, StorageError):
            undecided.log.truncate_to(target)
        is_done = len(calls) < at
        undecided.filesystem.tell = None
        try:
            found = undecided.committed
        except SegmentLogError:
            # Nothing was returned.
            found = []
        allowed = set(AFTER[target]) if is_done else set(BEFORE)
        assert set(found) <= allowed, calls[-1]
        crash(undecided.logs)
    assert at > 5


class Stepwise:
    """A truncation in a thread, which stops in front of some of its calls until it is told to go on."""

    def __init__(self, path, write, truncate, stops=()) -> None:
        filesystem = ObservedFileSystem()
        self.logs = open_directory(path, filesystem=filesystem)
        self.log = self.logs.create("orders")
        write(self.log)
        self.calls = []
        self._truncate, self._stops = truncate, stops
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run)
        filesystem.tell = self._tell
        self._thread.start()
        self._stopped.acquire()

    def go_on(self) -> None:
        """Let it run until its next stop, or its end."""
        self._go.release()
        self._stopped.acquire()

    def close(self) -> None:
        while self._thread.is_alive():
            self._go.release()
            self._thread.join(0.01)
        self.logs.close()

    def _run(self) -> None:
        self._truncate(self.log)
        self._stopped.release()

    def _tell(self, call) -> None:
        if threading.current_thread() is self._thread:
            self.calls.append(call)
            if len(self.calls) - 1 in self._stops:
                self._stopped.release()
                self._go.acquire()


def reads_within_a_truncation(path, write, truncate, **options):
    """Read a log during a truncation that overtakes the read, once for each call that the read makes.

    Each read begins after the truncation is announced. The truncation goes on at that call, up to just before it notes
    its end.

    Yields:
        The offsets that were read, or None if the read failed with `DataLossError`; and the call.
    """
    whole = Stepwise(path / "whole", write, truncate)
    notes = [number for number, call in enumerate(whole.calls) if call.endswith(TRUNCATIONS_FILE)]
    writes = [number for number, call in enumerate(whole.calls) if call.startswith("open_for_writing")]
    begin, end = notes[0] + 2, max(set(notes) & set(writes))
    whole.close()
    at, is_done = 0, False
    while not is_done:
        at += 1
        root = path / str(at)
        truncation = Stepwise(root, write, truncate, (begin, end))
        filesystem, calls = ObservedFileSystem(), []

        def overtake(call, calls=calls, at=at, truncation=truncation) -> None:
            calls.append(call)
            if len(calls) == at:
                truncation.go_on()

        filesystem.tell = overtake
        try:
            rows = read_table(root, filesystem=filesystem, columns=["offset"], **options)
            found = rows["offset"].to_pylist()
        except DataLossError:
            found = None
        is_done = len(calls) < at
        truncation.close()
        yield found, calls[min(at, len(calls)) - 1]


def test_a_read_that_begins_and_ends_in_a_truncation_loses_nothing_before_what_it_gives(tmp_path):
    """See later segments before they are deleted, and the segment with the new end after it is cut."""
    outcomes = set()
    reads = reads_within_a_truncation(tmp_path, lambda log: append(log, 35), lambda log: log.truncate_to(14))
    for found, call in reads:
        assert found is None or found == list(range(len(found))), call
        outcomes.add(None if found is None else len(found))
    assert {None, 14, 35} <= outcomes


COMMITTED = {"isolation_level": "read_committed"}


@pytest.mark.parametrize(
    ("rolls", "mode"),
    [
        (True, "FAILFAST"),
        pytest.param(False, "FAILFAST", marks=pytest.mark.thorough),
        pytest.param(False, "PERMISSIVE", marks=pytest.mark.thorough),
        pytest.param(True, "DROPMALFORMED", marks=pytest.mark.thorough),
    ],
)
def test_a_read_that_begins_and_ends_in_a_truncation_of_markers_returns_no_aborted_row(tmp_path, rolls, mode):
    """Find the last stable offset by both markers. The abort marker may be gone when the read looks again."""
    outcomes = []
    write = partial(transact, rolls=rolls)
    reads = reads_within_a_truncation(tmp_path, write, lambda log: log.truncate_to(8), mode=mode, **COMMITTED)
    for found, call in reads:
        assert found in (None, [0, 1, 2], [0, 1, 2, 5, 6, 7]), call
        outcomes.append(found)
    assert [0, 1, 2] in outcomes
    assert [0, 1, 2, 5, 6, 7] in outcomes


@pytest.mark.parametrize(
    ("offset", "options"),
    [
        (7, COMMITTED),
        pytest.param(7, {}, marks=pytest.mark.thorough),
        pytest.param(0, COMMITTED, marks=pytest.mark.thorough),
        pytest.param(0, {}, marks=pytest.mark.thorough),
    ],
)
def test_a_read_that_begins_and_ends_in_a_full_truncation_takes_no_new_segment_for_an_old_one(
    tmp_path, offset, options
):
    """Give the only new segment the name of one of the old ones, which the read still finds as deleted ones."""

    def write(log) -> None:
        transact(log)
        log.roll()
        append(log, 2)

    before = [0, 1, 2, 5, 6, 7, 10, 11] if options else [*range(8), 10, 11]
    outcomes = []
    reads = reads_within_a_truncation(
        tmp_path, write, lambda log: log.truncate_fully_and_start_at(offset), **options
    )
    for found, call in reads:
        assert found in (None, [], before), call
        outcomes.append(found)
    assert [] in outcomes
    assert before in outcomes
