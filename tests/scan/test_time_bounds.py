"""Pruning by timestamps: it never leaves out a row that counts, and leaves out what it can at a small price."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.directory import PartitionLog, find_partitions
from storage_core.filesystem import FileSystem
from storage_core.options.predicate import Comparison
from storage_core.scan import time_pruning
from storage_core.scan.isolation import AbortedTransactions, aborted_transactions
from storage_core.scan.time_pruning import end_offset_by_time, start_offset_by_time
from tests.examples import examples
from tests.record.encoding import GZIP
from tests.record.legacy_encoding import Message, Wrapper

START_MS = 1_000_000
VALUE = b"x" * 900


def load(log, **settings_of_log):
    filesystem = FileSystem()
    (directory,) = find_partitions(filesystem, [str(log.path)])
    return filesystem, PartitionLog.load(filesystem, directory, **settings_of_log)


# -- Any log, any bound --------

DATA = st.tuples(
    st.just("data"), st.lists(st.tuples(st.integers(0, 2), st.integers(-30, 30)), min_size=1, max_size=4)
)
TRANSACTIONAL = st.tuples(st.just("transactional"), st.integers(-30, 30), st.sampled_from([7, 8]))
CLAIMED = st.tuples(
    st.just("claimed"), st.integers(-30, 30), st.sampled_from([-1, 0, START_MS, START_MS + 1000])
)
EVENT = st.one_of(
    DATA,
    DATA,
    DATA,
    st.tuples(st.just("append time"), st.integers(0, 10)),
    TRANSACTIONAL,
    st.tuples(st.sampled_from(["abort", "commit"]), st.sampled_from([7, 8])),
    st.tuples(st.sampled_from(["roll", "roll", "empty", "skip", "v0", "v1", "wrapper"])),
    st.tuples(st.sampled_from(["v1 around v0", "v0 around v1"])),
)
EVENTS = st.lists(EVENT, max_size=40)


def build(log, record_of, events, *, old_formats, hidden_times=False):
    """Return a log in which time goes on by 10 ms with each event, more or less.

    With ``hidden_times``, some wrappers have no timestamp, and hold messages that have.
    """
    clock_ms = START_MS
    for kind, *details in events:
        clock_ms += 10
        match kind:
            case "data":
                append_data(log, record_of, clock_ms, details[0])
            case "append time":
                records = [record_of(0, 5, b"k", VALUE), record_of(1, 9_000_000, b"k", VALUE)]
                log.append(*records, append_time_ms=clock_ms + details[0])
            case "transactional" | "claimed":
                record = record_of(0, clock_ms + details[0], b"k", VALUE)
                is_claimed = kind == "claimed"
                claim = {"claimed_max_ms": details[1]}
                log.append(
                    record, **claim if is_claimed else {"transactional": True, "producer_id": details[1]}
                )
            case "abort" | "commit":
                with_marker_time(log, kind, details[0], clock_ms + 1_000_000)
            case "roll":
                log.roll()
            case "empty":
                # All of its records are compacted away. Its header still says when they were.
                log._append([], 3, timestamps_ms=(clock_ms, clock_ms + 500_000))
            case "skip":
                log.skip(5)
            case _ if old_formats and (hidden_times or kind != "v0 around v1"):
                log.old(old_entry(kind, log.next_offset, clock_ms))
    return log


def append_data(log, record_of, clock_ms, gaps_and_jitters):
    delta, records = -1, []
    for gap, jitter_ms in gaps_and_jitters:
        delta += 1 + gap
        records.append(record_of(delta, clock_ms + jitter_ms, b"k", VALUE))
    log.append(*records, last_offset_delta=delta + 1, codec=4 * (clock_ms // 10 % 2))


def old_entry(kind, offset, timestamp_ms):
    """Return a message of a format before v2, or a compressed set of three."""
    if kind in {"v0", "v1"}:
        return Message(offset, timestamp_ms, b"k", VALUE, magic=int(kind[1]))
    magic, inner_magic = (1, 1) if kind == "wrapper" else (int(kind[1]), int(kind[-1]))
    return Wrapper(
        tuple(Message(offset + delta, timestamp_ms + delta, b"k", VALUE, inner_magic) for delta in range(3)),
        GZIP,
        magic,
    )


def with_marker_time(log, kind, producer_id, timestamp_ms):
    """Append a transaction marker that carries the clock of a broker, which is ahead of all producers'."""
    append = log._append
    log._append = lambda *arguments, **fields: append(
        *arguments, **fields | {"timestamps_ms": (timestamp_ms, timestamp_ms)}
    )
    try:
        getattr(log, kind)(producer_id)
    finally:
        del log._append


