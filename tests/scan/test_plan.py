"""Planning: the tasks of a read, and what planning itself reads."""

from __future__ import annotations

import os
import pickle
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import storage_core.scan.plan as plan_module
from storage_core.errors import DataLossError, OffsetOutOfRangeError
from storage_core.filesystem import FileSystem
from storage_core.options import parse_read_options
from storage_core.options.predicate import And, Comparison, In, Or
from storage_core.scan.offset_ranges import PartitionRange, split_ranges
from storage_core.scan.plan import plan_scan
from tests.examples import examples
from tests.faults.observed_filesystem import before_each_call

VALUE = b"x" * 1000


@pytest.fixture(autouse=True)
def one_core(monkeypatch):
    """Set one core: the default size of a task depends on the machine."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


@pytest.fixture
def log(log_root):
    """Offsets 0 to 499 in batches of five (5 KB) and segments of 100."""
    log = log_root.rows()
    for number in range(100):
        log.values(5, VALUE)
        if number % 20 == 19:
            log.roll()
    return log.write()


def plan(path, *, filesystem=None, predicate=None, **options):
    return plan_scan(
        filesystem or FileSystem(), parse_read_options({"path": str(path), **options}), predicate
    )


def spans_of(planned):
    return [span for task in planned.tasks for span in task.spans]


def offsets_of(task):
    return sum(span.end_offset - span.start_offset for span in task.spans)


# -- Tasks --------


def test_a_small_log_is_one_task(log):
    planned = plan(log.path)
    assert len(planned.tasks) == 1
    assert [(span.start_offset, span.end_offset) for span in spans_of(planned)] == [
        (start, start + 100) for start in range(0, 500, 100)
    ]


def test_the_settings_of_tasks_are_those_of_the_options(log):
    planned = plan(log.path, max_decompressed_batch_bytes="1m", fail_on_data_loss=False, use_indexes=False)
    (task,) = planned.tasks
    assert task.settings.max_batch_bytes == 1 << 20
    assert not task.settings.fail_on_data_loss
    assert not task.settings.use_indexes


def test_tasks_survive_pickling(log):
    planned = plan(log.path, max_bytes_per_partition=10_000)
    assert pickle.loads(pickle.dumps(planned.tasks)) == planned.tasks


def test_a_large_log_keeps_every_core_busy(log_root, monkeypatch):
    log = log_root.rows()
    for _ in range(12):
        log.values(1, b"x" * (1 << 20))
    log.write()
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    sizes = [task.size_bytes for task in plan(log.path).tasks]
    assert 3 <= len(sizes) <= 5
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert len(plan(log.path).tasks) == 1


@pytest.mark.parametrize("use_indexes", [True, False])
@pytest.mark.parametrize("target_bytes", [1, 5000, 12_000, 100_000, 10 << 20])
def test_tasks_are_about_as_large_as_asked_for(log, target_bytes, use_indexes):
    planned = plan(log.path, max_bytes_per_partition=target_bytes, use_indexes=use_indexes)
    batch_bytes = log.places[0][0][1]
    assert max(span.size_bytes for span in spans_of(planned)) <= target_bytes + batch_bytes
    assert (
        sum(span.size_bytes for span in spans_of(planned)) == planned.planned_bytes == planned.total_bytes()
    )


@pytest.mark.parametrize("count", [1, 2, 3, 7, 50, 500, 1000])
def test_there_are_at_least_as_many_tasks_as_asked_for(log, count):
    planned = plan(log.path, min_partitions=count)
    assert len(planned.tasks) >= min(count, 500)
    # Cut as Spark's Kafka source cuts.
    if count > 1:
        expected = split_ranges([PartitionRange(SimpleNamespace(topic="events", partition=0), 0, 500)], count)
        assert [(task.spans[0].start_offset, task.spans[-1].end_offset) for task in planned.tasks] == [
            (each.start_offset, each.end_offset) for pieces in expected for each in pieces
        ]


def test_what_is_cut_small_enough_already_is_not_cut_again(log):
    planned = plan(log.path, max_bytes_per_partition=1, min_partitions=50, use_indexes=False)
    assert [offsets_of(task) for task in planned.tasks] == [5] * 100


@pytest.mark.parametrize("count", [1, 3, 99, 100, 101, 10_000])
def test_no_task_has_more_offsets_than_asked_for(log, count):
    planned = plan(log.path, max_records_per_partition=count)
    assert max(offsets_of(task) for task in planned.tasks) <= count
    assert sum(offsets_of(task) for task in planned.tasks) == 500


def test_a_gap_costs_nothing_however_many_pieces_it_would_be(log_root):
    log = log_root.rows().values(5).roll().values(5)
    log.next_offset = 2**62
    log.roll().values(4).write()
    filesystem = FileSystem()
    spans = spans_of(plan(log.path, filesystem=filesystem, max_records_per_partition=3))
    assert all(span.end_offset - span.start_offset <= 3 for span in spans)
    covered = {offset for span in spans for offset in range(span.start_offset, span.end_offset)}
    assert covered.issuperset([*range(10), *range(2**62, 2**62 + 4)])
    assert len(spans) < 10
    assert filesystem.statistics.reads < 100


def test_both_limits_together(log):
    planned = plan(log.path, max_records_per_partition=70, min_partitions=20, max_bytes_per_partition=30_000)
    assert len(planned.tasks) >= 20
    assert max(offsets_of(task) for task in planned.tasks) <= 70
    assert max(span.size_bytes for span in spans_of(planned)) <= 30_000 + 2 * log.places[0][0][1]


@examples(40)
@given(
    start=st.integers(0, 500),
    end=st.integers(0, 500),
    split=st.fixed_dictionaries(
        {},
        optional={
            "min_partitions": st.integers(1, 60),
            "max_records_per_partition": st.integers(1, 600),
            "max_bytes_per_partition": st.integers(1, 1 << 20),
            "use_indexes": st.booleans(),
        },
    ),
)
def test_every_offset_is_planned_once_and_in_order(log, start, end, split):
    start, end = sorted([start, end])
    planned = plan(
        log.path, starting_offsets={"events": {"0": start}}, ending_offsets={"events": {"0": end}}, **split
    )
    ends = [start]
    for span in spans_of(planned):
        assert span.start_offset == ends[-1] < span.end_offset
        ends.append(span.end_offset)
    assert ends[-1] == end
    for task in planned.tasks:
        assert offsets_of(task) <= split.get("max_records_per_partition", 500)
    # Spark's rounding may give fewer than asked for.
    count = split.get("min_partitions")
    pieces = split_ranges(
        [PartitionRange(SimpleNamespace(topic="events", partition=0), start, end)],
        count,
        split.get("max_records_per_partition"),
    )
    assert len(planned.tasks) >= min(count or 0, sum(each.count for each in pieces))


def test_several_partitions_share_tasks(three_partitions):
    planned = plan(three_partitions.path)
    (task,) = planned.tasks
    assert [(span.topic, span.partition, span.start_offset, span.end_offset) for span in task.spans] == [
        ("orders", 0, 0, 6),
        ("orders", 0, 6, 10),
        ("payments", 0, 100, 105),
    ]


def test_partitions_with_nothing_to_read_are_named_and_have_no_task(log_root):
    log_root.partition("events").write()
    planned = plan(log_root.path)
    assert planned.tasks == ()
    assert [(each.log.topic, each.start_offset, each.end_offset) for each in planned.partitions] == [
        ("events", 0, 0)
    ]
    assert (planned.planned_bytes, planned.planned_segments, planned.total_segments) == (0, 0, 1)


def test_statistics_of_a_plan(log):
    planned = plan(log.path, starting_offsets={"events": {"0": 190}}, ending_offsets={"events": {"0": 210}})
    batch_bytes = log.places[0][0][1]
    assert planned.planned_bytes == 4 * batch_bytes
    assert planned.planned_segments == 2
    assert planned.total_segments == 6
    assert planned.total_bytes() == 100 * batch_bytes


# -- What planning reads --------


def test_planning_a_whole_log_reads_next_to_nothing(log_root):
    log = log_root.rows()
    for _ in range(30):
        log.values(5, VALUE).roll()
    log.write()
    filesystem = FileSystem()
    plan(log.path, filesystem=filesystem)
    assert filesystem.statistics.files_opened < 12
    assert filesystem.statistics.bytes_read < 30_000


def test_a_plan_for_a_predicate_leaves_out_what_it_rules_out(log):
    predicate = And((Comparison("offset", ">=", 120), Comparison("offset", "<", 130)))
    planned = plan(log.path, predicate=predicate)
    # A segment of 100 KB is read as a whole; to find a place in it would cost as much.
    assert [(span.start_offset, span.end_offset) for span in spans_of(planned)] == [(100, 200)]
    nothing = plan(log.path, predicate=Comparison("topic", "=", "others"))
    assert (nothing.tasks, nothing.partitions) == ((), ())


@pytest.mark.parametrize("count", [1, 3, 7, 1000])
def test_pieces_that_a_condition_rules_out_are_no_tasks(log, count):
    predicate = In("offset", (3, 4, 250, 499))
    planned = plan(log.path, predicate=predicate, max_records_per_partition=count)
    found = [(span.start_offset, span.end_offset) for span in spans_of(planned)]
    assert all(any(start <= offset < end for offset in (3, 4, 250, 499)) for start, end in found)
    assert {offset for offset in (3, 4, 250, 499) for start, end in found if start <= offset < end} == {
        3,
        4,
        250,
        499,
    }


def test_more_pieces_than_can_be_counted_are_ruled_out_at_once(log_root):
    log = log_root.rows().values(5)
    log.skip(2**61).roll().values(5).write()
    predicate = Or((Comparison("offset", "<", 3), Comparison("offset", "=", 2**61 + 7)))
    planned = plan(log.path, predicate=predicate, max_records_per_partition=2)
    assert next(task.spans[0].start_offset for task in planned.tasks) == 0
    assert sum(offsets_of(task) for task in planned.tasks) <= 6


# -- Under a live broker --------


def test_a_cleaner_that_replaces_segments_meanwhile(log):
    replaced = []

    def replace(call, path):
        if call == "open" and path.endswith("100.log") and not replaced:
            replaced.append(path)
            content = log.log_path(100).read_bytes()
            log.log_path(100).rename(path + ".deleted")
            log.log_path(100).write_bytes(content)

    bounds = {"starting_offsets": {"events": {"0": 150}}, "ending_offsets": {"events": {"0": 160}}}
    planned = plan(log.path, filesystem=before_each_call(replace), **bounds)
    assert replaced
    assert [span.version for span in spans_of(planned)] == [log.log_path(100).stat().st_ino]


def test_retention_that_deletes_segments_meanwhile(log):
    def delete(call, path):
        if call == "open" and path.endswith("000.log"):
            log.log_path(0).unlink(missing_ok=True)

    ending = {"ending_offsets": {"events": {"0": 350}}}
    planned = plan(log.path, filesystem=before_each_call(delete), min_partitions=20, **ending)
    # Planned anew, from the present log start.
    assert planned.partitions[0].start_offset == 100
    with pytest.raises(OffsetOutOfRangeError, match="the log starts at offset 100"):
        plan(log.path, starting_offsets={"events": {"0": 50}})


def test_files_that_are_gone_in_every_listing_are_an_error(log, monkeypatch):
    attempts = []

    def never(*arguments):
        attempts.append(arguments)
        raise DataLossError("gone")

    monkeypatch.setattr(plan_module, "_plan_tasks", never)
    with pytest.raises(DataLossError, match="gone"):
        plan(log.path)
    assert len(attempts) == 3
