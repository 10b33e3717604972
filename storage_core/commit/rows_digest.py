"""What identifies the rows of a job: how many they are, and a checksum that no order of rows or tasks changes.

A batch that Spark repeats may come in other tasks, and its rows in another order and with other commit times. So each
row counts by itself: the CRC-32C of its topic, key and value, and its timestamp if it has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds
from crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from storage_core.commit.routing import RoutedRows

_MODULUS: Final = 1 << 64
# Odd numbers, which keep the parts of a row apart.
_OF_TIMESTAMP: Final = 0x9E3779B97F4A7C15
_OF_NULL: Final = {"key": 0xC2B2AE3D27D4EB4F, "value": 0x165667B19E3779F9}


@dataclass(frozen=True, slots=True)
class RowsDigest:
    """The number of some rows and their checksum; None: unknown."""

    count: int = 0
    checksum: int | None = 0

    def __add__(self, other: RowsDigest) -> RowsDigest:
        """Return the digest of both together."""
        is_known = self.checksum is not None and other.checksum is not None
        total = (self.checksum or 0) + (other.checksum or 0)
        return RowsDigest(self.count + other.count, total % _MODULUS if is_known else None)

    def differs(self, other: RowsDigest) -> bool:
        """Return True if these are certainly other rows."""
        are_known = self.checksum is not None and other.checksum is not None
        return self.count != other.count or (are_known and self.checksum != other.checksum)


def rows_digest(rows: RoutedRows) -> RowsDigest:
    """Compute the digest of rows; it does not depend on their partitions, which may follow from their order."""
    records = rows.records
    total = 0
    crcs: Iterable[int] = _topic_crcs(rows)
    for name in ("key", "value"):
        if name in records.schema.names:
            column, null_count = _byte_strings(records.column(name))
            total += null_count * _OF_NULL[name]
            crcs = map(crc32c, column, crcs)
    total += sum(crcs)
    if "timestamp" in records.schema.names:
        total += _timestamp_sum(records.column("timestamp")) * _OF_TIMESTAMP
    return RowsDigest(records.num_rows, total % _MODULUS)


def _topic_crcs(rows: RoutedRows) -> list[int]:
    crcs = np.array([crc32c(topic.encode()) for topic in rows.topics], np.int64)
    indexes = np.zeros(rows.records.num_rows, np.intp) if rows.topic_indexes is None else rows.topic_indexes
    found: list[int] = crcs[indexes].tolist()
    return found


def _byte_strings(column: pa.Array) -> tuple[npt.NDArray[Any], int]:
    """Return the values, empty in place of nulls, and the number of nulls."""
    if kinds.is_dictionary(column.type):
        column = column.dictionary_decode()
    if kinds.is_string_view(column.type):
        column = column.cast(pa.string())
    if not kinds.is_binary(column.type):
        column = column.cast(pa.large_binary())
    return column.fill_null(b"").to_numpy(zero_copy_only=False), column.null_count


def _timestamp_sum(column: pa.Array) -> int:
    """Sum up the timestamps that the rows have, which are never the time of the job."""
    if kinds.is_null(column.type):
        return 0
    numbers = column.drop_null().view(pa.int64()).to_numpy()
    # Each is squared, so that a later one does not make up for an earlier one.
    return int((numbers.astype(np.uint64) * (numbers.astype(np.uint64) | np.uint64(1))).sum(dtype=np.uint64))
