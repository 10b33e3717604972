"""The numbers by which producers are known."""

from __future__ import annotations

import pytest

from storage_core import ProducerSequence
from storage_core.errors import OptionError
from storage_core.log.producer_append_info import (
    check_coordinator_epoch,
    check_producer_epoch,
    check_producer_id,
    check_producer_sequence,
    next_sequence,
)
from tests.log.logs import table

LARGEST = 2147483647


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
