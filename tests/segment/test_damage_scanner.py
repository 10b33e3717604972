"""Which batches count, which bytes are damaged: the same answer from wherever one begins."""

from __future__ import annotations

import itertools
import random
import struct

import pytest

from storage_core.errors import BatchTooLargeError, CorruptRecordError
from storage_core.filesystem import FileSystem
from storage_core.record.varint import varint_bytes
from storage_core.segment import DamagedRange, DamageScanner
from tests.record.encoding import LZ4, Batch, Record
from tests.record.frames import lz4_frame
from tests.record.legacy_encoding import Message, Wrapper

LIMIT = 64 << 20
SIZE = 69


@pytest.fixture
def batches(make_batch):
    """Ten batches of one record and 69 bytes, offsets 100 to 109."""
    made = [make_batch(offset, (offset,)) for offset in range(100, 110)]
    assert {len(batch) for batch in made} == {SIZE}
    return made


@pytest.fixture
def open_content(tmp_path):
    opened = []

    def open_content(content, *, end_offset=110, base_offset=100, limit_bytes=LIMIT):
        path = tmp_path / f"{base_offset:020d}.log"
        path.write_bytes(content)
        log_file = FileSystem().open(str(path))
        opened.append(log_file)
        return DamageScanner(log_file, base_offset, len(content), end_offset, limit_bytes)

    yield open_content
    for log_file in opened:
        log_file.close()


@pytest.fixture
def items_of(open_content):
    """Base offsets of the batches that count; of damage (start byte, end byte, start offset, end offset)."""

    def items_of(content, **options):
        position, lowest = options.pop("start", (0, options.get("base_offset", 100)))
        return [
            (item.start_bytes, item.end_bytes, item.start_offset, item.end_offset)
            if isinstance(item, DamagedRange)
            else item.base_offset
            for item in open_content(content, **options).items(position, lowest)
        ]

    return items_of


def changed(batches, number, position, value):
    """Return all batches, one of them with other bytes at a position."""
    content = bytearray(b"".join(batches))
    start = number * SIZE + position
    content[start : start + len(value)] = value
    return bytes(content)


def one_lost(number):
    """Return what is found if one batch is damaged, and nothing else."""
    lost = (number * SIZE, number * SIZE + SIZE, 100 + number, 101 + number)
    return [*range(100, 100 + number), lost, *range(101 + number, 110)]


def test_an_undamaged_file(items_of, batches):
    assert items_of(b"".join(batches)) == list(range(100, 110))
    assert items_of(b"") == []


@pytest.mark.parametrize("zeros", [1, 60, 5000, 3_000_000])
def test_zeros_at_the_end_are_no_damage(items_of, batches, zeros):
    assert items_of(b"".join(batches) + bytes(zeros)) == list(range(100, 110))


@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize(
    ("position", "value"),
    [
        pytest.param(8, struct.pack(">i", 0), id="length 0"),
        pytest.param(8, struct.pack(">i", 48), id="length 48"),
        pytest.param(8, struct.pack(">i", -1), id="length -1"),
        pytest.param(8, struct.pack(">i", -(2**31)), id="smallest length"),
        pytest.param(8, struct.pack(">i", 2**31 - 1), id="largest length"),
        pytest.param(8, struct.pack(">i", SIZE - 12 + 1), id="length one too large"),
        pytest.param(8, struct.pack(">i", SIZE - 12 - 1), id="length one too small"),
        pytest.param(8, struct.pack(">i", 2 * SIZE - 12), id="length of two batches"),
        pytest.param(8, struct.pack(">i", 5 * SIZE - 12), id="length of five batches"),
        pytest.param(16, b"\0", id="magic 0"),
        pytest.param(16, b"\1", id="magic 1"),
        pytest.param(16, b"\3", id="magic 3"),
        pytest.param(16, b"\xff", id="magic -1"),
        pytest.param(17, b"\0\0\0\0", id="CRC"),
        pytest.param(21, b"\x80\0", id="attributes"),
        pytest.param(23, struct.pack(">i", 7), id="last offset delta"),
        pytest.param(23, struct.pack(">i", -1), id="negative last offset delta"),
        pytest.param(57, struct.pack(">i", 2**31 - 1), id="record count"),
        pytest.param(66, b"\xee", id="record"),
        pytest.param(8, bytes(61), id="zeros but for the offset"),
        pytest.param(0, bytes(SIZE), id="zeros"),
        pytest.param(0, b"\xff" * SIZE, id="ones"),
        pytest.param(0, b"\2" * SIZE, id="twos"),
        pytest.param(0, struct.pack(">q", 99), id="offset below the file's name"),
        pytest.param(0, struct.pack(">q", -1), id="negative offset"),
        pytest.param(0, struct.pack(">q", 2**63 - 1), id="largest offset"),
        pytest.param(0, struct.pack(">q", 110), id="offset of the next segment"),
    ],
)
def test_one_damaged_batch_is_all_that_is_lost(items_of, batches, number, position, value):
    found = items_of(changed(batches, number, position, value))
    # Zeros at the very end are no preallocated rest either: their offsets are missing.
    assert found == one_lost(number)


