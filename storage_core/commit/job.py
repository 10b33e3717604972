"""Holding a log directory for a job: locked, with nothing unfinished, and nothing that has to be recovered.

Trying out, before a job begins, what its commit will ask of the file system.

Deleting what jobs have staged and left: of jobs that were committed, and what nobody has touched for a week.

Committing what the tasks of a job have staged: all of its rows are visible at one moment, or none ever.

    with the lock: finish what is unfinished → root clean → prepare → interlock → journal → finish_commit

Up to the journal nothing was done, and an error leaves the root as it was. Behind it the job will be
completed, by this process or by whoever writes next: `commit_replay.replay` does it, and knows no
difference.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from storage_core.checkpoint import META_PROPERTIES, has_clean_shutdown_file
from storage_core.commit.prepare import prepare, require_root
from storage_core.commit_files.commits_file import (
    OWN_PREFIX,
    CommitsFile,
    read_commits_file,
    replace_commits_file,
    shortened_commits,
)
from storage_core.commit_files.journal import (
    COMMIT_IN_PROGRESS,
    COMMIT_JOURNAL,
    read_commit_journal,
    write_commit_journal,
)
from storage_core.commit_files.stage_names import job_of
from storage_core.commit_replay.replay import (
    delete_staged_files,
    finish_commit,
    is_as_left_unflushed,
    note_unflushed,
)
from storage_core.directory.log_directory_files import LOCK_FILE
from storage_core.errors import (
    CommitInDoubtError,
    LogDirectoryError,
    LogDirectoryLockedError,
    SegmentLogError,
    StorageError,
)
from storage_core.log.background import SystemClock
from storage_core.log.log_directory import LogDirectory
from storage_core.log.log_root import make_root, partitions_to_load

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from contextlib import AbstractContextManager

    from storage_core.commit.manifest import JobSettings, StagedManifest
    from storage_core.commit_files.journal import CommitJournal
    from storage_core.directory import PartitionDirectory
    from storage_core.filesystem import FileLock, FileSystem
    from storage_core.log.background import Clock

__all__ = ["CommitJob", "CommitOutcome", "HeldRoot", "held_root", "probe_target", "sweep"]


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


_PROBE: Final = f"{OWN_PREFIX}probe"
_CONTENT: Final = b"segmentlog"
_PATCHED: Final = b"segment***"


def probe_target(filesystem: FileSystem, root: str, *, flush: bool = True) -> None:
    """Write, patch in place, flush, link, rename and read back a small file in the root, which is locked.

    A job that does not flush tries no flush.

    Raises:
        StorageError: One of these failed; the message says which.
    """
    path = os.path.join(root, _PROBE)
    linked, renamed = path + ".link", path + ".renamed"

    def write() -> None:
        with filesystem.open_for_writing(path, create=True) as file:
            file.truncate(0)
            file.write_at([_CONTENT], 0)
            if flush:
                file.flush()

    def patch() -> None:
        with filesystem.open_for_writing(path) as file:
            file.write_at([_PATCHED[-3:]], len(_PATCHED) - 3)
            if flush:
                file.flush()

    def read_back() -> None:
        if filesystem.read_file(renamed, len(_CONTENT)) != _PATCHED:
            raise StorageError("Other bytes were read than were written.", path=renamed)

    steps: tuple[tuple[str, Callable[[], object]], ...] = (
        ("delete a file", lambda: [filesystem.delete(each) for each in (path, linked, renamed)]),
        ("write and flush a file", write),
        ("change it in place", patch),
        ("link it", lambda: filesystem.link(path, linked)),
        ("rename it", lambda: filesystem.rename(linked, renamed)),
        ("read it back", read_back),
        ("delete it", lambda: [filesystem.delete(each) for each in (path, renamed)]),
        *([("flush the directory", lambda: filesystem.flush_directory(root))] if flush else []),
    )
    for name, step in steps:
        try:
            step()
        except SegmentLogError as error:
            raise StorageError(
                f"Expected a file system on which a commit can {name}, found one that refused: {error} Write to "
                "another one, a local or shared POSIX file system.",
                path=root,
            ) from error


_WEEK_MS: Final = 7 * 24 * 60 * 60 * 1000


def sweep(
    filesystem: FileSystem, root: str, *, committed_jobs: Collection[str], running_job: str, now_ms: int
) -> int:
    """Delete staged files that no job will commit any more; return how many. The root is locked, without a journal.

    Args:
        filesystem: Where to delete.
        root: The log directory.
        committed_jobs: The jobs whose rows are visible: a task of theirs may have been late.
        running_job: The job that is at work: its files are left alone.
        now_ms: The time.
    """
    count = 0
    for entry in filesystem.list_directory(root):
        job_id = job_of(entry.name) if entry.is_regular_file else None
        if job_id is None or job_id == running_job:
            continue
        path = os.path.join(root, entry.name)
        if job_id not in committed_jobs:
            status = filesystem.status(path)
            if status is None or now_ms - status.modified_ms < _WEEK_MS:
                continue
        count += filesystem.delete(path)
    return count


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
