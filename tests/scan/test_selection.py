"""Which batches a read needs, by their headers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import CorruptRecordError
from storage_core.record.batch_header import HEADER_DTYPE
from storage_core.scan.selection import AbortedRanges, select_batches
from storage_core.segment import AbortedTransaction

NONE_ABORTED = AbortedRanges(())
TRANSACTIONAL, CONTROL = 0x10, 0x20


@pytest.fixture
def select(batch_bytes, window_of, span_of):
    """Selects from batches given as (base offset, last offset delta, other header fields)."""

    def select(batches, start=0, end=100, *, aborted=NONE_ABORTED, lowest_offset=0):
        data = b"".join(
            batch_bytes(base, [b"r"] if count else [], last_offset_delta=delta, **fields)
            for base, delta, count, fields in (
                (base, delta, fields.pop("count", 1), fields) for base, delta, fields in batches
            )
        )
        span = span_of(start_offset=start, end_offset=end)
        return select_batches(window_of(data, 5000), span, aborted, lowest_offset)

    return select


def test_batches_outside_of_the_offsets_are_neither_checked_nor_decoded(select):
    batches = [(base, 9, {}) for base in range(0, 50, 10)]
    chosen = select(batches, 15, 31)
    assert chosen.checked.tolist() == chosen.decoded.tolist() == [1, 2, 3]
    assert select(batches, 19, 20).checked.tolist() == [1]
    assert select(batches, 20, 21).checked.tolist() == [2]
    assert select(batches, 50, 60).checked.tolist() == []


def test_a_batch_that_begins_at_the_end_ends_the_reading(select):
    batches = [(0, 9, {}), (10, 9, {})]
    assert not select(batches, 0, 11).is_past_end
    assert select(batches, 0, 10).is_past_end
    assert select(batches, 0, 5).is_past_end
    assert not select(batches[:1], 0, 10).is_past_end


def test_the_next_offset_counts_gaps_at_the_end_of_a_batch(select):
    assert select([(0, 9, {}), (20, 5, {})]).next_offset == 26


def test_control_batches_and_empty_ones_are_checked_only(select):
    chosen = select([(0, 0, {"attributes": CONTROL | TRANSACTIONAL}), (1, 0, {"count": 0}), (2, 0, {})])
    assert chosen.checked.tolist() == [0, 1, 2]
    assert chosen.decoded.tolist() == [2]


@pytest.mark.parametrize(
    ("batches", "lowest_offset", "wrong"),
    [
        ([(0, 9, {}), (5, 9, {})], 0, 1),
        ([(10, 9, {}), (0, 9, {})], 0, 1),
        ([(0, 9, {}), (0, 9, {})], 0, 1),
        ([(5, 0, {})], 6, 0),
        ([(0, -1, {})], 0, 0),
        ([(2**63 - 1, 1, {})], 0, 0),
        ([(-1, 0, {})], 0, 0),
    ],
)
def test_offsets_must_ascend(select, batches, lowest_offset, wrong):
    with pytest.raises(CorruptRecordError, match="batches are out of order") as caught:
        select(batches, lowest_offset=lowest_offset)
    size = 62
    assert caught.value.position_bytes == 5000 + wrong * size
    assert caught.value.end_position_bytes == 5000 + wrong * size + size
    assert caught.value.offset == batches[wrong][0]
    assert caught.value.path == "/logs/events-0/0.log"


class TestAborted:
    ABORTED = AbortedRanges((AbortedTransaction(7, 10, 30, 31), AbortedTransaction(8, 12, 15, 16)))

    @pytest.mark.parametrize(
        ("base", "producer_id", "is_aborted"),
        [
            (9, 7, False),
            (10, 7, True),
            (29, 7, True),
            (30, 7, True),
            (31, 7, False),
            (14, 8, True),
            (16, 8, False),
            (14, 9, False),
        ],
    )
    def test_a_producers_batches_between_first_offset_and_marker(self, select, base, producer_id, is_aborted):
        batches = [(base, 0, {"producer_id": producer_id, "attributes": TRANSACTIONAL})]
        chosen = select(batches, aborted=self.ABORTED)
        assert chosen.decoded.tolist() == ([] if is_aborted else [0])
        # Damage is reported there too.
        assert chosen.checked.tolist() == [0]

    def test_a_producers_batches_outside_of_transactions_stay(self, select):
        assert select([(14, 0, {"producer_id": 7})], aborted=self.ABORTED).decoded.tolist() == [0]

    def test_none(self, select):
        batches = [(0, 0, {"producer_id": 7, "attributes": TRANSACTIONAL})]
        assert select(batches).decoded.tolist() == [0]


ranges = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 60), st.integers(0, 20)), max_size=12)
data_batches = st.lists(st.tuples(st.integers(1, 5), st.booleans(), st.integers(1, 5)), max_size=30)


@given(ranges, data_batches)
def test_any_transactions_overlapping_or_not(ranges, batches):
    transactions = tuple(
        AbortedTransaction(producer_id, first, first + length, 0) for producer_id, first, length in ranges
    )
    headers = np.zeros(len(batches), HEADER_DTYPE)
    headers["producer_id"] = [producer_id for producer_id, _, _ in batches]
    headers["attributes"] = [TRANSACTIONAL * is_transactional for _, is_transactional, _ in batches]
    headers["base_offset"] = np.cumsum([0, *(step for _, _, step in batches)])[: len(batches)]
    expected = [
        is_transactional
        and any(
            each.producer_id == producer_id and each.first_offset <= base <= each.last_offset
            for each in transactions
        )
        for (producer_id, is_transactional, _), base in zip(batches, headers["base_offset"], strict=True)
    ]
    found = AbortedRanges(transactions).cover(headers, headers["base_offset"].astype(np.int64))
    assert found.tolist() == expected
