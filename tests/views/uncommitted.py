"""A job that has begun to change a log directory, and has not committed yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage_core.commit_files.commits_file import CommitEntry
from storage_core.commit_files.journal import CommitJournal, JournalledPartition, write_commit_journal
from storage_core.filesystem import FileSystem

if TYPE_CHECKING:
    from pathlib import Path


def begin_commit(
    root: Path, ends_before: dict[tuple[str, int], int], *, new: tuple[tuple[str, int], ...] = ()
) -> None:
    """Write the journal of a job that appends to partitions, whose log ends are given, and creates new ones."""
    partitions = [
        _partition(*name, is_new=is_new, end_before=end)
        for name, end, is_new in (
            *((name, end, False) for name, end in ends_before.items()),
            *((name, 0, True) for name in new),
        )
    ]
    journal = CommitJournal(CommitEntry(1, "0" * 32, 0), b"", (), tuple(partitions))
    write_commit_journal(FileSystem(), str(root), journal)


def _partition(topic: str, partition: int, *, is_new: bool, end_before: int) -> JournalledPartition:
    return JournalledPartition(
        topic=topic,
        partition=partition,
        is_new=is_new,
        topic_id=None,
        leader_epoch=0,
        log_start_before=0,
        log_start_after=0,
        log_end_before=end_before,
        log_end_after=end_before + 100,
        epochs_after=(),
        snapshot_from=None,
        operations=(),
    )
