from __future__ import annotations

import numpy as np
import pytest

from storage_core.compaction.rewriting import SectionRewriter, emptied_headers
from storage_core.record.decode import decode_records
from storage_core.record.section import WantedFields
from tests.record.encoding import (
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    LZ4,
    TRANSACTIONAL,
    Batch,
    Record,
)
from tests.record.legacy_encoding import Message
from tests.record.sections import section_of, window_of

# As Kafka writes it: the tombstone at offset 1 and the value at offset 2 are left of three records.
WITH_HORIZON = bytes.fromhex(
    "000000000000000000000044000003e602a89deb660040000000020000000000000400000000000000000f"
    "ffffffffffffffffffffffffffff000000021000eb0f02023101001200e10f040232023200"
)
# As Kafka writes it: producer 23423 with epoch 145 and base sequence 983, offsets 15 to 37.
EMPTY = bytes.fromhex(
    "000000000000000f000000310000000f025d4e3d62000000000016ffffffffffffffff0000018bcfe56800"
    "0000000000005b7f0091000003d700000000"
)


def rewrite(batches, survives, *, is_idle_marker=None, new_horizon_ms=1024):
    """Return what becomes of batches: None if one stays, otherwise its bytes, and whether it is without records."""
    section = section_of(b"".join(batch.encode() for batch in batches))
    columns = decode_records(section, WantedFields(tails=True))
    if is_idle_marker is None:
        is_idle_marker = [False] * len(batches)
    found = SectionRewriter(new_horizon_ms).rewrite(
        section, columns, np.array(survives, np.bool_), np.array(is_idle_marker, np.bool_)
    )
    results = dict.fromkeys(np.flatnonzero(found.is_unchanged).tolist(), (None, False))
    for number, header, body in zip(found.rewritten.tolist(), found.headers, found.bodies, strict=True):
        results[number] = (header.tobytes() + bytes(body), False)
    for number, header in zip(found.emptied.tolist(), found.emptied_headers, strict=True):
        results[number] = (header.tobytes(), True)
    return [results[number] for number in range(len(batches))]


def test_a_delete_horizon_is_written_as_kafka_does():
    batch = Batch(
        (Record(0, 5, b"2", b"1"), Record(1, 10, b"1", None), Record(2, 15, b"2", b"2")), leader_epoch=998
    )
    assert rewrite([batch], [False, True, True]) == [(WITH_HORIZON, False)]


def test_an_empty_batch_is_written_as_kafka_does():
    batch = Batch(
        (Record(0, 1_700_000_000_000), Record(22, 1_600_000_000_000)), 15, LZ4, 15,
        producer_id=23423, producer_epoch=145, base_sequence=983,
    )  # fmt: skip
    # Only for the header of a compressed batch: its records are not looked at.
    header = emptied_headers(window_of(batch.encode()).headers)
    assert header.tobytes() == EMPTY
    assert rewrite([Batch(**{**_fields(batch), "codec": 0})], [False, False]) == [(EMPTY, True)]


def _fields(batch):
    return {
        name: getattr(batch, name)
        for name in batch.__dataclass_fields__
        if name not in ("rows", "count", "base_timestamp_ms", "max_timestamp_ms", "last_offset_delta")
    }


def test_what_survives_keeps_all_but_timestamps_of_its_header():
    header = {
        "base_offset": 1000, "leader_epoch": 3, "attributes": TRANSACTIONAL,
        "producer_id": 9, "producer_epoch": 4, "base_sequence": 2**31 - 1,
    }  # fmt: skip
    records = (
        Record(3, 50, b"a", b"1", ((b"h", b"x"), (b"", None))),
        Record(4, 70, b"b", b"2" * 300, ((b"h", b""),)),
        Record(700, 60, b"", b""),
        Record(701, 999, b"c"),
    )
    batch = Batch(records, last_offset_delta=900, **header)
    expected = Batch(records[1:3], last_offset_delta=900, base_timestamp_ms=70, max_timestamp_ms=70, **header)
    assert rewrite([batch], [False, True, True, False]) == [(expected.encode(), False)]


def test_lengths_and_deltas_are_written_as_short_as_they_can_be():
    batch = Batch((Record(0, 50, b"a"), Record(1, 51, b"b"), Record(2, 53, b"c")), varint_width=4)
    ((found, _),) = rewrite([batch], [False, True, True])
    # Length, attributes and timestamp delta take a byte each; what follows is copied.
    first, second = Record(1, 0, b"b").encode(0, 4)[9:], Record(2, 0, b"c").encode(0, 4)[9:]
    assert found[61:] == b"".join(
        bytes([2 * (len(tail) + 2)]) + b"\0" + bytes([delta]) + tail
        for tail, delta in ((first, 0), (second, 4))
    )


