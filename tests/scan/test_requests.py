"""How many requests planning and reading make of an object store, and how many of them follow one another."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from storage_core import read_table
from storage_core.options import parse_read_options
from storage_core.scan.plan import plan_scan
from storage_core.scan.read import read_schema, read_tasks
from storage_core.tier import open_file_system
from storage_core.views import find_view, plan_view, read_view_task
from tests.filesystem.counted_store import CountedStore
from tests.scan.equal_batches import RECORDS, START_MS, write_partition

SEGMENTS = 1000
OFFSETS = SEGMENTS * 15 * RECORDS


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Return one partition of 1,000 segments of 62 KB, 3,002 objects."""
    path = tmp_path_factory.mktemp("requests") / "logs"
    write_partition(path)
    return path


@pytest.fixture(scope="module")
def many_partitions(tmp_path_factory):
    """300 partitions of two segments."""
    path = tmp_path_factory.mktemp("partitions") / "logs"
    for number in range(300):
        write_partition(path, number, segments=2, batches=2)
    for name in (
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "log-start-offset-checkpoint",
    ):
        (path / name).write_text("0\n0\n")
    return path


def planned(root, **options):
    store = CountedStore(root)
    parsed = parse_read_options({"path": str(root), **options})
    return store, plan_scan(store, parsed), parsed


def test_without_bounds_a_plan_takes_a_listing_and_the_end_of_the_log(root):
    store, plan, _ = planned(root)
    assert plan.planned_segments == SEGMENTS
    assert store.count("LIST") == 4
    assert store.count("HEAD") == 0
    assert len(store.gets()) <= 2


def test_a_read_asks_for_each_byte_once(root):
    store, plan, options = planned(root)
    store.reset()
    assert sum(found.num_rows for found in read_tasks(store, plan.tasks, read_schema(options))) == OFFSETS
    assert store.count("LIST") == 0
    asked = Counter((each.path, each.start, each.end) for each in store.gets())
    assert set(asked.values()) == {1}
    assert sum(end - start for _, start, end in asked) == plan.planned_bytes


def test_small_files_are_fetched_while_others_are_read(root):
    store, plan, options = planned(root)
    store.reset()
    for _ in read_tasks(store, plan.tasks, read_schema(options)):
        pass
    assert len(store.gets()) == SEGMENTS
    assert store.rounds <= SEGMENTS / 16


def test_four_windows_of_a_large_file_are_under_way(tmp_path):
    write_partition(tmp_path / "logs", segments=1, batches=8000)
    store, plan, options = planned(tmp_path / "logs", maxBytesPerPartition="1g")
    store.reset()
    rows = sum(found.num_rows for found in read_tasks(store, plan.tasks, read_schema(options)))
    assert rows == 8000 * RECORDS
    assert len(store.gets()) == 8
    assert store.rounds <= 4


def test_a_reader_that_stops_early_closes_what_was_fetched_ahead(root):
    store, plan, options = planned(root)
    store.reset()
    found = read_tasks(store, plan.tasks, read_schema(options))
    next(found)
    found.close()
    assert store.open_files == 0


def test_transactions_are_replayed_while_the_next_segments_are_fetched(root):
    # Without snapshots and checkpoints, each header is looked at: once for the last stable offset, once for what aborted.
    store, plan, _ = planned(root, isolationLevel="read_committed")
    assert plan.planned_segments == SEGMENTS
    assert len(store.gets()) <= 2 * SEGMENTS + 2
    assert store.rounds <= 2 * SEGMENTS / 8
    assert store.open_files == 0


@pytest.mark.parametrize("view", ["segments", "partitions"])
def test_segments_are_examined_side_by_side(root, view):
    store = CountedStore(root)
    tasks = plan_view(store, parse_read_options({"path": str(root), "view": view}))
    found = [rows for task in tasks for rows in read_view_task(store, task, find_view(view).schema)]
    assert sum(rows.num_rows for rows in found) == (SEGMENTS if view == "segments" else 1)
    assert found[0]["modified"].null_count == len(found[0]) if view == "segments" else True
    assert store.rounds <= 130


