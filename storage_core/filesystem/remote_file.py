"""An object opened for reading: what was fetched of it, and what is being fetched ahead."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from storage_core.filesystem.reading import ReadableFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from storage_core.filesystem.values import BytesLike, FileStatus, FileVersion, IoStatistics

# Measured with 20 ms and with no time more a request; docs/benchmarks.md has the figures.
WINDOW_BYTES: Final = 8 * 1024 * 1024
WINDOWS_AHEAD: Final = 4
# A request takes about as long as the transfer of 2 MB: an index of usual size is fetched at once, and a look-up in a
# longer file fetches a part of that.
_WHOLE_FILE_BYTES: Final = 2 * 1024 * 1024
_LEAST_BYTES: Final = 256 * 1024
# What stays of pieces that were fetched, besides the last one.
_KEPT_BYTES: Final = 8 * 1024 * 1024
_CLOSED_BYTES: Final = 32 * 1024 * 1024
_CLOSED_FILES: Final = 10_000


class _Piece(NamedTuple):
    start_bytes: int
    end_bytes: int
    data: memoryview


class _Ahead(NamedTuple):
    """A piece that is being fetched."""

    start_bytes: int
    end_bytes: int
    data: Future[BytesLike]


_AnyPiece = TypeVar("_AnyPiece", bound=_Piece | _Ahead)


def _with_position(pieces: Iterable[_AnyPiece], position_bytes: int) -> _AnyPiece | None:
    return next((each for each in pieces if each.start_bytes <= position_bytes < each.end_bytes), None)


class ClosedFiles:
    """Short pieces of closed files, up to 32 MiB of them, for whoever opens the same versions again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pieces: dict[tuple[str, FileVersion], list[_Piece]] = {}
        self._held_bytes = 0

    def take(self, path: str, version: FileVersion) -> list[_Piece]:
        """Take out the pieces of a file."""
        with self._lock:
            pieces = self._pieces.pop((path, version), [])
            self._held_bytes -= sum(len(piece.data) for piece in pieces)
        return pieces

    def put(self, path: str, version: FileVersion, pieces: Iterable[_Piece]) -> None:
        """Keep a file's short pieces. If there are too many, drop those of files that were closed earlier."""
        self.take(path, version)
        with self._lock:
            kept = self._pieces[path, version] = [
                each for each in pieces if len(each.data) <= _WHOLE_FILE_BYTES
            ]
            self._held_bytes += sum(len(piece.data) for piece in kept)
            while self._held_bytes > _CLOSED_BYTES or len(self._pieces) > _CLOSED_FILES:
                oldest = self._pieces.pop(next(iter(self._pieces)))
                self._held_bytes -= sum(len(piece.data) for piece in oldest)


