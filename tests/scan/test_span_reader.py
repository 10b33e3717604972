"""A span as batches that count and damaged ranges, in file order."""

from __future__ import annotations

import os

import pytest

from storage_core.errors import BatchTooLargeError, CorruptRecordError
from storage_core.filesystem import FileSystem
from storage_core.scan.span_reader import FileReplacedError, SpanReader
from storage_core.segment import DamagedRange
from storage_core.segment.batch_windows import WindowBuffer

LIMIT = 1 << 20


@pytest.fixture
def log(log_root):
    """Ten batches of some 360 bytes, ten offsets each."""
    log = log_root.rows()
    for _ in range(10):
        log.values(10, b"x" * 20)
    return log.write()


@pytest.fixture
def read(log, span_of):
    """Reads the log: the base offsets of each part's batches, and the damaged ranges."""

    def read(*, window_bytes=1000, limit_bytes=LIMIT, **fields):
        path = str(log.log_path())
        span = span_of(**({"end_offset": 100, "end_position_bytes": os.stat(path).st_size} | fields))
        with FileSystem().open(path) as opened:
            reader = SpanReader(opened, span, WindowBuffer(window_bytes), limit_bytes)
            return [
                part
                if isinstance(part, DamagedRange)
                else part.window.headers["base_offset"][part.decoded].tolist()
                for part in reader.parts()
            ]

    return read


def positions(log):
    return [place[0] for place in log.places[0]]


def bases(parts):
    return [offset for part in parts if not isinstance(part, DamagedRange) for offset in part]


def ranges(parts):
    return [
        (part.start_bytes, part.end_bytes, part.start_offset, part.end_offset)
        for part in parts
        if isinstance(part, DamagedRange)
    ]


def the_only(parts):
    (damage,) = (part for part in parts if isinstance(part, DamagedRange))
    return damage


def test_an_undamaged_span_is_its_windows(log, read):
    at = positions(log)
    assert read(window_bytes=3 * at[1]) == [[0, 10, 20], [30, 40, 50], [60, 70, 80], [90]]
    assert read(window_bytes=100_000) == [list(range(0, 100, 10))]
    assert read(start_offset=35, end_offset=61, window_bytes=100_000) == [[30, 40, 50, 60]]


def test_a_batch_that_begins_at_the_end_ends_the_reading(read):
    assert bases(read(end_offset=30, window_bytes=400)) == [0, 10, 20]
    assert bases(read(end_offset=31, window_bytes=400)) == [0, 10, 20, 30]


