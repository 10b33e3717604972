"""``.segmentlog-commits`` in a log directory's root: a line for each job whose rows are visible, appended.

The line is what makes them visible. Each is the CRC-32C of its JSON as 8 hexadecimal digits, a blank, and the JSON:

    <crc> {"generation":8,"job":"<32 hex>","time_ms":…,"txn_app_id":null,"txn_version":null}

What stands behind the last whole line with a right CRC was never committed; the next commit cuts it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from storage_core.checkpoint.checkpoint_file import INT64_MAX, read_small_file, replace_file
from storage_core.commit_files.json_fields import json_bytes, parse_json_object
from storage_core.errors import CorruptCheckpointError, LogDirectoryError, OptionError, UnreadableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage_core.filesystem import FileSystem

__all__ = [
    "COMMITS_FILE",
    "JOB_ID",
    "MAX_COMMITS_BYTES",
    "OWN_PREFIX",
    "TXN_APP_ID",
    "CommitEntry",
    "CommitsFile",
    "append_commit",
    "commit_line",
    "flush_commits",
    "parse_commits_file",
    "read_commits_file",
    "read_last_commit",
    "replace_commits_file",
    "shortened_commits",
]


OWN_PREFIX: Final = ".segmentlog-"
"""What the names of this package's own files in a log directory begin with: no topic is made whose name does, too."""
COMMITS_FILE: Final = f"{OWN_PREFIX}commits"
# It is shortened beyond 1 MiB; 30,000 lines of different applications may remain.
MAX_COMMITS_BYTES: Final = 64 * 1024 * 1024
JOB_ID: Final = re.compile(r"[0-9a-f]{32}")
TXN_APP_ID: Final = re.compile(r".+", re.DOTALL)
_LONGEST_LINE_BYTES: Final = 8192
_LINE: Final = re.compile(rb"([0-9a-f]{8}) ([^\n]*)\n")
_LINES_KEPT: Final = 1000


@dataclass(frozen=True, slots=True)
class CommitEntry:
    """A job whose rows are visible.

    Attributes:
        generation: Counts the commits of this log directory, from 1 on.
        job_id: 32 hexadecimal digits.
        time_ms: When it was committed.
        txn_app_id: The application that numbers its commits, if it does.
        txn_version: The number that it gave to this one.
    """

    generation: int
    job_id: str
    time_ms: int
    txn_app_id: str | None = None
    txn_version: int | None = None


@dataclass(frozen=True, slots=True)
class CommitsFile:
    """What the file says.

    Attributes:
        entries: In the order of their commits.
        size_bytes: Where the last whole line ends; what stands behind it was never committed.
    """

    entries: tuple[CommitEntry, ...] = ()
    size_bytes: int = 0

    @property
    def generation(self) -> int:
        """The generation of the last commit; 0 if there was none."""
        return self.entries[-1].generation if self.entries else 0

    def has_job(self, job_id: str) -> bool:
        """Whether a job's rows are visible."""
        return any(entry.job_id == job_id for entry in self.entries)

    def last_txn_version(self, txn_app_id: str) -> int | None:
        """The highest number that an application gave to a commit; None if it gave none."""
        versions = [
            entry.txn_version
            for entry in self.entries
            if entry.txn_app_id == txn_app_id and entry.txn_version is not None
        ]
        return max(versions, default=None)


def read_commits_file(filesystem: FileSystem, root: str) -> CommitsFile:
    """Read the commits of a log directory; a missing file has none.

    Raises:
        CorruptCheckpointError: A line in front of the last whole one is damaged.
        UnreadableError: This user may not read it.
    """
    path = os.path.join(root, COMMITS_FILE)
    data = read_small_file(filesystem, path, MAX_COMMITS_BYTES)
    return CommitsFile() if data is None else parse_commits_file(data, path)


def parse_commits_file(data: bytes, path: str) -> CommitsFile:
    """Parse the content of the file.

    Raises:
        CorruptCheckpointError: A line in front of the last whole one is damaged.
    """
    entries: list[CommitEntry] = []
    position_bytes = size_bytes = 0
    first_damaged_bytes: int | None = None
    for line in _lines(data):
        entry = _entry(line, path)
        if entry is None:
            if first_damaged_bytes is None:
                first_damaged_bytes = position_bytes
        elif first_damaged_bytes is not None:
            raise _damaged(path, first_damaged_bytes)
        else:
            entries.append(entry)
            size_bytes = position_bytes + len(line)
        position_bytes += len(line)
    return CommitsFile(tuple(entries), size_bytes)


