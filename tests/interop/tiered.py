"""A broker with tiered storage, Kafka's own `LocalTieredStorage`: what it leaves in both tiers, and what consumers read.

Topics differ in what is where: nearly all in the tier, some or all of it in both, or less than was written, because
retention and DeleteRecords have deleted it from the tier.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from confluent_kafka import IsolationLevel
from confluent_kafka.admin import OffsetSpec

from tests.interop.broker import KafkaBroker
from tests.interop.clients import (
    ISOLATION_LEVELS,
    Row,
    consume,
    create_topics,
    delete_records,
    log_offsets,
    new_producer,
    offsets_at,
    wait_until,
)
from tests.interop.jars import KAFKA_VERSION, fetched_jar
from tests.interop.produced import BROKER_SETTINGS, EMPTY, PRODUCED, Produced
from tests.interop.workload import records_of_every_shape, send

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from tests.interop.clients import Place

_MANAGER = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
_TIER = "kafka-tiered-storage"
_TIMEOUT_S = 120.0

# Segments that are in the tier are deleted from the disk, but for the active one.
_GONE_ONCE_COPIED = {"local_retention_bytes": 1, "file_delete_delay_ms": 0}
_SMALL = {"internal_segment_bytes": 20_000, "index_interval_bytes": 1_000, "file_delete_delay_ms": 0}
OVERLAPPING = "tiered-in-both"
KEPT = "tiered-and-kept"
RETAINED = "tiered-retained"
# Its log start is within a segment of the tier.
DELETED = "tiered-1.deleted"
_RETENTION_BYTES = 60_000
_DELETED_BEFORE = 333

# Topic: its settings.
TIERED: dict[str, dict[str, object]] = {
    **{topic: {**settings, **_GONE_ONCE_COPIED} for topic, settings in PRODUCED.items()},
    OVERLAPPING: {**_SMALL, "local_retention_bytes": 50_000},
    KEPT: dict(_SMALL),
    RETAINED: {**_SMALL, **_GONE_ONCE_COPIED, "retention_bytes": _RETENTION_BYTES},
    DELETED: {**_SMALL, **_GONE_ONCE_COPIED},
}


def tiered_settings(directory: Path) -> dict[str, object]:
    """Return the settings of a broker whose tier is below a directory, and which copies and deletes at once."""
    return {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": _MANAGER,
        "remote.log.storage.manager.class.path": fetched_jar(
            f"org.apache.kafka:kafka-storage:{KAFKA_VERSION}:jar:test"
        ),
        "rsm.config.dir": directory,
        "rsm.config.delete.on.close": "false",
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "rlmm.config.remote.log.metadata.topic.replication.factor": 1,
        "rlmm.config.remote.log.metadata.topic.num.partitions": 1,
        # A broker that stops waits for as long for what its own listener answers no more.
        "rlmm.config.remote.log.metadata.consumer.default.api.timeout.ms": 3_000,
        "rlmm.config.remote.log.metadata.consumer.request.timeout.ms": 2_000,
        "rlmm.config.remote.log.metadata.producer.delivery.timeout.ms": 4_000,
        "rlmm.config.remote.log.metadata.producer.request.timeout.ms": 3_000,
        "remote.log.manager.task.interval.ms": 100,
        "log.initial.task.delay.ms": 100,
        "log.retention.check.interval.ms": 100,
        "log.flush.start.offset.checkpoint.interval.ms": 200,
        "replica.high.watermark.checkpoint.interval.ms": 200,
    }


@dataclass(frozen=True, slots=True)
class Tiered:
    """What a broker with tiered storage has left, stopped cleanly.

    Attributes:
        log_directory: Its log directory, the local tier.
        tier: The remote tier: a directory for each partition that has segments there.
        rows: What consumers got, by isolation level and topic.
        offsets: The log start and the log end, by topic and partition.
        stable_offsets: The last stable offset, likewise.
    """

    log_directory: Path
    tier: Path
    rows: Mapping[str, Mapping[str, list[Row]]]
    offsets: Mapping[Place, tuple[int, int]]
    stable_offsets: Mapping[Place, int]

    def local_segments(self, topic: str) -> dict[int, Path]:
        """Return the local segments of partition 0, by base offset."""
        return local_segments(self.log_directory, topic)

    def remote_segments(self, topic: str) -> dict[int, Path]:
        """Return the segments of partition 0 in the tier, likewise."""
        return remote_segments(self.tier, topic)


def local_segments(log_directory: Path, topic: str) -> dict[int, Path]:
    return _by_base((log_directory / f"{topic}-0").glob("*.log"))


def remote_segments(tier: Path, topic: str) -> dict[int, Path]:
    # The id of a topic has 22 characters. The snapshot is copied last.
    directory = re.compile(re.escape(f"{topic}-0-") + r"[\w-]{22}")
    return _by_base(
        path
        for folder in (tier.iterdir() if tier.exists() else ())
        if directory.fullmatch(folder.name)
        for path in folder.glob("*.log")
        if path.with_suffix(".snapshot").exists()
    )


def _by_base(paths: Iterable[Path]) -> dict[int, Path]:
    return {int(path.name[:20]): path for path in sorted(paths)}


def make_tiered(scratch: Path) -> Tiered:
    """Write topics, through two starts of a broker, and wait until the tiers are as their settings ask."""
    tier = scratch / "tier" / _TIER
    settings = {**BROKER_SETTINGS, **tiered_settings(tier.parent)}
    with KafkaBroker(scratch / "broker", settings) as broker:
        create_topics(broker, {topic: {"remote_storage_enable": "true", **TIERED[topic]} for topic in TIERED})
        produced = Produced(broker, PRODUCED)
        _write(broker, produced, "first")
        delete_records(broker, DELETED, _DELETED_BEFORE)
        _settle(broker, tier)
        # A new leader epoch begins.
        broker.restart()
        _write(broker, produced, "second")
        stable = _settle(broker, tier)
        rows = {level: _by_topic(consume(broker, TIERED, level)) for level in ISOLATION_LEVELS}
        found = Tiered(broker.log_directory, tier, rows, log_offsets(broker, stable), stable)
        # Earlier, this would end the transaction that it has left open.
        del produced
    return found


def _write(broker: KafkaBroker, produced: Produced, occasion: str) -> None:
    produced.write(occasion)
    producer = new_producer(broker, linger_ms=1000, batch_size=8_000)
    for topic in TIERED.keys() - PRODUCED.keys():
        records = records_of_every_shape(400, f"{topic} {occasion}")
        # One value exceeds a segment.
        send(producer, topic, (record for record in records if len(record.value or b"") < 1000))


def _settle(broker: KafkaBroker, tier: Path) -> dict[Place, int]:
    """Wait until the tiers are as the settings ask; return the last stable offsets."""
    places = [(topic, 0) for topic in TIERED]
    answers = offsets_at(broker, places, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
    for topic, number in places:
        stable_offset = answers[topic, number].offset
        wait_until(
            lambda topic=topic, stable_offset=stable_offset: _is_settled(broker, tier, topic, stable_offset),
            f"{topic} has not become as its settings ask in {broker.log_directory} and {tier}.",
            _TIMEOUT_S,
        )
    return {place: answer.offset for place, answer in answers.items()}


def _by_topic(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {topic: [] for topic in TIERED}
    for row in rows:
        found[row.topic].append(row)
    return found


def _is_settled(broker: KafkaBroker, tier: Path, topic: str, stable_offset: int) -> bool:
    """Return whether the broker has copied and deleted all that it will."""
    local, remote = local_segments(broker.log_directory, topic), remote_segments(tier, topic)
    # It copies segments that end below the last stable offset, and never the active one.
    may_be_copied = [base for base, following in pairwise(local) if following <= stable_offset]
    if topic == EMPTY:
        return not remote
    if topic in {OVERLAPPING, KEPT}:
        is_deleted = (0 not in local) == (topic == OVERLAPPING)
        return is_deleted and remote.keys() >= set(may_be_copied)
    if may_be_copied:
        return False
    if topic == RETAINED:
        sizes = [path.stat().st_size for _, path in sorted({**local, **remote}.items())]
        return sum(sizes[1:]) < _RETENTION_BYTES
    return topic != DELETED or list(remote)[1] > _DELETED_BEFORE
