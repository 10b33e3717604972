from __future__ import annotations

from storage_core.record.column_encode import PlainBatch, encode_one_by_one

# Length, attributes, timestamp delta, offset delta, key length, key, value length, value, header count.
FIRST = bytes.fromhex("10 00 00 00 02 6b 02 76 00")
SECOND = bytes.fromhex("0e 00 07 02 01 02 77 00")
ROWS = [(100, b"k", b"v", ()), (96, None, b"w", ())]


def test_records_are_written_byte_for_byte():
    (batch,) = encode_one_by_one(ROWS, 1000)
    assert batch == PlainBatch(FIRST + SECOND, 2, 100, 100)


def test_headers_are_written_byte_for_byte():
    (batch,) = encode_one_by_one([(0, None, None, ((b"h", b"1"), (b"", None)))], 1000)
    assert batch.records == bytes.fromhex("18 00 00 00 01 01 04 02 68 02 31 00 01")


def test_a_batch_ends_before_the_record_that_has_no_room():
    assert len(list(encode_one_by_one(ROWS, len(FIRST + SECOND)))) == 1
    first, second = encode_one_by_one(ROWS, len(FIRST + SECOND) - 1)
    assert first == PlainBatch(FIRST, 1, 100, 100)
    # As the first of its batch it has no deltas.
    assert second == PlainBatch(bytes.fromhex("0e 00 00 00 01 02 77 00"), 1, 96, 96)


def test_a_single_record_may_be_larger_than_a_batch():
    assert [batch.count for batch in encode_one_by_one(ROWS, 0)] == [1, 1]


def test_no_records_are_no_batches():
    assert list(encode_one_by_one([], 1000)) == []
