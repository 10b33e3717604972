from __future__ import annotations

import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import LogDirectoryError
from storage_core.filesystem import FileSystem
from storage_core.segment import AbortedTransaction, TransactionIndex
from storage_core.segment.transaction_index import MAX_TRANSACTION_INDEX_SIZE_BYTES

# Written by a broker: producer 2 began at offset 2, was aborted at 4, producer 1 was still open from 0.
GOLDEN = bytes.fromhex("00000000000000000002000000000000000200000000000000040000000000000000")
ENTRY = AbortedTransaction(producer_id=2, first_offset=2, last_offset=4, last_stable_offset=0)


def pack(*entries, version=0):
    return b"".join(struct.pack(">hqqqq", version, *entry) for entry in entries)


@pytest.fixture
def read(tmp_path):
    path = tmp_path / "00000000000000000000.txnindex"

    def read_index(content, base_offset=0):
        path.write_bytes(content)
        return TransactionIndex.read(FileSystem(), str(path), base_offset)

    return read_index


def test_entry_of_a_broker(read):
    found = read(GOLDEN)
    assert (found.entries, found.exists, found.problem) == ((ENTRY,), True, None)


def test_a_missing_file_is_no_problem_but_told_apart_from_an_empty_one(read, tmp_path):
    missing = TransactionIndex.read(FileSystem(), str(tmp_path / "absent.txnindex"), 0)
    assert (missing.entries, missing.exists, missing.problem) == ((), False, None)
    assert (read(b"").entries, read(b"").exists, read(b"").problem) == ((), True, None)


@pytest.mark.parametrize("cut", range(1, len(GOLDEN)))
def test_an_index_that_was_cut_inside_an_entry_is_a_problem(read, cut):
    index = read(GOLDEN + pack((3, 5, 9, 10))[:cut])
    assert index.entries == ()
    assert "no multiple of 34" in index.problem


@pytest.mark.parametrize("version", [1, 256, -1])
def test_another_version_is_a_problem(read, version):
    index = read(GOLDEN + pack((3, 5, 9, 10), version=version))
    assert index.entries == ()
    assert "version" in index.problem


@pytest.mark.parametrize(
    ("content", "base_offset"),
    [
        pytest.param(pack((1, 2, 9, 9), (1, 3, 9, 9)), 0, id="markers repeat"),
        pytest.param(pack((1, 2, 9, 9), (1, 3, 8, 9)), 0, id="markers descend"),
        pytest.param(pack((1, 2, 9, 9)), 10, id="marker below the base offset"),
        pytest.param(pack((1, 10, 9, 9)), 0, id="begins after its marker"),
    ],
)
def test_entries_out_of_order_are_a_problem(read, content, base_offset):
    index = read(content, base_offset)
    assert index.entries == ()
    assert index.problem


def test_a_transaction_may_begin_in_an_earlier_segment(read):
    assert read(pack((1, 2, 10, 11)), base_offset=10).problem is None


def test_a_file_beyond_the_limit_is_a_problem(filesystem, tmp_path):
    path = tmp_path / "huge.txnindex"
    path.write_bytes(b"")
    os.truncate(path, MAX_TRANSACTION_INDEX_SIZE_BYTES + 1)
    index = TransactionIndex.read(filesystem, str(path), 0)
    assert index.entries == ()
    assert index.problem
    assert filesystem.statistics.bytes_read == 0


def test_a_fifo_is_refused(filesystem, tmp_path):
    path = tmp_path / "fifo.txnindex"
    os.mkfifo(path)
    with pytest.raises(LogDirectoryError):
        TransactionIndex.read(filesystem, str(path), 0)


# (producer, first, marker, last stable offset), as Kafka's own test of this method has them.
COLLECTED = [(0, 0, 10, 2), (1, 5, 15, 16), (2, 18, 35, 25), (3, 32, 50, 40)]


@pytest.mark.parametrize(
    ("fetch_offset", "upper_bound", "producers", "is_complete"),
    [
        (0, 100, [0, 1, 2, 3], False),
        (0, 32, [0, 1, 2], True),
        (0, 35, [0, 1, 2, 3], True),
        (10, 35, [0, 1, 2, 3], True),
        (11, 35, [1, 2, 3], True),
        (20, 41, [2, 3], False),
        (51, 100, [], False),
    ],
)
def test_collecting_aborted_transactions(read, fetch_offset, upper_bound, producers, is_complete):
    collected, complete = read(pack(*COLLECTED)).collect_aborted_transactions(fetch_offset, upper_bound)
    assert [entry.producer_id for entry in collected] == producers
    assert complete == is_complete


@given(content=st.binary(max_size=200), base_offset=st.integers(0, 2**63 - 1))
def test_garbage_never_raises(tmp_path_factory, content, base_offset):
    path = tmp_path_factory.mktemp("index") / "0.txnindex"
    path.write_bytes(content)
    index = TransactionIndex.read(FileSystem(), str(path), base_offset)
    assert all(entry.last_offset >= base_offset for entry in index.entries)
