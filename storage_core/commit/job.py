"""The driver's side of a job: locks the log directory, and commits what the tasks have staged, all of it or nothing.

    lock: complete an interrupted commit → root is clean → prepare → interlock → journal → finish_commit

Until the journal is written, nothing has changed and an error leaves the root as it was. After that, this process or
the next writer completes the job: `commit_replay.replay` does it in either case.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from storage_core.checkpoint import (
    CLEAN_SHUTDOWN_FILE,
    LOG_START_OFFSET_CHECKPOINT,
    META_PROPERTIES,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    has_clean_shutdown_file,
)
from storage_core.commit.job_spec import JobContext, JobSpec
from storage_core.commit.manifest import read_manifest
from storage_core.commit.prepare import prepare, require_root
from storage_core.commit.repeated import RowsDigest, check_repeated, is_version_committed
from storage_core.commit_files.commits_file import (
    COMMITS_FILE,
    LONGEST_LINE_BYTES,
    MAX_COMMITS_BYTES,
    OWN_PREFIX,
    CommitsFile,
    read_commits_file,
    shorten_commits_file,
)
from storage_core.commit_files.journal import (
    COMMIT_IN_PROGRESS,
    COMMIT_JOURNAL,
    CommitJournal,
    read_commit_journal,
    write_commit_journal,
)
from storage_core.commit_files.stage_names import is_of_same_query, job_of
from storage_core.commit_replay.replay import (
    delete_staged_files,
    finish_commit,
    is_as_left_unflushed,
    note_unflushed,
)
from storage_core.commit_replay.staged_batches import StagedFiles
from storage_core.directory.log_directory_files import LOCK_FILE
from storage_core.errors import (
    CommitInDoubtError,
    LogDirectoryError,
    LogDirectoryLockedError,
    OptionError,
    SegmentLogError,
    StorageError,
)
from storage_core.log.clock import Clock, SystemClock
from storage_core.log.log_directory import LogDirectory
from storage_core.log.log_root import make_root, partitions_to_load, remove_temporary_files
from storage_core.options.paths import path_to_write

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from storage_core.commit.manifest import StagedManifest
    from storage_core.directory import PartitionDirectory
    from storage_core.filesystem import FileLock, FileSystem


_log = logging.getLogger(__name__)
_LOCK_POLL_SECONDS: Final = 0.05
# Each attempt after the first means that another process left the root unclean in the meantime.
_MAX_ATTEMPTS: Final = 10
_PROBE: Final = f"{OWN_PREFIX}probe"
_PROBE_LINK: Final = f"{_PROBE}.link"
_PROBE_RENAMED: Final = f"{_PROBE}.renamed"
_FILES_OF_AN_EMPTY_ROOT: Final = frozenset(
    {
        CLEAN_SHUTDOWN_FILE,
        LOCK_FILE,
        LOG_START_OFFSET_CHECKPOINT,
        RECOVERY_POINT_CHECKPOINT,
        REPLICATION_OFFSET_CHECKPOINT,
        _PROBE,
        _PROBE_LINK,
        _PROBE_RENAMED,
    }
)
_LOST_AND_FOUND: Final = "lost+found"
_CONTENT: Final = b"segmentlog"
_PATCHED: Final = b"segment***"
_WEEK_MS: Final = 7 * 24 * 60 * 60 * 1000
# So many last lines are shortened. Each commit reads them several times, at 7 µs a line.
_MANY_COMMITS: Final = 512


@dataclass(frozen=True, slots=True)
class LockedLogDir:
    """The commits and the partitions of a log directory while this process holds its lock."""

    commits: CommitsFile
    directories: list[PartitionDirectory]


@contextlib.contextmanager
def locked_log_dir(job: JobContext, clock: Clock, wait_seconds: float) -> Iterator[LockedLogDir]:
    """Lock a log directory, after creating a missing one and recovering one that was not closed cleanly.

    Raises what `CommitJob.begin` raises.
    """
    filesystem, root, spec = job.filesystem, job.root, job.spec
    listed = partial(partitions_to_load, filesystem, root, broker_directory=spec.broker_directory)
    make_root(filesystem, root)
    for _ in range(_MAX_ATTEMPTS):
        if filesystem.status(job.path(LOCK_FILE)) is None:
            # Refuse other directories before locking creates a file in them.
            listed()
        lock = _lock(job, wait_seconds)
        try:
            directories = listed()
            if finish_commit(filesystem, root, spec.config_of, threads=spec.threads, keeps_note=True):
                directories = listed()
            commits = _commits(job, clock)
            if _is_clean(job, commits):
                yield LockedLogDir(commits, directories)
                return
        finally:
            lock.release()
        with LogDirectory.open(
            root,
            config=spec.config,
            broker_directory=spec.broker_directory,
            filesystem=filesystem,
            clock=clock,
        ):
            _log.info("%s was new or was not closed cleanly, so its logs were loaded.", root)
    raise LogDirectoryError(
        f"The log directory was unclean {_MAX_ATTEMPTS} times in a row. Stop the other programs that write to it.",
        path=root,
    )


def _lock(job: JobContext, wait_seconds: float) -> FileLock:
    end = time.monotonic() + wait_seconds
    while True:
        try:
            return job.filesystem.lock(job.path(LOCK_FILE))
        except LogDirectoryLockedError:
            if time.monotonic() >= end:
                raise
        time.sleep(_LOCK_POLL_SECONDS)


def _commits(job: JobContext, clock: Clock) -> CommitsFile:
    """Read the last commits, and the last one of the job's application; shorten a file with many lines."""
    filesystem, root, spec = job.filesystem, job.root, job.spec
    commits = read_commits_file(filesystem, root, spec.txn_app_id)
    if len(commits.entries) < _MANY_COMMITS and not _is_one_too_many(commits, spec):
        return commits
    shorten_commits_file(filesystem, root, clock.now_ms() - spec.txn_retention_ms)
    return read_commits_file(filesystem, root, spec.txn_app_id)


