"""What is damaged in a log file, and which offsets may be lost with it."""

from __future__ import annotations

from dataclasses import dataclass

from storage_core.errors import CorruptRecordError, SegmentLogError

__all__ = ["DamagedRange"]


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """The bytes between two batches that count, or between one and the end of the file.

    Attributes:
        path: The log file.
        start_bytes: Position of the first byte: where a batch was expected.
        end_bytes: Position behind the last one: where the next batch that counts begins.
        start_offset: First offset that may be lost.
        end_offset: The offset behind the last one that may be lost. Where nothing is lost, as with bytes
            that stand between two batches, it equals ``start_offset``.
        reason: What was expected at the first byte, and what was found.
        kind: The class of the error that says so.
        may_hold_markers: Whether a transaction's marker may be among what is lost.
    """

    path: str
    start_bytes: int
    end_bytes: int
    start_offset: int
    end_offset: int
    reason: str
    kind: type[SegmentLogError] = CorruptRecordError
    may_hold_markers: bool = True

    def error(self) -> SegmentLogError:
        """The error for whoever does not read on behind damage."""
        is_empty = self.start_offset == self.end_offset
        return self.kind(
            self.reason,
            path=self.path,
            position_bytes=self.start_bytes,
            end_position_bytes=self.end_bytes,
            offset=self.start_offset,
            last_offset=None if is_empty else self.end_offset - 1,
        )
