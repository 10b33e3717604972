"""The inventory of a directory that a broker changes at the same time: it appends, rolls, deletes and compacts."""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING

import pytest

from storage_core import read_table
from storage_core.filesystem import FileSystem
from storage_core.views.inventory import inventory
from tests.interop.clients import Deliveries, create_topic, end_offset, new_producer
from tests.interop.workload import BASE_TIMESTAMP_MS, BackgroundProducer, Sendable

if TYPE_CHECKING:
    from tests.interop.broker import KafkaBroker

DURATION_S = float(os.environ.get("SEGMENTLOG_INTEROP_SECONDS", "8"))
_CHANGES = {
    # A broker flushes a segment some time after it has rolled. If it has closed and deleted it by then, it shuts down.
    "retained-inventory": {"retention_bytes": 60_000, "file_delete_delay_ms": 5_000},
    "compacted-inventory": {
        "cleanup_policy": "compact",
        "min_cleanable_dirty_ratio": 0.01,
        "file_delete_delay_ms": 100,
    },
}


def numbered(number: int) -> Sendable:
    """A unique record of about 200 bytes."""
    value = b"%d " % number + random.Random(number).randbytes(150)
    return Sendable(b"key-%d" % (number % 40), value, [], BASE_TIMESTAMP_MS + number)


@pytest.mark.parametrize("topic", list(_CHANGES))
def test_it_is_complete_and_calls_nothing_damaged(broker: KafkaBroker, topic: str) -> None:
    create_topic(broker, topic, internal_segment_bytes=20_000, segment_index_bytes=4096, **_CHANGES[topic])
    deliveries = Deliveries()
    ends: list[int] = []
    is_changed = False
    deadline = time.monotonic() + DURATION_S
    producer = new_producer(broker, batch_size=8_000)
    with BackgroundProducer(producer, topic, numbered, deliveries):
        while not (is_changed and time.monotonic() > deadline):
            assert time.monotonic() < deadline + 300, "the broker deleted and compacted nothing"
            found = inventory(FileSystem(), [str(broker.log_directory)], exact=len(ends) % 2 == 1)
            assert (found.has_damage, found.is_complete) == (False, True), found.findings
            (summary,) = [each for each in found.topics if each.topic == topic]
            (partition,) = [each for each in found.partitions if each.topic == topic]
            assert partition.log_end_offset is not None
            ends.append(partition.log_end_offset)
            records = summary.record_count
            is_changed |= bool(partition.log_start_offset) or (
                records is not None and records < partition.log_end_offset
            )
            read_table(broker.log_directory, view="files", columns=["path", "kind"])
            rows = read_table(broker.log_directory, view="segments", subscribe=topic).to_pylist()
            assert not any(row["isDamaged"] for row in rows)
    # What is queued would be sent meanwhile.
    assert producer.flush(300) == 0
    assert ends == sorted(ends)
    assert not deliveries.errors
    (row,) = read_table(broker.log_directory, view="partitions", subscribe=topic).to_pylist()
    assert row["logEndOffset"] == end_offset(broker, topic)
    assert row["isClean"] is False
