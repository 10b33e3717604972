from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import InvalidRecordError, OptionError, RecordTooLargeError
from storage_core.record import encode
from storage_core.record.encode import BatchEncoding, encode_records
from storage_core.record.record_batches import ProducerSequence
from tests.record.encoding import CODECS, ZSTD
from tests.record.golden import CREATE_TIME, NO_TIMESTAMP, TRANSACTIONAL, TWO_RECORDS
from tests.record.sections import decode_window, window_of
from tests.record.strategies import NOW_MS
from tests.record.written import (
    batches_by_hand,
    bytes_of,
    rows,
    rows_read,
    table_of,
    write,
    write_both_ways,
)

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1
MIN_LONG = -(2**63)

every_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
TWO_ROWS = [(283843, b"key1", b"value1", []), (1234, b"key2", b"value2", [])]


def plain_rows(count, *, seed=1, step_ms=1):
    """Rows of all sizes, their timestamps ascending."""
    generator = random.Random(seed)
    sizes = [0, 1, 11, 12, 13, 50, 60, 70, 100, 300]
    return [
        (
            NOW_MS + number * step_ms,
            generator.choice([None, b"", b"0123456789", generator.randbytes(generator.choice(sizes))]),
            generator.choice([None, generator.randbytes(generator.choice(sizes))]),
            generator.choice([[], [("name", b"value")], [("", None), ("é☃", b"x" * 40)]]),
        )
        for number in range(count)
    ]


# -- The bytes --------


@pytest.mark.parametrize(
    ("rows", "golden"),
    [
        (TWO_ROWS, TWO_RECORDS["none"]),
        ([(1, b"a", b"1", []), (2, b"b", b"2", [])], CREATE_TIME),
    ],
    ids=["two records", "create time"],
)
def test_batches_are_those_of_kafka_byte_for_byte(rows, golden):
    assert write_both_ways(table_of(rows)) == golden.data


def test_a_transactional_batch_is_that_of_kafka_byte_for_byte(monkeypatch):
    records = table_of(
        [
            (1700000000000, b"k", b"v", []),
            (1700000000005, None, b"x", [("h1", b"v1"), ("h2", None), ("é", b"")]),
            (1699999999990, b"k2", None, []),
        ]
    )
    for few_rows in (0, 100):
        monkeypatch.setattr(encode, "_FEW_ROWS", few_rows)
        (batches,) = encode_records(
            records,
            BatchEncoding(),
            default_timestamp_ms=0,
            producer=ProducerSequence(4000, 7, 42),
            is_transactional=True,
        )
        assert bytes_of([batches.with_offsets(1234567, 9)]) == TRANSACTIONAL.data


def test_a_record_without_a_timestamp_is_that_of_kafka_byte_for_byte():
    (batches,) = encode_records(pa.table({"value": [b"v"]}), BatchEncoding(), default_timestamp_ms=-1)
    assert bytes_of([batches.with_offsets(7, -1)]) == NO_TIMESTAMP.data


@every_codec
@given(
    table=st.lists(rows, min_size=1, max_size=40),
    batch_size_bytes=st.sampled_from([0, 100, 500, 16384]),
    by_column=st.booleans(),
)
def test_any_records_are_read_back_as_they_were(codec, table, batch_size_bytes, by_column):
    data = write(table_of(table), codec=codec, batch_size_bytes=batch_size_bytes, by_column=by_column)
    assert decode_window(data) == rows_read(table)


@given(table=st.lists(rows, min_size=1, max_size=40), batch_size_bytes=st.sampled_from([0, 100, 500, 16384]))
def test_both_encoders_write_what_is_written_by_hand(table, batch_size_bytes):
    data = write_both_ways(table_of(table), batch_size_bytes=batch_size_bytes)
    assert data == b"".join(batch.encode() for batch in batches_by_hand(table, batch_size_bytes))


@every_codec
def test_both_encoders_write_the_same_of_many_records(codec):
    table = plain_rows(3000)
    data = write_both_ways(table_of(table), codec=codec)
    assert decode_window(data) == rows_read(table)


