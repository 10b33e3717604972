"""Decode Avro values by column: one step of the plan for all values at once.

Each value has a cursor. A step reads what is at the cursors, moves them on, and makes an Arrow array. Items of arrays and
maps are first looked for, round by round, one of each value that has one left; then they are read like values.

A value that is wrong, or unusual, becomes a suspect: the plain decoder reads it, or says what is wrong. Its cursor goes to
zeros behind the data, where all types can be read: so it never needs a special case, nor changes another value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from storage_core.values.avro_plain import (
    EMPTY_ITEMS_LIMIT,
    KEY,
    Choice,
    Input,
    Leaf,
    Sequence,
    Step,
    Struct,
    Text,
    ValueMalformedError,
)
from storage_core.values.decoding import scatter, scatter_sorted

if TYPE_CHECKING:
    import numpy.typing as npt

    from storage_core.values.decoding import Payloads

    _Int64Array = npt.NDArray[np.int64]
    _Numbers = npt.NDArray[Any]
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
_WORD_BYTES: Final = 8
_DECIMAL_BYTES: Final = 16
# Larger than the relative error of a sum of doubles.
_DOUBLE_ERROR: Final = 1e-12
# numpy combines unsigned arrays with unsigned numbers only.
_U1, _U56, _U63 = (np.uint64(number) for number in (1, 56, 63))
_CONTINUE_BITS: Final = np.uint64(0x8080808080808080)
# Of a word with seven bits in each byte: which bits move down, and by how many, to close the gaps. A gap is closed only in
# numbers of more bytes than that.
_CLOSING: Final = (
    (np.uint64(0x7F007F007F007F00), np.uint64(1)),
    (np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
)


class TooManyItemsError(Exception):
    """Too many items in values that are decoded together: take fewer values."""


class Window:
    """Values that are decoded at once.

    Attributes:
        data: Their bytes, and zeros.
        buffer: The data for Arrow.
        zeros: Where failed cursors go.
        is_suspect: Which values the plain decoder has to look at.
        empty_items: How many items without bytes each value has.
    """

    def __init__(self, payloads: Payloads) -> None:
        size = len(payloads.data)
        self.data = np.empty(size + _PAD_BYTES, np.uint8)
        self.data[:size] = payloads.data
        self.data[size:] = 0
        self.buffer = pa.py_buffer(self.data)
        # A cursor at the end of the last value is not there.
        self.zeros = size + 1
        self.is_suspect = np.zeros(len(payloads.starts), bool)
        self.empty_items = np.zeros(len(payloads.starts), np.int64)
        self._bytes: bytes | None = None

    def items(self, kind: str) -> npt.NDArray[Any]:
        """Return what is at each position, as a number of up to eight bytes of this kind."""
        return np.ndarray((len(self.data) - 7,), kind, self.data.data, 0, (1,))

    def input(self, start: int, end: int) -> Input:
        """Return a range of the data for the plain decoder."""
        if self._bytes is None:
            self._bytes = self.data.tobytes()
        return Input(self._bytes, start, end)


class Cursor:
    """Positions at which values are being read.

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

    def take(self, indexes: _Int64Array) -> Cursor:
        """Return separate cursors for some values; `join` takes them back."""
        part = Cursor(self.window, self.position[indexes], self.end[indexes], self.rows[indexes])
        part._drift = self._drift
        return part

    def join(self, indexes: _Int64Array, part: Cursor) -> None:
        """Move the cursors of some values to where their separate ones are."""
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
        """Leave values whose cursors are beyond their ends to the plain decoder."""
        self.fail(self.position > self.end)
        self._drift = 0

    def suspect(self, indexes: _Int64Array | _Mask) -> None:
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


def decode_window(step: Step, payloads: Payloads) -> tuple[pa.Array, _Int64Array]:
    """Decode values that follow each other in the data.

    Returns:
        An array with a value for each, and the indexes of the suspects, whose values mean nothing.

    Raises:
        TooManyItemsError: The values have too many items to be decoded at once.
    """
    window = Window(payloads)
    rows = np.arange(len(payloads.starts))
    cursor = Cursor(window, payloads.starts.astype(np.int64), payloads.ends.astype(np.int64), rows)
    with np.errstate(all="ignore"):
        # What failed may be any number.
        array = _read(step, cursor)
    # Bytes after a value are a sign of the wrong schema.
    cursor.suspect(cursor.position != cursor.end)
    return array, np.flatnonzero(window.is_suspect)


