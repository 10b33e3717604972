"""Every error that this package raises.

    SegmentLogError
    ├── OptionError                     an option or configuration value is wrong
    ├── LogDirectoryError               a path is not what the caller said it is
    │   ├── UnreadableError             the path exists, but this user may not read it
    │   ├── LogDirectoryLockedError     a broker, another process, or this one has it open for writing
    │   └── ReplicaConflictError        the same partition is in two roots that do not belong together
    ├── OffsetOutOfRangeError           a requested offset is below the log start or beyond the log end
    │   └── TimestampNotFoundError      no record is at or after the requested timestamp
    ├── DataLossError                   planned offsets are gone: retention or compaction deleted them
    │   ├── FileReplacedError           a file is not the one that was listed
    │   └── LogTruncationError          the log was truncated or deleted while it was read
    ├── UnsupportedFormatError          a message format or codec that this version does not support
    ├── TimestampRangeError             a record's timestamp does not fit the column's type
    ├── ValueDecodeError                a record's key or value does not decode by its schema
    ├── SchemaError                     a schema is malformed, missing, or beyond what is supported
    │   └── SchemaResolutionError       values of one schema cannot be read as those of another
    ├── AppendError                     an append was rejected before anything of it was written
    │   ├── InvalidRecordError          columns, keys or batches are invalid for the log
    │   ├── InvalidTimestampError       a timestamp too far from the present, or below -1
    │   ├── RecordTooLargeError         a batch is larger than max.message.bytes
    │   ├── RecordBatchTooLargeError    an append is larger than segment.bytes
    │   ├── OffsetsOutOfOrderError      replicated batches do not ascend, or begin below the log end
    │   ├── OffsetOverflowError         an offset does not fit its segment, or exceeds Kafka's largest
    │   └── ProducerError               an append contradicts the state of its producer or transaction
    │       ├── OutOfOrderSequenceError     records are missing, or the log has them already
    │       ├── InvalidProducerEpochError   a newer incarnation of the producer has fenced it
    │       ├── InvalidTxnStateError        a transaction is open that must not be, or the reverse
    │       └── TransactionCoordinatorFencedError   a newer coordinator has written a marker
    ├── NotWritableError                the log or its log directory is not writable
    │   ├── LogClosedError              it is closed, or was deleted
    │   ├── LogReadOnlyError            it was opened read-only
    │   ├── LogForkedError              it was opened by the process that this one was forked from
    │   └── LogFailedError              an earlier write or flush failed: close it and open it again
    ├── StorageError                    the file system refused: no space left, an I/O error
    ├── CommitInDoubtError              a job failed after it wrote its journal: the next writer completes it
    ├── RecoveryWouldDiscardError            opening would discard whole, valid batches
    └── CorruptError                    bytes on disk violate their format
        ├── CorruptRecordError          a record batch: length, magic, CRC or record structure
        ├── BatchTooLargeError          a record batch declares, or inflates to, more than the limit
        ├── CorruptIndexError           an .index, .timeindex or .txnindex file
        ├── CorruptSnapshotError        a producer .snapshot file
        └── CorruptCheckpointError      a checkpoint or another small file

Each message says what was expected, what was found, where, and what to do about it.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "AppendError",
    "BatchTooLargeError",
    "CommitInDoubtError",
    "CorruptCheckpointError",
    "CorruptError",
    "CorruptIndexError",
    "CorruptRecordError",
    "CorruptSnapshotError",
    "DataLossError",
    "FileReplacedError",
    "InvalidProducerEpochError",
    "InvalidRecordError",
    "InvalidTimestampError",
    "InvalidTxnStateError",
    "LogClosedError",
    "LogDirectoryError",
    "LogDirectoryLockedError",
    "LogFailedError",
    "LogForkedError",
    "LogReadOnlyError",
    "LogTruncationError",
    "NotWritableError",
    "OffsetOutOfRangeError",
    "OffsetOverflowError",
    "OffsetsOutOfOrderError",
    "OptionError",
    "OutOfOrderSequenceError",
    "ProducerError",
    "RecordBatchTooLargeError",
    "RecordError",
    "RecordTooLargeError",
    "RecoveryWouldDiscardError",
    "ReplicaConflictError",
    "SchemaError",
    "SchemaResolutionError",
    "SegmentLogError",
    "StorageError",
    "TimestampNotFoundError",
    "TimestampRangeError",
    "TransactionCoordinatorFencedError",
    "UnreadableError",
    "UnsupportedFormatError",
    "ValueDecodeError",
]


_LONGEST_MESSAGE = 4000


class SegmentLogError(Exception):
    """Base of every error of this package.

    Args:
        message: One or two complete sentences.
        path: The file or directory concerned.
        position_bytes: Byte position in that file.
        end_position_bytes: First byte position after the range concerned.
        offset: First Kafka offset concerned.
        last_offset: Last Kafka offset concerned.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        position_bytes: int | None = None,
        end_position_bytes: int | None = None,
        offset: int | None = None,
        last_offset: int | None = None,
    ) -> None:
        # Pickle rebuilds an error from the arguments of Exception, and then restores its __dict__.
        super().__init__(message)
        self.path = path
        self.position_bytes = position_bytes
        self.end_position_bytes = end_position_bytes
        self.offset = offset
        self.last_offset = last_offset

    def __str__(self) -> str:
        message = super().__str__()
        where = self._where()
        return _one_line(f"{message} [{where}]" if where else message)

    def _where(self) -> str:
        parts = []
        if self.path is not None:
            parts.append(self.path)
        if self.position_bytes is not None:
            parts.append(_range("byte", self.position_bytes, self.end_position_bytes))
        if self.offset is not None:
            end = None if self.last_offset is None else self.last_offset + 1
            parts.append(_range("offset", self.offset, end))
        return ", ".join(parts)


