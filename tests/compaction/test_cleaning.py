from __future__ import annotations

import random
import struct
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from storage_core.compaction import CleanedTransactions, CleanRules, LastRecord, clean_into
from storage_core.errors import BatchTooLargeError, CorruptError, CorruptRecordError, OffsetOverflowError
from storage_core.filesystem import FileSystem
from storage_core.log_config import LogConfig
from storage_core.segment import AbortedTransaction
from storage_core.segment.log_segment import LogSegment
from tests.compaction.plain_batches import batches_of
from tests.compaction.segments import clean, map_of, open_segment
from tests.examples import examples
from tests.record import encoding, legacy_encoding
from tests.record.encoding import (
    CODECS,
    CONTROL,
    DELETE_HORIZON,
    GZIP,
    LOG_APPEND_TIME,
    LZ4,
    NONE,
    TRANSACTIONAL,
    ZSTD,
    Batch,
    Record,
)
from tests.record.legacy_encoding import Message, Wrapper

ABORT, COMMIT = b"\0\0\0\0", b"\0\0\0\1"


def keyed(base_offset, *pairs, **header):
    records = tuple(Record(delta, 10 * delta, key, value) for delta, (key, value) in enumerate(pairs))
    return Batch(records, base_offset, **header)


def marker(base_offset, producer_id, key, **header):
    return Batch(
        (Record(0, 5, key, b"\0\0\0\0\0\0"),), base_offset, attributes=TRANSACTIONAL | CONTROL,
        producer_id=producer_id, producer_epoch=0, **header,
    )  # fmt: skip


def encoded(*batches):
    return b"".join(batch.encode() for batch in batches)


def rows_of(content):
    """Offset, timestamp, key and value of every record."""
    return [
        (record.offset, record.timestamp_ms, record.key, record.value)
        for batch in batches_of(content)
        for record in batch.records
    ]


# As in the example that comes with Kafka's algorithm: of each key the last record stays.
EXAMPLE = [
    keyed(0, (b"a", b"1"), (b"b", b"1"), (b"c", b"1")),
    keyed(3, (b"a", b"2")),
    keyed(4, (b"b", None), (b"d", b"1")),
    keyed(6, (b"c", b"2"), (b"c", b"3")),
]
LATEST = {b"a": 3, b"b": 4, b"c": 7, b"d": 5}


@pytest.mark.parametrize("window_bytes", [1, 100, 150, 4096])
@pytest.mark.parametrize("codec", CODECS)
def test_the_size_of_a_window_does_not_matter(tmp_path, codec, window_bytes):
    batches = [Batch(batch.records, batch.base_offset, CODECS[codec]) for batch in EXAMPLE]
    source = open_segment(tmp_path, encoded(*batches))
    assert clean(tmp_path, [source], LATEST, window_bytes=window_bytes) == clean(tmp_path, [source], LATEST)


@pytest.mark.parametrize("codec", CODECS)
def test_records_are_compressed_as_they_were(tmp_path, codec):
    pairs = [(b"%d" % (number % 7), b"value" * number) for number in range(50)]
    batches = [keyed(0, *pairs, codec=CODECS[codec]), keyed(50, *pairs[:3], codec=CODECS[codec])]
    source = open_segment(tmp_path, encoded(*batches))
    latest = {b"%d" % number: 43 + (number - 43) % 7 for number in range(7)}
    cleaned = clean(tmp_path, [source], latest)
    first, second = batches_of(cleaned.content)
    assert (first.codec, first.base_offset, first.last_offset) == (CODECS[codec], 0, 49)
    assert [record.offset for record in first.records] == list(range(43, 50))
    assert [record.value for record in first.records] == [b"value" * number for number in range(43, 50)]
    assert second.raw == batches[1].encode()


def test_batches_of_different_codecs_keep_their_order(tmp_path):
    codecs = [NONE, ZSTD, NONE, NONE, ZSTD, NONE]
    batches = [
        keyed(10 * number, (b"gone", b"1"), (b"k%d" % number, b"2"), codec=codec)
        for number, codec in enumerate(codecs)
    ]
    # Two that are decided about before their records are looked at.
    batches.insert(2, Batch((), 15, last_offset_delta=2, producer_id=7, producer_epoch=0, base_sequence=5))
    batches.insert(5, Message(35, 5, b"k", b"2"))
    source = open_segment(tmp_path, encoded(*batches))
    cleaned = clean(tmp_path, [source], {b"gone": 99}, last_records={7: LastRecord(17, 0)})
    found = [(batch.base_offset, batch.last_offset, batch.codec) for batch in batches_of(cleaned.content)]
    assert found == [
        (0, 1, NONE), (10, 11, ZSTD), (15, 17, NONE), (20, 21, NONE),
        (30, 31, NONE), (35, 35, NONE), (40, 41, ZSTD), (50, 51, NONE),
    ]  # fmt: skip
    assert [row[0] for row in rows_of(cleaned.content)] == [1, 11, 21, 31, 35, 41, 51]


