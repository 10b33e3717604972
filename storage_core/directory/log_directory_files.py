"""A log directory: a root (an entry of a broker's ``log.dirs``), its files, and the names of its partitions.

Partition directories are named as by Kafka's ``LocalLog`` (``parseTopicPartitionName``):

    orders-7                                            partition 7 of topic orders
    orders-7.<32 hex digits>-delete                     scheduled for deletion
    orders-7.<32 hex digits>-stray                      not known to the cluster
    orders-7.<32 hex digits>-future                     being moved here from another disk

The topic may contain dashes and dots: the partition follows the last dash.
"""

from __future__ import annotations

import logging
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from storage_core.cached_property import cached_property
from storage_core.checkpoint import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    MetaProperties,
    clean_shutdown_status,
    read_meta_properties,
    read_offset_checkpoint,
)
from storage_core.commit_files.commits_file import OWN_PREFIX
from storage_core.commit_files.journal import COMMIT_IN_PROGRESS
from storage_core.config import INT_MAX
from storage_core.directory.visibility import VisibleCommits, read_visible_commits
from storage_core.errors import CorruptCheckpointError, OptionError, SegmentLogError
from storage_core.segment.file_names import LOG_SUFFIX, base_offset_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from storage_core.filesystem import DirectoryEntry, FileStatus, ReadableFileSystem


CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
INTERNAL_TOPICS: Final = frozenset(
    {
        "__consumer_offsets",
        "__transaction_state",
        "__share_group_state",
        CLUSTER_METADATA_TOPIC,
    }
)
"""The brokers' internal topics, and the log of the KRaft controllers."""
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
# The ASCII texts that Java's Integer.parseInt takes.
_PARTITION = re.compile(r"\+?[0-9]{1,20}")
_SUFFIXED_NAME = re.compile(r"(\S+-\S+)\.(?:\S+)-(delete|future|stray)", re.ASCII)
_SUFFIX_ENDINGS = ("-delete", "-future", "-stray")


@dataclass(frozen=True, slots=True)
class PartitionDirectoryName:
    """The parsed name of a partition directory.

    The suffix is ``delete``, ``future`` or ``stray``; None for a partition's normal directory. With ``delete`` or
    ``stray``, the topic is truncated if the name would be too long.
    """

    topic: str
    partition: int
    suffix: str | None


def is_legal_topic_name(topic: str) -> bool:
    """Return True if Kafka allows a topic's name: 1 to 249 of ``a-zA-Z0-9._-``, but not ``.`` or ``..``."""
    return _TOPIC_NAME.fullmatch(topic) is not None and topic not in (".", "..")


def check_topic_partition(topic: object, partition: object) -> None:
    """Check a topic's name and a partition's number by Kafka's rules.

    Raises:
        OptionError: Kafka does not allow them, or the name is that of a file of this package or of a cluster's metadata.
    """
    if topic == CLUSTER_METADATA_TOPIC:
        raise OptionError(
            f"Expected the name of a topic, found {topic!r}, the log of a cluster's own metadata: a broker does not start "
            "if it finds other records there. Choose another name."
        )
    if not isinstance(topic, str) or not is_legal_topic_name(topic):
        raise OptionError(
            "Expected 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-' as the name of a topic, found "
            f"{topic!r}."
        )
    if topic.startswith(OWN_PREFIX):
        raise OptionError(
            f"Expected the name of a topic not to begin with {OWN_PREFIX!r}, which is reserved for this package's own "
            f"files in a log directory, found {topic!r}. Choose another name; such a topic of a broker can still be read."
        )
    if not isinstance(partition, int) or isinstance(partition, bool) or not 0 <= partition <= INT_MAX:
        raise OptionError(f"Expected a partition number from 0 to {INT_MAX}, found {partition!r}.")


def parse_partition_directory_name(name: str) -> PartitionDirectoryName | None:
    """Parse a directory's name as Kafka does.

    Returns:
        Its parts; None if it cannot be a partition's.
    """
    suffix = None
    if name.endswith(_SUFFIX_ENDINGS):
        match = _SUFFIXED_NAME.fullmatch(name)
        if match is None:
            return None
        suffix = match[2]
        name = name[: name.rindex(".")]
    topic, dash, partition_text = name.rpartition("-")
    if not dash or not is_legal_topic_name(topic) or not _PARTITION.fullmatch(partition_text):
        return None
    partition = int(partition_text)
    if partition > INT_MAX:
        return None
    return PartitionDirectoryName(topic, partition, suffix)


REMOTE_INDEX_CACHE: Final = "remote-log-index-cache"


def keeps_broker_from_starting(name: str) -> bool:
    """Return True if a broker does not start with a directory of this name in a log directory.

    It takes more names than topics may have. Source: ``UnifiedLog.parseTopicPartitionName``, ``LogManager.loadLogs``.
    """
    if name == REMOTE_INDEX_CACHE:
        return False
    if name.endswith(_SUFFIX_ENDINGS):
        if _SUFFIXED_NAME.fullmatch(name) is None:
            return True
        name = name[: name.rindex(".")]
    topic, _, partition_text = name.rpartition("-")
    return not topic or _PARTITION.fullmatch(partition_text) is None or int(partition_text) > INT_MAX


