"""Appending, as a leader and as a replica (150-152, 168, 174)."""

from __future__ import annotations

import signal
import sys
import threading
import time

import pyarrow as pa
import pytest

from storage_core import LogConfig, ProducerSequence
from storage_core.errors import InvalidRecordError, OptionError
from tests.log.logs import NOW_MS, append, offsets, table, value, values
from tests.log.producing import data
from tests.record.encoding import Batch, Record, sized, varint


def test_a_new_log_is_empty(log):
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark, log.last_stable_offset) == (
        0,
        0,
        0,
        0,
    )
    assert log.segment_base_offsets == (0,)
    assert list(log.read()) == []


def test_an_append_gives_consecutive_offsets(log):
    first = log.append(table(b"a", b"b", b"c", timestamps=[5, 9, 7]))
    assert (first.first_offset, first.last_offset, first.batch_count) == (0, 2, 1)
    assert (first.max_timestamp_ms, first.offset_of_max_timestamp) == (9, 2)
    second = log.append(table(b"d"))
    assert (second.first_offset, second.last_offset) == (3, 3)
    assert log.log_end_offset == 4
    assert values(log) == [b"a", b"b", b"c", b"d"]


def test_an_append_of_nothing_changes_nothing(log):
    append(log, 2)
    info = log.append(table())
    assert (info.first_offset, info.last_offset, info.batch_count, info.size_bytes) == (2, 1, 0, 0)
    assert log.log_end_offset == 2


def test_nulls_keys_headers_and_timestamps_come_back(log):
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    log.append(
        pa.table(
            {
                "value": pa.array([None, b"v"], pa.binary()),
                "key": pa.array([b"k", None], pa.binary()),
                "timestamp": pa.array([1, None], pa.int64()),
                "headers": pa.array([[{"key": "h", "value": None}], None], headers),
            }
        )
    )
    (batch,) = log.read(include_headers=True)
    assert batch["value"].to_pylist() == [None, b"v"]
    assert batch["key"].to_pylist() == [b"k", None]
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == [1000, NOW_MS * 1000]
    assert batch["headers"].to_pylist() == [[{"key": "h", "value": None}], None]


def test_one_append_becomes_many_batches_of_batch_size(logs):
    log = logs.create("many", config=LogConfig(batch_size=1000))
    info = log.append(table(*(value(number) for number in range(500))))
    assert info.batch_count > 10
    assert (info.first_offset, info.last_offset) == (0, 499)
    assert values(log) == [value(number) for number in range(500)]


def test_batches_keep_their_offsets_and_gaps(log):
    info = log.append_batches(data(5, 2) + data(10))
    assert (info.first_offset, info.last_offset, info.batch_count) == (5, 10, 2)
    assert log.log_end_offset == 11
    assert offsets(log) == [5, 6, 10]
    assert offsets(log, 7) == [10]
    assert log.fetch(8, 1).base_offset == 10


def test_an_incomplete_last_batch_is_left_out(log):
    assert log.append_batches(data(0, 2) + data(2)[:-1]).last_offset == 1


@pytest.mark.parametrize(
    "cut_off",
    [b"", data(0)[:10], data(0)[:61], data(0, 3)[:-1]],
    ids=["nothing", "half a header", "a header", "most of a batch"],
)
def test_a_follower_that_got_less_than_a_batch_goes_on(log, cut_off):
    """A fetch may end within its first batch."""
    append(log, 2)
    info = log.append_batches(cut_off, flush=True)
    assert (info.first_offset, info.last_offset, info.batch_count, info.size_bytes) == (2, 1, 0, 0)
    # It has seen nothing of another replica, so the high watermark still follows the log end.
    assert append(log).first_offset == 2
    assert log.high_watermark == 3
    assert log.append_batches(data(3)).first_offset == 3


def test_batches_of_a_leader_that_came_later_are_left_out(log):
    """By the time that a leader answers it may follow another one, and have its records."""
    batches = data(0, 2, leader_epoch=3) + data(2, leader_epoch=4) + data(3, leader_epoch=6)
    assert log.append_batches(batches, leader_epoch=4).last_offset == 2
    assert [(entry.epoch, entry.start_offset) for entry in log.leader_epochs] == [(3, 0), (4, 2)]
    assert (
        log.append_batches(data(3, leader_epoch=6) + data(4, leader_epoch=4), leader_epoch=5).batch_count == 0
    )
    assert log.append_batches(data(3, leader_epoch=6), leader_epoch=6).first_offset == 3
    with pytest.raises(OptionError, match="Expected a leader epoch from 0"):
        log.append_batches(data(4), leader_epoch=-1)


