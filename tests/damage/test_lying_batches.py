"""Batches with a valid CRC and inconsistent contents: counts, lengths and deltas that do not fit."""

from __future__ import annotations

import shutil
import struct
import zlib

import pytest

from tests.damage.legacy import LZ4, message, wrapper
from tests.damage.measured import can_measure_memory
from tests.damage.test_decompression_bombs import write_around
from tests.record.encoding import Batch, Record, counted_records, sized, varint

MOST_BYTES = 192 << 20
MOST = 2**31 - 1


def v2(records_bytes, count=1, **fields):
    return Batch((Record(),), 1, count=count, records_bytes=records_bytes, **fields).encode()


def record_with_headers(count):
    body = b"\0" + varint(0) + varint(0) + varint(-1) + varint(-1) + varint(count)
    return sized(body)


def legacy(magic, *, key_length=-1, value_length=-1, tail=b""):
    """Return a message that declares these lengths and is followed by ``tail``."""
    covered = struct.pack(">bb", magic, 0) + (struct.pack(">q", 5) if magic else b"")
    covered += struct.pack(">ii", key_length, value_length) + tail
    return struct.pack(">qiI", 1, 4 + len(covered), zlib.crc32(covered)) + covered


RECORD = Record(0, 0, b"k", b"v").encode(0)
ONE_BYTE_RECORDS = b"\x0c\0\0\0\1\1\0"  # six bytes: no key, no value, no headers

LIES = {
    "more records than bytes": v2(RECORD, MOST),
    "more records than bytes, lz4": v2(RECORD, MOST, codec=3),
    "no record count": v2(RECORD, -1),
    "least record count": v2(RECORD, -(2**31)),
    "fewer records than there are": v2(RECORD * 3, 1),
    "a record of 2 GiB": v2(varint(MOST) + RECORD),
    "a record of a negative length": v2(varint(-5) + RECORD),
    "a record of 2^63 bytes": v2(varint(2**62) + RECORD),
    "an endless varint": v2(b"\xff" * 40),
    "a key of 2 GiB": v2(sized(b"\0\0\0" + varint(MOST) + b"k")),
    "headers without end": v2(record_with_headers(MOST)),
    "a negative header count": v2(record_with_headers(-1)),
    "an offset delta beyond the batch": v2(
        sized(b"\0" + varint(0) + varint(MOST) + varint(-1) * 2 + varint(0))
    ),
    "a negative offset delta": v2(sized(b"\0" + varint(0) + varint(-9) + varint(-1) * 2 + varint(0))),
    "v0 key of 2 GiB": legacy(0, key_length=MOST, tail=b"k"),
    "v1 key of 2 GiB": legacy(1, key_length=MOST, tail=b"k"),
    "v0 value of 2 GiB": legacy(0, value_length=MOST, tail=b"v"),
    "v1 value of 2 GiB": legacy(1, value_length=MOST, tail=b"v"),
    "v0 wrapper without a value": message(0, 1, None, None, attributes=LZ4),
    "v1 wrapper without a value": message(1, 1, None, None, attributes=LZ4),
    "v0 wrapper of nothing": wrapper(0, LZ4, 1, b""),
    "v1 wrapper of nothing": wrapper(1, LZ4, 1, b""),
    "v1 wrapper of v2 messages": wrapper(1, LZ4, 1, message(2, 1, b"k", b"v" * 8)),
    "v0 wrapper of v2 messages": wrapper(0, LZ4, 1, message(2, 1, b"k", b"v" * 8)),
    "v1 wrapper of a message of 2 GiB": wrapper(1, LZ4, 1, struct.pack(">qi", 0, MOST) + bytes(30)),
    "v1 wrapper of a message of 13 bytes": wrapper(1, LZ4, 1, struct.pack(">qi", 0, 13) + bytes(30)),
    "v1 wrapper of offsets beyond its own": wrapper(1, LZ4, 1, message(1, 2**62, b"k", b"v")),
    "v1 wrapper in zstd": message(1, 1, None, zlib.compress(b"x"), attributes=4),
}


def check_memory(measured):
    if can_measure_memory():
        assert measured.resident_bytes < MOST_BYTES
    assert measured.allocated_bytes < MOST_BYTES


@pytest.mark.cases(6, 30)
@pytest.mark.parametrize("name", LIES)
@pytest.mark.parametrize(
    "columns", [None, ["offset"], ["offset", "timestamp"]], ids=["all", "offset", "time"]
)
def test_a_lie_is_an_error_or_harmless(root, measuring_process, name, columns):
    """A read of offsets alone may use the header; then it trusts the count only as far as it can be true."""
    start, _ = write_around(root, LIES[name])
    options = {"include_headers": True} if columns is None else {"columns": columns}
    measured = measuring_process.read(root, **options)
    check_memory(measured)
    if measured.error is None:
        assert columns is not None
        assert measured.offsets == [0, 1, 2, 3]
    else:
        assert measured.error in {"CorruptRecordError", "BatchTooLargeError", "UnsupportedFormatError"}
        assert f" {start}" in measured.message


