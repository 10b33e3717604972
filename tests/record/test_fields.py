"""What only the decoder by column does; its answers are held to the plain decoder's in test_both_decoders."""

from __future__ import annotations

import numpy as np
import pytest

from storage_core.record.column_decode import UnevenRecordsError, _append_times, decode_by_column
from storage_core.record.section import WantedFields
from tests.record.encoding import LOG_APPEND_TIME, Batch, Record, counted_records, sized
from tests.record.sections import EVERYTHING, section_of

CREATE = Batch(counted_records(2, start=5))
APPEND = Batch(counted_records(3), 2, attributes=LOG_APPEND_TIME, max_timestamp_ms=99)
OFFSETS = WantedFields(timestamp=False, key=False, value=False, headers=False)


def section_of_batches(*batches):
    return section_of(b"".join(batch.encode() for batch in batches))


def test_timestamps_of_the_batch_hold_where_every_batch_has_append_time():
    counts = np.array([3, 3], np.int64)
    timestamps_ms = _append_times(section_of_batches(APPEND, APPEND.at(5)), counts)
    assert timestamps_ms.tolist() == [99] * 6
    assert _append_times(section_of_batches(CREATE, APPEND), np.array([2, 3], np.int64)) is None
    assert _append_times(section_of_batches(CREATE), np.array([2], np.int64)) is None


def test_rows_are_counted_by_batch():
    columns = decode_by_column(section_of_batches(CREATE, APPEND, CREATE.at(5)), EVERYTHING)
    assert columns.row_counts.tolist() == [2, 3, 2]
    assert columns.timestamps_ms.tolist() == [5, 6, 99, 99, 99, 5, 6]


@pytest.mark.parametrize("wanted", [EVERYTHING, OFFSETS])
def test_offsets_with_gaps_come_from_the_records(wanted):
    gaps = Batch((Record(3), Record(70), Record(71)), 100, last_offset_delta=90)
    columns = decode_by_column(section_of_batches(CREATE, gaps), wanted)
    assert columns.offsets.tolist() == [0, 1, 103, 170, 171]


def test_fields_that_are_not_wanted_are_none():
    columns = decode_by_column(section_of_batches(CREATE), OFFSETS)
    assert (columns.timestamps_ms, columns.keys, columns.values, columns.headers) == (None,) * 4


def test_slices_point_into_the_buffer():
    section = section_of_batches(Batch((Record(key=b"key", value=b"value"), Record(1, value=None))))
    columns = decode_by_column(section, EVERYTHING)
    start = columns.keys.starts[0]
    assert section.buffer[start : start + 3].tobytes() == b"key"
    start = columns.values.starts[0]
    assert section.buffer[start : start + 5].tobytes() == b"value"
    assert columns.keys.lengths.tolist() == [3, -1]
    assert columns.values.lengths.tolist() == [5, -1]


def test_headers_are_listed_record_by_record():
    records = (Record(0, headers=((b"a", b"1"), (b"b", None))), Record(1), Record(2, headers=((b"c", b""),)))
    headers = decode_by_column(section_of_batches(Batch(records)), EVERYTHING).headers
    assert headers.first.tolist() == [0, 2, 2, 3]
    assert headers.keys.lengths.tolist() == [1, 1, 1]
    assert headers.values.lengths.tolist() == [1, -1, 0]


def test_the_buffer_is_not_changed():
    section = section_of_batches(CREATE, APPEND)
    section.buffer.flags.writeable = False
    decode_by_column(section, EVERYTHING)


@pytest.mark.parametrize("last_offset_delta", [2, 5], ids=["no gaps", "gaps"])
@pytest.mark.parametrize("record", [sized(b"\0"), sized(b"\0\x80")], ids=["nothing", "half a timestamp"])
def test_a_timestamp_lies_within_its_record(record, last_offset_delta):
    long_record = Record(2, key=b"k" * 30).encode(0)
    batch = Batch(
        (Record(),),
        count=3,
        last_offset_delta=last_offset_delta,
        records_bytes=Record().encode(0) + record + long_record,
    )
    with pytest.raises(UnevenRecordsError):
        decode_by_column(section_of_batches(batch), WantedFields(key=False, value=False))


@pytest.mark.parametrize(
    "rest", [b"\0\0", b"\2", b"\2\2h", b""], ids=["two counts", "no header", "half a header", "nothing"]
)
def test_headers_that_are_not_wanted_must_still_begin_where_the_value_ends(rest):
    batch = Batch((Record(), Record(1)), records_bytes=sized(b"\0\0\0\1\1" + rest) + Record(1).encode(0))
    with pytest.raises(UnevenRecordsError):
        decode_by_column(section_of_batches(batch), EVERYTHING)
    if len(rest) < 2:
        with pytest.raises(UnevenRecordsError):
            decode_by_column(section_of_batches(batch), WantedFields())
