"""Reading tasks: whatever the bounds, the splits and the columns, the rows are those of the full read."""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import (
    BatchTooLargeError,
    CorruptRecordError,
    TimestampRangeError,
)
from storage_core.scan.read import read_task
from tests.examples import examples

ALL_COLUMNS = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
    "_metadata",
)
PRODUCERS = (7, 8)

# -- Logs of every shape --------

byte_strings = st.none() | st.sampled_from([b"", b"k", b"a value of more than twelve bytes", b"x" * 1500])
headers = st.lists(st.tuples(st.sampled_from(["", "h", "löng name"]), byte_strings), max_size=3).map(tuple)


@st.composite
def batches(draw):
    """Return the arguments of one append: record fields, and what the batch's header says."""
    count = draw(st.integers(0, 6))
    step = draw(st.sampled_from([1, 1, 1, 3]))
    deltas = [number * step + (number > 2) for number in range(count)]
    records = [
        (delta, 1000 + draw(st.integers(-30, 60)), draw(byte_strings), draw(byte_strings), draw(headers))
        for delta in deltas
    ]
    fields = {
        "codec": draw(st.integers(0, 4)),
        "leader_epoch": draw(st.integers(-1, 3)),
        # A batch without records that has a timestamp misleads look-ups by time, a broker's too.
        "append_time_ms": draw(st.none() | st.integers(900, 1100)) if count else None,
        "last_offset_delta": max(deltas, default=0) + draw(st.sampled_from([0, 0, 0, 2])),
    }
    producer_id = draw(st.sampled_from([-1, -1, *PRODUCERS]))
    if producer_id >= 0:
        fields |= {
            "producer_id": producer_id,
            "producer_epoch": draw(st.integers(0, 3)),
            "base_sequence": draw(st.sampled_from([0, 5, 2**31 - 2])),
            "transactional": draw(st.booleans()),
        }
    return records, fields


operations = st.lists(
    st.one_of(
        st.tuples(st.just("append"), batches()),
        st.tuples(st.sampled_from(["abort", "commit", "empty_control"]), st.sampled_from(PRODUCERS)),
        st.tuples(st.just("skip"), st.integers(1, 3)),
        st.tuples(st.just("roll"), st.none()),
    ),
    max_size=30,
)


def build(log, steps, record_of):
    for name, argument in steps:
        if name == "append":
            records, fields = argument
            log.append(*(record_of(*record) for record in records), **fields)
        elif name == "roll":
            log.roll()
        else:
            getattr(log, name)(argument)
    # The log ends with a batch: a gap after it does not show.
    return log.values(1)


def expect_rows(rows, columns, start=0, end=2**63):
    return [{name: row[name] for name in columns} for row in rows if start <= row["offset"] < end]


split_options = st.fixed_dictionaries(
    {"use_indexes": st.booleans()},
    optional={
        "max_bytes_per_partition": st.sampled_from([1, 100, 1000, 4096, 20_000]),
        "min_partitions": st.integers(1, 12),
        "max_records_per_partition": st.integers(1, 20),
    },
)


def check_any_read(log_root, scan, record_of, small_windows, data, *, by_time=False):
    """Draw a log and a read of it; compare with what was written."""
    log = build(log_root.rows(), data.draw(operations), record_of)
    if data.draw(st.booleans()):
        log_root.mark_clean()
        log.take_snapshot()
    log.write(
        indexes=data.draw(st.booleans()), index_interval_bytes=data.draw(st.sampled_from([0, 1000, 4096]))
    )
    small_windows(data.draw(st.sampled_from([70, 200, 3000, 4 << 20])))

    rows, limit = log.rows, log.next_offset
    isolation = data.draw(st.sampled_from(["read_uncommitted", "read_committed"]))
    if isolation == "read_committed":
        rows, limit = log.committed_rows, min(log.open.values(), default=limit)
    start, end, bounds = draw_times(log, limit, data) if by_time else draw_offsets(limit, data)
    columns = data.draw(st.lists(st.sampled_from(ALL_COLUMNS), min_size=1, unique=True))
    split = data.draw(split_options)
    planned = scan(log.path, isolation_level=isolation, columns=columns, **bounds, **split)
    assert planned.rows() == expect_rows(rows, columns, start, end)
    for task in planned.plan.tasks:
        offsets = sum(span.end_offset - span.start_offset for span in task.spans)
        assert offsets <= split.get("max_records_per_partition", offsets)


