from __future__ import annotations

import itertools
import os
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import BatchTooLargeError, CorruptRecordError
from storage_core.filesystem import FileSystem
from storage_core.segment import SegmentEnd, SegmentReader, TimestampOffset
from tests.examples import examples

# A broker's segment: base 0, index.interval.bytes=100, ten batches of 76 bytes with one record each, offsets 0
# to 9. The first batch and the indexes as the broker wrote them:
FIRST_BATCH = bytes.fromhex(
    "000000000000000000000040000000000267554e8b000000000000000000000000000a000000000000000affffffffffffffffffff"
    "ffffffff000000011c000000046b300c76616c75653000"
)
TIMESTAMPS_MS = [10, 20, 15, 40, 40, 50, 45, 60, 5, 70]
OFFSET_INDEX = bytes.fromhex("0000000200000098000000040000013000000006000001c80000000800000260")
TIME_INDEX = bytes.fromhex(
    "000000000000001400000001000000000000002800000003000000000000003200000005"
    "000000000000003c00000007000000000000004600000009"
)
LOOKUPS = {0: 0, 11: 1, 20: 1, 40: 3, 41: 5, 45: 5, 51: 7, 61: 9, 71: None}


@pytest.fixture(params=["closed", "active", "no indexes", "indexes not used", "listed without indexes"])
def state(request):
    return request.param


@pytest.fixture
def golden(tmp_path, monkeypatch, make_batch, state):
    # Small as it is, its indexes are to be used.
    monkeypatch.setattr("storage_core.segment.segment_reader.PAGE_SIZE_BYTES", 100)
    log = FIRST_BATCH + b"".join(
        make_batch(offset, (timestamp_ms,), value=b"12345678")
        for offset, timestamp_ms in enumerate(TIMESTAMPS_MS)
        if offset
    )
    assert len(log) == 760
    stem = tmp_path / "00000000000000000000"
    stem.with_suffix(".log").write_bytes(log)
    if state != "no indexes":
        zeros = 1000 - 32 if state == "active" else 0
        stem.with_suffix(".index").write_bytes(OFFSET_INDEX + bytes(zeros))
        entries = TIME_INDEX[:48] + bytes(996 - 48) if state == "active" else TIME_INDEX
        stem.with_suffix(".timeindex").write_bytes(entries)
    names = frozenset([stem.name + ".log"]) if state == "listed without indexes" else None
    return SegmentReader(
        FileSystem(), str(tmp_path), 0, file_names=names, use_indexes=state != "indexes not used"
    )


def open_segment(directory, base_offset, **options):
    return SegmentReader(FileSystem(), str(directory), base_offset, **options)


def linear_timestamp_search(records, timestamp_ms, start_offset=0):
    return next(
        (TimestampOffset(t, offset) for offset, t in records if t >= timestamp_ms and offset >= start_offset),
        None,
    )


@pytest.mark.parametrize("offset", range(-1, 12))
def test_translate_offset(golden, offset):
    header = golden.translate_offset(offset)
    assert (header and header.base_offset) == (max(0, offset) if offset < 10 else None)


@pytest.mark.parametrize(("timestamp_ms", "offset"), LOOKUPS.items())
def test_offset_for_timestamp_as_a_broker_answers(golden, timestamp_ms, offset):
    found = golden.offset_for_timestamp(timestamp_ms)
    assert (found and found.offset) == offset
    assert found is None or found.timestamp_ms == TIMESTAMPS_MS[offset]
    assert golden.time_index.problem is None or golden.time_index.problem in {
        "the file is missing",
        "indexes are not to be used",
    }


def test_offset_for_timestamp_from_every_start_offset(golden):
    for timestamp_ms in range(73):
        for start_offset in range(12):
            expected = linear_timestamp_search(enumerate(TIMESTAMPS_MS), timestamp_ms, start_offset)
            assert golden.offset_for_timestamp(timestamp_ms, start_offset) == expected


def test_largest_timestamp(golden, state):
    assert golden.largest_timestamp(is_complete=state == "closed") == TimestampOffset(70, 9)
    assert golden.largest_timestamp_ms(is_complete=state == "closed") == 70


def test_end(golden):
    assert golden.end() == SegmentEnd(10, 760)


def test_batches(golden):
    assert [header.base_offset for header in golden.batches()] == list(range(10))
    assert [header.base_offset for header in golden.batches(152, 456)] == [2, 3, 4, 5]
    assert [header.max_timestamp_ms for header in golden.batches()] == TIMESTAMPS_MS


def test_read_batch(golden):
    assert golden.read_batch(golden.translate_offset(0)) == FIRST_BATCH


