"""What was written to a log in units that are to be seen together, and what a reader may make of it.

Each row tells by its value where it belongs, so a reader is judged without a second look at the log::

    begin = ledger.moment()
    rows = ...                                      # (offset, value), while it is written to
    judge(rows, ledger, begin, READ_COMMITTED)

A truncation begins a new history: the rows of a read are all of one that the log had while it was read, or the read
ends with an error that says so.

A ledger is a sequence of events, each noted before or after what it tells of. `LedgerFile` is one that processes share.
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

# What was begun may have happened, and what has happened was said to.
_ENDINGS = {
    "commit": "committing",
    "committed": "committed",
    "abort": "aborting",
    "aborted": "aborted",
}

Rows = list[tuple[int, bytes | None]]


@dataclass(frozen=True)
class Event:
    """Something that a writer is about to do, or has done.

    Attributes:
        what: ``append`` or ``job`` before rows are written, ``appended`` once they are; ``commit``, ``committed``,
            ``abort``, ``aborted``. What is no transaction is committed once it is appended. ``truncate`` before the rows
            from an offset on are removed, ``truncated`` once they are.
        unit: Whose rows; -1 of a truncation.
        first_offset: Of an append, the offset of its first row; of a commit or abort, that of its marker; of a
            truncation, the first one that goes.
        count: Of an append, the number of its rows.
        producer_id: Of an append to a transaction, its producer; -1 if the rows do not wait for a marker.
    """

    what: str
    unit: int
    first_offset: int = -1
    count: int = 0
    producer_id: int = -1


@dataclass(frozen=True)
class Unit:
    """Rows that are to be seen together.

    Attributes:
        offsets: Of each row, in order. The last ones may not be there yet.
        acknowledged: How many of them are.
        state: ``open``, ``committing``, ``committed``, ``aborting`` or ``aborted``.
        producer_id: Whose transaction it is; -1 if it is none.
        is_job: Whether a job writes it, whose rows appear at once.
        marker_offset: Where its marker stands, or is to stand; -1 before that.
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
        """Whether a reader of committed rows may see it."""
        return self.state in {"committing", "committed"}

    def truncated_to(self, offset: int) -> Unit:
        """What is left of it below an offset. A transaction without its marker is open again."""
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
    """The units at a moment.

    Attributes:
        units: As they were.
        phase: How many times a truncation had begun or ended by then.
    """

    units: Units
    phase: int


@dataclass(frozen=True)
class _Phase:
    """The time between two truncations, or that of one.

    Attributes:
        first: The units of which no less was there at any moment of it.
        last: Those at its end, of which no more was; None if it has not ended.
        truncated_to: Of a truncation, the first offset that goes; None between two.
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
        """Whether a truncation has begun, and its end was not noted."""
        return self._phases[-1].truncated_to is not None

    def moment(self) -> Moment:
        """The units as they are now, to `judge` by it what is read from now on."""
        return Moment(self.now(), len(self._phases) - 1)

    def first_removed(self, offset: int) -> int:
        """The first offset that goes with a truncation to an offset: a batch goes as a whole."""
        return next((first for first, last in self._batches if first <= offset <= last), offset)

    def truncations_since(self, begin: Moment) -> list[int]:
        """The first removed offset of each truncation that was under way at a moment, or has begun since."""
        phases = self._phases[begin.phase :]
        return [each.truncated_to for each in phases if each.truncated_to is not None]

    def histories_since(self, begin: Moment) -> Iterator[tuple[Units, Units]]:
        """What each history had at least, and at most, to show to a read that began at a moment and ends now."""
        for number, phase in enumerate(self._phases[begin.phase :], begin.phase):
            is_first = number == begin.phase and phase.truncated_to is None
            yield begin.units if is_first else phase.first, phase.last or self.now()

    def note(self, event: Event) -> None:
        """Take an event into account."""
        if event.what in {"truncate", "truncated"}:
            self._note_truncation(event)
            return
        unit = self._units.get(event.unit, Unit())
        if event.what in {"append", "job", "commit", "abort"}:
            # What was to stand there has never been written.
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
        """The units as they are now."""
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
        path: The file. It is made with the first event.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.ledger = Ledger()
        self._path = path
        self._descriptor: int | None = None
        self._read_bytes = 0

    def append(self, event: Event) -> None:
        """Note an event. It is there for all others when this returns, whatever becomes of this process."""
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(self._descriptor, json.dumps(astuple(event)).encode() + b"\n")

    def catch_up(self) -> Ledger:
        """The ledger with all events up to now."""
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
    """The values of some rows of a unit, from its row ``start`` on."""
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
    """What is wrong with a read that began at a moment and has just ended; nothing if all is well.

    Args:
        rows: What it has given out, up to the error if there is one.
        ledger: With everything that was noted until now.
        begin: The moment before the read.
        isolation_level: Of the read.
        error: The error that it has ended with.
        may_miss_what_is_new: Whether it ends at a high watermark that is older than the log end.
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
    # It is right if it is of any of them.
    return [] if [] in found else [f"history {number}: {each}" for number, each in enumerate(found)]


def problems(rows: Rows, before: Units, after: Units, isolation_level: str) -> list[str]:
    """What is wrong with the rows of a read that began at one moment and ended at another one; nothing if all is well."""
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
    """A reader of everything ends somewhere behind what was acknowledged before."""
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
    """A reader ends at the last stable offset: in front of it, each transaction is decided, and shown or not."""
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
