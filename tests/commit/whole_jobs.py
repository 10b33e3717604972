"""Whole jobs, from `begin` to the commit, as a driver runs them; and what a reader sees before and after."""

from __future__ import annotations

from dataclasses import dataclass, field

from storage_core.commit.job import CommitJob
from storage_core.commit.job_spec import JobSpec
from storage_core.commit_files.commits_file import read_commits_file
from storage_core.commit_files.stage_names import job_of
from tests.commit.commit_crashes import Records
from tests.commit.jobs import CONFIG, ROOT, Rows, contents, stage
from tests.faults.simulated_filesystem import SimulatedFileSystem
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
    """Return all that a reader sees; there may be no root yet."""
    return {} if filesystem.status(ROOT) is None else contents(filesystem, ROOT)


def remains(filesystem: SimulatedFileSystem) -> list[str]:
    """Return what no committed job leaves: all but partitions, checkpoints, and staged files of jobs that died."""
    committed = {entry.job_id for entry in read_commits_file(filesystem, ROOT).entries}
    return [
        entry.name
        for entry in filesystem.list_directory(ROOT)
        if entry.name in (".segmentlog-journal", "segmentlog.commit-in-progress")
        or job_of(entry.name) in committed
    ]