def _read(step: Step, cursor: Cursor) -> pa.Array:
    """Read a value at each cursor. What is not wanted is only moved over, and its array is one of nulls."""
    match step:
        case Leaf():
            return _LEAVES[step.kind](step, cursor)
        case Struct():
            return _read_struct(step, cursor)
        case Sequence():
            return _read_sequence(step, cursor)
        case Choice():
            return _read_choice(step, cursor)
        case Text():
            return _read_text(step, cursor)


def _nulls(step: Step, cursor: Cursor) -> pa.Array:
    return pa.nulls(len(cursor), step.arrow_type)


def _numbers(cursor: Cursor) -> _Int64Array:
    """Read variable-length integers with their signs in the lowest bits."""
    # Long ones are negative here.
    first = cursor.window.data[cursor.position].view(np.int8)
    is_long = first < 0
    long_count = np.count_nonzero(is_long)
    if long_count * _DENSE_SHARE > len(first):
        values, sizes = _long_numbers(cursor, slice(None))
        cursor.position += sizes
    else:
        values = ((first >> 1) ^ -(first & 1)).astype(np.int64)
        cursor.position += 1
        if long_count:
            indexes = np.flatnonzero(is_long)
            cursor.position[indexes] -= 1
            values[indexes], sizes = _long_numbers(cursor, indexes)
            cursor.position[indexes] += sizes
    cursor.drifted(10)
    return values


def _long_numbers(cursor: Cursor, indexes: _Int64Array | slice) -> tuple[_Int64Array, _Numbers]:
    """Read integers of up to ten bytes, and return their sizes too.

    Eight bytes at once: the first one without the high bit ends the number, then the gaps of the high bits are closed.
    """
    word = cursor.window.items("<u8")[cursor.position[indexes]]
    lowest = ~word
    lowest &= _CONTINUE_BITS
    lowest &= -lowest
    # All bits up to the lowest; all there are if there is none.
    used = lowest - _U1
    used ^= lowest
    sizes = np.bitwise_count(used) >> 3
    word &= used
    raw = word & ~_CONTINUE_BITS
    longest = sizes.max(initial=0)
    for move, bits in _CLOSING:
        if longest > bits:
            moved = raw & move
            raw ^= moved
            moved >>= bits
            raw |= moved
    if not lowest.all():
        _add_last_bytes(cursor, indexes, lowest == 0, raw, sizes)
    values = raw >> _U1
    raw &= _U1
    values ^= -raw
    return values.view(np.int64), sizes


def _add_last_bytes(
    cursor: Cursor,
    indexes: _Int64Array | slice,
    is_longer: _Mask,
    raw: npt.NDArray[np.uint64],
    sizes: _Numbers,
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


def _sizes(cursor: Cursor) -> _Int64Array:
    """Read the sizes of byte strings, which end within their values."""
    sizes = _numbers(cursor)
    wrong = sizes > cursor.end - cursor.position
    wrong |= sizes < 0
    if wrong.any():
        cursor.fail(wrong)
        sizes[wrong] = 0
    return sizes


def _branches(cursor: Cursor, count: int) -> _Numbers:
    """Read the index of a branch or a symbol of each value; 0 for one that does not exist."""
    first = cursor.window.data[cursor.position]
    if first.max(initial=0) < min(2 * count, _CONTINUES) and not (first & 1).any():
        cursor.move(1)
        return first >> 1
    branches = _numbers(cursor)
    wrong = (branches < 0) | (branches >= count)
    if wrong.any():
        cursor.fail(wrong)
        branches[wrong] = 0
    return branches


def _read_refused(step: Leaf, cursor: Cursor) -> pa.Array:
    cursor.fail(np.ones(len(cursor), bool))
    return _nulls(step, cursor)


def _read_boolean(_step: Leaf, cursor: Cursor) -> pa.Array:
    values = cursor.window.data[cursor.position]
    cursor.move(1)
    if values.max(initial=0) > 1:
        cursor.suspect(values > 1)
    bits = np.packbits(values, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)])


