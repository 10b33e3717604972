"""A broker loads what Spark jobs write without complaint; consumers get each row once, in the partition of its key.

One broker starts three times. After the first start, topics are created. The second start loads our partitions with a
clean-shutdown marker; clients read and append. Then the broker is killed, and the third start recovers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from storage_core import LogDirectory
from tests.interop.broker_start import BrokerStart, start_and_watch
from tests.interop.clients import Deliveries, create_topic, list_offsets, new_producer
from tests.interop.conftest import broker_in
from tests.interop.consumed_columns import consume_columns
from tests.interop.dump_log_segments import complaints_about_indexes
from tests.interop.event_rows import SCHEMA, Events, Seen, distinct_keys, numbers_of, row_maker
from tests.interop.java_clients import produce_with_java
from tests.interop.placing import place
from tests.interop.produced import BROKER_SETTINGS
from tests.interop.spark_jobs import save
from tests.interop.workload import BASE_TIMESTAMP_MS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.interop.broker import KafkaBroker


@dataclass(frozen=True)
class Job:
    """One job.

    Attributes:
        topics: Partition counts.
        codec: The compression codec.
        row_count: Number of rows.
        tasks: Number of tasks.
        null_timestamps: Whether some rows have no timestamp.
    """

    topics: dict[str, int]
    codec: str
    row_count: int = 60_000
    tasks: int = 3
    null_timestamps: bool = True

    @property
    def places(self) -> list[tuple[str, int]]:
        """Topics and partitions."""
        return [(topic, number) for topic, count in self.topics.items() for number in range(count)]

    @property
    def events(self) -> Events:
        """The rows."""
        return Events(tuple(self.topics), self.null_timestamps)


# Small, to get many segments: linked ones, and ones that rows are appended to.
SEGMENT_BYTES: Final = 1 << 18
_TOPIC_SETTINGS: Final = {"internal_segment_bytes": SEGMENT_BYTES, "retention_ms": -1}
LARGE: Final = "zstd"
JOBS: Final = {
    LARGE: Job({"spark-seven": 7, "spark-five": 5}, "zstd", row_count=600_000, tasks=2),
    **{
        codec: Job({f"spark-{codec}": 3}, codec, null_timestamps=codec in {"gzip", "lz4"})
        for codec in ("none", "gzip", "snappy", "lz4")
    },
}
KEYED_BY_JAVA: Final = "java-seven"
APPENDED: Final = 5


# Its repr, which a failing assertion prints, would hold every row.
@dataclass(slots=True, repr=False)
class LoadedFromSpark:
    """Directories and the observations on them.

    Attributes:
        own: The root that the jobs wrote. It does not change afterwards.
        root: The broker's root.
        seen: What the large job's tasks saw.
        job_times_ms: The start and end of each job.
        clean_start: The start with the placed logs.
        recovery: The start after the kill.
        consumed: What a consumer got after the clean start.
        appended: What an idempotent producer appended, by topic, partition and offset.
        consumed_after_the_kill: By topic and partition, without the large job.
        looked_up: The broker's results of lookups by time in partition 0: the requested time and the result.
    """

    own: Path
    root: Path
    seen: Seen
    job_times_ms: dict[str, tuple[int, int]] = field(default_factory=dict)
    clean_start: BrokerStart = field(default_factory=lambda: BrokerStart(""))
    recovery: BrokerStart = field(default_factory=lambda: BrokerStart(""))
    consumed: dict[tuple[str, int], pa.Table] = field(default_factory=dict)
    appended: dict[tuple[str, int, int], tuple[bytes | None, bytes | None]] = field(default_factory=dict)
    consumed_after_the_kill: dict[tuple[str, int], pa.Table] = field(default_factory=dict)
    looked_up: dict[str, list[tuple[int, tuple[int, int] | None]]] = field(default_factory=dict)


def load_from_spark(spark: SparkSession, broker: KafkaBroker, scratch: Path) -> LoadedFromSpark:
    """Write with Spark, give the partitions to the broker, and observe it."""
    loaded = LoadedFromSpark(scratch / "own", broker.log_directory, Seen(scratch, LARGE))
    _write(spark, loaded, scratch)

    topics = {topic: count for job in JOBS.values() for topic, count in job.topics.items()}
    broker.start()
    for topic, count in topics.items():
        create_topic(broker, topic, count, **_TOPIC_SETTINGS)
    create_topic(broker, KEYED_BY_JAVA, JOBS[LARGE].topics["spark-seven"])
    produce_with_java(broker, KEYED_BY_JAVA, distinct_keys())
    broker.stop()
    for topic, count in topics.items():
        place(loaded.own, broker.log_directory, topic, partitions=count)

    loaded.clean_start = start_and_watch(broker)
    places = [place for job in JOBS.values() for place in job.places]
    by_java = [(KEYED_BY_JAVA, number) for number in range(7)]
    loaded.consumed = consume_columns(broker, [*places, *by_java])
    _look_up(loaded, broker)
    _append(loaded, broker, places)
    broker.kill()

    loaded.recovery = start_and_watch(broker)
    small = [place for name, job in JOBS.items() if name != LARGE for place in job.places]
    loaded.consumed_after_the_kill = consume_columns(broker, small)
    broker.stop()
    return loaded


def _write(spark: SparkSession, loaded: LoadedFromSpark, scratch: Path) -> None:
    with LogDirectory.open(loaded.own) as logs:
        # One write cannot create topics with different partition counts.
        for place in JOBS[LARGE].places:
            logs.create(*place)
    for name, job in JOBS.items():
        seen = Seen(scratch, name)
        rows = spark.range(0, job.row_count, 1, job.tasks)
        rows = rows.mapInArrow(row_maker(job.events, loaded.own, seen, fails_once=name == LARGE), SCHEMA)
        started_ms = time.time_ns() // 1_000_000
        save(
            rows,
            loaded.own,
            compression__type=job.codec,
            partitions=3,
            internal__segment__bytes=SEGMENT_BYTES,
            batch__size=16_384,
        )
        loaded.job_times_ms[name] = (started_ms, time.time_ns() // 1_000_000)


def _look_up(loaded: LoadedFromSpark, broker: KafkaBroker) -> None:
    for job in JOBS.values():
        for topic in job.topics:
            last_ms = BASE_TIMESTAMP_MS + job.row_count
            asked = [0, *range(BASE_TIMESTAMP_MS, last_ms, job.row_count // 20), last_ms + 511, (1 << 63) - 1]
            answers = list_offsets(broker, topic, asked)
            loaded.looked_up[topic] = list(zip(asked, answers, strict=True))


def _append(loaded: LoadedFromSpark, broker: KafkaBroker, places: list[tuple[str, int]]) -> None:
    deliveries = Deliveries()
    producer = new_producer(broker, enable_idempotence=True, linger_ms=5)
    for topic, partition in places:
        for number in range(APPENDED):
            producer.produce(topic, b"appended %d" % number, partition=partition, on_delivery=deliveries)
    producer.flush()
    assert not deliveries.errors, deliveries.errors[0]
    loaded.appended = deliveries.snapshot()


pytestmark = pytest.mark.spark

PLACES = [place for job in JOBS.values() for place in job.places]
SMALL = [place for name, job in JOBS.items() if name != LARGE for place in job.places]


@pytest.fixture(scope="module")
def loaded_from_spark(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LoadedFromSpark]:
    """Logs of Spark jobs after three starts of a broker."""
    scratch = tmp_path_factory.mktemp("loaded-from-spark")
    with broker_in(scratch, BROKER_SETTINGS) as broker:
        yield load_from_spark(spark, broker, scratch)


def test_a_task_failed_after_writing_rows_to_disk(loaded_from_spark: LoadedFromSpark) -> None:
    assert int(loaded_from_spark.seen.failure.read_text()) > 0


@pytest.mark.parametrize(("topic", "partition"), JOBS[LARGE].places)
def test_segments_were_linked_and_appended_to(
    loaded_from_spark: LoadedFromSpark, topic: str, partition: int
) -> None:
    sizes = [path.stat().st_size for path in (loaded_from_spark.own / f"{topic}-{partition}").glob("*.log")]
    assert loaded_from_spark.seen.large_pieces.exists()
    assert len(sizes) >= 4
    assert max(sizes) <= SEGMENT_BYTES


@pytest.mark.parametrize(("topic", "partition"), PLACES)
def test_broker_loads_it_without_complaints(
    loaded_from_spark: LoadedFromSpark, topic: str, partition: int
) -> None:
    start = loaded_from_spark.clean_start
    assert start.skipped_recovery
    loaded = start.loaded()[topic, partition]
    assert loaded.log_start_offset == 0
    assert loaded.log_end_offset == loaded_from_spark.consumed[topic, partition].num_rows > 0
    assert not start.complaints(topic, partition)
    assert not start.recovered_segments(topic, partition)


def test_clean_start_logs_no_warnings(loaded_from_spark: LoadedFromSpark) -> None:
    assert set(PLACES) <= set(loaded_from_spark.clean_start.loaded())
    assert not loaded_from_spark.clean_start.unusual()


def test_dump_log_segments_accepts_every_index(loaded_from_spark: LoadedFromSpark) -> None:
    own = loaded_from_spark.own
    assert not complaints_about_indexes(own / f"{topic}-{partition}" for topic, partition in PLACES)


@pytest.mark.parametrize("name", JOBS)
def test_consumer_gets_each_row_once_and_as_it_was(loaded_from_spark: LoadedFromSpark, name: str) -> None:
    job = JOBS[name]
    found = np.zeros(job.row_count, np.int64)
    began_ms: set[int] = set()
    for topic, partition in job.places:
        table = loaded_from_spark.consumed[topic, partition]
        assert table["offset"].to_numpy().tolist() == list(range(table.num_rows))
        numbers = numbers_of(table["value"], table["timestamp_ms"])
        # Tasks run one after the other, and each writes its rows in order.
        assert (np.diff(numbers) > 0).all()
        found[numbers] += 1
        expected = job.events.rows(numbers, null_headers=False)
        assert pc.all(pc.equal(expected["topic"], topic)).as_py()
        for column in ("key", "value", "headers"):
            assert table[column].combine_chunks().equals(expected[column]), f"{topic}-{partition} {column}"
        began_ms |= times_of_the_job(table, expected["timestamp"])
    assert (found == 1).all()
    assert len(began_ms) == int(job.null_timestamps)
    started_ms, ended_ms = loaded_from_spark.job_times_ms[name]
    assert all(started_ms <= each <= ended_ms for each in began_ms)


def times_of_the_job(table: pa.Table, expected: pa.Array) -> set[int]:
    """Check explicit timestamps, which become whole milliseconds; return the others."""
    assert pc.unique(table["timestamp_type"]).to_pylist() == [0]
    expected_ms = pc.divide(expected.cast(pa.int64()), 1000)
    filled = pc.if_else(pc.is_null(expected_ms), table["timestamp_ms"], expected_ms)
    assert filled.equals(table["timestamp_ms"])
    return set(pc.unique(table["timestamp_ms"].filter(pc.is_null(expected_ms))).to_pylist())


@pytest.mark.parametrize("name", JOBS)
def test_lookups_by_time_find_the_first_row_at_or_after(
    loaded_from_spark: LoadedFromSpark, name: str
) -> None:
    for topic in JOBS[name].topics:
        timestamps = loaded_from_spark.consumed[topic, 0]["timestamp_ms"].to_numpy()
        answers = loaded_from_spark.looked_up[topic]
        for asked_ms, answer in answers:
            found = np.flatnonzero(timestamps >= asked_ms)
            assert answer == ((timestamps[found[0]], found[0]) if len(found) else None), asked_ms
        # The time of the job is later than all explicit timestamps.
        assert len({answer for _, answer in answers}) == (
            3 if JOBS[name].null_timestamps else len(answers) - 2
        )


def test_keyed_rows_are_partitioned_as_by_kafkas_java_producer(loaded_from_spark: LoadedFromSpark) -> None:
    def partitions_by_key(topic: str) -> dict[bytes, list[int]]:
        keys = [
            pa.table(
                {
                    "key": pc.unique(loaded_from_spark.consumed[topic, number]["key"]),
                    "partition": [number] * count,
                }
            )
            for number in range(7)
            if (count := pc.count_distinct(loaded_from_spark.consumed[topic, number]["key"], "all").as_py())
        ]
        grouped = pa.concat_tables(keys).group_by("key").aggregate([("partition", "list")])
        return dict(zip(grouped["key"].to_pylist(), grouped["partition_list"].to_pylist(), strict=True))

    by_java = partitions_by_key(KEYED_BY_JAVA)
    by_spark = partitions_by_key("spark-seven")
    without_key = by_spark.pop(None)
    assert len(by_java) > 30_000
    assert b"" in by_java
    assert by_spark == by_java
    assert sorted(without_key) == list(range(7))


@pytest.mark.parametrize(("topic", "partition"), PLACES)
def test_idempotent_producer_appends(loaded_from_spark: LoadedFromSpark, topic: str, partition: int) -> None:
    end = loaded_from_spark.consumed[topic, partition].num_rows
    appended = {
        place[2]: row for place, row in loaded_from_spark.appended.items() if place[:2] == (topic, partition)
    }
    assert appended == {end + number: (None, b"appended %d" % number) for number in range(APPENDED)}


@pytest.mark.parametrize(("topic", "partition"), PLACES)
def test_recovery_after_a_kill_reads_only_segments_appended_to(
    loaded_from_spark: LoadedFromSpark, topic: str, partition: int
) -> None:
    start = loaded_from_spark.recovery
    assert start.recovered
    assert not start.complaints(topic, partition)
    last = max(int(path.stem) for path in (loaded_from_spark.root / f"{topic}-{partition}").glob("*.log"))
    assert start.recovered_segments(topic, partition) == [last]
    assert start.loaded()[topic, partition].log_end_offset == (
        loaded_from_spark.consumed[topic, partition].num_rows + APPENDED
    )


@pytest.mark.parametrize(("topic", "partition"), PLACES)
def test_kill_and_recovery_change_no_byte(
    loaded_from_spark: LoadedFromSpark, topic: str, partition: int
) -> None:
    """Only the last segment grew."""
    ours = loaded_from_spark.own / f"{topic}-{partition}"
    theirs = loaded_from_spark.root / f"{topic}-{partition}"
    *closed, last = sorted(ours.glob("*.log"))
    assert (theirs / last.name).read_bytes().startswith(last.read_bytes())
    for log in closed:
        for path in ours.glob(f"{log.stem}.*"):
            assert (theirs / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize(("topic", "partition"), SMALL)
def test_consumer_gets_everything_after_a_kill(
    loaded_from_spark: LoadedFromSpark, topic: str, partition: int
) -> None:
    before = loaded_from_spark.consumed[topic, partition]
    after = loaded_from_spark.consumed_after_the_kill[topic, partition]
    assert after.num_rows == before.num_rows + APPENDED
    assert after.slice(0, before.num_rows).equals(before)
