from __future__ import annotations

import dataclasses
import pickle

import pytest

from storage_core.segment import AbortedTransaction, OffsetPosition, SegmentEnd, TimestampOffset

VALUES = [
    OffsetPosition(8, 608),
    TimestampOffset(60, 7),
    AbortedTransaction(2, 2, 4, 0),
    SegmentEnd(10, 760),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_travel_to_other_processes(value):
    assert pickle.loads(pickle.dumps(value)) == value


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_do_not_change(value):
    field = dataclasses.fields(value)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, field, 1)
