"""The reference cleaner itself: cases made by hand from the rules of Kafka's cleaner."""

from __future__ import annotations

import struct

import pytest

from tests.compaction.plain_batches import (
    PlainAbort,
    PlainBatch,
    PlainRecord,
    PlainSegment,
    batches_of,
    encode,
)
from tests.compaction.reference_cleaner import (
    DirtyRange,
    LastRecord,
    Rules,
    build_map,
    clean,
    cleanable_bytes,
    dirty_range,
    group,
)

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
ABORT, COMMIT = 0, 1


def batch(first, *pairs, last=None, at_ms=1_000, **fields):
    """A batch of keys and values, one offset after the other."""
    records = tuple(PlainRecord(first + index, at_ms + index, *pair) for index, pair in enumerate(pairs))
    last = first + len(pairs) - 1 if last is None else last
    return PlainBatch(first, last, records, at_ms, at_ms + len(pairs) - 1, **fields)


def transactional(first, *pairs, producer=1, **fields):
    return batch(
        first,
        *pairs,
        is_transactional=True,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        **fields,
    )


def marker(offset, kind, *, producer=1, at_ms=2_000, horizon_ms=None):
    record = PlainRecord(offset, at_ms, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0))
    return PlainBatch(
        offset, offset, (record,), at_ms if horizon_ms is None else horizon_ms, at_ms, is_transactional=True,
        is_control=True, has_delete_horizon=horizon_ms is not None, producer_id=producer, producer_epoch=0,
    )  # fmt: skip


def segment(base_offset, *batches, aborts=(), size_bytes=100, **fields):
    return PlainSegment(base_offset, batches, tuple(aborts), size_bytes=size_bytes, **fields)


def a_pass(*segments, first_dirty=0, now_ms=NOW_MS, last_records=None, **rules):
    """Everything but the last segment is cleaned."""
    dirty = DirtyRange(first_dirty, segments[-1].base_offset)
    return clean(segments, Rules(**rules), dirty, last_records=last_records or {}, now_ms=now_ms)


def contents(cleaned):
    """Offset, key and value of what is left, by batch."""
    return [
        [(record.offset, record.key, record.value) for record in each.records]
        for segment in cleaned.segments
        for each in segment.batches
    ]


def test_example_of_two_passes():
    """a=2 stays, b is deleted, d=1 stays, of c the last value stays."""
    log = segment(
        0,
        batch(0, (b"a", b"1"), (b"b", b"1"), (b"c", b"1")),
        batch(3, (b"a", b"2")),
        batch(4, (b"b", None), (b"d", b"1")),
        batch(6, (b"c", b"2"), (b"c", b"3")),
    )
    first = a_pass(log, segment(8))
    assert first.end_offset == 8
    assert contents(first) == [[(3, b"a", b"2")], [(4, b"b", None), (5, b"d", b"1")], [(7, b"c", b"3")]]
    _, tombstone, last = first.segments[0].batches
    assert (tombstone.has_delete_horizon, tombstone.base_timestamp_ms) == (True, NOW_MS + DAY_MS)
    assert [record.timestamp_ms for record in tombstone.records] == [1_000, 1_001]
    assert (last.base_offset, last.last_offset, last.base_timestamp_ms) == (6, 7, 1_001)

    dirty = batch(8, (b"e", b"1"))
    before = a_pass(
        *first.segments[:1], segment(8, dirty), segment(9), first_dirty=8, now_ms=NOW_MS + DAY_MS - 1
    )
    assert contents(before)[1] == [(4, b"b", None), (5, b"d", b"1")]
    after = a_pass(*first.segments[:1], segment(8, dirty), segment(9), first_dirty=8, now_ms=NOW_MS + DAY_MS)
    assert contents(after) == [[(3, b"a", b"2")], [(5, b"d", b"1")], [(7, b"c", b"3")], [(8, b"e", b"1")]]
    without_tombstone = after.segments[0].batches[1]
    assert (without_tombstone.base_offset, without_tombstone.last_offset) == (4, 5)
    assert (without_tombstone.has_delete_horizon, without_tombstone.base_timestamp_ms) == (
        True,
        NOW_MS + DAY_MS,
    )


def test_records_without_a_key_are_dropped_and_counted():
    cleaned = a_pass(segment(0, batch(0, (None, b"1"), (b"a", b"1")), batch(2, (b"b", b"1"))), segment(3))
    assert contents(cleaned) == [[(1, b"a", b"1")], [(2, b"b", b"1")]]
    assert cleaned.unkeyed_records == 1


