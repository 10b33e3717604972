from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.log.producer_state_manager import OngoingTransactions


@pytest.fixture
def transactions():
    return OngoingTransactions()


def begin(transactions, *pairs):
    for producer_id, first_offset in pairs:
        transactions.begin(producer_id, first_offset)
    transactions.settle()


def test_at_first_nothing_is_unstable(transactions):
    assert transactions.first_unstable_offset is None
    transactions.on_high_watermark_updated(100)
    assert transactions.first_unstable_offset is None


def test_the_earliest_open_one_is_the_first_unstable(transactions):
    begin(transactions, (9, 4), (3, 7), (5, 8))
    assert transactions.first_unstable_offset == 4
    assert list(transactions.open_transactions.items()) == [(9, 4), (3, 7), (5, 8)]


def test_an_end_tells_which_one_is_next(transactions):
    begin(transactions, (9, 4), (3, 7), (5, 8))
    assert transactions.end(3, 10) == 4
    assert transactions.end(9, 11) == 8
    assert transactions.end(5, 12) == 13


def test_one_that_ended_counts_until_its_marker_is_below_the_high_watermark(transactions):
    begin(transactions, (9, 4))
    transactions.end(9, 6)
    transactions.settle()
    for high_watermark, expected in [(5, 4), (6, 4), (7, None)]:
        transactions.on_high_watermark_updated(high_watermark)
        assert transactions.first_unstable_offset == expected


def test_a_producer_begins_again(transactions):
    begin(transactions, (9, 4), (3, 5))
    transactions.end(9, 6)
    begin(transactions, (9, 7))
    transactions.on_high_watermark_updated(8)
    assert transactions.first_unstable_offset == 5
    assert list(transactions.open_transactions.items()) == [(3, 5), (9, 7)]


def test_what_is_loaded_comes_in_any_order_and_replaces_the_rest(transactions):
    begin(transactions, (1, 1), (2, 2))
    transactions.end(1, 3)
    transactions.on_high_watermark_updated(90)
    transactions.load([(30, 5), (10, 7), (20, 6)])
    assert list(transactions.open_transactions.items()) == [(7, 10), (6, 20), (5, 30)]
    assert transactions.first_unstable_offset == 10
    # The high watermark starts anew too.
    transactions.end(7, 40)
    transactions.settle()
    assert transactions.first_unstable_offset == 10
    transactions.load([])
    assert transactions.first_unstable_offset is None


@given(st.lists(st.sampled_from([0, 1, 2, 3, "watermark"]), max_size=40))
def test_against_a_list_of_all_that_ever_began(steps):
    """A producer's step begins its transaction, or ends it if it is open."""
    transactions, history, stable = OngoingTransactions(), [], 0
    for offset, step in enumerate(steps):
        if step == "watermark":
            stable = offset
            transactions.on_high_watermark_updated(offset)
        elif step in transactions.open_transactions:
            others = [first for producer, first, end in history if end is None and producer != step]
            assert transactions.end(step, offset) == min(others, default=offset + 1)
            history = [
                (producer, first, offset if end is None and producer == step else end)
                for producer, first, end in history
            ]
            transactions.settle()
        else:
            begin(transactions, (step, offset))
            history.append((step, offset, None))
        unstable = [first for _, first, end in history if end is None or end >= stable]
        assert transactions.first_unstable_offset == min(unstable, default=None)
