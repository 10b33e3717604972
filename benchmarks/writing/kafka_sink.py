"""Spark's own Kafka sink, writing to a live broker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.spark.session import Job, SparkProcess, WriteJob
from benchmarks.timing import Timed
from benchmarks.writing.directories import settle
from benchmarks.writing.rows import frame_of

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_TIMEOUT_S = 120.0
_PAUSE_S = 0.5


class KafkaSink:
    """The sink with the settings that it has by default, and a new topic, which grows from write to write.

    Args:
        session: A session of the Spark that the sink belongs to.
        bootstrap_servers: The broker.
        topic: The topic that is created.
        partitions: How many it gets.
        rows: How many each write sends.
    """

    def __init__(
        self, session: SparkProcess, bootstrap_servers: str, topic: str, partitions: int, rows: int
    ) -> None:
        servers = {"kafka.bootstrap.servers": bootstrap_servers}
        self._session = session
        self._jobs = {
            is_cached: WriteJob("kafka", frame_of(rows, is_cached=is_cached), {**servers, "topic": topic})
            for is_cached in (False, True)
        }
        self._read_job = Job("kafka", {**servers, "subscribe": topic})
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._partitions = partitions
        _create_topic(bootstrap_servers, topic, partitions)

    def write(self, *, is_cached: bool = False) -> Timed:
        """Measure one write, perhaps of a frame that is held ready; return the rows that the broker has got by it."""
        before = self._rows()
        settle()
        seconds = self._session.run(self._jobs[is_cached])
        return Timed(seconds, self._rows() - before)

    def fingerprint(self) -> dict[str, int]:
        """Count and sums of all rows that were sent."""
        return self._session.fingerprint(self._read_job)

    def _rows(self) -> int:
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        client = _client(self._bootstrap_servers)
        wanted = {
            TopicPartition(self._topic, number): OffsetSpec.latest() for number in range(self._partitions)
        }
        end = time.monotonic() + _TIMEOUT_S
        while True:
            found = client.list_offsets(wanted, request_timeout=_TIMEOUT_S)
            try:
                return sum(future.result(_TIMEOUT_S).offset for future in found.values())
            except KafkaException:
                # Partitions that were made just now may have no leader yet.
                if time.monotonic() >= end:
                    raise
                time.sleep(_PAUSE_S)


def _create_topic(bootstrap_servers: str, topic: str, partitions: int) -> None:
    from confluent_kafka.admin import NewTopic

    # Named, because a client that is collected takes its pending requests with it.
    client = _client(bootstrap_servers)
    created = client.create_topics([NewTopic(topic, partitions, 1)], request_timeout=_TIMEOUT_S)
    created[topic].result(_TIMEOUT_S)


def _client(bootstrap_servers: str) -> AdminClient:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 3})
