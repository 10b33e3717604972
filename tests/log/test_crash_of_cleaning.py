"""A crash at every call of a cleaning: the log is as it was before some step of the cleaning, or after it.

A step is: a cleaned segment takes the place of those that it was made of; or one of which nothing was left goes. What a
reader sees from step to step is noted while nothing goes wrong. Then the power goes before each call, in several ways, or
the process ends; the log is opened again, with both kinds of recovery, and crashed once more while that happens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import pytest

from storage_core import LogConfig, LogDirectory
from storage_core.directory import segment_listing
from tests.faults.counting import cases
from tests.faults.crash_points import Crash, crashes
from tests.faults.simulated_files import SimulatedWritableFile
from tests.faults.simulated_filesystem import SimulatedFileSystem, TriedStates
from tests.log.cleaning import put, records
from tests.log.logs import Clock, name, table
from tests.record.legacy_encoding import Message

ROOT = "/data"
# Some fourteen batches of `put` fill a segment.
CONFIG = LogConfig(
    cleanup_policy="compact", internal_segment_bytes=1000, index_interval_bytes=100, segment_index_bytes=240
)


def open_directory(filesystem, clock=None, recovery="tail"):
    return LogDirectory.open(
        ROOT, filesystem=filesystem, clock=clock or Clock(), config=CONFIG, recovery=recovery
    )


def roll(log, *pairs):
    put(log, *pairs)
    log.roll()


def joined(log, clock):
    """Three segments become one."""
    roll(log, "a1", "b1", "c1")
    roll(log, "a2", "d1")
    roll(log, "a3", "c2", "e1")


def nothing_left_behind(log, clock):
    """Write a log whose later segments of a group are wholly removed."""
    for pair in ("x1", "b1", "c1", "d1"):
        roll(log, pair)
    # Too large to be joined with those in front of it.
    roll(log, "b2", "c2", "d2", *(f"{number}{'v' * 60}" for number in range(6)))


def values_and_their_end_apart(log, clock):
    """Write a value and the null value that ends it, in segments of which nothing is left: it must not come back.

    Only of the old format is a null value dropped together with what it ends.
    """
    roll(log, "w1")
    log.clean()
    for key, value in [(b"x", b"1"), (b"a", b"1"), (b"b", b"1"), (b"b", None), (b"a", None)]:
        offset = log.log_end_offset
        log.append_batches(Message(offset, key=key, value=value).encode())
        log.update_high_watermark(log.log_end_offset)
        log.roll()
        # Long before the segment in front was cleaned.
        log._state.filesystem.set_modified_ms(f"{log.path}/{name(offset)}", 1000)
    roll(log, *(f"{number}{'v' * 60}" for number in range(6)))
    log.update_high_watermark(log.log_end_offset)


def emptied(log, clock):
    """Write a log whose first group becomes an empty segment."""
    roll(log, *(f"{number}{'v' * 60}" for number in range(6)))
    roll(log, *(f"{number}{'w' * 60}" for number in range(6)))
    roll(log, *(f"{number}{'x' * 60}" for number in range(6)))


def several_groups(log, clock):
    """Write several groups, which are cleaned one after the other."""
    for base in range(3):
        roll(log, f"a{base}", *(f"{base}{number}{'v' * 60}" for number in range(5)))
        roll(log, f"b{base}")


def transactions(log, clock):
    """Aborted data, with entries in a transaction index."""
    put(log, "a1")
    first = log.transaction(7)
    first.append(table(b"2", b"1", keys=[b"a", b"b"]))
    log.roll()
    put(log, "c1")
    first.abort()
    second = log.transaction(8)
    second.append(table(b"3", b"2", keys=[b"a", b"c"]))
    second.commit()
    log.roll()
    third = log.transaction(7)
    third.append(table(b"4", keys=[b"d"]))
    third.abort()
    roll(log, "e1")


def cleaned_again(log, clock):
    """Clean a log, and append: what was cleaned is cleaned again with what came since."""
    joined(log, clock)
    log.clean()
    roll(log, "b2", "e2")
    roll(log, "a4")


# The steps that a reader can tell from one another.
STEPS = {
    joined: 1,
    nothing_left_behind: 3,
    values_and_their_end_apart: 4,
    emptied: 2,
    several_groups: 5,
    transactions: 1,
    cleaned_again: 1,
}


@dataclass
class Cleaning:
    """A cleaning that was looked at.

    Attributes:
        views: What a reader sees before the first step, and after each.
        crashes: What a crash at each call leaves; what is known is how many steps were done for readers in the process.
        producers: What is known of the producers.
        end_offset: The log end offset.
    """

    views: list[list[str]]
    crashes: list[Crash]
    producers: dict
    end_offset: int


def prepared(make, clock):
    filesystem = SimulatedFileSystem()
    filesystem.make_directory(ROOT)
    filesystem.flush_directory("/")
    with open_directory(filesystem, clock) as logs:
        log = logs.create("orders")
        make(log, clock)
        put(log, "z1", acks="all")
    return filesystem


def never_flushed(make, clock, monkeypatch):
    """Make a log whose writer was killed, as a broker's, which flushes later: no segment has reached the disk."""
    flush = SimulatedWritableFile.flush
    with monkeypatch.context() as patch:
        patch.setattr(
            SimulatedWritableFile, "flush", lambda file: None if file.path.endswith(".log") else flush(file)
        )
        filesystem = prepared(make, clock).kill()
    filesystem.delete(f"{ROOT}/.kafka_cleanshutdown")
    filesystem.delete(f"{ROOT}/recovery-point-offset-checkpoint")
    return filesystem


