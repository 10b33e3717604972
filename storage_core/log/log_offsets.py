"""The offsets that bound a log, and the rules by which they move (Kafka's ``UnifiedLog``).

    log start offset  ≤  last stable offset  ≤  high watermark  ≤  log end offset

The log end moves on load, append and truncation; the log start on load, truncation, deletion of
segments and of records. The high watermark stays between the two, the recovery point at or below
the log end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from storage_core.errors import OffsetOutOfRangeError

__all__ = ["LogOffsets"]


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """The offsets of a log at one moment.

    Attributes:
        log_start_offset: The first offset that counts; what lies below is deleted.
        log_end_offset: The offset behind the last record: the next append gets it.
        high_watermark: The offset behind the last record that every replica has.
        recovery_point: The first offset that is not known to be on disk.
        first_unstable_offset: Where the oldest transaction begins that is not decided yet, as far as every
            replica knows; None without any.
    """

    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    recovery_point: int
    first_unstable_offset: int | None = None

    @property
    def last_stable_offset(self) -> int:
        """Up to here, every transaction is decided: a ``read_committed`` consumer gets no further."""
        unstable = self.first_unstable_offset
        if unstable is None or unstable >= self.high_watermark:
            return self.high_watermark
        # A transaction may have begun in records that are deleted by now.
        return max(unstable, self.log_start_offset)

    def appended(self, log_end_offset: int, *, is_only_replica: bool) -> LogOffsets:
        """After an append. What the only replica of a log has, every replica has."""
        return LogOffsets(
            self.log_start_offset,
            log_end_offset,
            log_end_offset if is_only_replica else self.high_watermark,
            self.recovery_point,
            self.first_unstable_offset,
        )

    def flushed(self, up_to_offset: int) -> LogOffsets:
        """After everything below an offset was forced to disk."""
        return replace(self, recovery_point=max(self.recovery_point, up_to_offset))

    def with_high_watermark(self, high_watermark: int) -> LogOffsets:
        """With another high watermark, as near to it as the bounds of the log allow."""
        clamped = max(self.log_start_offset, min(high_watermark, self.log_end_offset))
        return replace(self, high_watermark=clamped)

    def with_log_start(self, log_start_offset: int) -> LogOffsets:
        """With a higher log start; a lower one changes nothing.

        Raises:
            OffsetOutOfRangeError: It is above the high watermark.
        """
        if log_start_offset > self.high_watermark:
            raise OffsetOutOfRangeError(
                f"Expected a new log start offset of at most {self.high_watermark}, the high watermark, found "
                f"{log_start_offset}. What not every replica has cannot be deleted.",
                offset=log_start_offset,
            )
        if log_start_offset <= self.log_start_offset:
            return self
        return replace(
            self,
            log_start_offset=log_start_offset,
            recovery_point=max(self.recovery_point, log_start_offset),
        )

    def truncated(self, log_end_offset: int) -> LogOffsets:
        """After a truncation to an offset, which is at or below the log end."""
        return replace(
            self,
            log_start_offset=min(self.log_start_offset, log_end_offset),
            log_end_offset=log_end_offset,
            high_watermark=min(self.high_watermark, log_end_offset),
            recovery_point=min(self.recovery_point, log_end_offset),
        )

    def restarted(self, offset: int) -> LogOffsets:
        """After everything was removed, with a log that begins and ends at an offset."""
        return LogOffsets(offset, offset, offset, offset)
