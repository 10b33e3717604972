"""The clock of logs and jobs."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A clock, injected so that tests control the time."""

    def now_ms(self) -> int:
        """Return the milliseconds since 1970."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now_ms(self) -> int:
        """Return the milliseconds since 1970."""
        return time.time_ns() // 1_000_000
