"""Transactions in one log: begun, appended to, committed, aborted, fenced, left open."""

from __future__ import annotations

import errno
import gc
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

import storage_core
from storage_core import ProducerSequence
from storage_core.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    LogFailedError,
    OptionError,
    StorageError,
    TransactionCoordinatorFencedError,
)
from storage_core.filesystem import FileSystem
from storage_core.segment import AbortedTransaction, TransactionIndex
from tests.examples import examples
from tests.faults.faulty_filesystem import Fault, FaultyCalls
from tests.log.logs import crash, offsets, open_directory, small, table, values
from tests.log.producing import data, marker

FIRST_TAKEN_ID = 4611686018427387904


@pytest.fixture
def path(tmp_path):
    """Return the directory of `logs`."""
    return tmp_path / "data"


def committed(log, *arguments):
    return values(log, *arguments, isolation_level="read_committed")


def everything(log):
    return log.fetch(0, 1 << 20).data


def aborted(log, base_offset=0):
    path = f"{log.path}/{base_offset:020d}.txnindex"
    return TransactionIndex.read(FileSystem(), path, base_offset).entries


# -- Markers --------


@pytest.mark.parametrize(
    ("is_abort", "crc", "kind"),
    [(False, "ab6840d6", "01"), (True, "5f56969e", "00")],
    ids=["commit", "abort"],
)
def test_the_golden_bytes_of_a_marker(log, is_abort, crc, kind):
    log.append_batches(data(0, 100, leader_epoch=3))
    log.update_high_watermark(100)
    info = log.end_transaction(4000, 7, is_abort=is_abort, coordinator_epoch=11)
    assert (info.first_offset, info.last_offset, info.batch_count, info.size_bytes) == (100, 100, 1, 78)
    # The test's clock shows the timestamp of the vector: 1700000000000.
    assert log.fetch(100, 100).data == bytes.fromhex(
        f"0000000000000064000000420000000302{crc}0030000000000000018bcfe568000000018bcfe56800"
        f"0000000000000fa00007ffffffff000000012000000008000000{kind}0c00000000000b00"
    )


def test_a_marker_has_the_logs_own_time_where_records_have(logs, clock):
    log = logs.create("stamped", 0, small(message_timestamp_type="LogAppendTime"))
    clock.time_ms = 5000
    info = log.end_transaction(7, 0, is_abort=False)
    assert info.log_append_time_ms == 5000
    # Log append time, transactional, control.
    assert everything(log)[21:23].hex() == "0038"


def test_the_rules_for_markers(log):
    log.append(table(b"v"), producer=ProducerSequence(7, 3, 0), is_transactional=True)
    with pytest.raises(InvalidProducerEpochError):
        log.end_transaction(7, 2, is_abort=False)
    with pytest.raises(InvalidProducerEpochError):
        log.end_transaction(7, 3, is_abort=False, transaction_version=2)
    log.end_transaction(7, 3, is_abort=False, coordinator_epoch=5)
    with pytest.raises(TransactionCoordinatorFencedError):
        log.end_transaction(7, 3, is_abort=False, coordinator_epoch=4)
    log.end_transaction(7, 4, is_abort=True, coordinator_epoch=6, transaction_version=2)
    assert log.log_end_offset == 3
    assert committed(log) == [b"v"]


def test_a_marker_without_data_moves_the_epoch_and_nothing_else(log):
    log.end_transaction(7, 3, is_abort=True)
    assert (log.open_transactions(), log.last_stable_offset, aborted(log)) == ((), 1, ())
    with pytest.raises(InvalidProducerEpochError):
        log.append(table(b"v"), producer=ProducerSequence(7, 2, 0))


@pytest.mark.parametrize(
    ("arguments", "options"),
    [((-1, 0), {}), ((7, -1), {}), ((7, 32768), {}), ((7, 0), {"coordinator_epoch": -1}), (("7", 0), {})],
)
def test_what_is_no_marker_is_refused(log, arguments, options):
    with pytest.raises(OptionError, match="Expected a "):
        log.end_transaction(*arguments, is_abort=False, **options)
    assert log.log_end_offset == 0


def test_what_is_no_producer_id_is_refused(log):
    with pytest.raises(OptionError, match="Expected a producer id from 0"):
        log.transaction(-1)


# -- Commit and abort --------


