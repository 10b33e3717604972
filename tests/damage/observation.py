"""A damaged directory, the options of a read, and its result: the input of a judgement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from tests.damage.base_log import BaseLog, TopicPartition
from tests.damage.mutations import Mutation, kind_of_file
from tests.damage.reference import PartitionTruth, partition_truths

if TYPE_CHECKING:
    from tests.damage.entries import Row
    from tests.damage.reads import Outcome, OutRow, Read

LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
_HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"


@dataclass
class Verdict:
    """The problems of a read.

    Attributes:
        problems: In words.
        has_inner_rows: Whether a batch inside a record's value was returned as a batch of the log.
    """

    problems: list[str] = field(default_factory=list)
    has_inner_rows: bool = False

    def problem(self, text: str) -> None:
        self.problems.append(text)


@dataclass
class Observation:
    """One case, for one of the log's roots.

    Attributes:
        log: The directory before the damage.
        root: The root.
        mutations: The damage.
        files: The damaged directory.
        read: The options of the read.
        outcome: The result of the read.
    """

    log: BaseLog
    root: str
    mutations: list[Mutation]
    files: Mapping[str, bytes]
    read: Read
    outcome: Outcome

    @cached_property
    def changed_paths(self) -> list[str]:
        """The files that the damage changed."""
        paths = {path for mutation in self.mutations for path in mutation.paths}
        return sorted(path for path in paths if self.log.files.get(path) != self.files.get(path))

    @cached_property
    def touched(self) -> set[str]:
        """The kinds of these files."""
        return {kind_of_file(path) for path in self.changed_paths}

    @cached_property
    def touched_names(self) -> set[str]:
        """The names of these files."""
        return {path.rpartition("/")[2] for path in self.changed_paths}

    @cached_property
    def truths(self) -> dict[TopicPartition, PartitionTruth]:
        """The true content of the log files."""
        is_forged = any(mutation.is_forged for mutation in self.mutations)
        return partition_truths(self.log, self.files, self.root, is_forged=is_forged)

    @cached_property
    def rows(self) -> dict[TopicPartition, list[OutRow]]:
        """The returned rows, by partition."""
        found: dict[TopicPartition, list[OutRow]] = {}
        for row in self.outcome.rows:
            found.setdefault(row.topic_partition, []).append(row)
        return found

    def bounds(self, key: TopicPartition) -> tuple[int, int] | None:
        """Return the offsets that the read asks for; None if they do not follow from the log alone."""
        if self.read.has_times or LOG_START_CHECKPOINT in self.touched_names:
            return None
        start, end = self._log_start(key), 2**63
        for bound_key, first, bound_end in self.read.offsets:
            if bound_key == key:
                start = start if first is None else max(start, first)
                end = end if bound_end is None else bound_end
        if self.read.ends_at_high_watermark:
            marks = self.log.high_watermarks(self.files, self.root)
            if _HIGH_WATERMARK_CHECKPOINT in self.touched_names or key not in marks:
                return None
            end = min(end, max(marks[key], self._log_start(key)))
        return start, end

    def first_known_offset(self, key: TopicPartition) -> int:
        """Return the lowest known offset: the original log started there."""
        if LOG_START_CHECKPOINT not in self.touched_names:
            return 0
        return self.log.log_start_offsets(self.log.files, self.root).get(key, 0)

    def holds(self, key: TopicPartition, offset: int, row: Row) -> bool:
        """Return whether a row satisfies the read's condition."""
        condition = self.read.condition
        return condition is None or condition.holds(*key, offset, row)

    def _log_start(self, key: TopicPartition) -> int:
        checkpointed = self.log.log_start_offsets(self.files, self.root).get(key, 0)
        segments = self.truths[key].segments
        return max(checkpointed, segments[0].base_offset if segments else 0)
