"""Decode Avro values by column: one step of the plan for all values at once.

Each value has a cursor. A step reads what is at the cursors, moves them on, and makes an Arrow array. Items of arrays and
maps are first looked for, round by round, one of each value that has one left; then they are read like values.

A value that is wrong, or unusual, becomes a suspect: the plain decoder reads it, or says what is wrong. Its cursor goes to
zeros behind the data, where all types can be read: so it never needs a special case, nor changes another value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from storage_core.values.avro_plain import EMPTY_ITEMS_LIMIT, Input, PlainCompiler, Read, ValueMalformedError
from storage_core.values.avro_plan import (
    Choice,
    Leaf,
    Member,
    Optional,
    Refusal,
    Sequence,
    Step,
    Struct,
    Text,
)
from storage_core.values.decoding import placed

if TYPE_CHECKING:
    import numpy.typing as npt

    from storage_core.values.decoding import Payloads

    _Int64Array = npt.NDArray[np.int64]
    _Mask = npt.NDArray[np.bool_]

# Zeros behind the data. A cursor may drift so far behind the end of its value before that is noticed, and a failed one may
# move as far before it starts again.
_PAD_BYTES: Final = 8192
_DRIFT_BYTES: Final = 2048
# Up to so many values are walked over one by one: a round for all costs as much.
_FEW: Final = 24
# More items at once would take too much memory.
_ITEMS_AT_ONCE: Final = 1 << 22
# Above this share of longer numbers, it is cheaper to read all of them as such.
_DENSE_SHARE: Final = 2
_CONTINUES: Final = 0x80
_NUMBERS: Final = frozenset({"int", "long", "enum"})
_WORD_BYTES: Final = 8
_DECIMAL_BYTES: Final = 16
# numpy combines unsigned arrays with unsigned numbers only.
_U1, _U2, _U4, _U56, _U63 = (np.uint64(number) for number in (1, 2, 4, 56, 63))
_CONTINUE_BITS: Final = np.uint64(0x8080808080808080)
# Of a word with seven bits in each byte: which bits stay, and which move down, to close the gaps of 1, 2 and 4 bits.
_CLOSING: Final = tuple(
    (np.uint64(stay), np.uint64(move), shift)
    for stay, move, shift in (
        (0x007F007F007F007F, 0x7F007F007F007F00, _U1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, _U2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, _U4),
    )
)
_POSITIVE: Final = np.int64(0x7FFFFFFFFFFFFFFF)


class TooManyItemsError(Exception):
    """The values have more items together than are decoded at once: take fewer values."""


class Place(NamedTuple):
    """Where the values of some cursors go: their indexes in ascending order, and the length of the array. Others are null."""

    indexes: _Int64Array
    length: int

    def within(self, outer: Place | None) -> Place:
        """Return the place in the array that this one is a part of."""
        return self if outer is None else Place(outer.indexes[self.indexes], outer.length)


class Window:
    """Values that are decoded at once.

    Attributes:
        data: Their bytes, and zeros.
        words: The eight bytes at each position.
        buffer: The data for Arrow.
        zeros: Where failed cursors go.
        is_suspect: Which values the plain decoder has to look at.
        empty_items: How many items without bytes each value has.
        compiler: Makes plain functions.
    """

    def __init__(self, payloads: Payloads, compiler: PlainCompiler) -> None:
        size = len(payloads.data)
        self.data = np.empty(size + _PAD_BYTES, np.uint8)
        self.data[:size] = payloads.data
        self.data[size:] = 0
        self.words: npt.NDArray[np.uint64] = np.ndarray((len(self.data) - 7,), "<u8", self.data.data, 0, (1,))
        self.buffer = pa.py_buffer(self.data)
        # A cursor at the end of the last value is not there.
        self.zeros = size + 1
        self.is_suspect = np.zeros(len(payloads.starts), bool)
        self.empty_items = np.zeros(len(payloads.starts), np.int64)
        self.compiler = compiler
        self._bytes: bytes | None = None
        self._stops: _Int64Array | None = None

    def stops(self) -> _Int64Array:
        """Return where the bytes without the high bit are, which end numbers."""
        if self._stops is None:
            self._stops = np.flatnonzero(self.data < _CONTINUES)
        return self._stops

    def input(self, start: int, end: int) -> Input:
        """Return a range of the data for the plain decoder."""
        if self._bytes is None:
            self._bytes = self.data.tobytes()
        return Input(self._bytes, start, end)


class Cursor:
    """Where values are being read.

    Attributes:
        position: The next byte of each.
        end: The end of each.
        rows: Which values of the window they are, or are parts of; they ascend.
    """

    __slots__ = ("_drift", "end", "position", "rows", "window")

    def __init__(self, window: Window, position: _Int64Array, end: _Int64Array, rows: _Int64Array) -> None:
        self.window = window
        self.position = position
        self.end = end
        self.rows = rows
        self._drift = 0

    def __len__(self) -> int:
        return len(self.position)

    def some(self, indexes: _Int64Array | _Mask) -> Cursor:
        """Return cursors of their own for some values; `join` takes them back."""
        part = Cursor(self.window, self.position[indexes], self.end[indexes], self.rows[indexes])
        part._drift = self._drift
        return part

    def join(self, indexes: _Int64Array | _Mask, part: Cursor) -> None:
        """Move the cursors of some values to where others are."""
        self.position[indexes] = part.position
        self.end[indexes] = part.end
        self._drift = max(self._drift, part._drift)

    def move(self, size: int) -> None:
        """Move over so many bytes of each value."""
        self.position += size
        self.drifted(size)

    def drifted(self, size: int) -> None:
        """Note that cursors moved by up to so many bytes without a look at the ends of their values."""
        self._drift += size
        if self._drift > _DRIFT_BYTES:
            self.check()

    def check(self) -> None:
        """Suspect the values whose ends have been passed."""
        self.fail(self.position > self.end)
        self._drift = 0

    def suspect(self, indexes: _Int64Array | _Mask | slice) -> None:
        """Leave values to the plain decoder."""
        self.window.is_suspect[self.rows[indexes]] = True

    def fail(self, failed: _Mask) -> None:
        """Leave values to the plain decoder, and read zeros instead."""
        if failed.any():
            self.suspect(failed)
            self.position[failed] = self.window.zeros
            self.end[failed] = self.window.zeros + _DRIFT_BYTES

    def has_failed(self) -> _Mask:
        """Return which cursors read zeros."""
        return self.position >= self.window.zeros


def decode_window(step: Step, payloads: Payloads, compiler: PlainCompiler) -> tuple[pa.Array, _Int64Array]:
    """Decode values that follow each other in the data.

    Returns:
        An array with a value for each, and the indexes of the suspects, whose values mean nothing.

    Raises:
        TooManyItemsError: The values have too many items to be decoded at once.
    """
    window = Window(payloads, compiler)
    rows = np.arange(len(payloads.starts))
    cursor = Cursor(window, payloads.starts.astype(np.int64), payloads.ends.astype(np.int64), rows)
    with np.errstate(all="ignore"):
        # What failed may be any number.
        array = _read(step, cursor)
    # Bytes after a value are a sign of the wrong schema.
    cursor.suspect(cursor.position != cursor.end)
    return array, np.flatnonzero(window.is_suspect)


# -------------------------------------------------------------------------------------------------------------- numbers


def _numbers(cursor: Cursor) -> _Int64Array:
    """Read variable-length integers with their signs in the lowest bits."""
    first = cursor.window.data[cursor.position]
    is_long = first >= _CONTINUES
    long_count = np.count_nonzero(is_long)
    if long_count * _DENSE_SHARE > len(first):
        values, sizes = _long_numbers(cursor, slice(None))
        cursor.position += sizes
    else:
        raw = first.astype(np.int64)
        values = (raw >> 1) ^ -(raw & 1)
        cursor.position += 1
        if long_count:
            indexes = np.flatnonzero(is_long)
            cursor.position[indexes] -= 1
            values[indexes], sizes = _long_numbers(cursor, indexes)
            cursor.position[indexes] += sizes
    cursor.drifted(10)
    return values


def _long_numbers(cursor: Cursor, indexes: _Int64Array | slice) -> tuple[_Int64Array, _Int64Array]:
    """Read integers of up to ten bytes, and return their sizes too.

    Eight bytes at once: the first one without the high bit ends the number, then the gaps of the high bits are closed.
    """
    position = cursor.position[indexes]
    word = cursor.window.words[position]
    ends = ~word & _CONTINUE_BITS
    lowest = ends & (~ends + _U1)
    # All bits up to the lowest; all there are if there is none.
    used = lowest ^ (lowest - _U1)
    sizes = np.bitwise_count(used).astype(np.int64) >> 3
    raw = word & used & ~_CONTINUE_BITS
    for stay, move, shift in _CLOSING:
        raw = (raw & stay) | ((raw & move) >> shift)
    is_longer = lowest == 0
    if is_longer.any():
        _add_last_bytes(cursor, indexes, is_longer, raw, sizes)
    signed = raw.view(np.int64)
    return ((signed >> 1) & _POSITIVE) ^ -(signed & 1), sizes


def _add_last_bytes(
    cursor: Cursor,
    indexes: _Int64Array | slice,
    is_longer: _Mask,
    raw: npt.NDArray[np.uint64],
    sizes: _Int64Array,
) -> None:
    """Add the ninth and the tenth byte to integers that have them."""
    longer = np.flatnonzero(is_longer)
    position = cursor.position[indexes][longer]
    ninth = cursor.window.data[position + 8].astype(np.uint64)
    tenth = cursor.window.data[position + 9].astype(np.uint64)
    has_tenth = ninth >= _CONTINUES
    raw[longer] |= (ninth & np.uint64(0x7F)) << _U56
    raw[longer] |= np.where(has_tenth, tenth << _U63, np.uint64(0))
    sizes[longer] = 9 + has_tenth
    too_long = longer[has_tenth & (tenth > 1)]
    if len(too_long):
        cursor.suspect(np.arange(len(cursor))[indexes][too_long])


def _skip_leaves(step: Leaf, cursor: Cursor) -> None:
    """Move over byte strings or integers."""
    if step.kind == "bytes":
        cursor.position += _sizes(cursor)
        return
    data = cursor.window.data
    is_long = data[cursor.position] >= _CONTINUES
    cursor.position += 1
    if is_long.any():
        indexes = np.flatnonzero(is_long)
        ends = ~cursor.window.words[cursor.position[indexes]] & _CONTINUE_BITS
        lowest = ends & (~ends + _U1)
        sizes = np.bitwise_count(lowest ^ (lowest - _U1)).astype(np.int64) >> 3
        longest = indexes[lowest == 0]
        cursor.position[indexes] += sizes
        if len(longest):
            cursor.position[longest] += 1
            cursor.suspect(longest[data[cursor.position[longest] - 1] > 1])
    cursor.drifted(10)


def _sizes(cursor: Cursor) -> _Int64Array:
    """Read the sizes of byte strings, which end within their values."""
    sizes = _numbers(cursor)
    wrong = (sizes < 0) | (sizes > cursor.end - cursor.position)
    if wrong.any():
        cursor.fail(wrong)
        sizes[wrong] = 0
    return sizes


def _branches(cursor: Cursor, count: int, otherwise: int = 0) -> _Int64Array:
    """Read the index of a branch or a symbol of each value; take `otherwise` for one that does not exist."""
    branches = _numbers(cursor)
    wrong = (branches < 0) | (branches >= count)
    if wrong.any():
        cursor.fail(wrong)
        branches[wrong] = otherwise
    return branches


# ---------------------------------------------------------------------------------------------------------------- steps


def _read(step: Step, cursor: Cursor, place: Place | None = None) -> pa.Array:
    """Read a value at each cursor, and put them at their place."""
    match step:
        case Leaf():
            return _LEAVES[step.kind](step, cursor, place)
        case Struct():
            return _placed(_read_struct(step, cursor), place)
        case Optional():
            return _read_optional(step, cursor, place)
        case Sequence():
            return _read_sequence(step, cursor, place)
        case Choice():
            return _read_choice(step, cursor, place)
        case Member():
            return _placed(_read_member(step, cursor), place)
        case Text():
            return _placed(_read_text(step, cursor), place)
        case Refusal():
            _skip(step.item, cursor)
            cursor.suspect(slice(None))
            return pa.nulls(len(cursor) if place is None else place.length, step.arrow_type)


def _skip(step: Step, cursor: Cursor) -> None:
    """Move over a value at each cursor, and check only what is needed to find its end."""
    if step.width is not None:
        cursor.move(step.width)
        return
    match step:
        case Leaf():
            _skip_leaves(step, cursor)
        case Struct():
            for child in step.children:
                _skip(child.step, cursor)
        case Optional():
            _skip_branches(_branches(cursor, 2), {1 - step.null_branch: step.item}, cursor)
        case Choice():
            _skip_branches(_branches(cursor, len(step.branches)), dict(enumerate(step.branches)), cursor)
        case Sequence():
            _find_items(step, cursor)
        case Member() | Refusal():
            _skip(step.item, cursor)
        case Text():
            _walk_records(cursor, cursor.window.compiler.skipper(step))


def _skip_branches(branches: _Int64Array, steps: dict[int, Step], cursor: Cursor) -> None:
    for branch, step in steps.items():
        indexes = np.flatnonzero(branches == branch)
        part = cursor.some(indexes)
        _skip(step, part)
        cursor.join(indexes, part)


def _read_struct(step: Struct, cursor: Cursor) -> pa.Array:
    columns: list[pa.Array] = [None] * len(step.names)
    for child in step.children:
        if child.target is None:
            _skip(child.step, cursor)
        else:
            columns[child.target] = _read(child.step, cursor)
    for constant in step.constants:
        one = pa.array([constant.value], step.arrow_type.field(constant.target).type)
        columns[constant.target] = one.take(pa.array(np.zeros(len(cursor), np.int32)))
    return _struct_array(step.arrow_type, columns, len(cursor))


def _struct_array(arrow_type: pa.StructType, columns: list[pa.Array], count: int) -> pa.Array:
    if not columns:
        return pa.Array.from_buffers(arrow_type, count, [None])
    return pa.StructArray.from_arrays(columns, fields=list(arrow_type))


def _read_optional(step: Optional, cursor: Cursor, place: Place | None) -> pa.Array:
    branches = _branches(cursor, 2, step.null_branch)
    present = np.flatnonzero(branches != step.null_branch)
    if len(present) == len(branches):
        return _read(step.item, cursor, place)
    part = cursor.some(present)
    array = _read(step.item, part, Place(present, len(branches)).within(place))
    cursor.join(present, part)
    return array


def _read_choice(step: Choice, cursor: Cursor, place: Place | None) -> pa.Array:
    branches = _branches(cursor, len(step.branches))
    arrays, found = [], []
    for branch, branch_step in enumerate(step.branches):
        indexes = np.flatnonzero(branches == branch)
        part = cursor.some(indexes)
        array = _read(branch_step, part)
        cursor.join(indexes, part)
        if len(indexes) and array.null_count < len(array):
            arrays.append(array)
            found.append(indexes)
    if not arrays:
        return pa.nulls(len(cursor) if place is None else place.length, step.arrow_type)
    return placed(pa.concat_arrays(arrays), *Place(np.concatenate(found), len(cursor)).within(place))


def _read_member(step: Member, cursor: Cursor) -> pa.Array:
    if step.target is None:
        _skip(step.item, cursor)
    array = None if step.target is None else _read(step.item, cursor)
    columns = [
        array if index == step.target else pa.nulls(len(cursor), field.type)
        for index, field in enumerate(step.arrow_type)
    ]
    return _struct_array(step.arrow_type, columns, len(cursor))


def _read_text(step: Text, cursor: Cursor) -> pa.Array:
    return pa.array(_walk_records(cursor, cursor.window.compiler.reader(step)), pa.string())


def _walk_records(cursor: Cursor, walk: Read) -> list[str | None]:
    """Read a value at each cursor plainly, and move on; None for one that does not decode."""
    texts: list[str | None] = []
    failed = np.zeros(len(cursor), bool)
    for index, (start, end) in enumerate(zip(cursor.position.tolist(), cursor.end.tolist(), strict=True)):
        value = cursor.window.input(start, end)
        try:
            texts.append(walk(value))
        except (ValueMalformedError, RecursionError):
            texts.append(None)
            failed[index] = True
        cursor.position[index] = value.position
        cursor.window.empty_items[cursor.rows[index]] += value.empty_items
    cursor.fail(failed)
    # A value may have several texts, and more empty items than any of them.
    cursor.suspect(cursor.window.empty_items[cursor.rows] > EMPTY_ITEMS_LIMIT)
    return texts


def _placed(array: pa.Array, place: Place | None) -> pa.Array:
    return array if place is None else placed(array, *place)


def _presence(place: Place) -> _Mask:
    is_present = np.zeros(place.length, bool)
    is_present[place.indexes] = True
    return is_present


def _bits(mask: npt.NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(mask, bitorder="little"))


def _spread(values: npt.NDArray[Any], place: Place | None) -> tuple[npt.NDArray[Any], pa.Buffer | None]:
    """Return numbers at their places, and which are valid."""
    if place is None:
        return values, None
    spread = np.zeros((place.length, *values.shape[1:]), values.dtype)
    spread[place.indexes] = values
    return spread, _bits(_presence(place))


# --------------------------------------------------------------------------------------------------------------- leaves


def _read_null(step: Leaf, cursor: Cursor, place: Place | None) -> pa.Array:
    return pa.nulls(len(cursor) if place is None else place.length, step.arrow_type)


def _read_boolean(step: Leaf, cursor: Cursor, place: Place | None) -> pa.Array:
    values = cursor.window.data[cursor.position]
    wrong = values > 1
    if wrong.any():
        cursor.suspect(wrong)
    cursor.move(1)
    spread, validity = _spread(values, place)
    return pa.Array.from_buffers(step.arrow_type, len(spread), [validity, _bits(spread)])


def _read_integer(step: Leaf, cursor: Cursor, place: Place | None) -> pa.Array:
    values = _numbers(cursor)
    if step.kind == "int":
        wrong = values != values.astype(np.int32)
        if wrong.any():
            cursor.suspect(wrong)
    if step.factor != 1:
        scaled = values * step.factor
        wrong = np.abs(values) > np.iinfo(np.int64).max // step.factor
        wrong |= values == np.iinfo(np.int64).min
        if wrong.any():
            cursor.suspect(wrong)
        values = scaled
    return _number_array(values, step.arrow_type, place)


def _read_double(step: Leaf, cursor: Cursor, place: Place | None) -> pa.Array:
    values = cursor.window.words[cursor.position].view(np.float64)
    cursor.move(8)
    return _number_array(values, step.arrow_type, place)


def _read_float(step: Leaf, cursor: Cursor, place: Place | None) -> pa.Array:
    values = cursor.window.words[cursor.position].astype(np.uint32).view(np.float32)
    cursor.move(4)
    return _number_array(values, step.arrow_type, place)


def _number_array(values: npt.NDArray[Any], arrow_type: pa.DataType, place: Place | None) -> pa.Array:
    if pa.types.is_floating(arrow_type):
        values = values.astype(np.float32 if arrow_type.bit_width == 32 else np.float64, copy=False)  # noqa: PLR2004
    else:
        values = values.astype(np.int32 if arrow_type.bit_width == 32 else np.int64, copy=False)  # noqa: PLR2004
    spread, validity = _spread(values, place)
    return pa.Array.from_buffers(arrow_type, len(spread), [validity, pa.py_buffer(spread)])


def _read_enum(step: Leaf, cursor: Cursor, place: Place | None) -> pa.Array:
    values = _branches(cursor, len(step.symbols))
    if not step.symbols:
        return _read_null(step, cursor, place)
    if None in step.symbols:
        is_unknown = np.array([symbol is None for symbol in step.symbols])
        cursor.suspect(is_unknown[values])
    words = pa.array(step.symbols, step.arrow_type)
    if place is None:
        return words.take(pa.array(values))
    spread, _ = _spread(values, place)
    return words.take(pa.array(spread, mask=~_presence(place)))


def _read_bytes(step: Leaf, cursor: Cursor, place: Place | None) -> pa.Array:
    sizes = cursor.end - cursor.position if step.kind == "rest" else _sizes(cursor)
    starts = cursor.position.copy()
    cursor.position += sizes
    return _byte_array(step.arrow_type, cursor, starts, sizes, place)


def _read_fixed(step: Leaf, cursor: Cursor, place: Place | None) -> pa.Array:
    width = step.width or 0
    wrong = cursor.end - cursor.position < width
    cursor.fail(wrong)
    starts = cursor.position.copy()
    cursor.move(width)
    return _byte_array(step.arrow_type, cursor, starts, np.where(wrong, 0, width), place)


def _byte_array(
    arrow_type: pa.DataType, cursor: Cursor, starts: _Int64Array, sizes: _Int64Array, place: Place | None
) -> pa.Array:
    if pa.types.is_decimal(arrow_type):
        return _decimals(arrow_type, cursor, starts, sizes, place)
    array = _gathered(cursor, starts, sizes, place)
    if not pa.types.is_string(arrow_type):
        return array
    wrong = _not_utf8(array)
    if len(wrong):
        indexes = wrong if place is None else np.searchsorted(place.indexes, wrong)
        cursor.suspect(indexes)
        sizes[indexes] = 0
        array = _gathered(cursor, starts, sizes, place)
    return array.view(pa.string())


def _gathered(cursor: Cursor, starts: _Int64Array, sizes: _Int64Array, place: Place | None) -> pa.BinaryArray:
    """Copy byte strings out of the data.

    Arrow does it, of an array whose even elements are the strings, and whose odd ones lie between them.
    """
    window = cursor.window
    count = len(starts) if place is None else place.length
    evens = slice(0, 2 * count, 2) if place is None else 2 * place.indexes
    odds = slice(1, 2 * count, 2) if place is None else 2 * place.indexes + 1
    offsets = np.zeros(2 * count + 1, np.int32)
    has_failed = starts >= window.zeros
    is_sound = not has_failed.any()
    offsets[evens] = starts if is_sound else np.where(has_failed, 0, starts)
    offsets[odds] = starts + sizes if is_sound else np.where(has_failed, 0, starts + sizes)
    if place is not None or not is_sound:
        # Those that are absent or failed are empty, at the end of the one before.
        np.maximum.accumulate(offsets, out=offsets)
    offsets[-1] = offsets[-2] if count else 0
    alternating = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(offsets), window.buffer]
    )
    array = alternating.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))
    if place is None:
        return array
    return pa.BinaryArray.from_buffers(pa.binary(), count, [_bits(_presence(place)), *array.buffers()[1:]])


def _not_utf8(array: pa.BinaryArray) -> _Int64Array:
    """Return which byte strings are not UTF-8."""
    _, offsets_buffer, data_buffer = array.buffers()
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer else np.zeros(0, np.uint8)
    if not len(data) or data.max() < _CONTINUES:
        return np.zeros(0, np.int64)
    try:
        array.view(pa.string()).validate(full=True)
    except pa.ArrowInvalid:
        offsets = np.frombuffer(offsets_buffer, np.int32)
        candidates = np.unique(np.searchsorted(offsets, np.flatnonzero(data >= _CONTINUES), "right") - 1)
        return np.array(
            [index for index in candidates.tolist() if not _is_utf8(array[index].as_py())], np.int64
        )
    return np.zeros(0, np.int64)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _decimals(
    arrow_type: pa.Decimal128Type,
    cursor: Cursor,
    starts: _Int64Array,
    sizes: _Int64Array,
    place: Place | None,
) -> pa.Array:
    """Read big-endian integers as halves of 64 bits each."""
    words = cursor.window.words
    wrong = sizes > _DECIMAL_BYTES
    if wrong.any():
        # With sign bytes in front, or too large.
        cursor.suspect(wrong)
        sizes = np.minimum(sizes, _DECIMAL_BYTES)
    halves = np.zeros((len(starts), 2), np.int64)
    first = words[starts].byteswap().view(np.int64)
    halves[:, 0] = np.where(sizes == 0, 0, first >> np.minimum(64 - 8 * np.minimum(sizes, 8), 63))
    halves[:, 1] = halves[:, 0] >> 63
    large = np.flatnonzero(sizes > _WORD_BYTES)
    if len(large):
        halves[large, 0] = words[starts[large] + sizes[large] - 8].byteswap().view(np.int64)
        halves[large, 1] = first[large] >> (128 - 8 * sizes[large])
    cursor.suspect(~_are_below(halves, 10**arrow_type.precision))
    spread, validity = _spread(halves, place)
    return pa.Array.from_buffers(arrow_type, len(spread), [validity, pa.py_buffer(spread)])


def _are_below(halves: _Int64Array, limit: int) -> _Mask:
    """Return which integers of 128 bits are, without their signs, below a limit."""
    low, high = halves[:, 0].view(np.uint64), halves[:, 1]
    is_negative = high < 0
    # Without the sign: all bits inverted, plus one, which makes "below" an "at most" less one.
    low, high = np.where(is_negative, ~low, low), np.where(is_negative, ~high, high)
    most_high, most_low = np.int64((limit - 1) >> 64), (limit - 1) & ((1 << 64) - 1)
    most = np.where(is_negative, np.uint64(most_low - 1), np.uint64(most_low))
    is_below: _Mask = (high < most_high) | ((high == most_high) & (low <= most))
    return is_below


_LEAVES: Final = {
    "null": _read_null,
    "boolean": _read_boolean,
    "int": _read_integer,
    "long": _read_integer,
    "float": _read_float,
    "double": _read_double,
    "enum": _read_enum,
    "bytes": _read_bytes,
    "rest": _read_bytes,
    "fixed": _read_fixed,
}


# ---------------------------------------------------------------------------------------------------------------- items


def _read_sequence(step: Sequence, cursor: Cursor, place: Place | None) -> pa.Array:
    counts, items = _find_items(step, cursor)
    keys = _read(_KEY, items) if step.has_keys else None
    values = _read(step.item, items)
    spread, validity = _spread(counts, place)
    offsets = np.zeros(len(spread) + 1, np.int32)
    np.cumsum(spread, out=offsets[1:])
    if keys is not None:
        arrow_type = step.arrow_type
        values = pa.StructArray.from_arrays(
            [keys, values], fields=[arrow_type.key_field, arrow_type.item_field]
        )
    return pa.Array.from_buffers(
        step.arrow_type, len(spread), [validity, pa.py_buffer(offsets)], children=[values]
    )


_KEY: Final = Leaf("bytes", pa.string(), None)


def _find_items(step: Sequence, cursor: Cursor) -> tuple[_Int64Array, Cursor]:
    """Move over arrays or maps.

    Returns:
        How many items each has, and cursors at all items (at the keys, if they have them), in their order.
    """
    walk = _ItemWalk(step, cursor)
    while walk.begin_blocks():
        walk.step()
    return walk.found()


class _ItemWalk:
    """Looks for the items of arrays or maps."""

    def __init__(self, step: Sequence, cursor: Cursor) -> None:
        self._step = step
        self._width = None if step.has_keys else step.item.width
        item = step.item
        self._is_numbers = isinstance(item, Leaf) and item.kind in _NUMBERS and not step.has_keys
        self._whole = cursor
        # The arrays that go on: which they are, where they are, and what is left of their blocks.
        self._indexes = np.arange(len(cursor))
        self._cursor = cursor.some(self._indexes)
        self._left = np.zeros(len(cursor), np.int64)
        self._found: list[tuple[_Int64Array, _Int64Array]] = []

    def begin_blocks(self) -> bool:
        """Begin the next block where one ended; return whether any array goes on."""
        ended = np.flatnonzero(self._left == 0)
        if len(ended):
            part = self._cursor.some(ended)
            self._left[ended] = _block_counts(part, self._width)
            self._cursor.join(ended, part)
            self._leave(self._left == 0)
        return len(self._indexes) > 0

    def _leave(self, is_done: _Mask) -> None:
        if is_done.any():
            self._whole.join(self._indexes[is_done], self._cursor.some(is_done))
            goes_on = ~is_done
            self._indexes, self._left = self._indexes[goes_on], self._left[goes_on]
            self._cursor = self._cursor.some(goes_on)

    def step(self) -> None:
        """Move over an item of each array, or over more if that is quicker."""
        if self._width is not None:
            self._step_blocks(self._width)
        elif self._is_numbers:
            self._step_numbers()
        elif len(self._indexes) <= _FEW:
            self._step_plainly()
        else:
            self._found.append((self._indexes, self._cursor.position.copy()))
            if self._step.has_keys:
                self._cursor.position += _sizes(self._cursor)
            _skip(self._step.item, self._cursor)
            self._cursor.check()
            self._left -= 1
            self._left[self._cursor.has_failed()] = 0

    def _step_blocks(self, width: int) -> None:
        """Move over whole blocks of items that have the same width."""
        if self._left.sum() > _ITEMS_AT_ONCE and len(self._cursor.window.is_suspect) > 1:
            raise TooManyItemsError
        before = np.cumsum(self._left) - self._left
        number = np.arange(int(self._left.sum())) - np.repeat(before, self._left)
        starts = np.repeat(self._cursor.position, self._left) + number * width
        self._found.append((np.repeat(self._indexes, self._left), starts))
        self._cursor.position += self._left * width
        self._left[:] = 0

    def _step_numbers(self) -> None:
        """Move over whole blocks of numbers, each of which ends with a byte without the high bit."""
        stops = self._cursor.window.stops()
        last = np.cumsum(self._left) - 1
        number = np.arange(last[-1] + 1) - np.repeat(last + 1 - self._left, self._left)
        first_stops = np.searchsorted(stops, self._cursor.position)
        ends = stops[np.minimum(np.repeat(first_stops, self._left) + number, len(stops) - 1)] + 1
        starts = np.roll(ends, 1)
        starts[last + 1 - self._left] = self._cursor.position
        self._found.append((np.repeat(self._indexes, self._left), starts))
        # A number of more than 64 bits, also where it is only skipped.
        too_long = (ends - starts > 10) | ((ends - starts == 10) & (self._cursor.window.data[ends - 1] > 1))  # noqa: PLR2004
        if too_long.any():
            self._cursor.suspect(np.repeat(np.arange(len(last)), self._left)[too_long])
        self._cursor.position = ends[last]
        self._cursor.check()
        self._left[:] = 0

    def _step_plainly(self) -> None:
        """Move over all that is left of a few arrays, item by item."""
        skip = self._cursor.window.compiler.skipper(self._step.item)
        if self._step.has_keys:
            skip_value = skip

            def skip(value: Input) -> None:
                value.skip(value.number())
                skip_value(value)

        failed = np.zeros(len(self._indexes), bool)
        for index, left_in_block in enumerate(self._left.tolist()):
            left = left_in_block
            value = self._cursor.window.input(int(self._cursor.position[index]), int(self._cursor.end[index]))
            starts: list[int] = []
            try:
                while left > 0:
                    starts.append(value.position)
                    skip(value)
                    left = left - 1 or value.block(None)
            except (ValueMalformedError, RecursionError):
                failed[index] = True
            self._found.append((np.full(len(starts), self._indexes[index]), np.array(starts, np.int64)))
            self._cursor.position[index] = value.position
        self._cursor.fail(failed)
        self._left[:] = 0
        self._leave(np.ones(len(self._indexes), bool))

    def found(self) -> tuple[_Int64Array, Cursor]:
        """Return the number of items of each array, and cursors at all of them."""
        whole = self._whole
        nothing = np.zeros(0, np.int64)
        indexes = np.concatenate([nothing, *(indexes for indexes, _ in self._found)])
        starts = np.concatenate([nothing, *(starts for _, starts in self._found)])
        counts = np.bincount(indexes, minlength=len(whole))
        if len(indexes) > _ITEMS_AT_ONCE and len(whole.window.is_suspect) > 1:
            raise TooManyItemsError
        if len(self._found) > 1:
            order = np.argsort(indexes, kind="stable")
            indexes, starts = indexes[order], starts[order]
        items = Cursor(whole.window, starts, whole.end[indexes], whole.rows[indexes])
        items.fail(whole.window.is_suspect[items.rows])
        return counts, items


def _block_counts(cursor: Cursor, width: int | None) -> _Int64Array:
    """Read how many items follow in the next blocks; 0 where there is none, or where it cannot be."""
    counts = _numbers(cursor)
    negative = np.flatnonzero(counts < 0)
    if len(negative):
        # Their sizes in bytes follow, for readers that skip them.
        counts[negative] = -counts[negative]
        part = cursor.some(negative)
        _sizes(part)
        cursor.join(negative, part)
    if width == 0:
        empty_items = cursor.window.empty_items
        np.add.at(empty_items, cursor.rows, np.minimum(counts, EMPTY_ITEMS_LIMIT + 1))
        wrong = (counts < 0) | (empty_items[cursor.rows] > EMPTY_ITEMS_LIMIT)
    else:
        wrong = (counts < 0) | (counts > (cursor.end - cursor.position) // (width or 1))
    wrong |= cursor.has_failed()
    if wrong.any():
        cursor.fail(wrong)
        counts[wrong] = 0
    return counts