@pytest.mark.parametrize("absent", ["key", "timestamp", "headers"])
def test_a_column_that_is_not_there_is_one_of_nulls(absent):
    records = table_of(plain_rows(300))
    names = records.schema.names
    place = names.index(absent)
    nulls = pa.nulls(300, records.schema.types[place])
    nameless = records.set_column(place, absent, pa.nulls(300))
    without = write_both_ways(records.drop_columns([absent]))
    assert without == write_both_ways(records.set_column(place, absent, nulls))
    assert without == write_both_ways(nameless)


def test_values_of_nulls_only():
    for nulls in (pa.nulls(20), pa.nulls(20, pa.binary()), pa.nulls(20, pa.large_string())):
        data = write_both_ways(pa.table({"value": nulls}))
        assert decode_window(data) == [(offset, NOW_MS, None, None, ()) for offset in range(20)]


def test_no_records_are_no_batches():
    assert write(table_of([])) == b""
    assert write(pa.table({"value": pa.array([], pa.binary())})) == b""


def test_a_record_batch_is_written_as_a_table():
    records = table_of(plain_rows(100))
    (record_batch,) = records.to_batches()
    assert write_both_ways(record_batch) == write_both_ways(records)


# -- Where batches end --------


@pytest.mark.parametrize("step_ms", [0, 1, 3, 40, 1000, 100_000, -7])
@pytest.mark.parametrize("batch_size_bytes", [300, 1024, 16384])
def test_a_batch_takes_as_many_records_as_fit(batch_size_bytes, step_ms):
    table = plain_rows(700, step_ms=step_ms)
    data = write_both_ways(table_of(table), batch_size_bytes=batch_size_bytes)
    assert data == b"".join(batch.encode() for batch in batches_by_hand(table, batch_size_bytes))


def test_a_record_larger_than_the_batch_size_has_a_batch_of_its_own():
    table = [(NOW_MS, None, value, []) for value in (b"a", b"b", b"x" * 5000, b"c", b"y" * 5000, b"d")]
    data = write_both_ways(table_of(table), batch_size_bytes=200)
    assert [header["record_count"] for header in window_of(data).headers] == [2, 1, 1, 1, 1]


def test_the_batch_size_counts_before_compression():
    records = table_of([(NOW_MS, None, b"x" * 100, [])] * 1000)
    plain = window_of(write_both_ways(records, batch_size_bytes=4096))
    compressed = window_of(write_both_ways(records, batch_size_bytes=4096, codec=ZSTD))
    assert compressed.headers["record_count"].tolist() == plain.headers["record_count"].tolist()
    assert compressed.end < plain.end / 5


def test_batches_go_on_from_block_to_block_and_from_chunk_to_chunk(monkeypatch):
    table = plain_rows(2000)
    records = table_of(table)
    whole = write_both_ways(records, batch_size_bytes=3000)
    monkeypatch.setattr(encode, "_BLOCK_ROWS", 7)
    monkeypatch.setattr(encode, "_CHUNK_BYTES", 1000)
    batches = list(encode_records(records, BatchEncoding(batch_size_bytes=3000), default_timestamp_ms=0))
    assert bytes_of(batches) == whole
    assert len(batches) > 50
    offsets = [(one.base_offset, one.next_offset) for one in batches]
    assert offsets[0][0] == 0
    assert offsets[-1][1] == 2000
    assert [start for start, _ in offsets[1:]] == [end for _, end in offsets[:-1]]


def test_a_chunk_holds_about_8_mebibytes():
    value = b"x" * 1000
    records = pa.table({"value": pa.array([value] * 30_000)})
    sizes = [one.size_bytes for one in encode_records(records, BatchEncoding(), default_timestamp_ms=0)]
    assert sum(sizes) > 30_000_000
    assert max(sizes) < 9 << 20
    assert min(sizes[:-1]) > 7 << 20


# -- Timestamps --------


