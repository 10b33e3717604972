"""What of a log directory readers may see while a job's rows are committed to it: all of them, or none.

The same look, and look again, keeps a truncation from being seen by halves.

A commit changes partition after partition, and makes its rows visible by one line in
``.segmentlog-commits``. As long as its journal stands there without that line, each partition that
it names ends for readers where it ended before, and a new one does not exist. Nothing is locked:
a reader looks, and looks again if a commit began or became visible meanwhile.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

from storage_core.checkpoint.truncations_file import is_truncation_under_way, truncations_bytes
from storage_core.commit_files.commits_file import read_last_commit
from storage_core.commit_files.journal import COMMIT_JOURNAL, parse_commit_journal, read_journal_bytes
from storage_core.errors import DataLossError, SegmentLogError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from storage_core.commit_files.commits_file import CommitEntry
    from storage_core.commit_files.journal import JournalledPartition
    from storage_core.filesystem import FileSystem

__all__ = ["NOTHING_COMMITTED", "CommitWatch", "Visibility", "read_consistently", "read_visibility"]


# A planning takes less time than a commit or the pause between two, so that the second one agrees.
_LOOKS: Final = 10
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Visibility:
    """Which commits of a log directory are visible; two are equal if the same rows are.

    They differ, too, if a log was truncated or deleted in between.

    Attributes:
        last_commit: The last one that is; None if there was none.
        journal_data: The journal of one that is not yet; None if there is none.
        partitions: What that one changes: they are as they were before.
        truncations_bytes: The size of the list of truncations.
    """

    last_commit: CommitEntry | None = None
    journal_data: bytes | None = field(default=None, repr=False)
    partitions: Mapping[tuple[str, int], JournalledPartition] = field(
        default_factory=dict, compare=False, repr=False
    )
    truncations_bytes: int = 0

    def is_hidden(self, topic: str, partition: int) -> bool:
        """Whether a partition does not exist yet, though its directory may."""
        journalled = self.partitions.get((topic, partition))
        return journalled is not None and journalled.is_new


NOTHING_COMMITTED: Final = Visibility()


def read_visibility(filesystem: FileSystem, root: str, before: Visibility = NOTHING_COMMITTED) -> Visibility:
    """Look which commits of a log directory are visible.

    Args:
        filesystem: Where to read.
        root: The log directory.
        before: What was read before; a journal that is still the same is not parsed again.

    Raises:
        CorruptCheckpointError: The journal, or the list of commits, is damaged.
        UnreadableError: This user may not read them.
    """
    # In this order: no commit was under way when there was no journal, and none can pass unseen behind it.
    data = read_journal_bytes(filesystem, root)
    last_commit = read_last_commit(filesystem, root)
    size_bytes = truncations_bytes(filesystem, root)
    if data is None:
        return Visibility(last_commit, truncations_bytes=size_bytes)
    if (data, last_commit) == (before.journal_data, before.last_commit):
        return (
            before
            if size_bytes == before.truncations_bytes
            else replace(before, truncations_bytes=size_bytes)
        )
    journal = parse_commit_journal(data, os.path.join(root, COMMIT_JOURNAL))
    if last_commit is not None and last_commit.job_id == journal.job_id:
        return Visibility(last_commit, truncations_bytes=size_bytes)
    partitions = {each.topic_partition: each for each in journal.partitions}
    return Visibility(last_commit, data, partitions, size_bytes)


class CommitWatch:
    """Tells whether a commit began or became visible, or a log was truncated, while log directories were looked at.

    A look may begin with an old answer, or with none at all: if the one behind it is the same, then it was
    so all the time, because commits and truncations are only ever added.

    Args:
        filesystem: Where to read.
        known: What is known of log directories, by path.
    """

    def __init__(self, filesystem: FileSystem, known: Mapping[str, Visibility] | None = None) -> None:
        self.known = dict(known or {})
        self._filesystem = filesystem

    def visibility_of(self, root: str) -> Visibility:
        """What counts as visible in a log directory for this look; without more knowledge, no commit at all."""
        return self.known.setdefault(root, NOTHING_COMMITTED)

    def observe(self, root: str) -> bool:
        """Read what is visible in a log directory that is new to this watch; False if it is not."""
        if root in self.known:
            return False
        self.known[root] = read_visibility(self._filesystem, root)
        return True

    def has_changed(self) -> bool:
        """Whether this look does not count; then the next one begins with what is known now."""
        has_changed = False
        for root, before in self.known.items():
            now = self.known[root] = read_visibility(self._filesystem, root, before)
            has_changed |= now != before
        return has_changed

    def is_truncating(self) -> bool:
        """Whether a log of these directories is being truncated, or was when its process died."""
        return any(is_truncation_under_way(self._filesystem, root) for root in self.known)


def read_consistently(watch: CommitWatch, look: Callable[[CommitWatch], _Found]) -> _Found:
    """Look at log directories until no commit began or became visible meanwhile, and no log was truncated.

    What a look raises counts only if that is so. While a log is being truncated, or if that was interrupted, it counts
    only if it is raised again and again.

    Raises:
        DataLossError: One commit or truncation followed the other too quickly.
    """
    for looks_left in reversed(range(_LOOKS)):
        try:
            found = look(watch)
        except SegmentLogError:
            if not watch.has_changed() and (not looks_left or not watch.is_truncating()):
                raise
        else:
            if not watch.has_changed():
                return found
    message = (
        "Expected to see this log directory once as it is between two commits or truncations, looked "
        f"{_LOOKS} times in vain. Read again, or commit less often."
    )
    raise DataLossError(message, path=", ".join(watch.known))
