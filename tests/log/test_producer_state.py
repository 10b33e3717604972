from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.checkpoint import ProducerStateEntry, read_producer_snapshot
from storage_core.filesystem import FileSystem
from storage_core.log.producer_batches import ProducerBatches
from storage_core.log.producer_state_manager import ProducerStateManager
from storage_core.record.batch_window import walk_window
from storage_core.record.record_batches import RecordBatches
from storage_core.record.section import PADDING_BYTES
from storage_core.segment import AbortedTransaction
from tests.log import golden_transactions
from tests.log.producing import ABORT, COMMIT, data, emptied, marker, transactional
from tests.record.encoding import CONTROL, TRANSACTIONAL

DAY_MS = 86_400_000


@pytest.fixture
def manager(tmp_path):
    return open_manager(tmp_path)


def open_manager(directory, **options):
    return ProducerStateManager(FileSystem(), str(directory), **{"expiration_ms": DAY_MS, **options})


def update(manager, *batches):
    """Account for batches that are appended at once."""
    return manager.update(ProducerBatches.of_record_batches(RecordBatches.parse(b"".join(batches))))


def window_of(*batches):
    joined = b"".join(batches)
    buffer = np.frombuffer(joined + bytes(PADDING_BYTES), np.uint8)
    return walk_window("00000000000000000000.log", 0, buffer, len(joined))


def reopened(directory, log_end_offset, *, log_start_offset=0, now_ms=0, **options):
    manager = open_manager(directory, **options)
    manager.truncate_and_reload(log_start_offset, log_end_offset, now_ms)
    return manager


def offsets_on_disk(directory):
    return sorted(int(path.name[:20]) for path in directory.glob("*.snapshot"))


# -- The scenario that Kafka's own classes wrote --------


def test_golden_scenario(tmp_path, manager):
    batches = RecordBatches.parse(golden_transactions.LOG)
    unstable = []
    aborted = []
    for number in range(batches.count):
        one = batches.select(number, number + 1)
        aborted += manager.update(ProducerBatches.of_record_batches(one))
        manager.on_high_watermark_updated(one.next_offset)
        unstable.append((one.next_offset, manager.first_unstable_offset))
    assert aborted == [AbortedTransaction(producer_id=2, first_offset=2, last_offset=4, last_stable_offset=0)]
    # The last stable offset is 0 while producer 1 is undecided, then the high watermark, 6.
    assert unstable == [(2, 0), (3, 0), (4, 0), (5, 0), (6, None)]
    assert manager.take_snapshot() == 6
    assert (tmp_path / "00000000000000000006.snapshot").read_bytes() == golden_transactions.SNAPSHOT


# -- Producers --------


def test_the_last_five_batches_of_a_producer_are_remembered(manager):
    update(manager, *(data(offset, producer=4, sequence=offset) for offset in range(7)))
    state = manager.producers[4]
    assert [(batch.first_sequence, batch.last_offset) for batch in state.batches] == [
        (offset, offset) for offset in range(2, 7)
    ]
    assert manager.map_end_offset == 7


def test_replay_takes_gaps_unknown_producers_and_older_epochs(manager):
    update(manager, data(0, producer=4, epoch=3, sequence=7))
    update(manager, data(5, producer=4, epoch=3, sequence=900))
    update(manager, data(9, producer=4, epoch=1, sequence=2))
    state = manager.producers[4]
    assert (state.producer_epoch, state.last_sequence, state.last_offset) == (1, 2, 9)


def test_sequences_wrap(manager):
    update(manager, data(0, 3, producer=4, sequence=2147483646), data(3, 2, producer=4, sequence=1))
    assert [(batch.first_sequence, batch.last_sequence) for batch in manager.producers[4].batches] == [
        (2147483646, 0),
        (1, 2),
    ]


def test_a_marker_bumps_the_epoch_and_forgets_the_sequence(manager):
    update(manager, transactional(0, producer=4, epoch=1, sequence=8))
    update(manager, marker(1, producer=4, epoch=2, coordinator_epoch=6, timestamp_ms=70))
    state = manager.producers[4]
    assert (state.producer_epoch, state.coordinator_epoch, state.timestamp_ms) == (2, 6, 70)
    assert (state.last_sequence, len(state.batches)) == (-1, 0)
    update(manager, transactional(2, producer=4, epoch=2, sequence=0))
    assert (state.last_sequence, state.current_transaction_first_offset) == (0, 2)


