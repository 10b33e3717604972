"""Every conformance case: read with Spark, written with its offsets into a stopped broker's directory, consumed.

These tests are the column `broker` of the conformance matrix; see `tests/conformance/README.md`.

Cases share topic names, but one broker loads all of them. So Spark reads copies whose partition directories have the
case as a prefix. Log files contain no topic names.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
from conformance.archives import case_names, unpack_case
from conformance.case_under_test import CaseUnderTest
from conformance.matrix import CHECKS_PROPERTY
from conformance.restored import options_to_read, options_to_write, restored_partitions, restored_rows
from conformance.rules import READ_COMMITTED
from conformance.spark_process import ClassicSpark, SparkWriteError

from tests.interop.broker_start import BrokerStart, start_and_watch
from tests.interop.clients import (
    ISOLATION_LEVELS,
    Consumed,
    assert_same_rows,
    consume_partitions,
    create_topics,
    log_offsets,
    rows_of,
)
from tests.interop.conftest import broker_in
from tests.interop.dump_log_segments import complaints_about_indexes
from tests.interop.placing import CHECKPOINTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from tests.interop.broker import KafkaBroker


BROKER_SETTINGS: dict[str, object] = {"log.index.size.max.bytes": 65_536}

# Successive cases use successive codecs.
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# Small segments, so that large logs have several; the largest records need this size.
_SETTINGS = {"internal.segment.bytes": 130_000, "index.interval.bytes": 500}
_BATCH_SIZE = 2_000
_TIMEOUT_S = 300.0

Place = tuple[str, int]


@dataclass(slots=True, repr=False)
class RestoredCases:
    """What the broker made of all cases.

    Attributes:
        cases: What Spark read and wrote, by name.
        root: The broker's directory.
        failures: Exceptions that Spark raised, by case.
        topic_ids: The cluster's topic ids, before Spark wrote anything.
        start: The start with the logs that Spark wrote.
        consumed: By isolation level, topic and partition.
        bounds: The broker's log start and log end offsets, by topic and partition.
    """

    root: Path
    cases: dict[str, CaseUnderTest] = field(default_factory=dict)
    failures: dict[str, SparkWriteError] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)
    start: BrokerStart = field(default_factory=lambda: BrokerStart(""))
    consumed: dict[str, dict[Place, Consumed]] = field(default_factory=dict)
    bounds: dict[Place, tuple[int, int]] = field(default_factory=dict)

    def case(self, name: str) -> CaseUnderTest:
        """Return a case that was written.

        Raises:
            SparkWriteError: Writing it failed.
        """
        if name in self.failures:
            raise self.failures[name]
        return self.cases[name]


def named(case_name: str, topic: str) -> str:
    """Return the broker's name for the topic of a case."""
    return f"{case_name}.{topic}"


def restore_cases(spark: SparkSession, broker: KafkaBroker, scratch: Path) -> RestoredCases:
    """Create the topics, stop the broker, write the cases, restart it, and observe it."""
    restored = RestoredCases(broker.log_directory)
    for name in case_names():
        logs, expected = unpack_case(name, scratch / name)
        restored.cases[name] = CaseUnderTest(name, logs, expected, scratch)
    places = [
        (named(name, partition.topic), partition.partition)
        for name, case in restored.cases.items()
        for partition in case.partitions
    ]
    broker.start()
    restored.topic_ids = _create_topics(broker, places)
    broker.stop()
    session = ClassicSpark(spark)
    for number, case in enumerate(restored.cases.values()):
        try:
            _restore(restored, case, session, _CODECS[number % len(_CODECS)])
        except SparkWriteError as error:
            restored.failures[case.name] = error
    restored.start = start_and_watch(broker)
    for level in ISOLATION_LEVELS:
        restored.consumed[level] = consume_partitions(broker, places, level)
    restored.bounds = log_offsets(broker, places)
    broker.stop()
    return restored


def _create_topics(broker: KafkaBroker, places: list[Place]) -> dict[str, str]:
    """Create the topics and return their ids."""
    counts: dict[str, int] = {}
    for topic, partition in places:
        counts[topic] = max(counts.get(topic, 0), partition + 1)
    create_topics(broker, {topic: {"retention.ms": -1, **_SETTINGS} for topic in counts}, counts)
    admin = _admin(broker)
    described = admin.describe_topics(TopicCollection(list(counts)))
    # The client uses another Base64 alphabet than Kafka's own tools.
    letters = str.maketrans("+/", "-_")
    return {
        topic: str(each.result(_TIMEOUT_S).topic_id).translate(letters) for topic, each in described.items()
    }