def test_damaged_batches_are_refused(log):
    damaged = bytearray(data(0))
    damaged[-1] ^= 1
    with pytest.raises(Exception, match="CRC"):
        log.append_batches(bytes(damaged))
    assert log.log_end_offset == 0


def test_batches_too_large_for_what_is_left_of_a_segment_begin_another(log):
    append(log, 8)
    log.append_batches(data(20, 40) + data(60, 10))
    assert log.segment_base_offsets == (0, 20)


def with_key(key, kind):
    headers = pa.list_(pa.struct([("key", kind), ("value", pa.binary())]))
    return pa.table(
        {"value": [b"v", b"v"], "headers": pa.array([None, [{"key": key, "value": b"1"}]], headers)}
    )


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
@pytest.mark.parametrize("copies", [1, 200])
def test_a_header_key_whose_bytes_a_read_has_replaced_is_refused(log, kind, copies):
    rows = pa.concat_tables([with_key("fine \u20ac", kind)] * (copies - 1) + [with_key("no \ufffd", kind)])
    with pytest.raises(InvalidRecordError, match=r"U\+FFFD in a key of row \d+: ") as caught:
        log.append(rows)
    assert [each.batch_index for each in caught.value.record_errors] == [2 * copies - 1]
    assert log.log_end_offset == 0


def test_rows_of_a_read_that_has_replaced_bytes_are_refused(log):
    record = sized(b"\0\0\0" + varint(-1) * 2 + varint(1) + sized(b"\xff") + sized(b"1"))
    batch = Batch((Record(),), 0, count=1, records_bytes=record).encode()
    log.append_batches(batch)
    rows = pa.Table.from_batches(log.read(include_headers=True)).select(["value", "headers"])
    assert rows["headers"].to_pylist() == [[{"key": "\ufffd", "value": b"1"}]]
    with pytest.raises(InvalidRecordError, match=r"U\+FFFD in a key of row 0: "):
        log.append(rows)


# -- Waiting for the disk --------


WAYS = {
    "append": lambda log, **options: log.append(table(b"v"), **options),
    "append of a producer": lambda log, **options: log.append(
        table(b"v"), producer=ProducerSequence(7, 0, 0), **options
    ),
    "append_as_leader": lambda log, **options: log.append_as_leader(data(0), **options),
    "append_batches": lambda log, **options: log.append_batches(data(log.log_end_offset), **options),
    "end_transaction": lambda log, **options: log.end_transaction(7, 0, is_abort=False, **options),
}


@pytest.mark.parametrize("way", WAYS)
def test_everything_before_it_is_on_disk_when_that_is_asked_for(log, way):
    log.append(table(b"before"))
    WAYS[way](log)
    assert (log.recovery_point, log.log_end_offset) == (0, 2)
    WAYS[way](log, **({"acks": "all"} if way.startswith("append of") or way == "append" else {"flush": True}))
    assert log.recovery_point == log.log_end_offset >= 2


def test_of_a_repetition_too(log):
    """It is unknown whether it was on disk the first time."""
    producer = ProducerSequence(7, 0, 0)
    log.append(table(b"v"), producer=producer)
    assert log.append(table(b"v"), producer=producer, acks="all").is_duplicate
    assert (log.recovery_point, log.log_end_offset) == (1, 1)


def test_who_is_interrupted_while_waiting_for_the_log_does_not_keep_it(log):
    main = threading.get_ident()
    is_locked = threading.Event()

    def keep_it_and_interrupt():
        with log._state.lock:
            is_locked.set()
            while not _waits_for_the_log(main):
                time.sleep(0.001)
            signal.pthread_kill(main, signal.SIGINT)

    other = threading.Thread(target=keep_it_and_interrupt)
    # Processes that share tests ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        other.start()
        is_locked.wait()
        with pytest.raises(KeyboardInterrupt):
            log.append(table(b"interrupted"))
    finally:
        signal.signal(signal.SIGINT, before)
    other.join()
    # The log is free for others.
    another = threading.Thread(target=lambda: log.append(table(b"another")), daemon=True)
    another.start()
    another.join(300)
    assert not another.is_alive()
    assert values(log) == [b"another"]


def _waits_for_the_log(thread_id):
    code = sys._current_frames()[thread_id].f_code
    return code.co_name == "__enter__" and code.co_filename.endswith("log_state.py")
