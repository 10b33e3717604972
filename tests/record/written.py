"""Records as Arrow columns, what is written of them, and what they are by hand."""

from __future__ import annotations

from unittest import mock

import pyarrow as pa
from hypothesis import strategies as st

from storage_core.record import encode
from storage_core.record.encode import BatchEncoding, encode_records
from tests.record.encoding import Batch, Record
from tests.record.strategies import NOW_MS, byte_strings, header_keys, timestamps_ms

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

rows = st.tuples(
    timestamps_ms,
    byte_strings,
    byte_strings,
    st.lists(st.tuples(header_keys, st.none() | st.binary(max_size=20)), max_size=3),
)


def table_of(rows):
    """Return a table of (timestamp, key, value, headers) rows."""
    headers = [[{"key": key, "value": value} for key, value in pairs] or None for _, _, _, pairs in rows]
    return pa.table(
        {
            "key": pa.array([key for _, key, _, _ in rows], pa.binary()),
            "value": pa.array([value for _, _, value, _ in rows], pa.binary()),
            "timestamp": pa.array([timestamp_ms for timestamp_ms, _, _, _ in rows], pa.int64()),
            "headers": pa.array(headers, HEADERS),
        }
    )


def rows_read(rows, first_offset=0):
    """Return what is read of rows that were written, as the decoders' tests have it."""
    return [
        (offset, timestamp_ms, key, value, tuple((name.encode(), text) for name, text in pairs))
        for offset, (timestamp_ms, key, value, pairs) in enumerate(rows, first_offset)
    ]


def bytes_of(batches):
    """Return all bytes of some ``RecordBatches``."""
    return b"".join(bytes(piece) for one in batches for piece in one.pieces)


def write(records, *, timestamp_ms=NOW_MS, producer=None, is_transactional=False, by_column=None, **encoding):
    """Return the bytes that records are encoded as; ``by_column`` chooses the encoder."""
    few_rows = {None: encode._FEW_ROWS, True: -1, False: 1 << 40}[by_column]
    with mock.patch.object(encode, "_FEW_ROWS", few_rows):
        batches = encode_records(
            records,
            BatchEncoding(**encoding),
            default_timestamp_ms=timestamp_ms,
            producer=producer,
            is_transactional=is_transactional,
        )
        return bytes_of(batches)


def write_both_ways(records, **options):
    """Return the bytes that records are encoded as, one by one and by column: the same."""
    plainly = write(records, by_column=False, **options)
    by_column = write(records, by_column=True, **options)
    assert plainly == by_column
    return by_column


def batches_by_hand(rows, batch_size_bytes, codec=0):
    """Return the batches that rows make: each takes as many as fit its size, but at least one."""
    batches, records, size_bytes = [], [], 0
    for row in rows_read(rows):
        record = Record(len(records), *row[1:])
        taken_bytes = len(record.encode(records[0].timestamp_ms)) if records else 0
        if records and size_bytes + taken_bytes > batch_size_bytes:
            batches.append(records)
            records, record = [], Record(0, *row[1:])
        if not records:
            # A header, and the record itself.
            size_bytes, taken_bytes = 61, len(record.encode(record.timestamp_ms))
        records.append(record)
        size_bytes += taken_bytes
    batches.append(records)
    offset, placed = 0, []
    for records in batches:
        placed.append(Batch(tuple(records), offset, codec, leader_epoch=-1))
        offset += len(records)
    return placed