def test_last_batch_of_a_round_is_kept_empty():
    cleaned = a_pass(
        segment(0, batch(0, (b"a", b"1")), batch(1, (None, b"1"), (None, b"2"), leader_epoch=7, codec=4)),
        segment(3),
    )
    (_, last) = cleaned.segments[0].batches
    assert last == PlainBatch(1, 2, (), -1, 1_001, leader_epoch=7)


def test_last_batch_of_a_producer_is_kept_empty():
    data = batch(0, (b"a", b"1"), (b"a", b"2"), producer_id=5, producer_epoch=3, base_sequence=17)
    log = segment(0, data, batch(2, (b"a", b"3")), batch(3, (b"b", b"1"))), segment(4)
    cleaned = a_pass(*log, last_records={5: LastRecord(1, 3)})
    assert cleaned.segments[0].batches[0] == PlainBatch(
        0, 1, (), -1, 1_001, producer_id=5, producer_epoch=3, base_sequence=17
    )
    assert contents(a_pass(*log)) == [[(2, b"a", b"3")], [(3, b"b", b"1")]]


def test_untouched_batch_stays_as_it_is():
    untouched = batch(0, (b"a", b"1"), at_ms=5)
    untouched = PlainBatch(**{**vars(untouched), "base_timestamp_ms": 3, "raw": b"as it was"})
    cleaned = a_pass(segment(0, untouched), segment(1))
    assert cleaned.segments[0].batches[0].raw == b"as it was"


def test_append_time_stays():
    data = batch(0, (b"a", b"1"), (b"b", b"1"), is_append_time=True)
    log = segment(0, PlainBatch(**{**vars(data), "max_timestamp_ms": 77}), batch(2, (b"b", b"2")))
    (first, _) = a_pass(log, segment(3)).segments[0].batches
    assert (first.is_append_time, first.max_timestamp_ms) == (True, 77)


# -- Transactions --------


def test_aborted_data_goes_and_its_marker_stays_for_two_more_passes():
    abort = PlainAbort(1, 0, 1, 2)
    log = segment(0, transactional(0, (b"a", b"1")), marker(1, ABORT), batch(2, (b"b", b"1")), aborts=[abort])
    first = a_pass(log, segment(3))
    assert contents(first)[1:] == [[(2, b"b", b"1")]]
    assert [each.base_offset for each in first.segments[0].batches] == [1, 2]
    assert not first.segments[0].batches[0].has_delete_horizon
    assert first.segments[0].aborts == (abort,)

    # Its data is gone: it gets a horizon, and leaves the index.
    second = a_pass(first.segments[0], segment(3, batch(3, (b"c", b"1"))), segment(4), first_dirty=3)
    idle = second.segments[0].batches[0]
    assert (idle.base_offset, idle.has_delete_horizon, idle.base_timestamp_ms) == (1, True, NOW_MS + DAY_MS)
    assert idle.records[0].timestamp_ms == 2_000
    assert second.segments[0].aborts == ()

    later = segment(4, batch(4, (b"d", b"1"))), segment(5)
    for now_ms, offsets in ((NOW_MS + DAY_MS - 1, [1, 2, 3, 4]), (NOW_MS + DAY_MS, [2, 3, 4])):
        third = a_pass(*second.segments[:1], *later, first_dirty=4, now_ms=now_ms)
        assert [each.base_offset for each in third.segments[0].batches] == offsets


def test_commit_marker_stays_while_its_data_does():
    log = segment(0, transactional(0, (b"a", b"1")), marker(1, COMMIT), batch(2, (b"b", b"1")))
    first = a_pass(log, segment(3))
    assert [each.base_offset for each in first.segments[0].batches] == [0, 1, 2]
    assert not first.segments[0].batches[1].has_delete_horizon
    # The data is superseded now, but was still seen.
    second = a_pass(first.segments[0], segment(3, batch(3, (b"a", b"2"))), segment(4), first_dirty=3)
    assert [each.base_offset for each in second.segments[0].batches] == [1, 2, 3]
    assert not second.segments[0].batches[0].has_delete_horizon
    third = a_pass(second.segments[0], segment(4, batch(4, (b"c", b"2"))), segment(5), first_dirty=4)
    assert third.segments[0].batches[0].has_delete_horizon


def test_marker_that_is_the_last_of_its_producer_is_kept_empty():
    idle = marker(1, COMMIT, horizon_ms=NOW_MS)
    log = segment(0, batch(0, (b"a", b"1")), idle, batch(2, (b"b", b"1"))), segment(3)
    kept = a_pass(*log, last_records={1: LastRecord(None, 0)}).segments[0].batches[1]
    assert kept == PlainBatch(
        1, 1, (), -1, 2_000, is_transactional=True, is_control=True, producer_id=1, producer_epoch=0
    )
    assert len(a_pass(*log, last_records={1: LastRecord(None, 1)}).segments[0].batches) == 2
    # Empty, it goes as soon as the producer is forgotten.
    emptied = segment(0, batch(0, (b"a", b"1")), kept, batch(2, (b"b", b"1"))), segment(3)
    assert len(a_pass(*emptied, last_records={1: LastRecord(None, 0)}).segments[0].batches) == 3
    assert len(a_pass(*emptied).segments[0].batches) == 2


