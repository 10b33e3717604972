"""Checking producers' appends against the producer state (Kafka's ``ProducerAppendInfo``).

    epoch        not below the known one; of a marker under transactions version 2, above it
    sequence     the one after the last of the same epoch; 0 in a new epoch; any if the producer is unknown
    transaction  while one is open, only transactional records
    coordinator  for a marker: its epoch not below that of the last one

These functions change nothing. A coordinator's records have no sequence numbers. Replicated batches are not checked again,
with one exception: a broker does not load a log in which a producer wrote non-transactional records during a transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from storage_core.config import INT_MAX, LONG_MAX
from storage_core.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OptionError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from storage_core.record.record_batches import NO_PRODUCER, SEQUENCES, ProducerSequence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from storage_core.log.producer_batches import BatchMetadata, ProducerBatch, ProducerState
    from storage_core.record.control_records import EndTransactionMarker


LARGEST_EPOCH: Final = (1 << 15) - 1
_NONE: Final = -1
# From this version of transactions on, each transaction of a producer has its own epoch.
_EPOCH_PER_TRANSACTION: Final = 2


def next_sequence(last_sequence: int) -> int:
    """Return the sequence number after another one. After -1, which means none, it is 0."""
    return (last_sequence + 1) % SEQUENCES


def check_producer_sequence(producer: object, *, has_sequence: bool = True) -> None:
    """Check the type and the values of a `ProducerSequence`. A coordinator's must have no sequence number."""
    if not isinstance(producer, ProducerSequence):
        raise OptionError(f"Expected a ProducerSequence as producer, found {type(producer).__name__}.")
    check_producer_id(producer.producer_id)
    check_producer_epoch(producer.producer_epoch)
    if has_sequence:
        _require_in_range("a sequence number", producer.base_sequence, SEQUENCES - 1)
    elif producer.base_sequence != NO_PRODUCER.base_sequence:
        raise OptionError(
            f"A coordinator's records have no sequence numbers: expected -1, found {producer.base_sequence!r}."
        )


def check_producer_id(producer_id: object) -> None:
    """Check a producer id."""
    _require_in_range("a producer id", producer_id, LONG_MAX)


def check_producer_epoch(producer_epoch: object) -> None:
    """Check a producer epoch."""
    _require_in_range("a producer epoch", producer_epoch, LARGEST_EPOCH)


def check_coordinator_epoch(coordinator_epoch: object) -> None:
    """Check a coordinator epoch."""
    _require_in_range("a coordinator epoch", coordinator_epoch, INT_MAX)


def check_leader_epoch(leader_epoch: object) -> None:
    """Check a leader epoch."""
    _require_in_range("a leader epoch", leader_epoch, INT_MAX)


def _require_in_range(what: str, number: object, largest: int) -> None:
    if not isinstance(number, int) or not 0 <= number <= largest:
        raise OptionError(f"Expected {what} from 0 to {largest}, found {number!r}.")


@dataclass(frozen=True, slots=True)
class DuplicateAppend:
    """The offsets of existing records that a producer appends again, and the largest timestamp of their batches.

    ``offset_of_timestamp`` is the last offset of the first batch that has this timestamp.
    """

    first_offset: int
    last_offset: int
    timestamp_ms: int
    offset_of_timestamp: int


@dataclass(slots=True)
class _Progress:
    """The state of a producer after the part of an append that was already checked."""

    producer_epoch: int = _NONE
    last_sequence: int = _NONE
    in_transaction: bool = False
    coordinator_epoch: int = _NONE

    @classmethod
    def of(cls, known: ProducerState | None) -> _Progress:
        if known is None:
            return cls()
        return cls(
            known.producer_epoch,
            known.last_sequence,
            known.current_transaction_first_offset is not None,
            known.coordinator_epoch,
        )


