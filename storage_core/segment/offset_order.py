"""Which offsets a batch may have where it stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage_core.errors import CorruptRecordError

if TYPE_CHECKING:
    from storage_core.record.batch_header import BatchHeader

__all__ = ["OffsetLimits", "known_offset"]


def known_offset(header: BatchHeader) -> int:
    """The first offset that a header is certain of: of a wrapper that is its last one."""
    return header.last_offset if header.is_wrapper else header.base_offset


@dataclass(frozen=True, slots=True)
class OffsetLimits:
    """The offsets of one segment: from its base offset to below its end offset, if that is known."""

    base_offset: int
    end_offset: int | None

    def follows(self, header: BatchHeader, lowest_offset: int) -> bool:
        """Whether a batch may stand behind others that end in front of ``lowest_offset``."""
        if self.end_offset is not None and header.last_offset >= self.end_offset:
            return False
        return known_offset(header) >= max(lowest_offset, self.base_offset)

    def problem(self, header: BatchHeader, lowest_offset: int, path: str) -> CorruptRecordError | None:
        """Why a batch may not stand here; None if it may."""
        if self.follows(header, lowest_offset):
            return None
        if header.last_offset < self.base_offset or header.base_offset < self.base_offset:
            found = f"offsets from {self.base_offset} on, as the file's name says"
        elif self.end_offset is not None and header.last_offset >= self.end_offset:
            found = f"offsets below {self.end_offset}, where this segment ends"
        else:
            found = f"a record batch with offsets from {lowest_offset} on"
        return _disorder(found, header, path)

    def disorder(
        self, header: BatchHeader | None, behind: BatchHeader | None, path: str
    ) -> CorruptRecordError:
        """Why a batch is the outlier of two that are out of order."""
        if header is None or behind is None:
            return CorruptRecordError("Expected a record batch, found bytes that are none.", path=path)
        return _disorder(f"offsets below {behind.base_offset}, where the next batch begins", header, path)


def _disorder(expected: str, header: BatchHeader, path: str) -> CorruptRecordError:
    return CorruptRecordError(
        f"Expected {expected}, found a batch from {header.base_offset} to {header.last_offset}: "
        "batches are out of order.",
        path=path,
        position_bytes=header.position_bytes,
        offset=header.base_offset,
    )
