"""A crash of a log directory with several logs: they share checkpoints and the marker of a clean shutdown."""

from __future__ import annotations

import pytest

from storage_core import LogDirectory
from tests.faults.counting import cases
from tests.faults.crash_points import crashes, open_directory
from tests.faults.session import CONFIG, ROOT, Session, StillClock, records_of
from tests.faults.simulated_filesystem import SimulatedFileSystem

TOPICS = ("orders", "clicks", "orders")
SIZES = (20, 700, 90, 3, 300)


def open_logs(filesystem, sessions):
    logs = LogDirectory.open(ROOT, filesystem=filesystem, config=CONFIG, clock=StillClock())
    for number, session in enumerate(sessions):
        session.logs, session.log = logs, logs.get_or_create(TOPICS[number], number)
    return logs


def work(filesystem, sessions):
    logs = open_logs(filesystem, sessions)
    for number in range(24):
        sessions[number % 3].append(SIZES[number % 5], 150, acks=(-1, 1)[number % 2 if number % 4 else 0])
    sessions[0].truncate_to(5)
    sessions[1].delete_records(3)
    sessions[2].roll()
    logs.checkpoint()
    sessions[0].append(5, acks="all")
    logs.close()
    for session in sessions:
        session.model.flushed()
    open_logs(filesystem, sessions)
    sessions[2].append(5)
    sessions[1].truncate_fully_and_start_at(2)
    sessions[1].append(5, acks="all")


FILES = {
    "many open files": {"max_open_files": 1000, "can_hold_files": True, "share": 3},
    # Files are closed and opened again all the time. Where the system forgets them, they are flushed before.
    "few open files": {"max_open_files": 2, "can_hold_files": True, "share": 7},
    "few open files, none held": {"max_open_files": 2, "can_hold_files": False, "share": 7},
}


@pytest.mark.cases(1, 3)
@pytest.mark.parametrize("files", FILES)
@pytest.mark.parametrize("recovery", ["tail", "kafka"])
def test_crash_at_every_call_of_a_directory_with_several_logs(recovery, files, record_property):
    filesystem = SimulatedFileSystem(max_open_files=FILES[files]["max_open_files"])
    filesystem.can_hold_files = FILES[files]["can_hold_files"]
    filesystem.make_directory(ROOT)
    filesystem.flush_directory("/")
    sessions = [Session(filesystem) for _ in TOPICS]

    def known():
        return [(each.model.after_kill(), each.model.after_power_cut()) for each in sessions]

    states = crashes(filesystem, lambda: work(filesystem, sessions), known, seed=recovery)
    # Some of them, to be quick: the calls of one log are tried one by one elsewhere.
    chosen = states[recovery == "kafka" :: FILES[files]["share"]]
    record_property(cases("Power cut or SIGKILL at each call"), len(chosen))
    for crash in chosen:
        check(crash, recovery)


def check(crash, recovery):
    with open_directory(crash.filesystem, recovery) as logs:
        for number, expectations in enumerate(crash.known):
            key, expectation, name = (TOPICS[number], number), expectations[crash.is_power_cut], crash.name
            if key not in logs:
                assert expectation.required_end == 0, f"{name}: {key} is gone"
                continue
            log = logs.get(*key)
            found = records_of(log)
            problems = expectation.problems(found, log.log_start_offset, log.log_end_offset)
            assert problems == [], f"{name}: {key}: {problems}"
