"""Streams of a running broker's directory: what a consumer sees, a moment later."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.interop.broker import KafkaBroker
from tests.interop.clients import create_topic, delete_records, new_producer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
_TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Yield a broker that writes the checkpoint of high watermarks every five seconds, as by default."""
    settings = {"log.initial.task.delay.ms": 100, "log.flush.start.offset.checkpoint.interval.ms": 500}
    with KafkaBroker(tmp_path_factory.mktemp("broker"), settings) as running:
        yield running


class Tail:
    """A query of the broker's directory, and what has come out of it."""

    def __init__(self, spark: SparkSession, broker: KafkaBroker, **options: object) -> None:
        self.rows: list[tuple[str, int, int, bytes]] = []
        reader = spark.readStream.format("segmentlog").options(**{"startingOffsets": "earliest", **options})
        frame = reader.load(str(broker.log_directory)).select("topic", "partition", "offset", "value")
        self.query = frame.writeStream.foreachBatch(self._keep).start()

    def _keep(self, frame, number):
        self.rows += sorted(
            (row.topic, row.partition, row.offset, bytes(row.value)) for row in frame.collect()
        )

    def wait_for(self, count: int) -> list[tuple[str, int, int, bytes]]:
        end = time.monotonic() + _TIMEOUT_S
        while len(self.rows) < count:
            assert self.query.isActive, self.query.exception()
            assert time.monotonic() < end, f"{len(self.rows)} of {count} rows came"
            time.sleep(0.05)
        return self.rows

    def stop(self) -> None:
        self.query.stop()


def produce(broker, topic, *values, partition=0):
    producer = new_producer(broker)
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(_TIMEOUT_S) == 0


def test_records_come_with_new_partitions_and_topics(spark, broker):
    create_topic(broker, "growing-a")
    produce(broker, "growing-a", b"1", b"2")
    tail = Tail(spark, broker, subscribePattern="growing-.*")
    try:
        assert tail.wait_for(2) == [("growing-a", 0, 0, b"1"), ("growing-a", 0, 1, b"2")]
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_partitions([NewPartitions("growing-a", 2)])["growing-a"].result(_TIMEOUT_S)
        create_topic(broker, "growing-b")
        produce(broker, "growing-a", b"3", partition=1)
        produce(broker, "growing-b", b"4")
        assert sorted(tail.wait_for(4)[2:]) == [("growing-a", 1, 0, b"3"), ("growing-b", 0, 0, b"4")]
    finally:
        tail.stop()


def test_rows_of_a_transaction_come_once_it_is_committed_and_never_if_it_is_aborted(spark, broker):
    create_topic(broker, "isolated")
    producer = new_producer(broker, transactional_id="streaming")
    producer.init_transactions()
    tail = Tail(spark, broker, subscribe="isolated", isolationLevel="read_committed")
    everything = Tail(spark, broker, subscribe="isolated")
    try:
        for number, is_committed in enumerate((False, True)):
            producer.begin_transaction()
            producer.produce("isolated", b"%d" % number, partition=0)
            producer.flush(_TIMEOUT_S)
            # The high watermark in the checkpoint is beyond the open transaction.
            everything.wait_for(number + 1)
            assert tail.rows == []
            producer.commit_transaction() if is_committed else producer.abort_transaction()
        assert tail.wait_for(1) == [("isolated", 0, 2, b"1")]
    finally:
        tail.stop()
        everything.stop()


def test_records_that_are_deleted_before_they_are_read(spark, broker, tmp_path):
    create_topic(broker, "deleted")
    produce(broker, "deleted", *(b"%d" % number for number in range(10)))
    tail = Tail(spark, broker, subscribe="deleted", maxOffsetsPerTrigger=10)
    try:
        tail.wait_for(10)
    finally:
        tail.stop()
    delete_records(broker, "deleted", 4)
    strict = Tail(spark, broker, subscribe="deleted", startingOffsets='{"deleted":{"0":1}}')
    with pytest.raises(Exception, match=r"offset \[1, 4\) for topic partition deleted-0"):
        strict.query.awaitTermination(_TIMEOUT_S)
    loose = Tail(
        spark, broker, subscribe="deleted", startingOffsets='{"deleted":{"0":1}}', failOnDataLoss="false"
    )
    try:
        assert [offset for _, _, offset, _ in loose.wait_for(6)] == [4, 5, 6, 7, 8, 9]
    finally:
        loose.stop()
