from __future__ import annotations

import os

import pytest

from storage_core import LogDirectory
from storage_core.errors import StorageError
from storage_core.filesystem import FileSystem
from storage_core.log.log_segments import LogSegments
from tests.log.logs import MARKER, NOW_MS, Clock, offsets, small, table

BASES = [0, 10, 20, 40]


class Stub:
    """What the collection needs of a segment."""

    def __init__(self, base_offset):
        self.base_offset = base_offset
        self.calls = []

    def close(self):
        self.calls.append("close")
        if self.base_offset == 10:
            raise StorageError("No space left.")

    def close_handlers(self):
        self.calls.append("close_handlers")


@pytest.fixture
def segments():
    return LogSegments(Stub(base_offset) for base_offset in (20, 0, 40, 10))


def base(segment):
    return None if segment is None else segment.base_offset


def bases(found):
    return [segment.base_offset for segment in found]


def test_in_order(segments):
    assert bases(segments) == segments.base_offsets == BASES
    assert len(segments) == 4
    assert base(segments.active) == 40


def test_nothing():
    empty = LogSegments()
    assert empty.floor(5) is None
    assert (len(empty), list(empty), empty.values()) == (0, [], [])
    with pytest.raises(IndexError):
        _ = empty.active


@pytest.mark.parametrize("offset", range(-1, 43))
def test_floor_and_higher(segments, offset):
    assert base(segments.floor(offset)) == max((each for each in BASES if each <= offset), default=None)
    assert bases(segments.higher_segments(offset)) == [each for each in BASES if each > offset]


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        (None, None, BASES),
        (0, 50, BASES),
        (0, 40, [0, 10, 20]),
        (0, 41, BASES),
        (10, 20, [10]),
        (11, 20, [10]),
        (11, 21, [10, 20]),
        (9, 10, [0]),
        (-5, 5, [0]),
        (-5, 0, []),
        (10, 10, []),
        (15, 15, [10]),
        (39, None, [20, 40]),
        (100, None, [40]),
        (None, 20, [0, 10]),
    ],
)
def test_values(segments, start, end, found):
    assert bases(segments.values(start, end)) == found


def test_a_range_does_not_begin_before_the_first_segment():
    assert bases(LogSegments([Stub(5), Stub(7)]).values(0, 6)) == [5]


def test_add_and_remove(segments):
    seen_before = iter(segments)
    segments.add(Stub(30))
    segments.add(Stub(50))
    segments.add(again := Stub(10))
    assert segments.base_offsets == [0, 10, 20, 30, 40, 50]
    assert segments.floor(10) is again
    segments.remove_all([10, 50, 99])
    assert segments.base_offsets == [0, 20, 30, 40]
    assert bases(seen_before) == BASES


def test_each_segment_is_closed_although_one_fails(segments):
    with pytest.raises(StorageError, match="No space"):
        segments.close()
    assert [segment.calls for segment in segments] == [["close"]] * 4
    segments.close_handlers()
    assert [segment.calls for segment in segments] == [["close", "close_handlers"]] * 4


# -- Removed files --------


CONFIG = small(cleanup_policy="compact,delete", retention_ms=1000, min_cleanable_dirty_ratio=0.0)


def append(log, count=1):
    for _ in range(count):
        # As if each had a key of its own, no record is superseded.
        number = log.log_end_offset
        log.append(table(b"%032d" % number, keys=[b"%d" % number], timestamps=[NOW_MS]))


def open_log(root):
    """Four closed segments with every kind of file beside them, and an active one."""
    clock = Clock()
    logs = LogDirectory.open(root, config=CONFIG, clock=clock, filesystem=FileSystem())
    log = logs.create("t")
    append(log, 12)
    transaction = log.transaction(7)
    transaction.append(table(b"aborted", keys=[b"a"], timestamps=[NOW_MS]))
    transaction.abort()
    append(log, 24)
    logs.checkpoint()
    return logs, log, clock


def old_segments_go(log, clock):
    clock.time_ms += 10_000
    assert log.apply_retention()


WORK = {
    "append and roll": lambda log, _: (append(log, 12), log.roll()),
    "retention": old_segments_go,
    "delete records": lambda log, _: log.delete_records(25),
    "truncate": lambda log, _: log.truncate_to(15),
    "truncate into a closed segment": lambda log, _: log.truncate_to(5),
    "begin anew": lambda log, _: log.truncate_fully_and_start_at(100),
    "clean": lambda log, _: log.clean(),
    "flush": lambda log, _: log.flush(),
}
SUFFIXES = (".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint", "partition.metadata")
# A cleaner believes a transaction index, as a broker's does: without it, aborted records stay.
CASES = [(suffix, work) for suffix in SUFFIXES for work in WORK if (suffix, work) != (".txnindex", "clean")]


@pytest.mark.cases(6, 20)
@pytest.mark.parametrize(("suffix", "work"), CASES)
def test_a_log_goes_on_without_what_somebody_has_removed(tmp_path, suffix, work):
    found = []
    for removes in (False, True):
        root = tmp_path / str(removes)
        logs, log, clock = open_log(root)
        removed = [name for name in os.listdir(log.path) if name.endswith(suffix)]
        assert removed
        for name in removed if removes else ():
            os.unlink(os.path.join(log.path, name))
        WORK[work](log, clock)
        append(log)
        seen = offsets(log)
        logs.close()
        assert (root / MARKER).exists()
        with LogDirectory.open(root, config=CONFIG, clock=Clock()) as logs:
            log = logs.get("t")
            found.append((seen, offsets(log), log.log_start_offset, log.log_end_offset))
    assert found[0] == found[1]


@pytest.mark.parametrize("is_there", [False, True])
def test_a_snapshot_that_is_gone_is_none_that_waits_for_its_removal(tmp_path, is_there):
    """It is named all the same: to delete it later is harmless."""
    logs, log, clock = open_log(tmp_path)
    gone = sorted(name for name in os.listdir(log.path) if name.endswith(".snapshot"))[:2]
    for name in gone if not is_there else ():
        os.unlink(os.path.join(log.path, name))
    old_segments_go(log, clock)
    left = os.listdir(log.path)
    assert [f"{name}.deleted" in left for name in gone] == [is_there] * 2
    clock.time_ms += 100_000
    log.roll()
    assert not [name for name in os.listdir(log.path) if name.endswith(".deleted")]
    logs.close()
