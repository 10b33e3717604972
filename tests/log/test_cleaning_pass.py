"""A pass beside whatever else happens to the log: that goes on, or the pass gives up; never both at the same bytes."""

from __future__ import annotations

import threading
from functools import partial
from itertools import count

import pytest

import storage_core
from storage_core import CleanerConfig
from storage_core.errors import BatchTooLargeError, LogFailedError
from storage_core.filesystem import FileSystem
from storage_core.log import local_log as replace_segments
from storage_core.log import log_cleaner
from storage_core.log.log_cleaner import Throttle
from storage_core.scan import parse_read_options, plan_scan, read_task, record_schema
from storage_core.scan import plan as plan_module
from storage_core.scan.offset_ranges import locate_spans
from tests.log.cleaning import compacted, meanwhile, put, records, unfinished_files
from tests.log.logs import MARKER, names, open_directory, table

BEFORE = ["0:a=1", "1:b=1", "2:a=2", "3:c=1", "4:a=3"]


@pytest.fixture
def logs(tmp_path, clock):
    with open_directory(tmp_path, clock=clock, config=compacted()) as opened:
        yield opened


@pytest.fixture
def log(logs):
    """Return two closed segments that are to be cleaned, and an active one."""
    log = logs.create("orders")
    put(log, "a1", "b1")
    log.roll()
    put(log, "a2", "c1")
    log.roll()
    put(log, "a3")
    return log


@pytest.fixture
def path(tmp_path, log):
    return tmp_path / "orders-0"


def clean_while(log, monkeypatch, happens):
    with meanwhile(monkeypatch, happens):
        return log.clean()


def test_appends_and_reads_go_on(log, monkeypatch, path):
    seen = []

    def happens():
        put(log, "b2", "d1")
        seen.extend(records(log))

    assert clean_while(log, monkeypatch, happens) is not None
    assert seen == [*BEFORE, "5:b=2", "6:d=1"]
    # What came later is for the next pass.
    assert records(log) == ["1:b=1", "2:a=2", "3:c=1", "4:a=3", "5:b=2", "6:d=1"]


def test_a_batch_beyond_the_limit_is_cleaned_once_the_limit_is_raised(tmp_path, clock):
    with open_directory(tmp_path, clock=clock, config=compacted(compression_type="zstd")) as logs:
        log = logs.create("orders")
        for _ in range(2):
            log.append(table(b"x" * 5_000, keys=[b"k"]))
            log.roll()
        with pytest.raises(BatchTooLargeError, match="raise maxDecompressedBatchBytes"):
            log.clean(CleanerConfig(max_decompressed_batch_bytes=1_000))
        log.clean(CleanerConfig(max_decompressed_batch_bytes="6000"))
        assert [offset for batch in log.read() for offset in batch.column("offset").to_pylist()] == [1]


def test_rolls_go_on(log, monkeypatch):
    def happens():
        log.roll()
        put(log, "a4")
        log.roll()

    assert clean_while(log, monkeypatch, happens).end_offset == 4
    assert log.segment_base_offsets == (0, 4, 5, 6)
    log.clean()
    assert records(log) == ["1:b=1", "3:c=1", "5:a=4"]


def test_another_thread_appends_while_the_lock_is_not_held(log, monkeypatch):
    def happens():
        thread = threading.Thread(target=put, args=(log, "a9"))
        thread.start()
        thread.join(300)
        assert not thread.is_alive()

    assert clean_while(log, monkeypatch, happens) is not None
    assert records(log)[-1] == "5:a=9"


@pytest.mark.parametrize("offset", [4, 3, 2, 1, 0])
def test_a_truncation_makes_it_give_up(log, monkeypatch, path, offset):
    assert clean_while(log, monkeypatch, lambda: log.truncate_to(offset)) is None
    assert records(log) == BEFORE[:offset]
    assert unfinished_files(path) == []
    put(log, "a8", "a9")
    log.roll()
    log.clean()
    kept = [each for each in BEFORE[:offset] if ":a=" not in each]
    assert records(log) == [*kept, f"{offset + 1}:a=9"]


def test_a_truncation_with_appends_after_it_makes_it_give_up(log, monkeypatch, path):
    """The log ends where it did, and every segment still exists; but one holds other bytes."""

    def happens():
        log.truncate_to(3)
        put(log, "x1", "x2")

    assert clean_while(log, monkeypatch, happens) is None
    assert records(log) == [*BEFORE[:3], "3:x=1", "4:x=2"]
    assert unfinished_files(path) == []


def test_a_truncation_between_the_look_at_a_log_and_its_cleaning_makes_it_give_up(log, monkeypatch, path):
    """What was going to be cleaned is the active segment now."""
    look = log_cleaner.find_log_to_clean

    def look_and_truncate(*arguments):
        found = look(*arguments)
        log.truncate_to(3)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(log_cleaner, "find_log_to_clean", look_and_truncate)
        assert log.clean() is None
    assert log.recovery_point <= 3
    put(log, "x1")
    assert records(log) == [*BEFORE[:3], "3:x=1"]
    assert unfinished_files(path) == []


