"""One broker and what was written to it: every codec and record shape, transactions, both timestamp types.

The broker is stopped cleanly, started, written to, killed, and started again. After the clean stop and after the kill,
its log directory is copied, and what consumers read just before is kept with the copy.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.interop.broker import MAX_TRANSACTION_TIMEOUT_MS, KafkaBroker
from tests.interop.clients import (
    ISOLATION_LEVELS,
    READ_UNCOMMITTED,
    Row,
    consume,
    create_topic,
    new_producer,
)
from tests.interop.workload import records_of_every_shape, send

if TYPE_CHECKING:
    from pathlib import Path

    from confluent_kafka import Producer


RUNNING, STOPPED, KILLED = STATES = ("running", "stopped", "killed")

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
HOUR_MS = 60 * 60 * 1000

# Topic name: its settings. One value is 110 KB, and a batch must fit into a segment.
_SETTINGS: dict[str, dict[str, object]] = {
    **{f"codec-{codec}": {"internal_segment_bytes": 190_000} for codec in CODECS},
    "log-append-time": {"internal_segment_bytes": 190_000, "message_timestamp_type": "LogAppendTime"},
    "idempotent": {"internal_segment_bytes": 190_000, "index_interval_bytes": 100},
    "rolled-by-time": {"segment_ms": 30 * HOUR_MS},
    "transactions": {"internal_segment_bytes": 40_000, "index_interval_bytes": 0},
    "never-written": {},
}
TOPICS = tuple(_SETTINGS)


@dataclass(slots=True)
class Written:
    """What was written, in each state.

    Attributes:
        broker: Runs; `directories` holds its log directory as "running".
        directories: By state.
        consumed: What a consumer read, by state, topic and isolation level.
    """

    broker: KafkaBroker
    directories: dict[str, Path] = field(default_factory=dict)
    consumed: dict[tuple[str, str, str], list[Row]] = field(default_factory=dict)
    # Closing a producer would abort its transaction.
    open_producers: list[Producer] = field(default_factory=list)

    def keep(self, state: str, directory: Path) -> None:
        """Note what consumers read now for a state and its directory."""
        self.directories[state] = directory
        for isolation_level in ISOLATION_LEVELS:
            rows = consume(self.broker, TOPICS, isolation_level)
            for topic in TOPICS:
                self.consumed[state, topic, isolation_level] = [row for row in rows if row.topic == topic]


def write_everything(broker: KafkaBroker, scratch: Path) -> Written:
    """Write, stop, write, kill and start again."""
    written = Written(broker)
    for topic, settings in _SETTINGS.items():
        create_topic(broker, topic, **settings)

    _write_plain_topics(broker, "first")
    _write_transactions(written, "first")
    written.keep(STOPPED, scratch / STOPPED)
    broker.stop()
    shutil.copytree(broker.log_directory, written.directories[STOPPED])
    broker.start()

    _write_plain_topics(broker, "second")
    _write_transactions(written, "second")
    written.keep(KILLED, scratch / KILLED)
    broker.kill()
    shutil.copytree(broker.log_directory, written.directories[KILLED])
    broker.start()

    written.keep(RUNNING, broker.log_directory)
    for topic in TOPICS:
        # The kill lost nothing: the page cache survives it.
        killed = written.consumed[KILLED, topic, READ_UNCOMMITTED]
        assert written.consumed[RUNNING, topic, READ_UNCOMMITTED] == killed
    return written


def _write_plain_topics(broker: KafkaBroker, occasion: str) -> None:
    for codec in CODECS:
        producer = new_producer(broker, compression_type=codec, linger_ms=1000)
        send(producer, f"codec-{codec}", records_of_every_shape(900, f"{codec} {occasion}"))
    producer = new_producer(broker, compression_type="lz4", linger_ms=1000)
    send(producer, "log-append-time", records_of_every_shape(900, f"append {occasion}"))
    producer = new_producer(broker, compression_type="zstd", linger_ms=1000, enable_idempotence=True)
    send(producer, "idempotent", records_of_every_shape(900, f"idempotent {occasion}"))
    producer = new_producer(broker, compression_type="snappy", linger_ms=1000)
    send(producer, "rolled-by-time", records_of_every_shape(300, f"time {occasion}"))


def _write_transactions(written: Written, occasion: str) -> None:
    """Interleave two transactional producers with a plain one; leave a third one's transaction open."""
    source = random.Random(f"transactions {occasion}")
    plain = new_producer(written.broker, linger_ms=1000)
    transactional = [
        new_producer(
            written.broker,
            transactional_id=f"{occasion}-{name}",
            # One transaction stays open until the last test has compared the consumed records.
            transaction_timeout_ms=MAX_TRANSACTION_TIMEOUT_MS,
            compression_type=codec,
            linger_ms=1000,
        )
        for name, codec in (("first", "zstd"), ("second", "none"), ("open", "lz4"))
    ]
    for producer in transactional:
        producer.init_transactions()
    records = records_of_every_shape(4_000, f"transactional {occasion}")
    # The value of 110 KB exceeds a segment here.
    small = (record for record in records if len(record.value or b"") < 1000)

    def send_some(producer: Producer) -> None:
        send(producer, "transactions", (next(small) for _ in range(source.randrange(1, 30))))

    for producer in written.open_producers:
        # Its transaction spans a restart of the broker.
        producer.commit_transaction()
    written.open_producers.clear()
    *finishing, staying_open = transactional
    for _ in range(12):
        for producer in finishing:
            producer.begin_transaction()
        for _ in range(source.randrange(1, 4)):
            send_some(source.choice([*finishing, plain]))
        for producer in finishing:
            if source.random() < 0.4:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    staying_open.begin_transaction()
    send_some(staying_open)
    # Complete transactions after the first unstable offset.
    for finish in (finishing[0].commit_transaction, finishing[0].abort_transaction):
        finishing[0].begin_transaction()
        send_some(finishing[0])
        finish()
    send_some(plain)
    written.open_producers.append(staying_open)
