"""``.segmentlog-commits`` in a log directory's root: one line for each committed job, in commit order.

Appending the line makes the job's rows visible. A line is the CRC-32C of its JSON as 8 hexadecimal digits, a space,
and the JSON:

    <crc> {"generation":8,"job":"<32 hex>","time_ms":…,"txn_app_id":null,"txn_version":null}

The micro-batch of a stream that has a name of the user's as txn_app_id also has "query_id", the id of the query. A job
with a txn_app_id also has "rows", their number; "checksum", if it is known (see `storage_core.commit.rows_digest`); and
unless they are many, "offsets", where the rows are, {"<topic>":{"<partition>":[<start>,<end>]}}, beside "truncations",
the size that ``.segmentlog-truncations`` had by then.

Bytes after the last complete line with a valid CRC were never committed; the next commit truncates them.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from crc32c import crc32c

from storage_core.checkpoint.checkpoint_file import read_small_file, replace_file
from storage_core.commit_files.json_fields import JsonFields, json_bytes, parse_json_object
from storage_core.config import LONG_MAX
from storage_core.errors import CorruptCheckpointError, LogDirectoryError, OptionError, UnreadableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage_core.filesystem import FileSystem


OWN_PREFIX: Final = ".segmentlog-"
"""The prefix of this package's own files in a log directory; topic names with this prefix are refused."""
COMMITS_FILE: Final = f"{OWN_PREFIX}commits"
MAX_COMMITS_BYTES: Final = 64 * 1024 * 1024
JOB_ID: Final = re.compile(r"[0-9a-f]{32}")
_TXN_APP_ID: Final = re.compile(r".+", re.DOTALL)
_LONGEST_LINE_BYTES: Final = 8192
_LINE: Final = re.compile(rb"([0-9a-f]{8}) ([^\n]*)\n")
# Offsets are left out of a line that they would make longer.
_LONGEST_WITH_OFFSETS_BYTES: Final = 2048
_CHECKSUM: Final = re.compile(r"[0-9a-f]{16}")
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_PARTITION: Final = re.compile(r"0|[1-9][0-9]{0,9}")
# Late tasks of earlier jobs are recognised by them.
_LINES_KEPT: Final = 128


