"""Committing what the tasks of a job have staged: all of its rows are visible at one moment, or none ever.

    with the lock: finish what is unfinished → root clean → prepare → interlock → journal → finish_commit

Up to the journal nothing was done, and an error leaves the root as it was. Behind it the job will be
completed, by this process or by whoever writes next: `publishing.replay` does it, and knows no
difference.
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from storage_core.checkpoint import META_PROPERTIES
from storage_core.checkpoint.commit_journal import (
    COMMIT_IN_PROGRESS,
    COMMIT_JOURNAL,
    read_commit_journal,
    write_commit_journal,
)
from storage_core.checkpoint.commits_file import read_commits_file, replace_commits_file, shortened_commits
from storage_core.commit.held_root import held_root
from storage_core.commit.prepare import prepare
from storage_core.commit.probe import probe_target
from storage_core.commit.sweep import sweep
from storage_core.commit.targets import require_root
from storage_core.errors import CommitInDoubtError, SegmentLogError
from storage_core.log.clock import SystemClock
from storage_core.publishing.replay import delete_staged_files, finish_commit
from storage_core.publishing.unflushed import note_unflushed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from storage_core.checkpoint.commit_journal import CommitJournal
    from storage_core.checkpoint.commits_file import CommitsFile
    from storage_core.commit.held_root import HeldRoot
    from storage_core.commit.manifest import StagedManifest
    from storage_core.commit.settings import JobSettings
    from storage_core.filesystem import FileSystem
    from storage_core.log.clock import Clock

__all__ = ["CommitJob", "CommitOutcome"]

_log = logging.getLogger(__name__)

# Beyond this size the commits file is shortened.
_LONG_COMMITS_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """How a commit ended.

    Attributes:
        generation: Counts the commits of the log directory.
        was_committed_before: Whether this job, or this txnVersion, was there already: then nothing was done.
    """

    generation: int
    was_committed_before: bool


class CommitJob:
    """The driver's side of a job: `begin`, then tasks stage, then `commit` or `abort`.

    Args:
        filesystem: Through which everything is read and written.
        root: The log directory.
        settings: The job.
        clock: What time it is.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        root: str | os.PathLike[str],
        settings: JobSettings,
        clock: Clock | None = None,
    ) -> None:
        self.settings = settings
        self.root = os.path.abspath(os.fspath(root))
        self._filesystem = filesystem
        self._clock = clock or SystemClock()

    def begin(self) -> bool:
        """Make sure, before a task starts, that the directory can be written to. It is made if it is missing.

        Returns:
            False if there is nothing to do: the job, or its txnVersion, is committed already.

        Raises:
            LogDirectoryLockedError: A broker, or another process, has it open for writing.
            LogDirectoryError: It is no log directory, or a broker's.
            RecoveryWouldDiscard: It was not closed cleanly, and recovery would drop whole batches.
            StorageError: The file system does not do what a commit needs.
        """
        with self._held(self._begin_wait_seconds()) as held:
            probe_target(self._filesystem, self.root, flush=self.settings.flush)
            require_root(self._filesystem, self.root)
            self._sweep(held.commits)
            return not self._is_committed(held.commits)

    def commit(self, manifests: Sequence[StagedManifest]) -> CommitOutcome:
        """Make the rows visible that these manifests name.

        Raises:
            CommitInDoubtError: Something failed behind the journal: the job will be completed.
            SegmentLogError: Something failed before: nothing was changed, and `abort` removes what was staged.
        """
        with self._held(self.settings.lock_wait_seconds) as held:
            commits = held.commits
            if self._is_committed(commits):
                delete_staged_files(self._filesystem, self.root, self.settings.job_id)
                _log.info("Job %s was committed before: nothing was done.", self.settings.job_id)
                return CommitOutcome(commits.generation, was_committed_before=True)
            if commits.size_bytes > _LONG_COMMITS_BYTES:
                replace_commits_file(self._filesystem, self.root, shortened_commits(commits.entries))
            journal = prepare(
                self._filesystem,
                self.root,
                self.settings,
                manifests,
                held.directories,
                generation=commits.generation + 1,
                time_ms=self._clock.now_ms(),
            )
            self._journal(journal)
            self._finish(journal)
            return CommitOutcome(journal.generation, was_committed_before=False)

    def abort(self) -> bool:
        """Remove what the job has staged. Behind its journal, nothing is done.

        Returns:
            False if the job is in doubt and will be completed, or is committed already.
        """
        job_id = self.settings.job_id
        try:
            journal = read_commit_journal(self._filesystem, self.root)
            commits = read_commits_file(self._filesystem, self.root)
        except FileNotFoundError:
            return True
        if journal is not None and journal.job_id == job_id and not commits.has_job(job_id):
            _log.warning(
                "Job %s is in doubt: it will be completed by whoever writes to %s next.", job_id, self.root
            )
            return False
        if self._filesystem.status(self.root) is not None:
            delete_staged_files(self._filesystem, self.root, job_id)
        return not commits.has_job(job_id)

    def _held(self, wait_seconds: float) -> AbstractContextManager[HeldRoot]:
        return held_root(self._filesystem, self.root, self.settings, self._clock, wait_seconds)

    def _begin_wait_seconds(self) -> float:
        """Another job lets go of the lock soon. A broker does not, and tasks need not start if it has it."""
        is_brokers = self._filesystem.status(os.path.join(self.root, META_PROPERTIES)) is not None
        return 0.0 if is_brokers else self.settings.lock_wait_seconds

    def _is_committed(self, commits: CommitsFile) -> bool:
        settings = self.settings
        if commits.has_job(settings.job_id):
            return True
        if settings.txn_app_id is None or settings.txn_version is None:
            return False
        last = commits.last_txn_version(settings.txn_app_id)
        return last is not None and settings.txn_version <= last

    def _journal(self, journal: CommitJournal) -> None:
        """Make the interlock, and write the journal. If that fails for sure, the root is as it was."""
        filesystem, root = self._filesystem, self.root
        interlock = os.path.join(root, COMMIT_IN_PROGRESS)
        filesystem.make_directory(interlock)
        try:
            if journal.is_flushed:
                filesystem.flush_directory(root)
            write_commit_journal(filesystem, root, journal)
        except SegmentLogError as error:
            if self._has_journal():
                raise self._in_doubt(error) from error
            # If this fails, too, whoever writes next does it.
            with contextlib.suppress(SegmentLogError):
                finish_commit(filesystem, root, self.settings.config_of, keeps_note=True)
            raise

    def _finish(self, journal: CommitJournal) -> None:
        settings = self.settings
        try:
            finish_commit(
                self._filesystem,
                self.root,
                settings.config_of,
                threads=settings.threads,
                keeps_note=True,
                journal=journal,
            )
            if not settings.flush:
                note_unflushed(self._filesystem, self.root, journal.generation)
        except SegmentLogError as error:
            if not self._is_visible():
                raise self._in_doubt(error) from error
            _log.warning(
                "Job %s is committed, but not all that led there could be removed: %s Whoever writes to %s next does it; "
                "a broker does not start before that.",
                settings.job_id,
                error,
                self.root,
            )

    def _is_visible(self) -> bool:
        try:
            return read_commits_file(self._filesystem, self.root).has_job(self.settings.job_id)
        except SegmentLogError:
            return False

    def _has_journal(self) -> bool:
        try:
            return self._filesystem.status(os.path.join(self.root, COMMIT_JOURNAL)) is not None
        except SegmentLogError:
            return True

    def _in_doubt(self, error: SegmentLogError) -> CommitInDoubtError:
        if self.settings.txn_app_id is None:
            advice = (
                "open it with LogDirectory.open. Do not write these rows again: they would be there twice"
            )
        else:
            advice = (
                "repeat the write with the same txnAppId and txnVersion, or open it with LogDirectory.open"
            )
        return CommitInDoubtError(
            f"Job {self.settings.job_id} is in doubt, and will be completed: {error} Its journal is written. Whoever "
            f"writes to the log directory next completes it: free what is missing, and {advice}.",
            path=self.root,
        )

    def _sweep(self, commits: CommitsFile) -> None:
        sweep(
            self._filesystem,
            self.root,
            committed_jobs=frozenset(entry.job_id for entry in commits.entries),
            running_job=self.settings.job_id,
            now_ms=self._clock.now_ms(),
        )
