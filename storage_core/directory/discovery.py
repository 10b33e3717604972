"""Find the partition directories under the paths that a user names.

Each path may be a log directory, a folder of log directories, or one partition directory. A
directory is a partition only if its name parses and it holds a segment, a
``leader-epoch-checkpoint`` or a ``partition.metadata``: a log directory may be called ``disk-1``.

Of several directories of one partition (copies of a volume, or replicas of several brokers), one is chosen.
"""

from __future__ import annotations

import fnmatch
import logging
import os
import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from storage_core.checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    read_leader_epoch_checkpoint,
    read_partition_metadata,
)
from storage_core.checkpoint.truncations_file import TRUNCATIONS_FILE
from storage_core.commit_files.commits_file import COMMITS_FILE
from storage_core.commit_files.journal import COMMIT_JOURNAL
from storage_core.directory.log_directory_files import (
    OTHER_DIRECTORIES,
    LogDirectoryFiles,
    PartitionDirectory,
    PartitionDirectoryName,
    holds_partition_files,
    is_log_directory,
    is_partition_directory,
    parse_partition_directory_name,
)
from storage_core.directory.mistaken_paths import no_log_error
from storage_core.directory.partition_log import PartitionLog
from storage_core.errors import (
    CorruptCheckpointError,
    LogDirectoryError,
    OptionError,
    ReplicaConflictError,
    UnreadableError,
    first_of,
    visible,
)
from storage_core.filesystem import absolute_path
from storage_core.filesystem.values import MissingError
from storage_core.options.paths import is_uri, store_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from storage_core.directory.visibility import CommitMonitor
    from storage_core.filesystem import DirectoryEntry, FileVersion, ReadableFileSystem


_log = logging.getLogger(__name__)
_NO_EPOCH = -1
# A directory with the name of a partition, its path, and why it cannot be read.
_Unreadable = tuple[PartitionDirectoryName, str, UnreadableError]


def choose_replica(
    filesystem: ReadableFileSystem, candidates: Sequence[PartitionDirectory], level: int = logging.WARNING
) -> PartitionDirectory:
    """Choose which directory of a partition to read, with the others as its `copies`, and log them.

    If a replica is unreadable, return it, so that only reads of this partition fail.
    """
    if len(candidates) == 1:
        return candidates[0]
    unreadable = next((each for each in candidates if not _is_readable(filesystem, each)), None)
    if unreadable is not None:
        return unreadable
    chosen, *others = replicas_by_preference(filesystem, candidates, level)
    if others:
        _log.log(
            level,
            "%s-%d is read from %s; only offsets that are not there are read from %s.",
            *(chosen.topic, chosen.partition),
            *(visible(chosen.path), visible(", ".join(each.path for each in others))),
        )
    return replace(chosen, copies=tuple(others))


def _is_readable(filesystem: ReadableFileSystem, directory: PartitionDirectory) -> bool:
    try:
        next(iter(filesystem.walk_directory(directory.path)), None)
    except MissingError:
        return True
    except UnreadableError:
        return False
    return True


def preferred_replica(
    filesystem: ReadableFileSystem, candidates: Sequence[PartitionDirectory]
) -> PartitionDirectory:
    """Choose the directory of a partition that a read prefers, as `replicas_by_preference` orders them."""
    return replicas_by_preference(filesystem, candidates)[0]


def replicas_by_preference(
    filesystem: ReadableFileSystem, candidates: Sequence[PartitionDirectory], level: int = logging.WARNING
) -> list[PartitionDirectory]:
    """Order the directories of a partition: the highest leader epoch first, then the highest log end.

    Raises:
        ReplicaConflictError: They belong to different clusters or topics, or two are in one root.
    """
    if len(candidates) == 1:
        return list(candidates)
    directories = _distinct(filesystem, candidates)
    if len(directories) == 1:
        return directories
    _require_different_roots(directories)
    _require_agreement(directories, "cluster.id", partial(_known, _cluster_id, level))
    _require_agreement(directories, "topic id", partial(_known, partial(_topic_id, filesystem), level))

    def preference(directory: PartitionDirectory) -> tuple[int, int]:
        # Damage is not reported here, because another copy may be read.
        end_offset = PartitionLog.load(filesystem, directory, skip_damage=True).valid_end_offset
        return _newest_leader_epoch(filesystem, directory, end_offset), end_offset

    # Equal ones keep the order in which the caller named their paths.
    return sorted(directories, key=preference, reverse=True)


