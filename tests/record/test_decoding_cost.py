"""What decoding a batch may allocate: as many records and record headers as its limit allows, by column and one by one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from storage_core.errors import BatchTooLargeError, RecordTooLargeError
from storage_core.record.arrow_columns import HEADERS_TYPE
from storage_core.record.batch_header import parse_batch_header
from storage_core.record.column_decode import decode_by_column
from storage_core.record.decode import decode_one_by_one, decode_records
from storage_core.record.encode import BatchEncoding, encode_records
from storage_core.record.section import WantedFields, batch_section
from tests.record.encoding import GZIP, Batch, Record
from tests.record.legacy_encoding import Message, Wrapper

LIMIT_BYTES = 6400
# Of 32 bytes a record, 128 bytes a header, 64 bytes a message of an old format.
MOST_RECORDS, MOST_HEADERS, MOST_MESSAGES = 200, 50, 100
DECODERS = [decode_records, decode_one_by_one]
WANTED = [WantedFields(headers=True), WantedFields(headers=False)]


def section(data):
    header = parse_batch_header(data, 0, 700, path="/log").with_base_offset(0)
    return batch_section(data, header, path="/log", limit_bytes=LIMIT_BYTES)


def with_headers(*counts, codec=0):
    records = [
        Record(delta, 0, None, b"v", headers=((b"", None),) * count) for delta, count in enumerate(counts)
    ]
    return Batch(tuple(records), 5, codec).encode()


def of_records(count):
    return Batch(tuple(Record(delta, 0, None, None) for delta in range(count)), 5).encode()


@pytest.mark.parametrize("wanted", WANTED, ids=["headers", "no headers"])
@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("counts", [(MOST_HEADERS + 1,), (0, 20, 0, 31), (1,) * (MOST_HEADERS + 1)])
def test_more_headers_than_the_limit_allows(decode, wanted, counts):
    with pytest.raises(
        BatchTooLargeError, match=f"at most {MOST_HEADERS} record headers.*6400 bytes, found 51"
    ) as caught:
        decode(section(with_headers(*counts, codec=GZIP)), wanted)
    error = caught.value
    assert (error.path, error.position_bytes, error.offset) == ("/log", 700, 5)
    assert error.last_offset == 5 + len(counts) - 1


@pytest.mark.parametrize("decode", DECODERS)
def test_as_many_headers_as_the_limit_allows(decode):
    columns = decode(section(with_headers(0, 20, 30)), WANTED[0])
    assert np.diff(columns.headers.first).tolist() == [0, 20, 30]


@pytest.mark.parametrize("wanted", [*WANTED, WantedFields(timestamp=False, key=False, value=False)])
@pytest.mark.parametrize("decode", DECODERS)
def test_more_records_than_the_limit_allows(decode, wanted):
    with pytest.raises(BatchTooLargeError, match=f"at most {MOST_RECORDS} records.*found 201"):
        decode(section(of_records(MOST_RECORDS + 1)), wanted)
    assert len(decode(section(of_records(MOST_RECORDS)), wanted).offsets) == MOST_RECORDS


def test_more_messages_than_the_limit_allows():
    def wrapper(count):
        messages = tuple(Message(offset, 5, None, None) for offset in range(count))
        return section(Wrapper(messages, GZIP).encode())

    with pytest.raises(BatchTooLargeError, match=f"at most {MOST_MESSAGES} messages.*found 101"):
        decode_records(wrapper(MOST_MESSAGES + 1), WANTED[0])
    assert len(decode_records(wrapper(MOST_MESSAGES), WANTED[0]).offsets) == MOST_MESSAGES


def test_a_column_of_headers_is_not_read_for_nothing():
    columns = decode_by_column(section(with_headers(1, 2)), WANTED[1])
    assert columns.headers is None


def encoded(*header_counts):
    headers = [[{"key": "", "value": None}] * count for count in header_counts]
    nulls = pa.nulls(len(headers), pa.binary())
    rows = pa.record_batch({"value": nulls, "headers": pa.array(headers, HEADERS_TYPE)})
    encoding = BatchEncoding(batch_size_bytes=1 << 20, largest_batch_bytes=LIMIT_BYTES)
    return list(encode_records(rows, encoding, default_timestamp_ms=5))


@pytest.mark.parametrize("row_count", [1, MOST_RECORDS])
def test_what_readers_refuse_is_not_written(row_count):
    others = [0] * (row_count - 1)
    assert encoded(*others, MOST_HEADERS)
    with pytest.raises(RecordTooLargeError, match=f"at most {MOST_HEADERS} record headers in a batch"):
        encoded(*others, MOST_HEADERS + 1)


def test_more_records_than_readers_accept_are_not_written():
    with pytest.raises(
        RecordTooLargeError, match=f"at most {MOST_RECORDS} records in a batch.*Lower batch.size"
    ):
        encoded(*[0] * (MOST_RECORDS + 1))