def test_a_full_truncation_makes_it_give_up(log, monkeypatch, path):
    assert clean_while(log, monkeypatch, lambda: log.truncate_fully_and_start_at(100)) is None
    assert records(log) == []
    assert log.segment_base_offsets == (100,)
    assert unfinished_files(path) == []


def test_deleted_records_make_it_give_up_if_a_segment_is_gone(log, monkeypatch, path):
    assert clean_while(log, monkeypatch, lambda: log.delete_records(2)) is None
    assert records(log) == BEFORE[2:]
    assert log.segment_base_offsets == (2, 4)
    assert unfinished_files(path) == []


def test_deleted_records_within_a_segment_are_no_hindrance(log, monkeypatch):
    assert clean_while(log, monkeypatch, lambda: log.delete_records(1)) is not None
    assert log.log_start_offset == 1
    assert records(log) == ["1:b=1", "2:a=2", "3:c=1", "4:a=3"]


def test_a_log_that_fails_is_not_changed_any_more(log, monkeypatch, path):
    before = {}

    def happens():
        before.update((each.name, each.read_bytes()) for each in path.glob("*.log"))
        log._state.failure = OSError("as if a flush had failed")

    with meanwhile(monkeypatch, happens), pytest.raises(LogFailedError):
        log.clean()
    assert {each.name: each.read_bytes() for each in path.glob("*.log")} == before
    assert unfinished_files(path) == []
    assert records(log) == BEFORE


def closing(close, log):
    """Let another thread close, up to where it waits for the cleaning."""
    thread = threading.Thread(target=close)

    def happens():
        thread.start()
        while not log._state.cleaning.is_stopped:
            assert thread.is_alive()
        assert not log._state.is_closed

    return thread, happens


def test_closing_the_log_directory_waits_until_it_has_given_up(logs, log, monkeypatch, path, tmp_path):
    thread, happens = closing(logs.close, log)
    assert clean_while(log, monkeypatch, happens) is None
    thread.join(300)
    assert not thread.is_alive()
    assert MARKER in names(tmp_path)
    assert unfinished_files(path) == []
    with open_directory(tmp_path, config=compacted()) as again:
        assert records(again.get("orders")) == BEFORE


def test_closing_the_log_waits_until_it_has_given_up(log, monkeypatch, path):
    thread, happens = closing(log.close, log)
    assert clean_while(log, monkeypatch, happens) is None
    thread.join(300)
    assert not thread.is_alive()
    assert unfinished_files(path) == []


def test_closing_does_not_wait_for_a_slow_rate(logs, log, monkeypatch):
    waits, slept = threading.Event(), []

    def sleep(seconds):
        slept.append(seconds)
        waits.set()

    # A second goes by at each look at the clock; what there is to be read takes days.
    slow = partial(Throttle, seconds=count().__next__, sleep=sleep)
    monkeypatch.setattr("storage_core.log.log_cleaner.Throttle", slow)
    cleaning = threading.Thread(target=log.clean, args=(CleanerConfig(io_max_bytes_per_second=0.001),))
    closing_thread = threading.Thread(target=logs.close)
    cleaning.start()
    assert waits.wait(300)
    closing_thread.start()
    cleaning.join(300)
    closing_thread.join(300)
    assert not cleaning.is_alive()
    assert max(slept) < 1


def test_a_log_directory_that_is_closed_cleans_no_more_logs(logs, log, monkeypatch):
    other = logs.create("payments")
    put(other, "a1", "a2")
    other.roll()
    with meanwhile(monkeypatch, logs._is_closing.set):
        assert logs.clean() == []
    assert records(log) == BEFORE
    assert records(other) == ["0:a=1", "1:a=2"]
    assert log._state.cleaning.problem is None


def test_who_reads_through_a_replacement_sees_one_of_the_two(log, monkeypatch):
    reader = log.read(columns=["offset"], where="offset >= 0")
    assert clean_while(log, monkeypatch, lambda: None) is not None
    # It was planned before.
    assert [offset for batch in reader for offset in batch["offset"].to_pylist()] == [0, 1, 2, 3, 4]
    assert [offset for batch in log.read() for offset in batch["offset"].to_pylist()] == [1, 2, 3, 4]


def test_who_reads_on_when_the_old_files_are_gone_finds_what_is_left(tmp_path, clock):
    with open_directory(tmp_path, clock=clock, config=compacted(file_delete_delay_ms=0)) as logs:
        log = logs.create("orders")
        for number in range(6):
            put(log, f"a{number}", f"{number}x")
            log.roll()
        reader = log.read(columns=["offset"])
        found = next(reader)["offset"].to_pylist()
        assert found == [0, 1]
        log.clean()
        log.flush()
        assert [each for each in names(log.path) if each.endswith(".deleted")] == []
        found += [offset for batch in reader for offset in batch["offset"].to_pylist()]
    assert found == sorted(set(found))
    assert {1, 3, 5, 7, 9, 10, 11} <= set(found)


