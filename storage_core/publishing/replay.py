"""Finishing, or undoing, a commit: the one that was just journalled, or one that a crash has left.

    interlock, no journal     nothing was begun           → the interlock goes
    journal, not committed    anything may have been done → all is done, as if nothing had been
    journal, committed        the rows are visible        → what is left over goes
    journal, no interlock     somebody took it away       → reported; nothing is changed
    journal, not flushed, and a power cut, or somebody    → the journal goes; recovery finds what is whole
    not all it names is whole has written since

The interlock is made before the journal and removed after it, so no broker has been at work while
there was a journal. Nothing here depends on how far a crash let it come.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

from storage_core.checkpoint import CLEAN_SHUTDOWN_FILE, delete_clean_shutdown_file
from storage_core.checkpoint._small_file import TEMPORARY_SUFFIX
from storage_core.checkpoint.commit_journal import COMMIT_IN_PROGRESS, COMMIT_JOURNAL, read_commit_journal
from storage_core.checkpoint.commits_file import (
    CommitEntry,
    append_commit,
    flush_commits,
    read_commits_file,
)
from storage_core.checkpoint.stage_names import job_prefix
from storage_core.errors import LogDirectoryError
from storage_core.publishing.parallel import in_parallel
from storage_core.publishing.publish import flush_published, publish_partition
from storage_core.publishing.root_checkpoints import write_root_checkpoints
from storage_core.publishing.unflushed import forget_unflushed
from storage_core.publishing.whole import is_whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from storage_core.checkpoint.commit_journal import CommitJournal
    from storage_core.filesystem import FileSystem
    from storage_core.log_config import LogConfig

__all__ = ["DEFAULT_THREADS", "delete_staged_files", "finish_commit", "has_unfinished_commit"]

_log = logging.getLogger(__name__)

DEFAULT_THREADS: Final = 16
# Making files takes a local file system longer the more threads do it; flushes wait for the disk.
_WRITING_THREADS: Final = 2
# From so many partitions on, one call that writes all makes their flushes cheap.
_MANY_PARTITIONS: Final = 64


def has_unfinished_commit(filesystem: FileSystem, root: str) -> bool:
    """Whether a commit is at work in a log directory, or has left something to finish or to undo."""
    return any(
        filesystem.status(os.path.join(root, name)) is not None
        for name in (COMMIT_IN_PROGRESS, COMMIT_JOURNAL)
    )


def finish_commit(
    filesystem: FileSystem,
    root: str,
    config_of: Callable[[str], LogConfig],
    *,
    threads: int = DEFAULT_THREADS,
    keeps_note: bool = False,
    journal: CommitJournal | None = None,
) -> str | None:
    """Finish the commit that is journalled in a log directory, or undo one that was not. The caller holds its lock.

    Args:
        filesystem: Where to read and write.
        root: The log directory.
        config_of: The configuration of a topic, for the entries of its indexes.
        threads: How many partitions are worked on at a time.
        journal: The one that was written there just now, if the caller knows; otherwise it is read.
        keeps_note: Whether it stays noted that the last commit did not flush: for who writes no log otherwise.

    Returns:
        The id of the job that was finished; None if none was journalled.

    Raises:
        CorruptError: The journal is damaged, or the directory was changed since it was written.
        LogDirectoryError: The interlock was taken away while there was a journal.
        StorageError: The file system refused. It can be tried again.
    """
    if not keeps_note:
        forget_unflushed(filesystem, root)
    is_known_whole = journal is not None
    journal = journal or read_commit_journal(filesystem, root)
    has_interlock = filesystem.status(os.path.join(root, COMMIT_IN_PROGRESS)) is not None
    if journal is None:
        if has_interlock:
            filesystem.delete(os.path.join(root, COMMIT_JOURNAL + TEMPORARY_SUFFIX))
            # Whoever deleted the journal may have been killed before its flush: it must not come back alone.
            filesystem.flush_directory(root)
            _remove_interlock(filesystem, root)
        return None
    commits = read_commits_file(filesystem, root)
    is_committed = commits.has_job(journal.job_id)
    if not journal.is_flushed and not is_committed:
        # A power cut may have taken the interlock, too. Without it, a broker may have been at work.
        if not has_interlock or not (is_known_whole or is_whole(filesystem, root, journal)):
            _give_up(filesystem, root, journal, has_interlock=has_interlock)
            return None
    elif journal.is_flushed and not has_interlock:
        raise _without_interlock(root, journal)
    if is_committed:
        if journal.is_flushed:
            # Whoever wrote the line may have been killed before its flush: without it, staged files are needed.
            flush_commits(filesystem, root)
    else:
        _delete_marker(filesystem, root, journal)
        _publish(filesystem, root, journal, config_of, threads=threads)
        entry = CommitEntry(
            journal.generation, journal.job_id, journal.time_ms, journal.txn_app_id, journal.txn_version
        )
        append_commit(filesystem, root, entry, commits.size_bytes, flush=journal.is_flushed)
    _clear_away(filesystem, root, journal, has_interlock=has_interlock)
    return journal.job_id


def delete_staged_files(filesystem: FileSystem, root: str, job_id: str) -> int:
    """Delete what a job has staged; return how many files that were."""
    prefix = job_prefix(job_id)
    return sum(
        filesystem.delete(os.path.join(root, entry.name))
        for entry in filesystem.list_directory(root)
        if entry.is_regular_file and entry.name.startswith(prefix)
    )


def _without_interlock(root: str, journal: CommitJournal) -> LogDirectoryError:
    return LogDirectoryError(
        f"Expected the directory {COMMIT_IN_PROGRESS} beside {COMMIT_JOURNAL}, found none: somebody took it away "
        f"in the middle of the commit of job {journal.job_id}, and a broker may have been at work since. Nothing "
        "was changed. Compare the partitions that the journal names with it; delete it once they are as you want "
        "them.",
        path=root,
    )


def _publish(
    filesystem: FileSystem,
    root: str,
    journal: CommitJournal,
    config_of: Callable[[str], LogConfig],
    *,
    threads: int,
) -> None:
    written = in_parallel(
        lambda partition: publish_partition(
            filesystem, root, partition, config_of(partition.topic), is_flushed=journal.is_flushed
        ),
        journal.partitions,
        min(threads, _WRITING_THREADS),
    )
    if journal.is_flushed:
        if len(written) >= _MANY_PARTITIONS:
            filesystem.sync(root)
        in_parallel(lambda paths: flush_published(filesystem, paths), written, threads)
        filesystem.flush_directory(root)
    write_root_checkpoints(filesystem, root, journal)


def _give_up(filesystem: FileSystem, root: str, journal: CommitJournal, *, has_interlock: bool) -> None:
    """Forget a commit that flushed nothing and cannot be completed. Its marker was deleted for good first."""
    _log.warning(
        "The machine stopped soon after job %s, or in the middle of it, whose rows were not flushed: not all of them "
        "are there any more. What is whole of them stays in %s.",
        journal.job_id,
        root,
    )
    forget_unflushed(filesystem, root)
    delete_staged_files(filesystem, root, journal.job_id)
    filesystem.delete(os.path.join(root, COMMIT_JOURNAL))
    filesystem.flush_directory(root)
    if has_interlock:
        _remove_interlock(filesystem, root)


def _delete_marker(filesystem: FileSystem, root: str, journal: CommitJournal) -> None:
    """Before anything is changed, for good: without the marker, a power cut has the logs recovered."""
    if journal.is_flushed:
        delete_clean_shutdown_file(filesystem, root)
    elif filesystem.delete(os.path.join(root, CLEAN_SHUTDOWN_FILE)):
        filesystem.flush_directory(root)


def _clear_away(filesystem: FileSystem, root: str, journal: CommitJournal, *, has_interlock: bool) -> None:
    """The rows are visible: remove what led there, the interlock last."""
    delete_staged_files(filesystem, root, journal.job_id)
    if journal.is_flushed:
        forget_unflushed(filesystem, root)
        with filesystem.open_for_writing(os.path.join(root, CLEAN_SHUTDOWN_FILE), create=True) as file:
            file.truncate(0)
            file.write_at([journal.clean_shutdown], 0)
            file.flush()
        filesystem.flush_directory(root)
    filesystem.delete(os.path.join(root, COMMIT_JOURNAL))
    if journal.is_flushed:
        filesystem.flush_directory(root)
    if has_interlock:
        _remove_interlock(filesystem, root, flush=journal.is_flushed)


def _remove_interlock(filesystem: FileSystem, root: str, *, flush: bool = True) -> None:
    filesystem.delete_directory(os.path.join(root, COMMIT_IN_PROGRESS))
    if flush:
        filesystem.flush_directory(root)
