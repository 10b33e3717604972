"""The decoder by column and the plain one are held to the same answers."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from storage_core.errors import CorruptRecordError
from storage_core.record.column_decode import UnevenRecordsError, decode_by_column
from storage_core.record.decode import decode_one_by_one, decode_records
from storage_core.record.section import PADDING_BYTES, WantedFields
from storage_core.record.varint import VARINT_LIMIT_BYTES, VARLONG_LIMIT_BYTES, MalformedVarintError
from tests.record.cases import MALFORMED, UNUSUAL, WELL_FORMED
from tests.record.encoding import Batch, Record, counted_records, sized
from tests.record.sections import EVERYTHING, PATH, rows_of, section_of

DECODERS = {"by column": decode_by_column, "plain": decode_one_by_one, "either": decode_records}
REFUSALS = (UnevenRecordsError, MalformedVarintError, IndexError)
GOOD = Batch(counted_records(4, key=b"k", value=b"neighbour", headers=((b"h", b"1"),)))

decoders = pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS)


def column_arrays(columns):
    """Return every array of decoded columns, None for those that were not asked for."""
    arrays = {
        "row counts": columns.row_counts,
        "offsets": columns.offsets,
        "timestamps": columns.timestamps_ms,
    }
    slices = {"keys": columns.keys, "values": columns.values}
    if columns.headers is not None:
        arrays["header counts"] = columns.headers.first
        slices |= {"header keys": columns.headers.keys, "header values": columns.headers.values}
    for name, column in slices.items():
        arrays[f"{name}: starts"] = None if column is None else column.starts
        arrays[f"{name}: lengths"] = None if column is None else column.lengths
    return arrays


def assert_part_of(columns, expected):
    """Whatever ``columns`` have is as in ``expected``, which have everything."""
    expected = column_arrays(expected)
    for name, array in column_arrays(columns).items():
        if array is not None:
            assert array.dtype == expected[name].dtype == np.int64, name
            np.testing.assert_array_equal(array, expected[name], err_msg=name)


@pytest.mark.cases(12, 60)
@decoders
@pytest.mark.parametrize("case", WELL_FORMED.values(), ids=WELL_FORMED)
def test_decoding_gives_the_rows_that_were_written(decode, case):
    section = section_of(case.data)
    assert rows_of(section, decode(section, EVERYTHING)) == case.rows


@pytest.mark.cases(8, 30)
@pytest.mark.parametrize("case", WELL_FORMED.values(), ids=WELL_FORMED)
def test_both_give_equal_columns_whatever_is_wanted(case):
    section = section_of(case.data)
    expected = decode_one_by_one(section, EVERYTHING)
    for flags in product([False, True], repeat=4):
        wanted = WantedFields(*flags)
        decoders = [decode_by_column] if len(case.rows) > 100 else [decode_by_column, decode_one_by_one]
        for decode in decoders:
            columns = decode(section, wanted)
            assert_part_of(columns, expected)
            found = (columns.timestamps_ms, columns.keys, columns.values, columns.headers)
            assert tuple(field is not None for field in found) == flags


@pytest.mark.parametrize("case", UNUSUAL.values(), ids=UNUSUAL)
def test_what_only_the_plain_decoder_takes_is_handed_to_it(case):
    section = section_of(case.data)
    with pytest.raises(REFUSALS):
        decode_by_column(section, EVERYTHING)
    for decode in (decode_one_by_one, decode_records):
        assert rows_of(section, decode(section, EVERYTHING)) == case.rows


# How many good batches are before and after the bad one. Many of them are decoded in lockstep.
NEIGHBOURS = {
    "alone": (0, 0),
    "first": (0, 2),
    "last": (2, 0),
    "among many": (30, 30),
    "last of many": (60, 0),
}


@pytest.mark.cases(12, 80)
@pytest.mark.parametrize(("before", "after"), NEIGHBOURS.values(), ids=NEIGHBOURS)
@pytest.mark.parametrize("bad", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_batch_is_refused_and_named(bad, before, after):
    base_offset = bad.base_offset or 10_000
    bad = bad.at(base_offset)
    good = [GOOD.at(10 * number) for number in range(before)]
    # Nothing fits after the highest offsets.
    good_after = [GOOD.at(base_offset + 10 * number) for number in range(1, after + 1)]
    good_after = good_after if base_offset == 10_000 else []
    position_bytes = 4096 + sum(len(batch.encode()) for batch in good)
    data = b"".join(batch.encode() for batch in [*good, bad, *good_after])
    section = section_of(data, position_bytes=4096)
    with pytest.raises(REFUSALS):
        decode_by_column(section, EVERYTHING)
    for decode in (decode_one_by_one, decode_records):
        with pytest.raises(CorruptRecordError) as raised:
            decode(section, EVERYTHING)
        error = raised.value
        assert error.path == PATH
        assert (error.position_bytes, error.end_position_bytes) == (
            position_bytes,
            position_bytes + len(bad.encode()),
        )
        assert (error.offset, error.last_offset) == (bad.base_offset, bad.last_offset)
        assert str(error).startswith("Expected ")


@pytest.mark.parametrize("bad", MALFORMED.values(), ids=MALFORMED)
def test_without_headers_a_malformed_batch_gives_the_same_or_is_refused(bad):
    # What is not asked for is not looked at, so the decoder by column may know less than the plain one.
    section = section_of(bad.encode())
    for flags in product([False, True], repeat=3):
        wanted = WantedFields(*flags, headers=False)
        try:
            columns = decode_by_column(section, wanted)
        except REFUSALS:
            continue
        offsets = columns.offsets.tolist()
        assert len(offsets) == bad.count
        assert offsets == sorted(set(offsets))
        assert bad.base_offset <= offsets[0] <= offsets[-1] <= bad.last_offset


def test_offsets_without_gaps_come_from_the_batch_headers_alone():
    batch = replace(Batch(counted_records(3), 40), records_bytes=b"these bytes are no records")
    section = section_of(batch.encode())
    columns = decode_by_column(section, WantedFields(timestamp=False, key=False, value=False))
    assert columns.offsets.tolist() == [40, 41, 42]
    assert columns.row_counts.tolist() == [3]


def test_append_times_without_gaps_come_from_the_batch_headers_alone():
    batch = Batch(
        counted_records(3), 40, attributes=8, max_timestamp_ms=9, records_bytes=b"these bytes are no records"
    )
    columns = decode_by_column(section_of(batch.encode()), WantedFields(key=False, value=False))
    assert columns.offsets.tolist() == [40, 41, 42]
    assert columns.timestamps_ms.tolist() == [9, 9, 9]


def test_the_buffer_is_not_changed():
    section = section_of(GOOD.encode())
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
        decode_by_column(section_of(batch.encode()), WantedFields(key=False, value=False))


@pytest.mark.parametrize(
    "rest", [b"\0\0", b"\2", b"\2\2h", b""], ids=["two counts", "no header", "half a header", "nothing"]
)
def test_headers_that_are_not_wanted_must_still_begin_where_the_value_ends(rest):
    batch = Batch((Record(), Record(1)), records_bytes=sized(b"\0\0\0\1\1" + rest) + Record(1).encode(0))
    with pytest.raises(UnevenRecordsError):
        decode_by_column(section_of(batch.encode()), EVERYTHING)
    if len(rest) < 2:
        with pytest.raises(UnevenRecordsError):
            decode_by_column(section_of(batch.encode()), WantedFields())


def traced_peak_bytes(decode, section, wanted=EVERYTHING):
    tracemalloc.start()
    try:
        columns = decode(section, wanted)
        return tracemalloc.get_traced_memory()[1], columns
    finally:
        tracemalloc.stop()


def test_memory_follows_the_records_and_not_the_shape_of_the_window():
    # As wide as the many batches and as long as the large one, a table of all steps would take 800 MB.
    singles = [Batch(counted_records(1), number) for number in range(2_000)]
    data = b"".join(batch.encode() for batch in [*singles, Batch(counted_records(50_000), 2_000)])
    section = section_of(data)
    peak_bytes, columns = traced_peak_bytes(decode_by_column, section)
    assert len(columns.offsets) == 52_000
    assert peak_bytes < 52_000 * 500


@pytest.mark.parametrize("count", [9_000_000, 1_000_000])
def test_a_count_that_the_bytes_cannot_hold_allocates_nothing(count):
    bad = Batch(counted_records(1), records_bytes=bytes(1_000_000), count=count, last_offset_delta=count)
    section = section_of(bad.encode())

    def refuse(section, wanted):
        with pytest.raises(UnevenRecordsError):
            decode_by_column(section, wanted)

    peak_bytes, _ = traced_peak_bytes(refuse, section)
    assert peak_bytes < 1_000_000


def varint_ends(data, position, count):
    """Return where consecutive variable-length integers end."""
    for _ in range(count):
        while data[position] >= 0x80:
            position += 1
        position += 1
    return position


@pytest.mark.cases(8, 50)
@pytest.mark.parametrize("decode", [decode_by_column, decode_one_by_one, decode_records])
@pytest.mark.parametrize("case", WELL_FORMED.values(), ids=WELL_FORMED)
def test_tails_are_all_behind_the_timestamp_deltas(decode, case):
    section = section_of(case.data)
    columns = decode(section, WantedFields(tails=True))
    data = section.buffer.tobytes()
    rows = iter(zip(columns.tails.starts.tolist(), columns.tails.lengths.tolist(), strict=True))
    for start, end, count in zip(section.starts, section.ends, columns.row_counts, strict=True):
        position = int(start)
        for _ in range(count):
            # Length, a byte of attributes, and the delta.
            tail = varint_ends(data, varint_ends(data, position, 1) + 1, 1)
            found, length = next(rows)
            assert found == tail
            position = tail + length
        assert position == end
    assert decode(section, WantedFields()).tails is None


def test_the_padding_holds_a_timestamp_and_an_offset_of_any_length():
    # A record that ends before its fields is read on for so long before anything is compared.
    assert PADDING_BYTES >= 1 + VARLONG_LIMIT_BYTES + VARINT_LIMIT_BYTES
