"""What a producer may append: epochs, sequence numbers, repetitions, transactions."""

from __future__ import annotations

import pytest

from storage_core import ProducerSequence
from storage_core.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OptionError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from storage_core.log.producer_append_info import (
    DuplicateAppend,
    check_coordinator_epoch,
    check_marker,
    check_produced,
    check_producer_epoch,
    check_producer_id,
    check_producer_sequence,
    next_sequence,
)
from storage_core.log.producer_batches import BatchMetadata, ProducerBatch, ProducerState
from tests.log.logs import table

LARGEST = 2147483647


def known(*batches, epoch=0, coordinator_epoch=-1, first_offset=None):
    """Producer 7 with batches of (first sequence, last sequence, first offset)."""
    state = ProducerState(7, epoch, coordinator_epoch, 0, first_offset)
    for first, last, offset in batches:
        delta = (last - first) % (LARGEST + 1)
        state.batches.append(BatchMetadata(last, offset + delta, delta, 1000 + offset))
    return {7: state}


def records(first_sequence, count=1, *, epoch=0, producer=7, is_transactional=False):
    last_sequence = -1 if first_sequence < 0 else (first_sequence + count - 1) % (LARGEST + 1)
    return ProducerBatch(producer, epoch, -1, last_sequence, -1, count - 1, -1, is_transactional, None)


def check(producers, *appended, is_each_a_batch=True):
    of_producers = [each for each in appended if each.producer_id >= 0]
    return check_produced(producers, of_producers, batch_count=len(appended) if is_each_a_batch else None)


# -- The sequence --------


@pytest.mark.parametrize("sequence", [0, 1, 12345, LARGEST])
def test_an_unknown_producer_may_begin_anywhere(sequence):
    assert check({}, records(sequence)) is None


def test_records_follow_the_last_ones():
    assert check(known((0, 4, 0)), records(5, 3)) is None


def test_a_gap_is_refused():
    with pytest.raises(
        OutOfOrderSequenceError, match=r"Expected sequence number 5 next .* found 6 to 6"
    ) as caught:
        check(known((0, 4, 0)), records(6))
    assert (caught.value.producer_id, caught.value.expected_sequence) == (7, 5)


@pytest.mark.parametrize(("first", "count"), [(0, 4), (1, 4), (0, 6), (4, 1), (4, 3), (3, 2)])
def test_a_repetition_of_a_part_is_refused(first, count):
    with pytest.raises(OutOfOrderSequenceError) as caught:
        check(known((0, 4, 0)), records(first, count))
    assert caught.value.expected_sequence == 5


def test_after_the_largest_number_follows_zero():
    producers = known((LARGEST - 1, LARGEST, 0))
    assert check(producers, records(0)) is None
    for wrong in (1, LARGEST):
        with pytest.raises(OutOfOrderSequenceError) as caught:
            check(producers, records(wrong))
        assert caught.value.expected_sequence == 0


def test_a_batch_may_go_over_the_largest_number():
    assert records(LARGEST - 1, 4).last_sequence == 1
    producers = known((LARGEST - 1, 1, 10))
    assert check(producers, records(2)) is None
    assert check(producers, records(LARGEST - 1, 4)) == DuplicateAppend(10, 13, 1010, 13)


def test_a_new_epoch_begins_at_zero():
    producers = known((0, 4, 0), epoch=3)
    assert check(producers, records(0, epoch=4)) is None
    assert check(producers, records(0, epoch=9)) is None
    with pytest.raises(OutOfOrderSequenceError) as caught:
        check(producers, records(5, epoch=4))
    assert caught.value.expected_sequence == 0


def test_after_a_marker_that_began_an_epoch_numbers_begin_at_zero():
    assert check(known(epoch=4), records(0, epoch=4)) is None
    with pytest.raises(OutOfOrderSequenceError):
        check(known(epoch=4), records(5, epoch=4))


@pytest.mark.parametrize("sequence", [0, 5])
def test_an_older_epoch_is_fenced(sequence):
    with pytest.raises(InvalidProducerEpochError, match="at least 3, found 2") as caught:
        check(known((0, 4, 0), epoch=3), records(sequence, epoch=2))
    assert caught.value.producer_id == 7


def test_other_producers_do_not_matter():
    assert check(known((0, 4, 0)), records(900, producer=8)) is None
    assert check(known((0, 4, 0)), records(-1, producer=-1, epoch=-1)) is None


def test_batches_that_no_producer_numbers_are_not_looked_at():
    assert check(known((0, 4, 0)), *[records(3, producer=-1, epoch=epoch) for epoch in (5, 5, 4)]) is None


def test_batches_of_one_append_follow_one_another():
    assert (
        check(known((0, 4, 0)), records(5), records(6, 4), records(0, epoch=1), records(1, epoch=1)) is None
    )
    assert check({}, records(5), records(100, producer=8), records(6), records(101, producer=8)) is None
    with pytest.raises(OutOfOrderSequenceError) as caught:
        check({}, records(5), records(7))
    assert caught.value.expected_sequence == 6
    with pytest.raises(InvalidProducerEpochError):
        check({}, records(0, epoch=1), records(0, epoch=0))


# -- Repetitions --------

FIVE = [(0, 4, 100), (5, 5, 105), (6, 9, 200), (10, 19, 204), (20, 20, 300)]


@pytest.mark.parametrize(("first", "last", "offset"), FIVE)
def test_each_of_the_last_five_batches_is_known_again(first, last, offset):
    found = check(known(*FIVE), records(first, last - first + 1))
    assert found == DuplicateAppend(offset, offset + last - first, 1000 + offset, offset + last - first)


