"""Which staged files are deleted."""

from __future__ import annotations

from storage_core.commit.job import remove_orphan_files
from storage_core.commit.job_spec import JobContext, JobSpec
from tests.commit.jobs import JOBS, ROOT
from tests.faults.simulated_filesystem import SimulatedFileSystem

NOW_MS = 1_800_000_000_000
WEEK_MS = 604_800_000


def test_staged_files_that_no_job_will_commit_are_deleted():
    filesystem = SimulatedFileSystem()
    old, young = NOW_MS - WEEK_MS, NOW_MS - WEEK_MS + 1
    kept = {
        f".segmentlog-stage-{JOBS[1]}-0-0.pack": young,
        # The job that is at work.
        f".segmentlog-stage-{JOBS[2]}-0-0.pack": old,
        f".segmentlog-stage-{JOBS[0]}-0-0.strange": old,
        ".segmentlog-commits": old,
        "orders-0/00000000000000000000.log": old,
    }
    swept = {
        f".segmentlog-stage-{JOBS[0]}-0-0.pack": young,
        f".segmentlog-stage-{JOBS[0]}-0-0-1.timeindex": young,
        f".segmentlog-stage-{JOBS[0]}-3-7.manifest": young,
        f".segmentlog-stage-{JOBS[3]}-0-0.pack": old,
        f".segmentlog-stage-{JOBS[3]}-0-0.manifest.tmp": old,
    }
    # A broker may have a topic of such a name.
    partition = f"{ROOT}/.segmentlog-stage-{JOBS[0]}-0-0-1.log"
    filesystem.put(f"{partition}/00000000000000000000.log", b"x")
    for name, time_ms in {**kept, **swept}.items():
        filesystem.put(f"{ROOT}/{name}", b"x")
        with filesystem.open(f"{ROOT}/{name}") as file:
            file.node.modified_ms = time_ms
    count = remove_orphan_files(JobContext(filesystem, ROOT, JobSpec(job_id=JOBS[2])), {JOBS[0]}, NOW_MS)
    assert count == len(swept)
    left = [f"{ROOT}/{name}" for name in kept]
    assert sorted(filesystem.files()) == sorted([*left, f"{partition}/00000000000000000000.log"])
