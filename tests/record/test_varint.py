from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.record.varint import (
    VARINT_LIMIT_BYTES,
    VARLONG_LIMIT_BYTES,
    WORD_RANGE,
    MalformedVarintError,
    VarintCursor,
    read_varint,
    read_varints,
    varint_bytes,
    varint_lengths,
    varint_words,
    words_of,
)
from tests.record.encoding import varint

# As Kafka's ByteUtils writes them.
VARINTS = {
    0: "00",
    -1: "01",
    1: "02",
    63: "7e",
    -64: "7f",
    64: "8001",
    -65: "8101",
    8191: "fe7f",
    -8192: "ff7f",
    8192: "808001",
    -8193: "818001",
    1048575: "feff7f",
    -1048576: "ffff7f",
    1048576: "80808001",
    -1048577: "81808001",
    134217727: "feffff7f",
    -134217728: "ffffff7f",
    134217728: "8080808001",
    2147483647: "feffffff0f",
    -2147483648: "ffffffff0f",
}
VARLONGS = VARINTS | {
    17179869183: "feffffff7f",
    17179869184: "808080808001",
    2**63 - 1: "feffffffffffffffff01",
    -(2**63): "ffffffffffffffffff01",
}
LIMITS = [VARINT_LIMIT_BYTES, VARLONG_LIMIT_BYTES]


def borders(bits):
    """Zero, and every power of two up to ``bits`` with its neighbours, of both signs."""
    values = {0, 1, -1}
    for bit in range(bits):
        values |= {sign * (1 << bit) + step for sign in (1, -1) for step in (-1, 0, 1)}
    return sorted(value for value in values if -(1 << bits - 1) <= value < 1 << bits - 1)


def read_column(encodings, limit_bytes):
    """Read consecutive encodings; check where each ends; return the values."""
    data = b"".join(encodings)
    ends = np.cumsum([len(encoding) for encoding in encodings])
    starts = ends - [len(encoding) for encoding in encodings]
    buffer = np.frombuffer(data + b"\xff" * 16, np.uint8)
    values, found_ends = read_varints(buffer, starts, limit_bytes)
    assert found_ends.tolist() == ends.tolist()
    return values.tolist()


WIDTHS = [(VARINT_LIMIT_BYTES, VARINTS), (VARLONG_LIMIT_BYTES, VARLONGS)]
VECTORS = [(limit_bytes, value, text) for limit_bytes, vectors in WIDTHS for value, text in vectors.items()]


@pytest.mark.parametrize(("limit_bytes", "value", "text"), VECTORS)
def test_a_value_is_read_and_written_as_kafka_does(limit_bytes, value, text):
    encoding = bytes.fromhex(text)
    assert varint(value) == varint_bytes(value) == encoding
    assert read_varint(encoding, 0, limit_bytes) == (value, len(encoding))
    assert read_column([encoding], limit_bytes) == [value]


@pytest.mark.parametrize(("bits", "limit_bytes"), [(32, VARINT_LIMIT_BYTES), (64, VARLONG_LIMIT_BYTES)])
def test_every_length_and_its_borders(bits, limit_bytes):
    values = borders(bits)
    encodings = [varint(value) for value in values]
    assert {len(encoding) for encoding in encodings} == set(range(1, limit_bytes + 1))
    assert [read_varint(encoding, 0, limit_bytes)[0] for encoding in encodings] == values
    assert read_column(encodings, limit_bytes) == values


@pytest.mark.parametrize("limit_bytes", LIMITS)
def test_every_encoding_of_one_and_two_bytes(limit_bytes):
    values = list(range(-8192, 8192))
    assert read_column([varint(value) for value in values], limit_bytes) == values


@pytest.mark.parametrize("limit_bytes", LIMITS)
@pytest.mark.parametrize("value", [0, -1, 1, 63, -64, 64, 300, -300, 2**31 - 1, -(2**31)])
def test_longer_than_needed_is_accepted(value, limit_bytes):
    encodings = [varint(value, width) for width in range(1, limit_bytes + 1)]
    assert read_column(encodings, limit_bytes) == [value] * limit_bytes
    assert [read_varint(encoding, 0, limit_bytes) for encoding in encodings] == [
        (value, len(encoding)) for encoding in encodings
    ]


@pytest.mark.parametrize(
    ("text", "limit_bytes", "value"),
    [
        # The fifth byte has room for 4 of its 7 bits, the tenth for 1.
        ("ffffffff7f", VARINT_LIMIT_BYTES, -(2**31)),
        ("feffffff7f", VARINT_LIMIT_BYTES, 2**31 - 1),
        ("8080808070", VARINT_LIMIT_BYTES, 0),
        ("ffffffffffffffffff7f", VARLONG_LIMIT_BYTES, -(2**63)),
        ("8080808080808080807e", VARLONG_LIMIT_BYTES, 0),
    ],
)
def test_bits_that_do_not_fit_the_last_byte_are_dropped(text, limit_bytes, value):
    encoding = bytes.fromhex(text)
    assert read_varint(encoding, 0, limit_bytes) == (value, limit_bytes)
    assert read_column([encoding], limit_bytes) == [value]


