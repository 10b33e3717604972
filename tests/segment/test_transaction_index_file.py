from __future__ import annotations

import random

import pytest

from storage_core.errors import CorruptIndexError, OffsetsOutOfOrderError
from storage_core.filesystem import FileSystem
from storage_core.segment import AbortedTransaction, TransactionIndex
from storage_core.segment.transaction_index import TransactionIndexFile
from tests.faults.simulated_filesystem import SimulatedFileSystem

# Producer id, first offset, marker offset, last stable offset.
TRANSACTIONS = [
    AbortedTransaction(0, 0, 10, 11),
    AbortedTransaction(1, 5, 15, 13),
    AbortedTransaction(2, 18, 35, 25),
    AbortedTransaction(3, 32, 50, 40),
]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "00000000000000000000.txnindex"


def open_index(path, base_offset=0):
    return TransactionIndexFile(FileSystem(), str(path), base_offset)


@pytest.fixture
def index(path):
    filled = open_index(path)
    for transaction in TRANSACTIONS:
        filled.append(transaction)
    return filled


def entries_of(index):
    return list(index.read().entries)


def test_bytes(path):
    open_index(path).append(AbortedTransaction(2, 2, 4, 0))
    expected = "0000 0000000000000002 0000000000000002 0000000000000004 0000000000000000"
    assert path.read_bytes() == bytes.fromhex(expected)


def test_no_file_without_an_entry(path):
    index = open_index(path)
    assert (len(index), index.last_offset, entries_of(index)) == (0, None, [])
    index.truncate_to(0)
    index.replace([])
    index.flush()
    index.check()
    index.extend([])
    index.rename(f"{path}.deleted")
    index.close()
    assert index.delete() is False
    assert list(path.parent.iterdir()) == []


def test_a_file_that_is_known_to_be_absent_is_not_looked_for(path):
    filesystem = FileSystem()
    index = TransactionIndexFile(filesystem, str(path), 0)
    index.note_absence()
    assert (len(index), index.last_offset) == (0, None)
    index.truncate_to(0)
    index.replace([])
    index.flush()
    index.rename(f"{path}.deleted")
    assert index.delete() is False
    assert index.path == f"{path}.deleted"
    assert (filesystem.statistics.files_examined, filesystem.statistics.files_opened) == (0, 0)


def test_once_it_is_written_it_is_there(path):
    index = open_index(path)
    index.note_absence()
    index.append(TRANSACTIONS[0])
    index.flush()
    index.rename(f"{path}.deleted")
    assert entries_of(index) == TRANSACTIONS[:1]
    index.replace([])
    assert (path.parent / f"{path.name}.deleted").read_bytes() == b""
    assert index.delete() is True
    assert list(path.parent.iterdir()) == []


def test_entries_are_added_at_the_end_after_opening_again(index, path):
    index.close()
    again = open_index(path)
    assert (len(again), again.last_offset) == (4, 50)
    again.append(AbortedTransaction(4, 55, 60, 55))
    assert entries_of(again) == [*TRANSACTIONS, AbortedTransaction(4, 55, 60, 55)]


def test_a_cut_off_entry_is_written_over(index, path):
    index.close()
    path.write_bytes(path.read_bytes() + b"\0\0\0\7")
    again = open_index(path)
    assert len(again) == 4
    again.append(AbortedTransaction(4, 55, 60, 55))
    assert entries_of(again) == [*TRANSACTIONS, AbortedTransaction(4, 55, 60, 55)]


@pytest.mark.parametrize("marker_offset", [50, 49, 0])
def test_markers_ascend(index, path, marker_offset):
    before = path.read_bytes()
    with pytest.raises(OffsetsOutOfOrderError, match="after offset 50"):
        index.append(AbortedTransaction(5, 0, marker_offset, 20))
    with pytest.raises(OffsetsOutOfOrderError, match="after offset 60"):
        index.extend([AbortedTransaction(5, 0, 60, 20), AbortedTransaction(6, 0, 60, 20)])
    assert path.read_bytes() == before
    assert index.last_offset == 50


def test_check(index, path):
    index.check()
    with pytest.raises(CorruptIndexError, match="below the segment's base offset 11"):
        open_index(path, base_offset=11).check()
    path.write_bytes(b"\0\1" + path.read_bytes()[2:])
    with pytest.raises(CorruptIndexError, match="version 0, found version 1"):
        open_index(path).check()


@pytest.mark.parametrize(
    ("offset", "kept"), [(51, 4), (50, 3), (36, 3), (35, 2), (15, 1), (11, 1), (10, 0), (0, 0)]
)
def test_truncate_to_drops_markers_from_an_offset_on(index, path, offset, kept):
    index.truncate_to(offset)
    assert entries_of(index) == TRANSACTIONS[:kept]
    assert path.stat().st_size == 34 * kept
    assert index.last_offset == (TRANSACTIONS[kept - 1].last_offset if kept else None)
    index.append(AbortedTransaction(7, 60, 70, 71))
    assert entries_of(index) == [*TRANSACTIONS[:kept], AbortedTransaction(7, 60, 70, 71)]


def test_replace(index, path):
    index.replace(TRANSACTIONS[1:3])
    assert entries_of(index) == TRANSACTIONS[1:3]
    assert (len(index), index.last_offset) == (2, 35)
    index.append(TRANSACTIONS[3])
    assert entries_of(index) == TRANSACTIONS[1:]
    assert list(path.parent.iterdir()) == [path]


def test_replace_by_nothing(index, path):
    index.replace([])
    assert path.read_bytes() == b""
    assert (len(index), index.last_offset) == (0, None)


def test_replace_of_a_cut_off_entry(path):
    path.write_bytes(b"\0\0\0")
    open_index(path).replace([])
    assert path.read_bytes() == b""
    path.write_bytes(b"\0\0\0")
    open_index(path).replace(TRANSACTIONS)
    assert entries_of(open_index(path)) == TRANSACTIONS


def test_replace_where_there_is_no_file(path):
    index = open_index(path)
    index.note_absence()
    index.replace([])
    assert not path.exists()
    index.replace(TRANSACTIONS)
    assert entries_of(index) == TRANSACTIONS


def test_whoever_reads_during_a_replacement_finds_all_or_nothing_new():
    filesystem, found = SimulatedFileSystem(), []
    filesystem.make_directory("/log")
    index = TransactionIndexFile(filesystem, "/log/00000000000000000000.txnindex", 0)
    index.extend(TRANSACTIONS[:2])

    def observe(call):
        found.append(TransactionIndex.read(filesystem, index.path, 0).entries)

    filesystem.observe = observe
    index.replace(TRANSACTIONS)
    observe(None)
    assert found[0] == tuple(TRANSACTIONS[:2])
    assert found[-1] == tuple(TRANSACTIONS)
    assert set(found) == {found[0], found[-1]}
    # Nor does a power cut leave a part of it.
    after = TransactionIndex.read(filesystem.crash(random.Random(1)), index.path, 0)
    assert after.entries == tuple(TRANSACTIONS)


def test_rename_and_delete(index, path):
    index.rename(f"{path}.deleted")
    index.append(AbortedTransaction(4, 55, 60, 55))
    assert len(entries_of(index)) == 5
    assert not path.exists()
    assert index.delete() is True
    assert len(index) == 0
    assert list(path.parent.iterdir()) == []
