"""The writer of a batch: tasks route their rows to partitions and stage them, one commit publishes all of them.

Spark pickles the writer into every task, and once more for the commit, so its plan holds all that it needs.
A task may run several times, even concurrently; only the attempts whose messages reach the commit count.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import sys
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from spark_segmentlog.tracebacks import raises_without_frames
from spark_segmentlog.workers import (
    SentToWorkers,
    address_space_bytes,
    explained_memory_limit,
    require_directories,
    require_shared_storage,
)
from spark_segmentlog.write_columns import CASE_SENSITIVE
from storage_core.commit import CommitJob, StagedManifest, StageWriter
from storage_core.commit.repeated import RowsDigest, rows_digest
from storage_core.commit.routing import RoutedRows
from storage_core.commit.staging import DEFAULT_MEMORY_LIMIT_BYTES
from storage_core.commit_files.stage_names import StageId
from storage_core.directory import check_topic_partition
from storage_core.errors import CorruptCheckpointError, InvalidRecordError, InvalidTimestampError
from storage_core.filesystem import FileSystem
from storage_core.log.log_validator import validate_records
from storage_core.partitioning import (
    DefaultPartitioner,
    KeyedRows,
    Partitioner,
    PartitionerState,
    RandomPartitioner,
    RoundRobinPartitioner,
    partition_rows,
)
from storage_core.record.encode import BatchEncoding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from spark_segmentlog.write_plan import TopicPlan, WritePlan
    from storage_core.commit.job import CommitOutcome


# The size of a record besides key and value: lengths, attributes, small deltas.
_RECORD_OVERHEAD_BYTES: Final = 8
_PARTITIONS_SHOWN: Final = 10


@dataclass(frozen=True, slots=True, eq=False)
class _Topics:
    """The topics of some rows."""

    names: tuple[str, ...]
    plans: tuple[TopicPlan, ...]
    indexes: npt.NDArray[np.integer[Any]] | None


class RowRouter:
    """Finds topic and partition of each row. Each task has one, because keyless rows depend on the rows before them.

    Args:
        plan: The write.
        seed: The task's number, so that concurrent tasks begin with different partitions.
    """

    def __init__(self, plan: WritePlan, seed: int) -> None:
        self._plan = plan
        self._columns = plan.columns
        self._partitioner = _partitioner(plan, seed)
        self._state = PartitionerState()
        self._topic_plans: dict[str, TopicPlan] = {}

    def route(self, batch: pa.RecordBatch) -> RoutedRows:
        """Route the rows of a batch.

        Raises:
            InvalidRecordError: A row has no topic, or a partition that its topic does not have, or no key although
                the topic is compacted.
            InvalidTimestampError: A timestamp is beyond a limit that was given.
            OptionError: Kafka does not allow a topic's name.
        """
        self._check_offsets(batch)
        self._check_keys(batch)
        topics = self._topics(batch)
        keyed = self._keyed(batch, topics)
        partitions = partition_rows(self._partitioner, keyed, self._state)
        _check_present(topics, partitions)
        named = self._columns.of_records
        records = pa.RecordBatch.from_arrays(
            [batch.column(place) for _, place in named], [name for name, _ in named]
        )
        rows = RoutedRows(records, topics.names, topics.indexes, partitions)
        self._check_timestamps(rows)
        return rows

    def _keyed(self, batch: pa.RecordBatch, topics: _Topics) -> KeyedRows:
        partitions = self._column(batch, self._columns.partition)
        try:
            return KeyedRows(
                topics.names,
                tuple(plan.partition_count for plan in topics.plans),
                self._sizes_bytes(batch),
                self._column(batch, self._columns.key),
                topics.indexes,
                partitions,
            )
        except InvalidRecordError as error:
            count = self._plan.options.partitions
            if partitions is None or not _is_beyond_new_topic(topics, partitions, count):
                raise
            raise InvalidRecordError(
                f"{error} A new topic gets as many partitions as the option partitions says, which is {count}: set it "
                "to more than the highest number in the column."
            ) from None

    def _topics(self, batch: pa.RecordBatch) -> _Topics:
        if self._plan.options.topic is not None:
            topic = self._plan.options.topic
            return _Topics((topic,), (self._topic_plan(topic),), None)
        column = self._column(batch, self._columns.topic)
        if column.null_count:
            raise InvalidRecordError(
                "null topic present in the data. Use the topic option for setting a default topic."
            )
        encoded = column.dictionary_encode()
        names = _texts_of(encoded.dictionary)
        indexes = None if len(names) == 1 else encoded.indices.to_numpy(zero_copy_only=False)
        return _Topics(names, tuple(map(self._topic_plan, names)), indexes)

    def _topic_plan(self, topic: str) -> TopicPlan:
        plan = self._topic_plans.get(topic)
        if plan is None:
            check_topic_partition(topic, 0)
            plan = self._topic_plans[topic] = self._plan.topic_plan(topic)
        return plan

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of the rows routed so far."""
        return tuple(sorted(self._topic_plans))

    def _sizes_bytes(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Return the size of each row in a batch; exact only if rows without a key need it to fill batches."""
        count = batch.num_rows
        sizes_bytes = np.full(count, _RECORD_OVERHEAD_BYTES, np.int64)
        key = self._column(batch, self._columns.key)
        if isinstance(self._partitioner, DefaultPartitioner) and (key is None or key.null_count):
            lengths = pc.binary_length(batch.column(self._columns.value))
            sizes_bytes += lengths.fill_null(0).to_numpy(zero_copy_only=False)
        return sizes_bytes

    def _check_offsets(self, batch: pa.RecordBatch) -> None:
        if not self._plan.job.preserve_offsets:
            return
        for name, place in (("offset", self._columns.offset), ("partition", self._columns.partition)):
            column = self._column(batch, place)
            if column is not None and column.null_count:
                raise InvalidRecordError(
                    f"null {name} present in the data. With preserveOffsets, each row must have its offset and its "
                    "partition: filter such rows out, or leave preserveOffsets out."
                )

    def _check_keys(self, batch: pa.RecordBatch) -> None:
        if not self._plan.options.config.is_compacted:
            return
        key = self._column(batch, self._columns.key)
        if key is None or key.null_count:
            raise InvalidRecordError(
                "Compacted topic cannot accept message without key. Compaction keeps the last record of each key: "
                "give each row one, or leave compact out of cleanup.policy."
            )

    def _check_timestamps(self, rows: RoutedRows) -> None:
        limits = self._plan.options.timestamp_limits
        if limits is None:
            return
        try:
            validate_records(rows.records, limits, int(time.time() * 1000))
        except InvalidTimestampError as error:
            row, message, _ = error.record_errors[0]
            topic = rows.topics[0 if rows.topic_indexes is None else int(rows.topic_indexes[row])]
            raise InvalidTimestampError(
                f"Invalid timestamp in a row for {topic}-{int(rows.partitions[row])}: {message} Correct it, or leave the "
                "limit out.",
                record_errors=error.record_errors,
                record_error_count=error.record_error_count,
            ) from None

    @staticmethod
    def _column(batch: pa.RecordBatch, place: int | None) -> Any:
        return None if place is None else batch.column(place)


def _texts_of(names: pa.Array) -> tuple[str, ...]:
    """Return the names of topics, which Spark does not check: a string may hold any bytes."""
    try:
        return tuple(names.to_pylist())
    except UnicodeDecodeError as error:
        raise InvalidRecordError(
            f"Expected the name of a topic in the column topic, found bytes that are no UTF-8 text: {error.object!r}. Correct the "
            "column, or name the topic with the option topic."
        ) from None


def _partitioner(plan: WritePlan, seed: int) -> Partitioner:
    match plan.options.partitioner:
        case "roundRobin":
            return RoundRobinPartitioner(seed)
        case "random":
            return RandomPartitioner(seed)
        case "default":
            return DefaultPartitioner(plan.options.config.batch_size, seed)


def _check_present(topics: _Topics, partitions: npt.NDArray[np.int32]) -> None:
    """Refuse rows for partitions that may be on another disk."""
    for place, (name, plan) in enumerate(zip(topics.names, topics.plans, strict=True)):
        if plan.present is None:
            continue
        of_topic = partitions if topics.indexes is None else partitions[topics.indexes == place]
        absent = set(np.unique(of_topic).tolist()) - plan.present
        if absent:
            here = ", ".join(map(str, sorted(plan.present)[:_PARTITIONS_SHOWN]))
            more = len(plan.present) - _PARTITIONS_SHOWN
            raise InvalidRecordError(
                f"Partition {min(absent)} of topic {name} is not in this log directory, which holds its partitions "
                f"{here}{f' and {more} more' if more > 0 else ''}. Write it where its directory is, or give rows one "
                "of these in the column partition."
            )


def _is_beyond_new_topic(topics: _Topics, partitions: pa.Array, count: int) -> bool:
    """Return True if a row names a partition of a new topic that a larger ``count`` would give it."""
    numbers = partitions.fill_null(0).to_numpy(zero_copy_only=False)
    is_limited = np.array([plan.is_new and plan.partition_count == count for plan in topics.plans])
    indexes = np.zeros(len(numbers), np.intp) if topics.indexes is None else topics.indexes
    of_limited = numbers[is_limited[indexes]]
    return bool(numbers.min(initial=0) >= 0 and of_limited.max(initial=0) >= count)


_logger = logging.getLogger(__name__)
# A machine may run many tasks at a time.
_MOST_OPEN_FILES: Final = 64
# Of the addresses that Spark allows a task, for rows that wait to be written.
_SHARE_OF_ADDRESSES: Final = 8


@dataclass(frozen=True, slots=True)
class StagedRows(WriterCommitMessage):
    """The rows that a task has staged.

    Attributes:
        manifest: The file that lists them; None if there were no rows.
        host: Where the task ran.
        rows: What identifies them; of a batch job, only their number.
    """

    manifest: StagedManifest | None = None
    topics: tuple[str, ...] = ()
    host: str = ""
    rows: RowsDigest = field(default_factory=RowsDigest)


def consumed(iterator: Iterator[pa.RecordBatch], plan: WritePlan, *, with_checksum: bool) -> StagedRows:
    """Pass over the rows of a job that is committed already: Spark waits until they are consumed."""
    router = RowRouter(plan, 0)
    rows = RowsDigest(0, 0 if with_checksum else None)
    for batch in iterator:
        rows += rows_digest(router.route(batch)) if with_checksum else RowsDigest(batch.num_rows, None)
    return StagedRows(rows=rows)


@explained_memory_limit()
def staged(
    iterator: Iterator[pa.RecordBatch], plan: WritePlan, planned_on: str, *, with_checksum: bool = False
) -> StagedRows:
    """Stage the rows of one partition of a DataFrame, in a task of a job that was planned on a host."""
    require_directories(FileSystem(), {plan.root}, planned_on, may_be_empty=True)
    context = TaskContext.get()
    if context is not None:
        # Only tasks see the session's configuration.
        plan.columns.check_case(context.getLocalProperty(CASE_SENSITIVE))
    task, attempt = (0, 0) if context is None else (context.partitionId(), context.taskAttemptId())
    batches = (batch for batch in iterator if batch.num_rows)
    first = next(batches, None)
    if first is None:
        return StagedRows(rows=RowsDigest(0, 0 if with_checksum else None))
    config = plan.options.config
    router = RowRouter(plan, task)
    rows = RowsDigest(0, 0 if with_checksum else None)
    # Rows are encoded and written in another thread while this one waits for Spark.
    with StageWriter(
        FileSystem(max_open_files=_MOST_OPEN_FILES),
        plan.root,
        StageId(plan.job.job_id, task, attempt),
        BatchEncoding(
            config.compression_codec,
            config.compression_level,
            config.batch_size,
            plan.options.max_decompressed_batch_bytes,
        ),
        config,
        default_timestamp_ms=plan.time_ms,
        memory_limit_bytes=min(
            DEFAULT_MEMORY_LIMIT_BYTES, (address_space_bytes() or sys.maxsize) // _SHARE_OF_ADDRESSES
        ),
        flush=plan.job.flush,
    ) as stage:
        for batch in itertools.chain([first], batches):
            routed = router.route(batch)
            stage.append(routed)
            rows += rows_digest(routed) if with_checksum else RowsDigest(batch.num_rows, None)
        return StagedRows(stage.finish(), router.topics, socket.gethostname(), rows)


def publish(root: str, job: CommitJob, rows: Sequence[StagedRows]) -> CommitOutcome:
    """Commit what tasks have staged, perhaps on other hosts."""
    manifests = {each.manifest: each.host for each in rows if each.manifest is not None}
    try:
        return job.commit(list(manifests), sum((each.rows for each in rows), RowsDigest()))
    except CorruptCheckpointError:
        hosts = {os.path.join(root, manifest.name): host for manifest, host in manifests.items()}
        require_shared_storage(FileSystem(), hosts)
        raise


class SegmentLogWriter(SentToWorkers, DataSourceArrowWriter):
    """Writes the rows of a `save()` into a log directory: all of them exactly once, or none."""

    def __init__(self, plan: WritePlan) -> None:
        super().__init__()
        self._plan = plan

    @raises_without_frames
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        """Stage the rows of one partition of the DataFrame. Runs in tasks, once for every attempt."""
        if self._plan.is_committed:
            return consumed(iterator, self._plan, with_checksum=False)
        return staged(iterator, self._plan, self._planned_on)

    @raises_without_frames
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the rows that the tasks have staged. Runs once, on the driver, after all tasks."""
        rows = [message for message in messages if isinstance(message, StagedRows)]
        job = self._job(rows, with_offsets=True)
        has_rows = any(each.manifest is not None for each in rows)
        has_topics = has_rows or self._plan.options.topic is not None or job.spec.restored_offsets
        if not has_topics and not self._plan.is_committed:
            self._log_no_topics()
        publish(self._plan.root, job, rows)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the files that the tasks have staged. Runs on the driver after a task or the commit failed.

        Tasks may still be running: later writes delete the files that they leave. A commit that can be
        completed is not undone.
        """
        if not self._plan.is_committed:
            job = self._job([message for message in messages if isinstance(message, StagedRows)])
            job.abort()
            if self._plan.is_new_root:
                job.empty_new_root()

    def _job(self, rows: list[StagedRows], *, with_offsets: bool = False) -> CommitJob:
        filesystem, plan = FileSystem(), self._plan
        topics = {topic for each in rows for topic in each.topics}
        spec = plan.job_of(topics)
        if with_offsets:
            spec = replace(spec, restored_offsets=plan.restored_offsets(filesystem, topics))
        return CommitJob(filesystem, plan.root, spec)

    def _log_no_topics(self) -> None:
        """Warn of a job without rows that its user expects to empty a topic, or to create one."""
        if self._plan.job.mode == "overwrite":
            _logger.warning(
                "Overwriting %s with an empty DataFrame changed nothing, because the topics come from a column. To "
                "empty a topic, name it with the option topic.",
                self._plan.root,
            )
        elif self._plan.is_new_root:
            _logger.warning(
                "Writing an empty DataFrame to %s created no topic, because the topics come from a column. To create "
                "one, name it with the option topic.",
                self._plan.root,
            )
