from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from storage_core.checkpoint import (
    ProducerStateEntry,
    producer_snapshot_bytes,
    read_producer_snapshot,
    write_producer_snapshot,
)
from storage_core.checkpoint.partition_files import parse_producer_snapshot
from storage_core.errors import CorruptSnapshotError
from storage_core.filesystem import FileSystem

PATH = "00000000000000000006.snapshot"
EMPTY = bytes.fromhex("000148674bc700000000")
TWO_PRODUCERS = bytes.fromhex(
    "000105aeec6b00000002"
    "0000000000000001000000000001000000000000000100000001000000000000000600000007ffffffffffffffff"
    "0000000000000002000000000000000000000000000200000000000000000000000500000007ffffffffffffffff"
)


def parse(data):
    return parse_producer_snapshot(data, PATH)


def snapshot(body, version=1):
    return struct.pack(">hI", version, crc32c(body)) + body


def test_an_empty_snapshot():
    assert parse(EMPTY) == ()


def test_two_producers():
    assert parse(TWO_PRODUCERS) == (
        ProducerStateEntry(1, 0, 1, 1, 1, 6, 7, None),
        ProducerStateEntry(2, 0, 0, 2, 0, 5, 7, None),
    )


def test_an_open_transaction():
    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", 5, 2, -1, -1, 0, 1_600_000_000_000, -1, 0)
    assert parse(snapshot(body)) == (ProducerStateEntry(5, 2, -1, -1, 0, 1_600_000_000_000, -1, 0),)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "at least 10 bytes, found 0"),
        (TWO_PRODUCERS[:9], "at least 10 bytes, found 9"),
        (snapshot(b"\0\0\0\0", version=2), "version 1, found 2"),
        (TWO_PRODUCERS[:-1], "CRC-32C"),
        (TWO_PRODUCERS[:-1] + b"\0", "CRC-32C 0x05aeec6b, found 0x"),
        (snapshot(b"\x7f\xff\xff\xff"), "98784247772 bytes for 2147483647 producers, found 10"),
        (snapshot(b"\xff\xff\xff\xff"), "for -1 producers, found 10"),
        (snapshot(b"\0\0\0\0\0"), "10 bytes for 0 producers, found 11"),
    ],
)
def test_refuses(data, message):
    with pytest.raises(CorruptSnapshotError) as caught:
        parse(data)
    assert message in str(caught.value)
    assert PATH in str(caught.value)


int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)


@given(
    st.lists(
        st.tuples(int64, int16, int32, int64, int32, int64, int32, st.integers(0, 2**63 - 1)), max_size=5
    )
)
def test_round_trip(entries):
    body = struct.pack(">i", len(entries)) + b"".join(struct.pack(">qhiqiqiq", *entry) for entry in entries)
    assert parse(snapshot(body)) == tuple(ProducerStateEntry(*entry) for entry in entries)


def test_a_directory_in_its_place_is_corrupt(tmp_path):
    (tmp_path / PATH).mkdir()
    with pytest.raises(CorruptSnapshotError):
        read_producer_snapshot(FileSystem(), str(tmp_path / PATH))


# -- Writing --------


def test_writes_the_bytes_of_kafka(tmp_path):
    path = tmp_path / PATH
    write_producer_snapshot(FileSystem(), str(path), [])
    assert path.read_bytes() == EMPTY
    entries = [
        ProducerStateEntry(1, 0, 1, 1, 1, 6, 7, None),
        ProducerStateEntry(2, 0, 0, 2, 0, 5, 7, None),
    ]
    write_producer_snapshot(FileSystem(), str(path), iter(entries))
    assert path.read_bytes() == TWO_PRODUCERS
    assert len(TWO_PRODUCERS) == 102
    assert read_producer_snapshot(FileSystem(), str(path)) == tuple(entries)
    assert [entry.name for entry in tmp_path.iterdir()] == [PATH]


@pytest.mark.parametrize(("flush", "flushes"), [(True, 2), (False, 0)])
def test_flushing_may_be_left_to_the_caller(tmp_path, flush, flushes):
    filesystem = FileSystem()
    write_producer_snapshot(filesystem, str(tmp_path / PATH), [], flush=flush)
    assert filesystem.statistics.flushes == flushes
    assert (tmp_path / PATH).read_bytes() == EMPTY


@given(
    st.lists(
        st.tuples(int64, int16, int32, int64, int32, int64, int32, st.none() | st.integers(0, 2**63 - 1)).map(
            lambda fields: ProducerStateEntry(*fields)
        ),
        max_size=5,
    )
)
def test_what_is_written_is_read(entries):
    data = producer_snapshot_bytes(entries)
    assert len(data) == 10 + 46 * len(entries)
    assert parse(data) == tuple(entries)
