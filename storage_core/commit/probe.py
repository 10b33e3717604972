"""Trying out, before a job begins, what its commit will ask of the file system."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from storage_core.checkpoint.commits_file import OWN_PREFIX
from storage_core.errors import SegmentLogError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from storage_core.filesystem import FileSystem

__all__ = ["probe_target"]

_PROBE: Final = f"{OWN_PREFIX}probe"
_CONTENT: Final = b"segmentlog"
_PATCHED: Final = b"segment***"


def probe_target(filesystem: FileSystem, root: str, *, flush: bool = True) -> None:
    """Write, patch in place, flush, link, rename and read back a small file in the root, which is locked.

    A job that does not flush tries no flush.

    Raises:
        StorageError: One of these failed; the message says which.
    """
    path = os.path.join(root, _PROBE)
    linked, renamed = path + ".link", path + ".renamed"

    def write() -> None:
        with filesystem.open_for_writing(path, create=True) as file:
            file.truncate(0)
            file.write_at([_CONTENT], 0)
            if flush:
                file.flush()

    def patch() -> None:
        with filesystem.open_for_writing(path) as file:
            file.write_at([_PATCHED[-3:]], len(_PATCHED) - 3)
            if flush:
                file.flush()

    def read_back() -> None:
        if filesystem.read_file(renamed, len(_CONTENT)) != _PATCHED:
            raise StorageError("Other bytes were read than were written.", path=renamed)

    steps: tuple[tuple[str, Callable[[], object]], ...] = (
        ("delete a file", lambda: [filesystem.delete(each) for each in (path, linked, renamed)]),
        ("write and flush a file", write),
        ("change it in place", patch),
        ("link it", lambda: filesystem.link(path, linked)),
        ("rename it", lambda: filesystem.rename(linked, renamed)),
        ("read it back", read_back),
        ("delete it", lambda: [filesystem.delete(each) for each in (path, renamed)]),
        *([("flush the directory", lambda: filesystem.flush_directory(root))] if flush else []),
    )
    for name, step in steps:
        try:
            step()
        except SegmentLogError as error:
            raise StorageError(
                f"Expected a file system on which a commit can {name}, found one that refused: {error} Write to "
                "another one, a local or shared POSIX file system.",
                path=root,
            ) from error
