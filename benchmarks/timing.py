"""Timing contenders side by side.

A ratio is only worth something between things that were measured in the same minutes: every round
runs each contender once, so that a slow minute of the machine slows all of them. A ratio is taken in each round, and
the median is that of the rounds' ratios.

A round in which the peer took more than 15 % longer than in its own quickest round is noise: it is repeated, up to as
often as rounds were asked for, and its ratio is left out. The code under test has no say in that.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

# A round is quiet if the peer took at most this many times as long as in its quickest.
_QUIET = 1.15
# Times the rounds that were asked for.
_MOST_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Timed:
    """One run of one contender."""

    seconds: float
    records: int


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure with its range over the rounds.

    Attributes:
        dropped_rounds: How many rounds are left out, because the peer was slowed down in them.
    """

    median: float
    low: float
    high: float
    dropped_rounds: int = 0


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
        """Return the raw figures."""
        return {
            "seconds": list(self.seconds),
            "records": self.records,
            "records_per_second": self.records_per_second,
        }


def interleave(
    contenders: Mapping[str, Callable[[], int | Timed]],
    *,
    warm_up_rounds: int,
    rounds: int,
    peers: Collection[str] = (),
) -> dict[str, Series]:
    """Run every contender once a round, until there are enough rounds in which each peer was quiet, or twice as many.

    A contender returns the number of records that it handled, or times itself and returns a `Timed`.
    The order turns by one each round, so that none always follows the same neighbour.

    Args:
        contenders: What to run, by name.
        warm_up_rounds: The first rounds, which are not counted.
        rounds: How many quiet rounds are enough.
        peers: Contenders whose noisy rounds are repeated: what others are compared with, never the code under test.

    Raises:
        RuntimeError: A contender handled a different number of records in another round.
    """
    names = list(contenders)
    runs: dict[str, list[Timed]] = {name: [] for name in names}
    for round_number in range(warm_up_rounds + _MOST_ROUNDS * rounds):
        turn = round_number % len(names)
        for name in names[turn:] + names[:turn]:
            timed = _run(contenders[name])
            if round_number >= warm_up_rounds:
                runs[name].append(timed)
        if round_number + 1 >= warm_up_rounds + rounds and all(
            sum(_quiet([run.seconds for run in runs[name]])) >= rounds for name in peers
        ):
            break
    return {name: series_of(name, timed) for name, timed in runs.items()}


def ratio(peer: Series, ours: Series) -> Spread:
    """Return how many times as fast as a peer we are, per record, in the rounds in which the peer was quiet."""
    per_record = ours.records / peer.records
    return _in_quiet_rounds(
        peer, [theirs / mine * per_record for theirs, mine in zip(peer.seconds, ours.seconds, strict=True)]
    )


def speed(peer: Series, ours: Series) -> Spread:
    """Return how many times as fast as a peer we are, whatever each handled, in the rounds in which the peer was quiet."""
    return _in_quiet_rounds(
        peer, [theirs / mine for theirs, mine in zip(peer.seconds, ours.seconds, strict=True)]
    )


def share(ours: Series, peer: Series) -> Spread:
    """Return our time as a fraction of a peer's, whatever each handled, in the rounds in which the peer was quiet."""
    return _in_quiet_rounds(
        peer, [mine / theirs for mine, theirs in zip(ours.seconds, peer.seconds, strict=True)]
    )


def difference(ours: Series, peer: Series) -> Spread:
    """Return how many seconds longer than a peer we take, in the rounds in which the peer was quiet."""
    return _in_quiet_rounds(
        peer, [mine - theirs for mine, theirs in zip(ours.seconds, peer.seconds, strict=True)]
    )


def spread(figures: Sequence[float]) -> Spread:
    """Return the median and the range of figures."""
    return Spread(statistics.median(figures), min(figures), max(figures))


def _in_quiet_rounds(peer: Series, figures: Sequence[float]) -> Spread:
    """Return the median and the range of the figures of quiet rounds, each of which compares two runs of one round."""
    kept = [figure for figure, is_quiet in zip(figures, _quiet(peer.seconds), strict=True) if is_quiet]
    return replace(spread(kept), dropped_rounds=len(figures) - len(kept))


def _quiet(seconds: Sequence[float]) -> list[bool]:
    """Tell of each round if it was quiet, by the peer's own spread."""
    return [each <= _QUIET * min(seconds) for each in seconds]


def _run(contender: Callable[[], int | Timed]) -> Timed:
    started = time.perf_counter()
    outcome = contender()
    seconds = time.perf_counter() - started
    return outcome if isinstance(outcome, Timed) else Timed(seconds, outcome)


def series_of(name: str, runs: Sequence[Timed]) -> Series:
    """Join the runs of a contender, in round order.

    Raises:
        RuntimeError: A run handled a different number of records.
    """
    counts = {run.records for run in runs}
    if len(counts) != 1:
        raise RuntimeError(
            f"Expected {name} to handle the same records in every round, found {sorted(counts)}."
        )
    return Series(tuple(run.seconds for run in runs), counts.pop())
