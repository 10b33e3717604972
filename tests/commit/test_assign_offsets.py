"""Offsets and a leader epoch are written to a staged segment, and nothing else changes."""

from __future__ import annotations

import dataclasses

import pytest

from storage_core.commit.job_spec import JobContext, JobSpec
from storage_core.commit.manifest import StagedBatches
from storage_core.commit.prepare import assign_offsets
from storage_core.commit_replay.staged_batches import batch_heads, fingerprint
from storage_core.errors import CorruptRecordError
from storage_core.record.record_batches import RecordBatches
from tests.commit.jobs import JOBS, ROOT
from tests.commit_replay.test_append import batch
from tests.faults.simulated_filesystem import SimulatedFileSystem

NAME = f".segmentlog-stage-{JOBS[0]}-0-0-0"
PATH = f"{ROOT}/{NAME}.log"
# Some batches are larger than one read.
LOG = b"".join(batch(count=1 + number % 5, size=1 + 997 * (number % 7)) for number in range(60))


@pytest.fixture
def filesystem():
    filesystem = SimulatedFileSystem()
    filesystem.put(PATH, LOG)
    return filesystem


def segment(filesystem, **changes):
    with filesystem.open(PATH) as file:
        value = fingerprint(batch_heads(file, 0, len(LOG)))
    count = sum(1 + number % 5 for number in range(60))
    staged = StagedBatches("t", 0, NAME, 0, len(LOG), 60, count, fingerprint=value)
    return dataclasses.replace(staged, **changes)


def assigned(filesystem, staged, base_offset=1000, leader_epoch=7):
    job = JobContext(filesystem, ROOT, JobSpec(job_id=JOBS[0]))
    assign_offsets(job, staged, base_offset, leader_epoch)
    return filesystem.files()[PATH]


def test_each_batch_gets_its_offset_and_the_epoch(filesystem):
    staged = segment(filesystem)
    expected = b"".join(bytes(piece) for piece in RecordBatches.parse(LOG).with_offsets(1000, 7).pieces)
    assert assigned(filesystem, staged) == expected
    calls = filesystem.calls
    assert assigned(filesystem, staged) == expected
    assert filesystem.calls == calls + 1, "only flushed"


def test_offsets_can_be_assigned_again(filesystem):
    staged = segment(filesystem)
    assigned(filesystem, staged)
    expected = b"".join(bytes(piece) for piece in RecordBatches.parse(LOG).with_offsets(5, 8).pieces)
    assert assigned(filesystem, staged, base_offset=5, leader_epoch=8) == expected


def test_kept_offsets_are_not_changed(filesystem):
    data = batch(base_offset=50) + batch(base_offset=70)
    filesystem.put(PATH, data)
    with filesystem.open(PATH) as file:
        value = fingerprint(batch_heads(file, 0, len(data)))
    staged = StagedBatches("t", 0, NAME, 0, len(data), 2, 6, 0, 0, value, min_offset=50, max_offset=72)
    found = RecordBatches.parse(assigned(filesystem, staged, base_offset=50))
    assert found.headers["base_offset"].tolist() == [50, 70]
    assert found.headers["leader_epoch"].tolist() == [7, 7]


@pytest.mark.parametrize(
    "changes",
    [{"fingerprint": 1}, {"record_count": 5}, {"size_bytes": len(LOG) - 1}, {"size_bytes": len(LOG) + 1}],
)
def test_another_segment_than_the_staged_one_is_refused(filesystem, changes):
    with pytest.raises(CorruptRecordError, match="that a task has staged"):
        assigned(filesystem, segment(filesystem, **changes))


@pytest.mark.parametrize("position", [8, 16, 26])
def test_a_damaged_batch_is_refused(filesystem, position):
    staged = segment(filesystem)
    filesystem.put(PATH, LOG[:position] + b"\xff" + LOG[position + 1 :])
    with pytest.raises(CorruptRecordError):
        assigned(filesystem, staged)
