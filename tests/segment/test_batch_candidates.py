from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.segment.damage_scanner import batch_candidates
from tests.record.encoding import (
    GZIP,
    LZ4,
    TRANSACTIONAL,
    ZSTD,
    Batch,
    counted_records,
    with_header_field,
)
from tests.record.golden import GOLDEN
from tests.record.golden_legacy import LEGACY
from tests.record.legacy_encoding import Message, Wrapper, entry, plain_messages

ENTRIES = {
    **{f"v2 {name}": golden.data for name, golden in GOLDEN.items()},
    **{name: golden.data for name, golden in LEGACY.items() if len(golden.crcs) == 1},
    **{
        f"v{magic} {name}": Message(4, 5, key, value, magic).encode()
        for magic in (0, 1)
        for name, key, value in (
            ("nothing", None, None),
            ("empty", b"", b""),
            ("key", b"k" * 300, None),
            ("value", None, b"v" * 300),
        )
    },
    "v2 attributes": Batch(counted_records(9), 7, codec=ZSTD, attributes=TRANSACTIONAL).encode(),
    # These bits are unused, and a broker accepts them.
    "v0 attributes": Message(4, magic=0, attributes=0xF8).encode(),
    "v1 attributes": Message(4, magic=1, attributes=0xF8).encode(),
    "v1 trailing": Message(4, trailing=b"trailing").encode(),
    "v1 wrapper with a key": Wrapper(plain_messages(2), GZIP, key=b"key").encode(),
}


def candidates(data, *, remaining_bytes=None, **options):
    remaining_bytes = len(data) if remaining_bytes is None else remaining_bytes
    return batch_candidates(np.frombuffer(data, np.uint8), remaining_bytes, **options)


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("after", [0, 1, 35, 60, 500])
def test_every_kind_of_batch_is_found_anywhere(name, after):
    # Nothing but the entry begins with bytes that could be a length.
    for before in (0, 1, 100):
        data = b"\xff" * before + ENTRIES[name] + b"\xff" * after
        assert candidates(data) == [(before, len(ENTRIES[name]))]


def test_batches_of_all_formats_are_found_in_order():
    data = b"".join(ENTRIES.values())
    starts = np.cumsum([0, *map(len, ENTRIES.values())])[:-1]
    expected = {(int(start), len(each)) for start, each in zip(starts, ENTRIES.values(), strict=True)}
    found = candidates(data)
    assert expected <= set(found)
    assert found == sorted(found)


@pytest.mark.parametrize("size_bytes", [0, 1, 16, 17, 25, 26, 60, 61, 62, 1 << 20])
def test_zeros_are_no_candidates(size_bytes):
    assert candidates(bytes(size_bytes)) == []
    assert candidates(bytes(size_bytes), remaining_bytes=1 << 30) == []


def test_random_bytes_hardly_ever_look_like_a_batch():
    noise = random.Random(1).randbytes(1 << 20)
    assert len(candidates(noise, remaining_bytes=1 << 31, largest_bytes=64 << 20)) < 10
    assert len(candidates(noise, remaining_bytes=1 << 31, largest_bytes=1 << 20)) == 0


@pytest.mark.parametrize("batch", [Batch(counted_records(2)), Message(0), Message(0, magic=0)])
def test_a_batch_has_no_negative_offset(batch):
    data = batch.encode()
    assert candidates(data) == [(0, len(data))]
    assert candidates(b"\xff" * 8 + data[8:]) == []


@pytest.mark.parametrize("name", ENTRIES)
def test_a_batch_has_to_end_within_the_file(name):
    data = ENTRIES[name]
    for cut in range(1, len(data)):
        assert candidates(data[:-cut]) == []
    # The block need not hold all of it, only what is as long as a header.
    if len(data) > 100:
        assert candidates(data[:61], remaining_bytes=len(data)) == [(0, len(data))]


@pytest.mark.parametrize("name", ENTRIES)
def test_a_batch_has_to_be_no_larger_than_asked_for(name):
    data = ENTRIES[name]
    assert candidates(data, largest_bytes=len(data)) == [(0, len(data))]
    assert candidates(data, largest_bytes=len(data) - 1) == []


@pytest.mark.parametrize(
    "data",
    [
        with_header_field(GOLDEN["create time"].data, 16, "b", 3),
        with_header_field(GOLDEN["create time"].data, 8, "i", 48),
        with_header_field(GOLDEN["create time"].data, 21, "h", 0x80),
        with_header_field(GOLDEN["create time"].data, 23, "i", -1),
        with_header_field(GOLDEN["create time"].data, 57, "i", -1),
        Message(-1).encode(),
        Message(magic=0).encode(length=13),
        Message(magic=1).encode(length=21),
        Message(attributes=4).encode(),
        Message(attributes=7, magic=0).encode(),
        # Keys and values that are longer than the message, or of a length that is none.
        *(
            entry(0, 0, 0, key + b"\0\0\0\1v")
            for key in (b"\0\0\0\2", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xfe")
        ),
        *(
            entry(0, 0, 0, b"\0\0\0\1k" + value)
            for value in (b"\0\0\0\1", b"\x7f\xff\xff\xff", b"\x80\0\0\0")
        ),
        *(entry(0, 1, 0, bytes(8) + b"\0\0\0\1k" + value) for value in (b"\0\0\0\1", b"\x80\0\0\0")),
    ],
)
def test_what_no_broker_takes_is_no_batch(data):
    assert candidates(data + b"\xff" * 100) == []


def found_in_blocks(data, block_bytes):
    """Search as a file is read: blocks overlap by what may be the beginning of a header."""
    found = []
    for start in range(0, len(data), block_bytes - 60):
        block = data[start : start + block_bytes]
        found += [
            (start + place, size) for place, size in candidates(block, remaining_bytes=len(data) - start)
        ]
        if start + block_bytes >= len(data):
            break
    return found


messages = st.builds(
    Message,
    offset=st.integers(0, 1000),
    key=st.none() | st.binary(max_size=9),
    value=st.none() | st.binary(max_size=90),
    magic=st.integers(0, 1),
)
pieces = st.lists(
    st.one_of(
        messages.map(lambda message: (True, message.encode())),
        st.sampled_from(sorted(ENTRIES)).map(lambda name: (True, ENTRIES[name])),
        st.binary(max_size=50).map(lambda junk: (False, junk)),
        st.integers(0, 200).map(lambda count: (False, bytes(count))),
    ),
    max_size=12,
)


@given(pieces, st.integers(61, 400))
def test_batches_are_found_among_anything_once(pieces, block_bytes):
    data = b"".join(content for _, content in pieces)
    expected, start = set(), 0
    for is_batch, content in pieces:
        if is_batch:
            expected.add((start, len(content)))
        start += len(content)
    found = candidates(data)
    assert expected <= set(found)
    assert all(start + size <= len(data) for start, size in found)
    in_blocks = found_in_blocks(data, block_bytes)
    # Of a key or a value that a block does not reach, less is known: that block may find more.
    assert in_blocks == sorted(set(in_blocks))
    assert set(found) <= set(in_blocks)
    assert expected <= set(in_blocks)


def test_codecs_of_older_formats():
    for codec in (0, GZIP, 2, LZ4):
        assert len(candidates(Message(attributes=codec).encode())) == 1
