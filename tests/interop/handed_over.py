"""Log directories written by `storage_core` and handed over to a broker, and what the broker did with them.

One broker starts three times. After the first start, topics are created. The second start loads our logs under the
topics' names with a clean-shutdown marker; clients read and write them. Then the broker is killed, all recovery points
are reset, more logs are added, and the third start recovers all of them.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from confluent_kafka.admin import OffsetSpec

from storage_core import LogDirectory
from tests.interop.broker_start import BrokerStart, start_and_watch
from tests.interop.clients import (
    ISOLATION_LEVELS,
    READ_UNCOMMITTED,
    Consumed,
    Deliveries,
    Row,
    consume_partitions,
    create_topics,
    list_offsets,
    new_producer,
    offsets_at,
)
from tests.interop.crash_appender import append_until_killed
from tests.interop.damaged_logs import DAMAGED_LOGS, Checkpointed
from tests.interop.placing import CHECKPOINTS, add_offsets, place, write_offsets
from tests.interop.produced import (
    CONTINUED,
    PRODUCED,
    TRANSACTIONS,
    Produced,
    small_records,
)
from tests.interop.workload import BASE_TIMESTAMP_MS, Sendable
from tests.interop.writing import Clock, Writing, config_of
from tests.interop.written_by_log import WRITTEN

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.interop.broker import KafkaBroker

CRASH_SETTINGS: dict[str, object] = {
    "internal_segment_bytes": 6_000,
    "index_interval_bytes": 300,
    # Preallocated index files are copied in full.
    "segment_index_bytes": 65_536,
}
# Logs of processes that were killed during an append: we recovered some, the broker recovers the rest.
CRASHED_AND_RECOVERED = ("own-crashed-1", "own-crashed-2", "own-crashed-3")
CRASHED = ("own-killed-1", "own-killed-2", "own-killed-3")

APPENDED = 20
# `ListOffsetsRequest.MAX_TIMESTAMP`
_MAX_TIMESTAMP = -3
FIRST, SECOND = "before the kill", "after the kill"


# Its repr, which a failing assertion prints, would hold every row.
@dataclass(slots=True, repr=False)
class HandedOver:
    """Directories and the observations on them.

    Attributes:
        own: Our closed root. It does not change afterwards.
        writings: What was written there, by topic.
        acknowledged: The last acknowledged offset of each killed process.
        crashed: The roots that those processes left, by topic.
        stopped: The broker's root after its first, clean stop; our logs were placed there afterwards.
        sent: What clients sent the broker up to that stop, by topic.
        continued: The rows that we appended to one of the broker's logs.
        changed: Files outside that log that this append changed.
        clean_start: The start with our directories.
        recovery: The start after the kill.
        consumed: By occasion, isolation level and topic.
        looked_up: The broker's and our results of lookups by time, by topic.
        largest: The broker's and our timestamp and offset of the record with the largest timestamp.
        appended: Rows that an idempotent producer appended, by topic.
        killed: A copy of the broker's root before the recovery.
        recovered: The broker's root after the recovery and a clean stop.
    """

    own: Path
    stopped: Path
    killed: Path
    recovered: Path
    writings: dict[str, Writing] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)
    crashed: dict[str, Path] = field(default_factory=dict)
    sent: dict[str, list[Sendable]] = field(default_factory=dict)
    continued: list[Row] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    clean_start: BrokerStart = field(default_factory=lambda: BrokerStart(""))
    recovery: BrokerStart = field(default_factory=lambda: BrokerStart(""))
    consumed: dict[tuple[str, str], dict[str, Consumed]] = field(default_factory=dict)
    looked_up: dict[str, list[tuple[int, object, object]]] = field(default_factory=dict)
    largest: dict[str, tuple[object, object]] = field(default_factory=dict)
    appended: dict[str, dict[int, tuple[bytes | None, bytes | None]]] = field(default_factory=dict)

    def root_of(self, topic: str) -> Path:
        """Return the root in which we wrote a topic."""
        return self.crashed.get(topic, self.own)


def hand_over(broker: KafkaBroker, scratch: Path) -> HandedOver:
    """Write logs, give them to the broker, and observe it."""
    handed = HandedOver(
        scratch / "own", scratch / "stopped", scratch / "killed", recovered=broker.log_directory
    )
    _write(handed)
    _crash(handed, scratch)

    broker.start()
    own = {topic: written.settings for topic, written in WRITTEN.items()}
    own.update(dict.fromkeys((*CRASHED_AND_RECOVERED, *CRASHED), CRASH_SETTINGS))
    damage = dict.fromkeys(DAMAGED_LOGS, PRODUCED[TRANSACTIONS])
    create_topics(broker, {**own, **PRODUCED, **damage})
    produced = Produced(broker)
    produced.write("first")
    handed.sent = {topic: list(sent) for topic, sent in produced.sent.items()}
    broker.stop()
    shutil.copytree(broker.log_directory, handed.stopped)
    placed = [*WRITTEN, *CRASHED_AND_RECOVERED]
    for topic in placed:
        place(handed.root_of(topic), broker.log_directory, topic)
    _continue(handed, broker.log_directory)

    handed.clean_start = start_and_watch(broker)
    _consume(handed, broker, FIRST, [*placed, *PRODUCED])
    _look_up_largest(handed, broker, placed)
    for topic in placed:
        _look_up(handed, broker, topic)
    _append(handed, broker, placed)
    produced.write("second")
    broker.kill()

    _add_logs_to_recover(handed, broker.log_directory)
    shutil.copytree(broker.log_directory, handed.killed)
    handed.recovery = start_and_watch(broker)
    _consume(handed, broker, SECOND, [*placed, *CRASHED, *PRODUCED, *DAMAGED_LOGS])
    broker.stop()
    return handed


def _write(handed: HandedOver) -> None:
    clock = Clock()
    with LogDirectory.open(handed.own, clock=clock) as logs:
        for topic, written in WRITTEN.items():
            handed.writings[topic] = written.make(logs, topic, clock)
    configs = {topic: written.config for topic, written in WRITTEN.items()}
    with LogDirectory.open(handed.own, config=configs, clock=clock) as logs:
        for topic, written in WRITTEN.items():
            if written.write_again is not None:
                writing = handed.writings[topic]
                writing.log = logs.get(topic, 0)
                written.write_again(writing)


def _crash(handed: HandedOver, scratch: Path) -> None:
    for seed, topic in enumerate((*CRASHED_AND_RECOVERED, *CRASHED)):
        root = scratch / topic
        handed.crashed[topic] = root
        handed.acknowledged[topic] = append_until_killed(
            root, topic, CRASH_SETTINGS, acknowledged=1_000, seed=seed
        )
    for topic in CRASHED_AND_RECOVERED:
        with LogDirectory.open(handed.crashed[topic], config={topic: config_of(CRASH_SETTINGS)}):
            # Opening recovers.
            pass


def _continue(handed: HandedOver, root: Path) -> None:
    """Append to one of the broker's logs in its own root, next to all the others."""
    before = _contents(root)
    with LogDirectory.open(
        root, config={CONTINUED: config_of(PRODUCED[CONTINUED])}, broker_directory=True
    ) as logs:
        writing = Writing(logs.get(CONTINUED, 0), Clock(), next_offset=400)
        writing.append(small_records(100, first=400))
    handed.continued = writing.rows
    after = _contents(root)
    handed.changed = [
        name
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name) and not name.startswith(f"{CONTINUED}-0/")
    ]


