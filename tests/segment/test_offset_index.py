from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.filesystem import FileSystem
from storage_core.segment import OffsetIndex, OffsetPosition

# Written by a broker: segment base 0, index.interval.bytes=100, ten batches of 76 bytes.
GOLDEN = bytes.fromhex("0000000200000098000000040000013000000006000001c80000000800000260")
ENTRIES = [(2, 152), (4, 304), (6, 456), (8, 608)]
LOG_SIZE_BYTES = 760


def pack(entries):
    return b"".join(struct.pack(">ii", *entry) for entry in entries)


@pytest.fixture
def read(tmp_path):
    path = tmp_path / "00000000000000000000.index"

    def read_index(content, base_offset=0, log_size_bytes=LOG_SIZE_BYTES):
        path.write_bytes(content)
        return OffsetIndex.read(FileSystem(), str(path), base_offset, log_size_bytes)

    return read_index


def entries_of(index):
    return list(zip(index.offsets.tolist(), index.positions.tolist(), strict=True))


def test_entries_of_a_closed_index(read):
    index = read(GOLDEN)
    assert entries_of(index) == ENTRIES
    assert index.problem is None
    assert len(index) == 4
    assert index.entry(1) == OffsetPosition(4, 304)
    assert index.last_entry == OffsetPosition(8, 608)


def test_entries_of_a_preallocated_index(read):
    index = read(GOLDEN + bytes(1000 - len(GOLDEN)))
    assert entries_of(index) == ENTRIES
    assert index.problem is None


def test_offsets_are_absolute(read):
    assert entries_of(read(GOLDEN, base_offset=2**40)) == [(2**40 + o, p) for o, p in ENTRIES]


@pytest.mark.parametrize("offset", range(-2, 12))
def test_lookup_gives_the_highest_entry_up_to_an_offset(read, offset):
    below = [entry for entry in ENTRIES if entry[0] <= offset]
    assert read(GOLDEN).lookup(offset) == OffsetPosition(*(below[-1] if below else (0, 0)))


@pytest.mark.parametrize("content", [b"", bytes(8), bytes(16), bytes(10_485_760)])
def test_an_index_without_entries_is_no_problem(read, content):
    index = read(content, base_offset=7)
    assert index.problem is None
    assert len(index) == 0
    assert index.last_entry is None
    assert index.lookup(100) == OffsetPosition(7, 0)


def test_a_missing_file_is_a_problem(tmp_path):
    index = OffsetIndex.read(FileSystem(), str(tmp_path / "absent.index"), 7, 100)
    assert index.problem == "the file is missing"
    assert index.lookup(100) == OffsetPosition(7, 0)


def test_an_entry_of_zeros_in_front_says_nothing(read):
    assert entries_of(read(bytes(8) + GOLDEN)) == ENTRIES


@pytest.mark.parametrize("cut", range(len(GOLDEN)))
def test_cut_at_each_byte(read, cut):
    index = read(GOLDEN[:cut])
    assert entries_of(index) == (ENTRIES[: cut // 8] if cut % 8 == 0 else [])
    assert (index.problem is None) == (cut % 8 == 0)


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param([(4, 152), (2, 304)], id="offsets descend"),
        pytest.param([(2, 152), (2, 304)], id="offsets repeat"),
        pytest.param([(2, 304), (4, 152)], id="positions descend"),
        pytest.param([(2, 152), (4, 152)], id="positions repeat"),
        pytest.param([(2, 152), (0, 0), (4, 304)], id="zeros between"),
        pytest.param([(-1, 152)], id="negative offset"),
        pytest.param([(2, -152), (4, 304)], id="negative position"),
        pytest.param([(2, 152), (4, 304), (-5, 456)], id="negative offset at the end"),
        pytest.param([(0x7E7E7E7E, 0x7E7E7E7E)] * 4, id="filled with one byte"),
    ],
)
def test_entries_that_do_not_ascend_are_a_problem(read, entries):
    index = read(pack(entries))
    assert len(index) == 0
    assert index.problem


def test_offsets_beyond_the_largest_are_a_problem(read):
    index = read(pack([(1, 100), (2, 200)]), base_offset=2**63 - 2)
    assert len(index) == 0
    assert index.problem


def test_entries_after_the_end_of_the_log_are_left_out(read):
    assert entries_of(read(GOLDEN, log_size_bytes=456)) == ENTRIES[:2]
    assert entries_of(read(GOLDEN, log_size_bytes=457)) == ENTRIES[:3]
    assert entries_of(read(GOLDEN, log_size_bytes=0)) == []


@given(
    steps=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5000)), max_size=60),
    base_offset=st.integers(0, 2**62),
    zeros=st.integers(0, 600),
    data=st.data(),
)
def test_lookups_equal_a_linear_search(tmp_path_factory, steps, base_offset, zeros, data):
    entries, offset, position = [], 0, 0
    for offset_step, position_step in steps:
        offset += offset_step
        position += position_step
        entries.append((offset, position))
    path = tmp_path_factory.mktemp("index") / "0.index"
    path.write_bytes(pack(entries) + bytes(8 * zeros))
    index = OffsetIndex.read(FileSystem(), str(path), base_offset, position + 1)
    assert entries_of(index) == [(base_offset + o, p) for o, p in entries]
    target = data.draw(st.integers(-1, offset + 2))
    below = [(base_offset + o, p) for o, p in entries if o <= target]
    assert index.lookup(base_offset + target) == OffsetPosition(*(below[-1] if below else (base_offset, 0)))


@given(content=st.binary(max_size=200), base_offset=st.integers(0, 2**63 - 1))
def test_garbage_never_raises(tmp_path_factory, content, base_offset):
    path = tmp_path_factory.mktemp("index") / "0.index"
    path.write_bytes(content)
    index = OffsetIndex.read(FileSystem(), str(path), base_offset, 2**31)
    assert index.lookup(2**63 - 1).offset >= base_offset
    assert (index.offsets[1:] > index.offsets[:-1]).all()
