"""A crash while threads share their flushes: what one of them was told to be on disk is there."""

from __future__ import annotations

import os
import random
import threading

import pytest

from storage_core import LogConfig, LogDirectory
from tests.faults.counting import cases
from tests.faults.crash_points import new_filesystem, open_directory, open_or_none
from tests.faults.session import CONFIG, ROOT, TOPIC, Session, StillClock, records_of, table_of
from tests.faults.simulated_files import SimulatedWritableFile

SIZES = (20, 700, 90, 3, 300)


class Acknowledged:
    """What threads were told to be on disk, and the states that a power cut may leave at any moment."""

    def __init__(self, filesystem, seed):
        self.filesystem = filesystem
        self.seed = seed
        self.values = {}
        self.states = []
        self._guard = threading.Lock()

    def note(self, first_offset, values):
        with self._guard:
            self.values.update(enumerate(values, first_offset))

    def observe(self, call):
        # Taken before the crash: what was acknowledged then has to be found after it.
        with self._guard:
            told = dict(self.values)
        rng = random.Random(f"{self.seed} {call.number}")
        self.states.append((str(call), told, self.filesystem.crash(rng)))


@pytest.mark.parametrize("recovery", ["tail", "kafka"])
@pytest.mark.parametrize("seed", range(2))
def test_what_threads_were_told_to_be_on_disk_survives_a_power_cut_at_each_call(
    seed, recovery, monkeypatch, record_property
):
    filesystem = new_filesystem()
    acknowledged = Acknowledged(filesystem, f"{seed} {recovery}")
    flush = SimulatedWritableFile.flush

    def let_others_run(file):
        # All threads that can append during the flush do so.
        for _ in range(20):
            os.sched_yield()
        flush(file)

    monkeypatch.setattr(SimulatedWritableFile, "flush", let_others_run)
    with LogDirectory.open(ROOT, filesystem=filesystem, config=CONFIG, clock=StillClock()) as logs:
        log = logs.create(TOPIC)
        filesystem.observe = acknowledged.observe

        def append(thread):
            rng = random.Random(f"{seed} {thread}")
            for number in range(6):
                values = [b"%d:%s" % (thread * 100 + number, b"v" * rng.choice(SIZES)) for _ in range(2)]
                info = log.append(table_of(values), acks="all")
                acknowledged.note(info.first_offset, values)

        threads = [threading.Thread(target=append, args=(thread,)) for thread in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        filesystem.observe = None
        assert len(acknowledged.values) == 6 * 6 * 2
    chosen = acknowledged.states[seed + 2 * (recovery == "kafka") :: 5]
    record_property(cases("Power cut or SIGKILL at each call"), len(chosen))
    for name, told, after in chosen:
        with open_or_none(after, recovery) or open_directory(after, "kafka") as logs:
            log = logs.get(TOPIC)
            found = dict(records_of(log))
            missing = {offset: value for offset, value in told.items() if found.get(offset) != value}
            assert missing == {}, name
            assert list(found) == list(range(len(found))), name


def test_what_is_appended_during_a_flush_does_not_count_as_flushed(record_property):
    """A crash at each call, with records that came while the disk was at work for others."""
    filesystem = new_filesystem()
    # In one segment: a roll would wait for the flush, in the same thread.
    session = Session(filesystem, config=LogConfig(index_interval_bytes=200)).open()
    model = session.model
    states, flushed_end = [], None

    def observe(call):
        nonlocal flushed_end
        if call.name == "flush" and call.path.endswith(".log") and flushed_end is None:
            # Within the flush, before it has flushed anything: not more than this is covered by it.
            flushed_end = model.end_offset
            session.append(20, 30)
        rng = random.Random(call.number)
        states.append((str(call), model.after_power_cut(), filesystem.crash(rng)))

    for size_bytes in (20, 90, 700, 300, 3, 600, 20):
        flushed_end = None
        values = session.values(size_bytes)
        model.append(values)
        filesystem.observe = observe
        session.log.append(table_of(values), acks="all")
        filesystem.observe = None
        if flushed_end is not None:
            model._flushed_end = flushed_end
        filesystem.observe = observe
        session.append(5)
        filesystem.observe = None
    record_property(cases("Power cut or SIGKILL at each call"), len(states))
    for name, expectation, after in states:
        with open_directory(after, "kafka") as logs:
            log = logs.get(TOPIC)
            problems = expectation.problems(records_of(log), log.log_start_offset, log.log_end_offset)
            assert problems == [], name
