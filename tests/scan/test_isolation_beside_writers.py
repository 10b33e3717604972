"""``read_committed`` beside a process that opens, recovers, rolls, transacts, checkpoints and closes the same log directory.

A reader looks before every call of that process that changes something; and is itself overtaken at every call of its
own. It never returns a row of a transaction that was aborted, or is open, never a part of one, and always all that was
committed before it began and is stable.
"""

from __future__ import annotations

import random
from itertools import islice

import pytest

from storage_core import LogDirectory, read_table
from storage_core.checkpoint import CLEAN_SHUTDOWN_FILE
from storage_core.errors import LogClosedError
from storage_core.segment.file_names import TRANSACTION_INDEX_SUFFIX
from tests.commit.whole_jobs import Job
from tests.faults.counting import cases
from tests.faults.crash_points import new_filesystem
from tests.faults.passing_states import OvertakenFileSystem, State, record_states
from tests.faults.session import ROOT, TOPIC
from tests.faults.soak import soak_seeds
from tests.faults.transaction_ledger import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Event,
    Ledger,
    problems,
    values_of,
)
from tests.faults.transactional_life import TransactionalLife

LEVELS = (READ_COMMITTED, READ_UNCOMMITTED)
PARTITION = f"{ROOT}/{TOPIC}-0"
MARKER = f"{ROOT}/{CLEAN_SHUTDOWN_FILE}"


class Life(TransactionalLife):
    """A writer in memory, which can be killed."""

    def __init__(self) -> None:
        super().__init__(new_filesystem(), ROOT, Ledger())

    def kill(self) -> None:
        """End the process: what it has written is there, what it has locked is not locked."""
        for state in self.logs._checkpoints.states.values():
            state.segments.close_handlers()
        self.filesystem._locked.clear()
        self.is_open = False

    def reopen(self, recovery: str = "tail") -> None:
        self.open(recovery)
        self.settle()

    def transaction(self, producer_id: int, *sizes_bytes: int, is_abort: bool = False) -> None:
        unit = self.begin(producer_id)
        self.append(unit, *sizes_bytes)
        (self.abort if is_abort else self.commit)(unit)

    def commit_job(self, version: int) -> None:
        """Commit a Spark job: all of its rows appear at once. The log directory is closed."""
        with LogDirectory.open(ROOT, filesystem=self.filesystem, read_only=True) as logs:
            first_offset = logs.get(TOPIC).log_end_offset
        unit = self._new_unit()
        rows = {(TOPIC, 0): [(None, value) for value in values_of(unit, 0, 5, 100)]}
        self.note(Event("job", unit, first_offset, 5))
        Job((rows,), {"txn_app_id": "app", "txn_version": version}).run(self.filesystem, f"{version:032x}")
        self.note(Event("appended", unit))

    def remove(self, *names: str) -> None:
        """Remove index files, as an administrator does to have them built anew."""
        for name in names:
            self.filesystem.delete(f"{PARTITION}/{name}")

    def spoil(self, name: str) -> None:
        with self.filesystem.open_for_writing(f"{PARTITION}/{name}", create=True) as file:
            file.write_at([b"no transaction index"], 0)


def opened_and_closed(life: Life) -> None:
    """Abort a transaction each time in a segment that has no transaction index yet."""
    for producer_id in (1, 2, 1):
        life.reopen()
        life.transaction(producer_id, 40, 40)
        life.plain(30)
        life.transaction(producer_id, 50, 60, is_abort=True)
        life.roll()
        life.plain(30)
        life.close()


def rolled_under_open_transactions(life: Life) -> None:
    life.reopen()
    first = life.begin(1)
    life.append(first, 300)
    life.roll()
    second = life.begin(2)
    life.append(second, 200, 20)
    life.checkpoint()
    life.abort(second)
    life.plain(10)
    life.checkpoint()
    life.append(first, 700)
    life.append(first, 700)
    life.commit(first, flush=True)
    life.transaction(2, 20, is_abort=True)
    life.checkpoint()
    life.transaction(1, 20, is_abort=True)
    life.close()


