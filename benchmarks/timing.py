"""Timing contenders side by side.

A ratio is only worth something between things that were measured in the same minutes: every round
runs each contender once, so that a slow minute of the machine slows all of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timed:
    """One run of one contender."""

    seconds: float
    records: int


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure with its range over the rounds."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Series:
    """All measured runs of one contender, in round order. ``records`` is what each run handled."""

    seconds: tuple[float, ...]
    records: int

    @property
    def median_s(self) -> float:
        """Median time of a run."""
        return statistics.median(self.seconds)

    @property
    def records_per_second(self) -> float:
        """Records handled per second in the median run."""
        return self.records / self.median_s

    def to_json(self) -> dict[str, object]:
        """The raw figures."""
        return {
            "seconds": list(self.seconds),
            "records": self.records,
            "records_per_second": self.records_per_second,
        }


def interleave(
    contenders: Mapping[str, Callable[[], int | Timed]], *, warm_up_rounds: int, rounds: int
) -> dict[str, Series]:
    """Run every contender once a round; the first ``warm_up_rounds`` rounds are not counted.

    A contender returns the number of records that it handled, or times itself and returns a `Timed`.
    The order turns by one each round, so that none always follows the same neighbour.

    Raises:
        RuntimeError: A contender handled a different number of records in another round.
    """
    names = list(contenders)
    runs: dict[str, list[Timed]] = {name: [] for name in names}
    for round_number in range(warm_up_rounds + rounds):
        turn = round_number % len(names)
        for name in names[turn:] + names[:turn]:
            timed = _run(contenders[name])
            if round_number >= warm_up_rounds:
                runs[name].append(timed)
    return {name: _series(name, timed) for name, timed in runs.items()}


def ratio(slower: Series, faster: Series) -> Spread:
    """How many times ``faster`` beats ``slower``, per record: medians, and the range of the rounds."""
    per_record = faster.records / slower.records
    rounds = [slow / fast * per_record for slow, fast in zip(slower.seconds, faster.seconds, strict=True)]
    return Spread(slower.median_s / faster.median_s * per_record, min(rounds), max(rounds))


def share(part: Series, whole: Series) -> Spread:
    """Time of ``part`` as a fraction of the time of ``whole``, whatever each of them handled."""
    rounds = [one / other for one, other in zip(part.seconds, whole.seconds, strict=True)]
    return Spread(part.median_s / whole.median_s, min(rounds), max(rounds))


def spread(figures: Sequence[float]) -> Spread:
    """Median and range of ``figures``."""
    return Spread(statistics.median(figures), min(figures), max(figures))


def _run(contender: Callable[[], int | Timed]) -> Timed:
    started = time.perf_counter()
    outcome = contender()
    seconds = time.perf_counter() - started
    return outcome if isinstance(outcome, Timed) else Timed(seconds, outcome)


def _series(name: str, runs: Sequence[Timed]) -> Series:
    counts = {run.records for run in runs}
    if len(counts) != 1:
        raise RuntimeError(
            f"Expected {name} to handle the same records in every round, found {sorted(counts)}."
        )
    return Series(tuple(run.seconds for run in runs), counts.pop())