_log = logging.getLogger(__name__)
LOCK_FILE: Final = ".lock"
# Files that only a broker, or this package, creates.
_ROOT_FILES: Final = frozenset(
    {
        LOCK_FILE,
        CLEAN_SHUTDOWN_FILE,
        META_PROPERTIES,
        RECOVERY_POINT_CHECKPOINT,
        LOG_START_OFFSET_CHECKPOINT,
        REPLICATION_OFFSET_CHECKPOINT,
        CLEANER_OFFSET_CHECKPOINT,
        COMMIT_IN_PROGRESS,
    }
)


def is_log_directory(entries: Iterable[DirectoryEntry]) -> bool:
    """Return True if the entries of a directory show that a broker, or this package, has used it as a log directory.

    It may be without partitions: during the first job there are none.
    """
    return any(entry.name in _ROOT_FILES or entry.name.startswith(OWN_PREFIX) for entry in entries)


# Known directories in log directories that hold no partition.
OTHER_DIRECTORIES: Final = frozenset({"lost+found", REMOTE_INDEX_CACHE, COMMIT_IN_PROGRESS})


def holds_partition_files(filesystem: ReadableFileSystem, path: str) -> bool:
    """Return True if a directory holds a segment or another file that only a partition's directory has."""
    # In this order: a tier knows its leader epochs only after a look at each of its segments.
    for file_name in (PARTITION_METADATA, LEADER_EPOCH_CHECKPOINT):
        status = filesystem.status(os.path.join(path, file_name))
        if status is not None and status.is_regular_file:
            return True
    try:
        return any(is_log_file(entry) for entry in filesystem.walk_directory(path))
    except FileNotFoundError:
        # A live broker has renamed it for deletion since the root was listed.
        return False


def is_partition_directory(entries: Iterable[DirectoryEntry]) -> bool:
    """Return True if these are the entries of a partition's directory, whatever its name is."""
    return any(
        is_log_file(entry) or entry.name in (PARTITION_METADATA, LEADER_EPOCH_CHECKPOINT) for entry in entries
    )


def is_log_file(entry: DirectoryEntry) -> bool:
    """Return True if an entry has a log file's name. Links, FIFOs and devices are refused when segments are listed."""
    return (
        entry.name.endswith(LOG_SUFFIX) and base_offset_of(entry.name) is not None and not entry.is_directory
    )