def check_produced(
    producers: Mapping[int, ProducerState],
    appended: Sequence[ProducerBatch],
    *,
    batch_count: int | None = None,
    path: str | None = None,
) -> DuplicateAppend | None:
    """Check the records that producers append in one call, in order.

    ``batch_count`` is the number of all batches, also those without a producer. If it is None, ``appended`` is one append
    of any number of consecutive batches.

    Returns:
        The position of the same records if the log already has all of them, so that they must not be appended again;
        otherwise None.

    Raises:
        InvalidProducerEpochError: A newer epoch of the producer is known.
        OutOfOrderSequenceError: Records are missing in between, or the log already has some of them.
        InvalidTxnStateError: They belong to no transaction, and the producer has an open one.
        TransactionCoordinatorFencedError: A coordinator with a higher epoch wrote the last marker.
    """
    progress: dict[int, _Progress] = {}
    duplicates: list[DuplicateAppend] = []
    for records in appended:
        producer_id = records.producer_id
        known = producers.get(producer_id)
        duplicate = None
        if known is not None and records.last_sequence != _NONE:
            duplicate = _find_duplicate(known, records, is_batch=batch_count is not None)
        if duplicate is not None:
            duplicates.append(duplicate)
            continue
        now = progress.get(producer_id)
        if now is None:
            now = progress[producer_id] = _Progress.of(known)
        if records.marker is None:
            _advance(now, records, path)
        else:
            _end_transaction(now, records, records.marker, path)
    if not duplicates:
        return None
    return _joined(duplicates, batch_count or 1, path)


def check_replicated(
    producers: Mapping[int, ProducerState], batches: Sequence[ProducerBatch], *, path: str | None = None
) -> None:
    """Check replicated batches: during a transaction, a producer may write only transactional batches.

    Raises:
        InvalidTxnStateError: A producer wrote another batch.
    """
    in_transaction: dict[int, bool] = {}
    for batch in batches:
        producer_id = batch.producer_id
        is_open = in_transaction.get(producer_id)
        if is_open is None:
            known = producers.get(producer_id)
            is_open = known is not None and known.current_transaction_first_offset is not None
        if batch.marker is not None:
            in_transaction[producer_id] = False
            continue
        if is_open and not batch.is_transactional:
            raise InvalidTxnStateError(
                f"Expected only transactional records from producer {producer_id}, which has an open transaction, "
                f"found a batch with offsets {batch.base_offset} to {batch.last_offset} that is not transactional. No "
                "broker loads a log with such a batch.",
                producer_id=producer_id,
                path=path,
                offset=batch.base_offset,
                last_offset=batch.last_offset,
            )
        in_transaction[producer_id] = is_open or batch.is_transactional


def check_marker(
    known: ProducerState | _Progress | None,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    *,
    transaction_version: int = 1,
    path: str | None = None,
) -> None:
    """Check a marker that ends a producer's transaction. A producer that is not known may have any.

    Raises:
        InvalidProducerEpochError: Its epoch is too low.
        TransactionCoordinatorFencedError: A coordinator with a higher epoch wrote the last marker.
    """
    if known is None:
        return
    lowest_epoch = known.producer_epoch + (transaction_version >= _EPOCH_PER_TRANSACTION)
    if producer_epoch < lowest_epoch:
        raise InvalidProducerEpochError(
            f"Expected a marker with an epoch of at least {lowest_epoch} for producer {producer_id}, found "
            f"{producer_epoch}. Another marker has already ended the transaction.",
            producer_id=producer_id,
            path=path,
        )
    if coordinator_epoch < known.coordinator_epoch:
        raise TransactionCoordinatorFencedError(
            f"Expected a marker with a coordinator epoch of at least {known.coordinator_epoch}, that of the last marker "
            f"of producer {producer_id}, found {coordinator_epoch}. A newer coordinator has taken over.",
            producer_id=producer_id,
            path=path,
        )


