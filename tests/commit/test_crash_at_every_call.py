"""The driver dies, or the power goes, at every call of a commit and of its replay: all of a job's rows or none."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from storage_core import LogDirectory
from tests.commit.commit_crashes import check, crashes_of
from tests.commit.jobs import CONFIG, JOBS, ROOT, TOPIC_ID, commit, contents, fill, rows_of, stage, staged_job
from tests.faults.counting import cases
from tests.faults.simulated_filesystem import SimulatedFileSystem, TriedStates
from tests.faults.soak import soak_seeds
from tests.log.logs import Clock

VARIANTS = 2


def appends():
    """Old and new partitions, empty and not, small pieces and large ones, both in one."""
    filesystem = SimulatedFileSystem()
    fill(filesystem, ROOT, ("old", 0, 20), ("old", 1, 2), ("empty", 0, 0))
    job = staged_job(
        filesystem,
        ROOT,
        JOBS[0],
        rows_of(("old", 0, 60), ("old", 1, 5), ("empty", 0, 40), ("new", 1, 3)),
        rows_of(("old", 0, 3), ("new", 0, 45), name="second"),
        new_partitions={"new": 3},
        topic_ids={"new": TOPIC_ID},
    )
    return filesystem, job.commit


def overwrites():
    filesystem = SimulatedFileSystem()
    fill(filesystem, ROOT, ("old", 0, 20), ("old", 1, 2), ("other", 0, 3))
    commit(filesystem, ROOT, JOBS[0], rows_of(("old", 0, 30)))
    job = staged_job(filesystem, ROOT, JOBS[1], rows_of(("old", 0, 5), name="second"), mode="overwrite")
    return filesystem, job.commit


def restores():
    filesystem = SimulatedFileSystem()
    fill(filesystem, ROOT, ("empty", 0, 0))
    rows = {
        ("empty", 0): [(offset, b"value %d" % offset) for offset in (520, 521, 530, 531)],
        ("new", 0): [(offset, b"value %d" % offset) for offset in range(710, 760)],
    }
    job = staged_job(
        filesystem,
        ROOT,
        JOBS[0],
        rows,
        preserve_offsets=True,
        restored_offsets={("empty", 0): (500, 540), ("new", 0): (700, 760), ("new", 1): (3, 9)},
        topic_ids={"new": TOPIC_ID},
    )
    return filesystem, job.commit


def creates():
    """Return a root that does not exist yet."""
    filesystem = SimulatedFileSystem()
    job = staged_job(
        filesystem,
        ROOT,
        JOBS[0],
        rows_of(("new", 0, 50), ("new", 1, 2)),
        new_partitions={"new": 2},
        topic_ids={"new": TOPIC_ID},
    )
    return filesystem, job.commit


def links_first():
    """Staged segments that are too small to be linked, but where a segment of the log begins."""
    filesystem = SimulatedFileSystem()
    fill(filesystem, ROOT, ("old", 0, 20), ("empty", 0, 0))
    partitions = [("old", 0, 9), ("empty", 0, 9), ("new", 0, 9)]
    tasks = [rows_of(*partitions, name=name) for name in ("first", "second")]
    job = staged_job(filesystem, ROOT, JOBS[0], new_partitions={"new": 1}, topic_ids={"new": TOPIC_ID})
    job.manifests = [
        stage(filesystem, ROOT, JOBS[0], rows, task=number, piece_bytes=1)
        for number, rows in enumerate(tasks)
    ]
    return filesystem, job.commit


WORKLOADS = [appends, overwrites, restores, creates, links_first]


@pytest.mark.parametrize("make", WORKLOADS)
def test_crash_at_every_call(make, record_property):
    reference, crashes = crashes_of(*make(), seed=1, variants=VARIANTS)
    assert reference.records_before != reference.records_after
    tried = TriedStates()
    for number, crashed in enumerate(crashes):
        reads = number % 2 == 0
        if tried.is_new(crashed.filesystem, reads):
            check(crashed, reference, reads=reads)
    record_property(cases("Commit: power cut or SIGKILL at each call"), reference.outcomes.total())
    assert reference.outcomes["done"] > 30
    assert reference.outcomes["undone"] > 5


@pytest.mark.parametrize("make", WORKLOADS)
def test_crash_in_the_middle_of_the_replay(make, record_property):
    reference, crashes = crashes_of(*make(), seed=2, variants=1)
    rng = random.Random(make.__name__)
    for number, crashed in enumerate(crashes):
        check(crashed, reference, reads=number % 6 == 0, again=rng.randint(1, 100))
    count = reference.outcomes["again"]
    record_property(cases("Commit: a second power cut, in the replay"), count)
    assert count > 15


@pytest.mark.parametrize("make", WORKLOADS)
def test_the_next_writer_completes_it_and_goes_on(make):
    """A log directory that is opened, and another job."""
    reference, crashes = crashes_of(*make(), seed=3, variants=1)
    new = {} if make in (appends, overwrites) else {"more": 1}
    more = rows_of(("old" if make in (appends, overwrites) else "more", 0, 2), name="more")
    for number, crashed in enumerate(itertools.islice(crashes, 0, None, 9)):
        filesystem = crashed.filesystem
        if number % 2:
            with LogDirectory.open(ROOT, filesystem=filesystem, config=CONFIG, clock=Clock()):
                pass
            found = contents(filesystem, ROOT)
            assert found in (reference.records_before, reference.records_after), crashed.name
        else:
            commit(filesystem, ROOT, JOBS[5], more, new_partitions=new)
            ((key, added),) = more.items()
            found = contents(filesystem, ROOT)
            count = len(added)
            assert [value for _, value in found[key][-count:]] == [value for _, value in added], crashed.name
            found[key] = found[key][:-count]
            if not found[key] and key not in reference.records_before:
                del found[key]
            assert found in (reference.records_before, reference.records_after), crashed.name


@pytest.mark.soak
@pytest.mark.parametrize("make", WORKLOADS)
def test_crash_at_every_call_for_a_long_time(make, capsys):
    """Other states of the same calls, for the time of one campaign."""
    outcomes: Counter[str] = Counter()
    for seed in soak_seeds(share=len(WORKLOADS)):
        reference, crashes = crashes_of(*make(), seed=seed, variants=5)
        rng = random.Random(seed)
        for crashed in crashes:
            check(crashed, reference, again=rng.choice([0, rng.randint(1, 100)]))
        outcomes += reference.outcomes
    with capsys.disabled():
        print(f"\n{make.__name__}: {dict(outcomes)}")
