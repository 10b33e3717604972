"""Small values that the indexes and the segment answer with, named as in Kafka."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AbortedTransaction", "OffsetPosition", "SegmentEnd", "TimestampOffset"]


@dataclass(frozen=True, slots=True)
class OffsetPosition:
    """One entry of an offset index.

    A forward walk that begins at ``position_bytes`` meets every batch that holds an offset of
    ``offset`` or more. That is all an entry promises: ``offset`` is the *last* offset of the
    batch there, or of the whole append that began there, if an older broker wrote the entry, or
    the first one, if a still older broker did.
    """

    offset: int
    position_bytes: int


@dataclass(frozen=True, slots=True)
class TimestampOffset:
    """A timestamp and the offset that goes with it.

    As an entry of a time index: up to and including the batch that holds ``offset``, the
    segment's largest timestamp is ``timestamp_ms``. As the answer to a look-up: the record's
    own timestamp and offset.
    """

    timestamp_ms: int
    offset: int


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """One entry of a transaction index.

    Args:
        producer_id: Whose transaction it was.
        first_offset: Its first data offset in this partition.
        last_offset: Offset of its abort marker.
        last_stable_offset: First offset of the earliest other transaction that was still open
            when the marker was appended, or the offset behind the marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """Where the whole, valid batches of a segment end."""

    next_offset: int
    position_bytes: int
