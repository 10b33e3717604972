from __future__ import annotations

import numpy as np
import pytest

from storage_core.errors import CorruptRecordError
from storage_core.log.producer_batches import ProducerBatches
from storage_core.record.batch_window import walk_window
from storage_core.record.control_records import EndTransactionMarker
from storage_core.record.record_batches import RecordBatches
from storage_core.record.section import PADDING_BYTES
from tests.log.producing import ABORT, data, emptied, marker, transactional
from tests.record import golden
from tests.record.encoding import CONTROL, TRANSACTIONAL, Batch, Record
from tests.record.legacy_encoding import Message

PATH = "/logs/orders-0/00000000000000000000.log"
LARGEST_SEQUENCE = 2147483647


def of_record_batches(*batches):
    return ProducerBatches.of_record_batches(RecordBatches.parse(b"".join(batches)), path=PATH)


def of_window(*batches):
    joined = b"".join(batches)
    buffer = np.frombuffer(joined + bytes(PADDING_BYTES), np.uint8)
    return ProducerBatches.of_window(walk_window(PATH, 1000, buffer, len(joined)))


BOTH = pytest.mark.parametrize("taken", [of_record_batches, of_window])


@BOTH
def test_data_and_markers_in_order(taken):
    found = taken(
        data(10, 3, producer=7, epoch=2, sequence=40, timestamp_ms=5),
        transactional(13, producer=8, timestamp_ms=6),
        marker(14, producer=8, kind=ABORT, epoch=1, timestamp_ms=7, coordinator_epoch=4),
    )
    assert [tuple(batch) for batch in found.batches] == [
        (7, 2, 10, 42, 12, 2, 5, False, None),
        (8, 0, 13, 0, 13, 0, 6, True, None),
        (8, 1, 14, -1, 14, 0, 7, True, EndTransactionMarker(is_abort=True, coordinator_epoch=4)),
    ]
    assert found.next_offset == 15


@BOTH
def test_what_says_nothing_of_a_producer_is_left_out(taken):
    found = taken(
        Message(offset=0).encode(),
        data(1),
        data(2, producer=0),
        emptied(3, producer=4, attributes=TRANSACTIONAL | CONTROL),
        data(9),
    )
    assert [batch.base_offset for batch in found.batches] == [2]
    assert found.next_offset == 10


@BOTH
def test_without_producers_only_the_offset_remains(taken):
    assert taken(data(3)) == ProducerBatches((), 4)
    assert taken(data(3), data(5, 10)) == ProducerBatches((), 15)


@BOTH
def test_an_emptied_data_batch_still_tells_the_sequence(taken):
    found = taken(golden.EMPTY.data)
    assert [tuple(batch) for batch in found.batches] == [
        (23423, 145, 15, 983 + 22, 37, 22, 1_700_000_000_000, False, None)
    ]
    assert found.next_offset == 38


@BOTH
def test_after_the_largest_sequence_follows_0(taken):
    found = taken(
        data(0, 1, producer=1, sequence=LARGEST_SEQUENCE),
        data(1, 2, producer=1, sequence=LARGEST_SEQUENCE),
        data(3, 8, producer=1, sequence=LARGEST_SEQUENCE - 2),
        data(11, 3, producer=1, sequence=LARGEST_SEQUENCE - 2),
        data(14, 3, producer=1, sequence=-1),
    )
    assert [batch.last_sequence for batch in found.batches] == [
        LARGEST_SEQUENCE,
        0,
        4,
        LARGEST_SEQUENCE,
        -1,
    ]


@BOTH
def test_control_batches_that_end_no_transaction_are_left_out(taken):
    leader_change = Batch(
        (Record(key=b"\0\0\0\2", value=b""),), attributes=CONTROL, producer_id=3, base_offset=1
    ).encode()
    found = taken(data(0, producer=3), leader_change, data(2, producer=3, sequence=1))
    assert [batch.base_offset for batch in found.batches] == [0, 2]


@pytest.mark.parametrize(("taken", "position_bytes"), [(of_record_batches, 0), (of_window, 1000)])
def test_a_malformed_marker_is_reported_with_its_position(taken, position_bytes):
    first = data(4)
    bad = Batch(
        (Record(key=b"\0", value=b""),), base_offset=5, attributes=TRANSACTIONAL | CONTROL, producer_id=3
    ).encode()
    with pytest.raises(CorruptRecordError, match="found a key of 1 bytes") as raised:
        taken(first, bad)
    assert raised.value.path == PATH
    assert raised.value.position_bytes == position_bytes + len(first)
    assert raised.value.offset == 5


def test_no_batches_say_nothing():
    assert of_window() == ProducerBatches((), None)
    assert of_record_batches() == ProducerBatches((), None)


@pytest.mark.parametrize(
    "batch",
    [
        data(4),
        data(4, 3, producer=7, epoch=9, sequence=5, timestamp_ms=77),
        data(4, 3, producer=7, sequence=LARGEST_SEQUENCE),
        data(4, 3, producer=7, sequence=-1),
        transactional(4, producer=0),
        marker(4, producer=7, kind=ABORT),
        emptied(4, producer=7, attributes=TRANSACTIONAL | CONTROL),
        golden.EMPTY.data,
        Message(offset=4).encode(),
    ],
)
def test_one_batch_alone_says_the_same_as_beside_others(batch):
    alone = of_record_batches(batch)
    assert alone == of_window(batch)
    beside_others = of_record_batches(batch, data(100))
    assert alone.batches == beside_others.batches
    assert [[type(value) for value in each] for each in alone.batches] == [
        [type(value) for value in each] for each in beside_others.batches
    ]
