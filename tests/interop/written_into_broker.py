"""Spark jobs that write into the directory of a stopped broker, and how the broker handles it.

The broker starts empty. Clients write, the broker stops, jobs append and overwrite, the broker starts again, and the
earlier clients continue. Then commits are killed, and the broker refuses to start until their replay; a last start
serves everything.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from storage_core import LogDirectory
from tests.interop.broker import BrokerError, KafkaBroker
from tests.interop.broker_start import BrokerStart, start_and_watch
from tests.interop.consumed_columns import consume_columns
from tests.interop.earlier_clients import (
    EMPTY,
    GROWN,
    IDEMPOTENT,
    KILLED,
    LOST,
    OPEN,
    OVERWRITTEN,
    TOPICS,
    TRANSACTIONS,
    EarlierClients,
    places_of,
)
from tests.interop.event_rows import SCHEMA, Events, Seen, row_maker
from tests.interop.killed_commit import commit_until_killed
from tests.interop.partition_state import ProducerEntry, state_of
from tests.interop.source_broker import Place, Source, log_offsets, write_source
from tests.interop.spark_jobs import error_of_save, save

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

# The row numbers of each job.
SMALL_JOBS: Final = (range(6_000), range(6_000, 9_000))
LARGE_JOB: Final = range(100_000, 140_000)
OVERWRITTEN_ROWS: Final = 30
BEFORE, AFTER_THE_JOBS, AFTER_THE_REPLAYS = "before", "after the jobs", "after the replays"


# Its repr, which a failing assertion prints, would hold every row.
@dataclass(slots=True, repr=False)
class WrittenIntoBroker:
    """The directories and the observations on them.

    Attributes:
        source: Topics of the broker to which no job writes, and a copy of its root before the jobs.
        root: The broker's root.
        seen: What the tasks of the job with large pieces saw.
        topic_ids: The cluster's topic ids.
        consumed: What a read_committed consumer got, by occasion, topic and partition.
        offsets: Log start and log end offsets, by occasion, topic and partition.
        producers: The producers in the snapshot at the log end, by occasion, including the one before the clean start.
        continued: What the earlier producers appended, by topic, partition and offset.
        clean_start: The start after the jobs.
        errors: Why jobs to a topic with an open transaction and jobs on a running broker were refused; by topic.
        refusals: Why the broker did not start after each killed commit.
        last_start: The start after the replays.
    """

    source: Source
    root: Path
    seen: Seen
    topic_ids: dict[str, str] = field(default_factory=dict)
    consumed: dict[str, dict[Place, pa.Table]] = field(default_factory=dict)
    offsets: dict[str, dict[Place, tuple[int, int]]] = field(default_factory=dict)
    producers: dict[str, dict[Place, list[ProducerEntry]]] = field(default_factory=dict)
    continued: dict[tuple[str, int, int], tuple[bytes | None, bytes | None]] = field(default_factory=dict)
    clean_start: BrokerStart = field(default_factory=lambda: BrokerStart(""))
    errors: dict[str, str] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    last_start: BrokerStart = field(default_factory=lambda: BrokerStart(""))

    def look(self, broker: KafkaBroker, occasion: str) -> None:
        """Note what a consumer gets now."""
        self.consumed[occasion] = consume_columns(broker, places_of(*TOPICS))
        self.offsets[occasion] = log_offsets(broker, places_of(*TOPICS))

    def look_at_producers(self, occasion: str) -> None:
        """Note the snapshots of the closed logs."""
        self.producers[occasion] = {
            place: max(state_of(self.root / f"{place[0]}-{place[1]}").snapshots.items(), default=("", []))[1]
            for place in places_of(IDEMPOTENT, TRANSACTIONS)
        }


def write_into_broker(spark: SparkSession, broker: KafkaBroker, scratch: Path) -> WrittenIntoBroker:
    """Write with clients, then Spark, then clients; then kill commits."""
    broker.start()
    source = write_source(broker, scratch / "source")
    written = WrittenIntoBroker(source, broker.log_directory, Seen(scratch, "large"))
    clients = EarlierClients(broker)
    clients.write()
    written.look(broker, BEFORE)
    broker.stop()
    written.look_at_producers(BEFORE)
    written.topic_ids = {topic: _topic_id(broker.log_directory / f"{topic}-0") for topic in TOPICS}
    shutil.copytree(broker.log_directory, source.directory)

    for topic, partition in places_of(LOST):
        shutil.rmtree(broker.log_directory / f"{topic}-{partition}")
    _run_jobs(spark, written)
    written.look_at_producers(AFTER_THE_JOBS)
    row = spark.sql("SELECT 'is not written' AS value")
    options: dict[str, object] = {"brokerDirectory": "true"}
    written.errors[OPEN] = error_of_save(row, written.root, topic=OPEN, **options)
    written.clean_start = start_and_watch(broker)
    written.errors[EMPTY] = error_of_save(row, written.root, topic=EMPTY, **options)
    written.look(broker, AFTER_THE_JOBS)
    written.continued = clients.go_on()
    broker.stop()
    written.look_at_producers(AFTER_THE_REPLAYS)

    commit_until_killed(broker.log_directory, KILLED, version=1)
    written.refusals.append(_refusal(broker))
    with LogDirectory.open(broker.log_directory, broker_directory=True):
        # Opening replays the commit.
        pass
    commit_until_killed(broker.log_directory, KILLED, version=2)
    written.refusals.append(_refusal(broker))
    # The commit was replayed, so this job is a no-op.
    save(row, broker.log_directory, topic=KILLED, txnAppId="killed", txnVersion=2, **options)
    written.last_start = start_and_watch(broker)
    written.look(broker, AFTER_THE_REPLAYS)
    broker.stop()
    return written


def _topic_id(partition: Path) -> str:
    return (partition / "partition.metadata").read_text().split()[-1]


def _run_jobs(spark: SparkSession, written: WrittenIntoBroker) -> None:
    """Two jobs with small pieces, one with large ones, one that overwrites."""
    root = written.root
    for job in (*SMALL_JOBS, LARGE_JOB):
        rows = spark.range(job.start, job.stop, 1, 3)
        options: dict[str, object] = {}
        seen = Seen(written.seen.directory, "small")
        if job is LARGE_JOB:
            seen = written.seen
            options = {"internal__segment__bytes": 30_000, "batch__size": 4_096}
        save(
            rows.mapInArrow(row_maker(Events(GROWN), root, seen), SCHEMA),
            root,
            brokerDirectory="true",
            partitions=TOPICS[LOST][0],
            topicIds=f'{{"{LOST}":"{written.topic_ids[LOST]}"}}',
            **options,
        )
    new = spark.range(OVERWRITTEN_ROWS).selectExpr("CONCAT('new ', id) AS value", "1 AS partition")
    save(new.coalesce(1), root, "overwrite", brokerDirectory="true", topic=OVERWRITTEN)


def _refusal(broker: KafkaBroker) -> str:
    try:
        broker.start()
    except BrokerError as error:
        return str(error)
    raise AssertionError("the broker started with an unfinished commit")
