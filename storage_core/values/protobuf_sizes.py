"""Sizes of Protobuf messages on the wire, computed from their columns (protobuf.dev/programming-guides/encoding).

If a message takes no more bytes than its columns need, nothing else is in it: no unknown field, nothing twice, nothing
longer than it must be. This is how a reader that is less strict than Protobuf's own parser is known to have read the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor

if TYPE_CHECKING:
    import numpy.typing as npt
    from google.protobuf.descriptor import Descriptor

    Sizes: TypeAlias = npt.NDArray[np.int32]
    Numbers: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]

_Type = FieldDescriptor
_ZIGZAG = {_Type.TYPE_SINT32, _Type.TYPE_SINT64}
_FIXED_SIZES = {
    **dict.fromkeys((_Type.TYPE_FLOAT, _Type.TYPE_FIXED32, _Type.TYPE_SFIXED32), 4),
    **dict.fromkeys((_Type.TYPE_DOUBLE, _Type.TYPE_FIXED64, _Type.TYPE_SFIXED64), 8),
}


def least_sizes(messages: pa.StructArray, kind: Descriptor) -> Sizes:
    """Return the fewest bytes that each message can have.

    Args:
        messages: Columns named ``f`` with the number of their field; strings are binary, maps lists of entries.
        kind: Descriptor of the messages, whose lists are packed.

    Raises:
        pyarrow.ArrowInvalid: A string is not UTF-8.
    """
    sizes = np.zeros(len(messages), np.int32)
    for field in kind.fields:
        values = messages.field(f"f{field.number}")
        tag_size = (field.number.bit_length() + 9) // 7
        if field.is_repeated:
            sizes += _sizes_of_lists(values, field, tag_size)
            continue
        if field.has_presence:
            is_there: npt.NDArray[np.bool_] = values.is_valid().to_numpy(zero_copy_only=False)
        else:
            is_there = _numbers(values) != 0
        sizes += (_sizes_of_values(values, field) + tag_size) * is_there
    return sizes


def _sizes_of_lists(lists: pa.ListArray, field: FieldDescriptor, tag_size: int) -> Sizes:
    offsets = lists.offsets.to_numpy()
    ends = np.concatenate(
        (np.zeros(1, np.int32), np.cumsum(_sizes_of_values(lists.values, field), dtype=np.int32))
    )
    sizes: Sizes = ends[offsets[1:]] - ends[offsets[:-1]]
    tag_sizes: Sizes = np.diff(offsets) * tag_size
    if field.is_packed:
        # A list of one item is shorter if it is not packed, and may be either.
        tag_sizes = np.minimum(tag_sizes, tag_size + _varint_sizes(sizes))
    return sizes + tag_sizes


def _sizes_of_values(values: pa.Array, field: FieldDescriptor) -> Sizes | Numbers:
    if field.type in _FIXED_SIZES:
        return np.full(len(values), _FIXED_SIZES[field.type], np.uint8)
    if field.type == _Type.TYPE_MESSAGE:
        sizes = least_sizes(values, field.message_type)
        return sizes + _varint_sizes(sizes)
    numbers = _numbers(values)
    if pa.types.is_binary(values.type):
        if field.type == _Type.TYPE_STRING:
            values.cast(pa.string())
        return numbers + _varint_sizes(numbers)
    if field.type in _ZIGZAG:
        signed = values.to_numpy().astype(np.int64)
        numbers = (signed << 1 ^ signed >> 63).view(np.uint64)
    # A negative number of 32 bits is mostly written with 64, and may be with 32.
    return _varint_sizes(numbers)


def _varint_sizes(numbers: Sizes | Numbers) -> npt.NDArray[np.uint8]:
    """Return how many bytes numbers take as varints."""
    sizes, largest = np.ones(len(numbers), np.uint8), int(numbers.max(initial=0))
    for bits in range(7, largest.bit_length(), 7):
        sizes += (numbers >= 1 << bits).view(np.uint8)
    return sizes


def _numbers(values: pa.Array) -> Numbers:
    """Return the bits of numbers as unsigned integers, or the lengths of byte strings: 0 for a field's default."""
    if pa.types.is_boolean(values.type):
        bits: Numbers = values.fill_null(False).to_numpy(zero_copy_only=False).view(np.uint8)
        return bits
    _, first, *rest = values.buffers()
    if rest:
        offsets = np.frombuffer(first, np.int32, len(values) + 1, values.offset * 4)
        lengths: Numbers = np.diff(offsets).view(np.uint32)
        return lengths
    kind = np.dtype(f"u{values.type.bit_width // 8}")
    numbers: Numbers = np.frombuffer(first, kind, len(values), values.offset * kind.itemsize)
    return numbers
