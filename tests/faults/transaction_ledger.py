"""The units written to a log, each visible as a whole or not at all, and a judge of reads.

Each value names the row it belongs to, so a read is judged without reading the log again::

    begin = ledger.moment()
    rows = ...                                      # (offset, value), during writes
    judge(rows, ledger, begin, READ_COMMITTED)

A truncation begins a new history. The rows of a read all come from one history that the log had during the read, or
the read ends with an error that reports the truncation.

A ledger is a sequence of events, each noted before or after the operation. `LedgerFile` is shared between processes.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from itertools import pairwise
from types import MappingProxyType

from storage_core.errors import DataLossError, LogTruncationError, SegmentLogError

READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"

# The state of a unit after each event: before the operation it may have happened, afterwards it has.
_ENDINGS = {
    "commit": "committing",
    "committed": "committed",
    "abort": "aborting",
    "aborted": "aborted",
}

Rows = list[tuple[int, bytes | None]]


@dataclass(frozen=True)
class Event:
    """An operation that a writer is about to start, or has completed.

    Attributes:
        what: ``append`` or ``job`` before rows are written, ``appended`` afterwards; ``commit``, ``committed``,
            ``abort``, ``aborted``. Rows outside a transaction are committed once appended. ``truncate`` before the
            rows from an offset on are removed, ``truncated`` afterwards.
        unit: The unit of the rows; -1 for a truncation.
        first_offset: For an append, its first row; for a commit or abort, its marker; for a truncation, the first
            removed offset.
        count: For an append, its number of rows.
        producer_id: For an append to a transaction, its producer; -1 if the rows need no marker.
    """

    what: str
    unit: int
    first_offset: int = -1
    count: int = 0
    producer_id: int = -1


@dataclass(frozen=True)
class Unit:
    """Rows that become visible together.

    Attributes:
        offsets: Of each row, in order. The last ones may not be written yet.
        acknowledged: The number of acknowledged rows.
        state: ``open``, ``committing``, ``committed``, ``aborting`` or ``aborted``.
        producer_id: The producer of the transaction; -1 outside one.
        is_job: Whether a job writes it, whose rows appear at once.
        marker_offset: The offset of its marker, or the expected one; -1 before that.
    """

    offsets: tuple[int, ...] = ()
    acknowledged: int = 0
    state: str = "open"
    producer_id: int = -1
    is_job: bool = False
    marker_offset: int = -1

    @property
    def is_settled(self) -> bool:
        """Whether it has ended, and the process that ended it knows."""
        return self.state in {"committed", "aborted"}

    @property
    def may_be_seen(self) -> bool:
        """Whether a read_committed reader may see it."""
        return self.state in {"committing", "committed"}

    def truncated_to(self, offset: int) -> Unit:
        """Return the part of it below an offset. A transaction that loses its marker is open again."""
        offsets = tuple(each for each in self.offsets if each < offset)
        state = self.state
        if self.producer_id >= 0 and not offsets:
            state = "aborted"
        elif self.marker_offset >= offset:
            state = "open"
        return replace(self, offsets=offsets, acknowledged=min(self.acknowledged, len(offsets)), state=state)


Units = Mapping[int, Unit]


@dataclass(frozen=True)
class Moment:
    """The units at one moment.

    Attributes:
        units: Their state then.
        phase: The number of truncation starts and ends so far.
    """

    units: Units
    phase: int


@dataclass(frozen=True)
class _Phase:
    """The time between two truncations, or during one.

    Attributes:
        first: The least that existed at any moment of it.
        last: The most that existed, which is at its end; None if it has not ended.
        truncated_to: During a truncation, the first removed offset; None between two.
    """

    first: Units
    last: Units | None = None
    truncated_to: int | None = None


class Ledger:
    """All units so far."""

    def __init__(self) -> None:
        self._units: dict[int, Unit] = {}
        self._phases = [_Phase(self.now())]
        # First and last offset of each batch, in order.
        self._batches: list[tuple[int, int]] = []

    @property
    def is_truncating(self) -> bool:
        """Whether a truncation has begun and its end is not noted."""
        return self._phases[-1].truncated_to is not None

    def moment(self) -> Moment:
        """Return the current units, to `judge` reads that begin now."""
        return Moment(self.now(), len(self._phases) - 1)

    def first_removed(self, offset: int) -> int:
        """Return the first offset that a truncation to an offset removes: batches are removed as a whole."""
        return next((first for first, last in self._batches if first <= offset <= last), offset)

    def truncations_since(self, begin: Moment) -> list[int]:
        """Return the first removed offset of each truncation that was in progress at a moment, or began later."""
        phases = self._phases[begin.phase :]
        return [each.truncated_to for each in phases if each.truncated_to is not None]

    def histories_since(self, begin: Moment) -> Iterator[tuple[Units, Units]]:
        """Yield the least and the most that each history could show to a read that began at a moment and ends now."""
        for number, phase in enumerate(self._phases[begin.phase :], begin.phase):
            is_first = number == begin.phase and phase.truncated_to is None
            yield begin.units if is_first else phase.first, phase.last or self.now()

    def note(self, event: Event) -> None:
        """Apply an event."""
        if event.what in {"truncate", "truncated"}:
            self._note_truncation(event)
            return
        unit = self._units.get(event.unit, Unit())
        if event.what in {"append", "job", "commit", "abort"}:
            # The rows planned there were never written.
            self._batches = [each for each in self._batches if each[1] < event.first_offset]
            self._batches.append((event.first_offset, event.first_offset + max(event.count, 1) - 1))
        if event.what in {"append", "job"}:
            offsets = range(event.first_offset, event.first_offset + event.count)
            is_transaction = event.producer_id >= 0
            unit = replace(
                unit,
                offsets=(*unit.offsets, *offsets),
                state="open" if is_transaction else "committing",
                producer_id=event.producer_id,
                is_job=event.what == "job",
            )
        elif event.what == "appended":
            state = "committed" if unit.state == "committing" else unit.state
            unit = replace(unit, acknowledged=len(unit.offsets), state=state)
        else:
            marker_offset = event.first_offset if event.what in {"commit", "abort"} else unit.marker_offset
            unit = replace(unit, state=_ENDINGS[event.what], marker_offset=marker_offset)
        self._units[event.unit] = unit

    def now(self) -> Units:
        """Return the current units."""
        return MappingProxyType(dict(self._units))

    def _note_truncation(self, event: Event) -> None:
        before, offset = self.now(), event.first_offset
        left = {name: unit.truncated_to(offset) for name, unit in before.items()}
        if event.what == "truncate":
            self._phases[-1] = replace(self._phases[-1], last=before)
            self._phases.append(_Phase(left, before, offset))
        else:
            self._units = left
            self._batches = [each for each in self._batches if each[0] < offset]
            self._phases.append(_Phase(self.now()))


class LedgerFile:
    """A ledger in a file, to which one process appends while others read it.

    Args:
        path: The file, created with the first event.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.ledger = Ledger()
        self._path = path
        self._descriptor: int | None = None
        self._read_bytes = 0

    def append(self, event: Event) -> None:
        """Note an event. Other processes see it when this returns, even if this process dies."""
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(self._descriptor, json.dumps(astuple(event)).encode() + b"\n")

    def catch_up(self) -> Ledger:
        """Return the ledger with all events so far."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._read_bytes)
                whole, end, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return self.ledger
        self._read_bytes += len(whole) + len(end)
        for line in whole.splitlines():
            self.ledger.note(Event(*json.loads(line)))
        return self.ledger


def values_of(unit: int, start: int, count: int, size_bytes: int = 0) -> list[bytes]:
    """Return the values of some rows of a unit, from its row ``start`` on."""
    return [b"%d:%d:%s" % (unit, start + number, b"v" * size_bytes) for number in range(count)]


def judge(
    rows: Rows,
    ledger: Ledger,
    begin: Moment,
    isolation_level: str,
    error: SegmentLogError | None = None,
    *,
    may_miss_what_is_new: bool = False,
) -> list[str]:
    """Return the problems of a read that began at a moment and has just ended; empty if it is right.

    Args:
        rows: The rows that it returned, up to the error if there is one.
        ledger: With everything noted so far.
        begin: The moment before the read.
        isolation_level: Of the read.
        error: The error that ended it.
        may_miss_what_is_new: Whether it ends at a high watermark older than the log end.
    """
    if error is not None:
        truncations = ledger.truncations_since(begin)
        if not isinstance(error, DataLossError) or not truncations:
            return [f"{error!r} after truncations to {truncations}"]
        if isinstance(error, LogTruncationError) and (
            error.offset is None or error.offset > max(truncations)
        ):
            return [f"{error!r} names offset {error.offset} after truncations to {truncations}"]
    may_be_less = error is not None or may_miss_what_is_new
    found = [
        problems(rows, {} if may_be_less else first, last, isolation_level)
        for first, last in ledger.histories_since(begin)
    ]
    # The read is right if it matches any history.
    return [] if [] in found else [f"history {number}: {each}" for number, each in enumerate(found)]


def problems(rows: Rows, before: Units, after: Units, isolation_level: str) -> list[str]:
    """Return the problems of the rows of a read that began at one moment and ended at another."""
    found: dict[int, int] = {}
    wrong = [
        f"offset {later} follows {earlier}" for (earlier, _), (later, _) in pairwise(rows) if later <= earlier
    ]
    for offset, value in rows:
        if value is None:
            wrong.append(f"offset {offset} holds nothing")
            continue
        name, number = (int(part) for part in value.split(b":", 2)[:2])
        unit = after.get(name)
        if unit is None or number >= len(unit.offsets) or unit.offsets[number] != offset:
            wrong.append(f"offset {offset} holds {value[:20]!r}, which was not written there")
        found[name] = found.get(name, 0) + 1
    last_offset = max((offset for offset, _ in rows), default=-1)
    if isolation_level == READ_COMMITTED:
        wrong += _of_committed(Counter(found), last_offset, before, after)
    else:
        wrong += _of_all(Counter(found), last_offset, before, after)
    return wrong


def _of_all(found: Counter[int], last_offset: int, before: Units, after: Units) -> list[str]:
    """Check that a read_uncommitted read returns at least everything acknowledged before it began."""
    wrong = [
        f"{found[name]} of {unit.acknowledged} acknowledged rows of unit {name}"
        for name, unit in before.items()
        if found[name] < unit.acknowledged
    ]
    for name, unit in after.items():
        in_front = sum(offset <= last_offset for offset in unit.offsets[: unit.acknowledged])
        if found[name] < in_front:
            wrong.append(f"{found[name]} of {in_front} rows of unit {name} up to offset {last_offset}")
    return wrong


def _of_committed(found: Counter[int], last_offset: int, before: Units, after: Units) -> list[str]:
    """Check that a read_committed read ends at the last stable offset: every transaction below it has ended."""
    wrong = []
    for name, count in found.items():
        unit = after.get(name, Unit())
        if not unit.may_be_seen:
            wrong.append(f"{count} rows of unit {name}, which is {unit.state}")
        elif unit.is_job and count < len(unit.offsets):
            wrong.append(f"{count} of {len(unit.offsets)} rows of unit {name}, which a job wrote")
    for name, unit in after.items():
        in_front = sum(offset <= last_offset for offset in unit.offsets[: unit.acknowledged])
        if unit.may_be_seen and found[name] < in_front:
            wrong.append(f"{found[name]} of {in_front} rows of unit {name} up to offset {last_offset}")
    stable_offset = min(
        (unit.offsets[0] for unit in before.values() if unit.producer_id >= 0 and not unit.is_settled),
        default=None,
    )
    for name, unit in before.items():
        stable = sum(stable_offset is None or offset < stable_offset for offset in unit.offsets)
        if unit.state == "committed" and found[name] < stable:
            wrong.append(f"{found[name]} of {stable} rows of unit {name}, which was committed before")
    return wrong