def _find_duplicate(
    known: ProducerState, records: ProducerBatch, *, is_batch: bool
) -> DuplicateAppend | None:
    """Find the same records, which begin and end like remembered batches.

    Returns:
        Their position, or None if the log does not remember them.
    """
    if known.producer_epoch != records.producer_epoch:
        return None
    batches, first_sequence = list(known.batches), records.first_sequence
    # After a coordinator's records, which have no numbers, a client starts at 0 again, so several batches may match.
    for start, batch in enumerate(batches):
        if batch.first_sequence == first_sequence:
            duplicate = _duplicate_from(batches, start, records, is_batch=is_batch)
            if duplicate is not None:
                return duplicate
    return None


def _duplicate_from(
    batches: list[BatchMetadata], start: int, records: ProducerBatch, *, is_batch: bool
) -> DuplicateAppend | None:
    latest = last = batches[start]
    for number in range(start, start + 1 if is_batch else len(batches)):
        batch = batches[number]
        follows = (last.last_offset + 1, next_sequence(last.last_sequence))
        if number > start and (batch.first_offset, batch.first_sequence) != follows:
            return None
        last = batch
        if batch.timestamp_ms > latest.timestamp_ms:
            latest = batch
        if batch.last_sequence == records.last_sequence:
            return DuplicateAppend(
                batches[start].first_offset, batch.last_offset, latest.timestamp_ms, latest.last_offset
            )
    return None


def _advance(now: _Progress, records: ProducerBatch, path: str | None) -> None:
    producer_id, epoch = records.producer_id, records.producer_epoch
    if epoch < now.producer_epoch:
        raise InvalidProducerEpochError(
            f"Expected records of producer {producer_id} with an epoch of at least {now.producer_epoch}, found "
            f"{epoch}. A newer instance of the producer has taken over: stop this one.",
            producer_id=producer_id,
            path=path,
        )
    has_sequence = records.last_sequence != _NONE
    if has_sequence and now.producer_epoch != _NONE:
        expected = next_sequence(now.last_sequence) if epoch == now.producer_epoch else 0
        if records.first_sequence != expected:
            raise OutOfOrderSequenceError(
                f"Expected sequence number {expected} next from producer {producer_id} in epoch {epoch}, found "
                f"{records.first_sequence} to {records.last_sequence}, which matches no remembered append. If the numbers are "
                "above, append the missing records first; if they are below, the log already has the records.",
                producer_id=producer_id,
                expected_sequence=expected,
                path=path,
            )
    if now.in_transaction and not records.is_transactional:
        raise InvalidTxnStateError(
            f"Expected only transactional records from producer {producer_id}, which has an open transaction, found "
            "others. End the transaction first, or append them as another producer.",
            producer_id=producer_id,
            path=path,
        )
    now.producer_epoch, now.last_sequence = epoch, records.last_sequence
    now.in_transaction = now.in_transaction or records.is_transactional


def _end_transaction(
    now: _Progress, records: ProducerBatch, marker: EndTransactionMarker, path: str | None
) -> None:
    epoch, coordinator_epoch = records.producer_epoch, marker.coordinator_epoch
    check_marker(now, records.producer_id, epoch, coordinator_epoch, path=path)
    if epoch != now.producer_epoch:
        now.producer_epoch, now.last_sequence = epoch, _NONE
    now.coordinator_epoch, now.in_transaction = coordinator_epoch, False


def _joined(duplicates: list[DuplicateAppend], batch_count: int, path: str | None) -> DuplicateAppend:
    """Join duplicates, if all of the append are duplicates and their offsets are consecutive."""
    are_in_a_row = all(left.last_offset + 1 == right.first_offset for left, right in pairwise(duplicates))
    if len(duplicates) < batch_count or not are_in_a_row:
        raise OutOfOrderSequenceError(
            f"Expected {batch_count} batches that are all new, or all consecutive duplicates, found {len(duplicates)} "
            f"duplicate(s), up to offset {duplicates[-1].last_offset}. Append them one by one.",
            path=path,
        )
    latest = max(duplicates, key=lambda each: each.timestamp_ms)
    return DuplicateAppend(
        duplicates[0].first_offset,
        duplicates[-1].last_offset,
        latest.timestamp_ms,
        latest.offset_of_timestamp,
    )
