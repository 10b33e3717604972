"""Replay finishes or undoes a commit from each state in which it can find a log directory."""

from __future__ import annotations

import random

import pytest

from storage_core import LogDirectory
from storage_core.commit_files.journal import COMMIT_IN_PROGRESS, COMMIT_JOURNAL, read_commit_journal
from storage_core.commit_replay import finish_commit
from storage_core.errors import CommitInDoubtError, CorruptCheckpointError, CorruptError, LogDirectoryError
from tests.commit.jobs import CONFIG, JOBS, ROOT, contents, fill, rows_of, staged_job
from tests.faults.simulated_filesystem import SimulatedCrash, SimulatedFileSystem
from tests.log.logs import Clock


def config_of(topic):
    return CONFIG


def has_unfinished_commit(filesystem, root):
    return any(filesystem.exists(f"{root}/{name}") for name in (COMMIT_IN_PROGRESS, COMMIT_JOURNAL))


@pytest.fixture
def filesystem():
    """Return a state in which the journal is written, and nothing else done."""
    filesystem = SimulatedFileSystem()
    fill(filesystem, ROOT, ("orders", 0, 5), ("orders", 1, 0))
    job = staged_job(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 4), ("orders", 1, 60)))
    found = []

    def observe(call):
        if call.name == "delete" and call.path.endswith(".kafka_cleanshutdown"):
            found.append(filesystem.kill())
            raise SimulatedCrash

    filesystem.observe = observe
    with pytest.raises(SimulatedCrash):
        job.commit()
    return found[0]


def test_nothing_is_done_without_a_commit():
    filesystem = SimulatedFileSystem()
    fill(filesystem, ROOT, ("orders", 0, 5))
    calls = filesystem.calls
    assert not has_unfinished_commit(filesystem, ROOT)
    assert finish_commit(filesystem, ROOT, config_of) is None
    assert filesystem.calls == calls


def test_a_journal_is_finished(filesystem):
    assert has_unfinished_commit(filesystem, ROOT)
    assert len(contents(filesystem, ROOT)["orders", 0]) == 5
    assert finish_commit(filesystem, ROOT, config_of) == JOBS[0]
    assert not has_unfinished_commit(filesystem, ROOT)
    found = contents(filesystem, ROOT)
    assert (len(found["orders", 0]), len(found["orders", 1])) == (9, 60)


def test_opening_a_log_directory_finishes_a_commit(filesystem):
    with LogDirectory.open(ROOT, filesystem=filesystem, config=CONFIG, clock=Clock()) as logs:
        assert logs.get("orders", 0).log_end_offset == 9
        assert logs.get("orders", 1).log_end_offset == 60
    assert not has_unfinished_commit(filesystem, ROOT)


def test_opening_a_log_directory_read_only_finishes_nothing(filesystem):
    calls = filesystem.calls
    with LogDirectory.open(ROOT, filesystem=filesystem, config=CONFIG, clock=Clock(), read_only=True) as logs:
        assert logs.get("orders", 0).log_end_offset == 5
    assert filesystem.calls == calls


def test_an_interlock_without_a_journal_is_removed(filesystem):
    filesystem.delete(f"{ROOT}/{COMMIT_JOURNAL}")
    filesystem.put(f"{ROOT}/{COMMIT_JOURNAL}.tmp", b"{")
    with LogDirectory.open(ROOT, filesystem=filesystem, config=CONFIG, clock=Clock()) as logs:
        assert logs.get("orders", 0).log_end_offset == 5
    assert not has_unfinished_commit(filesystem, ROOT)
    assert f"{ROOT}/{COMMIT_JOURNAL}.tmp" not in filesystem.files()


def test_a_journal_without_an_interlock_is_reported(filesystem):
    filesystem.delete_directory(f"{ROOT}/segmentlog.commit-in-progress")
    before = filesystem.files()
    with pytest.raises(LogDirectoryError, match=r"it was removed during.*Nothing was changed"):
        finish_commit(filesystem, ROOT, config_of)
    with pytest.raises(LogDirectoryError, match="it was removed during"):
        LogDirectory.open(ROOT, filesystem=filesystem, config=CONFIG, clock=Clock())
    assert filesystem.files() == before


