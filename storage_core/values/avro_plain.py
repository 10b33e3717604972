"""Decode Avro values one at a time (Avro specification 1.12, "Binary Encoding").

This is the oracle of the decoder by column, which hands over the values that are unusual or wrong. It is the quicker one
for a few values, and the only one for recursive records. A plan becomes nested functions, each of which reads a value and
moves on.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

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
from storage_core.values.avro_types import MapEntries, decimal_of
from storage_core.values.decoding import Reason

EMPTY_ITEMS_LIMIT: Final = 1 << 12
"""Items without bytes that a value may have: their number is only claimed, and nothing else bounds it."""
# Records in each other: Python's own limit is not far above.
_RECURSION_LIMIT: Final = 100
_CONTINUES: Final = 0x80
_LONG_BITS: Final = 64
_INT64_LIMIT: Final = 1 << 63
_INT32_LIMIT: Final = 1 << 31
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")


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
        path = ".".join(reversed(self.path))
        return f"field {path}: {self.args[0]}" if path else str(self.args[0])


class ValueUnresolvableError(ValueMalformedError):
    """A value is sound, but the reader's schema has no place for it."""

    reason: Reason = "unresolvable"


class Input:
    """Bytes of a value, and how much of it has been read."""

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

    def skip(self, size: int) -> None:
        """Move over so many bytes."""
        if not 0 <= size <= self.end - self.position:
            self.take(size)
        self.position += size

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
            width: The bytes of each item, if all have as many.
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


Read: TypeAlias = Callable[[Input], Any]


def read_value(read: Read, data: bytes) -> Any:
    """Read a value that is all of the data.

    Raises:
        ValueMalformedError: It does not decode.
    """
    value = Input(data, 0, len(data))
    try:
        result = read(value)
    except RecursionError:
        raise ValueMalformedError("records nest too deep") from None
    if value.position < value.end:
        raise ValueMalformedError(
            f"{value.end - value.position:,} bytes follow the value: is this its schema?"
        )
    return result


class PlainCompiler:
    """Makes functions of the steps of a plan."""

    def __init__(self) -> None:
        # Of recursive records, which contain each other: by the record, and whether it is read.
        self._records: dict[tuple[int, bool], list[Read]] = {}

    def reader(self, step: Step, *, is_text: bool = False) -> Read:
        """Return the function that reads a value as Arrow takes it, or as JSON does."""
        match step:
            case Leaf():
                return _leaf_reader(step, is_text=is_text)
            case Struct():
                return self._struct_reader(step, is_text=is_text)
            case Sequence():
                return _sequence_reader(step, self.reader(step.item, is_text=is_text))
            case Optional():
                return _optional_reader(step, self.reader(step.item, is_text=is_text))
            case Choice():
                return _choice_reader([self.reader(branch, is_text=is_text) for branch in step.branches])
            case Refusal():
                return _refusal(step.message)
            case Member():
                is_wanted = step.target is not None
                item = self.reader(step.item, is_text=is_text) if is_wanted else self.skipper(step.item)
                return _member_reader(step, item)
            case Text():
                read = self._recursive(step, is_read=True)
                return read if step.is_within else lambda value: _as_json(read(value))

    def skipper(self, step: Step) -> Read:
        """Return the function that moves over a value, which checks only what it needs to find the end."""
        if step.width is not None:
            width = step.width
            return lambda value: value.skip(width)
        match step:
            case Leaf():
                return (lambda value: value.skip(value.number())) if step.kind == "bytes" else Input.number
            case Struct():
                return _all_skipper([self.skipper(child.step) for child in step.children])
            case Sequence():
                return _sequence_skipper(step, self.skipper(step.item))
            case Optional():
                return _optional_reader(step, self.skipper(step.item))
            case Choice():
                return _choice_reader([self.skipper(branch) for branch in step.branches])
            case Refusal() | Member():
                return self.skipper(step.item)
            case Text():
                return self._recursive(step, is_read=False)

    def _struct_reader(self, step: Struct, *, is_text: bool) -> Read:
        template: dict[str, Any] = dict.fromkeys(step.names)
        template |= {step.names[constant.target]: constant.value for constant in step.constants}
        fields = []
        for child in step.children:
            target = None if child.target is None else step.names[child.target]
            read = self.skipper(child.step) if target is None else self.reader(child.step, is_text=is_text)
            fields.append((target, child.name, read))
        return _record_reader(template, fields)

    def _recursive(self, step: Text, *, is_read: bool) -> Read:
        record = step.records[step.key]
        key = (id(record), is_read)
        if key not in self._records:
            # The record within itself finds this list, which has its function when a value is read.
            found = self._records[key] = []
            found.append(self.reader(record, is_text=True) if is_read else self.skipper(record))
        return _record_caller(self._records[key])


def _leaf_reader(step: Leaf, *, is_text: bool) -> Read:
    match step.kind:
        case "null":
            return lambda _: None
        case "boolean":
            return _boolean
        case "int" | "long":
            return _integer_reader(step)
        case "float" | "double":
            return _float_reader(_FLOAT if step.kind == "float" else _DOUBLE, is_text=is_text)
        case "enum":
            return _enum_reader(step.symbols)
        case "bytes":
            take: Read = lambda value: value.take(value.number())  # noqa: E731  (beside its two alternatives)
        case "rest":
            take = lambda value: value.take(value.end - value.position)  # noqa: E731
        case _:
            width = step.width or 0
            take = lambda value: value.take(width)  # noqa: E731
    if pa.types.is_decimal(step.arrow_type):
        return _decimal_reader(take, step.arrow_type)
    return _string_reader(take) if pa.types.is_string(step.arrow_type) else take