def _distinct(
    filesystem: ReadableFileSystem, candidates: Sequence[PartitionDirectory]
) -> list[PartitionDirectory]:
    directories: dict[tuple[int, FileVersion], PartitionDirectory] = {}
    for candidate in candidates:
        status = filesystem.status(candidate.path, follow_symlinks=True)
        if status is None:
            message = "Expected a partition directory that existed a moment ago, found nothing. Read again."
            raise LogDirectoryError(message, path=candidate.path)
        directories.setdefault((status.device, status.version), candidate)
    return list(directories.values())


def _require_different_roots(directories: Sequence[PartitionDirectory]) -> None:
    by_root: dict[str, PartitionDirectory] = {}
    for directory in directories:
        other = by_root.setdefault(directory.root.path, directory)
        if other is not directory:
            raise _conflict(other, directory, "in one log directory. Remove one of them")


def _require_agreement(
    directories: Sequence[PartitionDirectory], what: str, read: Callable[[PartitionDirectory], str | None]
) -> None:
    """Require that all directories that have a value have the same one."""
    known = [(directory, value) for directory in directories if (value := read(directory)) is not None]
    for directory, value in known[1:]:
        first, first_value = known[0]
        if value != first_value:
            problem = f"with different values of {what}, {first_value} and {value}. Read one path at a time"
            raise _conflict(first, directory, problem)


def _conflict(first: PartitionDirectory, second: PartitionDirectory, problem: str) -> ReplicaConflictError:
    message = (
        f"Expected one directory of {first.topic}-{first.partition}, or copies that belong together, "
        f"found {first.path} and {second.path} {problem}."
    )
    return ReplicaConflictError(message)


def _known(
    read: Callable[[PartitionDirectory], str | None], level: int, directory: PartitionDirectory
) -> str | None:
    """Read an id.

    Returns:
        The id; None if the file is missing or cannot be read, because no row needs it.
    """
    try:
        return read(directory)
    except (CorruptCheckpointError, LogDirectoryError) as error:
        message = (
            "Ignored a file, so that it is not known whether %s belongs to the other copies of %s-%d: %s"
        )
        _log.log(level, message, directory.path, directory.topic, directory.partition, error)
        return None


def _cluster_id(directory: PartitionDirectory) -> str | None:
    meta_properties = directory.root.meta_properties
    return None if meta_properties is None else meta_properties.cluster_id


def _topic_id(filesystem: ReadableFileSystem, directory: PartitionDirectory) -> str | None:
    return read_partition_metadata(filesystem, os.path.join(directory.path, PARTITION_METADATA))


def _newest_leader_epoch(
    filesystem: ReadableFileSystem, directory: PartitionDirectory, end_offset: int
) -> int:
    """Return the newest leader epoch that has a batch: an entry at or beyond the log end has none."""
    try:
        entries = read_leader_epoch_checkpoint(
            filesystem, os.path.join(directory.path, LEADER_EPOCH_CHECKPOINT)
        )
    except (CorruptCheckpointError, LogDirectoryError) as error:
        _log.warning("A copy of %s-%d counts as an old one: %s", directory.topic, directory.partition, error)
        return _NO_EPOCH
    return max((entry.epoch for entry in entries if entry.start_offset < end_offset), default=_NO_EPOCH)


_WATCHED_FILES = frozenset({COMMIT_JOURNAL, COMMITS_FILE, TRUNCATIONS_FILE})
_NAMES_IN_A_MESSAGE = 3


