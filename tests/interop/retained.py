"""Topics from which a broker's retention deletes segments, or none: by age, by size, and by log start."""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING

from tests.conformance.archives import unpack_case
from tests.interop.clients import delete_records, new_producer
from tests.interop.placing import place
from tests.interop.produced import alter_topic
from tests.interop.workload import Sendable, send

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.interop.broker import KafkaBroker

HOUR_MS = 60 * 60 * 1000
_SEGMENTS: dict[str, object] = {"internal_segment_bytes": 6_000, "segment_index_bytes": 65_536}
_THREE_HOURS: dict[str, object] = {**_SEGMENTS, "retention_ms": 3 * HOUR_MS}
_SIZE: dict[str, object] = {**_SEGMENTS, "retention_bytes": 20_000}

EXACTLY, ONE_MORE = "retained-exactly", "retained-one-byte-more"
WITHOUT_TIMESTAMPS = "retained-without-timestamps"
LOG_START = "retained-log-start"
TRANSACTIONS = "retained-transactions"

# Topic: its settings, and the ages of its records in hours; the records are spread evenly over them.
RETAINED: dict[str, tuple[dict[str, object], Sequence[float]]] = {
    "retained-by-time": (_THREE_HOURS, (6, 6, 5, 5, 4, 4, 2, 2, 1, 1, 0.5, 0.5)),
    "retained-by-size": (_SIZE, (1,)),
    "retained-by-both": ({**_THREE_HOURS, **_SIZE}, (6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 1, 1)),
    "retained-whole": (_THREE_HOURS, (1,)),
    # Includes its active segment.
    "retained-nothing": (_THREE_HOURS, (6,)),
    # A segment that is retained protects those after it.
    "retained-old-behind-young": (_THREE_HOURS, (6, 6, 6, 1, 6, 6, 6, 6, 6, 6, 6, 6)),
    "retained-old-behind-future": (_THREE_HOURS, (-1000, 6, 6, 6, 6, 6)),
    "retained-all-too-large": ({**_SEGMENTS, "retention_bytes": 0}, (1,)),
    # Never dirty enough to be cleaned.
    "retained-compacted": (
        {**_THREE_HOURS, "cleanup_policy": "compact", "min_cleanable_dirty_ratio": 1.0},
        (6,),
    ),
    "retained-for-ever": ({**_SEGMENTS, "retention_ms": -1}, (100_000,)),
    LOG_START: ({**_SEGMENTS, "retention_ms": -1}, (1,)),
    EXACTLY: ({**_SEGMENTS, "retention_ms": -1}, (1,)),
    ONE_MORE: ({**_SEGMENTS, "retention_ms": -1}, (1,)),
    TRANSACTIONS: ({**_SIZE, "retention_ms": -1}, (1,)),
    WITHOUT_TIMESTAMPS: (_THREE_HOURS, ()),
}
# Retained bytes: those of the segments after the first, plus this many.
# The topics from which the broker deleted segments.
LOSING = {
    "retained-by-time",
    "retained-by-size",
    "retained-by-both",
    "retained-nothing",
    "retained-old-behind-young",
    "retained-all-too-large",
    "retained-log-start",
    "retained-exactly",
    "retained-transactions",
    "retained-without-timestamps",
}
_MORE_BYTES = {EXACTLY: 0, ONE_MORE: 1}
_BATCHES: dict[str, object] = {"linger_ms": 1000, "batch_size": 2_000}
_COUNT = 480


def settings_of_retained(root: Path | None = None) -> dict[str, dict[str, object]]:
    """Return the settings by topic; with those that depend on file sizes if a root was written."""
    settings = {topic: dict(settings) for topic, (settings, _) in RETAINED.items()}
    if root is not None:
        for topic, more_bytes in _MORE_BYTES.items():
            settings[topic]["retention_bytes"] = _bytes_after_the_first(root, topic) + more_bytes
    return settings


def write_retained(broker: KafkaBroker) -> None:
    """Write every topic except the one without timestamps, which is placed later."""
    now_ms = int(time.time() * 1000)
    plain = new_producer(broker, **_BATCHES)
    for topic, (_, ages) in RETAINED.items():
        if topic == TRANSACTIONS:
            _write_transactions(broker, now_ms)
        elif ages:
            send(plain, topic, _records(topic, ages, now_ms))
    delete_records(broker, LOG_START, 300)
    for topic in _MORE_BYTES:
        retention_bytes = settings_of_retained(broker.log_directory)[topic]["retention_bytes"]
        alter_topic(broker, topic, "retention.bytes", retention_bytes)


def place_without_timestamps(root: Path, scratch: Path) -> None:
    """Place messages of format v0 into a closed root: the age of their segments is that of the files."""
    source, _ = unpack_case("magic0", scratch)
    place(source, root, WITHOUT_TIMESTAMPS, source_topic="m0-none")
    paths = sorted((root / f"{WITHOUT_TIMESTAMPS}-0").glob("*.log"))
    assert len(paths) >= 3
    for number, path in enumerate(paths):
        modified_s = time.time() - (6 if number < 2 else 1) * 3600
        os.utime(path, (modified_s, modified_s))


def _bytes_after_the_first(root: Path, topic: str) -> int:
    _, *others = sorted((root / f"{topic}-0").glob("*.log"))
    return sum(path.stat().st_size for path in others)


def _records(topic: str, ages: Sequence[float], now_ms: int) -> Iterator[Sendable]:
    source = random.Random(topic)
    for number in range(_COUNT):
        age_hours = ages[number * len(ages) // _COUNT]
        timestamp_ms = now_ms - int(age_hours * HOUR_MS) + number
        value = source.randbytes(source.randrange(50, 150))
        yield Sendable(b"key %d" % (number % 50), value, [], timestamp_ms)


def _write_transactions(broker: KafkaBroker, now_ms: int) -> None:
    source = random.Random(TRANSACTIONS)
    records = _records(TRANSACTIONS, (1,), now_ms)
    producers = []
    for name in ("first", "second"):
        producer = new_producer(broker, transactional_id=f"{TRANSACTIONS}-{name}", **_BATCHES)
        producer.init_transactions()
        producers.append(producer)
    for _ in range(_COUNT // 40):
        for producer in producers:
            producer.begin_transaction()
            send(producer, TRANSACTIONS, (next(records) for _ in range(20)))
        for producer in producers:
            if source.random() < 0.5:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
