"""What planning hands to tasks travels to other processes."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from storage_core.scan.spans import ReadSettings, ScanTask
from storage_core.segment import AbortedTransaction


@pytest.fixture
def task(span_of):
    spans = (
        span_of(aborted_transactions=(AbortedTransaction(7, 2, 5, 6),)),
        span_of(position_bytes=500, end_position_bytes=700),
    )
    return ScanTask(spans, ReadSettings(1000))


def test_sizes_are_those_of_the_bytes_covered(task):
    assert [span.size_bytes for span in task.spans] == [1000, 200]
    assert task.size_bytes == 1200


def test_a_task_survives_pickling(task):
    assert pickle.loads(pickle.dumps(task)) == task


def test_a_task_is_small_on_the_wire(span_of):
    # Spark sends every task to a Python worker.
    task = ScanTask((span_of(),), ReadSettings(64 << 20))
    assert len(pickle.dumps(task)) < 600


def test_a_task_cannot_be_changed(task):
    with pytest.raises(dataclasses.FrozenInstanceError):
        task.spans[0].end_offset = 11


def test_by_default_loss_is_an_error_and_indexes_are_used():
    assert ReadSettings(1000) == ReadSettings(1000, fail_on_data_loss=True, use_indexes=True)
