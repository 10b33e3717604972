"""Open the file system of a read: local paths, URIs, and the tiers on either."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from storage_core.filesystem import FileSystem, RoutedFileSystem
from storage_core.tier.tier_file_system import TierFileSystem

if TYPE_CHECKING:
    from storage_core.filesystem import ReadableFileSystem
    from storage_core.options.storage_options import StorageOptions


def open_file_system(storage: StorageOptions, filesystem: object = None) -> ReadableFileSystem:
    """Return a file system for the paths of one read.

    Args:
        storage: How to reach object stores, and to decrypt tiers.
        filesystem: What the caller reads from: a `FileSystem` for local paths, or one of pyarrow.fs or fsspec for URIs.

    Raises:
        OptionError: It is none of these.
    """
    if isinstance(filesystem, TierFileSystem):
        return filesystem
    if filesystem is None or isinstance(filesystem, FileSystem):
        base: ReadableFileSystem = RoutedFileSystem(storage, filesystem or FileSystem())
    elif hasattr(filesystem, "forget_listings"):
        base = cast("ReadableFileSystem", filesystem)
    else:
        from storage_core.filesystem.adapter import adapt  # noqa: PLC0415  (few reads need it)

        base = RoutedFileSystem(storage, FileSystem(), adapt(filesystem))
    return TierFileSystem(base, storage.key_file or None)