def _is_one_too_many(commits: CommitsFile, spec: JobSpec) -> bool:
    """Return True if the file has no room for a new application. Other jobs do not make it grow for good."""
    app_id = spec.txn_app_id
    is_full = commits.size_bytes + LONGEST_LINE_BYTES > MAX_COMMITS_BYTES
    return is_full and app_id is not None and commits.last_of(app_id) is None


def _is_clean(job: JobContext, commits: CommitsFile) -> bool:
    """Return True if no log must be recovered before this job."""
    if has_clean_shutdown_file(job.filesystem, job.root):
        return True
    # A job that does not flush may follow another one, unless the machine was rebooted in between.
    return not job.spec.flush and is_as_left_unflushed(job.filesystem, job.root, commits.generation)


def probe_filesystem(filesystem: FileSystem, root: str, *, flush: bool = True) -> None:
    """Try what a commit needs of the file system: write, change in place, flush, link, rename and read a small file.

    The root is locked. A job that does not flush does not try to flush.

    Raises:
        StorageError: A step failed; the message says which.
    """
    path, linked, renamed = (os.path.join(root, name) for name in (_PROBE, _PROBE_LINK, _PROBE_RENAMED))
    with _probing(root, "delete a file"):
        for each in (path, linked, renamed):
            filesystem.delete(each)
    with _probing(root, "write and flush a file"), filesystem.open_for_writing(path, create=True) as file:
        file.truncate(0)
        file.write_at([_CONTENT], 0)
        if flush:
            file.flush()
    with _probing(root, "change it in place"), filesystem.open_for_writing(path) as file:
        file.write_at([_PATCHED[-3:]], len(_PATCHED) - 3)
        if flush:
            file.flush()
    with _probing(root, "link it"):
        filesystem.link(path, linked)
    with _probing(root, "rename it"):
        filesystem.rename(linked, renamed)
    with _probing(root, "read it back"):
        if filesystem.read_file(renamed, len(_CONTENT)) != _PATCHED:
            raise StorageError("The bytes read are not those written.", path=renamed)
    with _probing(root, "delete it"):
        filesystem.delete(path)
        filesystem.delete(renamed)
    if flush:
        with _probing(root, "flush the directory"):
            filesystem.flush_directory(root)


@contextlib.contextmanager
def _probing(root: str, step: str) -> Iterator[None]:
    try:
        yield
    except SegmentLogError as error:
        raise StorageError(
            f"Expected a file system on which a commit can {step}, found one that refused: {error} Write to another "
            "local or shared POSIX file system.",
            path=root,
        ) from error


def remove_orphan_files(job: JobContext, committed_jobs: Collection[str], now_ms: int) -> int:
    """Delete staged files that no job will commit, and return their number. The root is locked and has no journal.

    These are files of committed jobs, whose late tasks may have staged some after the commit, and files of other jobs
    than this one that were not changed for a week.
    """
    count = 0
    for entry in job.filesystem.list_directory(job.root):
        job_id = job_of(entry.name) if entry.is_regular_file else None
        if job_id is None or job_id == job.spec.job_id:
            continue
        path = job.path(entry.name)
        if job_id not in committed_jobs:
            status = job.filesystem.status(path)
            if status is None or now_ms - status.modified_ms < _WEEK_MS:
                continue
        count += job.filesystem.delete(path)
    return count


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """The result of a commit.

    Attributes:
        generation: Number of the last commit in the log directory.
        was_committed_before: Whether the job, or its txnVersion, had been committed before, so that nothing was done.
    """

    generation: int
    was_committed_before: bool


