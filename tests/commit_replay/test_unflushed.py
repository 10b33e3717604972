"""A job that does not flush: its rows are visible at once, and the next process knows what is not on disk."""

from __future__ import annotations

import logging
import random

import pytest

from storage_core import LogDirectory
from storage_core.checkpoint import read_offset_checkpoint
from storage_core.commit_replay.replay import is_as_left_unflushed
from storage_core.errors import CorruptError
from tests.commit.commit_crashes import replay, settled
from tests.commit.jobs import CONFIG, JOBS, ROOT, commit, contents, fill, rows_of, staged_job, states
from tests.faults.simulated_filesystem import SimulatedFileSystem
from tests.log.logs import Clock

BOOT_ID = "/proc/sys/kernel/random/boot_id"
MARKER = f"{ROOT}/.kafka_cleanshutdown"
NOTE = f"{ROOT}/.segmentlog-unflushed"


@pytest.fixture
def filesystem():
    filesystem = SimulatedFileSystem()
    filesystem.put(BOOT_ID, b"2b1c-first\n")
    fill(filesystem, ROOT, ("orders", 0, 5), ("orders", 1, 7))
    return filesystem


def commit_unflushed(filesystem, number, *tasks):
    return commit(filesystem, ROOT, JOBS[number], *tasks, flush=False)


def recovery_points(filesystem):
    return read_offset_checkpoint(filesystem, f"{ROOT}/recovery-point-offset-checkpoint")


def were_loaded(caplog):
    """Return whether the logs were opened, and recovered."""
    found = "logs were loaded" in caplog.text
    caplog.clear()
    return found


@pytest.fixture(autouse=True)
def messages(caplog):
    caplog.set_level(logging.INFO)


def test_rows_are_visible_at_once(filesystem):
    commit_unflushed(filesystem, 0, rows_of(("orders", 0, 4), ("orders", 1, 60)))
    found = contents(filesystem, ROOT)
    assert (len(found["orders", 0]), len(found["orders", 1])) == (9, 67)


def test_the_root_is_left_as_that_of_a_running_broker(filesystem):
    before = recovery_points(filesystem)
    commit_unflushed(filesystem, 0, rows_of(("orders", 0, 4)))
    assert MARKER not in filesystem.files()
    assert recovery_points(filesystem) == before == {("orders", 0): 5, ("orders", 1): 7}
    marks = read_offset_checkpoint(filesystem, f"{ROOT}/replication-offset-checkpoint")
    assert marks["orders", 0] == 9
    with LogDirectory.open(ROOT, filesystem=filesystem, config=CONFIG, clock=Clock()):
        assert NOTE not in filesystem.files()
    assert recovery_points(filesystem)["orders", 0] == 9
    assert MARKER in filesystem.files()


def test_the_next_such_job_recovers_nothing(filesystem, caplog):
    commit_unflushed(filesystem, 0, rows_of(("orders", 0, 4)))
    were_loaded(caplog)
    commit_unflushed(filesystem, 1, rows_of(("orders", 0, 30), ("orders", 1, 2)))
    commit_unflushed(filesystem, 2, rows_of(("orders", 0, 2)))
    assert not were_loaded(caplog)
    assert states(filesystem, ROOT) == {("orders", 0): (0, 41), ("orders", 1): (0, 9)}


def test_few_flushes_are_left(filesystem):
    commit_unflushed(filesystem, 0, rows_of(("orders", 0, 4)))
    job = staged_job(filesystem, ROOT, JOBS[1], rows_of(("orders", 0, 4)), flush=False)
    flushed = []
    filesystem.observe = lambda call: flushed.append(call.path) if call.name.startswith("flush") else None
    job.commit()
    # A torn one of these would be in everybody's way.
    assert flushed == [
        f"{ROOT}/.segmentlog-journal.tmp",
        f"{ROOT}/replication-offset-checkpoint.tmp",
        ROOT,
    ]


