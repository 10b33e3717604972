from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import AppendError, OffsetOverflowError, OffsetsOutOfOrderError
from storage_core.filesystem import FileSystem
from storage_core.segment import OffsetPosition
from storage_core.segment.offset_index import OffsetIndexFile

BASE = 45
ENTRIES = [(46, 10), (49, 30), (52, 70), (60, 71)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "00000000000000000045.index"


def open_index(path, *, base_offset=BASE, max_size_bytes=80):
    return OffsetIndexFile(FileSystem(), str(path), base_offset, max_size_bytes)


@pytest.fixture
def index(path):
    filled = open_index(path)
    for entry in ENTRIES:
        filled.append(*entry)
    return filled


def entries_of(index):
    return [(entry.offset, entry.position_bytes) for entry in map(index.entry, range(len(index)))]


def test_bytes(index, path):
    expected = "000000010000000a 000000040000001e 0000000700000046 0000000f00000047"
    assert path.read_bytes() == bytes.fromhex(expected) + bytes(48)


@pytest.mark.parametrize("offset", range(BASE - 2, 64))
def test_lookup_gives_the_greatest_entry_up_to_an_offset(index, offset):
    below = [entry for entry in ENTRIES if entry[0] <= offset]
    assert index.lookup(offset) == OffsetPosition(*(below[-1] if below else (BASE, 0)))


@pytest.mark.parametrize("offset", [0, BASE, BASE + 1, 2**62])
def test_lookup_in_an_empty_index(path, offset):
    assert open_index(path).lookup(offset) == OffsetPosition(BASE, 0)
    assert not path.exists()


def test_entries_by_number(index):
    assert entries_of(index) == ENTRIES
    for number in (4, 5, -1):
        with pytest.raises(IndexError, match="below 4"):
            index.entry(number)


def test_a_full_index_takes_no_entry(path):
    index = open_index(path, max_size_bytes=31)
    for number in range(3):
        assert not index.is_full
        index.append(BASE + number, number)
    assert index.is_full
    with pytest.raises(AppendError, match="full index of 3 entries"):
        index.append(BASE + 3, 3)
    assert len(index) == 3


@pytest.mark.parametrize("offset", [60, 59, BASE])
def test_offsets_ascend(index, offset):
    with pytest.raises(OffsetsOutOfOrderError, match="above 60"):
        index.append(offset, 90)
    assert entries_of(index) == ENTRIES


@pytest.mark.parametrize(
    ("offset", "fits"), [(44, False), (45, True), (45 + 2**31 - 1, True), (45 + 2**31, False)]
)
def test_offsets_fit_31_bits(path, offset, fits):
    index = open_index(path)
    if fits:
        index.append(offset, 0)
        assert entries_of(index) == [(offset, 0)]
    else:
        with pytest.raises(OffsetOverflowError, match=f"from 45 to {45 + 2**31 - 1}"):
            index.append(offset, 0)
        assert not path.exists()


def test_close_and_open_again(index, path):
    index.trim()
    index.close()
    assert path.stat().st_size == 32
    again = open_index(path)
    assert entries_of(again) == ENTRIES
    assert again.last_offset == 60
    with pytest.raises(AppendError, match="full"):
        again.append(61, 100)
    again.resize()
    again.append(61, 100)
    assert entries_of(again) == [*ENTRIES, (61, 100)]
    assert path.stat().st_size == 80


def test_open_again_after_a_crash(index, path):
    again = open_index(path)
    assert entries_of(again) == ENTRIES
    again.append(61, 100)
    assert entries_of(again) == [*ENTRIES, (61, 100)]


@pytest.mark.parametrize(
    ("offset", "kept"), [(61, 4), (60, 3), (59, 3), (52, 2), (51, 2), (47, 1), (46, 0), (45, 0), (1, 0)]
)
def test_truncate_to(index, path, offset, kept):
    index.truncate_to(offset)
    assert entries_of(index) == ENTRIES[:kept]
    assert index.last_offset == (ENTRIES[kept - 1][0] if kept else BASE)
    assert path.stat().st_size == 80
    assert path.read_bytes()[8 * kept :].strip(b"\0") == b""
    index.append(70, 200)
    assert entries_of(index) == [*ENTRIES[:kept], (70, 200)]


def test_truncate(index):
    index.truncate(0)
    assert len(index) == 0
    assert index.last_offset == BASE


def test_extend_adds_as_many_as_there_is_room_for(index, path):
    index.extend(np.arange(61, 80), np.arange(100, 119))
    assert entries_of(index) == [*ENTRIES, *zip(range(61, 67), range(100, 106), strict=True)]
    assert index.last_offset == 66
    index.extend(np.arange(67, 80), np.arange(100, 113))
    assert len(index) == 10
    assert path.stat().st_size == 80


def test_what_is_taken_back_is_as_if_it_had_never_been_there(index):
    index.append(65, 80)
    index.forget_after(4)
    assert (entries_of(index), index.last_offset) == (ENTRIES, 60)
    index.append(61, 80)
    assert entries_of(index) == [*ENTRIES, (61, 80)]


@given(st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=300), st.data())
def test_against_a_list(tmp_path_factory, relative_offsets, data):
    path = tmp_path_factory.mktemp("index") / "0.index"
    index = open_index(path, max_size_bytes=8 * 300)
    entries = [(BASE + offset, 10 * number + 1) for number, offset in enumerate(sorted(relative_offsets))]
    half = len(entries) // 2
    for entry in entries[:half]:
        index.append(*entry)
    index.extend(*(np.array(column, np.int64) for column in zip(*entries[half:], strict=True)))
    assert entries_of(index) == entries
    target = data.draw(st.sampled_from(entries))[0] + data.draw(st.integers(-1, 1))
    below = [entry for entry in entries if entry[0] <= target]
    assert index.lookup(target) == OffsetPosition(*(below[-1] if below else (BASE, 0)))
    index.truncate_to(target)
    assert entries_of(open_index(path)) == [entry for entry in entries if entry[0] < target]
