"""Input and output of decoders of values: byte ranges, columns, and an error for each row that does not decode."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from storage_core.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy.typing as npt


# By width in bits, the type by which numpy copies numbers.
_NUMPY_KINDS: Final = {32: "i4", 64: "i8", 128: "c16"}
Reason = Literal["unframed", "unknown-id", "malformed", "encrypted", "unresolvable"]
"""Why a record does not decode."""
Paths: TypeAlias = tuple[tuple[str, ...], ...] | None
"""Paths of the wanted fields within a column, as ``("items", "price")``; None for all. Lists are passed through."""
Message: TypeAlias = str | tuple[int, ...] | None
"""Protobuf's message type: its name, or its path of indexes; None for the only one of its schema."""


@dataclass(frozen=True, slots=True)
class SchemaSource:
    """Text of a schema, with all schemas that it refers to.

    Attributes:
        text: Avro or JSON as text, a ``.proto`` file, or a FileDescriptorProto in base64.
        references: Name and text of each schema referred to, transitively; those that others need come first.
    """

    text: str
    references: tuple[tuple[str, str], ...] = ()


def paths_of_fields(paths: Paths, names: Collection[str], where: str) -> dict[str, Paths]:
    """Choose the wanted fields of a struct, in the order of the struct, with the paths below each.

    Args:
        paths: Paths within the struct, cut at each dot, also at those within names; None for all.
        names: All fields.
        where: What an error calls the struct.

    Raises:
        OptionError: A path names a field that the struct does not have.
    """
    if paths is None or () in paths:
        return dict.fromkeys(names)
    below: dict[str, list[tuple[str, ...]]] = {}
    for path in paths:
        ends = [end for end in range(len(path), 0, -1) if ".".join(path[:end]) in names]
        end = ends[0] if ends else 1
        below.setdefault(".".join(path[:end]), []).append(path[end:])
    for name in below:
        if name not in names:
            raise OptionError(f"{where} has no field '{name}': it has {', '.join(names) or 'none'}.")
    return {name: None if () in below[name] else tuple(below[name]) for name in names if name in below}


def load_json(text: str) -> Any:
    """Parse the JSON of a schema, and check that its names and defaults can be encoded as UTF-8.

    Raises:
        ValueError: The text is not JSON, or has half of a surrogate pair, which UTF-8 cannot have.
        RecursionError: The JSON is nested too deeply.
    """
    document = json.loads(text)
    if "\\u" in text or not text.isascii():
        json.dumps(document, ensure_ascii=False).encode()
    return document


class Payloads(NamedTuple):
    """Encoded values, one for each row: ranges of bytes of one buffer.

    Attributes:
        data: The bytes of all values, and perhaps others between them.
        starts: Where each value begins.
        ends: Where each value ends.
    """

    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]

    @classmethod
    def of_array(cls, values: pa.BinaryArray | pa.LargeBinaryArray) -> Payloads:
        """Take the values of an array without copying them. Nulls are empty."""
        width = 8 if pa.types.is_large_binary(values.type) else 4
        _, offsets_buffer, data_buffer = values.buffers()
        if offsets_buffer is None or data_buffer is None:
            nothing = np.zeros(len(values), np.int64)
            return cls(np.zeros(0, np.uint8), nothing, nothing)
        offsets = np.frombuffer(offsets_buffer, f"<i{width}", len(values) + 1, values.offset * width)
        offsets = offsets.astype(np.int64)
        return cls(np.frombuffer(data_buffer, np.uint8), offsets[:-1], offsets[1:])

    def take(self, rows: npt.NDArray[np.int64] | slice) -> Payloads:
        """Return the values of some rows, in ascending order."""
        if isinstance(rows, np.ndarray) and len(rows) == len(self.starts):
            return self
        return Payloads(self.data, self.starts[rows], self.ends[rows])

    def to_array(self) -> pa.LargeBinaryArray:
        """Return the values as one array, without a copy if nothing is between them."""
        if len(self.starts) and (self.starts[1:] == self.ends[:-1]).all():
            return self._pieces(np.append(self.starts, self.ends[-1:]))
        # Values and what lies between them are pieces of the bytes as they are: every second one is a value.
        cuts = np.column_stack((self.starts, self.ends)).ravel()
        if (np.diff(cuts) >= 0).all():
            return self._pieces(np.append(cuts, cuts[-1:])).take(pa.array(np.arange(0, len(cuts), 2)))
        ranges = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        return pa.array([self.data[start:end].tobytes() for start, end in ranges], pa.large_binary())

    def _pieces(self, cuts: npt.NDArray[np.int64]) -> pa.LargeBinaryArray:
        buffers = [None, pa.py_buffer(cuts.astype(np.int64)), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.large_binary(), max(len(cuts) - 1, 0), buffers)


def scatter(array: pa.Array, rows: npt.NDArray[np.int64], length: int) -> pa.Array:
    """Put values at the given rows of a column of this length, in any order; the other rows are null."""
    sources = np.full(length, -1, np.int64)
    sources[rows] = np.arange(len(rows))
    return array.take(pa.array(sources, mask=sources < 0))


def scatter_sorted(array: pa.Array, rows: npt.NDArray[np.int64], length: int) -> pa.Array:
    """Do the same as `scatter` for rows in ascending order, several times as fast."""
    arrow_type, buffers = array.type, array.buffers()
    is_nested = pa.types.is_struct(arrow_type)
    is_binary = pa.types.is_string(arrow_type) or pa.types.is_binary(arrow_type)
    is_list = pa.types.is_list(arrow_type) or pa.types.is_map(arrow_type)
    is_number = pa.types.is_primitive(arrow_type) and arrow_type.bit_width in _NUMPY_KINDS
    if array.null_count or array.offset or not (is_nested or is_binary or is_list or is_number):
        return scatter(array, rows, length)
    is_present = np.zeros(length, np.bool_)
    is_present[rows] = True
    made = [pa.py_buffer(np.packbits(is_present, bitorder="little"))]
    children = [array.values] if is_list else []
    if is_nested:
        children = [scatter_sorted(child, rows, length) for child in array.flatten()]
    elif is_number:
        kind = _NUMPY_KINDS[arrow_type.bit_width]
        values = np.zeros(length, kind)
        values[rows] = np.frombuffer(buffers[1], kind, len(array))
        made.append(pa.py_buffer(values))
    else:
        offsets = np.zeros(length + 1, np.int32)
        offsets[rows + 1] = np.diff(np.frombuffer(buffers[1], np.int32, len(array) + 1))
        made += [pa.py_buffer(np.cumsum(offsets, dtype=np.int32)), *(buffers[2:] if is_binary else [])]
    return pa.Array.from_buffers(arrow_type, length, made, children=children)


class RowError(NamedTuple):
    """A row that does not decode.

    Attributes:
        row: Its number among the rows given to the decoder.
        message: What is wrong, as one sentence.
    """

    row: int
    reason: Reason
    message: str
    schema_id: int | None = None


class Decoded(NamedTuple):
    """A column of decoded values.

    Attributes:
        array: One value for each row; null for a row that does not decode.
        errors: What is wrong with those rows, in ascending order.
    """

    array: pa.Array
    errors: list[RowError]


class Decoder(Protocol):
    """Decodes values that were written with one schema."""

    @property
    def arrow_type(self) -> pa.DataType:
        """Type of the column."""

    def decode(self, payloads: Payloads) -> Decoded:
        """Decode values. One that does not decode is an error of its row alone."""
