"""The writer of a streaming query: each micro-batch is one job, which is committed once.

A job is known by the query and the number of its batch. So a batch that is repeated, because Spark was killed before it
noted that the batch was done, is recognised in the list of commits, and not written again. Tasks find both in the
properties of Spark's job; the writer that commits runs in another process, and learns all it needs from their messages.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from spark_segmentlog.tracebacks import raises_without_frames
from spark_segmentlog.workers import SentToWorkers
from spark_segmentlog.writer import StagedRows, consumed, publish, staged
from storage_core.commit import CommitJob, JobSpec
from storage_core.commit.repeated import is_version_committed
from storage_core.commit_files.commits_file import read_commits_file
from storage_core.commit_files.stage_names import job_id_in_query
from storage_core.errors import OptionError
from storage_core.filesystem import FileSystem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from spark_segmentlog.write_plan import WritePlan

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):  # type: ignore[no-redef,misc]
        """Streaming writer of Arrow batches, as PySpark 4.0 takes it."""


_logger = logging.getLogger(__name__)
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class StagedMicroBatch(WriterCommitMessage):
    """Part of a micro-batch that a task has staged, with all that its commit needs.

    Attributes:
        job: The job, with the topics of this task's rows.
        is_repeated: Whether the batch was committed before the task began, so that it has staged nothing.
    """

    root: str
    job: JobSpec
    rows: StagedRows
    is_repeated: bool = False


class SegmentLogStreamWriter(SentToWorkers, DataSourceStreamArrowWriter):
    """Appends the rows of each micro-batch to a log directory, exactly once."""

    def __init__(self, plan: WritePlan, app_id: str | None = None, ignored: Sequence[str] = ()) -> None:
        super().__init__()
        self._plan = plan
        self._app_id = app_id
        self._ignored = tuple(ignored)

    @raises_without_frames
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMicroBatch:
        """Stage the rows of one partition of the micro-batch. Runs in tasks, once for every attempt."""
        plan = replace(self._plan, job=self._job(*_micro_batch()))
        if is_version_committed(read_commits_file(FileSystem(), plan.root, plan.job.txn_app_id), plan.job):
            rows = consumed(iterator, plan, with_checksum=True)
            return StagedMicroBatch(plan.root, plan.job, rows, is_repeated=True)
        rows = staged(iterator, plan, self._planned_on, with_checksum=True)
        return StagedMicroBatch(plan.root, plan.job_of(rows.topics), rows)

    @raises_without_frames
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish what the tasks have staged of a micro-batch, unless it is published already."""
        if self._ignored and batchId == 0:
            _logger.warning(
                "segmentlog writes files: ignored %s, which concern brokers, catalogs or reads.",
                ", ".join(self._ignored),
            )
        found = [each for each in messages if isinstance(each, StagedMicroBatch)]
        if not any(each.rows.rows.count or each.job.new_partitions or each.is_repeated for each in found):
            return
        job = _job(found)
        if job.spec.txn_version != batchId:
            raise OptionError(
                f"Expected the tasks of batch {batchId}, found those of batch {job.spec.txn_version}. Start the query "
                "again: it repeats the batch."
            )
        publish(job.root, job, [each.rows for each in found])
        job.remove_other_attempts()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Remove what the tasks have staged, unless the commit can be completed."""
        found = [each for each in messages if isinstance(each, StagedMicroBatch)]
        if found:
            _job(found).abort()

    def _job(self, query_id: str, batch_id: int) -> JobSpec:
        """Return the job of a micro-batch, without its topics."""
        job, app_id = self._plan.job, self._app_id
        return replace(
            job,
            job_id=job_id_in_query(query_id, job.job_id),
            txn_app_id=query_id if app_id is None else app_id,
            txn_version=batch_id,
            query_id=None if app_id is None else query_id,
            is_stream=True,
        )


def _micro_batch() -> tuple[str, int]:
    """Return the query, and the number of its batch."""
    context = TaskContext.get()
    query_id = None if context is None else context.getLocalProperty(_QUERY_ID)
    batch_id = None if context is None else context.getLocalProperty(_BATCH_ID)
    if query_id is None or batch_id is None:
        raise OptionError(
            f"Expected Spark to tell a task its query and its batch ({_QUERY_ID}, {_BATCH_ID}), found none. Write with "
            "foreachBatch, the batch writer, and txnAppId and txnVersion."
        )
    return query_id, int(batch_id)


def _job(messages: Sequence[StagedMicroBatch]) -> CommitJob:
    """Return the job that tasks have staged rows for, with the topics of all of them."""
    new_partitions = {topic: count for each in messages for topic, count in each.job.new_partitions.items()}
    spec = replace(messages[0].job, new_partitions=new_partitions)
    return CommitJob(FileSystem(), messages[0].root, spec)
