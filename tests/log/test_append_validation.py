from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from storage_core.errors import (
    InvalidRecordError,
    OffsetOverflowError,
    OffsetsOutOfOrderError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
)
from storage_core.log.log_validator import (
    validate_client_batches,
    validate_follower_append,
    validate_leader_append,
)
from storage_core.log_config import LogConfig
from storage_core.record.record_batches import RecordBatches
from tests.log.producing import data, emptied, marker, transactional
from tests.record import golden
from tests.record.encoding import CONTROL, TRANSACTIONAL, Batch, Record
from tests.record.legacy_encoding import Message, Wrapper

PATH = "/logs/orders-0"
DEFAULTS = LogConfig()
ONE_RECORD = (Record(),)


def batches(*parts):
    return RecordBatches.parse(b"".join(parts))


def sized(*sizes_bytes):
    """Batches of given sizes, one record each."""
    made = b""
    for offset, size_bytes in enumerate(sizes_bytes):
        # From some hundred bytes on, two lengths take two bytes: 70 bytes are no value.
        value = bytes(size_bytes - 70)
        one = Batch((Record(value=value),), base_offset=offset).encode()
        assert len(one) == size_bytes
        made += one
    return RecordBatches.parse(made)


# -- Sizes --------


def test_a_batch_as_large_as_allowed():
    config = LogConfig(max_message_bytes=500)
    validate_leader_append(sized(500), config)
    validate_leader_append(sized(500, 499, 500), config)


@pytest.mark.parametrize("sizes_bytes", [(501,), (300, 501), (501, 300), (300, 501, 300)])
def test_a_batch_that_is_larger_than_max_message_bytes(sizes_bytes):
    config = LogConfig(max_message_bytes=500)
    with pytest.raises(RecordTooLargeError, match=r"at most 500 bytes.*make one of 501") as raised:
        validate_leader_append(sized(*sizes_bytes), config, path=PATH)
    assert raised.value.path == PATH


def test_the_size_of_a_batch_does_not_matter_to_a_follower():
    validate_follower_append(sized(501), LogConfig(max_message_bytes=500), 0)


def test_a_batch_of_a_leader_has_to_fit_a_segment():
    config = LogConfig(internal_segment_bytes=400)
    # Many may be spread over several segments.
    validate_leader_append(sized(400, 400), config)
    with pytest.raises(RecordBatchTooLargeError, match=r"at most 400 bytes.*found 401"):
        validate_leader_append(sized(300, 401), config)


def test_what_a_follower_appends_has_to_fit_a_segment():
    config = LogConfig(internal_segment_bytes=800)
    validate_follower_append(sized(400, 400), config, 0)
    with pytest.raises(RecordBatchTooLargeError, match=r"at most 800 bytes.*found 801") as raised:
        validate_follower_append(sized(400, 401), config, 0, path=PATH)
    assert raised.value.path == PATH


def test_nothing_is_always_right():
    validate_leader_append(batches(), DEFAULTS)
    validate_follower_append(batches(), DEFAULTS, 5)
    validate_client_batches(batches())


# -- Offsets of a follower --------


@pytest.mark.parametrize(
    "parts",
    [
        [data(5)],
        [data(5, 3), data(8)],
        # Gaps, in front of the first one too.
        [data(9), data(20, 2), data(100)],
        [golden.EMPTY.data],
        [transactional(5, producer=1), marker(6, producer=1)],
    ],
)
def test_offsets_that_ascend_from_the_log_end(parts):
    validate_follower_append(batches(*parts), DEFAULTS, 5)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([data(4)], "from offset 5 on.*first one at 4, up to 4"),
        ([data(4, 3)], "from offset 5 on.*first one at 4, up to 6"),
        ([data(0), data(7)], "from offset 5 on.*first one at 0, up to 7"),
    ],
)
def test_offsets_below_the_log_end(parts, message):
    with pytest.raises(OffsetsOutOfOrderError, match=message) as raised:
        validate_follower_append(batches(*parts), DEFAULTS, 5, path=PATH)
    assert raised.value.path == PATH
    assert raised.value.offset is not None


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([data(5), data(5)], "batch 1 to ascend from 6 on, found 5 to 5"),
        ([data(7), data(6)], "batch 1 to ascend from 8 on, found 6 to 6"),
        ([data(5), data(6, 5), data(10, 5)], "batch 2 to ascend from 11 on, found 10 to 14"),
        ([data(5), data(6), data(7), data(5)], "batch 3 to ascend from 8 on, found 5 to 5"),
    ],
)
def test_offsets_that_do_not_ascend(parts, message):
    with pytest.raises(OffsetsOutOfOrderError, match=message):
        validate_follower_append(batches(*parts), DEFAULTS, 5)