def test_log_append_time_holds_for_every_survivor():
    batch = Batch((Record(0, 5, b"a"), Record(1, 9, b"b")), attributes=LOG_APPEND_TIME, max_timestamp_ms=77)
    expected = Batch(
        (Record(1, 77, b"b"),), attributes=LOG_APPEND_TIME, max_timestamp_ms=77, last_offset_delta=1
    )
    assert rewrite([batch], [False, True]) == [(expected.encode(), False)]


def test_a_horizon_that_is_set_does_not_move():
    records = (Record(0, 5, b"a", None), Record(1, 9, b"b"))
    batch = Batch(records, attributes=DELETE_HORIZON, base_timestamp_ms=500)
    expected = Batch(
        records[1:], attributes=DELETE_HORIZON, base_timestamp_ms=500, max_timestamp_ms=9, last_offset_delta=1
    )
    assert rewrite([batch], [False, True]) == [(expected.encode(), False)]
    assert rewrite([batch], [True, True]) == [(None, False)]


def test_a_surviving_tombstone_alone_is_reason_to_write_a_batch_anew():
    records = (Record(0, 5, b"a", None), Record(1, 9, b"b"))
    expected = Batch(records, attributes=DELETE_HORIZON, base_timestamp_ms=1024, max_timestamp_ms=9)
    assert rewrite([Batch(records)], [True, True]) == [(expected.encode(), False)]


@pytest.mark.parametrize("new_horizon_ms", [2**63, 2**63 + 10**12, -5])
def test_a_horizon_beyond_64_bits_is_none(new_horizon_ms):
    records = (Record(0, 5, b"a", None), Record(1, 9, b"b"))
    # The batch is written anew each time, and stays what it is.
    assert rewrite([Batch(records)], [True, True], new_horizon_ms=new_horizon_ms) == [
        (Batch(records).encode(), False)
    ]


def test_a_negative_horizon_is_lost():
    batch = Batch((Record(0, 5, b"a"), Record(1, 9, b"b")), attributes=DELETE_HORIZON, base_timestamp_ms=-3)
    expected = Batch((Record(1, 9, b"b"),), last_offset_delta=1)
    assert rewrite([batch], [False, True]) == [(expected.encode(), False)]


@pytest.mark.parametrize(
    "timestamps_ms",
    [
        (0, 2**62),
        (2**62, -(2**62)),
        (-1, 2**63 - 1),
        (-(2**63), 2**63 - 1),
        (2**63 - 1, -(2**63)),
        (0, 2**55),
    ],
)
def test_timestamps_may_be_far_apart(timestamps_ms):
    first, second = timestamps_ms
    batch = Batch((Record(0, first, b"x"), Record(1, first, b"a"), Record(2, first, b"b")))
    records = batch.encode_records()
    # The last record gets its own delta, which wraps at 64 bits.
    delta = (second - first + 2**63) % 2**64 - 2**63
    records = records[: -len(Record(2, first, b"b").encode(first))] + Record(2, delta, b"b").encode(0)
    source = Batch(
        batch.records, records_bytes=records, base_timestamp_ms=first, max_timestamp_ms=max(timestamps_ms)
    )
    ((found, _),) = rewrite([source], [False, True, True])
    (window,) = [window_of(found)]
    assert window.header(0).base_timestamp_ms == first
    assert window.header(0).max_timestamp_ms == max(first, second, -1)
    assert found[61:] == Record(1, 0, b"a").encode(0) + Record(2, delta, b"b").encode(0)


def test_timestamps_below_none_do_not_become_the_largest():
    batch = Batch((Record(0, 3, b"a"), Record(1, -5, b"b")))
    expected = Batch((Record(1, -5, b"b"),), last_offset_delta=1, max_timestamp_ms=-1)
    assert rewrite([batch], [False, True]) == [(expected.encode(), False)]


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_become_batches(magic):
    messages = [
        Message(7, 5, b"a", b"1", magic),
        Message(9, 6, None, b"", magic),
        Message(12, 8, b"k" * 20, None, magic),
        Message(13, 8, b"gone", b"gone", magic),
        Message(14, 9, b"later", b"1" * 70, magic, LOG_APPEND_TIME if magic else 0),
    ]
    times = [message.timestamp_ms if magic else -1 for message in messages]
    expected = [
        Batch((Record(0, times[0], b"a", b"1"),), 7, leader_epoch=-1),
        Batch((Record(0, times[1], None, b""),), 9, leader_epoch=-1),
        Batch(
            (Record(0, times[2], b"k" * 20, None),), 12, leader_epoch=-1,
            attributes=DELETE_HORIZON, base_timestamp_ms=1024, max_timestamp_ms=times[2],
        ),
        Batch((), 13, leader_epoch=-1, max_timestamp_ms=times[3]),
        Batch((Record(0, times[4], b"later", b"1" * 70),), 14, leader_epoch=-1, attributes=messages[4].attributes),
    ]  # fmt: skip
    assert rewrite(messages, [True, True, True, False, True]) == [
        (batch.encode(), number == 3) for number, batch in enumerate(expected)
    ]