def test_cut_points(golden, state):
    positions = [header.position_bytes for header in golden.cut_points(0, 760, 150)]
    assert positions == [152, 304, 456, 608]
    assert [header.position_bytes for header in golden.cut_points(0, 608, 300)] == [304]
    # With an index, cuts are where its entries are; without, at the next batch.
    has_index = state in {"closed", "active"}
    positions = [header.position_bytes for header in golden.cut_points(76, 760, 77)]
    assert positions == ([304, 456, 608] if has_index else [228, 380, 532, 684])
    assert golden.cut_points(0, 760, 760) == []
    assert golden.cut_points(0, 0, 1) == []
    assert len(golden.cut_points(0, 760, 0)) == (5 if has_index else 9)


# ---- any segment: answers equal a linear search, with and without indexes ----

SHAPES = st.lists(
    st.tuples(
        st.integers(0, 4),  # gap before the batch
        st.lists(st.integers(-3, 60), max_size=4),  # timestamps
        st.integers(0, 3),  # offsets after the last record
        st.sampled_from([None, None, None, 30]),  # log append time
        st.sampled_from([1, 40, 400]),  # size of values
    ),
    max_size=30,
)


def build(make_batch, make_segment, base_offset, shapes, **options):
    batches, records, offset = [], [], base_offset
    for gap, timestamps, rest, log_append_time_ms, size in shapes:
        offset += gap
        last_delta = max(0, len(timestamps) - 1) + rest
        batches.append(
            make_batch(
                offset,
                tuple(timestamps),
                last_offset_delta=last_delta,
                log_append_time_ms=log_append_time_ms,
                value=bytes(size),
            )
        )
        for delta, timestamp_ms in enumerate(timestamps):
            records.append(
                (offset + delta, timestamp_ms if log_append_time_ms is None else log_append_time_ms)
            )
        offset += last_delta + 1
    return make_segment(base_offset, batches, **options), records


@examples(80)
@given(
    shapes=SHAPES,
    interval=st.sampled_from([0, 100, 500]),
    closed=st.booleans(),
    index_zeros=st.sampled_from([0, 2, 600]),
    log_zeros=st.sampled_from([0, 5, 200]),
    use_indexes=st.booleans(),
)
def test_answers_equal_a_linear_search(
    tmp_path_factory,
    monkeypatch,
    make_batch,
    make_segment,
    shapes,
    interval,
    closed,
    index_zeros,
    log_zeros,
    use_indexes,
):
    monkeypatch.setattr("storage_core.segment.segment_reader.PAGE_SIZE_BYTES", 0)
    directory = tmp_path_factory.mktemp("segment")
    segment, records = build(
        make_batch, make_segment, 1000, shapes, index_interval_bytes=interval, closed=closed
    )
    segment.write(directory, index_zeros=index_zeros, log_zeros=log_zeros)
    opened = open_segment(directory, 1000, use_indexes=use_indexes)
    assert opened.end() == SegmentEnd(segment.next_offset, len(segment.log))
    for offset in range(998, segment.next_offset + 2):
        header = opened.translate_offset(offset)
        expected = next((batch for batch in segment.batches if batch[3] >= offset), None)
        assert (header and header.position_bytes) == (expected and expected[0])
    for timestamp_ms in (0, 1, 15, 29, 30, 31, 45, 59, 60, 61):
        for start_offset in (0, 1003, segment.next_offset - 2):
            expected = linear_timestamp_search(records, timestamp_ms, start_offset)
            assert opened.offset_for_timestamp(timestamp_ms, start_offset) == expected
    largest = (-1, 1000)
    for *_, last_offset, timestamp_ms in segment.batches:
        if timestamp_ms > largest[0]:
            largest = (timestamp_ms, last_offset)
    assert opened.largest_timestamp(is_complete=closed) == TimestampOffset(*largest)
    if use_indexes:
        # What a broker wrote is never set aside.
        assert opened.offset_index.problem is None
        assert opened.time_index.problem is None
    for target in (1, 300, 1500):
        cuts = opened.cut_points(0, len(segment.log), target)
        positions = [0, *(header.position_bytes for header in cuts)]
        assert all(after - before >= target for before, after in itertools.pairwise(positions))
        assert set(positions) <= {0} | {batch[0] for batch in segment.batches}


