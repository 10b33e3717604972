"""Jobs that do not flush (``flush=none``): as safe as others from the end of a process; a power cut takes rows of theirs."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from storage_core import LogDirectory
from storage_core.errors import RecoveryWouldDiscardError
from tests.commit.commit_crashes import crash_at, crashes_of_job
from tests.commit.jobs import CONFIG, JOBS, ROOT, fill, rows_of
from tests.commit.whole_jobs import Job, remains, seen
from tests.faults.counting import cases
from tests.faults.simulated_filesystem import SimulatedFileSystem, TriedStates
from tests.log.logs import Clock

# What Linux calls this run of the machine.
BOOT_ID = "/proc/sys/kernel/random/boot_id"
FLUSHED = [(True, False), (False, False), (False, True)]


def version(number: int, *, flush: bool) -> Job:
    """Small and large pieces for old partitions, and a topic of its own."""
    rows = rows_of(("old", 0, 3), ("old", 1, 55), (f"own{number}", 0, 2), name=f"v{number}")
    settings = {
        "new_partitions": {f"own{number}": 1},
        "txn_app_id": "app",
        "txn_version": number,
        "flush": flush,
    }
    return Job((rows, rows_of(("old", 0, 1), name=f"v{number}.2")), settings)


def log_directory() -> SimulatedFileSystem:
    filesystem = SimulatedFileSystem()
    filesystem.put(BOOT_ID, b"1e6f9d5c-0000-4000-8000-000000000001\n")
    fill(filesystem, ROOT, ("old", 0, 12), ("old", 1, 3))
    return filesystem


def run_all(filesystem, jobs) -> list:
    """Run jobs one after another; return what a reader sees after each."""
    found = []
    for number, job in enumerate(jobs):
        job.run(filesystem, JOBS[number])
        found.append(seen(filesystem))
    return found


@pytest.mark.cases(1, 1)
@pytest.mark.parametrize("flushed", FLUSHED)
def test_processes_are_killed_in_the_second_of_two_jobs(flushed, record_property):
    filesystem = log_directory()
    first, second = (version(number + 1, flush=flush) for number, flush in enumerate(flushed))
    before, after = run_all(filesystem.kill(), [first, second])
    first.run(filesystem, JOBS[0])
    outcomes: Counter[str] = Counter()
    tried = TriedStates()
    crashes = crashes_of_job(filesystem, lambda files: second.run(files, JOBS[1]), seed=1, variants=0)
    for crashed in crashes[FLUSHED.index(flushed) % 2 :: 2]:
        if not tried.is_new(crashed.filesystem):
            continue
        found = seen(crashed.filesystem)
        assert found in (before, after), crashed.name
        second.run(crashed.filesystem, JOBS[2])
        assert seen(crashed.filesystem) == after, crashed.name
        assert remains(crashed.filesystem) == [], crashed.name
        assert not first.run(crashed.filesystem, JOBS[3]), crashed.name
        third = version(3, flush=True)
        assert third.run(crashed.filesystem, JOBS[4]), crashed.name
        assert f"{ROOT}/.kafka_cleanshutdown" in crashed.filesystem.files(), crashed.name
        outcomes["after" if found == after else "before"] += 1
    record_property(cases("Jobs that do not flush, killed at each call, and repeated"), outcomes.total())
    assert all(outcomes[name] > 2 for name in ("before", "after")), outcomes


@pytest.mark.cases(1, 1)
@pytest.mark.parametrize("variant", range(3))
def test_a_power_cut_takes_nothing_that_was_flushed(variant, record_property):
    """What the jobs before have flushed stays, whatever becomes of this one's rows; and the next job works."""
    filesystem = log_directory()
    first, second = version(1, flush=True), version(2, flush=False)
    before, after = run_all(filesystem.kill(), [first, second])
    first.run(filesystem, JOBS[0])
    count, tried = 0, TriedStates()
    for name, files in power_cuts(filesystem, second, seed=variant):
        if not tried.is_new(files):
            continue
        open_again(files)
        found = seen(files)
        assert kept(before, found), name
        assert kept(found, after), name
        version(3, flush=True).run(files, JOBS[2])
        assert kept(found, {key: rows for key, rows in seen(files).items() if key[0] != "own3"}), name
        count += 1
    record_property(cases("Jobs that do not flush: a power cut at each call, and flushed rows stay"), count)
    assert count > 50


def power_cuts(filesystem, job, *, seed: int):
    """Yield what a power cut leaves at each call of a job, in the next run of the machine."""
    for crashed in crashes_of_job(filesystem, lambda files: job.run(files, JOBS[1]), seed=seed, variants=1):
        if crashed.is_power_cut:
            crashed.filesystem.put(BOOT_ID, b"1e6f9d5c-0000-4000-8000-000000000002\n")
            yield crashed.name, crashed.filesystem


def open_again(files) -> None:
    """Recover by tail recovery, or as a broker does where that refuses."""
    try:
        LogDirectory.open(ROOT, filesystem=files, config=CONFIG, clock=Clock()).close()
    except RecoveryWouldDiscardError:
        LogDirectory.open(ROOT, filesystem=files, config=CONFIG, clock=Clock(), recovery="kafka").close()


def kept(records, others) -> bool:
    """Return whether each partition of the first is there, and begins alike."""
    return all(key in others and others[key][: len(rows)] == rows for key, rows in records.items())


def test_many_unflushed_jobs_of_which_many_are_killed():
    """One after another, each until it is through."""
    filesystem, rng = log_directory(), random.Random(1)
    job_ids = (f"{number:032x}" for number in itertools.count(1))
    expected = filesystem.kill()
    for number in range(1, 16):
        job = version(number, flush=rng.random() < 0.2)
        job.run(expected, next(job_ids))
        while True:
            job_id = next(job_ids)
            left = killed_at(filesystem, lambda files, job=job, job_id=job_id: job.run(files, job_id), rng)
            if left is None:
                break
            filesystem = left
        assert seen(filesystem) == seen(expected), number


def killed_at(filesystem, run, rng):
    """Return what SIGKILL leaves of a run at a random call, seven times in ten; None: it was through."""
    if rng.random() < 0.3:
        run(filesystem)
        return None
    copy = filesystem.kill()
    left = crash_at(copy, run, rng.randint(1, 90), "killed", only_killed=True)
    if left is None:
        run(filesystem)
    return left
