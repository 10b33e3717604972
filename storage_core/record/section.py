"""What the decoders work on, and what they return: batches of one window, by column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["PADDING_BYTES", "RecordColumns", "RecordHeaders", "RecordSection", "Slices", "WantedFields"]


# Columns are read a byte or two ahead of what is needed: so much must be readable behind the last record.
PADDING_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class WantedFields:
    """Which fields of a record are asked for; the offset always is.

    ``tails`` is for who writes records of format v2 again: all bytes behind the timestamp delta. Keys and values have
    to be asked for with them.
    """

    timestamp: bool = True
    key: bool = True
    value: bool = True
    headers: bool = False
    tails: bool = False


@dataclass(frozen=True, slots=True)
class RecordSection:
    """The uncompressed records of some batches, all in one buffer.

    Either all batches are of format v2, or all are messages of older formats: then the records of a
    wrapper are the messages in it, those of a plain message the whole message itself.

    Attributes:
        buffer: The bytes, with `PADDING_BYTES` more behind the last record.
        starts: Per batch, where its records begin in ``buffer``.
        ends: Per batch, where they end.
        headers: Per batch, its header (a structured array of `HEADER_DTYPE`). No batch is empty.
        positions: Per batch, where it stands in the file; for messages.
        path: The file; for messages.
    """

    buffer: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    headers: npt.NDArray[Any]
    positions: npt.NDArray[np.int64]
    path: str


@dataclass(frozen=True, slots=True)
class Slices:
    """A column of byte strings that still lie in a section's buffer. A negative length is null."""

    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RecordHeaders:
    """The headers of all records: record ``i`` has those from ``first[i]`` to ``first[i + 1]``."""

    first: npt.NDArray[np.int64]
    keys: Slices
    values: Slices


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """The records of a section, a column a field, in file order.

    ``row_counts`` has the number of rows of each batch. A field that was not asked for is None; so are the tails of
    messages, which have none.
    """

    row_counts: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    timestamps_ms: npt.NDArray[np.int64] | None
    keys: Slices | None
    values: Slices | None
    headers: RecordHeaders | None
    tails: Slices | None = None
