"""Offset and time indexes as a broker leaves them, and as damage leaves them."""

from __future__ import annotations

import struct
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.filesystem import FileSystem
from storage_core.segment import OffsetIndex, OffsetPosition, TimeIndex, TimestampOffset

LOG_SIZE_BYTES = 760


class Offsets:
    """Segment base 0, index.interval.bytes=100, ten batches of 76 bytes."""

    golden = bytes.fromhex("0000000200000098000000040000013000000006000001c80000000800000260")
    entries = ((2, 152), (4, 304), (6, 456), (8, 608))
    entry_bytes = 8
    # Sizes of files of zeros without an entry.
    blank = (0, 8, 16, 10_485_760)

    @staticmethod
    def pack(entries):
        return b"".join(struct.pack(">ii", *entry) for entry in entries)

    @staticmethod
    def read(path, base_offset=0, log_size_bytes=LOG_SIZE_BYTES):
        return OffsetIndex.read(FileSystem(), str(path), base_offset, log_size_bytes)

    @staticmethod
    def entries_of(index):
        return list(zip(index.offsets.tolist(), index.positions.tolist(), strict=True))

    @staticmethod
    def moved(entries, base_offset):
        return [(base_offset + offset, position) for offset, position in entries]

    @staticmethod
    def lookup(index, wanted, base_offset=0):
        """Look up an offset relative to the base offset."""
        found = index.lookup(base_offset + wanted)
        assert isinstance(found, OffsetPosition)
        return found.offset, found.position_bytes

    @staticmethod
    def nothing(base_offset):
        return base_offset, 0


class Times:
    """The same log with timestamps 10, 20, 15, 40, 40, 50, 45, 60, 5, 70."""

    golden = bytes.fromhex(
        "000000000000001400000001000000000000002800000003000000000000003200000005"
        "000000000000003c00000007000000000000004600000009"
    )
    entries = ((20, 1), (40, 3), (50, 5), (60, 7), (70, 9))
    entry_bytes = 12
    blank = (0, 24, 10_485_756)

    @staticmethod
    def pack(entries):
        return b"".join(struct.pack(">qi", *entry) for entry in entries)

    @staticmethod
    def read(path, base_offset=0, log_size_bytes=None):
        return TimeIndex.read(FileSystem(), str(path), base_offset)

    @staticmethod
    def entries_of(index):
        return list(zip(index.timestamps_ms.tolist(), index.offsets.tolist(), strict=True))

    @staticmethod
    def moved(entries, base_offset):
        return [(timestamp_ms, base_offset + offset) for timestamp_ms, offset in entries]

    @staticmethod
    def lookup(index, wanted, base_offset=0):
        """Look up a timestamp."""
        found = index.lookup(wanted)
        assert isinstance(found, TimestampOffset)
        return found.timestamp_ms, found.offset

    @staticmethod
    def nothing(base_offset):
        return -1, base_offset


class Index(NamedTuple):
    """A kind of index, and a file of it."""

    kind: type[Offsets | Times]
    path: object

    def read(self, content, base_offset=0, **options):
        self.path.write_bytes(content)
        return self.kind.read(self.path, base_offset, **options)


@pytest.fixture(params=[Offsets, Times])
def index(request, tmp_path):
    return Index(request.param, tmp_path / "0.index")


@pytest.fixture
def offsets(tmp_path):
    return Index(Offsets, tmp_path / "0.index")


@pytest.fixture
def times(tmp_path):
    return Index(Times, tmp_path / "0.timeindex")


@pytest.mark.parametrize("zeros", [0, 96])
def test_entries_of_a_closed_and_of_a_preallocated_index(index, zeros):
    kind, found = index.kind, index.read(index.kind.golden + bytes(zeros * index.kind.entry_bytes))
    assert kind.entries_of(found) == list(kind.entries)
    assert found.problem is None
    assert len(found) == len(kind.entries)
    assert found.entry(1) == found.lookup(kind.entries[1][0])
    assert found.last_entry == found.lookup(2**40)


def test_offsets_are_absolute(index):
    kind = index.kind
    assert kind.entries_of(index.read(kind.golden, 2**40)) == kind.moved(kind.entries, 2**40)


@pytest.mark.parametrize("wanted", [-(2**40), *range(-2, 12), *range(18, 74), 2**62])
def test_lookup_gives_the_last_entry_up_to_what_is_wanted(index, wanted):
    below = [entry for entry in index.kind.entries if entry[0] <= wanted]
    found = index.kind.lookup(index.read(index.kind.golden), wanted)
    assert found == (below[-1] if below else index.kind.nothing(0))


def test_an_index_without_entries_is_no_problem(index):
    for size_bytes in index.kind.blank:
        found = index.read(bytes(size_bytes), 7)
        assert (found.problem, len(found), found.last_entry) == (None, 0, None)
        assert index.kind.lookup(found, 100, 7) == index.kind.nothing(7)


def test_a_missing_file_is_a_problem(index):
    found = index.kind.read(index.path, 7)
    assert found.problem == "the file is missing"
    assert index.kind.lookup(found, 100, 7) == index.kind.nothing(7)