def test_a_job_that_flushes_recovers_first(filesystem, caplog):
    commit_unflushed(filesystem, 0, rows_of(("orders", 0, 4)))
    were_loaded(caplog)
    commit(filesystem, ROOT, JOBS[1], rows_of(("orders", 0, 1)))
    assert were_loaded(caplog)
    assert recovery_points(filesystem) == {("orders", 0): 10, ("orders", 1): 7}
    assert MARKER in filesystem.files()
    assert NOTE not in filesystem.files()


def _restart(filesystem):
    filesystem.put(BOOT_ID, b"7f3e-second\n")


def _run_broker(filesystem):
    path = f"{ROOT}/replication-offset-checkpoint"
    content = filesystem.files()[path]
    filesystem.delete(path)
    with filesystem.open_for_writing(path, create=True) as file:
        file.write_at([content], 0)


def _lose_note(filesystem):
    filesystem.delete(NOTE)


def _damage_note(filesystem):
    filesystem.put(NOTE, b"{}\n")


@pytest.mark.parametrize("change", [_restart, _run_broker, _lose_note, _damage_note])
def test_the_next_such_job_recovers_if_somebody_was_at_work(filesystem, caplog, change):
    commit_unflushed(filesystem, 0, rows_of(("orders", 0, 4)))
    change(filesystem)
    were_loaded(caplog)
    commit_unflushed(filesystem, 1, rows_of(("orders", 0, 2)))
    assert were_loaded(caplog)
    assert len(contents(filesystem, ROOT)["orders", 0]) == 11


def test_a_log_directory_that_was_open_and_not_closed_is_recovered(filesystem, caplog):
    commit_unflushed(filesystem, 0, rows_of(("orders", 0, 4)))
    LogDirectory.open(ROOT, filesystem=filesystem, config=CONFIG, clock=Clock())
    killed = filesystem.kill()
    were_loaded(caplog)
    commit_unflushed(killed, 1, rows_of(("orders", 0, 2)))
    assert were_loaded(caplog)
    assert len(contents(killed, ROOT)["orders", 0]) == 11


def test_where_the_machine_has_no_id_every_job_recovers(caplog):
    filesystem = SimulatedFileSystem()
    fill(filesystem, ROOT, ("orders", 0, 5))
    commit_unflushed(filesystem, 0, rows_of(("orders", 0, 4)))
    assert not is_as_left_unflushed(filesystem, ROOT, 1)
    were_loaded(caplog)
    commit_unflushed(filesystem, 1, rows_of(("orders", 0, 2)))
    assert were_loaded(caplog)
    assert len(contents(filesystem, ROOT)["orders", 0]) == 11


def test_an_index_that_somebody_has_open_is_refused(filesystem):
    commit_unflushed(filesystem, 0, rows_of(("orders", 0, 4)))
    with filesystem.open_for_writing(f"{ROOT}/orders-0/00000000000000000000.index") as index:
        index.truncate(10_000)
    job = staged_job(filesystem, ROOT, JOBS[1], rows_of(("orders", 0, 2)), flush=False)
    with pytest.raises(CorruptError, match="did not shut down cleanly"):
        job.commit()
    assert job.job.abort()
    assert states(filesystem, ROOT)["orders", 0] == (0, 9)


def _stay(filesystem):
    pass


def _lose_boot_id(filesystem):
    filesystem.delete(BOOT_ID)


@pytest.mark.parametrize("change", [_stay, _restart, _lose_boot_id])
def test_a_kill_at_every_call_leaves_all_rows_or_none(filesystem, change):
    """The next process, on this machine, on another that shares the disk, or on one without a boot id."""
    before = contents(filesystem, ROOT)
    rows = rows_of(("orders", 0, 4), ("orders", 1, 60), ("new", 0, 3))
    job = staged_job(filesystem, ROOT, JOBS[0], rows, flush=False, new_partitions={"new": 1})
    killed = []
    filesystem.observe = lambda call: killed.append((call, filesystem.kill()))
    job.commit()
    filesystem.observe = None
    after, files = contents(filesystem, ROOT), settled(filesystem)
    del files[NOTE]
    outcomes = set()
    for call, left in killed:
        change(left)
        seen = contents(left, ROOT)
        assert seen in (before, after), call
        has_journal = f"{ROOT}/.segmentlog-journal" in left.files()
        replay(left)
        assert contents(left, ROOT) == (after if has_journal or seen == after else before), call
        if has_journal:
            found = settled(left)
            assert {path: found[path] for path in found if path != BOOT_ID} == {
                path: files[path] for path in files if path != BOOT_ID
            }, call
        outcomes.add((has_journal, seen == after))
    assert outcomes == {(False, False), (True, False), (True, True), (False, True)}