@pytest.fixture
def eager(monkeypatch):
    """Makes look-ups try what would not pay, as a log of some kilobytes never does."""

    def eager(price_bytes, *, is_patient):
        monkeypatch.setattr(time_pruning, "LOOKUP_COST_BYTES", price_bytes)
        if is_patient:
            monkeypatch.setattr(time_pruning.WalkBudget, "allows", lambda *_: True)
            monkeypatch.setattr(time_pruning, "LARGE_BATCH_BYTES", 0)

    return eager


# Below nothing, every look-up pays.
WHATEVER_IT_COSTS = -(1 << 40)
PRICES = st.sampled_from([WHATEVER_IT_COSTS, 0, 3000, 96 << 10])
WRITING = st.fixed_dictionaries(
    {"indexes": st.booleans(), "index_interval_bytes": st.sampled_from([1, 3000])}
)
PROPERTY = examples(150)


@PROPERTY
@given(
    EVENTS,
    st.integers(-50, 500),
    st.tuples(st.integers(0, 60), st.integers(0, 60)),
    PRICES,
    st.booleans(),
    WRITING,
    st.booleans(),
)
def test_every_record_before_the_start_is_older(
    new_log_root, record_of, eager, events, after_ms, offsets, price_bytes, is_patient, writing, use_indexes
):
    eager(price_bytes, is_patient=is_patient)
    # What a time index passes over is as old as it says.
    log = build(new_log_root().rows(), record_of, events, old_formats=True, hidden_times=not use_indexes)
    log.write(**writing)
    start, end = sorted(offsets)
    end = min(end, log.next_offset)
    timestamp_ms = START_MS + after_ms
    found = start_offset_by_time(load(log, use_indexes=use_indexes)[1], timestamp_ms, start, end)
    assert start >= end or start <= found <= end
    young = [
        row["offset"]
        for row in log.rows
        if row["timestamp"] >= timestamp_ms * 1000 and start <= row["offset"] < end
    ]
    assert not young or found <= young[0]


@pytest.mark.parametrize("in_front", [0, 1])
def test_a_wrapper_without_a_timestamp_may_hold_young_records(
    log_root, record_of, read_rows, eager, in_front
):
    """As an old cleaner left it (KAFKA-4298): format v0 has no timestamps, the v1 messages inside have."""
    eager(WHATEVER_IT_COSTS, is_patient=True)
    events = [("data", [(0, 0)])] * in_front + [("v0 around v1",), ("data", [(0, 0)])]
    log = build(log_root.rows(), record_of, events, old_formats=True, hidden_times=True).write(indexes=False)
    young_ms = START_MS + 10 * in_front + 5
    found = read_rows(log.path, where=Comparison("timestamp", ">=", young_ms * 1000))
    assert found == log.rows[in_front:]
    assert len(found) == 4


@PROPERTY
@given(
    st.lists(st.one_of(EVENT, CLAIMED), max_size=40),
    st.sampled_from(["<", ">="]),
    st.integers(-50, 500),
    st.integers(0, 20),
    st.sampled_from(["read_uncommitted", "read_committed"]),
    PRICES,
    st.booleans(),
    WRITING,
    st.sampled_from(["FAILFAST", "DROPMALFORMED"]),
)
def test_a_promise_that_holds_loses_no_row(
    new_log_root,
    record_of,
    read_rows,
    eager,
    events,
    operator,
    after_ms,
    more_ms,
    isolation,
    price_bytes,
    is_patient,
    writing,
    mode,
):
    eager(price_bytes, is_patient=is_patient)
    log = build(new_log_root().rows(), record_of, events, old_formats=False).write(**writing)
    visible = log.committed_rows if isolation == "read_committed" else log.rows
    limit_us = (START_MS + after_ms) * 1000
    expected = [row for row in visible if (row["timestamp"] < limit_us) == (operator == "<")]
    found = read_rows(
        log.path,
        where=Comparison("timestamp", operator, limit_us),
        max_timestamp_disorder=disorder_ms(visible) + more_ms,
        isolation_level=isolation,
        mode=mode,
    )
    assert found == expected