@examples(60)
@given(data=st.data(), kind=st.sampled_from(["garbage", "cut", "shuffled", "of another log", "bit"]))
def test_damaged_indexes_change_no_offset_look_up(
    tmp_path_factory, monkeypatch, make_batch, make_segment, data, kind
):
    monkeypatch.setattr("storage_core.segment.segment_reader.PAGE_SIZE_BYTES", 0)
    directory = tmp_path_factory.mktemp("segment")
    chooser = random.Random(data.draw(st.integers(0, 10_000)))
    shapes = [
        (chooser.randrange(3), [n] * chooser.randrange(1, 4), 0, None, chooser.randrange(300))
        for n in range(40)
    ]
    segment, records = build(make_batch, make_segment, 1000, shapes, index_interval_bytes=200)
    segment.write(directory)
    stem = directory / "00000000000000001000"
    other, _ = build(make_batch, make_segment, 1000, shapes[7:] + shapes[:7], index_interval_bytes=150)
    for suffix, content, foreign, size in (
        (".index", segment.offset_index_bytes, other.offset_index_bytes, 8),
        (".timeindex", segment.time_index_bytes, other.time_index_bytes, 12),
    ):
        if kind == "garbage":
            damaged = chooser.randbytes(size * chooser.randrange(30))
        elif kind == "cut":
            damaged = content[: chooser.randrange(len(content))]
        elif kind == "shuffled":
            entries = [content[at : at + size] for at in range(0, len(content), size)]
            chooser.shuffle(entries)
            damaged = b"".join(entries)
        elif kind == "of another log":
            damaged = foreign
        else:
            damaged = bytearray(content)
            damaged[chooser.randrange(len(content))] ^= 1 << chooser.randrange(8)
        stem.with_suffix(suffix).write_bytes(damaged)
    opened = open_segment(directory, 1000)
    for offset in range(999, segment.next_offset + 1):
        header = opened.translate_offset(offset)
        expected = next((batch for batch in segment.batches if batch[3] >= offset), None)
        assert (header and header.position_bytes) == (expected and expected[0])
    assert open_segment(directory, 1000).end() == SegmentEnd(segment.next_offset, len(segment.log))
    # Timestamps ascend here, so that every false entry shows.
    for timestamp_ms in range(42):
        expected = linear_timestamp_search(records, timestamp_ms)
        assert open_segment(directory, 1000).offset_for_timestamp(timestamp_ms) == expected
    largest = open_segment(directory, 1000).largest_timestamp(is_complete=True)
    assert largest == TimestampOffset(39, segment.next_offset - 1)


# ---- time index ----


@pytest.fixture
def hundred(make_batch, make_segment):
    """Return a hundred batches of two records, timestamps 1000 to 1199, with indexes."""
    return make_segment(
        0,
        [make_batch(2 * n, (1000 + 2 * n, 1001 + 2 * n), value=bytes(100)) for n in range(100)],
        index_interval_bytes=1000,
    )


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda timestamp_ms, offset: (timestamp_ms + 1, offset), id="timestamp too large"),
        pytest.param(lambda timestamp_ms, offset: (timestamp_ms - 1, offset), id="timestamp too small"),
        pytest.param(lambda timestamp_ms, offset: (timestamp_ms, offset + 1), id="offset of the next batch"),
        pytest.param(
            lambda timestamp_ms, offset: (timestamp_ms, offset - 2), id="offset of the batch before"
        ),
        pytest.param(lambda timestamp_ms, offset: (timestamp_ms - 500, offset), id="as if all were younger"),
        pytest.param(
            lambda timestamp_ms, offset: (timestamp_ms, 10_000 + offset), id="beyond the end of the log"
        ),
    ],
)
def test_a_time_index_that_lies_is_set_aside(tmp_path, hundred, change):
    hundred.time_entries = [change(*entry) for entry in hundred.time_entries]
    hundred.write(tmp_path)
    for timestamp_ms in range(995, 1205):
        opened = open_segment(tmp_path, 0)
        expected = linear_timestamp_search(((n, 1000 + n) for n in range(200)), timestamp_ms)
        assert opened.offset_for_timestamp(timestamp_ms) == expected
    opened = open_segment(tmp_path, 0)
    assert opened.largest_timestamp(is_complete=True) == TimestampOffset(1199, 199)
    assert opened.time_index.problem == "it disagrees with the batches that it names"


def test_a_search_without_the_time_index_may_skip_as_much_damage_as_any(tmp_path, hundred, monkeypatch):
    """How much a walk searches after damage is limited: what the first attempt has used is not missing in the second."""
    walks = []
    walk = SegmentReader._walk

    def noting(segment, log_file):
        walks.append(walk(segment, log_file))
        return walks[-1]

    hundred.time_entries = [(timestamp_ms + 1, offset) for timestamp_ms, offset in hundred.time_entries]
    hundred.write(tmp_path)
    opened = open_segment(tmp_path, 0)
    monkeypatch.setattr(SegmentReader, "_walk", noting)
    assert opened.offset_for_timestamp(1150) == TimestampOffset(1150, 150)
    first, second = walks
    assert first is not second