@pytest.mark.parametrize("first", range(9))
@pytest.mark.parametrize("count", [1, 2, 5])
def test_from_any_boundary_the_rest_is_the_same(items_of, batches, first, count):
    content = changed(batches, 9 - count, 66, b"\xee")
    assert (
        items_of(content, start=(first * SIZE, 100 + first))
        == [item for item in one_lost(9 - count) if isinstance(item, int) or item[0] >= first * SIZE][
            min(first, 9 - count) :
        ]
        or first > 9 - count
    )


@pytest.mark.parametrize("garbage", [b"\0", b"\xff", bytes(40), b"\1" * 61, bytes(range(256)) * 20])
def test_bytes_between_two_batches_lose_nothing(items_of, batches, garbage):
    content = b"".join(batches[:4]) + garbage + b"".join(batches[4:])
    assert items_of(content) == [
        100, 101, 102, 103, (4 * SIZE, 4 * SIZE + len(garbage), 104, 104), *range(104, 110)
    ]  # fmt: skip


def test_batches_that_stand_twice(items_of, batches):
    content = b"".join(batches[:4] + batches[2:4] + batches[4:])
    assert items_of(content) == [100, 101, 102, 103, (4 * SIZE, 6 * SIZE, 104, 104), *range(104, 110)]


def test_copies_that_leave_no_offsets_for_a_longer_run(items_of, batches):
    strays = b"\xff" * 40 + batches[3] + batches[4] + b"\xff" * 20
    assert items_of(strays + b"".join(batches[1:])) == [(0, len(strays), 100, 101), *range(101, 110)]


def test_a_batch_that_the_file_does_not_hold_wholly_makes_no_longer_run(items_of, batches):
    content = b"\xff" * 40 + batches[5] + b"\xff" * 20 + batches[2] + batches[3][:-1]
    assert items_of(content) == [(0, 40, 100, 105), 105, (40 + SIZE, len(content), 106, 110)]


def test_a_header_in_front_of_its_own_batch(items_of, batches):
    content = batches[1][:61] + b"".join(batches[1:])
    assert items_of(content) == [(0, 61, 100, 101), *range(101, 110)]


def test_neighbouring_damage_is_one_range(items_of, batches):
    content = bytearray(changed(batches, 3, 66, b"\xee"))
    content[4 * SIZE + 8 : 4 * SIZE + 12] = struct.pack(">i", 1_000_000)
    content[5 * SIZE : 6 * SIZE] = bytes(SIZE)
    assert items_of(content) == [100, 101, 102, (3 * SIZE, 6 * SIZE, 103, 106), *range(106, 110)]


class TestEnds:
    def test_of_a_closed_segment_the_next_ones_offset_bounds_what_is_lost(self, items_of, batches):
        content = b"".join(batches)[:-1]
        assert items_of(content, end_offset=500) == [*range(100, 109), (9 * SIZE, 10 * SIZE - 1, 109, 500)]

    def test_without_a_known_end_a_torn_batch_is_none(self, items_of, batches):
        assert items_of(b"".join(batches)[:-1], end_offset=None) == list(range(100, 109))

    def test_without_a_known_end_damage_before_a_batch_is_damage(self, items_of, batches):
        assert items_of(changed(batches, 8, 66, b"\xee"), end_offset=None) == one_lost(8)

    def test_a_segment_of_nothing_but_garbage(self, items_of):
        content = random.Random(1).randbytes(300_000)
        assert items_of(content, end_offset=200) == [(0, 300_000, 100, 200)]
        assert items_of(content, end_offset=None) == []

    def test_a_file_of_another_segment(self, items_of, batches):
        content = b"".join(batches)
        assert items_of(content, base_offset=200, end_offset=300) == [(0, len(content), 200, 300)]
        assert items_of(content, base_offset=0, end_offset=50) == [(0, len(content), 0, 50)]


