"""Chunks of an object, each compressed and encrypted by itself, and how they are decoded.

    encrypted   initialisation vector (12 bytes), ciphertext, tag (16 bytes): AES-256-GCM, with associated data per segment
    zstd frame  28 b5 2f fd, descriptor, window, dictionary id, content size, blocks (RFC 8878, 3.1.1)

A chunk is compressed first. The frame must declare the content size that the chunk has, before memory is taken for it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from storage_core.record.compression import UndecodableError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


_VECTOR_BYTES: Final = 12
ENCRYPTION_BYTES: Final = _VECTOR_BYTES + 16
"""What encryption adds to the length of a chunk."""
_ZSTD: Final = pa.Codec("zstd")
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_LONGEST_HEADER_BYTES: Final = 18
_DICTIONARY_ID_BYTES: Final = (0, 1, 2, 4)


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """Where the chunks of a file lie in an object.

    Attributes:
        chunk_bytes: The original length of each chunk but the last.
        file_bytes: The original length of the file.
        borders: Where each chunk begins in the object, and where the last one ends.
    """

    chunk_bytes: int
    file_bytes: int
    borders: array[int]
    is_compressed: bool

    @classmethod
    def of_sizes(
        cls,
        chunk_bytes: int,
        file_bytes: int,
        sizes: Iterable[int],
        *,
        start_bytes: int = 0,
        is_compressed: bool = False,
    ) -> Chunks:
        """Return the chunks that have these lengths in the object, the first of which begins at a position."""
        borders = array("q", accumulate(sizes, initial=start_bytes))
        return cls(chunk_bytes, file_bytes, borders, is_compressed)

    def original_bytes(self, number: int) -> int:
        """Return the original length of a chunk."""
        return min(self.chunk_bytes, self.file_bytes - number * self.chunk_bytes)

    def decode(self, number: int, data: memoryview, cipher: AESGCM | None, aad: bytes) -> memoryview:
        """Decode a chunk.

        Raises:
            UndecodableError: It is cut off, was changed, or declares another length.
        """
        expected_bytes = self.borders[number + 1] - self.borders[number]
        if len(data) != expected_bytes:
            raise UndecodableError(
                f"expected {expected_bytes} bytes, found {len(data)}: the object is cut off"
            )
        if cipher is not None:
            data = _decrypt(cipher, data, aad)
        if self.is_compressed:
            data = unzstd(data, self.original_bytes(number), self.original_bytes(number))
        return data


def _decrypt(cipher: AESGCM, data: memoryview, aad: bytes) -> memoryview:
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415  (an optional library)

    try:
        return memoryview(cipher.decrypt(data[:_VECTOR_BYTES], data[_VECTOR_BYTES:], aad))
    except InvalidTag as error:
        raise UndecodableError("its bytes were changed, or are those of another segment") from error


def unzstd(frame: memoryview, least_bytes: int, most_bytes: int) -> memoryview:
    """Decompress a zstd frame whose content has a length within bounds.

    Raises:
        UndecodableError: It declares another length, or none, or is damaged.
    """
    size_bytes = _content_size(bytes(frame[:_ZSTD_LONGEST_HEADER_BYTES]))
    if size_bytes is None or not least_bytes <= size_bytes <= most_bytes:
        raise UndecodableError(
            f"expected a zstd frame that declares {least_bytes} to {most_bytes} bytes, found {size_bytes or 'none'}"
        )
    try:
        return memoryview(_ZSTD.decompress(frame, size_bytes)).cast("B")
    except (OSError, ValueError) as error:
        raise UndecodableError(str(error)) from error


def _content_size(head: bytes) -> int | None:
    """Return the content size in the header of a zstd frame, or None without one."""
    if len(head) <= len(_ZSTD_MAGIC) or not head.startswith(_ZSTD_MAGIC):
        return None
    descriptor = head[len(_ZSTD_MAGIC)]
    is_single_segment = descriptor >> 5 & 1
    width = (is_single_segment, 2, 4, 8)[descriptor >> 6]
    # Without a single segment, a byte for the window comes first.
    start = len(_ZSTD_MAGIC) + 2 - is_single_segment + _DICTIONARY_ID_BYTES[descriptor & 3]
    field = head[start : start + width]
    if not width or len(field) < width:
        return None
    # Two bytes hold what is above 256.
    return int.from_bytes(field, "little") + (256 if descriptor >> 6 == 1 else 0)