def test_a_zombie_coordinators_marker_is_tolerated_in_replay(manager):
    update(manager, transactional(0, producer=4), marker(1, producer=4, coordinator_epoch=9))
    update(manager, transactional(2, producer=4, sequence=1), marker(3, producer=4, coordinator_epoch=2))
    assert manager.producers[4].coordinator_epoch == 2
    assert manager.producers[4].current_transaction_first_offset is None


def test_compaction_leaves_the_state_as_it_was(tmp_path):
    whole, compacted = open_manager(tmp_path), open_manager(tmp_path)
    update(
        whole,
        data(0, 4, producer=4, sequence=0, timestamp_ms=5),
        data(4, 4, producer=4, sequence=4, timestamp_ms=6),
        transactional(8, producer=5, timestamp_ms=7),
        marker(9, producer=5, timestamp_ms=8, coordinator_epoch=1),
        transactional(10, producer=5, sequence=1, timestamp_ms=9),
    )
    # What is left of them: an empty batch with the last sequence, an emptied marker, the open transaction.
    update(
        compacted,
        data(4, 4, producer=4, sequence=4, timestamp_ms=6),
        marker(9, producer=5, timestamp_ms=8, coordinator_epoch=1),
        transactional(10, producer=5, sequence=1, timestamp_ms=9),
    )
    for manager in (whole, compacted):
        manager.on_high_watermark_updated(11)
    entries = [
        [state.snapshot_entry() for state in manager.producers.values()] for manager in (whole, compacted)
    ]
    assert entries[0] == entries[1]
    assert whole.first_unstable_offset == compacted.first_unstable_offset == 10


def test_an_empty_batch_keeps_the_sequence(manager):
    update(manager, emptied(4, 3, producer=4, epoch=2, sequence=17))
    state = manager.producers[4]
    assert (state.producer_epoch, state.last_sequence, state.last_offset) == (2, 20, 7)


def random_history(random, count):
    """Batches of a few producers, with a transaction or an epoch that begins or ends now and then."""
    batches = []
    for offset in range(count):
        fields = {"producer": random.choice([1, 1, 1, 2, 3]), "epoch": random.choice([0] * 20 + [1])}
        kind = random.random()
        if kind < 0.04:
            batches.append(marker(offset, kind=random.choice([ABORT, COMMIT]), **fields))
        elif kind < 0.05:
            batches.append(data(offset))
        else:
            is_transactional = random.random() < 0.3
            batches.append(data(offset, sequence=offset, is_transactional=is_transactional, **fields))
    return batches


@pytest.mark.parametrize("seed", range(12))
def test_a_window_of_many_batches_is_as_one_batch_after_the_other(tmp_path, seed):
    batches = random_history(Random(seed), 1000)
    by_window, one_by_one = open_manager(tmp_path), open_manager(tmp_path)
    aborted = []
    for start, end in pairwise([0, 99, 199, 460, 1000]):
        found = by_window.observe(window_of(*batches[start:end]))
        assert found == [entry for batch in batches[start:end] for entry in update(one_by_one, batch)]
        assert by_window.producers == one_by_one.producers
        assert list(by_window.open_transactions.items()) == list(one_by_one.open_transactions.items())
        assert by_window.first_unstable_offset == one_by_one.first_unstable_offset
        assert by_window.map_end_offset == one_by_one.map_end_offset == end
        aborted += found
    assert len(aborted) > 5


# -- Transactions --------


def test_the_first_unstable_offset_is_that_of_the_earliest_open_transaction(manager):
    update(manager, data(0, 7), transactional(7, producer=1))
    assert manager.first_unstable_offset == 7
    update(manager, transactional(8, producer=2), transactional(9, 5, producer=1, sequence=1))
    assert dict(manager.open_transactions) == {1: 7, 2: 8}
    update(manager, marker(14, producer=1))
    # Decided, but a follower may not know yet.
    assert manager.first_unstable_offset == 7
    manager.on_high_watermark_updated(14)
    assert manager.first_unstable_offset == 7
    manager.on_high_watermark_updated(15)
    assert manager.first_unstable_offset == 8
    update(manager, marker(15, producer=2, kind=ABORT))
    manager.on_high_watermark_updated(16)
    assert manager.first_unstable_offset is None


def test_a_high_watermark_that_goes_back_makes_nothing_unstable_again(manager):
    update(manager, transactional(0, producer=1), transactional(1, producer=2), marker(2, producer=2))
    manager.on_high_watermark_updated(3)
    manager.on_high_watermark_updated(0)
    update(manager, marker(3, producer=1))
    manager.on_high_watermark_updated(4)
    assert manager.first_unstable_offset is None


