from __future__ import annotations

import struct
from itertools import product

import numpy as np
import pytest
from crc32c import crc32c

from storage_core.errors import CorruptRecordError
from storage_core.record.batch_header import (
    HEADER_DTYPE,
    MESSAGE_DTYPE,
    batch_crc_matches,
    parse_batch_header,
    unpack_message,
)
from tests.record import golden
from tests.record.encoding import (
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Batch,
    counted_records,
    with_header_field,
)
from tests.record.golden_legacy import LEGACY
from tests.record.legacy_encoding import Message, Wrapper, plain_messages

PATH = "/logs/orders-0/00000000000000000000.log"
MAX_INT = 2**31 - 1

# Field -> (position, struct code, a value that no other field has).
FIELDS = {
    "base_offset": (0, "q", 2**62 + 1),
    "leader_epoch": (12, "i", 2**30 + 2),
    "crc": (17, "I", 2**32 - 3),
    "attributes": (21, "h", 0x7F04),
    "last_offset_delta": (23, "i", 2**30 + 5),
    "base_timestamp_ms": (27, "q", -(2**60) - 6),
    "max_timestamp_ms": (35, "q", 2**60 + 7),
    "producer_id": (43, "q", 2**61 + 8),
    "producer_epoch": (51, "h", -9),
    "base_sequence": (53, "i", MAX_INT - 10),
    "record_count": (57, "i", -11),
}


def parse(data, start=0, position_bytes=0):
    return parse_batch_header(data, start, position_bytes, path=PATH)


def test_the_crc_is_castagnolis():
    assert crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("name", FIELDS)
def test_each_field_stands_where_the_format_says(name):
    data = Batch(counted_records(1)).encode()
    position, code, value = FIELDS[name]
    changed = with_header_field(data, position, code, value)
    before, after = parse(data), parse(changed)
    assert getattr(after, name) == value != getattr(before, name)
    others = FIELDS.keys() - {name}
    assert [getattr(after, other) for other in others] == [getattr(before, other) for other in others]
    assert np.frombuffer(changed, HEADER_DTYPE, 1)[name] == value


def test_a_header_may_stand_anywhere_in_the_bytes():
    data = golden.TRANSACTIONAL.data
    header = parse(b"before" + data, 6, 4_000_000_000)
    assert (header.position_bytes, header.end_position_bytes) == (4_000_000_000, 4_000_000_000 + len(data))
    assert header == parse(memoryview(data), 0, 4_000_000_000)


def test_a_transactional_batch():
    header = parse(golden.TRANSACTIONAL.data)
    assert header.size_bytes == len(golden.TRANSACTIONAL.data) == 101
    assert (header.base_offset, header.last_offset, header.next_offset) == (1234567, 1234569, 1234570)
    assert (header.leader_epoch, header.magic, header.record_count) == (9, 2, 3)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4000, 7, 42)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (1700000000000, 1700000000005)
    assert header.is_transactional
    assert not header.is_control


def test_markers_are_transactional_control_batches_without_a_sequence():
    for marker in (golden.COMMIT_MARKER, golden.ABORT_MARKER):
        header = parse(marker.data)
        assert header.is_control
        assert header.is_transactional
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4000, 7, -1)


def test_the_delete_horizon_stands_in_place_of_the_base_timestamp():
    header = parse(golden.DELETE_HORIZON.data)
    assert header.attributes & DELETE_HORIZON
    assert (header.base_timestamp_ms, header.max_timestamp_ms, header.leader_epoch) == (1024, 15, 998)
    assert (header.base_offset, header.last_offset, header.record_count) == (0, 2, 2)


def test_a_broker_moves_a_batch_without_touching_its_crc():
    before, after = parse(golden.APPEND_TIME.data), parse(golden.MOVED.data)
    assert before.crc == after.crc == 0xDC91CF77
    assert (before.last_offset, before.leader_epoch) == (1, -1)
    assert (after.last_offset, after.leader_epoch) == (500, 5)
    assert batch_crc_matches(golden.MOVED.data)


