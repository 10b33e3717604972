"""``functools.cached_property`` without the lock that it has before Python 3.12.

That lock is per class, not per object, and is held while the value is computed. Two threads that read different logs
would wait for each other's disk, and a process forked meanwhile would wait forever.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

__all__ = ["cached_property"]

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:

    class cached_property:  # noqa: N801  (as in functools)
        """A property that is computed once per object. Two threads may both compute it."""

        def __init__(self, compute: Any) -> None:
            self._compute = compute
            self.__doc__ = compute.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            values = instance.__dict__
            if self._name not in values:
                values[self._name] = self._compute(instance)
            return values[self._name]
