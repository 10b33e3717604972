"""What was written to a log in units that are to be seen together, and what a reader may make of it.

Each row tells by its value where it belongs, so a reader is judged without a second look at the log::

    before = ledger.now()
    rows = ...                                      # (offset, value), while somebody writes
    problems(rows, before, ledger.now(), READ_COMMITTED)

A ledger is a sequence of events, each noted before or after what it tells of. `LedgerFile` is one that processes share.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from itertools import pairwise
from types import MappingProxyType

__all__ = [
    "READ_COMMITTED",
    "READ_UNCOMMITTED",
    "Event",
    "Ledger",
    "LedgerFile",
    "Unit",
    "Units",
    "problems",
    "values_of",
]

READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"

# What was begun may have happened, and what has happened was said to.
_ENDINGS = {
    "commit": "committing",
    "committed": "committed",
    "abort": "aborting",
    "aborted": "aborted",
}

Rows = list[tuple[int, bytes]]


@dataclass(frozen=True)
class Event:
    """Something that a writer is about to do, or has done.

    Attributes:
        what: ``append`` or ``job`` before rows are written, ``appended`` once they are; ``commit``, ``committed``,
            ``abort``, ``aborted``. What is no transaction is committed once it is appended.
        unit: Whose rows.
        first_offset: Of an append, the offset of its first row.
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
    """

    offsets: tuple[int, ...] = ()
    acknowledged: int = 0
    state: str = "open"
    producer_id: int = -1
    is_job: bool = False

    @property
    def is_settled(self) -> bool:
        """Whether it has ended, and whoever has ended it knows."""
        return self.state in {"committed", "aborted"}

    @property
    def may_be_seen(self) -> bool:
        """Whether a reader of committed rows may see it."""
        return self.state in {"committing", "committed"}


Units = Mapping[int, Unit]


class Ledger:
    """All units so far."""

    def __init__(self) -> None:
        self._units: dict[int, Unit] = {}

    def note(self, event: Event) -> None:
        """Take an event into account."""
        unit = self._units.get(event.unit, Unit())
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
            unit = replace(unit, state=_ENDINGS[event.what])
        self._units[event.unit] = unit

    def now(self) -> Units:
        """The units as they are now."""
        return MappingProxyType(dict(self._units))


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


def problems(rows: Rows, before: Units, after: Units, isolation_level: str) -> list[str]:
    """What is wrong with the rows of a read that began at one moment and ended at another one; nothing if all is well."""
    found: dict[int, int] = {}
    wrong = [
        f"offset {later} follows {earlier}" for (earlier, _), (later, _) in pairwise(rows) if later <= earlier
    ]
    for offset, value in rows:
        name, number = (int(part) for part in value.split(b":", 2)[:2])
        unit = after.get(name)
        if unit is None or number >= len(unit.offsets) or unit.offsets[number] != offset:
            wrong.append(f"offset {offset} holds {value[:20]!r}, which was not written there")
        found[name] = found.get(name, 0) + 1
    if isolation_level == READ_COMMITTED:
        wrong += _of_committed(Counter(found), max((offset for offset, _ in rows), default=-1), before, after)
    else:
        wrong += [
            f"{found.get(name, 0)} of {unit.acknowledged} acknowledged rows of unit {name}"
            for name, unit in before.items()
            if found.get(name, 0) < unit.acknowledged
        ]
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
