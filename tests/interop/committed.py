"""Which records of a damaged partition a read_committed read must return, may return and must not return.

The undamaged log says how each transaction ended. The damaged log still proves it if the marker survives and nothing
is missing before it: after a gap, a producer's marker may belong to another transaction than the records before the
gap. An unproven transaction may be left out. It is never returned if it was aborted. It never holds back later
records, unless its marker vanished with a whole file or at the end of the file, where no damage shows.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.interop.expectation import Remains, rows_in
from tests.interop.log_bytes import Entry, Log, entries_of_log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.interop.clients import Row

_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_ABORT = 0
_COMMIT = 1


@dataclass(slots=True)
class _Transaction:
    """One transaction of the undamaged log; open if it has no marker."""

    entries: list[Entry]
    marker: Entry | None = None
    is_aborted: bool = False


@dataclass(frozen=True, slots=True)
class Committed:
    """What a read_committed read may return.

    Attributes:
        required: All of these, in this order.
        allowed: Nothing except these.
    """

    required: list[Row]
    allowed: list[Row]


def committed_rows(remains: Remains, original: Log, rows: Sequence[Row], log_start_offset: int) -> Committed:
    """Apply the rules to the remains of a partition.

    Args:
        remains: What survived of it.
        original: The undamaged log.
        rows: What a read_uncommitted consumer read from the undamaged log.
        log_start_offset: Records below it are not read.
    """
    entries = entries_of_log(original)
    in_place = {found.entry for found in remains.found if found.shift == 0}
    lost = [entry.base_offset for entry in entries if entry not in in_place]
    unproven: set[Entry] = set()
    taken_back: set[Entry] = set()
    held_back: list[int] = []
    still_open: list[int] = []
    for each in _transactions(entries):
        first_offset = each.entries[0].base_offset
        marker = each.marker
        is_seen = marker in in_place or _is_in_damage(marker, remains)
        if marker is None or any(first_offset <= offset <= marker.base_offset for offset in lost):
            unproven.update(each.entries)
        if marker is None or (each.is_aborted and is_seen):
            taken_back.update(each.entries)
        if not is_seen:
            held_back.append(first_offset)
        if marker is None:
            last_loss = max(lost, default=-1)
            still_open += [
                entry.base_offset
                for entry in each.entries
                if entry in in_place and entry.base_offset > last_loss
            ]
    allowed = [found for found in remains.found if found.entry not in taken_back]
    required = [found for found in allowed if found.shift == 0 and found.entry not in unproven]
    return Committed(
        # The lowest and the highest possible last stable offset.
        _below(rows_in(required, rows, log_start_offset), min(held_back, default=None)),
        _below(rows_in(allowed, rows, log_start_offset), min(still_open, default=None)),
    )


def _is_in_damage(marker: Entry | None, remains: Remains) -> bool:
    return marker is not None and any(
        gap.start_offset <= marker.base_offset < gap.end_offset for gap in remains.damage
    )


def _below(rows: list[Row], offset: int | None) -> list[Row]:
    return [row for row in rows if offset is None or row.offset < offset]


def _transactions(entries: Sequence[Entry]) -> list[_Transaction]:
    transactions: list[_Transaction] = []
    open_by_producer: dict[int, _Transaction] = {}
    for entry in entries:
        if entry.magic < 2:
            continue
        attributes = entry.content[22]
        [producer_id] = struct.unpack_from(">q", entry.content, 43)
        if not attributes & _TRANSACTIONAL:
            continue
        if not attributes & _CONTROL:
            if producer_id not in open_by_producer:
                open_by_producer[producer_id] = _Transaction([])
                transactions.append(open_by_producer[producer_id])
            open_by_producer[producer_id].entries.append(entry)
        elif (kind := _control_type(entry)) in (_ABORT, _COMMIT):
            ended = open_by_producer.pop(producer_id, None)
            if ended is not None:
                ended.marker, ended.is_aborted = entry, kind == _ABORT
    return transactions


def _control_type(entry: Entry) -> int | None:
    """The type in the key of a control batch's record; None if compaction removed the record."""
    if len(entry.content) == 61:
        return None
    position = 61
    for skipped in ("length", "attributes", "timestamp delta", "offset delta", "key length"):
        if skipped == "attributes":
            position += 1
            continue
        while entry.content[position] & 0x80:
            position += 1
        position += 1
    return struct.unpack_from(">h", entry.content, position + 2)[0]
