"""Cleaning a log from end to end: what survives, when, and what is written down about it."""

from __future__ import annotations

import os

import pytest

from storage_core import CleanerConfig, ProducerSequence
from storage_core.checkpoint.root_files import CleanerCheckpoint
from storage_core.errors import (
    CorruptRecordError,
    LogClosedError,
    LogFailedError,
    LogReadOnlyError,
    OptionError,
    OutOfOrderSequenceError,
    StorageError,
    UnreadableError,
)
from storage_core.log import local_log as replace_segments
from storage_core.log import log_cleaner
from storage_core.segment.file_records import LogFile
from tests.log.cleaning import compacted, put, records, unfinished_files
from tests.log.logs import NOW_MS, crash, flip, name, open_directory, small, table, unclean

DAY_MS = 86_400_000


@pytest.fixture
def logs(tmp_path, clock):
    with open_directory(tmp_path, clock=clock, config=compacted()) as opened:
        yield opened


@pytest.fixture
def log(logs):
    return logs.create("orders")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "orders-0"


@pytest.fixture
def checkpoint(tmp_path):
    return tmp_path / "cleaner-offset-checkpoint"


def test_the_time_may_be_given(log):
    put(log, "a1", "a")
    log.roll()
    log.clean(now_ms=NOW_MS - DAY_MS)
    put(log, "c1")
    log.roll()
    log.clean(now_ms=NOW_MS)
    assert records(log) == ["2:c=1"]


def test_records_without_a_key_go_and_are_counted(tmp_path, caplog):
    with open_directory(tmp_path, config=small()) as logs:
        log = logs.create("orders")
        log.append(table(b"1", b"2"))
        put(log, "a1")
        log.roll()
    with open_directory(tmp_path, config=compacted()) as logs:
        assert logs.get("orders").clean().invalid_records == 2
        assert records(logs.get("orders")) == ["2:a=1"]
    assert "dropped 2 records without a key" in caplog.text


def test_a_log_that_is_not_to_be_compacted_is_refused(tmp_path):
    with open_directory(tmp_path, config=small()) as logs:
        log = logs.create("orders")
        log.append(table(b"1"))
        log.roll()
        with pytest.raises(OptionError, match=r"compact in cleanup\.policy"):
            log.clean()
        assert logs.clean() == []
        assert records(log) == ["0:=1"]


def test_a_log_that_takes_no_writes_is_not_cleaned(tmp_path, log, logs):
    log.close()
    with pytest.raises(LogClosedError):
        log.clean()
    assert logs.clean() == []
    logs.close()
    with pytest.raises(LogClosedError):
        logs.clean()
    with open_directory(tmp_path, read_only=True, config=compacted()) as reader:
        with pytest.raises(LogReadOnlyError):
            reader.get("orders").clean()
        with pytest.raises(LogReadOnlyError):
            reader.clean()


# -- What is cleaned ------------------------------------------------------------------------------


def test_the_new_segment_is_as_old_as_the_last_one_that_it_replaces(log, path, tmp_path):
    put(log, "a1")
    log.roll()
    put(log, "b1")
    log.roll()
    os.utime(path / name(0), ns=(0, 111_000_000_000))
    os.utime(path / name(1), ns=(0, 222_000_000_000))
    log.clean()
    assert log.segment_base_offsets == (0, 2)
    assert (path / name(0)).stat().st_mtime_ns == 222_000_000_000


def test_files_are_cut_to_what_they_hold(tmp_path):
    with open_directory(tmp_path, config=compacted(preallocate=True)) as logs:
        log = logs.create("orders")
        put(log, "a1", "a2", "a3")
        log.roll()
        log.clean()
        sizes = {
            kind: (tmp_path / "orders-0" / name(0, kind)).stat().st_size
            for kind in ("log", "index", "timeindex")
        }
        # A header of 61 bytes, and a record of 9; one time index entry at the end.
        assert sizes == {"log": 70, "index": 0, "timeindex": 12}
        assert records(log) == ["2:a=3"]


# -- The memory for keys --------------------------------------------------------------------------

# Slots of 24 bytes, of which nine tenths are used: three keys of four slots.
THREE_KEYS = CleanerConfig(dedupe_buffer_size=4 * 24)