@pytest.mark.parametrize("limit_bytes", LIMITS)
@pytest.mark.parametrize("others", [0, 1, 100])
def test_a_last_byte_that_announces_more_is_refused(limit_bytes, others):
    encoding = b"\xff" * limit_bytes + b"\x01"
    with pytest.raises(MalformedVarintError, match=f"longer than {limit_bytes} bytes"):
        read_varint(encoding, 0, limit_bytes)
    with pytest.raises(MalformedVarintError, match=f"longer than {limit_bytes} bytes"):
        read_column([b"\0"] * others + [encoding], limit_bytes)


@pytest.mark.parametrize("limit_bytes", LIMITS)
@pytest.mark.parametrize("size_bytes", [0, 1, 2, 4])
def test_an_integer_that_the_data_cuts_off_is_refused(limit_bytes, size_bytes):
    with pytest.raises(MalformedVarintError, match="cut off"):
        read_varint(b"\x80" * size_bytes, 0, limit_bytes)


@pytest.mark.parametrize("size_bytes", [0, 1, 2, 3])
def test_a_column_that_leads_out_of_the_buffer_is_refused(size_bytes):
    buffer = np.full(size_bytes, 0x80, np.uint8)
    with pytest.raises(IndexError):
        read_varints(buffer, np.zeros(1, np.int64), VARINT_LIMIT_BYTES)


def test_a_value_may_be_read_from_the_middle():
    assert read_varint(b"\xff\xff\x80\x01\xff", 2, VARINT_LIMIT_BYTES) == (64, 4)
    assert read_varint(memoryview(b"\xff\xff\x80\x01\xff"), 2, VARINT_LIMIT_BYTES) == (64, 4)


def test_a_column_of_no_values_is_empty():
    values, ends = read_varints(np.zeros(16, np.uint8), np.zeros(0, np.int64), VARINT_LIMIT_BYTES)
    assert (len(values), len(ends)) == (0, 0)


def test_reading_changes_neither_buffer_nor_positions():
    data = varint(300) + varint(5) + bytes(16)
    buffer = np.frombuffer(data, np.uint8).copy()
    positions = np.array([0, 2], np.int64)
    read_varints(buffer, positions, VARINT_LIMIT_BYTES)
    assert buffer.tobytes() == data
    assert positions.tolist() == [0, 2]


@pytest.mark.parametrize("limit_bytes", LIMITS)
@pytest.mark.parametrize("long_share", [0, 1, 10, 50, 99, 100])
def test_few_and_many_long_values_among_short_ones(limit_bytes, long_share):
    for long_value in (64, -8193, 2**20, 2**27, -(2**31)):
        values = [long_value if number % 100 < long_share else number % 63 for number in range(400)]
        assert read_column([varint(value) for value in values], limit_bytes) == values


integers = st.one_of(st.integers(-70, 70), st.integers(-(2**31), 2**31 - 1))
longs = st.one_of(integers, st.integers(-(2**63), 2**63 - 1))


@pytest.mark.parametrize(
    ("limit_bytes", "values"), [(VARINT_LIMIT_BYTES, integers), (VARLONG_LIMIT_BYTES, longs)]
)
@given(data=st.data())
def test_any_column(limit_bytes, values, data):
    column = data.draw(st.lists(st.tuples(values, st.integers(1, limit_bytes)), min_size=1, max_size=40))
    encodings = [varint(value, width) for value, width in column]
    assert read_column(encodings, limit_bytes) == [value for value, _ in column]


@given(st.binary(min_size=1, max_size=24), st.sampled_from(LIMITS))
def test_any_bytes_read_alike_one_at_a_time_and_by_column(data, limit_bytes):
    buffer = np.frombuffer(data + b"\xff" * 16, np.uint8)
    for position in range(len(data)):
        try:
            expected = read_varint(buffer.data, position, limit_bytes)
        except MalformedVarintError:
            with pytest.raises(MalformedVarintError):
                read_varints(buffer, np.array([position]), limit_bytes)
        else:
            values, ends = read_varints(buffer, np.array([position]), limit_bytes)
            assert (values[0], ends[0]) == expected


def cursor_of(data, positions, *, with_words=False):
    buffer = np.frombuffer(data + b"\xff" * 16, np.uint8)
    positions = np.array(positions, np.int64)
    return VarintCursor(buffer, positions, words_of(buffer)[positions] if with_words else None)


@pytest.mark.parametrize("with_words", [False, True])
@pytest.mark.parametrize("values", [(5,), (-1, 64, 3), (300, -300, 70, 80), (8192, 1, 2**20, 2, 2**62, 9)])
def test_a_cursor_reads_one_after_another(values, with_words):
    data = b"".join(varint(value) for value in values)
    cursor = cursor_of(data, [0], with_words=with_words)
    assert [cursor.read(VARLONG_LIMIT_BYTES).tolist() for _ in values] == [[value] for value in values]
    assert cursor.positions.tolist() == [len(data)]


