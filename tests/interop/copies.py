"""Damaged copies and everything known about each: what was written, what survived, and what the broker serves."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Self

from storage_core.checkpoint import read_offset_checkpoint
from storage_core.filesystem import FileSystem
from tests.interop.clients import READ_UNCOMMITTED, Row
from tests.interop.committed import Committed, committed_rows
from tests.interop.expectation import Gap, Remains, remains_of, rows_in
from tests.interop.filled import PARTITIONS, Filled, Place
from tests.interop.judging import Judged, damage_copy, judge, log_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tests.interop.log_bytes import Log


class Summary(NamedTuple):
    """Counts of what was compared."""

    damaged: int
    undamaged: int
    refused: int
    truncated: int
    rows_up_to_the_cut: int
    rows_beyond: int


@dataclass(frozen=True)
class Copy:
    """One damaged partition."""

    place: Place
    filled: Filled
    judged: Judged

    @property
    def directory(self) -> Path:
        """The root that holds it."""
        return self.judged.directory

    @property
    def done(self) -> list[str]:
        """How it was damaged."""
        return self.judged.done[self.place]

    @property
    def refusal(self) -> str | None:
        """Why the broker does not start with it; None if it does."""
        return self.judged.refused.get(self.place)

    @functools.cached_property
    def original(self) -> Log:
        return log_of(self.filled.directory / self.place.directory)

    @functools.cached_property
    def remains(self) -> Remains:
        return remains_of(self.original, self.judged.damaged[self.place])

    @property
    def log_start_offset(self) -> int:
        return self.filled.log_start_offsets.get(self.place, 0)

    @functools.cached_property
    def expected(self) -> list[Row]:
        """The rows of every intact batch."""
        return rows_in(self.remains.found, self.filled.rows[self.place], self.log_start_offset)

    @functools.cached_property
    def expected_of_kept(self) -> list[Row]:
        """The rows of every intact batch in the files that the broker kept."""
        kept = remains_of(self.original, self.judged.kept[self.place])
        return rows_in(kept.found, self.filled.rows[self.place], self.log_start_offset)

    @functools.cached_property
    def committed(self) -> Committed:
        rows = self.filled.rows[self.place]
        return committed_rows(self.remains, self.original, rows, self.log_start_offset)

    @property
    def damage(self) -> list[Gap]:
        """The damage that a read must report."""
        start_offset = self.log_start_offset
        return [
            gap
            for gap in self.remains.damage
            if gap.is_certain and (not start_offset or gap.end_offset > start_offset)
        ]

    @property
    def vouched_tail(self) -> Gap | None:
        """What follows the last whole entry, if a checkpoint says that the log went on: it may be damage, not a torn append."""
        tail = self.remains.tail
        names = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint")
        paths = [str(self.directory / name) for name in names]
        known = [read_offset_checkpoint(FileSystem(), path).get(tuple(self.place), 0) for path in paths]
        return tail if tail is not None and max(known) > tail.start_offset else None

    def damaged_bytes(self, ranges: Iterable[tuple[int, int, int]]) -> dict[int, bytes]:
        """The bytes in these ranges, concatenated, by segment."""
        content: dict[int, bytes] = {}
        for segment, start, end in sorted(ranges):
            content.setdefault(segment, b"")
            content[segment] += self.judged.damaged[self.place][segment][start:end]
        return content

    def files(self) -> Iterator[tuple[bytes, bytes]]:
        """Each damaged file, and what the broker kept of it."""
        damaged, kept = self.judged.damaged[self.place], self.judged.kept[self.place]
        for segment, content in damaged.items():
            yield content, kept.get(segment, b"")

    @property
    def is_cut(self) -> bool:
        return any(len(kept) < len(damaged) for damaged, kept in self.files())

    def comparable_end(self, isolation_level: str) -> int:
        """A consumer of the broker reads what the broker keeps up to this offset."""
        consumed = self.judged.consumed[isolation_level][self.place]
        ends = [consumed.end_offset]
        if self.remains.first_misplaced_offset is not None:
            ends.append(self.remains.first_misplaced_offset)
        if consumed.error is not None and "MagicByte" in consumed.error:
            ends.append(consumed.rows[-1].offset + 1 if consumed.rows else 0)
        return min(ends)

    def consumed_rows(self, isolation_level: str) -> list[Row]:
        """What a consumer read, as far as it is comparable."""
        end_offset = self.comparable_end(isolation_level)
        rows = self.judged.consumed[isolation_level][self.place].rows
        return [row for row in rows if row.offset < end_offset]

    def unexplained_error(self) -> str | None:
        """A consumer error that the damage does not explain."""
        error = self.judged.consumed[READ_UNCOMMITTED][self.place].error
        if error is None or self.remains.misplaced:
            return None
        kept = self.judged.kept[self.place]
        explained = {
            "MagicByte": any(way.startswith("set_magic") for way in self.done),
            "nothing more came": not kept[max(kept)],
        }
        return None if any(text in error and holds for text, holds in explained.items()) else error


@dataclass(slots=True)
class Copies:
    """All copies of one seed."""

    filled: Filled
    judged: Judged
    _copies: dict[Place, Copy] = field(default_factory=dict)

    @classmethod
    def make(cls, filled: Filled, scratch: Path, seed: object) -> Self:
        """Damage a copy of each partition and let a broker recover it."""
        judged = damage_copy(filled, scratch / "damaged", seed)
        judge(judged, scratch)
        return cls(filled, judged)

    def copy(self, place: Place) -> Copy:
        """The copy of one partition."""
        return self._copies.setdefault(place, Copy(place, self.filled, self.judged))

    def summary(self) -> Summary:
        """Count what the tests compared."""
        copies = [self.copy(place) for place in PARTITIONS]
        judged = [copy for copy in copies if copy.refusal is None and copy.done]
        compared = [copy.consumed_rows(READ_UNCOMMITTED) for copy in judged]
        beyond = [
            [row for row in copy.expected if row.offset >= copy.comparable_end(READ_UNCOMMITTED)]
            for copy in judged
        ]
        return Summary(
            damaged=sum(bool(copy.done) for copy in copies),
            undamaged=sum(not copy.done for copy in copies),
            refused=len(self.judged.refused),
            truncated=sum(copy.is_cut for copy in judged),
            rows_up_to_the_cut=sum(map(len, compared)),
            rows_beyond=sum(map(len, beyond)),
        )
