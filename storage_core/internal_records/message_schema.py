"""Kafka's messages: a schema per message, one reader for all of them, and their text as JSON.

A schema says what Kafka's own definition of the message says (``common/message/*.json`` in its sources): per field its
type, the versions that have it, whether it may be null, and its tag. Bytes are read as the classes that Kafka generates
read them, with the same text for what is wrong with them; flexible versions are those of KIP-482. JSON is that of Kafka's
``<Message>JsonConverter`` and of Jackson.
"""

from __future__ import annotations

import base64
import functools
import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any, Final, TypeAlias

from storage_core.errors import CorruptRecordError

MessageData: TypeAlias = dict[str, Any]
"""The fields of a message by name, in the schema's order, without tagged fields that have their default.

Strings are str, bytes are bytes, a UUID is Kafka's text of it, a structure is again such a dict.
"""

# Kafka's ByteBufferAccessor says no more than that.
_TOO_SHORT: Final = "null"
_MAX_STRING_BYTES: Final = (1 << 15) - 1
_INT32: Final = 1 << 32
_MAX_INT32: Final = (1 << 31) - 1
_MORE_BYTES: Final = 0x80
# Java's `Double.toString` writes others with an exponent.
_PLAIN_DOUBLES: Final = (1e-3, 1e7)
# Java replaces a surrogate, which UTF-8 must not hold, by one character, Python each of its bytes.
_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}".encode()
_CONTROL: Final = re.compile(r"\\\\|\\u[0-9a-f]{4}")


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message.

    Attributes:
        kind: A primitive type of Kafka's, or the name of a structure; of the elements, if the field is an array.
        first_version: The first version of the message that has it.
        last_version: The last one; None if the newest has it.
        default: What a tagged field means when it is absent.
    """

    name: str
    kind: str
    is_array: bool = False
    is_nullable: bool = False
    first_version: int = 0
    last_version: int | None = None
    tag: int | None = None
    default: object = None
    fields: tuple[Field, ...] = ()

    def is_in(self, version: int) -> bool:
        """Return True if a version of the message has the field. An unknown version counts as the newest."""
        return version >= self.first_version and (self.last_version is None or version <= self.last_version)


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """The schema of a message.

    Attributes:
        type_id: The type of the record that it is the key or value of; None if it is not that of a record.
        first_flexible_version: The first version in KIP-482's encoding; None if there is none.
    """

    name: str
    type_id: int | None
    lowest_version: int
    highest_version: int
    first_flexible_version: int | None
    fields: tuple[Field, ...]

    def is_flexible(self, version: int) -> bool:
        """Return True if a version has compact lengths and tagged fields."""
        return self.first_flexible_version is not None and version >= self.first_flexible_version


class _Cursor:
    """A position in a message's bytes; never beyond their end."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes, position: int) -> None:
        self.data = data
        self.position = position

    def take(self, size_bytes: int) -> bytes:
        """Read the next bytes (Kafka's ``Readable.readArray``)."""
        remaining = len(self.data) - self.position
        if size_bytes > remaining:
            raise CorruptRecordError(
                f"Error reading byte array of {size_bytes} byte(s): only {remaining} byte(s) available"
            )
        if size_bytes < 0:
            # Java's NegativeArraySizeException.
            raise CorruptRecordError(str(size_bytes))
        start = self.position
        self.position += size_bytes
        return self.data[start : self.position]

    def unsigned_varint(self) -> int:
        """Read a Java int, which may be negative (Kafka's ``ByteUtils.readUnsignedVarint``)."""
        value = 0
        for shift in (0, 7, 14, 21, 28):
            if self.position >= len(self.data):
                raise CorruptRecordError(_TOO_SHORT)
            byte = self.data[self.position]
            self.position += 1
            if byte < _MORE_BYTES:
                value |= byte << shift
                return value if value <= _MAX_INT32 else _as_int32(value)
            value |= (byte - _MORE_BYTES) << shift
        raise CorruptRecordError(
            "Varint is too long, the most significant bit in the 5th byte is set, converted value: "
            f"{value % _INT32:x}"
        )


_Read: TypeAlias = Callable[[_Cursor], Any]


def _as_int32(value: int) -> int:
    value %= _INT32
    return value - _INT32 if value > _MAX_INT32 else value


def _fixed(layout: str) -> _Read:
    packed = struct.Struct(layout)

    def read(cursor: _Cursor) -> Any:
        end = cursor.position + packed.size
        if end > len(cursor.data):
            raise CorruptRecordError(_TOO_SHORT)
        value = packed.unpack_from(cursor.data, cursor.position)[0]
        cursor.position = end
        return value

    return read