def _boolean(value: Input) -> bool:
    byte = value.take(1)[0]
    if byte > 1:
        raise ValueMalformedError(f"a boolean is {byte}")
    return byte == 1


def _integer_reader(step: Leaf) -> Read:
    limit = _INT32_LIMIT if step.kind == "int" else _INT64_LIMIT
    factor = step.factor

    def read(value: Input) -> int:
        number = value.number()
        if not -limit <= number < limit:
            raise ValueMalformedError(f"{number:,} is no int of 32 bits")
        if not -_INT64_LIMIT <= number * factor < _INT64_LIMIT:
            raise ValueMalformedError(f"a timestamp of {number:,} milliseconds has too many microseconds")
        return number * factor

    if pa.types.is_float32(step.arrow_type):
        # At once: by way of a double, it would be rounded twice.
        return lambda value: float(np.int64(read(value)).astype(np.float32))
    return (lambda value: float(read(value))) if pa.types.is_floating(step.arrow_type) else read


def _float_reader(form: struct.Struct, *, is_text: bool) -> Read:
    def read(value: Input) -> float | str:
        number: float = form.unpack(value.take(form.size))[0]
        if is_text and not math.isfinite(number):
            # JSON has no word for it.
            return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
        return number

    return read


def _enum_reader(symbols: tuple[str | None, ...]) -> Read:
    def read(value: Input) -> str:
        index = value.branch(len(symbols))
        symbol = symbols[index]
        if symbol is None:
            raise ValueUnresolvableError(f"the reader's enum has no symbol for the writer's of index {index}")
        return symbol

    return read


def _string_reader(take: Read) -> Read:
    def read(value: Input) -> str:
        data: bytes = take(value)
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise ValueMalformedError(f"a string of {len(data):,} bytes is not UTF-8") from None

    return read


def _decimal_reader(take: Read, arrow_type: pa.Decimal128Type) -> Read:
    limit, scale = 10**arrow_type.precision, arrow_type.scale

    def read(value: Input) -> Decimal:
        data = take(value)
        if not -limit < int.from_bytes(data, "big", signed=True) < limit:
            raise ValueMalformedError(f"a number of more than {arrow_type.precision} digits")
        return decimal_of(data, scale)

    return read


def _record_reader(template: dict[str, Any], fields: list[tuple[str | None, str, Read]]) -> Read:
    def read_record(value: Input) -> dict[str, Any]:
        record = template.copy()
        for target, name, read in fields:
            try:
                result = read(value)
            except ValueMalformedError as error:
                error.path.append(name)
                raise
            if target is not None:
                record[target] = result
        return record

    return read_record


def _sequence_reader(step: Sequence, read_item: Read) -> Read:
    width = step.item.width

    def read_array(value: Input) -> list[Any]:
        items: list[Any] = []
        while count := value.block(width):
            items.extend([read_item(value) for _ in range(count)])
        return items

    def read_map(value: Input) -> MapEntries:
        entries = []
        while count := value.block(None):
            entries.extend([(read_key(value), read_item(value)) for _ in range(count)])
        return MapEntries(entries)

    read_key = _string_reader(lambda value: value.take(value.number()))
    return read_map if step.has_keys else read_array


def _optional_reader(step: Optional, read_item: Read) -> Read:
    null_branch = step.null_branch
    return lambda value: None if value.branch(2) == null_branch else read_item(value)


def _choice_reader(branches: list[Read]) -> Read:
    return lambda value: branches[value.branch(len(branches))](value)


def _refusal(message: str) -> Read:
    def refuse(_: Input) -> None:
        raise ValueUnresolvableError(message)

    return refuse


def _member_reader(step: Member, read_item: Read) -> Read:
    names = [field.name for field in step.arrow_type] if pa.types.is_struct(step.arrow_type) else []

    def read(value: Input) -> dict[str, Any]:
        item = read_item(value)
        return {name: item if index == step.target else None for index, name in enumerate(names)}

    return read


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


def _record_caller(record: list[Read]) -> Read:
    def call(value: Input) -> Any:
        value.depth += 1
        if value.depth > _RECURSION_LIMIT:
            raise ValueMalformedError(f"more than {_RECURSION_LIMIT} records are in each other")
        result = record[0](value)
        value.depth -= 1
        return result

    return call


def _all_skipper(skippers: list[Read]) -> Read:
    def skip(value: Input) -> None:
        for skipper in skippers:
            skipper(value)

    return skip


def _sequence_skipper(step: Sequence, skip_item: Read) -> Read:
    width, has_keys = step.item.width, step.has_keys

    def skip(value: Input) -> None:
        while count := value.block(None if has_keys else width):
            if width is not None and not has_keys:
                value.skip(width * count)
                continue
            for _ in range(count):
                if has_keys:
                    value.skip(value.number())
                skip_item(value)

    return skip
