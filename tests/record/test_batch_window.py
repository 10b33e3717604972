from __future__ import annotations

import random
import zlib

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import CorruptError, CorruptRecordError
from storage_core.record.arrow_columns import Slices
from storage_core.record.batch_header import parse_batch_header
from storage_core.record.batch_window import checksums, inner_crc_mismatches, walk_window
from tests.record.encoding import Batch, counted_records, with_header_field
from tests.record.golden import GOLDEN
from tests.record.legacy_encoding import Message, Wrapper, plain_messages
from tests.record.sections import PATH, check_crcs, padded, window_of

SHORTEST = [Message(0, 0, None, None, magic).encode() for magic in (0, 1)]
# All formats in turn, short messages before, between and after batches.
BATCHES = [
    SHORTEST[0],
    *(golden.data for golden in GOLDEN.values()),
    *(message.encode() for message in plain_messages(60, magic=0, value=b"equal")),
    Wrapper(plain_messages(3, magic=0), magic=0).encode(),
    GOLDEN["create time"].data,
    Wrapper(plain_messages(3), key=b"ignored").encode(),
    *(message.encode() for message in plain_messages(3, value=None)),
    SHORTEST[1],
    SHORTEST[0],
]
STARTS = np.cumsum([0, *map(len, BATCHES)]).tolist()
LOG = b"".join(BATCHES)


def window_of_first(size_bytes, *, data=LOG):
    """Return a window whose buffer holds more than was read from the file."""
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


def test_what_lies_behind_the_last_message_is_not_read():
    for last in SHORTEST:
        # Without the padding that a window has: a read after the end would fail.
        window = walk_window(PATH, 0, np.frombuffer(BATCHES[1] + last, np.uint8), len(BATCHES[1] + last))
        assert window.end == len(BATCHES[1] + last)
        check_crcs(window)


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
        assert not window.is_preallocated_after
        assert window.error is None


def test_a_window_of_nothing_has_no_batches():
    window = window_of(b"")
    assert (len(window.starts), len(window.headers), window.end, window.missing_bytes) == (0, 0, 0, 0)
    assert window.crc_mismatches(np.zeros(0, np.int64)).tolist() == []


@pytest.mark.parametrize("zeros", [1, 17, 60, 61, 62, 10_000])
def test_zeros_up_to_the_end_are_preallocated_space(zeros):
    for batches in (b"", BATCHES[0], LOG):
        window = window_of(batches + bytes(zeros))
        assert (window.end, window.missing_bytes) == (len(batches), 0)
        # Fewer bytes than a header could also be the beginning of a batch.
        assert window.is_preallocated_after == (zeros >= 61)


@pytest.mark.parametrize("zeros", [61, 100, 10_000])
def test_zeros_before_anything_else_are_damage(zeros):
    with pytest.raises(CorruptRecordError) as raised:
        window_of(BATCHES[0] + bytes(zeros) + b"\1")
    assert (raised.value.path, raised.value.position_bytes) == (PATH, len(BATCHES[0]))


@pytest.mark.parametrize(
    ("position", "code", "value"), [(16, "b", 3), (16, "b", -1), (8, "i", 48), (8, "i", -1)]
)
def test_what_is_no_batch_is_damage(position, code, value):
    bad = with_header_field(BATCHES[2], position, code, value)
    with pytest.raises(CorruptRecordError, match=f"found {value}") as raised:
        window_of(BATCHES[1] + bad, position_bytes=100)
    assert (raised.value.path, raised.value.position_bytes) == (PATH, 100 + len(BATCHES[1]))


@pytest.mark.parametrize(("magic", "length"), [(0, 13), (0, 0), (0, -1), (1, 21), (1, 14), (1, -(2**31))])
def test_a_message_shorter_than_its_format_allows_is_damage(magic, length):
    data = LOG + Message(magic=magic, value=b"v" * 40).encode(length=length)
    with pytest.raises(CorruptRecordError, match=f"found {length}") as raised:
        window_of(data, position_bytes=100)
    assert (raised.value.path, raised.value.position_bytes) == (PATH, 100 + len(LOG))


@pytest.mark.parametrize("bad", [with_header_field(BATCHES[2], 16, "b", 9), b"\xff" * 61, bytes(70) + b"\1"])
def test_the_batches_before_damage_are_still_there(bad):
    data = LOG + bad
    window = walk_window(PATH, 100, padded(data), len(data))
    assert window.starts.tolist() == STARTS[:-1]
    assert (window.end, window.missing_bytes, window.is_preallocated_after) == (len(LOG), 0, False)
    assert isinstance(window.error, CorruptRecordError)
    assert window.error.position_bytes == 100 + len(LOG)


def test_a_batch_of_2_gib_is_missing_bytes_and_no_allocation():
    for magic in (0, 1, 2):
        huge = with_header_field(with_header_field(BATCHES[2], 16, "b", magic), 8, "i", 2**31 - 1)
        window = window_of(BATCHES[1] + huge)
        assert window.end == len(BATCHES[1])
        assert window.missing_bytes == 2**31 - 1 + 12 - len(huge)


def test_the_crc_is_checked_of_the_chosen_batches():
    window = window_of(LOG)
    assert window.crc_mismatches(np.arange(len(BATCHES))).tolist() == []
    damaged = window_of(BATCHES[0] + BATCHES[1][:-1] + b"\xee" + BATCHES[2])
    assert damaged.crc_mismatches(np.arange(3)).tolist() == [1]
    assert damaged.crc_mismatches(np.array([0, 2])).tolist() == []