def _journalled(filesystem, call_name):
    """Return what a kill leaves after the journal, at the first such call."""
    job = staged_job(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 4), ("orders", 1, 60)), flush=False)
    found = []

    def observe(call):
        if call.name == call_name and f"{ROOT}/.segmentlog-journal" in filesystem.files():
            found.append(filesystem.kill())

    filesystem.observe = observe
    job.commit()
    return found[0]


def test_a_commit_with_a_torn_batch_is_given_up(filesystem, caplog):
    before = contents(filesystem, ROOT)
    left = _journalled(filesystem, "write")
    pack = next(path for path in left.files() if path.endswith(".pack"))
    content = bytearray(left.files()[pack])
    content[-1] ^= 1
    left.put(pack, bytes(content))
    replay(left)
    assert "some of them are lost" in caplog.text
    assert contents(left, ROOT) == before
    assert [path for path in left.files() if "/.segmentlog-" in path] == []
    assert left.status(f"{ROOT}/segmentlog.commit-in-progress") is None


def test_a_commit_without_its_interlock_is_given_up(filesystem):
    """A power cut may take it, and then a broker may have started."""
    before = contents(filesystem, ROOT)
    left = _journalled(filesystem, "write")
    left.delete_directory(f"{ROOT}/segmentlog.commit-in-progress")
    replay(left)
    assert contents(left, ROOT) == before
    assert f"{ROOT}/.segmentlog-journal" not in left.files()


@pytest.mark.parametrize("has_interlock", [True, False])
def test_a_journal_of_a_committed_job_is_only_removed(filesystem, has_interlock):
    job = staged_job(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 4)), flush=False)
    found = []

    def observe(call):
        if call.name == "delete" and call.path == f"{ROOT}/.segmentlog-journal":
            found.append(filesystem.kill())

    filesystem.observe = observe
    job.commit()
    left = found[0]
    if not has_interlock:
        left.delete_directory(f"{ROOT}/segmentlog.commit-in-progress")
    with left.open_for_writing(f"{ROOT}/orders-0/00000000000000000000.log") as log:
        log.truncate(log.size_bytes() - 1)
    before = left.files()
    replay(left)
    assert settled(left) == {
        path: content for path, content in before.items() if not path.endswith("/.segmentlog-journal")
    }
    assert left.status(f"{ROOT}/segmentlog.commit-in-progress") is None


@pytest.mark.cases(6, 16)
@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_after_it_costs_what_was_not_flushed(filesystem, seed):
    """What was there before stays, and the directory can be written to, by Kafka's rules for a recovery."""
    old = contents(filesystem, ROOT)["orders", 1]
    commit_unflushed(filesystem, 0, rows_of(("orders", 0, 4), ("orders", 1, 60)))
    commit_unflushed(filesystem, 1, rows_of(("orders", 1, 3)))
    left = filesystem.crash(random.Random(seed))
    _restart(left)
    with LogDirectory.open(ROOT, recovery="kafka", filesystem=left, config=CONFIG, clock=Clock()) as logs:
        assert logs.get("orders", 1).log_end_offset >= 7
    assert contents(left, ROOT)["orders", 1][:7] == old
    commit(left, ROOT, JOBS[2], rows_of(("orders", 1, 2), name="later"))
    assert contents(left, ROOT)["orders", 1][:7] == old
