from __future__ import annotations

import struct

import pytest

from storage_core.errors import CorruptRecordError
from storage_core.segment import TimestampOffset

# Base and last offset of each batch; between 44 and 50 is a gap.
BATCHES = [(40, 40), (41, 44), (50, 50), (51, 52), (60, 60)]


@pytest.fixture
def batches(make_batch):
    return [make_batch(first, (first,) * (last - first + 1)) for first, last in BATCHES]


@pytest.fixture(params=[0, 150, 4096])
def segment(folder, append, batches, request):
    made = folder.create(40, index_interval_bytes=request.param)
    for batch in batches:
        append(made, batch)
    return made


def number_reaching(offset):
    return next((number for number, (_, last) in enumerate(BATCHES) if last >= offset), None)


@pytest.mark.parametrize("offset", range(37, 64))
def test_translate_offset_finds_the_first_batch_that_reaches_an_offset(segment, batches, offset):
    header = segment.translate_offset(offset)
    number = number_reaching(offset)
    if number is None:
        assert header is None
    else:
        position = sum(map(len, batches[:number]))
        found = (header.base_offset, header.last_offset, header.position_bytes, header.size_bytes)
        assert found == (*BATCHES[number], position, len(batches[number]))


def test_what_is_not_counted_yet_is_not_found(folder, append, make_batch):
    segment = folder.create(preallocate=True, internal_segment_bytes=1000)
    append(segment, make_batch(0))
    assert segment.translate_offset(0).base_offset == 0
    assert segment.translate_offset(1) is None


def test_next_offset(segment, folder):
    assert segment.read_next_offset() == 61
    assert folder.create(99).read_next_offset() == 99


def test_next_offset_before_a_torn_batch(folder, append, make_batch):
    segment = folder.create(index_interval_bytes=0)
    batches = [make_batch(n) for n in range(4)]
    append(segment, *batches)
    segment.close()
    folder.put(".log", b"".join(batches)[:-1])
    # The index still names the batch that is torn now.
    assert folder.open().read_next_offset() == 3
    assert folder.open().translate_offset(3) is None
    assert folder.open().translate_offset(2).base_offset == 2


@pytest.mark.parametrize("position", [5, 3000, -1])
def test_an_index_that_is_wrong_does_not_matter(folder, append, make_batch, position):
    batches = [make_batch(n) for n in range(10)]
    append(folder.create(), *batches)
    folder.put(".index", struct.pack(">ii", 4, position))
    segment = folder.open()
    assert [segment.translate_offset(n).base_offset for n in range(10)] == list(range(10))
    assert segment.read_next_offset() == 10


def test_damage_is_reported(folder, make_batch):
    damaged = bytearray(make_batch(1))
    damaged[16] = 9
    folder.put(".log", make_batch(0) + damaged)
    with pytest.raises(CorruptRecordError, match="magic"):
        folder.open().translate_offset(1)


def test_the_largest_timestamp_of_what_the_time_index_leaves_out(folder, append, make_batch):
    segment = folder.create(index_interval_bytes=150)
    append(segment, *[make_batch(n, (t,)) for n, t in enumerate([10, 20, 30, 90, 40, 50])])
    assert segment.truncate_to(5, now_ms=0) > 0
    assert segment.largest_timestamp == TimestampOffset(90, 3)
    assert segment.truncate_to(3, now_ms=0) > 0
    assert segment.largest_timestamp == TimestampOffset(30, 2)
