"""Log directories that Spark jobs write, placed under a broker's topics, and what the broker did with them.

One broker starts three times. After the first start, topics are created. The second start loads our partitions with a
clean-shutdown marker; clients read and append. Then the broker is killed, and the third start recovers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from storage_core import LogDirectory
from tests.interop.broker_start import BrokerStart, start_and_watch
from tests.interop.clients import Deliveries, create_topic, list_offsets, new_producer
from tests.interop.consumed_columns import consume_columns
from tests.interop.event_rows import SCHEMA, Events, Seen, distinct_keys, row_maker
from tests.interop.java_clients import produce_with_java
from tests.interop.placing import place
from tests.interop.spark_jobs import save
from tests.interop.workload import BASE_TIMESTAMP_MS

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
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
