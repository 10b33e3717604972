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
    """Return what a kill leaves at each call after the journal, up to the line that makes the rows visible."""
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
    """Return a state in which all is published, and the rows are not visible yet."""
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


def test_a_commit_of_a_killed_process_can_be_completed():
    states = committed()
    assert len(states) > 20
    assert all(answer(filesystem) for filesystem in states)


def test_the_journal_has_a_link_and_appends(begun):
    """What the tests below damage is what the journal names."""
    journal = read_commit_journal(begun, ROOT)
    names = [type(each).__name__ for part in journal.partitions for each in part.operations]
    assert names == ["AppendOperation", "AppendOperation", "LinkOperation", "AppendOperation"]


def repeat_first_batch(filesystem, path):
    """Leave the first batch twice: whole ones, but others than were staged."""
    content = filesystem.files()[path]
    size_bytes = 12 + int.from_bytes(content[8:12], "big")
    filesystem.put(path, content[:size_bytes] * 2)


def forget_second_offset(filesystem, path):
    """Change the second offset: no CRC covers it."""
    change(filesystem, path, 12 + int.from_bytes(filesystem.files()[path][8:12], "big"), bytes(8))


DAMAGES = {
    "a wrong CRC": flip_last,
    "an early end": lambda filesystem, path: cut(filesystem, path, len(filesystem.files()[path]) - 1),
    "zeros": lambda filesystem, path: filesystem.put(path, bytes(len(filesystem.files()[path]))),
    "no file": lambda filesystem, path: filesystem.delete(path),
    "no offset in the second batch": forget_second_offset,
    "another epoch in the first batch": lambda filesystem, path: change(filesystem, path, 12, b"\0\0\0\7"),
    "other batches": repeat_first_batch,
}


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        *((".pack", name) for name in list(DAMAGES)[:4]),
        *((".log", name) for name in DAMAGES),
        (".index", "no file"),
        (".timeindex", "no file"),
    ],
)
def test_a_damaged_staged_file(begun, suffix, damage):
    DAMAGES[damage](begun, staged(begun, suffix))
    assert not answer(begun)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (LOG, "a wrong CRC"),
        (LOG, "an early end"),
        ("00000000000000000000.timeindex", "an early end"),
        ("00000000000000000005.snapshot", "no file"),
    ],
)
def test_a_damaged_file_of_the_log(begun, name, damage):
    DAMAGES[damage](begun, f"{ROOT}/orders-0/{name}")
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


@pytest.mark.parametrize("name", [LOG, "00000000000000000009.log"])
def test_more_than_the_job_has_written(published, name):
    """Another process has appended since, or rolled: completing the job again would truncate that."""
    path = f"{ROOT}/orders-0/{name}"
    published.put(path, published.files().get(path, b"") + b"\0" * (name == LOG))
    assert not answer(published)


def test_batches_larger_than_a_window_are_checked(monkeypatch):
    """A batch may be larger than what is read at once."""
    monkeypatch.setattr("storage_core.commit_replay.replay._WINDOW_BYTES", 70)
    filesystem = committed()[0]
    assert answer(filesystem)
    flip_last(filesystem, staged(filesystem, ".log"))
    assert not answer(filesystem)
