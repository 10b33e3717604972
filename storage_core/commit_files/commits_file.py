"""``.segmentlog-commits`` in a log directory's root: one line for each committed job, in commit order.

Appending the line makes the job's rows visible. A line is the CRC-32C of its JSON as 8 hexadecimal digits, a space,
and the JSON:

    <crc> {"generation":8,"job":"<32 hex>","time_ms":…,"txn_app_id":null,"txn_version":null}

The micro-batch of a stream that has a name of the user's as txn_app_id also has "query_id", the id of the query. A job
with a txn_app_id also has "rows", their number; "checksum", if it is known (see `storage_core.commit.repeated`); and
unless they are many, "offsets", where the rows are, {"<topic>":{"<partition>":[<start>,<end>]}}, beside "truncations",
the size that ``.segmentlog-truncations`` had by then.

Bytes after the last complete line with a valid CRC were never committed; the next commit truncates them.

Now and then a job replaces the file, so that it does not grow with each job: it keeps the last lines, and of each
application whose last line is older, that line. These come first, in the order of their applications, after a line that
says so; a job finds the one that it needs by a binary search. An older release, which would not look there, refuses the
file:

    <crc> {"archived_bytes":18340,"version":2}
"""

from __future__ import annotations

import functools
import logging
import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from crc32c import crc32c

from storage_core.checkpoint.checkpoint_file import replace_file
from storage_core.commit_files.json_fields import TOPIC, JsonFields, json_bytes, parse_json_object
from storage_core.config import LONG_MAX
from storage_core.errors import CorruptCheckpointError, LogDirectoryError, OptionError, UnreadableError

if TYPE_CHECKING:
    from storage_core.filesystem import FileSystem, ReadableFile, ReadableFileSystem


