"""Logs that Spark wrote, placed under a broker's topics with one mistake each, and the consequences.

Each topic is named for its mistake. All rows are from the year 2020.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.executed_document import Block, Shell
from tests.interop.clients import consume, create_topic, end_offset, new_producer, start_offset, wait_until
from tests.interop.placing import place
from tests.interop.spark_jobs import ROW_COUNT, set_leader_epoch, topic_id_of, write_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.interop.broker import KafkaBroker
    from tests.interop.kafka_home import KafkaHome

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
        return self._consume_in_group("|".join(topics), f"--timeout-ms={_NOTHING_COMES_MS}")

    def _consume_in_group(self, topics: str, *arguments: str) -> Mapping[str, int]:
        """Return the number of records that Kafka's own consumer gets, by value."""
        command = ["bin/kafka-console-consumer.sh", "--bootstrap-server", self.broker.bootstrap_servers]
        command += ["--group", _GROUP, "--include", topics, *arguments]
        done = subprocess.run(
            command, cwd=self.home.directory, capture_output=True, text=True, timeout=600, check=False
        )
        return Counter(done.stdout.splitlines())

    def _log(self) -> str:
        return self.broker.log_path.read_text()
