"""Which batches a read needs, by their headers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.record.batch_header import HEADER_DTYPE
from storage_core.record.batch_window import walk_window
from storage_core.scan.span_reader import AbortedRanges, select_batches
from storage_core.segment import AbortedTransaction
from tests.record.encoding import Batch, counted_records
from tests.record.legacy_encoding import Message, Wrapper, plain_messages
from tests.record.sections import padded

NONE_ABORTED = AbortedRanges(())
TRANSACTIONAL, CONTROL = 0x10, 0x20
LIMIT = 64 << 20


@pytest.fixture
def select(batch_bytes, window_of, span_of):
    """Selects from batches given as (base offset, last offset delta, other header fields)."""

    def select(
        batches, start=0, end=100, *, aborted=NONE_ABORTED, lowest_offset=0, limit_bytes=LIMIT, **span_fields
    ):
        data = b"".join(
            batch_bytes(base, [b"r"] if count else [], last_offset_delta=delta, **fields)
            for base, delta, count, fields in (
                (base, delta, fields.pop("count", 1), fields) for base, delta, fields in batches
            )
        )
        span = span_of(start_offset=start, end_offset=end, **span_fields)
        return select_batches(window_of(data, 5000), span, aborted, lowest_offset, limit_bytes)

    return select


def test_batches_outside_of_the_offsets_are_not_decoded(select):
    batches = [(base, 9, {}) for base in range(0, 50, 10)]
    assert select(batches, 15, 31).decoded.tolist() == [1, 2, 3]
    assert select(batches, 19, 20).decoded.tolist() == [1]
    assert select(batches, 20, 21).decoded.tolist() == [2]
    assert select(batches, 50, 60).decoded.tolist() == []


def test_the_offsets_of_each_batch(select):
    chosen = select([(0, 9, {}), (20, 5, {})])
    assert (chosen.base_offsets.tolist(), chosen.last_offsets.tolist()) == ([0, 20], [9, 25])


def test_control_batches_and_empty_ones_are_not_decoded(select):
    chosen = select([(0, 0, {"attributes": CONTROL | TRANSACTIONAL}), (1, 0, {"count": 0}), (2, 0, {})])
    assert chosen.decoded.tolist() == [2]
    assert chosen.out_of_place.tolist() == []


@pytest.mark.parametrize(
    ("batches", "lowest_offset", "out_of_place"),
    [
        ([(0, 9, {}), (10, 9, {}), (30, 0, {})], 0, []),
        ([(0, 9, {}), (5, 9, {})], 0, [1]),
        ([(10, 9, {}), (0, 9, {})], 0, [1]),
        ([(0, 9, {}), (0, 9, {}), (0, 9, {})], 0, [1, 2]),
        ([(5, 0, {})], 5, []),
        ([(5, 0, {})], 6, [0]),
        ([(5, 0, {})], 2**63, [0]),
        ([(0, -1, {})], 0, [0]),
        ([(2**63 - 1, 0, {})], 0, []),
        ([(2**63 - 1, 1, {})], 0, [0]),
        ([(2**63 - 1, 0, {})], 2**63, [0]),
        ([(2**63 - 1, 0, {}), (5, 0, {})], 0, [1]),
        ([(2**63 - 1, 0, {}), (2**63 - 1, 0, {})], 0, [1]),
        ([(-1, 0, {})], 0, [0]),
    ],
)
def test_offsets_must_ascend(select, batches, lowest_offset, out_of_place):
    assert select(batches, lowest_offset=lowest_offset).out_of_place.tolist() == out_of_place


def test_offsets_must_lie_before_the_next_segment(select):
    batches = [(0, 9, {}), (10, 9, {})]
    assert select(batches, segment_end_offset=None).out_of_place.tolist() == []
    assert select(batches, segment_end_offset=20).out_of_place.tolist() == []
    assert select(batches, segment_end_offset=19).out_of_place.tolist() == [1]
    assert select(batches, segment_end_offset=9).out_of_place.tolist() == [0, 1]


def test_batches_must_not_be_larger_than_the_limit(select):
    size = 62
    assert select([(0, 0, {})], limit_bytes=size).out_of_place.tolist() == []
    assert select([(0, 0, {})], limit_bytes=size - 1).out_of_place.tolist() == [0]


class TestOlderFormats:
    """Of a wrapper, only the last offset is known."""

    LOG = (
        Message(3),
        Message(4, magic=0),
        Wrapper(plain_messages(3, start=8, magic=0), magic=0),  # 8 to 10, as far as is known from 5 on
        Batch(counted_records(2), 11),
        Wrapper(plain_messages(3, start=20)),  # 20 to 22, as far as is known from 13 on
    )

    @pytest.fixture
    def choose(self, span_of):
        def choose(entries=self.LOG, start=0, end=100, lowest_offset=0):
            data = b"".join(entry.encode() for entry in entries)
            window = walk_window("/logs/events-0/0.log", 5000, padded(data), len(data), lowest_offset)
            span = span_of(start_offset=start, end_offset=end)
            return select_batches(window, span, NONE_ABORTED, lowest_offset, LIMIT)

        return choose

    @pytest.mark.parametrize(
        ("start", "end", "chosen"),
        [
            (0, 100, [0, 1, 2, 3, 4]),
            (4, 5, [1]),
            (5, 6, [2]),
            (10, 11, [2]),
            (11, 13, [3]),
            (13, 14, [4]),
            (22, 23, [4]),
            (23, 24, []),
        ],
    )
    def test_a_wrapper_may_hold_anything_after_the_batch_before(self, choose, start, end, chosen):
        selected = choose(start=start, end=end)
        assert selected.decoded.tolist() == chosen
        assert selected.out_of_place.tolist() == []
        assert selected.last_offsets.tolist() == [3, 4, 10, 12, 22]

    @pytest.mark.parametrize(
        "entries",
        [
            [Message(3), Message(3)],
            [Message(3), Message(2, magic=0)],
            [Message(3), Wrapper((Message(3),))],
            [Message(3), Wrapper(plain_messages(2, start=1))],
            [Wrapper(plain_messages(2, start=1)), Message(2)],
            [Wrapper(plain_messages(2, start=1)), Batch(counted_records(1), 2)],
            [Batch(counted_records(3), 1), Wrapper(plain_messages(2, start=2))],
            [Message(0), Message(-1)],
            [Message(0), Wrapper((Message(-1),))],
        ],
    )
    def test_offsets_must_ascend(self, choose, entries):
        selected = choose(entries)
        assert selected.out_of_place.tolist() == [1]
        last = entries[1].offset if isinstance(entries[1], Message) else entries[1].last_offset
        assert selected.last_offsets[1] == last

    @pytest.mark.parametrize("entry", [Message(9), Wrapper(plain_messages(3, start=7))])
    def test_nothing_ends_below_the_lowest_offset(self, choose, entry):
        assert choose([entry], lowest_offset=9).out_of_place.tolist() == []
        assert choose([entry], lowest_offset=10).out_of_place.tolist() == [0]


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