def test_entries_of_old_brokers_name_the_very_record(tmp_path, make_batch, make_segment):
    batches = [make_batch(3 * n, (10 * n, 10 * n + 5, 10 * n + 1), value=bytes(100)) for n in range(60)]
    segment = make_segment(0, batches, index_interval_bytes=1000)
    segment.time_entries = [(timestamp_ms, offset - 1) for timestamp_ms, offset in segment.time_entries]
    segment.write(tmp_path)
    opened = open_segment(tmp_path, 0)
    records = [(3 * n + d, 10 * n + t) for n in range(60) for d, t in enumerate((0, 5, 1))]
    for timestamp_ms in range(600):
        assert opened.offset_for_timestamp(timestamp_ms) == linear_timestamp_search(records, timestamp_ms)
    assert opened.largest_timestamp_ms(is_complete=True) == 595
    assert opened.time_index.problem is None


@pytest.mark.parametrize("kept", range(12))
def test_a_time_index_that_was_cut_short_shows(tmp_path, hundred, kept):
    assert len(hundred.time_entries) > 12
    hundred.time_entries = hundred.time_entries[:kept]
    hundred.write(tmp_path)
    for is_complete in (True, False):
        opened = open_segment(tmp_path, 0)
        assert opened.largest_timestamp(is_complete=is_complete) == TimestampOffset(1199, 199)


def test_the_largest_timestamp_of_a_closed_segment_costs_little(tmp_path, make_batch, make_segment):
    segment = make_segment(0, [make_batch(n, (n,), value=bytes(10_000)) for n in range(500)])
    segment.write(tmp_path)
    opened = open_segment(tmp_path, 0)
    assert opened.largest_timestamp(is_complete=True) == TimestampOffset(499, 499)
    indexes = len(segment.offset_index_bytes) + len(segment.time_index_bytes)
    assert opened.filesystem.statistics.bytes_read <= indexes + 3 * 4096
    # Asked again, nothing is read.
    before = opened.filesystem.statistics.reads
    assert opened.largest_timestamp_ms(is_complete=True) == 499
    assert opened.filesystem.statistics.reads == before


def test_the_largest_timestamp_in_the_middle(tmp_path, make_batch, make_segment):
    segment = make_segment(0, [make_batch(n, (1000 - abs(n - 40),), value=bytes(200)) for n in range(100)])
    segment.write(tmp_path)
    for is_complete in (True, False):
        opened = open_segment(tmp_path, 0)
        assert opened.largest_timestamp(is_complete=is_complete) == TimestampOffset(1000, 40)
        assert opened.time_index.problem is None


def test_without_timestamps_the_age_of_the_file_counts(tmp_path, make_batch, make_segment):
    segment = make_segment(5, [make_batch(n, (-1,), value=bytes(100)) for n in range(5, 60)])
    segment.write(tmp_path)
    opened = open_segment(tmp_path, 5)
    os.utime(opened.log_path, ns=(0, 1_700_000_000_999_999_999))
    assert opened.largest_timestamp(is_complete=True) == TimestampOffset(-1, 5)
    assert opened.largest_timestamp_ms(is_complete=True) == 1_700_000_000_999
    assert opened.offset_for_timestamp(0) is None


def test_an_empty_segment(tmp_path):
    (tmp_path / "00000000000000000007.log").write_bytes(b"")
    opened = open_segment(tmp_path, 7)
    assert opened.end() == SegmentEnd(7, 0)
    assert opened.translate_offset(7) is None
    assert opened.offset_for_timestamp(0) is None
    assert opened.largest_timestamp(is_complete=True) == TimestampOffset(-1, 7)
    assert list(opened.batches()) == []
    assert opened.cut_points(0, 0, 1) == []


# ---- ends, damage, cost ----


def test_after_its_end_is_known_a_segment_has_nothing_after_it(tmp_path, hundred):
    torn = bytearray(hundred.log)
    torn[-1] ^= 1
    hundred.log = bytes(torn)
    hundred.write(tmp_path)
    opened = open_segment(tmp_path, 0)
    with pytest.raises(CorruptRecordError):
        opened.offset_for_timestamp(1198)
    opened = open_segment(tmp_path, 0)
    assert opened.end() == SegmentEnd(198, hundred.batches[-2][1])
    assert opened.offset_for_timestamp(1198) is None
    assert opened.largest_timestamp(is_complete=False) == TimestampOffset(1197, 197)
    assert opened.translate_offset(198) is None
    assert len(list(opened.batches())) == 99


