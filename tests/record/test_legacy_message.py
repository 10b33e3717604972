from __future__ import annotations

import struct

import numpy as np
import pytest

from storage_core.record.batch_header import MESSAGE_DTYPE, MIN_LENGTH_BY_MAGIC, unpack_message
from tests.record.golden_legacy import LEGACY
from tests.record.legacy_encoding import Message

# Each field has a value of its own; what follows them must not matter.
FIELDS = struct.pack(">qiIbBq", 2**62 + 1, 2**30 + 2, 2**32 - 3, 1, 0xF9, -(2**60) - 4)


def test_each_field_stands_where_the_format_says():
    fields = (2**62 + 1, 2**30 + 2, 2**32 - 3, 1, 0xF9, -(2**60) - 4)
    assert unpack_message(FIELDS, 0) == fields
    assert unpack_message(b"\xee" * 7 + FIELDS + b"\xee", 7) == fields


def test_messages_of_v0_have_no_timestamp():
    data = bytearray(FIELDS)
    data[16] = 0
    assert unpack_message(data, 0)[3:] == (0, 0xF9, -1)


def test_by_column_the_fields_are_the_same():
    row = np.frombuffer(FIELDS, MESSAGE_DTYPE)[0]
    assert tuple(row.tolist()) == unpack_message(FIELDS, 0)


@pytest.mark.parametrize("magic", [0, 1])
def test_the_shortest_message_of_each_format(magic):
    shortest = Message(3, 5, None, None, magic).encode()
    assert len(shortest) == 12 + (14, 22)[magic]
    assert MIN_LENGTH_BY_MAGIC[magic] == (14, 22)[magic]
    # Only what the message has is read.
    assert unpack_message(shortest, 0)[0] == 3


@pytest.mark.parametrize("name", LEGACY)
def test_golden_messages(name):
    golden = LEGACY[name]
    offset, length, crc, magic, attributes, timestamp_ms = unpack_message(golden.data, 0)
    assert crc == golden.crcs[0]
    assert f"v{magic}" == name.split()[0]
    codecs = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "relative": 1, "append time": 8}
    assert attributes == codecs[name.partition(" ")[2]]
    is_plain = len(golden.crcs) > 1 or "append" in name
    assert offset == golden.rows[0 if is_plain else -1][0]
    assert timestamp_ms == max(row[1] for row in golden.rows)
    assert 12 + length == len(golden.data) // len(golden.crcs)