_log = logging.getLogger(__name__)
OWN_PREFIX: Final = ".segmentlog-"
"""The prefix of this package's own files in a log directory; topic names with this prefix are refused."""
COMMITS_FILE: Final = f"{OWN_PREFIX}commits"
MAX_COMMITS_BYTES: Final = 64 * 1024 * 1024
"""A job with a new txn_app_id does not make the file larger than this. Jobs without one still write a little more."""
LARGEST_COMMITS_BYTES: Final = MAX_COMMITS_BYTES + 16 * 1024 * 1024
LONGEST_LINE_BYTES: Final = 8192
JOB_ID: Final = re.compile(r"[0-9a-f]{32}")
_TXN_APP_ID: Final = re.compile(r".+", re.DOTALL)
_LONGEST_ARCHIVE_LINE_BYTES: Final = 64
# The CRC and a space.
_CRC_BYTES: Final = 9
_ARCHIVE: Final = re.compile(rb'[0-9a-f]{8} \{"archived_bytes":([0-9]{1,9}),"version":2\}\n')
_APP_ID_KEY: Final = b'"txn_app_id":'
_AFTER_APP_ID: Final = b',"txn_version":'
# Offsets are left out of a line that they would make longer.
_LONGEST_WITH_OFFSETS_BYTES: Final = 2048
_CHECKSUM: Final = re.compile(r"[0-9a-f]{16}")
_PARTITION: Final = re.compile(r"0|[1-9][0-9]{0,9}")
# Late tasks of earlier jobs are recognised by them.
_LINES_KEPT: Final = 128
# Of more lines than a file has that is shortened, the first ones are not parsed.
_LINES_PARSED: Final = 1024


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
        """Return the fields as `parse` reads them."""
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
        """Return the same commit with the offsets that it has written, unless its line would become long."""
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
                    and TOPIC.fullmatch(topic)
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
        entries: The last commits in order.
        size_bytes: End of the last complete line; bytes after it were never committed.
        older: The last commit of the application that was looked for, if it is before ``entries``.
    """

    entries: tuple[CommitEntry, ...] = ()
    size_bytes: int = 0
    older: CommitEntry | None = None

    @property
    def generation(self) -> int:
        """The generation of the last commit; 0 without one."""
        return self.entries[-1].generation if self.entries else 0

    def has_job(self, job_id: str) -> bool:
        """Return True if a job is committed."""
        return any(entry.job_id == job_id for entry in self.entries)

    def last_of(self, txn_app_id: str) -> CommitEntry | None:
        """Return the commit to which an application gave the highest number; None without one.

        The file must have been read for this application, or be short.
        """
        entries = [each for each in self._known if each.txn_app_id == txn_app_id]
        return max(entries, key=lambda each: each.txn_version or 0, default=None)

    def with_version(self, txn_app_id: str | None, txn_version: int | None) -> CommitEntry | None:
        """Return the last commit to which an application gave a number, if it is known."""
        wanted = txn_app_id, txn_version
        found = (each for each in reversed(self._known) if (each.txn_app_id, each.txn_version) == wanted)
        return next(found, None)

    @property
    def _known(self) -> tuple[CommitEntry, ...]:
        return self.entries if self.older is None else (self.older, *self.entries)


def read_commits_file(
    filesystem: ReadableFileSystem, root: str, txn_app_id: str | None = None
) -> CommitsFile:
    """Read the last commits of a log directory, and the last one of an application; a missing file holds none.

    Raises:
        CorruptCheckpointError: A line before the last complete one is damaged, or the file is too long.
        UnreadableError: This user may not read the file.
    """
    path = os.path.join(root, COMMITS_FILE)
    opened = _open(filesystem, path)
    if opened is None:
        return CommitsFile()
    with opened:
        start_bytes, end_bytes = _archive(opened)
        lines, size_bytes = _whole_lines(_read(opened, end_bytes), path, end_bytes)
        older = None
        if txn_app_id is not None and start_bytes < end_bytes:
            older = _archived(opened, start_bytes, end_bytes, _token(txn_app_id))
    if txn_app_id is not None and len(lines) > _LINES_PARSED:
        text = _APP_ID_KEY + _token(txn_app_id) + _AFTER_APP_ID
        found = next((line for line in reversed(lines[:-_LINES_PARSED]) if text in line), None)
        older = older if found is None else _parsed(found, path)
    entries = tuple(_parsed(line, path) for line in lines[-_LINES_PARSED:])
    return CommitsFile(entries, size_bytes, older)


def parse_commits_file(data: bytes, path: str) -> CommitsFile:
    """Parse the whole content of a commits file.

    Raises:
        CorruptCheckpointError: A line before the last complete one is damaged.
    """
    archived, lines, size_bytes = _all_lines(data, path)
    return CommitsFile(tuple(_parsed(line, path) for line in (*archived, *lines)), size_bytes)


def _open(filesystem: ReadableFileSystem, path: str) -> ReadableFile | None:
    try:
        return filesystem.open(path)
    except FileNotFoundError:
        return None
    except UnreadableError:
        raise
    except LogDirectoryError as error:
        raise CorruptCheckpointError(error.args[0], path=path) from error


def _read(file: ReadableFile, start_bytes: int = 0) -> bytes:
    size_bytes = file.status.size_bytes
    if size_bytes > LARGEST_COMMITS_BYTES:
        raise CorruptCheckpointError(
            f"Expected at most {LARGEST_COMMITS_BYTES} bytes in a file of this kind, found {size_bytes}.",
            path=file.path,
        )
    return file.read_at(size_bytes - start_bytes, start_bytes)


def _archive(file: ReadableFile) -> tuple[int, int]:
    """Return where the lines of older applications begin and end; (0, 0) without them."""
    found = _ARCHIVE.match(file.read_at(_LONGEST_ARCHIVE_LINE_BYTES, 0))
    if found is None or not _is_whole(found[0]):
        return 0, 0
    end_bytes = found.end() + int(found[1])
    if end_bytes > file.status.size_bytes:
        raise _damaged(file.path, file.status.size_bytes)
    return found.end(), end_bytes


def _archived(file: ReadableFile, low_bytes: int, high_bytes: int, token: bytes) -> CommitEntry | None:
    """Find the line of an application by binary search between two positions where lines begin."""
    while low_bytes < high_bytes:
        middle_bytes = (low_bytes + high_bytes) // 2
        # The line that holds the byte in the middle begins within this window, unless it is the first one.
        window_bytes = max(low_bytes, middle_bytes - LONGEST_LINE_BYTES)
        data = file.read_at(min(high_bytes, middle_bytes + LONGEST_LINE_BYTES) - window_bytes, window_bytes)
        start = data.rfind(b"\n", 0, middle_bytes - window_bytes) + 1
        end = data.find(b"\n", middle_bytes - window_bytes) + 1
        line = data[start:end]
        found = _application(line) if _is_whole(line) else None
        if found is None:
            raise _damaged(file.path, window_bytes + start)
        if found == token:
            return _parsed(line, file.path)
        if found < token:
            low_bytes = window_bytes + end
        else:
            high_bytes = window_bytes + start
    return None


def _application(line: bytes) -> bytes | None:
    """Return the name of the application of a whole line, as it is there; None without one.

    Keys are sorted, and a quotation mark in a name is escaped. Parsing all of many lines would take long.
    """
    name = _between(line, _APP_ID_KEY, _AFTER_APP_ID)
    return name if name is not None and name.startswith(b'"') else None


def _is_since(line: bytes, oldest_ms: int) -> bool:
    """Return True if a whole line was not written before a time."""
    time_ms = _between(line, b'"time_ms":', b",")
    return time_ms is None or int(time_ms) >= oldest_ms


def _between(line: bytes, before: bytes, after: bytes) -> bytes | None:
    start = line.find(before)
    end = line.find(after, start)
    return None if start < 0 or end < 0 else line[start + len(before) : end]


def _token(txn_app_id: str) -> bytes:
    """Return the name of an application as it is in its line."""
    return json_bytes({"": txn_app_id})[len(b'{"":') : -1]


def read_last_commit(filesystem: ReadableFileSystem, root: str) -> CommitEntry | None:
    """Read the last commit of a log directory from the end of the file; None without commits.

    Raises:
        CorruptCheckpointError: The end of the file holds no complete line.
        UnreadableError: This user may not read the file.
    """
    path = os.path.join(root, COMMITS_FILE)
    opened = _open(filesystem, path)
    if opened is None:
        return None
    with opened:
        size_bytes = opened.status.size_bytes
        # Room for an incomplete line and the complete one before it.
        position_bytes = max(0, size_bytes - 2 * LONGEST_LINE_BYTES)
        data = opened.read_at(size_bytes - position_bytes, position_bytes)
    for line in reversed(_lines(data)):
        entry = _entry(line, path)
        if entry is not None:
            return entry
    if size_bytes > LONGEST_LINE_BYTES:
        raise _damaged(path, position_bytes)
    return None


def append_commit(
    filesystem: FileSystem, root: str, entry: CommitEntry, size_bytes: int, *, flush: bool = True
) -> None:
    """Append a line after the last complete one, which ends at ``size_bytes``; the job's rows become visible."""
    line = commit_line(entry)
    with filesystem.open_for_writing(os.path.join(root, COMMITS_FILE), create=True) as file:
        rest_bytes = file.size_bytes() - size_bytes
        if rest_bytes > 0:
            _log.warning(
                "Removed %d bytes after the last whole line of %s. A crash has left them; or they were the lines of jobs, "
                "and are damaged: these jobs do not count as committed, and would be written again.",
                rest_bytes,
                file.path,
            )
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


