"""A job with a txnVersion whose driver dies anywhere, and is begun again until it is through: its rows are there once.

Unlike in `test_crash_at_every_call`, the whole job is run: the root is made or recovered, tasks stage, and the
commit finds old, new, empty and rolled partitions.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from storage_core import LogDirectory
from tests.commit.commit_crashes import crash_at, crashes_of_job
from tests.commit.jobs import CONFIG, JOBS, ROOT, TOPIC_ID, fill, rows_of
from tests.commit.whole_jobs import Job, remains, seen
from tests.faults.counting import cases
from tests.faults.simulated_filesystem import SimulatedFileSystem, TriedStates
from tests.faults.soak import soak_seeds
from tests.log.logs import Clock

VERSION = {"txn_app_id": "app", "txn_version": 7}
# So much of one partition is a segment of its own.
LARGE = 55
TECHNIQUE = "The whole job killed at each call, and repeated"


def small_pieces():
    """Appends to old partitions, first batches of an empty one, and new partitions."""
    filesystem = SimulatedFileSystem()
    fill(filesystem, ROOT, ("old", 0, 4), ("old", 1, 0))
    tasks = (rows_of(("old", 0, 3), ("old", 1, 2), ("new", 0, 2)), rows_of(("old", 0, 1), name="second"))
    return filesystem, Job(tasks, {"new_partitions": {"new": 2}, "topic_ids": {"new": TOPIC_ID}, **VERSION})


def large_pieces():
    """Segments after old ones, in place of an empty one, and in a new directory; a small piece after each."""
    filesystem = SimulatedFileSystem()
    fill(filesystem, ROOT, ("old", 0, 4), ("old", 1, 0))
    each = [("old", 0), ("old", 1), ("new", 0)]
    tasks = (
        rows_of(*[(topic, partition, LARGE) for topic, partition in each]),
        rows_of(*[(topic, partition, 2) for topic, partition in each], name="second"),
    )
    return filesystem, Job(tasks, {"new_partitions": {"new": 1}, **VERSION})


def rolled_partitions():
    """Logs of several segments; the last one is full, so that small pieces roll, too."""
    filesystem = SimulatedFileSystem()
    fill(filesystem, ROOT, ("old", 0, 50), ("old", 1, 41))
    tasks = tuple(rows_of(("old", 0, 20), ("old", 1, 30), name=name) for name in ("first", "second"))
    return filesystem, Job(tasks, VERSION)


def overwrites():
    """Overwrite an old topic with pieces of both sizes, with a partition without any row; another topic stays."""
    filesystem = SimulatedFileSystem()
    fill(filesystem, ROOT, ("old", 0, 12), ("old", 1, 5), ("old", 2, 3), ("other", 0, 3))
    tasks = (rows_of(("old", 0, LARGE), ("old", 1, 2)),)
    return filesystem, Job(tasks, {"mode": "overwrite", **VERSION})


def restores():
    """Rows that keep their offsets, in a new directory and in a log that is empty; with logs' starts and ends."""
    filesystem = SimulatedFileSystem()
    fill(filesystem, ROOT, ("empty", 0, 0))
    rows = {
        ("empty", 0): [(offset, b"value %d" % offset) for offset in (520, 521, 530)],
        ("new", 0): [(offset, b"value %d" % offset) for offset in range(710, 790)],
    }
    settings = {
        "preserve_offsets": True,
        "restored_offsets": {("empty", 0): (500, 540), ("new", 0): (700, 800), ("new", 1): (3, 9)},
        "topic_ids": {"new": TOPIC_ID},
    }
    return filesystem, Job((rows,), {**settings, **VERSION})


def first_of_all():
    """Write where neither the log directory nor the one above it exists."""
    tasks = (rows_of(("new", 0, 50), ("new", 1, 2)), rows_of(("new", 1, 3), name="second"))
    return SimulatedFileSystem(), Job(tasks, {"new_partitions": {"new": 3}, **VERSION})


def unclean_root():
    """Begin after an appending process was killed: its log is recovered before the job begins."""
    filesystem = SimulatedFileSystem()
    fill(filesystem, ROOT, ("old", 0, 12), ("old", 1, 5))
    filesystem.delete(f"{ROOT}/.kafka_cleanshutdown")
    filesystem.flush_directory(ROOT)
    with filesystem.open_for_writing(f"{ROOT}/old-0/{0:020}.log") as file:
        file.write_at([b"torn"], file.size_bytes())
    return filesystem, Job((rows_of(("old", 0, 3), ("old", 1, LARGE)),), VERSION)


WORKLOADS = [
    small_pieces,
    large_pieces,
    rolled_partitions,
    overwrites,
    restores,
    first_of_all,
    unclean_root,
]


