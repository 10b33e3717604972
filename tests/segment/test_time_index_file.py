from __future__ import annotations

import numpy as np
import pytest

from storage_core.errors import (
    AppendError,
    InvalidTimestampError,
    OffsetOverflowError,
    OffsetsOutOfOrderError,
)
from storage_core.filesystem import FileSystem
from storage_core.segment import TimestampOffset
from storage_core.segment.time_index import TimeIndexFile

BASE = 45
ENTRIES = [(10, 46), (20, 50), (30, 50), (2**40, 60)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "00000000000000000045.timeindex"


def open_index(path, *, max_size_bytes=120):
    return TimeIndexFile(FileSystem(), str(path), BASE, max_size_bytes)


@pytest.fixture
def index(path):
    filled = open_index(path)
    for entry in ENTRIES:
        filled.maybe_append(*entry)
    return filled


def entries_of(index):
    return [(entry.timestamp_ms, entry.offset) for entry in map(index.entry, range(len(index)))]


def test_bytes(index, path):
    expected = (
        "000000000000000a00000001 000000000000001400000005 000000000000001e00000005 00000100000000000000000f"
    )
    assert path.read_bytes() == bytes.fromhex(expected) + bytes(72)


def test_an_empty_index(path):
    index = open_index(path)
    assert index.last_entry == TimestampOffset(-1, BASE)
    assert not path.exists()


def test_entries_by_number(index):
    assert entries_of(index) == ENTRIES
    for number in (4, -1):
        with pytest.raises(IndexError, match="below 4"):
            index.entry(number)


@pytest.mark.parametrize(
    ("offset", "kept"), [(61, 4), (60, 3), (51, 3), (50, 1), (47, 1), (46, 0), (45, 0), (0, 0)]
)
def test_truncate_to_goes_by_the_offsets(index, path, offset, kept):
    index.truncate_to(offset)
    assert entries_of(index) == ENTRIES[:kept]
    assert index.last_entry == TimestampOffset(*(ENTRIES[kept - 1] if kept else (-1, BASE)))
    assert path.stat().st_size == 120
    index.maybe_append(2**41, 70)
    assert entries_of(index) == [*ENTRIES[:kept], (2**41, 70)]


def test_an_older_timestamp_is_refused(index):
    with pytest.raises(InvalidTimestampError, match=f"from {2**40} on.*found 31"):
        index.maybe_append(31, 61)
    assert entries_of(index) == ENTRIES


def test_a_lower_offset_is_refused(index):
    with pytest.raises(OffsetsOutOfOrderError, match=r"from 60 on.*found 59"):
        index.maybe_append(2**40 + 1, 59)
    assert entries_of(index) == ENTRIES


def test_the_same_timestamp_is_ignored(index):
    index.maybe_append(2**40, 70)
    assert entries_of(index) == ENTRIES


@pytest.mark.parametrize("timestamp_ms", [-1, -5])
def test_no_timestamp_is_ignored(path, timestamp_ms):
    index = open_index(path)
    index.maybe_append(timestamp_ms, 50)
    assert len(index) == 0


def test_offsets_fit_31_bits(path):
    index = open_index(path)
    with pytest.raises(OffsetOverflowError, match="found 44"):
        index.maybe_append(5, 44)
    with pytest.raises(OffsetOverflowError):
        index.maybe_append(5, BASE + 2**31)
    index.maybe_append(5, BASE + 2**31 - 1)
    assert entries_of(index) == [(5, BASE + 2**31 - 1)]


def test_the_last_slot_is_kept_for_the_last_entry(path):
    index = open_index(path, max_size_bytes=36)
    index.maybe_append(1, 46)
    assert not index.is_full
    index.maybe_append(2, 47)
    assert index.is_full
    with pytest.raises(AppendError, match="full index of 2 entries"):
        index.maybe_append(3, 48)
    index.maybe_append(3, 48, skip_full_check=True)
    assert entries_of(index) == [(1, 46), (2, 47), (3, 48)]
    assert path.stat().st_size == 36


def test_resizing_keeps_the_last_entry(index, path):
    index.trim()
    assert path.stat().st_size == 48
    assert index.last_entry == TimestampOffset(2**40, 60)
    assert index.is_full
    index.resize()
    assert index.last_entry == TimestampOffset(2**40, 60)
    assert not index.is_full


def test_timestamp_zero_at_the_base_offset_is_an_entry(path):
    index = open_index(path)
    index.maybe_append(0, BASE)
    index.trim()
    index.close()
    assert path.read_bytes() == bytes(12)
    assert entries_of(open_index(path)) == [(0, BASE)]


def test_extend_takes_what_is_new_and_has_room(path):
    index = open_index(path, max_size_bytes=72)
    index.extend(np.array([-1, 5, 5, 7]), np.array([45, 46, 46, 50]))
    assert entries_of(index) == [(5, 46), (7, 50)]
    index.extend(np.array([7, 7]), np.array([50, 50]))
    index.extend(np.array([8, 9, 10, 11]), np.array([51, 52, 53, 54]))
    # One slot is left for the last entry.
    assert entries_of(index) == [(5, 46), (7, 50), (8, 51), (9, 52), (10, 53)]
    assert index.last_entry == TimestampOffset(10, 53)


def test_what_is_taken_back_is_as_if_it_had_never_been_there(index):
    index.maybe_append(2**41, 61)
    index.forget_after(4)
    assert (entries_of(index), index.last_entry) == (ENTRIES, TimestampOffset(2**40, 60))
