"""The layout that Kafka's text checkpoint files share (Kafka's ``CheckpointFile``).

    <version>
    <number of entries>
    <entry>
    ...

A file without any line, or with a version line only, has no entries.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from storage_core.checkpoint._small_file import (
    INT32_MAX,
    decode_text,
    parse_integer,
    replace_file,
    split_lines,
)
from storage_core.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from storage_core.filesystem import FileSystem

__all__ = ["MAX_CHECKPOINT_BYTES", "entry_fields", "malformed_line", "write_checkpoint"]

# 100,000 partitions with the longest topic names fit.
MAX_CHECKPOINT_BYTES = 32 * 1024 * 1024
# More partitions than this are in no log directory, nor more epochs in a log.
_MOST_ENTRIES = 500_000

_VERSION = 0
# Java's \s; Python's would also split at other Unicode blanks.
_BLANKS = re.compile(r"[ \t\n\x0b\f\r]+")


def entry_fields(data: bytes, path: str, field_count: int) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and fields of each entry; the count is checked when the last one was taken.

    Raises:
        CorruptCheckpointError: The version, a line or the number of entries is wrong.
    """
    text = decode_text(data, path)
    _require_plausible_size(text, path)
    lines = split_lines(text)
    if not lines:
        return
    version = parse_integer(lines[0], INT32_MAX)
    if version is None:
        raise malformed_line(path, 1, lines[0], "a version number")
    if version != _VERSION:
        message = (
            f"Expected version {_VERSION} in this checkpoint file, found {version}. A newer Kafka wrote it."
        )
        raise CorruptCheckpointError(message, path=path)
    if len(lines) == 1:
        return
    expected_count = parse_integer(lines[1], INT32_MAX)
    if expected_count is None or expected_count < 0:
        raise malformed_line(path, 2, lines[1], "the number of entries")
    for line_number, line in enumerate(lines[2:], start=3):
        fields = _BLANKS.split(line)
        # Java's split drops empty strings at the end, but not the one before leading blanks.
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


def write_checkpoint(
    filesystem: FileSystem, path: str, entries: Iterable[str], *, flush: bool = True
) -> None:
    """Replace a checkpoint file by one with these lines.

    Raises:
        StorageError: The file system refused.
    """
    lines = list(entries)
    text = "".join(f"{line}\n" for line in [str(_VERSION), str(len(lines)), *lines])
    replace_file(filesystem, path, text.encode(), flush=flush)


def _require_plausible_size(text: str, path: str) -> None:
    """Refuse a file of too many lines before they are taken apart."""
    line_ends = text.count("\n") + text.count("\r")
    if line_ends > 2 * _MOST_ENTRIES:
        message = (
            f"Expected at most {_MOST_ENTRIES} entries in this checkpoint file, found {line_ends} line ends. "
            "The file is damaged: restore it, or remove it."
        )
        raise CorruptCheckpointError(message, path=path)


def malformed_line(path: str, line_number: int, line: str, expected: str) -> CorruptCheckpointError:
    """The error for one line."""
    message = (
        f"Expected {expected} in line {line_number}, found {line[:80]!r}. "
        "The file is damaged: restore it, or remove it."
    )
    return CorruptCheckpointError(message, path=path)