def test_aborted_values_count_for_no_key():
    log = segment(
        0, batch(0, (b"a", b"old")), transactional(1, (b"a", b"new")), marker(2, ABORT),
        batch(3, (b"b", b"1")), aborts=[PlainAbort(1, 1, 2, 3)],
    )  # fmt: skip
    assert contents(a_pass(log, segment(4)))[0] == [(0, b"a", b"old")]


def test_transaction_over_two_groups():
    """The entry is in the second segment, and is known in the first one, too."""
    abort = PlainAbort(1, 0, 3, 4)
    first = segment(0, transactional(0, (b"a", b"1")), batch(1, (b"b", b"1")), size_bytes=90)
    second = segment(2, transactional(2, (b"c", b"1")), marker(3, ABORT), aborts=[abort], size_bytes=90)
    cleaned = a_pass(first, second, segment(4), segment_bytes=100)
    assert cleaned.groups == ((0,), (2,))
    assert [[each.base_offset for each in segment.batches] for segment in cleaned.segments] == [[1], [3], []]
    assert [segment.aborts for segment in cleaned.segments] == [(), (abort,), ()]


# -- Offset map and groups --------


def test_full_map_stops_in_front_of_the_next_key():
    segments = [
        segment(0, batch(0, (b"a", b"1"), (None, b"-"), (b"b", b"1"), (b"a", b"2"))), segment(4, batch(4, (b"c", b"1"))),
        segment(5),
    ]  # fmt: skip
    full = build_map(segments, Rules(map_limit=2), DirtyRange(0, 5))
    assert (full.offsets, full.latest_offset) == ({b"a": 0, b"b": 2}, 2)
    cleaned = a_pass(*segments, map_limit=2)
    assert (cleaned.end_offset, cleaned.groups) == (3, ((0,),))
    # Everything after the mapped part stays, and so do its older values.
    assert contents(cleaned)[0] == [(0, b"a", b"1"), (2, b"b", b"1"), (3, b"a", b"2")]
    again = a_pass(*cleaned.segments, first_dirty=3, map_limit=2)
    assert again.end_offset == 5
    assert contents(again)[0] == [(2, b"b", b"1"), (3, b"a", b"2")]


def test_map_reaches_over_a_gap_at_the_end_of_a_segment():
    segments = [segment(0, batch(0, (b"a", b"1"))), segment(10, batch(10, (b"a", b"2"))), segment(20)]
    assert build_map(segments, Rules(), DirtyRange(0, 20)).latest_offset == 19


@pytest.mark.parametrize(
    ("sizes", "limit", "expected"),
    [
        ([50, 50, 50], 100, [[0, 10], [20]]),
        ([50, 51, 50], 100, [[0], [10], [20]]),
        ([0, 100, 0], 100, [[0, 10, 20]]),
        ([200, 0, 1], 100, [[0], [10, 20]]),
    ],
)
def test_groups_are_no_larger_than_a_segment(sizes, limit, expected):
    segments = [segment(10 * number, size_bytes=size) for number, size in enumerate(sizes)]
    groups = group(segments, Rules(segment_bytes=limit), 30)
    assert [[each.base_offset for each in members] for members in groups] == expected


def test_groups_span_no_more_than_an_index_can_tell():
    span = 2**31 - 1
    segments = [segment(0), segment(10), segment(span)]
    assert [len(members) for members in group(segments, Rules(), span + 1)] == [3]
    assert [len(members) for members in group(segments, Rules(), span + 2)] == [2, 1]


# -- What is cleaned --------


def range_of(segments, *, checkpoint=None, last_stable_offset=30, now_ms=NOW_MS, **rules):
    return dirty_range(
        segments,
        Rules(**rules),
        checkpoint=checkpoint,
        log_start_offset=segments[0].base_offset,
        log_end_offset=30,
        last_stable_offset=last_stable_offset,
        now_ms=now_ms,
    )


