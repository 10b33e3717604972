"""Every error that this package raises.

    SegmentLogError
    ├── OptionError                     an option or configuration value is wrong
    ├── LogDirectoryError               a path is not what the caller said it is
    │   ├── UnreadableError             the path exists, but this user may not read it
    │   ├── LogDirectoryLockedError     a broker, another process, or this one has it open for writing
    │   └── ReplicaConflictError        the same partition stands in two roots that do not belong together
    ├── OffsetOutOfRangeError           an offset below the log start or beyond the log end was asked for
    │   └── TimestampNotFoundError      no record is as young as the timestamp that was asked for
    ├── DataLossError                   a planned range cannot be read any more: a cleaner or retention was faster
    │   └── LogTruncationError          the log was truncated, or deleted, while it was read
    ├── UnsupportedFormatError          a message format or codec that this version does not read
    ├── TimestampRangeError             a record's timestamp does not fit the column's type
    ├── AppendError                     an append was refused; nothing of it was written
    │   ├── InvalidRecordError          columns, keys or batches that the log does not take
    │   ├── InvalidTimestampError       a timestamp too far from the present, or below -1
    │   ├── RecordTooLargeError         a batch is larger than max.message.bytes
    │   ├── RecordBatchTooLargeError    an append is larger than segment.bytes
    │   ├── OffsetsOutOfOrderError      replicated batches do not ascend, or begin below the log end
    │   ├── OffsetOverflowError         an offset does not fit its segment, or is beyond Kafka's largest
    │   └── ProducerError               not what a producer, or its transaction, has to go on with
    │       ├── OutOfOrderSequenceError records are missing in between, or the log has them already
    │       ├── InvalidProducerEpochError   a newer incarnation of the producer has taken over
    │       ├── InvalidTxnStateError    a transaction is open that must not be, or is not and must be
    │       └── TransactionCoordinatorFencedError   a newer coordinator has written a marker
    ├── NotWritableError                the log, or its log directory, takes no writes
    │   ├── LogClosedError              it is closed, or was deleted
    │   ├── LogReadOnlyError            it was opened read-only
    │   ├── LogForkedError              it was opened by the process that this one was forked from
    │   └── LogFailedError              a write or a flush failed before: close it and open it again
    ├── StorageError                    the file system refused: no space left, an I/O error
    ├── CommitInDoubtError              a job failed behind its journal: whoever writes next completes it
    ├── RecoveryWouldDiscard            opening as asked would drop whole, valid batches
    └── CorruptError                    bytes on disk are not what the format says
        ├── CorruptRecordError          a record batch: length, magic, CRC or record structure
        ├── BatchTooLargeError          a record batch declares, or inflates to, more than the limit
        ├── CorruptIndexError           an .index, .timeindex or .txnindex file
        ├── CorruptSnapshotError        a producer .snapshot file
        └── CorruptCheckpointError      a checkpoint or another small file beside the segments

Each message says what was expected, what was found, where, and what to do.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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
    "RecoveryWouldDiscard",
    "ReplicaConflictError",
    "SegmentLogError",
    "StorageError",
    "TimestampNotFoundError",
    "TimestampRangeError",
    "TransactionCoordinatorFencedError",
    "UnreadableError",
    "UnsupportedFormatError",
]


_LONGEST_MESSAGE = 4000


class SegmentLogError(Exception):
    """Base of every error raised here.

    Args:
        message: One or two sentences, complete in themselves.
        path: The file or directory concerned.
        position_bytes: Byte position in that file.
        end_position_bytes: First byte position behind the range concerned.
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
        # Only the message goes to Exception: a pickled error is rebuilt from it, and the
        # attributes follow in its __dict__.
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
    """What a message quotes may hold line ends, halves of characters, or megabytes."""
    if len(text) > _LONGEST_MESSAGE:
        text = f"{text[: _LONGEST_MESSAGE // 2]} ... {text[-_LONGEST_MESSAGE // 2 :]}"
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )


def _range(unit: str, start: int, end: int | None) -> str:
    if end is None or end == start + 1:
        return f"{unit} {start}"
    return f"{unit}s {start} to {end - 1}"


class OptionError(SegmentLogError, ValueError):
    """An option or configuration value is wrong; raised before anything is read."""


class LogDirectoryError(SegmentLogError):
    """A path is not the log directory, partition directory or file that was expected."""


class UnreadableError(LogDirectoryError):
    """A path exists, but may not be read: it is reported, never skipped."""


class LogDirectoryLockedError(LogDirectoryError):
    """A broker, another process, or another object in this one has the log directory open for writing."""


class ReplicaConflictError(LogDirectoryError):
    """The same topic-partition stands in two roots that do not belong to one cluster."""


class OffsetOutOfRangeError(SegmentLogError):
    """An offset below the log start offset or beyond the log end offset was asked for."""


class TimestampNotFoundError(OffsetOutOfRangeError):
    """No record has a timestamp at or after the one that was asked for."""


