"""How many examples a property is tried with."""

from __future__ import annotations

from typing import Any

from hypothesis import settings


def examples(count: int, **others: Any) -> settings:
    """Return settings that try ``count`` examples where another property tries 100; the profiles say how many that is."""
    return settings(max_examples=max(count * settings.default.max_examples // 100, 1), **others)


def in_soak(many: int, *, usually: int) -> int:
    """Return how large a property's examples are: larger in `make soak`."""
    return many if settings.default.max_examples > 100 else usually
