"""The files that a tier shows, opened for reading: their bytes are those of memory, of an object, or of its chunks."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from storage_core.errors import CorruptError, LogDirectoryError
from storage_core.filesystem import ReadableFile
from storage_core.record.compression import UndecodableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from storage_core.filesystem import FileStatus
    from storage_core.tier.chunks import Chunks


# Neighbouring chunks are read together up to this size, and decoded ones are kept up to it.
_JOINED_BYTES: Final = 16 << 20
_KEPT_BYTES: Final = 32 << 20


class MemoryFile(ReadableFile):
    """A small file, whose bytes are known."""

    def __init__(self, path: str, status: FileStatus, data: bytes) -> None:
        self.path = path
        self.status = status
        self._data = data

    def read_into(self, buffer: memoryview, position_bytes: int) -> int:
        """Fill ``buffer`` as `ReadableFile.read_into` does."""
        data = self._data[position_bytes : position_bytes + len(buffer)]
        buffer[: len(data)] = data
        return len(data)

    def expect_reads(self, start_bytes: int, end_bytes: int) -> None:
        """Do nothing: the bytes are here."""

    def close(self) -> None:
        """Do nothing: no resource is held."""


class ObjectFile(ReadableFile):
    """An object as it is, or its beginning."""

    def __init__(self, path: str, status: FileStatus, source: ReadableFile) -> None:
        self.path = path
        self.status = status
        self._source = source

    def read_into(self, buffer: memoryview, position_bytes: int) -> int:
        """Fill ``buffer`` as `ReadableFile.read_into` does."""
        size_bytes = self._limited(len(buffer), position_bytes)
        return self._source.read_into(buffer[:size_bytes], position_bytes) if size_bytes else 0

    def expect_reads(self, start_bytes: int, end_bytes: int) -> None:
        """Announce the same reads of the object."""
        self._source.expect_reads(start_bytes, min(end_bytes, self.status.size_bytes))

    def close(self) -> None:
        """Close the object."""
        self._source.close()

    def _limited(self, size_bytes: int, position_bytes: int) -> int:
        return max(0, min(size_bytes, self.status.size_bytes - position_bytes))


class KeptChunks:
    """The decoded chunks that were used last, so that reads in order decode each one once."""

    def __init__(self) -> None:
        self._chunks: dict[tuple[str, int, int], memoryview] = {}
        self._lock = threading.Lock()
        self._size_bytes = 0

    def get(self, key: tuple[str, int, int]) -> memoryview | None:
        """Return a chunk if it is kept."""
        return self._chunks.get(key)

    def put(self, key: tuple[str, int, int], chunk: memoryview) -> None:
        """Keep a chunk, however large, and of the others as many as a bound allows."""
        with self._lock:
            self._size_bytes += len(chunk) - len(self._chunks.pop(key, b""))
            self._chunks[key] = chunk
            while self._size_bytes > _KEPT_BYTES and len(self._chunks) > 1:
                self._size_bytes -= len(self._chunks.pop(next(iter(self._chunks))))


class ChunkedFile(ObjectFile):
    """A file that has to be decoded: a log file in chunks, or an index as one chunk. Damage is an ``error_type``."""

    def __init__(
        self,
        path: str,
        status: FileStatus,
        source: ReadableFile,
        chunks: Chunks,
        kept: KeptChunks,
        error_type: type[CorruptError | LogDirectoryError],
        cipher: AESGCM | None,
        aad: bytes,
    ) -> None:
        super().__init__(path, status, source)
        self._chunks = chunks
        self._kept = kept
        self._error_type = error_type
        self._cipher = cipher
        self._aad = aad

    def read_into(self, buffer: memoryview, position_bytes: int) -> int:
        """Fill ``buffer`` as `ReadableFile.read_into` does.

        Raises:
            SegmentLogError: A chunk is not what the manifest says, or cannot be decoded.
        """
        size_bytes = self._limited(len(buffer), position_bytes)
        filled = 0
        for number, chunk in self._decoded(*self._numbers(position_bytes, position_bytes + size_bytes)):
            start_bytes = position_bytes + filled - number * self._chunks.chunk_bytes
            piece = chunk[start_bytes : start_bytes + size_bytes - filled]
            buffer[filled : filled + len(piece)] = piece
            filled += len(piece)
        return filled

    def expect_reads(self, start_bytes: int, end_bytes: int) -> None:
        """Announce reads of the chunks that hold these bytes."""
        first, stop = self._numbers(start_bytes, min(end_bytes, self.status.size_bytes))
        if first < stop:
            self._source.expect_reads(self._chunks.borders[first], self._chunks.borders[stop])

    def _numbers(self, start_bytes: int, end_bytes: int) -> tuple[int, int]:
        """Return the number of the first chunk with some of these bytes, and of the one after the last."""
        chunk_bytes = self._chunks.chunk_bytes
        return (
            (start_bytes // chunk_bytes, -(-end_bytes // chunk_bytes)) if start_bytes < end_bytes else (0, 0)
        )

    def _decoded(self, first: int, end: int) -> Iterator[tuple[int, memoryview]]:
        while first < end:
            kept = self._kept.get(self._key(first))
            stop = first + 1
            if kept is not None:
                yield first, kept
            else:
                limit_bytes = self._chunks.borders[first] + _JOINED_BYTES
                while stop < end and self._chunks.borders[stop + 1] <= limit_bytes:
                    stop += 1
                yield from self._fetched(first, stop)
            first = stop

    def _fetched(self, first: int, stop: int) -> Iterator[tuple[int, memoryview]]:
        """Read neighbouring chunks, and decode one after the other."""
        borders = self._chunks.borders
        data = memoryview(self._source.read_at(borders[stop] - borders[first], borders[first]))
        for number in range(first, stop):
            part = data[borders[number] - borders[first] : borders[number + 1] - borders[first]]
            try:
                chunk = self._chunks.decode(number, part, self._cipher, self._aad)
            except UndecodableError as error:
                raise self._error_type(
                    f"Could not decode chunk {number} of {self.path}: {error}. Restore the object.",
                    path=self._source.path,
                    position_bytes=borders[number],
                    end_position_bytes=borders[number + 1],
                ) from error
            self._kept.put(self._key(number), chunk)
            yield number, chunk

    def _key(self, number: int) -> tuple[str, int, int]:
        return str(self.status.version), self._chunks.borders[0], number