class TestOutliers:
    """No CRC covers a base offset. Which of two is wrong, their neighbours say."""

    @pytest.mark.parametrize("number", range(9))
    @pytest.mark.parametrize("step", [1, 2, 4, 1 << 20])
    def test_an_offset_that_was_raised(self, items_of, batches, number, step):
        content = changed(batches, number, 0, struct.pack(">q", 100 + number + step))
        if number + step > 9:
            # Such an offset belongs to the next segment, or to none.
            assert items_of(content, end_offset=2**62) == one_lost(number)
        assert items_of(content) == one_lost(number)

    @pytest.mark.parametrize("number", range(1, 10))
    @pytest.mark.parametrize("step", [1, 2, 4])
    def test_an_offset_that_was_lowered(self, items_of, batches, number, step):
        content = changed(batches, number, 0, struct.pack(">q", max(100, 100 + number - step)))
        assert items_of(content) == one_lost(number)

    def test_in_a_compacted_log(self, items_of, make_batch):
        made = [make_batch(offset, (offset,)) for offset in (100, 105, 120, 121, 140)]
        found = items_of(changed(made, 1, 0, struct.pack(">q", 130)), end_offset=200)
        assert found == [100, (SIZE, 2 * SIZE, 101, 120), 120, 121, 140]

    def test_two_batches_that_changed_places(self, items_of, batches):
        content = b"".join([batches[1], batches[0], *batches[2:]])
        assert items_of(content) == [(0, SIZE, 100, 100), 100, *range(102, 110)]

    def test_the_reason_names_both(self, open_content, batches):
        content = changed(batches, 3, 0, struct.pack(">q", 105))
        assert open_content(content).damage_at(3 * SIZE, 103).reason == (
            "Expected offsets below 104, where the next batch begins, found a batch from 105 to 105: batches are "
            "out of order."
        )


