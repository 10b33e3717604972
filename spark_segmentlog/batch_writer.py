"""The writer of a batch: tasks stage their rows beside the partitions, one commit publishes all of them.

Spark pickles the writer into every task and once more for the commit, so all that it knows stands in its plan.
Tasks may run twice, at the same time too; what counts is what the messages name that reach the commit.
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from spark_segmentlog.row_routing import RowRouter
from storage_core.checkpoint.stage_names import StageId
from storage_core.commit import CommitJob, StageWriter
from storage_core.filesystem import FileSystem
from storage_core.record.encode import BatchEncoding

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from spark_segmentlog.write_plan import WritePlan
    from storage_core.commit import StagedManifest

__all__ = ["SegmentLogWriter", "StagedRows"]

_logger = logging.getLogger(__name__)

# A machine may run many tasks at a time.
_MOST_OPEN_FILES: Final = 64


@dataclass(frozen=True, slots=True)
class StagedRows(WriterCommitMessage):
    """What a task has staged.

    Attributes:
        manifest: The file that lists it; None: the task had no rows.
        topics: The topics of its rows.
    """

    manifest: StagedManifest | None = None
    topics: tuple[str, ...] = ()


class SegmentLogWriter(DataSourceArrowWriter):
    """Writes the rows of a `save()` into a log directory: all of them once, or none."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        """Stage the rows of one partition of the frame. Runs in tasks, and afresh for every attempt."""
        if self._plan.is_committed:
            for _ in iterator:
                # Spark's side waits until somebody has taken the rows.
                pass
            return StagedRows()
        context = TaskContext.get()
        task, attempt = (0, 0) if context is None else (context.partitionId(), context.taskAttemptId())
        return self._stage((batch for batch in iterator if batch.num_rows), task, attempt)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what the tasks have staged. Runs once, on the driver, when all tasks are done."""
        if self._plan.is_committed:
            self._log_committed_before()
            return
        staged = [message for message in messages if isinstance(message, StagedRows)]
        manifests = [each.manifest for each in staged if each.manifest is not None]
        outcome = self._job(staged).commit(manifests)
        if outcome.was_committed_before:
            self._log_committed_before()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what the tasks have staged. Runs on the driver when a task or the commit has failed.

        Tasks may still be running: what they leave behind is swept by later writes. A commit
        that got far enough to be completed is not undone.
        """
        if not self._plan.is_committed:
            self._job([message for message in messages if isinstance(message, StagedRows)]).abort()

    def _stage(self, batches: Iterator[pa.RecordBatch], task: int, attempt: int) -> StagedRows:
        first = next(batches, None)
        if first is None:
            return StagedRows()
        plan, config = self._plan, self._plan.options.config
        router = RowRouter(plan, task)
        # Encoding and writing go on in a thread of its own while Spark is asked for more.
        with StageWriter(
            FileSystem(max_open_files=_MOST_OPEN_FILES),
            plan.root,
            StageId(plan.job_id, task, attempt),
            BatchEncoding(
                config.compression_codec,
                config.compression_level,
                config.batch_size,
                plan.options.max_decompressed_batch_bytes,
            ),
            config,
            default_timestamp_ms=plan.time_ms,
            flush=plan.options.flush,
        ) as stage:
            for batch in itertools.chain([first], batches):
                stage.append(router.route(batch))
            return StagedRows(stage.finish(), router.topics)

    def _job(self, staged: list[StagedRows]) -> CommitJob:
        topics = {topic for each in staged for topic in each.topics}
        return CommitJob(FileSystem(), self._plan.root, self._plan.settings(topics))

    def _log_committed_before(self) -> None:
        options = self._plan.options
        _logger.info(
            "txnVersion %s of txnAppId %s is committed in %s already: nothing was written.",
            options.txn_version,
            options.txn_app_id,
            self._plan.root,
        )
