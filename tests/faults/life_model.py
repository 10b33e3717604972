"""The expected content of a log over its life: a list of batches, dicts of records, and simple rules.

The model follows appends, transactions, retention, compaction, truncation and process crashes. It does not predict
what the cleaner removes; `LifeModel.take_cleaned` checks that everything removed was removable, and that everything
due was removed. `tests.compaction` compares cleaned logs byte by byte.
"""

from __future__ import annotations

from dataclasses import dataclass, field

KEPT_BATCHES = 5

Pair = tuple[bytes | None, bytes | None]


@dataclass
class Entry:
    """A batch, or a marker.

    Attributes:
        records: Key and value by offset, for the offsets that remain.
        producer: Its producer id; None without one.
        is_abort: For a marker, whether it aborts; None for records.
        is_forgotten: Whether the log no longer knows that the records are in a transaction.
    """

    first: int
    last: int
    records: dict[int, Pair] = field(default_factory=dict)
    producer: int | None = None
    epoch: int = -1
    first_sequence: int = -1
    is_transactional: bool = False
    is_abort: bool | None = None
    is_forgotten: bool = False

    @property
    def is_marker(self) -> bool:
        return self.is_abort is not None

    @property
    def is_in_transaction(self) -> bool:
        return self.is_transactional and not self.is_forgotten


@dataclass
class Producer:
    """A log's state of a producer: first and last sequence and offset of its last batches, oldest first."""

    epoch: int
    recent: list[tuple[int, int, int, int]] = field(default_factory=list)
    open_from: int | None = None

    @property
    def next_sequence(self) -> int:
        return self.recent[-1][1] + 1 if self.recent else 0


