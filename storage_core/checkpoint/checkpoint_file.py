"""The layout that Kafka's text checkpoint files share (Kafka's ``CheckpointFile``), and their atomic replacement.

    <version>
    <number of entries>
    <entry>
    ...

A file without any line, or with a version line only, has no entries. Text is strict UTF-8, and lines end as in Java.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from storage_core.config import INT_MAX
from storage_core.errors import CorruptCheckpointError, CorruptError, LogDirectoryError, UnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from storage_core.filesystem import FileSystem, ReadableFileSystem


# A file with this suffix was never finished; a broker ignores and overwrites it.
TEMPORARY_SUFFIX = ".tmp"
# What Integer.parseInt and Long.parseLong accept, in ASCII; a limit of 20 digits keeps int() cheap.
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
# The line ends of BufferedReader.readLine; str.splitlines has more.
_LINE_END = re.compile(r"\r\n|\n|\r")


def read_small_file(
    filesystem: ReadableFileSystem,
    path: str,
    limit_bytes: int,
    error_type: type[CorruptError] = CorruptCheckpointError,
) -> bytes | None:
    """Read a small file.

    Returns:
        None if it does not exist.

    Raises:
        UnreadableError: This user may not read it.
        CorruptError: It is longer than ``limit_bytes``, or not a regular file.
    """
    try:
        return filesystem.read_file(path, limit_bytes)
    except UnreadableError:
        raise
    except LogDirectoryError as error:
        raise error_type(error.args[0], path=path) from error


def replace_file(
    filesystem: FileSystem,
    path: str,
    data: bytes,
    *,
    flush: bool = True,
    flush_name: bool = True,
    like: Sequence[str] = (),
) -> None:
    """Replace a small file atomically: after a crash it has its old content or the new one.

    With ``flush=False`` that is true only of a crash of this process: after a crash of the machine the file may be
    empty, truncated or missing, which its content has to reveal by a CRC. With ``flush_name=False`` it may then be
    missing or the old one, but is complete. It becomes as private as the old one and the files ``like``.
    """
    with filesystem.replacing(path, like=like) as file:
        file.write_at([data], 0)
        if flush:
            file.flush()
    if flush and flush_name:
        filesystem.flush_directory(os.path.dirname(path) or ".")


def decode_text(data: bytes, path: str) -> str:
    """Decode strict UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        message = "Expected UTF-8 text, found other bytes. Restore the file, or remove it."
        raise CorruptCheckpointError(message, path=path, position_bytes=error.start) from error


def split_lines(text: str) -> list[str]:
    """Split at line ends; the last line may lack one."""
    lines = _LINE_END.split(text)
    if lines[-1] == "":
        lines.pop()
    return lines


def parse_integer(text: str, maximum: int) -> int | None:
    """Parse a signed decimal integer of at most ``maximum``.

    Returns:
        None if the text is not one.
    """
    if not _INTEGER.fullmatch(text):
        return None
    value = int(text)
    return value if -maximum - 1 <= value <= maximum else None


# 100,000 partitions with the longest topic names fit.
MAX_CHECKPOINT_BYTES = 32 * 1024 * 1024
# No log directory has more partitions, and no log more epochs.
_MAX_ENTRIES = 500_000
_VERSION = 0
# Java's \s; Python's would also split at other Unicode blanks.
_BLANKS = re.compile(r"[ \t\n\x0b\f\r]+")


def entry_fields(data: bytes, path: str, field_count: int) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and fields of each entry; the count is checked after the last one."""
    text = decode_text(data, path)
    _require_plausible_size(text, path)
    lines = split_lines(text)
    if not lines:
        return
    version = parse_integer(lines[0], INT_MAX)
    if version is None:
        raise malformed_line(path, 1, lines[0], "a version number")
    if version != _VERSION:
        message = (
            f"Expected version {_VERSION} in this checkpoint file, found {version}. A newer Kafka wrote it."
        )
        raise CorruptCheckpointError(message, path=path)
    if len(lines) == 1:
        return
    expected_count = parse_integer(lines[1], INT_MAX)
    if expected_count is None or expected_count < 0:
        raise malformed_line(path, 2, lines[1], "the number of entries")
    for line_number, line in enumerate(lines[2:], start=3):
        fields = _BLANKS.split(line)
        # Java's split drops empty strings at the end, but not at the start.
        if len(fields) > 1 and fields[-1] == "":
            fields.pop()
        if len(fields) != field_count:
            raise malformed_line(path, line_number, line, f"{field_count} fields")
        yield line_number, fields
    if len(lines) - 2 != expected_count:
        message = (
            f"Expected {expected_count} entries as the second line says, found {len(lines) - 2}. "
            "The file is damaged: restore it, or remove it."
        )
        raise CorruptCheckpointError(message, path=path)


def checkpoint_text(entries: Iterable[str]) -> str:
    """Return the content of a checkpoint file with these entries."""
    lines = list(entries)
    return "".join(f"{line}\n" for line in [str(_VERSION), str(len(lines)), *lines])


def _require_plausible_size(text: str, path: str) -> None:
    """Reject a file of too many lines before they are parsed."""
    line_ends = text.count("\n") + text.count("\r")
    if line_ends > 2 * _MAX_ENTRIES:
        message = (
            f"Expected at most {_MAX_ENTRIES} entries in this checkpoint file, found {line_ends} line ends. "
            "The file is damaged: restore it, or remove it."
        )
        raise CorruptCheckpointError(message, path=path)


def malformed_line(path: str, line_number: int, line: str, expected: str) -> CorruptCheckpointError:
    """Return the error for one line."""
    message = (
        f"Expected {expected} in line {line_number}, found {line[:80]!r}. "
        "The file is damaged: restore it, or remove it."
    )
    return CorruptCheckpointError(message, path=path)
