"""From encoded batches to what the decoders take, and from columns back to rows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from storage_core.errors import CorruptRecordError
from storage_core.record.batch_window import walk_window
from storage_core.record.decode import decode_records
from storage_core.record.section import PADDING_BYTES, RecordSection, WantedFields, batch_section

PATH = "/logs/orders-0/00000000000000000000.log"
EVERYTHING = WantedFields(timestamp=True, key=True, value=True, headers=True)
# Bytes after the data must not matter; as a length, this one leads far away.
JUNK = 0xFF


def padded(data, padding=JUNK):
    """Return the bytes in a buffer with room after them, as the decoders need it."""
    buffer = np.full(len(data) + PADDING_BYTES, padding, np.uint8)
    buffer[: len(data)] = np.frombuffer(data, np.uint8)
    return buffer


def window_of(data, *, position_bytes=0):
    """Return the batches of ``data``; raises what is wrong with it."""
    window = walk_window(PATH, position_bytes, padded(data), len(data))
    if window.error is not None:
        raise window.error
    return window


def section_of(data, *, position_bytes=0):
    """Return one section of all batches in ``data``, which are not compressed, and all of format v2 or all older."""
    window = window_of(data, position_bytes=position_bytes)
    assert window.end == len(data)
    sizes = window.headers["batch_length"].astype(np.int64) + 12
    return RecordSection(
        window.buffer,
        window.starts + 61 * (window.headers["magic"] == 2),
        window.starts + sizes,
        window.headers,
        window.starts + position_bytes,
        PATH,
    )


def rows_of(section, columns):
    """Return the rows of columns that have every field."""
    buffer = section.buffer.tobytes()
    keys, values = (_bytes_of(buffer, column) for column in (columns.keys, columns.values))
    header_keys = _bytes_of(buffer, columns.headers.keys)
    header_values = _bytes_of(buffer, columns.headers.values)
    pairs = list(zip(header_keys, header_values, strict=True))
    first = columns.headers.first.tolist()
    assert first[-1] == len(pairs)
    assert columns.row_counts.sum() == len(columns.offsets) == len(first) - 1
    headers = [tuple(pairs[start:end]) for start, end in pairwise(first)]
    fields = (columns.offsets.tolist(), columns.timestamps_ms.tolist(), keys, values, headers)
    return list(zip(*fields, strict=True))


def _bytes_of(buffer, column):
    pairs = zip(column.starts.tolist(), column.lengths.tolist(), strict=True)
    return [None if length < 0 else buffer[start : start + length] for start, length in pairs]


def check_crcs(window):
    """Raise an error if the CRC of a batch is wrong."""
    wrong = window.crc_mismatches(np.arange(len(window.starts)))
    if len(wrong):
        raise CorruptRecordError("wrong CRC", path=PATH, position_bytes=int(window.starts[wrong[0]]))


def decode_window(data):
    """Return all rows of ``data``, which ends with a batch."""
    assert window_of(data).end == len(data)
    return decode_whole_batches(data)


def decode_whole_batches(data, *, limit_bytes=1 << 26):
    """Return all rows of the whole batches in ``data``, whatever their codecs; CRCs are checked."""
    window = window_of(data)
    check_crcs(window)
    rows = []
    for index, start in enumerate(window.starts.tolist()):
        header = window.header(index)
        if header.record_count:
            batch = data[start : start + header.size_bytes]
            section = batch_section(batch, header, path=PATH, limit_bytes=limit_bytes)
            rows += rows_of(section, decode_records(section, EVERYTHING))
    return rows
