from __future__ import annotations

import pytest

from storage_core.checkpoint import ProducerStateEntry
from storage_core.log.producer_batches import BatchMetadata, ProducerState

LARGEST_SEQUENCE = 2147483647


def with_batches(count, epoch=0):
    state = ProducerState(7)
    for number in range(count):
        state.add_batch(epoch, BatchMetadata(10 * number + 9, 100 + 10 * number + 9, 9, number))
    return state


def test_nothing_is_known_at_first():
    state = ProducerState(7)
    assert (state.producer_epoch, state.coordinator_epoch, state.timestamp_ms) == (-1, -1, -1)
    assert (state.last_sequence, state.last_offset, len(state.batches)) == (-1, -1, 0)
    assert state.current_transaction_first_offset is None


def test_the_last_five_batches_are_kept():
    state = with_batches(7)
    assert [batch.last_sequence for batch in state.batches] == [29, 39, 49, 59, 69]
    assert (state.last_sequence, state.last_offset, state.timestamp_ms) == (69, 169, 6)


def test_a_new_epoch_forgets_the_batches():
    state = with_batches(3)
    state.add_batch(1, BatchMetadata(0, 130, 0, 9))
    assert [batch.last_offset for batch in state.batches] == [130]
    assert state.producer_epoch == 1


@pytest.mark.parametrize(
    ("last_sequence", "offset_delta", "first_sequence"),
    [
        (9, 9, 0),
        (0, 0, 0),
        (0, 1, LARGEST_SEQUENCE),
        (5, 8, LARGEST_SEQUENCE - 2),
        (LARGEST_SEQUENCE, 0, LARGEST_SEQUENCE),
    ],
)
def test_the_first_sequence_of_a_batch(last_sequence, offset_delta, first_sequence):
    batch = BatchMetadata(last_sequence, 1000, offset_delta, 0)
    assert batch.first_sequence == first_sequence
    assert batch.first_offset == 1000 - offset_delta


def test_a_marker_of_the_same_epoch_keeps_the_batches():
    state = with_batches(2)
    state.current_transaction_first_offset = 100
    assert state.end_transaction(0, 3, 77) == 100
    assert state.end_transaction(0, 4, 78) is None
    assert (state.coordinator_epoch, state.timestamp_ms, state.last_sequence) == (4, 78, 19)


def test_a_marker_of_a_newer_epoch_forgets_them():
    state = with_batches(2)
    state.current_transaction_first_offset = 100
    assert state.end_transaction(1, 3, 77) == 100
    assert (state.producer_epoch, state.last_sequence, state.last_offset) == (1, -1, -1)


@pytest.mark.parametrize(
    ("now_ms", "expiration_ms", "has_expired"),
    [(1004, 1000, True), (1003, 1000, False), (4, 0, True), (0, 1000, False)],
)
def test_expiry(now_ms, expiration_ms, has_expired):
    state = with_batches(5)
    assert state.has_expired(now_ms, expiration_ms) is has_expired
    state.current_transaction_first_offset = 100
    assert state.has_expired(now_ms, expiration_ms) is False


def test_a_snapshot_holds_the_last_batch_alone():
    state = with_batches(5, epoch=3)
    state.current_transaction_first_offset = 110
    entry = state.snapshot_entry()
    assert entry == ProducerStateEntry(7, 3, 49, 149, 9, 4, -1, 110)
    loaded = ProducerState.of_snapshot_entry(entry)
    assert list(loaded.batches) == [BatchMetadata(49, 149, 9, 4)]
    assert loaded.snapshot_entry() == entry


def test_a_snapshot_of_a_producer_of_which_only_a_marker_is_known():
    state = ProducerState(7)
    state.end_transaction(2, 5, 66)
    entry = state.snapshot_entry()
    assert entry == ProducerStateEntry(7, 2, -1, -1, 0, 66, 5, None)
    loaded = ProducerState.of_snapshot_entry(entry)
    assert loaded == state
    assert len(loaded.batches) == 0
