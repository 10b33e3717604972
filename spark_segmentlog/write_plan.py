"""What the driver finds out about a write: all that tasks and the commit have to know. Travels pickled to both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from storage_core.commit.settings import JobSettings
from storage_core.directory import INTERNAL_TOPICS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark_segmentlog.write_options import WriteOptions
    from spark_segmentlog.write_schema import WriteColumns

__all__ = ["TopicPlan", "WritePlan"]


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """The partitions of a topic.

    Attributes:
        partition_count: How many it has, counting those that are not here.
        present: Those that are here, if some are not: they may stand on another disk of a broker's. None: all.
        is_new: Whether it has no directory yet.
    """

    partition_count: int
    present: frozenset[int] | None = None
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class WritePlan:
    """One write.

    Attributes:
        root: The log directory.
        job_id: Names the job, and the files that its tasks stage.
        options: What the user asked for.
        columns: Where the columns stand in the frame.
        time_ms: When the job began: the timestamp of records that have none.
        is_overwrite: Whether the rows take the place of those that are there.
        is_committed: Whether this job's ``txnVersion`` was committed before: then nothing is to be done.
        topics: Topics that are there, or in the directory whose offsets are restored.
        restored_offsets: Log start and log end of the partitions in that directory.
    """

    root: str
    job_id: str
    options: WriteOptions
    columns: WriteColumns
    time_ms: int
    is_overwrite: bool = False
    is_committed: bool = False
    topics: Mapping[str, TopicPlan] = field(default_factory=dict)
    restored_offsets: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)

    def topic_plan(self, topic: str) -> TopicPlan:
        """The partitions of a topic, which may be a new one."""
        return self.topics.get(topic) or TopicPlan(self.options.partition_count, is_new=True)

    def settings(self, topics: Iterable[str] = ()) -> JobSettings:
        """What the commit has to know, when rows went to these topics."""
        options = self.options
        written = set(topics)
        makes_all_partitions = options.offsets_from is None or options.partitions is not None
        return JobSettings(
            job_id=self.job_id,
            mode="overwrite" if self.is_overwrite else "append",
            config=options.config,
            new_partitions={
                topic: plan.partition_count
                for topic in sorted(written)
                if (plan := self.topic_plan(topic)).is_new and makes_all_partitions
            },
            targeted_topics=() if options.topic is None or not self.is_overwrite else (options.topic,),
            txn_app_id=options.txn_app_id,
            txn_version=options.txn_version,
            topic_ids=options.topic_ids,
            broker_directory=options.broker_directory,
            preserve_offsets=options.preserve_offsets,
            restored_offsets=self._restored_offsets(written),
            flush=options.flush,
        )

    def _restored_offsets(self, written: set[str]) -> dict[tuple[str, int], tuple[int, int]]:
        """Of topics with rows, of the one that the options name, and of those whose records are all gone.

        Other topics are not made: the frame may well hold some of the source's only. Internal ones have to be read,
        or named, as everywhere.
        """
        bounds = self.restored_offsets
        with_records = {topic for (topic, _), (start, end) in bounds.items() if start < end}
        gone = {topic for (topic, _), (_, end) in bounds.items() if end} - with_records - INTERNAL_TOPICS
        restored = written | gone | {self.options.topic}
        return {partition: offsets for partition, offsets in bounds.items() if partition[0] in restored}
