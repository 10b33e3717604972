"""Open the file system of what is read, and tell paths from URIs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from storage_core.filesystem.file_system import FileSystem
from storage_core.options.paths import is_uri

if TYPE_CHECKING:
    from storage_core.filesystem.reading import ReadableFileSystem
    from storage_core.options.storage_options import StorageOptions


def open_file_system(
    storage: StorageOptions,  # noqa: ARG001
    filesystem: ReadableFileSystem | None = None,
) -> ReadableFileSystem:
    """Return a file system for the paths of one read.

    Args:
        storage: How to reach object stores.
        filesystem: What the caller reads from instead; None for local paths and URIs.
    """
    return FileSystem() if filesystem is None else filesystem


def absolute_path(path: str) -> str:
    """Return a path that means the same in any working directory. A URI does already."""
    return path if is_uri(path) else os.path.abspath(path)
