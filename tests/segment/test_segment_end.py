from __future__ import annotations

import os
import struct
from functools import partial

import pytest

from storage_core.errors import CorruptRecordError
from storage_core.filesystem import FileSystem
from storage_core.segment import SegmentEnd
from storage_core.segment.damage import BatchProbe
from storage_core.segment.damage_skipping_reader import end_of_batches


@pytest.fixture
def batches(make_batch):
    made = [make_batch(offset, (1000 + offset,)) for offset in range(7, 13)]
    assert {len(batch) for batch in made} == {69}
    return made


@pytest.fixture
def end_of(tmp_path):
    path = tmp_path / "00000000000000000007.log"

    def end(content, start_position_bytes=0, **options):
        path.write_bytes(content)
        with FileSystem().open(str(path)) as log_file:
            return end_of_batches(log_file, 7, start_position_bytes, len(content), **options)

    return end


@pytest.fixture
def end_over_damage(end_of):
    return partial(end_of, skip_damage=True)


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


@pytest.mark.parametrize("cut", [0, 1, 69, 2 * 69 + 30])
@pytest.mark.parametrize("position", [3 * 69, 5 * 69, 5 * 69 + 60, 6 * 69 - 1])
def test_where_a_file_was_cut_off_meanwhile_nothing_is_found(tmp_path, batches, cut, position):
    path = tmp_path / "00000000000000000007.log"
    path.write_bytes(b"".join(batches))
    with FileSystem().open(str(path)) as log_file:
        probe = BatchProbe(log_file, 6 * 69)
        os.truncate(path, cut)
        assert probe.header(position) is None


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


def test_a_bad_batch_with_a_valid_one_after_it_is_not_the_end(end_of, batches):
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
def test_damage_with_a_valid_batch_after_it_is_an_error(end_of, batches, position, value):
    content = bytearray(b"".join(batches))
    start = 2 * 69 + position
    content[start : start + len(value)] = value
    with pytest.raises(CorruptRecordError) as caught:
        end_of(content)
    assert caught.value.position_bytes == 2 * 69


def test_a_lost_page_with_a_valid_batch_after_it_is_an_error(end_of, make_batch):
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


@pytest.mark.parametrize("offset", [5, 7, 11])
def test_a_whole_batch_after_a_torn_one_is_damage_whatever_its_offsets(end_of, make_batch, batches, offset):
    torn = bytearray(make_batch(11, (1,)))
    torn[-1] ^= 1
    with pytest.raises(CorruptRecordError) as raised:
        end_of(b"".join(batches[2:4]) + bytes(torn) + make_batch(offset, (1,)))
    assert raised.value.position_bytes == 2 * 69


@pytest.mark.parametrize("zeros", [12, 100, 5000])
def test_a_whole_batch_after_zeros_is_damage_whatever_its_offsets(end_of, batches, zeros):
    # It may be the batch that the log should begin with.
    with pytest.raises(CorruptRecordError) as raised:
        end_of(b"".join(batches[2:4]) + bytes(zeros) + batches[0])
    assert raised.value.position_bytes == 2 * 69


def test_copies_inside_the_second_torn_batch_are_no_damage(end_of, make_batch, batches):
    first, second = (
        make_batch(offset, (1,), value=b"-" * 20 + batches[0] + bytes(500)) for offset in (13, 14)
    )
    torn = first[:100] + b"\xff" * 80 + first[180:] + second[:-200]
    assert end_of(b"".join(batches) + torn) == SegmentEnd(13, 6 * 69)


def test_too_many_bytes_that_look_like_batches_are_no_torn_append(end_of, make_batch, monkeypatch):
    monkeypatch.setattr("storage_core.segment.damage._ALLOWANCE_BYTES", 20_000)
    head = make_batch(0, (1,))[:61]
    forged = [struct.pack(">qi", 20 + number, 3000) + head[12:] for number in range(40)]
    around = bytearray(make_batch(8, (1,), value=b"".join(forged) + b"-" * 5000))
    around[17] ^= 1
    with pytest.raises(CorruptRecordError):
        end_of(make_batch(7, (1,)) + bytes(around) + b"-" * 300)


def test_what_a_header_declares_is_not_allocated(tmp_path, make_batch):
    path = tmp_path / "00000000000000000000.log"
    content = bytearray(make_batch(0)) + make_batch(1, value=bytes(5_000_000))
    path.write_bytes(content)
    filesystem = FileSystem()
    with filesystem.open(str(path)) as log_file:
        assert end_of_batches(log_file, 0, 0, len(content)) == SegmentEnd(2, len(content))
    assert filesystem.statistics.reads > 5


