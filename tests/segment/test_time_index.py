from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.filesystem import FileSystem
from storage_core.segment import TimeIndex, TimestampOffset

# Written by a broker, see test_offset_index: timestamps 10,20,15,40,40,50,45,60,5,70.
GOLDEN = bytes.fromhex(
    "000000000000001400000001000000000000002800000003000000000000003200000005"
    "000000000000003c00000007000000000000004600000009"
)
ENTRIES = [(20, 1), (40, 3), (50, 5), (60, 7), (70, 9)]


def pack(entries):
    return b"".join(struct.pack(">qi", *entry) for entry in entries)


@pytest.fixture
def read(tmp_path):
    path = tmp_path / "00000000000000000000.timeindex"

    def read_index(content, base_offset=0):
        path.write_bytes(content)
        return TimeIndex.read(FileSystem(), str(path), base_offset)

    return read_index


def entries_of(index):
    return list(zip(index.timestamps_ms.tolist(), index.offsets.tolist(), strict=True))


def test_entries_of_a_closed_index(read):
    index = read(GOLDEN)
    assert entries_of(index) == ENTRIES
    assert index.problem is None
    assert len(index) == 5
    assert index.entry(0) == TimestampOffset(20, 1)
    assert index.last_entry == TimestampOffset(70, 9)


def test_entries_of_a_preallocated_index(read):
    assert entries_of(read(GOLDEN[:48] + bytes(996 - 48))) == ENTRIES[:4]


def test_offsets_are_absolute(read):
    assert entries_of(read(GOLDEN, base_offset=2**40)) == [(t, 2**40 + o) for t, o in ENTRIES]


@pytest.mark.parametrize("timestamp_ms", [-(2**63), -1, 0, *range(18, 74), 2**63 - 1])
def test_lookup_gives_the_largest_entry_up_to_a_timestamp(read, timestamp_ms):
    below = [entry for entry in ENTRIES if entry[0] <= timestamp_ms]
    assert read(GOLDEN).lookup(timestamp_ms) == TimestampOffset(*(below[-1] if below else (-1, 0)))


@pytest.mark.parametrize("content", [b"", bytes(24), bytes(10_485_756)])
def test_an_index_without_entries_is_no_problem(read, content):
    index = read(content, base_offset=7)
    assert index.problem is None
    assert index.last_entry is None
    assert index.lookup(100) == TimestampOffset(-1, 7)


def test_a_missing_file_is_a_problem(tmp_path):
    index = TimeIndex.read(FileSystem(), str(tmp_path / "absent.timeindex"), 7)
    assert index.problem == "the file is missing"
    assert index.lookup(100) == TimestampOffset(-1, 7)


def test_timestamp_zero_at_the_base_offset_is_an_entry_of_zeros(read):
    assert entries_of(read(bytes(12), base_offset=7)) == [(0, 7)]
    assert entries_of(read(bytes(12) + pack([(5, 3)]) + bytes(120), base_offset=7)) == [(0, 7), (5, 10)]


@pytest.mark.parametrize("cut", range(len(GOLDEN)))
def test_cut_at_each_byte(read, cut):
    index = read(GOLDEN[:cut])
    assert entries_of(index) == (ENTRIES[: cut // 12] if cut % 12 == 0 else [])
    assert (index.problem is None) == (cut % 12 == 0)


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param([(40, 1), (20, 3)], id="timestamps descend"),
        pytest.param([(20, 1), (20, 3)], id="timestamps repeat"),
        pytest.param([(20, 3), (40, 1)], id="offsets descend"),
        pytest.param([(20, 1), (0, 0), (40, 3)], id="zeros between"),
        pytest.param([(-1, 1)], id="negative timestamp"),
        pytest.param([(20, -1)], id="negative offset"),
        pytest.param([(2**63 - 1, 1), (-(2**63), 2)], id="the difference overflows"),
    ],
)
def test_entries_that_do_not_ascend_are_a_problem(read, entries):
    index = read(pack(entries))
    assert len(index) == 0
    assert index.problem


def test_offsets_may_repeat(read):
    entries = [(20, 3), (40, 3)]
    assert entries_of(read(pack(entries))) == entries


def test_offsets_beyond_the_largest_are_a_problem(read):
    index = read(pack([(1, 1), (2, 2)]), base_offset=2**63 - 2)
    assert len(index) == 0
    assert index.problem


@given(
    steps=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), max_size=60),
    base_offset=st.integers(0, 2**62),
    zeros=st.integers(0, 400),
    data=st.data(),
)
def test_lookups_equal_a_linear_search(tmp_path_factory, steps, base_offset, zeros, data):
    entries, timestamp_ms, offset = [], 0, 0
    for timestamp_step, offset_step in steps:
        timestamp_ms += timestamp_step
        offset += offset_step
        entries.append((timestamp_ms, offset))
    path = tmp_path_factory.mktemp("index") / "0.timeindex"
    path.write_bytes(pack(entries) + bytes(12 * zeros))
    index = TimeIndex.read(FileSystem(), str(path), base_offset)
    if entries:
        assert entries_of(index) == [(t, base_offset + o) for t, o in entries]
        target = data.draw(st.integers(-1, timestamp_ms + 2))
        below = [(t, base_offset + o) for t, o in entries if t <= target]
        assert index.lookup(target) == TimestampOffset(*(below[-1] if below else (-1, base_offset)))


@given(content=st.binary(max_size=200), base_offset=st.integers(0, 2**63 - 1))
def test_garbage_never_raises(tmp_path_factory, content, base_offset):
    path = tmp_path_factory.mktemp("index") / "0.timeindex"
    path.write_bytes(content)
    index = TimeIndex.read(FileSystem(), str(path), base_offset)
    assert index.lookup(2**63 - 1).offset >= base_offset
    assert (index.timestamps_ms[1:] > index.timestamps_ms[:-1]).all()