@pytest.mark.parametrize("flags", list(product([False, True], repeat=4)), ids=str)
def test_every_combination_of_attributes(flags):
    masks = (LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON)
    attributes = sum(mask for flag, mask in zip(flags, masks, strict=True) if flag)
    # Nothing has a meaning in the high byte, and bit 7 none in the low one.
    for codec, unused in product(range(8), (0, 0x0080, 0x7F00, 0x8000, 0xFF80)):
        header = parse(with_header_field(golden.CREATE_TIME.data, 21, "H", attributes | codec | unused))
        assert header.codec == codec
        assert flags[1:3] == (header.is_transactional, header.is_control)
        assert header.attributes & 0x7F == attributes | codec | unused & 0x7F


@pytest.mark.parametrize("name", golden.GOLDEN)
def test_the_crc_of_a_golden_batch_matches(name):
    assert batch_crc_matches(golden.GOLDEN[name].data)


def test_the_crcs_that_kafka_states():
    crcs = {codec: parse(golden.TWO_RECORDS[codec].data).crc for codec in ("none", "lz4")}
    assert crcs == {"none": 3851219455, "lz4": 2745969314}


@pytest.mark.parametrize(
    "view", [bytes, bytearray, memoryview, lambda data: memoryview(np.frombuffer(data, "i1"))]
)
def test_the_crc_is_computed_of_any_kind_of_bytes(view):
    assert batch_crc_matches(view(golden.TRANSACTIONAL.data))


