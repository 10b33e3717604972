from __future__ import annotations

import pytest

from storage_core.compaction import CleanedTransactions, CleanRules, LastRecord
from storage_core.compaction.cleaner import ActiveProducers, decide_batches
from storage_core.errors import CorruptRecordError
from storage_core.segment import AbortedTransaction
from tests.record.encoding import CONTROL, DELETE_HORIZON, GZIP, TRANSACTIONAL, Batch, Record
from tests.record.legacy_encoding import Message, Wrapper
from tests.record.sections import window_of

NOW_MS = 1000
ABORT, COMMIT = b"\0\0\0\0", b"\0\0\0\1"


def data(base_offset, producer_id=-1, count=1, **header):
    records = tuple(Record(delta) for delta in range(count))
    return Batch(records, base_offset, producer_id=producer_id, **header)


def transactional(base_offset, producer_id, **header):
    return data(base_offset, producer_id, attributes=TRANSACTIONAL, **header)


def marker(base_offset, producer_id, key, *, horizon_ms=None, producer_epoch=0, **header):
    flags = TRANSACTIONAL | CONTROL | (0 if horizon_ms is None else DELETE_HORIZON)
    return Batch(
        (Record(0, 5, key, b"\0\0\0\0\0\0"),),
        base_offset,
        attributes=flags,
        base_timestamp_ms=horizon_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        **header,
    )


def decide(*batches, aborted=(), last_records=None, upper_bound_offset=10**9):
    transactions = CleanedTransactions()
    transactions.add_aborted(aborted)
    return decide_batches(
        window_of(b"".join(batch.encode() for batch in batches)),
        transactions,
        ActiveProducers(last_records or {}),
        CleanRules(NOW_MS, 0, 0, upper_bound_offset),
    )


def test_aborted_data_goes_and_its_marker_stays():
    entry = AbortedTransaction(7, 0, 3, 4)
    decisions = decide(
        transactional(0, 7),
        data(1, 8),
        transactional(2, 8),
        marker(3, 7, ABORT),
        marker(4, 8, COMMIT),
        aborted=[entry],
    )
    assert decisions.discards_records.tolist() == [True, False, False, False, False]
    assert decisions.is_idle_marker.tolist() == [False] * 5
    assert decisions.kept_transactions == [entry]


@pytest.mark.parametrize("key", [ABORT, COMMIT])
@pytest.mark.parametrize(("horizon_ms", "goes"), [(None, False), (1001, False), (1000, True), (3, True)])
def test_a_marker_without_data_goes_once_its_horizon_has_passed(key, horizon_ms, goes):
    decisions = decide(marker(5, 7, key, horizon_ms=horizon_ms))
    assert decisions.discards_records.tolist() == [goes]
    assert decisions.is_idle_marker.tolist() == [True]


def test_a_marker_with_data_stays_whatever_its_horizon():
    decisions = decide(transactional(4, 7), marker(5, 7, COMMIT, horizon_ms=3))
    assert decisions.discards_records.tolist() == [False, False]
    assert decisions.is_idle_marker.tolist() == [False, False]


@pytest.mark.parametrize("kind", [2, 3, 99], ids=["leader change", "snapshot header", "unknown"])
def test_other_control_batches_stay(kind):
    batch = Batch(
        (Record(0, 5, bytes([0, 0, 0, kind]), b""),), attributes=CONTROL | DELETE_HORIZON, base_timestamp_ms=3
    )
    assert decide(batch).discards_records.tolist() == [False]
    assert decide(batch).is_idle_marker.tolist() == [False]


def test_a_compressed_marker_is_read():
    assert decide(transactional(4, 7), marker(5, 7, COMMIT, codec=GZIP)).is_idle_marker.tolist() == [
        False,
        False,
    ]
    assert decide(marker(5, 7, COMMIT, codec=GZIP)).is_idle_marker.tolist() == [True]


@pytest.mark.parametrize(
    ("key", "found"), [(b"\0\0\0", "3 bytes"), (None, "-1 bytes"), (b"\xff\xff\0\1", "version -1")]
)
def test_a_control_record_without_a_proper_key_is_damage(key, found):
    with pytest.raises(CorruptRecordError, match=found) as raised:
        decide(data(4), marker(5, 7, key))
    assert (raised.value.offset, raised.value.last_offset) == (5, 5)


def test_the_last_data_batch_of_an_active_producer_stays_even_if_empty():
    batches = data(0, 7), data(1, 7, 3), data(4, 8), data(5, 9), data(6)
    decisions = decide(
        *batches, last_records={7: LastRecord(3, 0), 8: LastRecord(9, 0), 10: LastRecord(6, 0)}
    )
    assert decisions.retains_empty.tolist() == [False, True, False, False, False]


def test_without_data_the_marker_with_the_producer_s_epoch_stays():
    batches = [
        marker(0, 7, COMMIT, producer_epoch=2),
        marker(1, 7, ABORT, producer_epoch=3),
        data(2, 7, producer_epoch=3),
        marker(3, 8, COMMIT, producer_epoch=3),
    ]
    decisions = decide(*batches, last_records={7: LastRecord(None, 3), 6: LastRecord(None, 3)})
    assert decisions.retains_empty.tolist() == [False, True, False, False]


def test_the_last_batch_of_the_pass_stays_even_if_empty():
    decisions = decide(data(0, count=3), data(3, count=2), data(8), upper_bound_offset=5)
    assert decisions.retains_empty.tolist() == [False, True, False]


def test_a_wrapper_ends_with_its_own_offset():
    wrapper = Wrapper((Message(3), Message(4)), offset=4)
    assert decide(data(0), wrapper, upper_bound_offset=5).retains_empty.tolist() == [False, True]
