"""Streams over objects: a listing is kept for an interval, and what was uploaded meanwhile shows in the next one."""

from __future__ import annotations

import os

import pytest

from storage_core.errors import DataLossError
from storage_core.options import parse_read_options, parse_stream_options
from storage_core.scan.plan import plan_scan
from storage_core.scan.read import read_task, read_tasks
from storage_core.scan.spans import project, record_schema
from storage_core.scan.stream import MicroBatchPlanner
from tests.filesystem.counted_store import CountedStore
from tests.log.logs import append, open_directory
from tests.scan.equal_batches import write_partition

SCHEMA = project(record_schema(), ("topic", "partition", "offset"))


@pytest.fixture
def root(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def logs(root):
    """Yield an open log directory; ten records to a segment."""
    with open_directory(root) as opened:
        yield opened


def planner(root, **options):
    store = CountedStore(root)
    given = {"path": str(root), "startingOffsets": "earliest", **options}
    return MicroBatchPlanner(store, parse_stream_options(given)), store


def offsets_of(store, plan):
    return [
        (topic, offset)
        for task in plan.tasks
        for found in read_task(store, task, SCHEMA)
        for topic, offset in zip(found["topic"].to_pylist(), found["offset"].to_pylist(), strict=True)
    ]


def test_a_listing_is_kept_for_the_interval(logs, root):
    append(logs.create("orders"), 5)
    query, store = planner(root, pollInterval="1h")
    start = query.latest_offsets()
    assert start == {("orders", 0): 5}
    requests = len(store.requests)
    append(logs.get("orders"), 5)
    for _ in range(5):
        assert query.latest_offsets(start) == start
    assert store.count("LIST") == 1
    assert len(store.requests) == requests


def test_the_interval_is_that_of_the_file_system_unless_it_is_given(logs, root):
    append(logs.create("orders"), 5)
    query, store = planner(root)
    query.latest_offsets()
    append(logs.get("orders"), 5)
    query.latest_offsets()
    assert store.count("LIST") == 1


def test_what_is_new_is_seen_in_the_next_listing(logs, root):
    append(logs.create("orders"), 5)
    query, store = planner(root, pollInterval="0s")
    first = query.latest_offsets()
    assert first == {("orders", 0): 5}
    assert offsets_of(store, query.plan({("orders", 0): 0}, first)) == [("orders", each) for each in range(5)]
    # A longer version of the same segment, then another segment beside it, then another partition.
    append(logs.get("orders"), 3)
    second = query.latest_offsets(first)
    assert second == {("orders", 0): 8}
    append(logs.get("orders"), 15)
    third = query.latest_offsets(second)
    assert third == {("orders", 0): 23}
    append(logs.create("clicks"), 2)
    fourth = query.latest_offsets(third)
    assert fourth == {("orders", 0): 23, ("clicks", 0): 2}
    assert offsets_of(store, query.plan(first, fourth)) == [
        ("clicks", 0),
        ("clicks", 1),
        *(("orders", each) for each in range(5, 23)),
    ]
    # A query that starts again goes on from its checkpoint.
    resumed, other = planner(root, pollInterval="0s")
    assert resumed.latest_offsets(third) == fourth
    assert offsets_of(other, resumed.plan(third, fourth)) == [("clicks", 0), ("clicks", 1)]


def test_unchanged_partitions_take_no_request_but_the_listing(root):
    for number in range(20):
        write_partition(root, number, segments=2, batches=2)
    query, store = planner(root, pollInterval="0s")
    start = query.latest_offsets()
    store.reset()
    assert query.latest_offsets(start) == start
    assert {each.kind for each in store.requests} == {"LIST"}


def rewrite(path, data):
    """Upload another object under a name, as a sync does."""
    temporary = path.with_suffix(".new")
    temporary.write_bytes(data)
    os.replace(temporary, path)


@pytest.fixture
def partition(root):
    write_partition(root, segments=3, batches=5)
    return root / "events-0"


def plan_of(root, **options):
    store = CountedStore(root)
    return store, plan_scan(store, parse_read_options({"path": str(root), **options}))


def test_a_segment_that_was_uploaded_again_is_located_again(root, partition):
    store, plan = plan_of(root)
    last = partition / f"{40:020d}.log"
    # One batch more than was listed.
    grown = bytearray(last.read_bytes())
    batch_bytes = len(grown) // 5
    more = bytearray(grown[-batch_bytes:])
    more[:8] = (60).to_bytes(8, "big")
    rewrite(last, grown + more)
    rows = [offset for _, offset in offsets_of(store, plan)]
    assert rows == list(range(60))
    assert store.count("LIST") == 2


def test_an_object_that_is_replaced_while_a_read_is_planned_is_planned_again(root, partition):
    store = CountedStore(root)
    store.status(str(partition))
    last = partition / f"{40:020d}.log"
    rewrite(last, last.read_bytes()[: len(last.read_bytes()) // 5 * 4])
    plan = plan_scan(store, parse_read_options({"path": str(root)}))
    assert [offset for _, offset in offsets_of(store, plan)] == list(range(56))


@pytest.mark.parametrize("fails", [True, False])
def test_objects_that_are_deleted_before_they_are_read_are_data_loss(root, partition, fails):
    store, plan = plan_of(root, failOnDataLoss=fails)
    (partition / f"{0:020d}.log").unlink()
    if fails:
        with pytest.raises(DataLossError):
            list(read_tasks(store, plan.tasks, SCHEMA))
    else:
        assert [offset for _, offset in offsets_of(store, plan)] == list(range(20, 60))


@pytest.mark.parametrize("fails", [True, False])
def test_rows_of_another_version_do_not_follow_those_of_the_first(root, fails):
    write_partition(root, segments=1, batches=4000)
    store, plan = plan_of(root, failOnDataLoss=fails, maxBytesPerPartition="1g")
    log = root / "events-0" / f"{0:020d}.log"
    found = read_tasks(store, plan.tasks, SCHEMA)
    offsets = next(found)["offset"].to_pylist()
    write_partition(root.parent / "other", segments=1, batches=4000, start_ms=5)
    rewrite(log, (root.parent / "other" / "events-0" / log.name).read_bytes())
    if fails:
        with pytest.raises(DataLossError, match="another version of its segment"):
            list(found)
    else:
        offsets += [offset for rows in found for offset in rows["offset"].to_pylist()]
        assert offsets == list(range(len(offsets)))
        assert len(offsets) < 16_000


def test_a_longer_version_of_the_same_log_is_read_on(root):
    write_partition(root, segments=1, batches=4000)
    store, plan = plan_of(root, maxBytesPerPartition="1g")
    log = root / "events-0" / f"{0:020d}.log"
    found = read_tasks(store, plan.tasks, SCHEMA)
    offsets = next(found)["offset"].to_pylist()
    write_partition(root.parent / "other", segments=1, batches=4010)
    rewrite(log, (root.parent / "other" / "events-0" / log.name).read_bytes())
    offsets += [offset for rows in found for offset in rows["offset"].to_pylist()]
    assert offsets == list(range(16_000))