_INT16 = _fixed(">h")
_INT32_LENGTH = _fixed(">i")
_UUID_BYTES = _fixed(">16s")


def _uuid(cursor: _Cursor) -> str:
    return base64.urlsafe_b64encode(_UUID_BYTES(cursor)).decode().rstrip("=")


_PRIMITIVES: Final[dict[str, _Read]] = {
    "bool": _fixed(">?"),
    "int8": _fixed(">b"),
    "int16": _INT16,
    "uint16": _fixed(">H"),
    "int32": _INT32_LENGTH,
    "int64": _fixed(">q"),
    "float64": _fixed(">d"),
    "uuid": _uuid,
}


def _compact_length(cursor: _Cursor) -> int:
    value = cursor.unsigned_varint()
    return value - 1 if value >= 0 else _as_int32(value - 1)


def _value_reader(field: Field, name: str, message: Message, version: int) -> _Read:
    """Return a reader for one value of a field's kind, which errors call ``name``."""
    if field.kind in _PRIMITIVES:
        return _PRIMITIVES[field.kind]
    if field.kind == "string":
        return _string_reader(field, name, _INT16, message.is_flexible(version))
    if field.kind == "bytes":
        return _bytes_reader(field, name, message.is_flexible(version))
    return _struct_reader(field.kind, field.fields, message, version)


def _string_reader(field: Field, name: str, fixed_length: _Read, is_compact: bool) -> _Read:
    length_of = _compact_length if is_compact else fixed_length
    is_nullable = field.is_nullable and not field.is_array

    def read(cursor: _Cursor) -> str | None:
        length = length_of(cursor)
        if length < 0:
            _check_nullable(name, is_nullable)
            return None
        if length > _MAX_STRING_BYTES:
            raise CorruptRecordError(f"string field {name} had invalid length {length}")
        return java_text(cursor.take(length))

    return read


def _bytes_reader(field: Field, name: str, is_compact: bool) -> _Read:
    length_of = _compact_length if is_compact else _INT32_LENGTH

    def read(cursor: _Cursor) -> bytes | None:
        length = length_of(cursor)
        if length < 0:
            _check_nullable(name, field.is_nullable)
            return None
        return cursor.take(length)

    return read


def _check_nullable(name: str, is_nullable: bool) -> None:
    if not is_nullable:
        raise CorruptRecordError(f"non-nullable field {name} was serialized as null")


def _field_reader(field: Field, message: Message, version: int) -> _Read:
    if field.is_array:
        return _array_reader(field, message, version)
    read = _value_reader(field, field.name, message, version)
    if not field.fields or not field.is_nullable:
        return read
    # A nullable structure follows a byte, a tagged one an unsigned varint.
    is_tagged = field.tag is not None

    def read_nullable(cursor: _Cursor) -> Any:
        is_null = cursor.unsigned_varint() <= 0 if is_tagged else _PRIMITIVES["int8"](cursor) < 0
        return None if is_null else read(cursor)

    return read_nullable


def _array_reader(field: Field, message: Message, version: int) -> _Read:
    length_of = _compact_length if message.is_flexible(version) else _INT32_LENGTH
    element = _value_reader(field, f"{field.name} element", message, version)

    def read(cursor: _Cursor) -> list[Any] | None:
        length = length_of(cursor)
        if length < 0:
            _check_nullable(field.name, field.is_nullable)
            return None
        remaining = len(cursor.data) - cursor.position
        # Each element takes at least a byte, which bounds the number of elements.
        if length > remaining:
            raise CorruptRecordError(
                f"Tried to allocate a collection of size {length}, but there are only {remaining} bytes remaining."
            )
        return [element(cursor) for _ in range(length)]

    return read


def _struct_reader(name: str, fields: tuple[Field, ...], message: Message, version: int) -> _Read:
    if name != message.name and version > message.highest_version:

        def refuse(_: _Cursor) -> MessageData:
            raise CorruptRecordError(f"Can't read version {version} of {name}")

        return refuse
    present = [field for field in fields if field.is_in(version)]
    plain = [(field.name, _field_reader(field, message, version)) for field in present if field.tag is None]
    # A tag of other versions is an error, an unknown one is skipped.
    tagged = {
        field.tag: (field, _field_reader(field, message, version) if field.is_in(version) else None)
        for field in fields
        if field.tag is not None
    }
    is_flexible = message.is_flexible(version)

    def read(cursor: _Cursor) -> MessageData:
        data = {name: read_field(cursor) for name, read_field in plain}
        found = _read_tagged(cursor, tagged) if is_flexible else {}
        if not found:
            return data
        data.update(found)
        return {field.name: data[field.name] for field in present if field.name in data}

    return read


