"""The view ``files``: every file below a log directory, what it is, and whether a stopped broker would have left it there.

Nothing is opened. Names are those of Kafka's ``LogFileUtils``, ``LogManager`` and ``Snapshots``, and of this package's own
files.
"""

from __future__ import annotations

import bisect
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa

from storage_core.checkpoint import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
)
from storage_core.checkpoint.checkpoint_file import TEMPORARY_SUFFIX
from storage_core.checkpoint.truncations_file import TRUNCATIONS_FILE
from storage_core.commit_files.commits_file import COMMITS_FILE, OWN_PREFIX
from storage_core.commit_files.journal import COMMIT_IN_PROGRESS, COMMIT_JOURNAL
from storage_core.commit_files.stage_names import STAGE_PREFIX
from storage_core.directory.log_directory_files import CLUSTER_METADATA_TOPIC, LOCK_FILE
from storage_core.directory.segment_listing import FileNames, regular_file_names
from storage_core.errors import LogDirectoryError
from storage_core.filesystem import ExaminedEntry, ReadableFileSystem
from storage_core.filesystem.file_system import TEMPORARY_FILE
from storage_core.filesystem.values import MissingError
from storage_core.options import ReadOptions
from storage_core.segment.file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    base_offset_of,
)
from storage_core.views.finding import Action
from storage_core.views.roots import (
    LIVE,
    REMOTE,
    PartitionLocation,
    require_listed,
    roots_of,
    selected_locations,
)
from storage_core.views.view import TIMESTAMP, Column, View, rows_read

UNKNOWN: Final = "unknown"
LOG_KIND: Final = "log segment"
_SEGMENT_KINDS: Final = {
    LOG_SUFFIX: LOG_KIND,
    OFFSET_INDEX_SUFFIX: "offset index",
    TIME_INDEX_SUFFIX: "time index",
    TRANSACTION_INDEX_SUFFIX: "transaction index",
    SNAPSHOT_SUFFIX: "producer snapshot",
}
METADATA_SNAPSHOT: Final = "metadata snapshot"
_QUORUM_STATE: Final = "quorum state"
_PARTITION_KINDS: Final = {
    LEADER_EPOCH_CHECKPOINT: "leader epoch checkpoint",
    PARTITION_METADATA: "partition metadata",
    "quorum-state": _QUORUM_STATE,
}
RECOVERY_MANIFEST: Final = f"{OWN_PREFIX}recovery.json"
"""What a recovery left out of the directory that it made, or what is in the copies that it put aside."""
_ROOT_KINDS: Final = {
    META_PROPERTIES: "meta.properties",
    CLEAN_SHUTDOWN_FILE: "clean shutdown marker",
    LOCK_FILE: "lock",
    RECOVERY_POINT_CHECKPOINT: "recovery point checkpoint",
    LOG_START_OFFSET_CHECKPOINT: "log start offset checkpoint",
    REPLICATION_OFFSET_CHECKPOINT: "high watermark checkpoint",
    CLEANER_OFFSET_CHECKPOINT: "cleaner checkpoint",
    "bootstrap.checkpoint": "bootstrap metadata",
    COMMITS_FILE: "segmentlog commits",
    COMMIT_JOURNAL: "segmentlog commit journal",
    TRUNCATIONS_FILE: "segmentlog truncations",
    RECOVERY_MANIFEST: "segmentlog recovery manifest",
}
_STAGED: Final = "segmentlog staged file"
_OWN: Final = "segmentlog file"
_CACHE: Final = "remote log index cache"
# Directories of a log directory that are no partition's: their kinds, and why a stopped broker would not have them.
_OTHER_DIRECTORIES: Final[dict[str, tuple[str, str | None]]] = {
    "remote-log-index-cache": (_CACHE, None),
    COMMIT_IN_PROGRESS: (
        "segmentlog commit in progress",
        "a commit is under way, or was interrupted: no broker starts with it",
    ),
}
_NO_PARTITION: Final = "not the directory of a partition: a broker does not start with it"
# Of KRaft snapshots: end offset and epoch (Kafka's ``Snapshots``).
_METADATA_SNAPSHOT_NAME: Final = re.compile(r"([0-9]{20})-[0-9]{10}(?:-[^/]*)?\.checkpoint")


