"""What a log must hold: a plain dict beside it, and what of it a crash may take.

The rules, in the words of the promises that users get:

- records are those of one history, in order, none twice, none that was not appended;
- what is there is a prefix: nothing is missing in front of a record that is there;
- what was acknowledged as flushed is there; after the end of the process alone, what was acknowledged as written;
- a truncation that is under way, or was not flushed, has happened or not: no mixture of both histories.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class History:
    """Records as they would be, had nothing happened.

    Args:
        batches: First and last offset of each batch.
        values: Value of each offset.
        end_offset: Where the next record goes.
        is_vanishing: Whether all of its segments are being deleted, so that any of them may be missing.
    """

    batches: tuple[tuple[int, int], ...] = ()
    values: dict[int, bytes] = field(default_factory=dict)
    end_offset: int = 0
    is_vanishing: bool = False

    def with_batch(self, values: list[bytes]) -> History:
        """Records in one batch more."""
        first = self.end_offset
        end_offset = first + len(values)
        added = dict(zip(range(first, end_offset), values, strict=True))
        return History((*self.batches, (first, end_offset - 1)), {**self.values, **added}, end_offset)

    def cut(self, offset: int) -> History:
        """Without the batches that reach to an offset: a batch is cut as a whole, as Kafka does."""
        batches = tuple(batch for batch in self.batches if batch[1] < offset)
        kept = batches[-1][1] if batches else -1
        values = {key: value for key, value in self.values.items() if key <= kept}
        return History(batches, values, offset)


@dataclass(frozen=True)
class Expectation:
    """What may be found after a crash.

    Args:
        histories: One of these, or a prefix of it.
        required_end: All records of it below this offset are there.
        starts: Lowest and highest log start offset.
    """

    histories: tuple[History, ...]
    required_end: int
    starts: tuple[int, int]

    def problems(
        self, found: list[tuple[int, bytes]], log_start_offset: int, log_end_offset: int
    ) -> list[str]:
        """What is wrong with the records of a log that was opened again."""
        offsets = [offset for offset, _ in found]
        problems = []
        if offsets != sorted(set(offsets)):
            problems.append(f"records out of order, or twice: {offsets}")
        if not self.starts[0] <= log_start_offset <= self.starts[1]:
            problems.append(f"expected a log start in {self.starts}, found {log_start_offset}")
        if offsets and not log_start_offset <= offsets[0] <= offsets[-1] < log_end_offset:
            problems.append(f"records {offsets} outside {log_start_offset} to {log_end_offset}")
        reasons = [self._mismatch(history, found, log_start_offset) for history in self.histories]
        if all(reasons):
            problems.append(f"no history fits: {'; '.join(map(str, reasons))}")
        return problems

    def _mismatch(
        self, history: History, found: list[tuple[int, bytes]], log_start_offset: int
    ) -> str | None:
        expected = [(offset, value) for offset, value in history.values.items() if offset >= log_start_offset]
        if history.is_vanishing:
            strange = set(found) - set(history.values.items())
            return f"{strange} were never appended" if strange else None
        if found != expected[: len(found)]:
            wrong = next(
                pair for pair in enumerate(found) if pair[0] >= len(expected) or pair[1] != expected[pair[0]]
            )
            return f"record {wrong[0]} is {wrong[1]}, expected {expected[wrong[0] : wrong[0] + 1]}"
        missing = [offset for offset, _ in expected[len(found) :] if offset < self.required_end]
        if missing:
            return f"offsets {missing} were acknowledged and are gone, up to {self.required_end} is required"
        lasts = {last for _, last in history.batches}
        if found and found[-1][0] not in lasts:
            return f"half a batch: ends with offset {found[-1][0]}"
        return None


class LogModel:
    """Follows what is done to a log."""

    def __init__(self) -> None:
        self.history = History()
        self.start_offset = 0
        self._older: tuple[History, ...] = ()
        self._flushed_end = 0
        self._written_end = 0
        self._lowest_start = 0
        self._highest_start = 0

    @property
    def end_offset(self) -> int:
        """Where the next record goes."""
        return self.history.end_offset

    @property
    def records(self) -> list[tuple[int, bytes]]:
        """What a reader sees now."""
        return [
            (offset, value) for offset, value in self.history.values.items() if offset >= self.start_offset
        ]

    def after_power_cut(self) -> Expectation:
        """What a power cut at this moment may leave."""
        return self._expectation(self._flushed_end)

    def after_kill(self) -> Expectation:
        """What the end of the process at this moment may leave."""
        return self._expectation(self._written_end)

    def _expectation(self, required_end: int) -> Expectation:
        starts = (self._lowest_start, self._highest_start)
        return Expectation((*self._older, self.history), required_end, starts)

    def append(self, values: list[bytes]) -> None:
        """Records are about to be appended in one batch."""
        self.history = self.history.with_batch(values)

    def refuse(self, before: History) -> None:
        """An append was refused: nothing of it may ever be seen."""
        self.history = before

    def written(self) -> None:
        """All records so far were acknowledged as written."""
        self._written_end = self.end_offset

    def flushed(self) -> None:
        """All that was done so far was acknowledged as flushed."""
        self._older = ()
        self._flushed_end = self._written_end = self.end_offset

    def truncate_to(self, offset: int) -> None:
        """A truncation is about to happen."""
        self._older += (self.history,)
        self.history = self.history.cut(offset)
        kept = self.history.batches[-1][1] + 1 if self.history.batches else 0
        self._flushed_end = min(self._flushed_end, kept)
        self._written_end = min(self._written_end, kept)
        self.start_offset = min(self.start_offset, offset)
        self._lowest_start = min(self._lowest_start, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """All segments are about to be deleted."""
        older = (*self._older, self.history)
        self._older = tuple(replace(history, is_vanishing=True) for history in older)
        self.history = History(end_offset=offset)
        self._flushed_end = self._written_end = self.start_offset = offset
        self._lowest_start = min(self._lowest_start, offset)
        self._highest_start = max(self._highest_start, offset, *(history.end_offset for history in older))

    def delete_records(self, offset: int) -> None:
        """Records below an offset are about to be deleted."""
        self.start_offset = max(self.start_offset, offset)
        self._highest_start = max(self._highest_start, offset)

    def reopened(self, end_offset: int) -> None:
        """A truncation within a batch leaves a log end that no batch tells: then it is the end of the last batch."""
        kept = self.history.batches[-1][1] + 1 if self.history.batches else 0
        if end_offset == max(kept, self.start_offset):
            self.history = replace(self.history, end_offset=end_offset)
            self._flushed_end = self._written_end = end_offset

    def truncated(self) -> None:
        """A truncation has returned: nothing of what it dropped comes back."""
        self._older = ()

    def start_is_kept(self) -> None:
        """The log start offset was acknowledged: it never goes back."""
        self._lowest_start = self._highest_start = self.start_offset

    def adopt(
        self,
        found: list[tuple[int, bytes]],
        start_offset: int,
        end_offset: int,
        before: Expectation,
        *,
        is_on_disk: bool,
    ) -> None:
        """The log was opened after the end of a process: what was found is what there is.

        Args:
            found: The records.
            start_offset: The log start offset.
            end_offset: The log end offset.
            before: What a power cut at the end of the process might have left.
            is_on_disk: Whether it did come: what is found then is on the disk.
        """
        fitting = [
            history
            for history in (*before.histories, self.history)
            if found == [pair for pair in history.values.items() if pair[0] >= start_offset][: len(found)]
        ]
        if fitting:
            kept = found[-1][0] if found else -1
            batches = tuple(batch for batch in fitting[-1].batches if batch[1] <= kept)
            values = {offset: value for offset, value in fitting[-1].values.items() if offset <= kept}
            self.history = History(batches, values, end_offset)
        else:
            # Batches are not known: each record counts as one.
            self.history = History(tuple((offset, offset) for offset, _ in found), dict(found), end_offset)
        self._older = before.histories
        self._written_end = end_offset
        self._flushed_end = min(before.required_end, end_offset)
        self.start_offset = start_offset
        self._lowest_start = min(before.starts[0], start_offset)
        self._highest_start = max(before.starts[1], start_offset)
        if is_on_disk:
            self.flushed()
            self.start_is_kept()
