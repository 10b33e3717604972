"""Transactions that have no marker yet: listed, and ended by any caller."""

from __future__ import annotations

import pytest

from storage_core import OpenTransaction
from storage_core.errors import InvalidTxnStateError
from storage_core.filesystem import FileSystem
from storage_core.segment import AbortedTransaction, TransactionIndex
from tests.log.logs import NOW_MS, crash, open_directory, table, values
from tests.log.producing import marker, transactional


@pytest.fixture
def path(tmp_path):
    """Return the directory of `logs`."""
    return tmp_path / "data"


def committed(log):
    return values(log, isolation_level="read_committed")


def aborted(log):
    path = f"{log.path}/00000000000000000000.txnindex"
    return TransactionIndex.read(FileSystem(), path, 0).entries


def test_none_is_open(log):
    log.append(table(b"v"))
    assert log.open_transactions() == ()
    with pytest.raises(InvalidTxnStateError, match="Producer 7 has no open transaction"):
        log.abort_transaction(7)
    assert log.log_end_offset == 1


@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.parametrize("recovery", ["tail", "kafka"])
def test_what_was_open_is_open_after_a_reopen(logs, log, path, is_clean, recovery):
    log.append(table(b"before"))
    log.transaction(7).append(table(b"a", timestamps=[NOW_MS - 5]))
    log.append(table(b"after"))
    if is_clean:
        logs.close()
    else:
        crash(logs)
    with open_directory(path, recovery=recovery) as opened:
        log = opened.get("orders")
        assert log.open_transactions() == (OpenTransaction(7, 0, 1, NOW_MS - 5),)
        assert (committed(log), log.last_stable_offset) == ([b"before"], 1)
        assert log.abort_transaction(7).first_offset == 3
        assert log.open_transactions() == ()
        assert committed(log) == [b"before", b"after"]
        assert aborted(log) == (AbortedTransaction(7, 1, 3, 4),)
        with log.transaction(7) as transaction:
            transaction.append(table(b"again"))
        assert transaction.producer_epoch == 1
        assert committed(log) == [b"before", b"after", b"again"]


def test_transactions_of_a_broker_are_listed_and_aborted(log):
    log.append_batches(
        transactional(0, 2, producer=40, epoch=5, timestamp_ms=900)
        + marker(2, producer=41, epoch=2, coordinator_epoch=8)
        + transactional(3, 1, producer=41, epoch=2, timestamp_ms=901)
    )
    log.update_high_watermark(4)
    assert log.open_transactions() == (OpenTransaction(40, 5, 0, 900), OpenTransaction(41, 2, 3, 901))
    log.abort_transaction(41)
    log.abort_transaction(40)
    log.update_high_watermark(6)
    assert (log.open_transactions(), log.last_stable_offset, committed(log)) == ((), 6, [])
    # The coordinator's epoch is kept, so that it is not fenced itself.
    log.end_transaction(41, 3, is_abort=False, coordinator_epoch=8)