def draw_offsets(limit, data):
    start = data.draw(st.integers(0, limit))
    end = data.draw(st.integers(start, limit))
    return start, end, {"start": start, "end": end}


def draw_times(log, limit, data):
    # A segment without timestamps counts as old as its file.
    for path in log.path.glob("*.log"):
        os.utime(path, (0, 0))
    times_ms = data.draw(st.lists(st.integers(890, 1110), min_size=2, max_size=2).map(sorted))
    offsets = []
    for time_ms in times_ms:
        young = (row["offset"] for row in log.rows if row["timestamp"] >= time_ms * 1000)
        offsets.append(min(next(young, limit), limit))
    options = {
        "starting_timestamp": times_ms[0],
        "ending_timestamp": times_ms[1],
        "starting_offsets_by_timestamp_strategy": "latest",
    }
    return *offsets, options


@examples(100)
@given(data=st.data(), by_time=st.booleans())
def test_any_read_gives_the_rows_that_were_written(
    new_log_root, scan, record_of, small_windows, data, by_time
):
    check_any_read(new_log_root(), scan, record_of, small_windows, data, by_time=by_time)


@pytest.mark.soak
@examples(1_000)
@given(data=st.data(), by_time=st.booleans())
def test_any_read_gives_the_rows_that_were_written_soak(
    new_log_root, scan, record_of, small_windows, data, by_time
):
    check_any_read(new_log_root(), scan, record_of, small_windows, data, by_time=by_time)


# -- Columns --------


@pytest.fixture
def mixed(log_root, record_of):
    """Return every codec, gaps, headers, both kinds of timestamps, a transaction, an empty batch."""
    log = log_root.rows()
    for codec in range(5):
        log.append(
            record_of(0, 1000 + codec, b"k", b"first", (("h", b"1"),)),
            record_of(1, 900, None, None),
            codec=codec,
            leader_epoch=codec,
        )
        log.append(record_of(1, 5000), record_of(4, 7000), codec=codec, last_offset_delta=6)
        log.append(record_of(0, 1), record_of(1, 2), codec=codec, append_time_ms=8000 + codec)
        log.append(record_of(), codec=codec, producer_id=7, base_sequence=codec, transactional=True)
        log.roll()
    return log.commit(7).append(last_offset_delta=3).values(1).write()


@pytest.mark.parametrize("column", ALL_COLUMNS)
def test_each_column_alone_has_the_values_of_the_full_read(mixed, scan, column):
    assert scan(mixed.path, columns=[column]).rows() == expect_rows(mixed.rows, [column])


@examples(25)
@given(columns=st.lists(st.sampled_from(ALL_COLUMNS), min_size=1, unique=True))
def test_any_columns_in_any_order(mixed, scan, columns):
    planned = scan(mixed.path, columns=columns)
    assert planned.schema.names == columns
    assert [list(row) for row in planned.rows()] == [columns] * len(mixed.rows)
    assert planned.rows() == expect_rows(mixed.rows, columns)


def test_every_arrow_batch_has_exactly_the_schema(mixed, scan):
    planned = scan(mixed.path)
    found = list(planned.batches())
    assert found
    for each in found:
        assert each.schema.equals(planned.schema, check_metadata=True)
        assert each.num_rows


def test_offsets_of_batches_without_gaps_need_no_decompression(log_root, scan):
    log = log_root.rows()
    for _ in range(3):
        log._append([], 5, codec=4, payload=b"garbage", record_count=5)
    log.write()
    assert scan(log.path, columns=["offset", "topic"]).offsets() == list(range(15))
    with pytest.raises(CorruptRecordError, match="zstd"):
        scan(log.path, columns=["offset", "value"]).rows()
    # But their CRC is checked.
    with log.log_path().open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"!")
        file.seek(0, os.SEEK_END)
        file.write(bytes(100))
    damaged = scan(log.path, columns=["offset"], ending_offsets={"events": {"0": 10}})
    assert damaged.offsets() == list(range(10))


@pytest.mark.parametrize("columns", [["offset"], ["value"]])
def test_the_crc_is_checked_whatever_is_read(log_root, scan, overwrite, columns):
    log = log_root.rows().values(5, codec=4).values(5, codec=4).roll().values(1).write()
    overwrite(log.log_path(), 70, b"\xff")
    with pytest.raises(CorruptRecordError, match="CRC"):
        scan(log.path, columns=columns).rows()