class RemoteFile(ReadableFile):
    """One version of an object, for one thread at a time. Use as a context manager.

    It holds the last window or read, up to 8 MiB that were fetched before, and the 4 windows of 8 MiB that are fetched
    ahead.

    Args:
        path: The URI.
        status: What was listed.
        fetch: Fetches the bytes from one position to another.
        statistics: Counts the requests, and the bytes that they fetch.
        closed: Where what was fetched stays for a while.
    """

    def __init__(
        self,
        path: str,
        status: FileStatus,
        fetch: Callable[[int, int], BytesLike],
        statistics: IoStatistics,
        closed: ClosedFiles,
    ) -> None:
        self.path = path
        self.status = status
        self._fetch = fetch
        self._statistics = statistics
        self._closed = closed
        self._pieces = closed.take(path, status.version)
        self._ahead: deque[_Ahead] = deque()
        self._expected_bytes = 0
        self._expected_end_bytes = 0
        self._threads: ThreadPoolExecutor | None = None
        self._step_bytes = _LEAST_BYTES
        self._fetched_end_bytes = 0

    def read_at(self, size_bytes: int, position_bytes: int) -> bytes:
        """Read up to ``size_bytes`` from ``position_bytes``; fewer only at the end of the file."""
        room = max(0, min(size_bytes, self.status.size_bytes - position_bytes))
        if room and len(data := self._at(position_bytes, position_bytes + room)) >= room:
            return bytes(data[:room])
        return super().read_at(room, position_bytes)

    def read_into(self, buffer: memoryview, position_bytes: int) -> int:
        """Fill ``buffer`` from ``position_bytes``; return the number of bytes read, fewer only at the end of the file."""
        end_bytes = min(position_bytes + len(buffer), self.status.size_bytes)
        place = position_bytes
        while place < end_bytes:
            data = self._at(place, end_bytes)[: end_bytes - place]
            buffer[place - position_bytes : place - position_bytes + len(data)] = data
            place += len(data)
        return max(0, end_bytes - position_bytes)

    def expect_reads(self, start_bytes: int, end_bytes: int) -> None:
        """Fetch these bytes ahead of their reads, a few windows at a time, without those that are here."""
        start_bytes, end_bytes = self._first_missing(start_bytes), min(end_bytes, self.status.size_bytes)
        if start_bytes == self._first_missing(self._expected_bytes):
            self._expected_end_bytes = max(self._expected_end_bytes, end_bytes)
        elif start_bytes < end_bytes:
            self._drop_windows()
            self._expected_bytes, self._expected_end_bytes = start_bytes, end_bytes
        self._fetch_ahead()

    def close(self) -> None:
        """Wait for the requests that are under way; a second call does nothing."""
        self._drop_windows()
        self._expected_end_bytes = 0
        if self._pieces:
            self._closed.put(self.path, self.status.version, self._pieces)
            self._pieces = []
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._threads = None

    def _at(self, position_bytes: int, end_bytes: int) -> memoryview:
        """Return bytes from a position on, at least one; only those up to ``end_bytes`` are waited for."""
        piece = _with_position(self._pieces, position_bytes)
        if piece is None:
            piece = self._take_window(position_bytes) or self._fetch_now(position_bytes, end_bytes)
            self._keep(piece)
        return piece.data[position_bytes - piece.start_bytes :]

    def _keep(self, piece: _Piece) -> None:
        """Keep a piece, since it may be read again after a look-up. Drop long ones first, then the oldest."""
        held_bytes = sum(len(each.data) for each in self._pieces)
        while held_bytes > _KEPT_BYTES:
            longest = max(self._pieces, key=lambda each: len(each.data))
            gone = longest if len(longest.data) > _WHOLE_FILE_BYTES else self._pieces[0]
            self._pieces.remove(gone)
            held_bytes -= len(gone.data)
        self._pieces.append(piece)

    def _first_missing(self, position_bytes: int) -> int:
        """Return the first position from this one on that is neither here nor under way."""
        known: list[_Piece | _Ahead] = [*self._pieces, *self._ahead]
        while found := _with_position(known, position_bytes):
            position_bytes = found.end_bytes
        return position_bytes

    def _fetch_ahead(self) -> None:
        """Request windows of what is not here until the allowed number is under way."""
        while len(self._ahead) < WINDOWS_AHEAD:
            start_bytes = self._expected_bytes = self._first_missing(self._expected_bytes)
            if start_bytes >= self._expected_end_bytes:
                return
            if self._threads is None:
                self._threads = ThreadPoolExecutor(WINDOWS_AHEAD, "segmentlog-fetch")
            here = [each.start_bytes for each in self._pieces if each.start_bytes > start_bytes]
            end_bytes = min(start_bytes + WINDOW_BYTES, self._expected_end_bytes, *here)
            data = self._threads.submit(self._fetch, start_bytes, end_bytes)
            self._ahead.append(_Ahead(start_bytes, end_bytes, data))

    def _take_window(self, position_bytes: int) -> _Piece | None:
        """Wait for the window with a position, and request the next one; windows before it were passed over."""
        if _with_position(self._ahead, position_bytes) is None:
            return None
        while (window := self._ahead.popleft()).end_bytes <= position_bytes:
            window.data.cancel()
        self._fetch_ahead()
        return self._counted(window.start_bytes, window.end_bytes, window.data.result())

    def _drop_windows(self) -> None:
        for window in self._ahead:
            window.data.cancel()
        self._ahead.clear()

    def _fetch_now(self, position_bytes: int, end_bytes: int) -> _Piece:
        start_bytes, end_bytes = self._rounded(position_bytes, end_bytes)
        self._fetched_end_bytes = end_bytes
        return self._counted(start_bytes, end_bytes, self._fetch(start_bytes, end_bytes))

    def _rounded(self, position_bytes: int, end_bytes: int) -> tuple[int, int]:
        """Widen a range to what one request should fetch, without anything that is here or under way."""
        held: list[_Piece | _Ahead] = [*self._pieces, *self._ahead]
        known = [(each.start_bytes, each.end_bytes) for each in held]
        low = max((end for _, end in known if end <= position_bytes), default=0)
        high = min((start for start, _ in known if start > position_bytes), default=self.status.size_bytes)
        if self.status.size_bytes <= _WHOLE_FILE_BYTES:
            return low, high
        # Small reads one after the other, or in steps, become longer and longer requests.
        is_next = 0 <= position_bytes - self._fetched_end_bytes <= self._step_bytes
        self._step_bytes = min(2 * self._step_bytes, WINDOW_BYTES) if is_next else _LEAST_BYTES
        wanted_end_bytes = min(max(end_bytes, position_bytes + self._step_bytes), high)
        return max(low, min(position_bytes, wanted_end_bytes - _LEAST_BYTES)), wanted_end_bytes

    def _counted(self, start_bytes: int, end_bytes: int, data: BytesLike) -> _Piece:
        self._statistics.reads += 1
        self._statistics.bytes_read += len(data)
        return _Piece(start_bytes, end_bytes, memoryview(data))
