"""Transactions and idempotent appends of `storage_core` in a stopped broker's root, and how the broker handles them.

A broker creates the topics, and real producers begin in some of them. Then we write the logs, and a broker loads them:
once with our snapshots and indexes, and once, on a copy, without them, so that it rebuilds them from every batch.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from storage_core import LogConfig, LogDirectory, ProducerSequence
from storage_core.errors import OutOfOrderSequenceError
from tests.interop.broker import MAX_TRANSACTION_TIMEOUT_MS, KafkaBroker
from tests.interop.broker_start import BrokerStart, start_and_watch
from tests.interop.clients import (
    ISOLATION_LEVELS,
    Consumed,
    Deliveries,
    consume_partitions,
    new_producer,
)
from tests.interop.java_clients import run_transactions_tool
from tests.interop.partition_state import ProducerEntry, snapshot_entries_in_order
from tests.interop.placing import write_offsets
from tests.interop.produced import BROKER_SETTINGS, create_topics
from tests.interop.raw_produce import ProducerAnswers, go_on
from tests.interop.transaction_cases import HANGING, IDEMPOTENT, TOPICS, Written
from tests.interop.workload import Sendable, produce
from tests.interop.writing import config_of, table_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from confluent_kafka import Producer


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