def test_a_timestamp_beyond_microseconds_names_its_file_and_offset(log_root, record_of, scan):
    log = log_root.rows().values(3).append(record_of(0, 1_700_000_000_000_000_000)).values(1).write()
    with pytest.raises(TimestampRangeError, match="1700000000000000000") as caught:
        scan(log.path).rows()
    assert (caught.value.path, caught.value.offset) == (str(log.log_path()), 3)
    without = [name for name in ALL_COLUMNS if name != "timestamp"]
    assert scan(log.path, columns=without).rows() == expect_rows(log.rows, without)


def test_the_largest_offsets_of_all(log_root, record_of, scan):
    log = log_root.rows(base_offset=2**63 - 10)
    log.append(*(record_of(delta) for delta in range(10))).write()
    assert scan(log.path).rows() == log.rows


# -- Sizes --------


def test_arrow_batches_are_neither_too_long_nor_too_large(log_root, scan):
    log = log_root.rows().data(100_000).values(3000, b"x" * 10_000, codec=4).data(5000)
    found = list(scan(log.write().path).batches())
    assert sum(each.num_rows for each in found) == 108_000
    assert max(each.num_rows for each in found) <= 65_536
    assert max(each.nbytes for each in found) <= 9 << 20
    assert [offset for each in found for offset in each["offset"].to_pylist()] == list(range(108_000))


@pytest.mark.parametrize("codec", range(5))
def test_batches_larger_than_the_window(log_root, scan, codec):
    rng = np.random.default_rng(5)
    log = log_root.rows().values(10)
    # 5 MiB that no codec makes smaller, and 20 MiB that every codec does.
    log.values(5, rng.bytes(1 << 20), codec=codec).values(10).values(
        20, b"x" * (1 << 20), codec=codec
    ).values(10)
    planned = scan(log.write().path)
    rows = [row for each in planned.batches() for row in each.select(["offset", "value"]).to_pylist()]
    assert rows == expect_rows(log.rows, ["offset", "value"])


@pytest.mark.parametrize("codec", range(5))
def test_a_batch_that_inflates_beyond_the_limit(log_root, scan, codec):
    log = log_root.rows().values(3).values(3, b"x" * 100_000, codec=codec).roll().values(1).write()
    assert len(scan(log.path, max_decompressed_batch_bytes="400k").rows()) == 7
    with pytest.raises(BatchTooLargeError, match="maxDecompressedBatchBytes") as caught:
        scan(log.path, max_decompressed_batch_bytes="100k").rows()
    start, end, *offsets = log.places[0][1]
    assert (caught.value.path, caught.value.position_bytes, caught.value.end_position_bytes) == (
        str(log.log_path()),
        start,
        end,
    )
    assert caught.value.offset == offsets[0]
    # In front of it all is well.
    before = scan(log.path, max_decompressed_batch_bytes="100k", ending_offsets={"events": {"0": 3}})
    assert before.offsets() == [0, 1, 2]


def test_a_batch_that_declares_more_than_the_limit(log_root, scan, overwrite):
    log = log_root.rows()
    for _ in range(10):
        log.values(10)
    log.roll().values(1).write()
    start = log.places[0][5][0]
    overwrite(log.log_path(), start + 8, struct.pack(">i", 2**31 - 1))
    # The rest of the segment is no whole batch: nothing is allocated for what is declared.
    with pytest.raises(CorruptRecordError, match="cut off") as caught:
        scan(log.path).rows()
    assert caught.value.position_bytes == start


# -- Tasks --------


def test_tasks_can_be_read_in_any_order_and_twice(mixed, scan):
    planned = scan(mixed.path, columns=["offset"], max_bytes_per_partition=1)
    found = []
    for task in reversed([*planned.plan.tasks, *planned.plan.tasks]):
        for each in read_task(planned.filesystem, task, planned.schema):
            found += each["offset"].to_pylist()
    offsets = [row["offset"] for row in mixed.rows]
    assert sorted(found) == sorted([*offsets, *offsets])


def test_nothing_of_the_source_changes(mixed, scan):
    def state():
        return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(mixed.path.iterdir())}

    before = state()
    scan(mixed.path, isolation_level="read_committed", min_partitions=5).rows()
    assert state() == before
