"""What one run of the benchmarks was asked to do, and where its files lie."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent

# How much less data --quick takes.
QUICK_DIVISOR = 20

_CACHE_VARIABLE = "SEGMENTLOG_BENCHMARK_CACHE"


@dataclass(frozen=True, slots=True)
class Settings:
    """One run: its size, its repetitions and its directories.

    Attributes:
        quick: 20 times less data; for trying, never for figures that are shown to anyone.
        repetitions: Measured rounds; each round runs every contender once.
        cache_directory: Holds the data sets and the peers' software from run to run.
        data_sets: Names of the data sets to use; empty for all of them.
        parts: Names of the parts of a section to run, where it has some; empty for all of them.
        earlier: The commit that the section ``earlier`` compares with.
        scratch_name: Of the directory that the section that runs has for itself; see `benchmarks.scratch`.
    """

    quick: bool
    repetitions: int
    cache_directory: Path
    data_sets: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    earlier: str = ""
    scratch_name: str = ""

    @property
    def size_directory(self) -> Path:
        """Everything whose size depends on ``quick``."""
        return self.cache_directory / ("quick" if self.quick else "full")

    @property
    def broker_directory(self) -> Path:
        """The broker that wrote the data sets: its settings, its log and its log directory."""
        return self.size_directory / "broker"

    @property
    def results_directory(self) -> Path:
        """Raw results as JSON, one file per section and run."""
        return self.size_directory / "results"

    @property
    def scratch_directory(self) -> Path:
        """Files that are removed when a section is over."""
        return self.size_directory / "scratch" / self.scratch_name

    @property
    def programs_directory(self) -> Path:
        """Programs that only peers need: the other Spark and its Kafka connector."""
        return self.cache_directory / "programs"

    def wants(self, part: str) -> bool:
        """Return True if a part of a section is to be run."""
        return not self.parts or part in self.parts

    def scaled(self, count: int) -> int:
        """``count``, or a twentieth of it in a quick run."""
        return max(count // QUICK_DIVISOR, 1) if self.quick else count


def default_cache_directory() -> Path:
    """``$SEGMENTLOG_BENCHMARK_CACHE``, else the user's cache directory; never inside the checkout."""
    chosen = os.environ.get(_CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    user_cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(user_cache) / "segmentlog" / "benchmarks"
