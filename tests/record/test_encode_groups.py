"""What the encoder for one log makes of each group's rows, this one makes of all groups at once."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from storage_core.errors import InvalidRecordError
from storage_core.record import encode as encode_groups
from storage_core.record.encode import BatchEncoding, GroupEncoder, cut_groups, encode_records
from storage_core.record.record_input import measure_rows
from tests.record.encoding import CODECS, Batch, Record

NOW_MS = 1_772_500_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# Base offset and leader epoch are not known when rows are encoded.
ASSIGNED_BYTES = 16


def rows_of(count, *, seed=0, timestamps="any", value_bytes=30):
    rng = random.Random(seed)
    columns = {
        "key": pa.array(
            [rng.choice([None, b"", b"k" * rng.randint(0, 20)]) for _ in range(count)], pa.binary()
        ),
        "value": pa.array(
            [rng.choice([None, rng.randbytes(rng.randint(0, value_bytes))]) for _ in range(count)],
            pa.binary(),
        ),
        "headers": pa.array(
            [
                rng.choice([None, [], [{"key": "h", "value": None}], [{"key": "i", "value": b"x"}] * 2])
                for _ in range(count)
            ],
            HEADERS,
        ),
    }
    if timestamps == "any":
        columns["timestamp"] = pa.array(
            [rng.choice([None, NOW_MS + rng.randint(-5000, 5000)]) for _ in range(count)], pa.int64()
        )
    elif timestamps == "ascending":
        columns["timestamp"] = pa.array([NOW_MS + number * 70 for number in range(count)], pa.int64())
    elif timestamps == "far apart":
        columns["timestamp"] = pa.array([(number % 2) << 60 for number in range(count)], pa.int64())
    return pa.RecordBatch.from_pydict(columns)


def encode(records, group_ends, encoding, offsets=None):
    """Per group, the bytes of its batches."""
    ends = np.array(group_ends, np.int64)
    found = [[] for _ in group_ends]
    encoder = GroupEncoder(encoding, NOW_MS)
    for each in encoder.encode(lambda start, stop: records.slice(start, stop - start), ends, offsets):
        for number, group in enumerate(each.groups.tolist()):
            found[group].append(b"".join(each.batches.select(number, number + 1).pieces))
    return found


def encode_alone(records, start, end, encoding):
    """Return the bytes of the batches of some rows, as the encoder for one log makes them."""
    chunks = encode_records(records.slice(start, end - start), encoding, default_timestamp_ms=NOW_MS)
    return [
        b"".join(bytes(piece) for piece in batches.select(number, number + 1).pieces)
        for batches in chunks
        for number in range(batches.count)
    ]


def without_assigned(batches):
    return [batch[8:12] + batch[ASSIGNED_BYTES:] for batch in batches]


@pytest.mark.parametrize("timestamps", ["none", "any", "ascending", "far apart"])
@pytest.mark.parametrize("batch_size_bytes", [0, 200, 1000, 16384])
def test_each_group_is_encoded_as_if_it_were_alone(timestamps, batch_size_bytes):
    encoding = BatchEncoding(batch_size_bytes=batch_size_bytes)
    records = rows_of(1500, timestamps=timestamps)
    rng = random.Random(batch_size_bytes)
    ends = sorted({*rng.sample(range(1, 1500), 40), 1500})
    found = encode(records, ends, encoding)
    for start, end, batches in zip([0, *ends], ends, found, strict=False):
        assert without_assigned(batches) == without_assigned(encode_alone(records, start, end, encoding))


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_each_codec(codec):
    encoding = BatchEncoding(codec=codec, batch_size_bytes=2000)
    records = rows_of(700)
    found = encode(records, [3, 400, 700], encoding)
    for start, end, batches in zip([0, 3, 400], [3, 400, 700], found, strict=True):
        assert without_assigned(batches) == without_assigned(encode_alone(records, start, end, encoding))


def test_rows_are_looked_at_some_at_a_time_and_encoded_in_chunks(monkeypatch):
    monkeypatch.setattr(encode_groups, "_BLOCK_ROWS", 7)
    monkeypatch.setattr(encode_groups, "_CHUNK_BYTES", 100)
    encoding = BatchEncoding(batch_size_bytes=600)
    records = rows_of(300)
    ends = [1, 2, 40, 41, 170, 300]
    found = encode(records, ends, encoding)
    for start, end, batches in zip([0, *ends], ends, found, strict=False):
        assert without_assigned(batches) == without_assigned(encode_alone(records, start, end, encoding))


def by_hand(rows, offsets):
    """Return one batch of rows (key, value) with these offsets."""
    records = tuple(
        Record(offset - offsets[0], NOW_MS, key, value)
        for (key, value), offset in zip(rows, offsets, strict=True)
    )
    return Batch(records, base_offset=offsets[0], leader_epoch=-1).encode()


def test_rows_keep_their_offsets_and_the_gaps_between_them():
    rows = [(b"k", b"v"), (None, b"w"), (b"l", None), (None, b"x")]
    records = pa.RecordBatch.from_pydict({"key": [row[0] for row in rows], "value": [row[1] for row in rows]})
    offsets = np.array([100, 107, 5, 300_000])
    assert encode(records, [2, 4], BatchEncoding(), offsets) == [
        [by_hand(rows[:2], [100, 107])],
        [by_hand(rows[2:], [5, 300_000])],
    ]


def test_rows_with_offsets_that_are_encoded_one_by_one():
    records = pa.RecordBatch.from_pydict({"value": [b"a", b"b"], "timestamp": [0, 1 << 60]})
    record = [Record(0, 0, None, b"a"), Record(9, 1 << 60, None, b"b")]
    expected = Batch(tuple(record), base_offset=20, leader_epoch=-1).encode()
    assert encode(records, [2], BatchEncoding(), np.array([20, 29])) == [[expected]]


def test_a_gap_that_no_offset_delta_can_hold_ends_a_batch():
    offsets = [0, 1, 2**31 - 1, 2**31 + 5, 2**33, 2**33 + 1]
    records = pa.RecordBatch.from_pydict({"value": [b"v"] * 6})
    batches = encode(records, [6], BatchEncoding(), np.array(offsets))[0]
    # The first three would fit one batch; it is cut at its widest gap.
    assert batches == [
        by_hand([(None, b"v")] * 2, offsets[:2]),
        by_hand([(None, b"v")] * 2, offsets[2:4]),
        by_hand([(None, b"v")] * 2, offsets[4:]),
    ]


@pytest.mark.parametrize("batch_size_bytes", [120, 300, 5000])
def test_batches_with_gaps_keep_to_their_size(batch_size_bytes):
    offsets = np.cumsum(np.random.default_rng(1).integers(1, 1_000_000, 500))
    records = pa.RecordBatch.from_pydict({"value": [b"0123456789"] * 500})
    batches = encode(records, [500], BatchEncoding(batch_size_bytes=batch_size_bytes), offsets)[0]
    assert max(map(len, batches)) <= batch_size_bytes
    assert len(batches) < 500


def test_without_gaps_in_a_group_offsets_change_nothing_but_the_base():
    records = rows_of(500)
    encoding = BatchEncoding(batch_size_bytes=400)
    offsets = np.concatenate([np.arange(7000, 7250), np.arange(5, 255)])
    kept = encode(records, [250, 500], encoding, offsets)
    assigned_later = encode(records, [250, 500], encoding)
    assert list(map(without_assigned, kept)) == list(map(without_assigned, assigned_later))
    assert [int.from_bytes(batches[0][:8], "big") for batches in kept] == [7000, 5]


def test_the_last_group_is_left_open_if_more_of_it_is_to_come():
    records = pa.RecordBatch.from_pydict({"value": [b"v" * 90] * 11})
    rows = measure_rows(records, NOW_MS, 0)
    # Two records of 97 bytes fit.
    assert cut_groups(rows, np.array([1, 4]), 200).tolist() == [1, 3, 4, 6, 8, 10]
    assert cut_groups(rows, np.array([1, 4, 11]), 200).tolist() == [1, 3, 4, 6, 8, 10, 11]


def test_what_cannot_be_encoded_is_refused():
    headers = pa.array([None, [{"key": None, "value": b"x"}]], HEADERS)
    records = pa.RecordBatch.from_arrays([pa.array([b"v", b"w"]), headers], ["value", "headers"])
    with pytest.raises(InvalidRecordError, match="row 1"):
        encode(records, [2], BatchEncoding())
