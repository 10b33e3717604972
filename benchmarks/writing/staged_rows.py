"""Rows for many partitions, staged and committed without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.records import FIRST_TIMESTAMP_MS
from benchmarks.writing.directories import TOPIC
from benchmarks.writing.rows import VALUE_BYTES

if TYPE_CHECKING:
    from storage_core.commit.job import CommitJob
    from storage_core.commit.manifest import StagedManifest
    from storage_core.commit.routing import RoutedRows
    from storage_core.filesystem import FileSystem

# The sink's own default.
BATCH_SIZE_BYTES = 128 << 10

_ROWS_AT_ONCE = 10_000


def new_job_id() -> str:
    """Return the id of a job."""
    return uuid.uuid4().hex


def routed_rows(rows: int, partitions: int) -> Iterator[RoutedRows]:
    """Rows in batches as Spark hands them over. Neighbours go to different partitions, as keyed rows do."""
    import numpy as np
    import pyarrow as pa

    from storage_core.commit.routing import RoutedRows

    for start in range(0, rows, _ROWS_AT_ONCE):
        numbers = range(start, min(start + _ROWS_AT_ONCE, rows))
        keys = [b"%010d" % number for number in numbers]
        values = [key.ljust(VALUE_BYTES, b".") for key in keys]
        batch = pa.RecordBatch.from_pydict(
            {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
        )
        yield RoutedRows(batch, (TOPIC,), None, np.arange(numbers.start, numbers.stop) % partitions)


def stage(
    filesystem: FileSystem, root: Path, job_id: str, rows: list[RoutedRows], *, task: int = 0, flush: bool
) -> StagedManifest:
    """Stage rows as one task does."""
    from storage_core.commit.staging import StageWriter
    from storage_core.commit_files.stage_names import StageId
    from storage_core.log_config import LogConfig
    from storage_core.record.encode import BatchEncoding

    with StageWriter(
        filesystem,
        str(root),
        StageId(job_id, task, task),
        BatchEncoding(batch_size_bytes=BATCH_SIZE_BYTES),
        LogConfig(),
        default_timestamp_ms=FIRST_TIMESTAMP_MS,
        flush=flush,
    ) as writer:
        for each in rows:
            writer.append(each)
        return writer.finish()


def make_job(
    filesystem: FileSystem, root: Path, job_id: str, *, new_partitions: Mapping[str, int], flush: bool
) -> CommitJob:
    """Return the job, begun."""
    from storage_core.commit.job import CommitJob
    from storage_core.commit.job_spec import JobSpec

    job = CommitJob(filesystem, root, JobSpec(job_id=job_id, new_partitions=new_partitions, flush=flush))
    job.begin()
    return job
