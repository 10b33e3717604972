"""What the files of a tier are made of, and how they are opened without a listing."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from storage_core.errors import (
    CorruptCheckpointError,
    CorruptError,
    CorruptIndexError,
    CorruptSnapshotError,
    FileReplacedError,
    LogDirectoryError,
)
from storage_core.filesystem import FileStatus
from storage_core.tier.aiven_manifest import MAX_MANIFEST_BYTES, SegmentManifest, parse_manifest
from storage_core.tier.data_keys import DataKeys
from storage_core.tier.tier_files import ChunkedFile, KeptChunks, MemoryFile, ObjectFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from storage_core.filesystem import FileVersion, ReadableFile, ReadableFileSystem


_Known = TypeVar("_Known")
LOG_PART: Final = "log"
_ERRORS: Final[dict[str, type[CorruptError | LogDirectoryError]]] = {
    LOG_PART: LogDirectoryError,
    "producerSnapshot": CorruptSnapshotError,
}


class TierObject(NamedTuple):
    """What a file is made of. As JSON it is the file's version, by which a task opens it.

    Attributes:
        source: The path of an object, or the text of a file that is not stored.
        source_version: Of the object; None for a text.
        manifest: The path of the manifest that says how to decode the object; None if it is the file as it is.
        part: What the file is by the manifest: the log, or an index.
        newest_timestamp_ms: Of a log, by the manifest.
    """

    size_bytes: int
    modified_ms: int
    source: str
    source_version: FileVersion | None = None
    manifest: str | None = None
    manifest_version: FileVersion | None = None
    part: str = LOG_PART
    newest_timestamp_ms: int | None = None

    @classmethod
    def of_text(cls, text: str) -> TierObject:
        """Return a file that is not stored."""
        return cls(len(text.encode()), 0, text)

    @classmethod
    def of_version(cls, version: str) -> TierObject:
        """Return what a file of this version is made of."""
        return cls(*json.loads(version))

    def decoded(self, manifest: TierObject, part: str, size_bytes: int) -> TierObject:
        """Return the file that a manifest makes of this object."""
        return self._replace(
            size_bytes=size_bytes,
            manifest=manifest.source,
            manifest_version=manifest.source_version,
            part=part,
        )

    @property
    def status(self) -> FileStatus:
        """Return the status of the file."""
        return FileStatus(
            self.size_bytes,
            self.modified_ms,
            json.dumps(self),
            0,
            is_regular_file=True,
            is_directory=False,
            newest_timestamp_ms=self.newest_timestamp_ms,
        )


class TierObjects:
    """Opens the files of tiers.

    Args:
        filesystem: Where the objects are.
        key_file: The value of ``remoteStorageKeyFile``.
    """

    def __init__(self, filesystem: ReadableFileSystem, key_file: str | None) -> None:
        self.filesystem = filesystem
        self._data_keys = DataKeys(filesystem, key_file)
        self._kept = KeptChunks()
        # By directory, so that those that are gone can be forgotten.
        self._known: dict[str, dict[str, tuple[FileVersion | None, Any]]] = {}

    def stored(self, path: str) -> TierObject | None:
        """Return the object at a path as a file, or None if there is none."""
        found = self.filesystem.status(path)
        return None if found is None else TierObject(found.size_bytes, found.modified_ms, path, found.version)

    def open(self, path: str, made_of: TierObject) -> ReadableFile:
        """Open the file that is shown at a path.

        Raises:
            FileReplacedError: An object is not the one that was listed.
            UnreadableError: The segment is encrypted, and its key is not given, or is another one.
        """
        status = made_of.status
        if made_of.source_version is None:
            return MemoryFile(path, status, made_of.source.encode())
        if made_of.manifest is None:
            return ObjectFile(path, status, self._open(made_of.source, made_of.source_version))
        manifest = self.manifest(made_of.manifest, made_of.manifest_version)
        chunks = manifest.log if made_of.part == LOG_PART else manifest.parts[made_of.part]
        cipher, aad = None, b""
        if manifest.encryption is not None:
            aad = manifest.encryption.aad
            cipher = self._data_keys.cipher(manifest.encryption, made_of.manifest)
        source = self._open(made_of.source, made_of.source_version)
        if cipher is None and not chunks.is_compressed and made_of.part == LOG_PART:
            return ObjectFile(path, status, source)
        error_type = _ERRORS.get(made_of.part, CorruptIndexError)
        return ChunkedFile(path, status, source, chunks, self._kept, error_type, cipher, aad)

    def manifest(self, path: str, version: FileVersion | None) -> SegmentManifest:
        """Return a manifest, which is read once.

        Raises:
            CorruptCheckpointError: It is damaged.
            FileReplacedError: It is not the one that was listed.
        """

        def read() -> SegmentManifest:
            with self._open(path, version) as opened:
                size_bytes = opened.status.size_bytes
                if size_bytes > MAX_MANIFEST_BYTES:
                    message = (
                        f"Expected a manifest of at most {MAX_MANIFEST_BYTES} bytes, found {size_bytes}."
                    )
                    raise CorruptCheckpointError(message, path=path)
                return parse_manifest(opened.read_at(size_bytes, 0), path)

        return self.known(path, version, read)

    def known(self, path: str, version: FileVersion | None, find: Callable[[], _Known]) -> _Known:
        """Return what is known about this version of an object. Find it out at the first call."""
        directory, name = os.path.split(path)
        kept = self._known.setdefault(directory, {})
        if name not in kept or kept[name][0] != version:
            kept[name] = version, find()
        found: _Known = kept[name][1]
        return found

    def keep_known(self, directory: str, names: Iterable[str]) -> None:
        """Forget the objects in a directory that have none of these names."""
        known = self._known.get(directory, {})
        self._known[directory] = {name: known[name] for name in names if name in known}

    def _open(self, path: str, version: FileVersion | None) -> ReadableFile:
        opened = self.filesystem.open(path, version)
        if opened.status.version != version:
            opened.close()
            raise FileReplacedError(
                "Expected the object that was listed, found another one. Read again.", path=path
            )
        return opened
