"""docs/load-into-kafka.md works as written, and violating its conditions has the described consequences.

Its commands run here, in order, on a stock broker. The commands under a violated condition run on a topic that
violates it.

Each topic with a mistake is named for it. All of its rows are from the year 2020. What replicas make of mistakes is tried
with two brokers.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from storage_core import read_table
from tests.executed_document import (
    Block,
    Shell,
    assert_logged,
    assert_shown,
    blocks_of,
    logged_lines_of,
)
from tests.interop.broker import KafkaBroker, hold_ports
from tests.interop.clients import (
    READ_COMMITTED,
    Row,
    assert_same_rows,
    consume,
    consume_partitions,
    create_topic,
    end_offset,
    new_producer,
    rows_of,
    start_offset,
    wait_until,
)
from tests.interop.kafka_home import KafkaHome
from tests.interop.placing import place
from tests.interop.spark_jobs import ROW_COUNT, set_leader_epoch, topic_id_of, write_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession


_ADDED_COUNT = 5
_TOPICS = ("good", "wrong-id", "no-id", "old", "high-epoch", "log-start", "absent")
_GROUP = "reports"
_NOTHING_COMES_MS = 10_000


@dataclass(frozen=True, slots=True)
class Found:
    """A topic as its broker serves it: log start, log end, and the values that a consumer gets."""

    start_offset: int
    end_offset: int
    values: list[bytes | None]


@dataclass(frozen=True, slots=True)
class FaultyLoads:
    """The state of the topics after loading and after the repair.

    Attributes:
        log: What the broker logged while it loaded them.
        names: The entries of its directory after that.
        found: The topics after that.
        read_on: How many further records a restarted group got, by topic.
        repaired_log: What the broker logged while it loaded the repaired topics.
        repaired: The repaired topics.
        repaired_read_on: How many further records the group got from them, by topic.
    """

    log: str
    names: list[str]
    found: Mapping[str, Found]
    read_on: Mapping[str, int]
    repaired_log: str
    repaired: Mapping[str, Found]
    repaired_read_on: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Loading:
    """Loads the topics into a broker, observes it, repairs them as the document says, and observes it again.

    Attributes:
        spark: Writes the logs.
        home: Where Kafka's commands run.
        broker: The broker of that home.
        scratch: Holds the logs.
        blocks: The document's commands, which call the topic ``clicks``.
    """

    spark: SparkSession
    home: KafkaHome
    broker: KafkaBroker
    scratch: Path
    blocks: Sequence[Block]

    def run(self) -> FaultyLoads:
        """Load, repair and return the observations; the broker is stopped afterwards."""
        self.home.start()
        for topic in _TOPICS:
            create_topic(self.broker, topic, **({} if topic == "old" else {"retention_ms": -1}))
        self.home.stop()
        self._place()
        before = self._log()
        self.home.start()
        # The first retention check comes soon.
        wait_until(lambda: "Incremented log start offset to 1000" in self._log())
        found = self._found()
        names = sorted(path.name for path in self.broker.log_directory.iterdir())
        read_on = self._read_on()
        self._run("old", "The topic is empty")
        self.home.stop()
        log = self._log().removeprefix(before)
        self._repair()
        self.home.start()
        repaired = self._found()
        self._run("high-epoch", "A group gets nothing more", slice(2, None))
        repaired_read_on = self._consume_in_group("high-epoch", f"--max-messages={_ADDED_COUNT}")
        self.home.stop()
        repaired_log = self._log().removeprefix(before + log)
        return FaultyLoads(log, names, found, read_on, repaired_log, repaired, repaired_read_on)

    def _place(self) -> None:
        directory = self.broker.log_directory
        for topic in ("good", "old", "high-epoch", "log-start", "no-id"):
            ids = {"topicIds": json.dumps({topic: topic_id_of(self.broker, topic)})}
            write_rows(self.spark, self.scratch / topic, topic, **ids)
        write_rows(self.spark, self.scratch / "log-start", "log-start", mode="overwrite")
        write_rows(self.spark, self.scratch / "wrong-id", "wrong-id")
        for topic in ("good", "old", "high-epoch"):
            place(self.scratch / topic, directory, topic)
        set_leader_epoch(directory / "high-epoch-0", 100)
        for topic in ("wrong-id", "no-id", "log-start"):
            shutil.rmtree(directory / f"{topic}-0")
            shutil.copytree(self.scratch / topic / f"{topic}-0", directory / f"{topic}-0")
        (directory / "no-id-0" / "partition.metadata").unlink()
        ids = {"topicIds": json.dumps({"absent": topic_id_of(self.broker, "absent")})}
        shutil.rmtree(directory / "absent-0")
        write_rows(self.spark, directory, "absent", brokerDirectory="true", **ids)

    def _repair(self) -> None:
        self._run("wrong-id", "A directory is called")
        self._run("no-id", "A directory is called")
        self._run("old", "Into a directory of its own", containing='rm -r "$LOG_DIR')
        self._run("old", "Into a directory of its own", containing="log-start")
        self._run("high-epoch", "A group gets nothing more", slice(2))
        self._run("log-start", "Into a directory of its own", containing="log-start")

    def _run(self, topic: str, section: str, which: slice = slice(None), *, containing: str = "") -> None:
        """Run a section's commands from the document for a topic."""
        places = {
            "/opt/kafka": str(self.home.directory),
            "/data/rewritten": str(self.scratch / "rewritten"),
            "clicks": topic,
        }
        environment = {
            "PATH": "/usr/bin:/bin",
            "BOOTSTRAP": self.broker.bootstrap_servers,
            "LOG_DIR": str(self.broker.log_directory),
            "OWN_ROOT": str(self.scratch / topic),
        }
        found = [each for each in self.blocks if each.section.startswith(section) and containing in each.text]
        assert found[which], f"the document has no such commands in {section!r}"
        shell = Shell(self.home.directory, places, environment, {"spark": self.spark})
        for block in found[which]:
            shell.run(block)

    def _found(self) -> dict[str, Found]:
        # A consumer waits for the partition's leader, which is elected shortly after the broker's start.
        consume(self.broker, _TOPICS)
        return {
            topic: Found(
                start_offset(self.broker, topic),
                end_offset(self.broker, topic),
                [row.value for row in consume(self.broker, topic)],
            )
            for topic in _TOPICS
        }

    def _read_on(self) -> Mapping[str, int]:
        """Return what a group gets that first reads to the end, then restarts after more records were produced."""
        topics = ("good", "high-epoch")
        self._consume_in_group("|".join(topics), "--from-beginning", f"--max-messages={2 * ROW_COUNT}")
        producer = new_producer(self.broker)
        for topic in topics:
            for _ in range(_ADDED_COUNT):
                producer.produce(topic, topic.encode())
        producer.flush()
        # What comes is waited for, however long a group takes to gather; only then may nothing more come for some time.
        found = self._consume_in_group("|".join(topics), f"--max-messages={_ADDED_COUNT}")
        return found + self._consume_in_group("|".join(topics), f"--timeout-ms={_NOTHING_COMES_MS}")

    def _consume_in_group(self, topics: str, *arguments: str) -> Counter[str]:
        """Return the number of records that Kafka's own consumer gets, by value."""
        command = ["bin/kafka-console-consumer.sh", "--bootstrap-server", self.broker.bootstrap_servers]
        command += ["--group", _GROUP, "--include", topics, *arguments]
        done = subprocess.run(
            command, cwd=self.home.directory, capture_output=True, text=True, timeout=600, check=False
        )
        return Counter(done.stdout.splitlines())

    def _log(self) -> str:
        return self.broker.log_path.read_text()


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
        self._held_ports = contextlib.ExitStack()

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
        self._held_ports.close()

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
        [port] = self._held_ports.enter_context(hold_ports(1))
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


