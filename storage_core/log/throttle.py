"""Holding the rate of reading and writing down (Kafka's ``Throttler``)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Throttle"]

_CHECK_INTERVAL_SECONDS: Final = 0.3


class Throttle:
    """Sleeps where more was done than a rate allows. Shared by whoever is to keep to one rate together.

    Args:
        bytes_per_second: The rate; None for no limit.
        seconds: A clock that never goes back.
        sleep: Waits for some seconds.
    """

    def __init__(
        self,
        bytes_per_second: float | None,
        *,
        seconds: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._seconds = seconds
        self._sleep = sleep
        self._period_start = seconds()
        self._done_bytes = 0

    def __call__(self, size_bytes: int, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Say that so much was read or written, and wait if that was too fast.

        The rate is looked at three times a second at the most: in between, more may be done.

        Args:
            size_bytes: How much.
            should_stop: Whether nobody is to wait any longer; asked three times a second.
        """
        if self._bytes_per_second is None:
            return
        self._done_bytes += size_bytes
        elapsed = self._seconds() - self._period_start
        if elapsed <= _CHECK_INTERVAL_SECONDS or not self._done_bytes:
            return
        due = self._done_bytes / self._bytes_per_second
        end = self._period_start + due
        while (left := end - self._seconds()) > 0 and not should_stop():
            self._sleep(min(left, _CHECK_INTERVAL_SECONDS))
        self._period_start = self._seconds()
        self._done_bytes = 0
