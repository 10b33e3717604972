"""Transactions and idempotent appends of `storage_core`, as a broker and its clients see them.

A broker creates the topics, and real producers begin in some of them. Then we write the logs, and a broker loads them:
once with our snapshots and indexes, and once, on a copy, without them, so that it rebuilds them from every batch.
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

import storage_core
from storage_core import Log, LogConfig, LogDirectory, ProducerSequence, Transaction
from storage_core.errors import OutOfOrderSequenceError
from tests.interop.broker import MAX_TRANSACTION_TIMEOUT_MS, KafkaBroker
from tests.interop.broker_start import BrokerStart, start_and_watch
from tests.interop.clients import (
    ISOLATION_LEVELS,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Consumed,
    Deliveries,
    Row,
    assert_same_rows,
    consume_partitions,
    create_topics,
    new_producer,
    rows_of,
)
from tests.interop.conftest import broker_in
from tests.interop.java_clients import run_transactions_tool
from tests.interop.partition_state import (
    ProducerEntry,
    log_end_offset_of,
    snapshot_entries_in_order,
    state_of,
)
from tests.interop.placing import write_offsets
from tests.interop.produced import BROKER_SETTINGS
from tests.interop.raw_produce import OUT_OF_ORDER, Answer, ProducerAnswers, go_on, produced_batch
from tests.interop.workload import Sendable, produce
from tests.interop.writing import config_of, table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from confluent_kafka import Producer


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


_SEGMENTS: dict[str, object] = {"internal_segment_bytes": 6_000, "segment_index_bytes": 65_536}
HOUR_MS = 60 * 60 * 1000

# Topics in which real producers begin.
CONTINUED_BY_US = "theirs-continued-by-us"
KEPT_PRODUCER = "theirs-kept"
OPEN_OF_A_PRODUCER = "theirs-open"


@dataclass(slots=True)
class Transacted:
    """The directories and the observations on them.

    Attributes:
        closed: Our closed root. It does not change afterwards.
        used: The broker's root after use, closed.
        recovered: A copy of ours that a broker rebuilt from every batch.
        written: By topic.
        start: The start with everything that we wrote.
        consumed: By isolation level and topic; the hanging topic again after its transaction was aborted.
        answers: To producers that continued, by topic and producer id.
        found_hanging: What Kafka's tool reports about the broker's transactions.
    """

    closed: Path
    used: Path
    recovered: Path
    written: dict[str, Written] = field(default_factory=dict)
    start: BrokerStart = field(default_factory=lambda: BrokerStart(""))
    consumed: dict[str, dict[str, Consumed]] = field(default_factory=dict)
    consumed_after_abort: dict[str, Consumed] = field(default_factory=dict)
    answers: dict[tuple[str, int], ProducerAnswers] = field(default_factory=dict)
    kept_offsets: list[int] = field(default_factory=list)
    found_hanging: str = ""


def transact(broker: KafkaBroker, scratch: Path) -> Transacted:
    """Write the logs, give them to the broker, and observe it."""
    done = Transacted(scratch / "closed", broker.log_directory, scratch / "recovered")
    theirs = (CONTINUED_BY_US, KEPT_PRODUCER, OPEN_OF_A_PRODUCER)
    topics = (*TOPICS, *theirs)
    now_ms = int(time.time() * 1000) - HOUR_MS
    broker.start()
    create_topics(broker, dict.fromkeys(topics, _SEGMENTS))
    with _begun(broker, now_ms) as kept:
        broker.stop()
        _write_ours(done, broker.log_directory, now_ms)
        shutil.copytree(broker.log_directory, done.closed)

        done.start = start_and_watch(broker)
        done.consumed = {level: _consume(broker, topics, level) for level in ISOLATION_LEVELS}
        done.kept_offsets = _send_numbered(kept, KEPT_PRODUCER, 40, 60, now_ms)
    for topic in (IDEMPOTENT, CONTINUED_BY_US):
        _go_on(done, broker, topic)
    done.found_hanging = run_transactions_tool(broker, "find-hanging", "--broker-id", "1")
    run_transactions_tool(broker, "abort", "--topic", HANGING, "--partition", "0", "--start-offset", "7")
    done.consumed_after_abort = {
        level: _consume(broker, [HANGING], level)[HANGING] for level in ISOLATION_LEVELS
    }
    broker.stop()
    _recover(done, scratch, topics)
    return done


@contextlib.contextmanager
def _begun(broker: KafkaBroker, now_ms: int) -> Iterator[Producer]:
    """Real producers write; one leaves a transaction open, one continues later."""
    send_settings = {"linger_ms": 1000, "enable_idempotence": True}
    kept = new_producer(broker, **send_settings)
    _send_numbered(kept, KEPT_PRODUCER, 0, 40, now_ms)
    _send_numbered(new_producer(broker, **send_settings), CONTINUED_BY_US, 0, 40, now_ms)
    transactional = new_producer(
        broker, transactional_id="left-open", transaction_timeout_ms=MAX_TRANSACTION_TIMEOUT_MS
    )
    transactional.init_transactions()
    transactional.begin_transaction()
    _send_numbered(transactional, OPEN_OF_A_PRODUCER, 0, 40, now_ms)
    yield kept
    del transactional


def _sendables(first: int, end: int, now_ms: int) -> list[Sendable]:
    return [Sendable(b"key", b"sent %d" % number, [], now_ms + number) for number in range(first, end)]


def _send_numbered(producer: Producer, topic: str, first: int, end: int, now_ms: int) -> list[int]:
    deliveries = Deliveries()
    for record in _sendables(first, end, now_ms):
        produce(producer, topic, 0, record, deliveries)
    producer.flush()
    assert not deliveries.errors, deliveries.errors[0]
    return sorted(offset for _, _, offset in deliveries.rows)


def _config() -> LogConfig:
    return config_of(_SEGMENTS)


def _write_ours(done: Transacted, root: Path, now_ms: int) -> None:
    with LogDirectory.open(root, broker_directory=True, config=_config()) as logs:
        for topic, (write, _) in TOPICS.items():
            done.written[topic] = Written(logs.get(topic, 0), now_ms)
            write(done.written[topic])
        for topic in (CONTINUED_BY_US, KEPT_PRODUCER, OPEN_OF_A_PRODUCER):
            written = done.written[topic] = Written(logs.get(topic, 0), now_ms)
            written.add(_sendables(0, 40, now_ms), 0)
        _continue_as_their_producer(done.written[CONTINUED_BY_US], root)
        _abort_theirs(done.written[OPEN_OF_A_PRODUCER])
    with LogDirectory.open(root, broker_directory=True, config=_config()) as logs:
        for topic, (_, write_again) in TOPICS.items():
            if write_again is not None:
                done.written[topic].log = logs.get(topic, 0)
                write_again(done.written[topic])


def _continue_as_their_producer(written: Written, root: Path) -> None:
    """Continue as a real producer: a wrong sequence, which is rejected, then the next one."""
    (entry,) = _producers(root, CONTINUED_BY_US)
    following = ProducerSequence(entry.producer_id, entry.producer_epoch, entry.last_sequence + 1)
    too_high = ProducerSequence(entry.producer_id, entry.producer_epoch, entry.last_sequence + 3)
    with pytest.raises(OutOfOrderSequenceError) as refused:
        written.log.append(table_of(written.records(7)), producer=too_high)
    assert refused.value.expected_sequence == entry.last_sequence + 1
    written.numbered(7, following)


def _abort_theirs(written: Written) -> None:
    (transaction,) = written.log.open_transactions()
    assert transaction.first_offset == 0
    written.log.abort_transaction(transaction.producer_id)
    written.hidden |= set(range(40))
    written.plain()


def _producers(root: Path, topic: str) -> list[ProducerEntry]:
    newest = max((root / f"{topic}-0").glob("*.snapshot"))
    return sorted(snapshot_entries_in_order(newest.read_bytes()))


def _consume(broker: KafkaBroker, topics: Iterable[str], level: str) -> dict[str, Consumed]:
    consumed = consume_partitions(broker, [(topic, 0) for topic in topics], level)
    return {topic: each for (topic, _), each in consumed.items()}


def _go_on(done: Transacted, broker: KafkaBroker, topic: str) -> None:
    """Continue as each producer in our snapshots: repeat its last batch, leave a gap, then send the next one."""
    for entry in _producers(done.closed, topic):
        done.answers[topic, entry.producer_id] = go_on(broker, topic, entry)


def _recover(done: Transacted, scratch: Path, topics: Iterable[str]) -> None:
    """Let a broker rebuild a copy from every batch; all files with that state are removed first."""
    shutil.copytree(done.closed, done.recovered)
    (done.recovered / ".kafka_cleanshutdown").unlink()
    write_offsets(done.recovered, "recovery-point-offset-checkpoint", {})
    for topic in topics:
        for path in (done.recovered / f"{topic}-0").iterdir():
            if path.suffix in {".snapshot", ".txnindex"}:
                path.unlink()
    with KafkaBroker(scratch / "recovering", BROKER_SETTINGS, log_directory=done.recovered):
        pass


WRITTEN = (*TOPICS, CONTINUED_BY_US, KEPT_PRODUCER, OPEN_OF_A_PRODUCER)


def expected_rows(transacted: Transacted, topic: str, isolation_level: str) -> list[Row]:
    written = transacted.written[topic]
    if isolation_level == READ_UNCOMMITTED:
        return written.rows
    # Nothing is stable from the first record of an open transaction on.
    end = 7 if topic == HANGING else written.rows[-1].offset + 1
    return [row for row in written.rows if row.offset not in written.hidden and row.offset < end]


@pytest.fixture(scope="module")
def transacted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Transacted]:
    """Transactions of `storage_core`, after a broker used them."""
    scratch = tmp_path_factory.mktemp("transacted")
    with broker_in(scratch, BROKER_SETTINGS) as broker:
        yield transact(broker, scratch)


def test_broker_loads_them_without_a_warning(transacted: Transacted) -> None:
    assert transacted.start.skipped_recovery
    assert {topic for topic, _ in transacted.start.loaded()} >= set(WRITTEN)
    assert not transacted.start.unusual()
    assert not [line for topic in WRITTEN for line in transacted.start.complaints(topic)]


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
@pytest.mark.parametrize("topic", WRITTEN)
def test_consumer_reads_the_records(transacted: Transacted, topic: str, isolation_level: str) -> None:
    consumed = transacted.consumed[isolation_level][topic]
    assert consumed.error is None
    assert_same_rows(consumed.rows, expected_rows(transacted, topic, isolation_level))


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
@pytest.mark.parametrize("topic", WRITTEN)
def test_we_read_the_same(transacted: Transacted, topic: str, isolation_level: str) -> None:
    table = storage_core.read_table(
        str(transacted.closed), subscribe=topic, isolation_level=isolation_level, include_headers=True
    )
    assert_same_rows(rows_of(table), transacted.consumed[isolation_level][topic].rows)


@pytest.mark.parametrize("topic", [IDEMPOTENT, CONTINUED_BY_US])
def test_idempotent_producer_continues(transacted: Transacted, topic: str) -> None:
    answers = {key: answer for key, answer in transacted.answers.items() if key[0] == topic}
    assert len(answers) == (3 if topic == IDEMPOTENT else 1)
    for answer in answers.values():
        entry = answer.entry
        assert answer.repeated == Answer(0, entry.last_offset - entry.offset_delta)
        assert answer.gap.error == OUT_OF_ORDER
        assert answer.next == Answer(0, answer.log_end_offset)


def test_producer_that_stayed_alive_continues(transacted: Transacted) -> None:
    assert transacted.kept_offsets == list(range(40, 60))


def test_kafkas_tool_finds_the_hanging_transaction(transacted: Transacted) -> None:
    found = re.findall(r"^(\S+)\s+(\d+)\s+(\d+)\s", transacted.found_hanging, re.MULTILINE)
    assert found == [(HANGING, "0", str(OUR_PRODUCER))]


def test_hanging_transaction_aborted_by_kafkas_tool_hides_only_its_records(
    transacted: Transacted,
) -> None:
    written = transacted.written[HANGING]
    stable = [row for row in written.rows if row.offset not in written.hidden]
    assert len(stable) > len(expected_rows(transacted, HANGING, READ_COMMITTED))
    assert_same_rows(transacted.consumed_after_abort[READ_COMMITTED].rows, stable)
    assert_same_rows(transacted.consumed_after_abort[READ_UNCOMMITTED].rows, written.rows)


def test_we_read_it_as_aborted(transacted: Transacted) -> None:
    consumed = transacted.consumed_after_abort[READ_COMMITTED]
    table = storage_core.read_table(
        str(transacted.used), subscribe=HANGING, isolation_level=READ_COMMITTED, include_headers=True
    )
    assert_same_rows(rows_of(table), consumed.rows)
    with LogDirectory.open(transacted.used, broker_directory=True) as logs:
        assert not logs.get(HANGING, 0).open_transactions()


@pytest.mark.parametrize("topic", WRITTEN)
def test_broker_rebuilds_our_state_files_from_every_batch(transacted: Transacted, topic: str) -> None:
    ours, theirs = (state_of(root / f"{topic}-0") for root in (transacted.closed, transacted.recovered))
    assert ours.logs == theirs.logs
    newest = f"{log_end_offset_of(ours):020d}.snapshot"
    assert ours.snapshots[newest] == theirs.snapshots[newest]
    assert {name: each for name, each in ours.indexes.items() if each and name.endswith(".txnindex")} == {
        name: each for name, each in theirs.indexes.items() if each and name.endswith(".txnindex")
    }
