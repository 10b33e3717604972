"""Log directories that are written to, and what was found in them afterwards."""

from __future__ import annotations

import os
from pathlib import Path

TOPIC = "events"


def make_topic(root: Path, partitions: int) -> None:
    """Make a log directory with a topic of empty partitions."""
    from storage_core import LogDirectory

    with LogDirectory.open(root) as logs:
        for partition in range(partitions):
            logs.create(TOPIC, partition)


def rows_in(root: Path) -> int:
    """Return how many rows readers see in all partitions together, none of which has lost any."""
    from storage_core import count_records

    return count_records(root)


def settle() -> None:
    """Have what was written before brought to the disk: no contender waits for another one's bytes."""
    os.sync()
