"""Steps that read Avro values, one value at a time (Avro specification 1.12, "Binary Encoding").

A plan is a tree of steps, in the order of the writer's bytes. Its method `read` is the oracle of the decoder by column, which
hands over the values that are unusual or wrong. It is the quicker one for a few values, and the only one for recursive records.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from storage_core.values.avro_types import MapEntries, decimal_of
from storage_core.values.decoding import Reason

EMPTY_ITEMS_LIMIT: Final = 1 << 12
"""Items without bytes that a value may have: their number is only claimed, and nothing else bounds it."""
# Levels of recursive records: Python's own limit is not far above.
_RECURSION_LIMIT: Final = 100
_CONTINUES: Final = 0x80
_LONG_BITS: Final = 64
_INT64_LIMIT: Final = 1 << 63
_INT32_LIMIT: Final = 1 << 31
_FLOATS: Final = {"float": struct.Struct("<f"), "double": struct.Struct("<d")}


class ValueMalformedError(ValueError):
    """A value does not decode.

    Attributes:
        path: The fields that lead to what is wrong, innermost first.
    """

    reason: Reason = "malformed"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.path: list[str] = []

    def __str__(self) -> str:
        path = ".".join(filter(None, reversed(self.path)))
        return f"field {path}: {self.args[0]}" if path else str(self.args[0])


class ValueUnresolvableError(ValueMalformedError):
    """A value is sound, but the reader's schema has no place for it."""

    reason: Reason = "unresolvable"


class Input:
    """Bytes of a value, and how much of it has been read.

    Attributes:
        depth: How many recursive records are around the place.
        empty_items: How many items without bytes there were.
    """

    __slots__ = ("data", "depth", "empty_items", "end", "position", "start")

    def __init__(self, data: bytes, start: int, end: int) -> None:
        self.data = data
        self.start = start
        self.position = start
        self.end = end
        self.depth = 0
        self.empty_items = 0

    def take(self, size: int) -> bytes:
        """Read so many bytes."""
        position = self.position
        if not 0 <= size <= self.end - position:
            raise ValueMalformedError(
                f"{size:,} bytes at byte {position - self.start:,} of a value of {self.end - self.start:,}"
            )
        self.position = position + size
        return self.data[position : position + size]

    def number(self) -> int:
        """Read a variable-length integer with its sign in the lowest bit."""
        data, position, end = self.data, self.position, self.end
        raw = shift = 0
        while position < end:
            byte = data[position]
            position += 1
            raw |= (byte & 0x7F) << shift
            if byte < _CONTINUES:
                if raw >> _LONG_BITS:
                    break
                self.position = position
                return (raw >> 1) ^ -(raw & 1)
            shift += 7
            if shift >= _LONG_BITS + 6:
                break
        at = self.position - self.start
        problem = "ends in a number" if position >= end else "has a number of more than 64 bits"
        raise ValueMalformedError(f"the value {problem} at byte {at:,}")

    def branch(self, count: int) -> int:
        """Read the index of one of so many branches or symbols."""
        index = self.number()
        if not 0 <= index < count:
            raise ValueMalformedError(
                f"index {index:,} before byte {self.position - self.start:,}, of {count:,}"
            )
        return index

    def block(self, width: int | None) -> int:
        """Read how many items follow in the next block of an array or map; 0 ends it.

        Args:
            width: The bytes of each item; None if they differ.
        """
        count = self.number()
        if count < 0:
            # Its size in bytes follows, for readers that skip it.
            count = -count
            size = self.number()
            if not 0 <= size <= self.end - self.position:
                self.take(size)
        self.empty_items += count if width == 0 else 0
        room = (
            EMPTY_ITEMS_LIMIT - self.empty_items
            if width == 0
            else (self.end - self.position) // (width or 1) - count
        )
        if room < 0:
            raise ValueMalformedError(f"{count:,} items before byte {self.position - self.start:,} cannot be")
        return count


@dataclass(frozen=True, slots=True)
class Leaf:
    """Step that reads a value without parts.

    Attributes:
        kind: How it is encoded, as ``long``. Strings are ``bytes``. ``rest`` are bytes up to the end of the value. ``refused``
            is a branch that the reader's schema has no place for.
        arrow_type: What it becomes; that of nulls if it is only moved over.
        width: Bytes of each value; None if they differ.
        factor: What its number is multiplied by.
        symbols: The reader's words for the writer's symbols; None for one that the reader does not know.
        message: Why it is refused.
    """

    kind: str
    arrow_type: pa.DataType
    width: int | None = None
    factor: int = 1
    symbols: tuple[str | None, ...] = ()
    message: str = ""

    def read(self, value: Input) -> Any:
        """Read a value as Arrow takes it, or as JSON does within a text."""
        return _LEAVES[self.kind](self, value)


class Child(NamedTuple):
    """A field as the writer has it, and its index among the reader's fields; None for one that is not wanted."""

    name: str
    target: int | None
    step: Step


class Constant(NamedTuple):
    """A field that the writer does not have: its index among the reader's fields, and its default."""

    target: int
    value: Any


@dataclass(frozen=True, slots=True)
class Struct:
    """Step that reads a record, or a branch of a union as the struct that stands for the union.

    Attributes:
        names: The fields that come out, null if they are neither among the children nor the constants.
    """

    names: tuple[str, ...]
    children: tuple[Child, ...]
    constants: tuple[Constant, ...]
    arrow_type: pa.DataType

    def read(self, value: Input) -> dict[str, Any]:
        """Read a value."""
        names = self.names
        record: dict[str, Any] = dict.fromkeys(names)
        for constant in self.constants:
            record[names[constant.target]] = constant.value
        for name, target, step in self.children:
            try:
                result = step.read(value)
            except ValueMalformedError as error:
                error.path.append(name)
                raise
            if target is not None:
                record[names[target]] = result
        return record


