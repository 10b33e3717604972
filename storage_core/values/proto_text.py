"""Descriptors of ``.proto`` files (proto2 and proto3), from their text or from a FileDescriptorProto in base64.

What does not change how bytes decode is skipped to the semicolon or the brace that ends it: options, defaults, reserved
names and numbers, services and extensions. Names of types are left as they stand, for the descriptor pool to resolve. The
grammar is that of protobuf.dev/reference/protobuf/proto3-spec and proto2-spec.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.message import DecodeError

from storage_core.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Declarations: TypeAlias = dict[str, Callable[[], None]]

_MAXIMUM_CHARACTERS = 4 << 20
_MAXIMUM_LEVELS = 32  # as in protoc
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
_TOKEN = re.compile(
    r"""(?P<space>(?:\s|//[^\n]*|/\*.*?\*/)+)
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<number>0[xX][0-9a-fA-F]+|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<sign>[{}()\[\]<>=;:,.+/-])""",
    re.VERBOSE | re.DOTALL,
)
_SCALARS = {
    name: FieldDescriptorProto.Type.Value(f"TYPE_{name.upper()}")
    for name in (
        *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
        *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"),
    )
}
_LABELS = {
    name: FieldDescriptorProto.Label.Value(f"LABEL_{name.upper()}")
    for name in ("optional", "required", "repeated")
}
_FIELD_NUMBERS = range(1, 2**29)
_ENUM_NUMBERS = range(-(2**31), 2**31)


class ProtoFile(NamedTuple):
    """A ``.proto`` file, of whose imports only the names are known.

    Attributes:
        types: Names of all messages and enums within the package, in the order of the text; empty if there is none.
    """

    descriptor: FileDescriptorProto
    types: list[str]


def parse_proto(text: str, name: str) -> ProtoFile:
    """Return what a file declares.

    Args:
        text: The file, or its descriptor in base64.
        name: Its import path.

    Raises:
        SchemaError: It is neither, or too large, or uses editions.
    """
    if len(text) > _MAXIMUM_CHARACTERS:
        raise SchemaError(f"The Protobuf schema '{name}' has more than {_MAXIMUM_CHARACTERS:,} characters.")
    if _BASE64.fullmatch(text):
        return ProtoFile(_parse_base64(text, name), [])
    return _ProtoReader(text, name).read_file()


def _parse_base64(text: str, name: str) -> FileDescriptorProto:
    try:
        file = FileDescriptorProto.FromString(base64.b64decode(text))
    except (binascii.Error, DecodeError):
        raise SchemaError(
            f"The Protobuf schema '{name}' is neither .proto text nor a descriptor in base64."
        ) from None
    if file.syntax not in ("", "proto2", "proto3"):
        raise SchemaError(f"The Protobuf schema '{name}' uses editions, which are not supported.")
    file.name = name
    return file


class _Token(NamedTuple):
    """A token and where it begins; the last one is empty."""

    kind: str
    text: str
    position: int


class _ProtoReader:
    """Reads a file from its first token to its last, one token ahead."""

    def __init__(self, text: str, name: str) -> None:
        self._text = text
        self._tokens = self._scan()
        self._next = next(self._tokens)
        self._file = FileDescriptorProto(name=name)
        self._types: list[str] = []
        self._scope: list[str] = []

    def read_file(self) -> ProtoFile:
        if self._next.text == "edition":
            self._fail("Editions are not supported")
        if self._accept("syntax"):
            self._expect("=")
            syntax = self._string()
            if syntax not in ("proto2", "proto3"):
                self._fail(f"The syntax '{syntax}' is unknown")
            if syntax == "proto3":
                self._file.syntax = syntax
            self._expect(";")
        declarations: Declarations = {
            "import": self._read_import,
            "package": self._read_package,
            "message": lambda: self._read_type(self._file.message_type, self._read_message),
            "enum": lambda: self._read_type(self._file.enum_type, self._read_enum),
            **dict.fromkeys(("extend", "option", "service"), self._skip_statement),
        }
        self._read_until("", declarations, lambda: self._fail_expecting("a declaration"))
        return ProtoFile(self._file, self._types)

    def _scan(self) -> Iterator[_Token]:
        position = 0
        while position < len(self._text):
            match = _TOKEN.match(self._text, position)
            if match is None:
                self._fail(f"{self._text[position]!r} is out of place", position)
            position = match.end()
            if match.lastgroup != "space":
                yield _Token(match.lastgroup or "", match.group(), match.start())
        yield _Token("end", "", position)

    def _fail(self, problem: str, position: int | None = None) -> NoReturn:
        position = self._next.position if position is None else position
        line = self._text.count("\n", 0, position) + 1
        column = position - self._text.rfind("\n", 0, position)
        raise SchemaError(f"The Protobuf schema is malformed. {problem}: line {line}, column {column}.")

    def _fail_expecting(self, what: str) -> NoReturn:
        found = f"'{self._next.text}'" if self._next.kind != "end" else "the end"
        self._fail(f"Expected {what}, found {found}")

    def _take(self) -> _Token:
        token = self._next
        if token.kind != "end":
            self._next = next(self._tokens)
        return token

    def _accept(self, text: str) -> bool:
        return self._next.text == text and bool(self._take())

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            self._fail_expecting(f"'{text}'")

    def _of_kind(self, kind: str, what: str) -> str:
        if self._next.kind != kind:
            self._fail_expecting(what)
        return self._take().text

    def _word(self) -> str:
        return self._of_kind("word", "a name")

    def _string(self) -> str:
        text = self._of_kind("string", "a string")[1:-1]
        while self._next.kind == "string":
            text += self._take().text[1:-1]
        return text

    def _path(self) -> str:
        """Read a name with dots; one that begins with a dot counts from the root."""
        path = "." * self._accept(".") + self._word()
        while self._accept("."):
            path += "." + self._word()
        return path

    def _integer(self, allowed: range) -> int:
        position = self._next.position
        sign = -1 if self._accept("-") else 1
        text = self._of_kind("number", "an integer")
        base = 16 if text[:2] in ("0x", "0X") else 8 if text.startswith("0") else 10
        try:
            value = sign * int(text[:32], base)
        except ValueError:
            self._fail(f"'{text}' is not an integer", position)
        if value not in allowed:
            self._fail(f"{text[:32]} is not from {allowed[0]} to {allowed[-1]}", position)
        return value

    def _read_until(self, end: str, declarations: Declarations, read_other: Callable[[], None]) -> None:
        """Read declarations, each by its first word, and what begins otherwise."""
        while not self._accept(end):
            if self._next.text in declarations:
                declarations[self._take().text]()
            elif not self._accept(";"):
                read_other()

    def _skip_statement(self) -> None:
        """Read over a statement to its semicolon, or to the end of its block in braces."""
        while not self._accept(";"):
            if self._next.text in ("(", "[", "{"):
                if self._skip_block() == "{":
                    break
            elif self._next.kind == "end" or self._next.text == "}":
                self._fail_expecting("';'")
            else:
                self._take()

    def _skip_block(self) -> str:
        """Read over what is in brackets or braces, and return which they are."""
        opening, depth = self._take().text, 1
        while depth:
            if self._next.kind == "end":
                self._fail_expecting("'}'")
            text = self._take().text
            depth += (text in ("(", "[", "{")) - (text in (")", "]", "}"))
        return opening

    def _read_import(self) -> None:
        if self._accept("public"):
            self._file.public_dependency.append(len(self._file.dependency))
        else:
            self._accept("weak")
        self._file.dependency.append(self._string())
        self._expect(";")

    def _read_package(self) -> None:
        self._file.package = self._path()
        self._expect(";")

    def _read_type(self, siblings: Any, read: Callable[[Any], None]) -> None:
        """Read a message or an enum, and note its place among both."""
        declared = siblings.add(name=self._word())
        self._types.append(".".join((*self._scope, declared.name)))
        read(declared)

    def _read_message(self, message: DescriptorProto) -> None:
        self._scope.append(message.name)
        if len(self._scope) > _MAXIMUM_LEVELS:
            self._fail(f"Messages are nested more than {_MAXIMUM_LEVELS} deep")
        declarations: Declarations = {
            "message": lambda: self._read_type(message.nested_type, self._read_message),
            "enum": lambda: self._read_type(message.enum_type, self._read_enum),
            "oneof": lambda: self._read_oneof(message),
            **dict.fromkeys(("extend", "extensions", "option", "reserved"), self._skip_statement),
        }
        self._expect("{")
        self._read_until("}", declarations, lambda: self._read_field(message))
        _add_oneofs_of_optional_fields(message)
        self._scope.pop()

    def _read_oneof(self, message: DescriptorProto) -> None:
        index = len(message.oneof_decl)
        message.oneof_decl.add(name=self._word())
        self._expect("{")
        self._read_until("}", {"option": self._skip_statement}, lambda: self._read_field(message, index))

    def _read_field(self, message: DescriptorProto, oneof_index: int | None = None) -> None:
        is_proto3, start = self._file.syntax == "proto3", self._next.position
        label = self._take().text if self._next.text in _LABELS and oneof_index is None else ""
        if label == "required" and is_proto3:
            self._fail("proto3 has no required fields", start)
        field = message.field.add(
            label=_LABELS[label or "optional"], proto3_optional=is_proto3 and label == "optional"
        )
        if oneof_index is not None:
            field.oneof_index = oneof_index
        kind = self._path()
        if kind == "map" and not label and oneof_index is None and self._accept("<"):
            self._read_map(message, field)
        elif not (label or is_proto3 or oneof_index is not None):
            self._fail("Expected 'optional', 'required' or 'repeated' before a field of proto2", start)
        elif kind == "group" and not is_proto3:
            self._read_group(message, field)
        else:
            _set_type(field, kind)
            self._read_name_and_number(field, _FIELD_NUMBERS)
            self._expect(";")

    def _read_name_and_number(self, declared: Any, allowed: range) -> None:
        declared.name = self._word()
        self._expect("=")
        declared.number = self._integer(allowed)
        if self._next.text == "[":
            self._skip_block()

    def _read_map(self, message: DescriptorProto, field: FieldDescriptorProto) -> None:
        """Read a map, which is a repeated message of a key and a value that is named after the field."""
        entry = message.nested_type.add()
        entry.options.map_entry = True
        for number, name in ((1, "key"), (2, "value")):
            _set_type(entry.field.add(name=name, number=number, label=_LABELS["optional"]), self._path())
            self._expect("," if number == 1 else ">")
        self._read_name_and_number(field, _FIELD_NUMBERS)
        self._expect(";")
        entry.name = "".join(part[:1].upper() + part[1:] for part in field.name.split("_")) + "Entry"
        field.label, field.type_name = _LABELS["repeated"], entry.name

    def _read_group(self, message: DescriptorProto, field: FieldDescriptorProto) -> None:
        self._read_name_and_number(field, _FIELD_NUMBERS)
        group = message.nested_type.add(name=field.name)
        field.type, field.type_name = FieldDescriptorProto.TYPE_GROUP, field.name
        field.name = field.name.lower()
        self._read_message(group)

    def _read_enum(self, enum: EnumDescriptorProto) -> None:
        self._expect("{")
        skipped: Declarations = dict.fromkeys(("option", "reserved"), self._skip_statement)
        self._read_until("}", skipped, lambda: self._read_enum_value(enum))

    def _read_enum_value(self, enum: EnumDescriptorProto) -> None:
        self._read_name_and_number(enum.value.add(), _ENUM_NUMBERS)
        self._expect(";")


def _set_type(field: FieldDescriptorProto, kind: str) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type_name = kind


def _add_oneofs_of_optional_fields(message: DescriptorProto) -> None:
    """Give each optional field of proto3 a oneof of its own, as protoc does: that is how descriptors say "has presence"."""
    taken = {field.name for field in message.field} | {oneof.name for oneof in message.oneof_decl}
    for field in message.field:
        if field.proto3_optional:
            name = field.name if field.name.startswith("_") else f"_{field.name}"
            while name in taken:
                name = f"X{name}"
            taken.add(name)
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=name)
