"""A crash at every call while old segments are deleted: the log begins where it began before, or where it is to begin.

In between there is nothing: no other start, no hole, no record lost that is above the new start.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from itertools import pairwise

import pytest

from storage_core import LogDirectory
from tests.faults.counting import cases
from tests.faults.crash_points import (
    crash_states,
    crashes,
    new_filesystem,
    open_directory,
    recover,
    recovery_states,
)
from tests.faults.log_model import Expectation
from tests.faults.session import (
    CONFIG,
    ROOT,
    Session,
    StillClock,
    records_of,
    timestamp_of,
)
from tests.faults.simulated_filesystem import TriedStates

RECOVERIES = ("tail", "kafka")
# Per call: one state after a SIGKILL, and this many after a power cut.
VARIANTS = 2
SIZES = (20, 700, 90, 3, 300)
RETENTION_MS = 1_000
TIMED = CONFIG.replace(retention_ms=RETENTION_MS)
AT_ONCE = TIMED.replace(file_delete_delay_ms=0)
TECHNIQUE = "Power cut or SIGKILL at each call of retention"


class OneOfTwoStarts(Expectation):
    """The start before a step, or the one after it, however many segments lie between them."""

    def problems(self, found, log_start_offset, log_end_offset):
        problems = super().problems(found, log_start_offset, log_end_offset)
        if log_start_offset not in self.starts:
            problems.append(f"expected a log start of {self.starts}, and none in between: {log_start_offset}")
        return problems


def strict(state):
    expected, on_disk = (
        OneOfTwoStarts(each.histories, each.required_end, each.starts)
        for each in (state.expectation, state.after_power_cut)
    )
    return dataclasses.replace(state, expectation=expected, after_power_cut=on_disk)


def retain(session, count):
    """Let this many of the oldest segments expire, and delete them."""
    log, model = session.log, session.model
    bases = log.segment_base_offsets
    if count < len(bases):
        start = bases[count]
        # As old as may be: the records in front of it are older.
        now_ms = timestamp_of(model.history.values[start]) + RETENTION_MS
    else:
        start, now_ms = model.end_offset, session.clock.now_ms()
    model.delete_records(start)
    assert log.apply_retention(now_ms) == bases[:count]
    model.start_is_kept()
    session.check()


def filled(session):
    """Segments of few records, all flushed but the last ones."""
    session.open()
    for number in range(16):
        session.append(SIZES[number % 5], 200, acks=-1)
    for number in range(3):
        session.append(60, 5 + number)
    assert len(session.log.segment_base_offsets) > 4


def unflushed(session):
    """Begin with the same; nothing was flushed, and no checkpoint was ever written."""
    session.open()
    for number in range(16):
        session.append(SIZES[number % 5], 200)


def crashed(session):
    """Begin with a log that was not closed: its recovery point is that of the last checkpoint."""
    filled(session)
    killed = session.filesystem.kill()
    session.filesystem._root = killed._root
    session.filesystem._locked.clear()
    session.open()


def started_within(session):
    """Begin with a log that starts in the middle of a segment."""
    filled(session)
    session.delete_records(session.log.segment_base_offsets[1] + 1)


def retain_some(session):
    retain(session, 2)
    session.append(60, 5)
    # From here on, the log start is told by the name of the first segment alone.
    session.logs.checkpoint()
    retain(session, 1)
    session.append(60, 5, acks="all")


def retain_all(session):
    retain(session, len(session.log.segment_base_offsets))
    session.append(60, 5)
    session.append(60, 5, acks="all")
    retain(session, 1)


def retain_and_close(session):
    retain(session, 2)
    session.reopen()
    retain(session, 1)
    session.append(5)


def retain_and_truncate(session):
    retain(session, 2)
    session.truncate_to(session.log.segment_base_offsets[1] + 2)
    session.append(60, 5, acks="all")
    retain(session, 1)


def retain_again_and_again(session):
    while len(session.log.segment_base_offsets) > 1:
        retain(session, 1)
    session.append(5, acks="all")


WORKLOADS = [
    (filled, retain_some, TIMED),
    (filled, retain_all, TIMED),
    (filled, retain_all, AT_ONCE),
    (filled, retain_and_close, TIMED),
    (filled, retain_and_truncate, TIMED),
    (filled, retain_again_and_again, AT_ONCE),
    (unflushed, retain_some, TIMED),
    (unflushed, retain_all, AT_ONCE),
    (crashed, retain_some, AT_ONCE),
    (crashed, retain_all, TIMED),
    (started_within, retain_some, TIMED),
    (started_within, retain_all, TIMED.replace(preallocate=True)),
]


def name_of(given):
    return getattr(given, "__name__", None) or repr(given).removeprefix("LogConfig")


@pytest.mark.cases(1, 6)
@pytest.mark.parametrize(("prepare", "workload", "config"), WORKLOADS, ids=name_of)
def test_crash_at_every_call(prepare, workload, config, record_property):
    outcomes: Counter[str] = Counter()
    states = crash_states(prepare, workload, seed=11, variants=VARIANTS, config=config)
    tried = TriedStates()
    for number, state in enumerate(states):
        recovery, is_thorough = RECOVERIES[number % 2], number % 5 == 0
        # What is done thoroughly crashes again at random: that is never twice the same.
        if tried.is_new(state.filesystem, state.expectation, recovery) or is_thorough:
            outcomes[recover(strict(state), recovery, is_thorough=is_thorough)] += 1
    record_property(cases(TECHNIQUE), outcomes.total())
    assert outcomes["opened"] > 30
    # Nothing that retention does makes anything look damaged that was not.
    assert outcomes["refused"] <= outcomes["opened"] // 10


@pytest.mark.cases(1, 2)
@pytest.mark.parametrize("recovery", RECOVERIES)
@pytest.mark.parametrize("workload", [retain_some, retain_all])
def test_crash_in_the_middle_of_recovery(workload, recovery, record_property):
    states = list(crash_states(filled, workload, seed=12, variants=2, config=TIMED))
    count, tried = 0, TriedStates()
    for state in random.Random(recovery).sample(states, 6):
        for second in recovery_states(state, recovery, seed=13, variants=1):
            is_thorough = count % 5 == 0
            if tried.is_new(second.filesystem, second.expectation) or is_thorough:
                recover(strict(second), recovery, is_thorough=is_thorough)
                count += 1
    record_property(cases("A second power cut, at each call of recovery"), count)
    assert count > 20


@pytest.mark.parametrize("workload", [retain_some, retain_all])
@pytest.mark.parametrize("config", [TIMED, AT_ONCE], ids=["later", "at once"])
def test_a_start_that_was_seen_after_a_kill_is_kept_through_a_power_cut(workload, config, record_property):
    """The system may know of names that the disk does not, as long as nothing flushes them."""
    count = 0
    for state in crash_states(filled, workload, seed=15, variants=0, config=config):
        filesystem = state.filesystem
        for path in filesystem.files():
            # Not everybody leaves these. Where one is deleted, the names are written as well.
            if path.endswith(".snapshot"):
                filesystem.delete(path)
        logs = open_directory(filesystem, "kafka", config=config)
        seen = logs.get("orders").log_start_offset
        # It need not tell of a log that begins where its first segment does.
        logs.checkpoint()
        for variant in range(3):
            after = filesystem.crash(random.Random(f"{state.name} {variant}"))
            with open_directory(after, "kafka", config=config) as again:
                assert again.get("orders").log_start_offset == seen, state.name
            count += 1
        logs.close()
    record_property(cases("A SIGKILL, and a power cut after the next start"), count)
    assert count > 100


# -- All logs of a directory --------

TOPICS = ("clicks", "orders", "views")


def filled_logs(filesystem, sessions):
    logs = LogDirectory.open(ROOT, filesystem=filesystem, config=TIMED, clock=StillClock())
    for topic, session in zip(TOPICS, sessions, strict=True):
        session.logs, session.log = logs, logs.create(topic)
    for number in range(30):
        sessions[number % 3].append(SIZES[number % 5], 400, acks=(-1, 1)[number % 2])
    return logs


def retain_in_all(logs, sessions):
    for count in (1, 2):
        # This many segments of the first log expire; the logs have similar numbers of records.
        start = sessions[0].log.segment_base_offsets[count]
        now_ms = timestamp_of(sessions[0].model.history.values[start]) + RETENTION_MS
        for session in sessions:
            session.model.delete_records(start_behind(session, now_ms - RETENTION_MS))
        logs.apply_retention(now_ms)
        for session in sessions:
            session.model.start_is_kept()
            session.check()
        sessions[1].append(5, acks="all")
    for session in sessions:
        session.model.delete_records(session.model.end_offset)
    logs.apply_retention()
    for session in sessions:
        session.model.start_is_kept()
        session.check()


def start_behind(session, oldest_ms):
    """Return the base offset of the first segment that has a record young enough."""
    values = session.model.history.values
    bases = (*session.log.segment_base_offsets, session.model.end_offset)
    for base, following in pairwise(bases):
        if max(timestamp_of(values[offset]) for offset in range(base, following)) >= oldest_ms:
            return base
    return session.model.end_offset


def test_crash_at_every_call_of_a_directory_with_several_logs(record_property):
    filesystem = new_filesystem()
    sessions = [Session(filesystem, config=TIMED) for _ in TOPICS]

    def known():
        return [(each.model.after_kill(), each.model.after_power_cut()) for each in sessions]

    retained = filled_logs(filesystem, sessions)
    states = crashes(filesystem, lambda: retain_in_all(retained, sessions), known)
    moved = 0
    for crash in states:
        with open_directory(crash.filesystem, "kafka", config=TIMED) as logs:
            for topic, expectations in zip(TOPICS, crash.known, strict=True):
                expectation, name = expectations[crash.is_power_cut], crash.name
                if (topic, 0) not in logs:
                    assert expectation.required_end == 0, f"{name}: {topic} is gone"
                    continue
                log = logs.get(topic)
                expected = OneOfTwoStarts(**vars(expectation))
                problems = expected.problems(records_of(log), log.log_start_offset, log.log_end_offset)
                assert problems == [], f"{name}: {topic}: {problems}"
                moved += log.log_start_offset > 0
    record_property(cases(TECHNIQUE), len(states))
    assert moved > 50
