from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from storage_core.errors import BatchTooLargeError, CorruptRecordError
from storage_core.record.batch_header import parse_batch_header
from storage_core.record.control_records import ControlType, control_type, empty_batch, end_transaction_marker
from tests.record import golden
from tests.record.encoding import (
    CODECS,
    CONTROL,
    Batch,
    Record,
    compress,
)
from tests.record.golden import ABORT_MARKER, COMMIT_MARKER, EMPTY
from tests.record.sections import PATH, window_of
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


def test_an_empty_batch_is_that_of_kafka_but_for_its_producer():
    batch = empty_batch(15, 37, leader_epoch=15, max_timestamp_ms=1700000000000)
    expected = window_of(EMPTY.data).headers
    found = window_of(bytes_of([batch])).headers
    others = {"crc", "producer_id", "producer_epoch", "base_sequence"}
    assert {*found.dtype.names} > others
    for name in {*found.dtype.names} - others:
        assert found[name] == expected[name], name
    assert (found["producer_id"], found["producer_epoch"], found["base_sequence"]) == (-1, -1, -1)
    assert (batch.base_offset, batch.next_offset, batch.count) == (15, 38, 1)


# -- Types of control records --------


def type_of(data, position_bytes=0):
    return control_type(data, parse_batch_header(data, 0, position_bytes, path=PATH), path=PATH)


def control_batch(key, **fields):
    return Batch((Record(key=key, value=b""),), attributes=CONTROL, **fields)


def test_the_leader_change_of_a_quorum():
    assert type_of(golden.LEADER_CHANGE.data) is ControlType.LEADER_CHANGE


def test_the_numbers_of_the_types():
    names = [
        "ABORT",
        "COMMIT",
        "LEADER_CHANGE",
        "SNAPSHOT_HEADER",
        "SNAPSHOT_FOOTER",
        "KRAFT_VERSION",
        "KRAFT_VOTERS",
    ]
    for number, name in enumerate(names):
        assert type_of(control_batch(struct.pack(">hh", 0, number)).encode()) is ControlType[name]


@pytest.mark.parametrize("number", [7, 8, 100, 32767, -1, -2, -32768])
def test_a_type_of_a_later_version_is_unknown_and_no_error(number):
    assert type_of(control_batch(struct.pack(">hh", 0, number)).encode()) is ControlType.UNKNOWN


@pytest.mark.parametrize("version", [1, 2, 32767])
def test_a_key_of_a_later_version_is_read_the_same(version):
    key = struct.pack(">hh", version, 1)
    assert type_of(control_batch(key).encode()) is ControlType.COMMIT
    assert type_of(control_batch(key + b"and more").encode()) is ControlType.COMMIT


@pytest.mark.parametrize("key", [None, b"", b"\0", b"\0\0\0"])
def test_a_key_below_four_bytes_is_damage(key):
    length = -1 if key is None else len(key)
    data = control_batch(key, base_offset=40).encode()
    with pytest.raises(CorruptRecordError, match=f"found a key of {length} bytes\\. ") as raised:
        type_of(data, 1000)
    error = raised.value
    assert (error.path, error.position_bytes, error.end_position_bytes) == (PATH, 1000, 1000 + len(data))
    assert (error.offset, error.last_offset) == (40, 40)


@pytest.mark.parametrize("version", [-1, -32768])
def test_a_negative_version_is_damage(version):
    with pytest.raises(CorruptRecordError, match=f"a key of 4 bytes with version {version}"):
        type_of(control_batch(struct.pack(">hh", version, 1)).encode())


def test_a_batch_that_compaction_emptied_has_no_type():
    empty = Batch(attributes=CONTROL, last_offset_delta=0)
    assert type_of(empty.encode()) is None


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_control_batch_may_be_compressed(codec):
    assert type_of(control_batch(b"\0\0\0\1", codec=codec).encode()) is ControlType.COMMIT


def test_the_first_of_several_records_counts():
    records = (Record(0, key=b"\0\0\0\0"), Record(1, key=b"\0\0\0\1"))
    assert type_of(Batch(records, attributes=CONTROL).encode()) is ControlType.ABORT


def test_records_that_are_wrong_are_damage():
    batch = control_batch(b"\0\0\0\1")
    for bad in (replace(batch, count=-1), replace(batch, count=2), replace(batch, records_bytes=b"\0")):
        with pytest.raises(CorruptRecordError):
            type_of(bad.encode())


def test_a_control_batch_that_inflates_beyond_a_mebibyte_is_refused():
    bomb = control_batch(b"\0\0\0\1", codec=1, payload=compress(1, bytes(2 << 20)))
    with pytest.raises(BatchTooLargeError):
        type_of(bomb.encode())
