"""A piece that is still being written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from crc32c import crc32c

from storage_core.commit.manifest import StagedPiece

if TYPE_CHECKING:
    from storage_core.record.batch_header import BytesLike

__all__ = ["OpenPiece", "RunFigures"]


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What a piece has to know of batches that are added to it.

    Attributes:
        size_bytes: Their size.
        batch_count: How many there are.
        record_count: How many records they hold.
        offset_count: How many offsets they take.
        first_timestamp_ms: The largest timestamp of the first of them.
        max_timestamp_ms: The largest timestamp of all.
        first_offset: The first one's base offset, if they keep their offsets.
        last_offset: The last one's last offset, likewise.
        fingerprinted: What the fingerprint is computed of.
    """

    size_bytes: int
    batch_count: int
    record_count: int
    offset_count: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    first_offset: int | None
    last_offset: int | None
    fingerprinted: BytesLike


@dataclass(slots=True)
class OpenPiece:
    """Batches of one partition, back to back in one staged file, to which more are added."""

    topic: str
    partition: int
    file: str
    position_bytes: int
    size_bytes: int = 0
    batch_count: int = 0
    record_count: int = 0
    offset_count: int = 0
    first_timestamp_ms: int = 0
    max_timestamp_ms: int = 0
    fingerprint: int = 0
    min_offset: int | None = None
    max_offset: int | None = None

    def add(self, run: RunFigures) -> None:
        """Count batches that were put behind the last."""
        if self.batch_count:
            self.max_timestamp_ms = max(self.max_timestamp_ms, run.max_timestamp_ms)
        else:
            self.first_timestamp_ms, self.max_timestamp_ms = run.first_timestamp_ms, run.max_timestamp_ms
            self.min_offset = run.first_offset
        self.max_offset = run.last_offset
        self.size_bytes += run.size_bytes
        self.batch_count += run.batch_count
        self.record_count += run.record_count
        self.offset_count += run.offset_count
        self.fingerprint = int(crc32c(run.fingerprinted, self.fingerprint))

    def staged(self) -> StagedPiece:
        """What the manifest says of it."""
        return StagedPiece(
            topic=self.topic,
            partition=self.partition,
            file=self.file,
            position_bytes=self.position_bytes,
            size_bytes=self.size_bytes,
            batch_count=self.batch_count,
            record_count=self.record_count,
            first_timestamp_ms=self.first_timestamp_ms,
            max_timestamp_ms=self.max_timestamp_ms,
            fingerprint=self.fingerprint,
            min_offset=self.min_offset,
            max_offset=self.max_offset,
        )
