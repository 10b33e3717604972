"""Batches that a producer made, and what the log makes of them."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import replace

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from storage_core import LogConfig, ProducerSequence
from storage_core.errors import (
    AppendError,
    CorruptRecordError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTxnStateError,
    OptionError,
    OutOfOrderSequenceError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
    TransactionCoordinatorFencedError,
)
from storage_core.log.log_validator import accept_client_batches
from storage_core.record.encode import BatchEncoding, encode_records
from storage_core.record.record_batches import RecordBatches
from tests.examples import examples
from tests.log.logs import NOW_MS, crash, offsets, open_directory, small, table, values
from tests.log.producing import ABORT, data, emptied, marker, transactional
from tests.record.cases import MALFORMED
from tests.record.encoding import CONTROL, LOG_APPEND_TIME, Batch, Record, counted_records, sized, varint

CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def encoded(*rows, timestamps=None, codec=0, producer=None, is_transactional=False):
    """Return a batch as a client encodes it."""
    (batches,) = encode_records(
        table(*rows, timestamps=timestamps),
        BatchEncoding(codec),
        default_timestamp_ms=NOW_MS,
        producer=producer,
        is_transactional=is_transactional,
    )
    return b"".join(batches.pieces)


def whole(batches):
    return b"".join(batches.pieces)


def accept(batch, *, now_ms=NOW_MS, **config):
    return accept_client_batches(RecordBatches.parse(batch), LogConfig(**config), now_ms)


# -- Offsets --------


def test_the_log_gives_offsets_and_a_leader_epoch_and_leaves_the_rest(log):
    batch = data(0, 3, producer=7, epoch=1, sequence=5, timestamp_ms=NOW_MS, leader_epoch=-1)
    log.append(table(b"before"))
    info = log.append_as_leader(batch, leader_epoch=4)
    assert (info.first_offset, info.last_offset, info.batch_count, info.size_bytes) == (1, 3, 1, len(batch))
    assert (info.max_timestamp_ms, info.offset_of_max_timestamp) == (NOW_MS, 3)
    found = log.fetch(1, 1 << 20).data
    assert found[:8] == struct.pack(">q", 1)
    assert found[12:16] == struct.pack(">i", 4)
    # Length, magic, CRC and all that it covers.
    assert (found[8:12], found[16:]) == (batch[8:12], batch[16:])
    assert [each.epoch for each in log.leader_epochs] == [0, 4]


def test_several_batches_follow_one_another(log):
    info = log.append_as_leader(data(0, 2) + data(0, 3, producer=7) + data(0, 1, producer=7, sequence=3))
    assert (info.first_offset, info.last_offset, info.batch_count) == (0, 5, 3)
    assert offsets(log) == [0, 1, 2, 3, 4, 5]


def test_a_cut_off_batch_is_left_out(log):
    info = log.append_as_leader(data(0, 2) + data(0, 3)[:-1])
    assert (info.last_offset, log.log_end_offset) == (1, 2)


def test_nothing_is_appended_of_nothing(log):
    info = log.append_as_leader(b"")
    assert (info.first_offset, info.last_offset, info.batch_count, log.log_end_offset) == (0, -1, 0, 0)


def test_a_wrong_crc_is_refused(log):
    batch = bytearray(data(0, 2))
    batch[-1] ^= 1
    with pytest.raises(CorruptRecordError):
        log.append_as_leader(bytes(batch))
    assert log.append_as_leader(data(0, 1)).first_offset == 0


# -- What a producer may not write --------


def headed(**fields):
    """Return a batch of one record whose header says something else."""
    return Batch((Record(),), **fields).encode()


WRONG = {
    "begin at offset 0": headed(base_offset=1),
    "be a data batch": marker(0, producer=7),
    "hold at least one record": emptied(0),
    "hold as many records as offsets": headed(last_offset_delta=1),
    "have a sequence": data(0, producer=7, sequence=-1),
    "have an epoch": data(0, producer=7, epoch=-1),
    "have a producer id": headed(attributes=0x10),
}


@pytest.mark.parametrize("expected", WRONG)
def test_a_header_that_no_producer_writes_is_refused(log, expected):
    with pytest.raises(InvalidRecordError, match=f"Expected a producer's batch to {expected}"):
        log.append_as_leader(data(0, 2) + WRONG[expected])
    assert log.log_end_offset == 0


def test_offsets_within_a_batch_are_consecutive(log):
    skewed = Batch((Record(offset_delta=0), Record(offset_delta=2)), last_offset_delta=1).encode()
    with pytest.raises(InvalidRecordError, match="Expected readable records, found batch 1"):
        log.append_as_leader(data(0, 2) + skewed)
    assert log.log_end_offset == 0


MALFORMED_AT_0 = {name: batch for name, batch in MALFORMED.items() if batch.base_offset == 0}


@pytest.mark.parametrize("codec", [0, 4], ids=["none", "zstd"])
@pytest.mark.parametrize("malformed", MALFORMED_AT_0.values(), ids=MALFORMED_AT_0)
def test_a_malformed_record_is_refused_whatever_is_wrong_with_it(malformed, codec):
    with pytest.raises(InvalidRecordError):
        accept(data(0, 2) + replace(malformed, codec=codec).encode())


@pytest.mark.parametrize("codec", [0, 4], ids=["none", "zstd"])
@pytest.mark.parametrize("count", [1, 300])
@pytest.mark.parametrize(
    "headers",
    [
        varint(1),
        varint(2) + sized(b"h") + sized(b"v"),
        varint(1) + (sized(b"h") + sized(b"v")) * 2,
        varint(0) + sized(b"h") + sized(b"v"),
        varint(-1) + sized(b"h") + sized(b"v"),
        varint(1) + varint(-1) + sized(b"v"),
        varint(1) + varint(99) + b"h" + sized(b"v"),
        varint(1) + sized(b"h") + varint(99) + b"v",
        varint(1) + sized(b"h"),
        varint(1 << 30) + sized(b"h") + sized(b"v"),
    ],
    ids=[
        "none where one is announced",
        "one where two are announced",
        "two where one is announced",
        "one where none is announced",
        "a negative count",
        "without a key",
        "a key longer than the record",
        "a value longer than the record",
        "without a value",
        "a billion",
    ],
)
def test_a_malformed_header_is_refused_among_any_number_of_records(headers, count, codec):
    good = [Record(delta, headers=((b"h", b"v"),)) for delta in range(count)]
    bad = sized(b"\0\0" + varint(count) + b"\1\1" + headers)
    records = b"".join(record.encode(0) for record in good) + bad
    batch = Batch(
        (*good, Record(count)), records_bytes=records, codec=codec, last_offset_delta=count
    ).encode()
    with pytest.raises(InvalidRecordError, match=f"readable records, found batch 1: .*record {count}"):
        accept(data(0, 2) + batch)


def test_records_that_cannot_be_decompressed_are_refused(log):
    batch = Batch((), payload=b"not gzip", codec=1, count=1, last_offset_delta=0).encode()
    with pytest.raises(InvalidRecordError, match="Expected readable records"):
        log.append_as_leader(batch)
    assert log.append(table(b"v")).first_offset == 0


def test_a_compacted_log_wants_keys():
    batch = Batch((Record(offset_delta=0, key=b"k"), Record(offset_delta=1))).encode()
    accept(batch)
    with pytest.raises(InvalidRecordError, match="found none in record 1 of batch 0"):
        accept(batch, cleanup_policy="compact")


# -- Which records are to blame --------


def refused(batch, **config):
    with pytest.raises(AppendError) as raised:
        accept(batch, **config)
    return raised.value


def places(error):
    return [(each.batch_number, each.batch_index) for each in error.record_errors]


def test_each_record_without_a_key_is_named():
    keys = (None, b"k", None, None)
    mixed = Batch(tuple(Record(delta, key=key) for delta, key in enumerate(keys))).encode()
    keyed = Batch((Record(key=b"k"),)).encode()
    error = refused(mixed + keyed + mixed, cleanup_policy="compact")
    assert places(error) == [(0, 0), (0, 2), (0, 3), (2, 0), (2, 2), (2, 3)]
    assert error.record_error_count == 6
    assert error.record_errors[0].message == "Expected a key, because cleanup.policy is compact, found none."
    assert "found none in record 0 of batch 0, record 2 of batch 0, record 3 of batch 0 and 3 more." in str(
        error
    )


def test_each_timestamp_is_named_and_decides_of_the_error():
    times = (NOW_MS, NOW_MS + 501, NOW_MS, NOW_MS - 1001)
    batch = Batch(tuple(Record(delta, time, b"k") for delta, time in enumerate(times))).encode()
    limits = {"message_timestamp_before_max_ms": 1000, "message_timestamp_after_max_ms": 500}
    without_key = Batch((Record(timestamp_ms=NOW_MS),)).encode()
    error = refused(batch + without_key, cleanup_policy="compact", **limits)
    assert isinstance(error, InvalidTimestampError)
    assert places(error) == [(0, 1), (0, 3), (1, 0)]
    assert f"found {NOW_MS + 501} in record 1 of batch 0, {NOW_MS - 1001} in record 3 of batch 0. " in str(
        error
    )
    assert "found none in record 0 of batch 1. " in str(error)
    assert error.record_errors[1].message.endswith(f"found {NOW_MS - 1001}.")


def test_all_records_of_a_batch_that_is_marked_with_log_append_time_are_named():
    batch = Batch(counted_records(3, start=NOW_MS), attributes=LOG_APPEND_TIME).encode()
    error = refused(encoded(b"v") + batch)
    assert isinstance(error, InvalidTimestampError)
    assert places(error) == [(1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize("count", [2, 300])
def test_a_record_that_cannot_be_read_is_named(count):
    records = b"".join(record.encode(0) for record in counted_records(count))
    batch = Batch(
        counted_records(count + 1), records_bytes=records + sized(b"\0\0" + varint(count) + b"\1\1\1")
    ).encode()
    error = refused(encoded(b"v") + batch)
    assert places(error) == [(1, count)]
    assert f"record {count}" in error.record_errors[0].message


@pytest.mark.parametrize(
    "batch", [headed(attributes=CONTROL), headed(base_offset=1), headed(last_offset_delta=4)]
)
def test_no_record_is_to_blame_for_its_batch(batch):
    error = refused(batch)
    assert (error.record_errors, error.record_error_count) == ((), 0)


def test_sizes():
    batch = encoded(b"v" * 100)
    accept(batch, max_message_bytes=len(batch))
    with pytest.raises(RecordTooLargeError):
        accept(batch, max_message_bytes=len(batch) - 1)
    with pytest.raises(RecordBatchTooLargeError):
        accept(batch, internal_segment_bytes=len(batch) - 1)


def test_several_batches_fit_one_segment_together():
    batch = encoded(b"v" * 100)
    accept(batch * 3, internal_segment_bytes=3 * len(batch))
    with pytest.raises(RecordBatchTooLargeError):
        accept(batch * 3, internal_segment_bytes=3 * len(batch) - 1)


def test_so_that_little_cannot_become_much():
    batch = encoded(b"v" * 900_000, codec=4)
    assert len(batch) < 1000
    with pytest.raises(RecordBatchTooLargeError):
        accept(batch * 1000, compression_type="uncompressed", internal_segment_bytes=2_000_000)


# -- Timestamps --------


@pytest.mark.parametrize("timestamp_ms", [NOW_MS - 1000, NOW_MS, NOW_MS + 500, -1])
def test_timestamps_within_the_bounds(timestamp_ms):
    batch = encoded(b"v", timestamps=[timestamp_ms])
    limits = {"message_timestamp_before_max_ms": 1000, "message_timestamp_after_max_ms": 500}
    assert whole(accept(batch, **limits)) == batch


@pytest.mark.parametrize("timestamp_ms", [NOW_MS - 1001, NOW_MS + 501, -2])
def test_and_beyond_them(timestamp_ms):
    batch = (
        data(0, 1, timestamp_ms=NOW_MS)
        + Batch((Record(timestamp_ms=NOW_MS), Record(offset_delta=1, timestamp_ms=timestamp_ms))).encode()
    )
    with pytest.raises(InvalidTimestampError, match=f"found {timestamp_ms} in record 1 of batch 1"):
        accept(batch, message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=500)


def test_a_producers_word_for_the_largest_timestamp_is_not_taken():
    records = (Record(timestamp_ms=1000), Record(offset_delta=1, timestamp_ms=3000))
    claimed = Batch(records, max_timestamp_ms=9000).encode()
    assert whole(accept(claimed)) == Batch(records, max_timestamp_ms=3000).encode()


def test_bits_that_mean_nothing_go_when_the_header_is_rewritten():
    records = (Record(timestamp_ms=1000),)
    as_it_came = Batch(records, attributes=0x4100).encode()
    assert whole(accept(as_it_came)) == as_it_came
    claimed = Batch(records, attributes=0x4100, max_timestamp_ms=9000).encode()
    assert whole(accept(claimed)) == Batch(records, max_timestamp_ms=1000).encode()


def test_log_append_time():
    records = (Record(timestamp_ms=1000), Record(offset_delta=1, timestamp_ms=3000))
    accepted = accept(Batch(records).encode(), message_timestamp_type="LogAppendTime", now_ms=5000)
    assert whole(accepted) == Batch(records, attributes=8, max_timestamp_ms=5000).encode()


def test_the_golden_bytes_of_log_append_time():
    before, after = (
        bytes.fromhex(
            "000000000000000000000043ffffffff02"
            f"{crc}{attributes}00000001"
            f"0000000000000001{largest}"
            "ffffffffffffffffffffffffffff00000002100000000261023100100002020262023200"
        )
        for crc, attributes, largest in (
            ("f5845ea2", "0000", "0000000000000002"),
            ("dc91cf77", "0008", "000000000000000f"),
        )
    )
    accepted = accept(before, message_timestamp_type="LogAppendTime", now_ms=15)
    assert whole(accepted) == after
    assert (
        whole(accepted.with_offsets(499, 5))
        == bytes.fromhex("00000000000001f3") + after[8:12] + bytes.fromhex("00000005") + after[16:]
    )


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_only_a_log_gives_log_append_time(timestamp_type):
    batch = Batch((Record(timestamp_ms=NOW_MS),), attributes=LOG_APPEND_TIME).encode()
    with pytest.raises(InvalidTimestampError, match="found batch 0 marked with log append time"):
        accept(batch, message_timestamp_type=timestamp_type)


def test_the_answer_has_the_logs_own_time(logs, clock):
    log = logs.create("stamped", 0, small(message_timestamp_type="LogAppendTime"))
    clock.time_ms = 5_000
    batch = data(0, 2, producer=7)
    assert log.append_as_leader(batch).log_append_time_ms == 5_000
    clock.time_ms = 6_000
    again = log.append_as_leader(batch)
    assert (again.is_duplicate, again.log_append_time_ms, again.last_offset) == (True, 5_000, 1)
    (batch,) = log.read(columns=["timestamp"])
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == [5_000_000, 5_000_000]


# -- Compression --------


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize("kept", ["producer", "same"])
def test_a_codec_that_the_log_wants_is_left_as_it_is(codec, kept):
    batch = encoded(*[b"value"] * 50, codec=codec)
    name = "producer" if kept == "producer" else next(name for name, each in CODECS.items() if each == codec)
    assert whole(accept(batch, compression_type=name)) == batch


def test_another_level_is_no_reason_to_compress_again():
    batch = encoded(*[b"value"] * 50, codec=4)
    assert whole(accept(batch, compression_type="zstd", compression_zstd_level=19)) == batch


@pytest.mark.parametrize("target", [*CODECS, "uncompressed"])
@pytest.mark.parametrize("codec", [0, *CODECS.values()])
def test_compressed_again_the_records_are_the_same(logs, codec, target):
    log = logs.create("compressed", 0, small(1 << 20, compression_type=target))
    rows = [b"value %d" % number for number in range(200)]
    producer = ProducerSequence(7, 1, 5)
    info = log.append_as_leader(
        encoded(*rows, codec=codec, timestamps=range(1000, 1200), producer=producer, is_transactional=True)
    )
    assert info.max_timestamp_ms == 1199
    assert values(log) == rows
    metadata = [each for batch in log.read(include_metadata=True) for each in batch["_metadata"].to_pylist()]
    assert [each["sequence"] for each in metadata] == list(range(5, 205))
    names = ("compression", "producerId", "producerEpoch", "isTransactional")
    assert {tuple(each[name] for name in names) for each in metadata} == {
        ("none" if target == "uncompressed" else target, 7, 1, True)
    }
    again = log.append_as_leader(
        encoded(*rows, codec=codec, timestamps=range(1000, 1200), producer=producer, is_transactional=True)
    )
    assert again.is_duplicate


def test_what_grows_beyond_the_limit_is_refused():
    batch = encoded(b"v" * 1000, codec=4)
    with pytest.raises(RecordTooLargeError):
        accept(batch, compression_type="uncompressed", max_message_bytes=500)


# -- What a coordinator writes --------

# As a group coordinator writes the offsets of a transaction: with producer and epoch, and without a sequence.
OFFSETS = transactional(0, 2, producer=7, epoch=3, sequence=-1)


def test_a_coordinators_records_have_no_sequence_numbers(log, logs, tmp_path):
    with pytest.raises(InvalidRecordError, match="a producer's batch to have a sequence"):
        log.append_as_leader(OFFSETS)
    assert log.append_as_leader(OFFSETS, origin="coordinator").first_offset == 0
    # Nothing tells a repetition from more of the same.
    again = log.append_as_leader(OFFSETS, origin="coordinator")
    assert (again.first_offset, again.is_duplicate) == (2, False)
    assert [
        (each.producer_id, each.producer_epoch, each.first_offset) for each in log.open_transactions()
    ] == [(7, 3, 0)]
    assert log.last_stable_offset == 0
    stored = log.fetch(0, 1 << 20).data
    assert stored[21:23] + stored[43:57] == struct.pack(">hqhi", 0x10, 7, 3, -1)
    log.append_as_leader(marker(0, producer=7, epoch=3, timestamp_ms=NOW_MS), origin="coordinator")
    assert (log.open_transactions(), log.last_stable_offset) == ((), 5)
    assert offsets(log, isolation_level="read_committed") == [0, 1, 2, 3]


@pytest.mark.parametrize("is_clean", [False, True])
def test_they_are_known_after_a_reopen(log, logs, tmp_path, is_clean):
    log.append_as_leader(OFFSETS, origin="coordinator")
    if is_clean:
        logs.close()
    else:
        crash(logs)
    with open_directory(tmp_path / "data") as opened:
        log = opened.get("orders")
        assert [(each.producer_id, each.first_offset) for each in log.open_transactions()] == [(7, 0)]
        assert log.append_as_leader(OFFSETS, origin="coordinator").first_offset == 2
        log.append_as_leader(marker(0, producer=7, epoch=3, kind=ABORT), origin="coordinator")
        assert offsets(log, isolation_level="read_committed") == []


def test_a_coordinators_records_are_fenced_by_their_epoch(log):
    log.append_as_leader(OFFSETS, origin="coordinator")
    with pytest.raises(InvalidProducerEpochError):
        log.append_as_leader(transactional(0, producer=7, epoch=2, sequence=-1), origin="coordinator")
    with pytest.raises(InvalidTxnStateError):
        log.append_as_leader(data(0, producer=7, epoch=3, sequence=-1), origin="coordinator")
    assert (
        log.append_as_leader(
            transactional(0, producer=7, epoch=4, sequence=-1), origin="coordinator"
        ).first_offset
        == 2
    )


def test_sequence_numbers_of_a_coordinator_are_not_looked_at(log):
    log.append_as_leader(transactional(0, 2, producer=7, sequence=0))
    assert (
        log.append_as_leader(transactional(0, 2, producer=7, sequence=90), origin="coordinator").first_offset
        == 2
    )
    assert (
        log.append_as_leader(transactional(0, 2, producer=7, sequence=90), origin="coordinator").first_offset
        == 4
    )


def test_after_them_a_client_begins_at_0(log):
    log.append_as_leader(OFFSETS, origin="coordinator")
    with pytest.raises(OutOfOrderSequenceError) as caught:
        log.append_as_leader(transactional(0, producer=7, epoch=3, sequence=2))
    assert caught.value.expected_sequence == 0
    assert log.append_as_leader(transactional(0, producer=7, epoch=3, sequence=0)).first_offset == 2


def test_markers_of_a_coordinator(log):
    info = log.append_as_leader(
        OFFSETS
        + marker(0, producer=7, epoch=3, coordinator_epoch=5)
        + transactional(0, producer=7, epoch=3, sequence=-1)
        + marker(0, producer=7, epoch=4, kind=ABORT, coordinator_epoch=6),
        origin="coordinator",
    )
    assert (info.batch_count, info.last_offset) == (4, 4)
    assert offsets(log, isolation_level="read_committed") == [0, 1]
    with pytest.raises(TransactionCoordinatorFencedError):
        log.append_as_leader(marker(0, producer=7, epoch=4, coordinator_epoch=5), origin="coordinator")
    with pytest.raises(InvalidProducerEpochError):
        log.append_as_leader(marker(0, producer=7, epoch=3, coordinator_epoch=6), origin="coordinator")
    with pytest.raises(InvalidProducerEpochError):
        log.append_as_leader(OFFSETS, origin="coordinator")


def test_markers_are_checked_one_after_the_other(log):
    first = marker(0, producer=7, epoch=4, coordinator_epoch=6)
    for second, error in (
        (marker(0, producer=7, epoch=3, coordinator_epoch=6), InvalidProducerEpochError),
        (marker(0, producer=7, epoch=4, coordinator_epoch=5), TransactionCoordinatorFencedError),
        (OFFSETS, InvalidProducerEpochError),
    ):
        with pytest.raises(error):
            log.append_as_leader(OFFSETS + first + second, origin="coordinator")
    assert log.log_end_offset == 0
    # What is not of the transaction that has ended is no part of one.
    log.append_as_leader(OFFSETS + first + data(0, producer=7, epoch=4, sequence=-1), origin="coordinator")


@pytest.mark.parametrize(
    "batch",
    [
        Batch((Record(key=b"\0", value=b""),), attributes=CONTROL, producer_id=7, producer_epoch=0).encode(),
        Batch(
            (Record(key=struct.pack(">hh", 0, 1), value=b"\0"),),
            attributes=CONTROL,
            producer_id=7,
            producer_epoch=0,
        ).encode(),
        # A change of leaders in a quorum.
        Batch(
            (Record(key=struct.pack(">hh", 0, 2), value=bytes(6)),),
            attributes=CONTROL,
            producer_id=7,
            producer_epoch=0,
        ).encode(),
        data(0, producer=7, epoch=-1, sequence=-1),
        headed(attributes=0x10),
        headed(last_offset_delta=4),
    ],
    ids=[
        "half a key",
        "half a value",
        "another kind",
        "no epoch",
        "no producer",
        "more offsets than records",
    ],
)
def test_what_no_coordinator_writes_is_refused(log, batch):
    with pytest.raises(InvalidRecordError):
        log.append_as_leader(batch, origin="coordinator")
    assert log.append(table(b"v")).first_offset == 0


def test_markers_are_not_compressed(logs):
    log = logs.create("offsets", 0, small(1 << 20, cleanup_policy="compact", compression_type="zstd"))
    keyed = replace(
        Batch((Record(key=b"group", value=b"5" * 200),)),
        attributes=0x10,
        producer_id=7,
        producer_epoch=0,
        base_offset=12,
    ).encode()
    ended = marker(0, producer=7, epoch=0)
    log.append_as_leader(keyed + ended, origin="coordinator")
    stored = RecordBatches.parse(log.fetch(0, 1 << 20).data)
    assert [attributes & 7 for attributes in stored.headers["attributes"].tolist()] == [4, 0]
    assert bytes(stored.pieces[3]) == ended[61:]
    assert values(log, isolation_level="read_committed") == [b"5" * 200]
    without_key = transactional(0, producer=7, epoch=0, sequence=-1)
    with pytest.raises(InvalidRecordError, match="Expected a key"):
        log.append_as_leader(without_key, origin="coordinator")


def test_a_table_of_a_coordinators(log):
    offsets_of_group = ProducerSequence(7, 3, -1)
    log.append(table(b"a", b"b"), producer=offsets_of_group, is_transactional=True, origin="coordinator")
    log.append(table(b"c"), producer=offsets_of_group, is_transactional=True, origin="coordinator")
    log.end_transaction(7, 3, is_abort=False)
    assert values(log, isolation_level="read_committed") == [b"a", b"b", b"c"]
    for producer, origin, message in (
        (offsets_of_group, "client", "Expected a sequence number from 0 to"),
        (ProducerSequence(7, 3, 0), "coordinator", "expected -1, found 0"),
        (offsets_of_group, "replication", "Expected an origin of client or coordinator"),
    ):
        with pytest.raises(OptionError, match=message):
            log.append(table(b"d"), producer=producer, is_transactional=True, origin=origin)
    with pytest.raises(OptionError, match="Expected an origin"):
        log.append_as_leader(OFFSETS, origin="raft_leader")


# -- Producers --------


def test_a_repeated_batch_is_answered_with_its_position(log):
    first = data(0, 3, producer=7, sequence=0, timestamp_ms=NOW_MS)
    log.append(table(b"before"))
    log.append_as_leader(first)
    log.append_as_leader(data(0, 2, producer=7, sequence=3, timestamp_ms=NOW_MS))
    again = log.append_as_leader(first)
    assert (again.is_duplicate, again.first_offset, again.last_offset) == (True, 1, 3)
    assert (again.size_bytes, again.batch_count, again.max_timestamp_ms) == (0, 0, NOW_MS)
    assert log.log_end_offset == 6


def test_several_batches_are_taken_all_or_none(log):
    log.append_as_leader(data(0, 2, producer=7, sequence=0))
    with pytest.raises(
        OutOfOrderSequenceError, match=r"found 1 duplicate\(s\), up to offset 1. Append them one by one"
    ):
        log.append_as_leader(data(0, 2, producer=7, sequence=0) + data(0, 2, producer=7, sequence=2))
    with pytest.raises(OutOfOrderSequenceError):
        log.append_as_leader(data(0, 2, producer=7, sequence=2) + data(0, 2, producer=7, sequence=5))
    assert log.log_end_offset == 2
    both = data(0, 2, producer=7, sequence=2) + data(0, 2, producer=7, sequence=4)
    log.append_as_leader(both)
    again = log.append_as_leader(both)
    assert (again.is_duplicate, again.first_offset, again.last_offset, log.log_end_offset) == (True, 2, 5, 6)


@examples(100)
@given(
    rows=st.lists(
        st.tuples(st.none() | st.binary(max_size=20), st.integers(-1, 1 << 50)), min_size=1, max_size=40
    ),
    codec=st.integers(0, 4),
    target=st.sampled_from(["producer", "uncompressed", *CODECS]),
)
def test_any_batch_keeps_its_records(rows, codec, target):
    batch = encoded(
        *[value for value, _ in rows], timestamps=[timestamp_ms for _, timestamp_ms in rows], codec=codec
    )
    accepted = accept(batch, compression_type=target, message_timestamp_after_max_ms=1 << 62)
    # The CRC is right, too.
    parsed = RecordBatches.parse(whole(accepted))
    assert whole(parsed) == whole(accepted)
    if target in ("producer", *[name for name, number in CODECS.items() if number == codec]):
        assert whole(accepted) == batch
    back = accept(whole(accepted), compression_type="uncompressed", message_timestamp_after_max_ms=1 << 62)
    assert whole(back) == encoded(
        *[value for value, _ in rows], timestamps=[timestamp_ms for _, timestamp_ms in rows]
    )


@examples(300)
@given(
    changes=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=4),
    codec=st.integers(0, 4),
)
def test_bytes_that_are_no_batch_are_refused_in_one_sentence(changes, codec):
    """With a CRC that is right, whatever the bytes are."""
    batch = bytearray(encoded(*[b"value"] * 20, codec=codec))
    for position, byte in changes:
        batch[21 + position % (len(batch) - 21)] = byte
    batch[17:21] = struct.pack(">I", crc32c(bytes(batch[21:])))
    with contextlib.suppress(InvalidRecordError, InvalidTimestampError):
        accepted = accept(bytes(batch), compression_type="zstd")
        # What is taken can be read.
        assert whole(accept(whole(accepted), compression_type="zstd")) == whole(accepted)