def _contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def _consume(handed: HandedOver, broker: KafkaBroker, occasion: str, topics: Iterable[str]) -> None:
    for level in ISOLATION_LEVELS:
        places = [(topic, 0) for topic in topics]
        consumed = consume_partitions(broker, places, level)
        handed.consumed[occasion, level] = {topic: each for (topic, _), each in consumed.items()}


def _look_up(handed: HandedOver, broker: KafkaBroker, topic: str) -> None:
    rows = handed.consumed[FIRST, READ_UNCOMMITTED][topic].rows
    stamps = sorted({row.timestamp_ms for row in rows if row.timestamp_ms >= 0})
    some = {0, BASE_TIMESTAMP_MS}
    some.update(stamps[:: max(1, len(stamps) // 8)], stamps[-1:])
    some |= {each + 1 for each in some}
    asked = sorted(some)
    with _open_to_read(handed, topic) as logs:
        log = logs.get(topic, 0)
        found = [log.offset_for_timestamp(each) for each in asked]
    ours = [None if each is None else (each.timestamp_ms, each.offset) for each in found]
    handed.looked_up[topic] = list(zip(asked, list_offsets(broker, topic, asked), ours, strict=True))


def _look_up_largest(handed: HandedOver, broker: KafkaBroker, topics: Iterable[str]) -> None:
    answers = offsets_at(broker, [(topic, 0) for topic in topics], OffsetSpec.max_timestamp())
    for (topic, _), answer in answers.items():
        theirs = None if answer.offset < 0 else (answer.timestamp, answer.offset)
        with _open_to_read(handed, topic) as logs:
            found = logs.get(topic, 0).offset_for_timestamp(_MAX_TIMESTAMP)
        ours = None if found is None else (found.timestamp_ms, found.offset)
        handed.largest[topic] = (theirs, ours)


def _open_to_read(handed: HandedOver, topic: str) -> LogDirectory:
    config = {topic: WRITTEN[topic].config} if topic in WRITTEN else {}
    return LogDirectory.open(handed.root_of(topic), read_only=True, config=config)


def _append(handed: HandedOver, broker: KafkaBroker, topics: Iterable[str]) -> None:
    deliveries = Deliveries()
    # Two records fit into the smallest segments.
    producer = new_producer(broker, enable_idempotence=True, linger_ms=5, batch_num_messages=2)
    for topic in topics:
        for record in small_records(APPENDED, first=100_000):
            producer.produce(
                topic,
                key=record.key or b"key",
                value=record.value,
                timestamp=record.timestamp_ms,
                partition=0,
                on_delivery=deliveries,
            )
    producer.flush()
    assert not deliveries.errors, deliveries.errors[0]
    for (topic, _, offset), row in deliveries.rows.items():
        handed.appended.setdefault(topic, {})[offset] = row


def _add_logs_to_recover(handed: HandedOver, root: Path) -> None:
    """Add logs for the killed broker to recover: those of killed processes, and damaged copies of one of its own."""
    for topic in CRASHED:
        place(handed.crashed[topic], root, topic)
    recovery_points: dict[str, int] = {}
    log_starts: dict[str, int] = {}
    for topic, damage in DAMAGED_LOGS.items():
        partition = root / f"{topic}-0"
        place(root, root, topic, source_topic=TRANSACTIONS)
        checkpointed = damage(partition) or Checkpointed()
        if checkpointed.recovery_point is not None:
            recovery_points[topic] = checkpointed.recovery_point
        if checkpointed.log_start is not None:
            log_starts[topic] = checkpointed.log_start
    # Distrust previously recovered logs, too.
    write_offsets(root, "recovery-point-offset-checkpoint", recovery_points)
    add_offsets(root, "log-start-offset-checkpoint", log_starts)
    assert all((root / checkpoint).exists() for checkpoint in CHECKPOINTS)