def test_an_empty_batch_stays_for_its_producer(tmp_path):
    source = open_segment(
        tmp_path,
        encoded(
            keyed(0, (b"a", b"1"), producer_id=7, producer_epoch=1, base_sequence=4),
            keyed(
                1,
                (b"a", b"2"),
                (b"a", b"3"),
                producer_id=7,
                producer_epoch=1,
                base_sequence=5,
                leader_epoch=2,
            ),
            keyed(3, (b"a", b"4")),
        ),
    )
    cleaned = clean(tmp_path, [source], {b"a": 3}, last_records={7: LastRecord(2, 1)})
    empty = Batch(
        (), 1, last_offset_delta=1, max_timestamp_ms=10, leader_epoch=2,
        producer_id=7, producer_epoch=1, base_sequence=5,
    )  # fmt: skip
    assert cleaned.content == encoded(empty, keyed(3, (b"a", b"4")))
    # It stays what it is, pass after pass, until the producer has written something else.
    again = [open_segment(tmp_path, cleaned.content)]
    assert clean(tmp_path, again, {}, last_records={7: LastRecord(2, 1)}).content == cleaned.content
    assert clean(tmp_path, again, {}, last_records={7: LastRecord(9, 1)}).content == encoded(
        keyed(3, (b"a", b"4"))
    )


@pytest.mark.parametrize("magic", [0, 1])
def test_the_last_batch_of_an_old_format_stays_as_an_empty_one(tmp_path, magic):
    # Kafka's own cleaner fails here.
    wrapper = Wrapper(
        (Message(4, 20, b"a", b"1", magic), Message(6, 30, b"a", b"2", magic)), magic=magic, timestamp_ms=30
    )
    cleaned = clean(tmp_path, [open_segment(tmp_path, wrapper.encode())], {b"a": 9}, upper_bound_offset=7)
    (batch,) = batches_of(cleaned.content)
    assert (batch.last_offset, batch.records, batch.producer_id, batch.leader_epoch) == (6, (), -1, -1)
    assert batch.max_timestamp_ms == (30 if magic else -1)