class TestValuesThatHoldBatches:
    """Copies of batches in a record's value, with offsets that fit their position."""

    @pytest.fixture
    def content(self, make_batch):
        """Three batches; the value of the one in the middle holds copies of 103 and 104."""
        copies = b"".join(make_batch(offset, (offset,)) for offset in (103, 104))
        made = [make_batch(100, (1,)), make_batch(101, (1, 1), value=copies), make_batch(103, (1,))]
        self.borders = [0, SIZE, SIZE + len(made[1])]
        self.size = len(made[1])
        return b"".join(made)

    @pytest.mark.parametrize("position", [17, 30, 62, 64, -1])
    def test_where_the_damaged_one_ends_as_it_says(self, items_of, content, position):
        changed_content = bytearray(content)
        changed_content[SIZE + (position if position > 0 else self.size - 1)] ^= 0x40
        assert items_of(changed_content, end_offset=104) == [100, (SIZE, SIZE + self.size, 101, 103), 103]

    def test_where_it_is_the_last_one(self, items_of, content):
        last = bytearray(content[: SIZE + self.size])
        last[SIZE + 30] ^= 1
        assert items_of(last, end_offset=110) == [100, (SIZE, SIZE + self.size, 101, 110)]
        assert items_of(last, end_offset=None) == [100]

    @pytest.fixture
    def among_others(self, make_batch):
        """Return two batches; the value of the second one holds a copy of 102, and more."""
        return make_batch(100, (1,)), make_batch(101, (1,), value=make_batch(102, (1,)) + b"-" * 30)

    def test_where_damaged_ones_lead_to_the_end_of_the_file(self, items_of, make_batch, among_others):
        content = bytearray(b"".join(among_others) + make_batch(102, (1,)))
        content[SIZE + 30] ^= 1
        content[-1] ^= 1
        assert items_of(content) == [100, (SIZE, len(content), 101, 110)]

    def test_where_it_is_the_last_one_and_only_its_length_is_damaged(self, items_of, among_others):
        content = bytearray(b"".join(among_others))
        for length in (0, 50, 1 << 20):
            content[SIZE + 8 : SIZE + 12] = struct.pack(">i", length)
            assert items_of(content) == [100, (SIZE, len(content), 101, 110)]

    def test_where_it_was_written_again_after_it_was_torn(self, items_of, make_batch, among_others):
        first, around = among_others
        content = first + around[:41] + around + make_batch(102, (1,))
        assert items_of(content, end_offset=103) == [100, (SIZE, SIZE + 41, 101, 101), 101, 102]

    def test_where_only_its_length_is_damaged(self, items_of, content):
        """Whatever it says, unless it leads to a copy: the CRC is right for the end where the next batch begins."""
        copies = {
            place - SIZE - 12
            for place in range(len(content))
            if content[place : place + 8] in (struct.pack(">q", 103), struct.pack(">q", 104))
        }
        for length in {*range(-3, len(content) + 3), -5, 100_000, 2**31 - 1, -(2**31)} - copies:
            damaged = content[: SIZE + 8] + struct.pack(">i", length) + content[SIZE + 12 :]
            if damaged != content:
                found = items_of(damaged, end_offset=104)
                assert found == [100, (SIZE, SIZE + self.size, 101, 103), 103], length

    def test_where_it_is_compressed_and_only_its_length_is_damaged(self, items_of, make_batch):
        """What a codec leaves as it is may be a batch, with the very offset that comes next."""
        copies = make_batch(102, (1,)) + b"-" * 50
        records = Batch((Record(0, 1, None, copies),)).encode_records()
        start = records.index(copies)
        payload = lz4_frame([records[:start], records[start:]], stored=True)
        around = Batch((Record(0, 1),), 101, LZ4, payload=payload).encode()
        content = make_batch(100, (1,)) + around + make_batch(102, (1,))
        for length in {*range(len(content))} - {around.index(copies) - 12}:
            damaged = content[: SIZE + 8] + struct.pack(">i", length) + content[SIZE + 12 :]
            if damaged != content:
                found = items_of(damaged, end_offset=103)
                assert found == [100, (SIZE, SIZE + len(around), 101, 102), 102], length

    @pytest.mark.parametrize("magic", [b"\0", b"\1", b"\x42"])
    def test_where_only_its_magic_is_damaged(self, items_of, content, magic):
        content = content[: SIZE + 16] + magic + content[SIZE + 17 :]
        assert items_of(content, end_offset=104) == [100, (SIZE, SIZE + self.size, 101, 103), 103]

    def test_where_its_header_is_gone(self, items_of, content):
        """The length of the value precedes the copies."""
        content = content[:SIZE] + b"\xff" * 61 + content[SIZE + 61 :]
        assert items_of(content, end_offset=104) == [100, (SIZE, SIZE + self.size, 101, 103), 103]

    @pytest.fixture
    def hidden(self, make_batch):
        """Return a function that makes a batch whose value holds another one, and no length in front of that."""
        return lambda offset, held: make_batch(
            offset, (1,), value=b"-" * 20 + make_batch(held, (1,)) + b"-" * 30
        )

    def test_where_everything_before_its_crc_is_zero(self, items_of, make_batch, hidden):
        around = hidden(101, 102)
        content = make_batch(100, (1,)) + bytes(17) + around[17:] + make_batch(102, (1,))
        found = items_of(content, end_offset=103)
        assert found == [100, (SIZE, SIZE + len(around), 101, 102), 102]

    @pytest.mark.parametrize("garbage", [1, 9, 100])
    @pytest.mark.parametrize("offset", [5, 99, 100, 102, 500])
    def test_where_it_is_whole_and_out_of_order(self, items_of, make_batch, hidden, offset, garbage):
        around = hidden(offset, 101)
        content = make_batch(100, (1,)) + b"\xff" * garbage + around + make_batch(101, (1,))
        end = SIZE + garbage + len(around)
        assert items_of(content, end_offset=102) == [100, (SIZE, end, 101, 101), 101]

    @pytest.mark.parametrize("gone", [1, 5, 60, 90, 150])
    def test_where_bytes_of_its_value_are_gone(self, items_of, make_batch, gone):
        """Then its lengths lead past the next batch, which leads across the end that they declare."""
        copies = make_batch(102, (1,)) + b"-" * 200
        made = [
            make_batch(100, (1,)),
            make_batch(101, (1,), value=copies),
            *(make_batch(each, (1,)) for each in (102, 103, 104)),
        ]
        cut = SIZE + 61 + 20
        content = b"".join(made)
        content = content[:cut] + content[cut + gone :]
        end = SIZE + len(made[1]) - gone
        assert items_of(content, end_offset=105) == [100, (SIZE, end, 101, 102), 102, 103, 104]

    @pytest.mark.parametrize("gone", [1, 4, 8])
    def test_where_bytes_of_the_last_copy_are_gone(self, items_of, make_batch, gone):
        # The next batch begins before the end that the length of the value states, and ends after it.
        copies = b"".join(make_batch(offset, (offset,)) for offset in (111, 112, 113))
        made = [make_batch(100, (1,)), make_batch(101, (1,), value=copies), make_batch(120, (1,))]
        cut = SIZE + made[1].index(copies) + 2 * SIZE + 61
        content = b"".join(made)
        content = content[:cut] + content[cut + gone :]
        end = SIZE + len(made[1]) - gone
        assert items_of(content, end_offset=121) == [100, (SIZE, end, 101, 120), 120]

    def test_where_a_whole_batch_reaches_over_the_end_that_a_bad_one_states(
        self, items_of, make_batch, hidden
    ):
        # What is left of the bad one states an end at which the next one holds a copy.
        around = hidden(110, 111)
        content = make_batch(100, (1,)) + make_batch(101, (1,))[:61] + around + make_batch(112, (1,))
        copy_bytes = SIZE + 61 + around.index(make_batch(111, (1,)))
        length = struct.pack(">i", copy_bytes - SIZE - 12)
        content = content[: SIZE + 8] + length + content[SIZE + 12 :]
        assert items_of(content, end_offset=113) == [100, (SIZE, SIZE + 61, 101, 110), 110, 112]

    def test_where_the_offset_of_the_batch_after_it_is_damaged(self, items_of, make_batch, hidden):
        around = bytearray(hidden(101, 103))
        around[-1] ^= 1
        stray = struct.pack(">q", 7) + make_batch(102, (1,))[8:]
        made = [make_batch(100, (1,)), bytes(around), stray, *(make_batch(each, (1,)) for each in (103, 104))]
        end = SIZE + len(around) + SIZE
        assert items_of(b"".join(made), end_offset=105) == [100, (SIZE, end, 101, 103), 103, 104]

    @pytest.mark.parametrize("damaged", [1, 2, 3])
    def test_where_batches_after_it_are_damaged_but_not_their_headers(self, items_of, make_batch, damaged):
        """Offsets are missing after each, so that the copies fit in; nothing is left of the lengths in front of them."""
        copies = b"-" * 20 + make_batch(111, (1,)) + b"-" * 200
        made = [make_batch(100, (1,)), make_batch(110, (1,), value=copies)]
        made += [make_batch(120 + 10 * n, (1,), value=bytes(50)) for n in range(damaged + 1)]
        content = bytearray(b"".join(made))
        content[SIZE + 61 : SIZE + 80] = b"\xff" * 19
        for number in range(2, damaged + 2):
            content[sum(map(len, made[:number])) + 90] ^= 1
        last = 120 + 10 * damaged
        end = len(content) - len(made[-1])
        assert items_of(content, end_offset=last + 1) == [100, (SIZE, end, 101, last), last]

    @pytest.mark.parametrize(("offset", "delta"), [(103, 30), (103, 1 << 30), (103 + (1 << 16), 0), (5, 0)])
    def test_where_the_offsets_of_a_damaged_one_after_it_are_wrong(
        self, items_of, make_batch, hidden, offset, delta
    ):
        around, bad = hidden(101, 102), make_batch(offset, (1,), last_offset_delta=delta)
        bad = bad[:-1] + bytes([bad[-1] ^ 1])
        content = make_batch(100, (1,)) + around[:-1] + b"\xff" + bad + make_batch(104, (1,))
        end = SIZE + len(around) + len(bad)
        assert items_of(content, end_offset=105) == [100, (SIZE, end, 101, 104), 104]

    def test_where_a_copy_has_the_offset_of_a_damaged_one_after_it(self, items_of):
        copies = b"-" + Message(103, 5, None, b"inner", 1).encode()
        values = (b"v", b"v", copies, b"v", b"v")
        made = [Message(100 + number, 5, b"key", value, 1).encode() for number, value in enumerate(values)]
        starts = [0, *itertools.accumulate(map(len, made))]
        content = bytearray(b"".join(made))
        # The length of the key, and the last byte of the next one.
        content[starts[2] + 29] ^= 0x40
        content[starts[4] - 1] ^= 1
        expected = [100, 101, (starts[2], starts[4], 102, 104), 104]
        assert items_of(content, end_offset=105) == expected

    @pytest.mark.parametrize("cut", [200, 250, 300])
    def test_where_it_is_torn(self, items_of, content, cut):
        assert items_of(content[: SIZE + cut], end_offset=None) == [100]

    @pytest.mark.parametrize("magic", [0, 1])
    @pytest.mark.parametrize(("position", "value"), [
        pytest.param(8, struct.pack(">i", 22), id="length"),
        pytest.param(8, struct.pack(">i", 200), id="larger length"),
        pytest.param(16, b"\2", id="magic"),
        pytest.param(12, b"\xff", id="CRC"),
        pytest.param(40, b"-", id="the first copy"),
    ])  # fmt: skip
    @pytest.mark.parametrize("copied", [(111, 112), (118, 119)], ids=["after it", "before the next"])
    def test_in_old_messages_with_a_gap_for_them(self, items_of, magic, copied, position, value):
        """A message ends with its value: what is copied there leads exactly to its end, in offsets maybe, too."""
        copies = b"-" + b"".join(Message(offset, 5, None, b"v", magic).encode() for offset in copied)
        made = [Message(offset, 5, b"key", copies, magic).encode() for offset in (100, 110, 120)]
        size = len(made[0])
        content = bytearray(b"".join(made))
        content[size + position : size + position + len(value)] = value
        assert items_of(content, end_offset=121) == [100, (size, 2 * size, 101, 120), 120]

    @pytest.mark.parametrize("magic", [0, 1])
    def test_in_old_messages(self, items_of, make_batch, magic):
        copies = b"".join(make_batch(offset, (offset,)) for offset in (101, 102))
        made = [Message(offset, 5, None, copies, magic).encode() for offset in (100, 101, 102)]
        size = len(made[0])
        content = bytearray(b"".join(made))
        content[size + 20] ^= 1
        assert items_of(content, end_offset=103) == [100, (size, 2 * size, 101, 102), 102]