def forget_application(filesystem: FileSystem, root: str, txn_app_id: str) -> bool:
    """Forget the versions of an application, not its commits; return True if some were known."""
    if read_commits_file(filesystem, root, txn_app_id).last_of(txn_app_id) is None:
        return False
    shorten_commits_file(filesystem, root, -LONG_MAX, forgotten=_token(txn_app_id))
    return True


def shorten_commits_file(
    filesystem: FileSystem, root: str, oldest_ms: int, *, forgotten: bytes | None = None
) -> None:
    """Keep the last 128 lines, and the last one of each other application unless it is older than a time.

    The application whose name, as it is in its lines, is ``forgotten`` is left out.

    Raises:
        CorruptCheckpointError: A line before the last complete one is damaged.
        StorageError: The file system refused; the file is as it was.
    """
    path = os.path.join(root, COMMITS_FILE)
    opened = _open(filesystem, path)
    if opened is None:
        return
    with opened:
        archived, lines, _ = _all_lines(_read(opened), path)
    kept = lines[-_LINES_KEPT:]
    latest: dict[bytes | None, bytes] = {}
    for line in (*archived, *lines[:-_LINES_KEPT]):
        application = _application(line)
        if application is not None:
            latest[application] = line
    latest.pop(forgotten, None)
    for number, line in enumerate(kept):
        application = _application(line)
        latest.pop(application, None)
        if application is not None and application == forgotten:
            entry = _parsed(line, path)
            kept[number] = commit_line(CommitEntry(entry.generation, entry.job_id, entry.time_ms))
    older = b"".join(line for _, line in sorted(latest.items()) if _is_since(line, oldest_ms))
    if older:
        older = _with_crc(json_bytes({"archived_bytes": len(older), "version": 2})) + older
    replace_file(filesystem, path, older + b"".join(kept))


