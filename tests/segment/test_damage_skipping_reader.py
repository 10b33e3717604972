"""A walk over batch headers that hops over damage, or says all of it."""

from __future__ import annotations

import struct

import pytest

from storage_core.errors import CorruptRecordError
from storage_core.filesystem import FileSystem
from storage_core.segment import DamageScanner
from storage_core.segment.damage_skipping_reader import DamageSkippingReader
from tests.record.legacy_encoding import Message

SIZE = 69


@pytest.fixture
def batches(make_batch):
    """Ten batches of 69 bytes, two offsets each, of which one is empty."""
    return [make_batch(offset, (offset,), last_offset_delta=1) for offset in range(100, 120, 2)]


@pytest.fixture
def open_walk(tmp_path):
    opened = []

    def open_walk(content, *, skip_damage=True, end_offset=120):
        path = tmp_path / f"{100:020d}.log"
        path.write_bytes(content)
        log_file = FileSystem().open(str(path))
        opened.append(log_file)
        scanner = DamageScanner(log_file, 100, len(content), end_offset, 1 << 20)
        return DamageSkippingReader(log_file, 100, scanner, skip_damage=skip_damage)

    yield open_walk
    for log_file in opened:
        log_file.close()


def changed(batches, number, position, value):
    content = bytearray(b"".join(batches))
    start = number * SIZE + position
    content[start : start + len(value)] = value
    return bytes(content)


def bases(walked):
    return [batch[2] for batch in walked]


