"""What was written to a log in units that are to be seen together, and what a reader may make of it.

Each row tells by its value where it belongs, so a reader is judged without a second look at the log::

    before = ledger.now()
    rows = ...                                      # (offset, value), while somebody writes
    problems(rows, before, ledger.now(), READ_COMMITTED)

A ledger is a sequence of events, each noted before or after what it tells of. So another process can follow it, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType

__all__ = ["READ_COMMITTED", "READ_UNCOMMITTED", "Event", "Ledger", "Unit", "Units", "problems", "values_of"]

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
        is_transaction: Of an append, whether the rows wait for a marker.
    """

    what: str
    unit: int
    first_offset: int = -1
    count: int = 0
    is_transaction: bool = False


@dataclass(frozen=True)
class Unit:
    """Rows that are to be seen together.

    Attributes:
        offsets: Of each row, in order. The last ones may not be there yet.
        acknowledged: How many of them are.
        state: ``open``, ``committing``, ``committed``, ``aborting`` or ``aborted``.
        is_whole: Whether all of it appears at once, or batch by batch.
    """

    offsets: tuple[int, ...] = ()
    acknowledged: int = 0
    state: str = "open"
    is_whole: bool = True

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
            is_plain = event.what == "append" and not event.is_transaction
            unit = replace(
                unit,
                offsets=(*unit.offsets, *offsets),
                state="open" if event.is_transaction else "committing",
                is_whole=not is_plain,
            )
        elif event.what == "appended":
            is_settled = unit.state == "committing"
            unit = replace(
                unit,
                acknowledged=len(unit.offsets),
                state="committed" if is_settled else unit.state,
            )
        else:
            unit = replace(unit, state=_ENDINGS[event.what])
        self._units[event.unit] = unit

    def now(self) -> Units:
        """The units as they are now."""
        return MappingProxyType(dict(self._units))


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
        wrong += _of_committed(Counter(found), before, after)
    else:
        wrong += [
            f"{found.get(name, 0)} of {unit.acknowledged} acknowledged rows of unit {name}"
            for name, unit in before.items()
            if found.get(name, 0) < unit.acknowledged
        ]
    return wrong


def _of_committed(found: Counter[int], before: Units, after: Units) -> list[str]:
    wrong = []
    for name, count in found.items():
        unit = after.get(name, Unit())
        if not unit.may_be_seen:
            wrong.append(f"{count} rows of unit {name}, which is {unit.state}")
        elif unit.is_whole and count < len(unit.offsets):
            wrong.append(f"{count} of {len(unit.offsets)} rows of unit {name}")
    stable_offset = min(
        (
            unit.offsets[0]
            for unit in before.values()
            if unit.is_whole and unit.state not in {"committed", "aborted"}
        ),
        default=None,
    )
    for name, unit in before.items():
        is_stable = stable_offset is None or unit.offsets[-1] < stable_offset
        if unit.state == "committed" and is_stable and found[name] < len(unit.offsets):
            wrong.append(
                f"{found[name]} of {len(unit.offsets)} rows of unit {name}, which was committed before"
            )
    return wrong