def test_offsets_take_a_look_up_each(root):
    store, plan, options = planned(
        root, startingOffsets='{"events":{"0":54321}}', endingOffsets='{"events":{"0":54999}}'
    )
    assert store.count("LIST") == 4
    assert len(store.gets()) <= 10
    assert sum(found.num_rows for found in read_tasks(store, plan.tasks, read_schema(options))) == 678


@pytest.mark.parametrize("offset", [100, 54_000, OFFSETS - 1])
def test_a_starting_timestamp_takes_few_rounds(root, offset):
    store, plan, _ = planned(root, startingTimestamp=str(START_MS + offset))
    assert plan.partitions[0].start_offset == offset
    assert store.rounds <= 40
    assert store.count("HEAD") == 0


@pytest.mark.parametrize("disorder", [None, "1 second"])
def test_a_condition_on_timestamps_takes_few_rounds(root, disorder):
    where = "timestamp >= '2023-11-14T22:14:14Z' and timestamp < '2023-11-14T22:14:14.6Z'"
    options = {} if disorder is None else {"maxTimestampDisorder": disorder}
    store, plan, parsed = planned(root, where=where, **options)
    assert store.rounds <= 40
    if disorder is not None:
        # 600 records match, and 1,000 before and after them may.
        assert plan.planned_bytes < 60 * 62_000
    rows = sum(found.num_rows for found in read_tasks(store, plan.tasks, read_schema(parsed)))
    assert rows == 600


ALL_FROM_3 = '{"events":' + json.dumps({str(number): 3 for number in range(300)}) + "}"


@pytest.mark.parametrize(
    ("options", "rounds"),
    [({}, 1), ({"startingOffsets": ALL_FROM_3}, 2), ({"startingTimestamp": str(START_MS + 10)}, 5)],
    ids=["no bounds", "offsets", "timestamp"],
)
def test_partitions_are_looked_at_side_by_side(many_partitions, options, rounds):
    store, plan, _ = planned(many_partitions, **options)
    assert len(plan.partitions) == 300
    assert store.count("LIST") == 3
    in_root = Counter(each.path for each in store.gets("checkpoint") if "events-" not in each.path)
    assert sorted(in_root.values()) == [1, 1, 1]
    # 64 at a time.
    assert store.rounds <= 3 + 3 + 5 * rounds


@pytest.mark.parametrize(
    ("options", "most", "rows"),
    [
        pytest.param({}, 2, OFFSETS, marks=pytest.mark.thorough),
        (
            {"startingOffsets": '{"events":{"0":54321}}', "endingOffsets": '{"events":{"0":54999}}'},
            10,
            678,
        ),
    ],
    ids=["no bounds", "offsets"],
)
def test_a_server_is_asked_no_more_than_that(root, quick_bucket, small_server, options, most, rows):
    small_server.store.link_tree(quick_bucket.name, root, "logs")
    given = {"path": quick_bucket.uri("logs"), **options, **quick_bucket.storage_options}
    parsed = parse_read_options(given)
    filesystem = open_file_system(parsed.storage)
    plan = plan_scan(filesystem, parsed)
    counts = quick_bucket.counts()
    assert counts.keys() == {"LIST", "GET"}
    assert counts["LIST"] == 4
    assert counts["GET"] <= most
    quick_bucket.forget()
    found = read_tasks(filesystem, plan.tasks, read_schema(parsed))
    assert sum(batch.num_rows for batch in found) == rows
    assert quick_bucket.sent_twice() == {}
    assert quick_bucket.counts().keys() == {"GET"}


def test_a_table_of_one_long_segment_takes_its_end_and_its_windows(tmp_path, quick_bucket):
    write_partition(tmp_path / "logs", segments=1, batches=5000)
    quick_bucket.put_tree(tmp_path / "logs", "logs")
    found = read_table(quick_bucket.uri("logs"), storage_options=quick_bucket.storage_options)
    assert found.num_rows == 5000 * RECORDS
    # 20 MB: its end, and three windows. It is not cut, since nothing is read beside it.
    assert len(quick_bucket.ranges(".log")) == 4
    assert not quick_bucket.sent_twice()