@pytest.mark.parametrize("window_bytes", [100, 400, 1000, 100_000])
class TestDamage:
    @pytest.mark.parametrize("number", range(10))
    def test_a_flipped_byte(self, log, read, overwrite, window_bytes, number):
        at = [*positions(log), log.log_path().stat().st_size]
        overwrite(log.log_path(), at[number] + 100, b"\xee")
        parts = read(window_bytes=window_bytes, segment_end_offset=100)
        assert bases(parts) == [base for base in range(0, 100, 10) if base != 10 * number]
        assert ranges(parts) == [(at[number], at[number + 1], 10 * number, 10 * number + 10)]
        assert "CRC" in the_only(parts).reason

    def test_damage_is_reported_in_the_order_of_offsets(self, log, read, overwrite, window_bytes):
        at = positions(log)
        for number in (2, 3, 7):
            overwrite(log.log_path(), at[number] + 100, b"\xee")
        flat = [
            item
            for part in read(window_bytes=window_bytes)
            for item in ([part.start_offset] if isinstance(part, DamagedRange) else part)
        ]
        # The second and the third are one range.
        assert flat == [0, 10, 20, 40, 50, 60, 70, 80, 90]

    @pytest.mark.parametrize("length", [0, 1, 48, -1, -(2**31), 2**31 - 1, 400, 100_000])
    def test_a_length_that_is_made_up(self, log, read, overwrite, window_bytes, length):
        at = positions(log)
        overwrite(log.log_path(), at[4] + 8, length.to_bytes(4, "big", signed=True))
        parts = read(window_bytes=window_bytes)
        assert bases(parts) == [0, 10, 20, 30, 50, 60, 70, 80, 90]
        assert ranges(parts) == [(at[4], at[5], 40, 50)]

    def test_a_batch_that_is_cut_off_by_the_end_of_the_file(self, log, read, window_bytes):
        at, size = positions(log), log.log_path().stat().st_size
        os.truncate(log.log_path(), size - 1)
        parts = read(window_bytes=window_bytes, segment_end_offset=150)
        assert ranges(parts) == [(at[9], size - 1, 90, 150)]
        assert "found only its first" in the_only(parts).reason
        assert "cut off" in the_only(parts).reason

    # The first bytes of an offset are zeros, which may end a file.
    @pytest.mark.parametrize("left", [8, 12, 60, 61, 100])
    def test_stubs_of_any_length(self, log, read, window_bytes, left):
        end = positions(log)[9] + left
        os.truncate(log.log_path(), end)
        assert ranges(read(window_bytes=window_bytes, segment_end_offset=100)) == [
            (positions(log)[9], end, 90, 100)
        ]

    @pytest.mark.parametrize("zeros", [1, 60, 61, 5000])
    def test_zeros_at_the_end_are_preallocated_space(self, log, read, window_bytes, zeros):
        with log.log_path().open("ab") as file:
            file.write(bytes(zeros))
        parts = read(window_bytes=window_bytes)
        assert (len(bases(parts)), ranges(parts)) == (10, [])

    def test_zeros_with_something_else_after_them_are_a_hole(self, log, read, window_bytes):
        size = log.log_path().stat().st_size
        with log.log_path().open("ab") as file:
            file.write(bytes(5000) + b"\x01")
        damage = the_only(read(window_bytes=window_bytes, segment_end_offset=120))
        assert (damage.start_bytes, damage.end_bytes) == (size, size + 5001)
        assert (damage.start_offset, damage.end_offset) == (100, 120)
        assert "found zeros" in damage.reason

    def test_a_hole_that_ends_with_the_span_but_not_with_the_segment(
        self, log, read, overwrite, window_bytes
    ):
        at = positions(log)
        overwrite(log.log_path(), at[4], bytes(at[5] - at[4]))
        size = log.log_path().stat().st_size
        parts = read(
            window_bytes=window_bytes, end_offset=50, end_position_bytes=at[5], segment_end_bytes=size
        )
        assert bases(parts) == [0, 10, 20, 30]
        assert ranges(parts) == [(at[4], at[5], 40, 50)]

    def test_bytes_that_are_no_batch(self, log, read, overwrite, window_bytes):
        at = positions(log)
        overwrite(log.log_path(), at[4] + 16, b"\x09")
        parts = read(window_bytes=window_bytes)
        assert ranges(parts) == [(at[4], at[5], 40, 50)]
        assert "magic byte of a record batch to be 0, 1 or 2, found 9" in the_only(parts).reason
        assert the_only(parts).error_type is CorruptRecordError

    def test_a_batch_above_the_limit(self, log, read, window_bytes):
        at = [*positions(log), log.log_path().stat().st_size]
        content = log.log_path().read_bytes()
        assert len(bases(read(window_bytes=window_bytes, limit_bytes=at[1]))) == 10
        damage = the_only(read(window_bytes=window_bytes, limit_bytes=at[1] - 1))
        assert damage.error_type is BatchTooLargeError
        assert f"at most {at[1] - 1} bytes, found one that declares {at[1]}" in damage.reason
        assert "maxDecompressedBatchBytes" in damage.reason
        assert (damage.start_bytes, damage.end_bytes) == (0, len(content))

    def test_offsets_that_the_next_segment_has(self, log, read, window_bytes):
        at = [*positions(log), log.log_path().stat().st_size]
        parts = read(window_bytes=window_bytes, segment_end_offset=75)
        assert bases(parts) == [0, 10, 20, 30, 40, 50, 60]
        assert ranges(parts) == [(at[7], at[10], 70, 75)]
        assert "offsets below 75" in the_only(parts).reason

    @pytest.mark.parametrize("number", range(1, 9))
    def test_a_base_offset_that_was_raised(self, log, read, overwrite, window_bytes, number):
        at = [*positions(log), log.log_path().stat().st_size]
        overwrite(log.log_path(), at[number], (10 * number + 5).to_bytes(8, "big"))
        parts = read(window_bytes=window_bytes, segment_end_offset=100)
        assert bases(parts) == [base for base in range(0, 100, 10) if base != 10 * number]
        assert ranges(parts) == [(at[number], at[number + 1], 10 * number, 10 * number + 10)]
        assert "out of order" in the_only(parts).reason

    @pytest.mark.parametrize("number", range(1, 10))
    def test_a_base_offset_that_was_lowered(self, log, read, overwrite, window_bytes, number):
        at = [*positions(log), log.log_path().stat().st_size]
        overwrite(log.log_path(), at[number], (10 * number - 5).to_bytes(8, "big"))
        parts = read(window_bytes=window_bytes, segment_end_offset=100)
        assert bases(parts) == [base for base in range(0, 100, 10) if base != 10 * number]
        assert ranges(parts) == [(at[number], at[number + 1], 10 * number, 10 * number + 10)]

    def test_an_offset_that_was_lowered_after_the_span_damages_none_in_it(
        self, log, read, overwrite, window_bytes
    ):
        at = positions(log)
        overwrite(log.log_path(), at[5], (45).to_bytes(8, "big"))
        size = log.log_path().stat().st_size
        fields = {"end_offset": 50, "end_position_bytes": at[5], "segment_end_bytes": size}
        assert read(window_bytes=100_000, **fields) == [[0, 10, 20, 30, 40]]
        assert bases(read(window_bytes=window_bytes, **fields)) == [0, 10, 20, 30, 40]