def _read_integer(step: Leaf, cursor: Cursor) -> pa.Array:
    values = _numbers(cursor)
    if step.kind == "int":
        narrow = values.astype(np.int32)
        wrong = values != narrow
        if wrong.any():
            cursor.suspect(wrong)
        if step.arrow_type.bit_width == narrow.itemsize * 8 and not pa.types.is_floating(step.arrow_type):
            return _number_array(narrow, step)
    if step.factor != 1:
        most = np.iinfo(np.int64).max // step.factor
        wrong = (values > most) | (values < -most)
        if wrong.any():
            cursor.suspect(wrong)
        values *= step.factor
    return _number_array(values, step)


def _read_float(step: Leaf, cursor: Cursor) -> pa.Array:
    kind, size = ("<f4", 4) if step.kind == "float" else ("<f8", 8)
    values = cursor.window.items(kind)[cursor.position]
    cursor.move(size)
    return _number_array(values, step)


def _number_array(values: _Numbers, step: Leaf) -> pa.Array:
    arrow_type = step.arrow_type
    if pa.types.is_null(arrow_type):
        return pa.nulls(len(values))
    kind = "f" if pa.types.is_floating(arrow_type) else "i"
    buffer = pa.allocate_buffer(len(values) * arrow_type.bit_width // 8)
    np.copyto(np.frombuffer(buffer, f"{kind}{arrow_type.bit_width // 8}"), values, casting="unsafe")
    return pa.Array.from_buffers(arrow_type, len(values), [None, buffer])


def _read_enum(step: Leaf, cursor: Cursor) -> pa.Array:
    values = _branches(cursor, len(step.symbols))
    if not step.symbols:
        return _nulls(step, cursor)
    if None in step.symbols:
        is_unknown = np.array([symbol is None for symbol in step.symbols])
        cursor.suspect(is_unknown[values])
    return pa.array(step.symbols, step.arrow_type).take(pa.array(values))


def _read_bytes(step: Leaf, cursor: Cursor) -> pa.Array:
    is_wanted = not pa.types.is_null(step.arrow_type)
    if step.width is not None and not is_wanted:
        cursor.move(step.width)
        return _nulls(step, cursor)
    if step.kind == "bytes":
        sizes = _sizes(cursor)
    else:
        room = cursor.end - cursor.position
        sizes = room if step.width is None else np.full(len(cursor), step.width)
        wrong = sizes > room
        cursor.fail(wrong)
        sizes[wrong] = 0
    starts = cursor.position.copy()
    cursor.position += sizes
    if not is_wanted:
        return _nulls(step, cursor)
    if pa.types.is_decimal(step.arrow_type):
        return _decimals(step.arrow_type, cursor, starts, sizes)
    array = _gathered(cursor.window, starts, sizes)
    if not pa.types.is_string(step.arrow_type):
        return array
    text = array.view(pa.string())
    is_ascii = np.frombuffer(array.buffers()[2] or b"", np.int8).min(initial=0) >= 0
    if not is_ascii and (others := _not_utf8(text)):
        cursor.suspect(np.array(others))
        sizes[others] = 0
        text = _gathered(cursor.window, starts, sizes).view(pa.string())
    return text


def _gathered(window: Window, starts: _Int64Array, sizes: _Int64Array) -> pa.BinaryArray:
    """Copy byte strings out of the data.

    Arrow takes the even elements of an array in which the odd ones are the bytes between the strings.
    """
    if not len(starts):
        return pa.array([], pa.binary())
    offsets = np.empty(2 * len(starts), np.int32)
    offsets[::2] = starts
    np.add(starts, sizes, out=offsets[1::2], casting="unsafe")
    if starts.max() >= window.zeros:
        # Those that failed are empty, at the end of the one before.
        offsets[offsets >= window.zeros] = 0
        np.maximum.accumulate(offsets, out=offsets)
    buffers = [None, pa.py_buffer(offsets), window.buffer]
    alternating = pa.BinaryArray.from_buffers(pa.binary(), len(offsets) - 1, buffers)
    return alternating.take(pa.array(np.arange(0, len(offsets), 2, dtype=np.int32)))


def _not_utf8(array: pa.StringArray, first: int = 0) -> list[int]:
    """Return the indexes of the strings that are not UTF-8, counted from ``first``."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        middle = len(array) // 2
        if not middle:
            return [first]
        return _not_utf8(array[:middle], first) + _not_utf8(array[middle:], first + middle)
    return []


def _decimals(
    arrow_type: pa.Decimal128Type, cursor: Cursor, starts: _Int64Array, sizes: _Int64Array
) -> pa.Array:
    """Read big-endian integers as halves of 64 bits each."""
    words = cursor.window.items("<u8")
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
    # As doubles; near the limit, the plain decoder looks closer. The lower half has a sign here.
    values = (halves[:, 1] + (halves[:, 0] < 0)) * 2.0**64 + halves[:, 0]
    cursor.suspect(np.abs(values) > 10.0**arrow_type.precision * (1 - _DOUBLE_ERROR))
    return pa.Array.from_buffers(arrow_type, len(halves), [None, pa.py_buffer(halves)])


_LEAVES: Final = {
    "null": _nulls,
    "boolean": _read_boolean,
    "int": _read_integer,
    "long": _read_integer,
    "float": _read_float,
    "double": _read_float,
    "enum": _read_enum,
    "bytes": _read_bytes,
    "rest": _read_bytes,
    "fixed": _read_bytes,
    "refused": _read_refused,
}


def _read_struct(step: Struct, cursor: Cursor) -> pa.Array:
    columns: list[pa.Array | None] = [None] * len(step.names)
    for child in step.children:
        array = _read(child.step, cursor)
        if child.target is not None:
            columns[child.target] = array
    if pa.types.is_null(step.arrow_type):
        return _nulls(step, cursor)
    for constant in step.constants:
        one = pa.array([constant.value], step.arrow_type.field(constant.target).type)
        columns[constant.target] = one.take(pa.array(np.zeros(len(cursor), np.int32)))
    children = [
        pa.nulls(len(cursor), step.arrow_type.field(index).type) if column is None else column
        for index, column in enumerate(columns)
    ]
    return pa.Array.from_buffers(step.arrow_type, len(cursor), [None], children=children)


def _read_choice(step: Choice, cursor: Cursor) -> pa.Array:
    branches = _branches(cursor, len(step.branches))
    arrays, found = [], []
    for branch, branch_step in enumerate(step.branches):
        indexes = np.flatnonzero(branches == branch)
        if not len(indexes) or (isinstance(branch_step, Leaf) and branch_step.kind == "null"):
            continue
        if len(indexes) == len(cursor):
            return _read(branch_step, cursor)
        part = cursor.take(indexes)
        array = _read(branch_step, part)
        cursor.join(indexes, part)
        if array.null_count < len(array):
            arrays.append(array)
            found.append(indexes)
    if not arrays:
        return _nulls(step, cursor)
    if len(arrays) == 1:
        return scatter_sorted(arrays[0], found[0], len(cursor))
    return scatter(pa.concat_arrays(arrays), np.concatenate(found), len(cursor))


def _read_text(step: Text, cursor: Cursor) -> pa.Array:
    """Read a text at each cursor with the plain decoder; null for one that does not decode."""
    texts: list[str | None] = []
    failed = np.zeros(len(cursor), bool)
    for index, (start, end) in enumerate(zip(cursor.position.tolist(), cursor.end.tolist(), strict=True)):
        value = cursor.window.input(start, end)
        try:
            texts.append(step.read(value))
        except (ValueMalformedError, RecursionError):
            texts.append(None)
            failed[index] = True
        cursor.position[index] = value.position
        cursor.window.empty_items[cursor.rows[index]] += value.empty_items
    cursor.fail(failed)
    # A value may have several texts, and more empty items than any of them.
    cursor.suspect(cursor.window.empty_items[cursor.rows] > EMPTY_ITEMS_LIMIT)
    return _nulls(step, cursor) if pa.types.is_null(step.arrow_type) else pa.array(texts, pa.string())


def _read_sequence(step: Sequence, cursor: Cursor) -> pa.Array:
    counts, items = _find_items(step, cursor)
    if step.item is None:
        return _nulls(step, cursor)
    arrow_type = step.arrow_type
    keys = _read(KEY, items) if step.has_keys else None
    values = _read(step.item, items)
    if keys is not None:
        fields = [arrow_type.key_field, arrow_type.item_field]
        values = pa.StructArray.from_arrays([keys, values], fields=fields)
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.Array.from_buffers(arrow_type, len(counts), [None, pa.py_buffer(offsets)], children=[values])


def _find_items(step: Sequence, cursor: Cursor) -> tuple[_Int64Array, Cursor]:
    """Move over arrays or maps.

    Returns:
        The number of items of each, and cursors at all items in order (at the keys of a map).
    """
    # The items left in the current block of each, and the values that are not at their end.
    left = np.zeros(len(cursor), np.int64)
    going = np.arange(len(cursor))
    indexes, starts = [left[:0]], [left[:0]]
    while len(going):
        ended = going[left[going] == 0]
        if len(ended):
            part = cursor.take(ended)
            left[ended] = _block_counts(part, step.width)
            cursor.join(ended, part)
            going = going[left[going] > 0]
        part = cursor.take(going)
        if step.width is None and len(going) > _FEW:
            indexes.append(going)
            starts.append(part.position.copy())
            if step.has_keys:
                part.position += _sizes(part)
            _read(step.walk, part)
            part.check()
            left[going] -= 1
            left[going[part.has_failed()]] = 0
        else:
            walk = _walk_items if step.width is None else _items_of_blocks
            found, positions = walk(step, part, left[going])
            indexes.append(going[found])
            starts.append(positions)
            left[going] = 0
        cursor.join(going, part)
        if step.width is None and len(going) <= _FEW:
            break
    return _items_in_order(cursor, np.concatenate(indexes), np.concatenate(starts))


def _block_counts(cursor: Cursor, width: int | None) -> _Int64Array:
    """Read how many items follow in the next blocks; 0 where there is none, or where it cannot be."""
    counts = _numbers(cursor)
    negative = np.flatnonzero(counts < 0)
    if len(negative):
        # Their sizes in bytes follow, for readers that skip them.
        counts[negative] = -counts[negative]
        part = cursor.take(negative)
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


def _items_of_blocks(step: Sequence, cursor: Cursor, left: _Int64Array) -> tuple[_Int64Array, _Int64Array]:
    """Move over blocks of items of the same width; return the array and the position of each item."""
    width = step.width or 0
    _check_item_count(cursor.window, int(left.sum()))
    indexes = np.repeat(np.arange(len(left)), left)
    number = np.arange(len(indexes)) - (np.cumsum(left) - left)[indexes]
    starts = cursor.position[indexes] + number * width
    cursor.position += left * width
    return indexes, starts


def _walk_items(step: Sequence, cursor: Cursor, left: _Int64Array) -> tuple[_Int64Array, _Int64Array]:
    """Move over the rest of a few arrays, item by item; return the array and the position of each item."""
    failed = np.zeros(len(cursor), bool)
    indexes: list[int] = []
    starts: list[int] = []
    for index, left_in_block in enumerate(left.tolist()):
        remaining = left_in_block
        value = cursor.window.input(int(cursor.position[index]), int(cursor.end[index]))
        try:
            while remaining > 0:
                indexes.append(index)
                starts.append(value.position)
                if step.has_keys:
                    value.take(value.number())
                step.walk.read(value)
                remaining = remaining - 1 or value.block(None)
        except (ValueMalformedError, RecursionError):
            failed[index] = True
        cursor.position[index] = value.position
    cursor.fail(failed)
    return np.array(indexes, np.int64), np.array(starts, np.int64)


def _items_in_order(cursor: Cursor, indexes: _Int64Array, starts: _Int64Array) -> tuple[_Int64Array, Cursor]:
    """Return the number of items of each array, and cursors at all of them."""
    window = cursor.window
    _check_item_count(window, len(indexes))
    order = np.argsort(indexes, kind="stable")
    indexes, starts = indexes[order], starts[order]
    items = Cursor(window, starts, cursor.end[indexes], cursor.rows[indexes])
    items.fail(window.is_suspect[items.rows])
    return np.bincount(indexes, minlength=len(cursor)), items


def _check_item_count(window: Window, count: int) -> None:
    if count > _ITEMS_AT_ONCE and len(window.is_suspect) > 1:
        raise TooManyItemsError
