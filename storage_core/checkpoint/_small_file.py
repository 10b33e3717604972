"""Reading the small text files beside the segments: size-limited, strict UTF-8, lines as Java reads them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from storage_core.errors import CorruptCheckpointError, LogDirectoryError, UnreadableError

if TYPE_CHECKING:
    from storage_core.filesystem import FileSystem

__all__ = ["INT32_MAX", "INT64_MAX", "decode_text", "parse_integer", "read_small_file", "split_lines"]

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

# What Integer.parseInt and Long.parseLong take, in ASCII; 20 digits keep int() cheap.
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
# BufferedReader.readLine ends a line at these; str.splitlines would end it at more.
_LINE_END = re.compile(r"\r\n|\n|\r")


def read_small_file(filesystem: FileSystem, path: str, limit_bytes: int) -> bytes | None:
    """Read a file that is too large, or no regular file, as a corrupt one; None if it does not exist.

    Raises:
        UnreadableError: This user may not read it.
        CorruptCheckpointError: It is longer than ``limit_bytes``, or no regular file.
    """
    try:
        return filesystem.read_file(path, limit_bytes)
    except UnreadableError:
        raise
    except LogDirectoryError as error:
        raise CorruptCheckpointError(error.args[0], path=path) from error


def decode_text(data: bytes, path: str) -> str:
    """Decode strict UTF-8.

    Raises:
        CorruptCheckpointError: It is something else.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        message = "Expected UTF-8 text, found other bytes. Restore the file, or remove it."
        raise CorruptCheckpointError(message, path=path, position_bytes=error.start) from error


def split_lines(text: str) -> list[str]:
    """Split at line ends; a last line may lack its line end."""
    lines = _LINE_END.split(text)
    if lines[-1] == "":
        lines.pop()
    return lines


def parse_integer(text: str, maximum: int) -> int | None:
    """Parse a signed decimal integer of at most ``maximum``; None if the text is none."""
    if not _INTEGER.fullmatch(text):
        return None
    value = int(text)
    return value if -maximum - 1 <= value <= maximum else None
