"""Offsets and an epoch are put into a staged segment, and nothing else is changed."""

from __future__ import annotations

import dataclasses

import pytest

from storage_core.commit.prepare import SegmentPatch, patch_segment
from storage_core.commit_replay.staged_batches import batch_heads, fingerprint
from storage_core.errors import CorruptRecordError
from storage_core.record.record_batches import RecordBatches
from tests.commit.jobs import JOBS, ROOT
from tests.commit_replay.test_append import batch
from tests.faults.simulated_filesystem import SimulatedFileSystem

NAME = f".segmentlog-stage-{JOBS[0]}-0-0-0"
PATH = f"{ROOT}/{NAME}.log"
# Some larger than what is read at once.
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
    return dataclasses.replace(SegmentPatch(NAME, 1000, 7, len(LOG), value, count, False), **changes)


def patch(filesystem, planned):
    patch_segment(filesystem, ROOT, planned, flush=True)
    return filesystem.files()[PATH]


def test_each_batch_gets_its_offset_and_the_epoch(filesystem):
    planned = segment(filesystem)
    expected = b"".join(bytes(piece) for piece in RecordBatches.parse(LOG).with_offsets(1000, 7).pieces)
    assert patch(filesystem, planned) == expected
    calls = filesystem.calls
    assert patch(filesystem, planned) == expected
    assert filesystem.calls == calls + 1, "only flushed"


def test_it_can_be_done_again_with_other_offsets(filesystem):
    planned = segment(filesystem)
    patch(filesystem, planned)
    expected = b"".join(bytes(piece) for piece in RecordBatches.parse(LOG).with_offsets(5, 8).pieces)
    assert patch(filesystem, dataclasses.replace(planned, base_offset=5, leader_epoch=8)) == expected


def test_offsets_that_are_kept_stay(filesystem):
    data = batch(base_offset=50) + batch(base_offset=70)
    filesystem.put(PATH, data)
    with filesystem.open(PATH) as file:
        value = fingerprint(batch_heads(file, 0, len(data)))
    found = RecordBatches.parse(patch(filesystem, SegmentPatch(NAME, 50, 7, len(data), value, 23, True)))
    assert found.headers["base_offset"].tolist() == [50, 70]
    assert found.headers["leader_epoch"].tolist() == [7, 7]


@pytest.mark.parametrize(
    "changes",
    [{"fingerprint": 1}, {"offset_count": 5}, {"size_bytes": len(LOG) - 1}, {"size_bytes": len(LOG) + 1}],
)
def test_what_was_not_staged_is_refused(filesystem, changes):
    with pytest.raises(CorruptRecordError, match="that a task has staged"):
        patch(filesystem, segment(filesystem, **changes))


@pytest.mark.parametrize("position", [8, 16, 26])
def test_what_is_no_batch_is_refused(filesystem, position):
    planned = segment(filesystem)
    filesystem.put(PATH, LOG[:position] + b"\xff" + LOG[position + 1 :])
    with pytest.raises(CorruptRecordError):
        patch(filesystem, planned)
