"""Messages of older formats, among themselves and among batches of v2: read as written, or refused."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import CorruptError
from storage_core.record.arrow_columns import binary_array
from storage_core.record.decode import decode_records
from tests.examples import examples
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

short = examples(40)
long = examples(300)


def encode(log):
    return b"".join(entry.encode() for entry in log)


def rows_written(log):
    return [row for entry in log for row in rows_of_entry(entry)]


@pytest.mark.cases(3, 6)
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@given(st.data())
@short
def test_what_was_written_is_read(magic, codec, data):
    log = data.draw(legacy_logs((magic,), (codec,)))
    assert decode_window(encode(log)) == rows_written(log)


@given(legacy_logs(current=True))
@short
def test_formats_may_be_mixed(log):
    assert decode_window(encode(log)) == rows_written(log)


@pytest.mark.soak
@given(legacy_logs(current=True, max_entries=30))
@long
def test_formats_may_be_mixed_at_length(log):
    assert decode_window(encode(log)) == rows_written(log)


def check_rows_of_a_section(log):
    section = section_of(encode(log))
    columns = decode_records(section, EVERYTHING)
    assert rows_of(section, columns) == rows_written(log)
    for column, field in ((columns.keys, 2), (columns.values, 3)):
        array = binary_array(section.buffer, column)
        array.validate(full=True)
        assert array.to_pylist() == [row[field] for row in rows_written(log)]


@given(legacy_logs(codecs=(NONE,), max_entries=30))
@short
def test_many_plain_messages_are_read_at_once(log):
    check_rows_of_a_section(log)


@pytest.mark.soak
@given(legacy_logs(codecs=(NONE,), max_entries=100))
@long
def test_many_plain_messages_are_read_at_once_at_length(log):
    check_rows_of_a_section(log)


def check_flipped_bits(log, seed):
    data = encode(log)
    generator = random.Random(seed)
    for _ in range(8):
        changed = bytearray(data)
        changed[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        check_a_damaged_log(log, bytes(changed))


def check_a_damaged_log(log, data):
    try:
        rows = decode_whole_batches(data)
    except CorruptError:
        return
    written = rows_written(log)
    if window_of(data).end < len(data):
        # A length that leads after the end: taken for a batch that is still being written.
        written = written[: len(rows)]
    # The CRC covers no offset; another one moves a message, or all of a wrapper's.
    assert [row[1:] for row in rows] == [row[1:] for row in written]


seeds = st.integers(0, 2**32)


@given(legacy_logs(max_entries=4, current=True), seeds)
@short
def test_a_flipped_bit_is_refused_or_moves_a_message(log, seed):
    check_flipped_bits(log, seed)


@pytest.mark.soak
@given(legacy_logs(current=True), seeds)
@long
def test_a_flipped_bit_is_refused_or_moves_a_message_at_length(log, seed):
    check_flipped_bits(log, seed)


def check_damaged_sections(log, seed):
    """As if a writer had made it so: no CRC tells."""
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
        check_a_damaged_section(section)
        section.buffer[position] = before


def check_a_damaged_section(section):
    try:
        columns = decode_records(section, EVERYTHING)
    except CorruptError:
        return
    # Whatever they are now, keys and values lie within their message.
    for column in (columns.keys, columns.values):
        binary_array(section.buffer, column).validate(full=True)
        assert np.all(column.starts >= section.starts + 18)
        assert np.all(column.starts + column.lengths <= section.ends)


@given(legacy_logs(codecs=(NONE,)), seeds)
@short
def test_damage_that_no_crc_tells_leads_nowhere_else(log, seed):
    check_damaged_sections(log, seed)


@pytest.mark.soak
@given(legacy_logs(codecs=(NONE,), max_entries=60), seeds)
@long
def test_damage_that_no_crc_tells_leads_nowhere_else_at_length(log, seed):
    check_damaged_sections(log, seed)