def test_a_transaction_is_seen_once_it_is_committed(log):
    log.append(table(b"before"))
    transaction = log.transaction(7)
    assert (transaction.producer_id, transaction.producer_epoch, transaction.first_offset) == (7, 0, None)
    assert transaction.append(table(b"a", b"b")).first_offset == 1
    log.append(table(b"beside"))
    assert transaction.append(table(b"c")).first_offset == 4
    assert transaction.first_offset == 1
    assert (committed(log), log.last_stable_offset) == ([b"before"], 1)
    assert values(log) == [b"before", b"a", b"b", b"beside", b"c"]
    assert transaction.commit().first_offset == 5
    assert committed(log) == [b"before", b"a", b"b", b"beside", b"c"]
    assert (log.last_stable_offset, log.log_end_offset, aborted(log)) == (6, 6, ())


def test_or_never_if_it_is_aborted(log):
    transaction = log.transaction(7)
    transaction.append(table(b"a"))
    log.append(table(b"beside"))
    assert transaction.abort().first_offset == 2
    assert committed(log) == [b"beside"]
    assert values(log) == [b"a", b"beside"]
    assert aborted(log) == (AbortedTransaction(7, 0, 2, 3),)


def test_a_context_manager_commits(log):
    with log.transaction() as transaction:
        transaction.append(table(b"a"))
    assert committed(log) == [b"a"]


def test_and_aborts_on_an_exception(log):
    with pytest.raises(KeyError, match="gone"), log.transaction() as transaction:  # noqa: PT012
        transaction.append(table(b"a"))
        raise KeyError("gone")
    assert (committed(log), log.open_transactions()) == ([], ())
    assert aborted(log) == (AbortedTransaction(FIRST_TAKEN_ID, 0, 1, 2),)


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_and_leaves_alone_what_has_ended_within(log, end):
    with log.transaction() as transaction:
        transaction.append(table(b"a"))
        getattr(transaction, end)()
    assert log.log_end_offset == 2
    with pytest.raises(KeyError), log.transaction() as transaction:  # noqa: PT012
        transaction.append(table(b"a"))
        getattr(transaction, end)()
        raise KeyError
    assert log.log_end_offset == 4


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_an_empty_transaction_leaves_no_trace(log, end):
    transaction = log.transaction(7)
    transaction.append(table())
    assert getattr(transaction, end)() is None
    assert log.log_end_offset == 0


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_transaction_that_has_ended_takes_nothing_more(log, end):
    transaction = log.transaction(7)
    transaction.append(table(b"a"))
    getattr(transaction, end)()
    for act in (transaction.commit, transaction.abort, lambda: transaction.append(table(b"b"))):
        with pytest.raises(InvalidTxnStateError, match="This transaction has ended"):
            act()
    assert log.log_end_offset == 2


def test_refused_records_do_not_end_it(log):
    with log.transaction() as transaction:
        transaction.append(table(b"a"))
        with pytest.raises(InvalidRecordError):
            transaction.append("no table")
        transaction.append(table(b"b"))
    assert committed(log) == [b"a", b"b"]


@pytest.mark.parametrize("by", ["commit", "transaction", "abort_transaction", "end_transaction"])
def test_everything_is_on_disk_when_that_is_asked_for(log, by):
    transaction = log.transaction(7, flush=by == "transaction")
    transaction.append(table(b"a", b"b"))
    assert log.recovery_point == 0
    if by == "commit":
        transaction.commit(flush=True)
    elif by == "transaction":
        transaction.commit()
    elif by == "abort_transaction":
        log.abort_transaction(7, flush=True)
    else:
        log.end_transaction(7, 1, is_abort=False, flush=True)
    assert (log.recovery_point, log.log_end_offset) == (3, 3)


def test_and_not_otherwise(log):
    with log.transaction(flush=True) as transaction:
        transaction.append(table(b"a"))
        transaction.commit(flush=False)
    assert log.recovery_point == 0


# -- Epochs and ids --------


def epochs(log):
    return [
        (each["producerId"], each["producerEpoch"], each["sequence"])
        for batch in log.read(include_metadata=True)
        for each in batch["_metadata"].to_pylist()
    ]


def test_each_transaction_has_an_epoch_of_its_own(log):
    for _ in range(3):
        with log.transaction(7) as transaction:
            transaction.append(table(b"a", b"b"))
    assert epochs(log) == [(7, 0, 0), (7, 0, 1), (7, 1, 0), (7, 1, 1), (7, 2, 0), (7, 2, 1)]
    # The last marker has begun the next one.
    with pytest.raises(InvalidProducerEpochError):
        log.append(table(b"late"), producer=ProducerSequence(7, 2, 2), is_transactional=True)


def test_it_follows_whatever_the_producer_wrote_before(log):
    log.append(table(b"a"), producer=ProducerSequence(7, 5, 41))
    with log.transaction(7) as transaction:
        transaction.append(table(b"b"))
    log.append_batches(
        data(3, producer=7, epoch=6, sequence=0) + marker(4, producer=7, epoch=9, coordinator_epoch=30)
    )
    log.update_high_watermark(5)
    with log.transaction(7) as transaction:
        transaction.append(table(b"c"))
    assert epochs(log) == [(7, 5, 41), (7, 6, 0), (7, 6, 0), (7, 9, 0)]
    with pytest.raises(TransactionCoordinatorFencedError):
        log.end_transaction(7, 10, is_abort=False, coordinator_epoch=29)


