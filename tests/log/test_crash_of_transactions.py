"""A crash at every call while transactions end and producers repeat themselves.

What was committed is there as a whole, what was not is never seen, and a producer that repeats what was not
acknowledged has each record in the log once. Each workload runs on a file system in memory; before each of its calls
the power goes, in several ways, and the process ends.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest

from storage_core import ProducerSequence
from storage_core.errors import OutOfOrderSequenceError
from tests.faults.counting import cases
from tests.faults.crash_points import crashes, new_filesystem, open_directory, open_or_none
from tests.faults.session import CONFIG, TOPIC

RECOVERIES = ("tail", "kafka")
VARIANTS = 3
PRODUCER = 7
# Each record is a batch of its own, so that an append is several of them.
ONE_BY_ONE = CONFIG.replace(batch_size=0)


def table(rows):
    return pa.table({"value": pa.array(rows, pa.binary())})


def values(log, isolation_level="read_uncommitted"):
    batches = log.read(columns=["value"], isolation_level=isolation_level)
    return [value for batch in batches for value in batch["value"].to_pylist()]


# -- Transactions --------


@dataclass(frozen=True)
class Unit:
    """Records that are to be seen together, and how far they are."""

    rows: tuple[bytes, ...] = ()
    # open, ending, committed (the operating system knows), durable (the disk does)
    state: str = "open"


class Work:
    """A process at work, and what it was told."""

    def __init__(self):
        self.filesystem = new_filesystem()
        self.units = {}
        self.open()

    def open(self):
        self.logs = open_directory(self.filesystem, config=CONFIG)
        self.log = self.logs.get_or_create(TOPIC)

    def crash(self):
        """End the process, and begin another one."""
        killed = self.filesystem.kill()
        self.filesystem._root = killed._root
        self.filesystem._locked.clear()
        self.open()

    def rows(self, name, *sizes):
        start = len(self.units[name].rows) if name in self.units else 0
        return [f"{name} {start + number} ".encode() + b"v" * size for number, size in enumerate(sizes)]

    def plain(self, name, *sizes, flush=False):
        rows = self.rows(name, *sizes)
        self.units[name] = Unit(tuple(rows), "ending")
        self.log.append(table(rows), acks="all" if flush else 1)
        self.ended(name, flush=flush)

    def begin(self, name, producer_id=PRODUCER):
        self.units[name] = Unit()
        return self.log.transaction(producer_id)

    def append(self, name, transaction, *sizes):
        rows = self.rows(name, *sizes)
        # Even if the append does not return, they must not be seen.
        self.units[name] = Unit((*self.units[name].rows, *rows))
        transaction.append(table(rows))

    def commit(self, name, transaction, *, flush):
        self.units[name] = dataclasses.replace(self.units[name], state="ending")
        transaction.commit(flush=flush)
        self.ended(name, flush=flush)

    def ended(self, name, *, flush):
        self.units[name] = dataclasses.replace(self.units[name], state="committed")
        if flush:
            # Everything before it in the log is on disk with it.
            for other, unit in self.units.items():
                if unit.state == "committed":
                    self.units[other] = dataclasses.replace(unit, state="durable")


def two_transactions(work):
    first = work.begin("first")
    work.append("first", first, 20, 300)
    work.commit("first", first, flush=True)
    second = work.begin("second")
    work.append("second", second, 90)
    work.append("second", second, 20, 20)
    work.commit("second", second, flush=False)


def a_commit_beside_others(work):
    work.plain("before", 50, flush=True)
    first, second = work.begin("first", 1), work.begin("second", 2)
    work.append("first", first, 200)
    work.append("second", second, 200)
    work.plain("between", 60)
    work.append("first", first, 100)
    work.commit("second", second, flush=True)
    work.plain("after", 60)
    work.commit("first", first, flush=True)


def an_abort(work):
    first = work.begin("first")
    work.append("first", first, 20, 300)
    first.abort(flush=True)
    work.plain("after", 60, flush=True)


def over_several_segments(work):
    first = work.begin("first")
    for size in (700, 600, 90, 800):
        work.append("first", first, size)
    work.plain("between", 900)
    work.commit("first", first, flush=True)
    second = work.begin("second")
    work.append("second", second, 700)
    second.abort(flush=True)
    work.log.roll()
    work.plain("after", 900, flush=True)


def a_new_transaction_of_the_same_producer(work):
    first = work.begin("first")
    work.append("first", first, 20, 300)
    second = work.begin("second")
    work.append("second", second, 20)
    work.commit("second", second, flush=True)


def an_abort_after_a_crash(work):
    first = work.begin("first")
    work.append("first", first, 20, 300)
    work.plain("after", 60)
    work.crash()
    work.log.abort_transaction(PRODUCER, flush=True)
    second = work.begin("second")
    work.append("second", second, 20)
    work.commit("second", second, flush=True)


def a_clean_close_in_between(work):
    first = work.begin("first")
    work.append("first", first, 20, 300)
    work.logs.close()
    # Whatever was acknowledged is on disk.
    work.open()
    second = work.begin("second")
    work.append("second", second, 20)
    work.commit("second", second, flush=True)
    work.logs.close()


WORKLOADS = [
    two_transactions,
    a_commit_beside_others,
    an_abort,
    over_several_segments,
    a_new_transaction_of_the_same_producer,
    an_abort_after_a_crash,
    a_clean_close_in_between,
]


def opened_again(state, recovery, config=CONFIG):
    logs = open_or_none(state.filesystem, recovery, config=config)
    return logs or open_directory(state.filesystem, "kafka", config=config)


def problems(units, seen, *, is_settled, is_power_cut):
    """Return what a reader of committed records must not see, or has to."""
    found = []
    for name, unit in units.items():
        shown = [row for row in seen if row.startswith(f"{name} ".encode())]
        count = f"{len(shown)} of {len(unit.rows)} records are there"
        is_required = unit.state == "durable" or (unit.state == "committed" and not is_power_cut)
        if unit.state == "open" and shown:
            found.append(f"{name} is open or aborted, and {count}")
        elif shown != list(unit.rows[: len(shown)]):
            found.append(f"{name} is not in order")
        # In front of a transaction that is open, a reader may stop within another.
        elif is_settled and len(shown) < len(unit.rows) and (shown or is_required):
            found.append(f"{name} is {unit.state}, and {count}")
    return found


def check_transactions(state, recovery):
    logs = opened_again(state, recovery)
    if (TOPIC, 0) not in logs:
        assert not any(unit.state == "durable" for unit in state.known.values()), state.name
        logs.close()
        return "no log"
    log = logs.get(TOPIC)
    everything, seen = values(log), values(log, "read_committed")
    assert len(set(everything)) == len(everything), state.name
    left_open = log.open_transactions()
    how = {"is_settled": not left_open, "is_power_cut": state.is_power_cut}
    assert problems(state.known, seen, **how) == [], state.name
    # Nothing of what is left open comes back, or holds anything else back.
    for each in left_open:
        log.abort_transaction(each.producer_id)
    assert log.last_stable_offset == log.log_end_offset, state.name
    settled = values(log, "read_committed")
    assert problems(state.known, settled, **{**how, "is_settled": True}) == [], state.name
    assert settled[: len(seen)] == seen, state.name
    # And it goes on, and all of it survives another crash.
    with log.transaction(PRODUCER, flush=True) as transaction:
        transaction.append(table([b"again"]))
    logs = opened_again(replace(state, filesystem=state.filesystem.crash(random.Random(1))), recovery)
    assert values(logs.get(TOPIC), "read_committed") == [*settled, b"again"], state.name
    logs.close()
    return "left open" if left_open else "settled"


def run_transactions(workload, seed, variants):
    work = Work()
    states = crashes(
        work.filesystem, lambda: workload(work), lambda: dict(work.units), seed=seed, variants=variants
    )
    return Counter(check_transactions(state, RECOVERIES[number % 2]) for number, state in enumerate(states))


@pytest.mark.cases(1, 4)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_crash_at_every_call_of_transactions(workload, record_property):
    outcomes = run_transactions(workload, seed=1, variants=VARIANTS)
    record_property(cases("Transactions: power cut or SIGKILL at each call"), outcomes.total())
    assert outcomes["settled"] > 5
    assert outcomes["left open"] > 2


# -- Repetitions --------


class Producer:
    """Appends numbered records, and knows how many were acknowledged."""

    def __init__(self, config):
        self.filesystem = new_filesystem()
        self.logs = open_directory(self.filesystem, config=config)
        self.log = self.logs.get_or_create(TOPIC)
        self.acknowledged = 0

    def run(self, counts):
        for count in counts:
            append_numbered(self.log, self.acknowledged, count)
            self.acknowledged += count


def row(number):
    return b"%d " % number + b"v" * (number * 37 % 200)


def append_numbered(log, start, count):
    rows = [row(start + number) for number in range(count)]
    return log.append(table(rows), producer=ProducerSequence(PRODUCER, 0, start), acks="all")


def go_on(log, start, count):
    """Go on like a producer that does not know what has become of its last append."""
    try:
        append_numbered(log, start, count)
    except OutOfOrderSequenceError as error:
        there = error.expected_sequence - start
        assert 0 < there <= count
        if there < count:
            append_numbered(log, error.expected_sequence, count - there)
        return f"{'some' if there < count else 'all'} of it was there"
    return "repeated"


@pytest.mark.parametrize(
    ("config", "counts"),
    [(CONFIG, [1, 3, 2, 5, 1, 4]), (ONE_BY_ONE, [1, 12, 3, 8, 2])],
    ids=["a batch at a time", "many batches at a time"],
)
def test_a_producer_that_repeats_itself_after_a_crash_has_each_record_once(config, counts, record_property):
    producer = Producer(config)
    states = crashes(
        producer.filesystem, lambda: producer.run(counts), lambda: producer.acknowledged, variants=VARIANTS
    )
    outcomes = Counter()
    for number, state in enumerate(states):
        logs = opened_again(state, RECOVERIES[number % 2], config)
        log = logs.get_or_create(TOPIC)
        done = 0
        for count in counts:
            if done >= state.known:
                end_offset = log.log_end_offset
                how = go_on(log, done, count)
                if how == "repeated" and log.log_end_offset == end_offset:
                    how = "known again"
                outcomes[how] += 1
            done += count
        assert values(log) == [row(each) for each in range(sum(counts))], state.name
        logs.close()
    record_property(cases("Repeated appends: power cut or SIGKILL at each call"), len(states))
    assert len(states) > 50
    if config is CONFIG:
        assert set(outcomes) == {"repeated", "known again"}
    else:
        assert set(outcomes) == {"repeated", "known again", "some of it was there", "all of it was there"}