class WrittenRange(NamedTuple):
    """The offsets that a job has written to one partition, from ``start_offset`` to before ``end_offset``."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class CommitEntry:
    """One job's commit.

    Attributes:
        generation: Number of this commit in its log directory; the first is 1.
        job_id: 32 hexadecimal digits.
        time_ms: Commit time.
        txn_app_id: The application that numbers its commits, if any.
        txn_version: The application's number for this commit.
        query_id: The streaming query that the application is, if its user has named it.
        row_count: How many rows an application's job has written; None: unknown.
        checksum: Their checksum; None: unknown.
        ranges: Where they were written; None: unknown, or too many.
        truncations_bytes: The size of the list of truncations by then.
    """

    generation: int
    job_id: str
    time_ms: int
    txn_app_id: str | None = None
    txn_version: int | None = None
    query_id: str | None = None
    row_count: int | None = None
    checksum: int | None = None
    ranges: tuple[WrittenRange, ...] | None = None
    truncations_bytes: int = 0

    @classmethod
    def parse(cls, fields: JsonFields) -> CommitEntry:
        """Take the entry from the fields of a JSON object that may have others, too.

        Raises:
            CorruptCheckpointError: A field is missing or out of range.
        """
        has_txn = not fields.is_null("txn_app_id")
        has_query = not fields.is_null("query_id")
        return cls(
            generation=fields.integer("generation", minimum=1),
            job_id=fields.text("job", JOB_ID, "32 hexadecimal digits"),
            time_ms=fields.integer("time_ms", minimum=-LONG_MAX),
            txn_app_id=fields.text("txn_app_id", _TXN_APP_ID, "a text") if has_txn else None,
            txn_version=fields.integer("txn_version", minimum=-LONG_MAX - 1) if has_txn else None,
            query_id=fields.text("query_id", _TXN_APP_ID, "a text") if has_query else None,
            row_count=None if fields.is_null("rows") else fields.integer("rows"),
            checksum=(
                None
                if fields.is_null("checksum")
                else int(fields.text("checksum", _CHECKSUM, "16 hexadecimal digits"), 16)
            ),
            ranges=None if fields.is_null("offsets") else _ranges(fields),
            truncations_bytes=0 if fields.is_null("truncations") else fields.integer("truncations"),
        )

    def json_values(self) -> dict[str, Any]:
        """The fields as `parse` reads them."""
        optional: dict[str, Any] = {"query_id": self.query_id, "rows": self.row_count}
        if self.checksum is not None:
            optional["checksum"] = f"{self.checksum:016x}"
        if self.ranges is not None:
            offsets: dict[str, dict[str, list[int]]] = {}
            for topic, partition, start_offset, end_offset in self.ranges:
                offsets.setdefault(topic, {})[str(partition)] = [start_offset, end_offset]
            optional |= {"offsets": offsets, "truncations": self.truncations_bytes}
        return {
            "generation": self.generation,
            "job": self.job_id,
            "time_ms": self.time_ms,
            "txn_app_id": self.txn_app_id,
            "txn_version": self.txn_version,
            **{name: value for name, value in optional.items() if value is not None},
        }

    def with_ranges(self, ranges: tuple[WrittenRange, ...], truncations_bytes: int) -> CommitEntry:
        """The same commit with the offsets that it has written, unless its line would become long."""
        entry = replace(self, ranges=ranges, truncations_bytes=truncations_bytes)
        return entry if len(json_bytes(entry.json_values())) <= _LONGEST_WITH_OFFSETS_BYTES else self


def _ranges(fields: JsonFields) -> tuple[WrittenRange, ...]:
    found = []
    topics = fields.values["offsets"]
    for topic, partitions in topics.items() if isinstance(topics, dict) else [("", None)]:
        for partition, offsets in partitions.items() if isinstance(partitions, dict) else [("", None)]:
            match offsets:
                case [int(start), int(end)] if (
                    0 <= start <= end <= LONG_MAX
                    and _TOPIC.fullmatch(topic)
                    and _PARTITION.fullmatch(partition)
                ):
                    found.append(WrittenRange(topic, int(partition), start, end))
                case _:
                    raise fields.error("offsets", "two offsets for each partition of each topic")
    return tuple(found)


@dataclass(frozen=True, slots=True)
class CommitsFile:
    """The content of the commits file.

    Attributes:
        entries: The commits in order.
        size_bytes: End of the last complete line; bytes after it were never committed.
    """

    entries: tuple[CommitEntry, ...] = ()
    size_bytes: int = 0

    @property
    def generation(self) -> int:
        """The generation of the last commit; 0 without one."""
        return self.entries[-1].generation if self.entries else 0

    def has_job(self, job_id: str) -> bool:
        """Whether a job is committed."""
        return any(entry.job_id == job_id for entry in self.entries)

    def last_of(self, txn_app_id: str) -> CommitEntry | None:
        """The commit to which an application gave the highest number; None without one."""
        entries = [each for each in self.entries if each.txn_app_id == txn_app_id]
        return max(entries, key=lambda each: each.txn_version or 0, default=None)

    def with_version(self, txn_app_id: str | None, txn_version: int | None) -> CommitEntry | None:
        """The last commit to which an application gave a number, if it is known."""
        wanted = txn_app_id, txn_version
        found = (each for each in reversed(self.entries) if (each.txn_app_id, each.txn_version) == wanted)
        return next(found, None)


def read_commits_file(filesystem: FileSystem, root: str) -> CommitsFile:
    """Read the commits of a log directory; raises what `parse_commits_file` raises. A missing file holds none."""
    path = os.path.join(root, COMMITS_FILE)
    data = read_small_file(filesystem, path, MAX_COMMITS_BYTES)
    return CommitsFile() if data is None else parse_commits_file(data, path)


def parse_commits_file(data: bytes, path: str) -> CommitsFile:
    """Parse the content of a commits file.

    Raises:
        CorruptCheckpointError: A line before the last complete one is damaged.
    """
    entries: list[CommitEntry] = []
    position_bytes = size_bytes = 0
    for line in _lines(data):
        entry = _entry(line, path)
        if entry is not None:
            if size_bytes < position_bytes:
                raise _damaged(path, size_bytes)
            entries.append(entry)
            size_bytes += len(line)
        position_bytes += len(line)
    return CommitsFile(tuple(entries), size_bytes)


def read_last_commit(filesystem: FileSystem, root: str) -> CommitEntry | None:
    """Read the last commit of a log directory from the end of the file; None without commits.

    Raises:
        CorruptCheckpointError: The end of the file holds no complete line.
        UnreadableError: This user may not read the file.
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
        # Room for an incomplete line and the complete one before it.
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
    """Append a line after the last complete one, which ends at ``size_bytes``; the job's rows become visible."""
    line = commit_line(entry)
    with filesystem.open_for_writing(os.path.join(root, COMMITS_FILE), create=True) as file:
        file.truncate(size_bytes)
        file.write_at([line], size_bytes)
        if flush:
            file.flush()
    if flush:
        filesystem.flush_directory(root)


