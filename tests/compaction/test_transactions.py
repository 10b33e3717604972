from __future__ import annotations

import numpy as np
import pytest

from storage_core.compaction.cleaned_transactions import CleanedTransactions, TransactionalBatches
from storage_core.record import ControlType
from storage_core.segment import AbortedTransaction

ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT
DATA = "data"


def read(transactions, *batches):
    """Return which batches may go; each is its last offset, its producer, and DATA or what its marker says."""
    numbers = np.arange(len(batches))
    is_control = np.array([kind is not DATA for _, _, kind in batches], np.bool_)
    may_go, kept = transactions.discardable(
        TransactionalBatches(
            # Two batches before them, and between them, have nothing to do with transactions.
            3 * numbers + 2,
            np.array([producer_id for _, producer_id, _ in batches], np.int64),
            np.array([last_offset for last_offset, _, _ in batches], np.int64),
            is_control,
            {3 * number + 2: batches[number][2] for number in numbers[is_control].tolist()},
        ),
        3 * len(batches) + 2,
    )
    assert not may_go[np.arange(len(may_go)) % 3 != 2].any()
    return may_go[2::3].tolist(), kept


def aborted(producer_id, first_offset, last_offset):
    return AbortedTransaction(producer_id, first_offset, last_offset, last_offset + 1)


def test_an_abort_marker_that_no_index_knows_may_go():
    assert read(CleanedTransactions(), (30, 7, ABORT)) == ([True], [])


def test_a_commit_marker_without_data_may_go():
    transactions = CleanedTransactions()
    assert read(transactions, (12, 7, DATA), (13, 7, COMMIT), (14, 7, COMMIT), (15, 8, COMMIT)) == (
        [False, False, True, True],
        [],
    )


def test_the_transactions_of_one_producer_do_not_mix():
    transactions = CleanedTransactions()
    first, second = aborted(7, 10, 13), aborted(7, 30, 33)
    transactions.add_aborted([second, first])
    found = read(
        transactions,
        (12, 7, DATA), (13, 7, ABORT),
        (22, 7, DATA), (23, 7, COMMIT),
        (32, 7, DATA), (33, 7, ABORT),
        (42, 7, DATA),
    )  # fmt: skip
    assert found == ([True, False, False, False, True, False, False], [first, second])


def test_the_transactions_of_many_producers_overlap():
    transactions = CleanedTransactions()
    first, second = aborted(7, 10, 50), aborted(8, 21, 40)
    transactions.add_aborted([first, second])
    found = read(
        transactions,
        (12, 7, DATA), (15, 9, DATA), (20, 8, DATA), (22, 8, DATA), (23, 7, DATA),
        (40, 8, ABORT), (41, 9, COMMIT), (45, 8, DATA), (50, 7, ABORT),
    )  # fmt: skip
    # Producer 8 was not in its aborted transaction yet at offset 20.
    assert found == ([True, False, False, True, True, False, False, False, False], [second, first])


def test_what_was_read_is_remembered_from_window_to_window():
    transactions = CleanedTransactions()
    entry = aborted(7, 10, 30)
    transactions.add_aborted([entry])
    assert read(transactions, (12, 7, DATA), (13, 8, DATA)) == ([True, False], [])
    # A segment later it is found again.
    transactions.add_aborted([entry])
    assert read(transactions, (30, 7, ABORT), (31, 8, COMMIT)) == ([False, False], [entry])
    assert read(transactions, (32, 7, DATA), (33, 7, COMMIT)) == ([False, False], [])


def test_an_emptied_control_batch_may_go_and_other_types_stay():
    kinds = [None, ControlType.LEADER_CHANGE, ControlType.KRAFT_VERSION, ControlType.UNKNOWN]
    found, _ = read(CleanedTransactions(), *((offset, -1, kind) for offset, kind in enumerate(kinds)))
    assert found == [True, False, False, False]


# A few batches between two markers are examined one by one, many of them column by column.
@pytest.mark.parametrize("count", [1, 5, 31, 32, 33, 34, 500])
def test_any_number_of_batches_may_be_between_two_markers(count):
    transactions = CleanedTransactions()
    first, second = aborted(7, 0, 10_000), aborted(8, 4 * (count // 2) + 3, 20_000)
    transactions.add_aborted([first, second])
    batches = [(2 * number, 7 + number % 3, DATA) for number in range(2 * count)]
    found, kept = read(
        transactions, *batches, (10_000, 7, ABORT), *((10_000 + at, 8, DATA) for at in range(1, count))
    )
    expected = [
        producer_id == 7 or (producer_id == 8 and last_offset >= second.first_offset)
        for last_offset, producer_id, _ in batches
    ]
    assert found == [*expected, False, *([True] * (count - 1))]
    assert kept == [first]
