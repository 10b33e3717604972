"""Bytes of Kafka's messages: what `storage_core.internal_records.message_schema` reads, written by the same schemas."""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from random import Random

    from storage_core.internal_records.message_schema import Field, Message, MessageData

_FIXED = {
    "bool": ">?",
    "int8": ">b",
    "int16": ">h",
    "uint16": ">H",
    "int32": ">i",
    "uint32": ">I",
    "int64": ">q",
    "float64": ">d",
}
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
# Letters that JSON, CSV, terminals and Java's strings treat in their own ways.
_LETTERS = 'abc09-.,"\\/\n\r\t\x00\x1b\x7f\x85é€\u2028\ufffd😀'


def message_bytes(message: Message, version: int, data: MessageData) -> bytes:
    """Return a message in a version."""
    return _struct(message.fields, data, version, is_flexible=message.is_flexible(version))


def record_bytes(message: Message, version: int, data: MessageData) -> bytes:
    """Return a coordinator's key or value: its type or version, and the message."""
    return struct.pack(">h", version) + message_bytes(message, version, data)


def coordinator_key(message: Message, data: MessageData) -> bytes:
    """Return the key of a coordinator's record."""
    assert message.type_id is not None
    return struct.pack(">h", message.type_id) + message_bytes(message, 0, data)


def framed_bytes(message: Message, version: int, data: MessageData) -> bytes:
    """Return a record of the metadata log or of tiered storage: frame version, type, version, message."""
    assert message.type_id is not None
    head = b"".join(map(unsigned_varint, (1, message.type_id, version)))
    return head + message_bytes(message, version, data)


def unsigned_varint(value: int) -> bytes:
    """Return an int of Java's, the negative ones too."""
    value %= 1 << 32
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def _struct(fields: tuple[Field, ...], data: MessageData, version: int, *, is_flexible: bool) -> bytes:
    present = [field for field in fields if field.is_in(version)]
    written = b"".join(
        _field(field, data[field.name], version, is_flexible=is_flexible)
        for field in present
        if field.tag is None
    )
    if not is_flexible:
        return written
    tagged = sorted(
        (field.tag, _field(field, data[field.name], version, is_flexible=True))
        for field in present
        if field.tag is not None and field.name in data
    )
    sections = [unsigned_varint(tag) + unsigned_varint(len(each)) + each for tag, each in tagged]
    return written + unsigned_varint(len(sections)) + b"".join(sections)


def _field(field: Field, value: Any, version: int, *, is_flexible: bool) -> bytes:
    if field.is_array:
        if value is None:
            return _length(-1, ">i", is_flexible=is_flexible)
        elements = [_value(field, each, version, is_flexible=is_flexible) for each in value]
        return _length(len(elements), ">i", is_flexible=is_flexible) + b"".join(elements)
    if field.fields and field.is_nullable:
        if field.tag is not None:
            return b"\0" if value is None else b"\1" + _value(field, value, version, is_flexible=is_flexible)
        return b"\xff" if value is None else b"\1" + _value(field, value, version, is_flexible=is_flexible)
    return _value(field, value, version, is_flexible=is_flexible)


def _value(field: Field, value: Any, version: int, *, is_flexible: bool) -> bytes:
    if field.kind in _FIXED:
        return struct.pack(_FIXED[field.kind], value)
    if field.kind == "uuid":
        return base64.urlsafe_b64decode(value + "==")
    if field.kind in ("string", "bytes"):
        layout = ">h" if field.kind == "string" else ">i"
        if value is None:
            return _length(-1, layout, is_flexible=is_flexible)
        encoded = value.encode() if field.kind == "string" else value
        return _length(len(encoded), layout, is_flexible=is_flexible) + encoded
    return _struct(field.fields, value, version, is_flexible=is_flexible)


def _length(length: int, layout: str, *, is_flexible: bool) -> bytes:
    return unsigned_varint(length + 1) if is_flexible else struct.pack(layout, length)


def random_message(message: Message, version: int, random: Random) -> MessageData:
    """Data that a version of a message can hold; tagged fields are sometimes left out, as they have their default."""
    return _random_struct(message.fields, version, random)


def _random_struct(fields: tuple[Field, ...], version: int, random: Random) -> MessageData:
    data = {}
    for field in fields:
        if field.is_in(version):
            value = _random_field(field, version, random)
            if field.tag is None or value != field.default:
                data[field.name] = value
    return data


def _random_field(field: Field, version: int, random: Random) -> Any:
    if field.tag is not None and random.random() < 0.4:
        return field.default
    if field.is_nullable and random.random() < 0.3:
        return None
    if field.is_array:
        return [_random_value(field, version, random) for _ in range(random.choice((0, 1, 1, 2, 5)))]
    return _random_value(field, version, random)


def _random_value(field: Field, version: int, random: Random) -> Any:
    match field.kind:
        case "bool":
            return random.random() < 0.5
        case "uint16" | "uint32":
            return random.choice((0, 9092, 65535))
        case "float64":
            choices = (0.0, -0.0, 1.0, 1e7, 123456.75, 9999999.5, 1e-3, 9.5e-4, -2.5e20, 1.5e300, 5e-324)
            return random.choice(
                (*choices, float("nan"), float("inf"), float("-inf"), random.uniform(0, 1e9))
            )
        case "uuid":
            return base64.urlsafe_b64encode(random.choice((bytes(16), random.randbytes(16))))[:22].decode()
        case "string":
            return "".join(random.choices(_LETTERS, k=random.choice((0, 1, 5, 20))))
        case "bytes":
            return random.randbytes(random.choice((0, 1, 2, 3, 17)))
        case kind if kind in _BITS:
            limit = 1 << _BITS[kind] - 1
            return random.choice((0, 1, 2, -1, limit - 1, -limit, random.randrange(-limit, limit)))
        case _:
            return _random_struct(field.fields, version, random)