class Leftover(NamedTuple):
    """Meaning of the suffix of a file that awaits its removal, replaces another one or was never finished.

    Attributes:
        reason: Why it is there, of one file.
        plural: The same of several.
    """

    reason: str
    plural: str
    action: Action | None = None


LEFTOVERS: Final = {
    DELETED_SUFFIX: Leftover(
        "it awaits its removal: a broker removes it a minute after the rename, or when it starts",
        "await their removal",
        "remove",
    ),
    CLEANED_SUFFIX: Leftover(
        "output of a compaction that was not finished: a broker removes it when it starts",
        "are output of a compaction that was not finished",
        "remove",
    ),
    SWAP_SUFFIX: Leftover(
        "output of a compaction that had begun to replace segments: a starting broker completes that",
        "are about to replace segments that were compacted",
        "complete",
    ),
    TEMPORARY_SUFFIX: Leftover("it was never finished: a broker writes it again", "were never finished"),
    ".part": Leftover("a snapshot that was never finished: a broker removes it", "were never finished"),
}
STATE_REASONS: Final = {
    "delete": "its directory awaits its deletion",
    "stray": "its directory is not known to the cluster",
    "future": "its directory is being moved here from another disk",
}
_NOT_REGULAR: Final = {
    "link": "a symbolic link, which is not followed",
    "other": "a FIFO, a socket or a device, which is never opened",
}
_NO_SUCH_NAME: Final = "neither Kafka nor segmentlog has a file of this name here"


class NamedFile(NamedTuple):
    """Meaning of a file's name.

    Attributes:
        kind: What it is; `UNKNOWN` if the name tells nothing.
        leftover: The suffix that says that it is about to be removed or replaced, or was never finished; None without.
    """

    kind: str
    leftover: str | None = None
    base_offset: int | None = None


def name_in_partition(name: str) -> NamedFile:
    """Classify a file in a partition's directory by its name."""
    plain, leftover = _without_leftover(name)
    base_offset = base_offset_of(plain)
    kind = None if base_offset is None else _SEGMENT_KINDS.get(plain[plain.index(".") :])
    if kind is not None:
        return NamedFile(kind, leftover, base_offset)
    snapshot = _METADATA_SNAPSHOT_NAME.fullmatch(plain)
    if snapshot:
        return NamedFile(METADATA_SNAPSHOT, leftover, int(snapshot[1]))
    return NamedFile(_PARTITION_KINDS.get(plain, UNKNOWN), leftover if plain in _PARTITION_KINDS else None)


def name_in_root(name: str) -> NamedFile:
    """Classify a file in a log directory itself by its name."""
    plain, leftover = _without_leftover(name)
    kind = _ROOT_KINDS.get(plain)
    if kind is not None:
        return NamedFile(kind, leftover)
    if plain.startswith(STAGE_PREFIX):
        return NamedFile(_STAGED, leftover)
    if plain.startswith(OWN_PREFIX):
        return NamedFile(_OWN, leftover)
    inner = name_in_partition(name)
    return NamedFile(inner.kind, None, inner.base_offset)


def _without_leftover(name: str) -> tuple[str, str | None]:
    if TEMPORARY_FILE.fullmatch(name):
        return name.rsplit(".", 2)[0], TEMPORARY_SUFFIX
    for suffix in LEFTOVERS:
        if name.endswith(suffix):
            return name[: -len(suffix)], suffix
    return name, None


def why_not_in_root(found: NamedFile, name: str) -> str | None:
    """Explain why a file is not expected in a log directory itself.

    Returns:
        The reason; None if it is expected.
    """
    if found.leftover is not None:
        return LEFTOVERS[found.leftover].reason
    if found.kind == _STAGED:
        return "a job staged it, and has not committed or removed it"
    if name == COMMIT_JOURNAL:
        return "a commit is under way, or was interrupted: the next writer completes it"
    if found.kind == UNKNOWN:
        return _NO_SUCH_NAME
    if found.kind in _ROOT_KINDS.values() or found.kind == _OWN:
        return None
    return "it belongs into the directory of a partition"


