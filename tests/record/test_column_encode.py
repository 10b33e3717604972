from __future__ import annotations

import numpy as np
import pytest

from storage_core.record.arrow_columns import chunks_of
from storage_core.record.column_encode import ViewJoiner, encode_by_column, is_for_columns
from storage_core.record.record_input import RecordRows, header_rows_of, measure_rows
from tests.record.encoding import Record
from tests.record.strategies import NOW_MS
from tests.record.written import rows_read, table_of

# Length, attributes, timestamp delta, offset delta, key length, key, value length, value, header count.
ROWS = [(100, b"k", b"v", []), (107, None, b"w", []), (96, None, None, [("h", None)])]
FIRST, SECOND, THIRD = (
    bytes.fromhex(text)
    for text in ("10 00 00 00 02 6b 02 76 00", "0e 00 0e 02 01 02 77 00", "12 00 07 04 01 01 02 02 68 01")
)


def encode(rows, ends):
    records = table_of(rows)
    headers = header_rows_of(chunks_of(records, "headers"), 0)
    return encode_by_column(records, measure_rows(records, 0, 0), headers, np.array(ends), ViewJoiner())


def test_deltas_begin_anew_with_each_batch():
    bodies = [bytes(body) for body in encode(ROWS, [1, 2, 3])]
    assert bodies[0] == FIRST
    assert bodies[1] == bytes.fromhex("0e 00 00 00 01 02 77 00")
    assert bodies[2] == bytes.fromhex("12 00 00 00 01 01 02 02 68 01")


@pytest.mark.parametrize("step_ms", [0, 1, 100, 1 << 20, 1 << 34, 1 << 47, -(1 << 47)])
@pytest.mark.parametrize("size_bytes", [0, 3, 11, 12, 13, 60, 9000])
def test_lengths_of_every_size(step_ms, size_bytes):
    rows = [
        (
            NOW_MS + number * step_ms,
            b"k" * (number % 15),
            b"v" * size_bytes,
            [("h" * (number % 4), b"x")] * (number % 3),
        )
        for number in range(200)
    ]
    by_hand = b"".join(Record(row[0], *row[1:]).encode(rows[0][0]) for row in rows_read(rows))
    (body,) = encode(rows, [200])
    assert bytes(body) == by_hand


@pytest.mark.parametrize(
    ("times", "tails", "expected"),
    [
        ([0, 1, 2], [10, 10, 10], True),
        ([0, (1 << 55) - 1], [10], True),
        ([0, 1 << 55], [10], False),
        ([-(2**63), 2**63 - 1], [10], False),
        ([0, 1], [10, 1 << 30], False),
        ([0], [1 << 30], False),
    ],
)
def test_which_rows_are_taken(times, tails, expected):
    count, lengths = max(len(times), len(tails)), np.zeros(1, np.int64)
    rows = RecordRows(count, np.array(times), lengths, lengths, np.array(tails))
    assert is_for_columns(rows) is expected
