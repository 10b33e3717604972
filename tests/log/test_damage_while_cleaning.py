"""A process dies while it cleans, and before the log is opened again, a file is damaged: an error, or nothing is lost.

Files whose bytes count for nothing at that moment may be damaged at will.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pyarrow as pa
import pytest

from storage_core import LogConfig, LogDirectory
from storage_core.errors import CorruptError, RecoveryWouldDiscardError
from storage_core.log import CleanerConfig
from tests.faults.counting import cases
from tests.faults.crash_points import new_filesystem
from tests.faults.session import ROOT, TOPIC, StillClock
from tests.faults.simulated_filesystem import SimulatedFileSystem

CONFIG = LogConfig(
    internal_segment_bytes=1_500,
    segment_index_bytes=240,
    index_interval_bytes=100,
    cleanup_policy="compact",
)
PARTITION_PATH = f"{ROOT}/{TOPIC}-0/"
# After these, the CRC covers every byte of a batch.
UNCOVERED_BYTES = 21
# What is about to be removed, or is not complete.
WORTHLESS = (".cleaned", ".deleted")
INDEXES = (".index", ".timeindex")
DAMAGES_OF_EACH = 2

Found = dict[int, tuple[bytes, bytes | None]]


@dataclass
class Crash:
    """What a process has left that died before a call."""

    name: str
    filesystem: SimulatedFileSystem


def open_log(filesystem):
    logs = LogDirectory.open(ROOT, filesystem=filesystem, config=CONFIG, clock=StillClock())
    return logs, logs.get_or_create(TOPIC)


def append(log, *pairs) -> None:
    keys, values = zip(*pairs, strict=True)
    log.append(pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}))


def fill(log) -> None:
    for number in range(8):
        append(log, (b"a", b"%d" % number + b"v" * 150), (b"of %d" % number, b"v" * 60))
        append(log, (b"b", b"%d" % number + b"v" * 150), (b"c", None if number == 5 else b"v" * 100))
    log.roll()
    append(log, (b"d", b"in the active segment"))


def records_of(log) -> Found:
    return {
        row["offset"]: (row["key"], row["value"])
        for batch in log.read(columns=["offset", "key", "value"])
        for row in batch.to_pylist()
    }


def latest(found: Found) -> dict[bytes, bytes]:
    return {key: value for key, value in dict(found.values()).items() if value is not None}


@pytest.fixture(scope="module")
def cleaning() -> tuple[list[Crash], Found, Found]:
    """Return what is left if the process dies before each call of a cleaning, and the records before and after."""
    filesystem = new_filesystem()
    _, log = open_log(filesystem)
    fill(log)
    before, crashes = records_of(log), []
    filesystem.observe = lambda call: crashes.append(Crash(str(call), filesystem.kill()))
    log.clean(CleanerConfig(dedupe_buffer_size=24_000))
    filesystem.observe = None
    crashes.append(Crash("nothing more", filesystem.kill()))
    return crashes, before, records_of(log)


def damage_log(content: bytearray, rng: random.Random) -> None:
    """Flip a bit that a CRC covers, or cut within a batch."""
    starts, position = [], 0
    while position < len(content):
        starts.append(position)
        position += 12 + int.from_bytes(content[position + 8 : position + 12])
    start = rng.choice(starts)
    size = 12 + int.from_bytes(content[start + 8 : start + 12])
    at = start + rng.randrange(UNCOVERED_BYTES, size)
    if rng.random() < 0.3:
        del content[at:]
    else:
        content[at] ^= 1 << rng.randrange(8)


def damage_anything(content: bytearray, rng: random.Random) -> None:
    if rng.random() < 0.3:
        del content[rng.randrange(len(content)) :]
    else:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def damaged(crash: Crash, suffixes, damage, rng: random.Random) -> tuple[SimulatedFileSystem, str] | None:
    """Return a copy of what is left with one file damaged whose name ends so; None if there is none."""
    filesystem = crash.filesystem.kill()
    files = {
        path: content
        for path, content in filesystem.files().items()
        if path.startswith(PARTITION_PATH) and path.endswith(suffixes) and content
    }
    if not files:
        return None
    path = rng.choice(sorted(files))
    content = bytearray(files[path])
    damage(content, rng)
    filesystem.put(path, bytes(content))
    return filesystem, f"{crash.name}, damage in {path}"


def each_damaged(crashes, suffixes, damage):
    for crash in crashes:
        for number in range(DAMAGES_OF_EACH):
            rng = random.Random(f"{crash.name} {number} {suffixes}")
            found = damaged(crash, suffixes, damage, rng)
            if found is not None:
                yield found


def test_damaged_batches_are_an_error_or_nothing_is_lost(cleaning, record_property):
    crashes, before, _ = cleaning
    outcomes: Counter[str] = Counter()
    for filesystem, name in each_damaged(crashes, (".log", ".log.swap"), damage_log):
        try:
            logs, log = open_log(filesystem)
        except (CorruptError, RecoveryWouldDiscardError):
            outcomes["not opened"] += 1
            continue
        with logs:
            try:
                found = records_of(log)
            except CorruptError:
                outcomes["not read"] += 1
                continue
            outcomes["read"] += 1
            # What is damaged in the active segment, which was not flushed, is a torn end.
            assert latest(found) | {b"d": b"in the active segment"} == latest(before), name
    record_property(cases("A damaged file where a cleaning was interrupted"), outcomes.total())
    assert outcomes["not opened"] + outcomes["not read"] > 50


@pytest.mark.parametrize("suffixes", [WORTHLESS, INDEXES], ids=["worthless", "indexes"])
def test_damage_in_what_decides_nothing_changes_nothing(cleaning, suffixes, record_property):
    crashes, before, after = cleaning
    count = 0
    for filesystem, name in each_damaged(crashes, suffixes, damage_anything):
        count += 1
        with open_log(filesystem)[0] as logs:
            log = logs.get(TOPIC, 0)
            found = records_of(log)
            assert found.items() <= before.items(), name
            assert after.items() <= found.items(), name
            log.clean(CleanerConfig(dedupe_buffer_size=24_000))
            assert latest(records_of(log)) == latest(before), name
    record_property(cases("A damaged file where a cleaning was interrupted"), count)
    assert count > 50
