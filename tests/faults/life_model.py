"""What a log must hold over its life: batches in a list, records in dicts, and plain rules for everything.

It follows appends, transactions, retention, compaction, truncation and the end of processes. What a pass of the
cleaner takes is not foretold: `LifeModel.take_cleaned` says whether it may have been taken, and whether what had to
go has gone. `tests.compaction` compares the same byte by byte.
"""

from __future__ import annotations

from dataclasses import dataclass, field

KEPT_BATCHES = 5

Pair = tuple[bytes | None, bytes | None]


@dataclass
class Entry:
    """A batch, or a marker.

    Attributes:
        records: Key and value of each offset that is still there.
        producer: Its producer id; None without one.
        is_abort: Of a marker, whether it aborts; None for records.
        is_forgotten: Whether the log no longer knows that a transaction holds them.
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
    """What a log knows of a producer: first and last sequence and offset of its last batches, oldest first."""

    epoch: int
    recent: list[tuple[int, int, int, int]] = field(default_factory=list)
    open_from: int | None = None

    @property
    def next_sequence(self) -> int:
        return self.recent[-1][1] + 1 if self.recent else 0


class LifeModel:
    """Follows what is done to a log.

    Attributes:
        cleaned_end: Up to where the cleaner has been.
        uncertain: Producers of which a crash, or retention before it, may have taken all traces.
        remembered_from: Older batches than from this offset on may be known as duplicates, or not any more.
        is_made_anew: Whether the log has just read its state from its files.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.start_offset = self.end_offset = 0
        self.flushed_end = self.written_end = 0
        self.cleaned_end = 0
        self.remembered_from = 0
        self.is_made_anew = False
        self.uncertain: set[int] = set()
        self._tombstones_ms: dict[int, int] = {}

    # -- What is there --------

    def producers(self) -> dict[int, Producer]:
        """What is known of each producer."""
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
        """Where each open transaction begins."""
        return {
            number: known.open_from
            for number, known in self.producers().items()
            if known.open_from is not None
        }

    def take_open_transactions(self, found: dict[int, int]) -> list[str]:
        """Compare the open transactions.

        A log that makes its state anew reads from its start on, or, in a segment that a crash has left behind, from
        that segment's first batch on. So it may forget what a transaction has below the start, and a crash may bring
        that back; never what it has behind the start.

        Returns:
            What is wrong.
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
            if forgotten and not self.is_made_anew:
                problems.append(f"{number} had one open from {first} on, and nothing happened to it")
            for each in forgotten:
                each.is_forgotten = True
        self.is_made_anew = False
        return problems

    def last_stable_offsets(self, high_watermark: int) -> set[int]:
        """Up to where every transaction is decided, with a marker that every replica has.

        A log that was opened again with a snapshot behind a marker no longer asks how far the replicas are with it.
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
        """What a reader sees who takes everything."""
        return self._of(self.entries)

    def committed(self, last_stable_offset: int) -> list[tuple[int, Pair]]:
        """What a reader sees who waits for decisions."""
        aborted = self.aborted_offsets()
        return [pair for pair in self.records() if pair[0] < last_stable_offset and pair[0] not in aborted]

    def aborted_offsets(self) -> set[int]:
        """The offsets of records whose transaction was aborted."""
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

    # -- What is done --------

    def append(self, pairs: list[Pair], **fields) -> Entry:
        """Records are appended in one batch."""
        first = self.end_offset
        last = first + len(pairs) - 1
        entry = Entry(first, last, dict(zip(range(first, last + 1), pairs, strict=True)), **fields)
        self.entries.append(entry)
        self.end_offset = last + 1
        return entry

    def end_transaction(self, producer: int, epoch: int, *, is_abort: bool) -> None:
        """A marker is appended."""
        marker = Entry(
            self.end_offset, self.end_offset, producer=producer, epoch=epoch, is_transactional=True, is_abort=is_abort
        )  # fmt: skip
        self.entries.append(marker)
        self.end_offset += 1

    def written(self, *, flushed: bool = False) -> None:
        """All of it was acknowledged as written, or as flushed."""
        self.written_end = self.end_offset
        if flushed:
            self.flushed_end = self.end_offset

    def truncate_to(self, offset: int) -> None:
        """Everything from an offset on goes, and the batch that holds it as a whole."""
        self.entries = [entry for entry in self.entries if entry.last < offset]
        kept = self.entries[-1].last + 1 if self.entries else 0
        self.end_offset = offset
        self.start_offset = min(self.start_offset, offset)
        self.flushed_end, self.written_end = min(self.flushed_end, kept), min(self.written_end, kept)
        self.remembered_from = offset
        self.is_made_anew = True

    def take_cleaned(
        self,
        found: dict[int, Pair],
        cleaned_end: int,
        now_ms: int,
        delete_retention_ms: int,
        *,
        is_complete: bool = True,
    ) -> list[str]:
        """Go on with what a pass has left; return what is wrong with it.

        Args:
            found: The records that are left.
            cleaned_end: Up to where it was.
            now_ms: The time of the pass.
            delete_retention_ms: How long tombstones are kept behind the pass that sees them first.
            is_complete: Whether what had to go has gone; otherwise a process died in the middle.
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
        """The log was opened again, and ends there: what lies behind is gone, and never comes back."""
        self.entries = [entry for entry in self.entries if entry.last < end_offset]
        self.end_offset = self.written_end = end_offset
        self.remembered_from = end_offset
        self.is_made_anew = True
        for entry in self.entries:
            entry.is_forgotten = False

    def end_problems(self, end_offset: int, required_end: int) -> list[str]:
        """What is wrong with the log end after the end of a process."""
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
            problems.append(f"the log ends at {end_offset}, behind {self.end_offset}")
        return problems
