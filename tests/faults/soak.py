"""The duration, the order and the seeds of `make soak`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

SOAK_SECONDS = float(os.environ.get("SEGMENTLOG_SOAK_SECONDS", "3600"))
"""How long a run goes on; tests that it does not reach are skipped."""
CAMPAIGN_SECONDS = SOAK_SECONDS / 60
"""How long a campaign without an end of its own may take."""


def is_soak(config: pytest.Config) -> bool:
    """Return True if a run is one of `make soak`."""
    marks = config.option.markexpr
    return "soak" in marks and "not soak" not in marks


def soak_seed() -> str:
    """Return what decides about the order of the modules; the processes of this run inherit it."""
    return os.environ.setdefault("SEGMENTLOG_SOAK_SEED", str(int(time.time())))


def soak_seeds(share: int = 1) -> Iterator[int]:
    """Yield new random seeds for this share of a campaign's time; at least one."""
    end = time.monotonic() + CAMPAIGN_SECONDS / share
    seed = int(time.time() * 1000)
    yield seed
    while time.monotonic() < end:
        seed += 1
        yield seed
