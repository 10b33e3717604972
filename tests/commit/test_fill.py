"""Batches without records: where offsets of a restored log have none behind its last row."""

from __future__ import annotations

from storage_core.commit.placement import FillStage
from tests.commit.jobs import CONFIG, JOBS, ROOT, commit, contents, fill, rows_of, states
from tests.faults.simulated_filesystem import SimulatedFileSystem

# So many offsets fit into one batch.
MOST = 1 << 31


def portions(start_offset, end_offset):
    stage = FillStage(SimulatedFileSystem(), ROOT, JOBS[0])
    return [
        (portion.min_offset, portion.end_offset) for portion in stage.portions(start_offset, end_offset, 0)
    ]


def test_each_stands_in_for_as_many_as_fit():
    assert portions(10, 10) == []
    assert portions(10, 12) == [(10, 12)]
    assert portions(10, 10 + 2 * MOST + 1) == [
        (10, 10 + MOST),
        (10 + MOST, 10 + 2 * MOST),
        (10 + 2 * MOST, 11 + 2 * MOST),
    ]
    assert len(portions(0, 16 * MOST)) == 16


def test_beyond_some_there_are_none():
    """Each would be a segment of its own, thousands of them, or endlessly many."""
    assert portions(0, 16 * MOST + 1) == []
    assert portions(0, 1 << 62) == []


def test_a_log_that_ends_far_behind_its_last_row_gets_one_empty_segment():
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
