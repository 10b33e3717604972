"""Lookups by time in a running broker's directory return what the broker returns."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING

import pytest

import storage_core
from storage_core.directory import PartitionLog, find_partitions
from storage_core.filesystem import FileSystem
from tests.interop.clients import (
    READ_UNCOMMITTED,
    Row,
    assert_same_rows,
    consume,
    create_topic,
    delete_records,
    list_offsets,
    new_producer,
    rows_of,
    wait_until,
)
from tests.interop.make_example_data import wait_until_compacted
from tests.interop.produced import READ
from tests.interop.workload import BASE_TIMESTAMP_MS, Sendable, send

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage_core.segment import TimestampOffset
    from tests.interop.broker import KafkaBroker

LOOKUPS = 400
SMALL_SEGMENTS = {"internal_segment_bytes": 20_000, "index_interval_bytes": 200}


@pytest.mark.parametrize("topic", READ)
def test_hundreds_of_timestamps(
    broker: KafkaBroker, consumed: dict[str, dict[str, list[Row]]], topic: str
) -> None:
    rows = consumed[READ_UNCOMMITTED][topic]
    assert_same_answers(broker, topic, timestamps_around(rows, LOOKUPS))


def test_log_start_inside_a_batch(broker: KafkaBroker) -> None:
    """DeleteRecords leaves older records in the files; reads and lookups must not find them."""
    create_topic(broker, "records-deleted", **SMALL_SEGMENTS)
    send_out_of_order(broker, "records-deleted", 2_000)
    everything = consume(broker, "records-deleted")
    for before_offset in (13, 700, 1_999, 2_000):
        delete_records(broker, "records-deleted", before_offset)
        table = storage_core.read_table(
            str(broker.log_directory), subscribe="records-deleted", include_headers=True
        )
        assert_same_rows(rows_of(table), everything[before_offset:])
        assert_same_answers(broker, "records-deleted", timestamps_around(everything, 200))


def test_compacted_log(broker: KafkaBroker) -> None:
    # Long enough for a busy machine to flush a segment that was rolled before it is closed, or the broker shuts down.
    settings = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.01, "file_delete_delay_ms": 3_000}
    create_topic(broker, "looked-up-compacted", **SMALL_SEGMENTS, **settings)
    send_out_of_order(broker, "looked-up-compacted", 4_000)
    wait_until_compacted(broker.log_directory, "looked-up-compacted", 0)
    consumed = consume(broker, "looked-up-compacted")
    assert len(consumed) < 4_000, "the cleaner did not run"
    table = storage_core.read_table(
        str(broker.log_directory), subscribe="looked-up-compacted", include_headers=True
    )
    assert_same_rows(rows_of(table), consumed)
    assert_same_answers(broker, "looked-up-compacted", timestamps_around(consumed, LOOKUPS))


def test_log_shortened_by_retention(broker: KafkaBroker) -> None:
    create_topic(broker, "looked-up-retained", **SMALL_SEGMENTS, retention_bytes=60_000)
    send_out_of_order(broker, "looked-up-retained", 4_000)
    wait_until_retained(broker, "looked-up-retained", 60_000)
    consumed = consume(broker, "looked-up-retained")
    assert consumed[0].offset > 0
    assert_same_answers(broker, "looked-up-retained", timestamps_around(consumed, LOOKUPS))


def assert_same_answers(broker: KafkaBroker, topic: str, timestamps_ms: Sequence[int]) -> None:
    expected = list_offsets(broker, topic, timestamps_ms)
    filesystem = FileSystem()
    [partition] = [
        found for found in find_partitions(filesystem, [str(broker.log_directory)]) if found.topic == topic
    ]
    for use_indexes in (True, False):
        log = PartitionLog.load(filesystem, partition, use_indexes=use_indexes)
        answers = [_as_pair(log.offset_for_timestamp(timestamp_ms)) for timestamp_ms in timestamps_ms]
        wrong = [
            f"{timestamp_ms}: broker {theirs}, ours {ours}"
            for timestamp_ms, theirs, ours in zip(timestamps_ms, expected, answers, strict=True)
            if theirs != ours
        ]
        assert not wrong, f"use_indexes={use_indexes}"


def send_out_of_order(broker: KafkaBroker, topic: str, count: int) -> None:
    """Send small batches with few keys; timestamps tend to rise, but not strictly."""
    source = random.Random(topic)
    records = (
        Sendable(
            b"key-%d" % source.randrange(60),
            source.randbytes(60),
            [],
            BASE_TIMESTAMP_MS + number * 1_000 + source.randrange(-50_000, 50_000),
        )
        for number in range(count)
    )
    send(new_producer(broker, compression_type="lz4", linger_ms=1000), topic, records)


def wait_until_retained(broker: KafkaBroker, topic: str, retention_bytes: int) -> None:
    """Wait until the broker keeps no segment that it need not keep."""
    directory = broker.log_directory / f"{topic}-0"

    def is_done() -> bool:
        # A file may be renamed meanwhile.
        with contextlib.suppress(FileNotFoundError):
            return sum(path.stat().st_size for path in sorted(directory.glob("*.log"))[1:]) < retention_bytes
        return False

    wait_until(is_done, f"Retention did not run in {directory}.")


def _as_pair(found: TimestampOffset | None) -> tuple[int, int] | None:
    return None if found is None else (found.timestamp_ms, found.offset)


def timestamps_around(rows: Sequence[Row], count: int) -> list[int]:
    """Return the edges first, then records' own timestamps and their neighbours, then random times between."""
    source = random.Random(len(rows))
    known = sorted({row.timestamp_ms for row in rows}) or [BASE_TIMESTAMP_MS]
    edges = [0, 1, known[0] - 1, known[0], known[-1], known[-1] + 1, (1 << 62)]
    near = [source.choice(known) + source.choice((-1, 0, 0, 1)) for _ in range(count // 2)]
    between = [source.randrange(known[0], known[-1] + 1) for _ in range(count - len(edges) - len(near))]
    return edges + near + between
