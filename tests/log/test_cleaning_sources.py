"""What a pass of the cleaner reads: segments by offset, the aborted transactions that reach into them, groups."""

from __future__ import annotations

import pytest

from storage_core.errors import CorruptIndexError
from storage_core.log.log_cleaner_manager import CleaningSources
from tests.log.cleaning import compacted, put
from tests.log.logs import name, open_directory, table


@pytest.fixture
def log(tmp_path):
    with open_directory(tmp_path, config=compacted()) as logs:
        yield logs.create("orders")


def sources_of(log):
    return CleaningSources(log._state.view.segments)


def bases(segments):
    return [segment.base_offset for segment in segments]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (None, None, [0, 1, 2, 3]),
        (None, 2, [0, 1]),
        (None, 3, [0, 1, 2]),
        (1, None, [1, 2, 3]),
        (1, 3, [1, 2]),
        (2, 2, []),
        (None, 0, []),
        (100, None, [3]),
    ],
)
def test_segments_between_offsets(log, start, end, expected):
    for number in range(3):
        put(log, f"a{number}")
        log.roll()
    assert bases(sources_of(log).between(start, end)) == expected


def test_an_offset_within_a_segment_means_that_segment(log):
    for number in range(3):
        put(log, f"a{number}", f"b{number}", f"c{number}")
        log.roll()
    assert bases(sources_of(log).between(4, 7)) == [3, 6]


def aborted(log, producer_id, *keys, rolls=False):
    """A transaction with one record for each key, and the offset of its marker."""
    transaction = log.transaction(producer_id)
    for key in keys:
        transaction.append(table(b"v", keys=[key]))
        if rolls:
            log.roll()
    transaction.abort()
    return log.log_end_offset - 1


def markers(transactions):
    return [transaction.last_offset for transaction in transactions]


def test_aborted_transactions_are_found_by_markers_after_the_range(log):
    put(log, "a1")
    # Offsets 1 and 2 in two segments, the marker 3 in a third one.
    assert aborted(log, 7, b"x", b"y", rolls=True) == 3
    log.roll()
    assert aborted(log, 8, b"z") == 5
    log.roll()
    sources = sources_of(log)
    assert markers(sources.aborted_transactions(0, 1)) == []
    assert markers(sources.aborted_transactions(0, 2)) == [3]
    assert markers(sources.aborted_transactions(2, 3)) == [3]
    assert markers(sources.aborted_transactions(4, 5)) == [5]
    assert markers(sources.aborted_transactions(0, 100)) == [3, 5]


def test_aborted_transactions_of_segments_reach_to_their_ends(log):
    put(log, "a1")
    aborted(log, 7, b"x")
    log.roll()
    aborted(log, 8, b"z")
    log.roll()
    sources = sources_of(log)
    assert markers(sources.aborted_transactions_of(sources.between(None, 1))) == [2]
    assert markers(sources.aborted_transactions_of(sources.between(3, 5))) == [4]
    assert markers(sources.aborted_transactions_of([])) == []


def test_a_damaged_transaction_index_is_an_error(log, tmp_path):
    """Taking it for an empty one would take aborted records for committed ones."""
    put(log, "a1")
    aborted(log, 7, b"x")
    log.roll()
    index = tmp_path / "orders-0" / name(0, "txnindex")
    index.write_bytes(index.read_bytes()[:-1])
    with pytest.raises(CorruptIndexError):
        list(sources_of(log).aborted_transactions(0, 10))
    with pytest.raises(CorruptIndexError):
        log.clean()
