"""The Spark reader on the directory of a running broker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from storage_core import read_table
from tests.interop.clients import (
    ISOLATION_LEVELS,
    Deliveries,
    Row,
    assert_same_rows,
    create_topic,
    file_states,
    new_producer,
    rows_of,
)
from tests.interop.produced import READ
from tests.interop.workload import BASE_TIMESTAMP_MS, BackgroundProducer, Sendable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from tests.interop.broker import KafkaBroker

pytestmark = pytest.mark.spark


def states_of_files(broker: KafkaBroker) -> list[Mapping[str, tuple[int, str]]]:
    return [file_states(broker.log_directory / f"{topic}-0") for topic in READ]


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
def test_same_rows_as_consumer(
    spark: SparkSession,
    broker: KafkaBroker,
    consumed: dict[str, dict[str, list[Row]]],
    isolation_level: str,
) -> None:
    before = states_of_files(broker)
    frame = (
        spark.read.format("segmentlog")
        .option("subscribe", ",".join(READ))
        .option("includeHeaders", "true")
        .option("isolationLevel", isolation_level)
        .option("maxBytesPerPartition", 65_536)
        .load(str(broker.log_directory))
    )
    expected = [row for topic in sorted(READ) for row in consumed[isolation_level][topic]]
    assert_same_rows(rows_of(frame.toArrow()), expected)
    for topic in READ:
        for use_indexes in (True, False):
            table = read_table(
                broker.log_directory,
                subscribe=topic,
                isolation_level=isolation_level,
                include_headers=True,
                use_indexes=use_indexes,
            )
            assert_same_rows(rows_of(table), consumed[isolation_level][topic])
    assert states_of_files(broker) == before


def test_while_it_rolls_and_retention_deletes(spark: SparkSession, broker: KafkaBroker) -> None:
    create_topic(broker, "spark-live", internal_segment_bytes=50_000, retention_bytes=400_000)
    producer = new_producer(broker, enable_idempotence=True, batch_size=8_000)
    deliveries = Deliveries()

    def numbered(number: int) -> Sendable:
        return Sendable(None, b"%d" % number + b"." * 200, [], BASE_TIMESTAMP_MS + number)

    with BackgroundProducer(producer, "spark-live", numbered, deliveries):
        deadline = time.monotonic() + 300
        while not (broker.log_directory / "spark-live-0").is_dir() or not deliveries.snapshot():
            assert time.monotonic() < deadline, "nothing was acknowledged"
            time.sleep(0.1)
        first, number = 0, 0
        while number < 4 or not first:
            assert time.monotonic() < deadline, "retention did not run: the test proves too little"
            number += 1
            acknowledged = max(offset for _, _, offset in deliveries.snapshot())
            frame = (
                spark.read.format("segmentlog")
                .option("subscribe", "spark-live")
                .option("minPartitions", 6)
                .option("includeHeaders", "true")
                .load(str(broker.log_directory))
            )
            rows = rows_of(frame.toArrow())
            first, last = rows[0].offset, rows[-1].offset
            assert last >= acknowledged
            assert [row.offset for row in rows] == list(range(first, last + 1))
    producer.flush()
    assert first > 0, "retention did not run: the test proves too little"
    delivered = deliveries.snapshot()
    assert all(delivered[row[:3]] == (row.key, row.value) for row in rows)
