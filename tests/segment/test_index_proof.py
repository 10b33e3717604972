"""Which entries of an offset index count: those that a walk from the entry before bears out, or from the beginning."""

from __future__ import annotations

import random
import struct

import pytest

from storage_core.errors import CorruptRecordError
from storage_core.filesystem import FileSystem
from storage_core.segment import OffsetPosition, SegmentEnd, SegmentReader, TimestampOffset

BASE = 50
SIZE = 169


@pytest.fixture
def segment(make_batch, make_segment):
    """Return a hundred batches of 169 bytes, offsets 50 to 149, with 24 entries in the offset index."""
    return make_segment(
        BASE,
        [make_batch(BASE + n, (1000 + n,), value=bytes(100)) for n in range(100)],
        index_interval_bytes=600,
    )


def open_segment(directory, **options):
    return SegmentReader(FileSystem(), str(directory), BASE, **options)


def proven(opened, number):
    with opened.open_log() as log_file:
        return opened.proven_position(opened._walk(log_file), number)


def check_answers(opened, offsets=range(BASE, BASE + 100)):
    for offset in offsets:
        assert opened.translate_offset(offset).base_offset == offset


def test_true_entries(tmp_path, segment):
    segment.write(tmp_path)
    opened = open_segment(tmp_path)
    for number, (_, position) in enumerate(segment.offset_entries):
        assert proven(opened, number) == position
    assert proven(opened, -1) == 0
    assert proven(opened, 1000) == segment.offset_entries[-1][1]
    assert opened.offset_index.problem is None


def test_a_proof_costs_the_way_from_the_entry_before(tmp_path, make_batch, make_segment):
    segment = make_segment(BASE, [make_batch(BASE + n, (1,), value=bytes(100)) for n in range(10_000)])
    segment.write(tmp_path)
    opened = open_segment(tmp_path)
    _ = opened.offset_index
    before = opened.filesystem.statistics.bytes_read
    assert opened.translate_offset(BASE + 9_000).base_offset == BASE + 9_000
    assert opened.filesystem.statistics.bytes_read - before <= 3 * 4096


