from __future__ import annotations

import numpy as np
import pytest

from storage_core.record.batch_header import gather

BUFFER = np.arange(20, dtype=np.uint8)


def test_items_of_any_type_at_any_places():
    positions = np.array([3, 0, 16, 3])
    assert gather(BUFFER, positions, np.dtype(">i4")).tolist() == [
        0x03040506,
        0x00010203,
        0x10111213,
        0x03040506,
    ]
    pair = np.dtype([("first", "u1"), ("second", ">u2")])
    assert gather(BUFFER, positions, pair).tolist() == [(3, 0x0405), (0, 0x0102), (16, 0x1112), (3, 0x0405)]
    assert gather(BUFFER, np.array([17, 1]), np.dtype((np.uint8, 3))).tolist() == [[17, 18, 19], [1, 2, 3]]


@pytest.mark.parametrize("size_bytes", [0, 3, 4, 20])
def test_nothing_is_found_at_no_places(size_bytes):
    assert gather(BUFFER[:size_bytes], np.zeros(0, np.int64), np.dtype(">i4")).tolist() == []


@pytest.mark.parametrize(("size_bytes", "position"), [(20, 17), (4, 1), (3, 0), (0, 0)])
def test_an_item_beyond_the_end_is_refused(size_bytes, position):
    with pytest.raises(IndexError):
        gather(BUFFER[:size_bytes], np.array([position]), np.dtype(">i4"))
