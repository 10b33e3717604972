"""A cluster of two brokers with replicated topics."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient, NewTopic

from tests.interop.broker import KafkaBroker, free_ports
from tests.interop.clients import consume, wait_until
from tests.interop.placing import place
from tests.interop.spark_jobs import set_leader_epoch, write_rows

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

_SETTINGS = {"replica.fetch.wait.max.ms": 100}
_TIMEOUT_S = 300.0


class TwoBrokers:
    """Broker 1 is also the controller; broker 2 is not, and can stop and start while broker 1 runs.

    Args:
        directory: Holds the files of both.
    """

    def __init__(self, directory: Path) -> None:
        self.first = KafkaBroker(directory / "first", _SETTINGS)
        self._directory = directory
        self._second: KafkaBroker | None = None

    @property
    def second(self) -> KafkaBroker:
        """Broker 2; available after `start`."""
        assert self._second is not None
        return self._second

    def start(self) -> None:
        """Start both, the first broker first, so that it leads what it can."""
        self.first.start()
        if self._second is None:
            self._second = self._describe_second()
        self._second.start()

    def stop(self) -> None:
        """Stop both, broker 2 first; broker 1 is the last one in sync."""
        self.second.stop()
        self.first.stop()

    def kill(self) -> None:
        """Kill both."""
        for each in (self._second, self.first):
            if each is not None:
                each.kill()

    def create_topics(self, *names: str) -> None:
        """Create topics with one partition and two replicas; broker 1 is the preferred leader."""
        admin = AdminClient({"bootstrap.servers": self.first.bootstrap_servers, "log_level": 0})
        topics = [
            NewTopic(name, 1, replica_assignment=[[1, 2]], config={"retention.ms": "-1"}) for name in names
        ]
        for each in admin.create_topics(topics).values():
            each.result(_TIMEOUT_S)
        made = [
            broker.log_directory / f"{name}-0" / "partition.metadata"
            for broker in (self.first, self.second)
            for name in names
        ]
        wait_until(lambda: all(path.exists() for path in made))

    def in_sync(self, topic: str) -> set[int]:
        """Return the brokers in sync for partition 0 of a topic."""
        admin = AdminClient({"bootstrap.servers": self.first.bootstrap_servers, "log_level": 0})
        return set(admin.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions[0].isrs)

    def wait_until_in_sync(self, topic: str) -> None:
        """Wait until both brokers are in sync for partition 0 of a topic."""
        wait_until(lambda: self.in_sync(topic) == {1, 2})

    def _describe_second(self) -> KafkaBroker:
        properties = (self.first.directory / "server.properties").read_text()
        voters = re.search(r"^controller.quorum.voters=(.*)$", properties, re.MULTILINE)
        assert voters is not None
        [port] = free_ports(1)
        settings = {
            "node.id": 2,
            "process.roles": "broker",
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.quorum.voters": voters[1],
        }
        return KafkaBroker(self._directory / "second", {**_SETTINGS, **settings})


@dataclass(frozen=True, slots=True)
class Replicated:
    """The outcome for topics with two replicas, which are named for where their rows were placed.

    Attributes:
        log: What both brokers logged.
        in_sync: The brokers in sync at the end.
        values: What a consumer got.
        log_files: The bytes of each broker's log file.
    """

    log: str
    in_sync: Mapping[str, set[int]]
    values: Mapping[str, list[bytes | None]]
    log_files: Mapping[str, tuple[bytes, bytes]]


# Whether broker 1, the leader, and broker 2 get the rows.
_PLACED = {
    "on-both": (True, True),
    "on-the-leader": (True, False),
    "on-the-follower": (False, True),
    "epoch-minus-one": (True, False),
    "epoch-100": (True, False),
}
_EPOCHS = {"epoch-minus-one": -1, "epoch-100": 100}


def load_replicas(spark: SparkSession, cluster: TwoBrokers, scratch: Path) -> Replicated:
    """Place rows under replicated topics while the cluster is down, restart it, and observe it."""
    cluster.start()
    cluster.create_topics(*_PLACED)
    cluster.stop()
    brokers = (cluster.first, cluster.second)
    write_rows(spark, scratch / "rows", "rows")
    for topic, places in _PLACED.items():
        for broker, is_placed in zip(brokers, places, strict=True):
            if is_placed:
                place(scratch / "rows", broker.log_directory, topic, source_topic="rows")
                if topic in _EPOCHS:
                    set_leader_epoch(broker.log_directory / f"{topic}-0", _EPOCHS[topic])
    before = [broker.log_path.stat().st_size for broker in brokers]
    cluster.start()
    for topic in ("on-both", "on-the-leader", "on-the-follower"):
        cluster.wait_until_in_sync(topic)
    marks = ("Partition epoch-minus-one-0 marked as failed", "Skipping batch")
    wait_until(lambda: all(mark in cluster.second.log_path.read_text() for mark in marks))
    values = {topic: [row.value for row in consume(cluster.first, topic)] for topic in _PLACED}
    in_sync = {topic: cluster.in_sync(topic) for topic in _PLACED}
    cluster.stop()
    return Replicated(
        "".join(
            broker.log_path.read_bytes()[start:].decode(errors="replace")
            for broker, start in zip(brokers, before, strict=True)
        ),
        in_sync,
        values,
        {topic: (_log_bytes(cluster.first, topic), _log_bytes(cluster.second, topic)) for topic in _PLACED},
    )


def _log_bytes(broker: KafkaBroker, topic: str) -> bytes:
    return (broker.log_directory / f"{topic}-0" / "00000000000000000000.log").read_bytes()