@pytest.mark.parametrize(
    "times",
    [
        [0, MAX_LONG, MIN_LONG, -1, 1],
        [MIN_LONG, MAX_LONG],
        [MIN_LONG, -1, 0, MAX_LONG],
        [0, 1 << 54, 1 << 55, 1 << 56, 1 << 60, 1 << 62],
        [NOW_MS, NOW_MS + 63, NOW_MS + 64, NOW_MS + 8191, NOW_MS + 8192, NOW_MS + (1 << 20)],
        [NOW_MS, NOW_MS - 64, NOW_MS - 65, NOW_MS - 8192, NOW_MS - 8193, NOW_MS - (1 << 34)],
        [-1, -1, -1],
        [-5000, -1, 0],
    ],
)
@pytest.mark.parametrize("batch_size_bytes", [0, 110, 16384])
def test_extreme_timestamps(times, batch_size_bytes):
    table = [(timestamp_ms, None, b"v", []) for timestamp_ms in times] * 20
    data = write_both_ways(table_of(table), batch_size_bytes=batch_size_bytes)
    assert decode_window(data) == rows_read(table)


def test_the_largest_timestamp_of_a_batch_stands_in_its_header():
    table = [(timestamp_ms, None, b"v", []) for timestamp_ms in (5, 9, 7, 1, 3, 2, -1)]
    data = write_both_ways(table_of(table), batch_size_bytes=61 + 2 * 9)
    headers = window_of(data).headers
    assert headers["base_timestamp_ms"].tolist() == [5, 7, 3, -1]
    assert headers["max_timestamp_ms"].tolist() == [9, 7, 3, -1]


UNITS = [
    ("s", -2, [-2000]),
    ("ms", -1999, [-1999]),
    ("us", -1_999_001, [-2000]),
    ("ns", -1_999_000_001, [-2000]),
]


@pytest.mark.parametrize(("unit", "number", "expected"), UNITS)
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin", "+05:30"])
def test_timestamps_of_every_unit_and_zone_are_floored_to_milliseconds(unit, number, expected, zone):
    column = pa.array([number], pa.int64()).cast(pa.timestamp(unit, zone))
    data = write_both_ways(pa.table({"value": [b"v"], "timestamp": column}))
    assert [row[1] for row in decode_window(data)] == expected


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_null_timestamp_is_the_default(unit):
    column = pa.array([None, 0, None], pa.timestamp(unit))
    data = write_both_ways(pa.table({"value": [b"v"] * 3, "timestamp": column}))
    assert [row[1] for row in decode_window(data)] == [NOW_MS, 0, NOW_MS]


def test_the_value_under_a_null_timestamp_is_ignored():
    seconds = np.array([5, MAX_LONG], np.int64)
    column = pa.Array.from_buffers(
        pa.timestamp("s"), 2, [pa.py_buffer(b"\1"), pa.py_buffer(seconds)], null_count=1
    )
    data = write_both_ways(pa.table({"value": [b"v"] * 2, "timestamp": column}))
    assert [row[1] for row in decode_window(data)] == [5000, NOW_MS]


