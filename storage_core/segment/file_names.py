"""The names of a segment's files (Kafka's ``LogFileUtils``), and the values that look-ups return.

Each file of a segment is named after the segment's base offset, in decimal, padded with zeros to
20 digits: a lower bound of the offsets inside. Temporary files carry one more suffix after
the whole name: ``00000000000000000042.log.deleted``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from storage_core.record.batch_header import MAX_OFFSET

LOG_SUFFIX: Final = ".log"
OFFSET_INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TRANSACTION_INDEX_SUFFIX: Final = ".txnindex"
INDEX_SUFFIXES: Final = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
SNAPSHOT_SUFFIX: Final = ".snapshot"
DELETED_SUFFIX: Final = ".deleted"
"""A file that awaits its removal."""
CLEANED_SUFFIX: Final = ".cleaned"
"""Output of a compaction that is not finished."""
SWAP_SUFFIX: Final = ".swap"
"""Finished output of a compaction that is about to replace the original."""
_DIGITS: Final = 20


def base_offset_of(file_name: str) -> int | None:
    """Return the base offset that a file name begins with.

    Kafka writes exactly 20 digits before the first dot, and opens no other name.

    Returns:
        The base offset; None if the name is not that of a segment's file.
    """
    digits = file_name[:_DIGITS]
    if file_name[_DIGITS : _DIGITS + 1] != "." or not (digits.isascii() and digits.isdigit()):
        return None
    base_offset = int(digits)
    return base_offset if base_offset <= MAX_OFFSET else None


def log_file_name(base_offset: int) -> str:
    """Return the name of the file that holds the record batches."""
    return f"{base_offset:020d}{LOG_SUFFIX}"


def offset_index_file_name(base_offset: int) -> str:
    """Return the name of the offset index."""
    return f"{base_offset:020d}{OFFSET_INDEX_SUFFIX}"


def time_index_file_name(base_offset: int) -> str:
    """Return the name of the time index."""
    return f"{base_offset:020d}{TIME_INDEX_SUFFIX}"


def transaction_index_file_name(base_offset: int) -> str:
    """Return the name of the index of aborted transactions."""
    return f"{base_offset:020d}{TRANSACTION_INDEX_SUFFIX}"


def index_file_names(base_offset: int) -> tuple[str, ...]:
    """Return the names of all indexes of a segment."""
    return tuple(f"{base_offset:020d}{suffix}" for suffix in INDEX_SUFFIXES)


def log_paths_beside(index_path: str) -> tuple[str, ...]:
    """Return the paths of the log file that an index belongs to: without a suffix, and with that of the index."""
    directory, _, name = index_path.rpartition("/")
    log_path = f"{directory}/{name[:_DIGITS]}{LOG_SUFFIX}"
    return log_path, *(f"{log_path}.{suffix}" for suffix in name.split(".")[2:])


def snapshot_file_name(offset: int) -> str:
    """Return the name of the snapshot of all producers' state before ``offset``."""
    return f"{offset:020d}{SNAPSHOT_SUFFIX}"


@dataclass(frozen=True, slots=True)
class OffsetPosition:
    """One entry of an offset index.

    A walk from ``position_bytes`` meets every batch with offsets from ``offset`` on. An entry promises
    no more than that: ``offset`` is the *last* offset of the batch there; older brokers write the last
    offset of the whole append that began there, and the oldest ones its first offset.
    """

    offset: int
    position_bytes: int


@dataclass(frozen=True, slots=True)
class TimestampOffset:
    """A timestamp and its offset.

    As an entry of a time index: up to and including the batch that holds ``offset``, the
    segment's largest timestamp is ``timestamp_ms``. As the result of a look-up: the record's
    own timestamp and offset.
    """

    timestamp_ms: int
    offset: int


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """One entry of a transaction index.

    Args:
        first_offset: The producer's first data offset in this partition.
        last_offset: Offset of its abort marker.
        last_stable_offset: First offset of the earliest other transaction that was still open
            when the marker was appended, or the offset after the marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """The end of a segment's whole, valid batches."""

    next_offset: int
    position_bytes: int
