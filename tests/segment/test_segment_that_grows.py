"""A segment that a commit appends to: it ends for readers where it ended before."""

from __future__ import annotations

import struct

import pytest

from storage_core.errors import CorruptRecordError
from storage_core.filesystem import FileSystem
from storage_core.segment import SegmentEnd, SegmentReader
from tests.segment.conftest import build_batch, build_segment

COUNT = 60


def built(count=COUNT):
    """Batches of two records; an entry of the index for every other one."""
    batches = [
        build_batch(2 * number, (1000 * number, 1000 * number + 1), value=b"v" * 80)
        for number in range(count)
    ]
    return build_segment(0, batches, index_interval_bytes=300)


TAILS = {
    "nothing": b"",
    "whole batches": build_batch(2 * COUNT, (10**9,)) + build_batch(2 * COUNT + 1, (10**9,)),
    "a torn batch": build_batch(2 * COUNT, (10**9,))[:-1],
    "half a header": build_batch(2 * COUNT, (10**9,))[:30],
    "zeros": bytes(5000),
    "zeros before a batch": bytes(200) + build_batch(2 * COUNT + 9, (10**9,)),
    "garbage before a batch": b"\xff" * 200 + build_batch(2 * COUNT + 9, (10**9,)),
    "batches of another place": build_batch(0, (0, 1)),
}


@pytest.mark.parametrize("use_indexes", [True, False])
@pytest.mark.parametrize("skip_damage", [True, False])
@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
def test_what_comes_after_does_not_count(tmp_path, tail, skip_damage, use_indexes):
    segment = built()
    segment.write(tmp_path)
    with open(tmp_path / f"{0:020d}.log", "ab") as file:
        file.write(tail)
    reader = SegmentReader(FileSystem(), str(tmp_path), 0, use_indexes=use_indexes, skip_damage=skip_damage)
    reader.end_before(2 * COUNT)
    assert reader.end() == SegmentEnd(2 * COUNT, len(segment.log))
    assert reader.size_bytes == len(segment.log)
    assert [header.base_offset for header in reader.batches()] == list(range(0, 2 * COUNT, 2))
    assert reader.translate_offset(2 * COUNT) is None
    assert reader.offset_for_timestamp(10**9) is None
    assert reader.largest_timestamp(is_complete=False).timestamp_ms == 1000 * (COUNT - 1) + 1


INDEX_TAILS = {
    "entries of new batches": struct.pack(">iiii", 2 * COUNT, 10**6, 2 * COUNT + 1, 10**6 + 1),
    "zeros": bytes(64),
    "half an entry": b"\0\0\0",
}


@pytest.mark.parametrize("tail", INDEX_TAILS.values(), ids=INDEX_TAILS)
def test_an_index_that_grows_leads_nobody_astray(tmp_path, tail):
    segment = built()
    segment.write(tmp_path)
    with open(tmp_path / f"{0:020d}.log", "ab") as file:
        file.write(TAILS["whole batches"])
    with open(tmp_path / f"{0:020d}.index", "ab") as file:
        file.write(tail)
    with open(tmp_path / f"{0:020d}.timeindex", "ab") as file:
        file.write(struct.pack(">qi", 10**9, 2 * COUNT))
    reader = SegmentReader(FileSystem(), str(tmp_path), 0)
    reader.end_before(2 * COUNT)
    assert reader.size_bytes == len(segment.log)
    for offset in range(0, 2 * COUNT, 7):
        header = reader.translate_offset(offset)
        assert header is not None
        assert header.base_offset == offset - offset % 2
        found = reader.offset_for_timestamp(1000 * (offset // 2))
        assert found is not None
        assert found.offset == offset - offset % 2
    assert reader.largest_timestamp(is_complete=False).timestamp_ms == 1000 * (COUNT - 1) + 1


def test_before_every_batch(tmp_path):
    segment = built(20)
    segment.write(tmp_path)
    for position, end, _, last_offset, _ in segment.batches:
        reader = SegmentReader(FileSystem(), str(tmp_path), 0)
        reader.end_before(last_offset + 1)
        assert reader.end() == SegmentEnd(last_offset + 1, end), position


def test_a_segment_that_nothing_was_added_to_ends_where_it_ends(tmp_path):
    segment = built(20)
    segment.write(tmp_path, log_zeros=100)
    reader = SegmentReader(FileSystem(), str(tmp_path), 0)
    # The log went on in a segment that is empty.
    reader.end_before(1000)
    assert reader.end() == SegmentEnd(40, len(segment.log))


def test_damage_on_the_way_is_damage(tmp_path):
    segment = built(20)
    position = segment.batches[10][0]
    (tmp_path / f"{0:020d}.log").write_bytes(
        segment.log[:position] + b"\xff" * 50 + segment.log[position + 50 :]
    )
    with pytest.raises(CorruptRecordError):
        SegmentReader(FileSystem(), str(tmp_path), 0).end_before(40)
