"""What a commit leaves in a log directory's root besides its journal and what it has staged."""

from __future__ import annotations

from typing import Final

__all__ = ["COMMIT_IN_PROGRESS"]

COMMIT_IN_PROGRESS: Final = "segmentlog.commit-in-progress"
"""A directory over which no broker starts: its name is not that of a partition."""
