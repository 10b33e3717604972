"""Which rows of a job that is being committed to a log directory are visible to readers: all, or none.

A commit changes partition after partition, and makes its rows visible by one line in
``.segmentlog-commits``. While its journal exists without that line, readers see each partition that
it names with its previous log end, and new partitions do not exist. Nothing is locked: `read_consistently`
repeats a read if a commit began or became visible meanwhile, or a log was truncated.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from storage_core.checkpoint.truncations_file import is_truncation_under_way, truncations_bytes
from storage_core.commit_files.commits_file import CommitEntry, read_last_commit
from storage_core.commit_files.journal import (
    COMMIT_JOURNAL,
    JournalledPartition,
    parse_own_journal,
    read_journal_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from storage_core.filesystem import ReadableFileSystem


@dataclass(frozen=True, slots=True)
class VisibleCommits:
    """Commits of a log directory that are visible.

    Two are equal if the same rows are visible, and no log was truncated or deleted in between.

    Attributes:
        journal_data: The journal of a commit that is not visible yet; None if there is none.
        partitions: The partitions that this commit changes: readers see them as they were before.
    """

    last_commit: CommitEntry | None = None
    journal_data: bytes | None = field(default=None, repr=False)
    partitions: Mapping[tuple[str, int], JournalledPartition] = field(
        default_factory=dict, compare=False, repr=False
    )
    truncations_bytes: int = 0

    def is_hidden(self, topic: str, partition: int) -> bool:
        """Return True if a partition does not exist for readers yet, though its directory may exist."""
        journalled = self.partitions.get((topic, partition))
        return journalled is not None and journalled.is_new


NO_COMMITS: Final = VisibleCommits()


def read_visible_commits(
    filesystem: ReadableFileSystem, root: str, before: VisibleCommits = NO_COMMITS
) -> VisibleCommits:
    """Read which commits of a log directory are visible. A journal unchanged since ``before`` is not parsed again.

    Raises:
        CorruptCheckpointError: The journal, or the list of commits, is damaged.
        UnreadableError: This user may not read them.
    """
    # In this order: a commit that begins after the look for its journal will show in the list of commits.
    data = read_journal_bytes(filesystem, root)
    last_commit = read_last_commit(filesystem, root)
    size_bytes = truncations_bytes(filesystem, root)
    if data is None:
        return VisibleCommits(last_commit, truncations_bytes=size_bytes)
    if (data, last_commit) == (before.journal_data, before.last_commit):
        return (
            before
            if size_bytes == before.truncations_bytes
            else replace(before, truncations_bytes=size_bytes)
        )
    journal = parse_own_journal(data, os.path.join(root, COMMIT_JOURNAL))
    if last_commit is not None and last_commit.job_id == journal.job_id:
        return VisibleCommits(last_commit, truncations_bytes=size_bytes)
    partitions = {each.topic_partition: each for each in journal.partitions}
    return VisibleCommits(last_commit, data, partitions, size_bytes)


class CommitMonitor:
    """Detects whether a commit began or became visible, or a log was truncated, during a read of log directories.

    A read may begin with an old visibility, or with none: if it is the same afterwards, then it did not
    change during the read, because commits and truncations are only ever added.

    Attributes:
        known: The visibility of log directories that is known, by path.
    """

    def __init__(
        self, filesystem: ReadableFileSystem, known: Mapping[str, VisibleCommits] | None = None
    ) -> None:
        self.known = dict(known or {})
        self._filesystem = filesystem

    def visibility_of(self, root: str) -> VisibleCommits:
        """Return what is visible in a log directory for this read: if that is not known, no commit."""
        return self.known.setdefault(root, NO_COMMITS)

    def observe(self, root: str) -> bool:
        """Read the visibility of a log directory that is new to this monitor. Return True if it is."""
        if root in self.known:
            return False
        self.known[root] = read_visible_commits(self._filesystem, root)
        return True

    def has_changed(self) -> bool:
        """Return True if visibility changed during this read. The next read begins with the present one."""
        has_changed = False
        for root, before in self.known.items():
            now = self.known[root] = read_visible_commits(self._filesystem, root, before)
            has_changed |= now != before
        return has_changed

    def is_truncating(self) -> bool:
        """Return True if a truncation in these directories is under way, or was interrupted."""
        return any(is_truncation_under_way(self._filesystem, root) for root in self.known)