@pytest.mark.parametrize("seconds", [MAX_LONG // 1000 + 1, -(MAX_LONG // 1000) - 2])
def test_more_seconds_than_milliseconds_have_room_for_are_refused(monkeypatch, seconds):
    column = pa.array([None, 1, seconds], pa.timestamp("s"))
    records = pa.table({"value": [b"v"] * 3, "timestamp": column})
    for few_rows in (0, 100):
        monkeypatch.setattr(encode, "_FEW_ROWS", few_rows)
        with pytest.raises(InvalidRecordError, match=r"timestamp.* row 2"):
            encode_records(records, BatchEncoding(), default_timestamp_ms=0)


# -- Producers --------


@pytest.mark.parametrize(
    ("producer", "sequences"),
    [
        (ProducerSequence(5, 3, MAX_INT - 2), [MAX_INT - 2, MAX_INT, 1, 3]),
        # As a group coordinator writes: every batch has producer and epoch, and no sequence number.
        (ProducerSequence(5, 3, -1), [-1] * 4),
        (None, [-1] * 4),
    ],
    ids=["wrapping", "without numbers", "none"],
)
def test_sequence_numbers_go_on_from_batch_to_batch(producer, sequences):
    records = table_of([(NOW_MS, None, b"v", [])] * 7)
    headers = window_of(write_both_ways(records, producer=producer, batch_size_bytes=61 + 2 * 9)).headers
    assert headers["base_sequence"].tolist() == sequences
    assert headers["producer_id"].tolist() == [producer.producer_id if producer else -1] * 4
    assert headers["producer_epoch"].tolist() == [producer.producer_epoch if producer else -1] * 4


@pytest.mark.parametrize(
    ("producer", "match"),
    [
        (None, "found none"),
        (ProducerSequence(-1, 0, 0), "producer_id=-1"),
        (ProducerSequence(1, -1, 0), "producer_epoch=-1"),
        (ProducerSequence(1, 0, -2), "base_sequence=-2"),
    ],
)
def test_a_transaction_needs_a_producer_with_an_epoch(producer, match):
    with pytest.raises(ValueError, match=match):
        encode_records(
            table_of(TWO_ROWS),
            BatchEncoding(),
            default_timestamp_ms=0,
            producer=producer,
            is_transactional=True,
        )


# -- How batches are made --------


def test_by_default_batches_are_those_of_kafkas_producer():
    assert BatchEncoding() == BatchEncoding(codec=0, level=None, batch_size_bytes=16384)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"codec": 5}, "found 5"),
        ({"codec": ZSTD, "level": 23}, "found 23"),
        ({"level": 1}, "none has none"),
        ({"batch_size_bytes": -1}, "at least 0 bytes, found -1"),
    ],
)
def test_an_impossible_encoding_is_refused(fields, match):
    with pytest.raises(OptionError, match=match):
        BatchEncoding(**fields)


# -- What no reader takes --------


def largest_value(limit_bytes):
    """Return the length of the value of a record that alone makes a batch of a size; its length takes three bytes."""
    return limit_bytes - 61 - (3 + 1 + 1 + 1 + 1 + 3 + 1)


@pytest.mark.parametrize("count", [1, 200])
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_batch_is_as_large_as_is_read_and_no_larger(codec, count):
    """However well it compresses: what it inflates to is what counts, too."""
    limit = 30_000

    def encode_with(length):
        values = [b"v"] * (count - 1) + [b"x" * length]
        encoding = BatchEncoding(codec, batch_size_bytes=1 << 20, largest_batch_bytes=limit)
        records = pa.table({"value": values})
        return [
            batches.select(number, number + 1)
            for batches in encode_records(records, encoding, default_timestamp_ms=0)
            for number in range(batches.count)
        ]

    found = encode_with(largest_value(limit))
    assert sum(int(each.headers["record_count"][0]) for each in found) == count
    # Of more records it makes smaller batches, whatever their size is to be.
    assert len(found) == min(count, 2)
    assert max(each.size_bytes for each in found) == limit or codec
    with pytest.raises(RecordTooLargeError, match=f"at most {limit} bytes.*makes one of {limit + 1}"):
        encode_with(largest_value(limit) + 1)


def test_what_compression_makes_larger_counts_as_it_is():
    value = random.Random(1).randbytes(largest_value(30_000))
    encoding = BatchEncoding(CODECS["gzip"], largest_batch_bytes=30_000)
    with pytest.raises(RecordTooLargeError, match="at most 30000 bytes, compressed or not"):
        list(encode_records(pa.table({"value": [value]}), encoding, default_timestamp_ms=0))


def test_without_a_limit_any_batch_is_made():
    (batches,) = encode_records(
        pa.table({"value": [b"x" * 100_000]}), BatchEncoding(), default_timestamp_ms=0
    )
    assert batches.size_bytes > 100_000