def test_the_crc_covers_every_bit_behind_it_and_itself():
    data = golden.TRANSACTIONAL.data
    for position in range(17, len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            assert not batch_crc_matches(changed)


def test_the_crc_covers_neither_base_offset_nor_leader_epoch():
    data = bytearray(golden.TRANSACTIONAL.data)
    data[0:8] = b"\x11" * 8
    data[12:16] = b"\x22" * 4
    assert batch_crc_matches(data)


@pytest.mark.parametrize("magic", [3, 4, 127, -1, -128])
def test_an_unknown_magic_is_damage(magic):
    data = with_header_field(golden.CREATE_TIME.data, 16, "b", magic)
    with pytest.raises(CorruptRecordError, match=f"to be 0, 1 or 2, found {magic}") as raised:
        parse(data, 0, 512)
    assert (raised.value.path, raised.value.position_bytes) == (PATH, 512)


@pytest.mark.parametrize("length", [48, 14, 13, 0, -1, -(2**31)])
def test_a_length_below_that_of_a_header_is_damage(length):
    data = with_header_field(golden.CREATE_TIME.data, 8, "i", length)
    with pytest.raises(CorruptRecordError, match=f"at least 49 bytes, found {length}") as raised:
        parse(data, 0, 512)
    assert (raised.value.path, raised.value.position_bytes) == (PATH, 512)


@pytest.mark.parametrize("length", [49, MAX_INT])
def test_the_shortest_and_the_longest_length_are_taken(length):
    data = with_header_field(golden.CREATE_TIME.data, 8, "i", length)
    assert parse(data).size_bytes == length + 12


def test_offsets_near_the_end_of_their_range():
    data = Batch(counted_records(1), 2**63 - 1, last_offset_delta=0).encode()
    assert parse(data).last_offset == 2**63 - 1
    assert parse(data).next_offset == 2**63


# -- Messages of older formats --------


# Each field has a value of its own; what follows them must not matter.
MESSAGE_FIELDS = struct.pack(">qiIbBq", 2**62 + 1, 2**30 + 2, 2**32 - 3, 1, 0xF9, -(2**60) - 4)


def test_each_field_of_a_message_stands_where_the_format_says():
    fields = (2**62 + 1, 2**30 + 2, 2**32 - 3, 1, 0xF9, -(2**60) - 4)
    assert unpack_message(MESSAGE_FIELDS, 0) == fields
    assert unpack_message(b"\xee" * 7 + MESSAGE_FIELDS + b"\xee", 7) == fields


def test_messages_of_v0_have_no_timestamp():
    data = bytearray(MESSAGE_FIELDS)
    data[16] = 0
    assert unpack_message(data, 0)[3:] == (0, 0xF9, -1)


def test_by_column_the_fields_are_the_same():
    row = np.frombuffer(MESSAGE_FIELDS, MESSAGE_DTYPE)[0]
    assert tuple(row.tolist()) == unpack_message(MESSAGE_FIELDS, 0)


@pytest.mark.parametrize("magic", [0, 1])
def test_a_plain_message_is_a_batch_of_its_own(magic):
    data = Message(2**40, 1234, b"k", b"v", magic).encode()
    header = parse(b"x" * 5 + data, 5, 512)
    timestamp_ms = 1234 if magic else -1
    assert (header.position_bytes, header.size_bytes) == (512, len(data))
    assert (header.base_offset, header.last_offset, header.next_offset) == (2**40, 2**40, 2**40 + 1)
    assert (header.magic, header.record_count, header.codec) == (magic, 1, 0)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (timestamp_ms, timestamp_ms)
    absent = (header.leader_epoch, header.producer_id, header.producer_epoch, header.base_sequence)
    assert absent == (-1, -1, -1, -1)
    assert not header.is_wrapper


@pytest.mark.parametrize("name", LEGACY)
def test_golden_messages_of_older_formats(name):
    golden_set = LEGACY[name]
    start = 0
    for crc in golden_set.crcs:
        header = parse(golden_set.data, start)
        assert header.crc == crc
        assert batch_crc_matches(golden_set.data[start : header.end_position_bytes + start])
        start += header.size_bytes
    assert start == len(golden_set.data)
    assert header.last_offset == golden_set.rows[-1][0]
    assert header.is_wrapper == (len(golden_set.crcs) < len(golden_set.rows))
    assert bool(header.attributes & LOG_APPEND_TIME) == ("append" in name)


@pytest.mark.parametrize(("magic", "meaning"), [(0, 0x07), (1, 0x0F)])
def test_attributes_without_a_meaning_in_older_formats_are_left_out(magic, meaning):
    for attributes in range(256):
        header = parse(Message(magic=magic, attributes=attributes).encode())
        assert header.attributes == attributes & meaning
        assert [header.is_transactional, header.is_control] == [False] * 2


@pytest.mark.parametrize(("magic", "minimum"), [(0, 14), (1, 22)])
@pytest.mark.parametrize("missing", [1, 8, 14, 100])
def test_a_length_below_that_of_the_shortest_message_is_damage(magic, minimum, missing):
    data = Message(magic=magic).encode(length=minimum - missing)
    with pytest.raises(
        CorruptRecordError, match=f"at least {minimum} bytes, found {minimum - missing}"
    ) as raised:
        parse(data, 0, 512)
    assert (raised.value.path, raised.value.position_bytes) == (PATH, 512)


@pytest.mark.parametrize("magic", [0, 1])
def test_no_more_is_read_than_the_shortest_message_has(magic):
    data = Message(7, 9, None, None, magic).encode()
    assert parse(data).last_offset == 7
    assert parse(data + b"\xff" * 40) == parse(data)


@pytest.mark.parametrize("magic", [0, 1])
def test_the_crc_of_a_message_covers_every_bit_behind_it_and_itself(magic):
    data = Message(7, 9, b"key", b"value", magic).encode()
    for position in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            assert batch_crc_matches(changed) == (position < 12)


@pytest.mark.parametrize("magic", [3, 127, 255])
def test_no_crc_of_an_unknown_format_matches(magic):
    changed = bytearray(golden.CREATE_TIME.data)
    changed[16] = magic
    assert not batch_crc_matches(changed)


class TestWrapper:
    """The base offset of a wrapper is known only as a lower bound."""

    HEADER = parse(Wrapper(plain_messages(3, start=2**40 - 2), offset=2**40).encode())

    def offsets(self, header):
        return (header.base_offset, header.last_offset)

    def test_as_it_is_parsed(self):
        assert self.HEADER.is_wrapper
        assert self.offsets(self.HEADER) == (2**40, 2**40)
        assert self.HEADER.record_count == 1

    def test_a_lower_base(self):
        assert self.offsets(self.HEADER.with_base_offset(2**40 - 7)) == (2**40 - 7, 2**40)
        assert self.offsets(self.HEADER.with_base_offset(2**40)) == (2**40, 2**40)

    def test_no_lower_than_a_segment_reaches(self):
        assert self.offsets(self.HEADER.with_base_offset(0)) == (2**40 - MAX_INT, 2**40)

    def test_a_base_above_the_last_offset_changes_nothing(self):
        assert self.HEADER.with_base_offset(2**40 + 1) is self.HEADER

    @pytest.mark.parametrize(
        "data", [Message(8).encode(), Batch(counted_records(2), 8, codec=1).encode()], ids=["v1", "v2"]
    )
    def test_no_other_header_changes(self, data):
        assert parse(data).with_base_offset(3) == parse(data)
