from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.checkpoint import EpochEntry
from storage_core.errors import CorruptCheckpointError, StorageError
from storage_core.filesystem import FileSystem
from storage_core.log.leader_epoch_cache import LeaderEpochCache, end_offset_for, epoch_for_offset
from storage_core.record.batch_header import HEADER_DTYPE
from storage_core.record.record_batches import RecordBatches
from tests.log.producing import data
from tests.record.legacy_encoding import Message

NAME = "leader-epoch-checkpoint"


@pytest.fixture
def cache(tmp_path):
    return open_cache(tmp_path)


def open_cache(directory):
    return LeaderEpochCache(FileSystem(), str(directory / NAME))


def filled(directory, *pairs):
    cache = open_cache(directory)
    for pair in pairs:
        cache.assign(*pair)
    return cache


def pairs_of(cache):
    return [(entry.epoch, entry.start_offset) for entry in cache.entries]


def headers(*batches):
    return RecordBatches.parse(b"".join(batches)).headers


class RefusingFileSystem(FileSystem):
    """Refuses to write as often as it is told to."""

    refusals = 0

    def create_temporary(self, path, **options):
        if self.refusals:
            self.refusals -= 1
            raise StorageError("No space left.", path=path)
        return super().create_temporary(path, **options)


# -- An empty cache --------


def test_an_empty_cache_knows_nothing(cache):
    assert (cache.entries, cache.latest_epoch) == ((), None)
    assert epoch_for_offset((), 0) is None
    assert end_offset_for((), 0, 73) == (-1, -1)


def test_no_file_appears_before_there_is_something_to_write(tmp_path, cache):
    cache.truncate_from_end(0)
    cache.truncate_from_start(5)
    cache.clear()
    cache.assign_batches(headers())
    cache.flush()
    assert list(tmp_path.iterdir()) == []


# -- assign --------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # The first one.
        ([(2, 10)], [(2, 10)]),
        # The same epoch again: it began where it first began.
        ([(2, 10), (2, 11)], [(2, 10)]),
        ([(2, 10), (2, 10)], [(2, 10)]),
        # A higher one.
        ([(2, 10), (3, 15)], [(2, 10), (3, 15)]),
        ([(2, 10), (3, 15), (3, 16)], [(2, 10), (3, 15)]),
        # The same epoch from a lower offset on.
        ([(2, 10), (2, 9)], [(2, 9)]),
        # A lower epoch takes the place of what was above it.
        ([(1, 10), (2, 15), (4, 20), (3, 25)], [(1, 10), (2, 15), (3, 25)]),
        ([(4, 0), (1, 7)], [(1, 7)]),
        ([(1, 5), (2, 6), (2, 7), (1, 8)], [(1, 8)]),
        # A newer epoch from the same offset on: the older one had no record.
        ([(1, 5), (2, 5)], [(2, 5)]),
        # From a lower offset on: epochs that began after it are removed.
        ([(2, 6), (3, 5)], [(3, 5)]),
        ([(2, 6), (3, 7), (4, 5)], [(4, 5)]),
        ([(2, 6), (3, 8), (4, 7)], [(2, 6), (4, 7)]),
    ],
)
def test_assign(tmp_path, given, expected):
    cache = filled(tmp_path, *given)
    assert pairs_of(cache) == expected
    assert pairs_of(open_cache(tmp_path)) == expected


@pytest.mark.parametrize("pair", [(-1, 0), (0, -1), (-1, -1)])
def test_assign_refuses_what_is_negative(cache, pair):
    with pytest.raises(ValueError, match="from 0 on, found"):
        cache.assign(*pair)
    assert pairs_of(cache) == []


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 12)), max_size=12))
def test_epochs_and_offsets_ascend_whatever_is_assigned(tmp_path_factory, assigned):
    cache = open_cache(tmp_path_factory.mktemp("cache"))
    for epoch, start_offset in assigned:
        cache.assign(epoch, start_offset)
        assert cache.latest_epoch == epoch
    epochs, offsets = zip(*pairs_of(cache), strict=True) if assigned else ((), ())
    assert list(epochs) == sorted(set(epochs))
    assert list(offsets) == sorted(set(offsets))


