"""Where a section puts what it makes. Nothing there is deleted before the section is over.

ext4 does not give out an inode again that was freed a short while ago, and searches on: a round that begins after
a tree was deleted measures that search. So each round takes a new directory, and gives back the space of its files alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.settings import Settings

# Smaller files are left as they are: there is little to gain.
_LARGE_BYTES = 64 << 10


@contextlib.contextmanager
def section_scratch(settings: Settings) -> Iterator[Settings]:
    """Give a section a directory of its own, which is removed at the end, as are those that a killed run left."""
    root = settings.scratch_directory
    root.mkdir(parents=True, exist_ok=True)
    for left in root.iterdir():
        _remove_unless_locked(left)
    directory = new_directory(root, "section")
    with _open_directory(directory) as descriptor:
        # A run that is killed lets go of it.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield dataclasses.replace(settings, scratch_name=directory.name)
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def new_directory(parent: Path, name: str) -> Path:
    """Make a directory that nothing has used before."""
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))


def give_back_space(directory: Path) -> None:
    """Truncate the large files below a directory, so that the rounds together need the space of one."""
    for path in directory.rglob("*"):
        if path.is_file() and path.stat().st_size >= _LARGE_BYTES:
            os.truncate(path, 0)


def _remove_unless_locked(directory: Path) -> None:
    with _open_directory(directory) as descriptor, contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _open_directory(directory: Path) -> Iterator[int]:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
