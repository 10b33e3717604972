"""The duration and the seeds of `make soak`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

SOAK_SECONDS = float(os.environ.get("SEGMENTLOG_SOAK_SECONDS", "3600"))
"""How long a run goes on; tests that it does not reach are skipped."""
CAMPAIGN_SECONDS = SOAK_SECONDS / 20
"""How much of it a campaign takes that could go on for ever."""


def soak_seeds(share: int = 1) -> Iterator[int]:
    """Yield new random seeds for this share of a campaign's time; at least one."""
    end = time.monotonic() + CAMPAIGN_SECONDS / share
    seed = int(time.time() * 1000)
    yield seed
    while time.monotonic() < end:
        seed += 1
        yield seed