def why_not_in_partition(found: NamedFile, topic: str, names: FileNames) -> str | None:
    """Explain why a file is not expected in a partition's directory.

    Returns:
        The reason; None if it is expected.
    """
    if found.leftover is not None:
        return LEFTOVERS[found.leftover].reason
    if found.kind == UNKNOWN:
        return _NO_SUCH_NAME
    if found.kind in (METADATA_SNAPSHOT, _QUORUM_STATE) and topic != CLUSTER_METADATA_TOPIC:
        return f"only {CLUSTER_METADATA_TOPIC}-0 has such a file"
    if found.base_offset is None or found.kind in (LOG_KIND, METADATA_SNAPSHOT):
        return None
    logs = names.base_offsets(LOG_SUFFIX)
    index = bisect.bisect_left(logs, found.base_offset)
    if index < len(logs) and logs[index] == found.base_offset:
        return None
    if found.kind != _SEGMENT_KINDS[SNAPSHOT_SUFFIX]:
        return "it has no log file: a broker removes it when it starts"
    # The newest one may be at the log end.
    is_newest = names.base_offsets(SNAPSHOT_SUFFIX)[-1] == found.base_offset
    is_needed = is_newest and (not logs or found.base_offset >= logs[-1])
    return None if is_needed else "no segment begins at its offset: a broker removes it when it starts"


# fmt: off
_COLUMNS: Final = (
    Column("root", pa.string(), "Path of the log directory."),
    Column("path", pa.string(), "Path of the file, from the log directory on."),
    Column("kind", pa.string(), "What it is: `log segment`, `offset index`, `time index`, `transaction index`, "
           "`producer snapshot`, `leader epoch checkpoint`, `partition metadata`, `meta.properties`, `lock`, …; "
           "`unknown` for a foreign file. Directories: `partition`, `partition in deletion`, `future partition`, "
           "`stray partition`, `directory`. Also `symbolic link`, and `special file` for FIFOs, sockets and devices."),
    Column("leftover", pa.string(), "The suffix of a file that awaits its removal, replaces another one or was never "
           "finished: `.deleted`, `.cleaned`, `.swap`, `.tmp`, `.part`; null for others."),
    Column("sizeBytes", pa.int64(), "Its length; null for directories."),
    Column("allocatedBytes", pa.int64(), "What it takes on the disk: less than its length if it is sparse."),
    Column("modified", TIMESTAMP, "When it was last modified; null in an object store."),
    Column("topic", pa.string(), "The topic, if it is a partition's directory or in one."),
    Column("partition", pa.int32(), "The partition, likewise."),
    Column("state", pa.string(), "State of that directory: `live`, or by its name `delete`, `future` or `stray`; `remote` "
           "in remote storage; null elsewhere."),
    Column("baseOffset", pa.int64(), "The offset in its name."),
    Column("isExpected", pa.bool_(), "Whether a broker that was stopped leaves it there."),
    Column("reason", pa.string(), "Why not; null if it is expected."),
)
# fmt: on
# Directories of foreign files are listed, but only so deep.
_MAX_DEPTH: Final = 32
_DIRECTORY_KINDS: Final = {
    LIVE: "partition",
    REMOTE: "partition in remote storage",
    "delete": "partition in deletion",
    "future": "future partition",
    "stray": "stray partition",
}
_SPECIAL_KINDS: Final = {"link": "symbolic link", "other": "special file"}


@dataclass(frozen=True, slots=True)
class FilesTask:
    """Files to list: those of a partition's directory, or those of a log directory outside of its partitions.

    Attributes:
        location: The partition's directory; None for the log directory.
        partitions: For a log directory, those whose own rows are made, by name.
    """

    root: str
    location: PartitionLocation | None = None
    partitions: tuple[PartitionLocation, ...] = ()


def _plan(filesystem: ReadableFileSystem, options: ReadOptions) -> Sequence[FilesTask]:
    roots = roots_of(filesystem, options)
    require_listed(roots)
    locations = selected_locations(filesystem, roots, options)
    whole = [] if options.names_topics else [root for root in roots if root.is_whole]
    return [
        *(FilesTask(root.path, partitions=root.locations) for root in whole),
        *(FilesTask(location.root, location) for location in locations),
    ]


def _rows(filesystem: ReadableFileSystem, task: FilesTask, _wanted: frozenset[str]) -> Iterator[FoundFile]:
    if task.location is None:
        found = root_files(filesystem, task.root, task.partitions)
    else:
        found = _partition_rows(filesystem, task.location)
    if filesystem.traits_of(task.root).has_modification_times:
        return found
    return (each._replace(modified_ms=None) for each in found)


class FoundFile(NamedTuple):
    """A file or directory; the columns of the view."""

    root: str
    path: str
    kind: str
    leftover: str | None
    size_bytes: int | None
    allocated_bytes: int
    modified_ms: int | None
    topic: str | None
    partition: int | None
    state: str | None
    base_offset: int | None
    is_expected: bool
    reason: str | None


