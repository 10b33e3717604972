"""The duration and the seeds of a soak."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

SOAK_SECONDS = float(os.environ.get("SEGMENTLOG_SOAK_SECONDS", "600"))


def soak_seeds(share: int = 1) -> Iterator[int]:
    """New random seeds for this share of the time; at least one."""
    end = time.monotonic() + SOAK_SECONDS / share
    seed = int(time.time() * 1000)
    yield seed
    while time.monotonic() < end:
        seed += 1
        yield seed
