"""What a broker logged about its cleaner and its retention: which logs they processed, when and in which order."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_TIME = r"\[(?P<time>[^]]+)\] "
_BEGAN = re.compile(_TIME + r"INFO .*Beginning cleaning of log (?P<log>\S+) \(")
_ENDED = re.compile(
    r"Log cleaner thread \d+ cleaned log (?P<log>\S+) \(dirty section = \[(?P<first>\d+), (?P<end>\d+)\]\)"
)
_RETAINED = re.compile(_TIME + r"INFO \[UnifiedLog partition=(?P<log>[^,]+), .*\] Deleting segment.* due to ")


class CleanerRound(NamedTuple):
    """One cleaner pass over one log.

    Attributes:
        log: Topic and partition.
        began_ms: The broker's timestamp of the line, slightly after the time from which it computed delete horizons.
        first_dirty_offset: The offset map was built from this offset on.
        end_offset: End of the offset map, exclusive.
    """

    log: tuple[str, int]
    began_ms: int
    first_dirty_offset: int
    end_offset: int


class Retained(NamedTuple):
    """Retention deleted segments of a log."""

    log: tuple[str, int]
    began_ms: int


def events_in(text: str) -> Iterator[CleanerRound | Retained]:
    """Yield the events in order. The log lines for segments deleted together make one event."""
    began: dict[str, int] = {}
    latest = None
    for line in text.splitlines():
        if found := _BEGAN.match(line):
            began[found["log"]] = _milliseconds(found["time"])
        elif found := _ENDED.search(line):
            log = found["log"]
            yield CleanerRound(_place(log), began.pop(log), int(found["first"]), int(found["end"]))
        elif found := _RETAINED.match(line):
            place = _place(found["log"])
            if latest != place:
                yield Retained(place, _milliseconds(found["time"]))
            latest = place
            continue
        else:
            continue
        latest = None


def _place(log: str) -> tuple[str, int]:
    topic, _, partition = log.rpartition("-")
    return topic, int(partition)


def _milliseconds(time: str) -> int:
    return int(datetime.strptime(time, "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp() * 1000)
