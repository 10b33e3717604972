"""Log directories that are written to, and what was found in them afterwards."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.settings import Settings

TOPIC = "events"


def make_topic(root: Path, partitions: int) -> None:
    """A log directory with a topic of empty partitions."""
    from storage_core import LogDirectory

    with LogDirectory.open(root) as logs:
        for partition in range(partitions):
            logs.create(TOPIC, partition)


def rows_in(root: Path) -> int:
    """How many rows readers see in all partitions together, none of which has lost any."""
    from storage_core import LogDirectory

    with LogDirectory.open(root, read_only=True) as logs:
        return sum(log.log_end_offset for log in logs.logs())


def settle() -> None:
    """Have what was written before brought to the disk: no contender waits for another one's bytes."""
    os.sync()


@contextmanager
def scratch_directory(settings: Settings, name: str) -> Iterator[Path]:
    """An empty directory that is removed at the end."""
    directory = settings.scratch_directory / f"write-{name}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