# -- What it answers --------


def test_latest_epoch(tmp_path):
    assert filled(tmp_path, (2, 6), (4, 8)).latest_epoch == 4


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        # The latest one ends at the log end, which moves.
        (7, (7, 99)),
        # None is as high.
        (8, (-1, -1)),
        # Older than the first one: the log begins with that.
        (1, (1, 11)),
        (0, (0, 11)),
        # Known, or between two that are known.
        (2, (2, 12)),
        (3, (3, 14)),
        (4, (3, 14)),
        (6, (3, 14)),
        # Undefined.
        (-1, (-1, -1)),
    ],
)
def test_end_offset_for(epoch, expected):
    entries = (EpochEntry(2, 11), EpochEntry(3, 12), EpochEntry(7, 14))
    assert end_offset_for(entries, epoch, 99) == expected


@pytest.mark.parametrize(
    ("offset", "expected"), [(0, None), (9, None), (10, 2), (14, 2), (15, 4), (16, 4), (2**63 - 1, 4)]
)
def test_epoch_for_offset(offset, expected):
    assert epoch_for_offset((EpochEntry(2, 10), EpochEntry(4, 15)), offset) == expected


# -- Truncation --------


@pytest.mark.parametrize(
    ("end_offset", "expected"),
    [
        # An epoch that begins there goes.
        (8, [(2, 6)]),
        (9, [(2, 6), (3, 8)]),
        (11, [(2, 6), (3, 8)]),
        (12, [(2, 6), (3, 8), (4, 11)]),
        (100, [(2, 6), (3, 8), (4, 11)]),
        (6, []),
        (0, []),
        (-1, [(2, 6), (3, 8), (4, 11)]),
    ],
)
def test_truncate_from_end(tmp_path, end_offset, expected):
    cache = filled(tmp_path, (2, 6), (3, 8), (4, 11))
    cache.truncate_from_end(end_offset)
    assert pairs_of(cache) == expected
    assert pairs_of(open_cache(tmp_path)) == expected


@pytest.mark.parametrize(
    ("start_offset", "expected"),
    [
        # An epoch that begins there stays.
        (8, [(3, 8), (4, 11)]),
        # Within an epoch, it begins there from now on.
        (7, [(2, 7), (3, 8), (4, 11)]),
        (9, [(3, 9), (4, 11)]),
        # Within the last one, and after everything.
        (16, [(4, 16)]),
        # At and before the first one nothing changes.
        (6, [(2, 6), (3, 8), (4, 11)]),
        (5, [(2, 6), (3, 8), (4, 11)]),
        (-1, [(2, 6), (3, 8), (4, 11)]),
    ],
)
def test_truncate_from_start(tmp_path, start_offset, expected):
    cache = filled(tmp_path, (2, 6), (3, 8), (4, 11))
    cache.truncate_from_start(start_offset)
    assert pairs_of(cache) == expected
    assert pairs_of(open_cache(tmp_path)) == expected


def test_clear(tmp_path):
    cache = filled(tmp_path, (2, 6), (3, 8))
    cache.clear()
    assert pairs_of(cache) == []
    assert (tmp_path / NAME).read_bytes() == b"0\n0\n"


# -- What batches say --------


def test_an_append_assigns_the_epoch_of_each_batch(cache):
    cache.assign_batches(headers(data(3, leader_epoch=1), data(4, leader_epoch=1), data(5, leader_epoch=4)))
    assert pairs_of(cache) == [(1, 3), (4, 5)]
    cache.assign_batches(headers(data(6, leader_epoch=4)))
    assert pairs_of(cache) == [(1, 3), (4, 5)]
    cache.assign_batches(headers(data(9, leader_epoch=6)))
    assert pairs_of(cache) == [(1, 3), (4, 5), (6, 9)]


def test_an_append_of_an_older_format_clears_the_cache(tmp_path):
    cache = filled(tmp_path, (1, 3), (4, 5))
    cache.assign_batches(headers(Message(offset=8).encode()))
    assert pairs_of(cache) == []
    # What follows in the newer format makes it anew.
    cache.assign_batches(headers(Message(offset=8).encode(), data(9, leader_epoch=6)))
    assert pairs_of(cache) == [(6, 9)]