@pytest.mark.parametrize("kind", [ABORT, COMMIT])
def test_a_marker_without_data_ends_nothing(manager, kind):
    assert update(manager, data(0, 5), marker(5, producer=1, kind=kind, epoch=2, coordinator_epoch=3)) == []
    assert manager.first_unstable_offset is None
    # But it tells the epochs.
    assert manager.producers[1].producer_epoch == 2
    assert manager.producers[1].coordinator_epoch == 3


def test_an_emptied_marker_is_as_if_it_were_not_there(manager):
    update(manager, emptied(5, producer=1, epoch=2, attributes=TRANSACTIONAL | CONTROL))
    assert manager.is_empty
    assert manager.map_end_offset == 6


def test_an_aborted_transaction_has_the_next_open_one_as_its_last_stable_offset(manager):
    update(manager, *(transactional(offset, producer=offset) for offset in range(3)))
    # Producer 0 is open; without it, 2 is; without any, what follows the marker.
    assert update(manager, marker(3, producer=1, kind=ABORT)) == [AbortedTransaction(1, 1, 3, 0)]
    assert update(manager, marker(4, producer=0, kind=ABORT)) == [AbortedTransaction(0, 0, 4, 2)]
    assert update(manager, marker(5, producer=2, kind=ABORT)) == [AbortedTransaction(2, 2, 5, 6)]


EVENTS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["data", "transaction", "commit", "abort", "watermark"])),
    max_size=30,
)


@given(EVENTS)
def test_any_history_against_a_plain_account_of_it(tmp_path_factory, events):
    manager = open_manager(tmp_path_factory.getbasetemp())
    open_first, ended, aborted, found = {}, [], [], []
    high_watermark = 0
    for offset, (producer, event) in enumerate(events):
        if event == "watermark":
            high_watermark = offset
            manager.on_high_watermark_updated(offset)
            ended = [(first, end) for first, end in ended if end >= offset]
        elif event in ("data", "transaction"):
            is_transactional = event == "transaction"
            update(manager, data(offset, producer=producer, is_transactional=is_transactional))
            if is_transactional:
                open_first.setdefault(producer, offset)
        else:
            kind = ABORT if event == "abort" else COMMIT
            found += update(manager, marker(offset, producer=producer, kind=kind))
            first = open_first.pop(producer, None)
            if first is not None:
                ended += [(first, offset)] if offset >= high_watermark else []
                if kind == ABORT:
                    stable = min(open_first.values(), default=offset + 1)
                    aborted.append(AbortedTransaction(producer, first, offset, stable))
        unstable = min([*open_first.values(), *(first for first, _ in ended)], default=None)
        assert manager.first_unstable_offset == unstable
    assert found == aborted


# -- Expiry --------


def test_silent_producers_are_forgotten(manager):
    update(manager, data(0, producer=1, timestamp_ms=1000), data(1, producer=2, timestamp_ms=2000))
    manager.remove_expired(1000 + DAY_MS - 1)
    assert sorted(manager.producers) == [1, 2]
    manager.remove_expired(1000 + DAY_MS)
    assert sorted(manager.producers) == [2]


def test_producers_with_an_open_transaction_are_not(manager):
    update(manager, transactional(0, producer=1, timestamp_ms=1000))
    manager.remove_expired(1000 + 2 * DAY_MS)
    assert sorted(manager.producers) == [1]
    update(manager, marker(1, producer=1, timestamp_ms=1001))
    manager.remove_expired(1001 + DAY_MS)
    assert manager.is_empty


def test_how_long_that_is_may_change(manager):
    update(manager, data(0, producer=1, timestamp_ms=1000), data(1, producer=2, timestamp_ms=2000))
    manager.expiration_ms = 500
    manager.remove_expired(1500)
    assert sorted(manager.producers) == [2]


def test_what_has_expired_is_not_loaded(tmp_path, manager):
    update(manager, data(0, producer=1, timestamp_ms=1000), data(1, producer=2, timestamp_ms=2000))
    update(manager, transactional(2, producer=3, timestamp_ms=0))
    manager.take_snapshot()
    assert sorted(reopened(tmp_path, 3, now_ms=1000 + DAY_MS).producers) == [2, 3]
    assert sorted(reopened(tmp_path, 3, now_ms=2000, expiration_ms=1000).producers) == [2, 3]
    assert sorted(reopened(tmp_path, 3, now_ms=3000, expiration_ms=1000).producers) == [3]


# -- Snapshots --------