@pytest.mark.parametrize("skip_damage", [False, True])
def test_cuts_where_the_index_ends_early_do_not_prove_it_again_and_again(
    tmp_path, make_batch, make_segment, skip_damage
):
    segment = make_segment(BASE, [make_batch(BASE + n, (1,), value=bytes(100)) for n in range(4_000)])
    segment.offset_entries = segment.offset_entries[len(segment.offset_entries) // 2 :][:1]
    segment.write(tmp_path)
    opened = open_segment(tmp_path, skip_damage=skip_damage)
    _ = opened.offset_index
    before = opened.filesystem.statistics.bytes_read
    size = opened.size_bytes
    assert len(opened.cut_points(0, size, 8_000)) > 35
    assert opened.filesystem.statistics.bytes_read - before < 4 * size


def test_entries_of_old_brokers_name_the_last_offset_of_a_whole_append(tmp_path, segment):
    # Two batches a time: the position of the first, the last offset of the second.
    segment.offset_entries = [(offset + 1, position) for offset, position in segment.offset_entries]
    segment.write(tmp_path)
    opened = open_segment(tmp_path)
    for number, (_, position) in enumerate(segment.offset_entries):
        assert proven(opened, number) == position
    check_answers(opened)


@pytest.mark.parametrize("change", [(-1, 0), (-3, 0), (+4, 0), (0, 1), (0, -1), (0, 169), (0, -169)])
def test_a_false_entry_changes_no_answer(tmp_path, segment, change):
    offset, position = segment.offset_entries[10]
    segment.offset_entries[10] = (offset + change[0], position + change[1])
    if change == (+4, 0):
        # Still ascending, and old brokers wrote such entries: only the next one shows it.
        del segment.offset_entries[11]
    segment.write(tmp_path)
    opened = open_segment(tmp_path)
    check_answers(opened)
    # The entry before takes its place.
    assert opened.offset_index.problem is None
    if change[0] < 4 and change != (0, -169):
        assert proven(opened, 10) == segment.offset_entries[9][1]


def test_many_false_entries_set_the_index_aside(tmp_path, segment):
    segment.offset_entries = [(offset, position + 3) for offset, position in segment.offset_entries]
    segment.write(tmp_path)
    opened = open_segment(tmp_path)
    check_answers(opened)
    assert opened.offset_index.problem.startswith("entry ")
    assert len(opened.offset_index) == 0


@pytest.mark.parametrize("seed", range(20))
def test_entries_at_random_change_no_answer(tmp_path, segment, seed):
    rng = random.Random(seed)
    offsets = sorted(rng.sample(range(BASE, BASE + 100), 24))
    positions = sorted(rng.sample(range(len(segment.log)), 24))
    segment.offset_entries = list(zip(offsets, positions, strict=True))
    segment.write(tmp_path)
    check_answers(open_segment(tmp_path), rng.sample(range(BASE, BASE + 100), 30))


def test_an_entry_for_a_torn_append_is_left_out(tmp_path, segment):
    offset, position = segment.offset_entries[-1]
    segment.log = segment.log[: position + 100]
    segment.write(tmp_path)
    opened = open_segment(tmp_path)
    assert proven(opened, 23) == segment.offset_entries[-2][1]
    assert len(opened.offset_index) == 23
    assert opened.offset_index.problem is None
    assert opened.end().next_offset == offset
    assert opened.offset_index.last_entry == OffsetPosition(*segment.offset_entries[-2])


def test_over_damage_an_entry_counts_too(tmp_path, segment):
    """Nothing is left between the previous entry and this one. The batch looked for comes after it."""
    first, last = segment.offset_entries[10], segment.offset_entries[11]
    segment.log = segment.log[: first[1]] + bytes(last[1] - first[1]) + segment.log[last[1] :]
    segment.write(tmp_path)
    opened = open_segment(tmp_path)
    assert proven(opened, 11) == last[1]
    check_answers(opened, range(last[0], BASE + 100))
    assert opened.offset_index.problem is None


class TestEntriesThatPointIntoAValue:
    """A sound log, of which one value holds copies of batches, with offsets that fit; and an index that was made up."""

    @pytest.fixture
    def log(self, make_batch, make_segment):
        """Offsets 50 to 99; the value at 70 is copies of 71 to 90, after some other bytes."""
        copies = b"".join(make_batch(each, (2000,), value=b"never a row" * 20) for each in range(71, 91))
        values = {70: b"-" * 11 + copies + b"-" * 11}
        made = [make_batch(each, (1000,), value=values.get(each, bytes(100))) for each in range(50, 100)]
        segment = make_segment(BASE, made, index_interval_bytes=600)
        copy = make_batch(71, (2000,), value=b"never a row" * 20)
        self.inner = [segment.log.index(copy) + n * len(copy) for n in range(20)]
        self.around = sum(map(len, made[:20])), sum(map(len, made[:21]))
        assert segment.log[self.inner[3] : self.inner[3] + 8] == struct.pack(">q", 74)
        return segment

    def check(self, directory, log, **options):
        options.setdefault("offset_limit", None)
        opened = open_segment(directory, **options)
        for offset in range(50, 100):
            header = open_segment(directory, **options).translate_offset(offset)
            assert header.base_offset == offset
            assert not self.around[0] < header.position_bytes < self.around[1]
            around = open_segment(directory, **options).locate_offset(offset)
            assert (around.found.base_offset, around.damage) == (offset, None)
        assert opened.end() == SegmentEnd(100, len(log.log))
        for target in (1, 500, 3000):
            for header in open_segment(directory, **options).cut_points(0, len(log.log), target):
                assert not self.around[0] < header.position_bytes < self.around[1]

    @pytest.mark.parametrize("skip_damage", [False, True])
    @pytest.mark.parametrize("number", [0, 3, 19])
    def test_alone(self, tmp_path, log, number, skip_damage):
        log.offset_entries = [(71 + number, self.inner[number])]
        log.write(tmp_path)
        self.check(tmp_path, log, skip_damage=skip_damage)

    @pytest.mark.parametrize("skip_damage", [False, True])
    @pytest.mark.parametrize("number", [0, 3, 19])
    def test_among_true_ones(self, tmp_path, log, number, skip_damage):
        made_up = (71 + number, self.inner[number])
        before = [each for each in log.offset_entries if each < made_up and each[1] < made_up[1]]
        following = [each for each in log.offset_entries if each[0] > made_up[0] and each[1] > made_up[1]]
        log.offset_entries = [*before, made_up, *following]
        log.write(tmp_path)
        self.check(tmp_path, log, skip_damage=skip_damage)

    def test_of_the_last_batch_the_end_is_right_whatever_the_index_says(self, tmp_path, log):
        """Neighbours that were both made up bear each other out; no value ends with the file."""
        log.log = log.log[: self.around[1]]
        log.offset_entries = [(71 + number, position) for number, position in enumerate(self.inner)]
        log.write(tmp_path)
        for skip_damage in (False, True):
            assert open_segment(tmp_path, skip_damage=skip_damage).end() == SegmentEnd(71, self.around[1])

    def test_the_first_one_never_counts(self, tmp_path, log):
        log.offset_entries = [(71 + number, position) for number, position in enumerate(self.inner)]
        log.write(tmp_path)
        opened = open_segment(tmp_path)
        assert opened.translate_offset(71).position_bytes == self.around[1]
        assert proven(opened, 0) == 0

    def test_in_the_time_index(self, tmp_path, log):
        """Its entries name an offset, which the offset index leads to."""
        log.offset_entries = [(71 + number, position) for number, position in enumerate(self.inner[:1])]
        log.time_entries = [(2000, 71)]
        log.write(tmp_path)
        opened = open_segment(tmp_path)
        assert opened.offset_for_timestamp(2000) is None
        assert opened.largest_timestamp(is_complete=True).timestamp_ms == 1000


class TestLengthsThatWereDamaged:
    """A length leads into a value, whose content is no batch of the log, even for a look-up of its offset."""

    @pytest.fixture
    def log(self, make_batch, make_segment):
        copies = b"".join(make_batch(each, (2000,)) for each in range(53, 56))
        made = [
            make_batch(each, (1000,), value=copies + b"-" if each == 52 else bytes(each))
            for each in range(50, 60)
        ]
        segment = make_segment(BASE, made)
        start = sum(map(len, made[:2]))
        inner = segment.log.index(make_batch(53, (2000,)))
        length = struct.pack(">i", inner - start - 12)
        segment.log = segment.log[: start + 8] + length + segment.log[start + 12 :]
        self.places = {each: sum(map(len, made[: each - 50])) for each in range(50, 60)}
        return segment

    @pytest.mark.parametrize("use_indexes", [True, False])
    @pytest.mark.parametrize("offset", [50, 51, 53, 54, 55, 56, 59])
    def test_over_damage_the_batches_after_it_are_found(self, tmp_path, log, offset, use_indexes):
        log.write(tmp_path)
        opened = open_segment(tmp_path, use_indexes=use_indexes, skip_damage=True, offset_limit=60)
        found = opened.translate_offset(offset)
        assert (found.position_bytes, found.base_offset) == (self.places[offset], offset)

    @pytest.mark.parametrize("use_indexes", [True, False])
    @pytest.mark.parametrize("offset", range(50, 60))
    def test_otherwise_none_is_taken_from_the_value(self, tmp_path, log, offset, use_indexes):
        """A walk that ends within the value finds nothing, and the reading says what is wrong there."""
        log.write(tmp_path)
        found = open_segment(tmp_path, use_indexes=use_indexes, offset_limit=60).translate_offset(offset)
        if offset < 56:
            assert (found.position_bytes, found.base_offset) == (self.places[offset], offset)
        else:
            assert found is None

    def test_what_is_damaged_is_left_to_the_reading(self, tmp_path, log):
        log.write(tmp_path)
        opened = open_segment(tmp_path, offset_limit=60)
        with pytest.raises(CorruptRecordError):
            opened.read_batch(opened.translate_offset(52))
        assert (
            open_segment(tmp_path, skip_damage=True, offset_limit=60).translate_offset(52).base_offset == 53
        )


class TestLargeBatchesThatAreIndexed:
    """Ten batches of 200 KB, two records each, all but the first in both indexes."""

    @pytest.fixture
    def large(self, make_batch, make_segment):
        made = [
            make_batch(BASE + 2 * n, (1000 + 2 * n, 1001 + 2 * n), value=bytes(100_000)) for n in range(10)
        ]
        self.size = len(made[0])
        return make_segment(BASE, made)

    def test_an_offset_is_found_by_headers_alone(self, tmp_path, large):
        large.write(tmp_path)
        opened = open_segment(tmp_path)
        assert opened.translate_offset(BASE + 10).base_offset == BASE + 10
        assert opened.translate_offset(BASE + 12, 5 * self.size).base_offset == BASE + 12
        assert opened.filesystem.statistics.bytes_read < 30_000

    def test_a_timestamp_is_found_in_the_batch_that_has_it_and_no_other_is_read(self, tmp_path, large):
        large.write(tmp_path)
        opened = open_segment(tmp_path)
        assert opened.offset_for_timestamp(1011) == TimestampOffset(1011, BASE + 11)
        assert self.size < opened.filesystem.statistics.bytes_read < self.size + 30_000

    def test_without_an_entry_the_crc_of_the_batch_before_decides(self, tmp_path, large):
        del large.offset_entries[4]
        large.write(tmp_path)
        opened = open_segment(tmp_path)
        assert opened.translate_offset(BASE + 10).base_offset == BASE + 10
        assert opened.filesystem.statistics.bytes_read > self.size

    def test_a_length_that_leads_past_an_indexed_batch_to_the_next_one_hides_nothing(self, tmp_path, large):
        length = struct.pack(">i", 2 * self.size - 12)
        start = 4 * self.size + 8
        large.log = large.log[:start] + length + large.log[start + 4 :]
        large.write(tmp_path)
        assert open_segment(tmp_path).translate_offset(BASE + 10).base_offset == BASE + 10
        assert open_segment(tmp_path).offset_for_timestamp(1011) == TimestampOffset(1011, BASE + 11)
