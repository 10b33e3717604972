from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.record.batch_window import walk_messages
from tests.record.legacy_encoding import Message


def walk(data, start=0, end=None):
    places = []
    stop = walk_messages(np.frombuffer(data, np.uint8), start, len(data) if end is None else end, places)
    return places, stop


def walk_plainly(data, position=0):
    """Return the same, as the format says."""
    places = []
    while position + 17 <= len(data):
        length, magic = struct.unpack_from(">i4xb", data, position + 8)
        if magic not in (0, 1) or length < (14, 22)[magic] or position + 12 + length > len(data):
            break
        places.append(position)
        position += 12 + length
    return places, position


def messages(*value_sizes, magic=1):
    return b"".join(
        Message(number, 5, None, b"v" * size, magic).encode() for number, size in enumerate(value_sizes)
    )


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("count", [0, 1, 47, 48, 49, 255, 256, 257, 2048, 2049, 5000])
def test_equal_messages(magic, count):
    data = messages(*[7] * count, magic=magic)
    size = len(data) // count if count else 0
    assert walk(data) == ([size * number for number in range(count)], len(data))
    # Another message after them, of another size or format.
    for last in (messages(8, magic=magic), messages(7, magic=1 - magic)):
        places, stop = walk(data + last)
        assert (len(places), stop) == (count + 1, len(data + last))


@pytest.mark.parametrize("count", [1, 48, 300, 3000])
def test_a_partial_message_at_the_end_is_ignored(count):
    data = messages(*[7] * count)
    size = len(data) // count
    for cut in range(1, size + 1):
        places, stop = walk(data[:-cut])
        assert (len(places), stop) == (count - 1, size * (count - 1))


@pytest.mark.parametrize("count", [1, 60, 700])
@pytest.mark.parametrize("after", [b"\xff" * 40, bytes(40), messages(5)[:16] + b"\2" + messages(5)[17:]])
def test_what_is_no_message_ends_the_walk(count, after):
    data = messages(*[7] * count)
    places, stop = walk(data + after)
    assert (len(places), stop) == (count, len(data))


def test_a_walk_begins_and_ends_where_it_is_told():
    data = messages(*[7] * 200)
    size = len(data) // 200
    places, stop = walk(data, size * 3, size * 150 + 5)
    assert places == [size * number for number in range(3, 150)]
    assert stop == size * 150


def test_messages_of_all_sizes():
    sizes = [number * 37 % 300 for number in range(3000)]
    assert walk(messages(*sizes)) == walk_plainly(messages(*sizes))


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 1), st.sampled_from([1, 1, 1, 50, 300])), max_size=12
    ),
    st.binary(max_size=40),
    st.integers(0, 30),
)
def test_any_messages_with_anything_after(runs, junk, cut):
    data = b"".join(Message(1, 5, None, b"v" * size, magic).encode() * count for size, magic, count in runs)
    data = data[: max(len(data) - cut, 0)] + junk
    assert walk(data) == walk_plainly(data)