REPOSITORY = Path(__file__).resolve().parents[2]
TEXT = (REPOSITORY / "docs" / "load-into-kafka.md").read_text(encoding="utf-8")
WAYS_OUT = "## When a condition did not hold"
BACKUP = REPOSITORY / "examples" / "data"
PARTITIONS = {"events": 3, "metrics": 2, "orders": 3, "payments": 2}
# Kafka's default retention, checked continuously instead of every five minutes.
EAGER_RETENTION = {
    "log.retention.ms": 604_800_000,
    "log.retention.check.interval.ms": 500,
    "log.initial.task.delay.ms": 500,
}
APPENDED = [b"append %d" % number for number in range(1000)]
OVERWRITTEN = [b"overwrite %d" % number for number in range(1000)]

pytestmark = pytest.mark.spark


@dataclass(frozen=True, slots=True)
class Executed:
    """The document after its execution: each block with its output, and what a consumer gets then."""

    printed: list[tuple[Block, str]]
    consumed: dict[str, list[Row]]


@pytest.fixture(scope="module")
def executed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Executed:
    scratch = tmp_path_factory.mktemp("load-into-kafka")
    broker = KafkaBroker(scratch / "broker", EAGER_RETENTION)
    with KafkaHome(scratch / "home", broker) as home:
        home.start()
        places = {
            "/opt/kafka": str(home.directory),
            "localhost:9092": broker.bootstrap_servers,
            "/var/lib/kafka/data": str(broker.log_directory),
            "/backup/kafka": str(BACKUP),
            "/data/own-root": str(scratch / "own-root"),
            "/data/parquet": str(scratch / "parquet"),
        }
        shell = Shell(home.directory, places, {"PATH": os.environ["PATH"], "LC_ALL": "C"})
        printed = []
        for block in blocks_of(TEXT.partition(WAYS_OUT)[0]):
            printed.append((block, shell.run(block)))
            home.settle()
        consumed = {topic: consume_all(broker, topic, count) for topic, count in PARTITIONS.items()}
    shutil.rmtree(scratch)
    return Executed(printed, consumed)


