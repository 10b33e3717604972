"""Whatever was written is read; whatever was damaged is refused, or read alike by both decoders."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import CorruptError, CorruptRecordError, UnsupportedFormatError
from storage_core.record.arrow_columns import binary_array
from storage_core.record.column_decode import UnevenRecordsError, decode_by_column
from storage_core.record.decode import decode_one_by_one, decode_records
from storage_core.record.varint import MalformedVarintError
from tests.examples import examples
from tests.record.encoding import NONE
from tests.record.sections import (
    EVERYTHING,
    decode_whole_batches,
    decode_window,
    rows_of,
    section_of,
    window_of,
)
from tests.record.strategies import logs

short = examples(40)
long = examples(300)


def rows_written(log):
    return [row for batch in log for row in batch.rows]


def encode(log):
    return b"".join(batch.encode() for batch in log)


def check_rows_of_a_window(log):
    assert decode_window(encode(log)) == rows_written(log)


@given(logs())
@short
def test_what_was_written_is_read(log):
    check_rows_of_a_window(log)


@pytest.mark.soak
@given(logs(max_records=40))
@long
def test_what_was_written_is_read_at_length(log):
    check_rows_of_a_window(log)


def check_rows_of_a_section(log):
    section = section_of(encode(log))
    columns = decode_by_column(section, EVERYTHING)
    assert (
        rows_of(section, columns)
        == rows_of(section, decode_one_by_one(section, EVERYTHING))
        == rows_written(log)
    )
    assert columns.row_counts.tolist() == [len(batch.records) for batch in log]
    for column, field in ((columns.keys, 2), (columns.values, 3)):
        array = binary_array(section.buffer, column)
        array.validate(full=True)
        assert array.to_pylist() == [row[field] for row in rows_written(log)]


@given(logs(codecs=(NONE,)))
@short
def test_many_batches_are_read_at_once(log):
    check_rows_of_a_section(log)


@pytest.mark.soak
@given(logs(codecs=(NONE,), max_batches=40, max_records=40))
@long
def test_many_batches_are_read_at_once_at_length(log):
    check_rows_of_a_section(log)


def outcome(decode, section):
    """Rows, or None if they were refused."""
    try:
        columns = decode(section, EVERYTHING)
    except CorruptRecordError as error:
        assert_named(error, section)
        return None
    return rows_of(section, columns)


def assert_named(error, section):
    assert error.path == section.path
    assert error.position_bytes in section.positions
    assert error.end_position_bytes > error.position_bytes
    assert error.offset in section.headers["base_offset"]


HEADER_FIELDS = ["base_offset", "last_offset_delta", "record_count", "base_timestamp_ms", "attributes"]


def damaged(section, generator):
    """A copy of the section with some bytes of its records, or bits of its headers, changed."""
    section = replace(section, buffer=section.buffer.copy(), headers=section.headers.copy())
    for _ in range(generator.choice([1, 1, 2, 10])):
        batch = generator.randrange(len(section.starts))
        if generator.random() < 0.2:
            column = section.headers[generator.choice(HEADER_FIELDS)]
            column[batch] ^= column.dtype.type(1) << generator.randrange(column.itemsize * 8)
        else:
            position = generator.randrange(int(section.starts[batch]), int(section.ends[batch]))
            flipped = int(section.buffer[position]) ^ 1 << generator.randrange(8)
            section.buffer[position] = generator.choice([flipped, generator.randrange(256), 0, 0x80, 0xFF])
    return section


def check_damaged_sections(log, seed):
    section = section_of(encode(log))
    generator = random.Random(seed)
    for _ in range(5):
        check_a_damaged_section(damaged(section, generator))


def check_a_damaged_section(section):
    expected = outcome(decode_one_by_one, section)
    assert outcome(decode_records, section) == expected
    try:
        columns = decode_by_column(section, EVERYTHING)
    except (UnevenRecordsError, MalformedVarintError, IndexError):
        return
    assert rows_of(section, columns) == expected


seeds = st.integers(0, 2**32)


@given(logs(codecs=(NONE,)), seeds)
@short
def test_damage_that_no_crc_tells_is_refused_or_read_alike(log, seed):
    check_damaged_sections(log, seed)


@pytest.mark.soak
@given(logs(codecs=(NONE,), max_batches=40, max_records=40), seeds)
@long
def test_damage_that_no_crc_tells_is_refused_or_read_alike_at_length(log, seed):
    check_damaged_sections(log, seed)


def check_flipped_bits(log, seed):
    data = encode(log)
    generator = random.Random(seed)
    for _ in range(8):
        check_a_damaged_log(log, flip_a_bit(data, generator))


def flip_a_bit(data, generator):
    changed = bytearray(data)
    changed[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    return bytes(changed)


def check_a_damaged_log(log, data):
    try:
        rows = decode_whole_batches(data)
    except (CorruptError, UnsupportedFormatError):
        return
    written = rows_written(log)
    if window_of(data).end < len(data):
        # A length that leads after the end: taken for a batch that is still being written.
        written = written[: len(rows)]
    # Base offset and leader epoch are outside the CRC; another base offset shifts a batch.
    assert [row[1:] for row in rows] == [row[1:] for row in written]


@given(logs(max_batches=3), seeds)
@short
def test_a_flipped_bit_is_refused_or_moves_a_batch(log, seed):
    check_flipped_bits(log, seed)


@pytest.mark.soak
@given(logs(), seeds)
@long
def test_a_flipped_bit_is_refused_or_moves_a_batch_at_length(log, seed):
    check_flipped_bits(log, seed)
