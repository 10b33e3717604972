"""Reads of logs in formats v0 and v1, whose wrappers do not say at which offset they begin."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.record.legacy_encoding import GZIP, LOG_APPEND_TIME, LZ4, SNAPPY, Message, Wrapper

VALUE = b"old value " * 6


def wrapper(*offsets, magic=1, codec=GZIP, append_time_ms=None, inner_magic=None):
    inner_magic = magic if inner_magic is None else inner_magic
    messages = tuple(Message(offset, 1000 + offset, b"%d" % offset, VALUE, inner_magic) for offset in offsets)
    attributes = 0 if append_time_ms is None else LOG_APPEND_TIME
    return Wrapper(messages, codec, magic, timestamp_ms=append_time_ms, attributes=attributes)


def plain(*offsets, magic=1):
    return [Message(offset, 1000 + offset, b"%d" % offset, VALUE, magic) for offset in offsets]


@pytest.fixture
def log(log_root):
    """Return a log that has grown through all formats, offsets 0 to 99 in three segments, compacted here and there.

    Some wrappers hold messages of the other format, as an old cleaner left them (KAFKA-4298).
    """
    log = log_root.rows()
    log.old(*plain(0, 1, 2, magic=0), wrapper(5, 6, 9, magic=0, codec=LZ4), wrapper(10, 14, magic=0))
    log.old(*plain(15, magic=0), wrapper(20, 21, 22, 23, magic=0, codec=SNAPPY), wrapper(29, magic=0))
    log.old(wrapper(30, 31, 32, 35, 39), *plain(40, 43))
    log.roll()
    log.old(wrapper(47, 48, 49, codec=SNAPPY), wrapper(50, 59, append_time_ms=5000), *plain(60, 61))
    log.old(wrapper(62, 65, codec=LZ4), wrapper(66, 67, inner_magic=0))
    log.values(8)
    log.old(wrapper(78, append_time_ms=6000, inner_magic=0), wrapper(80, 81, 84, magic=0, inner_magic=1))
    log.roll()
    log.old(wrapper(87, 88))
    log.values(5).skip(1).values(5)
    return log.write(index_interval_bytes=100)


def within(log, start, end):
    return [row for row in log.rows if start <= row["offset"] < end]


@pytest.mark.parametrize("use_indexes", [True, False])
def test_all_columns_of_all_formats(log, read_rows, use_indexes):
    assert read_rows(log.path, use_indexes=use_indexes) == log.rows
    assert {row["_metadata"]["magic"] for row in log.rows} == {0, 1, 2}


@pytest.mark.parametrize("window_bytes", [1, 100, 700])
def test_windows_that_break_between_formats(log, read_rows, small_windows, window_bytes):
    small_windows(window_bytes)
    assert read_rows(log.path) == log.rows


@pytest.mark.thorough
@pytest.mark.parametrize("use_indexes", [True, False])
def test_every_start_and_every_end(log, scan, use_indexes):
    end = log.next_offset
    for offset in range(end + 1):
        after = scan(log.path, start=offset, use_indexes=use_indexes)
        assert after.offsets() == [row["offset"] for row in within(log, offset, end)]
        before = scan(log.path, start=0, end=offset, use_indexes=use_indexes)
        assert before.offsets() == [row["offset"] for row in within(log, 0, offset)]


@pytest.mark.parametrize("start", [31, 33, 36, 39])
def test_a_range_within_a_wrapper_is_read_from_that_wrapper_alone(log, scan, start):
    planned = scan(log.path, start=start, end=start + 1)
    position, end_position = next(place[:2] for place in log.places[0] if place[3] == 39)
    assert [(span.position_bytes, span.end_position_bytes) for span in planned.spans] == [
        (position, end_position)
    ]
    assert planned.rows() == within(log, start, start + 1)


@pytest.mark.cases(3, 8)
@pytest.mark.parametrize("use_indexes", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        *({"max_records_per_partition": count} for count in (1, 2, 3, 7, 40)),
        *({"max_bytes_per_partition": size} for size in (1, 150, 400, 1000)),
        *({"min_partitions": count} for count in (2, 9, 100)),
        {"max_records_per_partition": 3, "max_bytes_per_partition": 1, "min_partitions": 50},
    ],
    ids=str,
)
def test_no_split_changes_what_is_read(log, scan, options, use_indexes):
    planned = scan(log.path, use_indexes=use_indexes, **options)
    assert planned.rows() == log.rows
    planned = scan(log.path, start=33, end=84, use_indexes=use_indexes, **options)
    assert planned.rows() == within(log, 33, 84)


@pytest.mark.parametrize("use_indexes", [True, False])
def test_a_log_of_wrappers_is_cut_into_tasks(log_root, scan, use_indexes):
    log = log_root.rows()
    for number in range(100):
        log.old(wrapper(*range(10 * number + 3, 10 * number + 10)))
    log.write(index_interval_bytes=300)
    planned = scan(log.path, use_indexes=use_indexes, max_bytes_per_partition=1)
    assert len(planned.plan.tasks) > 20
    borders = [(span.start_offset, span.end_offset) for span in planned.spans]
    # Each piece ends where the wrapper before it ends: no wrapper belongs to two tasks.
    assert all(end % 10 == 0 for _, end in borders)
    assert [start for start, _ in borders[1:]] == [end for _, end in borders[:-1]]
    assert planned.rows() == log.rows


@pytest.mark.parametrize("transaction_indexes", [True, False])
def test_committed_rows_after_old_messages(log_root, read_rows, transaction_indexes):
    log = log_root.rows()
    log.old(*plain(0, 1, magic=0), wrapper(2, 5, magic=0), wrapper(6, 9))
    log.values(2, producer_id=7, transactional=True).values(1).abort(7)
    log.roll()
    log.values(3, producer_id=8, transactional=True).commit(8)
    log.old(wrapper(30, 31), *plain(35))
    log.values(2, producer_id=9, transactional=True).values(2)
    log.write(transaction_indexes=transaction_indexes)
    read = read_rows(log.path, isolation_level="read_committed")
    assert read == log.committed_rows
    assert len(read) < len(log.rows)


def test_a_log_that_was_compacted_since_it_was_planned(log, scan, log_root):
    planned = scan(log.path, start=31, end=84, max_bytes_per_partition=300)
    compacted = log_root.rows("compacted")
    compacted.old(wrapper(9, 10, magic=0), wrapper(22, 31, 39))
    for name in (f"{0:020d}.log", f"{0:020d}.index", f"{0:020d}.timeindex"):
        (log.path / name).unlink()
    compacted.write()
    os.rename(compacted.log_path(), log.log_path())
    kept = [row["offset"] for row in within(log, 31, 84) if row["offset"] in (31, 39) or row["offset"] > 43]
    assert planned.offsets() == kept


ENTRIES = st.lists(
    st.tuples(
        st.sampled_from(["plain", "wrapper", "batch"]),
        st.integers(0, 1),
        st.sampled_from([None, None, 0, 1]),
        st.integers(0, 3),
        st.lists(st.integers(0, 2), min_size=1, max_size=5),
    ),
    min_size=1,
    max_size=25,
)


@examples(80)
@given(
    shapes=ENTRIES,
    rolls=st.sets(st.integers(0, 24), max_size=3),
    interval_bytes=st.sampled_from([0, 100, 400]),
    window_bytes=st.sampled_from([1, 200, 1 << 20]),
    use_indexes=st.booleans(),
    split=st.sampled_from(
        [{}, {"max_bytes_per_partition": 1}, {"max_records_per_partition": 2}, {"min_partitions": 5}]
    ),
    data=st.data(),
)
def test_any_range_of_any_log(
    new_log_root, scan, small_windows, shapes, rolls, interval_bytes, window_bytes, use_indexes, split, data
):
    log = new_log_root().rows()
    for number, (kind, magic, inner_magic, gap, inner_gaps) in enumerate(shapes):
        log.skip(gap)
        offset = log.next_offset
        offsets = [offset := offset + inner_gap + 1 for inner_gap in inner_gaps]
        if kind == "batch":
            log.values(len(offsets))
        elif kind == "plain":
            log.old(*plain(*offsets, magic=magic))
        else:
            log.old(wrapper(*offsets, magic=magic, inner_magic=inner_magic))
        if number in rolls:
            log.roll()
    log.write(index_interval_bytes=interval_bytes)
    small_windows(window_bytes)
    start = data.draw(st.integers(0, log.next_offset))
    end = data.draw(st.integers(start, log.next_offset))
    planned = scan(log.path, start=start, end=end, use_indexes=use_indexes, **split)
    assert planned.rows() == within(log, start, end)