def test_a_length_that_is_made_up_is_no_allocation(log, overwrite, span_of):
    overwrite(log.log_path(), positions(log)[1] + 8, (2**31 - 13).to_bytes(4, "big"))
    buffer = WindowBuffer(1000)
    size = log.log_path().stat().st_size
    with FileSystem().open(str(log.log_path())) as opened:
        list(SpanReader(opened, span_of(end_position_bytes=size, end_offset=100), buffer, LIMIT).parts())
    assert buffer.size_bytes == 1000


def test_a_span_that_ends_within_a_batch_makes_no_row_of_it(log, read):
    """A wrong index can lead to such a plan."""
    at = positions(log)
    size = log.log_path().stat().st_size
    parts = read(end_position_bytes=at[5] - 10, end_offset=50, segment_end_bytes=size)
    assert bases(parts) == [0, 10, 20, 30]
    assert ranges(parts) == [(at[4], at[5] - 10, 40, 50)]
    assert "found it to end within one" in the_only(parts).reason


# -- Files that change --------


def test_a_first_batch_after_the_planned_offsets(log, read):
    # The file has some of the planned offsets before it, as after a compaction.
    with pytest.raises(FileReplacedError):
        read(position_bytes=positions(log)[1], start_offset=9)
    assert read(position_bytes=positions(log)[1], start_offset=10)


@pytest.mark.parametrize("damage_first", [True, False])
def test_a_file_that_becomes_shorter_is_not_called_damaged(log, span_of, overwrite, damage_first):
    size = log.log_path().stat().st_size
    if damage_first:
        overwrite(log.log_path(), positions(log)[2] + 100, b"\xee")
    with FileSystem().open(str(log.log_path())) as opened:
        span = span_of(end_position_bytes=size, end_offset=100)
        parts = SpanReader(opened, span, WindowBuffer(800), LIMIT).parts()
        next(parts)
        os.truncate(log.log_path(), 900)
        with pytest.raises(FileReplacedError):
            list(parts)


def test_a_file_that_becomes_shorter_within_its_zeros(log, span_of):
    with log.log_path().open("ab") as file:
        file.write(bytes(10_000))
    size = log.log_path().stat().st_size
    with FileSystem().open(str(log.log_path())) as opened:
        span = span_of(end_position_bytes=size, end_offset=100)
        parts = SpanReader(opened, span, WindowBuffer(5000), LIMIT).parts()
        next(parts)
        os.truncate(log.log_path(), size - 1)
        with pytest.raises(FileReplacedError):
            list(parts)
