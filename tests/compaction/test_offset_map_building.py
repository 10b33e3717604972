from __future__ import annotations

import pytest

from storage_core.compaction import CleanedTransactions, MapStatistics, OffsetMap, build_offset_map
from storage_core.errors import BatchTooLargeError, CorruptRecordError
from storage_core.segment import AbortedTransaction
from tests.compaction.keys import get
from tests.compaction.segments import open_segment
from tests.record.encoding import CODECS, CONTROL, TRANSACTIONAL, ZSTD, Batch, Record
from tests.record.legacy_encoding import Message


def keyed(base_offset, *keys, **header):
    records = tuple(Record(delta, 0, key) for delta, key in enumerate(keys))
    return Batch(records, base_offset, **header)


def encoded(*batches):
    return b"".join(batch.encode() for batch in batches)


def build(segments, first_dirty_offset=0, end_offset=100, *, slots=1000, aborted=(), **options):
    """Return the map, what the keys a to h have in it, and the statistics."""
    offset_map = OffsetMap(24 * slots)
    transactions = CleanedTransactions()
    transactions.add_aborted(aborted)
    statistics = build_offset_map(
        segments, first_dirty_offset, end_offset, offset_map, transactions, **options
    )
    keys = [bytes([letter]) for letter in b"abcdefgh"]
    found = zip(keys, get(offset_map, keys), strict=True)
    return offset_map, {key: offset for key, offset in found if offset >= 0}, statistics


@pytest.mark.parametrize("window_bytes", [1, 200, 1 << 20])
@pytest.mark.parametrize("codec", CODECS)
def test_each_key_has_its_last_offset(tmp_path, codec, window_bytes):
    batches = [
        keyed(0, b"a", b"b", b"a", codec=CODECS[codec]),
        keyed(3, b"c", None, b"b", codec=CODECS[codec]),
    ]
    source = open_segment(tmp_path, encoded(*batches))
    offset_map, found, statistics = build([source], window_bytes=window_bytes)
    assert found == {b"a": 2, b"b": 5, b"c": 3}
    assert offset_map.latest_offset == 99
    assert statistics == MapStatistics(6, len(encoded(*batches)), False)


def test_segments_follow_one_another(tmp_path):
    segments = [
        open_segment(tmp_path, encoded(keyed(0, b"a", b"b"))),
        open_segment(tmp_path, b"", 2),
        open_segment(tmp_path, encoded(Message(7, 5, b"a"), keyed(8, b"c")), 5),
    ]
    offset_map, found, _ = build(segments, end_offset=20)
    assert (found, offset_map.latest_offset) == ({b"a": 7, b"b": 1, b"c": 8}, 19)


def test_what_is_clean_is_not_put(tmp_path):
    source = open_segment(tmp_path, encoded(keyed(0, b"a", b"b"), keyed(2, b"c", b"d", b"e")))
    _, found, statistics = build([source], first_dirty_offset=3)
    assert found == {b"d": 3, b"e": 4}
    # The batch in front of the one with the first dirty offset is not decompressed.
    assert statistics.records_read == 3


def test_a_map_that_is_built_again_forgets_what_it_had(tmp_path):
    source = open_segment(tmp_path, encoded(keyed(0, b"a")))
    other = open_segment(tmp_path, encoded(keyed(5, b"b")), 5)
    offset_map = OffsetMap(24 * 10)
    build_offset_map([source], 0, 5, offset_map, CleanedTransactions())
    build_offset_map([other], 5, 9, offset_map, CleanedTransactions())
    assert get(offset_map, [b"a", b"b"]) == [-1, 5]
    assert (offset_map.size, offset_map.latest_offset) == (1, 8)


def test_aborted_data_and_control_records_are_not_put(tmp_path):
    source = open_segment(
        tmp_path,
        encoded(
            keyed(0, b"a", attributes=TRANSACTIONAL, producer_id=7, producer_epoch=0),
            keyed(1, b"\0\0\0\0", attributes=TRANSACTIONAL | CONTROL, producer_id=7, producer_epoch=0),
            keyed(2, b"b", attributes=TRANSACTIONAL, producer_id=7, producer_epoch=0),
        ),
    )
    offset_map, found, _ = build([source], aborted=[AbortedTransaction(7, 0, 1, 2)])
    assert (found, offset_map.size) == ({b"b": 2}, 1)


# With ten slots, nine keys fit.
@pytest.mark.parametrize(
    ("batches", "latest_offset", "size"),
    [
        # Full in the middle of a batch: up to the last key taken.
        ([keyed(0, *b"abcdefghi", *b"jk")], 8, 9),
        # A key that is there already is not taken either.
        ([keyed(0, *b"abcdefghi", *b"aaa")], 8, 9),
        # Full with the end of a batch: all of it is known.
        ([keyed(0, *b"abcdefghi", last_offset_delta=30), keyed(40, *b"a")], 30, 9),
        # A batch without keys is known, too; records without a key after the last one taken are not.
        ([keyed(0, *b"abcdefghi"), Batch((Record(0), Record(1)), 9), keyed(11, *b"j")], 10, 9),
        ([keyed(0, *b"abcdefgh"), Batch((Record(0, 0, b"i"), Record(1), Record(2, 0, b"j")), 8)], 8, 9),
        # Nothing follows: all is known, up to the end.
        ([keyed(0, *b"abcdefghi")], 99, 9),
        ([keyed(0, *b"abcdefghi"), Batch((Record(0), Record(1)), 9)], 99, 9),
        ([keyed(0, *b"abcdefgh" * 10)], 99, 8),
    ],
)
@pytest.mark.parametrize("window_bytes", [1, 1 << 20])
def test_a_full_map_knows_up_to_where_it_was_full(tmp_path, batches, latest_offset, size, window_bytes):
    source = open_segment(tmp_path, encoded(*map(_with_keys, batches)))
    offset_map, _, statistics = build([source], slots=10, window_bytes=window_bytes)
    assert (offset_map.latest_offset, offset_map.size) == (latest_offset, size)
    assert statistics.is_full == (latest_offset != 99)


def _with_keys(batch):
    """Letters given as numbers are keys of one byte."""
    records = tuple(
        Record(record.offset_delta, 0, bytes([record.key]) if isinstance(record.key, int) else record.key)
        for record in batch.records
    )
    return Batch(records, batch.base_offset, last_offset_delta=batch.last_offset_delta)


def test_damage_is_not_believed(tmp_path):
    content = bytearray(encoded(keyed(0, b"a"), keyed(1, b"b")))
    content[-3] ^= 1
    with pytest.raises(CorruptRecordError, match="CRC"):
        build([open_segment(tmp_path, bytes(content))])


def test_a_batch_that_inflates_too_far_is_refused(tmp_path):
    source = open_segment(tmp_path, keyed(0, bytes(100_000), codec=ZSTD).encode())
    with pytest.raises(BatchTooLargeError, match="at most 50000 bytes"):
        build([source], max_batch_bytes=50_000)
