"""Reading directories while others change them: read again if a listed file is gone or a commit interfered.

Nothing is locked. What a read listed may be renamed, replaced or deleted before it is opened, by a broker's retention and
cleaner above all, and a commit may become visible in between. Either is noticed, and rare enough that a second attempt
usually succeeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from storage_core.errors import DataLossError, SegmentLogError

if TYPE_CHECKING:
    from collections.abc import Callable

    from storage_core.directory.visibility import CommitMonitor


GONE: Final = (FileNotFoundError, DataLossError)
"""Errors that say that a listed file is gone, or has become another one."""
# How often the files of a live directory are listed until all of them are still there when they are read.
_LISTINGS: Final = 3
LOOKS_BETWEEN_COMMITS: Final = 10
"""How often a look is repeated in which a commit interferes: it is faster than a commit or the pause between two."""
_Found = TypeVar("_Found")


def list_again_if_gone(read: Callable[[], _Found], before_next: Callable[[], None] = lambda: None) -> _Found:
    """Run a read that lists files, and run it anew if one of them is gone.

    Args:
        read: Lists the files, and reads them.
        before_next: Called before the read is run anew.

    Raises:
        DataLossError: Files were gone each time.
        FileNotFoundError: The same.
    """
    for _ in range(_LISTINGS - 1):
        try:
            return read()
        except GONE:
            before_next()
    return read()


def read_consistently(monitor: CommitMonitor, read: Callable[[CommitMonitor], _Found]) -> _Found:
    """Repeat a read until no commit began or became visible during it, no log was truncated, and no file was gone.

    An error of the read is raised only if nothing interfered with it. During a truncation, or after an interrupted one,
    it is raised only if every attempt fails.

    Args:
        monitor: The log directories; knows afterwards what was visible in them.
        read: Lists files, and reads them, with what the monitor knows.

    Raises:
        DataLossError: Commits or truncations followed each other too quickly, or files were gone each time.
    """
    return list_again_if_gone(lambda: _read_between_commits(monitor, read))


def _read_between_commits(monitor: CommitMonitor, read: Callable[[CommitMonitor], _Found]) -> _Found:
    for attempts_left in reversed(range(LOOKS_BETWEEN_COMMITS)):
        try:
            found = read(monitor)
        except SegmentLogError:
            if not monitor.has_changed() and (not attempts_left or not monitor.is_truncating()):
                raise
        else:
            if not monitor.has_changed():
                return found
    message = (
        "Expected to read this log directory between two commits or truncations, found that one interfered with "
        f"each of {LOOKS_BETWEEN_COMMITS} attempts. Read again, or commit less often."
    )
    raise DataLossError(message, path=", ".join(monitor.known))