def _one_line(text: str) -> str:
    """Escape and shorten a message: the values it quotes may contain line ends, surrogates, or megabytes."""
    if len(text) > _LONGEST_MESSAGE:
        text = f"{text[: _LONGEST_MESSAGE // 2]} ... {text[-_LONGEST_MESSAGE // 2 :]}"
    return visible(text)


def visible(text: str) -> str:
    """Return a text whose control characters, changes of direction and surrogates are escapes."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )


def first_of(names: Sequence[str], most: int) -> str:
    """Join the first names, and count the others: ``a, b and 7 more``."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


@lru_cache(maxsize=1024)
def warn_once(log: logging.Logger, text: str) -> None:
    """Log a warning that would otherwise come with each look at a directory."""
    log.warning("%s", visible(text))


def _range(unit: str, start: int, end: int | None) -> str:
    # Records that are missing at the end of a file have no bytes.
    if end is None or end <= start + 1:
        return f"{unit} {start}"
    return f"{unit}s {start} to {end - 1}"


class OptionError(SegmentLogError, ValueError):
    """An option or configuration value is wrong; raised before anything is read."""


class LogDirectoryError(SegmentLogError):
    """A path is not the log directory, partition directory or file that was expected."""


class UnreadableError(LogDirectoryError):
    """A path exists, but this user may not access it. It is reported, never skipped."""


class LogDirectoryLockedError(LogDirectoryError):
    """A broker, another process, or another object in this one has the log directory open for writing."""


class ReplicaConflictError(LogDirectoryError):
    """The same topic-partition is in two roots that do not belong to one cluster."""


class OffsetOutOfRangeError(SegmentLogError):
    """A requested offset is below the log start offset or beyond the log end offset."""


class TimestampNotFoundError(OffsetOutOfRangeError):
    """No record has a timestamp at or after the requested one."""


class DataLossError(SegmentLogError):
    """Offsets that existed at planning are gone: deleted or truncated since."""


class FileReplacedError(DataLossError):
    """A file is not the one that was listed: a cleaner, an upload or a deletion came in between."""


class LogTruncationError(DataLossError):
    """The log was truncated to ``offset``, or deleted, during the read: other records may have these offsets now."""


class UnsupportedFormatError(SegmentLogError):
    """A message format or codec that this version does not support."""


class TimestampRangeError(SegmentLogError):
    """A record's timestamp does not fit a column of microseconds since 1970."""


class ValueDecodeError(SegmentLogError):
    """The key or value of a record does not decode by its schema.

    Args:
        topic: Topic of the record; its offset is ``offset``.
        partition: Number of its partition.
        reason: Why it does not decode: ``unframed``, ``unknown-id``, ``malformed``, ``encrypted`` or ``unresolvable``.
        schema_id: The schema that it was written with; None if that is not known.
    """

    def __init__(
        self,
        message: str,
        *,
        topic: str = "",
        partition: int = -1,
        reason: str = "",
        schema_id: int | None = None,
        **where: Any,
    ) -> None:
        super().__init__(message, **where)
        self.topic = topic
        self.partition = partition
        self.reason = reason
        self.schema_id = schema_id


class SchemaError(SegmentLogError):
    """A schema is malformed, missing, or beyond what is supported."""


class SchemaResolutionError(SchemaError):
    """Values of the writer's schema cannot be read as those of the reader's."""