def test_a_snapshot_brings_back_what_was_known(tmp_path, manager):
    update(manager, data(0, 2, producer=1, epoch=3, sequence=9, timestamp_ms=5))
    update(manager, transactional(2, producer=2, timestamp_ms=6), marker(3, producer=2, coordinator_epoch=8))
    update(manager, transactional(4, producer=2, sequence=1, timestamp_ms=7), transactional(5, producer=0))
    assert manager.take_snapshot() == 6
    path = str(tmp_path / "00000000000000000006.snapshot")
    assert read_producer_snapshot(FileSystem(), path) == (
        ProducerStateEntry(0, 0, 0, 5, 0, 0, -1, 5),
        ProducerStateEntry(1, 3, 10, 1, 1, 5, -1, None),
        ProducerStateEntry(2, 0, 1, 4, 0, 7, 8, 4),
    )
    loaded = reopened(tmp_path, 6)
    assert loaded.map_end_offset == 6
    assert loaded.first_unstable_offset == 4
    assert list(loaded.open_transactions.items()) == [(2, 4), (0, 5)]
    # Of the batches only the last one comes back.
    assert [batch.last_sequence for batch in loaded.producers[2].batches] == [1]
    assert update(loaded, marker(6, producer=2, kind=ABORT)) == [AbortedTransaction(2, 4, 6, 5)]


def test_no_second_snapshot_of_the_same_offset(tmp_path, manager):
    assert manager.take_snapshot() is None
    update(manager, data(0, producer=1))
    assert manager.take_snapshot() == 1
    (tmp_path / "00000000000000000001.snapshot").unlink()
    assert manager.take_snapshot() is None
    update(manager, data(1, producer=1, sequence=1))
    assert manager.take_snapshot() == 2
    assert offsets_on_disk(tmp_path) == [2]


def test_nothing_is_loaded_if_the_state_is_that_of_the_log_end(tmp_path, manager):
    for offset in range(4):
        update(manager, data(offset, producer=7, sequence=offset))
    manager.take_snapshot()
    manager.truncate_and_reload(1, 4, 0)
    # Which a snapshot would not bring back.
    assert len(manager.producers[7].batches) == 4


def test_the_log_start_takes_snapshots_and_undecided_markers_along(tmp_path, manager):
    update(manager, transactional(0, producer=1), marker(1, producer=1), data(2))
    manager.take_snapshot()
    manager.on_log_start_offset_incremented(2)
    assert manager.first_unstable_offset is None
    assert manager.map_end_offset == 3
    manager.on_log_start_offset_incremented(9)
    assert manager.map_end_offset == 9
    # The newest snapshot is that of 3: there is something new to write.
    assert manager.take_snapshot() == 9


def test_an_open_transaction_stays_open_when_the_log_start_passes_it(manager):
    update(manager, transactional(0, producer=1), data(1, 5))
    manager.on_log_start_offset_incremented(4)
    assert manager.first_unstable_offset == 0


def test_truncating_fully_forgets_everything(tmp_path, manager):
    update(manager, transactional(0, producer=1), transactional(1, producer=2), marker(2, producer=2))
    manager.take_snapshot()
    manager.truncate_fully_and_start_at(100)
    assert (manager.is_empty, manager.first_unstable_offset, manager.map_end_offset) == (True, None, 100)
    assert offsets_on_disk(tmp_path) == []
    update(manager, transactional(100, producer=1), marker(101, producer=1))
    assert manager.first_unstable_offset == 100
    assert manager.take_snapshot() == 102


def test_a_log_that_starts_anew_further_down_gets_snapshots_again(tmp_path, manager):
    update(manager, data(50, producer=1))
    manager.take_snapshot()
    manager.truncate_fully_and_start_at(7)
    update(manager, data(7, producer=1))
    assert manager.take_snapshot() == 8
    assert offsets_on_disk(tmp_path) == [8]


def test_a_hostile_snapshot_does_no_harm(tmp_path):
    manager = open_manager(tmp_path)
    # One producer twice, and two transactions that begin at one offset.
    entries = [
        ProducerStateEntry(1, 0, 0, 3, 0, 0, -1, 3),
        ProducerStateEntry(1, 0, 0, 5, 0, 0, -1, 5),
        ProducerStateEntry(2, 0, 0, 5, 0, 0, -1, 5),
        ProducerStateEntry(-4, -3, -9, -9, -9, -9, -9, 2**63 - 1),
    ]
    manager.snapshots.write(9, entries)
    loaded = reopened(tmp_path, 9)
    assert list(loaded.open_transactions.items()) == [(1, 5), (2, 5), (-4, 2**63 - 1)]
    assert update(loaded, marker(9, producer=1, kind=ABORT), marker(10, producer=2, kind=ABORT)) == [
        AbortedTransaction(1, 5, 9, 5),
        AbortedTransaction(2, 5, 10, 2**63 - 1),
    ]