class TestNoValues:
    """What seems to lie in a value, and does not."""

    def test_a_byte_before_a_message_is_no_length(self, items_of):
        # As a varint, "v" is the length of a value that would end among the zeros that follow.
        made = [Message(offset, 5, b"key", b"v" * 40, 1, attributes=8).encode() for offset in (100, 101)]
        content = bytearray(b"".join(made) + bytes(600))
        content[:20] = bytes(20)
        size = len(made[0])
        assert items_of(content, end_offset=None) == [(0, size, 100, 101), 101]

    @pytest.mark.parametrize("following", [0, 1])
    def test_a_byte_before_a_small_message_is_no_length(self, items_of, following):
        # As a varint, what is left at the end of the one before is the size of the message.
        made = [Message(offset, 5, None, b"v" * 16, 1).encode() for offset in range(100, 103 + following)]
        size = len(made[0])
        # Two bytes are gone, so that its length leads into the next one.
        content = made[0] + made[1][:-3] + varint_bytes(size)[-1:] + b"".join(made[2:])
        assert size < 64
        expected = [100, (size, 2 * size - 2, 101, 102), *range(102, 103 + following)]
        assert items_of(content, end_offset=103 + following) == expected

    @pytest.mark.parametrize("zeros", [1, 2, 8, 61, 200])
    def test_zeros_before_a_batch_and_after(self, items_of, batches, zeros):
        content = bytes(zeros) + batches[0] + bytes(zeros) + batches[1]
        expected = [(0, zeros, 100, 100), 100, (zeros + SIZE, 2 * zeros + SIZE, 101, 101), 101]
        assert items_of(content, end_offset=102) == expected

    @pytest.mark.parametrize("zeros", [1, 7, 8, 9])
    def test_zeros_before_an_old_message(self, items_of, zeros):
        # With eight of them, the lengths of a message of format v0 are where one of v1 has its own.
        made = [Message(offset, 5, None, b"value", 0).encode() for offset in (100, 101)]
        size = len(made[0])
        content = made[0] + bytes(zeros) + made[1]
        assert items_of(content, end_offset=102) == [100, (size, size + zeros, 101, 101), 101]


