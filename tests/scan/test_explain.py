"""What a read opens and passes over: the explanation against the plan, and pruning seen through it."""

from __future__ import annotations

import dataclasses
import json

import pytest

from storage_core import explain, parse_read_options, plan_scan, read_table
from storage_core.filesystem import FileSystem
from storage_core.scan.explanation import explain_plan

VALUE = b"x" * 20_000
START_MS = 1_767_225_600_000


@pytest.fixture
def root(log_root, record_of):
    """orders-0 and -1 and payments-0: each 100 offsets in segments of 20 (400 KB), 10 s apart; and an empty one."""
    for topic, partition in (("orders", 0), ("orders", 1), ("payments", 0)):
        log = log_root.rows(topic, partition)
        for number in range(100):
            log.append(record_of(0, START_MS + 10_000 * number, b"k", VALUE))
            if number % 20 == 19 and number < 99:
                log.roll()
        log.write()
    log_root.rows("refunds").write()
    return log_root


def spans_of(partition):
    return [(span.start_offset, span.end_offset) for span in partition.spans]


def opened(explanation):
    return {
        f"{each.topic}-{each.partition}": (each.segments_before, each.segments_opened, each.segments_after)
        for each in explanation.partitions
        if each.spans
    }


def test_an_explanation_describes_the_plan(root):
    found = explain(root.path, where="offset >= 25 AND offset < 45 AND partition = 0 AND topic = 'orders'")
    orders = found.partitions[0]
    assert (orders.topic, orders.partition, orders.directory) == ("orders", 0, str(root.path / "orders-0"))
    assert (orders.log_start_offset, orders.log_end_offset) == (0, 100)
    assert (orders.start_offset, orders.end_offset) == (0, 100)
    assert (orders.read_start_offset, orders.read_end_offset) == (25, 45)
    assert (orders.segments, orders.segments_opened, orders.segments_skipped) == (5, 2, 3)
    assert (orders.segments_before, orders.segments_after) == (1, 2)
    assert orders.skipped is None
    first, second = orders.spans
    size = (root.path / "orders-0" / f"{20:020d}.log").stat().st_size
    batch = size // 20
    assert (first.file, first.file_size_bytes) == (str(root.path / "orders-0" / f"{20:020d}.log"), size)
    assert (first.start_offset, first.end_offset, first.batches, first.task) == (25, 40, 15, 0)
    assert (first.position_bytes, first.end_position_bytes) == (5 * batch, size)
    assert (first.skipped_before_bytes, first.skipped_after_bytes) == (5 * batch, 0)
    assert (second.skipped_before_bytes, second.skipped_after_bytes) == (0, size - 5 * batch)
    assert (second.start_offset, second.end_offset, second.batches) == (40, 45, 5)
    assert first.size_bytes + second.size_bytes == orders.planned_bytes == 20 * batch
    assert orders.total_bytes == 5 * size


def test_totals_are_those_of_plan_and_partitions(root):
    options = {"where": "offset >= 25", "subscribe": "orders", "max_bytes_per_partition": "50k"}
    found = explain(root.path, **options)
    plan = plan_scan(FileSystem(), parse_read_options({"path": str(root.path), **options}))
    totals = found.totals
    assert (totals.partitions, totals.partitions_read) == (4, 2)
    assert (totals.segments, totals.segments_opened) == (10, 8)
    assert totals.tasks == len(found.tasks) == len(plan.tasks) > 2
    assert (
        totals.spans == sum(len(task.spans) for task in plan.tasks) == sum(task.spans for task in found.tasks)
    )
    assert totals.planned_bytes == plan.planned_bytes == sum(task.size_bytes for task in found.tasks)
    assert totals.total_bytes == plan.total_bytes()
    assert totals.batches == sum(task.batches for task in found.tasks) == 150
    # Pieces of one file follow each other: nothing between them is skipped twice.
    for partition in found.partitions[:2]:
        skipped = sum(span.skipped_before_bytes + span.skipped_after_bytes for span in partition.spans)
        sizes = {span.file: span.file_size_bytes for span in partition.spans}
        assert partition.planned_bytes + skipped == sum(sizes.values())


def test_what_is_not_read_says_why(root):
    found = explain(root.path, subscribe=["orders", "refunds"], where="partition = 0 AND offset > 500")
    assert {f"{each.topic}-{each.partition}": each.skipped for each in found.partitions} == {
        "orders-0": "the condition leaves none of the offsets",
        "orders-1": "the condition rules it out",
        "payments-0": "the options do not ask for it",
        "refunds-0": "there are no offsets in the range asked for",
    }
    ruled_out = found.partitions[1]
    assert (ruled_out.log_start_offset, ruled_out.segments, ruled_out.segments_skipped) == (None, None, None)


def test_an_explanation_reads_no_records(root):
    filesystem = FileSystem()
    found = explain(root.path, filesystem=filesystem)
    assert found.totals.batches == 300
    assert filesystem.statistics.bytes_read < found.totals.total_bytes / 10
    assert 0 < found.planning.bytes_read < filesystem.statistics.bytes_read
    # Its own work does not count as planning, nor does what was asked of the file system before.
    assert explain(root.path, filesystem=filesystem).planning == found.planning


def test_an_explanation_is_written_as_json(root):
    found = explain(root.path, where="offset < 5")
    loaded = json.loads(json.dumps(found.to_dict()))
    assert loaded == found.to_dict()
    assert loaded["partitions"][0]["spans"][0]["batches"] == 5
    assert loaded["totals"]["planned_bytes"] == found.totals.planned_bytes
    assert loaded["planning"]["bytes_read"] == found.planning.bytes_read