def _read_tagged(cursor: _Cursor, tagged: dict[int, tuple[Field, _Read | None]]) -> MessageData:
    found: MessageData = {}
    for _ in range(cursor.unsigned_varint()):
        tag, size_bytes = cursor.unsigned_varint(), cursor.unsigned_varint()
        if tag not in tagged:
            cursor.take(size_bytes)
            continue
        field, read = tagged[tag]
        if read is None:
            raise CorruptRecordError(f"Tag {tag} is not valid for this version")
        value = read(cursor)
        found.pop(field.name, None)
        if value != field.default:
            found[field.name] = value
    return found


@functools.cache
def _message_reader(message: Message, version: int) -> _Read:
    return _struct_reader(message.name, message.fields, message, version)


def read_message(message: Message, version: int, data: bytes, position: int = 0) -> tuple[MessageData, int]:
    """Read a message from bytes. A version that its schema does not know is read as the newest, as far as Kafka does.

    Returns:
        Its fields, and the position after it.

    Raises:
        CorruptRecordError: The bytes are not such a message. The message is Kafka's: "null" if they end too early.
    """
    cursor = _Cursor(data, position)
    # Kafka's classes ask only whether a version is too new.
    return _message_reader(message, max(version, 0))(cursor), cursor.position


def read_int16(data: bytes) -> int:
    """Read the version or type before a message.

    Raises:
        CorruptRecordError: There are fewer than two bytes.
    """
    value: int = _INT16(_Cursor(data, 0))
    return value


def read_unsigned_varint(data: bytes, position: int) -> tuple[int, int]:
    """Read an unsigned varint as Java's int; return it and the position after it.

    Raises:
        CorruptRecordError: The bytes end in it, or it is too long.
    """
    cursor = _Cursor(data, position)
    return cursor.unsigned_varint(), cursor.position


def java_text(data: bytes) -> str:
    """Decode bytes as Java does: what is not UTF-8 becomes replacement characters."""
    return (_SURROGATE.sub(_REPLACEMENT, data) if b"\xed" in data else data).decode(errors="replace")


def json_text(value: object) -> str:
    """Write a message, or a value of one, as the JSON that Kafka's tools print."""
    return _JSON_TEXTS[type(value)](value)


def _json_string(value: str) -> str:
    text = encode_basestring(value)
    return _CONTROL.sub(_upper_case, text) if "\\" in text else text


def _json_object(value: MessageData) -> str:
    return "{" + ",".join([f'"{name}":{json_text(each)}' for name, each in value.items()]) + "}"


def _json_array(value: list[Any]) -> str:
    return "[" + ",".join(map(json_text, value)) + "]"


def _json_bytes(value: bytes) -> str:
    return f'"{base64.b64encode(value).decode()}"'


def _upper_case(escape: re.Match[str]) -> str:
    # Jackson writes control characters with upper-case digits.
    return escape[0] if escape[0] == "\\\\" else "\\u" + escape[0][2:].upper()


def _java_double(value: float) -> str:
    """Write a number as Java's ``Double.toString`` does, in quotes where JSON has no number."""
    if not math.isfinite(value):
        name = "NaN" if math.isnan(value) else "Infinity"
        return f'"{"-" if value < 0 else ""}{name}"'
    if value == 0 or _PLAIN_DOUBLES[0] <= abs(value) < _PLAIN_DOUBLES[1]:
        text = format(Decimal(repr(value)), "f")
        return text if "." in text else f"{text}.0"
    shortest = Decimal(repr(value)).normalize()
    # Java writes at least two digits: 4.9E-324, not 5E-324.
    has_one_digit = len(shortest.as_tuple().digits) == 1
    sign, digits, exponent = (Decimal(f"{value:.1e}").normalize() if has_one_digit else shortest).as_tuple()
    rest = "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{digits[0]}.{rest}E{len(digits) - 1 + int(exponent)}"


_JSON_TEXTS: Final[dict[type, Callable[[Any], str]]] = {
    str: _json_string,
    bool: lambda value: "true" if value else "false",
    int: str,
    float: _java_double,
    type(None): lambda _: "null",
    bytes: _json_bytes,
    dict: _json_object,
    list: _json_array,
}
