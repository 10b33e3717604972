"""A crash at every call that changes something: what was acknowledged is there, in order, once.

Each workload runs on a file system in memory. Before each of its calls the power goes, in several ways, and the process
ends; the log is opened again with both kinds of recovery, read, looked up in, appended to, and crashed once more.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.faults.counting import cases
from tests.faults.crash_points import crash_states, recover, recovery_states
from tests.faults.session import CONFIG
from tests.faults.simulated_filesystem import TriedStates
from tests.faults.soak import soak_seeds

RECOVERIES = ("tail", "kafka")
# Per call: one state after a SIGKILL, and this many after a power cut.
VARIANTS = 3
SIZES = (20, 700, 90, 3, 300)


def nothing(session):
    """Begin with an empty log directory, not even opened."""


def created(session):
    """Begin with a log without records."""
    session.open()


def filled(session):
    """Four segments, all flushed but the last records."""
    session.open()
    for number in range(12):
        session.append(SIZES[number % 5], 200, acks=-1)
    for number in range(3):
        session.append(60, 5 + number)


def restarted(session):
    """Begin with a log at a high offset, without records."""
    session.open()
    session.append(5)
    session.truncate_fully_and_start_at(500)


def crashed(session):
    """Begin with a log that was not closed."""
    filled(session)
    killed = session.filesystem.kill()
    session.filesystem._root = killed._root
    session.filesystem._locked.clear()


def create(session):
    session.open()


def append_to_the_operating_system(session):
    for size in SIZES * 2:
        session.append(size, 10, acks=1)


def append_to_the_disk(session):
    for size in SIZES * 2:
        session.append(size, 10, acks=-1)


def append_in_every_way(session):
    for number in range(12):
        session.append(SIZES[number % 5], 40, acks=(1, -1)[number % 2])
    session.flush()
    session.append(1)


def roll(session):
    session.append(100)
    session.roll()
    session.append(100)
    session.roll()
    session.roll()
    session.append(100, acks="all")


def truncate_within_the_last_segment(session):
    session.truncate_to(session.model.end_offset - 2)
    session.append(60, 5)
    session.append(60, 5, acks="all")


def truncate_within_a_batch(session):
    session.truncate_to(session.model.end_offset - 3)
    session.append(60, 5)


def truncate_over_segments(session):
    session.truncate_to(9)
    for _ in range(4):
        session.append(600, 5)
    session.append(5, acks="all")


def truncate_to_nothing(session):
    session.truncate_to(0)
    session.append(60, 5, acks="all")


def truncate_fully_within(session):
    session.truncate_fully_and_start_at(14)
    session.append(60, 5, acks="all")


def truncate_fully_behind(session):
    session.truncate_fully_and_start_at(500)
    session.append(60, 5)
    session.append(60, 5, acks="all")


def truncate_fully_in_front(session):
    session.append(60, 5, acks="all")
    session.truncate_fully_and_start_at(100)
    session.append(60, 5, acks="all")


def roll_without_records(session):
    session.roll()
    session.append(60, 5)
    session.truncate_to(500)
    session.roll()


def delete_records(session):
    session.delete_records(3)
    session.append(5)
    session.delete_records(13)
    session.append(5, acks="all")
    session.delete_records(session.model.end_offset)
    session.append(5)


def everything(session):
    for number in range(6):
        session.append(SIZES[number % 5], 200, acks=(1, -1)[number % 2])
    session.truncate_to(session.model.end_offset - 2)
    session.append(60)
    session.roll()
    session.append(60, 5)
    session.delete_records(3)
    session.reopen()
    session.append(60, 5)


def close(session):
    session.append(50)
    session.close()


def close_and_open(session):
    session.append(50)
    session.reopen()
    session.append(50)
    session.reopen()


def open_after_a_crash(session):
    session.open()
    session.append(5, acks="all")
    session.close()


WORKLOADS = [
    (nothing, create),
    (created, append_to_the_operating_system),
    (created, append_to_the_disk),
    (created, append_in_every_way),
    (created, close),
    (created, truncate_fully_behind),
    (filled, roll),
    (filled, truncate_within_the_last_segment),
    (filled, truncate_within_a_batch),
    (filled, truncate_over_segments),
    (filled, truncate_to_nothing),
    (filled, truncate_fully_within),
    (filled, truncate_fully_behind),
    (restarted, truncate_fully_in_front),
    (restarted, roll_without_records),
    (filled, delete_records),
    (filled, close_and_open),
    (crashed, open_after_a_crash),
]
CASES = [pytest.param(*pair, id=" then ".join(function.__name__ for function in pair)) for pair in WORKLOADS]


def check(prepare, workload, seed, variants, config=CONFIG) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    states = crash_states(prepare, workload, seed=seed, variants=variants, config=config)
    tried = TriedStates()
    for number, state in enumerate(states):
        recovery, is_thorough = RECOVERIES[number % 2], number % 7 == 0
        # What is done thoroughly crashes again at random: that is never twice the same.
        if tried.is_new(state.filesystem, state.expectation, recovery) or is_thorough:
            outcomes[recover(state, recovery, is_thorough=is_thorough)] += 1
    return outcomes


@pytest.mark.cases(2, 4)
@pytest.mark.parametrize(("prepare", "workload"), CASES)
def test_crash_at_every_call(prepare, workload, record_property):
    outcomes = check(prepare, workload, seed=1, variants=VARIANTS)
    record_property(cases("Power cut or SIGKILL at each call"), outcomes.total())
    assert outcomes["opened"] > 10
    # A refusal is right only if a reordered write follows a lost one.
    assert outcomes["refused"] <= outcomes["opened"]


CONFIGS = {
    "preallocated": CONFIG.replace(preallocate=True),
    "flushed every other record": CONFIG.replace(flush_messages=2),
    "compressed": CONFIG.replace(compression_type="zstd"),
    "an index entry for each batch": CONFIG.replace(internal_segment_bytes=3000, index_interval_bytes=0),
}


@pytest.mark.cases(1, 2)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_crash_of_a_log_of_another_configuration(config, record_property):
    outcomes = check(created, everything, seed=3, variants=1, config=config)
    record_property(cases("Power cut or SIGKILL at each call"), outcomes.total())
    assert outcomes["opened"] > 10


@pytest.mark.cases(1, 3)
@pytest.mark.parametrize("recovery", RECOVERIES)
@pytest.mark.parametrize("workload", [append_in_every_way, truncate_over_segments, delete_records, close])
def test_crash_in_the_middle_of_recovery(workload, recovery, record_property):
    """Recovery loses power itself, at each of its calls."""
    prepare = created if workload in {append_in_every_way, close} else filled
    states = list(crash_states(prepare, workload, seed=2, variants=3))
    rng = random.Random(f"{workload.__name__} {recovery}")
    count, tried = 0, TriedStates()
    for state in rng.sample(states, 4):
        for second in recovery_states(state, recovery, seed=3, variants=1):
            is_thorough = count % 5 == 0
            if tried.is_new(second.filesystem, second.expectation) or is_thorough:
                recover(second, recovery, is_thorough=is_thorough)
                count += 1
    record_property(cases("A second power cut, at each call of recovery"), count)
    assert count > 20


@pytest.mark.soak
@pytest.mark.parametrize(("prepare", "workload"), CASES)
def test_crash_at_every_call_for_a_long_time(prepare, workload, capsys):
    """Other states of the same calls, for the time of one campaign."""
    outcomes: Counter[str] = Counter()
    for seed in soak_seeds(share=len(CASES)):
        outcomes += check(prepare, workload, seed=seed, variants=8)
        for state in random.Random(seed).sample(
            list(crash_states(prepare, workload, seed=seed, variants=2)), 4
        ):
            for second in recovery_states(state, "tail", seed=seed, variants=2):
                outcomes[f"second crash: {recover(second, 'tail')}"] += 1
    with capsys.disabled():
        print(f"\n{prepare.__name__}, {workload.__name__}: {dict(outcomes)}")