def find_partitions(
    filesystem: ReadableFileSystem,
    paths: Iterable[str],
    *,
    follow_symlinks: bool = False,
    monitor: CommitMonitor | None = None,
    must_be_log_directory: bool = False,
    is_repeated: bool = False,
    is_remote: bool = False,
) -> list[PartitionDirectory]:
    """Find every partition under ``paths``, once, ordered by topic and partition.

    Directories that wait for deletion, are being moved, or are not known to the cluster
    (``-delete``, ``-future``, ``-stray``) are left out, and so are symbolic links to
    directories unless ``follow_symlinks`` is set. A path that is itself a link is followed.
    Partitions that a commit creates are hidden until its rows are visible.

    Args:
        filesystem: Where to look.
        paths: Log directories, folders of them, or partition directories.
        follow_symlinks: Whether symbolic links to directories are followed.
        monitor: Notes each log directory, and says what is visible in it.
        must_be_log_directory: Whether finding no partition is an error, unless a path is an empty log directory,
            or a folder of such.
        is_repeated: Whether these paths were searched before: what is left out is then no news for the log.
        is_remote: Whether they lead to remote storage.

    Raises:
        LogDirectoryError: A path does not exist, or is no directory.
        UnreadableError: This user may not read a directory.
        ReplicaConflictError: A partition is in two roots that do not belong together.
    """
    paths = tuple(paths)
    level = logging.DEBUG if is_repeated else logging.WARNING
    search = _Search(filesystem, follow_symlinks, monitor, level, is_remote=is_remote)
    for path in paths:
        search.add_path(path)
    found = search.result()
    if must_be_log_directory and not found and not search.has_log_directory:
        raise no_log_error(filesystem, paths)
    search.warn_of_misnamed()
    return found


_GLOB = re.compile(r"[*?[{]")
_MAX_GLOB_ALTERNATIVES = 1000
_MAX_NESTED_BRACES = 16


def is_glob(path: str) -> bool:
    """Return True if a path has a character that is special in globs."""
    return _GLOB.search(path) is not None


def directories_that_match(filesystem: ReadableFileSystem, glob: str) -> list[str]:
    """Find the directories that a glob matches, in order: ``*``, ``?``, ``[a-z]``, ``[^a-z]`` and ``{a,b}``.

    As in a shell, ``*`` and ``?`` match neither a ``/`` nor the dot that begins a hidden name. They do not match
    ``lost+found`` and the other directories that hold no partitions either. Symbolic links are followed.

    Raises:
        OptionError: The glob matches no directory, or its braces have too many alternatives.
        UnreadableError: This user may not read a directory.

    Source: Hadoop's ``FileSystem.globStatus``, which expands the paths of Spark's file sources.
    """
    found: dict[str, None] = {}
    for pattern in _without_braces(glob):
        top = store_of(pattern) if is_uri(pattern) else "/" * pattern.startswith("/")
        bases = [top]
        parts = [*filter(None, pattern.removeprefix(top).split("/"))]
        for part in parts:
            bases = [path for base in bases for path in _matches(filesystem, base, part)]
        if not parts or not is_glob(parts[-1]):
            bases = [path for path in bases if _is_directory(filesystem, path)]
        found.update(dict.fromkeys(bases))
    if not found:
        raise OptionError(
            f"path {glob!r} matches no directory. Expected a glob of log directories, with *, ?, [a-z] or {{a,b}}; "
            "each directory above them must be readable."
        )
    return sorted(found)


def _without_braces(glob: str) -> list[str]:
    """Expand the alternatives in braces, as a shell does. A brace without its counterpart stands for itself."""
    closing: dict[int, int] = {}
    opened: list[int] = []
    for place, character in enumerate(glob):
        if character == "{":
            opened.append(place)
        elif character == "}" and opened:
            closing[opened.pop()] = place
    _check_count(glob, len(closing))
    return list(dict.fromkeys(_expanded(glob, closing, 0, len(glob), _MAX_NESTED_BRACES)))


def _expanded(glob: str, closing: Mapping[int, int], start: int, end: int, levels: int) -> list[str]:
    """Expand a part of a glob, given where each of its braces is closed."""
    if levels < 0:
        raise OptionError(
            f"path {glob!r} has braces within braces, more than {_MAX_NESTED_BRACES} levels deep. Write it with fewer."
        )
    found = [""]
    place = start
    while place < end:
        if place in closing:
            parts = _parts(glob, closing, place + 1, closing[place])
            texts = [text for part in parts for text in _expanded(glob, closing, *part, levels - 1)]
            place = closing[place] + 1
        else:
            literal_end = next((at for at in range(place, end) if at in closing), end)
            texts = [glob[place:literal_end]]
            place = literal_end
        _check_count(glob, len(found) * len(texts))
        found = [before + text for before in found for text in texts]
    return found


