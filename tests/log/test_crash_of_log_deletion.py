"""A crash at every call while a log is deleted: it is there as it was, or gone, and never comes back as a part of itself."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pytest

from storage_core import LogDirectory, read_table
from tests.commit.jobs import CONFIG, JOBS, commit, rows_of, staged_job
from tests.faults.counting import cases
from tests.faults.crash_points import Crash, crashes, new_filesystem
from tests.faults.session import ROOT, StillClock, records_of
from tests.faults.simulated_filesystem import TriedStates
from tests.log.logs import table

TECHNIQUE = "Power cut or SIGKILL at each call of a log's deletion"
RECOVERIES = ("tail", "kafka")
KEY = ("orders", 0)
PARTITIONS = {"orders": 1, "clicks": 1, "other": 1}
LATER = CONFIG.replace(cleanup_policy="compact")
AT_ONCE = LATER.replace(file_delete_delay_ms=0)


@pytest.fixture(autouse=True)
def same_ids_on_each_run():
    """Fix the random part in the name of a deleted log's directory, which decides what a power cut leaves."""
    ids = random.Random(11)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=ids.getrandbits(128), version=4))
        yield


class Allowed(NamedTuple):
    """What may be found of the log.

    Attributes:
        may_be_old: Whether it may be there as it was before.
        may_be_gone: Whether there may be none.
        new_count: The least number of records in the next log of that name; None if there is none yet.
    """

    may_be_old: bool
    may_be_gone: bool
    new_count: int | None


class Work:
    """A log directory that jobs have written to, and logs; and what is done with it.

    Attributes:
        old: The records of the log that is going to be deleted.
        others: Those of the other logs.
    """

    def __init__(self, config) -> None:
        self.config = config
        self.filesystem = new_filesystem()
        # One job was committed, and one is still writing.
        rows = rows_of(("orders", 0, 20), ("clicks", 0, 8), ("other", 0, 10))
        commit(self.filesystem, ROOT, JOBS[0], rows, new_partitions=PARTITIONS)
        late = rows_of(("orders", 0, 5), name="late")
        self.staged = staged_job(self.filesystem, ROOT, JOBS[1], late, new_partitions=PARTITIONS)
        self.open()
        log = self.logs.get(*KEY)
        for number in range(25):
            log.append(record(number), acks="all")
        log.clean()
        for number in range(25, 45):
            log.append(record(number), acks="all")
        # Within a segment: a checkpoint alone tells of it.
        log.delete_records(log.segment_base_offsets[1] + 1)
        assert log.log_start_offset not in log.segment_base_offsets
        self.logs.checkpoint()
        self.old = (log.log_start_offset, log.topic_id, records_of(log))
        self.others = {key: records_of(self.logs.get(*key)) for key in (("clicks", 0), ("other", 0))}
        self.may_be_old, self.may_be_gone, self.new_count = True, False, None

    def open(self) -> None:
        self.logs = open_logs(self.filesystem, self.config)

    def delete(self) -> None:
        self.may_be_gone = True
        self.logs.delete(*KEY)
        self.may_be_old = False

    def create(self) -> None:
        self.new_count = 0
        self.new = self.logs.create(*KEY)
        self.may_be_gone = False

    def append(self, number) -> None:
        self.new.append(record(1000 + number), acks="all")
        self.new_count = number + 1

    def allowed(self) -> Allowed:
        return Allowed(self.may_be_old, self.may_be_gone, self.new_count)


def record(number):
    return table(b"%d" % number, keys=[b"%d" % (number % 30)])


def open_logs(filesystem, config, **options):
    return LogDirectory.open(ROOT, filesystem=filesystem, config=config, clock=StillClock(), **options)


def delete(work) -> None:
    work.delete()


def delete_and_make_again(work) -> None:
    work.delete()
    work.create()
    for number in range(3):
        work.append(number)


def delete_and_close(work) -> None:
    work.delete()
    work.logs.close()


def delete_while_others_write(work) -> None:
    work.logs.get("other").append(record(1))
    work.others["other", 0] = None
    work.delete()
    work.logs.checkpoint()
    work.logs.get("clicks").roll()


def delete_twice(work) -> None:
    work.delete()
    work.create()
    work.append(0)
    work.new_count, work.may_be_gone = 0, True
    work.logs.delete(*KEY)
    work.new_count = None


WORKLOADS = [delete, delete_and_make_again, delete_and_close, delete_while_others_write, delete_twice]


def crashes_of(work, workload) -> list[Crash]:
    return crashes(work.filesystem, lambda: workload(work), work.allowed)


