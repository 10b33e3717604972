"""A crash at every call while leader epochs begin, with and without records, and are truncated.

Whatever the crash left: each batch is in the epoch under which it was written, an epoch that has begun has begun
at the same offset, and none begins beyond the log end.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest

from storage_core.errors import InvalidRecordError
from tests.faults.counting import cases
from tests.faults.crash_points import crashes, new_filesystem, open_directory, open_or_none
from tests.faults.session import TOPIC, table_of

RECOVERIES = ("tail", "kafka")
VARIANTS = 3


@dataclass(frozen=True)
class Known:
    """The epochs that have begun for sure, and the offset from on which a truncation has taken them back."""

    begun: dict[int, int] = field(default_factory=dict)
    truncated_from: int | None = None


class Work:
    """A leader at work, and what it was told."""

    def __init__(self):
        self.filesystem = new_filesystem()
        self.log = open_directory(self.filesystem).get_or_create(TOPIC)
        self.known = Known()
        self.number = 0

    def begin(self, epoch):
        self.began(epoch, self.log.assign_epoch_start_offset(epoch))

    def append(self, *sizes, epoch=None, acks=1):
        values = []
        for size in sizes:
            values.append(b"%d:%s" % (self.number, b"v" * size))
            self.number += 1
        info = self.log.append(table_of(values), leader_epoch=epoch, acks=acks)
        if epoch is not None:
            self.began(epoch, info.first_offset)

    def truncate_to(self, offset):
        kept = {epoch: start for epoch, start in self.known.begun.items() if start < offset}
        # While it is under way, they are there or not.
        self.known = Known(kept)
        self.log.truncate_to(offset)
        self.known = Known(kept, offset)

    def began(self, epoch, start_offset):
        # One that begins at the same offset takes the place of another that had no record.
        others = {each: start for each, start in self.known.begun.items() if start != start_offset}
        truncated_from = self.known.truncated_from
        if truncated_from is not None and start_offset >= truncated_from:
            truncated_from = None
        self.known = Known({epoch: start_offset, **others}, truncated_from)


def one_leader_after_the_other(work):
    for epoch in (1, 4, 5):
        work.begin(epoch)
        work.append(20, 300)
        work.append(60, acks="all")


def leaders_without_records(work):
    work.append(60, 5, epoch=1)
    for epoch in (2, 5, 7):
        work.begin(epoch)
    work.append(60)
    work.begin(8)


def behind_what_is_not_on_disk(work):
    work.append(60, acks="all")
    work.append(700, 20, epoch=2)
    work.begin(3)
    work.append(700, epoch=4)
    work.append(700)
    work.begin(5)


def truncations(work):
    work.append(60, 5, epoch=1)
    work.begin(2)
    work.append(60, 5, 5)
    work.begin(3)
    work.truncate_to(work.log.log_end_offset)
    work.begin(4)
    work.append(5, 5)
    work.truncate_to(6)
    work.truncate_to(2)
    work.begin(6)
    work.append(5, acks="all")


WORKLOADS = [one_leader_after_the_other, leaders_without_records, behind_what_is_not_on_disk, truncations]


def check(state, recovery):
    logs = open_or_none(state.filesystem, recovery) or open_directory(state.filesystem, "kafka")
    if (TOPIC, 0) not in logs:
        logs.close()
        return "no log"
    log = logs.get(TOPIC)
    epochs = {entry.epoch: entry.start_offset for entry in log.leader_epochs}
    assert list(epochs) == sorted(epochs), state.name
    assert list(epochs.values()) == sorted(set(epochs.values())), state.name
    for batch in log.read(include_metadata=True, columns=["offset", "_metadata"]):
        for row in batch.to_pylist():
            assert log.leader_epoch_at(row["offset"]) == row["_metadata"]["leaderEpoch"], state.name
    end_offset = log.log_end_offset
    assert max(epochs.values(), default=0) <= end_offset, state.name
    expected = {epoch: start for epoch, start in state.known.begun.items() if start <= end_offset}
    # The next one may have begun at the same offset before the crash.
    expected = {epoch: start for epoch, start in expected.items() if not superseded(epoch, start, epochs)}
    assert expected.items() <= epochs.items(), state.name
    if state.known.truncated_from is not None:
        left = [epoch for epoch, start in epochs.items() if start >= state.known.truncated_from]
        assert all(epoch > max(state.known.begun, default=-1) for epoch in left), state.name
    go_on(log, epochs, state.name)
    logs.close()
    is_empty = bool(epochs) and max(epochs.values()) == end_offset
    return "without a record" if is_empty else "with records"


def superseded(epoch, start, epochs):
    return any(other > epoch and other_start == start for other, other_start in epochs.items())


def go_on(log, epochs, name):
    """Check that the latest leader goes on, those before it are refused, and the next one begins."""
    latest = max(epochs, default=0)
    if latest:
        with pytest.raises(InvalidRecordError):
            log.append(table_of([b"0:fenced"]), leader_epoch=latest - 1)
    end_offset = log.append(table_of([b"0:more"])).last_offset + 1
    assert log.leader_epoch_at(end_offset - 1) == latest, name
    assert log.assign_epoch_start_offset(latest + 1) == end_offset, name
    assert log.end_offset_for_epoch(latest) == (latest, end_offset), name
    assert log.end_offset_for_epoch(latest + 1) == (latest + 1, end_offset), name


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_crash_at_every_call_while_epochs_begin(workload, record_property):
    work = Work()
    states = crashes(work.filesystem, lambda: workload(work), lambda: work.known, variants=VARIANTS)
    outcomes = Counter(check(state, RECOVERIES[number % 2]) for number, state in enumerate(states))
    record_property(cases("Leader epochs: power cut or SIGKILL at each call"), outcomes.total())
    assert outcomes["without a record"] > 5
    assert outcomes["with records"] > 5