class TestOldFormats:
    @pytest.mark.parametrize("magic", [0, 1])
    @pytest.mark.parametrize("number", range(5))
    @pytest.mark.parametrize("position", [8, 9, 10, 11, 12, 16, 17, 20, 26])
    def test_messages(self, items_of, magic, number, position):
        made = [Message(offset, 5, None, b"value", magic).encode() for offset in range(100, 105)]
        size = len(made[0])
        content = bytearray(b"".join(made))
        content[number * size + position] ^= 0x20
        expected = [100, 101, 102, 103, 104]
        expected[number] = (number * size, number * size + size, 100 + number, 101 + number)
        assert items_of(content, end_offset=105) == expected

    @pytest.mark.parametrize("magic", [0, 1])
    @pytest.mark.parametrize("codec", [1, 2, 3])
    def test_what_is_lost_before_a_wrapper_ends_with_its_first_record(self, items_of, magic, codec):
        made = [
            Wrapper(
                tuple(Message(offset, 5, None, b"v" * 50, magic) for offset in offsets), codec, magic
            ).encode()
            for offsets in ((100, 101, 102), (103, 104), (107, 108, 109))
        ]
        content = bytearray(b"".join(made))
        content[len(made[0]) + 40] ^= 1
        assert items_of(content)[1] == (len(made[0]), len(made[0] + made[1]), 103, 107)


