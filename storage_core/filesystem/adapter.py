"""File systems of pyarrow and of fsspec as buckets: what a caller passes in, and Hadoop's."""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from storage_core.errors import OptionError, SegmentLogError, StorageError, UnreadableError
from storage_core.filesystem.bucket import StoredObject, replaced
from storage_core.filesystem.values import BytesLike, MissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_Answer = TypeVar("_Answer")
# A path and its object; None stands for a directory.
_Found: TypeAlias = tuple[str, StoredObject | None]
# Each file system of fsspec has names of its own.
_ETAGS: Final = ("ETag", "etag", "e_tag")
_TIMES: Final = ("mtime", "LastModified", "last_modified", "modification_time", "created")
# Of the year 1973 in milliseconds, and of the year 5138 in seconds.
_LEAST_MILLISECONDS: Final = 100_000_000_000


class AdaptedBucket:
    """A bucket read through another file system, which tries again what fails as it sees fit."""

    def __init__(self, uri: str, files: _PyarrowFiles | _FsspecFiles) -> None:
        self.uri = uri
        self._files = files
        self._root = files.root(f"{uri}/").rstrip("/")

    def list(self, prefix: str) -> Iterator[Sequence[tuple[str, StoredObject]]]:
        """List the keys below a prefix, and below those, at once."""
        yield [(key, found) for key, found in self._list(prefix, is_recursive=True) if found is not None]

    def list_level(self, prefix: str) -> tuple[Sequence[tuple[str, StoredObject]], Sequence[str]]:
        """List the keys right below a prefix, and the prefixes there."""
        entries = self._list(prefix, is_recursive=False)
        objects = [(key, found) for key, found in entries if found is not None]
        return objects, [key for key, found in entries if found is None]

    def head(self, key: str) -> StoredObject | None:
        """Ask for one object."""
        with suppress(MissingError):
            return self._ask(key, "examine", lambda: self._files.info(self._path(key)))
        return None

    def get(self, key: str, start_bytes: int, end_bytes: int, listed: StoredObject) -> BytesLike:
        """Read a part of the object that was listed, and check afterwards that it is still there."""
        data: BytesLike = b""
        with suppress(MissingError):
            data = self._ask(key, "read", lambda: self._files.read(self._path(key), start_bytes, end_bytes))
        found = self.head(key)
        is_same = found is not None and (found.size_bytes, found.etag) == (listed.size_bytes, listed.etag)
        if not is_same or len(data) != end_bytes - start_bytes:
            raise replaced(f"{self.uri}/{key}")
        return data

    def _list(self, prefix: str, *, is_recursive: bool) -> Sequence[_Found]:
        with suppress(MissingError):
            entries = self._ask(prefix, "list", lambda: self._files.list(self._path(prefix), is_recursive))
            return [(path.removeprefix(self._root).strip("/"), found) for path, found in entries]
        return ()

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}" if key else self._root or "/"

    def _ask(self, key: str, action: str, request: Callable[[], _Answer]) -> _Answer:
        path = f"{self.uri}/{key}".rstrip("/")
        try:
            return request()
        except (FileNotFoundError, NotADirectoryError):
            failure: SegmentLogError = MissingError("No such object. Check the path.", path=path)
        except PermissionError:
            failure = UnreadableError(f"The credentials may not {action} this path. Check them.", path=path)
        except Exception as error:  # noqa: BLE001  (any client may be beneath)
            failure = StorageError(f"Could not {action} this path: {type(error).__name__}.", path=path)
        # Outside of the handler: another client's message may quote what is secret.
        raise failure


class _PyarrowFiles(NamedTuple):
    filesystem: Any

    def root(self, uri: str) -> str:
        return "/" if self.filesystem.type_name in {"local", "hdfs"} else uri.partition("://")[2]

    def list(self, path: str, is_recursive: bool) -> Sequence[_Found]:
        from pyarrow.fs import FileSelector  # noqa: PLC0415  (slow)

        found = self.filesystem.get_file_info(FileSelector(path, recursive=is_recursive))
        return [(each.path, _found_by_pyarrow(each)) for each in found]

    def info(self, path: str) -> StoredObject | None:
        return _found_by_pyarrow(self.filesystem.get_file_info(path))

    def read(self, path: str, start_bytes: int, end_bytes: int) -> BytesLike:
        with self.filesystem.open_input_file(path) as opened:
            data: bytes = opened.read_at(end_bytes - start_bytes, start_bytes)
        return data


def _found_by_pyarrow(info: Any) -> StoredObject | None:
    if not info.is_file:
        return None
    return StoredObject(info.size, (info.mtime_ns or 0) // 1_000_000, f"@{info.mtime_ns}")


class _FsspecFiles(NamedTuple):
    filesystem: Any

    def root(self, uri: str) -> str:
        return str(self.filesystem._strip_protocol(uri))  # noqa: SLF001  (what fsspec has for URIs)

    def list(self, path: str, is_recursive: bool) -> Sequence[_Found]:
        self.filesystem.invalidate_cache()
        listed = self.filesystem.find if is_recursive else self.filesystem.ls
        found = listed(path, detail=True)
        return [
            (each["name"], _found_by_fsspec(each)) for each in (found.values() if is_recursive else found)
        ]

    def info(self, path: str) -> StoredObject | None:
        self.filesystem.invalidate_cache()
        return _found_by_fsspec(self.filesystem.info(path))

    def read(self, path: str, start_bytes: int, end_bytes: int) -> BytesLike:
        data: bytes = self.filesystem.cat_file(path, start_bytes, end_bytes)
        return data


def _found_by_fsspec(info: Mapping[str, Any]) -> StoredObject | None:
    if info["type"] != "file":
        return None
    etag, time = (next(filter(None, map(info.get, names)), 0) for names in (_ETAGS, _TIMES))
    modified = (
        time.timestamp() if isinstance(time, dt.datetime) else time if isinstance(time, (int, float)) else 0
    )
    modified_ms = int(modified if modified > _LEAST_MILLISECONDS else modified * 1000)
    return StoredObject(info["size"], modified_ms, str(etag or f"@{time}"))


def adapt(filesystem: Any) -> Callable[..., AdaptedBucket]:
    """Return a function that opens buckets through a file system of pyarrow or fsspec.

    Raises:
        OptionError: It is neither.
    """
    from pyarrow.fs import FileSystem  # noqa: PLC0415  (slow)

    if isinstance(filesystem, FileSystem):
        return lambda uri, _: AdaptedBucket(uri, _PyarrowFiles(filesystem))
    if hasattr(filesystem, "cat_file") and hasattr(filesystem, "find"):
        return lambda uri, _: AdaptedBucket(uri, _FsspecFiles(filesystem))
    found = type(filesystem).__name__
    raise OptionError(f"Expected a file system of pyarrow.fs or fsspec, found {found}. Pass one of them.")


def open_hadoop(uri: str) -> AdaptedBucket:
    """Open the name node of an ``hdfs://`` or ``viewfs://`` URI through hdfs-native, which the user has installed."""
    try:
        import fsspec  # noqa: PLC0415  (the user's)
        import hdfs_native.fsspec  # noqa: F401, PLC0415  (the user's)
    except ImportError:
        raise OptionError(f"Reading {uri} needs hdfs-native: pip install hdfs-native fsspec.") from None
    return AdaptedBucket(uri, _FsspecFiles(fsspec.core.url_to_fs(f"{uri}/")[0]))
