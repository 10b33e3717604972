"""Look-ups in a damaged segment: with ``skip_damage`` they continue after it, otherwise they report all of it."""

from __future__ import annotations

import struct

import pytest

from storage_core.errors import BatchTooLargeError, CorruptRecordError
from storage_core.filesystem import FileSystem
from storage_core.segment import SegmentReader, TimestampOffset
from tests.record.legacy_encoding import Message


@pytest.fixture
def segment(make_batch, make_segment):
    """Return a hundred batches of two records, timestamps 1000 to 1199, with indexes."""
    return make_segment(
        0,
        [make_batch(2 * n, (1000 + 2 * n, 1001 + 2 * n), value=bytes(100)) for n in range(100)],
        index_interval_bytes=1000,
    )


@pytest.fixture
def open_damaged(tmp_path, segment):
    """Opens the segment with other bytes at positions within some of its batches."""

    def open_damaged(changes, *, skip_damage=True, **options):
        log = bytearray(segment.log)
        for number, position, value in changes:
            start = segment.batches[number][0] + position
            log[start : start + len(value)] = value
        segment.log = bytes(log)
        segment.write(tmp_path)
        return SegmentReader(
            FileSystem(), str(tmp_path), 0, offset_limit=200, skip_damage=skip_damage, **options
        )

    return open_damaged


@pytest.fixture(params=[True, False])
def use_indexes(request):
    return request.param


MAGIC = (16, b"\7")
CRC = (17, b"\0\0\0\0")
LONG = (8, (1 << 20).to_bytes(4, "big"))
# The batches are equally long: this one seems to reach to the end of the fifth one after it.
HIDES_FOUR = None


def hides_four(segment):
    size = segment.batches[0][1]
    return (8, (5 * size - 12).to_bytes(4, "big"))


@pytest.mark.parametrize(
    "number", [0, 98, *(pytest.param(number, marks=pytest.mark.thorough) for number in (1, 7, 50))]
)
@pytest.mark.parametrize("change", [MAGIC, LONG, HIDES_FOUR])
class TestOneDamagedBatch:
    @pytest.fixture
    def opened(self, open_damaged, segment, number, change, use_indexes):
        return open_damaged([(number, *(change or hides_four(segment)))], use_indexes=use_indexes)

    @pytest.mark.cases(3, 9)
    def test_offsets(self, opened, number, change):
        for offset in range(201):
            header = opened.translate_offset(offset)
            expected = offset // 2 * 2 + 2 * (offset // 2 == number)
            assert (header and header.base_offset) == (expected if expected < 200 else None)

    @pytest.mark.cases(3, 9)
    def test_timestamps(self, opened, number, change):
        for timestamp_ms in range(1000, 1201):
            offset = timestamp_ms - 1000
            expected = 2 * number + 2 if offset // 2 == number else offset
            found = opened.offset_for_timestamp(timestamp_ms)
            assert found == (TimestampOffset(1000 + expected, expected) if expected < 200 else None)
        assert opened.largest_timestamp(is_complete=False) == TimestampOffset(1199, 199)

    @pytest.mark.cases(3, 9)
    def test_the_end(self, opened, segment, number, change):
        end = opened.end()
        assert (end.next_offset, end.position_bytes) == (200, len(segment.log))

    @pytest.mark.cases(3, 9)
    def test_cuts(self, opened, segment, number, change):
        borders = {batch[0] for n, batch in enumerate(segment.batches) if n != number}
        for target in (1, 500, 3000):
            cuts = opened.cut_points(0, len(segment.log), target)
            assert {header.position_bytes for header in cuts} <= borders
            assert cuts[-1].position_bytes >= len(segment.log) - target - 2000


def assert_says_all_of_it(error, segment, number):
    assert (error.position_bytes, error.end_position_bytes) == segment.batches[number][:2]
    assert (error.offset, error.last_offset) == (2 * number, 2 * number + 1)


@pytest.mark.parametrize("number", [0, 1, 7, 50, 98])
@pytest.mark.parametrize("change", [MAGIC, LONG])
def test_without_skipping_damage_is_an_error_that_says_all_of_it(
    open_damaged, segment, number, change, use_indexes
):
    opened = open_damaged([(number, *change)], use_indexes=use_indexes, skip_damage=False)
    with pytest.raises(CorruptRecordError) as caught:  # noqa: PT012  (each change shows in another call)
        if change is LONG:
            # A batch that reaches beyond the end ends a walk: the end has to show what follows.
            opened.use_indexes = False
            opened.end()
        else:
            list(opened.batches())
    assert_says_all_of_it(caught.value, segment, number)


# With indexes, an entry leads past the damage.
@pytest.mark.parametrize("number", [0, 1, 7, 50])
def test_without_skipping_a_length_that_hides_batches_is_an_error_that_says_all_of_it(
    open_damaged, segment, number
):
    opened = open_damaged([(number, *hides_four(segment))], use_indexes=False, skip_damage=False)
    with pytest.raises(CorruptRecordError) as caught:
        opened.check_gap(2 * number + 3)
    assert_says_all_of_it(caught.value, segment, number)