class TestLimits:
    def test_a_batch_above_the_limit_is_damage_and_its_end_is_certain(self, open_content, make_batch):
        copies = b"".join(make_batch(offset, (offset,)) for offset in (103, 104))
        large = make_batch(101, (1, 1), value=copies + bytes(5000))
        content = make_batch(100, (1,)) + large + make_batch(103, (1,))
        scanner = open_content(content, limit_bytes=5000)
        before, damage, following = scanner.items(0, 100)
        assert (before.base_offset, following.base_offset) == (100, 103)
        assert (damage.start_bytes, damage.end_bytes) == (SIZE, SIZE + len(large))
        assert damage.error_type is BatchTooLargeError
        assert damage.reason == (
            f"Expected a record batch of at most 5000 bytes, found one that declares {len(large)}. If it is "
            "genuine, raise maxDecompressedBatchBytes."
        )

    def test_forged_headers_end_a_search_in_time(self, open_content):
        """Each eighth byte begins something that looks like a batch of some megabytes."""
        head = struct.pack(">qiib", 100, 4 << 20, 0, 2) + bytes(44)
        content = head[:61] * 100_000
        scanner = open_content(content, end_offset=1000)
        (damage,) = scanner.items(0, 100)
        assert (damage.start_bytes, damage.end_bytes) == (0, len(content))
        assert scanner.probe.is_exhausted

    @pytest.mark.parametrize("is_end", [True, False])
    def test_zeros_after_many_batches_are_read_once(self, tmp_path, make_batch, is_end):
        made = [make_batch(offset, (1,), value=bytes(100)) for offset in range(500)]
        end = len(made[0])
        content = bytearray(b"".join(made)) + bytes(4 << 20)
        content[11] ^= 1
        content[61:80] = b"\xff" * 19
        if not is_end:
            content += make_batch(500, (1,))
        path = tmp_path / "0.log"
        path.write_bytes(content)
        filesystem = FileSystem()
        with filesystem.open(str(path)) as log_file:
            scanner = DamageScanner(log_file, 0, len(content), None, LIMIT)
            damage, *batches = itertools.islice(scanner.items(0, 0), 500)
        assert (damage.start_bytes, damage.end_bytes) == (0, end)
        assert [batch.base_offset for batch in batches] == [*range(1, 500)]
        assert filesystem.statistics.bytes_read < 20 * len(content)

    def test_large_batches_after_damage_are_not_read_to_find_one(self, tmp_path, make_batch):
        made = [bytearray(make_batch(offset, (1,), value=bytes(100_000))) for offset in range(40)]
        made[1][:61] = bytes(61)
        content = b"".join(made)
        path = tmp_path / "0.log"
        path.write_bytes(content)
        filesystem = FileSystem()
        with filesystem.open(str(path)) as log_file:
            found = DamageScanner(log_file, 0, len(content), None, LIMIT).next_log_batch(len(made[0]), 1)
        assert found is not None
        assert found.base_offset == 2
        assert filesystem.statistics.bytes_read < len(content) / 2

    def test_alternating_damage_is_found_without_reading_all_of_it_again_and_again(
        self, tmp_path, make_batch
    ):
        made = [bytearray(make_batch(offset, (1,))) for offset in range(4000)]
        for batch in made[::2]:
            batch[66] ^= 1
        content = b"".join(made)
        path = tmp_path / "0.log"
        path.write_bytes(content)
        filesystem = FileSystem()
        with filesystem.open(str(path)) as log_file:
            found = list(DamageScanner(log_file, 0, len(content), 4000, LIMIT).items(0, 0))
        assert len(found) == 4000
        assert filesystem.statistics.bytes_read < 10 * len(content)