@pytest.mark.parametrize("codec", legacy_encoding.CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_old_formats_become_batches(tmp_path, magic, codec):
    messages = tuple(
        Message(offset, 100 + offset, b"k%d" % (offset % 2), b"%d" % offset, magic) for offset in (3, 4, 7, 9)
    )
    number = legacy_encoding.CODECS[codec]
    batches = [Wrapper(messages, number, magic, inner_offsets=None)] if number else list(messages)
    source = open_segment(tmp_path, encoded(*batches))
    cleaned = clean(tmp_path, [source], {b"k0": 4, b"k1": 9})
    expected = [
        (offset, 100 + offset if magic else -1, b"k%d" % (offset % 2), b"%d" % offset) for offset in (4, 9)
    ]
    assert rows_of(cleaned.content) == expected
    found = list(batches_of(cleaned.content))
    assert [(batch.base_offset, batch.last_offset) for batch in found] == (
        [(4, 9)] if number else [(4, 4), (9, 9)]
    )
    assert {(batch.codec, batch.leader_epoch, batch.is_append_time) for batch in found} == {
        (number, -1, False)
    }


def test_a_wrapper_with_log_append_time_keeps_it(tmp_path):
    messages = (Message(3, 5, b"a", b"1"), Message(4, 6, b"b", b"1"))
    wrapper = Wrapper(messages, timestamp_ms=900, attributes=LOG_APPEND_TIME)
    cleaned = clean(tmp_path, [open_segment(tmp_path, wrapper.encode())], {b"a": 8})
    (batch,) = batches_of(cleaned.content)
    assert (batch.is_append_time, batch.base_timestamp_ms, batch.max_timestamp_ms) == (True, 900, 900)
    assert rows_of(cleaned.content) == [(4, 900, b"b", b"1")]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("attributes", [0, LOG_APPEND_TIME])
@pytest.mark.parametrize("dropped", [{}, {b"a": 8}])
def test_messages_in_a_wrapper_of_the_other_format_become_records(tmp_path, magic, attributes, dropped):
    """Left by an old cleaner (KAFKA-4298); as Kafka's cleaner of today writes them."""
    messages = (Message(3, 5, b"a", b"1", 1 - magic), Message(6, 7, b"b", b"1", 1 - magic))
    wrapper = Wrapper(messages, LZ4, magic, timestamp_ms=900, attributes=attributes)
    cleaned = clean(tmp_path, [open_segment(tmp_path, wrapper.encode())], dropped)
    left = messages[bool(dropped) :]
    is_append_time = bool(magic and attributes)
    expected = Batch(
        tuple(Record(each.offset - left[0].offset, each.row[1], each.key, each.value) for each in left),
        left[0].offset,
        LZ4,
        attributes=LOG_APPEND_TIME * is_append_time,
        leader_epoch=-1,
        max_timestamp_ms=900 if is_append_time else max(each.row[1] for each in left),
    )
    (batch,), (wanted,) = batches_of(cleaned.content), batches_of(expected.encode())
    assert replace(batch, raw=b"") == replace(wanted, raw=b"")


@pytest.mark.parametrize(("modified_ms", "stays"), [(501, True), (500, False)])
def test_an_old_tombstone_depends_on_when_its_segment_was_changed(tmp_path, modified_ms, stays):
    source = open_segment(
        tmp_path, encoded(Message(0, 5, b"a", None), Message(1, 5, b"b", b"1")), modified_ms=modified_ms
    )
    cleaned = clean(tmp_path, [source], {b"a": 0, b"b": 1}, legacy_delete_horizon_ms=500)
    assert [row[0] for row in rows_of(cleaned.content)] == ([0, 1] if stays else [1])
    # As a tombstone of format v2, it waits for its horizon from now on.
    assert [batch.delete_horizon_ms for batch in batches_of(cleaned.content)] == (
        [1024, None] if stays else [None]
    )


@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_a_marker_goes_two_passes_after_its_data(tmp_path, codec):
    aborted = AbortedTransaction(7, 1, 3, 4)
    batches = [
        keyed(1, (b"a", b"2"), attributes=TRANSACTIONAL, producer_id=7, producer_epoch=0),
        marker(3, 7, ABORT, codec=codec),
        keyed(4, (b"b", b"1")),
    ]
    passes = [encoded(*batches)]
    found = []
    for now_ms in (1000, 1010, 1033, 1034):
        source = open_segment(tmp_path, passes[-1])
        cleaned = clean(tmp_path, [source], {}, aborted=[aborted], now_ms=now_ms)
        found.append(([batch.delete_horizon_ms for batch in batches_of(cleaned.content)], cleaned.aborted))
        passes.append(cleaned.content)
    assert found == [
        # The data went, and the transaction index tells of the marker.
        ([None, None], [aborted]),
        ([1034, None], []),
        ([1034, None], []),
        ([None], []),
    ]
    assert passes[-1] == batches[2].encode()


def test_a_marker_that_is_the_last_of_its_producer_stays_as_an_empty_batch(tmp_path):
    idle = Batch(
        (Record(0, 5, COMMIT, b"\0\0\0\0\0\0"),), 5, attributes=TRANSACTIONAL | CONTROL | DELETE_HORIZON,
        base_timestamp_ms=900, producer_id=7, producer_epoch=3,
    )  # fmt: skip
    source = open_segment(tmp_path, encoded(idle))
    assert clean(tmp_path, [source], {}).content == b""
    cleaned = clean(tmp_path, [source], {}, last_records={7: LastRecord(None, 3)})
    assert cleaned.content == encoded(
        Batch((), 5, attributes=TRANSACTIONAL | CONTROL, max_timestamp_ms=5, producer_id=7, producer_epoch=3)
    )


def test_the_throttle_may_give_up(tmp_path):
    class GivenUpError(Exception):
        pass

    def give_up(size_bytes):
        raise GivenUpError

    with pytest.raises(GivenUpError):
        clean(tmp_path, [open_segment(tmp_path, encoded(*EXAMPLE))], LATEST, throttle=give_up)


def test_the_new_segment_has_indexes(tmp_path):
    batches = [keyed(10 * number, (b"k%d" % number, b"v" * 100)) for number in range(20)]
    source = open_segment(tmp_path, encoded(*batches))
    config = LogConfig(index_interval_bytes=300)
    made = LogSegment.create(FileSystem(), str(tmp_path), 0, config, now_ms=0, suffix=".cleaned")
    clean_into(made, [source], map_of({}), CleanedTransactions(), CleanRules(1000, 24, 0, 10**9))
    made.close()
    index = Path(tmp_path, f"{0:020d}.index.cleaned").read_bytes()
    size = len(batches[0].encode())
    entries = list(struct.iter_unpack(">ii", index))
    assert entries[0] == (20, 2 * size)
    assert all(later[0] - earlier[0] == 20 for earlier, later in pairwise(entries))


@pytest.mark.parametrize("position", [8, 16, 30, -1])
def test_damage_is_not_cleaned_away(tmp_path, position):
    content = bytearray(encoded(*EXAMPLE))
    content[len(EXAMPLE[0].encode()) + position] ^= 0x55
    source = open_segment(tmp_path, bytes(content))
    with pytest.raises(CorruptRecordError):
        clean(tmp_path, [source], LATEST)
    assert Path(source.path).read_bytes() == bytes(content)


@pytest.mark.parametrize(
    ("key", "found"), [(b"\0\0\0", "3 bytes"), (None, "-1 bytes"), (b"\xff\xff\0\1", "version -1")]
)
def test_a_control_record_without_a_proper_key_is_damage(tmp_path, key, found):
    source = open_segment(tmp_path, encoded(keyed(4, (b"a", b"1")), marker(5, 7, key)), 4)
    with pytest.raises(CorruptRecordError, match=found) as raised:
        clean(tmp_path, [source], {})
    assert (raised.value.offset, raised.value.last_offset) == (5, 5)


@pytest.mark.parametrize("count", [-1, 2, 2**31 - 1])
def test_a_wrong_count_under_a_right_checksum_is_damage(tmp_path, count):
    batch = keyed(0, (b"a", b"1"), count=count)
    with pytest.raises(CorruptRecordError):
        clean(tmp_path, [open_segment(tmp_path, batch.encode())], {})


def test_a_batch_that_inflates_too_far_is_refused(tmp_path):
    batch = keyed(0, (b"a", bytes(100_000)), codec=ZSTD)
    source = open_segment(tmp_path, batch.encode())
    with pytest.raises(BatchTooLargeError, match="at most 50000 bytes"):
        clean(tmp_path, [source], {}, max_batch_bytes=50_000)
    assert clean(tmp_path, [source], {}, max_batch_bytes=200_000).content == batch.encode()


def test_an_offset_that_does_not_fit_the_segment_is_refused(tmp_path):
    sources = [
        open_segment(tmp_path, encoded(keyed(0, (b"a", b"1")))),
        open_segment(tmp_path, encoded(keyed(2**31, (b"b", b"1"))), 2**31),
    ]
    with pytest.raises(OffsetOverflowError):
        clean(tmp_path, sources, {})


def test_a_batch_larger_than_a_window_is_cleaned(tmp_path):
    batches = [keyed(0, (b"a", random.Random(7).randbytes(100_000)), (b"b", b"1")), keyed(2, (b"a", b"2"))]
    source = open_segment(tmp_path, encoded(*batches))
    cleaned = clean(tmp_path, [source], {b"a": 2, b"b": 1}, window_bytes=1000)
    assert rows_of(cleaned.content) == [(1, 10, b"b", b"1"), (2, 0, b"a", b"2")]


MUTATIONS = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4)
# Any value that a field of a header may have.
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "count": st.sampled_from([-(2**31), -1, 0, 1, 3, 100, 2**31 - 1]),
        "last_offset_delta": st.sampled_from([0, 1, 2, 3, 2**31 - 1]),
        "base_timestamp_ms": st.sampled_from([-(2**63), -1, 0, 2**63 - 1]),
        "attributes": st.integers(0, 2**15 - 1),
        "producer_id": st.sampled_from([-(2**63), -1, 7, 2**63 - 1]),
    },
)


@examples(200)
@given(MUTATIONS, FIELDS, st.sampled_from([NONE, ZSTD]))
def test_bytes_that_somebody_made_up_are_refused_or_cleaned(tmp_path, mutations, fields, codec):
    good = keyed(0, (b"a", b"1"), (b"b", b"2"), (b"a", None))
    content = bytearray(encoding.compress(codec, good.encode_records()))
    for position, byte in mutations:
        content[position % len(content)] = byte
    attributes = fields.pop("attributes", 0) & ~7
    made_up = Batch(good.records, 0, codec, attributes=attributes, payload=bytes(content), **fields)
    neighbour = keyed(2**31 - 1, (b"c", b"3"))
    source = open_segment(tmp_path, encoded(made_up, neighbour))
    try:
        cleaned = clean(tmp_path, [source], {b"a": 2}, max_batch_bytes=1 << 20)
    except (CorruptError, OffsetOverflowError) as error:
        event(type(error).__name__)
        return
    event("cleaned")
    # Whatever it was, the record after it is there, and what was written can be read.
    assert list(batches_of(cleaned.content))[-1].raw == neighbour.encode()
