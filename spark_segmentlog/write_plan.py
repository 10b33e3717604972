"""Plan a write on the driver: everything that can be checked without rows is checked here."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from spark_segmentlog.write_columns import WriteColumns, write_columns
from storage_core.checkpoint import PARTITION_METADATA
from storage_core.commit.job import CommitJob
from storage_core.commit.restored_offsets import SourceLogs, read_source_logs
from storage_core.directory import parse_partition_directory_name
from storage_core.errors import LogDirectoryError, OptionError, SegmentLogError, UnreadableError
from storage_core.segment import base_offset_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql.types import StructType

    from spark_segmentlog.write_options import WriteOptions
    from storage_core.commit import JobSpec
    from storage_core.filesystem import FileSystem

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """The partitions of a topic.

    Attributes:
        partition_count: How many it has, those on other disks included.
        present: Those in this log directory, if a broker may have others on another disk; None if all are here.
        is_new: Whether it has no directory yet.
    """

    partition_count: int
    present: frozenset[int] | None = None
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class WritePlan:
    """One write: all that tasks and the commit need. Travels pickled to both.

    Attributes:
        job: The job, without what its rows decide.
        options: What the user asked for.
        columns: The indexes of the columns in the DataFrame.
        time_ms: When the job began: the timestamp of records that have none.
        is_committed: Whether this job's ``txnVersion`` was committed before, so that nothing is written.
        is_new_root: Whether the log directory did not exist before, or was empty.
        topics: Existing topics, and those whose offsets are restored.
        source: The logs whose offsets are restored.
    """

    root: str
    job: JobSpec
    options: WriteOptions
    columns: WriteColumns
    time_ms: int
    is_committed: bool = False
    is_new_root: bool = False
    topics: Mapping[str, TopicPlan] = field(default_factory=dict)
    source: SourceLogs = field(default_factory=SourceLogs)

    def topic_plan(self, topic: str) -> TopicPlan:
        """Return the partitions of a topic, which may be new."""
        return self.topics.get(topic) or TopicPlan(self.options.partitions, is_new=True)

    def job_of(self, topics: Iterable[str] = ()) -> JobSpec:
        """Return the job to commit, given the topics of the rows. The topic of the options is among them."""
        options = self.options
        written = set(topics)
        if options.topic is not None and not self.job.broker_directory:
            # Without rows, too, so that it can be read afterwards. A cluster creates its topics itself.
            written.add(options.topic)
        return replace(
            self.job,
            new_partitions={
                topic: plan.partition_count
                for topic in sorted(written)
                if (plan := self.topic_plan(topic)).is_new and options.makes_all_partitions
            },
        )

    def restored_offsets(
        self, filesystem: FileSystem, topics: Iterable[str]
    ) -> dict[tuple[str, int], tuple[int, int]]:
        """Return the log start and log end offsets to restore, given the topics of the rows."""
        named = self.options.topic
        written = {*topics} if named is None else {*topics, named}

        def may_create(topic: str) -> bool:
            is_known = not self.topic_plan(topic).is_new or topic in self.job.topic_ids
            return is_known or not self.job.broker_directory

        return self.source.bounds_to_restore(filesystem, written, may_create)


def plan_write(
    filesystem: FileSystem, schema: StructType, options: WriteOptions, *, is_overwrite: bool
) -> WritePlan:
    """Check everything that can be checked without rows; create the log directory if it does not exist.

    Raises:
        SegmentLogError: The DataFrame, the options or the log directory do not allow this write.
    """
    columns = write_columns(schema, options)
    spec = options.job
    if is_overwrite:
        targeted = () if options.topic is None else (options.topic,)
        spec = replace(spec, mode="overwrite", targeted_topics=targeted)
    root = _root(filesystem, options.path)
    source = SourceLogs()
    if options.offsets_from is not None:
        source = read_source_logs(filesystem, options.offsets_from, options.topic)
    plan = WritePlan(root, spec, options, columns, int(time.time() * 1000))
    job = CommitJob(filesystem, root, plan.job_of())
    is_new_root = job.is_root_empty()
    try:
        is_committed = not job.begin()
    except SegmentLogError:
        if is_new_root:
            job.empty_new_root()
        raise
    return replace(
        plan,
        is_new_root=is_new_root,
        is_committed=is_committed,
        topics=_topics({each.topic_partition for each in job.partitions}, source, options),
        source=source,
    )


def _root(filesystem: FileSystem, path: str) -> str:
    """Return the log directory; tasks may run with another working directory."""
    if "," in path and not filesystem.exists(path):
        raise OptionError(
            f"path {path!r} names several directories, or one that does not exist. A write goes to one log directory; "
            "if its name has a comma, create it first."
        )
    root = os.path.abspath(path)
    above = root
    while above != os.path.dirname(above):
        if parse_partition_directory_name(os.path.basename(above)) is not None and _holds_log(
            filesystem, above
        ):
            raise LogDirectoryError(
                f"Expected a log directory, found a path in a partition of one. Write to {os.path.dirname(above)} "
                "with the option topic, or to a directory elsewhere.",
                path=root,
            )
        above = os.path.dirname(above)
    return root


def _holds_log(filesystem: FileSystem, path: str) -> bool:
    status = filesystem.status(path, follow_symlinks=True)
    if status is None or not status.is_directory:
        return False
    try:
        entries = filesystem.list_directory(path)
    except UnreadableError:
        # A user may be allowed to traverse a directory, but not to list it.
        return False
    return any(
        entry.name == PARTITION_METADATA or base_offset_of(entry.name) is not None for entry in entries
    )


def _topics(
    present: Iterable[tuple[str, int]], source: SourceLogs, options: WriteOptions
) -> dict[str, TopicPlan]:
    # Other partitions of a cluster's topic may be on other brokers' disks.
    least_count = options.partitions if options.job.broker_directory else 0
    plans = {topic: _topic_plan(numbers, least_count) for topic, numbers in _by_topic(present).items()}
    for topic, numbers in _by_topic(source.bounds).items():
        if topic not in plans:
            known = _topic_plan(numbers, is_new=True)
            is_larger = options.partitions >= known.partition_count
            plans[topic] = TopicPlan(options.partitions, is_new=True) if is_larger else known
    return plans


def _topic_plan(numbers: set[int], least_count: int = 0, *, is_new: bool = False) -> TopicPlan:
    count = max(max(numbers) + 1, least_count)
    return TopicPlan(count, None if count == len(numbers) else frozenset(numbers), is_new)


def _by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for topic, partition in partitions:
        found.setdefault(topic, set()).add(partition)
    return found
