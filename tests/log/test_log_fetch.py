"""Fetching bytes (157-161)."""

from __future__ import annotations

import threading

import pytest

from storage_core import LogConfig
from storage_core.errors import OptionError
from tests.log.logs import BATCH_BYTES, append, offsets, small, table, value, values


def test_an_unknown_isolation_level_is_refused(log):
    with pytest.raises(OptionError, match="isolation"):
        log.fetch(0, 1, isolation_level="committed")


def test_a_fetch_gives_whole_batches_unless_asked_otherwise(log):
    append(log, 25)
    assert len(log.fetch(3, 250).data) == 250
    assert log.fetch(3, 250).position_bytes == 300
    assert len(log.fetch(3, 1).data) == BATCH_BYTES
    cut = log.fetch(3, 1, min_one_message=False)
    assert (len(cut.data), cut.is_first_entry_incomplete) == (1, True)
    assert log.fetch(3, 0, min_one_message=False).data == b""
    # Never over the end of a segment.
    assert len(log.fetch(8, 1000).data) == 200
    assert log.fetch(25, 1000).data == b""
    with pytest.raises(OptionError, match="at least 0"):
        log.fetch(0, -1)


# -- Committed --------


@pytest.fixture
def transacted(logs):
    """Transactions of three producers, entangled, over several segments; the last one is open."""
    log = logs.create("transacted", config=LogConfig(internal_segment_bytes=600, index_interval_bytes=100))
    first, second = log.transaction(1), log.transaction(2)
    for number in range(4):
        first.append(table(b"first %d" % number))
        second.append(table(b"second %d" % number, b"more"))
        log.append(table(b"plain %d" % number))
    first.abort()
    with log.transaction(3) as third:
        third.append(table(*(b"third %d" % number for number in range(30))))
    second.commit()
    for number in range(3):
        with log.transaction(1) as committed:
            committed.append(table(b"committed %d" % number))
        aborted = log.transaction(3)
        aborted.append(table(b"aborted %d" % number))
        log.roll()
        aborted.abort()
    log.transaction(2).append(table(b"open"))
    assert len(log.segment_base_offsets) > 5
    return log


def test_a_fetch_tells_the_aborted_transactions_of_its_batches_alone(transacted):
    every = transacted.fetch(0, 1 << 20, isolation_level="read_committed")
    first = every.aborted_transactions[0]
    assert (first.producer_id, first.first_offset) == (1, 0)
    # It is open around this batch of another producer, up to its marker at offset 16.
    within = transacted.fetch(2, 1, isolation_level="read_committed")
    assert (within.base_offset, within.aborted_transactions) == (1, (first,))
    assert transacted.fetch(16, 1, isolation_level="read_committed").aborted_transactions == (first,)
    assert transacted.fetch(17, 1, isolation_level="read_committed").aborted_transactions == ()
    # A batch that is cut off counts by itself, not by what comes after it.
    cut = transacted.fetch(0, 10, isolation_level="read_committed", min_one_message=False)
    assert (cut.is_first_entry_incomplete, cut.aborted_transactions) == (True, (first,))
    end = transacted.fetch(transacted.log_end_offset, 100, isolation_level="read_committed")
    assert (end.data, end.aborted_transactions) == (b"", ())


def test_only_a_committed_fetch_tells_of_transactions(transacted):
    for level in (None, "read_uncommitted"):
        assert transacted.fetch(0, 1 << 20, isolation_level=level).aborted_transactions is None


def test_a_committed_fetch_looks_no_further_than_its_transactions_reach(logs):
    log = logs.create("long", config=LogConfig(internal_segment_bytes=200))
    for number in range(50):
        with log.transaction(1) as transaction:
            transaction.append(table(b"row %d" % number))
    assert len(log.segment_base_offsets) > 40
    statistics = log._filesystem.statistics
    before = statistics.files_opened
    assert log.fetch(0, 100, isolation_level="read_committed").aborted_transactions == ()
    assert statistics.files_opened - before < 20


# -- Reads --------


def test_options_of_a_read(log):
    append(log, 30)
    assert [batch.schema.names for batch in log.read(columns=["offset"])] == [["offset"]] * 3
    assert offsets(log, where="offset >= 27") == [27, 28, 29]
    assert offsets(log, max_bytes=1, columns=["offset"]) == list(range(10))
    assert offsets(log, max_bytes=0) == []
    with pytest.raises(OptionError, match="subscribe"):
        log.read(subscribe="orders")
    with pytest.raises(OptionError, match="columms"):
        log.read(columms=["offset"])
    with pytest.raises(OptionError, match="max_bytes"):
        log.read(max_bytes=-1)


def test_readers_see_a_growing_prefix_while_the_log_rolls(logs):
    log = logs.create("busy", config=small(segment_bytes=5 * BATCH_BYTES))
    wrong = []
    is_over = threading.Event()

    def read_on() -> None:
        seen = 0
        while not is_over.is_set():
            found = values(log, columns=["value"])
            if found != [value(number) for number in range(len(found))] or len(found) < seen:
                wrong.append(found)
            seen = len(found)

    readers = [threading.Thread(target=read_on) for _ in range(3)]
    for reader in readers:
        reader.start()
    append(log, 100)
    is_over.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    assert len(log.segment_base_offsets) == 20
