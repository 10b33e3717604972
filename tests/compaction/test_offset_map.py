from __future__ import annotations

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from storage_core.compaction import OffsetMap
from storage_core.errors import OptionError
from tests.compaction.keys import get, put

# Few keys, so that they come again, and long ones among them.
KEYS = st.one_of(
    st.integers(0, 12).map(lambda number: b"key-%d" % number),
    st.sampled_from([b"", b"\0", b"\0\0", b"x" * 13, b"y" * 300, b"y" * 301]),
    st.binary(max_size=2),
)
ROWS = st.lists(KEYS, max_size=60)


class PlainMap:
    """A dict that is full as Kafka's map is: at its limit, whatever the key."""

    def __init__(self, limit):
        self.limit, self.content = limit, {}

    def put_many(self, rows, offsets):
        for number, (key, offset) in enumerate(zip(rows, offsets, strict=True)):
            if len(self.content) >= self.limit:
                return number
            self.content[key] = offset
        return len(rows)


@given(st.lists(ROWS, max_size=6), st.integers(3, 40), st.sampled_from([0.9, 1.0, 0.5]))
def test_a_map_is_a_dict_that_may_be_full(calls, slots, load_factor):
    made = OffsetMap(slots * 24, load_factor)
    plain = PlainMap(int(slots * load_factor))
    offset = 0
    latest = -1
    for rows in calls:
        offsets = list(range(offset, offset + 3 * len(rows), 3))
        offset += 3 * len(rows)
        taken = plain.put_many(rows, offsets)
        assert put(made, rows, offsets) == taken
        latest = offsets[taken - 1] if taken else latest
        assert (made.size, made.latest_offset) == (len(plain.content), latest)
        looked_up = [key for each in calls for key in each]
        assert get(made, looked_up) == [plain.content.get(key, -1) for key in looked_up]
    event("full" if made.size == made.limit else "not full")


def test_the_last_offset_of_a_key_counts_within_one_call():
    made = OffsetMap(24 * 100)
    assert put(made, [b"a", b"b", b"a", b"a", b"b"], [0, 1, 2, 3, 4]) == 5
    assert get(made, [b"a", b"b", b"c"]) == [3, 4, -1]
    assert made.size == 2


def test_a_key_that_is_put_again_takes_no_more_room():
    made = OffsetMap(24 * 10)
    for offset in range(20):
        assert put(made, [b"a"], [offset]) == 1
    assert (made.size, get(made, [b"a"])) == (1, [19])


def test_a_full_map_does_not_even_take_a_key_that_it_has():
    made = OffsetMap(24 * 10)
    assert made.limit == 9
    rows = [b"%d" % number for number in range(8)] + [b"0", b"8", b"0", b"9"]
    assert put(made, rows, range(12)) == 10
    assert get(made, [b"0", b"8", b"9"]) == [8, 9, -1]
    assert put(made, [b"0"], [20]) == 0
    assert made.latest_offset == 9


def test_keys_that_are_not_new_fit_a_map_that_is_nearly_full():
    made = OffsetMap(24 * 10)
    put(made, [b"%d" % number for number in range(8)], range(8))
    # More rows than there is room for, and only one new key, at the end.
    rows = [b"3"] * 100 + [b"new"]
    assert put(made, rows, range(8, 109)) == 101
    assert (made.size, get(made, [b"3", b"new"])) == (9, [107, 108])


def test_no_more_than_the_load_factor_is_used():
    assert [OffsetMap(24 * 100, load).limit for load in (0.9, 0.75, 1.0)] == [90, 75, 100]
    assert OffsetMap(134_217_728).slots == 5_592_405


def test_every_slot_may_be_taken():
    # So full that the way to the last free slots is long.
    made = OffsetMap(24 * 1000, 1.0)
    rows = [b"key %d" % number for number in range(1000)]
    assert put(made, rows, range(1000)) == 1000
    assert get(made, [*rows, b"other"]) == [*range(1000), -1]
    assert made.size == made.slots


def test_many_keys_stay_apart():
    made = OffsetMap(24 * 60_000)
    rows = [b"%d" % number for number in range(50_000)]
    assert put(made, rows, range(50_000)) == 50_000
    assert put(made, rows[::2], range(50_000, 75_000)) == 25_000
    expected = [50_000 + number // 2 if number % 2 == 0 else number for number in range(50_000)]
    assert get(made, rows) == expected
    assert made.size == 50_000


def test_clear_forgets_everything():
    made = OffsetMap(24 * 10)
    put(made, [b"a", b"b"], [5, 6])
    made.clear()
    assert (made.size, made.latest_offset) == (0, -1)
    assert get(made, [b"a"]) == [-1]
    assert put(made, [b"a"], [0]) == 1
    assert get(made, [b"a", b"b"]) == [0, -1]


@pytest.mark.parametrize("offset", [0, 1, 2**31, 2**63 - 2])
def test_offsets_have_63_bits(offset):
    made = OffsetMap(24 * 10)
    put(made, [b"a"], [offset])
    assert get(made, [b"a"]) == [offset]


@pytest.mark.parametrize(
    ("memory_bytes", "load_factor"), [(24, 0.9), (0, 0.9), (48, 0.5), (2400, 0.0), (2400, 1.5)]
)
def test_a_map_without_room_for_two_keys_is_refused(memory_bytes, load_factor):
    with pytest.raises(OptionError, match="too small for two") as raised:
        OffsetMap(memory_bytes, load_factor)
    assert "log.cleaner.dedupe.buffer.size" in str(raised.value)