def test_in_the_last_epoch_records_are_numbered_on(log):
    log.append(table(b"a"), producer=ProducerSequence(7, 32766, 0))
    for rows in ((b"b", b"c"), (b"d",), (b"e",)):
        with log.transaction(7) as transaction:
            transaction.append(table(*rows))
    with pytest.raises(KeyError), log.transaction(7) as transaction:  # noqa: PT012
        transaction.append(table(b"f"))
        raise KeyError
    log.transaction(7).append(table(b"g"))
    with log.transaction(7) as transaction:
        transaction.append(table(b"h"))
    assert [(epoch, sequence) for _, epoch, sequence in epochs(log)] == [
        (32766, 0), (32767, 0), (32767, 1), (32767, 2), (32767, 3), (32767, 4), (32767, 5), (32767, 6),
    ]  # fmt: skip
    assert committed(log) == [b"a", b"b", b"c", b"d", b"e", b"h"]


def test_an_unused_id_is_taken(log):
    first, second = log.transaction(), log.transaction()
    assert (first.producer_id, second.producer_id) == (FIRST_TAKEN_ID, FIRST_TAKEN_ID + 1)
    first.append(table(b"a"))
    first.commit()
    # It is free again, with the next epoch.
    third = log.transaction()
    assert (third.producer_id, third.producer_epoch) == (FIRST_TAKEN_ID, 1)


def test_one_that_was_left_open_is_not_taken(logs, log, path):
    log.transaction().append(table(b"a"))
    gc.collect()
    assert log.transaction().producer_id == FIRST_TAKEN_ID + 1
    crash(logs)
    with open_directory(path) as opened:
        log = opened.get("orders")
        assert log.transaction().producer_id == FIRST_TAKEN_ID + 1
        log.abort_transaction(FIRST_TAKEN_ID)
        again = log.transaction()
        assert (again.producer_id, again.producer_epoch) == (FIRST_TAKEN_ID, 1)


# -- Fencing --------


def test_a_newer_transaction_aborts_and_fences_an_older_one(log, caplog):
    old = log.transaction(7)
    old.append(table(b"old"))
    with caplog.at_level(logging.WARNING):
        new = log.transaction(7)
    assert "aborted the open transaction of producer 7" in caplog.text
    assert (new.producer_epoch, log.open_transactions()) == (1, ())
    new.append(table(b"new"))
    for act in (old.commit, old.abort, lambda: old.append(table(b"late"))):
        with pytest.raises(InvalidProducerEpochError, match="was aborted"):
            act()
    new.commit()
    assert committed(log) == [b"new"]
    assert aborted(log) == (AbortedTransaction(7, 0, 1, 2),)


def test_also_one_that_has_written_nothing_yet(log):
    old, new = log.transaction(7), log.transaction(7)
    with pytest.raises(InvalidProducerEpochError):
        old.append(table(b"old"))
    new.append(table(b"new"))
    new.commit()
    with pytest.raises(InvalidProducerEpochError):
        old.append(table(b"old"))
    assert committed(log) == [b"new"]


def test_a_fenced_transaction_does_not_hide_what_went_wrong(log):
    with pytest.raises(KeyError) as caught, log.transaction(7) as old:  # noqa: PT012
        old.append(table(b"old"))
        log.transaction(7)
        raise KeyError
    assert caught.value.__notes__[0].startswith(
        "The transaction of producer 7 could not be aborted: This transaction of producer 7"
    )


@pytest.mark.parametrize("interference", ["end", "truncate", "begin"])
def test_what_others_did_to_it_is_noticed(log, interference):
    log.append(table(b"before"))
    transaction = log.transaction(7)
    if interference != "begin":
        transaction.append(table(b"a"))
    if interference == "end":
        log.end_transaction(7, 0, is_abort=True)
    elif interference == "truncate":
        log.truncate_to(1)
    else:
        log.append(table(b"b"), producer=ProducerSequence(7, 0, 0), is_transactional=True)
    end_offset = log.log_end_offset
    for act in (transaction.commit, transaction.abort, lambda: transaction.append(table(b"c"))):
        with pytest.raises(
            InvalidTxnStateError, match="another caller has ended or begun one, or truncated the log"
        ):
            act()
    assert log.log_end_offset == end_offset