class CommitJob:
    """The driver's side of a job: `begin`, then the tasks stage rows, then `commit` or `abort`.

    Args:
        clock: The system's unless given.

    Attributes:
        partitions: The partitions that the log directory had when the job began.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        root: str | os.PathLike[str],
        spec: JobSpec,
        clock: Clock | None = None,
    ) -> None:
        self.spec = spec
        self.root = os.path.abspath(path_to_write(os.fspath(root)))
        self._filesystem = filesystem
        self._job = JobContext(filesystem, self.root, spec)
        self._clock = clock or SystemClock()
        self.partitions: Sequence[PartitionDirectory] = ()

    def begin(self) -> bool:
        """Create the log directory if it is missing, and check before any task starts that it can be written to.

        Returns:
            False if there is nothing to do, because the job or its txnVersion is committed already.

        Raises:
            LogDirectoryLockedError: A broker or another process has it open for writing.
            LogDirectoryError: It is not a log directory, or belongs to a broker.
            RecoveryWouldDiscardError: It was not closed cleanly, and recovery would drop complete batches.
            StorageError: The file system lacks something that a commit needs.
        """
        # Another job releases the lock soon, but a broker does not.
        is_brokers = self._filesystem.status(self._job.path(META_PROPERTIES)) is not None
        wait_seconds = 0.0 if is_brokers else self.spec.lock_wait_seconds
        with locked_log_dir(self._job, self._clock, wait_seconds) as locked:
            self.partitions = locked.directories
            probe_filesystem(self._filesystem, self.root, flush=self.spec.flush)
            require_root(self._filesystem, self.root)
            committed_jobs = frozenset(entry.job_id for entry in locked.commits.entries)
            remove_temporary_files(self._filesystem, self.root)
            remove_orphan_files(self._job, committed_jobs, self._clock.now_ms())
            return not self._is_committed(locked.commits)

    def commit(self, manifests: Sequence[StagedManifest], rows: RowsDigest | None = None) -> CommitOutcome:
        """Make the rows in these manifests visible.

        Args:
            manifests: What the tasks have staged.
            rows: What identifies the rows of the job, if its tasks have computed it.

        Raises:
            OptionError: The last micro-batch of a stream is repeated with other rows, or an earlier one.
            CommitInDoubtError: An error after the journal was written: the next writer will complete the job.
            SegmentLogError: An error before that: nothing has changed, and `abort` removes the staged files.
        """
        with (
            locked_log_dir(self._job, self._clock, self.spec.lock_wait_seconds) as locked,
            contextlib.closing(StagedFiles(self._filesystem, self.root)) as files,
        ):
            commits = locked.commits
            if self._is_committed(commits):
                self._check_repeated(locked, manifests, rows)
                delete_staged_files(self._filesystem, self.root, self.spec.job_id)
                return CommitOutcome(commits.generation, was_committed_before=True)
            self._require_room(commits)
            journal = prepare(
                self._job,
                manifests,
                locked.directories,
                files,
                generation=commits.generation + 1,
                time_ms=self._clock.now_ms(),
                rows=rows,
            )
            self._journal(journal)
            self._finish(journal, files)
            return CommitOutcome(journal.entry.generation, was_committed_before=False)

    def remove_other_attempts(self) -> int:
        """Delete what stopped runs of a streaming query have staged, once its last batch is committed; return the file count.

        No other run of the query is under way, and what an earlier one has left in doubt is completed by a commit.
        """
        return sum(
            self._filesystem.delete(self._job.path(entry.name))
            for entry in self._filesystem.list_directory(self.root)
            if entry.is_regular_file
            and (job_id := job_of(entry.name)) is not None
            and is_of_same_query(job_id, self.spec.job_id)
        )

    def abort(self) -> bool:
        """Remove the staged files of the job, unless its journal is written.

        Returns:
            False if the job is in doubt and will be completed, or is committed already.
        """
        job_id = self.spec.job_id
        try:
            journal = read_commit_journal(self._filesystem, self.root)
            commits = read_commits_file(self._filesystem, self.root)
        except FileNotFoundError:
            return True
        if journal is not None and journal.job_id == job_id and not commits.has_job(job_id):
            _log.warning(
                "Job %s is in doubt: the next process to write to %s will complete it.", job_id, self.root
            )
            return False
        if self._filesystem.status(self.root) is not None:
            delete_staged_files(self._filesystem, self.root, job_id)
        return not commits.has_job(job_id)

    def is_root_empty(self) -> bool:
        """Return True if the log directory does not exist, or holds nothing but what a new volume holds."""
        status = self._filesystem.status(self.root, follow_symlinks=True)
        return status is None or (status.is_directory and not self._names_in_root())

    def empty_new_root(self) -> None:
        """Delete what `begin` created in a new log directory, unless another job uses it."""
        lock_path = self._job.path(LOCK_FILE)
        with contextlib.suppress(SegmentLogError), self._filesystem.lock(lock_path):
            names = self._names_in_root()
            if names <= _FILES_OF_AN_EMPTY_ROOT:
                for name in sorted(names - {LOCK_FILE}):
                    self._filesystem.delete(self._job.path(name))
                # Last, so that no other process can lock a directory that is half emptied.
                self._filesystem.delete(lock_path)

    def _names_in_root(self) -> set[str]:
        entries = self._filesystem.list_directory(self.root)
        return {entry.name for entry in entries if not (entry.is_directory and entry.name == _LOST_AND_FOUND)}

    def _require_room(self, commits: CommitsFile) -> None:
        if _is_one_too_many(commits, self.spec):
            raise OptionError(
                f"Expected room for another txnAppId in a list of commits of at most {MAX_COMMITS_BYTES} bytes, found "
                f"{commits.size_bytes} bytes of applications that have committed lately. Nothing was written. Use one "
                "txnAppId for all jobs of an application and count txnVersion up; or shorten txnRetention.",
                path=self._job.path(COMMITS_FILE),
            )

    def _is_committed(self, commits: CommitsFile) -> bool:
        return commits.has_job(self.spec.job_id) or is_version_committed(commits, self.spec)

    def _check_repeated(
        self, locked: LockedLogDir, manifests: Sequence[StagedManifest], rows: RowsDigest | None
    ) -> None:
        spec, commits = self.spec, locked.commits
        if commits.has_job(spec.job_id):
            _log.info("Job %s was committed before: nothing was done.", spec.job_id)
            return
        what = (
            f"txnVersion {spec.txn_version} of txnAppId {spec.txn_app_id} is committed in {self.root} already"
        )
        notice = check_repeated(self._job, commits, locked.directories, rows or self._staged_rows(manifests))
        if notice is None:
            _log.info("%s: nothing was written.", what)
        else:
            _log.warning(
                "%s, so nothing was written: %s. To write it all the same, give it a higher version, or forget those of "
                "this application first, with LogDirectory.forget_versions.",
                what,
                notice,
            )

    def _staged_rows(self, manifests: Sequence[StagedManifest]) -> RowsDigest:
        read = (read_manifest(self._filesystem, self.root, each) for each in manifests)
        return RowsDigest(sum(piece.record_count for each in read for piece in each.pieces), checksum=None)

    def _journal(self, journal: CommitJournal) -> None:
        """Create the interlock and write the journal. If no journal was written, the interlock is removed."""
        filesystem, root = self._filesystem, self.root
        filesystem.make_directory(self._job.path(COMMIT_IN_PROGRESS))
        try:
            if journal.is_flushed:
                filesystem.flush_directory(root)
            write_commit_journal(filesystem, root, journal)
        except SegmentLogError as error:
            if self._has_journal():
                raise self._in_doubt(error) from error
            # If this fails, too, the next writer does it.
            with contextlib.suppress(SegmentLogError):
                finish_commit(filesystem, root, self.spec.config_of, keeps_note=True)
            raise

    def _finish(self, journal: CommitJournal, files: StagedFiles) -> None:
        spec = self.spec
        try:
            finish_commit(
                self._filesystem,
                self.root,
                spec.config_of,
                threads=spec.threads,
                keeps_note=True,
                fresh=(journal, files),
            )
            if not spec.flush:
                note_unflushed(self._filesystem, self.root, journal.entry.generation)
        except SegmentLogError as error:
            if not self._is_visible():
                raise self._in_doubt(error) from error
            _log.warning(
                "Job %s is committed, but its journal and staged files could not all be removed: %s The next process to "
                "write to %s removes them; until then, no broker starts.",
                spec.job_id,
                error,
                self.root,
            )

    def _is_visible(self) -> bool:
        try:
            return read_commits_file(self._filesystem, self.root).has_job(self.spec.job_id)
        except SegmentLogError:
            return False

    def _has_journal(self) -> bool:
        try:
            return self._filesystem.status(self._job.path(COMMIT_JOURNAL)) is not None
        except SegmentLogError:
            return True

    def _in_doubt(self, error: SegmentLogError) -> CommitInDoubtError:
        advice = "open it with LogDirectory.open. Do not write these rows again, which would duplicate them"
        if self.spec.txn_app_id is not None:
            advice = (
                "repeat the write with the same txnAppId and txnVersion, or open it with LogDirectory.open"
            )
        return CommitInDoubtError(
            f"Job {self.spec.job_id} is in doubt, and will be completed: {error} Its journal is written, so the "
            f"next process to write to the log directory completes it. Remove the cause of the error, and {advice}.",
            path=self.root,
        )
