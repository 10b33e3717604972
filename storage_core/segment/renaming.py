"""Renaming files of a segment that may not be there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage_core.filesystem import FileSystem

__all__ = ["rename_if_there"]


def rename_if_there(filesystem: FileSystem, source: str, target: str) -> None:
    """Rename a file; without one, do nothing: an index that nobody has written does not appear."""
    if source == target:
        return
    try:
        filesystem.rename(source, target)
    except FileNotFoundError:
        return