@pytest.mark.cases(4, 12)
@pytest.mark.parametrize("name", LIES)
def test_reading_continues_after_a_lie(root, measuring_process, name):
    start, end = write_around(root, LIES[name])
    measured = measuring_process.read(root, mode="PERMISSIVE", include_headers=True)
    assert measured.error is None
    assert [offset for offset in measured.offsets if offset is not None] == [0, 2, 3]
    (damage,) = measured.damage
    assert (damage["startByte"], damage["endByte"]) == (start, end)
    check_memory(measured)


@pytest.mark.cases(4, 16)
@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("length", [MOST, MOST - 11, 2**30, 2**26, 0, 13, -1, -(2**31)])
@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "active"])
def test_a_length_that_lies(root, measuring_process, magic, length, is_closed):
    """No CRC covers the length itself; the bytes that it claims are neither read nor allocated."""
    whole = Batch((Record(),), 1).encode() if magic == 2 else message(magic, 1, b"k", b"v")
    lying = whole[:8] + struct.pack(">i", length) + whole[12:]
    folder = root / "events-0"
    folder.mkdir()
    first = Batch((Record(),), 0).encode()
    (folder / f"{0:020d}.log").write_bytes(first + lying)
    if is_closed:
        (folder / f"{3:020d}.log").write_bytes(Batch((Record(),), 3).encode())
    measured = measuring_process.read(root)
    check_memory(measured)
    assert measured.bytes_read < 1 << 20
    if is_closed:
        assert measured.error in {"CorruptRecordError", "BatchTooLargeError"}
    else:
        assert (measured.error, measured.offsets) == (None, [0])


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE"])
def test_batches_that_kafka_accepts_are_accepted(root, measuring_process, magic, mode):
    """A negative length is null; bytes after the value of an old message are ignored; wrappers hold either format."""
    for data in (
        legacy(magic, key_length=-2),
        legacy(magic, value_length=-2),
        legacy(magic, tail=b"surplus"),
        wrapper(magic, LZ4, 1, message(1 - magic, 1, b"k", b"v")),
    ):
        write_around(root, data)
        assert measuring_process.read(root, mode=mode).offsets == [0, 1, 2, 3]
        shutil.rmtree(root / "events-0")


def test_many_small_records_stay_within_the_limit(root, measuring_process):
    """At seven bytes a record, a batch has the most rows possible, and its columns are several times as large."""
    count = 2_000_000
    payload = ONE_BYTE_RECORDS * count
    write_around(root, Batch((Record(),), 1, count=1, records_bytes=payload).encode())
    measured = measuring_process.read(root)
    assert measured.error == "CorruptRecordError"
    check_memory(measured)


def test_batches_without_records_cost_nothing(root, measuring_process):
    """Fifty thousand batches emptied by compaction, each of which claims two billion offsets."""
    folder = root / "events-0"
    folder.mkdir()
    empty = [Batch((), number << 31, last_offset_delta=MOST, count=0).encode() for number in range(50_000)]
    (folder / f"{0:020d}.log").write_bytes(b"".join(empty) + Batch((Record(),), 50_000 << 31).encode())
    measured = measuring_process.read(root)
    assert measured.offsets == [50_000 << 31]
    check_memory(measured)


@pytest.mark.parametrize("last_offset", [2**40, 2**62, 2**63 - 2])
@pytest.mark.parametrize(
    "options", [{"max_records_per_partition": 3}, {"min_partitions": 50}, {"max_bytes_per_partition": 70}]
)
def test_a_far_offset_is_not_planned_piece_by_piece(root, measuring_process, last_offset, options):
    """No CRC covers a base offset: one flipped bit makes the log seem endless."""
    folder = root / "events-0"
    folder.mkdir()
    batches = [Batch(counted_records(2), offset).encode() for offset in (0, 2, 4)]
    far = Batch((Record(),), last_offset).encode()
    (folder / f"{0:020d}.log").write_bytes(b"".join(batches) + far)
    measured = measuring_process.read(root, **options)
    assert measured.offsets == [0, 1, 2, 3, 4, 5, last_offset]
    check_memory(measured)


@pytest.mark.parametrize("options", [{"max_records_per_partition": 3}, {"min_partitions": 50}])
@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE"])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_batch_over_many_offsets_is_not_planned_piece_by_piece(
    root, measuring_process, magic, mode, options
):
    """A wrapper's header does not say where it begins, and compaction leaves few records of a wide batch."""
    folder = root / "events-0"
    folder.mkdir()
    far = 2**62
    if magic == 2:
        far = 2 + MOST
        wide = Batch((Record(), Record(MOST)), 2).encode()
        expected = [0, 1, 2, far]
    else:
        inner = [
            message(magic, far - 1 if magic == 0 else 0, b"k", b"v"),
            message(magic, far if magic == 0 else 1, b"k", b"v"),
        ]
        wide = wrapper(magic, LZ4, far, b"".join(inner))
        expected = [0, 1, far - 1, far]
    (folder / f"{0:020d}.log").write_bytes(Batch(counted_records(2), 0).encode() + wide)
    measured = measuring_process.read(root, mode=mode, **options)
    assert measured.offsets == expected
    check_memory(measured)
