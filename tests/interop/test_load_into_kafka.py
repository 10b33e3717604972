"""docs/load-into-kafka.md works as written, and violating its conditions has the described consequences.

Its commands run here, in order, on a stock broker. The commands under a violated condition run on a topic that
violates it.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from storage_core import read_table
from tests.executed_document import (
    Block,
    Shell,
    assert_logged,
    assert_shown,
    blocks_of,
    logged_lines_of,
)
from tests.interop.broker import KafkaBroker
from tests.interop.clients import READ_COMMITTED, Row, assert_same_rows, consume_partitions, rows_of
from tests.interop.faulty_loading import FaultyLoads, Loading
from tests.interop.kafka_home import KafkaHome
from tests.interop.replicated import Replicated, TwoBrokers, load_replicas

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

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
