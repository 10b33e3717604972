from __future__ import annotations

import pytest

from storage_core.record.batch_header import parse_batch_header
from storage_core.record.control_records import ControlType, control_type, empty_batch, end_transaction_marker
from storage_core.record.record_batches import ProducerSequence
from tests.record.encoding import CONTROL, DELETE_HORIZON, LOG_APPEND_TIME, TRANSACTIONAL, ZSTD
from tests.record.golden import ABORT_MARKER, COMMIT_MARKER, EMPTY
from tests.record.sections import window_of
from tests.record.written import bytes_of


def marker(kind, **changes):
    fields = {
        "producer_id": 4000,
        "producer_epoch": 7,
        "coordinator_epoch": 11,
        "timestamp_ms": 1700000000000,
        "base_offset": 100,
        "leader_epoch": 3,
    }
    return bytes_of([end_transaction_marker(kind, **{**fields, **changes})])


def test_markers_are_those_of_kafka_byte_for_byte():
    assert marker(ControlType.COMMIT) == COMMIT_MARKER.data
    assert marker(ControlType.ABORT) == ABORT_MARKER.data


@pytest.mark.parametrize("kind", [ControlType.COMMIT, ControlType.ABORT])
def test_a_marker_is_read_as_what_it_is(kind):
    data = marker(kind, base_offset=0, leader_epoch=-1)
    header = parse_batch_header(data, 0, 0, path="")
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4000, 7, -1)
    assert control_type(data, header, path="") == kind


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (ControlType.LEADER_CHANGE, {}),
        (ControlType.UNKNOWN, {}),
        (ControlType.COMMIT, {"producer_id": -1}),
        (ControlType.COMMIT, {"producer_epoch": -1}),
    ],
)
def test_a_marker_needs_an_end_and_a_producer(kind, changes):
    with pytest.raises(ValueError, match="Expected COMMIT or ABORT"):
        marker(kind, **changes)


def test_an_empty_batch_is_that_of_kafka_byte_for_byte():
    batch = empty_batch(
        15, 37, leader_epoch=15, max_timestamp_ms=1700000000000, producer=ProducerSequence(23423, 145, 983)
    )
    assert bytes_of([batch]) == EMPTY.data
    assert len(EMPTY.data) == 61
    assert (batch.base_offset, batch.next_offset, batch.count) == (15, 38, 1)


def test_an_empty_batch_keeps_what_its_attributes_say_of_the_producer():
    kept = TRANSACTIONAL | CONTROL | LOG_APPEND_TIME
    batch = empty_batch(0, 0, leader_epoch=0, max_timestamp_ms=-1, attributes=kept | DELETE_HORIZON | ZSTD)
    assert window_of(bytes_of([batch])).headers["attributes"].tolist() == [kept]
