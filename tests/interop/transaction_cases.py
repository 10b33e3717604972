"""Logs written by transactions and idempotent producers, one topic per case."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from storage_core import Log, ProducerSequence, Transaction
from tests.interop.clients import Row
from tests.interop.raw_produce import produced_batch
from tests.interop.workload import Sendable
from tests.interop.writing import table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


OUR_PRODUCER = 4_000_000_000
HANGING = "ours-hanging"
IDEMPOTENT = "ours-idempotent"


@dataclass(slots=True)
class Written:
    """A log and its records so far.

    Attributes:
        rows: All records.
        hidden: Offsets of records in aborted or open transactions.
    """

    log: Log
    now_ms: int
    rows: list[Row] = field(default_factory=list)
    hidden: set[int] = field(default_factory=set)

    def records(self, count: int) -> list[Sendable]:
        """New records on each call."""
        first = len(self.rows)
        return [
            Sendable(
                b"key %d" % number,
                b"%d of %s" % (number, self.log.topic.encode()) * 3,
                [],
                self.now_ms + number,
            )
            for number in range(first, first + count)
        ]

    def plain(self, count: int = 7) -> None:
        """Append records outside any transaction."""
        records = self.records(count)
        self.add(records, self.log.append(table_of(records)).first_offset)

    def within(self, transaction: Transaction, count: int = 7) -> set[int]:
        """Append records to a transaction; they count as hidden until the caller clears them."""
        records = self.records(count)
        offsets = self.add(records, transaction.append(table_of(records)).first_offset)
        self.hidden |= offsets
        return offsets

    def batch(self, count: int, *, sequence: int, epoch: int = 0, is_transactional: bool = False) -> set[int]:
        """Append a batch as a producer would send it."""
        records = self.records(count)
        content = produced_batch(
            [(record.key or b"", record.value) for record in records],
            timestamp_ms=self.now_ms,
            producer_id=OUR_PRODUCER,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=is_transactional,
        )
        same_time = [record._replace(timestamp_ms=self.now_ms) for record in records]
        return self.add(same_time, self.log.append_as_leader(content).first_offset)

    def numbered(self, count: int, producer: ProducerSequence) -> None:
        """Append the same records of an idempotent producer twice; the log stores them once."""
        records = self.records(count)
        info = self.log.append(table_of(records), producer=producer)
        self.add(records, info.first_offset)
        again = self.log.append(table_of(records), producer=producer)
        assert again.is_duplicate
        assert (again.first_offset, again.last_offset) == (info.first_offset, info.last_offset)

    def add(self, records: Sequence[Sendable], first_offset: int) -> set[int]:
        """Note appended records."""
        for offset, record in enumerate(records, first_offset):
            place = (self.log.topic, self.log.partition, offset)
            self.rows.append(Row(*place, record.key, record.value, (), record.timestamp_ms, 0))
        return set(range(first_offset, first_offset + len(records)))


def _committed_and_aborted(written: Written) -> None:
    written.plain()
    with written.log.transaction() as committed:
        offsets = written.within(committed)
    written.hidden -= offsets
    with contextlib.suppress(ZeroDivisionError), written.log.transaction() as aborted:
        written.within(aborted)
        raise ZeroDivisionError
    written.plain()


def _interleaved(written: Written) -> None:
    first, second = written.log.transaction(1 << 40), written.log.transaction(2 << 40)
    offsets = written.within(first)
    written.within(second)
    written.plain()
    offsets |= written.within(first)
    second.abort()
    written.plain()
    first.commit()
    written.hidden -= offsets
    with written.log.transaction(2 << 40) as again:
        offsets = written.within(again)
    written.hidden -= offsets


def _spanning_segments(written: Written) -> None:
    for is_abort in (False, True):
        transaction = written.log.transaction(OUR_PRODUCER)
        offsets: set[int] = set()
        for _ in range(12):
            offsets |= written.within(transaction, 20)
            written.plain(5)
        if is_abort:
            transaction.abort()
        else:
            transaction.commit()
            written.hidden -= offsets
    written.plain()


def _many(written: Written) -> None:
    source = random.Random("many transactions")
    for _ in range(60):
        transaction = written.log.transaction(OUR_PRODUCER + source.randrange(4))
        offsets = written.within(transaction, source.randrange(1, 20))
        if source.random() < 0.4:
            transaction.abort()
        else:
            transaction.commit()
            written.hidden -= offsets


def _nothing_in_it(written: Written) -> None:
    with written.log.transaction():
        pass
    written.plain()


def _hanging(written: Written) -> None:
    written.plain()
    # Never ended, as if its process had died.
    written.within(written.log.transaction(OUR_PRODUCER))
    written.plain()
    with written.log.transaction() as later:
        offsets = written.within(later)
    written.hidden -= offsets


def _coordinated(written: Written) -> None:
    """Transactions as a coordinator and its producers run them, under both protocol versions."""
    written.batch(5, sequence=0, is_transactional=True)
    written.log.end_transaction(OUR_PRODUCER, 0, is_abort=False, coordinator_epoch=3)
    written.hidden |= written.batch(5, sequence=5, is_transactional=True)
    written.log.end_transaction(OUR_PRODUCER, 0, is_abort=True, coordinator_epoch=3)
    written.batch(5, sequence=10, is_transactional=True)
    written.log.end_transaction(OUR_PRODUCER, 1, is_abort=False, coordinator_epoch=4, transaction_version=2)
    written.hidden |= written.batch(5, epoch=1, sequence=0, is_transactional=True)
    written.log.end_transaction(OUR_PRODUCER, 2, is_abort=True, coordinator_epoch=4, transaction_version=2)
    # A marker without a transaction.
    written.log.end_transaction(OUR_PRODUCER + 1, 0, is_abort=True, coordinator_epoch=4)
    written.plain()


def _idempotent(written: Written) -> None:
    for number in range(8):
        for producer in range(3):
            sequence = (1 << 31) - 20 + 7 * number if producer == 2 else 7 * number
            numbers = ProducerSequence(OUR_PRODUCER + producer, 4, sequence % (1 << 31))
            written.numbered(7, numbers)
    written.plain()


def _aborted_after_reopening(written: Written) -> None:
    (transaction,) = written.log.open_transactions()
    assert (transaction.producer_id, transaction.first_offset) == (OUR_PRODUCER, 7)
    written.log.abort_transaction(OUR_PRODUCER)
    assert not written.log.open_transactions()
    written.plain()


# Topic: the first writes, and those after the log was closed and reopened.
TOPICS: dict[str, tuple[Callable[[Written], None], Callable[[Written], None] | None]] = {
    "ours-committed-and-aborted": (_committed_and_aborted, None),
    "ours-interleaved": (_interleaved, None),
    "ours-spanning-segments": (_spanning_segments, Written.plain),
    "ours-many": (_many, _many),
    "ours-empty-transaction": (_nothing_in_it, None),
    "ours-coordinated": (_coordinated, None),
    IDEMPOTENT: (_idempotent, None),
    HANGING: (_hanging, None),
    "ours-aborted-after-reopening": (_hanging, _aborted_after_reopening),
}
