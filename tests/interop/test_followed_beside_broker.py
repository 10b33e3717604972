"""Logs that are followed while a broker writes them: each record once, through rolls, retention, new topics, restarts."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import pytest

from storage_core.dump.follow import LogFollower
from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from storage_core.scan.spans import project, record_schema
from tests.interop.clients import Deliveries, consume, create_topic, new_producer
from tests.interop.workload import BASE_TIMESTAMP_MS, BackgroundProducer, Sendable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.interop.broker import KafkaBroker
# Of several seconds' work; longer only on a machine that does other things.
LIMIT_S = 120


def numbered(number: int) -> Sendable:
    """Return a record told by its value, of about 200 bytes."""
    return Sendable(b"key-%d" % (number % 10), b"%0200d" % number, [], BASE_TIMESTAMP_MS + number)


class Following:
    """What a follower has read, by topic: offsets and values in the order in which they came."""

    def __init__(self, directory: Path, pattern: str) -> None:
        schema = project(record_schema(), ("topic", "offset", "value"))
        options = options_of([directory], {"failOnDataLoss": False, "subscribePattern": pattern})
        self.read: dict[str, list[tuple[int, bytes]]] = {}
        self._follower = LogFollower(FileSystem(), options, schema)

    def until(self, is_done: Callable[[], bool]) -> None:
        """Follow until what is waited for has happened."""
        deadline = time.monotonic() + LIMIT_S
        while not is_done():
            assert time.monotonic() < deadline, {topic: len(rows) for topic, rows in self.read.items()}
            for batch in self._follower.read_new():
                for row in batch.to_pylist():
                    self.read.setdefault(row["topic"], []).append((row["offset"], row["value"]))

    def count(self, topic: str) -> int:
        """Return how many records of a topic were read."""
        return len(self.read.get(topic, ()))


def send(broker: KafkaBroker, topic: str, numbers: range) -> None:
    producer = new_producer(broker, batch_size=4_000)
    for number in numbers:
        record = numbered(number)
        producer.produce(topic, record.value, record.key, timestamp=record.timestamp_ms)
    producer.flush()


def test_each_record_once_through_rolls_new_topics_and_a_restart(broker: KafkaBroker) -> None:
    create_topic(broker, "first", internal_segment_bytes=20_000)
    following = Following(broker.log_directory, "first|second")
    send(broker, "first", range(500))
    following.until(lambda: following.count("first") == 500)
    create_topic(broker, "second", internal_segment_bytes=20_000)
    send(broker, "second", range(300))
    send(broker, "first", range(500, 600))
    following.until(lambda: (following.count("first"), following.count("second")) == (600, 300))
    broker.restart()
    send(broker, "first", range(600, 900))
    following.until(lambda: following.count("first") == 900)
    for topic, rows in following.read.items():
        assert rows == [(row.offset, row.value) for row in consume(broker, topic)]
        assert [value for _, value in rows] == [numbered(number).value for number in range(len(rows))]


@pytest.mark.parametrize(
    "settings",
    [
        {"retention_bytes": 60_000},
        {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.01, "segment_ms": 500},
    ],
    ids=["retention", "compaction"],
)
def test_what_is_deleted_meanwhile_is_left_out_and_nothing_comes_twice(
    broker: KafkaBroker, settings: dict[str, object]
) -> None:
    topic = f"shrinking-by-{settings.get('cleanup_policy', 'delete')}"
    create_topic(broker, topic, internal_segment_bytes=20_000, **settings)
    following = Following(broker.log_directory, topic)
    producer, deliveries = new_producer(broker, batch_size=4_000), Deliveries()
    deadline = time.monotonic() + 2
    with BackgroundProducer(producer, topic, numbered, deliveries):
        following.until(lambda: time.monotonic() > deadline and following.count(topic) > 1_000)
    producer.flush()
    delivered = deliveries.snapshot()
    last = max(offset for _, _, offset in delivered)
    following.until(lambda: bool(following.read[topic]) and following.read[topic][-1][0] == last)
    rows = following.read[topic]
    assert all(before < after for (before, _), (after, _) in itertools.pairwise(rows))
    assert all(delivered[topic, 0, offset] == (numbered(int(value)).key, value) for offset, value in rows)