def test_a_batch_with_a_wrong_crc_is_no_border_and_holds_no_timestamp(open_damaged, segment):
    opened = open_damaged([(n, *CRC) for n in range(10, 90)])
    cuts = opened.cut_points(0, len(segment.log), 500)
    assert {header.base_offset // 2 for header in cuts} <= {*range(10), *range(90, 100)}
    assert opened.offset_for_timestamp(1050) == TimestampOffset(1180, 180)
    around = opened.locate_offset(100)
    assert (around.damage.start_offset, around.damage.end_offset) == (20, 180)


def test_a_timestamp_that_was_damaged_leads_nowhere(open_damaged):
    opened = open_damaged([(20, 35, (1 << 40).to_bytes(8, "big"))], use_indexes=False)
    assert opened.largest_timestamp(is_complete=False).timestamp_ms == 1 << 40
    assert opened.offset_for_timestamp(5000) is None
    assert opened.offset_for_timestamp(1100) == TimestampOffset(1100, 100)


class TestGaps:
    """What looks like a gap is one only if the batches on both sides are sound."""

    @pytest.fixture
    def write(self, tmp_path, make_batch, make_segment):
        def write(change=None):
            made = [bytearray(make_batch(offset, (offset,))) for offset in (0, 1, 10, 11)]
            if change is not None:
                number, position, value = change
                made[number][position : position + len(value)] = value
            make_segment(0, made).write(tmp_path)
            return SegmentReader(FileSystem(), str(tmp_path), 0, offset_limit=20)

        return write

    def test_a_gap(self, write):
        for offset in (2, 5, 9):
            write().check_gap(offset)

    @pytest.mark.parametrize(
        ("number", "position", "value"),
        [
            pytest.param(1, 66, b"\xee", id="in front"),
            pytest.param(2, 66, b"\xee", id="after it"),
            pytest.param(2, 0, (15).to_bytes(8, "big"), id="after it, out of order"),
        ],
    )
    def test_no_gap(self, write, number, position, value):
        with pytest.raises(CorruptRecordError) as caught:
            write((number, position, value)).check_gap(5)
        assert caught.value.position_bytes == number * 69
        assert caught.value.end_position_bytes == number * 69 + 69


def test_zeros_and_nothing_are_blank(open_damaged, segment):
    opened = open_damaged([(99, 0, bytes(len(segment.log) - segment.batches[99][0]))])
    zeros, following = segment.batches[99][0], len(segment.log)
    assert opened.is_preallocated_after(zeros, opened.offset_limit)
    assert not opened.is_preallocated_after(zeros, opened.offset_limit - 1), "offsets are missing"
    assert opened.is_preallocated_after(following, opened.offset_limit - 1), "nothing is there"
    assert not opened.is_preallocated_after(segment.batches[98][0], opened.offset_limit)
    opened.offset_limit = None
    assert opened.is_preallocated_after(zeros, 0)


def test_the_offsets_of_a_batchs_records(open_damaged):
    opened = open_damaged([])
    assert opened.record_offsets(opened.translate_offset(6)) == [6, 7]
    opened = open_damaged([], max_batch_bytes=100, skip_damage=False)
    with pytest.raises(BatchTooLargeError):
        opened.record_offsets(opened.translate_offset(6))


@pytest.mark.parametrize("young", [31, 32, 33])
@pytest.mark.parametrize("hops", [2, 3])
def test_a_length_that_leads_past_batches_hides_none_from_a_timestamp(
    tmp_path, make_batch, make_segment, hops, young
):
    """Exactly to the beginning of a later batch: no header shows it."""
    segment = make_segment(0, [make_batch(n, (1000 + n,), value=bytes(100)) for n in range(60)])
    segment.write(tmp_path)
    path = tmp_path / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    size = len(content) // 60
    content[30 * size + 8 : 30 * size + 12] = struct.pack(">i", hops * size - 12)
    path.write_bytes(content)
    expected = TimestampOffset(1000 + young, young)
    tolerant = SegmentReader(FileSystem(), str(tmp_path), 0, skip_damage=True)
    assert tolerant.offset_for_timestamp(1000 + young) == expected
    strict = SegmentReader(FileSystem(), str(tmp_path), 0)
    if young == 31:
        # It may have been in the damaged batch.
        with pytest.raises(CorruptRecordError):
            strict.offset_for_timestamp(1000 + young)
    else:
        assert strict.offset_for_timestamp(1000 + young) == expected


def test_a_time_is_never_found_in_what_may_be_the_value_of_a_damaged_message(tmp_path):
    # The length leads exactly to a message in the value, so both ways of walking find that one.
    copies = b"-" + b"".join(Message(each, 900 + each, None, b"v", 1).encode() for each in (103, 105, 107))
    around = Message(101, 5, b"key", copies, 1).encode()
    after = [Message(each, 5, b"key", b"v", 1).encode() for each in range(108, 112)]
    length = struct.pack(">i", around.index(copies) + 1 - 12)
    content = Message(100, 5, b"key", b"v", 1).encode() + around[:8] + length + around[12:] + b"".join(after)
    (tmp_path / f"{100:020d}.log").write_bytes(content)
    strict = SegmentReader(FileSystem(), str(tmp_path), 100, offset_limit=112)
    with pytest.raises(CorruptRecordError):
        strict.offset_for_timestamp(1000)