def test_whole_inactive_segments_below_the_last_stable_offset():
    segments = [segment(5, batch(5, (b"a", b"1"))), segment(10, batch(10, (b"a", b"2"))), segment(20)]
    assert range_of(segments) == (5, 20)
    assert range_of(segments, last_stable_offset=19) == (5, 10)
    assert range_of(segments, checkpoint=12) == (12, 20)
    assert range_of(segments, checkpoint=4) == (5, 20)
    assert range_of(segments, checkpoint=31) == (5, 20)
    assert range_of(segments, checkpoint=30) == (30, 20)
    assert cleanable_bytes(segments, range_of(segments, checkpoint=12)) == 100
    assert cleanable_bytes(segments, range_of(segments, checkpoint=20)) == 0
    assert cleanable_bytes(segments, range_of(segments, checkpoint=25, last_stable_offset=7)) == 0


def test_young_segments_are_left_alone():
    segments = [
        segment(0, batch(0, (b"a", b"1"), at_ms=1_000)), segment(10, batch(10, (b"a", b"2"), at_ms=2_000)), segment(20)
    ]  # fmt: skip
    assert range_of(segments, now_ms=2_500, min_compaction_lag_ms=500) == (0, 20)
    assert range_of(segments, now_ms=2_500, min_compaction_lag_ms=501) == (0, 10)
    assert range_of(segments, now_ms=2_500, min_compaction_lag_ms=5_000) == (0, 0)


# -- Batches as bytes --------


def test_bytes_of_an_empty_batch():
    """Offsets 15 to 37, leader epoch 15, producer 23423 with epoch 145 and sequence 983."""
    written = bytes.fromhex(
        "000000000000000f000000310000000f025d4e3d62000000000016ffffffffffffffff0000018bcfe56800"
        "0000000000005b7f0091000003d700000000"
    )
    empty = PlainBatch(
        15, 37, (), -1, NOW_MS, leader_epoch=15, producer_id=23423, producer_epoch=145, base_sequence=983
    )
    assert encode([empty]) == written
    assert list(batches_of(written)) == [empty]


@pytest.mark.parametrize("codec", range(5))
def test_bytes_of_batches(codec):
    headers = ((b"h", None), (b"h", b""))
    batches = [
        PlainBatch(7, 12, (PlainRecord(8, 5, b"k", None, headers), PlainRecord(11, 900, None, b"v" * 500)),
                   NOW_MS, 900, 3, codec, has_delete_horizon=True),
        transactional(13, (b"k", b"v"), codec=codec),
        marker(14, ABORT),
    ]  # fmt: skip
    assert list(batches_of(encode(batches))) == batches


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", range(3))
@pytest.mark.parametrize("is_append_time", [False, True])
def test_bytes_of_messages_of_older_formats(magic, codec, is_append_time):
    times = (900, 900) if is_append_time else (5, 900)
    records = [
        PlainRecord(8 + 3 * number, times[number] if magic else -1, *pair)
        for number, pair in enumerate([(b"k", None), (None, b"v" * 50)])
    ]
    sets = [tuple(records)] if codec else [(record,) for record in records]
    batches = [
        PlainBatch(
            each[0].offset, each[-1].offset, each, -1, each[-1].timestamp_ms, -1, codec,
            bool(magic and is_append_time), magic=magic,
        )
        for each in sets
    ]  # fmt: skip
    assert list(batches_of(encode(batches))) == batches


# -- Older formats --------


def messages(magic, *pairs):
    return [
        PlainBatch(
            offset,
            offset,
            (PlainRecord(offset, 5 if magic else -1, *pair),),
            -1,
            5 if magic else -1,
            -1,
            magic=magic,
        )
        for offset, pair in enumerate(pairs)
    ]


@pytest.mark.parametrize("magic", [0, 1])
def test_older_formats_become_v2(magic):
    log = segment(0, *messages(magic, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))), segment(3)
    first, second = a_pass(*log).segments[0].batches
    time_ms = 5 if magic else -1
    assert first == PlainBatch(1, 1, (PlainRecord(1, time_ms, b"b", b"1"),), time_ms, time_ms, -1)
    assert (second.base_offset, second.records[0].value) == (2, b"2")


def test_tombstones_of_older_formats_go_by_the_age_of_their_segment():
    old = segment(0, *messages(1, (b"a", None), (b"b", b"1")), modified_ms=NOW_MS)
    dirty = segment(2, batch(2, (b"c", b"1")), modified_ms=NOW_MS + DAY_MS), segment(3)
    # The last clean segment says how old is old.
    kept = a_pass(old, *dirty, first_dirty=2, delete_retention_ms=1)
    tombstone = kept.segments[0].batches[0]
    assert (tombstone.magic, tombstone.has_delete_horizon, tombstone.base_timestamp_ms) == (
        2,
        True,
        NOW_MS + 1,
    )
    dropped = a_pass(old, *dirty, first_dirty=2, delete_retention_ms=0)
    assert contents(dropped) == [[(1, b"b", b"1")], [(2, b"c", b"1")]]
