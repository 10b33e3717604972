"""How reads reach an object store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Names and values that reach an object store. Some are secrets, so a representation shows none.

    Attributes:
        values: By name.
    """

    values: tuple[tuple[str, str], ...] = field(default=(), repr=False)


NO_STORAGE_OPTIONS: Final = StorageOptions()
"""What reads have that name nothing: the environment says how to reach an object store."""
