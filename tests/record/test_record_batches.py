from __future__ import annotations

import pyarrow as pa
import pytest

from storage_core.errors import CorruptRecordError, OffsetOverflowError
from storage_core.record.encode import BatchEncoding, encode_records
from storage_core.record.record_batches import RecordBatches
from tests.record.encoding import LOG_APPEND_TIME, Batch, counted_records, with_header_field
from tests.record.golden import APPEND_TIME, CREATE_TIME, GOLDEN, MOVED, TWO_RECORDS
from tests.record.golden_legacy import LEGACY
from tests.record.sections import decode_window, window_of
from tests.record.written import bytes_of

THREE = [Batch(counted_records(2, start=5)), Batch(counted_records(3, start=9)), Batch(counted_records(1))]


def parsed(*batches):
    return RecordBatches.parse(b"".join(batch.encode() for batch in batches))


def encoded(counts):
    """Return what the encoder makes: batches of some record counts."""
    records = pa.table({"value": [b"v"] * sum(counts)})
    (batches,) = encode_records(
        records, BatchEncoding(batch_size_bytes=61 + 8 * max(counts)), default_timestamp_ms=0
    )
    assert batches.headers["record_count"].tolist() == counts
    return batches


# -- Parsing --------


@pytest.mark.parametrize("name", GOLDEN)
def test_a_batch_of_kafka_is_parsed_and_given_back(name):
    data = GOLDEN[name].data
    batches = RecordBatches.parse(data)
    assert bytes_of([batches]) == data
    assert batches.count == 1
    assert batches.size_bytes == len(data)
    assert batches.base_offset == int.from_bytes(data[:8], "big")
    assert batches.last_offset == batches.base_offset + int.from_bytes(data[23:27], "big")
    assert batches.next_offset == batches.last_offset + 1


@pytest.mark.parametrize("name", LEGACY)
def test_messages_of_older_formats_are_parsed_and_given_back(name):
    data = LEGACY[name].data
    batches = RecordBatches.parse(data)
    assert bytes_of([batches]) == data
    assert batches.sizes_bytes.sum() == len(data)
    assert batches.headers.tobytes() == window_of(data).headers.tobytes()


def test_formats_may_change_on_the_way():
    data = LEGACY["v1 none"].data + TWO_RECORDS["zstd"].data + LEGACY["v0 gzip"].data
    batches = RecordBatches.parse(data)
    assert bytes_of([batches]) == data
    assert batches.headers["magic"].tolist() == [1, 1, 2, 0]
    assert len(batches.pieces) == 2 * batches.count


def test_batches_with_an_attribute_are_counted():
    plain, stamped = Batch(counted_records(1)), Batch(counted_records(1), attributes=LOG_APPEND_TIME)
    for batches, expected in (
        ((plain,), 0),
        ((stamped,), 1),
        ((plain, stamped, stamped), 2),
        ((plain,) * 3, 0),
    ):
        assert parsed(*batches).count_with(LOG_APPEND_TIME) == expected
    assert RecordBatches.parse(b"").count_with(LOG_APPEND_TIME) == 0


def test_a_wrapper_begins_behind_the_lowest_offset():
    data = LEGACY["v1 gzip"].data
    assert RecordBatches.parse(data, lowest_offset=0).base_offset == 0
    assert RecordBatches.parse(data, lowest_offset=1).base_offset == 1


@pytest.mark.parametrize("missing", [1, 20, 60])
def test_a_last_batch_that_is_cut_off_is_left_out(missing):
    whole = THREE[0].encode()
    assert bytes_of([RecordBatches.parse(whole + THREE[1].encode()[:-missing])]) == whole
    assert RecordBatches.parse(whole[:-missing]).count == 0
    assert RecordBatches.parse(b"").count == 0


def test_a_wrong_crc_is_an_error_with_its_place():
    data = bytearray(b"".join(batch.at(offset).encode() for offset, batch in enumerate(THREE)))
    position = len(THREE[0].encode())
    data[position + 70] ^= 1
    with pytest.raises(CorruptRecordError, match="CRC") as caught:
        RecordBatches.parse(data, path="from a peer")
    assert (caught.value.position_bytes, caught.value.offset) == (position, 1)
    assert "from a peer" in str(caught.value)


