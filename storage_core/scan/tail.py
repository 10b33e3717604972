"""Monitor of growing logs: their ends are looked up again only where something has changed.

A look that finds nothing costs two statuses for each partition: of its active segment, which grows, and of its directory,
where new segments show. Under a broker's high watermark it costs one for each log directory, because the checkpoint of
high watermarks says which partitions have new records.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from storage_core.checkpoint import META_PROPERTIES, REPLICATION_OFFSET_CHECKPOINT
from storage_core.checkpoint.truncations_file import truncated_to
from storage_core.directory import LogDirectoryFiles, find_partitions
from storage_core.directory.consistent import LOOKS_BETWEEN_COMMITS
from storage_core.directory.log_directory_files import LOCK_FILE, OTHER_DIRECTORIES, is_log_directory
from storage_core.directory.remote_half import with_remote_halves
from storage_core.directory.visibility import CommitMonitor, read_visible_commits
from storage_core.errors import LogDirectoryError, SegmentLogError, first_of, visible
from storage_core.filesystem import absolute_path
from storage_core.filesystem.values import MissingError
from storage_core.options.paths import path_to_read
from storage_core.record.batch_header import MAX_OFFSET
from storage_core.scan.pruning import prune_partition
from storage_core.scan.resolve import ReadLimit, load_log, select_partitions, split_paths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from storage_core.directory import PartitionDirectory, PartitionLog
    from storage_core.filesystem import DirectoryEntry, FileStatus, FileVersion, ReadableFileSystem
    from storage_core.options import ReadOptions, StreamOptions
    from storage_core.options.bounds import TopicPartition
    from storage_core.options.predicate import Predicate


_log = logging.getLogger(__name__)
# What changed so recently may change again without another time: clocks of file systems tick slowly.
_SETTLED_MS: Final = 2_000
# A log directory without partitions is not watched, so that its first one shows only in a new search.
_SEARCH_AGAIN_S: Final = 30
# While nothing is found, the search goes on more often.
_SEARCH_FOR_THE_FIRST_S: Final = 1
# What looks like damage while a broker truncates or replaces files is gone a moment later.
_ATTEMPTS: Final = 3
_FAILING_S: Final = 1.0
_UNKNOWN: Final = None, False
# A broker renews its checkpoint every 5 seconds, unless replica.high.watermark.checkpoint.interval.ms is another number.
_QUIET_S: Final = 60
_SHOWN_LOGS: Final = 20


def is_settled(*statuses: FileStatus | None) -> bool:
    """Return True if a change after these statuses were taken will show in the next ones."""
    settled_ms = time.time() * 1000 - _SETTLED_MS
    return all(status is None or status.modified_ms < settled_ms for status in statuses)


def present_partitions(
    filesystem: ReadableFileSystem,
    options: ReadOptions,
    paths: Sequence[str],
    watch: CommitMonitor,
    *,
    is_repeated: bool = True,
) -> list[PartitionDirectory]:
    """Find the partitions of a read that exist now. Topics and partitions that are named may come and go.

    What is left out is logged unless the search is repeated.
    """
    found = find_partitions(
        filesystem, paths, follow_symlinks=options.follow_symlinks, monitor=watch, is_repeated=is_repeated
    )
    remote_paths = split_paths(filesystem, options.remote_storage or ())
    found = with_remote_halves(filesystem, found, remote_paths, is_repeated=is_repeated)
    return select_partitions(found, options, may_be_absent=True)


@dataclass(slots=True)
class TailedPartition:
    """A partition, and where it ended at the last look.

    Attributes:
        end_offset: What may be read ends here: at the log end, or at the high watermark, or at the last stable offset.
        volume_id: What tells its log directory from another one that is mounted at the same path.
        truncated_to: The lowest offset that the log was truncated to, or was created anew from, since this was last
            taken note of; None if it only grew.
        active_path: The segment that grows; empty before the first look.
        directory_status: The directory's status before the last look; None to look again in any case.
        topic_id: The topic's id, which a topic that is created anew does not have.
        moved_from_topic_id: The id of the topic that was read in another log directory, if the log here is of another
            topic of that name; None otherwise.
        truncations_bytes: How much of the log directory's list of truncations was taken into account.
        failures: How many looks failed, one after the other, since ``failing_since_s``.
    """

    directory: PartitionDirectory
    volume_id: tuple[int, FileVersion] | None
    end_offset: int = 0
    truncated_to: int | None = None
    active_path: str = ""
    active_status: FileStatus | None = None
    directory_status: FileStatus | None = None
    topic_id: str | None = None
    moved_from_topic_id: str | None = None
    truncations_bytes: int = 0
    notices: frozenset[str] = frozenset()
    failures: int = 0
    failing_since_s: float = 0.0


@dataclass(slots=True)
class _Root:
    """A log directory, and what its checkpoint of high watermarks said at the last look.

    Attributes:
        ends_at_high_watermark: Whether its logs are read to their high watermarks, or to their ends.
        checkpoint_status: The status of the checkpoint before it was read; None if there is none.
        changed_s: When it last changed, on the monotonic clock.
        last_full_check_s: When all partitions were last looked at because it did not change.
        left_out: The partitions that a warning named, because records after their high watermarks are left out.
    """

    path: str
    ends_at_high_watermark: bool
    partitions: list[TailedPartition] = field(default_factory=list)
    checkpoint_status: FileStatus | None = None
    changed_s: float = -float("inf")
    last_full_check_s: float = -float("inf")
    high_watermarks: Mapping[TopicPartition, int] = field(default_factory=dict)
    left_out: set[TopicPartition] = field(default_factory=set)


class PartitionMonitor:
    """Partitions that a read goes on with, and where they end.

    Args:
        filesystem: Where to look.
        options: What to read.
        condition: Partitions that it rules out are not looked at.

    Attributes:
        partitions: Those that exist.
        examined: The logs of those that may have changed before the last poll, as they were then.
        has_log_directory: Whether any of the paths leads to a log directory, with or without partitions.
    """

    def __init__(
        self, filesystem: ReadableFileSystem, options: StreamOptions, condition: Predicate | None = None
    ) -> None:
        self.partitions: dict[TopicPartition, TailedPartition] = {}
        self.examined: dict[TopicPartition, PartitionLog] = {}
        self.has_log_directory = False
        self._filesystem = filesystem
        self._options = options
        self._condition = condition
        self._watch = CommitMonitor(filesystem)
        self._roots: dict[str, _Root] = {}
        self._reported: dict[str, set[tuple[str, int]]] = {}
        # Those that an earlier poll found, as they were then.
        self._absent: dict[TopicPartition, TailedPartition] = {}
        # By path, the status of the directories whose entries are partitions or log directories, and whether a later
        # change will show in it.
        self._watched_directories: dict[str, tuple[FileStatus | None, bool]] = {}
        self._searched_s = -float("inf")
        self._next_listing_s = -float("inf")
        self._is_listed_anew = True
        # Of directories whose files are fixed until they are listed again.
        self._kept_files: dict[str, LogDirectoryFiles] = {}

    def poll(self) -> dict[TopicPartition, int]:
        """Look for new partitions and new records.

        All rows of a job that is committed meanwhile are within these ends, or none is.

        Returns:
            By partition, the offset that it ends at.

        Raises:
            SegmentLogError: A log cannot be read, in several polls one after the other.
        """
        self.examined = {}
        self._list_anew()
        for _ in range(LOOKS_BETWEEN_COMMITS):
            changed_roots = self._changed_roots()
            have_directories_changed = self._have_directories_changed()
            if changed_roots or have_directories_changed:
                self._search()
            if all(
                self._refresh(root, self._possibly_changed(root, is_changed=root.path in changed_roots))
                for root in self._roots.values()
            ):
                break
        else:
            _log.warning(
                "Jobs are committed faster than their partitions can be looked at. They are looked at again."
            )
        return {key: each.end_offset for key, each in self.partitions.items()}

    def _list_anew(self) -> None:
        """Forget listings that are old enough. Until then, nothing new in a store is seen."""
        now_s = time.monotonic()
        self._is_listed_anew = now_s >= self._next_listing_s
        if not self._is_listed_anew:
            return
        self._filesystem.forget_listings()
        self._kept_files.clear()
        interval_ms = self._options.limits.poll_interval_ms
        if interval_ms is None:
            read = self._options.read
            paths = (*read.paths, *map(path_to_read, read.remote_storage or ()), *self._roots)
            interval_ms = max(self._filesystem.traits_of(path).poll_interval_ms for path in paths)
        self._next_listing_s = now_s + interval_ms / 1000

    def limit_of(self, log: PartitionLog) -> ReadLimit:
        """Return what ``latest`` means for a log, by the checkpoint of its log directory."""
        ending_at = (
            "highWatermark" if self._roots[log.directory.root.path].ends_at_high_watermark else "logEnd"
        )
        return ReadLimit(log, ending_at, self._options.read.isolation_level)

    def log_of(self, key: TopicPartition) -> PartitionLog:
        """List a partition as it is now, with the commits that were visible at the last look."""
        directory = self.partitions[key].directory.anew(self._root_files)
        return load_log(self._filesystem, directory, self._options.read, is_followed=True)

    def _root_files(self, path: str) -> LogDirectoryFiles:
        """Return the present files of a log directory, with the commits that were visible at the last look."""
        root = self._kept_files.get(path) or LogDirectoryFiles(self._filesystem, path)
        root.visibility = self._watch.visibility_of(path)
        root.reported = self.reported_of(path)
        if self._is_fixed(path):
            self._kept_files[path] = root
        return root

    def was_truncated(self, key: TopicPartition, root: LogDirectoryFiles | None = None) -> bool:
        """Return True if the preferred copy of a log may have been truncated since the log's end was found.

        ``root``, if given, was looked at since then. If the list of truncations had not grown, no file is looked at now.
        """
        tailed = self.partitions[key]
        since_bytes = tailed.truncations_bytes
        if root is not None and root.visibility.truncations_bytes == since_bytes:
            return False
        return truncated_to(self._filesystem, tailed.directory.root.path, *key, since_bytes) is not None

    def reported_of(self, path: str) -> set[tuple[str, int]]:
        """Return the logs of a log directory that were warned of because they end too early, as a set to add to."""
        return self._reported.setdefault(path, set())

    def _changed_roots(self) -> set[str]:
        """Return the log directories in which commits or truncations became visible."""
        before = dict(self._watch.known)
        self._watch.has_changed()
        return {root for root, visibility in self._watch.known.items() if visibility != before.get(root)}

    def _have_directories_changed(self) -> bool:
        """Return True if a directory may have other entries than at the last poll."""
        have_changed = False
        for path, (before, was_settled) in self._watched_directories.items():
            status = self._directory_status(path)
            have_changed |= not was_settled or status != before
            self._watched_directories[path] = status, self._is_settled(path, status)
        pause_s = _SEARCH_AGAIN_S if self.partitions else _SEARCH_FOR_THE_FIRST_S
        return have_changed or time.monotonic() - self._searched_s > pause_s

    def _is_settled(self, path: str, status: FileStatus | None) -> bool:
        """Return True if a change after this status was taken will show in the next one."""
        return self._is_fixed(path) or is_settled(status)

    def _is_fixed(self, path: str) -> bool:
        return self._filesystem.traits_of(path).are_files_fixed

    def _directory_status(self, path: str) -> FileStatus | None:
        """Return the status of a directory, which changes with the names in it."""
        status = self._filesystem.status(path, follow_symlinks=True)
        if status is None or not status.is_directory or not self._is_fixed(path):
            return status
        names = frozenset(entry.name for entry in self._filesystem.walk_directory(path))
        return replace(status, size_bytes=hash(names))

    def _search(self) -> None:
        is_first = self._searched_s < 0
        self._searched_s = time.monotonic()
        paths = self._present_paths(is_first=is_first)
        found: list[PartitionDirectory] = []
        if paths:
            found = present_partitions(
                self._filesystem, self._options.read, paths, self._watch, is_repeated=not is_first
            )
        if self._condition is not None:
            found = [
                each for each in found if not prune_partition(self._condition, *each.topic_partition).is_empty
            ]
        self.has_log_directory = bool(found) or self._leads_to_log_directory(paths)
        if paths and not found and is_first:
            _log.warning(
                "Nothing to read yet in %s. Waits for the first partition.",
                ", ".join(self._options.read.paths),
            )
        known = self._absent | self.partitions
        self.partitions = {}
        for root in self._roots.values():
            root.partitions.clear()
        volume_ids = {root: self._volume_id(root) for root in {each.root.path for each in found}}
        for directory in found:
            volume_id = volume_ids[directory.root.path]
            tailed = known.pop(directory.topic_partition, None)
            if tailed is None:
                tailed = TailedPartition(directory, volume_id)
            elif (tailed.directory.path, tailed.volume_id) != (directory.path, volume_id):
                # Moved to another disk, or another volume is mounted here: its list of truncations is another one.
                tailed = TailedPartition(directory, volume_id, tailed.end_offset, topic_id=tailed.topic_id)
            elif tailed.directory.copies != directory.copies:
                # One has come, or has gone.
                tailed.directory, tailed.directory_status = directory, None
            else:
                tailed.directory = replace(tailed.directory, remote=directory.remote)
            self.partitions[directory.topic_partition] = tailed
            self._root_of(directory).partitions.append(tailed)
            self._watched_directories.setdefault(directory.root.path, _UNKNOWN)
        for tailed in known.values():
            tailed.directory_status = None
        self._absent = known
        self.examined = {key: log for key, log in self.examined.items() if key in self.partitions}

    def _volume_id(self, root: str) -> tuple[int, FileVersion] | None:
        status = self._filesystem.status(root, follow_symlinks=True)
        return None if status is None else (status.device, status.version)

    def _leads_to_log_directory(self, paths: Sequence[str]) -> bool:
        """Return True if a path is a log directory or a folder of such: an unmounted volume is an empty directory."""
        try:
            find_partitions(self._filesystem, paths, must_be_log_directory=True, is_repeated=True)
        except LogDirectoryError:
            return False
        return bool(paths)

    def _present_paths(self, *, is_first: bool) -> list[str]:
        """Return the paths that exist: a log directory may appear later."""
        paths = split_paths(self._filesystem, self._options.read.paths)
        for path in paths:
            self._watched_directories.setdefault(path, _UNKNOWN)
        absent = [path for path in paths if not self._filesystem.exists(path)]
        if is_first:
            for path in absent:
                _log.warning("%s does not exist yet. Waits for it.", path)
        return [path for path in paths if path not in absent]

    def empty_directories(self) -> list[str]:
        """List directories that hold nothing, though logs are expected there: volumes may not be mounted on them."""
        found = dict.fromkeys(
            absolute_path(path) for path in split_paths(self._filesystem, self._options.read.paths)
        )
        found |= dict.fromkeys(self._roots)
        for path in list(found):
            entries = self._entries(path)
            if entries and path not in self._roots and not is_log_directory(entries):
                inside = (
                    entry.name for entry in entries if entry.is_directory and not entry.name.startswith(".")
                )
                found |= dict.fromkeys(
                    os.path.join(path, name) for name in inside if name not in OTHER_DIRECTORIES
                )
        return sorted(path for path in found if self._entries(path) == [])

    def _entries(self, path: str) -> list[DirectoryEntry] | None:
        """List a directory.

        Returns:
            Its entries, none if it does not exist; None if it cannot be listed.
        """
        try:
            return self._filesystem.list_directory(path)
        except MissingError:
            return []
        except LogDirectoryError:
            return None

    def _root_of(self, directory: PartitionDirectory) -> _Root:
        path = directory.root.path
        root = self._roots.get(path)
        if root is None:
            root = self._roots[path] = _Root(path, self._options.read.ending_at == "highWatermark")
            self._follow_checkpoint(root, directory.root)
        return root

    def _follow_checkpoint(self, root: _Root, files: LogDirectoryFiles | None = None) -> None:
        """Read the checkpoint of high watermarks of a log directory, and decide where its logs end."""
        options = self._options.read
        if options.ignore_checkpoints or (self._options.is_end_given and options.ending_at == "logEnd"):
            return
        status = self._filesystem.status(self._checkpoint_path(root.path))
        if files is None and status == root.checkpoint_status:
            return
        is_new = files is not None
        files = files or LogDirectoryFiles(self._filesystem, root.path)
        root.checkpoint_status = status
        age_s = 0.0
        if status is not None and self._filesystem.traits_of(root.path).has_modification_times:
            age_s = max(0.0, time.time() - status.modified_ms / 1000)
        root.changed_s = time.monotonic() - age_s
        # Other programs' checkpoints are not kept up to date while they append.
        has_meta_properties = self._filesystem.status(os.path.join(root.path, META_PROPERTIES)) is not None
        is_brokers = self._options.is_end_given or has_meta_properties
        root.high_watermarks = files.high_watermarks if is_brokers else {}
        if self._options.is_end_given:
            return
        ended_there, has_checkpoint = root.ends_at_high_watermark, is_brokers and status is not None
        root.ends_at_high_watermark = has_checkpoint
        if not has_checkpoint and (is_new or ended_there):
            _log.log(
                logging.WARNING if is_brokers else logging.INFO,
                "%s is read to its log ends, because no checkpoint of a broker tells its high watermarks.",
                root.path,
            )
        if has_checkpoint != ended_there:
            for each in root.partitions:
                each.directory_status = None

    @staticmethod
    def _checkpoint_path(root: str) -> str:
        return os.path.join(root, REPLICATION_OFFSET_CHECKPOINT)

    def _possibly_changed(self, root: _Root, *, is_changed: bool) -> list[TailedPartition]:
        """Return the partitions of a log directory that may end elsewhere than at the last poll."""
        before = root.high_watermarks
        self._follow_checkpoint(root)
        if is_changed:
            return list(root.partitions)
        if not root.ends_at_high_watermark:
            return [each for each in root.partitions if self._has_changed(each)]
        now = root.high_watermarks
        # A broker writes its checkpoint every few seconds. If it does not, look now and then what that leaves out.
        is_quiet = time.monotonic() - max(root.changed_s, root.last_full_check_s) > _QUIET_S
        if is_quiet:
            root.last_full_check_s = time.monotonic()
        return [
            each
            for each in root.partitions
            if is_quiet
            or each.directory_status is None
            or now.get(each.directory.topic_partition) != before.get(each.directory.topic_partition)
        ]

    def _has_changed(self, tailed: TailedPartition) -> bool:
        if tailed.directory_status is None:
            return True
        if not self._is_listed_anew and self._is_fixed(tailed.directory.path):
            return False
        if self._filesystem.status(tailed.active_path) != tailed.active_status:
            return True
        return self._directory_status(tailed.directory.path) != tailed.directory_status

    def _refresh(self, root: _Root, chosen: Sequence[TailedPartition]) -> bool:
        """Look up where partitions of a log directory end.

        Returns:
            False if a commit became visible meanwhile, so that nothing was noted.
        """
        if not chosen:
            return True
        for each in chosen:
            # Before the look, so that later changes show in the next one.
            each.directory_status = self._directory_status(each.directory.path)
            each.active_status = self._filesystem.status(each.active_path) if each.active_path else None
        files = self._root_files(root.path)
        before = files.visibility
        files.read_once()
        ends = self._filesystem.map(lambda each: self._end_of(each, root, files), chosen)
        found = list(zip(chosen, ends, strict=True))
        if read_visible_commits(self._filesystem, root.path, before) != before:
            for each in chosen:
                each.directory_status = None
            return False
        for tailed, end in found:
            if end is not None:
                self.examined[tailed.directory.topic_partition] = end[0]
                self._note(tailed, *end)
        if root.ends_at_high_watermark:
            self._report_left_out(root, [end[0] for _, end in found if end is not None])
        return True

    def _report_left_out(self, root: _Root, logs: Sequence[PartitionLog]) -> None:
        """Warn of records after the high watermarks of a checkpoint that no broker is seen to renew."""
        ends = {
            log.directory.topic_partition: (log.high_watermark or log.log_start_offset, log.log_end_offset)
            for log in logs
            if log.directory.topic_partition not in root.left_out
        }
        left_out = {key: ends[key] for key in sorted(ends) if ends[key][0] < ends[key][1]}
        if not left_out:
            return
        is_renewed = time.monotonic() - root.changed_s <= _QUIET_S
        if is_renewed and self._filesystem.is_locked(os.path.join(root.path, LOCK_FILE)):
            return
        root.left_out |= left_out.keys()
        shown = [
            f"{topic}-{number} from {begin} to {end}" for (topic, number), (begin, end) in left_out.items()
        ]
        _log.warning(
            "The stream ends at the high watermarks in %s, and no broker is seen to run there, or to renew them. "
            "Left out are offsets %s. Set endingAt=logEnd to read to the log ends.",
            self._checkpoint_path(root.path),
            first_of(shown, _SHOWN_LOGS),
        )

    def _end_of(
        self, tailed: TailedPartition, root: _Root, files: LogDirectoryFiles
    ) -> tuple[PartitionLog, int] | None:
        """Look up where a partition ends.

        Returns:
            The log, and the offset that ends what may be read of it; None if it cannot be read now.
        """
        directory = tailed.directory.anew(
            lambda path: files if path == files.path else self._root_files(path)
        )
        try:
            # Remote storage says nothing of the end.
            log = load_log(
                self._filesystem, directory, self._options.read, is_followed=True, start_offset=MAX_OFFSET
            )
            if (
                root.ends_at_high_watermark
                and root.checkpoint_status is not None
                and log.high_watermark is None
            ):
                # A broker's checkpoint names a new partition some seconds later.
                end_offset = log.log_start_offset
            else:
                end_offset = self.limit_of(log).end_read()
            log.topic_id  # noqa: B018  (read here, where an error counts as a failed look)
        except SegmentLogError as error:
            self._note_failure(tailed, error)
            return None
        tailed.failures = 0
        for notice in log.notices:
            _log.log(logging.DEBUG if notice in tailed.notices else logging.WARNING, "%s", visible(notice))
        tailed.notices = frozenset(log.notices)
        return log, end_offset

    def refresh_next_time(self, tailed: TailedPartition) -> bool:
        """Look into a partition in the next poll in any case.

        Returns:
            False if its directory is gone: the next poll searches for it.
        """
        tailed.directory_status = None
        directories = (tailed.directory, *tailed.directory.copies)
        if all(self._filesystem.exists(each.path) for each in directories):
            return True
        self._watched_directories = dict.fromkeys(self._watched_directories, _UNKNOWN)
        return False

    def _note_failure(self, tailed: TailedPartition, error: SegmentLogError) -> None:
        if not self.refresh_next_time(tailed):
            return
        tailed.failures += 1
        if tailed.failures == 1:
            tailed.failing_since_s = time.monotonic()
        has_lasted = time.monotonic() - tailed.failing_since_s >= _FAILING_S
        if tailed.failures >= _ATTEMPTS and has_lasted:
            raise error

    def _note(self, tailed: TailedPartition, log: PartitionLog, end_offset: int) -> None:
        """Note where a partition ends, and what the next look compares with."""
        root = log.directory.root
        self._note_truncation(tailed, log)
        tailed.end_offset = end_offset
        tailed.topic_id = log.topic_id or tailed.topic_id
        tailed.truncations_bytes = root.visibility.truncations_bytes
        bases = log.segments.base_offsets
        active_path = log.segments[-1].log_path if bases else log.path
        if self._roots[root.path].ends_at_high_watermark:
            # A copy may lack records that its checkpoint counts, and get them later.
            is_certain = root.high_watermarks.get(log.directory.topic_partition, 0) <= log.log_end_offset
        else:
            # The status of another active segment before the look is not known.
            is_certain = active_path == tailed.active_path and self._is_settled(
                log.path, tailed.directory_status
            )
        tailed.active_path = active_path
        if not is_certain or log.directory.copies:
            tailed.directory_status = None

    def _note_truncation(self, tailed: TailedPartition, log: PartitionLog) -> None:
        """Note that records were taken off the end of a log, which may have grown again meanwhile."""
        root, since_bytes = log.directory.root, tailed.truncations_bytes
        offset = None
        # A shorter list is that of an older copy.
        if tailed.active_path and since_bytes <= root.visibility.truncations_bytes:
            offset = truncated_to(self._filesystem, root.path, log.topic, log.partition, since_bytes)
        if None not in (tailed.topic_id, log.topic_id) and log.topic_id != tailed.topic_id:
            tailed.moved_from_topic_id = None if tailed.active_path else tailed.topic_id
            _log.warning("The topic of %s-%d was deleted and created anew.", log.topic, log.partition)
            offset = log.log_start_offset
        if offset is not None:
            known = tailed.truncated_to
            tailed.truncated_to = offset if known is None else min(offset, known)
