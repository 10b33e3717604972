"""``functools.cached_property`` without the lock that it has before Python 3.12.

That lock belongs to the property of a class, not of an object, and is held while the value is computed. So two threads
that read different logs would wait for each other's disk, and a child that is forked meanwhile would wait for ever.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

__all__ = ["cached_property"]

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:

    class cached_property:  # noqa: N801  (as in functools)
        """A property that is computed once, and then kept in the object. Two threads may both compute it."""

        def __init__(self, find_out: Any) -> None:
            self._find_out = find_out
            self.__doc__ = find_out.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            values = instance.__dict__
            if self._name not in values:
                values[self._name] = self._find_out(instance)
            return values[self._name]