def _restore(restored: RestoredCases, case: CaseUnderTest, session: ClassicSpark, codec: str) -> None:
    topics = {partition.topic for partition in restored_partitions(case, READ_COMMITTED)}
    ids = {named(case.name, topic): restored.topic_ids[named(case.name, topic)] for topic in topics}
    source = _with_other_names(case)
    options = options_to_read(case, READ_COMMITTED)
    # None of the new names is that of an internal topic.
    options.pop("subscribe", None)
    session.copy(
        source,
        options,
        restored.root,
        {
            **options_to_write(source),
            **_SETTINGS,
            "batch.size": _BATCH_SIZE,
            "compression.type": codec,
            "broker_directory": True,
            "topic_ids": json.dumps(ids),
        },
    )
    shutil.rmtree(source)


def _with_other_names(case: CaseUnderTest) -> Path:
    source = case.logs.with_name("renamed")
    shutil.copytree(case.logs, source)
    names = {partition.name for partition in case.partitions}
    for name in names:
        os.rename(source / name, source / named(case.name, name))
    for checkpoint in CHECKPOINTS:
        path = source / checkpoint
        if path.exists():
            version, count, *lines = path.read_text().splitlines()
            lines = [named(case.name, line) if _is_of(line, names) else line for line in lines]
            path.write_text("\n".join([version, count, *lines, ""]))
    return source


def _is_of(line: str, names: set[str]) -> bool:
    topic, partition, _ = line.split()
    return f"{topic}-{partition}" in names


def _admin(broker: KafkaBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})


pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def restored(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestoredCases]:
    """Yield all cases in the directory of one broker."""
    scratch = tmp_path_factory.mktemp("restored-cases")
    with broker_in(scratch, BROKER_SETTINGS) as broker:
        yield restore_cases(spark, broker, scratch)


@pytest.fixture
def count(request: pytest.FixtureRequest) -> Callable[[int], None]:
    """Report the number of comparisons to the matrix."""
    return lambda checks: request.node.user_properties.append((CHECKS_PROPERTY, checks))


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
@pytest.mark.parametrize("case_name", case_names())
def test_consumer_gets_the_records_at_their_offsets(
    restored: RestoredCases, case_name: str, isolation_level: str, count: Callable[[int], None]
) -> None:
    case = restored.case(case_name)
    expected = rows_of(restored_rows(case, READ_COMMITTED))
    for partition in case.partitions:
        topic = named(case_name, partition.topic)
        consumed = restored.consumed[isolation_level][topic, partition.partition]
        assert consumed.error is None, consumed.error
        wanted = [
            row._replace(topic=topic) for row in expected if row[:2] == (partition.topic, partition.partition)
        ]
        assert_same_rows(consumed.rows, wanted)
    count(len(case.partitions))


@pytest.mark.parametrize("case_name", case_names())
def test_log_start_and_log_end_are_the_old_ones(
    restored: RestoredCases, case_name: str, count: Callable[[int], None]
) -> None:
    """As ListOffsets reports them; reads end at the log end under either isolation level."""
    partitions = restored_partitions(restored.case(case_name), READ_COMMITTED)
    for partition in partitions:
        place = (named(case_name, partition.topic), partition.partition)
        assert restored.bounds[place] == (partition.log_start_offset, partition.end_offset), place
        for consumed in restored.consumed.values():
            assert consumed[place].end_offset == partition.end_offset, place
    count(len(partitions))


@pytest.mark.parametrize("case_name", case_names())
def test_broker_loads_the_logs_without_complaints(
    restored: RestoredCases, case_name: str, count: Callable[[int], None]
) -> None:
    partitions = restored.case(case_name).partitions
    loaded = restored.start.loaded()
    for partition in partitions:
        topic = named(case_name, partition.topic)
        assert loaded[topic, partition.partition].topic_id == restored.topic_ids[topic]
        assert not restored.start.complaints(topic, partition.partition)
    count(len(partitions))


def test_the_start_is_a_clean_one(restored: RestoredCases) -> None:
    assert restored.start.skipped_recovery
    assert not restored.start.unusual()
    assert not list(restored.root.glob("*-stray"))


def test_dump_log_segments_accepts_every_index(restored: RestoredCases) -> None:
    assert not complaints_about_indexes(
        restored.root / f"{named(name, partition.name)}"
        for name, case in restored.cases.items()
        for partition in restored_partitions(case, READ_COMMITTED)
    )


def test_logs_have_the_segments_that_they_need(restored: RestoredCases) -> None:
    """Those of two logs that begin where they end have lost the empty segment of offset 0 that the broker had created."""
    segments = {
        path.name: [int(each.stem) for each in path.glob("*.log")] for path in restored.root.glob("*-[0-9]")
    }
    assert {name for name, base_offsets in segments.items() if len(base_offsets) > 1} == {
        "timestamps.ts-switch-0",
        "v2-lz4.lz4-large-0",
        "v2-lz4.lz4-rd-0",
        "v2-snappy.snappy-large-0",
        "v2-zstd.zstd-large-0",
    }
    assert (segments["retention.ret-all-0"], segments["delete-records.delrec-4"]) == ([55], [224])