class RecordError(NamedTuple):
    """A record that an append was rejected for (KIP-467; Kafka's ``ProduceResponse.RecordError``).

    Attributes:
        batch_index: The record's index in its batch, from 0; its row in a table.
        message: What was expected of it, and what was found.
        batch_number: The number of its batch in the append, from 0; 0 for a table.
    """

    batch_index: int
    message: str
    batch_number: int = 0


class AppendError(SegmentLogError):
    """An append was rejected before anything of it was written; the log is unchanged.

    Args:
        record_errors: The first 10,000 records that it was rejected for, if only some of its records are invalid.
        record_error_count: The number of all these records; None for the number of ``record_errors``.
    """

    def __init__(
        self,
        message: str,
        *,
        record_errors: tuple[RecordError, ...] = (),
        record_error_count: int | None = None,
        **where: Any,
    ) -> None:
        super().__init__(message, **where)
        self.record_errors = record_errors
        self.record_error_count = len(record_errors) if record_error_count is None else record_error_count


class InvalidRecordError(AppendError):
    """Columns, keys or batches are invalid for this log."""


class InvalidTimestampError(AppendError):
    """A record's timestamp is too far from the present for this log, is invalid, or cannot be read."""


class RecordTooLargeError(AppendError):
    """A batch is larger than ``max.message.bytes``, or than the largest batch that readers accept by default."""


class RecordBatchTooLargeError(AppendError):
    """One append is larger than ``segment.bytes``."""


class OffsetsOutOfOrderError(AppendError):
    """Batches that have their own offsets do not ascend, or begin below the log end offset."""


class OffsetOverflowError(AppendError):
    """An offset is too far from its segment's base offset, or exceeds the largest offset."""


class ProducerError(AppendError):
    """An append contradicts the state of its producer.

    Args:
        producer_id: The producer.
    """

    def __init__(self, message: str, *, producer_id: int = -1, **where: Any) -> None:
        super().__init__(message, **where)
        self.producer_id = producer_id


class OutOfOrderSequenceError(ProducerError):
    """A producer's records do not follow its last ones, and do not repeat a batch that the log remembers.

    Args:
        expected_sequence: The next sequence number. If it is higher than that of the first record, the log has all
            records below it.
    """

    def __init__(self, message: str, *, expected_sequence: int = -1, **which: Any) -> None:
        super().__init__(message, **which)
        self.expected_sequence = expected_sequence


class InvalidProducerEpochError(ProducerError):
    """A producer has an older epoch than the log has seen: a newer incarnation has fenced it."""


class InvalidTxnStateError(ProducerError):
    """A transaction is open that must not be, or is not open and must be."""


class TransactionCoordinatorFencedError(ProducerError):
    """A marker comes from a coordinator that a newer one has fenced."""


class NotWritableError(SegmentLogError):
    """The log or its log directory is not writable."""


class LogClosedError(NotWritableError):
    """The log or its log directory is closed."""


class LogReadOnlyError(NotWritableError):
    """The log directory was opened read-only."""


class LogForkedError(NotWritableError):
    """This process was forked from the one that opened the log; only that one may change or close it."""


class LogFailedError(NotWritableError):
    """An earlier write or flush failed, so the content on disk is unknown: close the log and open it again."""


class StorageError(SegmentLogError):
    """The file system refused to write, flush, rename or delete: no space left, an I/O error, a full quota."""


class CommitInDoubtError(SegmentLogError):
    """A job failed after it wrote its journal: its rows are not visible yet, but the next writer completes it."""


class RecoveryWouldDiscardError(SegmentLogError):
    """Opening would discard whole, valid batches.

    Args:
        discarded: What would be discarded, a sentence each.
    """

    def __init__(self, message: str, *, discarded: tuple[str, ...] = (), **where: Any) -> None:
        super().__init__(message, **where)
        self.discarded = discarded


class CorruptError(SegmentLogError):
    """Bytes on disk violate their format."""


class CorruptRecordError(CorruptError):
    """A record batch's length, magic, CRC or record structure is wrong.

    Args:
        record_index: The index of the malformed record in its batch; None if the batch is malformed.
    """

    def __init__(self, message: str, *, record_index: int | None = None, **where: Any) -> None:
        super().__init__(message, **where)
        self.record_index = record_index


class BatchTooLargeError(CorruptError):
    """A record batch declares, or inflates to, more bytes than the limit."""


class CorruptIndexError(CorruptError):
    """An offset, time or transaction index is unusable."""


class CorruptSnapshotError(CorruptError):
    """A producer snapshot has an unknown version or a wrong length, or fails its CRC."""


class CorruptCheckpointError(CorruptError):
    """A checkpoint file, ``partition.metadata`` or ``meta.properties`` cannot be parsed."""
