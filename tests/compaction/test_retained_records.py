from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.compaction.rewriting import RetainedRecordEncoder, RetainedRecords
from storage_core.record.arrow_columns import Slices
from storage_core.record.decode import decode_records
from storage_core.record.section import WantedFields
from tests.record.encoding import Record, sized, varint
from tests.record.legacy_encoding import Message
from tests.record.sections import section_of

TIMESTAMPS_MS = st.one_of(
    st.integers(-3, 200), st.sampled_from([1_700_000_000_000, -1, 2**54, 2**55, -(2**62), 2**63 - 1])
)
RECORDS = st.builds(
    Record,
    st.integers(0, 2**31 - 1),
    TIMESTAMPS_MS,
    st.none() | st.binary(max_size=20),
    st.none() | st.binary(max_size=200),
    st.lists(st.tuples(st.binary(max_size=3), st.none() | st.binary(max_size=3)), max_size=2).map(tuple),
)


def tail_of(record):
    """Everything after the timestamp delta."""
    tail = varint(record.offset_delta) + sized(record.key) + sized(record.value) + varint(len(record.headers))
    return tail + b"".join(sized(key) + sized(value) for key, value in record.headers)


@given(st.lists(st.tuples(st.lists(RECORDS, min_size=1, max_size=4), TIMESTAMPS_MS), min_size=1, max_size=5))
def test_records_are_written_around_their_tails(batches):
    records = [record for batch, _ in batches for record in batch]
    tails = [tail_of(record) for record in records]
    lengths = np.array([len(tail) for tail in tails], np.int64)
    survivors = RetainedRecords(
        np.array([len(batch) for batch, _ in batches]),
        np.arange(len(records)),
        np.array([record.timestamp_ms for record in records], np.int64),
        Slices(np.cumsum(lengths) - lengths + 3, lengths),
        np.frombuffer(b"..." + b"".join(tails), np.uint8),
    )
    base_timestamps_ms = np.array([base for _, base in batches], np.int64)
    found = RetainedRecordEncoder().encode(survivors, base_timestamps_ms)
    expected = []
    for batch, base_ms in batches:
        body = b""
        for record in batch:
            delta = (record.timestamp_ms - base_ms + 2**63) % 2**64 - 2**63
            body += sized(b"\0" + varint(delta) + tail_of(record))
        expected.append(body)
    assert list(map(bytes, found)) == expected


def test_of_no_records_there_is_nothing_to_write():
    nothing = np.zeros(0, np.int64)
    survivors = RetainedRecords(nothing, nothing, nothing, Slices(nothing, nothing), np.zeros(0, np.uint8))
    assert RetainedRecordEncoder().encode(survivors, nothing) == []


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_get_the_tails_of_records(magic):
    contents = [(b"key", b"value"), (None, b""), (b"", None), (b"k" * 200, b"v" * 70_000), (b"x", b"y")]
    messages = [Message(10 + number, 5, *pair, magic=magic) for number, pair in enumerate(contents)]
    section = section_of(b"".join(message.encode() for message in messages))
    columns = decode_records(section, WantedFields(tails=True))
    rows = np.array([0, 1, 2, 3])
    buffer, tails = RetainedRecordEncoder().message_tails(
        section.buffer, columns, rows, np.array([0, 1, 64, 2**31 - 1])
    )
    found = [
        buffer[start : start + length].tobytes()
        for start, length in zip(tails.starts.tolist(), tails.lengths.tolist(), strict=True)
    ]
    assert found == [
        tail_of(Record(delta, 0, *pair)) for delta, pair in zip([0, 1, 64, 2**31 - 1], contents, strict=False)
    ]
