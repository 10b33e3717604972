"""Columns of JSON and of text: by column with pyarrow's reader, and one value at a time with Python's where that cannot.

pyarrow reads a file of documents and trusts its user: it neither checks UTF-8 nor minds where a value ends, takes NaN,
and crashes on some input. So it gets only values that lie in one line each, from the first brace to the last, and what
it returns counts only if it has found as many documents. Python's reader decides about everything else.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as pa_json

from storage_core.values.decoding import Decoded, RowError
from storage_core.values.json_schema import (
    JsonArray,
    JsonLeaf,
    JsonMap,
    JsonNode,
    JsonObject,
    json_node,
    node_type,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from storage_core.values.decoding import Decoder, Paths, Payloads, SchemaSource

    Convert: TypeAlias = Callable[[Any], Any]

_Value = TypeVar("_Value")

# RFC 3339, which JSON Schema's formats mean. Digits beyond microseconds are cut.
_TIME = r"^\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)$"
_DATE = r"^\d{4}-\d\d-\d\d$"
_BEYOND_MICROSECONDS = r"(\.\d{6})\d+"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_DAYS_OF_400_YEARS = 146_097
_LARGEST_LONG = 2**63 - 1
_MOST_DIGITS_OF_LONG = 20  # with the sign

# A part with a bad value is decoded again in smaller ones, and the smallest value by value.
_LARGEST_PART_ROWS, _SMALLEST_PART_ROWS = 1024, 64
# Rows with more opening brackets may be nested deeper than Python's reader allows.
_MOST_BRACKETS = 500
_MOST_BYTES_AT_ONCE = 1 << 26
_ENCODER = json.JSONEncoder(ensure_ascii=False)
_LINE_ENDS_TO_TABS = bytes.maketrans(b"\r\n", b"\t\t")


def json_decoder(schema: SchemaSource | None, paths: Paths = None) -> Decoder:
    """Return a decoder of JSON: into the columns of a schema, or without one into the text, checked to be one document.

    Raises:
        OptionError: A path names a field that the schema does not have.
        SchemaError: The schema is malformed, or not supported.
    """
    if schema is None:
        return _Decoder(pa.string(), _to_documents, _to_document)
    node = json_node(schema, paths)
    arrow_type, read_type, convert = node_type(node), _read_type(node), _converter(node, "The value")

    def decode_all(values: pa.Array) -> pa.Array:
        return _with_times(_read_documents(values.cast(pa.string()), read_type), arrow_type)

    is_by_column = read_type is not None and pa.types.is_struct(read_type)
    return _Decoder(
        arrow_type,
        decode_all if is_by_column else None,
        lambda value: convert(_read_document(_to_string(value))),
    )


def string_decoder() -> Decoder:
    """Return a decoder of text in UTF-8."""
    return _Decoder(pa.string(), lambda values: values.cast(pa.string()), _to_string)


@dataclass(frozen=True, slots=True)
class _Decoder:
    """Decoder by column, or where that fails, of one value at a time.

    Attributes:
        decode_all: Decodes a column as `decode_one` would, or raises ValueError; None if it never could.
        decode_one: Decodes a value, or raises ValueError with what is wrong, as one sentence.
    """

    arrow_type: pa.DataType
    decode_all: Callable[[pa.Array], pa.Array] | None
    decode_one: Callable[[bytes], Any]

    def decode(self, payloads: Payloads) -> Decoded:
        arrays, errors, row = [pa.array([], self.arrow_type)], [], 0
        for part in self._decode_parts(payloads.to_array(), _LARGEST_PART_ROWS):
            arrays.append(part.array)
            errors += [error._replace(row=row + error.row) for error in part.errors]
            row += len(part.array)
        return Decoded(pa.concat_arrays(arrays), errors)

    def _decode_parts(self, values: pa.Array, rows: int) -> Iterator[Decoded]:
        for start in range(0, len(values), rows):
            part = values.slice(start, rows)
            try:
                array = None if self.decode_all is None else self.decode_all(part)
            except ValueError:
                array = None
            if array is not None:
                yield Decoded(array, [])
            elif self.decode_all is not None and rows > _SMALLEST_PART_ROWS:
                yield from self._decode_parts(part, _SMALLEST_PART_ROWS)
            else:
                yield self._decode_each(part)

    def _decode_each(self, values: pa.Array) -> Decoded:
        decoded: list[Any] = []
        errors: list[RowError] = []
        for row, value in enumerate(values.to_pylist()):
            try:
                decoded.append(self.decode_one(value))
            except ValueError as error:
                decoded.append(None)
                errors.append(RowError(row, "malformed", str(error)))
        return Decoded(pa.array(decoded, self.arrow_type), errors)


def _to_documents(values: pa.Array) -> pa.StringArray:
    strings = values.cast(pa.string())
    _read_documents(strings, pa.struct([]))
    return strings


def _to_document(value: bytes) -> str:
    text = _to_string(value)
    _read_document(text)
    return text


def _to_string(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"The text is not UTF-8: {error.reason} at byte {error.start}.") from None


def _read_type(node: JsonNode) -> pa.DataType | None:
    """Return what pyarrow can read of a node, times as text; None if it cannot."""
    match node:
        case JsonLeaf("text") | JsonMap():
            return None
        case JsonLeaf("date-time" | "date"):
            return pa.string()
        case JsonLeaf():
            return node_type(node)
        case JsonArray():
            item = _read_type(node.item)
            return None if item is None else pa.list_(item)
        case JsonObject():
            fields = [(name, _read_type(field)) for name, field in node.fields.items()]
            return None if any(kind is None for _, kind in fields) else pa.struct(fields)


def _read_documents(strings: pa.StringArray, fields: pa.StructType) -> pa.StructArray:
    """Read one object from each string.

    Raises:
        ValueError: A string is not one object, or has a value of another type.
    """
    strings = pc.ascii_trim(strings, " \t\r\n")
    _, offsets_buffer, data = strings.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(strings) + 1)
    text = b"" if data is None else data.slice(0, offsets[-1]).to_pybytes()
    if not _are_readable(strings, text, offsets):
        raise ValueError
    lines = np.insert(np.frombuffer(text.translate(_LINE_ENDS_TO_TABS), np.uint8), offsets[1:], ord("\n"))
    schema = pa.schema(list(fields)) if len(fields) else pa.schema([("", pa.null())])
    try:
        table = pa_json.read_json(
            pa.BufferReader(pa.py_buffer(lines)),
            pa_json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
            pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowNotImplementedError:
        raise ValueError from None
    if table.num_rows != len(strings):
        raise ValueError
    return table.to_struct_array().combine_chunks()


def _are_readable(strings: pa.StringArray, text: bytes, offsets: np.ndarray) -> bool:
    """Tell whether each string goes from brace to brace, and pyarrow reads no more into them than Python does.

    An object that is not complete in its line would go on with the next one's opening brace, which is no JSON.
    """
    if (
        not 0 < len(text) <= _MOST_BYTES_AT_ONCE
        or b"NaN" in text
        or b"Inf" in text
        or (np.diff(offsets) == 0).any()
    ):
        return False
    characters = np.frombuffer(text, np.uint8)
    if (characters[offsets[:-1]] != ord("{")).any() or (characters[offsets[1:] - 1] != ord("}")).any():
        return False
    brackets = pc.add(pc.count_substring(strings, "{"), pc.count_substring(strings, "["))
    return bool(pc.max(brackets).as_py() <= _MOST_BRACKETS)


def _with_times(array: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """Convert texts to times and dates.

    Raises:
        ValueError: A text is no time, or pyarrow has made infinity of a number that no double holds.
    """
    if pa.types.is_struct(arrow_type):
        children = [_with_times(array.field(place), field.type) for place, field in enumerate(arrow_type)]
        return pa.StructArray.from_arrays(children, fields=list(arrow_type), mask=array.is_null())
    if pa.types.is_list(arrow_type):
        items = _with_times(array.values, arrow_type.value_type)
        return pa.ListArray.from_arrays(array.offsets, items, type=arrow_type, mask=array.is_null())
    if pa.types.is_floating(arrow_type) and pc.any(pc.is_inf(array)).as_py():
        raise ValueError
    if array.type.equals(arrow_type):
        return array
    pattern = _DATE if pa.types.is_date(arrow_type) else _TIME
    if pc.all(pc.match_substring_regex(array, pattern)).as_py() is False:
        raise ValueError
    return pc.replace_substring_regex(array, _BEYOND_MICROSECONDS, r"\1").cast(arrow_type)


class _Number(str):
    """A number, with the digits that it has in its document."""

    __slots__ = ()


def _read_document(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_reject_constant, parse_int=_Number, parse_float=_Number)
    except json.JSONDecodeError as error:
        raise ValueError(f"The value is not one JSON document: {error}.") from None
    except RecursionError:
        raise ValueError("The JSON document is nested too deeply.") from None


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"The value is not JSON: {name} is not a number.")


def _converter(node: JsonNode, where: str) -> Convert:
    """Return a function that converts a value of Python's reader to the column's, or raises ValueError naming ``where``."""
    match node:
        case JsonLeaf():
            convert = _LEAVES[node.name]
        case JsonArray():
            convert = _list_converter(_converter(node.item, f"An item of {where[0].lower()}{where[1:]}"))
        case JsonMap():
            convert = _map_converter(_converter(node.value, f"A value of {where[0].lower()}{where[1:]}"))
        case JsonObject():
            convert = _object_converter(
                {name: _converter(field, f"Field '{name}'") for name, field in node.fields.items()}
            )

    def convert_or_explain(value: Any) -> Any:
        try:
            return None if value is None else convert(value)
        except _UnfitError as error:
            raise ValueError(f"{where} {error}.") from None

    return convert_or_explain


class _UnfitError(Exception):
    """A value that is not what its field needs; the text completes a sentence about it."""


def _list_converter(convert: Convert) -> Convert:
    return lambda value: [convert(item) for item in _of_type(value, list, "an array")]


def _map_converter(convert: Convert) -> Convert:
    return lambda value: [(_to_text(k), convert(v)) for k, v in _of_type(value, dict, "an object").items()]


def _object_converter(fields: dict[str, Convert]) -> Convert:
    def convert(value: Any) -> dict[str, Any]:
        present = _of_type(value, dict, "an object")
        return {name: convert_field(present.get(name)) for name, convert_field in fields.items()}

    return convert


def _of_type(value: Any, kind: type[_Value], name: str) -> _Value:
    if type(value) is not kind:
        raise _UnfitError(f"is not {name}")
    return value


def _to_boolean(value: Any) -> bool:
    return _of_type(value, bool, "a boolean")


def _to_long(value: Any) -> int:
    digits = _of_type(value, _Number, "an integer")
    number: int | Decimal
    if len(digits) <= _MOST_DIGITS_OF_LONG and digits.lstrip("-").isdecimal():
        number = int(digits)
    else:
        # A double would lose digits of 9007199254740993.0, which is an integer, too.
        number = _exact(digits)
        if number != number.to_integral_value():
            raise _UnfitError("is not an integer")
    if not -_LARGEST_LONG - 1 <= number <= _LARGEST_LONG:
        raise _UnfitError("does not fit 64 bits")
    return int(number)


def _exact(digits: str) -> Decimal:
    try:
        return Decimal(digits)
    except InvalidOperation:
        raise _UnfitError("has an exponent that no decimal has") from None


def _to_double(value: Any) -> float:
    number = float(_of_type(value, _Number, "a number"))
    if math.isinf(number):
        raise _UnfitError("does not fit a double")
    return number


def _to_text(value: Any) -> str:
    text = _of_type(value, str, "a string")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _UnfitError("has half of a surrogate pair, which is not text") from None
    return text


def _to_microseconds(value: Any) -> int:
    text = _to_text(value)
    try:
        if re.fullmatch(_TIME, text, re.ASCII):
            time = datetime.fromisoformat(re.sub(_BEYOND_MICROSECONDS, r"\1", _in_known_year(text).upper()))
            return (time - _EPOCH - timedelta(_days_moved(text))) // timedelta(microseconds=1)
    except ValueError:
        pass
    raise _UnfitError("is not a date and time of RFC 3339")


def _in_known_year(text: str) -> str:
    """Move a time in the year 0, which Python does not have, by as many years as the calendar repeats after."""
    return f"04{text[2:]}" if text.startswith("0000") else text


def _days_moved(text: str) -> int:
    return _DAYS_OF_400_YEARS if text.startswith("0000") else 0


def _to_days(value: Any) -> int:
    text = _to_text(value)
    try:
        if re.fullmatch(_DATE, text, re.ASCII):
            return date.fromisoformat(_in_known_year(text)).toordinal() - _EPOCH_DAY - _days_moved(text)
    except ValueError:
        pass
    raise _UnfitError("is not a date of RFC 3339")


def _to_json(value: Any) -> str:
    try:
        return _to_text(_written(value))
    except RecursionError:
        raise _UnfitError("is nested too deeply") from None


def _written(value: Any) -> str:
    """Write a value as JSON without spaces, its numbers with their own digits."""
    match value:
        case _Number():
            return str(value)
        case dict():
            members = map("{}:{}".format, map(_ENCODER.encode, value), map(_written, value.values()))
            return "{" + ",".join(members) + "}"
        case list():
            return "[" + ",".join(map(_written, value)) + "]"
    return _ENCODER.encode(value)


_LEAVES: dict[str, Convert] = {
    "boolean": _to_boolean,
    "integer": _to_long,
    "number": _to_double,
    "string": _to_text,
    "date-time": _to_microseconds,
    "date": _to_days,
    "text": _to_json,
}