class LogDirectoryFiles:
    """The root's own files, each read at its first use and then cached.

    The root may be without any of them, as the parent of a copied partition directory is.

    Attributes:
        is_own: Whether this process has the logs open for writing, so that no other process changes them.
        is_remote: Whether it is remote storage, where a segment is uploaded closed, and with all indexes that it has.
        has_looked_again: Whether remote storage was listed anew, because it seemed to lack what is not here any more.
        reported: The logs that were warned of because they end too early: path, and the offset that was expected.
    """

    def __init__(self, filesystem: ReadableFileSystem, path: str, *, is_remote: bool = False) -> None:
        self.path = path
        self.is_own = False
        self.is_remote = is_remote
        self.has_looked_again = False
        self.reported: set[tuple[str, int]] = set()
        self._filesystem = filesystem
        self._present: dict[str, tuple[FileStatus | None, dict[tuple[str, int], int]]] = {}

    @cached_property
    def clean_shutdown(self) -> bool:
        """Return True if the broker closed every log under this root before it stopped."""
        return self.is_remote or self._marker is not None

    def is_still_clean(self) -> bool:
        """Return True if no process has opened a log under this root since `clean_shutdown` was first read.

        A process that opens one removes the marker first, and writes a new one at the end.
        """
        if self.is_remote:
            return True
        marker = self._marker
        return marker is not None and clean_shutdown_status(self._filesystem, self.path) == marker

    @cached_property
    def _marker(self) -> FileStatus | None:
        return clean_shutdown_status(self._filesystem, self.path)

    @property
    def is_brokers(self) -> bool:
        """Return True if a broker has used the log directory: it leaves ``meta.properties`` there."""
        return self._filesystem.status(os.path.join(self.path, META_PROPERTIES)) is not None

    @cached_property
    def meta_properties(self) -> MetaProperties | None:
        """Return which broker of which cluster owns this root, or None without ``meta.properties``."""
        return read_meta_properties(self._filesystem, os.path.join(self.path, META_PROPERTIES))

    @cached_property
    def recovery_points(self) -> dict[tuple[str, int], int]:
        """Return the first offset not known to be flushed, per (topic, partition). Absent means 0."""
        return dict(self.present_recovery_points())

    def present_recovery_points(self) -> Mapping[tuple[str, int], int]:
        """Return the recovery points as they are on disk now."""
        return self._present_offsets(RECOVERY_POINT_CHECKPOINT, "every recovery point counts as 0")

    @cached_property
    def vouching_high_watermarks(self) -> Mapping[tuple[str, int], int]:
        """Return the high watermarks for what they say of the lengths of logs, or none if the checkpoint cannot be parsed."""
        return self.present_high_watermarks()

    def present_high_watermarks(self) -> Mapping[tuple[str, int], int]:
        """Return the high watermarks as they are on disk now, or none if the checkpoint cannot be parsed."""
        return self._present_offsets(
            REPLICATION_OFFSET_CHECKPOINT, "no high watermark says how long a log was"
        )

    def _present_offsets(self, file_name: str, consequence: str) -> dict[tuple[str, int], int]:
        status = self._filesystem.status(os.path.join(self.path, file_name))
        known = self._present.get(file_name)
        if known is None or known[0] != status:
            known = self._present[file_name] = status, self._offsets_or_none(file_name, consequence)
        return known[1]

    @cached_property
    def log_start_offsets(self) -> dict[tuple[str, int], int]:
        """Log start per (topic, partition), where it is above the first segment's base offset."""
        return self._offsets_or_none(LOG_START_OFFSET_CHECKPOINT, "every log starts at its first segment")

    def read_once(self) -> None:
        """Read what every look at a partition asks for, before several threads do. They report what cannot be read."""
        with suppress(SegmentLogError):
            _ = (
                self.clean_shutdown,
                self.recovery_points,
                self.vouching_high_watermarks,
                self.log_start_offsets,
            )

    @cached_property
    def cleaner_offsets(self) -> dict[tuple[str, int], int]:
        """Return up to where logs were compacted, per (topic, partition)."""
        return self._offsets_or_none(CLEANER_OFFSET_CHECKPOINT, "no log is known to be compacted")

    @cached_property
    def high_watermarks(self) -> dict[tuple[str, int], int]:
        """High watermark per (topic, partition).

        Raises:
            CorruptCheckpointError: The checkpoint cannot be parsed.
        """
        return read_offset_checkpoint(
            self._filesystem, os.path.join(self.path, REPLICATION_OFFSET_CHECKPOINT)
        )

    @cached_property
    def visibility(self) -> VisibleCommits:
        """Which commits of jobs are visible under this root.

        Raises:
            CorruptCheckpointError: The journal of a commit, or the list of commits, is damaged.
        """
        return read_visible_commits(self._filesystem, self.path)

    def without_checkpoints(self) -> LogDirectoryFiles:
        """Return the same files, as if there were no checkpoint of log starts, recovery points and high watermarks."""
        files = LogDirectoryFiles(self._filesystem, self.path, is_remote=self.is_remote)
        files.reported = self.reported
        files.visibility = self.visibility
        files.log_start_offsets = files.recovery_points = files.high_watermarks = {}
        files.vouching_high_watermarks = {}
        return files

    def _offsets_or_none(self, file_name: str, consequence: str) -> dict[tuple[str, int], int]:
        # What the segments hold can be read without them.
        try:
            return read_offset_checkpoint(self._filesystem, os.path.join(self.path, file_name))
        except CorruptCheckpointError as error:
            _log.warning("Ignored a checkpoint, so that %s: %s", consequence, error)
            return {}

    def __repr__(self) -> str:
        return f"LogDirectoryFiles({self.path!r})"


@dataclass(frozen=True, slots=True)
class PartitionDirectory:
    """One replica of a partition on disk, in the log directory ``root``.

    Attributes:
        copies: Other directories of this partition, in other roots, which may have offsets that this one lacks. Those
            that are preferred come first.
        remote: Directories of this partition in remote storage, if its topic is tiered.
    """

    path: str
    topic: str
    partition: int
    root: LogDirectoryFiles
    copies: tuple[PartitionDirectory, ...] = field(default=(), compare=False)
    remote: tuple[PartitionDirectory, ...] = field(default=(), compare=False)

    def without_checkpoints(self) -> PartitionDirectory:
        """Return the same directories, without the checkpoints of their roots."""
        roots = {each.root.path: each.root.without_checkpoints() for each in (self, *self.copies)}
        return self.anew(roots.__getitem__)

    def anew(self, root_of: Callable[[str], LogDirectoryFiles]) -> PartitionDirectory:
        """Return the same directories, with the files of their roots read again."""
        copies = tuple(copy.anew(root_of) for copy in self.copies)
        root = self.root if self.root.is_remote else root_of(self.root.path)
        return replace(self, root=root, copies=copies)

    @property
    def topic_partition(self) -> tuple[str, int]:
        """The key of this partition in checkpoints."""
        return self.topic, self.partition

    @property
    def is_internal(self) -> bool:
        """Return True if the topic is an internal one."""
        return self.topic in INTERNAL_TOPICS

    @property
    def is_compacted(self) -> bool:
        """Return True if gaps in the log are no sign of lost records."""
        return self.is_internal or self.topic_partition in self.root.cleaner_offsets
