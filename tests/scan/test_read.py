"""Reading tasks: whatever the bounds, the splits and the columns, the rows are those of the full read."""

from __future__ import annotations

import datetime as dt
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import storage_core.scan.read as read_module
import storage_core.scan.sections as sections_module

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
    """The arguments of one append: record fields, and what the batch's header says."""
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
        "append_time_ms": draw(st.none() | st.integers(900, 1100)),
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
    # The log ends with a batch: behind the last one, a gap does not show.
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


@pytest.fixture
def small_windows(monkeypatch):
    """Windows so small that the shortest logs have many, and batches that do not fit."""

    def use(size_bytes):
        monkeypatch.setattr(read_module, "WINDOW_BYTES", size_bytes)
        monkeypatch.setattr(sections_module, "WINDOW_BYTES", size_bytes)
        monkeypatch.setattr(sections_module, "_ENOUGH_BYTES", size_bytes * 3 // 4)

    return use


def examples(count):
    return settings(
        max_examples=count, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )


def check_any_read(log_root, scan, record_of, small_windows, data):
    """Draw a log and a read of it; compare with what was written."""
    log = build(log_root.rows(), data.draw(operations), record_of)
    is_clean = data.draw(st.booleans())
    if is_clean:
        log_root.mark_clean()
        log.take_snapshot()
    log.write(indexes=data.draw(st.booleans()), index_interval_bytes=data.draw(st.sampled_from([0, 1000, 4096])))
    small_windows(data.draw(st.sampled_from([70, 200, 3000, 4 << 20])))

    rows, limit = log.rows, log.next_offset
    isolation = data.draw(st.sampled_from(["read_uncommitted", "read_committed"]))
    if isolation == "read_committed":
        rows, limit = log.committed_rows, min(log.open.values(), default=limit)
    start = data.draw(st.integers(0, limit))
    end = data.draw(st.integers(start, limit))
    columns = data.draw(st.lists(st.sampled_from(ALL_COLUMNS), min_size=1, unique=True))
    split = data.draw(split_options)
    planned = scan(
        log.path,
        starting_offsets={"events": {"0": start}},
        ending_offsets={"events": {"0": end}},
        isolation_level=isolation,
        columns=columns,
        **split,
    )
    assert planned.rows() == expect_rows(rows, columns, start, end)
    for task in planned.plan.tasks:
        offsets = sum(span.end_offset - span.start_offset for span in task.spans)
        assert offsets <= split.get("max_records_per_partition", offsets)


@examples(120)
@given(data=st.data())
def test_any_read_gives_the_rows_that_were_written(new_log_root, scan, record_of, small_windows, data):
    check_any_read(new_log_root(), scan, record_of, small_windows, data)


@pytest.mark.soak
@examples(20_000)
@given(data=st.data())
def test_any_read_gives_the_rows_that_were_written_soak(new_log_root, scan, record_of, small_windows, data):
    check_any_read(new_log_root(), scan, record_of, small_windows, data)
