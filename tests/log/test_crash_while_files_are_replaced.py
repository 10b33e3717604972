"""A crash while segments take the place of others: either the old ones count or the new ones, never both, never none."""

from __future__ import annotations

import pytest

from storage_core.errors import RecoveryWouldDiscardError
from tests.faults.counting import cases
from tests.faults.crash_points import CrashState, open_directory, recovery_states
from tests.faults.log_model import Expectation, History
from tests.faults.session import ROOT, TOPIC, records_of
from tests.faults.simulated_filesystem import SimulatedFileSystem, TriedStates
from tests.record.encoding import Batch, Record

DIRECTORY = f"{ROOT}/{TOPIC}-0"
# Of the first three, a segment's offsets reach 2^31 too far.
FAR = 2**31 + 100
OFFSETS = (0, 2, 4, 6, 8)
FAR_OFFSETS = (0, 2, FAR, FAR + 2)


def value(offset):
    return b"%d:%s" % (offset, b"v" * 100)


def batch(offset):
    """Return two records."""
    records = [Record(delta, 1_700_000_000_000, value=value(offset + delta)) for delta in range(2)]
    return Batch(records, base_offset=offset).encode()


def content(*offsets):
    return b"".join(map(batch, offsets))


def name(base_offset, suffix=""):
    return f"{base_offset:020d}.log{suffix}"


# Everything that Kafka's replaceSegments and splitOverflowedSegment may leave.
DIRECTORIES = {
    "a compaction before the first rename": (
        OFFSETS,
        {name(0): content(0, 2), name(4): content(4, 6), name(8): content(8), name(0, ".cleaned"): content(0, 2, 4)},
    ),
    "a compaction that is complete": (
        OFFSETS,
        {name(0): content(0, 2), name(4): content(4, 6), name(8): content(8), name(0, ".swap"): content(0, 2, 4, 6)},
    ),
    "a compaction that is nearly done": (
        OFFSETS,
        {
            name(0, ".deleted"): content(0, 2), name(4): content(4, 6), name(8): content(8),
            name(0, ".swap"): content(0, 2, 4, 6),
        },
    ),
    "a split before the first rename": (
        OFFSETS,
        {name(0): content(0, 2, 4, 6), name(0, ".cleaned"): content(0, 2), name(4, ".cleaned"): content(4), name(8): content(8)},
    ),
    "a split in the middle of its renames": (
        OFFSETS,
        {name(0): content(0, 2, 4, 6), name(0, ".cleaned"): content(0, 2), name(4, ".swap"): content(4, 6), name(8): content(8)},
    ),
    "a split that is complete": (
        OFFSETS,
        {name(0): content(0, 2, 4, 6), name(0, ".swap"): content(0, 2), name(4, ".swap"): content(4, 6), name(8): content(8)},
    ),
    "a split that is nearly done": (
        OFFSETS,
        {
            name(0, ".deleted"): content(0, 2, 4, 6), name(0): content(0, 2), name(4, ".swap"): content(4, 6),
            name(8): content(8),
        },
    ),
    "a segment that has to be split": (
        (*FAR_OFFSETS, FAR + 4), {name(0): content(*FAR_OFFSETS), name(FAR + 4): content(FAR + 4)},
    ),
}  # fmt: skip


def state_of(label, offsets, files):
    filesystem = SimulatedFileSystem()
    for file_name, data in files.items():
        filesystem.put(f"{DIRECTORY}/{file_name}", data)
    batches = tuple((offset, offset + 1) for offset in offsets)
    values = {offset: value(offset) for pair in batches for offset in pair}
    history = History(batches, values, offsets[-1] + 2)
    expectation = Expectation((history,), history.end_offset, (0, 0))
    return CrashState(label, filesystem, expectation, expectation)


def check(state, recovery):
    with open_directory(state.filesystem, recovery) as logs:
        log = logs.get(TOPIC, 0)
        problems = state.expectation.problems(records_of(log), log.log_start_offset, log.log_end_offset)
        assert problems == [], state.name
        bases = [int(path[-24:-4]) for path in state.filesystem.files() if path.endswith(".log")]
        assert bases == list(log.segment_base_offsets), state.name
    left = [path for path in state.filesystem.files() if path.endswith((".swap", ".cleaned"))]
    assert left == [], state.name


@pytest.mark.cases(3, 8)
@pytest.mark.parametrize("recovery", ["tail", "kafka"])
@pytest.mark.parametrize("label", DIRECTORIES)
def test_crash_while_segments_are_replaced(label, recovery, record_property):
    offsets, files = DIRECTORIES[label]
    count, tried = 0, TriedStates()
    for second in recovery_states(state_of(label, offsets, files), recovery, seed=1, variants=5):
        if tried.is_new(second.filesystem):
            check(second, recovery)
            count += 1
    record_property(cases("A power cut while segments are replaced or split"), count)
    assert count > 8


def test_a_replacement_that_would_lose_records_is_refused():
    """The complete output is damaged: what it would replace is still used."""
    offsets, files = DIRECTORIES["a compaction that is complete"]
    damaged = bytearray(files[name(0, ".swap")])
    damaged[100] ^= 1
    state = state_of("damaged", offsets, {**files, name(0, ".swap"): bytes(damaged)})
    before = state.filesystem.files()
    with pytest.raises(RecoveryWouldDiscardError):
        open_directory(state.filesystem, "tail")
    after = state.filesystem.files()
    assert {path: after[path] for path in before} == before