def _found(
    root: str,
    path: str,
    entry: ExaminedEntry,
    named: NamedFile,
    reason: str | None,
    location: PartitionLocation | None = None,
) -> FoundFile:
    return FoundFile(
        root,
        path,
        _SPECIAL_KINDS.get(entry.kind, named.kind),
        named.leftover,
        None if entry.kind == "directory" else entry.size_bytes,
        entry.allocated_bytes,
        entry.modified_ms,
        None if location is None else location.topic,
        None if location is None else location.partition,
        None if location is None else location.state,
        named.base_offset,
        reason is None,
        reason,
    )


def root_files(
    filesystem: ReadableFileSystem, root: str, locations: Iterable[PartitionLocation]
) -> Iterator[FoundFile]:
    """List the files and directories of a log directory, by name, without what is in those of its partitions.

    Raises:
        LogDirectoryError: It is gone, or this user may not list it.
    """
    partitions = {os.path.basename(location.path): location for location in locations}
    for entry in sorted(filesystem.examine_directory(root)):
        name = entry.name
        location = partitions.get(name)
        if location is not None:
            reason = _NOT_REGULAR.get(entry.kind) or STATE_REASONS.get(location.state)
            yield _found(root, name, entry, NamedFile(_DIRECTORY_KINDS[location.state]), reason, location)
        elif entry.kind == "directory":
            kind, reason = _OTHER_DIRECTORIES.get(name, ("directory", _NO_PARTITION))
            yield _found(root, name, entry, NamedFile(kind), reason)
            yield from _rows_below(filesystem, root, name, None, kind == _CACHE)
        else:
            found = name_in_root(name)
            reason = _NOT_REGULAR.get(entry.kind) or why_not_in_root(found, name)
            yield _found(root, name, entry, found, reason)


def _partition_rows(filesystem: ReadableFileSystem, location: PartitionLocation) -> Iterator[FoundFile]:
    root, name = location.root, os.path.basename(location.path)
    try:
        names = _file_names(filesystem, location.path)
        for entry in filesystem.examine_directory(location.path):
            path = os.path.join(name, entry.name)
            if entry.kind == "directory":
                reason: str | None = "the directory of a partition has no others"
                yield _found(root, path, entry, NamedFile("directory"), reason, location)
                yield from _rows_below(filesystem, root, path, location, False)
                continue
            found = name_in_partition(entry.name)
            reason = (
                _NOT_REGULAR.get(entry.kind)
                or why_not_in_partition(found, location.topic, names)
                or STATE_REASONS.get(location.state)
            )
            yield _found(root, path, entry, found, reason, location)
    except MissingError:
        # A broker has renamed or removed it since the log directory was listed.
        return


def _file_names(filesystem: ReadableFileSystem, path: str) -> FileNames:
    try:
        return regular_file_names(filesystem, path)
    except MissingError:
        raise
    except LogDirectoryError:
        # A link or a FIFO is named like a log file.
        return FileNames(entry.name for entry in filesystem.walk_directory(path))


def _rows_below(
    filesystem: ReadableFileSystem, root: str, path: str, location: PartitionLocation | None, is_cache: bool
) -> Iterator[FoundFile]:
    """List the files in directories that Kafka does not have, or has for its cache."""
    pending = [path]
    while pending:
        directory = pending.pop()
        try:
            entries = sorted(filesystem.examine_directory(os.path.join(root, directory)))
        except LogDirectoryError:
            # Its own row is there; it is gone, or this user may not list it.
            continue
        for entry in entries:
            inner = os.path.join(directory, entry.name)
            if entry.kind == "directory" and inner.count("/") < _MAX_DEPTH:
                pending.append(inner)
            reason = _NOT_REGULAR.get(entry.kind) or (None if is_cache else _NO_SUCH_NAME)
            kind = _CACHE if is_cache else "directory" if entry.kind == "directory" else UNKNOWN
            yield _found(root, inner, entry, NamedFile(kind), reason, location)


FILES_VIEW: Final = View(
    "files",
    "A file or directory below a log directory. Symbolic links are not followed, and no file is opened. "
    "Internal topics need not be named.",
    _COLUMNS,
    _plan,
    rows_read(_COLUMNS, _rows),
)
