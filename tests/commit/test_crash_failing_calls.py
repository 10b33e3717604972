"""The n-th call of the operating system fails in a commit: nothing has happened, or it is in doubt and completed later."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from storage_core import FileSystem, LogDirectory
from storage_core.errors import CommitInDoubtError, SegmentLogError
from tests.commit.jobs import CONFIG, JOBS, commit, contents, fill, rows_of, staged_job
from tests.damage.campaign import fast_folder
from tests.descriptors import open_below
from tests.faults.counting import cases
from tests.faults.faulty_filesystem import FAULTS, INVISIBLE, Fault, FaultyCalls
from tests.log.logs import Clock

MORE = rows_of(("old", 0, 2), name="more")


@pytest.fixture(scope="module")
def template():
    """Yield a real log directory in which a job has staged its rows."""
    with tempfile.TemporaryDirectory(dir=fast_folder(), prefix="segmentlog-commit-") as folder:
        root = os.path.join(folder, "template")
        fill(FileSystem(), root, ("old", 0, 5), ("old", 1, 2))
        job = staged_job(
            FileSystem(),
            root,
            JOBS[0],
            rows_of(("old", 0, 45), ("new", 0, 3)),
            rows_of(("old", 0, 3)),
            new_partitions={"new": 1},
        )
        committed = os.path.join(folder, "committed")
        shutil.copytree(root, committed)
        at(job, committed).commit()
        yield folder, job, contents(FileSystem(), root), contents(FileSystem(), committed)


def at(job, root):
    """Return the same job in a copy of its log directory."""
    other = staged_job(
        FileSystem(),
        root,
        job.job.spec.job_id,
        is_begun=False,
        new_partitions=job.job.spec.new_partitions,
    )
    other.manifests = job.manifests
    return other


@contextlib.contextmanager
def copied(template):
    folder, job, before, after = template
    root = os.path.join(folder, "copy")
    # Hard links do not survive this copy, nor does a broken commit depend on them.
    shutil.copytree(os.path.join(folder, "template"), root)
    try:
        yield root, at(job, root), before, after
    finally:
        shutil.rmtree(root)


def fail_once(template, fault) -> str | None:
    """Commit with one fault; say what came of it, or None if it was over before."""
    with copied(template) as (root, job, before, after):
        error = None
        with FaultyCalls(fault) as calls:
            try:
                job.commit()
            except SegmentLogError as caught:
                error = caught
        name = f"{fault}: {calls.happened}"
        assert open_below(root) == [], name
        if calls.happened is None:
            assert error is None
            return None
        if error is None:
            assert contents(FileSystem(), root) == after, name
            return "worked"
        assert fault.error_number not in INVISIBLE, f"{name}: {error}"
        assert os.strerror(fault.error_number) in str(error), f"{name}: {error}"
        found = contents(FileSystem(), root)
        assert found in (before, after), name
        if isinstance(error, CommitInDoubtError):
            assert "in doubt, and will be completed" in str(error)
            assert not job.job.abort(), name
            finish(root, job, fault.at)
            assert contents(FileSystem(), root) == after, name
            return "in doubt"
        assert found == before, name
        assert job.job.abort(), name
        commit(FileSystem(), root, JOBS[4], MORE)
        assert len(contents(FileSystem(), root)["old", 0]) == len(before["old", 0]) + 2, name
        assert not [each for each in os.listdir(root) if "segmentlog-stage" in each or "journal" in each], (
            name
        )
        return "nothing happened"


def finish(root, job, number):
    """Finish the job in one of three ways."""
    if number % 3 == 0:
        with LogDirectory.open(root, config=CONFIG, clock=Clock()):
            pass
    elif number % 3 == 1:
        assert job.commit().was_committed_before
    else:
        assert not job.job.begin()
    assert not [each for each in os.listdir(root) if "segmentlog-stage" in each or "journal" in each]


@pytest.mark.cases(1, 3)
@pytest.mark.parametrize("kind", [kind for kind in FAULTS if kind != "short write"])
def test_each_call_fails(kind, template, record_property):
    error_number, is_lasting = FAULTS[kind]
    outcomes: Counter[str] = Counter()
    number = 1
    while outcome := fail_once(template, Fault(error_number, number, is_lasting)):
        outcomes[outcome] += 1
        number += 1
    record_property(cases("Commit: the n-th call fails"), number - 1)
    if error_number in INVISIBLE:
        assert set(outcomes) == {"worked"}
    else:
        assert outcomes["nothing happened"] > 5
        assert outcomes["in doubt"] > 10


def test_the_driver_is_killed(template, record_property):
    """SIGKILL at some moment of a real commit."""
    outcomes: Counter[str] = Counter()
    for number in range(30):
        with copied(template) as (root, job, before, after):
            process_id = os.fork()
            if process_id == 0:
                # The first one dies before it begins, however fast it is.
                with contextlib.suppress(BaseException):
                    job.commit() if number else signal.pause()
                os._exit(0)
            time.sleep(0.001 * number)
            os.kill(process_id, signal.SIGKILL)
            os.waitpid(process_id, 0)
            found = contents(FileSystem(), root)
            assert found in (before, after), number
            has_journal = (Path(root) / ".segmentlog-journal").exists()
            with LogDirectory.open(root, config=CONFIG, clock=Clock()):
                pass
            assert contents(FileSystem(), root) == (after if has_journal else found), number
            outcomes["in doubt" if has_journal else "old" if found == before else "new"] += 1
    record_property(cases("Commit: real SIGKILL"), outcomes.total())
    assert outcomes["old"]