def flush_commits(filesystem: FileSystem, root: str) -> None:
    """Flush the lines written so far, so that they survive a power cut."""
    with filesystem.open_for_writing(os.path.join(root, COMMITS_FILE)) as file:
        file.flush()
    filesystem.flush_directory(root)


def replace_commits_file(filesystem: FileSystem, root: str, entries: Sequence[CommitEntry]) -> None:
    """Replace the file atomically."""
    replace_file(filesystem, os.path.join(root, COMMITS_FILE), b"".join(map(commit_line, entries)))


def forget_application(filesystem: FileSystem, root: str, txn_app_id: str) -> bool:
    """Forget the versions of an application, not its commits; return True if some were known."""
    entries = read_commits_file(filesystem, root).entries
    if all(entry.txn_app_id != txn_app_id for entry in entries):
        return False
    kept = [
        CommitEntry(entry.generation, entry.job_id, entry.time_ms)
        if entry.txn_app_id == txn_app_id
        else entry
        for entry in entries
    ]
    replace_commits_file(filesystem, root, kept)
    return True


def shortened_commits(entries: Sequence[CommitEntry]) -> list[CommitEntry]:
    """The last 128 entries, preceded by the last entry of each application that is not among them."""
    kept = list(entries[-_LINES_KEPT:])
    applications = {entry.txn_app_id for entry in kept}
    older = []
    for entry in reversed(entries[:-_LINES_KEPT]):
        if entry.txn_app_id is not None and entry.txn_app_id not in applications:
            applications.add(entry.txn_app_id)
            older.append(entry)
    return older[::-1] + kept


def commit_line(entry: CommitEntry) -> bytes:
    """Format one line of the file.

    Raises:
        OptionError: It would exceed the longest line that readers accept.
    """
    data = json_bytes(entry.json_values())
    line = b"%08x %b\n" % (crc32c(data), data)
    if len(line) > _LONGEST_LINE_BYTES:
        raise OptionError(
            f"Expected a txnAppId that keeps a line of {COMMITS_FILE} within {_LONGEST_LINE_BYTES} bytes, "
            f"found one of {len(entry.txn_app_id or '')} characters. Choose a shorter one."
        )
    return line


def _lines(data: bytes) -> list[bytes]:
    """The lines with their line feeds, which the last one may lack."""
    *whole, rest = data.split(b"\n")
    lines = [line + b"\n" for line in whole]
    return [*lines, rest] if rest else lines


def _entry(line: bytes, path: str) -> CommitEntry | None:
    """Parse a line; None if it is damaged or incomplete."""
    match = _LINE.fullmatch(line)
    if match is None or int(match[1], 16) != crc32c(match[2]):
        return None
    return CommitEntry.parse(parse_json_object(match[2], path))


def _damaged(path: str, position_bytes: int) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        "Expected a line with a valid CRC-32C, found a damaged one, so it is not certain which jobs are committed. "
        "Restore the file, or remove the damaged lines and prevent those jobs from writing again.",
        path=path,
        position_bytes=position_bytes,
    )
