"""Holding a log directory for a job: locked, with nothing unfinished, and nothing that has to be recovered."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from storage_core.checkpoint import has_clean_shutdown_file
from storage_core.checkpoint.commits_file import CommitsFile, read_commits_file
from storage_core.directory.log_directory_files import LOCK_FILE
from storage_core.errors import LogDirectoryError, LogDirectoryLockedError
from storage_core.log.log_directory import LogDirectory
from storage_core.log.root_directory import make_root, partitions_to_load
from storage_core.publishing.replay import finish_commit
from storage_core.publishing.unflushed import is_as_left_unflushed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.commit.settings import JobSettings
    from storage_core.directory import PartitionDirectory
    from storage_core.filesystem import FileLock, FileSystem
    from storage_core.log.clock import Clock

__all__ = ["HeldRoot", "held_root"]

_log = logging.getLogger(__name__)

_LOCK_POLL_SECONDS: Final = 0.05
# Each further attempt means that somebody else has left the root unclean in the meantime.
_MOST_ATTEMPTS: Final = 10


@dataclass(frozen=True, slots=True)
class HeldRoot:
    """What is there while the lock is held: the commits so far, and the partitions."""

    commits: CommitsFile
    directories: list[PartitionDirectory]


@contextlib.contextmanager
def held_root(
    filesystem: FileSystem, root: str, settings: JobSettings, clock: Clock, wait_seconds: float
) -> Iterator[HeldRoot]:
    """Hold the lock of a log directory, which is made if it is missing, recovered if it has to be.

    Raises:
        LogDirectoryLockedError: Somebody else has held it all the while.
        LogDirectoryError: It is no log directory, or a broker's.
        RecoveryWouldDiscard: It was not closed cleanly, and recovery would drop whole batches.
        StorageError: The file system refused.
    """
    make_root(filesystem, root)
    for _ in range(_MOST_ATTEMPTS):
        if filesystem.status(os.path.join(root, LOCK_FILE)) is None:
            # Looked at before the lock leaves a file behind in somebody's home.
            partitions_to_load(filesystem, root, broker_directory=settings.broker_directory)
        lock = _lock(filesystem, root, wait_seconds)
        try:
            directories = partitions_to_load(filesystem, root, broker_directory=settings.broker_directory)
            finished = finish_commit(
                filesystem, root, settings.config_of, threads=settings.threads, keeps_note=True
            )
            if finished is not None:
                directories = partitions_to_load(filesystem, root, broker_directory=settings.broker_directory)
            commits = read_commits_file(filesystem, root)
            if _is_settled(filesystem, root, settings, commits):
                yield HeldRoot(commits, directories)
                return
        finally:
            lock.release()
        with LogDirectory.open(
            root,
            config=settings.config,
            broker_directory=settings.broker_directory,
            filesystem=filesystem,
            clock=clock,
        ):
            _log.info("%s was new, or was not closed cleanly: its logs were loaded.", root)
    raise LogDirectoryError(
        f"Expected a log directory that stays clean, found it unclean {_MOST_ATTEMPTS} times. Stop who writes to it.",
        path=root,
    )


def _lock(filesystem: FileSystem, root: str, wait_seconds: float) -> FileLock:
    end = time.monotonic() + wait_seconds
    while True:
        try:
            return filesystem.lock(os.path.join(root, LOCK_FILE))
        except LogDirectoryLockedError:
            if time.monotonic() >= end:
                raise
        time.sleep(_LOCK_POLL_SECONDS)


def _is_settled(filesystem: FileSystem, root: str, settings: JobSettings, commits: CommitsFile) -> bool:
    """Whether nothing has to be recovered before this job."""
    if has_clean_shutdown_file(filesystem, root):
        return True
    # What the job before did not flush is there, unless the machine was off: a job that does not flush, either,
    # need not wait for it.
    return not settings.flush and is_as_left_unflushed(filesystem, root, commits.generation)
