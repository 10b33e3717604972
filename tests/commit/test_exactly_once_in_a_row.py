"""Many jobs one after another, in any order, some of which die or fail: a model knows what has to be there."""

from __future__ import annotations

import copy
import errno
import random
from collections import Counter

import pytest

from storage_core import LogDirectory
from storage_core.commit.job import CommitJob
from storage_core.commit.job_spec import JobSpec
from storage_core.errors import CommitInDoubtError, SegmentLogError
from tests.commit.commit_crashes import crash_at
from tests.commit.jobs import CONFIG, ROOT, fill, rows_of
from tests.commit.whole_jobs import Job, remains, seen
from tests.faults.counting import cases
from tests.faults.simulated_filesystem import SimulatedFileSystem
from tests.faults.soak import soak_seeds
from tests.log.logs import Clock

TOPICS = {"a": 3, "b": 1}
STEPS = 25
LIVES = 9


class Life:
    """A log directory through which jobs go, and its model: by partition, the log start and the values."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.filesystem = SimulatedFileSystem()
        self.model: dict[tuple[str, int], tuple[int, list[bytes]]] = {}
        self.job_count = 0
        self.version = 0
        self.outcomes: Counter[str] = Counter()
        self.name = ""

    def live(self, steps: int) -> None:
        for number in range(steps):
            step = self.rng.choice([self.job, self.job, self.job, self.failing_job, self.log])
            self.name = f"step {number}, {step.__name__}"
            step()

    # -- What happens --------

    def job(self) -> None:
        """Run a job, which dies some times before it is through, or gives up."""
        job, after = self._new_job()
        is_there = False
        while self.rng.random() < 0.6:
            job_id = self._job_id()
            left = crash_at(
                self.filesystem,
                lambda files, job_id=job_id: job.run(files, job_id),
                self.rng.randint(1, 120),
                f"{self.rng.random()}",
            )
            if left is None:
                is_there = True
                break
            self.filesystem = left
            self.outcomes["killed"] += 1
            is_there = self._look(after, must_be_there=is_there)
        if not is_there and self.rng.random() < 0.3:
            # It is not repeated. If it was journalled, it will be completed nevertheless.
            self._settle(after)
            return
        job.run(self.filesystem, self._job_id())
        self._accept(after)

    def failing_job(self) -> None:
        """Let a call of the job fail, or all from one on; Spark aborts it then."""
        job, after = self._new_job()
        job_id = self._job_id()
        at, is_lasting = self.filesystem.calls + self.rng.randint(1, 120), self.rng.random() < 0.5
        error_number = self.rng.choice([errno.ENOSPC, errno.EIO])
        files = self.filesystem
        files.fail = lambda call: (
            OSError(error_number, "refused")
            if call.number == at or (is_lasting and call.number > at)
            else None
        )
        is_in_doubt = False
        try:
            job.run(files, job_id)
        except SegmentLogError as error:
            is_in_doubt = isinstance(error, CommitInDoubtError)
            self.outcomes["in doubt" if is_in_doubt else "failed"] += 1
            if self.rng.random() < 0.5:
                files.fail = None
            self._abort(job_id)
            files.fail = None
            assert seen(files) in (self._records(self.model), self._records(after)), self.name
            if is_in_doubt:
                # The next writer completes it.
                assert not job.run(files, self._job_id()), self.name
                self._accept(after)
            else:
                assert seen(files) == self._records(self.model), self.name
            return
        finally:
            files.fail = None
        if remains(files):
            # The rows are visible; the next writer removes what could not be removed.
            assert not job.run(files, self._job_id()), self.name
        self._accept(after)

    def log(self) -> None:
        """Open the logs and append to one."""
        with LogDirectory.open(ROOT, filesystem=self.filesystem, config=CONFIG, clock=Clock()):
            pass
        assert seen(self.filesystem) == self._records(self.model), self.name
        keys = sorted(self.model)
        if keys:
            topic, partition = key = self.rng.choice(keys)
            start, values = self.model[key]
            fill(self.filesystem, ROOT, (topic, partition, 2))
            added = [b"old:%s:%d:%d" % (topic.encode(), partition, number) for number in range(2)]
            self.model[key] = (start, values + added)
        self.outcomes["logs opened"] += 1

    # -- Inside --------

    def _new_job(self):
        """Return a job, and the model when it is through."""
        self.version += 1
        counts = {
            (topic, partition): self.rng.choice([1, 3, 60])
            for topic, count in TOPICS.items()
            for partition in range(count)
            if self.rng.random() < 0.5
        }
        tasks = tuple(
            rows_of(*[(*key, count) for key, count in counts.items()], name=f"{self.version}.{task}")
            for task in range(self.rng.randint(1, 2))
        )
        topics = {topic for topic, _ in counts}
        is_overwrite = self.rng.random() < 0.25
        after = copy.deepcopy(self.model)
        new = {topic: TOPICS[topic] for topic in topics if (topic, 0) not in self.model}
        for topic, count in new.items():
            after |= {(topic, partition): (0, []) for partition in range(count)}
        if is_overwrite:
            for key, (start, values) in after.items():
                if key[0] in topics:
                    after[key] = (start + len(values), [])
        for rows in tasks:
            for key, added in rows.items():
                after[key][1].extend(value for _, value in added)
        settings = {
            "mode": "overwrite" if is_overwrite else "append",
            "new_partitions": new,
            "txn_app_id": "app",
            "txn_version": self.version,
        }
        return Job(tasks, settings), after

    def _job_id(self) -> str:
        self.job_count += 1
        return f"{self.job_count:032x}"

    def _abort(self, job_id: str) -> None:
        job = CommitJob(self.filesystem, ROOT, JobSpec(job_id=job_id, config=CONFIG), Clock())
        try:
            job.abort()
        except SegmentLogError:
            self.outcomes["abort failed"] += 1

    @staticmethod
    def _records(model):
        return {key: list(enumerate(values, start)) for key, (start, values) in model.items()}

    def _look(self, after, *, must_be_there: bool) -> bool:
        """Return whether a reader sees the job."""
        found, before = seen(self.filesystem), self._records(self.model)
        if self._records(after) == found:
            return before != found or must_be_there
        assert not must_be_there, self.name
        assert found == before, self.name
        return False

    def _settle(self, after) -> None:
        """Finish what is unfinished, without the job."""
        with LogDirectory.open(ROOT, filesystem=self.filesystem, config=CONFIG, clock=Clock()):
            pass
        found = seen(self.filesystem)
        assert found in (self._records(self.model), self._records(after)), self.name
        is_there = found == self._records(after)
        self.outcomes["given up, completed" if is_there else "given up"] += 1
        if is_there:
            self.model = after

    def _accept(self, after) -> None:
        assert seen(self.filesystem) == self._records(after), self.name
        assert remains(self.filesystem) == [], self.name
        self.model = after
        self.outcomes["through"] += 1


def live(seed: int) -> Counter[str]:
    life = Life(seed)
    try:
        life.live(STEPS)
    except BaseException as error:
        error.add_note(f"seed {seed}, {life.name}")
        raise
    return life.outcomes


def test_jobs_that_die_or_fail_one_after_another(record_property):
    outcomes: Counter[str] = Counter()
    for seed in range(LIVES):
        outcomes += live(seed)
    died = outcomes["killed"] + outcomes["failed"] + outcomes["in doubt"]
    record_property(cases("Jobs in a row, beside a model: killed or failed at a random call"), died)
    assert all(outcomes[name] > 5 for name in ("through", "killed", "failed", "in doubt")), outcomes


@pytest.mark.soak
def test_jobs_that_die_or_fail_for_a_long_time(capsys):
    outcomes: Counter[str] = Counter()
    for seed in soak_seeds(share=2):
        outcomes += live(seed)
    with capsys.disabled():
        print(f"\n{dict(outcomes)}")
