"""Open the file system of a read: local paths, URIs, and the tiers on either."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage_core.filesystem import FileSystem, RoutedFileSystem
from storage_core.tier.tier_file_system import TierFileSystem

if TYPE_CHECKING:
    from storage_core.filesystem import ReadableFileSystem
    from storage_core.options.storage_options import StorageOptions


def open_file_system(
    storage: StorageOptions, filesystem: ReadableFileSystem | None = None
) -> ReadableFileSystem:
    """Return a file system for the paths of one read.

    Args:
        storage: How to reach object stores, and to decrypt tiers.
        filesystem: What the caller reads from instead; a local one reads URIs as well.
    """
    found = FileSystem() if filesystem is None else filesystem
    if isinstance(found, FileSystem):
        found = RoutedFileSystem(storage, found)
    return found if isinstance(found, TierFileSystem) else TierFileSystem(found, storage.key_file or None)
