from __future__ import annotations

import pytest

from storage_core.errors import CorruptRecordError
from storage_core.filesystem import FileSystem
from storage_core.segment import SegmentEnd
from storage_core.segment.segment_end import end_of_batches


@pytest.fixture
def batches(make_batch):
    made = [make_batch(offset, (1000 + offset,)) for offset in range(7, 13)]
    assert {len(batch) for batch in made} == {69}
    return made


@pytest.fixture
def end_of(tmp_path):
    path = tmp_path / "00000000000000000007.log"

    def end(content, start_position_bytes=0):
        path.write_bytes(content)
        with FileSystem().open(str(path)) as log_file:
            return end_of_batches(log_file, 7, start_position_bytes, len(content))

    return end


def test_end_of_whole_batches(end_of, batches):
    assert end_of(b"".join(batches)) == SegmentEnd(13, 6 * 69)
    assert end_of(b"".join(batches), 3 * 69) == SegmentEnd(13, 6 * 69)


def test_no_batch_has_no_end(end_of, batches):
    assert end_of(b"") is None
    assert end_of(bytes(5000)) is None
    assert end_of(b"\1" * 1000) is None
    assert end_of(batches[0][:-1]) is None
    assert end_of(batches[0], 69) is None


def test_cut_at_each_byte(end_of, batches):
    content = b"".join(batches)
    for cut in range(len(content) + 1):
        whole = cut // 69
        assert end_of(content[:cut]) == (SegmentEnd(7 + whole, whole * 69) if whole else None)


@pytest.mark.parametrize(
    "tail", [bytes(10), bytes(100), bytes(10_000), b"\2" * 3000, b"\xff" * 61, bytes(61) + b"\1"]
)
def test_a_tail_that_is_no_batch_is_left_out(end_of, batches, tail):
    assert end_of(b"".join(batches) + tail) == SegmentEnd(13, 6 * 69)


@pytest.mark.parametrize("bad", range(1, 6))
def test_bad_batches_at_the_end_are_left_out(end_of, batches, bad):
    broken = [batch[:-1] + b"\xee" for batch in batches[-bad:]]
    assert end_of(b"".join(batches[:-bad] + broken)) == SegmentEnd(13 - bad, (6 - bad) * 69)


def test_if_all_are_bad_there_is_no_end(end_of, batches):
    assert end_of(b"".join(batch[:-1] + b"\xee" for batch in batches)) is None


def test_a_bad_batch_with_a_valid_one_behind_is_not_the_end(end_of, batches):
    content = bytearray(b"".join(batches))
    content[3 * 69 + 65] ^= 0xFF
    assert end_of(content) == SegmentEnd(13, 6 * 69)


@pytest.mark.parametrize(
    ("position", "value"),
    [
        pytest.param(8, b"\0\0\0\5", id="length too small"),
        pytest.param(8, b"\x7f\0\0\0", id="length beyond the end"),
        pytest.param(8, b"\xff\0\0\0", id="length negative"),
        pytest.param(16, b"\7", id="magic"),
        pytest.param(0, b"\0\0\0\0\0\0\0\1", id="base offset"),
    ],
)
def test_damage_with_a_valid_batch_behind_is_an_error(end_of, batches, position, value):
    content = bytearray(b"".join(batches))
    start = 2 * 69 + position
    content[start : start + len(value)] = value
    with pytest.raises(CorruptRecordError) as caught:
        end_of(content)
    assert caught.value.position_bytes == 2 * 69


def test_a_lost_page_with_a_valid_batch_behind_is_an_error(end_of, make_batch):
    content = bytearray(b"".join(make_batch(offset, value=bytes([7]) * 500) for offset in range(7, 60)))
    content[4096:8192] = bytes(4096)
    # The batch over the edge of the page is torn by a CRC, the next bytes are zeros for less than a page.
    with pytest.raises(CorruptRecordError):
        end_of(content)


def test_a_valid_batch_is_found_across_blocks(end_of, make_batch):
    good = make_batch(7)
    for gap in range(4096 - 200, 4096 + 20, 7):
        with pytest.raises(CorruptRecordError):
            end_of(good + b"\x7f" * gap + make_batch(8))


def test_a_copy_of_batches_inside_a_torn_batch_is_no_damage(end_of, make_batch, batches):
    torn = make_batch(100, value=b"".join(batches) + bytes([9]) * 200)[:-50]
    assert end_of(b"".join(batches) + torn) == SegmentEnd(13, 6 * 69)


def test_what_a_header_declares_is_not_allocated(tmp_path, make_batch):
    path = tmp_path / "00000000000000000000.log"
    content = bytearray(make_batch(0)) + make_batch(1, value=bytes(5_000_000))
    path.write_bytes(content)
    filesystem = FileSystem()
    with filesystem.open(str(path)) as log_file:
        assert end_of_batches(log_file, 0, 0, len(content)) == SegmentEnd(2, len(content))
    assert filesystem.statistics.reads > 5