def killed_and_recovered(life: Life) -> None:
    life.reopen()
    life.transaction(1, 20, 30)
    life.transaction(1, 400, is_abort=True)
    life.checkpoint()
    life.transaction(2, 400, is_abort=True)
    life.plain(900)
    life.transaction(1, 700, is_abort=True)
    left = life.begin(3)
    life.append(left, 50)
    life.plain(20)
    life.kill()
    life.reopen()
    life.transaction(1, 30, is_abort=True)
    life.log.flush()
    life.checkpoint()
    life.kill()
    life.reopen("kafka")
    life.transaction(2, 30)
    life.close()


def indexes_built_anew(life: Life) -> None:
    """Closed segments are recovered if index files are missing, or cannot be right."""
    life.reopen()
    for producer_id in (1, 2, 3):
        life.transaction(producer_id, 30, is_abort=True)
        life.transaction(producer_id, 30)
        life.transaction(producer_id, 40, is_abort=True)
        life.checkpoint()
    life.transaction(1, 10, is_abort=True)
    first, second, third, *_ = life.log.segment_base_offsets
    life.close()
    life.remove(
        f"{first:020d}.index", f"{first:020d}.txnindex", f"{second:020d}.index", f"{second:020d}.timeindex"
    )
    life.spoil(f"{third:020d}.txnindex")
    life.reopen()
    life.transaction(1, 10)
    life.kill()
    life.remove(
        f"{first:020d}.index", f"{first:020d}.txnindex", f"{second:020d}.index", f"{second:020d}.txnindex"
    )
    life.reopen()
    life.close()


def jobs_between(life: Life) -> None:
    life.reopen()
    life.transaction(1, 30, is_abort=True)
    life.close()
    life.commit_job(1)
    life.reopen()
    life.transaction(2, 30, is_abort=True)
    life.plain(500)
    life.close()
    life.commit_job(2)
    life.commit_job(3)
    life.reopen()
    life.transaction(1, 40, is_abort=True)
    life.close()


WORKLOADS = (
    opened_and_closed,
    rolled_under_open_transactions,
    killed_and_recovered,
    indexes_built_anew,
    jobs_between,
)


def rows_of(batches) -> list[tuple[int, bytes]]:
    return [
        (offset, value)
        for batch in batches
        for offset, value in zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)
    ]


def read(filesystem, level: str, **options) -> list[tuple[int, bytes]]:
    options = {"columns": ["offset", "value"], "isolation_level": level, "filesystem": filesystem, **options}
    return rows_of(read_table(ROOT, **options).to_batches())


def read_log(filesystem, level: str) -> list[tuple[int, bytes]]:
    with LogDirectory.open(ROOT, filesystem=filesystem, read_only=True) as logs:
        return rows_of(logs.get(TOPIC).read(columns=["offset", "value"], isolation_level=level))


OTHER_WAYS: tuple[dict[str, object], ...] = (
    {"use_indexes": False},
    {"max_records_per_partition": 3},
    {"starting_timestamp": 0, "starting_offsets_by_timestamp_strategy": "latest"},
    {"where": "timestamp >= '1970-01-01T00:00:00Z'"},
    {"where": "timestamp < '2200-01-01T00:00:00Z'", "max_timestamp_disorder": "1 hour"},
    {"mode": "PERMISSIVE"},
)


@pytest.fixture(scope="module", params=WORKLOADS, ids=lambda workload: workload.__name__)
def states(request) -> list[State]:
    """Return what stood there before each call of a workload. Its own process reads the log at each of them, too."""
    life, wrong = Life(), []
    # There is a log before somebody reads it.
    life.open()
    life.plain(10)
    life.close()

    def read_own_log(name: str) -> None:
        if not life.is_open:
            return
        for level in LEVELS:
            try:
                rows = rows_of(life.log.read(columns=["offset", "value"], isolation_level=level))
            except LogClosedError:
                # Its directory still writes checkpoints.
                return
            units = life.ledger.now()
            wrong.extend(f"{name}: {each}" for each in problems(rows, units, units, level))

    found = record_states(
        life.filesystem, lambda: request.param(life), life.ledger.now, meanwhile=read_own_log
    )
    assert wrong == []
    assert len(found) > 100
    return found


