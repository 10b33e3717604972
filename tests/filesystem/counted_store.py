"""A local directory that is read as a store of objects is: each request counts, and takes a round unless others overlap it."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from storage_core.errors import FileReplacedError, LogDirectoryError
from storage_core.filesystem import DirectoryEntry, FileStatus, FileSystem, ReadableFile, ReadableFileSystem
from storage_core.filesystem.values import ExaminedEntry, IoStatistics, MissingError, StorageTraits

KEYS_PER_LIST = 1000
THREADS = 64
WINDOW_BYTES = 4 << 20
REQUEST_COST_BYTES = 2 << 20
LEAST_BYTES = 256 << 10
WINDOWS = 4
TRAITS = StorageTraits(
    REQUEST_COST_BYTES,
    are_files_fixed=True,
    has_modification_times=False,
    poll_interval_ms=30_000,
    is_shared=True,
)


class Request(NamedTuple):
    kind: str
    path: str
    start: int = 0
    end: int = 0


@dataclass
class _Node:
    status: FileStatus
    children: dict | None = None


class CountedStore(ReadableFileSystem):
    """A read-only file system whose listing is kept, and whose requests are counted.

    Attributes:
        requests: Those so far, in order.
        rounds: How many follow one another, while the requests of `map` overlap on up to 64 threads.
    """

    def __init__(self, root):
        self.root = str(root)
        self.statistics = IoStatistics()
        self.requests: list[Request] = []
        self.rounds = 0
        self.open_files = 0
        self._threads = THREADS
        self._tree: _Node | None = None

    def count(self, kind):
        return sum(each.kind == kind for each in self.requests)

    def gets(self, suffix=""):
        return [each for each in self.requests if each.kind == "GET" and each.path.endswith(suffix)]

    def reset(self):
        self.requests, self.rounds = [], 0

    @property
    def local(self):
        return FileSystem()

    def ask(self, kind, path, start=0, end=0):
        self.requests.append(Request(kind, path, start, end))
        self.rounds += 1

    # The listing.

    def _listed(self):
        if self._tree is None:
            self._tree, keys = self._list(self.root)
            for _ in range(max(1, -(-keys // KEYS_PER_LIST))):
                self.ask("LIST", self.root)
        return self._tree

    def _list(self, path):
        children, keys = {}, 0
        for name in sorted(os.listdir(path)):
            inner = os.path.join(path, name)
            if os.path.isdir(inner):
                child, below = self._list(inner)
                # Empty directories do not exist.
                if below:
                    children[name] = child
                    keys += below
            else:
                children[name] = _Node(_status_of(inner))
                keys += 1
        return _Node(FileStatus(0, 0, path, 0, False, True), children), keys

    def _node(self, path):
        path = os.path.normpath(path)
        node = self._listed()
        if path == self.root:
            return node
        if not path.startswith(self.root + "/"):
            return None
        for part in path[len(self.root) + 1 :].split("/"):
            node = None if node is None or node.children is None else node.children.get(part)
        return node

    def _directory(self, path):
        node = self._node(path)
        if node is None:
            raise MissingError("No such file or directory.", path=path)
        if node.children is None:
            raise LogDirectoryError("Could not list this path: Not a directory.", path=path)
        return node.children.items()

    def walk_directory(self, path):
        for name, node in self._directory(path):
            yield DirectoryEntry(name, node.children is not None, node.children is None, False)

    def examine_directory(self, path):
        for name, node in self._directory(path):
            kind = "file" if node.children is None else "directory"
            size_bytes = node.status.size_bytes
            yield ExaminedEntry(name, kind, size_bytes, size_bytes, node.status.modified_ms)

    def status(self, path, *, follow_symlinks=False):
        node = self._node(path)
        return None if node is None else node.status

    def forget_listings(self):
        self._tree = None

    # Files.

    def open(self, path, version=None):
        if version is not None:
            size_bytes = int(str(version).split("-")[-1])
            return CountedFile(self, path, FileStatus(size_bytes, 0, version, 0, True, False))
        node = self._node(path)
        if node is None:
            raise MissingError("No such file or directory.", path=path)
        if node.children is not None:
            raise LogDirectoryError("Expected a regular file.", path=path)
        return CountedFile(self, path, node.status)

    def traits_of(self, path):
        return TRAITS

    def free_bytes(self, path):
        return None

    def is_locked(self, path):
        return False

    # Rounds.

    def map(self, function, items):
        """Apply a function one item after the other, and count the rounds that as many threads would take."""
        items = list(items)
        threads = self._threads
        count = max(1, min(threads, len(items)))
        free_at = [self.rounds] * count
        under_way = deque()
        left = iter(items)
        is_over = False
        while True:
            now = self.rounds
            while not is_over and len(under_way) < count:
                try:
                    item = next(left)
                except StopIteration:
                    is_over = True
                    break
                worker = min(range(count), key=free_at.__getitem__)
                self.rounds = max(now, free_at[worker])
                self._threads = max(1, threads // count)
                under_way.append((*_answer(function, item), self.rounds))
                self._threads = threads
                free_at[worker] = self.rounds
            self.rounds = now
            if not under_way:
                return
            result, error, done_at = under_way.popleft()
            self.rounds = max(now, done_at)
            if error is not None:
                raise error
            yield result


def _answer(function, item):
    try:
        return function(item), None
    except Exception as error:  # noqa: BLE001  (raised in its turn)
        return None, error


class CountedFile(ReadableFile):
    """An object: each byte is asked for once while the file is open."""

    def __init__(self, store, path, status):
        self.path = path
        self.status = status
        self._store = store
        self._held: list[tuple[int, bytes]] = []
        self._is_open = True
        store.open_files += 1
        self._expected = (0, 0)
        # When the windows that are under way were asked for.
        self._asked = []

    def expect_reads(self, start_bytes, end_bytes):
        expected = (start_bytes, min(end_bytes, self.status.size_bytes))
        if expected != self._expected:
            self._expected, self._asked = expected, [self._store.rounds] * WINDOWS

    def read_at(self, size_bytes, position_bytes):
        end = min(position_bytes + size_bytes, self.status.size_bytes)
        if end <= position_bytes:
            return b""
        for start, data in self._held:
            if start <= position_bytes and end <= start + len(data):
                return data[position_bytes - start : end - start]
        first, stop = self._range(position_bytes, end)
        self._held = [*self._held[-7:], (first, self._fetch(first, stop))]
        return self.read_at(size_bytes, position_bytes)

    def _range(self, position_bytes, end):
        """Return what to fetch: the expected window, a small object as a whole, or a little more than asked for."""
        begin, stop = self._expected
        if begin <= position_bytes and end <= stop and end - position_bytes <= WINDOW_BYTES:
            number = (position_bytes - begin) // WINDOW_BYTES
            first = begin + number * WINDOW_BYTES
            # One round after it was asked for; then the one after the others is.
            ready = self._asked[number % WINDOWS] + 1
            self._store.rounds = max(self._store.rounds, ready) - 1
            self._asked[number % WINDOWS] = self._store.rounds + 1
            return first, min(max(first + WINDOW_BYTES, end), stop)
        size_bytes = self.status.size_bytes
        if size_bytes <= REQUEST_COST_BYTES:
            return 0, size_bytes
        return position_bytes, min(max(end, position_bytes + LEAST_BYTES), size_bytes)

    def _fetch(self, start, end):
        self._store.ask("GET", self.path, start, end)
        if not os.path.exists(self.path) or _status_of(self.path).version != self.status.version:
            self._store.forget_listings()
            raise FileReplacedError("Found another object than was listed.", path=self.path)
        with open(self.path, "rb") as file:
            file.seek(start)
            data = file.read(end - start)
        self._store.statistics.reads += 1
        self._store.statistics.bytes_read += len(data)
        return data

    def read_into(self, buffer, position_bytes):
        data = self.read_at(len(buffer), position_bytes)
        buffer[: len(data)] = data
        return len(data)

    def close(self):
        self._store.open_files -= self._is_open
        self._is_open, self._held = False, []


def _status_of(path):
    found = os.stat(path)
    version = f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}"
    return FileStatus(found.st_size, found.st_mtime_ns // 1_000_000, version, 0, True, False)