@pytest.mark.parametrize("others", [(), (data(2**62),)])
@pytest.mark.parametrize("last_offset_delta", [-1, -(2**31)])
def test_a_last_offset_below_the_first(last_offset_delta, others):
    bad = Batch(ONE_RECORD, base_offset=2**61, last_offset_delta=last_offset_delta).encode()
    with pytest.raises(OffsetsOutOfOrderError, match=f"to {2**61 + last_offset_delta}"):
        validate_follower_append(batches(bad, *others), DEFAULTS, 5)


@pytest.mark.parametrize("others", [(), (data(2**61),)])
@pytest.mark.parametrize(
    ("base_offset", "last_offset_delta"), [(2**63 - 1, 0), (2**63 - 1, 1), (2**63 - 5, 2**31 - 1)]
)
def test_offsets_beyond_the_largest(base_offset, last_offset_delta, others):
    bad = Batch(ONE_RECORD, base_offset=base_offset, last_offset_delta=last_offset_delta).encode()
    with pytest.raises(OffsetOverflowError, match=f"up to 9223372036854775806.*{base_offset} to"):
        validate_follower_append(batches(*others, bad), DEFAULTS, 5)


def test_the_largest_offset():
    last = Batch(ONE_RECORD, base_offset=2**63 - 3, last_offset_delta=1).encode()
    validate_follower_append(batches(last), DEFAULTS, 5)
    validate_follower_append(batches(data(7), last), DEFAULTS, 5)


def test_a_negative_offset():
    with pytest.raises(OffsetsOutOfOrderError, match="first one at -3"):
        validate_follower_append(batches(data(-3)), DEFAULTS, 0)


def test_messages_of_older_formats():
    validate_follower_append(batches(Message(offset=5).encode(), data(6)), DEFAULTS, 5)
    with pytest.raises(OffsetsOutOfOrderError, match="first one at 4"):
        validate_follower_append(batches(Message(offset=4).encode()), DEFAULTS, 5)
    with pytest.raises(OffsetsOutOfOrderError, match="batch 1"):
        validate_follower_append(batches(Message(offset=6).encode(), Message(offset=6).encode()), DEFAULTS, 5)


def test_of_a_wrapper_only_the_last_offset_counts():
    wrapper = Wrapper(tuple(Message(offset=offset) for offset in (3, 4, 5)), offset=5).encode()
    # It does not store its first offset, which may be below the log end.
    validate_follower_append(batches(wrapper), DEFAULTS, 5)
    with pytest.raises(OffsetsOutOfOrderError, match="first one at 5"):
        validate_follower_append(batches(wrapper), DEFAULTS, 6)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_batch_without_a_leader_epoch(number):
    parts = [data(offset, leader_epoch=-1 if offset == number else 3) for offset in range(3)]
    with pytest.raises(InvalidRecordError, match=f"found -1 in batch {number}") as raised:
        validate_follower_append(batches(*parts), DEFAULTS, 0)
    assert raised.value.offset == number


def test_a_single_batch_without_a_leader_epoch():
    with pytest.raises(InvalidRecordError, match="found -1 in batch 0"):
        validate_follower_append(batches(data(5, leader_epoch=-1)), DEFAULTS, 5)


@pytest.mark.parametrize("others", [(), (data(6),)])
def test_a_marker_that_cannot_be_read(others):
    bad = Batch((Record(key=b"\0", value=b""),), base_offset=5, attributes=CONTROL, producer_id=3).encode()
    with pytest.raises(InvalidRecordError, match="found a key of 1 bytes") as raised:
        validate_follower_append(batches(bad, *others), DEFAULTS, 5, path=PATH)
    assert (raised.value.path, raised.value.offset) == (PATH, 5)


@pytest.mark.parametrize("others", [(), (data(6),)])
def test_a_control_batch_of_a_producer_that_is_no_marker(others):
    key = struct.pack(">hh", 0, 2)
    bad = Batch((Record(key=key, value=bytes(6)),), base_offset=5, attributes=CONTROL, producer_id=3)
    with pytest.raises(InvalidRecordError, match="to end a transaction, found that batch 0") as raised:
        validate_follower_append(batches(bad.encode(), *others), DEFAULTS, 5, path=PATH)
    assert raised.value.offset == 5
    # As a quorum writes them, and as compaction leaves a marker.
    validate_follower_append(batches(replace(bad, producer_id=-1).encode(), *others), DEFAULTS, 5)
    validate_follower_append(
        batches(emptied(5, producer=3, attributes=CONTROL | TRANSACTIONAL), *others), DEFAULTS, 5
    )