def test_a_cursor_skips_a_byte_and_a_length_each():
    for with_words in (False, True):
        cursor = cursor_of(b"\x04?\x06abc\x08\x02?\x0aabcde\x0c", [0, 7], with_words=with_words)
        assert cursor.read(VARINT_LIMIT_BYTES).tolist() == [2, 1]
        cursor.skip_byte()
        lengths = cursor.read(VARINT_LIMIT_BYTES)
        assert lengths.tolist() == [3, 5]
        cursor.skip(lengths)
        assert cursor.read(VARINT_LIMIT_BYTES).tolist() == [4, 6]
        assert cursor.positions.tolist() == [7, 16]


@pytest.mark.parametrize("limit_bytes", LIMITS)
def test_a_cursor_refuses_a_last_byte_that_announces_more(limit_bytes):
    for before in range(10):
        cursor = cursor_of(bytes(before) + b"\xff" * limit_bytes + b"\1", [0, 0])
        for _ in range(before):
            cursor.read(limit_bytes)
        with pytest.raises(MalformedVarintError):
            cursor.read(limit_bytes)


def test_a_cursor_does_not_leave_the_buffer():
    cursor = VarintCursor(np.zeros(16, np.uint8), np.array([0, 9]))
    with pytest.raises(IndexError):
        cursor.read(VARINT_LIMIT_BYTES)


# Per row: what is read, what is skipped. All rows go through the same steps.
steps = st.lists(st.sampled_from(["varint", "varlong", "byte", "bytes"]), min_size=1, max_size=12)


@given(steps, st.integers(1, 6), st.booleans(), st.data())
def test_a_cursor_takes_any_steps(kinds, row_count, with_words, data):
    encoded, starts, ends, expected = b"", [], [], []
    for _ in range(row_count):
        starts.append(len(encoded))
        values = []
        for kind in kinds:
            if kind == "byte":
                encoded += data.draw(st.binary(min_size=1, max_size=1))
            elif kind == "bytes":
                text = data.draw(st.binary(max_size=10))
                encoded += varint(len(text)) + text
            else:
                value = data.draw(integers if kind == "varint" else longs)
                encoded += varint(value, data.draw(st.integers(1, 5)))
                values.append(value)
        ends.append(len(encoded))
        expected.append(values)
    cursor = cursor_of(encoded, starts, with_words=with_words)
    found = []
    for kind in kinds:
        if kind == "byte":
            cursor.skip_byte()
        elif kind == "bytes":
            cursor.skip(cursor.read(VARINT_LIMIT_BYTES))
        else:
            found.append(
                cursor.read(VARINT_LIMIT_BYTES if kind == "varint" else VARLONG_LIMIT_BYTES).tolist()
            )
    assert [list(row) for row in zip(*found, strict=True)] == (expected if found else [])
    assert cursor.positions.tolist() == ends


# -- Encoding --------

BORDERS = sorted(
    {sign * (64 << 7 * power) + step for power in range(9) for sign in (1, -1) for step in (-1, 0, 1)} | {0}
)
int64 = st.integers(-(2**63), 2**63 - 1)
words_range = st.integers(WORD_RANGE.start, WORD_RANGE.stop - 1)


def words_as_bytes(values):
    words, lengths = varint_words(np.array(values, np.int64))
    pairs = zip(words.tolist(), np.broadcast_to(lengths, len(values)).tolist(), strict=True)
    return [word.to_bytes(8, "little")[:length] for word, length in pairs if word < 1 << 8 * length]


@given(int64)
def test_any_value_is_written_as_by_hand(value):
    assert varint_bytes(value) == varint(value)


@pytest.mark.parametrize(
    ("value", "wrapped"), [(2**63, -(2**63)), (-(2**63) - 1, 2**63 - 1), (2**64 - 1, -1)]
)
def test_a_value_beyond_64_bits_wraps_as_in_java(value, wrapped):
    assert varint_bytes(value) == varint(wrapped)


@pytest.mark.parametrize("copies", [1, 100], ids=["few", "many"])
def test_lengths_by_column(copies):
    values = [*VARLONGS, *BORDERS] * copies
    assert varint_lengths(np.array(values, np.int64)).tolist() == [len(varint(value)) for value in values]


@given(st.lists(int64, max_size=5))
def test_lengths_of_any_values(values):
    assert varint_lengths(np.array(values, np.int64)).tolist() == [len(varint(value)) for value in values]


def test_words_by_column():
    values = [value for value in [*VARLONGS, *BORDERS] if value in WORD_RANGE]
    assert words_as_bytes(values) == [varint(value) for value in values]
    assert max(len(varint(value)) for value in values) == 8


@given(st.lists(words_range, max_size=5) | st.lists(st.integers(-64, 63), max_size=5))
def test_words_of_any_values(values):
    assert words_as_bytes(values) == [varint(value) for value in values]


def test_the_range_of_words_is_that_of_8_bytes():
    assert len(varint(WORD_RANGE.start)) == len(varint(WORD_RANGE.stop - 1)) == 8
    assert len(varint(WORD_RANGE.start - 1)) == len(varint(WORD_RANGE.stop)) == 9
