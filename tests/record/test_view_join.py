from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.record.arrow_columns import ByteStrings
from storage_core.record.batch_header import gather
from storage_core.record.column_encode import ShortBytes, ViewJoiner

INLINE = 12

short = st.binary(max_size=INLINE)
strings = st.one_of(st.none(), st.binary(max_size=14), st.binary(min_size=50, max_size=60))


def short_column(contents):
    """Bytes in two words, the first byte lowest."""
    return ShortBytes(
        np.array([int.from_bytes(content[:8], "little") for content in contents], np.uint64),
        np.array([int.from_bytes(content[8:], "little") for content in contents], np.uint64),
        np.array([len(content) for content in contents], np.int64),
    )


def string_column(contents, *, before=b""):
    """Byte strings in one buffer with nothing after them."""
    lengths = np.array([-1 if content is None else len(content) for content in contents], np.int64)
    sizes = np.maximum(lengths, 0)
    data = before + b"".join(content or b"" for content in contents)
    return ByteStrings(np.frombuffer(data, np.uint8), np.cumsum(sizes) - sizes + len(before), lengths)


@given(st.lists(st.tuples(short, strings, short, strings), max_size=8), short)
def test_rows_are_joined_piece_by_piece(rows, last):
    first, second, third, fourth = zip(*rows, strict=True) if rows else ((), (), (), ())
    columns = [
        short_column(first),
        string_column(second),
        short_column(third),
        string_column(fourth, before=b"junk"),
    ]
    joined = ViewJoiner().join(len(rows), columns, last)
    expected = b"".join(a + (b or b"") + c + (d or b"") for a, b, c, d in rows) + last
    assert bytes(joined) == expected


def test_a_single_value_applies_to_all_rows():
    joined = ViewJoiner().join(3, [short_column([b"abcdefghij"]), string_column([b"1", None, b"3"])])
    assert bytes(joined) == b"abcdefghij1abcdefghijabcdefghij3"


def test_joined_bytes_do_not_change_with_the_next_call():
    joiner = ViewJoiner()
    first = joiner.join(3, [short_column([b"a", b"b", b"c"]), string_column([b"x" * 20] * 3)])
    second = joiner.join(1, [short_column([b"d"])], b"e")
    assert bytes(first) == b"a" + b"x" * 20 + b"b" + b"x" * 20 + b"c" + b"x" * 20
    assert bytes(second) == b"de"


# -- Gathering --------


BUFFER = np.arange(20, dtype=np.uint8)


def test_items_of_any_type_at_any_places():
    positions = np.array([3, 0, 16, 3])
    assert gather(BUFFER, positions, np.dtype(">i4")).tolist() == [
        0x03040506,
        0x00010203,
        0x10111213,
        0x03040506,
    ]
    pair = np.dtype([("first", "u1"), ("second", ">u2")])
    assert gather(BUFFER, positions, pair).tolist() == [(3, 0x0405), (0, 0x0102), (16, 0x1112), (3, 0x0405)]
    assert gather(BUFFER, np.array([17, 1]), np.dtype((np.uint8, 3))).tolist() == [[17, 18, 19], [1, 2, 3]]


@pytest.mark.parametrize("size_bytes", [0, 3, 4, 20])
def test_nothing_is_found_at_no_places(size_bytes):
    assert gather(BUFFER[:size_bytes], np.zeros(0, np.int64), np.dtype(">i4")).tolist() == []


@pytest.mark.parametrize(("size_bytes", "position"), [(20, 17), (4, 1), (3, 0), (0, 0)])
def test_an_item_beyond_the_end_is_refused(size_bytes, position):
    with pytest.raises(IndexError):
        gather(BUFFER[:size_bytes], np.array([position]), np.dtype(">i4"))