def commit_line(entry: CommitEntry) -> bytes:
    """Format one line of the file.

    Raises:
        OptionError: It would exceed the longest line that readers accept.
    """
    line = _with_crc(json_bytes(entry.json_values()))
    if len(line) > LONGEST_LINE_BYTES:
        raise OptionError(
            f"Expected a txnAppId that keeps a line of {COMMITS_FILE} within {LONGEST_LINE_BYTES} bytes, "
            f"found one of {len(entry.txn_app_id or '')} characters. Choose a shorter one."
        )
    return line


def _with_crc(data: bytes) -> bytes:
    return b"%08x %b\n" % (crc32c(data), data)


def _all_lines(data: bytes, path: str) -> tuple[list[bytes], list[bytes], int]:
    """Return the lines of older applications, the last lines, and where these end."""
    found = _ARCHIVE.match(data)
    if found is None or not _is_whole(found[0]):
        return [], *_whole_lines(data, path, 0)
    end_bytes = found.end() + int(found[1])
    archived, size_bytes = _whole_lines(data[found.end() : end_bytes], path, found.end())
    if size_bytes != end_bytes:
        raise _damaged(path, size_bytes)
    return archived, *_whole_lines(data[end_bytes:], path, end_bytes)


def _whole_lines(data: bytes, path: str, start_bytes: int) -> tuple[list[bytes], int]:
    """Return the lines up to the last complete one, and where that ends; ``data`` begins at a position in the file."""
    lines = _lines(data)
    are_whole = [_is_whole(line) for line in lines]
    while are_whole and not are_whole[-1]:
        are_whole.pop()
    del lines[len(are_whole) :]
    if not all(are_whole):
        raise _damaged(path, start_bytes + sum(map(len, lines[: are_whole.index(False)])))
    return lines, start_bytes + sum(map(len, lines))


def _lines(data: bytes) -> list[bytes]:
    """Return the lines with their line feeds, which the last one may lack."""
    *whole, rest = data.split(b"\n")
    lines = [line + b"\n" for line in whole]
    return [*lines, rest] if rest else lines


def _is_whole(line: bytes) -> bool:
    """Return True if a line is complete and has its CRC."""
    return line.endswith(b"\n") and line[:_CRC_BYTES] == b"%08x " % crc32c(line[_CRC_BYTES:-1])


# A commit reads the file three times, and the next one of a stream most lines again.
@functools.lru_cache(maxsize=_LINES_PARSED)
def _parsed(line: bytes, path: str) -> CommitEntry:
    return CommitEntry.parse(parse_json_object(line[_CRC_BYTES:-1], path))


def _entry(line: bytes, path: str) -> CommitEntry | None:
    """Parse a line.

    Returns:
        None if it is damaged or incomplete.
    """
    return _parsed(line, path) if _is_whole(line) else None


def _damaged(path: str, position_bytes: int) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        "Expected a line with a valid CRC-32C, found a damaged one, so it is not certain which jobs are committed. "
        "Restore the file, or remove the damaged lines and prevent those jobs from writing again.",
        path=path,
        position_bytes=position_bytes,
    )
