"""Nodes of Kafka, each damaged in one way, and what a real broker makes of their directories when it starts.

A node has one or two disks, and is a broker, or a broker and a controller. It was stopped cleanly, or killed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from storage_core.directory import CLUSTER_METADATA_TOPIC
from tests.interop.broker import DEFAULT_SETTINGS, KafkaBroker, hold_ports
from tests.interop.clients import wait_until
from tests.interop.jars import QUICK_JVM, kafka_command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from storage_core.check.partition_check import PartitionReport

_LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")
_TIMEOUT_S = 300
_TOPICS = {"orders": 3, "events": 2, "quiet": 1}
_ROUNDS = 15
_SETTINGS: Mapping[str, object] = {
    "log.index.size.max.bytes": 4096,
    # A killed broker may register again after this.
    "broker.session.timeout.ms": 1000,
    "broker.heartbeat.interval.ms": 200,
    "controlled.shutdown.enable": "false",
    "num.partitions": 1,
}


class Layout(NamedTuple):
    """What a node is, and how it ended."""

    is_combined: bool
    disk_count: int
    is_clean: bool

    def __str__(self) -> str:
        role = "broker+controller" if self.is_combined else "broker"
        return f"{role}, {self.disk_count} disks, {'stopped' if self.is_clean else 'killed'}"


@dataclass(frozen=True, slots=True)
class Node:
    """The directories of a node, and of the controller that it needs if it is none itself."""

    layout: Layout
    folder: Path

    @property
    def disks(self) -> list[Path]:
        """Its log directories."""
        return [self.folder / f"disk{number}" for number in range(self.layout.disk_count)]

    def partitions(self) -> list[Path]:
        """Return its directories of partitions that hold records, by name."""
        found = [
            path for disk in self.disks for path in disk.iterdir() if path.name[:6] in ("orders", "events")
        ]
        return sorted(found, key=lambda path: path.name)

    def copy(self, folder: Path) -> Node:
        """Return a copy of all its directories."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return Node(self.layout, folder)

    def settings(self, ports: Sequence[int]) -> list[dict[str, object]]:
        """Return the settings of each process, in the order of their starts; the last one is the broker."""
        plain, controller = f"PLAINTEXT://127.0.0.1:{ports[0]}", f"CONTROLLER://127.0.0.1:{ports[1]}"
        voters = f"1@127.0.0.1:{ports[1]}"
        own = {**_SETTINGS, "controller.quorum.voters": voters, "log.dirs": ",".join(map(str, self.disks))}
        if self.layout.is_combined:
            return [{**own, "listeners": f"{plain},{controller}"}]
        return [
            {
                **own,
                "process.roles": "controller",
                "listeners": controller,
                "log.dirs": self.folder / "controller",
            },
            {**own, "process.roles": "broker", "node.id": 2, "listeners": plain},
        ]


def make_nodes(scratch: Path, *, is_combined: bool, disk_count: int) -> list[Node]:
    """Return a node that was killed after clients wrote to it, and the same one after a clean stop."""
    layout = Layout(is_combined, disk_count, is_clean=True)
    node = Node(layout, scratch / f"stopped-{is_combined}-{disk_count}")
    with hold_ports(2) as ports:
        brokers = []
        for number, settings in enumerate(node.settings(ports)):
            first_disk = str(settings["log.dirs"]).partition(",")[0]
            home = scratch / f"home-{is_combined}-{disk_count}-{number}"
            brokers.append(KafkaBroker(home, settings, log_directory=first_disk))
        try:
            for broker in brokers:
                broker.start()
            _write(node, f"127.0.0.1:{ports[0]}")
            for broker in brokers:
                broker.kill()
            killed = node.copy(scratch / f"killed-{is_combined}-{disk_count}")
            for broker in brokers:
                broker.start()
            brokers[-1].stop()
        finally:
            for broker in brokers:
                broker.kill()
    return [node, Node(layout._replace(is_clean=False), killed.folder)]


