"""Offsets of the logs that a job's rows come from: the job restores where these logs start and end.

Rows do not tell all of it: records may have been deleted, aborted or compacted before the first row and after the last
one. Consumer groups keep their offsets only if the restored logs start and end where the old ones did.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Final

from storage_core.commit.manifest import StagedBatches
from storage_core.commit_files.stage_names import StageId
from storage_core.directory import INTERNAL_TOPICS, find_partitions
from storage_core.errors import CorruptError, OptionError
from storage_core.options import parse_read_options
from storage_core.record.batch_header import MAX_OFFSET_DELTA, NO_TIMESTAMP_MS
from storage_core.record.control_records import empty_batch
from storage_core.scan.plan import plan_scan
from storage_core.scan.read import read_schema, read_task
from storage_core.scan.resolve import resolve, split_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from storage_core.commit.job_spec import JobContext
    from storage_core.commit.partition_state import PartitionState
    from storage_core.filesystem import FileSystem
    from storage_core.record.batch_header import BytesLike


_log = logging.getLogger(__name__)
# Spark's tasks have numbers below 2^31.
_DRIVER_TASK: Final = 1 << 31
# Each of them becomes a segment of three files.
_MOST_BATCHES: Final = 16


@dataclass(frozen=True, slots=True)
class SourceLogs:
    """Logs that a job's rows come from.

    Attributes:
        paths: Their directories.
        bounds: Log start and log end offset of each partition.
    """

    paths: tuple[str, ...] = ()
    bounds: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)

    def bounds_to_restore(
        self, filesystem: FileSystem, written: Collection[str], may_create: Callable[[str], bool]
    ) -> dict[tuple[str, int], tuple[int, int]]:
        """Return the bounds of the topics that a job writes, and of those without records that a DataFrame could hold.

        The records of these are all deleted, aborted or of open transactions. Other topics are not created: the DataFrame
        may hold only some of the source's topics. Internal topics must be written. A log is read up to its first row, so
        topics with rows cost little.
        """
        restored = set(written)
        for topic, of_topic in groupby(sorted(self.bounds.items()), key=lambda item: item[0][0]):
            bounds = [each for _, each in of_topic]
            if topic in restored or topic in INTERNAL_TOPICS:
                continue
            if all(start == end for start, end in bounds):
                if any(end for _, end in bounds):
                    restored.add(topic)
            elif not self._has_committed_row(filesystem, topic):
                if may_create(topic):
                    restored.add(topic)
                else:
                    _log.warning(
                        "%s has no committed records, and the cluster has no topic of this name: its log start and log "
                        "end are not restored. Create the topic first.",
                        topic,
                    )
        return {partition: bounds for partition, bounds in self.bounds.items() if partition[0] in restored}

    def _has_committed_row(self, filesystem: FileSystem, topic: str) -> bool:
        options = parse_read_options(
            {
                "path": self.paths,
                "subscribe": [topic],
                "isolationLevel": "read_committed",
                "columns": ["offset"],
            }
        )
        try:
            tasks = plan_scan(filesystem, options).tasks
            schema = read_schema(options)
            return any(batch.num_rows for task in tasks for batch in read_task(filesystem, task, schema))
        except CorruptError:
            # What is damaged is restored by those who read it.
            return True


def read_source_logs(filesystem: FileSystem, text: str, topic: str | None = None) -> SourceLogs:
    """Read where the logs in some directories start and end, only those of a topic if it is given.

    Raises:
        OptionError: There is no such topic, or a log is damaged.
    """
    paths = tuple(split_paths(filesystem, [text]))
    topics = sorted({directory.topic for directory in find_partitions(filesystem, paths)})
    if topic is not None:
        if topic not in topics:
            raise OptionError(
                f"offsetsFrom is {text!r}, which has no topic {topic!r}. It has {', '.join(topics) or 'none'}."
            )
        topics = [topic]
    try:
        found = resolve(filesystem, parse_read_options({"path": paths, "subscribe": topics or None}))
    except CorruptError as error:
        # The end of a damaged log is not certain, so it must not be restored.
        raise OptionError(
            f"Expected offsetsFrom to name logs whose ends are certain, found damage: {error} Leave offsetsFrom out: "
            "each log then ends after its last row, and a new one starts at offset 0."
        ) from error
    return SourceLogs(
        paths,
        {
            each.log.directory.topic_partition: (each.start_offset, each.end_offset)
            for each in found.partitions
        },
    )


class GapFill:
    """Batches without records for the offsets between a log's last row and its restored end, in one pack file."""

    def __init__(self, job: JobContext) -> None:
        self._job = job
        self._stage = StageId(job.spec.job_id, _DRIVER_TASK, 0)
        self._pieces: list[BytesLike] = []
        self._size_bytes = 0

    def batches(self, state: PartitionState, start_offset: int, end_offset: int) -> list[StagedBatches]:
        """Cover the offsets from ``start_offset`` to before ``end_offset``, unless that takes too many batches."""
        if end_offset - start_offset > _MOST_BATCHES * (MAX_OFFSET_DELTA + 1):
            return []
        found = []
        while start_offset < end_offset:
            last_offset = min(end_offset - 1, start_offset + MAX_OFFSET_DELTA)
            batch = empty_batch(
                start_offset, last_offset, leader_epoch=state.leader_epoch, max_timestamp_ms=NO_TIMESTAMP_MS
            )
            self._pieces += batch.pieces
            found.append(
                StagedBatches(
                    state.topic,
                    state.partition,
                    self._stage.base_name,
                    self._size_bytes,
                    batch.size_bytes,
                    batch_count=1,
                    first_timestamp_ms=NO_TIMESTAMP_MS,
                    max_timestamp_ms=NO_TIMESTAMP_MS,
                    min_offset=start_offset,
                    max_offset=last_offset,
                )
            )
            self._size_bytes += batch.size_bytes
            start_offset = last_offset + 1
        return found

    def write(self) -> None:
        """Write the pack file, unless it would be empty."""
        if not self._pieces:
            return
        job = self._job
        with job.filesystem.open_for_writing(job.path(self._stage.pack_name), create=True) as pack:
            pack.truncate(0)
            pack.write_at(self._pieces, 0)
            if job.spec.flush:
                pack.flush()
        if job.spec.flush:
            job.filesystem.flush_directory(job.root)
