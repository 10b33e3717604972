from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.record.arrow_columns import HEADERS_TYPE, RecordHeaders, Slices, binary_array, headers_array
from storage_core.record.decode import decode_records
from tests.record.encoding import Batch, Record
from tests.record.sections import EVERYTHING, padded, section_of


def lay_out(texts, *, between=b"", null_length=-1):
    """Return the texts in a buffer, one after the other, and the column that finds them."""
    data = bytearray()
    starts, lengths = [], []
    for text in texts:
        data += between
        starts.append(len(data))
        lengths.append(null_length if text is None else len(text))
        data += text or b""
    return padded(bytes(data)), Slices(np.array(starts, np.int64), np.array(lengths, np.int64))


def assert_comes_out(texts, **layout):
    array = binary_array(*lay_out(texts, **layout))
    array.validate(full=True)
    assert array.type == pa.binary()
    assert array.to_pylist() == texts


# An Arrow view holds up to 12 bytes in itself; up to 65,536 bytes of one length are copied as numpy items.
SIZES = [0, 1, 4, 11, 12, 13, 16, 100, 65_535, 65_536, 65_537]


@pytest.mark.parametrize("size_bytes", SIZES)
@pytest.mark.parametrize("count", [1, 2, 9])
def test_byte_strings_of_one_length(size_bytes, count):
    assert_comes_out([bytes([65 + number]) * size_bytes for number in range(count)], between=b"--")


@pytest.mark.parametrize("size_bytes", SIZES)
@pytest.mark.parametrize("null_length", [-1, -2, -(2**31)])
def test_a_negative_length_is_null(size_bytes, null_length):
    text = b"x" * size_bytes
    assert_comes_out([None, text, None, text], null_length=null_length, between=b"-")
    assert_comes_out([text, None], null_length=null_length)


def test_no_rows():
    assert_comes_out([])


def test_the_buffer_may_end_with_the_last_byte_string():
    for size_bytes in range(14):
        assert_comes_out([b"y" * 30, b"x" * size_bytes])


def test_the_array_owns_its_bytes():
    for texts in ([b"same size", b"same-size"], [b"short", b"a much longer one", None, b""], [b"", b""]):
        buffer, column = lay_out(texts)
        array = binary_array(buffer, column)
        buffer[:] = 0
        assert array.to_pylist() == texts


def test_the_buffer_is_not_changed():
    buffer, column = lay_out([b"short", b"a much longer one", None, b""])
    buffer.flags.writeable = False
    binary_array(buffer, column)


texts = st.lists(st.none() | st.binary(max_size=20) | st.binary(min_size=90, max_size=300), max_size=40)


@given(texts, st.binary(max_size=3), st.integers(-5, -1))
def test_any_column(column, between, null_length):
    assert_comes_out(column, between=between, null_length=null_length)


def headers_of(*records):
    """Return the Arrow headers of records that have these."""
    batch = Batch(tuple(Record(delta, headers=headers) for delta, headers in enumerate(records)))
    section = section_of(batch.encode())
    array = headers_array(section.buffer, decode_records(section, EVERYTHING).headers)
    array.validate(full=True)
    assert array.type == HEADERS_TYPE
    return array.to_pylist()


def test_headers_are_lists_of_keys_and_values():
    headers = (
        (b"name", b"value"),
        ("é☃".encode(), b"\xff\0"),
        (b"", b""),
        (b"null", None),
        (b"name", b"again"),
    )
    assert headers_of(headers) == [
        [
            {"key": "name", "value": b"value"},
            {"key": "é☃", "value": b"\xff\0"},
            {"key": "", "value": b""},
            {"key": "null", "value": None},
            {"key": "name", "value": b"again"},
        ]
    ]


def test_a_record_without_headers_has_null_and_no_empty_list():
    one = ((b"h", b"v"),)
    entry = [{"key": "h", "value": b"v"}]
    assert headers_of((), one, (), (), one, ()) == [None, entry, None, None, entry, None]
    assert headers_of((), ()) == [None, None]
    assert headers_of(one, one) == [entry, entry]


def test_no_records_have_no_headers():
    nothing = Slices(np.zeros(0, np.int64), np.zeros(0, np.int64))
    array = headers_array(padded(b""), RecordHeaders(np.zeros(1, np.int64), nothing, nothing))
    assert (array.type, len(array)) == (HEADERS_TYPE, 0)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b"\xff", "\ufffd"),
        (b"ok\xc3", "ok\ufffd"),
        (b"\xe2\x98", "\ufffd"),
        (b"\xe2\x98a", "\ufffda"),
        (b"\xc0\x80", "\ufffd\ufffd"),
        (b"\xe0\x80\x80", "\ufffd\ufffd\ufffd"),
        (b"\xf0\x9f\x98", "\ufffd"),
        (b"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"),
        (b"\xed\xa0\x80", "\ufffd"),
        (b"\xed\xa0\x80\xed\xb0\x80", "\ufffd\ufffd"),
        (b"\xed\xbfa", "\ufffda"),
        (b"\xed\x9f\xbf", "\ud7ff"),
        (b"a\0b", "a\0b"),
    ],
)
def test_a_header_key_that_is_no_utf8_is_mended_as_java_does(key, text):
    assert headers_of(((key, b"1"), (b"fine", b"2"))) == [
        [{"key": text, "value": b"1"}, {"key": "fine", "value": b"2"}]
    ]