def test_of_several_that_begin_with_the_same_number_each_is_known_again():
    """A coordinator has written in between, without numbers."""
    batches = [(0, 4, 100), (-1, -1, 105), (0, 0, 106), (1, 2, 107)]
    assert check(known(*batches), records(0, 5)) == DuplicateAppend(100, 104, 1100, 104)
    assert check(known(*batches), records(0)) == DuplicateAppend(106, 106, 1106, 106)
    assert check(known(*batches), records(0, 3), is_each_a_batch=False) == DuplicateAppend(
        106, 108, 1107, 108
    )


def test_but_not_under_another_epoch():
    with pytest.raises(OutOfOrderSequenceError):
        check(known(*FIVE), records(20, epoch=1))


def test_two_batches_are_no_repetition_of_one():
    with pytest.raises(OutOfOrderSequenceError):
        check(known(*FIVE), records(0, 6))


def test_records_in_several_consecutive_batches_are():
    assert check(known(*FIVE), records(0, 6), is_each_a_batch=False) == DuplicateAppend(100, 105, 1105, 105)
    assert check(known(*FIVE), records(6, 14), is_each_a_batch=False) == DuplicateAppend(200, 213, 1204, 213)
    # Others are between them.
    with pytest.raises(OutOfOrderSequenceError):
        check(known(*FIVE), records(5, 5), is_each_a_batch=False)
    with pytest.raises(OutOfOrderSequenceError):
        check(known(*FIVE), records(0, 20), is_each_a_batch=False)


def test_several_batches_are_a_repetition_if_all_are():
    producers = known(*FIVE)
    assert check(producers, records(0, 5), records(5)) == DuplicateAppend(100, 105, 1105, 105)
    for appended in (
        (records(20), records(21)),
        (records(21), records(20)),
        (records(20), records(-1, producer=-1, epoch=-1)),
        (records(5), records(6, 4)),
    ):
        with pytest.raises(OutOfOrderSequenceError):
            check(producers, *appended)


# -- Transactions --------


def test_only_a_transaction_is_taken_while_one_is_open():
    producers = known((0, 4, 0), first_offset=0)
    assert check(producers, records(5, is_transactional=True)) is None
    with pytest.raises(InvalidTxnStateError) as caught:
        check(producers, records(5))
    assert caught.value.producer_id == 7
    with pytest.raises(InvalidTxnStateError):
        check(known((0, 4, 0)), records(5, is_transactional=True), records(6))


def test_a_marker_of_an_unknown_producer_is_taken():
    check_marker(None, 7, 0, 0, transaction_version=1)
    check_marker(None, 7, 0, 0, transaction_version=2)


@pytest.mark.parametrize(("version", "lowest"), [(1, 3), (2, 4)])
def test_the_epoch_of_a_marker(version, lowest):
    state = known((0, 4, 0), epoch=3, first_offset=0)[7]
    check_marker(state, 7, lowest, 0, transaction_version=version)
    check_marker(state, 7, lowest + 5, 0, transaction_version=version)
    with pytest.raises(
        InvalidProducerEpochError, match=f"at least {lowest} for producer 7, found {lowest - 1}"
    ):
        check_marker(state, 7, lowest - 1, 0, transaction_version=version)


def test_a_coordinator_that_was_replaced_is_fenced():
    state = known((0, 4, 0), coordinator_epoch=11, first_offset=0)[7]
    check_marker(state, 7, 0, 11, transaction_version=1)
    check_marker(state, 7, 0, 12, transaction_version=1)
    with pytest.raises(
        TransactionCoordinatorFencedError, match=r"coordinator epoch of at least 11, .* found 10"
    ):
        check_marker(state, 7, 0, 10, transaction_version=1)


# -- Numbers --------


@pytest.mark.parametrize(
    ("last", "expected"), [(-1, 0), (0, 1), (41, 42), (LARGEST - 1, LARGEST), (LARGEST, 0)]
)
def test_the_number_after_another(last, expected):
    assert next_sequence(last) == expected


@pytest.mark.parametrize(
    ("check", "largest"),
    [
        (check_producer_id, 9223372036854775807),
        (check_producer_epoch, 32767),
        (check_coordinator_epoch, LARGEST),
        (lambda number: check_producer_sequence(ProducerSequence(0, 0, number)), LARGEST),
    ],
)
def test_how_far_they_go(check, largest):
    check(0)
    check(largest)
    for wrong in (-1, largest + 1, 0.5, None):
        with pytest.raises(OptionError, match=f"from 0 to {largest}, found {wrong}"):
            check(wrong)


@pytest.mark.parametrize(
    ("producer", "message"),
    [
        (ProducerSequence(-1, 0, 0), "a producer id from 0 to 9223372036854775807, found -1"),
        (ProducerSequence(1 << 63, 0, 0), "a producer id from 0"),
        (ProducerSequence(7, -1, 0), "a producer epoch from 0 to 32767, found -1"),
        (ProducerSequence(7, 32768, 0), "a producer epoch from 0"),
        (ProducerSequence(7, 0, -1), "a sequence number from 0 to 2147483647, found -1"),
        (ProducerSequence(7, 0, LARGEST + 1), "a sequence number from 0"),
        (ProducerSequence("7", 0, 0), "a producer id from 0 to 9223372036854775807, found '7'"),
        ((7, 0, 0), "Expected a ProducerSequence as producer, found tuple"),
    ],
)
def test_what_is_no_producer_is_refused(log, producer, message):
    with pytest.raises(OptionError, match=message):
        log.append(table(b"v"), producer=producer)
    assert log.log_end_offset == 0
