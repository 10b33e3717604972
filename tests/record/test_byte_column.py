from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from storage_core.record.arrow_columns import byte_lengths, byte_slices

WORDS = [b"", b"short", None, b"a longer byte string", b"x" * 300]
KINDS = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.string(), pa.large_string(), pa.string_view()]
LENGTHS = [0, 5, -1, 20, 300]


def arrays():
    for kind in KINDS:
        is_text = "string" in str(kind)
        array = pa.array([word.decode() if is_text and word else word for word in WORDS], kind)
        yield str(kind), array
        if not str(kind).endswith("view"):
            yield f"dictionary of {kind}", array.dictionary_encode()
            yield f"dictionary of {kind} with a null", array.dictionary_encode(null_encoding="encode")


ARRAYS = dict(arrays())
every_kind = pytest.mark.parametrize("kind", ARRAYS)


def contents(chunks):
    """What the slices hold; nulls by their lengths."""
    buffer, starts = byte_slices(chunks)
    lengths = byte_lengths(chunks)
    pairs = zip(starts.tolist(), lengths.tolist(), strict=True)
    return [None if length < 0 else buffer[start : start + length].tobytes() for start, length in pairs]


@every_kind
def test_lengths_and_places_of_a_column_of_any_type(kind):
    assert byte_lengths([ARRAYS[kind]]).tolist() == LENGTHS
    assert contents([ARRAYS[kind]]) == WORDS


@every_kind
def test_slices_and_several_chunks(kind):
    array = ARRAYS[kind]
    chunks = [array.slice(3), array.slice(0, 0), array.slice(1, 3)]
    assert byte_lengths(chunks).tolist() == [*LENGTHS[3:], *LENGTHS[1:4]]
    assert contents(chunks) == [*WORDS[3:], *WORDS[1:4]]


def test_places_are_counted_from_the_first_byte_string():
    array = pa.array([b"x" * 1000, b"abc", b"de"], pa.large_binary()).slice(1)
    buffer, starts = byte_slices([array])
    assert starts.tolist() == [0, 3]
    assert buffer.tobytes() == b"abcde"


def test_one_array_is_not_copied():
    array = pa.array([b"abc", b"de"])
    buffer, _ = byte_slices([array])
    assert buffer.ctypes.data == array.buffers()[2].address


@pytest.mark.parametrize("width", [0, 4])
def test_byte_strings_of_a_fixed_size(width):
    words = [b"a" * width, None, b"b" * width]
    array = pa.array([*words, b"c" * width], pa.binary(width)).slice(1, 2)
    assert byte_lengths([array]).tolist() == [-1, width]
    assert contents([array]) == words[1:]


def test_nulls_without_a_type():
    assert byte_lengths([pa.nulls(3)]).tolist() == [-1, -1, -1]
    assert contents([pa.nulls(3), pa.nulls(1)]) == [None] * 4


def test_no_chunks_have_no_rows():
    assert byte_lengths([]).tolist() == []
    assert byte_lengths([pa.array([], pa.binary())]).dtype == np.int64
    assert contents([]) == []


def test_lengths_of_a_dictionary_are_known_without_its_rows():
    words = pa.array([b"x" * (1 << 20)])
    array = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, np.int8)), words)
    before = pa.total_allocated_bytes()
    assert byte_lengths([array]).sum() == 100_000 << 20
    assert pa.total_allocated_bytes() - before < 10 << 20
