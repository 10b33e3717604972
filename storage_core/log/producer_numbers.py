"""The numbers by which producers and leaders are known: ids, epochs, sequence numbers, and how far each of them goes."""

from __future__ import annotations

from typing import Final

from storage_core.errors import OptionError
from storage_core.record.batch_encode import NO_PRODUCER, SEQUENCES, ProducerSequence

__all__ = [
    "LARGEST_EPOCH",
    "check_coordinator_epoch",
    "check_leader_epoch",
    "check_producer_epoch",
    "check_producer_id",
    "check_producer_sequence",
    "next_sequence",
]

LARGEST_EPOCH: Final = (1 << 15) - 1
_LARGEST_ID: Final = (1 << 63) - 1
# Of a coordinator, and of a leader.
_LARGEST_INT32_EPOCH: Final = (1 << 31) - 1


def next_sequence(last_sequence: int) -> int:
    """The sequence number behind another; 0 behind -1, which stands for none."""
    return (last_sequence + 1) % SEQUENCES


def check_producer_sequence(producer: object, *, has_sequence: bool = True) -> None:
    """Refuse what does not number a producer's records, or names a number where there must be none."""
    if not isinstance(producer, ProducerSequence):
        raise OptionError(f"Expected a ProducerSequence as producer, found {type(producer).__name__}.")
    check_producer_id(producer.producer_id)
    check_producer_epoch(producer.producer_epoch)
    if has_sequence:
        _require_in_range("a sequence number", producer.base_sequence, SEQUENCES - 1)
    elif producer.base_sequence != NO_PRODUCER.base_sequence:
        raise OptionError(
            f"Expected a sequence number of -1, because a coordinator's records have none, found "
            f"{producer.base_sequence!r}."
        )


def check_producer_id(producer_id: object) -> None:
    """Refuse what is no producer id."""
    _require_in_range("a producer id", producer_id, _LARGEST_ID)


def check_producer_epoch(producer_epoch: object) -> None:
    """Refuse what is no producer epoch."""
    _require_in_range("a producer epoch", producer_epoch, LARGEST_EPOCH)


def check_coordinator_epoch(coordinator_epoch: object) -> None:
    """Refuse what is no coordinator epoch."""
    _require_in_range("a coordinator epoch", coordinator_epoch, _LARGEST_INT32_EPOCH)


def check_leader_epoch(leader_epoch: object) -> None:
    """Refuse what is no leader epoch."""
    _require_in_range("a leader epoch", leader_epoch, _LARGEST_INT32_EPOCH)


def _require_in_range(what: str, number: object, largest: int) -> None:
    if not isinstance(number, int) or not 0 <= number <= largest:
        raise OptionError(f"Expected {what} from 0 to {largest}, found {number!r}.")
