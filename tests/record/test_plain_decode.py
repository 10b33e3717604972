"""What the plain decoder says of records that are wrong; all it has in common with the other is in test_both_decoders."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage_core.errors import CorruptRecordError
from storage_core.record.decode import decode_one_by_one
from tests.record.cases import MALFORMED, WELL_FORMED
from tests.record.encoding import Batch, counted_records
from tests.record.sections import EVERYTHING, rows_of, section_of

MESSAGES = {
    "a count that is too high": "record 3 to be well formed, but a variable-length integer is cut off",
    "a count that is too low": "the batch to end with its 2 records, found 15 more bytes",
    "a count of zero": "a record count of at least 1, found 0",
    "a negative count": "a record count of at least 1, found -1",
    "more records than offsets": "the offset of record 2 to lie above 10001 and at or below 10001, found 10002",
    "junk after the last record": "the batch to end with its 3 records, found 1 more bytes",
    "a record cut off": "record 2 to lie within the batch, found a length of 14 with 13 bytes left",
    "a record length of zero": "record 0 to lie within the batch, found a length of 0 with 45 bytes left",
    "a negative record length": "record 0 to lie within the batch, found a length of -1 with 44 bytes left",
    "a record longer than the batch": "record 0 to lie within the batch, found a length of 500",
    "a record length beyond 5 bytes": "a variable-length integer is longer than 5 bytes",
    "a record one byte longer than its fields": "record 0 to take 7 bytes, but its fields leave 1",
    "a timestamp beyond 10 bytes": "a variable-length integer is longer than 10 bytes",
    "a key longer than the record": "the key of record 0 to lie within it, found a length of 9",
    "a value longer than the record": "the value of record 0 to lie within it, found a length of 9",
    "a negative header count": "the header count of record 0 to fit the 0 bytes left, found -1",
    "a billion headers": "the header count of record 0 to fit the 3 bytes left, found 1000000000",
    "a header without a key": "each header of record 0 to have a key, found a length of -1",
    "a header key longer than the record": "the header key of record 0 to lie within it, found a length of 99",
    "a header value longer than the record": "the header value of record 0 to lie within it, found a length of 99",
    "an offset below the base": "the offset of record 0 to lie above 9999 and at or below 10005, found 9999",
    "the same offset twice": "the offset of record 1 to lie above 10003 and at or below 10005, found 10003",
    "an offset beyond the last": "the offset of record 1 to lie above 10000 and at or below 10005, found 10006",
    "an offset beyond 63 bits": "offsets of 63 bits, found 9223372036854775808",
}


@pytest.mark.parametrize(("name", "message"), MESSAGES.items(), ids=MESSAGES)
def test_the_message_says_what_was_expected_and_what_was_found(name, message):
    bad = MALFORMED[name]
    section = section_of(bad.at(bad.base_offset or 10_000).encode())
    with pytest.raises(CorruptRecordError) as raised:
        decode_one_by_one(section, EVERYTHING)
    text = str(raised.value)
    assert message in text
    assert "The batch's CRC is right: it was written like this." in text
    assert "/logs/orders-0/00000000000000000000.log, bytes 0 to " in text


def test_timestamps_wrap_as_in_java():
    case = WELL_FORMED["timestamps beyond 64 bits wrap"]
    section = section_of(case.data)
    assert rows_of(section, decode_one_by_one(section, EVERYTHING)) == case.rows


def test_the_first_bad_batch_is_named():
    good = Batch(counted_records(2))
    first, second = (replace(good, base_offset=offset, count=1) for offset in (2, 4))
    data = good.encode() + first.encode() + second.encode()
    with pytest.raises(CorruptRecordError) as raised:
        decode_one_by_one(section_of(data), EVERYTHING)
    assert (raised.value.offset, raised.value.position_bytes) == (2, len(good.encode()))
