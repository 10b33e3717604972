"""Fetching bytes (157-161)."""

from __future__ import annotations

import pytest

from storage_core import LogConfig, LogDirectory
from storage_core.errors import OptionError
from storage_core.record.record_batches import RecordBatches
from tests.log.logs import BATCH_BYTES, append, offsets, table, value


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


def test_a_fetch_inside_a_batch_gives_all_of_it(logs):
    log = logs.create("zipped", config=LogConfig(compression_type="zstd"))
    log.append(table(*map(value, range(50))))
    fetched = log.fetch(30, 1)
    assert fetched.base_offset == 0
    assert len(fetched.data) > 61
    assert offsets(log, 30) == list(range(30, 50))


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


def consumed(log, max_size_bytes):
    """The offsets that a consumer gets from what it fetches, as Kafka's ``CompletedFetch`` finds them."""
    offset, found = log.log_start_offset, []
    while True:
        fetched = log.fetch(offset, max_size_bytes, isolation_level="read_committed")
        batches = RecordBatches.parse(fetched.data)
        if not batches.count:
            assert fetched.aborted_transactions == ()
            return found
        waiting = sorted(fetched.aborted_transactions, key=lambda each: each.first_offset)
        aborted_producers = set()
        for header in batches.headers:
            last_offset = int(header["base_offset"]) + int(header["last_offset_delta"])
            producer_id, is_control = int(header["producer_id"]), bool(header["attributes"] & 0x20)
            while waiting and waiting[0].first_offset <= last_offset:
                aborted_producers.add(waiting.pop(0).producer_id)
            if is_control:
                # The next transaction of the producer begins after it.
                aborted_producers.discard(producer_id)
            elif not (header["attributes"] & 0x10 and producer_id in aborted_producers):
                found += range(max(offset, int(header["base_offset"])), last_offset + 1)
        assert waiting == []
        offset = batches.next_offset


@pytest.mark.parametrize("max_size_bytes", [0, 150, 700, 1 << 20])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_consumer_leaves_out_what_a_committed_fetch_tells(logs, transacted, max_size_bytes, read_only):
    expected = offsets(transacted, isolation_level="read_committed")
    assert len(expected) == 4 + 8 + 30 + 3
    if not read_only:
        assert consumed(transacted, max_size_bytes) == expected
        return
    logs.close()
    with LogDirectory.open(logs.path, read_only=True) as reading:
        assert consumed(reading.get("transacted"), max_size_bytes) == expected


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
