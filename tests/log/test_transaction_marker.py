from __future__ import annotations

import struct

import pytest

from storage_core.errors import CorruptRecordError
from storage_core.record.batch_header import parse_batch_header
from storage_core.record.control_records import EndTransactionMarker, read_marker
from tests.log.producing import ABORT, COMMIT, emptied, marker
from tests.record import golden
from tests.record.encoding import CODECS, CONTROL, TRANSACTIONAL, Batch, Record, compress

PATH = "/logs/orders-0/00000000000000000000.log"


def read(data, position_bytes=0):
    return read_marker(data, parse_batch_header(data, 0, position_bytes, path=PATH), path=PATH)


def control(key, value, **fields):
    record = Record(key=key, value=value, **fields)
    return Batch((record,), attributes=TRANSACTIONAL | CONTROL, producer_id=1, producer_epoch=0).encode()


def key_of(kind, version=0):
    return struct.pack(">hh", version, kind)


def value_of(epoch, version=0):
    return struct.pack(">hi", version, epoch)


def test_markers_as_kafka_writes_them():
    assert read(golden.COMMIT_MARKER.data) == EndTransactionMarker(is_abort=False, coordinator_epoch=11)
    assert read(golden.ABORT_MARKER.data) == EndTransactionMarker(is_abort=True, coordinator_epoch=11)


@pytest.mark.parametrize("epoch", [-1, 0, 2**31 - 1])
@pytest.mark.parametrize("kind", [COMMIT, ABORT])
def test_every_coordinator_epoch(kind, epoch):
    data = marker(100, producer=5, kind=kind, coordinator_epoch=epoch)
    assert read(data) == EndTransactionMarker(kind == ABORT, epoch)


@pytest.mark.parametrize(
    "fields",
    [
        {"timestamp_ms": 7},
        {"headers": ((b"h", b"v"),)},
        {"offset_delta": 1},
    ],
)
def test_records_of_an_unusual_shape(fields):
    data = control(key_of(ABORT), value_of(9), **fields)
    assert read(data) == EndTransactionMarker(is_abort=True, coordinator_epoch=9)


def test_keys_and_values_of_later_versions_go_on_after_what_is_known():
    data = control(key_of(COMMIT, 3) + b"more", value_of(9, 7) + b"more")
    assert read(data) == EndTransactionMarker(is_abort=False, coordinator_epoch=9)


@pytest.mark.parametrize("codec", [code for code in CODECS.values() if code])
def test_a_compressed_marker(codec):
    record = Record(key=key_of(ABORT), value=value_of(9))
    payload = compress(codec, record.encode(0))
    data = Batch((record,), codec=codec, payload=payload, attributes=CONTROL, producer_id=1).encode()
    assert read(data) == EndTransactionMarker(is_abort=True, coordinator_epoch=9)


def test_a_compressed_batch_of_the_usual_size_is_not_taken_unchanged():
    # After the header of a batch marked as compressed come bytes that look like a marker.
    usual = marker(0, producer=1, kind=COMMIT)
    data = Batch(codec=2, payload=usual[61:], attributes=CONTROL, producer_id=1, count=1, last_offset_delta=0)
    with pytest.raises(CorruptRecordError):
        read(data.encode())


def test_a_batch_of_the_usual_size_that_is_cut_short():
    # It counts one header, and ends.
    with pytest.raises(CorruptRecordError):
        read(golden.COMMIT_MARKER.data[:-1] + b"\x02")


def test_what_is_no_end_of_a_transaction():
    assert read(golden.LEADER_CHANGE.data) is None
    assert read(control(key_of(9), value_of(1))) is None
    assert read(emptied(5, attributes=TRANSACTIONAL | CONTROL)) is None


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (b"\0\0\0", value_of(1), "key of 3 bytes"),
        (None, value_of(1), "found a key"),
        (key_of(ABORT, -1), value_of(1), "with version -1"),
        (key_of(ABORT), b"\0\0\0\0\0", "value of 5 bytes"),
        (key_of(ABORT), None, "value of -1 bytes"),
        (key_of(ABORT), value_of(1, -1), "value of 6 bytes with version -1"),
    ],
)
def test_a_malformed_marker(key, value, message):
    with pytest.raises(CorruptRecordError, match=message) as raised:
        read(control(key, value), 4096)
    assert (raised.value.path, raised.value.position_bytes, raised.value.offset) == (PATH, 4096, 0)


@pytest.mark.parametrize("codec", [5, 7])
def test_a_marker_of_an_unknown_codec_is_malformed(codec):
    data = Batch(
        payload=b"?", attributes=CONTROL | codec, producer_id=1, count=1, last_offset_delta=0
    ).encode()
    with pytest.raises(CorruptRecordError, match=f"codec number {codec} is unknown") as raised:
        read(data, 4096)
    assert raised.value.position_bytes == 4096


def test_a_marker_that_inflates_to_more_than_any_marker_is_malformed():
    record = Record(key=key_of(ABORT), value=value_of(9) + bytes(2 << 20))
    payload = compress(CODECS["zstd"], record.encode(0))
    data = Batch((record,), codec=CODECS["zstd"], payload=payload, attributes=CONTROL, producer_id=1).encode()
    with pytest.raises(CorruptRecordError, match="Expected a control record of a few bytes") as raised:
        read(data, 4096)
    assert raised.value.position_bytes == 4096
