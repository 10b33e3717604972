"""Padding: batches without records for offsets that a restored log has after its last row."""

from __future__ import annotations

from storage_core.commit.job_spec import JobContext, JobSpec
from storage_core.commit.partition_state import PartitionState
from storage_core.commit.restored_offsets import GapFill
from tests.commit.jobs import CONFIG, JOBS, ROOT, commit, contents, fill, rows_of, states
from tests.faults.simulated_filesystem import SimulatedFileSystem

# One batch spans at most this many offsets.
MOST = 1 << 31


def padding(start_offset, end_offset):
    stage = GapFill(JobContext(SimulatedFileSystem(), ROOT, JobSpec(job_id=JOBS[0])))
    batches = stage.batches(PartitionState("t", 0), start_offset, end_offset)
    assert [each.offset_count for each in batches] == [
        each.max_offset + 1 - each.min_offset for each in batches
    ]
    return [(each.min_offset, each.max_offset + 1) for each in batches]


def test_each_batch_spans_as_many_offsets_as_fit():
    assert padding(10, 10) == []
    assert padding(10, 12) == [(10, 12)]
    assert padding(10, 10 + 2 * MOST + 1) == [
        (10, 10 + MOST),
        (10 + MOST, 10 + 2 * MOST),
        (10 + 2 * MOST, 11 + 2 * MOST),
    ]
    assert len(padding(0, 16 * MOST)) == 16


def test_a_longer_gap_is_not_padded():
    """Each batch becomes a segment of its own, and there would be thousands of them."""
    assert padding(0, 16 * MOST + 1) == []
    assert padding(0, 1 << 62) == []


def test_a_log_that_ends_far_after_its_last_row_gets_one_empty_segment():
    filesystem = SimulatedFileSystem()
    fill(filesystem, ROOT, ("orders", 0, 1))
    rows = {("far", 0): [(5, b"first"), (6, b"second")]}
    commit(
        filesystem,
        ROOT,
        JOBS[0],
        rows,
        preserve_offsets=True,
        new_partitions={"far": 1},
        restored_offsets={("far", 0): (5, 1 << 62)},
    )
    assert contents(filesystem, ROOT)["far", 0] == [(5, b"first"), (6, b"second")]
    assert states(filesystem, ROOT)["far", 0] == (5, 1 << 62)
    logs = [
        path for path in filesystem.files() if path.startswith(f"{ROOT}/far-0/") and path.endswith(".log")
    ]
    assert [int(path[-24:-4]) for path in sorted(logs)] == [5, 1 << 62]
    commit(filesystem, ROOT, JOBS[1], rows_of(("far", 0, 1)), config=CONFIG)
    assert contents(filesystem, ROOT)["far", 0][-1][0] == 1 << 62
