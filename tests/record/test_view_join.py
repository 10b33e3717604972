from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from storage_core.record.arrow_columns import ByteStrings
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