class Trial:
    """A job that dies, and is repeated."""

    def __init__(self, make) -> None:
        self.filesystem, self.job = make()
        completed = self.filesystem.kill()
        self.before = seen(completed)
        self.job.run(completed, JOBS[0])
        self.after = seen(completed)
        assert self.before != self.after
        self.outcomes: Counter[str] = Counter()

    def check(self, filesystem, name, *, dies_again_at: int = 0, goes_on: bool = True) -> None:
        """Begin the job again, perhaps to die once more; and then, perhaps, another one."""
        found = self._look(filesystem, name)
        repeats = iter(JOBS[1:])
        if dies_again_at:
            job_id = next(repeats)
            left = crash_at(filesystem, lambda files: self.job.run(files, job_id), dies_again_at, name)
            if left is not None:
                filesystem, name = left, f"{name}; again at call {dies_again_at}"
                found = self._look(filesystem, name)
                self.outcomes["died again"] += 1
        was_it_me = self.job.run(filesystem, next(repeats))
        assert not (was_it_me and found == self.after), name
        assert seen(filesystem) == self.after, name
        assert remains(filesystem) == [], name
        if goes_on:
            # Once more, and nothing comes of it.
            assert not self.job.run(filesystem, next(repeats)), name
            self._go_on(filesystem, next(repeats), name)
        self.outcomes[
            "written anew" if was_it_me else "was there" if found == self.after else "completed"
        ] += 1

    def _look(self, filesystem, name):
        found = seen(filesystem)
        if filesystem.status(ROOT) is None or found == {}:
            # The root itself, or its partitions, may be lost with what made it.
            assert self.before == {}, name
        else:
            assert found in (self.before, self.after), name
        return found

    def _go_on(self, filesystem, job_id, name) -> None:
        """Check that the next job, some days later, works, and that nothing that was staged is left then."""
        another = Job((rows_of(("more", 0, 2)),), {"new_partitions": {"more": 1}})
        assert another.run(filesystem, job_id, days_later=8), name
        found = seen(filesystem)
        assert [offset for offset, _ in found.pop(("more", 0))] == [0, 1], name
        assert found == self.after, name
        kept = {path for path in filesystem.files() if ".segmentlog-" in path}
        assert kept == {f"{ROOT}/.segmentlog-commits"}, name
        assert f"{ROOT}/.kafka_cleanshutdown" in filesystem.files(), name


@pytest.mark.cases(1, 2)
@pytest.mark.parametrize("make", WORKLOADS)
def test_a_job_that_is_repeated_until_it_is_through_is_there_once(make, record_property):
    trial = Trial(make)
    crashes = crashes_of_job(
        trial.filesystem, lambda files: trial.job.run(files, JOBS[0]), seed=1, variants=1
    )
    tried = TriedStates()
    # `make soak` tries them all.
    for number, crashed in enumerate(itertools.islice(crashes, WORKLOADS.index(make) % 2, None, 2)):
        goes_on = number % 5 == 0
        if tried.is_new(crashed.filesystem, goes_on):
            trial.check(crashed.filesystem, crashed.name, goes_on=goes_on)
    record_property(cases(TECHNIQUE), trial.outcomes.total())
    assert all(trial.outcomes[name] > 3 for name in ("written anew", "completed", "was there")), (
        trial.outcomes
    )


@pytest.mark.cases(1, 2)
@pytest.mark.parametrize("make", WORKLOADS)
def test_a_job_that_dies_when_it_is_repeated(make, record_property):
    trial, rng = Trial(make), random.Random(make.__name__)
    crashes = crashes_of_job(
        trial.filesystem, lambda files: trial.job.run(files, JOBS[0]), seed=2, variants=1
    )
    for crashed in itertools.islice(crashes, rng.randrange(6), None, 6):
        trial.check(crashed.filesystem, crashed.name, dies_again_at=rng.randint(1, 60))
    record_property(cases(f"{TECHNIQUE}; the repetition killed, too"), trial.outcomes["died again"])
    assert trial.outcomes["died again"] > 10


# The first calls, many times over: what was not flushed before them is lost in some of the variants.
POWER_CUTS = [(number, seed) for number in range(1, 9) for seed in range(7 if number < 4 else 2)]


def test_a_power_cut_while_what_a_killed_driver_left_is_completed(record_property):
    """What the driver had not flushed when it was killed is seen by who completes it, and may be lost all the same.

    From the line in `.segmentlog-commits` on, each call of the commit with each call of its completion.
    """
    trial = Trial(small_pieces)
    crashes = crashes_of_job(
        trial.filesystem, lambda files: trial.job.run(files, JOBS[0]), seed=3, variants=0
    )
    cuts = count = 0
    tried = TriedStates()
    for killed in crashes:
        if seen(killed.filesystem) != trial.after:
            continue
        for number, seed in POWER_CUTS:
            files = crash_at(killed.filesystem.kill(), complete, number, f"{seed}", only_power_cuts=True)
            if files is None:
                continue
            cuts += 1
            if not tried.is_new(files):
                continue
            name = f"{killed.name}; power cut {seed} at call {number} of the completion"
            assert seen(files) in (trial.before, trial.after), name
            complete(files)
            assert seen(files) == trial.after, name
            assert remains(files) == [], name
            count += 1
    record_property(cases("The driver killed after the journal, the power cut in the completion"), count)
    assert cuts > 200
    assert count > 20


def complete(filesystem) -> None:
    LogDirectory.open(ROOT, filesystem=filesystem, config=CONFIG, clock=Clock()).close()


@pytest.mark.soak
@pytest.mark.cases(1, 2)
@pytest.mark.parametrize("make", WORKLOADS)
def test_jobs_that_are_repeated_for_a_long_time(make, capsys):
    """Other states of the same calls."""
    outcomes: Counter[str] = Counter()
    for seed in soak_seeds(share=2 * len(WORKLOADS)):
        trial, rng = Trial(make), random.Random(seed)
        run = trial.job.run
        for crashed in crashes_of_job(
            trial.filesystem, lambda files, run=run: run(files, JOBS[0]), seed=seed, variants=3
        ):
            trial.check(crashed.filesystem, crashed.name, dies_again_at=rng.choice([0, rng.randint(1, 150)]))
        outcomes += trial.outcomes
    with capsys.disabled():
        print(f"\n{make.__name__}: {dict(outcomes)}")