def test_also_where_they_wrote_in_its_name(log):
    transaction = log.transaction(7)
    transaction.append(table(b"a"))
    log.append(table(b"of others"), producer=ProducerSequence(7, 0, 1), is_transactional=True)
    with pytest.raises(InvalidTxnStateError, match="Another writer has used sequence number 1"):
        transaction.append(table(b"b"))
    transaction.abort()
    assert committed(log) == []


def truncate(log):
    log.truncate_to(1)


def write_on(log):
    log.append(table(b"of others"), producer=ProducerSequence(7, 0, 2), is_transactional=True)


def write_in_a_newer_epoch(log):
    """Write a record with the number of the transaction's last one, in a newer epoch."""
    log.append(table(b"of", b"others"), producer=ProducerSequence(7, 1, 0), is_transactional=True)


@pytest.mark.parametrize("interference", [truncate, write_on, write_in_a_newer_epoch])
def test_neither_a_part_of_it_nor_the_records_of_others_are_committed(log, interference):
    transaction = log.transaction(7)
    transaction.append(table(b"a"))
    transaction.append(table(b"b"))
    interference(log)
    with pytest.raises(InvalidTxnStateError, match="truncated the log, or wrote as this producer"):
        transaction.commit()
    transaction.abort()
    assert committed(log) == []
    assert log.open_transactions() == ()


# -- What fails --------

NO_SPACE = Fault(errno.ENOSPC, at=1, is_lasting=True)


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_after_a_marker_that_failed_the_log_tells_on_the_next_open(logs, log, path, end):
    transaction = log.transaction(7)
    transaction.append(table(b"a"))
    with FaultyCalls(NO_SPACE), pytest.raises(StorageError):
        getattr(transaction, end)()
    with pytest.raises(LogFailedError):
        getattr(transaction, end)()
    crash(logs)
    with open_directory(path) as opened:
        assert [each.producer_id for each in opened.get("orders").open_transactions()] == [7]


def test_a_failed_log_does_not_hide_what_went_wrong(log):
    def work():
        with log.transaction(7) as transaction, FaultyCalls(NO_SPACE):
            transaction.append(table(b"a"))

    with pytest.raises(StorageError) as caught:
        work()
    assert "could not be aborted: A write to this log failed before" in caught.value.__notes__[0]


# -- Readers --------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["append", "append", "append", "plain", "commit", "abort", "begin", "roll", "reopen"]
        ),
        st.integers(0, 2),
        st.integers(1, 4),
    ),
    max_size=50,
)


@examples(60)
@given(steps=STEPS)
def test_any_order_of_transactions_is_read_as_a_dictionary_says(tmp_path_factory, steps):
    """By the log itself, from any offset on, and by who only has its files."""
    root = tmp_path_factory.mktemp("logs") / "data"
    logs = open_directory(root, config=small(600))
    log = logs.create("orders")
    rows, open_rows, transactions = {}, {}, {}
    for kind, producer, count in steps:
        made = [b"%d %d" % (log.log_end_offset, number) for number in range(count)]
        offset = log.log_end_offset
        if kind == "plain":
            log.append(table(*made))
            rows.update(zip(range(offset, offset + count), made, strict=True))
        elif kind == "append":
            if producer not in transactions:
                transactions[producer] = log.transaction(producer)
                open_rows.pop(producer, None)
                offset = log.log_end_offset
            transactions[producer].append(table(*made))
            open_rows.setdefault(producer, {}).update(zip(range(offset, offset + count), made, strict=True))
        elif kind in ("commit", "abort") and producer in transactions:
            getattr(transactions.pop(producer), kind)()
            ended = open_rows.pop(producer, {})
            rows.update(ended if kind == "commit" else {})
        elif kind == "begin":
            transactions[producer] = log.transaction(producer)
            open_rows.pop(producer, None)
        elif kind == "roll":
            log.roll()
        elif kind == "reopen":
            logs.close()
            logs = open_directory(root, config=small(600))
            log = logs.get("orders")
            transactions.clear()
    stable = min((min(each) for each in open_rows.values()), default=log.log_end_offset)
    expected = {offset: row for offset, row in rows.items() if offset < stable}
    assert log.last_stable_offset == stable
    assert {each.producer_id: each.first_offset for each in log.open_transactions()} == {
        producer: min(each) for producer, each in open_rows.items()
    }
    for start in {0, log.log_end_offset // 2, stable}:
        assert offsets(log, start, isolation_level="read_committed") == [
            offset for offset in sorted(expected) if offset >= start
        ]
    assert committed(log) == [expected[offset] for offset in sorted(expected)]
    found = storage_core.read_table(root, subscribe="orders", isolation_level="read_committed")
    assert dict(zip(found["offset"].to_pylist(), found["value"].to_pylist(), strict=True)) == expected
    logs.close()