def read_last_commit(filesystem: FileSystem, root: str) -> CommitEntry | None:
    """The last commit of a log directory, without reading those before; None if there was none.

    Raises:
        CorruptCheckpointError: The end of the file holds no whole line.
        UnreadableError: This user may not read it.
    """
    path = os.path.join(root, COMMITS_FILE)
    try:
        opened = filesystem.open(path)
    except FileNotFoundError:
        return None
    except UnreadableError:
        raise
    except LogDirectoryError as error:
        raise CorruptCheckpointError(error.args[0], path=path) from error
    with opened:
        size_bytes = opened.status.size_bytes
        # A line that was not finished, and the whole one in front of it.
        position_bytes = max(0, size_bytes - 2 * _LONGEST_LINE_BYTES)
        data = opened.read_at(size_bytes - position_bytes, position_bytes)
    for line in reversed(_lines(data)):
        entry = _entry(line, path)
        if entry is not None:
            return entry
    if size_bytes > _LONGEST_LINE_BYTES:
        raise _damaged(path, position_bytes)
    return None


def append_commit(
    filesystem: FileSystem, root: str, entry: CommitEntry, size_bytes: int, *, flush: bool = True
) -> None:
    """Append a line behind the last whole one: the job's rows are visible when this returns, for good with ``flush``.

    Args:
        filesystem: Where to write.
        root: The log directory.
        entry: The job.
        size_bytes: Where the last whole line ends, as `read_commits_file` found it.
        flush: Whether it has to be on the disk.

    Raises:
        OptionError: The line would be longer than any that is read.
        StorageError: The file system refused.
    """
    line = commit_line(entry)
    with filesystem.open_for_writing(os.path.join(root, COMMITS_FILE), create=True) as file:
        file.truncate(size_bytes)
        file.write_at([line], size_bytes)
        if flush:
            file.flush()
    if flush:
        filesystem.flush_directory(root)


def flush_commits(filesystem: FileSystem, root: str) -> None:
    """Bring the lines that are there to the disk: their jobs' rows are visible for good when this returns.

    Raises:
        StorageError: The file system refused.
    """
    with filesystem.open_for_writing(os.path.join(root, COMMITS_FILE)) as file:
        file.flush()
    filesystem.flush_directory(root)


def replace_commits_file(filesystem: FileSystem, root: str, entries: Sequence[CommitEntry]) -> None:
    """Replace the whole file.

    Raises:
        OptionError: A line would be longer than any that is read.
        StorageError: The file system refused.
    """
    data = b"".join(map(commit_line, entries))
    replace_file(filesystem, os.path.join(root, COMMITS_FILE), data)


def shortened_commits(entries: Sequence[CommitEntry]) -> list[CommitEntry]:
    """The last 1,000 entries, and in front of them the last one of each application that is not among those."""
    kept = list(entries[-_LINES_KEPT:])
    applications = {entry.txn_app_id for entry in kept}
    older = []
    for entry in reversed(entries[:-_LINES_KEPT]):
        if entry.txn_app_id is not None and entry.txn_app_id not in applications:
            applications.add(entry.txn_app_id)
            older.append(entry)
    return older[::-1] + kept


def commit_line(entry: CommitEntry) -> bytes:
    """One line of the file.

    Raises:
        OptionError: It would be longer than any that is read.
    """
    data = json_bytes(
        {
            "generation": entry.generation,
            "job": entry.job_id,
            "time_ms": entry.time_ms,
            "txn_app_id": entry.txn_app_id,
            "txn_version": entry.txn_version,
        }
    )
    line = b"%08x %b\n" % (crc32c(data), data)
    if len(line) > _LONGEST_LINE_BYTES:
        raise OptionError(
            f"Expected a txnAppId with which a line of {COMMITS_FILE} has at most {_LONGEST_LINE_BYTES} bytes, "
            f"found one of {len(entry.txn_app_id or '')} characters. Choose a shorter one."
        )
    return line


def _lines(data: bytes) -> list[bytes]:
    """The lines with their ends; the last one may lack it."""
    *whole, rest = data.split(b"\n")
    lines = [line + b"\n" for line in whole]
    return [*lines, rest] if rest else lines


def _entry(line: bytes, path: str) -> CommitEntry | None:
    """What a line says; None if it is none, or not whole."""
    match = _LINE.fullmatch(line)
    if match is None or int(match[1], 16) != crc32c(match[2]):
        return None
    fields = parse_json_object(match[2], path)
    is_txn = not fields.is_null("txn_app_id")
    return CommitEntry(
        generation=fields.integer("generation", minimum=1),
        job_id=fields.text("job", JOB_ID, "32 hexadecimal digits"),
        time_ms=fields.integer("time_ms", minimum=-INT64_MAX),
        txn_app_id=fields.text("txn_app_id", TXN_APP_ID, "a text") if is_txn else None,
        txn_version=fields.integer("txn_version", minimum=-INT64_MAX - 1) if is_txn else None,
    )


def _damaged(path: str, position_bytes: int) -> CorruptCheckpointError:
    message = (
        "Expected a line with a right CRC-32C, found another one. Which jobs were committed is not known for "
        "sure: restore the file, or take out the damaged lines and what those jobs may write again."
    )
    return CorruptCheckpointError(message, path=path, position_bytes=position_bytes)