def disorder_ms(rows):
    """By how much a row is older than one before it, at the most."""
    largest_us, disorder_us = 0, 0
    for row in rows:
        largest_us = max(largest_us, row["timestamp"])
        disorder_us = max(disorder_us, largest_us - row["timestamp"])
    return disorder_us // 1000


@PROPERTY
@given(EVENTS, st.integers(-50, 500), st.booleans())
def test_a_read_ends_at_the_first_record_that_is_young_enough(
    new_log_root, record_of, eager, events, after_ms, is_committed
):
    eager(WHATEVER_IT_COSTS, is_patient=True)
    log = build(new_log_root().rows(), record_of, events, old_formats=False).write(index_interval_bytes=1)
    _, partition = load(log)
    timestamp_ms = START_MS + after_ms
    aborted = AbortedTransactions(aborted_transactions(partition, 0, log.next_offset) if is_committed else ())
    counting = [row for row in log.rows if not is_committed or row["offset"] not in log.aborted_offsets]
    young = [row["offset"] for row in counting if row["timestamp"] >= timestamp_ms * 1000]
    found = end_offset_by_time(partition, timestamp_ms, 0, log.next_offset, aborted)
    assert found == min(young, default=log.next_offset)


# -- By example --------


@pytest.fixture
def log(log_root, record_of):
    """Five segments of about 500 KB, a record of 5 KB a millisecond: offset 5 * n has timestamp START_MS + n."""
    log = log_root.rows()
    for number in range(500):
        log.append(record_of(4, START_MS + number, b"k", b"x" * 5000))
        if number % 100 == 99 and number < 499:
            log.roll()
    return log.write()


def test_a_start_is_found_by_the_index_and_read_cheaply(log):
    filesystem, partition = load(log)
    assert start_offset_by_time(partition, START_MS + 250, 0, 2500) == 1250
    assert filesystem.statistics.bytes_read < 120_000
    assert start_offset_by_time(partition, START_MS + 499, 0, 2500) == 2495
    assert start_offset_by_time(partition, START_MS + 500, 0, 2500) == 2500
    assert start_offset_by_time(partition, START_MS + 250, 1300, 2500) == 1300
    assert start_offset_by_time(partition, START_MS + 250, 0, 300) == 300


def test_a_start_that_saves_little_is_not_looked_for(log):
    filesystem, partition = load(log)
    assert start_offset_by_time(partition, START_MS - 5, 0, 2500) == 0
    # One header of 61 bytes, and the end of the log, has answered.
    _ = load(log)[1].log_end_offset
    assert filesystem.statistics.bytes_read < 30_000
    assert start_offset_by_time(partition, START_MS + 10, 0, 2500) == 0
    assert start_offset_by_time(partition, START_MS + 50, 0, 300) == 250
    assert start_offset_by_time(partition, START_MS + 110, 500, 2500) == 500


def test_an_end_is_found_by_the_index_and_read_cheaply(log):
    filesystem, partition = load(log)
    assert end_offset_by_time(partition, START_MS + 250, 0, 2500) == 1254
    assert filesystem.statistics.bytes_read < 70_000
    assert end_offset_by_time(partition, START_MS - 5, 0, 2500) == 4
    assert end_offset_by_time(partition, START_MS + 500, 0, 2500) == 2500
    assert end_offset_by_time(partition, START_MS + 250, 0, 300) == 300
    assert end_offset_by_time(partition, START_MS - 5, 700, 2500) == 704


def test_an_end_that_saves_little_is_not_looked_for(log):
    filesystem, partition = load(log)
    assert end_offset_by_time(partition, START_MS + 490, 0, 2500) == 2500
    assert filesystem.statistics.bytes_read < 40_000