@pytest.mark.parametrize(
    "tail",
    [bytes(100), b"\xff" * 100, with_header_field(THREE[0].encode(), 16, "b", 3)],
    ids=["0", "ff", "magic 3"],
)
def test_bytes_that_are_no_batch_are_an_error(tail):
    with pytest.raises(CorruptRecordError):
        RecordBatches.parse(THREE[0].encode() + tail)


def test_what_was_parsed_does_not_change_with_its_source():
    data = bytearray(THREE[0].encode())
    batches = RecordBatches.parse(data)
    data[:] = bytes(len(data))
    assert bytes_of([batches]) == THREE[0].encode()


# -- Offsets and timestamps --------


def test_offsets_are_assigned_one_batch_behind_the_other():
    for batches in (
        encoded([4, 4, 2]),
        parsed(*(Batch(counted_records(n), leader_epoch=3) for n in (4, 4, 2))),
    ):
        moved = batches.with_offsets(1000, 7)
        assert moved.headers["base_offset"].tolist() == [1000, 1004, 1008]
        assert moved.last_offsets.tolist() == [1003, 1007, 1009]
        assert (moved.base_offset, moved.last_offset, moved.next_offset) == (1000, 1009, 1010)
        assert moved.headers["leader_epoch"].tolist() == [7, 7, 7]
        # Headers and bytes tell the same, and the CRCs are still right.
        assert [row[0] for row in decode_window(bytes_of([moved]))] == list(range(1000, 1010))
        assert window_of(bytes_of([moved])).headers.tobytes() == moved.headers.tobytes()


def test_assigning_offsets_leaves_the_batches_as_they_were():
    for batches in (encoded([4, 4, 2]), encoded([3]), parsed(THREE[0])):
        before = bytes_of([batches])
        headers = batches.headers.tobytes()
        moved = batches.with_offsets(1 << 40, 5)
        moved.with_log_append_time(7)
        assert bytes_of([batches]) == before
        assert batches.headers.tobytes() == headers


def test_a_batch_with_gaps_takes_all_its_offsets():
    batches = parsed(Batch(counted_records(2), last_offset_delta=9), Batch(counted_records(1)))
    assert batches.with_offsets(100, 0).headers["base_offset"].tolist() == [100, 110]


def test_edits_in_place_are_those_of_kafka_byte_for_byte():
    batches = RecordBatches.parse(CREATE_TIME.data).with_log_append_time(15)
    assert bytes_of([batches]) == APPEND_TIME.data
    assert bytes_of([batches.with_offsets(499, 5)]) == MOVED.data


def test_the_time_of_the_append_holds_for_every_record():
    batches = encoded([4, 4, 2]).with_log_append_time(12345)
    assert batches.headers["attributes"].tolist() == [LOG_APPEND_TIME] * 3
    assert batches.headers["max_timestamp_ms"].tolist() == [12345] * 3
    rows = decode_window(bytes_of([batches]))
    assert [row[1] for row in rows] == [12345] * 10
    assert window_of(bytes_of([batches])).headers.tobytes() == batches.headers.tobytes()


@pytest.mark.parametrize("name", ["v0 none", "v1 gzip"])
def test_messages_of_older_formats_are_not_edited(name):
    batches = RecordBatches.parse(LEGACY[name].data)
    with pytest.raises(ValueError, match="v2"):
        batches.with_offsets(5, 0)
    with pytest.raises(ValueError, match="v2"):
        batches.with_log_append_time(5)
    with pytest.raises(ValueError, match="v2"):
        batches.select(0, 1).with_offsets(5, 0)


def test_a_run_of_batches_is_selected():
    batches = parsed(*THREE)
    assert bytes_of([batches.select(1, 3)]) == THREE[1].encode() + THREE[2].encode()
    assert batches.select(1, 2).sizes_bytes.tolist() == [len(THREE[1].encode())]
    assert batches.select(1, 2).with_offsets(8, 1).next_offset == 11
    assert batches.select(2, 2).count == 0


@pytest.mark.parametrize("counts", [[3], [4, 4, 2]])
def test_offsets_end_below_the_largest_number(counts):
    batches, count = encoded(counts), sum(counts)
    assert batches.with_offsets(2**63 - 1 - count, 0).next_offset == 2**63 - 1
    with pytest.raises(OffsetOverflowError, match="at most 9223372036854775807"):
        batches.with_offsets(2**63 - count, 0)
