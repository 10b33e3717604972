"""The small files beside the segments: read with a limit, as strict UTF-8 and lines as Java has them; replaced whole."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from storage_core.errors import CorruptCheckpointError, LogDirectoryError, UnreadableError

if TYPE_CHECKING:
    from storage_core.filesystem import FileSystem

__all__ = [
    "INT32_MAX",
    "INT64_MAX",
    "TEMPORARY_SUFFIX",
    "decode_text",
    "parse_integer",
    "read_small_file",
    "replace_file",
    "split_lines",
]

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

# A file of this name was never finished; a broker ignores and overwrites it.
TEMPORARY_SUFFIX = ".tmp"

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


def replace_file(
    filesystem: FileSystem, path: str, data: bytes, *, flush: bool = True, flush_name: bool = True
) -> None:
    """Replace the content of a small file: after a crash it has its old content or the new one.

    With ``flush=False`` that holds for a crash of this process alone: after one of the machine the file
    may be empty, cut or missing, so its content must tell that of itself, by a CRC. With ``flush_name=False``
    the file may then be missing, or the old one, but is not torn.

    Raises:
        StorageError: The file system refused; the old content stands, or the new one not yet for good.
    """
    temporary_path = path + TEMPORARY_SUFFIX
    with filesystem.open_for_writing(temporary_path, create=True) as file:
        # What a crash left behind may be longer.
        file.truncate(0)
        file.write_at([data], 0)
        if flush:
            file.flush()
    filesystem.rename(temporary_path, path)
    if flush and flush_name:
        filesystem.flush_directory(os.path.dirname(path) or ".")


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