def test_a_pass_goes_up_to_where_the_memory_for_keys_is_full(log, checkpoint):
    put(log, "a1", "b1", "a2", "c1", "d1", "a3")
    log.roll()
    statistics = log.clean(THREE_KEYS)
    assert (statistics.start_offset, statistics.end_offset) == (0, 4)
    assert (statistics.map_size, statistics.map_utilization) == (3, 0.75)
    # Later records are kept, and supersede nothing yet.
    assert records(log) == ["1:b=1", "2:a=2", "3:c=1", "4:d=1", "5:a=3"]
    assert checkpoint.read_text() == "0\n1\norders 0 4\n"
    assert log.clean(THREE_KEYS).end_offset == 6
    assert records(log) == ["1:b=1", "3:c=1", "4:d=1", "5:a=3"]
    assert log.clean(THREE_KEYS) is None


def test_a_log_directory_goes_on_until_all_is_clean(logs, log):
    put(log, *(f"{number % 7}{number}" for number in range(40)))
    log.roll()
    passes = logs.clean(THREE_KEYS)
    assert [each.start_offset for each in passes] == [0, *(each.end_offset for each in passes[:-1])]
    assert passes[-1].end_offset == 40 or passes[-1].end_offset < 40
    rest = log.clean(THREE_KEYS)
    while rest is not None:
        rest = log.clean(THREE_KEYS)
    assert records(log) == [f"{number}:{number % 7}={number}" for number in range(33, 40)]


# -- What is written down -------------------------------------------------------------------------


def test_the_numbers_of_a_pass(log, clock):
    put(log, "a1", "b1", "a2")
    log.roll()
    clock.time_ms += 5
    statistics = log.clean()
    # 70 bytes a batch: a header of 61, a record of 9.
    assert (statistics.topic, statistics.partition) == ("orders", 0)
    assert (statistics.map_records_read, statistics.map_bytes_read, statistics.map_size) == (3, 210, 2)
    assert (statistics.records_before, statistics.bytes_read) == (3, 210)
    assert (statistics.records_after, statistics.bytes_written) == (2, 140)
    assert (statistics.segments_before, statistics.segments_after) == (1, 1)
    assert statistics.started_ms == statistics.map_built_ms == statistics.ended_ms == NOW_MS + 5
    assert str(statistics).startswith("Cleaned orders-0 from offset 0 to 3 in 0 ms")


def test_the_checkpoint_is_that_of_a_broker_and_is_kept(tmp_path, log, logs, checkpoint):
    put(log, "a1", "a2")
    log.roll()
    put(log, "a3")
    log.clean()
    assert checkpoint.read_text() == "0\n1\norders 0 2\n"
    logs.close()
    with open_directory(tmp_path, config=compacted()) as again:
        assert again.get("orders").clean() is None


@pytest.mark.parametrize("offset", [1, 100], ids=["below the log start", "beyond the log end"])
def test_a_checkpoint_that_cannot_be_is_set_right(tmp_path, log, logs, checkpoint, caplog, offset):
    put(log, "a1", "b1", "c1", "c2")
    log.roll()
    log.delete_records(2)
    logs.close()
    checkpoint.write_text(f"0\n1\norders 0 {offset}\n")
    with open_directory(tmp_path, config=compacted(min_cleanable_dirty_ratio=1)) as again:
        assert again.clean() == []
        assert checkpoint.read_text() == "0\n1\norders 0 2\n"
    assert f"found {offset}" in caplog.text


def clean_again_and_again(log, clock):
    for number in range(3):
        put(log, f"{number}1")
        log.roll()
        log.clean()
        clock.time_ms += 2 * DAY_MS


def test_what_is_written_after_a_truncation_counts_as_dirty_whatever_the_policy_was(tmp_path, clock):
    with open_directory(tmp_path, clock=clock, config=compacted()) as logs:
        log = logs.create("orders")
        put(log, "a1")
        log.roll()
        put(log, "b1", "c1", "d1")
        log.roll()
        log.clean()
    with open_directory(tmp_path, clock=clock, config=small()) as logs:
        log = logs.get("orders")
        log.truncate_to(1)
        put(log, "a", "x1", "y1", "z1")
        log.roll()
    with open_directory(tmp_path, clock=clock, config=compacted()) as logs:
        log = logs.get("orders")
        clean_again_and_again(log, clock)
        # The null value is gone, and what it deleted is not back.
        assert records(log) == ["2:x=1", "3:y=1", "4:z=1", "5:0=1", "6:1=1", "7:2=1"]