@pytest.mark.parametrize("skip_damage", [True, False])
class TestUndamaged:
    def test_it_walks_as_the_plain_walk_does(self, open_walk, batches, skip_damage):
        walk = open_walk(b"".join(batches) + bytes(5000), skip_damage=skip_damage)
        assert list(walk.iter_summaries()) == list(walk.strict.iter_summaries())
        assert list(walk.batches()) == list(walk.strict.batches())
        assert list(walk.iter_summaries(3 * SIZE)) == list(walk.strict.iter_summaries(3 * SIZE))
        assert walk.batch_at(4 * SIZE) == walk.strict.batch_at(4 * SIZE)
        assert walk.batch_at(10 * SIZE) is None

    @pytest.mark.parametrize("offset", range(99, 122))
    def test_first_reaching(self, open_walk, batches, skip_damage, offset):
        header = open_walk(b"".join(batches), skip_damage=skip_damage).first_reaching(offset, 0)
        assert (header and header.base_offset) == (max(100, offset // 2 * 2) if offset < 120 else None)


# Bytes that end or mislead a walk over headers.
MISLEADING = [
    pytest.param(16, b"\7", id="magic"),
    pytest.param(8, struct.pack(">i", 0), id="length 0"),
    pytest.param(8, struct.pack(">i", 1 << 20), id="length beyond the end"),
    pytest.param(8, struct.pack(">i", 100), id="length into another batch"),
    pytest.param(8, struct.pack(">i", 3 * SIZE - 12), id="length to a later batch"),
    pytest.param(0, struct.pack(">q", 117), id="offset raised"),
    pytest.param(0, struct.pack(">q", 500), id="offset beyond the segment's end"),
    pytest.param(0, struct.pack(">q", 5), id="offset below the file's name"),
    pytest.param(0, bytes(SIZE), id="zeros"),
]


@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize(("position", "value"), MISLEADING)
class TestDamage:
    def expected(self, number, start=0):
        return [base for base in range(100, 120, 2) if base != 100 + 2 * number and base >= 100 + 2 * start]

    def test_it_is_skipped_batch(self, open_walk, batches, number, position, value):
        walk = open_walk(changed(batches, number, position, value))
        assert bases(walk.iter_summaries()) == self.expected(number)
        assert [header.base_offset for header in walk.batches()] == self.expected(number)

    def test_from_any_boundary_before_it(self, open_walk, batches, number, position, value):
        walk = open_walk(changed(batches, number, position, value))
        for start in range(number):
            assert bases(walk.iter_summaries(start * SIZE)) == self.expected(number, start)

    def test_look_ups_continue_after_it(self, open_walk, batches, number, position, value):
        walk = open_walk(changed(batches, number, position, value))
        for offset in range(100, 120):
            expected = next((base for base in self.expected(number) if base + 1 >= offset), None)
            header = walk.first_reaching(offset, 0)
            assert (header and header.base_offset) == expected

    def test_what_stands_around_an_offset(self, open_walk, batches, number, position, value):
        walk = open_walk(changed(batches, number, position, value))
        kept = self.expected(number)
        for offset in range(100, 120):
            # A walk that begins at the batch itself, or at damage, does not show what precedes it.
            for start in {0, max(0, min(number, (offset - 100) // 2) - 1)}:
                around = walk.locate_offset(offset, start * SIZE)
                before = [base for base in kept if base + 1 < offset and base >= 100 + 2 * start]
                following = [base for base in kept if base + 1 >= offset]
                assert (around.before and around.before.base_offset) == (before[-1] if before else None)
                assert around.found.base_offset == following[0]
                lost = (100 + 2 * number, 102 + 2 * number)
                is_between = (before[-1] if before else -1) < lost[0] < following[0]
                found = around.damage and (around.damage.start_offset, around.damage.end_offset)
                assert found == (lost if is_between else None)

    def test_where_it_is_not_to_be_skipped_it_is_an_error_that_names_all_of_it(
        self, open_walk, batches, number, position, value
    ):
        walk = open_walk(changed(batches, number, position, value), skip_damage=False)
        try:
            found = bases(walk.iter_summaries())
        except CorruptRecordError as error:
            assert (error.position_bytes, error.end_position_bytes) == (number * SIZE, number * SIZE + SIZE)  # noqa: PT017  (not every change shows)
            assert (error.offset, error.last_offset) == (100 + 2 * number, 101 + 2 * number)  # noqa: PT017  (likewise)
        else:
            # Headers alone do not tell: the reading checks every CRC.
            assert set(found) <= set(range(100, 120, 2)) | {117, 500}


@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "after another one"])
def test_a_look_up_never_ends_in_what_may_be_the_value_of_a_damaged_message(open_walk, is_alone):
    # The value ends with whole messages, which lead to the end of the one around them.
    copies = b"-" + b"".join(Message(each, 5, None, b"v", 0).encode() for each in (103, 105, 107))
    made = [
        Message(offset, 5, b"key", value, 0).encode()
        for offset, value in ((100, b"v"), (101, b"v"), (102, copies), (108, b"v"))
    ]
    content = bytearray(b"".join(made))
    around_bytes, next_bytes = len(made[0] + made[1]), len(made[0] + made[1] + made[2])
    # The length of the key, so that the fields of the message do not tell where its value ends.
    content[around_bytes + 21] ^= 0x40
    if not is_alone:
        content[around_bytes - 1] ^= 1
    walk = open_walk(bytes(content), skip_damage=False, end_offset=109)
    for offset in range(103, 108):
        with pytest.raises(CorruptRecordError) as raised:
            walk.first_reaching(offset, 0)
        assert raised.value.position_bytes == (around_bytes if is_alone else len(made[0]))
    assert walk.first_reaching(108, 0).position_bytes == next_bytes


def test_a_look_up_never_ends_in_the_value_of_a_damaged_message_after_another(open_walk):
    copies = b"".join(Message(each, 5, None, b"v", 1).encode() for each in (103, 105, 107))
    made = [
        Message(offset, 5, None, value, 1).encode()
        for offset, value in ((100, b"v"), (101, b"v"), (102, copies))
    ]
    content = bytearray(b"".join(made))
    around_bytes = len(made[0] + made[1])
    content[around_bytes - 1] ^= 1
    # The length leads to the first copy.
    content[around_bytes + 8 : around_bytes + 12] = struct.pack(">i", made[2].index(copies) - 12)
    walk = open_walk(bytes(content), skip_damage=False, end_offset=110)
    for offset in range(103, 108):
        with pytest.raises(CorruptRecordError) as raised:
            walk.first_reaching(offset, 0)
        assert raised.value.position_bytes == len(made[0])


def test_a_batch_whose_header_is_in_order_is_left_to_the_reading(open_walk, batches):
    walk = open_walk(changed(batches, 3, 66, b"\xee"))
    assert bases(walk.iter_summaries()) == list(range(100, 120, 2))


def test_near_an_offset_every_crc_is_checked(open_walk, batches):
    walk = open_walk(changed(batches, 3, 66, b"\xee"))
    for offset in (106, 107):
        around = walk.locate_offset(offset, 0)
        assert (around.before.base_offset, around.found.base_offset) == (104, 108)
        assert (around.damage.start_offset, around.damage.end_offset) == (106, 108)


def test_however_many_are_damaged_before_an_offset(open_walk, make_batch):
    made = [bytearray(make_batch(offset, (1,))) for offset in range(100, 900)]
    for batch in made[10:700]:
        batch[66] ^= 1
    walk = open_walk(b"".join(made), end_offset=900)
    around = walk.locate_offset(700, 0)
    assert (around.before.base_offset, around.found.base_offset) == (109, 800)
    assert (around.damage.start_offset, around.damage.end_offset) == (110, 800)


def test_after_the_last_batch(open_walk, batches):
    around = open_walk(b"".join(batches)[:-1]).locate_offset(119, 0)
    assert (around.before.base_offset, around.found) == (116, None)
    assert (around.damage.start_offset, around.damage.end_offset) == (118, 120)
    around = open_walk(b"".join(batches)[:-1], end_offset=None).locate_offset(119, 0)
    assert (around.before.base_offset, around.damage, around.found) == (116, None, None)
