"""Reading one batch of a log file, of any format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage_core.errors import BatchTooLargeError, CorruptRecordError, DataLossError
from storage_core.record.batch_header import batch_crc_matches

if TYPE_CHECKING:
    from storage_core.filesystem import OpenFile
    from storage_core.record.batch_header import BatchHeader

__all__ = ["read_batch"]


def read_batch(log_file: OpenFile, header: BatchHeader, limit_bytes: int) -> bytes:
    """Read one whole batch, header included, and check its CRC.

    Raises:
        BatchTooLargeError: It has more than ``limit_bytes``.
        DataLossError: The file has been cut short since the header was read.
        CorruptRecordError: The CRC does not match.
    """
    if header.size_bytes > limit_bytes:
        raise BatchTooLargeError(
            f"Found a record batch of {header.size_bytes} bytes, expected at most {limit_bytes}. If it is no "
            "damage, raise maxDecompressedBatchBytes.",
            path=log_file.path,
            position_bytes=header.position_bytes,
            offset=header.base_offset,
            last_offset=header.last_offset,
        )
    batch = log_file.read_at(header.size_bytes, header.position_bytes)
    if len(batch) < header.size_bytes:
        raise DataLossError(
            f"Expected a record batch of {header.size_bytes} bytes, found {len(batch)}: the file was cut "
            "short while it was read. Read again.",
            path=log_file.path,
            position_bytes=header.position_bytes,
            offset=header.base_offset,
            last_offset=header.last_offset,
        )
    if not batch_crc_matches(batch):
        raise CorruptRecordError(
            f"Expected the CRC {header.crc:08x} that the batch's header states, found another one: the batch is "
            "damaged. Restore the file from a replica or a backup.",
            path=log_file.path,
            position_bytes=header.position_bytes,
            end_position_bytes=header.end_position_bytes,
            offset=header.base_offset,
            last_offset=header.last_offset,
        )
    return batch