def test_a_part_of_an_entry_is_a_problem(index):
    kind = index.kind
    for cut in range(len(kind.golden)):
        found, count = index.read(kind.golden[:cut]), cut // kind.entry_bytes
        is_whole = cut % kind.entry_bytes == 0
        assert kind.entries_of(found) == (list(kind.entries[:count]) if is_whole else [])
        assert (found.problem is None) == is_whole


def test_an_offset_entry_of_zeros_in_front_says_nothing(offsets):
    assert Offsets.entries_of(offsets.read(bytes(8) + Offsets.golden)) == list(Offsets.entries)


def test_timestamp_zero_at_the_base_offset_is_an_entry_of_zeros(times):
    assert Times.entries_of(times.read(bytes(12), 7)) == [(0, 7)]
    content = bytes(12) + Times.pack([(5, 3)]) + bytes(120)
    assert Times.entries_of(times.read(content, 7)) == [(0, 7), (5, 10)]


@pytest.mark.parametrize(
    ("kind", "entries"),
    [
        pytest.param(Offsets, [(4, 152), (2, 304)], id="offsets descend"),
        pytest.param(Offsets, [(2, 152), (2, 304)], id="offsets repeat"),
        pytest.param(Offsets, [(2, 304), (4, 152)], id="positions descend"),
        pytest.param(Offsets, [(2, 152), (4, 152)], id="positions repeat"),
        pytest.param(Offsets, [(2, 152), (0, 0), (4, 304)], id="zeros between offsets"),
        pytest.param(Offsets, [(-1, 152)], id="negative offset"),
        pytest.param(Offsets, [(2, -152), (4, 304)], id="negative position"),
        pytest.param(Offsets, [(2, 152), (4, 304), (-5, 456)], id="negative offset at the end"),
        pytest.param(Offsets, [(0x7E7E7E7E, 0x7E7E7E7E)] * 4, id="filled with one byte"),
        pytest.param(Times, [(40, 1), (20, 3)], id="timestamps descend"),
        pytest.param(Times, [(20, 1), (20, 3)], id="timestamps repeat"),
        pytest.param(Times, [(20, 3), (40, 1)], id="offsets of times descend"),
        pytest.param(Times, [(20, 1), (0, 0), (40, 3)], id="zeros between times"),
        pytest.param(Times, [(-1, 1)], id="negative timestamp"),
        pytest.param(Times, [(20, -1)], id="negative offset of a time"),
        pytest.param(Times, [(2**63 - 1, 1), (-(2**63), 2)], id="the difference overflows"),
    ],
)
def test_entries_that_do_not_ascend_are_a_problem(tmp_path, kind, entries):
    found = Index(kind, tmp_path / "0.index").read(kind.pack(entries))
    assert len(found) == 0
    assert found.problem


def test_offsets_of_times_may_repeat(times):
    entries = [(20, 3), (40, 3)]
    assert Times.entries_of(times.read(Times.pack(entries))) == entries


def test_offsets_beyond_the_largest_are_a_problem(index):
    found = index.read(index.kind.pack([(1, 1), (2, 2)]), 2**63 - 2)
    assert len(found) == 0
    assert found.problem


def test_entries_after_the_end_of_the_log_are_left_out(offsets):
    for size_bytes, count in ((456, 2), (457, 3), (0, 0)):
        found = offsets.read(Offsets.golden, log_size_bytes=size_bytes)
        assert Offsets.entries_of(found) == list(Offsets.entries[:count])


@pytest.mark.parametrize("kind", [Offsets, Times])
@given(
    steps=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5000)), min_size=1, max_size=60),
    base_offset=st.integers(0, 2**62),
    zeros=st.integers(0, 600),
    data=st.data(),
)
def test_lookups_equal_a_linear_search(tmp_path_factory, kind, steps, base_offset, zeros, data):
    entries, first, second = [], 0, 0
    for first_step, second_step in steps:
        first, second = first + first_step, second + second_step
        entries.append((first, second))
    path = tmp_path_factory.mktemp("index") / "0.index"
    path.write_bytes(kind.pack(entries) + bytes(kind.entry_bytes * zeros))
    index = kind.read(path, base_offset, second + 1)
    assert kind.entries_of(index) == kind.moved(entries, base_offset)
    wanted = data.draw(st.integers(-1, first + 2))
    below = kind.moved([entry for entry in entries if entry[0] <= wanted], base_offset)
    assert kind.lookup(index, wanted, base_offset) == (below[-1] if below else kind.nothing(base_offset))


@pytest.mark.parametrize("kind", [Offsets, Times])
@given(content=st.binary(max_size=200), base_offset=st.integers(0, 2**63 - 1))
def test_garbage_never_raises(tmp_path_factory, kind, content, base_offset):
    path = tmp_path_factory.mktemp("index") / "0.index"
    path.write_bytes(content)
    index = kind.read(path, base_offset, 2**31)
    assert index.lookup(2**63 - 1).offset >= base_offset
    firsts = [first for first, _ in kind.entries_of(index)]
    assert firsts == sorted(set(firsts))