class LifeModel:
    """Follows the operations on a log.

    Attributes:
        cleaned_end: The offset up to which the log is cleaned.
        uncertain: Producers whose state a crash, or retention before it, may have erased.
        remembered_from: Batches before this offset may or may not be recognised as duplicates.
        is_rebuilt: Whether the log has just rebuilt its state from its files.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.start_offset = self.end_offset = 0
        self.flushed_end = self.written_end = 0
        self.cleaned_end = 0
        self.remembered_from = 0
        self.is_rebuilt = False
        self.uncertain: set[int] = set()
        self._tombstones_ms: dict[int, int] = {}

    # -- State --------

    def producers(self) -> dict[int, Producer]:
        """Return the state of each producer."""
        known: dict[int, Producer] = {}
        for entry in self.entries:
            if entry.producer is None:
                continue
            producer = known.setdefault(entry.producer, Producer(entry.epoch))
            if entry.epoch != producer.epoch:
                producer.epoch, producer.recent = entry.epoch, []
            if entry.is_marker:
                producer.open_from = None
                continue
            last_sequence = entry.first_sequence + entry.last - entry.first
            producer.recent.append((entry.first_sequence, last_sequence, entry.first, entry.last))
            del producer.recent[:-KEPT_BATCHES]
            if entry.is_in_transaction and producer.open_from is None:
                producer.open_from = entry.first
        return known

    def open_transactions(self) -> dict[int, int]:
        """Return the first offset of each open transaction."""
        return {
            number: known.open_from
            for number, known in self.producers().items()
            if known.open_from is not None
        }

    def check_open_transactions(self, found: dict[int, int]) -> list[str]:
        """Compare the open transactions.

        A log rebuilds its state from its log start on or, in a segment that a crash left without a snapshot, from
        that segment's first batch on. So it may forget the part of a transaction below the log start, and a crash may
        restore that part. It never forgets the part above the log start.

        Returns:
            The problems.
        """
        expected = self.open_transactions()
        problems = [f"{number} has one open" for number in found if number not in expected]
        for number, first in expected.items():
            known_from = found.get(number)
            members = [
                each
                for each in self.entries
                if each.producer == number and each.is_in_transaction and each.first >= first
            ]
            forgotten = [each for each in members if known_from is None or each.first < known_from]
            if any(each.last >= self.start_offset for each in forgotten) or (
                known_from is not None and known_from not in {each.first for each in members}
            ):
                problems.append(f"{number} should have one open from {first} on, has {known_from}")
            if forgotten and not self.is_rebuilt:
                problems.append(f"{number} had one open from {first} on, and nothing happened to it")
            for each in forgotten:
                each.is_forgotten = True
        self.is_rebuilt = False
        return problems

    def last_stable_offsets(self, high_watermark: int) -> set[int]:
        """Return the possible last stable offsets: every transaction below is completed, with a replicated marker.

        A log that was reopened from a snapshot after a marker no longer tracks whether that marker is replicated.
        """
        running: dict[int, list[int]] = {}
        doubtful: list[int] = []
        for entry in self.entries:
            if entry.is_marker:
                firsts = running.pop(entry.producer, [])
                doubtful += firsts if entry.first >= high_watermark else []
            elif entry.is_in_transaction:
                running.setdefault(entry.producer, []).append(entry.first)
        certain = min([high_watermark, *(firsts[0] for firsts in running.values())])
        return {max(self.start_offset, min(certain, first)) for first in (certain, *doubtful)}

    def records(self) -> list[tuple[int, Pair]]:
        """Return what a read_uncommitted reader sees."""
        return self._of(self.entries)

    def committed(self, last_stable_offset: int) -> list[tuple[int, Pair]]:
        """Return what a read_committed reader sees."""
        aborted = self.aborted_offsets()
        return [pair for pair in self.records() if pair[0] < last_stable_offset and pair[0] not in aborted]

    def aborted_offsets(self) -> set[int]:
        """Return the offsets of records in aborted transactions."""
        aborted: set[int] = set()
        running: dict[int, list[int]] = {}
        for entry in self.entries:
            if entry.producer is None:
                continue
            if entry.is_marker:
                offsets = running.pop(entry.producer, [])
                aborted.update(offsets if entry.is_abort else ())
            elif entry.is_transactional:
                running.setdefault(entry.producer, []).extend(entry.records)
        return aborted

    def _of(self, entries: list[Entry]) -> list[tuple[int, Pair]]:
        return [
            (offset, pair)
            for entry in entries
            if not entry.is_marker
            for offset, pair in entry.records.items()
            if offset >= self.start_offset
        ]

    # -- Operations --------

    def append(self, pairs: list[Pair], **fields) -> Entry:
        """Append records in one batch."""
        first = self.end_offset
        last = first + len(pairs) - 1
        entry = Entry(first, last, dict(zip(range(first, last + 1), pairs, strict=True)), **fields)
        self.entries.append(entry)
        self.end_offset = last + 1
        return entry

    def end_transaction(self, producer: int, epoch: int, *, is_abort: bool) -> None:
        """Append a marker."""
        marker = Entry(
            self.end_offset, self.end_offset, producer=producer, epoch=epoch, is_transactional=True, is_abort=is_abort
        )  # fmt: skip
        self.entries.append(marker)
        self.end_offset += 1

    def written(self, *, flushed: bool = False) -> None:
        """Everything so far was acknowledged as written, or as flushed."""
        self.written_end = self.end_offset
        if flushed:
            self.flushed_end = self.end_offset

    def truncate_to(self, offset: int) -> None:
        """Remove everything from an offset on, including the whole batch that contains it."""
        self.entries = [entry for entry in self.entries if entry.last < offset]
        kept = self.entries[-1].last + 1 if self.entries else 0
        self.end_offset = offset
        self.start_offset = min(self.start_offset, offset)
        self.flushed_end, self.written_end = min(self.flushed_end, kept), min(self.written_end, kept)
        self.remembered_from = offset
        self.is_rebuilt = True

    def truncate_fully(self, offset: int) -> None:
        """Remove everything: the log begins and ends at an offset."""
        self.truncate_to(0)
        self.start_offset = self.end_offset = self.flushed_end = self.written_end = offset
        self.cleaned_end = self.remembered_from = offset
        self.uncertain.clear()
        self._tombstones_ms.clear()

    def take_cleaned(
        self,
        found: dict[int, Pair],
        cleaned_end: int,
        now_ms: int,
        delete_retention_ms: int,
        *,
        is_complete: bool = True,
    ) -> list[str]:
        """Adopt the result of a cleaner pass; return its problems.

        Args:
            found: The remaining records.
            cleaned_end: The offset up to which the pass cleaned.
            now_ms: The time of the pass.
            delete_retention_ms: How long tombstones are kept after the first pass that sees them.
            is_complete: Whether everything due must be gone; False if a process died during the pass.
        """
        before, aborted = dict(self.records()), self.aborted_offsets()
        last_of_key = {
            pair[0]: offset
            for offset, pair in before.items()
            if offset < cleaned_end and offset not in aborted
        }
        problems = [
            f"offset {offset} is {pair}, and was {before.get(offset)}"
            for offset, pair in found.items()
            if before.get(offset) != pair
        ]
        for offset, (key, value) in before.items():
            is_last = offset >= cleaned_end or (offset not in aborted and last_of_key[key] == offset)
            seen_ms = self._tombstones_ms.get(offset)
            is_due = seen_ms is not None and now_ms >= seen_ms + delete_retention_ms
            if offset in found and not is_last and is_complete:
                problems.append(f"offset {offset} of key {key} should have gone")
            if offset not in found and is_last and (value is not None or not is_due):
                problems.append(f"offset {offset} of key {key} is lost: {value}")
            if offset in found and value is None and offset < cleaned_end:
                self._tombstones_ms.setdefault(offset, now_ms)
        for entry in self.entries:
            if not entry.is_marker:
                entry.records = {offset: pair for offset, pair in entry.records.items() if offset in found}
        self.cleaned_end = max(cleaned_end, self.cleaned_end)
        return problems

    def taken_over(self, end_offset: int) -> None:
        """Note that the log was reopened and ends at this offset: everything after it is gone and never returns."""
        self.entries = [entry for entry in self.entries if entry.last < end_offset]
        self.end_offset = self.written_end = end_offset
        self.remembered_from = end_offset
        self.is_rebuilt = True
        for entry in self.entries:
            entry.is_forgotten = False

    def end_problems(self, end_offset: int, required_end: int) -> list[str]:
        """Return the problems of the log end after a process ended."""
        problems = []
        kept = [entry for entry in self.entries if entry.last < end_offset]
        if any(entry.first < end_offset <= entry.last for entry in self.entries):
            problems.append(f"the log ends with half a batch, at {end_offset}")
        lost = [entry.first for entry in self.entries[len(kept) :] if entry.last < required_end]
        if lost:
            problems.append(
                f"batches {lost} were acknowledged up to {required_end}, the log ends at {end_offset}"
            )
        if end_offset > self.end_offset:
            problems.append(f"the log ends at {end_offset}, after {self.end_offset}")
        return problems
