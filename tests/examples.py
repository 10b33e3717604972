"""How many examples a property is tried with."""

from __future__ import annotations

from typing import Any

from hypothesis import settings


def examples(count: int, **others: Any) -> settings:
    """Settings for ``count`` examples in `make test-all`, a third of them in `make test`, and many more in `make soak`."""
    share = settings.default.max_examples / 100
    return settings(max_examples=max(1, round(count * share)), **others)
