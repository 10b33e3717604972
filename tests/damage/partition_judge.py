"""Judges the rows of one partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tests.damage.reads import ROW_COLUMNS, OutRow
from tests.damage.reference import MAX_OFFSET, DamagedBytes, Found, PartitionTruth, SegmentTruth

if TYPE_CHECKING:
    from tests.damage.entries import Entry, Row
    from tests.damage.observation import Observation, Verdict


class PartitionJudge:
    """Compares the rows and the damage rows of a partition with the true content of its files."""

    def __init__(self, seen: Observation, truth: PartitionTruth, verdict: Verdict) -> None:
        self._seen = seen
        self._truth = truth
        self._verdict = verdict
        self._key = truth.topic_partition
        self._read = seen.read
        self._rows = seen.rows.get(self._key, [])
        self._offsets = {row.offset for row in self._rows}
        self._original = seen.log.rows.get(self._key, {})
        self._committed = seen.log.committed.get(self._key, frozenset())

    def check(self) -> None:
        """Make every check that applies to this read."""
        self._check_contents()
        self._check_committed()
        bounds = self._seen.bounds(self._key)
        if bounds is None:
            return
        outside = [offset for offset in sorted(self._offsets) if not bounds[0] <= offset < bounds[1]]
        if outside:
            self._problem(f"offsets {outside[:5]} outside of {bounds}")
        for segment in self._truth.segments:
            # With an entry out of place, the reader may choose which entries count.
            if not (segment.astray or segment.surplus):
                self._check_segment(segment, range(bounds[0], bounds[1]))
            elif not segment.astray and self._read.mode == "FAILFAST":
                # A read that meets the entry fails, so one without an error has read all other rows.
                self._check_standing(segment, range(bounds[0], bounds[1]))

    def _problem(self, text: str) -> None:
        self._verdict.problem(f"{self._key[0]}-{self._key[1]}: {text}")

    def _check_contents(self) -> None:
        """Check that every row was written, at its offset, as far as a CRC can tell."""
        indexes = [ROW_COLUMNS.index(name) for name in self._read.columns]
        known = [(segment.path, found) for segment in self._truth.segments for found in segment.known]
        is_unknown = any(found.original is None or self._is_below_its_log(found) for _, found in known)
        allowed: dict[int, list[tuple[str, int, Row]]] = {}
        for path, found in known:
            for offset, row in found.rows():
                allowed.setdefault(offset, []).append((path.rpartition("/")[2], found.position, row))
        for out in self._rows:
            if out.offset < self._seen.first_known_offset(self._key):
                continue
            fitting = [
                each for each in allowed.get(out.offset, []) if tuple(each[2][index] for index in indexes) == out.values
            ]  # fmt: skip
            written = self._original.get(out.offset)
            if fitting:
                self._check_place(out, fitting, is_unknown=is_unknown)
            elif (
                written is not None
                and tuple(written[index] for index in indexes) == out.values
                and self._was_in_wrapper(out.offset)
            ):
                # The inner messages of a damaged wrapper have their own CRCs.
                continue
            elif self._is_ambiguous(out):
                self._verdict.has_inner_rows = True
            elif not is_unknown:
                self._problem(f"a row that was never written at offset {out.offset}: {out.values}")
                return

    def _was_in_wrapper(self, offset: int) -> bool:
        return any(
            entry.is_wrapper and entry.first_offset <= offset <= entry.last_offset
            for entry in self._written_entries()
        )

    def _is_ambiguous(self, out: OutRow) -> bool:
        """Return whether a row comes from a batch that no rule identifies as part of a record's value.

        A read that stops at damage never returns one.
        """
        return self._read.mode != "FAILFAST" and any(
            first <= out.offset <= last
            for segment in self._truth.segments
            for first, last in segment.ambiguous
        )

    def _is_below_its_log(self, found: Found) -> bool:
        """Return whether an entry out of place has records below its log's start, of which nothing is known."""
        original = found.original
        if original is None or (original.topic_partition == self._key and not found.shift):
            return False
        own_rows = self._seen.log.rows.get(original.topic_partition, {})
        return original.first_offset < min(own_rows, default=MAX_OFFSET)

    def _check_place(self, out: OutRow, fitting: list[tuple[str, int, Row]], *, is_unknown: bool) -> None:
        place = out.metadata and (out.metadata["segment"], out.metadata["position"])
        is_in_place = place in [(name, position) for name, position, _ in fitting]
        # An entry with a recomputed CRC may hold anything, including the original.
        is_elsewhere = place is not None and not is_unknown and not is_in_place
        is_wanted = any(self._seen.holds(self._key, out.offset, row) for _, _, row in fitting)
        if is_wanted and not is_elsewhere:
            return
        if not is_in_place and "value" not in self._read.columns and self._is_ambiguous(out):
            # Without its value, a message within a value looks like the row of the log.
            self._verdict.has_inner_rows = True
        elif is_elsewhere:
            self._problem(f"offset {out.offset} is not at {place}, but at {fitting}")
        else:
            self._problem(f"offset {out.offset} does not satisfy the condition")

    def _check_committed(self) -> None:
        if not self._read.committed:
            return
        is_in_doubt = self._seen.touched & {"txnindex", "snapshot", "root"}
        lost = self._lost_entries()
        # Without a valid marker, the outcome of a transaction is unknown.
        if self._truth.has_astray or is_in_doubt or any(entry.is_control for entry in lost):
            return
        # Without its first batch, a transaction does not seem to be open there.
        begun = min((entry.first_offset for entry in lost if self._is_open(entry)), default=MAX_OFFSET)
        not_committed = self._offsets & self._original.keys() - self._committed
        if shown := sorted(offset for offset in not_committed if offset < begun):
            self._problem(f"records that were not committed: {shown[:5]}")

    def _lost_entries(self) -> list[Entry]:
        standing = {found.original for segment in self._truth.segments for found in segment.entries}
        return [entry for entry in self._written_entries() if entry not in standing]

    def _written_entries(self) -> Iterator[Entry]:
        written = (entry for entries in self._seen.log.entries.values() for entry in entries)
        return (entry for entry in written if entry.topic_partition == self._key)

    def _is_open(self, entry: Entry) -> bool:
        """Return whether an entry is of a transaction that no marker ends."""
        return entry.is_transactional and not any(
            each.is_control
            and each.producer_id == entry.producer_id
            and each.first_offset >= entry.first_offset
            for each in self._written_entries()
        )

    def _check_segment(self, segment: SegmentTruth, wanted: range) -> None:
        if self._read.mode != "FAILFAST" and segment.ambiguous:
            # Once a reader takes one of these batches for one of the log, those with lower offsets are out of order.
            return
        self._check_standing(segment, wanted)
        if self._verdict.has_inner_rows:
            # How much is lost around such entries depends on how a reader interprets them.
            return
        lost = self._lost(segment, wanted)
        damaged = self._damage_met(segment, wanted)
        if self._read.mode == "FAILFAST" and lost:
            self._problem(f"{segment.path}: offsets {lost[:8]} are damaged, and nothing was said")
        elif self._read.mode == "FAILFAST" and damaged:
            self._problem(f"{segment.path}: {damaged} are damaged, and nothing was said")
        elif self._read.mode == "PERMISSIVE":
            self._check_damage_rows(segment, lost, damaged)

    def _check_standing(self, segment: SegmentTruth, wanted: range) -> None:
        """Check that every row of the entries that count was read."""
        if self._read.committed:
            return
        standing = {
            offset for found in segment.entries for offset, row in found.rows()
            if offset in wanted and self._seen.holds(self._key, offset, row)
        }  # fmt: skip
        if missing := sorted(standing - self._offsets):
            self._problem(f"{segment.path}: offsets {missing[:8]} are whole and were not read")

    def _lost(self, segment: SegmentTruth, wanted: range) -> list[int]:
        """Return the requested offsets that a damaged range lost."""
        if self._read.committed and not self._is_end_as_written():
            # Without the last markers, the last stable offset is unknown.
            return []
        return [
            offset for each in segment.damage for offset, row in self._original.items()
            if each.first_offset <= offset < each.end_offset and offset in wanted and offset not in self._offsets
            and self._seen.holds(self._key, offset, row) and (not self._read.committed or offset in self._committed)
        ]  # fmt: skip

    def _is_end_as_written(self) -> bool:
        ends = [
            entries[-1].last_offset + 1 for entries in self._seen.log.entries.values()
            if entries and entries[0].topic_partition == self._key
        ]  # fmt: skip
        return bool(ends) and not self._truth.has_astray and self._truth.end_offset == max(ends)

    def _damage_met(self, segment: SegmentTruth, wanted: range) -> list[DamagedBytes]:
        """Return the damaged ranges that a full read meets; a bounded one may skip them."""
        if self._read.is_bounded or self._read.committed or self._read.condition is not None:
            return []
        return [
            each for each in segment.damage
            if each.end_offset > wanted.start and each.first_offset < wanted.stop
        ]  # fmt: skip

    def _check_damage_rows(self, segment: SegmentTruth, lost: list[int], damaged: list[DamagedBytes]) -> None:
        own = [
            fields for key, fields in self._seen.outcome.damage if key == self._key and fields["file"].endswith(segment.path)
        ]  # fmt: skip
        for fields in own:
            self._check_damage_row(segment, fields)
        uncovered = [
            offset for offset in lost if not any(each["startOffset"] <= offset < each["endOffset"] for each in own)
        ]  # fmt: skip
        if uncovered:
            self._problem(f"{segment.path}: no damage row covers the lost offsets {uncovered[:8]}: {own}")
        for each in damaged:
            if not any(each.meets(row["startByte"], row["endByte"]) for row in own):
                self._problem(f"{segment.path}: no damage row for bytes {each.start} to {each.end}")

    def _check_damage_row(self, segment: SegmentTruth, fields: Mapping[str, Any]) -> None:
        start, end = fields["startByte"], fields["endByte"]
        if not 0 <= start <= end <= segment.size or (start == end != segment.size):
            self._problem(f"a damage row with bytes that the file does not have: {fields}")
        is_offset_range = 0 <= fields["startOffset"] <= fields["endOffset"]
        if not is_offset_range or (fields["topic"], fields["partition"]) != self._key:
            self._problem(f"a damage row with offsets or a partition that cannot be: {fields}")
        if not any(each.meets(start, end) for each in (*segment.damage, *filter(None, [segment.doubtful]))):
            self._problem(f"a damage row where there is no damage: {fields}")
        if not fields["reason"] or not fields["error"].endswith("Error"):
            self._problem(f"a damage row that says nothing: {fields}")
        whole = [found.position for found in segment.entries if found.position < end and start < found.end]
        if whole:
            self._problem(f"a damage row over the whole entries at {whole}: {fields}")
