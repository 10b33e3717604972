"""Which offsets a partition's staged pieces get, and in which segments they go: the operations of the journal.

A large piece becomes a segment as it is. Runs of others are appended to what is the last segment at
that point, a large piece too, or make a new one where Kafka's rules say roll. So each segment has at
most one append.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from storage_core.checkpoint.commit_journal import AppendOperation, LinkOperation, PackRange
from storage_core.commit.partition_state import SegmentTail
from storage_core.segment.offset_index import ENTRY_SIZE_BYTES as OFFSET_ENTRY_BYTES
from storage_core.segment.offset_index_file import LARGEST_RELATIVE_OFFSET
from storage_core.segment.time_index import ENTRY_SIZE_BYTES as TIME_ENTRY_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from storage_core.log_config import LogConfig

__all__ = ["Placement", "Portion"]

_LINKED_SHARE: Final = 4
# Of what is larger, a copy takes longer than a few more segments are a burden.
_COPIED_AT_MOST_BYTES: Final = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Portion:
    """Batches of one partition, back to back in one staged file, that stay together.

    Attributes:
        file: The file's name without suffix.
        position_bytes: Where they begin.
        size_bytes: Their size.
        offset_count: How many offsets they take.
        first_timestamp_ms: The largest timestamp of the first of them.
        max_timestamp_ms: The largest timestamp of all.
        min_offset: The first one's base offset, if they keep their offsets.
        fingerprint: Of a staged segment.
        index_size_bytes: Of a staged segment's offset index; None if it is none, or too small to become one.
        time_index_size_bytes: Likewise.
    """

    file: str
    position_bytes: int
    size_bytes: int
    offset_count: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    min_offset: int | None = None
    fingerprint: int = 0
    index_size_bytes: int | None = None
    time_index_size_bytes: int = 0

    @property
    def end_offset(self) -> int:
        """The offset behind the last one, if they keep their offsets."""
        return (self.min_offset or 0) + self.offset_count


@dataclass(slots=True)
class Placement:
    """Places the portions of one partition, one after the other.

    Args:
        next_offset: The log end offset, which moves on.
        tail: The end of the last segment; None if there is none.
        config: Says when to roll.

    Attributes:
        operations: What is to be done.
        link_bases: Where each linked file goes, by its name.
    """

    next_offset: int
    tail: SegmentTail | None
    config: LogConfig
    operations: list[AppendOperation | LinkOperation] = field(default_factory=list)
    link_bases: dict[str, int] = field(default_factory=dict)
    _ranges: list[PackRange] = field(default_factory=list)
    _run_base_offset: int = 0
    _run_tail: SegmentTail | None = None

    @staticmethod
    def is_linked(size_bytes: int, config: LogConfig) -> bool:
        """Whether a staged segment of this size becomes one of the log; a smaller one is appended to another."""
        return size_bytes >= min(config.max_segment_bytes // _LINKED_SHARE, _COPIED_AT_MOST_BYTES)

    def begin_segment(self, base_offset: int) -> None:
        """Begin a segment in which nothing may be."""
        self.end_run()
        self.operations.append(AppendOperation((), base_offset, base_offset, 0, 0, 0))
        self.tail = SegmentTail(base_offset)
        self.next_offset = base_offset

    def place_all(self, portions: Iterable[Portion]) -> None:
        """Place portions in their order, which is that of their offsets."""
        for portion in portions:
            offset = self.next_offset if portion.min_offset is None else portion.min_offset
            if portion.index_size_bytes is not None:
                self._link(portion, offset)
            else:
                self._append(portion, offset)
            self.next_offset = offset + portion.offset_count
        self.end_run()

    def end_run(self) -> None:
        """What comes next does not go where the portions before it went."""
        if self._ranges and self._run_tail is not None:
            tail = self._run_tail
            self.operations.append(
                AppendOperation(
                    tuple(self._ranges),
                    self._run_base_offset,
                    tail.base_offset,
                    tail.size_bytes,
                    tail.index_size_bytes,
                    tail.time_index_size_bytes,
                )
            )
        self._ranges.clear()
        self._run_tail = None

    def _link(self, portion: Portion, offset: int) -> None:
        self.end_run()
        self.operations.append(LinkOperation(portion.file, offset, portion.size_bytes, portion.fingerprint))
        self.link_bases[portion.file] = offset
        self.tail = SegmentTail(
            offset,
            portion.size_bytes,
            portion.index_size_bytes or 0,
            portion.time_index_size_bytes,
            portion.first_timestamp_ms,
        )

    def _append(self, portion: Portion, offset: int) -> None:
        tail = self.tail
        if tail is None or self._must_roll(tail, portion, offset):
            self.end_run()
            tail = SegmentTail(offset)
        if self._run_tail is None:
            self._run_tail, self._run_base_offset = tail, offset
        self._ranges.append(PackRange(portion.file, portion.position_bytes, portion.size_bytes))
        self.tail = dataclasses.replace(
            tail,
            size_bytes=tail.size_bytes + portion.size_bytes,
            first_timestamp_ms=(
                portion.first_timestamp_ms if tail.first_timestamp_ms is None else tail.first_timestamp_ms
            ),
        )

    def _must_roll(self, tail: SegmentTail, portion: Portion, offset: int) -> bool:
        """Kafka's ``LogSegment.shouldRoll``. An empty segment takes what it can hold."""
        if not tail.is_open:
            return True
        config = self.config
        last_relative_offset = offset + portion.offset_count - 1 - tail.base_offset
        if last_relative_offset > LARGEST_RELATIVE_OFFSET:
            return True
        if tail.size_bytes == 0:
            return False
        first_ms = tail.first_timestamp_ms
        return (
            tail.size_bytes > config.max_segment_bytes - portion.size_bytes
            or (
                first_ms is not None
                and first_ms >= 0
                and portion.max_timestamp_ms - first_ms > config.max_segment_ms
            )
            or tail.index_size_bytes // OFFSET_ENTRY_BYTES >= config.segment_index_bytes // OFFSET_ENTRY_BYTES
            or tail.time_index_size_bytes // TIME_ENTRY_BYTES
            >= config.segment_index_bytes // TIME_ENTRY_BYTES - 1
        )
