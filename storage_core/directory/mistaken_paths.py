"""What is at a path that holds no log: the files of another system, one file, an archive, a renamed partition.

Names tell it; no file is opened.
"""

from __future__ import annotations

import os
import re
from itertools import islice
from typing import TYPE_CHECKING, Final

from storage_core.directory.log_directory_files import (
    OTHER_DIRECTORIES,
    holds_partition_files,
    is_log_directory,
    is_partition_directory,
    parse_partition_directory_name,
)
from storage_core.errors import LogDirectoryError, SegmentLogError, first_of
from storage_core.filesystem import absolute_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from storage_core.filesystem import DirectoryEntry, ReadableFileSystem


_EXPECTED: Final = (
    "Expected a Kafka log directory, a folder of log directories or a partition directory, found "
)
_NAME_ANOTHER: Final = "Name a log directory, as log.dirs does in a broker's configuration."
_WINDOWS_PATH: Final = re.compile(r"(^|/)[A-Za-z]:[\\/]|\\\\")
_FILES: Final = (
    (
        r"[0-9]{20}\..+",
        "one file of a log. Name the directory that it is in; segmentlog dump prints single files.",
    ),
    (
        r".+\.(tar|tgz|tbz2?|txz|tzst|zip|7z|rar|gz|bz2|xz|zst|lz4)",
        "an archive. Unpack it, and name the directory that comes out of it.",
    ),
    (r".*", f"a file. {_NAME_ANOTHER}"),
)
"""What the name of a file tells: the first that matches."""
_OTHER_SYSTEMS: Final = (
    # <base offset>-<term>-v1.log in <topic>/<partition>_<revision>; longer names in its tiered storage.
    (
        (r"[0-9]+-[0-9]+(-[0-9]+-[0-9]+)?-v[0-9]+\.log(\.[0-9]+)?",),
        "segments of Redpanda, whose format is another one. Copy the topics into Kafka first.",
    ),
    # The directory current of a bookie's journal or ledgers.
    (
        ("VERSION", r"lastMark.*|lastId|.+\.txn"),
        "files of Apache BookKeeper, where Pulsar keeps its topics. Copy the topics into Kafka first.",
    ),
    # In commitlog and in consumequeue/<topic>/<queue>.
    ((r"[0-9]{20}",), "files of Apache RocketMQ. Copy the topics into Kafka first."),
    # Rotated files of any program are called log.1, too.
    (
        ("version-2", r"(snapshot|log)\.[0-9a-f]+"),
        f"files of ZooKeeper, which hold no records. {_NAME_ANOTHER}",
    ),
    (
        ("bin", "config", "libs"),
        "Kafka's programs. Name the directory that log.dirs in config/server.properties names.",
    ),
)
"""The names that are in a directory together, or are its own, as patterns, and what they tell."""
_SUFFIXES: Final = {
    "delete": "a partition that a broker was about to delete",
    "stray": "a partition that its cluster did not know",
    "future": "a partition that was being moved to another disk",
}
# As people rename a directory: orders-0.bak, orders-0 copy, orders_0.
_RENAMED: Final = re.compile(r"([a-zA-Z0-9._-]+?)[-_]([0-9]+)(?![0-9])")
_NAMES_IN_A_MESSAGE: Final = 3
# How deep, and in how many directories, the search goes; and into how many in each it looks that are named as partitions are.
_LEVELS: Final = 5
_MOST_LISTED: Final = 500
_SUSPECTS: Final = 20


def no_log_error(filesystem: ReadableFileSystem, paths: Iterable[str]) -> LogDirectoryError:
    """Make the error for paths without a log: it says what is there instead, and what to do."""
    paths = [absolute_path(path) for path in paths]
    for path in paths:
        status = filesystem.status(path, follow_symlinks=True)
        if status is None:
            is_foreign = _WINDOWS_PATH.search(path) is not None
            hint = (
                "It is a Windows path: give its path on this system (with WSL, /mnt/c/...)."
                if is_foreign
                else "Check the path."
            )
            return LogDirectoryError(f"{_EXPECTED}nothing. {hint}", path=path)
        if not status.is_directory:
            return LogDirectoryError(_EXPECTED + _file_at(path), path=path)
    return _directories_error(filesystem, paths)


