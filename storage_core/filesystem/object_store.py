"""Object stores as a file system that can be read: buckets listed once, and objects opened without a request.

A store has keys and no directories: a directory is what the keys below it have in common, so none is empty. An object of
the same name is hidden behind it, as are the empty objects that some programs create to stand for directories.
"""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

from storage_core.errors import FileReplacedError, LogDirectoryError, SegmentLogError
from storage_core.filesystem.adapter import open_hadoop
from storage_core.filesystem.bucket import ObstoreBucket, StoredObject
from storage_core.filesystem.file_system import FileSystem, ReadableFileSystem
from storage_core.filesystem.remote_file import ClosedFiles, RemoteFile
from storage_core.filesystem.values import (
    DirectoryEntry,
    ExaminedEntry,
    FileStatus,
    FileVersion,
    IoStatistics,
    MissingError,
    StorageTraits,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from storage_core.filesystem.bucket import Bucket
    from storage_core.filesystem.values import BytesLike
    from storage_core.options.storage_options import StorageOptions

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
# The entries of a directory by name.
_Entries: TypeAlias = dict[str, StoredObject]
_TRAITS: Final = StorageTraits(
    request_cost_bytes=2 << 20,
    are_files_fixed=True,
    has_modification_times=False,
    poll_interval_ms=30_000,
    is_shared=True,
)
_DIRECTORY: Final = StoredObject(0, 0, "")
# At some 400 bytes each.
_MOST_LISTED: Final = 5_000_000
_MOST_THREADS: Final = 64
_ITEMS_PER_THREAD: Final = 4


class ObjectStoreFileSystem(ReadableFileSystem):
    """The objects below URIs.

    The first question about a path lists all that is below it, a thousand keys a request, and later ones are answered from
    that until `forget_listings`. A directory that is listed without such a question before, as a glob does it, is listed
    alone. What no listing has said of a file is asked of the store for that file.

    ``statistics`` counts requests: lists, and reads with the bytes that they fetch.

    Args:
        storage: How to reach the stores.
        open_bucket: Opens a bucket by its URI, with those options; None for buckets of the stores that obstore knows, and
            Hadoop's.
        local: The local file system beside them, with which they share ``statistics``.
    """

    def __init__(
        self,
        storage: StorageOptions,
        open_bucket: Callable[[str, StorageOptions], Bucket] | None = None,
        local: FileSystem | None = None,
    ) -> None:
        self._local = local or FileSystem()
        self.statistics = self._local.statistics
        self._storage = storage
        self._open_bucket = open_bucket or _open_bucket
        self._places: dict[str, _Place] = {}
        self._closed = ClosedFiles()
        self._lock = threading.Lock()
        self._share = threading.local()

    @property
    def local(self) -> FileSystem:
        """Return the local file system, for what is written beside a read."""
        return self._local

    def walk_directory(self, path: str) -> Iterator[DirectoryEntry]:
        """List a directory in any order, one entry at a time.

        Raises:
            UnreadableError: The credentials do not suffice.
            LogDirectoryError: It does not exist or is not a directory.
        """
        for name, found in self._entries(path).items():
            yield DirectoryEntry(name, found is _DIRECTORY, found is not _DIRECTORY, False)

    def examine_directory(self, path: str) -> Iterator[ExaminedEntry]:
        """List a directory as `walk_directory` does, with the size of each entry."""
        for name, found in self._entries(path).items():
            kind: Literal["file", "directory"] = "directory" if found is _DIRECTORY else "file"
            yield ExaminedEntry(name, kind, found.size_bytes, found.size_bytes, found.modified_ms)

    def status(self, path: str, *, follow_symlinks: bool = False) -> FileStatus | None:  # noqa: ARG002
        """Return the status of ``path``.

        Returns:
            None if it does not exist.
        """
        place, key = self._place(path)
        found = place.find(key)
        return None if found is None else _status(found, f"{place.bucket.uri}/{key}".rstrip("/"))

    def open(self, path: str, version: FileVersion | None = None) -> RemoteFile:
        """Open an object for reading: without a request if it is listed, or its version is known.

        Raises:
            UnreadableError: The credentials do not suffice.
            LogDirectoryError: It does not exist, or is a directory.
        """
        place, key = self._place(path)
        listed = _of_version(version) if isinstance(version, str) else place.find(key, is_file=True)
        if listed is None:
            raise MissingError("No such object.", path=path)
        if listed is _DIRECTORY:
            message = "Expected an object, found a directory. Only objects are opened."
            raise LogDirectoryError(message, path=path)
        self.statistics.files_opened += 1
        fetch = partial(self._fetch, place, key, listed)
        return RemoteFile(path, _status(listed, path), fetch, self.statistics, self._closed)

    def free_bytes(self, path: str) -> int | None:  # noqa: ARG002
        """Return None: a store has no limit."""
        return None

    def is_locked(self, path: str) -> bool:  # noqa: ARG002
        """Return False: nothing holds a lock in a store."""
        return False

    def traits_of(self, path: str) -> StorageTraits:  # noqa: ARG002
        """Return the traits of an object store."""
        return _TRAITS

    def map(self, function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
        """Apply a function that reads to each item, on up to 64 threads, which nested calls share.

        Yields:
            The results in order.
        """
        items = list(items)
        most = getattr(self._share, "most", _MOST_THREADS)
        count = min(most, len(items))
        if count <= 1:
            yield from map(function, items)
            return
        for start in range(0, len(items), _ITEMS_PER_THREAD * count):
            # The threads have ended when a result is handed out: the garbage collector may close this generator on one of
            # them, after an error that its caller keeps.
            with ThreadPoolExecutor(
                count, "segmentlog-map", self._set_share, (max(1, most // count),)
            ) as threads:
                block = items[start : start + _ITEMS_PER_THREAD * count]
                asked = [threads.submit(function, item) for item in block]
                wait(asked, return_when=FIRST_EXCEPTION)
                threads.shutdown(cancel_futures=True)
            yield from (each.result() for each in asked)

    def forget_listings(self) -> None:
        """Forget what was listed, so that the next question lists again."""
        for place in list(self._places.values()):
            place.forget()

    def _set_share(self, most: int) -> None:
        self._share.most = most

    def _entries(self, path: str) -> _Entries:
        place, key = self._place(path)
        entries = place.entries(key)
        if not entries and key:
            if place.find(key, is_file=True) is not None:
                raise LogDirectoryError("Expected a directory, found an object. Check the path.", path=path)
            raise MissingError("No such directory.", path=path)
        return entries

    def _fetch(
        self, place: _Place, key: str, listed: StoredObject, start_bytes: int, end_bytes: int
    ) -> BytesLike:
        try:
            return place.bucket.get(key, start_bytes, end_bytes, listed)
        except FileReplacedError:
            place.forget()
            raise

    def _place(self, path: str) -> tuple[_Place, str]:
        """Return the bucket of a path with what is known of it, and the path's key there."""
        scheme, separator, rest = path.partition("://")
        authority, _, key = rest.partition("/")
        if not separator or not scheme:
            raise LogDirectoryError("Expected a URI such as s3://bucket/prefix.", path=path)
        uri = f"{scheme}://{authority}"
        with self._lock:
            place = self._places.get(uri)
            if place is None:
                place = self._places[uri] = _Place(self._open_bucket(uri, self._storage), self.statistics)
        return place, key.strip("/")


def _open_bucket(uri: str, options: StorageOptions) -> Bucket:
    return open_hadoop(uri) if uri.startswith(("hdfs://", "viewfs://")) else ObstoreBucket(uri, options)


def _status(found: StoredObject, uri: str) -> FileStatus:
    if found is _DIRECTORY:
        return FileStatus(0, 0, uri, 0, False, True)
    version = f"{found.size_bytes}:{found.etag}"
    return FileStatus(found.size_bytes, found.modified_ms, version, 0, True, False)


def _of_version(version: str) -> StoredObject:
    size_text, _, etag = version.partition(":")
    return StoredObject(int(size_text), 0, etag)


class _Place:
    """What is known of one bucket."""

    def __init__(self, bucket: Bucket, statistics: IoStatistics) -> None:
        self.bucket = bucket
        self._statistics = statistics
        self._lock = threading.RLock()
        # By the keys that were asked about; None until they are listed, and where they are to be listed again.
        self._roots: dict[str, _Listing | None] = {}
        # Directories that were listed alone, and objects that were asked for one by one.
        self._levels: dict[str, _Entries] = {}
        self._objects: dict[str, StoredObject | None] = {}

    def find(self, key: str, *, is_file: bool = False) -> StoredObject | None:
        """Return the object or directory with a key; None if there is none.

        If it must be a file, and nothing is listed that would tell, no listing is begun.
        """
        directory, _, name = key.rpartition("/")
        if key and (root := self._root_of(directory)) is not None:
            return self._listing(root).entries(directory).get(name)
        if not key or key in self._roots or not self._has_siblings(directory):
            return self._find_root(key, is_file=is_file)
        found = self._level(directory).get(name)
        if found is _DIRECTORY:
            # What is below it is listed as a whole, if that is asked for.
            self._roots.setdefault(key, None)
        return found

    def entries(self, key: str) -> _Entries:
        """Return the entries of a directory: none if it does not exist."""
        root = self._root_of(key)
        return self._level(key) if root is None else self._listing(root).entries(key)

    def forget(self) -> None:
        """Forget what was listed, so that the next question lists again."""
        with self._lock:
            self._roots = dict.fromkeys(self._roots)
            self._levels.clear()
            self._objects.clear()

    def _find_root(self, key: str, *, is_file: bool) -> StoredObject | None:
        if not is_file and (self._listing(key).exists() or not key):
            return _DIRECTORY
        with self._lock:
            self._roots.pop(key, None)
        if key not in self._objects:
            self._statistics.files_examined += 1
            self._objects[key] = self.bucket.head(key)
        return self._objects[key]

    def _level(self, key: str) -> _Entries:
        """Return the entries of a directory that is listed alone."""
        with self._lock:
            entries = self._levels.get(key)
            if entries is None:
                objects, prefixes = self.bucket.list_level(key)
                self._statistics.directories_listed += 1
                entries = {each.rpartition("/")[2]: found for each, found in objects if each != key}
                entries |= {each.rstrip("/").rpartition("/")[2]: _DIRECTORY for each in prefixes}
                self._levels[key] = entries
        return entries

    def _root_of(self, key: str) -> str | None:
        """Return the listed root that a key lies in; None if there is none."""
        while key not in self._roots:
            if not key:
                return None
            key = key.rpartition("/")[0]
        return key

    def _has_siblings(self, directory: str) -> bool:
        """Return True if something else in a directory was asked about, so that one listing answers for all of it."""
        return directory in self._levels or any(
            root.rpartition("/")[0] == directory for root in list(self._roots) if root
        )

    def _listing(self, root: str) -> _Listing:
        with self._lock:
            listing = self._roots.get(root)
            if listing is None:
                listing = self._roots[root] = _Listing(self.bucket, root, self._statistics)
        return listing


class _Listing:
    """The keys below a root, listed page by page as they are needed."""

    def __init__(self, bucket: Bucket, root: str, statistics: IoStatistics) -> None:
        self._bucket = bucket
        self._root = root
        self._pages: Iterator[Sequence[tuple[str, StoredObject]]] = bucket.list(root)
        self._statistics = statistics
        self._lock = threading.Lock()
        self._is_complete = False
        self._count = 0
        self._directories: dict[str, _Entries] = {}

    def exists(self) -> bool:
        """Return True if there is anything. The first page tells."""
        with self._lock:
            while not self._directories and not self._is_complete:
                self._take_page()
        return bool(self._directories)

    def entries(self, directory: str) -> _Entries:
        """Return the entries of a directory: none if it does not exist."""
        with self._lock:
            while not self._is_complete:
                self._take_page()
        return self._directories.get(directory, {})

    def _take_page(self) -> None:
        try:
            page: Any = next(self._pages, None)
        except SegmentLogError:
            # The next question begins anew: what was listed so far is not all.
            self._directories, self._count = {}, 0
            self._pages = self._bucket.list(self._root)
            raise
        self._is_complete = page is None
        self._statistics.directories_listed += page is not None
        for key, found in page or ():
            # An object with the root's own key stands for the directory.
            if key != self._root:
                directory, _, name = key.rpartition("/")
                self._directory(directory).setdefault(name, found)
        self._count += len(page or ())
        if self._count > _MOST_LISTED:
            message = f"Expected at most {_MOST_LISTED} objects below this path, found more. Name a directory further down."
            raise LogDirectoryError(message, path=f"{self._bucket.uri}/{self._root}")

    def _directory(self, key: str) -> _Entries:
        """Return the entries of a directory. Add it and those above it if it is new."""
        entries = self._directories.get(key)
        if entries is None:
            entries = self._directories[key] = {}
            while key != self._root:
                key, _, name = key.rpartition("/")
                above = self._directories.setdefault(key, {})
                if above.get(name) is _DIRECTORY:
                    break
                above[name] = _DIRECTORY
        return entries
