"""A condition never makes a read dearer: what it reads, beside what a read without it does."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from storage_core import explain, read_table
from storage_core.filesystem import FileSystem
from storage_core.options.predicate import And, Comparison, In, IsNull, Not, Or, StartsWith, Unknown
from tests.examples import examples

START_MS = 1_000_000
OPERATORS = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
TIMES = st.integers(-50, 450).map(lambda after_ms: (START_MS + after_ms) * 1000)
PREDICATES = st.recursive(
    st.one_of(
        st.builds(Comparison, st.just("timestamp"), OPERATORS, TIMES),
        st.builds(Comparison, st.just("timestamp"), OPERATORS, TIMES),
        st.builds(Comparison, st.just("offset"), OPERATORS, st.integers(-2, 90)),
        st.builds(Comparison, st.just("partition"), OPERATORS, st.integers(0, 2)),
        st.builds(In, st.just("offset"), st.lists(st.integers(-2, 90), max_size=3).map(tuple)),
        st.builds(Comparison, st.just("topic"), OPERATORS, st.sampled_from(["a", "b"])),
        st.builds(Comparison, st.just("key"), OPERATORS, st.sampled_from([b"k0", b"k1"])),
        st.sampled_from([StartsWith("topic", "a"), IsNull("key"), IsNull("timestamp"), Unknown()]),
    ),
    lambda children: st.one_of(
        st.builds(Not, children),
        st.builds(And, st.lists(children, max_size=3).map(tuple)),
        st.builds(Or, st.lists(children, max_size=3).map(tuple)),
    ),
    max_leaves=4,
)
OPTIONS = st.fixed_dictionaries(
    {"use_indexes": st.booleans()},
    optional={
        "max_timestamp_disorder": st.sampled_from(["0 ms", "20 ms", "1 second"]),
        "isolation_level": st.just("read_committed"),
        "max_records_per_partition": st.just(1000),
    },
)
PROPERTY = examples(120)


def write(log_root, record_of, value_bytes):
    """Topics a (two partitions) and b of 80 records each in four segments, a record every 5 ms."""
    for topic, partition in (("a", 0), ("a", 1), ("b", 0)):
        log = log_root.rows(topic, partition)
        for number in range(40):
            records = [
                record_of(
                    delta, START_MS + 10 * number + 5 * delta, b"k%d" % (number % 3), b"v" * value_bytes
                )
                for delta in range(2)
            ]
            log.append(*records)
            if number % 10 == 9:
                log.roll()
        log.write(index_interval_bytes=500)
    return log_root


@pytest.fixture
def small_logs(log_root, record_of):
    """About 11 KB a segment."""
    return write(log_root, record_of, 500)


@pytest.fixture
def large_logs(log_root, record_of):
    """About 120 KB a segment."""
    return write(log_root, record_of, 6000)


def bytes_read(root, **options):
    filesystem = FileSystem()
    read_table(root.path, filesystem=filesystem, **options)
    return filesystem.statistics.bytes_read


@PROPERTY
@given(PREDICATES, OPTIONS)
@example(
    Comparison("timestamp", "<", START_MS * 1000), {"use_indexes": True, "max_timestamp_disorder": "0 ms"}
)
def test_of_small_logs_no_byte_more_is_read(small_logs, predicate, options):
    assert bytes_read(small_logs, where=predicate, **options) <= bytes_read(small_logs, **options)


@PROPERTY
@given(PREDICATES, OPTIONS)
def test_of_large_logs_no_byte_more_is_planned_and_few_are_looked_at(large_logs, predicate, options):
    everything = explain(large_logs.path, **options)
    narrowed = explain(large_logs.path, where=predicate, **options)
    assert narrowed.totals.planned_bytes <= everything.totals.planned_bytes
    assert narrowed.totals.segments_opened <= everything.totals.segments_opened
    # Indexes, and now and then a look-up that saves a little less than it costs.
    assert bytes_read(large_logs, where=predicate, **options) <= bytes_read(large_logs, **options) * 1.03


@pytest.mark.parametrize("after_ms", [-1000, 0, 95, 200, 1000])
@pytest.mark.parametrize("operator", ["<", ">="])
def test_a_bound_on_timestamps_costs_little_and_saves_what_it_can(large_logs, operator, after_ms):
    on_time = Comparison("timestamp", operator, (START_MS + after_ms) * 1000)
    on_topic = Comparison("topic", "=", "b")
    everything = bytes_read(large_logs, where=on_topic)
    found = bytes_read(large_logs, where=And((on_time, on_topic)), max_timestamp_disorder="0 ms")
    share = min(max(after_ms / 400, 0), 1)
    wanted = everything * (share if operator == "<" else 1 - share)
    # A segment of 120 KB is read as a whole where little of it can be left out.
    assert found <= min(wanted + 130_000, everything * 1.03)