def test_the_end_is_looked_for_before_the_last_entries_if_nothing_after_them_is_valid(tmp_path, hundred):
    first_bad = hundred.offset_entries[5][1]
    log = bytearray(hundred.log)
    for position, end, *_ in hundred.batches:
        if position >= first_bad:
            log[end - 1] ^= 1
    hundred.log = bytes(log)
    hundred.write(tmp_path)
    next_offset = hundred.offset_entries[5][0] - 1
    assert open_segment(tmp_path, 0).end() == SegmentEnd(next_offset, first_bad)
    assert open_segment(tmp_path, 0, use_indexes=False).end() == SegmentEnd(next_offset, first_bad)


def test_if_no_batch_is_valid_the_end_is_the_beginning(tmp_path, hundred):
    log = bytearray(hundred.log)
    for _, end, *_ in hundred.batches:
        log[end - 1] ^= 1
    hundred.log = bytes(log)
    hundred.write(tmp_path)
    assert open_segment(tmp_path, 0).end() == SegmentEnd(0, 0)


@pytest.mark.parametrize("use_indexes", [True, False])
def test_cutting_stops_where_damage_is_met(tmp_path, hundred, use_indexes):
    log = bytearray(hundred.log)
    position = hundred.batches[50][0]
    log[position + 16] = 77
    hundred.log = bytes(log)
    hundred.write(tmp_path)
    cuts = open_segment(tmp_path, 0, use_indexes=use_indexes).cut_points(0, len(log), 2000)
    assert cuts
    assert all(header.position_bytes < position for header in cuts) != use_indexes


def test_a_batch_beyond_the_limit_is_not_read(tmp_path, make_batch, make_segment):
    make_segment(0, [make_batch(0, (5,)), make_batch(1, (6,), value=bytes(100_000))]).write(tmp_path)
    opened = open_segment(tmp_path, 0, max_batch_bytes=50_000)
    assert opened.offset_for_timestamp(5) == TimestampOffset(5, 0)
    with pytest.raises(BatchTooLargeError):
        opened.offset_for_timestamp(6)
    with pytest.raises(BatchTooLargeError):
        opened.read_batch(opened.translate_offset(1))
    assert opened.filesystem.statistics.bytes_read < 50_000


@pytest.mark.parametrize("value_size", [20, 1000, 20_000])
def test_an_offset_is_found_with_one_small_read(tmp_path, make_batch, make_segment, value_size):
    segment = make_segment(0, [make_batch(n, (n,), value=bytes(value_size)) for n in range(2000)])
    segment.write(tmp_path)
    opened = open_segment(tmp_path, 0)
    opened.translate_offset(0)
    statistics = opened.filesystem.statistics
    for offset in range(0, 2000, 37):
        before = (statistics.bytes_read, statistics.reads)
        assert opened.translate_offset(offset).base_offset == offset
        assert statistics.reads - before[1] <= 3
        assert statistics.bytes_read - before[0] <= 4096 + 16 * 1024


def test_a_walk_that_is_left_early_closes_its_file(tmp_path, hundred):
    hundred.write(tmp_path)
    descriptors = len(os.listdir("/dev/fd"))
    batches = open_segment(tmp_path, 0).batches()
    next(batches)
    assert len(os.listdir("/dev/fd")) == descriptors + 1
    batches.close()
    assert len(os.listdir("/dev/fd")) == descriptors


def test_a_stale_index_of_a_longer_log_changes_nothing(tmp_path, hundred):
    hundred.write(tmp_path)
    os.truncate(tmp_path / "00000000000000000000.log", hundred.batches[30][1])
    opened = open_segment(tmp_path, 0)
    assert opened.end() == SegmentEnd(62, hundred.batches[30][1])
    assert opened.largest_timestamp(is_complete=False) == TimestampOffset(1061, 61)
    assert opened.offset_for_timestamp(1060) == TimestampOffset(1060, 60)
    assert opened.offset_for_timestamp(1062) is None


def test_control_batches_are_found_too(tmp_path):
    abort = bytes.fromhex(
        "0000000000000064000000420000000302ab6840d60030000000000000018bcfe568000000018bcfe568000000000000000fa00007"
        "ffffffff000000012000000008000000010c00000000000b00"
    )
    (tmp_path / "00000000000000000100.log").write_bytes(abort)
    opened = open_segment(tmp_path, 100)
    assert opened.offset_for_timestamp(0) == TimestampOffset(1_700_000_000_000, 100)
    assert struct.unpack_from(">q", abort)[0] == 100
