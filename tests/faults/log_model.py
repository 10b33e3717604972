"""The expected content of a log, in a plain dict, and how much of it a crash may lose.

These are the promises to users:

- the records form one history, in order, without duplicates and without records that were never appended;
- the records are a prefix of it: none is missing before an existing record;
- everything acknowledged as flushed exists; after the end of the process alone, everything acknowledged as written;
- a truncation that is in progress or not flushed took effect completely or not at all: histories never mix.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class History:
    """One possible history of the log.

    Args:
        batches: First and last offset of each batch.
        values: Value of each offset.
        end_offset: The offset of the next record.
        is_vanishing: Whether all of its segments are being deleted, so that any of them may be missing.
    """

    batches: tuple[tuple[int, int], ...] = ()
    values: dict[int, bytes] = field(default_factory=dict)
    end_offset: int = 0
    is_vanishing: bool = False

    def with_batch(self, values: list[bytes]) -> History:
        """Return the history with one more batch of records."""
        first = self.end_offset
        end_offset = first + len(values)
        added = dict(zip(range(first, end_offset), values, strict=True))
        return History((*self.batches, (first, end_offset - 1)), {**self.values, **added}, end_offset)

    def cut(self, offset: int) -> History:
        """Return the history without the batches that reach this offset: like Kafka, it truncates whole batches."""
        batches = tuple(batch for batch in self.batches if batch[1] < offset)
        kept = batches[-1][1] if batches else -1
        values = {key: value for key, value in self.values.items() if key <= kept}
        return History(batches, values, offset)


@dataclass(frozen=True)
class Expectation:
    """What a crash may leave.

    Args:
        histories: The content is a prefix of one of these.
        required_end: All of its records below this offset must exist.
        starts: Lowest and highest log start offset.
    """

    histories: tuple[History, ...]
    required_end: int
    starts: tuple[int, int]

    def problems(
        self, found: list[tuple[int, bytes]], log_start_offset: int, log_end_offset: int
    ) -> list[str]:
        """Return the problems of the records of a reopened log."""
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
    """Follows the operations on a log."""

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
        """The offset of the next record."""
        return self.history.end_offset

    @property
    def records(self) -> list[tuple[int, bytes]]:
        """What a reader sees now."""
        return [
            (offset, value) for offset, value in self.history.values.items() if offset >= self.start_offset
        ]

    def after_power_cut(self) -> Expectation:
        """Return what a power cut at this moment may leave."""
        return self._expectation(self._flushed_end)

    def after_kill(self) -> Expectation:
        """Return what the end of the process at this moment may leave."""
        return self._expectation(self._written_end)

    def _expectation(self, required_end: int) -> Expectation:
        starts = (self._lowest_start, self._highest_start)
        return Expectation((*self._older, self.history), required_end, starts)

    def append(self, values: list[bytes]) -> None:
        """Records are about to be appended in one batch."""
        self.history = self.history.with_batch(values)

    def refuse(self, before: History) -> None:
        """Note that an append was rejected: none of its records may ever appear."""
        self.history = before

    def written(self) -> None:
        """Note that all records so far were acknowledged as written."""
        self._written_end = self.end_offset

    def flushed(self) -> None:
        """Everything so far was acknowledged as flushed."""
        self._older = ()
        self._flushed_end = self._written_end = self.end_offset

    def truncate_to(self, offset: int) -> None:
        """Note that a truncation is about to happen."""
        self._older += (self.history,)
        self.history = self.history.cut(offset)
        kept = self.history.batches[-1][1] + 1 if self.history.batches else 0
        self._flushed_end = min(self._flushed_end, kept)
        self._written_end = min(self._written_end, kept)
        self.start_offset = min(self.start_offset, offset)
        self._lowest_start = min(self._lowest_start, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Note that all segments are about to be deleted."""
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
        """Note that the log was reopened. A truncation inside a batch makes the end of the last batch its log end."""
        kept = self.history.batches[-1][1] + 1 if self.history.batches else 0
        if end_offset == max(kept, self.start_offset):
            self.history = replace(self.history, end_offset=end_offset)
            self._flushed_end = self._written_end = end_offset

    def truncated(self) -> None:
        """Note that a truncation has returned: the records that it removed never return."""
        self._older = ()

    def start_is_kept(self) -> None:
        """Note that the log start offset was acknowledged: it never decreases."""
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
        """Adopt what was found when the log was reopened after a crash.

        Args:
            found: The records.
            start_offset: The log start offset.
            end_offset: The log end offset.
            before: What a power cut at that moment might have left.
            is_on_disk: Whether the crash was a power cut, so that everything found is on disk.
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
            # Batch boundaries are unknown, so each record counts as a batch.
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
