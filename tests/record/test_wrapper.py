from __future__ import annotations

import struct

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.record.compression import Decompressor, UndecodableError, wrapper_payload
from tests.record.encoding import GZIP, LZ4, SNAPPY
from tests.record.legacy_encoding import (
    LZ4_CHECKSUM,
    LZ4_CHECKSUM_OF_V0,
    Message,
    entry,
    lz4_frame,
)

PAYLOAD = b"whatever a codec makes"


def payload_of(data, magic, codec):
    return bytes(wrapper_payload(memoryview(data), magic, codec))


def message(magic, content, codec=GZIP):
    """Return a message whose key, value and what follows are given as bytes."""
    return entry(0, magic, codec, bytes(8 * magic) + content)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("key", [None, b"", b"key"])
@pytest.mark.parametrize("trailing", [b"", b"trailing"])
def test_the_payload_is_the_value(magic, key, trailing):
    for value in (PAYLOAD, b""):
        data = Message(key=key, value=value, magic=magic, trailing=trailing).encode()
        assert payload_of(data, magic, GZIP) == value
        assert payload_of(data, magic, SNAPPY) == value


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("length", [4, 100, 2**31 - 1])
def test_a_value_that_does_not_fit_is_refused(magic, length):
    data = message(magic, struct.pack(">ii", -1, length) + b"abc")
    with pytest.raises(UndecodableError, match=f"value of {length} bytes does not fit"):
        payload_of(data, magic, GZIP)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("length", [1, 4, 100, 2**31 - 1])
def test_a_key_that_does_not_fit_is_refused(magic, length):
    with pytest.raises(UndecodableError, match=f"key of {length} bytes does not fit"):
        payload_of(message(magic, struct.pack(">i", length) + bytes(4)), magic, GZIP)


@given(st.integers(0, 1), st.integers(1, 7), st.binary(min_size=8, max_size=40))
def test_any_content_is_taken_or_refused(magic, codec, content):
    data = message(magic, content)
    try:
        payload = payload_of(data, magic, codec)
    except UndecodableError:
        return
    assert codec == LZ4 or payload in data


# -- The checksum of an LZ4 frame's descriptor --------


def decompressed(payload, size_bytes=1 << 20):
    output = memoryview(bytearray(size_bytes))
    return bytes(output[: Decompressor().decompress_into(LZ4, memoryview(payload), output)])


def test_in_v0_the_checksum_of_early_clients_is_put_right():
    broken, right = lz4_frame(PAYLOAD, LZ4_CHECKSUM_OF_V0), lz4_frame(PAYLOAD, LZ4_CHECKSUM)
    assert broken != right
    with pytest.raises(UndecodableError):
        decompressed(broken)
    assert payload_of(Message(value=broken, magic=0).encode(), 0, LZ4) == right
    assert decompressed(right) == PAYLOAD


@pytest.mark.parametrize("checksum", range(0, 256, 17))
def test_in_v0_any_checksum_will_do(checksum):
    frame = lz4_frame(PAYLOAD, checksum)
    assert payload_of(Message(value=frame, magic=0).encode(), 0, LZ4) == lz4_frame(PAYLOAD, LZ4_CHECKSUM)


def test_in_v1_the_checksum_is_left_as_it_is():
    frame = lz4_frame(PAYLOAD, LZ4_CHECKSUM_OF_V0)
    assert payload_of(Message(value=frame).encode(), 1, LZ4) == frame


@pytest.mark.parametrize("block_size", [0x40, 0x50, 0x60, 0x70])
@pytest.mark.parametrize("content_size", [0, 1, 22, 255, 256, 1000, 65_536])
def test_the_checksum_covers_the_block_size_and_a_content_size(block_size, content_size):
    content = PAYLOAD * 3000
    content = content[:content_size]
    blocks = lz4_frame(content)[7:]
    for descriptor in (
        bytes([0x60, block_size]),
        bytes([0x68, block_size]) + struct.pack("<Q", content_size),
    ):
        frame = b"\x04\x22\x4d\x18" + descriptor + b"\0" + blocks
        # The library that decompresses refuses a wrong checksum.
        mended = payload_of(Message(value=frame, magic=0).encode(), 0, LZ4)
        assert decompressed(mended) == content
        with pytest.raises(UndecodableError):
            decompressed(with_checksum(mended, 4 + len(descriptor)))


def with_checksum(frame, position):
    """Return the frame with another checksum than it has."""
    return frame[:position] + bytes([frame[position] ^ 0x55]) + frame[position + 1 :]


@pytest.mark.parametrize("content", [b"", PAYLOAD, PAYLOAD * 9000])
def test_a_right_checksum_stays_right(content):
    frame = bytes(cramjam.lz4.compress(content))
    assert payload_of(Message(value=frame, magic=0).encode(), 0, LZ4) == frame


def test_a_truncated_frame_is_left_unchanged():
    frame = lz4_frame(PAYLOAD)
    for size_bytes in range(7):
        stub = frame[:size_bytes]
        assert payload_of(Message(value=stub, magic=0).encode(), 0, LZ4) == stub


def test_a_dictionary_is_unknown_to_kafka():
    frame = bytearray(lz4_frame(PAYLOAD, LZ4_CHECKSUM_OF_V0))
    frame[4] |= 0x01
    frame[6:6] = b"\x01\x02\x03\x04"
    mended = payload_of(Message(value=bytes(frame), magic=0).encode(), 0, LZ4)
    with pytest.raises(UndecodableError):
        decompressed(mended)
