"""Whether a commit that was not flushed can be completed: everything that its journal names, one damage at a time."""

from __future__ import annotations

import pytest

from storage_core.commit_files.journal import read_commit_journal
from storage_core.commit_replay.replay import can_complete
from tests.commit.jobs import JOBS, ROOT, fill, rows_of, staged_job
from tests.faults.simulated_filesystem import SimulatedFileSystem

LOG = "00000000000000000000.log"
STAGED = ".segmentlog-stage-"


def committed(**settings):
    """What a kill leaves at each call after the journal, up to the line that makes the rows visible."""
    filesystem = SimulatedFileSystem()
    fill(filesystem, ROOT, ("orders", 0, 5), ("orders", 1, 7))
    rows = rows_of(("orders", 0, 4), ("orders", 1, 60), ("new", 0, 3))
    job = staged_job(
        filesystem,
        ROOT,
        JOBS[0],
        rows,
        rows_of(("orders", 1, 2), name="second"),
        flush=False,
        new_partitions={"new": 1},
        **settings,
    )
    found = []

    def observe(call):
        files = filesystem.files()
        if f"{ROOT}/.segmentlog-journal" in files and f"{ROOT}/.segmentlog-commits" not in files:
            found.append(filesystem.kill())

    filesystem.observe = observe
    job.commit()
    return found


def answer(filesystem):
    return can_complete(filesystem, ROOT, read_commit_journal(filesystem, ROOT))


@pytest.fixture
def begun():
    """Nothing is published yet."""
    return committed()[0]


@pytest.fixture
def published():
    """All is published, and the rows are not visible yet."""
    return committed()[-1]


def staged(filesystem, suffix):
    return next(path for path in filesystem.files() if STAGED in path and path.endswith(suffix))


def change(filesystem, path, position, data):
    content = bytearray(filesystem.files()[path])
    content[position : position + len(data)] = data
    filesystem.put(path, bytes(content))


def flip_last(filesystem, path):
    change(filesystem, path, -1, bytes([filesystem.files()[path][-1] ^ 1]))


def cut(filesystem, path, size_bytes):
    filesystem.put(path, filesystem.files()[path][:size_bytes])


def test_what_a_killed_process_leaves_is_whole():
    states = committed()
    assert len(states) > 20
    assert all(answer(filesystem) for filesystem in states)


def test_a_large_piece_and_an_append_to_it_are_among_it(begun):
    """What the tests below damage is what the journal names."""
    journal = read_commit_journal(begun, ROOT)
    names = [type(each).__name__ for part in journal.partitions for each in part.operations]
    assert names == ["AppendOperation", "AppendOperation", "LinkOperation", "AppendOperation"]


@pytest.mark.parametrize("suffix", [".pack", ".log"])
def test_records_with_a_wrong_crc(begun, suffix):
    flip_last(begun, staged(begun, suffix))
    assert not answer(begun)


@pytest.mark.parametrize("suffix", [".pack", ".log"])
def test_a_staged_file_that_ends_too_early(begun, suffix):
    path = staged(begun, suffix)
    cut(begun, path, len(begun.files()[path]) - 1)
    assert not answer(begun)


@pytest.mark.parametrize("suffix", [".pack", ".log", ".index", ".timeindex"])
def test_a_staged_file_that_is_gone(begun, suffix):
    begun.delete(staged(begun, suffix))
    assert not answer(begun)


@pytest.mark.parametrize("suffix", [".pack", ".log"])
def test_zeros_in_place_of_a_staged_file(begun, suffix):
    path = staged(begun, suffix)
    begun.put(path, bytes(len(begun.files()[path])))
    assert not answer(begun)


def test_a_staged_segment_whose_second_batch_lost_its_offset(begun):
    """No CRC covers it."""
    path = staged(begun, ".log")
    second = 12 + int.from_bytes(begun.files()[path][8:12], "big")
    change(begun, path, second, bytes(8))
    assert not answer(begun)


def test_a_staged_segment_whose_first_batch_lost_its_epoch(begun):
    change(begun, staged(begun, ".log"), 12, b"\x00\x00\x00\x07")
    assert not answer(begun)


def test_a_staged_segment_with_other_batches(begun):
    """Whole ones, of another segment."""
    path = staged(begun, ".log")
    size_bytes = 12 + int.from_bytes(begun.files()[path][8:12], "big")
    content = begun.files()[path]
    begun.put(path, content[:size_bytes] + content[:size_bytes])
    assert not answer(begun)


def test_a_log_that_lost_its_end(begun):
    path = f"{ROOT}/orders-0/{LOG}"
    cut(begun, path, len(begun.files()[path]) - 1)
    assert not answer(begun)


def test_a_log_whose_end_is_torn(begun):
    flip_last(begun, f"{ROOT}/orders-0/{LOG}")
    assert not answer(begun)


def test_an_index_that_lost_its_end(begun):
    path = f"{ROOT}/orders-0/00000000000000000000.timeindex"
    cut(begun, path, len(begun.files()[path]) - 12)
    assert not answer(begun)


def test_a_lost_snapshot(begun):
    begun.delete(f"{ROOT}/orders-0/00000000000000000005.snapshot")
    assert not answer(begun)


def test_a_published_segment_replaces_a_staged_one(published):
    for suffix in (".log", ".index", ".timeindex"):
        published.delete(staged(published, suffix))
    assert answer(published)


def test_a_published_segment_that_is_torn(published):
    path = staged(published, ".log")
    size_bytes = len(published.files()[path])
    for suffix in (".log", ".index", ".timeindex"):
        published.delete(staged(published, suffix))
    segment = next(
        path for path in published.files() if path.startswith(f"{ROOT}/orders-1/") and path.endswith("7.log")
    )
    change(published, segment, size_bytes // 2, b"\xff\xff\xff\xff")
    assert not answer(published)


def test_more_than_the_job_has_written(published):
    """Another process has appended since: completing it again would truncate that."""
    path = f"{ROOT}/orders-0/{LOG}"
    published.put(path, published.files()[path] + b"\x00")
    assert not answer(published)


def test_a_segment_that_is_not_the_jobs(published):
    published.put(f"{ROOT}/orders-0/00000000000000000009.log", b"")
    assert not answer(published)


def test_a_small_window_shows_the_same(monkeypatch):
    """A batch may be larger than what is read at once."""
    monkeypatch.setattr("storage_core.commit_replay.replay._WINDOW_BYTES", 70)
    filesystem = committed()[0]
    assert answer(filesystem)
    flip_last(filesystem, staged(filesystem, ".log"))
    assert not answer(filesystem)