def _write(node: Node, servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    config = {"internal.segment.bytes": "2000", "index.interval.bytes": "300"}
    topics = [NewTopic(topic, count, 1, config=config) for topic, count in _TOPICS.items()]
    for created in admin.create_topics(topics).values():
        created.result(_TIMEOUT_S)
    wait_until(lambda: len(node.partitions()) == sum(_TOPICS.values()) - _TOPICS["quiet"])
    producer = Producer({"bootstrap.servers": servers, "log_level": 0, "enable.idempotence": True})
    for number in range(_ROUNDS):
        for topic in ("orders", "events"):
            for partition in range(_TOPICS[topic]):
                for _ in range(4):
                    producer.produce(topic, b"%d" % number * 50, partition=partition)
        assert producer.flush(_TIMEOUT_S) == 0


@dataclass(frozen=True, slots=True)
class Started:
    """What became of a broker.

    Attributes:
        ended: What it said when it did not start, or ended at once; None if it runs.
        logs: By directory, log start and log end of what it serves.
        offline: The log directories that it does not use.
        others: Directories of logs that it has loaded, and does not serve.
        moves: By directory of a partition, where its copy was that a broker had not yet moved there. Once the copy has
            caught up, which takes a moment after a start, the broker serves that one and deletes the other
            (ReplicaAlterLogDirsThread).
    """

    ended: str | None
    logs: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    offline: frozenset[str] = frozenset()
    others: tuple[str, ...] = ()
    moves: Mapping[str, str] = field(default_factory=dict)

    def served(self, directory: str) -> tuple[int, int] | None:
        """Return log start and end of what the broker serves of a directory, also after a move; None if it does not."""
        return self.logs.get(directory) or self.logs.get(self.moves.get(directory, ""))

    def is_offline(self, path: str) -> bool:
        """Return True if a log directory, or that of a partition, is not used."""
        return any(path == each or path.startswith(f"{each}/") for each in self.offline)

    def serves(self, partition: PartitionReport) -> bool:
        """Return True if the broker serves the whole log that a verification has found."""
        is_whole = self.served(partition.path) == (partition.log_start_offset, partition.log_end_offset)
        return is_whole or partition.topic == CLUSTER_METADATA_TOPIC


def start_node(node: Node) -> Started:
    """Start the whole broker of a node in a JVM of its own, see what it serves, and kill it."""
    moves = _pending_moves(node)
    with hold_ports(2) as ports:
        done = _run_brokers(node, ports)
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    if ["started"] not in lines:
        errors = re.findall(
            r"ERROR .*|FATAL .*|^\S*(?:Exception|Error): .*", done.stdout + done.stderr, re.MULTILINE
        )
        return Started(f"status {done.returncode}: {errors[:4]}")
    return Started(
        None,
        {line[1]: (int(line[2]), int(line[3])) for line in lines if line[0] == "log"},
        frozenset(line[1] for line in lines if line[0] == "offline"),
        tuple(line[1] for line in lines if line[0] in ("future", "unserved")),
        moves,
    )


def _run_brokers(node: Node, ports: Sequence[int]) -> subprocess.CompletedProcess[str]:
    paths = []
    for number, settings in enumerate(node.settings(ports)):
        path = node.folder / f"{number}.properties"
        lines = [f"{name}={value}\n" for name, value in {**DEFAULT_SETTINGS, **settings}.items()]
        path.write_text("".join(lines))
        paths.append(str(path))
    options = ["-Xmx256m", *QUICK_JVM, f"-Dlog4j2.configurationFile={_LOG_CONFIGURATION}"]
    command = kafka_command("BrokerStart", *paths, options=options)
    return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)


def _pending_moves(node: Node) -> dict[str, str]:
    """Return where partitions of a node are being moved: by directory, the one that its copy becomes."""
    copies = [path for disk in node.disks if disk.is_dir() for path in disk.glob("*-future")]
    moved = [path.with_name(path.name.partition(".")[0]) for path in copies]
    return {str(disk / path.name): str(path) for path in moved for disk in node.disks if disk != path.parent}