@dataclass(frozen=True, slots=True)
class Sequence:
    """Step that reads an array, or a map, whose items have keys.

    Attributes:
        item: Reads an item; None if the items are not wanted.
        walk: Moves over an item.
    """

    item: Step | None
    walk: Step
    has_keys: bool
    arrow_type: pa.DataType

    @property
    def width(self) -> int | None:
        """Bytes of each item; None if they differ."""
        return self.walk.width if isinstance(self.walk, Leaf) and not self.has_keys else None

    def read(self, value: Input) -> list[Any] | MapEntries:
        """Read a value."""
        # A key that is not wanted need not be text.
        step, key = (self.walk, _SKIPPED_KEY) if self.item is None else (self.item, KEY)
        width = self.width
        items: list[Any] = []
        while count := value.block(width):
            if self.has_keys:
                items.extend([(key.read(value), step.read(value)) for _ in range(count)])
            else:
                items.extend([step.read(value) for _ in range(count)])
        return MapEntries(items) if self.has_keys else items


@dataclass(frozen=True, slots=True)
class Choice:
    """Step that reads a union."""

    branches: tuple[Step, ...]
    arrow_type: pa.DataType

    def read(self, value: Input) -> Any:
        """Read a value."""
        return self.branches[value.branch(len(self.branches))].read(value)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Text:
    """Step that reads a recursive record as JSON text, or a record within it.

    Attributes:
        records: How to read each recursive record; shared by all of a plan, as they contain each other.
        key: Which of them this is.
    """

    records: dict[tuple[str, str], Struct]
    key: tuple[str, str]
    arrow_type: pa.DataType

    def read(self, value: Input) -> Any:
        """Read a value."""
        value.depth += 1
        if value.depth > _RECURSION_LIMIT:
            raise ValueMalformedError(f"records nest deeper than {_RECURSION_LIMIT} levels")
        result = self.records[self.key].read(value)
        value.depth -= 1
        is_part = value.depth or pa.types.is_null(self.arrow_type)
        return result if is_part else _as_json(result)


Step: TypeAlias = Leaf | Struct | Sequence | Choice | Text


def read_value(step: Step, data: bytes) -> Any:
    """Read a value that is all of the data.

    Raises:
        ValueMalformedError: It does not decode.
    """
    value = Input(data, 0, len(data))
    try:
        result = step.read(value)
    except RecursionError:
        raise ValueMalformedError("records nest too deeply") from None
    if value.position < value.end:
        raise ValueMalformedError(
            f"{value.end - value.position:,} bytes follow the value: is this its schema?"
        )
    return result


def _boolean(_step: Leaf, value: Input) -> bool:
    byte = value.take(1)[0]
    if byte > 1:
        raise ValueMalformedError(f"a boolean is {byte}")
    return byte == 1


def _integer(step: Leaf, value: Input) -> int | float:
    number = value.number()
    limit = _INT32_LIMIT if step.kind == "int" else _INT64_LIMIT
    if not -limit <= number < limit:
        raise ValueMalformedError(f"{number:,} does not fit an int of 32 bits")
    result = number * step.factor
    if not -_INT64_LIMIT <= result < _INT64_LIMIT:
        raise ValueMalformedError(f"a timestamp of {number:,} milliseconds has too many microseconds")
    if not pa.types.is_floating(step.arrow_type):
        return result
    # At once: by way of a double, a float would be rounded twice.
    return float(np.float32(np.int64(result)) if pa.types.is_float32(step.arrow_type) else result)


def _float(step: Leaf, value: Input) -> float | str:
    form = _FLOATS[step.kind]
    number: float = form.unpack(value.take(form.size))[0]
    if value.depth and not math.isfinite(number):
        # JSON has no word for it.
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    return number


def _enum(step: Leaf, value: Input) -> str:
    index = value.branch(len(step.symbols))
    symbol = step.symbols[index]
    if symbol is None:
        raise ValueUnresolvableError(f"the reader's enum has no symbol for the writer's symbol {index}")
    return symbol


def _refused(step: Leaf, _value: Input) -> None:
    raise ValueUnresolvableError(step.message)


def _bytes(step: Leaf, value: Input) -> bytes | str | Decimal:
    if step.kind == "bytes":
        data = value.take(value.number())
    else:
        data = value.take(value.end - value.position if step.width is None else step.width)
    if pa.types.is_decimal(step.arrow_type):
        precision, scale = step.arrow_type.precision, step.arrow_type.scale
        if abs(int.from_bytes(data, "big", signed=True)) >= 10**precision:
            raise ValueMalformedError(f"a number of more than {precision} digits")
        return decimal_of(data, scale)
    try:
        return data.decode() if pa.types.is_string(step.arrow_type) else data
    except UnicodeDecodeError:
        raise ValueMalformedError(f"a string of {len(data):,} bytes is not UTF-8") from None


_LEAVES: Final[dict[str, Callable[[Leaf, Input], Any]]] = {
    "null": lambda _step, _value: None,
    "boolean": _boolean,
    "int": _integer,
    "long": _integer,
    "float": _float,
    "double": _float,
    "enum": _enum,
    "bytes": _bytes,
    "rest": _bytes,
    "fixed": _bytes,
    "refused": _refused,
}
KEY: Final = Leaf("bytes", pa.string())
"""Step that reads the key of an item of a map."""
_SKIPPED_KEY: Final = Leaf("bytes", pa.null())


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_json_form)


def _json_form(value: object) -> object:
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case Decimal():
            return f"{value:f}"
        case MapEntries():
            return dict(value.pairs)
    raise TypeError(f"{type(value)} is not made here")
