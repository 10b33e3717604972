"""The index of a segment's aborted transactions, ``<base>.txnindex`` (Kafka's ``TransactionIndex``).

    position  bytes  field
    0         2      version, 0
    2         8      producer id
    10        8      first data offset of the transaction in this partition
    18        8      offset of its abort marker
    26        8      last stable offset when the marker was appended

An entry stands in the segment that holds the abort marker; entries are in the order of the
markers. The file appears with the first abort: a segment without one usually has no file, so a
missing file alone is no problem. A file that was cut inside an entry, or whose entries
contradict each other, is not used at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from storage_core.segment.values import AbortedTransaction

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from storage_core.filesystem import FileSystem

__all__ = ["ENTRY_SIZE_BYTES", "MAX_TRANSACTION_INDEX_SIZE_BYTES", "TransactionIndex"]

MAX_TRANSACTION_INDEX_SIZE_BYTES: Final = 16 * 1024 * 1024
"""Half a million aborted transactions in one segment. Of one with more, the batches tell what is asked."""

_ENTRY: Final = np.dtype(
    [
        ("version", ">i2"),
        ("producer_id", ">i8"),
        ("first_offset", ">i8"),
        ("last_offset", ">i8"),
        ("last_stable_offset", ">i8"),
    ]
)
_FIELDS: Final = ("producer_id", "first_offset", "last_offset", "last_stable_offset")

ENTRY_SIZE_BYTES: Final = _ENTRY.itemsize


@dataclass(frozen=True, slots=True, eq=False)
class TransactionIndex:
    """The aborted transactions whose markers stand in one segment.

    Args:
        table: The entries, in the order of their markers.
        exists: Whether there is a file.
        problem: Why the file cannot be used; None if it can, is empty, or is not there.
    """

    table: npt.NDArray[Any]
    exists: bool
    problem: str | None = None

    @classmethod
    def without_entries(cls, problem: str | None = None, *, exists: bool) -> TransactionIndex:
        """An index that tells nothing."""
        return cls(np.zeros(0, _ENTRY), exists, problem)

    @property
    def entries(self) -> tuple[AbortedTransaction, ...]:
        """All entries."""
        return tuple(_transactions(self.table))

    @property
    def last_marker_offset(self) -> int | None:
        """Offset of the last abort marker; None without entries."""
        return int(self.table["last_offset"][-1]) if len(self.table) else None

    @classmethod
    def read(cls, filesystem: FileSystem, path: str, base_offset: int) -> TransactionIndex:
        """Read the index.

        Raises:
            UnreadableError: This user may not read it.
            LogDirectoryError: It is not a regular file.
        """
        try:
            opened = filesystem.open(path)
        except FileNotFoundError:
            return cls.without_entries(exists=False)
        with opened:
            size_bytes = opened.status.size_bytes
            if size_bytes > MAX_TRANSACTION_INDEX_SIZE_BYTES:
                limit = MAX_TRANSACTION_INDEX_SIZE_BYTES
                problem = f"the file has {size_bytes} bytes, more than the {limit} that are read"
                return cls.without_entries(problem, exists=True)
            data = opened.read_at(size_bytes, 0) if size_bytes else b""
        if len(data) % ENTRY_SIZE_BYTES:
            # Kafka ignores such an end. But an aborted transaction that is not listed shows its records.
            problem = f"the file has {len(data)} bytes, which is no multiple of {ENTRY_SIZE_BYTES}"
            return cls.without_entries(problem, exists=True)
        entries = np.frombuffer(data, _ENTRY)
        problem_found = _problem(entries, base_offset)
        if problem_found is not None:
            return cls.without_entries(problem_found, exists=True)
        return cls(entries, exists=True)

    def collect_aborted_transactions(
        self, fetch_offset: int, upper_bound_offset: int
    ) -> tuple[list[AbortedTransaction], bool]:
        """The aborted transactions that touch offsets from ``fetch_offset`` to below the bound.

        Returns:
            The transactions, and whether these are all: if not, markers of further ones may
            stand in the next segments.
        """
        table = self.table
        # As a broker does, the first entry that says so ends the search.
        beyond = np.flatnonzero(table["last_stable_offset"] >= upper_bound_offset)
        if len(beyond):
            table = table[: beyond[0] + 1]
        touched = (table["last_offset"] >= fetch_offset) & (table["first_offset"] < upper_bound_offset)
        return list(_transactions(table[touched])), bool(len(beyond))


def _transactions(table: npt.NDArray[Any]) -> Iterator[AbortedTransaction]:
    return map(AbortedTransaction, *(table[name].tolist() for name in _FIELDS))


def _problem(entries: np.ndarray, base_offset: int) -> str | None:
    if not len(entries):
        return None
    if entries["version"].any():
        return f"expected entries of version 0, found version {int(entries['version'].max())}"
    last_offsets = entries["last_offset"].astype(np.int64)
    if last_offsets[0] < base_offset:
        return f"it names the marker offset {int(last_offsets[0])}, below the segment's base offset {base_offset}"
    if (last_offsets[1:] <= last_offsets[:-1]).any():
        return "its marker offsets do not ascend"
    if (entries["first_offset"] >= entries["last_offset"]).any():
        return "a transaction does not begin in front of its marker"
    return None