def test_who_reads_while_files_go_waits_for_what_is_left(tmp_path, clock, monkeypatch):
    config = compacted(file_delete_delay_ms=0)
    with open_directory(tmp_path, clock=clock, config=config) as logs:
        log = logs.create("orders")
        for pair in ("x1", "b1"):
            put(log, pair)
            log.roll()
        # Too large to be joined with those in front of it.
        put(log, "b2", "c2", "d2", *(f"{number}{'v' * 60}" for number in range(6)))
        log.roll()
        found, state = [], log._state
        is_asked = threading.Event()
        reader = threading.Thread(target=lambda: found.append(log.fetch(1, 1000).base_offset))

        class Lock:
            """Tells when the reader waits."""

            def __init__(self):
                self._lock = state.lock

            def acquire(self):
                if threading.current_thread() is reader:
                    is_asked.set()
                return self._lock.acquire()

            def release(self):
                self._lock.release()

            def __enter__(self):
                self.acquire()

            def __exit__(self, *exception):
                self.release()

        real = replace_segments.remove_segments

        def remove(state, segments):
            real(state, segments)
            assert [segment.base_offset for segment in segments] == [1]
            reader.start()
            while reader.is_alive() and not is_asked.wait(0.01):
                pass

        monkeypatch.setattr(state, "lock", Lock())
        monkeypatch.setattr(replace_segments, "remove_segments", remove)
        log.clean()
        reader.join(300)
    assert found == [2]


def test_one_cleaning_at_a_time(logs, log, monkeypatch):
    found = []
    assert clean_while(log, monkeypatch, lambda: found.extend(logs.clean())) is not None
    # A log directory passes over a log that somebody is cleaning.
    assert found == []


def test_who_cleans_one_log_waits_for_who_cleans_it_already(log, monkeypatch):
    found = []
    second = threading.Thread(target=lambda: found.append(log.clean()))
    assert clean_while(log, monkeypatch, second.start) is not None
    second.join(300)
    assert found == [None]


def test_the_throttle_is_asked_for_what_is_read_and_written(log, monkeypatch):
    told = []

    class Told:
        def __init__(self, bytes_per_second):
            told.append(bytes_per_second)

        def __call__(self, size_bytes, should_stop):
            told.append(size_bytes)

    monkeypatch.setattr("storage_core.log.log_cleaner.Throttle", Told)
    log.clean(CleanerConfig(io_max_bytes_per_second=1e9))
    # Four batches of 70 bytes, read twice; three of them written (a=2 is superseded only by the active segment).
    assert told[0] == 1e9
    assert sum(told[1:]) == 2 * 280 + 210


def test_two_passes_during_a_read_leave_out_what_was_superseded_meanwhile(tmp_path, log, caplog):
    """As for a consumer that reads to a fixed end: the first segment's planned file is gone after the second pass."""
    options = parse_read_options({"path": str(tmp_path), "subscribe": "orders"})
    filesystem = FileSystem()
    plan = plan_scan(filesystem, options)

    def rows():
        batches = [batch for task in plan.tasks for batch in read_task(filesystem, task, record_schema())]
        return [
            f"{row['offset']}:{row['key'].decode()}={row['value'].decode()}"
            for batch in batches
            for row in batch.to_pylist()
        ]

    put(log, "b2")
    log.roll()
    log.clean()
    assert rows() == BEFORE
    assert "supersede" not in caplog.text
    put(log, "c2")
    log.roll()
    log.clean()
    assert rows() == ["2:a=2", "3:c=1", "4:a=3"]
    assert f"Offsets 0 to 1 of {log.topic}" in caplog.text


@pytest.mark.parametrize("passes", [1, 2])
def test_a_pass_between_the_listing_and_the_look_at_the_files(
    tmp_path, log, monkeypatch, caplog, passes: int
):
    """The segment that was listed is replaced by a longer one before it is examined: the replaced file is still there."""
    wanted = []

    def clean_then_locate(part):
        if not wanted:
            wanted.append(part)
            for number in range(passes):
                put(log, *(f"{key}{5 + number}" for key in "abc"))
                log.roll()
                log.clean()
        return locate_spans(part)

    log.roll()
    log.clean()
    before = records(log)
    monkeypatch.setattr(plan_module, "locate_spans", clean_then_locate)
    found = storage_core.read_table(tmp_path, subscribe="orders", columns=["offset", "key", "value"])
    assert (wanted[0].start_offset, wanted[0].end_offset) == (0, 5)
    rows = [f"{row['offset']}:{row['key'].decode()}={row['value'].decode()}" for row in found.to_pylist()]
    if passes == 1:
        assert rows == before
        assert "superseded" not in caplog.text
    else:
        assert rows == []
        assert f"Offsets 0 to 4 of {log.topic}" in caplog.text
