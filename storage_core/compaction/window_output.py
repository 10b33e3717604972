"""What becomes of the batches of a window, put together in their order, ready to be written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from storage_core.compaction.rewriting import emptied_headers
from storage_core.record.batch_header import HEADER_DTYPE, HEADER_SIZE_BYTES, LOG_OVERHEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage_core.record.batch_header import BytesLike
    from storage_core.record.batch_window import BatchWindow

__all__ = ["OutputBatches", "WindowOutput"]

_Int64Array = npt.NDArray[np.int64]
_Rows = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class OutputBatches:
    """Batches to be written, at least one.

    Attributes:
        headers: Per batch, its header.
        pieces: The bytes of all of them. Neighbours that stay as they are come in one piece.
    """

    headers: _Rows
    pieces: list[BytesLike]

    @property
    def size_bytes(self) -> int:
        """How many bytes they take together."""
        return int(self.headers["batch_length"].sum(dtype=np.int64)) + LOG_OVERHEAD_BYTES * len(self.headers)


class WindowOutput:
    """Collects what becomes of the batches of a window.

    Args:
        window: The window. Batches that stay are not copied out of it.
        empty: Those of which nothing but a header stays, whatever their records; ascending.
    """

    def __init__(self, window: BatchWindow, empty: _Int64Array) -> None:
        self._window = window
        # Nobody has taken these yet.
        self._empty = empty
        self._empty_headers = emptied_headers(window.headers.take(empty))
        self._begin()

    def _begin(self) -> None:
        self._unchanged: list[_Int64Array] = []
        self._indexes: list[_Int64Array] = []
        self._headers: list[_Rows] = []
        self._bodies: list[BytesLike] = []

    def add_unchanged(self, indexes: _Int64Array) -> None:
        """Batches of format v2 that stay as they are, ascending."""
        self._unchanged.append(indexes)

    def add(self, indexes: _Int64Array, headers: _Rows, bodies: Sequence[BytesLike]) -> None:
        """Batches that were written anew."""
        self._indexes.append(indexes)
        self._headers.append(headers)
        self._bodies.extend(bodies)

    def add_empty(self, indexes: _Int64Array, headers: _Rows) -> None:
        """Batches without records."""
        self.add(indexes, headers, [b""] * len(indexes))

    def take(self, end_index: int) -> OutputBatches | None:
        """All batches up to before one of the window that were not taken before; None if there are none."""
        count = int(self._empty.searchsorted(end_index))
        self.add_empty(self._empty[:count], self._empty_headers[:count])
        self._empty, self._empty_headers = self._empty[count:], self._empty_headers[count:]
        unchanged, indexes = (
            np.concatenate([*self._unchanged, self._empty[:0]]),
            np.concatenate(self._indexes),
        )
        headers, bodies = np.concatenate(self._headers, dtype=HEADER_DTYPE), self._bodies
        self._begin()
        if not len(unchanged) and not len(indexes):
            return None
        firsts, pieces = self._unchanged_pieces(unchanged)
        heads = headers.tobytes()
        starts = range(0, len(heads), HEADER_SIZE_BYTES)
        pieces += [
            (heads[start : start + HEADER_SIZE_BYTES], body)
            for start, body in zip(starts, bodies, strict=True)
        ]
        ordered: list[BytesLike] = []
        for number in np.argsort(np.concatenate([firsts, indexes])).tolist():
            ordered += pieces[number]
        all_headers = np.concatenate([self._window.headers.take(unchanged), headers], dtype=HEADER_DTYPE)
        return OutputBatches(all_headers.take(np.argsort(np.concatenate([unchanged, indexes]))), ordered)

    def _unchanged_pieces(self, indexes: _Int64Array) -> tuple[_Int64Array, list[tuple[BytesLike, ...]]]:
        """The runs of neighbours among some batches: the first batch of each, and the bytes of all."""
        is_first = np.diff(indexes, prepend=-2) != 1
        firsts, lasts = indexes[is_first], indexes[np.append(is_first[1:], True)[: len(indexes)]]
        window = self._window
        ends = window.starts[lasts] + LOG_OVERHEAD_BYTES + window.headers["batch_length"][lasts]
        view = window.buffer.data
        borders = zip(window.starts[firsts].tolist(), ends.tolist(), strict=True)
        return firsts, [(view[start:end],) for start, end in borders]