@pytest.mark.cases(1, 3)
def test_a_reader_looks_before_every_call(states, record_property):
    looks = 0
    for number, state in enumerate(states):
        for options in ({}, OTHER_WAYS[number % len(OTHER_WAYS)]):
            rows = read(OvertakenFileSystem(state), READ_COMMITTED, **options)
            found = problems(rows, state.known, state.known, READ_COMMITTED)
            assert found == [], f"{options}, {state.name}"
            looks += 1
    record_property(cases("A reader that looks before each call of a writer with transactions"), looks)


@pytest.mark.cases(1, 3)
def test_what_else_is_read_before_every_call(states):
    """These take no index for their answer, so fewer of them are enough."""
    for state in states[::3]:
        rows = read(OvertakenFileSystem(state), READ_UNCOMMITTED)
        assert problems(rows, state.known, state.known, READ_UNCOMMITTED) == [], state.name
        # The last stable offset of a log is that below its checkpointed high watermark: it may miss what is new.
        rows = read_log(OvertakenFileSystem(state), READ_COMMITTED)
        assert problems(rows, {}, state.known, READ_COMMITTED) == [], f"an open log, {state.name}"


@pytest.mark.cases(1, 3)
def test_a_reader_is_overtaken_at_every_call(states, record_property):
    """The writer goes on while the reader is in the middle of its look."""
    reads = 0
    for begin, end in moments_from_a_closed_log(states):
        calls = overtake(states, begin, end, 0)
        for at in range(1, calls + 1):
            overtake(states, begin, end, at)
        reads += calls
    reads += overtake_anywhere(states, random.Random(1), 100)
    record_property(cases("A reader that a writer with transactions overtakes at each call"), reads)


@pytest.mark.soak
def test_a_reader_is_overtaken_anywhere(states, capsys):
    reads = sum(
        overtake_anywhere(states, random.Random(seed), 1000) for seed in soak_seeds(share=len(WORKLOADS))
    )
    with capsys.disabled():
        print(f"\n{reads} reads overtaken")


def overtake_anywhere(states: list[State], rng: random.Random, reads: int) -> int:
    for _ in range(reads):
        begin, end = sorted(rng.sample(range(len(states)), 2))
        overtake(states, begin, end, rng.randint(1, 40))
    return reads


def overtake(states: list[State], begin: int, end: int, at: int) -> int:
    """Let one of the reader's calls be that in front of which the writer goes on; return how many there were."""
    earlier, later = states[begin], states[end]
    filesystem = OvertakenFileSystem(earlier, later, at)
    rows = read(filesystem, READ_COMMITTED)
    found = problems(rows, earlier.known, later.known if at else earlier.known, READ_COMMITTED)
    assert found == [], f"{earlier.name}, from call {at} on {later.name}"
    return filesystem.looks


def moments_from_a_closed_log(states: list[State]) -> list[tuple[int, int]]:
    """From each state in which the log directory was just closed, to some moments after it.

    Among them those when the log has the first abort marker since then, which no transaction index has.
    """
    is_clean = [OvertakenFileSystem(state).status(MARKER) is not None for state in states]
    moments = []
    for number in range(1, len(states)):
        if is_clean[number] and not is_clean[number - 1]:
            turns = [
                later
                for later in range(number, len(states))
                if states[later].known != states[later - 1].known or is_clean[later] != is_clean[later - 1]
            ]
            moments += [(number, later) for later in turns[1:16:3]]
            before_an_entry = (
                later for later in range(number, len(states)) if names_an_index_entry(states[later])
            )
            moments += [(number, later) for later in islice(before_an_entry, 2)]
    return moments


def names_an_index_entry(state: State) -> bool:
    """Return whether the next call makes a transaction index, or adds to it what the log says already."""
    return state.name.endswith(TRANSACTION_INDEX_SUFFIX) and (
        ": create " in state.name or ": write " in state.name
    )
