from __future__ import annotations

import pytest

from storage_core.errors import StorageError
from storage_core.segment import AbortedTransaction, TimestampOffset
from storage_core.segment.segment_indexes import SegmentIndexes
from tests.faults.simulated_filesystem import SimulatedFileSystem

STEM = "00000000000000000100"


@pytest.fixture
def indexes(tmp_path, disk):
    return SegmentIndexes(disk, str(tmp_path), 100, ".cleaned", 48)


def sizes(folder):
    return {path.name.removeprefix(STEM): path.stat().st_size for path in sorted(folder.iterdir())}


def test_files_appear_when_they_are_written(indexes, tmp_path):
    assert not indexes.is_open
    indexes.transactions.append(AbortedTransaction(7, 101, 102, 103))
    assert sizes(tmp_path) == {".txnindex.cleaned": 34}
    indexes.open()
    assert indexes.is_open
    assert sizes(tmp_path) == {".index.cleaned": 48, ".timeindex.cleaned": 48, ".txnindex.cleaned": 34}


def test_trim_says_whether_it_changed_a_file(indexes, tmp_path):
    indexes.add_one(105, 10, TimestampOffset(7, 104))
    assert indexes.trim(TimestampOffset(7, 104)) is True
    assert sizes(tmp_path) == {".index.cleaned": 8, ".timeindex.cleaned": 12}
    assert indexes.trim(TimestampOffset(7, 104)) is False
    assert indexes.trim(None) is False
    assert indexes.trim(TimestampOffset(9, 106)) is True
    assert indexes.times.last_entry == TimestampOffset(9, 106)


def test_an_entry_is_in_both_indexes_or_in_none(indexes, disk):
    indexes.add_one(105, 10, TimestampOffset(7, 104))
    disk.failing_suffix = ".timeindex.cleaned"
    with pytest.raises(StorageError):
        indexes.add_one(106, 20, TimestampOffset(8, 106))
    assert (len(indexes.offsets), indexes.offsets.last_offset, len(indexes.times)) == (1, 105, 1)
    disk.failing_suffix = ".index.cleaned"
    with pytest.raises(StorageError):
        indexes.add_one(106, 20, TimestampOffset(8, 106))
    assert (len(indexes.offsets), len(indexes.times)) == (1, 1)


def test_new_names(indexes, tmp_path):
    indexes.add_one(105, 10, TimestampOffset(7, 104))
    indexes.rename(str(tmp_path), "")
    assert sizes(tmp_path) == {".index": 48, ".timeindex": 48}
    assert indexes.offsets.lookup(105).position_bytes == 10
    indexes.delete()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("suffix", "order"),
    [("", [".txnindex", ".index", ".timeindex"]), (".deleted", [".index", ".timeindex", ".txnindex"])],
)
def test_no_offset_index_stands_without_the_transaction_index(suffix, order):
    """Who reads meanwhile looks at the offset index first, and takes what is missing beside it for silence."""
    filesystem, renamed = SimulatedFileSystem(), []
    filesystem.make_directory("/log")
    indexes = SegmentIndexes(filesystem, "/log", 100, ".swap", 48)
    indexes.add_one(105, 10, TimestampOffset(7, 104))
    indexes.transactions.append(AbortedTransaction(7, 101, 102, 103))
    filesystem.observe = lambda call: renamed.append(call.path.removeprefix(f"/log/{STEM}"))
    indexes.rename("/log", suffix)
    assert renamed == [f"{each}{suffix}" for each in order]


def test_a_transaction_index_is_whole_before_the_offset_index_is_built(indexes, tmp_path):
    """A segment without an offset index is recovered, whatever its transaction index says."""
    aborted = AbortedTransaction(7, 101, 102, 103)
    indexes.transactions.append(aborted)

    def parts():
        assert indexes.transactions.read().entries == (aborted, AbortedTransaction(8, 110, 111, 112))
        return iter(())

    class Parts:
        def __iter__(self):
            return parts()

    indexes.rebuild(Parts(), [aborted, AbortedTransaction(8, 110, 111, 112)])
    assert sizes(tmp_path) == {".index.cleaned": 0, ".timeindex.cleaned": 0, ".txnindex.cleaned": 68}