class DataLossError(SegmentLogError):
    """Offsets that were there at planning are gone: deleted or truncated since."""


class LogTruncationError(DataLossError):
    """The log was truncated to ``offset``, or deleted, while records from there on were read: other ones may stand there now."""


class UnsupportedFormatError(SegmentLogError):
    """A message format or codec that this version does not read."""


class TimestampRangeError(SegmentLogError):
    """A record's timestamp does not fit a column of microseconds since 1970."""


class RecordError(NamedTuple):
    """A record for which an append was refused (KIP-467; Kafka's ``ProduceResponse.RecordError``).

    Attributes:
        batch_index: The record's index in its batch, from 0 on; its row in a table.
        message: What was expected of it, and what was found.
        batch_number: Which batch of the append holds it, from 0 on; 0 for a table.
    """

    batch_index: int
    message: str
    batch_number: int = 0


class AppendError(SegmentLogError):
    """An append was refused before anything of it was written; the log is as it was.

    Args:
        record_errors: The records for which it was refused, if some of them alone are to blame; the first 10,000.
        record_error_count: How many they are in all; as many as ``record_errors`` if None.
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
    """Columns, keys or batches are not what this log takes."""


class InvalidTimestampError(AppendError):
    """A record's timestamp is too far from the present for this log, no timestamp at all, or none that can be read."""


class RecordTooLargeError(AppendError):
    """A batch is larger than ``max.message.bytes``, or than is read unless more is asked for."""


class RecordBatchTooLargeError(AppendError):
    """One append is larger than ``segment.bytes``."""


class OffsetsOutOfOrderError(AppendError):
    """Batches that bring their own offsets do not ascend, or begin below the log end offset."""


class OffsetOverflowError(AppendError):
    """An offset cannot be written relative to its segment's base offset, or is beyond the largest."""


class ProducerError(AppendError):
    """What a producer appends does not follow what the log has of it.

    Args:
        producer_id: The producer.
    """

    def __init__(self, message: str, *, producer_id: int = -1, **where: Any) -> None:
        super().__init__(message, **where)
        self.producer_id = producer_id


class OutOfOrderSequenceError(ProducerError):
    """A producer's records do not follow the last ones, and do not repeat any that the log remembers.

    Args:
        expected_sequence: The sequence number that comes next. Where it is higher than that of the first record,
            the log has all records below it.
    """

    def __init__(self, message: str, *, expected_sequence: int = -1, **which: Any) -> None:
        super().__init__(message, **which)
        self.expected_sequence = expected_sequence


class InvalidProducerEpochError(ProducerError):
    """A producer has an older epoch than the log has seen: a newer incarnation of it has taken over."""


class InvalidTxnStateError(ProducerError):
    """A transaction is open where none may be, or none is where one has to be."""


class TransactionCoordinatorFencedError(ProducerError):
    """A marker comes from a coordinator that a newer one has replaced."""


class NotWritableError(SegmentLogError):
    """The log, or the log directory that it stands in, takes no writes."""


class LogClosedError(NotWritableError):
    """The log, or its log directory, is closed."""


class LogReadOnlyError(NotWritableError):
    """The log directory was opened read-only."""


class LogForkedError(NotWritableError):
    """This process was forked from the one that opened the log, which alone may change or close it."""


class LogFailedError(NotWritableError):
    """A write or a flush failed before, so what is on disk is not known: close the log and open it again."""


class StorageError(SegmentLogError):
    """The file system refused to write, flush, rename or delete: no space left, an I/O error, a full quota."""


class CommitInDoubtError(SegmentLogError):
    """A job failed when its journal was written: its rows are not visible yet, but whoever writes next completes it."""


class RecoveryWouldDiscard(SegmentLogError):  # noqa: N818  (the name says what it would do)
    """Opening as asked would drop whole, valid batches: ``discarded`` tells which.

    Args:
        discarded: What would be dropped, a sentence each.
    """

    def __init__(self, message: str, *, discarded: tuple[str, ...] = (), **where: Any) -> None:
        super().__init__(message, **where)
        self.discarded = discarded


class CorruptError(SegmentLogError):
    """Bytes on disk are not what the format says."""


class CorruptRecordError(CorruptError):
    """A record batch's length, magic, CRC or record structure is wrong.

    Args:
        record_index: The index in its batch of the record that is malformed; None if the batch is.
    """

    def __init__(self, message: str, *, record_index: int | None = None, **where: Any) -> None:
        super().__init__(message, **where)
        self.record_index = record_index


class BatchTooLargeError(CorruptError):
    """A record batch declares, or inflates to, more bytes than the limit."""


class CorruptIndexError(CorruptError):
    """An offset, time or transaction index is not usable."""


class CorruptSnapshotError(CorruptError):
    """A producer snapshot has an unknown version, is cut short, or fails its CRC."""


class CorruptCheckpointError(CorruptError):
    """A checkpoint file, ``partition.metadata`` or ``meta.properties`` cannot be parsed."""