def test_what_is_written_after_a_recovery_that_cost_records_counts_as_dirty(tmp_path, clock, path):
    with open_directory(tmp_path, clock=clock, config=compacted()) as logs:
        log = logs.create("orders")
        put(log, "a1")
        first_bytes = (path / name(0)).stat().st_size
        put(log, "b1", "c1", "d1")
        log.roll()
        log.clean()
    unclean(tmp_path)
    os.truncate(path / name(0), first_bytes)
    for each in path.glob(name(4, "*")):
        each.unlink()
    with open_directory(tmp_path, clock=clock, config=compacted(), recovery="kafka") as logs:
        log = logs.get("orders")
        assert log.log_end_offset == 1
        put(log, "a", "x1", "y1", "z1")
        log.roll()
        clean_again_and_again(log, clock)
        assert records(log) == ["2:x=1", "3:y=1", "4:z=1", "5:0=1", "6:1=1", "7:2=1"]


# -- Which log, and when --------------------------------------------------------------------------


def test_the_dirtiest_log_is_cleaned_first(logs):
    for topic, clean, dirty in [("few", 4, 5), ("all", 0, 2), ("more", 2, 8)]:
        log = logs.create(topic)
        if clean:
            put(log, *(f"{number}1" for number in range(clean)))
            log.roll()
            log.clean()
        put(log, *(f"{number}2" for number in range(dirty)))
        log.roll()
    assert [each.topic for each in logs.clean()] == ["all", "more", "few"]


def test_compacted_logs_with_the_word_delete_get_retention_too(tmp_path, clock):
    config = compacted(cleanup_policy="compact,delete", retention_ms=1000)
    with open_directory(tmp_path, clock=clock, config=config) as logs:
        log = logs.create("orders")
        put(log, "a1", "b1", "a2")
        log.roll()
        clock.time_ms += 1001
        put(log, "a3", "c1", "a4")
        log.roll()
        (statistics,) = logs.clean()
        # Joined, they are as young as the younger one. So only the records that are superseded go.
        assert statistics.segments_after == 1
        assert records(log) == ["1:b=1", "4:c=1", "5:a=4"]
        clock.time_ms += 1001
        assert logs.clean() == []
        assert records(log) == []
        assert log.log_start_offset == 6


# -- Producers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_snapshots", [True, False])
def test_a_producer_is_known_again_when_all_of_its_records_are_gone(tmp_path, log, logs, path, has_snapshots):
    sent = {"records": table(b"1", b"2", keys=[b"a", b"b"]), "producer": ProducerSequence(7, 0, 0)}
    log.append(**sent)
    put(log, "a2", "b3")
    log.roll()
    log.clean()
    assert records(log) == ["2:a=2", "3:b=3"]
    assert log.append(**sent).is_duplicate
    crash(logs)
    if not has_snapshots:
        for snapshot in path.glob("*.snapshot"):
            snapshot.unlink()
    with open_directory(tmp_path, config=compacted()) as again:
        log = again.get("orders")
        info = log.append(**sent)
        assert (info.is_duplicate, info.first_offset, info.last_offset) == (True, 0, 1)
        with pytest.raises(OutOfOrderSequenceError):
            log.append(table(b"9", keys=[b"z"]), producer=ProducerSequence(7, 0, 5))
        assert log.append(table(b"9", keys=[b"z"]), producer=ProducerSequence(7, 0, 2)).first_offset == 4


# -- What goes wrong ------------------------------------------------------------------------------


@pytest.fixture
def damaged(logs, log, path):
    """Return a batch with a wrong CRC in the first segment; another log that is all right."""
    put(log, "a1", "a2")
    log.roll()
    other = logs.create("payments")
    put(other, "a1", "a2")
    other.roll()
    flip(path / name(0), 65)
    return log


def test_a_damaged_segment_is_an_error_and_nothing_has_changed(damaged, path):
    before = (path / name(0)).read_bytes()
    with pytest.raises(CorruptRecordError):
        damaged.clean()
    assert (path / name(0)).read_bytes() == before
    assert unfinished_files(path) == []
    # The log is as good as it was.
    assert put(damaged, "a3").last_offset == 2