def test_a_batch_without_an_epoch_cannot_be_assigned(cache):
    with pytest.raises(ValueError, match="found -1 and 3"):
        cache.assign_batches(headers(data(3, leader_epoch=-1)))


def test_recovery_assigns_only_what_is_above(tmp_path):
    cache = filled(tmp_path, (2, 6))
    found = [(5, 1), (6, 2), (9, -1), (11, 4), (12, 3), (14, 4), (15, 7)]
    cache.observe(headers(*(data(offset, leader_epoch=epoch) for offset, epoch in found)))
    assert pairs_of(cache) == [(2, 6), (4, 11), (7, 15)]
    assert pairs_of(open_cache(tmp_path)) == [(2, 6), (4, 11), (7, 15)]


@given(st.lists(st.integers(-1, 5), max_size=12))
def test_many_batches_at_once_are_as_one_after_the_other(tmp_path_factory, epochs):
    batches = [headers(data(offset, leader_epoch=epoch)) for offset, epoch in enumerate(epochs)]
    at_once, one_by_one = (open_cache(tmp_path_factory.mktemp("cache")) for _ in range(2))
    at_once.observe(headers(*(data(offset, leader_epoch=epoch) for offset, epoch in enumerate(epochs))))
    for batch in batches:
        one_by_one.observe(batch)
    assert pairs_of(at_once) == pairs_of(one_by_one)


# -- The checkpoint --------


def test_the_checkpoint_is_written_at_once(tmp_path):
    filled(tmp_path, (3, 0), (4, 5))
    assert (tmp_path / NAME).read_bytes() == b"0\n2\n3 0\n4 5\n"


def test_one_write_for_one_append(tmp_path):
    filesystem = FileSystem()
    cache = LeaderEpochCache(filesystem, str(tmp_path / NAME))
    cache.assign_batches(headers(*(data(offset, leader_epoch=offset) for offset in range(5))))
    assert len(cache.entries) == 5
    assert filesystem.statistics.writes == 1
    cache.assign_batches(headers(data(5, leader_epoch=4)))
    assert filesystem.statistics.writes == 1


def test_no_write_where_nothing_changes(tmp_path):
    filled(tmp_path, (3, 2), (4, 5))
    filesystem = FileSystem()
    cache = LeaderEpochCache(filesystem, str(tmp_path / NAME))
    cache.assign(4, 5)
    cache.assign(4, 9)
    cache.truncate_from_start(2)
    cache.truncate_from_start(0)
    cache.truncate_from_end(6)
    cache.observe(headers(data(6, leader_epoch=4), data(7, leader_epoch=3)))
    assert filesystem.statistics.writes == 0


def test_a_damaged_checkpoint_is_an_error(tmp_path):
    (tmp_path / NAME).write_bytes(b"0\n1\nthree 0\n")
    with pytest.raises(CorruptCheckpointError, match=NAME):
        open_cache(tmp_path)


def test_what_could_not_be_written_is_written_by_the_next_flush(tmp_path):
    filesystem = RefusingFileSystem()
    cache = LeaderEpochCache(filesystem, str(tmp_path / NAME))
    filesystem.refusals = 1
    with pytest.raises(StorageError):
        cache.assign(3, 0)
    assert pairs_of(open_cache(tmp_path)) == []
    cache.flush()
    assert pairs_of(open_cache(tmp_path)) == [(3, 0)]


def test_as_many_epochs_as_batches_are_observed_in_no_time(tmp_path):
    # One by one, this would copy twenty billion entries.
    count = 200_000
    rows = np.zeros(count, HEADER_DTYPE)
    rows["leader_epoch"] = np.arange(1, count + 1)
    rows["base_offset"] = np.arange(count)
    cache = open_cache(tmp_path)
    cache.assign(0, 0)
    cache.observe(rows)
    assert pairs_of(cache) == [(offset + 1, offset) for offset in range(count)]