@pytest.mark.parametrize(("lost", "lowered"), [(5, 10), (5, 40), (20, 30), (30, 50)])
def test_a_lowered_offset_takes_no_batch_before_it(items_of, make_batch, lost, lowered):
    """The base offset of a batch, which no CRC covers, becomes that of a batch that is lost."""
    content = bytearray(b"".join(make_batch(offset, (offset,)) for offset in range(100, 160)))
    content[lost * SIZE + 16] = 9
    content[lost * SIZE + 9] ^= 3
    content[lowered * SIZE : lowered * SIZE + 8] = struct.pack(">q", 100 + lost)
    found = [item for item in items_of(content, end_offset=160) if isinstance(item, int)]
    assert found == [offset for offset in range(100, 160) if offset not in (100 + lost, 100 + lowered)]


def test_proofs_keep_no_sound_batch_from_being_checked(items_of, make_batch):
    """What is read to find where hundreds of bad batches end does not count against the CRCs of others."""
    rng = random.Random(7)
    made = [make_batch(offset, (offset,), value=rng.randbytes(300)) for offset in range(9000)]
    starts = [0, *itertools.accumulate(map(len, made))]
    content = bytearray(b"".join(made))
    for number in range(3, 9000, 50):
        content[starts[number] + 100] ^= 1
    for number in range(15, 9000, 50):
        content[starts[number] + 9] ^= 3
    found = [item for item in items_of(content, base_offset=0, end_offset=9000) if isinstance(item, int)]
    assert found == [number for number in range(9000) if number % 50 not in (3, 15)]


def test_whole_batches_out_of_order_keep_no_sound_batch_from_being_checked(items_of, make_batch, monkeypatch):
    monkeypatch.setattr("storage_core.segment.damage._ALLOWANCE_BYTES", 64 * SIZE)
    out_of_order = [make_batch(offset, (1,)) for offset in range(101, 600)]
    following = [make_batch(offset, (1,)) for offset in (5001, 5002)]
    content = b"".join([make_batch(5000, (1,)), b"\xff" * SIZE, *out_of_order, *following])
    assert [item for item in items_of(content, end_offset=5003) if isinstance(item, int)] == [
        5000,
        5001,
        5002,
    ]


def test_whole_batches_out_of_order_leave_enough_for_proofs(items_of, make_batch, monkeypatch):
    monkeypatch.setattr("storage_core.segment.damage._PROOF_ALLOWANCE_BYTES", 4 << 20)
    out_of_order = [make_batch(offset, (1,)) for offset in range(101, 600)]
    copies = b"".join(make_batch(offset, (1,)) for offset in (5001, 5002))
    around = b"\xff" * 61 + make_batch(5001, (1,), value=copies)[61:]
    content = b"".join(
        [make_batch(5000, (1,)), b"\xff" * SIZE, *out_of_order, around, make_batch(5010, (1,))]
    )
    assert [item for item in items_of(content, end_offset=5011) if isinstance(item, int)] == [5000, 5010]


def test_stray_copies_after_a_bad_batch_take_no_sound_one(items_of, make_batch):
    made = [make_batch(offset, (1,)) for offset in (100, 101, 7, 1108)]
    content = changed(made, 1, -1 + SIZE, b"\xff") + b"\xff" * 30
    content += b"".join(make_batch(offset, (1,)) for offset in range(102, 132))
    found = [item for item in items_of(content, end_offset=2000) if isinstance(item, int)]
    assert found == [100, *range(102, 132)]


def test_whether_markers_may_be_among_what_is_lost(open_content, make_batch):
    def damage(*lost):
        content = bytearray(make_batch(100, (1,)) + b"".join(lost) + make_batch(110, (1,)))
        content[SIZE + 30] ^= 1
        (found,) = (
            item
            for item in open_content(content, end_offset=111).items(0, 100)
            if isinstance(item, DamagedRange)
        )
        return found

    large = make_batch(101, tuple(range(9)), value=bytes(100))
    assert not damage(large).may_hold_markers
    # As small as a marker.
    assert damage(make_batch(101, (1,), value=bytes(8), last_offset_delta=0)).may_hold_markers
    # Headers do not account for every byte, or every offset.
    assert damage(large, b"\xff").may_hold_markers
    assert damage(make_batch(101, tuple(range(8)), value=bytes(100))).may_hold_markers


def test_a_damaged_range_becomes_an_error(open_content, batches):
    error = open_content(changed(batches, 4, 66, b"\xee")).damage_at(4 * SIZE, 104).error()
    assert type(error) is CorruptRecordError
    assert (error.position_bytes, error.end_position_bytes) == (4 * SIZE, 5 * SIZE)
    assert (error.offset, error.last_offset) == (104, 104)
    assert str(error).endswith(f"{error.path}, bytes {4 * SIZE} to {5 * SIZE - 1}, offset 104]")