# -- Where damage is skipped --------


@pytest.mark.parametrize(
    ("position", "value"),
    [
        pytest.param(8, b"\0\0\0\5", id="length too small"),
        pytest.param(8, b"\x7f\0\0\0", id="length beyond the end"),
        pytest.param(8, (3 * 69 - 12).to_bytes(4, "big"), id="length to a later batch"),
        pytest.param(16, b"\7", id="magic"),
        pytest.param(0, b"\0\0\0\0\0\0\0\1", id="base offset"),
        pytest.param(0, bytes(69), id="zeros"),
        pytest.param(65, b"\xee", id="record"),
    ],
)
@pytest.mark.parametrize("number", range(5))
def test_damage_with_a_valid_batch_after_it_is_not_the_end(end_over_damage, batches, number, position, value):
    content = bytearray(b"".join(batches))
    start = number * 69 + position
    content[start : start + len(value)] = value
    assert end_over_damage(content) == SegmentEnd(13, 6 * 69)


def test_damage_at_the_end_is_the_end(end_over_damage, batches):
    content = b"".join(batches)
    for cut in range(5 * 69, 6 * 69):
        assert end_over_damage(content[:cut]) == SegmentEnd(12, 5 * 69)
    assert end_over_damage(content[:-1] + b"\xee") == SegmentEnd(12, 5 * 69)
    assert end_over_damage(content + bytes(100) + b"garbage") == SegmentEnd(13, 6 * 69)


@pytest.mark.parametrize("zeros", [61, 4096, 5000, 2_000_000])
def test_after_a_hole_of_any_size_the_log_continues(end_of, end_over_damage, batches, zeros):
    content = b"".join(batches[:3]) + bytes(zeros) + b"".join(batches[3:])
    assert end_over_damage(content) == SegmentEnd(13, 6 * 69 + zeros)
    with pytest.raises(CorruptRecordError) as caught:
        end_of(content)
    assert (caught.value.position_bytes, caught.value.end_position_bytes) == (3 * 69, 3 * 69 + zeros)


def test_a_length_that_leads_to_the_very_end_hides_nothing(end_of, end_over_damage, batches):
    content = bytearray(b"".join(batches))
    content[2 * 69 + 8 : 2 * 69 + 12] = (4 * 69 - 12).to_bytes(4, "big")
    assert end_over_damage(content) == SegmentEnd(13, 6 * 69)
    with pytest.raises(CorruptRecordError) as caught:
        end_of(content)
    assert (caught.value.position_bytes, caught.value.end_position_bytes) == (2 * 69, 3 * 69)


@pytest.mark.parametrize("offset", [7, 11])
def test_a_whole_batch_with_another_offset_is_no_torn_one(end_of, end_over_damage, batches, offset, caplog):
    content = bytearray(b"".join(batches))
    content[5 * 69 : 5 * 69 + 8] = offset.to_bytes(8, "big")
    with pytest.raises(CorruptRecordError, match="out of order"):
        end_of(content)
    # After the damage, so that a read to the end of the log reports it.
    assert end_over_damage(content) == SegmentEnd(12, 6 * 69)
    assert "The log ends before damage" in caplog.text


def test_a_preallocated_rest_is_not_read(tmp_path, batches):
    path = tmp_path / "00000000000000000007.log"
    path.write_bytes(b"".join(batches))
    os.truncate(path, 1 << 30)
    filesystem = FileSystem()
    with filesystem.open(str(path)) as log_file:
        assert end_of_batches(log_file, 7, 0, 1 << 30) == SegmentEnd(13, 6 * 69)
    assert filesystem.statistics.bytes_read < 64 * 1024


@pytest.mark.parametrize("skip_damage", [False, True])
def test_a_file_that_is_cut_while_it_is_looked_at_ends_somewhere(tmp_path, batches, skip_damage):
    """As by a truncation. The reader finds out elsewhere that one was under way."""
    data = b"".join(batches)
    path = tmp_path / f"{0:020d}.log"
    for size_bytes in range(len(data)):
        path.write_bytes(data)
        with FileSystem().open(str(path)) as log_file:
            os.truncate(path, size_bytes)
            try:
                end = end_of_batches(log_file, 0, 0, len(data), skip_damage=skip_damage)
            except CorruptRecordError:
                continue
        assert end is None or end.position_bytes <= len(data)
