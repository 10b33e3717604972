from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.errors import CorruptError, CorruptRecordError, UnsupportedFormatError
from storage_core.record.batch_header import parse_batch_header
from storage_core.record.batch_window import walk_window
from tests.record.encoding import Batch, counted_records, with_header_field
from tests.record.golden import EMPTY, GOLDEN
from tests.record.sections import PATH, padded, window_of

BATCHES = [golden.data for golden in GOLDEN.values()]
STARTS = np.cumsum([0, *map(len, BATCHES)]).tolist()
LOG = b"".join(BATCHES)


def window_of_first(size_bytes, *, data=LOG):
    """A window whose buffer holds more than was read from the file."""
    return walk_window(PATH, 0, padded(data), size_bytes)


def test_the_batches_stand_back_to_back():
    window = window_of(LOG, position_bytes=7_000_000_000)
    assert window.starts.tolist() == STARTS[:-1]
    assert (window.end, window.missing_bytes) == (len(LOG), 0)
    assert (window.path, window.position_bytes) == (PATH, 7_000_000_000)


def test_headers_are_the_same_by_column_and_one_at_a_time():
    window = window_of(LOG, position_bytes=7_000_000_000)
    for index, (start, data) in enumerate(zip(STARTS, BATCHES, strict=False)):
        header = window.header(index)
        assert header == parse_batch_header(data, 0, 7_000_000_000 + start, path=PATH)
        row = window.headers[index]
        assert row["batch_length"] == header.size_bytes - 12
        names = set(window.headers.dtype.names) - {"batch_length"}
        assert {name: row[name] for name in names} == {name: getattr(header, name) for name in names}


def test_a_window_may_end_anywhere():
    for size_bytes in range(len(LOG) + 1):
        window = window_of_first(size_bytes)
        whole = sum(end <= size_bytes for end in STARTS[1:])
        assert window.starts.tolist() == STARTS[:whole]
        assert len(window.headers) == whole
        assert window.end == STARTS[whole]
        rest = size_bytes - window.end
        expected = STARTS[whole + 1] - size_bytes if rest >= 61 else 0
        assert window.missing_bytes == expected
        assert not window.is_blank_behind


def test_empty_batches_are_batches():
    window = window_of(EMPTY.data * 5)
    assert window.starts.tolist() == [0, 61, 122, 183, 244]
    assert window.headers["record_count"].tolist() == [0] * 5


def test_a_window_of_nothing_has_no_batches():
    window = window_of(b"")
    assert (len(window.starts), len(window.headers), window.end, window.missing_bytes) == (0, 0, 0, 0)
    window.check_crc(np.zeros(0, np.int64))


@pytest.mark.parametrize("zeros", [1, 17, 60, 61, 62, 10_000])
def test_zeros_up_to_the_end_are_preallocated_space(zeros):
    for batches in (b"", BATCHES[0], LOG):
        window = window_of(batches + bytes(zeros))
        assert (window.end, window.missing_bytes) == (len(batches), 0)
        # Fewer bytes than a header could also be the beginning of a batch.
        assert window.is_blank_behind == (zeros >= 61)


@pytest.mark.parametrize("zeros", [61, 100, 10_000])
def test_zeros_before_anything_else_are_damage(zeros):
    with pytest.raises(CorruptRecordError) as raised:
        window_of(BATCHES[0] + bytes(zeros) + b"\1")
    assert (raised.value.path, raised.value.position_bytes) == (PATH, len(BATCHES[0]))


@pytest.mark.parametrize("magic", [0, 1])
def test_a_batch_of_an_older_format_is_named(magic):
    old = with_header_field(BATCHES[0], 16, "b", magic)
    with pytest.raises(UnsupportedFormatError, match=f"format v{magic}") as raised:
        window_of(BATCHES[1] + old, position_bytes=100)
    assert (raised.value.path, raised.value.position_bytes) == (PATH, 100 + len(BATCHES[1]))


@pytest.mark.parametrize(
    ("position", "code", "value"), [(16, "b", 3), (16, "b", -1), (8, "i", 48), (8, "i", -1)]
)
def test_what_is_no_batch_is_damage(position, code, value):
    bad = with_header_field(BATCHES[0], position, code, value)
    with pytest.raises(CorruptRecordError, match=f"found {value}") as raised:
        window_of(BATCHES[1] + bad, position_bytes=100)
    assert (raised.value.path, raised.value.position_bytes) == (PATH, 100 + len(BATCHES[1]))


def test_a_batch_of_2_gib_is_missing_bytes_and_no_allocation():
    huge = with_header_field(BATCHES[0], 8, "i", 2**31 - 1)
    window = window_of(BATCHES[1] + huge)
    assert window.end == len(BATCHES[1])
    assert window.missing_bytes == 2**31 - 1 + 12 - len(huge)


def test_the_crc_is_checked_of_the_chosen_batches():
    window = window_of(LOG)
    window.check_crc(np.arange(len(BATCHES)))
    damaged = window_of(BATCHES[0] + BATCHES[1][:-1] + b"\xee" + BATCHES[2])
    damaged.check_crc(np.array([0, 2]))
    with pytest.raises(CorruptRecordError):
        damaged.check_crc(np.array([1]))


def test_the_first_batch_with_a_wrong_crc_is_named():
    good, bad = Batch(counted_records(3), 10), Batch(counted_records(3), 13)
    data = good.encode() + bad.encode(crc=1) + bad.encode(crc=2)
    window = window_of(data, position_bytes=1000)
    with pytest.raises(CorruptRecordError, match=r"with CRC 0x00000001, found 0x[0-9a-f]{8}: ") as raised:
        window.check_crc(np.arange(3))
    error = raised.value
    start = 1000 + len(good.encode())
    assert error.path == PATH
    assert (error.position_bytes, error.end_position_bytes) == (start, start + len(bad.encode()))
    assert (error.offset, error.last_offset) == (13, 15)


def test_no_flipped_bit_goes_unnoticed_but_in_the_base_offset_and_the_leader_epoch():
    for position in range(len(BATCHES[0])):
        for bit in range(8):
            changed = bytearray(BATCHES[0])
            changed[position] ^= 1 << bit
            try:
                window = window_of(bytes(changed))
                window.check_crc(np.arange(len(window.starts)))
                is_noticed = window.end != len(changed)
            except CorruptError:
                is_noticed = True
            except UnsupportedFormatError:
                assert position == 16
                is_noticed = True
            is_outside_the_crc = position < 8 or 12 <= position < 16
            assert is_noticed != is_outside_the_crc


@given(st.binary(max_size=300), st.integers(0, len(LOG)))
@settings(deadline=None)
def test_any_bytes_are_batches_or_an_end_or_refused(junk, kept):
    data = LOG[:kept] + junk
    try:
        window = window_of(data)
    except (CorruptRecordError, UnsupportedFormatError):
        return
    assert window.end <= len(data)
    assert window.missing_bytes >= 0
    ends = window.starts + window.headers["batch_length"] + 12
    assert [*window.starts.tolist(), window.end] == [0, *ends.tolist()]