def _parts(glob: str, closing: Mapping[int, int], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Split a part of a glob at its commas, but for those in braces."""
    begin = place = start
    while place < end:
        if place in closing:
            place = closing[place]
        elif glob[place] == ",":
            yield begin, place
            begin = place + 1
        place += 1
    yield begin, end


def _check_count(glob: str, count: int) -> None:
    if count > _MAX_GLOB_ALTERNATIVES:
        raise OptionError(
            f"path {glob!r} has more than {_MAX_GLOB_ALTERNATIVES} alternatives in braces. Name fewer, or use *."
        )


def _matches(filesystem: ReadableFileSystem, base: str, part: str) -> list[str]:
    """Return the directories in ``base`` whose names match one part of a glob. Without wildcards, the result need not exist."""
    if not is_glob(part):
        # A store would list all that is below a directory that is asked about.
        return [os.path.join(base, part)]
    accepts = re.compile(fnmatch.translate(part.replace("[^", "[!"))).match
    try:
        entries = filesystem.list_directory(base or ".")
    except UnreadableError:
        raise
    except LogDirectoryError:
        # A live broker renames and deletes directories, and what has no wildcard may be anything.
        return []
    return [
        os.path.join(base, entry.name)
        for entry in entries
        if accepts(entry.name)
        and (part.startswith(".") or not entry.name.startswith("."))
        and entry.name not in OTHER_DIRECTORIES
        and (entry.is_directory or _is_directory(filesystem, os.path.join(base, entry.name)))
    ]


def _is_directory(filesystem: ReadableFileSystem, path: str) -> bool:
    try:
        status = filesystem.status(path, follow_symlinks=True)
    except UnreadableError:
        raise
    except LogDirectoryError:
        # A link to itself, or a name that is too long.
        return False
    return status is not None and status.is_directory


class _Search:
    """The partitions found so far."""

    def __init__(
        self,
        filesystem: ReadableFileSystem,
        follow_symlinks: bool,
        monitor: CommitMonitor | None,
        level: int,
        *,
        is_remote: bool,
    ) -> None:
        self._log_directories: set[str] = set()
        self._filesystem = filesystem
        self._follow_symlinks = follow_symlinks
        self._monitor = monitor
        self._level = level
        self._is_remote = is_remote
        self._roots: dict[str, LogDirectoryFiles] = {}
        self._found: dict[tuple[str, int], list[PartitionDirectory]] = {}
        self._misnamed: dict[str, None] = {}

    @property
    def has_log_directory(self) -> bool:
        """Return True if a log directory was found, with or without partitions."""
        return bool(self._log_directories)

    def result(self) -> list[PartitionDirectory]:
        return [
            choose_replica(self._filesystem, self._found[key], self._level) for key in sorted(self._found)
        ]

    def warn_of_misnamed(self) -> None:
        """Warn of the directories of partitions that no read finds by their names."""
        for path in self._misnamed:
            self._warn("Left out %s, a partition's directory that is not named <topic>-<partition>.", path)

    def add_path(self, path: str) -> None:
        if not path:
            raise LogDirectoryError("Expected the path of a log directory, found an empty text.")
        # Later reads may run with another working directory.
        path = absolute_path(path)
        status = self._filesystem.status(path, follow_symlinks=True)
        if status is None or not status.is_directory:
            raise no_log_error(self._filesystem, [path])
        name = partition_named_by(path)
        if name is not None and name.suffix is None and self._is_hidden(name, os.path.dirname(path)):
            return
        if name is not None and holds_partition_files(self._filesystem, path):
            if name.suffix is not None:
                self._warn(
                    "Left out %s: a directory with suffix -%s is not a live partition.", path, name.suffix
                )
            else:
                self._add_partition(path, name.topic, name.partition, os.path.dirname(path))
            return
        # Hidden directories are left out: some file systems keep snapshots in them.
        for directory_name in self._add_log_directory(path):
            below = os.path.join(path, directory_name)
            others = self._add_log_directory(below)
            if others and below in self._log_directories:
                self._warn_of_others(below, others)

    def _add_log_directory(self, path: str) -> list[str]:
        """Add the partitions in ``path``, and warn of other directories beside them.

        Returns:
            The names of its directories if no partition is among them: they may be log directories.
        """
        found_any = False
        others = []
        unreadable: list[_Unreadable] = []
        for directory_name in self._subdirectories(path):
            partition_path = os.path.join(path, directory_name)
            name = parse_partition_directory_name(directory_name)
            if name is not None and name.suffix is None and self._is_hidden(name, path):
                found_any = True
            elif name is not None and name.suffix is not None:
                _log.debug("Left out %s: it is not a live partition.", partition_path)
            elif name is not None and self._holds_partition_files(name, partition_path, unreadable):
                found_any = True
                self._add_partition(partition_path, name.topic, name.partition, path)
            elif not directory_name.startswith("."):
                others.append(directory_name)
        unread_paths = {each[1] for each in unreadable}
        others = [other for other in others if os.path.join(path, other) not in unread_paths]
        for unread_name, unread_path, why in unreadable:
            if not found_any and path not in self._log_directories:
                # It may be a log directory with the name of a partition.
                raise why
            self._add_partition(unread_path, unread_name.topic, unread_name.partition, path)
        if not found_any:
            return others
        self._misnamed.pop(path, None)
        if others:
            self._warn_of_others(path, others)
        return []

    def _holds_partition_files(
        self, name: PartitionDirectoryName, path: str, unreadable: list[_Unreadable]
    ) -> bool:
        try:
            return holds_partition_files(self._filesystem, path)
        except UnreadableError as error:
            unreadable.append((name, path, error))
            return False

    def _add_partition(self, path: str, topic: str, partition: int, root_path: str) -> None:
        directory = PartitionDirectory(path, topic, partition, self._root(root_path))
        self._found.setdefault(directory.topic_partition, []).append(directory)

    def _root(self, path: str) -> LogDirectoryFiles:
        root = self._roots.get(path)
        if root is None:
            root = self._roots[path] = LogDirectoryFiles(self._filesystem, path, is_remote=self._is_remote)
            if self._monitor is not None:
                root.visibility = self._monitor.visibility_of(path)
        return root

    def _is_hidden(self, name: PartitionDirectoryName, root_path: str) -> bool:
        return self._root(root_path).visibility.is_hidden(name.topic, name.partition)

    def _entries(self, path: str) -> list[DirectoryEntry]:
        """List a directory that may be a root. If it has commits or truncations, read their visibility and list again."""
        entries = self._filesystem.list_directory(path)
        is_watched = any(entry.name in _WATCHED_FILES for entry in entries)
        if is_watched and self._monitor is not None and self._monitor.observe(path):
            entries = self._filesystem.list_directory(path)
        if is_log_directory(entries):
            self._log_directories.add(path)
        if is_partition_directory(entries):
            self._misnamed[path] = None
        return entries

    def _subdirectories(self, path: str) -> list[str]:
        names: list[str] = []
        left_out: list[str] = []
        for entry in self._entries(path):
            if entry.name in OTHER_DIRECTORIES:
                continue
            if entry.is_directory:
                names.append(entry.name)
            elif entry.is_symlink and self._leads_to_directory(path, entry):
                (names if self._follow_symlinks else left_out).append(entry.name)
        if left_out:
            self._warn(
                "Left out symbolic links to directories in %s: %s. Set followSymlinks to read them.",
                path,
                _some(left_out),
            )
        return names

    def _leads_to_directory(self, path: str, entry: DirectoryEntry) -> bool:
        try:
            status = self._filesystem.status(os.path.join(path, entry.name), follow_symlinks=True)
        except LogDirectoryError as error:
            if self._follow_symlinks:
                raise
            return isinstance(error, UnreadableError)
        return status is not None and status.is_directory

    def _warn_of_others(self, path: str, names: list[str]) -> None:
        self._warn("Left out directories in %s that are not partitions: %s", path, _some(names))

    def _warn(self, message: str, path: str, *values: str) -> None:
        _log.log(self._level, message, visible(path), *values)


def partition_named_by(path: str) -> PartitionDirectoryName | None:
    """Return the partition that the last part of a path names.

    Returns:
        The partition; None if that is no name of a partition's directory. A bucket has no directory around it, so it is none.
    """
    is_bucket = is_uri(path) and path == store_of(path)
    return None if is_bucket else parse_partition_directory_name(os.path.basename(path))


def _some(names: list[str]) -> str:
    return visible(first_of(names, _NAMES_IN_A_MESSAGE))
