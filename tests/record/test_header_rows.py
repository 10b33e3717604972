from __future__ import annotations

import numpy as np
import pytest

from storage_core.record.batch_header import header_rows, wrapper_rows
from tests.record.encoding import GZIP, LZ4, Batch, counted_records
from tests.record.legacy_encoding import Message, Wrapper, plain_messages
from tests.record.sections import padded

MAX_INT = 2**31 - 1


def rows_of_entries(entries, lowest_offset=0):
    """Return the headers of entries, back to back in a buffer without anything after it."""
    encoded = [entry.encode() for entry in entries]
    starts = np.cumsum([0, *map(len, encoded)])[:-1]
    buffer = np.frombuffer(b"".join(encoded), np.uint8)
    return header_rows(buffer, starts.astype(np.int64), lowest_offset)


def wrapper_at(offset, *, magic=1):
    return Wrapper((Message(offset, 7, magic=magic),), GZIP, magic)


def offsets_of(rows):
    """First and last offset of each row."""
    base_offsets = rows["base_offset"].astype(np.int64)
    return list(zip(base_offsets.tolist(), (base_offsets + rows["last_offset_delta"]).tolist(), strict=True))


def test_no_batches():
    assert len(header_rows(padded(b""), np.zeros(0, np.int64), 0)) == 0


# -- Wrappers, which do not say where they begin --------


@pytest.mark.parametrize("magic", [0, 1])
def test_a_wrapper_begins_behind_the_batch_before(magic):
    entries = [
        *plain_messages(2, start=10, magic=magic),
        wrapper_at(15, magic=magic),
        wrapper_at(16, magic=magic),
        Batch(counted_records(4), 20),
        wrapper_at(40, magic=magic),
    ]
    rows = rows_of_entries(entries)
    assert offsets_of(rows) == [(10, 10), (11, 11), (12, 15), (16, 16), (20, 23), (24, 40)]
    assert wrapper_rows(rows).tolist() == [False, False, True, True, False, True]


def test_the_first_wrapper_begins_at_the_lowest_offset():
    assert offsets_of(rows_of_entries([wrapper_at(40)], 33)) == [(33, 40)]
    assert offsets_of(rows_of_entries([wrapper_at(40)], 40)) == [(40, 40)]


def test_a_wrapper_out_of_order_keeps_its_offset():
    assert offsets_of(rows_of_entries([wrapper_at(40)], 41)) == [(40, 40)]
    assert offsets_of(rows_of_entries([wrapper_at(40), wrapper_at(40), wrapper_at(39)])) == [
        (0, 40),
        (40, 40),
        (39, 39),
    ]


def test_a_wrapper_spans_no_more_offsets_than_a_segment():
    last = 2**40
    assert offsets_of(rows_of_entries([wrapper_at(last)])) == [(last - MAX_INT, last)]
    assert offsets_of(rows_of_entries([wrapper_at(last)], last - MAX_INT)) == [(last - MAX_INT, last)]
    assert offsets_of(rows_of_entries([wrapper_at(last)], last - MAX_INT + 1)) == [(last - MAX_INT + 1, last)]


@pytest.mark.parametrize("offset", [-(2**63), -1, 2**63 - 1])
@pytest.mark.parametrize("lowest_offset", [0, 2**63 - 1, 2**63])
def test_offsets_at_the_end_of_their_range(offset, lowest_offset):
    rows = rows_of_entries([Message(offset), wrapper_at(offset), wrapper_at(5)], lowest_offset)
    # Whatever is out of order still looks so.
    (_, last), (base, _), _ = offsets_of(rows)
    assert last == offset
    assert base <= last or base < 0


def test_codecs_of_current_batches_make_no_wrappers():
    rows = rows_of_entries([Batch(counted_records(1), codec=LZ4), Message(1)])
    assert wrapper_rows(rows).tolist() == [False, False]