def consume_all(broker: KafkaBroker, topic: str, partition_count: int) -> list[Row]:
    """Return what a consumer gets from a topic, by partition and offset."""
    places = [(topic, number) for number in range(partition_count)]
    consumed = consume_partitions(broker, places, READ_COMMITTED)
    assert [each.error for each in consumed.values()] == [None] * partition_count
    return sorted((row for each in consumed.values() for row in each.rows), key=lambda row: row[:3])


@pytest.fixture(scope="module")
def faulty(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> FaultyLoads:
    scratch = tmp_path_factory.mktemp("faulty")
    broker = KafkaBroker(scratch / "broker", EAGER_RETENTION)
    with KafkaHome(scratch / "home", broker) as home:
        found = Loading(spark, home, broker, scratch, blocks_of(TEXT)).run()
    shutil.rmtree(scratch)
    return found


def test_commands_print_what_the_document_shows(executed: Executed) -> None:
    assert len([block for block, _ in executed.printed if block.shown]) >= 10
    for block, printed in executed.printed:
        assert_shown(printed, block)


def test_a_consumer_gets_each_row_once(executed: Executed) -> None:
    events = [(row.key, row.value, row.timestamp_ms) for row in executed.consumed["events"]]
    assert sorted(events) == sorted(
        (b"customer-%d" % (number % 100), b"event %d" % number, (1_714_521_600 + number) * 1000)
        for number in range(3000)
    )
    metrics = [(row.key, row.value) for row in executed.consumed["metrics"]]
    assert sorted(metrics) == sorted((b"%d" % number, b"%d" % number**2) for number in range(2000))


@pytest.mark.parametrize("topic", ["orders", "payments"])
def test_restored_records_are_those_of_the_backup(executed: Executed, topic: str) -> None:
    backup = read_table(str(BACKUP), subscribe=topic, include_headers=True, isolation_level="read_committed")
    assert_same_rows(executed.consumed[topic], rows_of(backup))


def test_exported_row_counts_match_the_consumer(executed: Executed) -> None:
    (parquet,) = [printed for block, printed in executed.printed if "parquet" in block.text]
    written = {topic: int(count) for topic, count in re.findall(r"\| *(\w+)\| *(\d+)\|", parquet)}
    assert written == {topic: len(rows) for topic, rows in executed.consumed.items()}


def log_lines(section: str, clicks: str) -> list[str]:
    """Return a section's excerpt of the broker's log, for another topic and any log directory."""
    lines = logged_lines_of(TEXT, section)
    return [line.replace("/var/lib/kafka/data", "…").replace("clicks", clicks) for line in lines]


def assert_shows_trouble(log: str, topic: str, *, is_expected: bool = True) -> None:
    """Assert whether the check that the document recommends reports the topic."""
    trouble = re.search(r"TROUBLE='(.*)'", TEXT)
    assert trouble is not None
    found = [
        line
        for line in log.splitlines()
        if re.search(trouble[1], line) and re.search(rf"\b{topic}-0\b", line)
    ]
    assert bool(found) == is_expected, found


def test_nothing_is_logged_about_a_correctly_loaded_topic(faulty: FaultyLoads) -> None:
    assert faulty.found["good"].values == APPENDED
    assert_shows_trouble(faulty.log, "good", is_expected=False)
    for topic in faulty.repaired:
        assert_shows_trouble(faulty.repaired_log, topic, is_expected=False)


def test_a_topic_without_a_directory_is_written_with_its_id(faulty: FaultyLoads) -> None:
    assert faulty.found["absent"].values == APPENDED
    assert not [name for name in faulty.names if name.startswith("absent") and name != "absent-0"]


@pytest.mark.parametrize(("topic", "logged"), [("wrong-id", 0), ("no-id", 1)])
def test_a_directory_with_a_wrong_or_missing_topic_id_is_set_aside(
    faulty: FaultyLoads, topic: str, logged: int
) -> None:
    assert faulty.found[topic].end_offset == 0
    assert [name for name in faulty.names if re.fullmatch(rf"{topic}-0\.[0-9a-f]{{32}}-stray", name)]
    lines = log_lines("A directory is called", clicks=topic)
    assert_logged(faulty.log, [lines[logged], lines[2]])
    assert_shows_trouble(faulty.log, topic)
    assert faulty.repaired[topic].values == APPENDED


def test_old_rows_are_deleted_by_the_first_retention_check(faulty: FaultyLoads) -> None:
    found, repaired = faulty.found["old"], faulty.repaired["old"]
    assert (found.start_offset, found.end_offset, found.values) == (1000, 1000, [])
    assert_logged(faulty.log, log_lines("The topic is empty", clicks="old"))
    assert_shows_trouble(faulty.log, "old")
    assert (repaired.start_offset, repaired.end_offset, repaired.values) == (0, 1000, APPENDED)


def test_a_group_stops_at_leader_epochs_above_those_of_the_cluster(faulty: FaultyLoads) -> None:
    assert faulty.found["high-epoch"].values == APPENDED
    assert_logged(faulty.log, log_lines("A group gets nothing more", clicks="high-epoch"))
    assert_shows_trouble(faulty.log, "high-epoch")
    # Five records were produced to each of two topics, and the group was restarted.
    assert faulty.read_on == {"good": 5}
    assert faulty.repaired["high-epoch"].values == [*APPENDED, *[b"high-epoch"] * 5]
    assert faulty.repaired_read_on == {"high-epoch": 5}


def test_overwritten_rows_in_segments_of_their_own_stay_away_without_the_log_start_checkpoint(
    faulty: FaultyLoads,
) -> None:
    for load in (faulty.found["log-start"], faulty.repaired["log-start"]):
        assert (load.start_offset, load.values) == (1000, OVERWRITTEN)


@pytest.fixture(scope="module")
def replicated(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicated]:
    scratch = tmp_path_factory.mktemp("replicated")
    cluster = TwoBrokers(scratch)
    try:
        yield load_replicas(spark, cluster, scratch)
    finally:
        cluster.kill()
        shutil.rmtree(scratch)


@pytest.mark.parametrize("topic", ["on-both", "on-the-leader"])
def test_replicas_agree_if_all_of_them_or_the_leader_get_the_rows(replicated: Replicated, topic: str) -> None:
    assert replicated.in_sync[topic] == {1, 2}
    assert replicated.values[topic] == APPENDED
    first, second = replicated.log_files[topic]
    assert first == second
    assert_shows_trouble(replicated.log, topic, is_expected=False)


def test_an_empty_leader_makes_its_followers_truncate_the_rows(replicated: Replicated) -> None:
    assert replicated.values["on-the-follower"] == []
    assert replicated.log_files["on-the-follower"] == (b"", b"")
    assert_logged(replicated.log, log_lines('"Truncating to offset 0"', clicks="on-the-follower"))
    assert_shows_trouble(replicated.log, "on-the-follower")


def test_batches_with_the_leader_epoch_minus_one_are_not_replicated(replicated: Replicated) -> None:
    assert replicated.in_sync["epoch-minus-one"] == {1}
    assert replicated.values["epoch-minus-one"] == APPENDED
    assert replicated.log_files["epoch-minus-one"][1] == b""
    assert_logged(replicated.log, log_lines('"marked as failed"', clicks="epoch-minus-one"))
    assert_shows_trouble(replicated.log, "epoch-minus-one")


def test_batches_with_too_high_a_leader_epoch_are_not_replicated(replicated: Replicated) -> None:
    assert replicated.in_sync["epoch-100"] == {1}
    assert replicated.log_files["epoch-100"][1] == b""
    assert "Skipping batch" in replicated.log
    assert_shows_trouble(replicated.log, "epoch-100")
