"""What planning hands to a task: plain data that travels to another process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from storage_core.scan.predicate import Predicate
    from storage_core.segment import AbortedTransaction

__all__ = ["CORRUPT_RECORD_COLUMN", "DamageMode", "LogSpan", "ReadSettings", "ScanTask"]

DamageMode = Literal["FAILFAST", "DROPMALFORMED", "PERMISSIVE"]
"""What damage does: it fails the read, is left out, or is left out and described in a row of its own."""

CORRUPT_RECORD_COLUMN = "_corrupt_record"
"""How the column for these rows is named unless an option says otherwise."""


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """What a task has to know of the options.

    Attributes:
        max_batch_bytes: The largest batch that is read, compressed or not.
        fail_on_data_loss: Whether offsets that are gone when the task runs are an error.
        use_indexes: Whether a range that has to be found again may use indexes.
        predicate: Only rows for which it is true are wanted; None for all.
        mode: What damage does.
        corrupt_record_column: Where a damaged range is described, if the schema has a column of that name.
        truncations_bytes: By log directory, the size of its list of truncations at planning: whether a partition's
            records are still those that were planned, what was added since tells.
    """

    max_batch_bytes: int
    fail_on_data_loss: bool = True
    use_indexes: bool = True
    predicate: Predicate | None = None
    mode: DamageMode = "FAILFAST"
    corrupt_record_column: str = CORRUPT_RECORD_COLUMN
    truncations_bytes: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class LogSpan:
    """A range of offsets in one segment.

    The offsets are the truth. Position and inode are hints: when the file is another one by
    the time that a task reads, the range is found again by its offsets.

    Attributes:
        topic: The topic.
        partition: The partition's number.
        directory: Path of the partition's directory.
        base_offset: The segment's base offset.
        file_name: The segment's log file.
        start_offset: First offset wanted.
        end_offset: First offset not wanted any more.
        position_bytes: Where the first batch begins that may hold one.
        end_position_bytes: Where the last such batch ends.
        inode: Inode of the log file at planning.
        file_size_bytes: Size of a closed segment's file at planning; None if it may have grown. It tells
            a file apart from its successor, which may have got its inode.
        aborted_transactions: Under read_committed, those with data in this range.
        segment_end_bytes: Where the segment ended at planning; None for the end of the span.
        segment_end_offset: No batch of the segment reaches this offset; None if that is not known.
        is_first: Whether the read of the partition begins here: then damage that begins in front of
            the first offset, and may reach it, is reported here and nowhere else.
    """

    topic: str
    partition: int
    directory: str
    base_offset: int
    file_name: str
    start_offset: int
    end_offset: int
    position_bytes: int
    end_position_bytes: int
    inode: int
    file_size_bytes: int | None = None
    aborted_transactions: tuple[AbortedTransaction, ...] = ()
    segment_end_bytes: int | None = None
    segment_end_offset: int | None = None
    is_first: bool = True

    @property
    def size_bytes(self) -> int:
        """How many bytes of the log file the span covers."""
        return self.end_position_bytes - self.position_bytes


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Spans that are read one after the other, by one task."""

    spans: tuple[LogSpan, ...]
    settings: ReadSettings

    @property
    def size_bytes(self) -> int:
        """How many bytes of log files the task covers."""
        return sum(span.size_bytes for span in self.spans)