def test_without_indexes_large_batches_are_walked_and_small_ones_are_not(log_root, record_of):
    logs = {}
    for name, value_bytes in (("large", 20_000), ("small", 5000)):
        logs[name] = log_root.rows(name)
        for number in range(100):
            logs[name].append(record_of(0, START_MS + number, b"k", b"x" * value_bytes))
        logs[name].roll().values(1).write(indexes=False)
    filesystem, partition = load(logs["large"])
    assert start_offset_by_time(partition, START_MS + 80, 0, 101) == 80
    assert start_offset_by_time(partition, START_MS + 100, 0, 101) == 101
    assert end_offset_by_time(partition, START_MS + 80, 0, 101) == 101
    assert filesystem.statistics.bytes_read < 60_000
    filesystem, partition = load(logs["small"])
    assert start_offset_by_time(partition, START_MS + 80, 0, 100) == 0
    assert filesystem.statistics.bytes_read == 61


def test_many_small_segments_are_looked_at_as_far_as_the_range_is_large(log_root, record_of):
    log = log_root.rows()
    for number in range(40):
        log.append(record_of(0, START_MS + number, b"k", b"x" * 50_000)).roll()
    log.write()
    _, partition = load(log)
    # Of 2 MB, a look at some of 50 KB costs little; of 100 KB, at one.
    assert start_offset_by_time(partition, START_MS + 30, 0, 40) == 30
    assert start_offset_by_time(partition, START_MS + 30, 29, 31) == 30
    # A small one in front does not hide what large ones save.
    assert start_offset_by_time(partition, START_MS + 40, 0, 40) == 40


def test_the_age_of_a_file_says_nothing_of_messages_without_timestamps(log_root, eager):
    eager(WHATEVER_IT_COSTS, is_patient=True)
    log = log_root.rows()
    for _ in range(8):
        log.old(Message(log.next_offset, value=VALUE, magic=0))
    log.roll().old(Message(log.next_offset, START_MS + 5, b"k", VALUE)).roll()
    log.old(Message(log.next_offset, value=VALUE, magic=0)).write()
    for path in log.path.iterdir():
        os.utime(path, (START_MS / 1000 + 1000, START_MS / 1000 + 1000))
    _, partition = load(log)
    assert partition.offset_for_timestamp(START_MS) is None
    assert start_offset_by_time(partition, START_MS, 0, 10) == 8
    assert start_offset_by_time(partition, START_MS + 6, 0, 10) == 10
    assert end_offset_by_time(partition, START_MS, 0, 10) == 8
    assert end_offset_by_time(partition, START_MS + 6, 0, 10) == 10


def test_a_time_index_that_is_not_of_this_log_is_set_aside(log, log_root, record_of):
    # An early record is where the foreign index has its latest timestamp.
    other = log_root.rows("other")
    for number in range(100):
        other.append(record_of(4, START_MS + 500 - number, b"k", b"x" * 5000))
    other.roll().values(1).write()
    log.log_path(0).with_suffix(".timeindex").rename(other.log_path(0).with_suffix(".timeindex"))
    assert start_offset_by_time(load(other)[1], START_MS + 490, 0, 501) == 0
    assert start_offset_by_time(load(other)[1], START_MS + 99, 0, 501) == 0


def test_a_hole_hides_what_follows_it(log, overwrite, eager):
    # A walk ends at zeros as if nothing followed, and here nothing else knows better.
    eager(WHATEVER_IT_COSTS, is_patient=True)
    for path in [*log.path.glob("*.index"), *log.path.glob("*.timeindex")]:
        path.unlink()
    assert start_offset_by_time(load(log)[1], START_MS + 450, 0, 2500) == 2250
    place = log.places[500][7]
    overwrite(log.log_path(500), place[0], bytes(place[1] - place[0]))
    assert start_offset_by_time(load(log)[1], START_MS + 450, 0, 2500) == place[2]


def test_damage_is_left_to_the_reading(log, overwrite):
    overwrite(log.log_path(1000), log.places[1000][0][0] + 16, b"\x07")
    _, partition = load(log)
    assert start_offset_by_time(partition, START_MS + 400, 0, 2500) == 1000
    assert start_offset_by_time(partition, START_MS + 100, 0, 2500) == 500
    # The index leads past the damage.
    assert end_offset_by_time(partition, START_MS + 201, 0, 2500) == 1009