def _file_at(path: str) -> str:
    name = os.path.basename(path)
    return _other_system(os.path.dirname(path), (name,)) or next(
        text for pattern, text in _FILES if re.fullmatch(pattern, name, re.IGNORECASE | re.DOTALL)
    )


def _directories_error(filesystem: ReadableFileSystem, paths: Sequence[str]) -> LogDirectoryError:
    """Say what is in directories and below them; log directories there are of more use than anything else."""
    logs: list[str] = []
    others: list[tuple[str, str]] = []
    is_empty = True
    for path, entries, holds_logs in _directories_below(filesystem, paths):
        is_empty = is_empty and entries is not None and not entries
        if holds_logs:
            logs.append(path)
        elif entries is not None and (found := _recognised(path, entries)):
            others.append((path, found))
    where = ", ".join(paths)
    if logs:
        text = f"none. There are some deeper: {first_of(sorted(logs), _NAMES_IN_A_MESSAGE)}. Name them, or a glob."
    elif others:
        where, text = others[0]
    elif is_empty:
        text = "an empty directory. Check that its volume is mounted."
    else:
        text = f"none of their files. {_NAME_ANOTHER}"
    return LogDirectoryError(_EXPECTED + text, path=where)


def _directories_below(
    filesystem: ReadableFileSystem, paths: Sequence[str]
) -> Iterator[tuple[str, Sequence[DirectoryEntry] | None, bool]]:
    """Yield directories and those below them, but none below a log directory.

    Yields:
        A path, its entries (None if they cannot be listed), and whether it is a log directory.
    """
    budget = iter(range(_MOST_LISTED))
    level = list(paths)
    for _ in range(_LEVELS):
        below: list[str] = []
        for path, _ in zip(level, budget, strict=False):
            try:
                entries = filesystem.list_directory(path)
            except SegmentLogError:
                yield path, None, False
                continue
            directories = (entry.name for entry in entries if entry.is_directory)
            names = sorted(name for name in directories if not name.startswith("."))
            suspects = islice(filter(_names_partition, names), _SUSPECTS)
            holds_logs = is_log_directory(entries) or any(
                _is_partition(filesystem, path, name) for name in suspects
            )
            yield path, entries, holds_logs
            if not holds_logs:
                below += [os.path.join(path, name) for name in names if name not in OTHER_DIRECTORIES]
        level = below


def _names_partition(directory_name: str) -> bool:
    name = parse_partition_directory_name(directory_name)
    return name is not None and name.suffix is None


def _is_partition(filesystem: ReadableFileSystem, path: str, directory_name: str) -> bool:
    try:
        return holds_partition_files(filesystem, os.path.join(path, directory_name))
    except SegmentLogError:
        return False


def _recognised(path: str, entries: Sequence[DirectoryEntry]) -> str | None:
    """Say what a directory is that is neither a log directory nor a partition's; None if nothing tells."""
    names = [entry.name for entry in entries]
    if not is_partition_directory(entries):
        return _other_system(path, names)
    directory_name = os.path.basename(path)
    name = parse_partition_directory_name(directory_name)
    if name is None:
        renamed = _RENAMED.search(directory_name)
        example = f"{renamed[1]}-{renamed[2]}" if renamed else ""
        example = example if _names_partition(example) else "orders-0"
        return f"a partition in a directory that is not named <topic>-<partition>. Rename or copy it, for example to {example}."
    if name.suffix is None:
        return None
    return f"{_SUFFIXES[name.suffix]}. To read it, copy it to a directory {name.topic}-{name.partition}."


def _other_system(directory: str, names: Sequence[str]) -> str | None:
    names = [os.path.basename(directory), *names]
    for patterns, text in _OTHER_SYSTEMS:
        if all(any(re.fullmatch(pattern, name) for name in names) for pattern in patterns):
            return text
    return None