def test_every_wrong_crc_of_any_format_is_found():
    good = [
        Batch(counted_records(2), 10),
        Message(20),
        Message(21, magic=0),
        Wrapper(plain_messages(2, start=30)),
    ]
    data = b"".join(each.encode() + each.encode(crc=7) for each in good)
    window = window_of(data)
    assert window.crc_mismatches(np.arange(8)).tolist() == [1, 3, 5, 7]
    assert window.crc_mismatches(np.array([6, 7])).tolist() == [7]


def test_whether_there_are_messages_of_older_formats():
    current, old = Batch(counted_records(2), 10).encode(), Message(20).encode()
    for data, has_messages in ((b"", False), (current, False), (old, True), (current + old, True)):
        assert window_of(data).has_messages == has_messages
    assert window_of(old + current).has_messages


def goes_unnoticed(data):
    try:
        window = window_of(data)
        check_crcs(window)
    except CorruptError:
        return False
    return window.end == len(data)


def test_no_flipped_bit_goes_unnoticed_but_in_the_base_offset_and_the_leader_epoch():
    for batch, outside in (
        (GOLDEN["create time"].data, {*range(8), *range(12, 16)}),
        (Message(7, 8, b"k" * 30, b"v" * 30, 0).encode(), {*range(8)}),
        (Message(7, 8, b"k" * 30, b"v" * 30, 1).encode(), {*range(8)}),
        (Wrapper(plain_messages(5)).encode(), {*range(8)}),
    ):
        for position in range(len(batch)):
            for bit in range(8):
                changed = bytearray(batch)
                changed[position] ^= 1 << bit
                assert goes_unnoticed(bytes(changed)) == (position in outside)


@given(st.binary(max_size=300), st.integers(0, len(LOG)))
def test_any_bytes_are_batches_or_an_end_or_refused(junk, kept):
    data = LOG[:kept] + junk
    window = walk_window(PATH, 0, padded(data), len(data))
    assert window.end <= len(data)
    assert window.missing_bytes >= 0
    assert window.error is None or not (window.missing_bytes or window.is_preallocated_after)
    ends = window.starts + window.headers["batch_length"] + 12
    assert [*window.starts.tolist(), window.end] == [0, *ends.tolist()]


# -- Checksums --------


def laid_out(contents):
    """Return a buffer with the contents, a byte between them, and where they lie."""
    starts = np.cumsum([0, *(len(content) + 1 for content in contents)])[:-1]
    lengths = np.array([len(content) for content in contents], np.int64)
    return padded(b"\xaa".join(contents)), Slices(starts.astype(np.int64), lengths)


def noise(*sizes, seed=1):
    chance = random.Random(seed)
    return [chance.randbytes(size) for size in sizes]


@pytest.mark.parametrize("compute", [zlib.crc32, crc32c])
@pytest.mark.parametrize("sizes", [[], [10], [10] * 300, [10, 300, 17], [5000, 10], [1 << 20], [100_000] * 3])
def test_the_checksum_of_each(compute, sizes):
    contents = noise(*sizes)
    assert checksums(*laid_out(contents), compute).tolist() == [compute(content) for content in contents]


def wrong_of(contents, *, spoilt=(), spoil=lambda crc: crc ^ 1):
    crcs = [zlib.crc32(content) for content in contents]
    for row in spoilt:
        crcs[row] = spoil(crcs[row])
    return inner_crc_mismatches(*laid_out(contents), np.array(crcs, np.uint32)).tolist()


SIZES = {
    "one": [30],
    "few": [30] * 10,
    "equal, even": [30] * 500,
    "equal, odd": [30] * 501,
    "about as many as are looked at together": [30] * 63 + [31] * 64 + [32] * 65,
    "all different": list(range(10, 400)),
    "some of each": [10 + number % 7 for number in range(900)],
    "long": [70_000] * 70,
}


@pytest.mark.parametrize("name", SIZES)
def test_right_ones_are_right(name):
    assert wrong_of(noise(*SIZES[name])) == []


@pytest.mark.parametrize("name", SIZES)
def test_every_single_wrong_one_is_found(name):
    contents = noise(*SIZES[name])
    for row in {0, 1, len(contents) // 2, len(contents) - 2, len(contents) - 1} & set(range(len(contents))):
        assert wrong_of(contents, spoilt=[row]) == [row]


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize(
    "spoil",
    [lambda crc: crc ^ 0xFFFFFFFF, lambda crc: crc ^ 1, lambda _: 0, lambda _: 7],
    ids=["complement", "one bit", "zero", "constant"],
)
def test_a_writer_that_is_always_wrong_is_found(name, spoil):
    contents = noise(*SIZES[name])
    everything = list(range(len(contents)))
    assert wrong_of(contents, spoilt=everything, spoil=spoil) == everything


@given(st.lists(st.binary(min_size=10, max_size=14), max_size=20), st.data())
def test_any_contents_and_any_wrong_ones(contents, data):
    contents *= data.draw(st.sampled_from([1, 7, 40]))
    spoilt = data.draw(st.sets(st.integers(0, len(contents) - 1), max_size=3)) if contents else ()
    changes = iter(data.draw(st.permutations([0x1, 0x80000000, 0xDEADBEEF])))
    assert wrong_of(contents, spoilt=spoilt, spoil=lambda crc: crc ^ next(changes)) == sorted(spoilt)