@pytest.mark.parametrize("seed", range(5))
def test_a_damaged_journal_is_reported(filesystem, seed):
    path = f"{ROOT}/{COMMIT_JOURNAL}"
    data = bytearray(filesystem.files()[path])
    data[random.Random(seed).randrange(len(data))] ^= 4
    filesystem.put(path, bytes(data))
    before = filesystem.files()
    with pytest.raises(CorruptCheckpointError):
        finish_commit(filesystem, ROOT, config_of)
    assert filesystem.files() == before


def test_a_log_that_somebody_has_changed_is_reported(filesystem):
    with filesystem.open_for_writing(f"{ROOT}/orders-0/00000000000000000000.log") as log:
        log.truncate(20)
    with pytest.raises(CorruptError, match="another program has changed it"):
        finish_commit(filesystem, ROOT, config_of)
    assert read_commit_journal(filesystem, ROOT) is not None
    assert has_unfinished_commit(filesystem, ROOT)


def test_a_lost_snapshot_is_reported(filesystem):
    assert filesystem.delete(f"{ROOT}/orders-0/00000000000000000005.snapshot")
    with pytest.raises(CorruptError, match="producer snapshot at offset 5"):
        finish_commit(filesystem, ROOT, config_of)


@pytest.mark.parametrize("suffix", [".pack", ".log", ".index", ".timeindex"])
def test_a_lost_staged_file_is_named_with_the_way_out(filesystem, suffix):
    lost = next(path for path in filesystem.files() if "-stage-" in path and path.endswith(suffix))
    content = filesystem.files()[lost]
    filesystem.delete(lost)
    with pytest.raises(CorruptError, match=f"commit of job {JOBS[0]}") as caught:
        LogDirectory.open(ROOT, filesystem=filesystem, config=CONFIG, clock=Clock())
    assert caught.value.path == lost
    assert "Restore it" in str(caught.value)
    filesystem.put(lost, content)
    assert finish_commit(filesystem, ROOT, config_of) == JOBS[0]
    assert len(contents(filesystem, ROOT)["orders", 1]) == 60


@pytest.mark.parametrize("suffix", [".pack", ".log"])
def test_a_job_whose_staged_files_are_lost_can_be_given_up(filesystem, suffix):
    for path in filesystem.files():
        if "-stage-" in path and path.endswith(suffix):
            filesystem.delete(path)
    with pytest.raises(CorruptError) as caught:
        finish_commit(filesystem, ROOT, config_of)
    steps = [
        "delete .segmentlog-journal,",
        "then the directory segmentlog.commit-in-progress,",
        f"then .segmentlog-stage-{JOBS[0]}-*",
    ]
    places = [str(caught.value).index(step) for step in steps]
    assert places == sorted(places)
    filesystem.delete(f"{ROOT}/.segmentlog-journal")
    filesystem.delete_directory(f"{ROOT}/segmentlog.commit-in-progress")
    with LogDirectory.open(ROOT, filesystem=filesystem, config=CONFIG, clock=Clock()) as logs:
        assert logs.get("orders", 0).log_end_offset in (5, 9)
    staged_job(filesystem, ROOT, JOBS[1], rows_of(("orders", 1, 60))).commit()
    assert [value for _, value in contents(filesystem, ROOT)["orders", 0][:5]] == [
        f"old:orders:0:{number}".encode() for number in range(5)
    ]


def test_abort_after_the_journal_does_nothing(filesystem):
    before = filesystem.files()
    assert not staged_job(filesystem, ROOT, JOBS[0], is_begun=False).job.abort()
    assert filesystem.files() == before
    assert staged_job(filesystem, ROOT, JOBS[1], is_begun=False).job.abort()
    assert filesystem.files() == before


def test_another_job_finishes_it_first(filesystem):
    job = staged_job(filesystem, ROOT, JOBS[1], rows_of(("orders", 0, 2), name="other"))
    assert job.commit().generation == 2
    assert len(contents(filesystem, ROOT)["orders", 0]) == 11


def test_an_error_after_the_journal_says_that_it_is_in_doubt():
    filesystem = SimulatedFileSystem()
    fill(filesystem, ROOT, ("orders", 0, 5))
    job = staged_job(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 4)))
    filesystem.fail = lambda call: (
        OSError(28, "No space left on device") if call.name == "write" and "/orders-0/" in call.path else None
    )
    with pytest.raises(CommitInDoubtError, match=r"in doubt, and will be completed.*No space left"):
        job.commit()
    filesystem.fail = None
    assert len(contents(filesystem, ROOT)["orders", 0]) == 5
    assert job.commit().was_committed_before
    assert len(contents(filesystem, ROOT)["orders", 0]) == 9
