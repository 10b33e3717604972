"""Whole jobs, from `begin` to the commit, as a driver runs them; and what a reader sees before and after."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from storage_core.commit.job import CommitJob
from storage_core.commit.job_spec import JobSpec
from storage_core.commit_files.commits_file import read_commits_file
from storage_core.commit_files.stage_names import job_of
from tests.commit.commit_crashes import Records
from tests.commit.jobs import CONFIG, ROOT, Rows, contents, stage
from tests.faults.simulated_filesystem import Call, SimulatedCrash, SimulatedFileSystem
from tests.log.logs import NOW_MS, Clock


@dataclass(frozen=True)
class Job:
    """What an application writes, and writes again until it is there."""

    tasks: tuple[Rows, ...]
    settings: dict = field(default_factory=dict)

    def run(self, filesystem, job_id: str, root: str = ROOT, *, days_later: int = 0) -> bool:
        """Begin, stage, commit; return whether it was this run that did it."""
        settings = {"config": CONFIG, "threads": 1, "lock_wait_seconds": 0.0, **self.settings}
        clock = Clock(NOW_MS + days_later * 24 * 60 * 60 * 1000)
        job = CommitJob(filesystem, root, JobSpec(job_id=job_id, **settings), clock)
        if not job.begin():
            return False
        manifests = [
            stage(filesystem, root, job_id, rows, task=number, attempt=number + 10)
            for number, rows in enumerate(self.tasks)
            if rows
        ]
        return not job.commit(manifests).was_committed_before


def seen(filesystem: SimulatedFileSystem) -> Records:
    """All that a reader sees; there may be no root yet."""
    return {} if filesystem.status(ROOT) is None else contents(filesystem, ROOT)


def crash_at(
    filesystem: SimulatedFileSystem,
    run: Callable[[SimulatedFileSystem], object],
    number: int,
    seed: str,
    *,
    only_killed: bool = False,
    only_power_cuts: bool = False,
) -> SimulatedFileSystem | None:
    """What is left when the run ends at its n-th call, by SIGKILL or a power cut; None if it has no such call."""
    first, rng = filesystem.calls, random.Random(seed)
    found: list[SimulatedFileSystem] = []

    def observe(call: Call) -> None:
        if call.number - first == number:
            is_killed = only_killed or (not only_power_cuts and rng.random() < 0.3)
            found.append(filesystem.kill() if is_killed else filesystem.crash(rng))
            raise SimulatedCrash

    filesystem.observe = observe
    try:
        run(filesystem)
    except SimulatedCrash:
        return found[0]
    finally:
        filesystem.observe = None
    return None


def remains(filesystem: SimulatedFileSystem) -> list[str]:
    """What no committed job leaves: everything but partitions, checkpoints, and staged files of jobs that died."""
    committed = {entry.job_id for entry in read_commits_file(filesystem, ROOT).entries}
    return [
        entry.name
        for entry in filesystem.list_directory(ROOT)
        if entry.name in (".segmentlog-journal", "segmentlog.commit-in-progress")
        or job_of(entry.name) in committed
    ]