def looked_at(make, *, seed=1, variants=3, prepare=prepared):
    clock = Clock()
    filesystem = prepare(make, clock)
    logs = open_directory(filesystem, clock)
    log = logs.get("orders")
    found = Cleaning([records(log)], [], producers_of(log), log.log_end_offset)

    def step():
        seen = records(log)
        if seen != found.views[-1]:
            found.views.append(seen)
        return len(found.views) - 1

    found.crashes = crashes(filesystem, log.clean, step, seed=seed, variants=variants)
    assert found.crashes
    return found


def producers_of(log):
    """Return what is known of each producer, but for the batches before its last one."""
    return {
        producer.producer_id: producer.snapshot_entry()
        for producer in log._state.producers.producers.values()
    }


def check(crash, cleaning, recovery, *, is_thorough=True):
    allowed = cleaning.views[crash.known : crash.known + 2]
    with open_directory(crash.filesystem, recovery=recovery) as logs:
        log = logs.get("orders")
        assert records(log) in allowed, crash.name
        assert (log.log_start_offset, log.log_end_offset) == (0, cleaning.end_offset), crash.name
        assert producers_of(log) == cleaning.producers, crash.name
        left = [path for path in crash.filesystem.files() if path.endswith((".swap", ".cleaned", ".deleted"))]
        assert left == [], crash.name
        bases = [int(path[-24:-4]) for path in crash.filesystem.files() if path.endswith(".log")]
        assert bases == list(log.segment_base_offsets), crash.name
        if not is_thorough:
            return
        committed = records(log, isolation_level="read_committed")
        put(log, "z2", acks="all")
        log.clean()
        assert records(log)[-1].endswith(":z=2"), crash.name
        assert set(records(log, isolation_level="read_committed")) <= {*committed, records(log)[-1]}, (
            crash.name
        )


@pytest.mark.cases(1, 4)
@pytest.mark.parametrize("make", STEPS)
def test_a_crash_at_every_call(make, record_property):
    cleaning = looked_at(make)
    assert len(cleaning.views) == 1 + STEPS[make]
    tried, count = TriedStates(), 0
    for number, crash in enumerate(cleaning.crashes[::2]):
        # Every state is opened and read, by both kinds of recovery in turn; what takes longer is done to a share of them.
        recovery, is_thorough = ("tail", "kafka")[number % 2], number % 7 == 0
        if tried.is_new(crash.filesystem, crash.known, recovery, is_thorough):
            check(crash, cleaning, recovery, is_thorough=is_thorough)
            count += 1
    record_property(cases("A crash at every call of a cleaning"), count)


@pytest.mark.cases(1, 1)
@pytest.mark.parametrize("make", [joined, values_and_their_end_apart])
def test_a_second_crash_while_the_log_is_opened(make, record_property):
    """The process ends; then the power goes, and some of what it had changed has not reached the disk."""
    cleaning = looked_at(make, variants=0)
    swapped = [
        crash for crash in cleaning.crashes if any(".swap" in path for path in crash.filesystem.files())
    ]
    assert swapped
    count, tried = 0, TriedStates()
    for crash in [*(swapped if make is joined else swapped[::8]), *cleaning.crashes[::30]]:
        filesystem = crash.filesystem.kill()
        for second in crashes(filesystem, partial(open_directory, filesystem), seed=crash.name, variants=3):
            if second.is_power_cut and tried.is_new(second.filesystem, crash.known):
                check(replace(second, known=crash.known), cleaning, "tail", is_thorough=False)
                count += 1
    record_property(cases("A second crash while a crashed cleaning is finished"), count)


def test_what_supersedes_a_record_is_on_disk_before_that_goes(monkeypatch, record_property):
    """Nothing of the log was on disk. From the first file of the cleaning on, everything that it relies on is."""
    cleaning = looked_at(several_groups, prepare=lambda *how: never_flushed(*how, monkeypatch))
    names = [crash.name for crash in cleaning.crashes]
    first = next(number for number, name in enumerate(names) if ".cleaned" in name)
    views = [[each for each in view if ":z=" not in each] for view in cleaning.views]
    for crash in cleaning.crashes[first::2]:
        with open_directory(crash.filesystem, recovery="kafka") as logs:
            found = [each for each in records(logs.get("orders")) if ":z=" not in each]
        assert found in views[crash.known : crash.known + 2], crash.name
    record_property(cases("A crash at every call of a cleaning"), len(cleaning.crashes[first::2]))


@pytest.mark.parametrize("make", [joined, nothing_left_behind, emptied])
def test_who_reads_the_files_meanwhile_sees_no_mixture(make, monkeypatch):
    """As another process does, at each call of the cleaning."""
    # A swap that is under way is not waited for: it does not go on while somebody looks.
    monkeypatch.setattr(segment_listing, "_SWAP_WAIT_SECONDS", 0)
    monkeypatch.setattr(segment_listing, "_SWAP_POLL_SECONDS", 0)
    clock = Clock()
    filesystem = prepared(make, clock)
    with open_directory(filesystem, clock) as logs:
        log = logs.get("orders")
        steps, found = [records(log)], []

        def observe(call):
            if records(log) != steps[-1]:
                steps.append(records(log))
            with LogDirectory.open(ROOT, filesystem=filesystem, read_only=True, config=CONFIG) as reader:
                found.append((str(call), len(steps) - 1, records(reader.get("orders"))))

        filesystem.observe = observe
        log.clean()
        filesystem.observe = None
        steps.append(records(log))
    assert len(found) > 30
    for call, step, seen in found:
        assert seen in steps[step : step + 2], call
