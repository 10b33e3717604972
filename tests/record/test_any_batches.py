"""Whatever was written in any format is read; whatever was damaged is refused, or read alike by both decoders."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import CorruptError, CorruptRecordError, UnsupportedFormatError
from storage_core.record.arrow_columns import binary_array
from storage_core.record.column_decode import UnevenRecordsError, decode_by_column
from storage_core.record.decode import decode_one_by_one, decode_records
from storage_core.record.varint import MalformedVarintError
from tests.examples import examples, in_soak
from tests.record.encoding import NONE
from tests.record.legacy_encoding import CODECS
from tests.record.legacy_strategies import legacy_logs, rows_of_entry
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
seeds = st.integers(0, 2**32)
MOST_RECORDS = in_soak(40, usually=12)
PLAIN = logs(codecs=(NONE,), max_batches=in_soak(40, usually=6), max_records=MOST_RECORDS)
PLAIN_MESSAGES = legacy_logs(codecs=(NONE,), max_entries=in_soak(100, usually=30))
ANY_LOGS = {
    "v2": logs(max_batches=in_soak(6, usually=3), max_records=MOST_RECORDS),
    "mixed": legacy_logs(current=True, max_entries=in_soak(30, usually=8)),
}
of_any_format = pytest.mark.parametrize("some_logs", ANY_LOGS.values(), ids=ANY_LOGS)


def encode(log):
    return b"".join(entry.encode() for entry in log)


def rows_written(log):
    return [row for entry in log for row in rows_of_entry(entry)]


@of_any_format
@given(data=st.data())
@short
def test_what_was_written_is_read(some_logs, data):
    log = data.draw(some_logs)
    assert decode_window(encode(log)) == rows_written(log)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@given(data=st.data())
@short
def test_messages_of_an_older_format_are_read(magic, codec, data):
    log = data.draw(legacy_logs((magic,), (codec,)))
    assert decode_window(encode(log)) == rows_written(log)


def check_columns(section, columns, log):
    assert rows_of(section, columns) == rows_written(log)
    for column, field in ((columns.keys, 2), (columns.values, 3)):
        array = binary_array(section.buffer, column)
        array.validate(full=True)
        assert array.to_pylist() == [row[field] for row in rows_written(log)]


@given(PLAIN)
@short
def test_many_batches_are_read_at_once(log):
    section = section_of(encode(log))
    columns = decode_by_column(section, EVERYTHING)
    check_columns(section, columns, log)
    assert rows_of(section, decode_one_by_one(section, EVERYTHING)) == rows_written(log)
    assert columns.row_counts.tolist() == [len(batch.records) for batch in log]


@given(PLAIN_MESSAGES)
@short
def test_many_plain_messages_are_read_at_once(log):
    section = section_of(encode(log))
    check_columns(section, decode_records(section, EVERYTHING), log)


def outcome(decode, section):
    """Rows, or None if they were refused."""
    try:
        columns = decode(section, EVERYTHING)
    except CorruptRecordError as error:
        check_location(error, section)
        return None
    return rows_of(section, columns)


def check_location(error, section):
    assert error.path == section.path
    assert error.position_bytes in section.positions
    assert error.end_position_bytes > error.position_bytes
    assert error.offset in section.headers["base_offset"]


HEADER_FIELDS = ["base_offset", "last_offset_delta", "record_count", "base_timestamp_ms", "attributes"]


def damaged(section, generator):
    """Return a copy of the section with some bytes of its records, or bits of its headers, changed."""
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


@given(PLAIN, seeds)
@short
def test_damage_that_no_crc_shows_is_refused_or_read_alike(log, seed):
    whole = section_of(encode(log))
    generator = random.Random(seed)
    for _ in range(5):
        section = damaged(whole, generator)
        expected = outcome(decode_one_by_one, section)
        assert outcome(decode_records, section) == expected
        try:
            columns = decode_by_column(section, EVERYTHING)
        except (UnevenRecordsError, MalformedVarintError, IndexError):
            continue
        assert rows_of(section, columns) == expected


@given(legacy_logs(codecs=(NONE,), max_entries=in_soak(60, usually=8)), seeds)
@short
def test_damage_of_a_message_that_no_crc_shows_stays_within_it(log, seed):
    section = section_of(encode(log))
    generator = random.Random(seed)
    for _ in range(20):
        message = generator.randrange(len(section.starts))
        # Key and value, and their lengths.
        position = generator.randrange(int(section.starts[message]) + 18, int(section.ends[message]))
        before = int(section.buffer[position])
        section.buffer[position] = generator.choice(
            [before ^ 1 << generator.randrange(8), 0, 0x7F, 0x80, 0xFF]
        )
        check_slices_of_messages(section)
        section.buffer[position] = before


def check_slices_of_messages(section):
    try:
        columns = decode_records(section, EVERYTHING)
    except CorruptError:
        return
    # Whatever they are now, keys and values lie within their message.
    for column in (columns.keys, columns.values):
        binary_array(section.buffer, column).validate(full=True)
        assert np.all(column.starts >= section.starts + 18)
        assert np.all(column.starts + column.lengths <= section.ends)


@of_any_format
@given(data=st.data(), seed=seeds)
@short
def test_a_flipped_bit_is_refused_or_moves_a_batch(some_logs, data, seed):
    log = data.draw(some_logs)
    encoded = encode(log)
    generator = random.Random(seed)
    for _ in range(8):
        changed = bytearray(encoded)
        changed[generator.randrange(len(encoded))] ^= 1 << generator.randrange(8)
        check_a_damaged_log(log, bytes(changed))


def check_a_damaged_log(log, data):
    try:
        rows = decode_whole_batches(data)
    except (CorruptError, UnsupportedFormatError):
        return
    written = rows_written(log)
    if window_of(data).end < len(data):
        # A length that leads after the end: taken for a batch that is still being written.
        written = written[: len(rows)]
    # No CRC covers offset and leader epoch; another offset moves a batch, or all of a wrapper's messages.
    assert [row[1:] for row in rows] == [row[1:] for row in written]