def check(work, state, recovery, *, is_thorough=True) -> str:
    """Open what a crash left, compare, and go on; say what had become of the log."""
    filesystem = state.filesystem
    seen = read_table(ROOT, filesystem=filesystem, columns=["topic", "offset"])
    with open_logs(filesystem, work.config, recovery=recovery) as logs:
        outcome = found(work, state, logs)
        assert names_of_deleted(filesystem) == [], state.name
        before = [row["offset"] for row in seen.to_pylist() if row["topic"] == "orders"]
        now = [] if outcome == "gone" else [offset for offset, _ in records_of(logs.get(*KEY))]
        # A look without opening it sees the same.
        assert before == now, state.name
        for key, records in work.others.items():
            if records is not None:
                assert records_of(logs.get(*key)) == records, f"{state.name}: {key}"
        if not is_thorough:
            return outcome
        if outcome != "gone":
            logs.delete(*KEY)
        log = logs.create(*KEY)
        assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (0, 0, 0), state.name
        log.append(record(5))
    with open_logs(filesystem, work.config) as logs:
        assert records_of(logs.get(*KEY)) == [(0, b"5")], state.name
    return outcome


def found(work, state, logs) -> str:
    if KEY not in logs:
        assert state.known.may_be_gone or state.known.new_count == 0, f"{state.name}: it is gone"
        return "gone"
    log = logs.get(*KEY)
    records = records_of(log)
    if (log.log_start_offset, log.topic_id, records) == work.old:
        assert state.known.may_be_old, f"{state.name}: it has come back"
        return "old"
    assert state.known.new_count is not None, f"{state.name}: a part of it has come back: {records}"
    assert [value for _, value in records] == [b"%d" % (1000 + number) for number in range(len(records))]
    assert log.log_start_offset == 0, state.name
    assert len(records) >= state.known.new_count, state.name
    return "new"


def names_of_deleted(filesystem) -> list[str]:
    return [entry.name for entry in filesystem.list_directory(ROOT) if entry.name.endswith("-delete")]


@pytest.mark.cases(1, 5)
@pytest.mark.parametrize("config", [LATER, AT_ONCE], ids=["later", "at once"])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_crash_at_every_call(workload, config, record_property):
    work = Work(config)
    outcomes: Counter[str] = Counter()
    tried = TriedStates()
    for number, state in enumerate(crashes_of(work, workload)):
        # Every state is opened and read; what takes longer is done to a share of them.
        recovery, is_thorough = RECOVERIES[number % 2], number % 5 == 0
        if tried.is_new(state.filesystem, state.known, recovery) or is_thorough:
            outcomes[check(work, state, recovery, is_thorough=is_thorough)] += 1
    record_property(cases(TECHNIQUE), outcomes.total())
    assert outcomes["old"] >= 4
    assert outcomes["gone"] >= 4
    assert (outcomes["new"] > 0) == (workload in (delete_and_make_again, delete_twice))


def unflushed(states) -> Crash:
    """Return the crash where the system knew of the new name when the process was killed, but the disk did not."""
    return next(
        state
        for state in states
        if state.name.endswith(f"flush_directory {ROOT}, killed") and names_of_deleted(state.filesystem)
    )


@pytest.mark.cases(1, 1)
@pytest.mark.parametrize("config", [LATER, AT_ONCE], ids=["later", "at once"])
def test_a_crash_in_the_middle_of_the_next_start(config, record_property):
    work = Work(config)
    outcomes: Counter[str] = Counter()
    states = crashes_of(work, delete)
    for state in [unflushed(states), *states[:: len(states) // 4]]:
        start = partial(open_logs, state.filesystem, config)
        for second in crashes(state.filesystem, lambda start=start: start().close(), seed=state.name):
            if second.is_power_cut:
                outcomes[check(work, replace(second, known=state.known), "kafka", is_thorough=False)] += 1
    record_property(cases("A second power cut, at each call of the start after a deletion"), outcomes.total())
    assert outcomes["old"] > 10
    assert outcomes["gone"] > 10


def test_a_job_that_was_writing_meanwhile_makes_the_log_anew():
    work = Work(LATER)
    for state in crashes_of(work, delete):
        open_logs(state.filesystem, LATER).close()
        work.staged.commit(state.filesystem)
        with open_logs(state.filesystem, LATER) as logs:
            records = records_of(logs.get(*KEY))
            late = [value for _, value in records if value.startswith(b"late")]
            assert len(late) == 5, state.name
            if len(records) == 5:
                assert logs.get(*KEY).log_start_offset == 0, state.name
            else:
                assert records[:-5] == work.old[2], state.name