def test_an_explanation_is_read_as_a_table(root):
    lines = str(explain(root.path, where="offset < 5 AND topic <> 'payments'")).splitlines()
    assert lines[0].split() == [
        "partition",
        "offsets",
        "read",
        "of",
        "offsets",
        "segments",
        "bytes",
        "batches",
    ]
    assert lines[1].split()[:4] == ["orders-0", "0", "to", "5"]
    assert lines[2].startswith("  00000000000000000000.log  bytes 0 to ")
    assert lines[2].endswith("offsets 0 to 5, 5 batches, task 0")
    assert "payments-0  not read: the condition rules it out" in lines
    assert lines[-2].startswith("2 of 4 partitions, 2 of 11 segments, ")
    assert lines[-1].startswith("planning opened ")


def test_a_notebook_shows_a_table(root):
    found = explain(root.path, subscribe="orders", where="offset < 5 AND partition = 1")
    assert repr(found) == str(found)
    shown = found._repr_html_()
    assert shown.count("<tr>") == len(found.partitions) + 1
    assert "<td>orders-1</td><td>0 to 5</td>" in shown
    assert '<td>payments-0</td><td colspan="5">not read: the options do not ask for it</td>' in shown
    assert str(found).splitlines()[-1] in shown


def test_a_notebook_shows_neither_markup_of_others_nor_thousands_of_rows(root):
    found = explain(root.path, subscribe="orders")
    evil = dataclasses.replace(found.partitions[1], topic="<script>")
    shown = dataclasses.replace(found, partitions=(evil,) * 1_002)._repr_html_()
    assert "<script>" not in shown
    assert shown.count("<td>&lt;script&gt;-1</td>") == 1_000
    assert '<td colspan="6">and 2 more partitions</td>' in shown


def test_long_lists_of_pieces_are_cut_short_in_the_table(root):
    lines = str(explain(root.path, subscribe="orders", max_records_per_partition=2)).splitlines()
    assert sum(line.startswith("  and 30 more pieces") for line in lines) == 2


def test_damage_ends_the_count_of_batches(root, overwrite):
    overwrite(root.path / "orders-0" / f"{20:020d}.log", 16, b"\x07")
    found = explain(root.path, subscribe="orders")
    assert [span.batches for span in found.partitions[0].spans] == [20, 0, 20, 20, 20]


def test_a_plan_can_be_explained_by_whoever_has_made_it(root):
    filesystem = FileSystem()
    plan = plan_scan(filesystem, parse_read_options({"path": str(root.path)}))
    found = explain_plan(plan, filesystem.statistics)
    assert found.totals.planned_bytes == plan.planned_bytes


# -- Pruning --------


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("topic = 'payments'", {"payments-0": (0, 5, 0)}),
        ("topic LIKE 'ord%' AND partition < 1", {"orders-0": (0, 5, 0)}),
        ("NOT topic LIKE 'ord%'", {"payments-0": (0, 5, 0)}),
        ("partition BETWEEN 1 AND 5", {"orders-1": (0, 5, 0)}),
        ("topic > 'orders' AND partition IN (0, 7)", {"payments-0": (0, 5, 0)}),
        ("topic = 'payments' AND offset >= 40", {"payments-0": (2, 3, 0)}),
        ("topic = 'payments' AND offset IN (5, 93)", {"payments-0": (0, 2, 0)}),
        ("topic = 'payments' AND (offset < 20 OR offset >= 80)", {"payments-0": (0, 2, 0)}),
        # Of producers' timestamps, headers prove nothing.
        ("topic = 'payments' AND timestamp >= '2026-01-01 00:10:00'", {"payments-0": (0, 5, 0)}),
        ("topic = 'payments' AND timestamp < '2026-01-01 00:10:00'", {"payments-0": (0, 5, 0)}),
        (
            "partition = 1 AND offset < 20 OR topic = 'payments' AND offset > 80",
            {"orders-1": (0, 1, 4), "payments-0": (4, 1, 0)},
        ),
        ("timestamp < '2026-01-01' AND timestamp > '2026-01-01'", {}),
        ("topic = 'a' AND topic = 'b'", {}),
        ("offset = NULL", {}),
        ("topic IS NULL", {}),
        ("FALSE", {}),
    ],
)
def test_segments_that_hold_nothing_wanted_are_not_opened(root, where, expected):
    assert opened(explain(root.path, where=where)) == expected


@pytest.mark.parametrize("time", ["00:10:00", "00:10:01"])
def test_a_promise_closes_the_segments_before_it(root, time):
    where = f"topic = 'payments' AND timestamp >= '2026-01-01 {time}'"
    found = explain(root.path, where=where, max_timestamp_disorder="0 ms")
    assert opened(found) == {"payments-0": (3, 2, 0)}


def test_a_promise_closes_the_segments_after_it(root):
    where = "topic = 'payments' AND timestamp < '2026-01-01 00:05:00'"
    found = explain(root.path, where=where, max_timestamp_disorder="30 seconds")
    assert opened(found) == {"payments-0": (0, 2, 3)}
    # 5 minutes and a half, with six records a minute.
    assert spans_of(found.partitions[2]) == [(0, 20), (20, 33)]
    assert read_table(root.path, where=where, max_timestamp_disorder="30 seconds").num_rows == 30


def test_a_contradiction_opens_no_file_of_a_partition(root):
    filesystem = FileSystem()
    found = explain(root.path, filesystem=filesystem, where="offset < 5 AND offset > 5")
    assert found.totals.planned_bytes == 0
    assert found.planning.bytes_read == 0
    assert filesystem.statistics.files_opened == found.planning.files_opened