def test_a_damaged_log_is_left_alone_and_the_others_are_cleaned(damaged, logs, caplog):
    assert [each.topic for each in logs.clean()] == ["payments"]
    assert "orders-0 is no longer cleaned" in caplog.text
    caplog.clear()
    assert logs.clean() == []
    assert caplog.text == ""


def test_a_full_disk_is_an_error_and_the_log_goes_on(damaged, logs, path, monkeypatch, tmp_path):
    flip(path / name(0), 65)
    real = LogFile.write

    def write(self, pieces, size_bytes):
        if self.path.endswith("orders-0/" + name(0, "log.cleaned")):
            raise StorageError("No space is left on the device.", path=self.path)
        real(self, pieces, size_bytes)

    with monkeypatch.context() as patch:
        patch.setattr(LogFile, "write", write)
        with pytest.raises(StorageError, match="No space"):
            logs.clean()
        assert records(logs.get("payments")) == ["1:a=2"]
    assert unfinished_files(path) == []
    assert records(damaged) == ["0:a=1", "1:a=2"]
    put(damaged, "b1")
    assert [each.topic for each in logs.clean()] == ["orders"]
    assert records(damaged) == ["1:a=2", "2:b=1"]


def test_a_file_that_cannot_be_opened_just_now_is_tried_again(damaged, logs, path, monkeypatch):
    flip(path / name(0), 65)
    real = log_cleaner.find_log_to_clean

    def look(state, now_ms):
        if state.path == str(path):
            raise UnreadableError("Too many files are open in this process.", path=state.path)
        return real(state, now_ms)

    with monkeypatch.context() as patch:
        patch.setattr(log_cleaner, "find_log_to_clean", look)
        with pytest.raises(UnreadableError, match="Too many files"):
            logs.clean()
    assert records(logs.get("payments")) == ["1:a=2"]
    assert [each.topic for each in logs.clean()] == ["orders"]


def test_what_an_earlier_cleaning_left_is_no_hindrance(log, path):
    put(log, "a1", "a2")
    log.roll()
    for kind in ("log", "index", "timeindex", "txnindex"):
        (path / name(0, f"{kind}.cleaned")).write_bytes(b"left over" * 100)
    log.clean()
    assert records(log) == ["1:a=2"]
    assert unfinished_files(path) == []


def test_a_replacement_that_fails_is_an_error(log, logs, monkeypatch):
    put(log, "a1", "a2")
    log.roll()

    def rename(*arguments):
        raise StorageError("Input/output error.")

    monkeypatch.setattr(replace_segments, "rename_files", rename)
    with pytest.raises(StorageError, match="Input/output"):
        logs.clean()
    with pytest.raises(LogFailedError):
        put(log, "a3")


def test_a_checkpoint_that_cannot_be_written_is_an_error(log, logs, monkeypatch):
    put(log, "a1", "a2")
    log.roll()

    def update(self, *arguments):
        raise StorageError("No space is left on the device.")

    with monkeypatch.context() as patch:
        patch.setattr(CleanerCheckpoint, "update", update)
        with pytest.raises(StorageError):
            log.clean()
    # The segments are replaced; the next pass finds nothing that it could drop.
    assert records(log) == ["1:a=2"]
    assert log.clean().records_before == 1
    assert put(log, "a3").last_offset == 2


# -- Afterwards -----------------------------------------------------------------------------------


def test_indexes_lead_to_what_is_left(tmp_path):
    config = compacted(internal_segment_bytes=100_000, index_interval_bytes=200)
    with open_directory(tmp_path, config=config) as logs:
        log = logs.create("orders")
        for number in range(200):
            log.append(table(b"v", keys=[b"%d" % (number % 60)], timestamps=[NOW_MS + number]))
        log.roll()
        log.clean()
        kept = range(140, 200)
        assert records(log) == [f"{number}:{number % 60}=v" for number in kept]
        for number in kept:
            assert records(log, start_offset=number, end_offset=number + 1) == [f"{number}:{number % 60}=v"]
            assert log.offset_for_timestamp(NOW_MS + number).offset == number


def test_who_reads_the_files_alone_misses_no_key(tmp_path, log):
    put(log, "a1", "b1")
    log.roll()
    put(log, "a2")
    log.roll()
    log.clean()
    with open_directory(tmp_path, read_only=True) as beside:
        found = records(beside.get("orders"), isolation_level="read_committed")
    # The old value is gone: then the new one has to count as committed.
    assert found == ["1:b=1", "2:a=2"]
