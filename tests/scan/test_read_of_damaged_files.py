"""Reading damaged files: an error that says where, unless the bounds avoid the damage."""

from __future__ import annotations

import os
import struct

import pytest

from storage_core.errors import CorruptRecordError, SegmentLogError


@pytest.fixture
def damaged(log_root):
    """Three segments of five batches of four offsets: the closed one in the middle is to be damaged."""
    log = log_root.rows()
    for number in range(15):
        log.values(4, b"x" * 1500)
        if number in (4, 9):
            log.roll()
    return log.write()


class TestDamage:
    """Offsets 28 to 31, the third batch of the segment that begins at 20."""

    @pytest.fixture
    def path(self, damaged):
        return damaged.log_path(20)

    @pytest.fixture
    def place(self, damaged):
        return damaged.places[20][2]

    def raised(self, scan, path, **options):
        with pytest.raises(CorruptRecordError) as caught:
            scan(path.parent, **options).rows()
        assert caught.value.path == str(path)
        assert str(path) in str(caught.value)
        return caught.value

    def check(self, scan, damaged, start, end, **options):
        """Bounds that avoid the damage work."""
        assert scan(damaged.path, start=start, end=end, **options).offsets() == list(range(start, end))

    @pytest.mark.parametrize("options", [{}, {"use_indexes": False}, {"min_partitions": 12}])
    def test_a_flipped_byte(self, damaged, path, place, scan, overwrite, options):
        start, end, first_offset, last_offset = place
        overwrite(path, start + 1000, b"\xff")
        error = self.raised(scan, path, **options)
        assert "CRC" in str(error)
        assert (error.position_bytes, error.end_position_bytes) == (start, end)
        assert (error.offset, error.last_offset) == (first_offset, last_offset)
        for others in ((0, 28), (21, 28), (32, 60), (33, 34), (40, 60)):
            self.check(scan, damaged, *others, **options)

    @pytest.mark.parametrize("first", [20, 28, 29, 31])
    def test_a_flipped_byte_is_found_from_any_start_within_its_batch(
        self, path, place, scan, overwrite, first
    ):
        overwrite(path, place[0] + 1000, b"\xff")
        self.raised(scan, path, start=first)
        self.raised(scan, path, start=20, end=max(first + 1, 29))

    @pytest.mark.parametrize("options", [{}, {"use_indexes": False}, {"min_partitions": 15}])
    @pytest.mark.parametrize(("start", "end"), [(0, 60), (36, 60), (37, 60), (38, 39), (0, 37), (0, 40)])
    def test_a_closed_segment_that_is_cut_off(self, damaged, path, scan, options, start, end):
        last = damaged.places[20][4]
        os.truncate(path, last[1] - 1)
        error = self.raised(scan, path, start=start, end=end, **options)
        assert "cut off" in str(error)
        assert (error.position_bytes, error.end_position_bytes) == (last[0], last[1] - 1)
        for others in ((0, 36), (40, 60), (25, 36)):
            self.check(scan, damaged, *others, **options)

    @pytest.mark.parametrize("options", [{}, {"use_indexes": False}, {"min_partitions": 15}])
    @pytest.mark.parametrize(("start", "end"), [(0, 60), (0, 30), (29, 30), (28, 60)])
    def test_a_hole_of_zeros(self, damaged, path, place, scan, overwrite, options, start, end):
        overwrite(path, place[0], bytes(place[1] - place[0]))
        error = self.raised(scan, path, start=start, end=end, **options)
        assert error.position_bytes == place[0]
        for others in ((0, 28), (40, 60)):
            self.check(scan, damaged, *others, **options)

    @pytest.mark.parametrize("options", [{}, {"use_indexes": False}, {"min_partitions": 15}])
    @pytest.mark.parametrize(("number", "start", "end"), [(2, 29, 60), (2, 30, 32), (4, 37, 60), (4, 38, 40)])
    def test_a_last_offset_that_was_damaged_makes_no_gap(
        self, damaged, path, scan, overwrite, options, number, start, end
    ):
        position, batch_end, first_offset, last_offset = damaged.places[20][number]
        # The last offset delta, which the CRC covers: the batch seems to hold one offset only.
        overwrite(path, position + 23, bytes(4))
        error = self.raised(scan, path, start=start, end=end, **options)
        assert "CRC" in str(error)
        assert (error.position_bytes, error.end_position_bytes) == (position, batch_end)
        for others in ((0, first_offset), (last_offset + 1, 60)):
            self.check(scan, damaged, *others, **options)

    def test_after_a_hole_the_index_leads_on(self, damaged, path, place, scan, overwrite):
        overwrite(path, place[0], bytes(place[1] - place[0]))
        # From the second batch after the hole: the entry before that is in the hole.
        for others in ((36, 60), (37, 38), (39, 41)):
            self.check(scan, damaged, *others)

    def test_zeros_at_the_end_of_a_closed_segment(self, damaged, path, scan):
        with path.open("ab") as file:
            file.write(bytes(100_000))
        assert scan(damaged.path).offsets() == list(range(60))

    @pytest.mark.parametrize("codec", range(5))
    def test_batches_out_of_order(self, log_root, scan, codec):
        log = log_root.rows()
        for _ in range(3):
            log.values(4, codec=codec)
        log.roll().values(1).write()
        content = log.log_path().read_bytes()
        (_, first, *_), (_, second, *_) = log.places[0][:2]
        log.log_path().write_bytes(content[first:second] + content[:first] + content[second:])
        error = self.raised(scan, log.log_path())
        assert "batches are out of order" in str(error)
        # The first one is the outlier: the others follow each other, and the segment's beginning.
        assert "found a batch from 4 to 7" in str(error)
        assert (error.position_bytes, error.end_position_bytes) == (0, second - first)
        assert (error.offset, error.last_offset) == (0, None)

    def test_a_batch_that_is_repeated(self, log_root, scan):
        log = log_root.rows().values(4).values(4).roll().values(1).write()
        content = log.log_path().read_bytes()
        size = log.places[0][0][1]
        log.log_path().write_bytes(content[:size] + content)
        assert self.raised(scan, log.log_path()).position_bytes == size

    def test_a_base_offset_below_the_segments(self, log_root, scan):
        log = log_root.rows(base_offset=100).values(4).roll().values(1).write()
        content = bytearray(log.log_path(100).read_bytes())
        content[:8] = struct.pack(">q", 50)
        log.log_path(100).write_bytes(content)
        error = self.raised(scan, log.log_path(100))
        assert "offsets from 100 on" in str(error)
        assert "found a batch from 50 to 53" in str(error)
        assert (error.position_bytes, error.offset, error.last_offset) == (0, 100, 103)


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("use_indexes", [True, False])
def test_no_flipped_byte_under_the_crc_goes_unnoticed(log_root, scan, is_closed, use_indexes):
    log = log_root.rows().values(3).values(3).values(3)
    if is_closed:
        log.roll().values(1)
    log.write()
    start, end = log.places[0][1][:2]
    content = log.log_path().read_bytes()
    noticed = set()
    # The CRC covers neither the base offset nor the leader epoch.
    positions = [*range(8, 12), *range(16, end - start)]
    for position in positions:
        flipped = bytearray(content)
        flipped[start + position] ^= 0xFF
        log.log_path().write_bytes(flipped)
        try:
            scan(log.path, use_indexes=use_indexes).rows()
        except SegmentLogError as error:
            noticed.add((position, error.path, error.position_bytes is None))
    assert noticed == {(position, str(log.log_path()), False) for position in positions}


def test_an_error_closes_the_file(damaged, scan, overwrite, count_descriptors):
    overwrite(damaged.log_path(20), 1000, b"\xff")
    before = count_descriptors()
    with pytest.raises(CorruptRecordError):
        scan(damaged.path).rows()
    assert count_descriptors() == before
