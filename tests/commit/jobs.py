"""Jobs for tests: rows that are told by their values, staged by tasks and committed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from storage_core import LogConfig, LogDirectory
from storage_core.commit.job import CommitJob
from storage_core.commit.job_spec import JobSpec
from storage_core.commit.routing import RoutedRows
from storage_core.commit.staging import StageWriter
from storage_core.commit_files.stage_names import StageId
from storage_core.record.encode import BatchEncoding
from tests.log.logs import Clock

# Small enough for segments to roll, and for indexes to have entries, after a few records.
CONFIG = LogConfig(internal_segment_bytes=4000, segment_index_bytes=240, index_interval_bytes=200)
BATCH_BYTES = 300
# So much of one partition becomes a segment.
PIECE_BYTES = 1500
ROOT = "/data"
TIME_MS = 1_700_000_000_000
TOPIC_ID = "AbCdEfGhIjKlMnOpQrStUg"
JOBS = [f"{number:032x}" for number in range(1, 10)]

Rows = dict[tuple[str, int], list[tuple[int | None, bytes]]]


def rows_of(*partitions: tuple[str, int, int], name: str = "job", size: int = 30) -> Rows:
    """Rows with unique values for each (topic, partition, count)."""
    return {
        (topic, partition): [
            (None, f"{name}:{topic}:{partition}:{number}".encode().ljust(size, b"."))
            for number in range(count)
        ]
        for topic, partition, count in partitions
    }


def stage(filesystem, root, job_id, rows: Rows, *, task=0, attempt=0, config=CONFIG, piece_bytes=PIECE_BYTES):
    """Stage rows as one attempt at one task does; return its manifest."""
    flat = [
        (topic, partition, offset, value)
        for (topic, partition), values in rows.items()
        for offset, value in values
    ]
    topics = sorted({topic for topic, *_ in flat})
    columns = {
        "value": pa.array([value for *_, value in flat], pa.binary()),
        "timestamp": pa.array([TIME_MS + 10 * number for number in range(len(flat))], pa.int64()),
    }
    if flat and flat[0][2] is not None:
        columns["offset"] = pa.array([offset for _, _, offset, _ in flat], pa.int64())
    writer = StageWriter(
        filesystem,
        root,
        StageId(job_id, task, attempt),
        BatchEncoding(batch_size_bytes=BATCH_BYTES),
        config,
        default_timestamp_ms=TIME_MS,
        piece_bytes=piece_bytes,
    )
    with writer:
        writer.append(
            RoutedRows(
                pa.RecordBatch.from_pydict(columns),
                topics,
                np.array([topics.index(topic) for topic, *_ in flat], np.int64),
                np.array([partition for _, partition, *_ in flat], np.int32),
            )
        )
        return writer.finish()


@dataclass
class Tried:
    """A job whose tasks are done."""

    job: CommitJob
    manifests: list = field(default_factory=list)

    def commit(self, filesystem=None):
        """Commit it, perhaps on a copy of its file system."""
        job = self.job
        if filesystem is not None:
            job = CommitJob(filesystem, job.root, job.spec, Clock())
        return job.commit(self.manifests)


def staged_job(filesystem, root, job_id, *tasks: Rows, is_begun=True, **settings) -> Tried:
    """Return a job of which each task has staged its rows."""
    settings = {"config": CONFIG, "threads": 1, "lock_wait_seconds": 0.0, **settings}
    job = CommitJob(filesystem, str(root), JobSpec(job_id=job_id, **settings), Clock())
    if is_begun:
        job.begin()
    config = settings["config"]
    manifests = [
        stage(filesystem, str(root), job_id, rows, task=number, config=config)
        for number, rows in enumerate(tasks)
        if rows
    ]
    return Tried(job, manifests)


def commit(filesystem, root, job_id, *tasks: Rows, **settings):
    """Stage and commit."""
    return staged_job(filesystem, root, job_id, *tasks, **settings).commit()


def contents(filesystem, root, config=CONFIG) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
    """Offset and value of all records by partition, as our readers see them; nothing is written."""
    found = {}
    with LogDirectory.open(
        str(root), read_only=True, filesystem=filesystem, config=config, clock=Clock()
    ) as logs:
        for log in logs.logs():
            records = []
            for batch in log.read(columns=["offset", "value"]):
                records += zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)
            found[log.topic, log.partition] = records
    return found


def values(rows) -> list[bytes]:
    return [value for _, value in rows]


def states(filesystem, root, config=CONFIG) -> dict[tuple[str, int], tuple[int, int]]:
    """Log start and log end by partition, as a writer finds them."""
    with LogDirectory.open(str(root), filesystem=filesystem, config=config, clock=Clock()) as logs:
        return {(log.topic, log.partition): (log.log_start_offset, log.log_end_offset) for log in logs.logs()}


def fill(filesystem, root, *partitions: tuple[str, int, int], config=CONFIG) -> None:
    """Append records for each (topic, partition, count), through logs."""
    with LogDirectory.open(str(root), filesystem=filesystem, config=config, clock=Clock()) as logs:
        for topic, partition, count in partitions:
            log = logs.get_or_create(topic, partition)
            for number in range(count):
                log.append(
                    pa.table(
                        {
                            "value": pa.array([f"old:{topic}:{partition}:{number}".encode()], pa.binary()),
                            "timestamp": pa.array([TIME_MS - 1000 + number], pa.int64()),
                        }
                    )
                )
