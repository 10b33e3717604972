"""Descriptors of ``.proto`` files (proto2 and proto3), from their text or from a FileDescriptorProto in base64.

Options, defaults, services and extensions are skipped: they do not change how bytes decode. Names of types are left as
they stand, for the descriptor pool to resolve. The grammar is that of protobuf.dev/reference/protobuf/proto3-spec and
proto2-spec.
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

    Reads: TypeAlias = dict[str, Callable[[], None]]

_MAXIMUM_CHARACTERS = 4 << 20
_MAXIMUM_LEVELS = 32  # as in protoc
# Where FileDescriptorProto and DescriptorProto have their messages and enums.
_FILE_MESSAGES, _FILE_ENUMS, _NESTED_MESSAGES, _NESTED_ENUMS = (4,), (5,), 3, 4
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
_MAXIMUM_FIELD_NUMBER = 2**29 - 1
_SMALLEST_ENUM_NUMBER, _LARGEST_ENUM_NUMBER = -(2**31), 2**31 - 1


def parse_proto(text: str, name: str) -> FileDescriptorProto:
    """Return the descriptor of a file, of whose imports only the names are known.

    Args:
        text: The file, or its descriptor in base64.
        name: Its import path.

    Raises:
        SchemaError: It is neither, or too large, or uses editions.
    """
    if len(text) > _MAXIMUM_CHARACTERS:
        raise SchemaError(f"The Protobuf schema '{name}' has more than {_MAXIMUM_CHARACTERS:,} characters.")
    if _BASE64.fullmatch(text):
        return _parse_base64(text, name)
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
        self._level = 0

    def read_file(self) -> FileDescriptorProto:
        syntax = "proto2"
        if self._next.text == "edition":
            self._fail("Editions are not supported")
        if self._accept("syntax"):
            self._expect("=")
            syntax = self._string()
            if syntax not in ("proto2", "proto3"):
                self._fail(f"The syntax '{syntax}' is unknown")
            self._expect(";")
        if syntax == "proto3":
            self._file.syntax = syntax
        reads: Reads = {
            "import": self._read_import,
            "package": self._read_package,
            "option": self._read_option,
            "message": lambda: self._read_message(self._file.message_type, _FILE_MESSAGES),
            "enum": lambda: self._read_enum(self._file.enum_type, _FILE_ENUMS),
            "extend": self._read_extension,
            "service": self._read_service,
            ";": lambda: None,
        }
        while self._next.kind != "end":
            if self._next.text not in reads:
                self._fail_expecting("a declaration")
            reads[self._take().text]()
        return self._file

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

    def _fail_expecting(self, what: str) -> NoReturn:
        found = f"'{self._next.text}'" if self._next.kind != "end" else "the end"
        self._fail(f"Expected {what}, found {found}")

    def _of_kind(self, kind: str, what: str) -> str:
        if self._next.kind != kind:
            self._fail_expecting(what)
        return self._take().text

    def _word(self) -> str:
        return self._of_kind("word", "a name")

    def _string(self) -> str:
        parts = [self._of_kind("string", "a string")[1:-1]]
        while self._next.kind == "string":
            parts.append(self._take().text[1:-1])
        return "".join(parts)

    def _path(self) -> str:
        """Read a name with dots; one that begins with a dot counts from the root."""
        path = "." * self._accept(".") + self._word()
        while self._accept("."):
            path += "." + self._word()
        return path

    def _integer(self, smallest: int, largest: int) -> int:
        position = self._next.position
        sign = -1 if self._accept("-") else 1
        text = self._of_kind("number", "an integer")
        base = 16 if text[:2] in ("0x", "0X") else 8 if text.startswith("0") else 10
        try:
            value = sign * int(text[:32], base)
        except ValueError:
            self._fail(f"'{text}' is not an integer", position)
        if not smallest <= value <= largest:
            self._fail(f"{text[:32]} is not from {smallest} to {largest}", position)
        return value

    def _read_import(self) -> None:
        is_public = self._accept("public")
        if not is_public:
            self._accept("weak")
        if is_public:
            self._file.public_dependency.append(len(self._file.dependency))
        self._file.dependency.append(self._string())
        self._expect(";")

    def _read_package(self) -> None:
        self._file.package = self._path()
        self._expect(";")

    def _read_option(self) -> None:
        self._read_option_value()
        self._expect(";")

    def _read_options_in_brackets(self) -> None:
        if self._accept("["):
            self._read_option_value()
            while self._accept(","):
                self._read_option_value()
            self._expect("]")

    def _read_option_value(self) -> None:
        while True:
            if self._accept("("):
                self._path()
                self._expect(")")
            else:
                self._word()
            if not self._accept("."):
                break
        self._expect("=")
        if self._next.text == "{":
            self._skip_braces()
        elif self._next.kind == "string":
            self._string()
        else:
            _ = self._accept("-") or self._accept("+")
            if self._next.kind not in ("word", "number"):
                self._fail_expecting("the value of an option")
            self._take()

    def _skip_braces(self) -> None:
        """Read over a block in braces, whatever is in it."""
        self._expect("{")
        depth = 1
        while depth:
            if self._next.kind == "end":
                self._fail_expecting("'}'")
            token = self._take()
            depth += (token.text == "{") - (token.text == "}")

    def _read_service(self) -> None:
        self._word()
        self._skip_braces()

    def _read_extension(self) -> None:
        """Read fields that extend another message: they are unknown fields here."""
        self._path()
        self._read_members(DescriptorProto(), {})

    def _add(self, siblings: Any, path: tuple[int, ...]) -> tuple[Any, tuple[int, ...]]:
        """Add a message or an enum with its name, and note its place among both."""
        path = (*path, len(siblings))
        self._file.source_code_info.location.add(path=path)
        return siblings.add(name=self._word()), path

    def _read_message(self, siblings: Any, path: tuple[int, ...]) -> None:
        self._read_message_body(*self._add(siblings, path))

    def _read_message_body(self, message: DescriptorProto, path: tuple[int, ...]) -> None:
        reads: Reads = {
            "message": lambda: self._read_message(message.nested_type, (*path, _NESTED_MESSAGES)),
            "enum": lambda: self._read_enum(message.enum_type, (*path, _NESTED_ENUMS)),
            "extend": self._read_extension,
            "extensions": self._read_extensions,
            "reserved": self._read_reserved,
            "option": self._read_option,
            "oneof": lambda: self._read_oneof(message),
        }
        self._read_members(message, reads)
        _add_oneofs_of_optional_fields(message)

    def _read_oneof(self, message: DescriptorProto) -> None:
        oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=self._word())
        self._read_members(message, {"option": self._read_option}, oneof_index)

    def _read_members(self, message: DescriptorProto, reads: Reads, oneof_index: int | None = None) -> None:
        """Read what is between braces: fields, and what else a message may hold."""
        self._level += 1
        if self._level > _MAXIMUM_LEVELS:
            self._fail(f"Messages are nested more than {_MAXIMUM_LEVELS} deep")
        self._expect("{")
        while not self._accept("}"):
            if self._next.text in reads:
                reads[self._take().text]()
            elif not self._accept(";"):
                self._read_field(message, oneof_index)
        self._level -= 1

    def _read_field(self, message: DescriptorProto, oneof_index: int | None) -> None:
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
            self._read_name_and_number(field)
            self._expect(";")

    def _read_name_and_number(self, field: FieldDescriptorProto) -> None:
        field.name = self._word()
        self._expect("=")
        field.number = self._integer(1, _MAXIMUM_FIELD_NUMBER)
        self._read_options_in_brackets()

    def _read_map(self, message: DescriptorProto, field: FieldDescriptorProto) -> None:
        """Read a map, which is a repeated message of a key and a value that is named after the field."""
        entry = message.nested_type.add()
        entry.options.map_entry = True
        for number, name in ((1, "key"), (2, "value")):
            _set_type(entry.field.add(name=name, number=number, label=_LABELS["optional"]), self._path())
            self._expect("," if number == 1 else ">")
        self._read_name_and_number(field)
        self._expect(";")
        entry.name = "".join(part[:1].upper() + part[1:] for part in field.name.split("_")) + "Entry"
        field.label = _LABELS["repeated"]
        field.type_name = entry.name

    def _read_group(self, message: DescriptorProto, field: FieldDescriptorProto) -> None:
        self._read_name_and_number(field)
        group = message.nested_type.add(name=field.name)
        field.type, field.type_name, field.name = (
            FieldDescriptorProto.TYPE_GROUP,
            field.name,
            field.name.lower(),
        )
        self._read_message_body(group, ())

    def _read_extensions(self) -> None:
        self._read_ranges(1, _MAXIMUM_FIELD_NUMBER)
        self._read_options_in_brackets()
        self._expect(";")

    def _read_reserved(self, smallest: int = 1, largest: int = _MAXIMUM_FIELD_NUMBER) -> None:
        if self._next.kind == "string":
            self._string()
            while self._accept(","):
                self._string()
        else:
            self._read_ranges(smallest, largest)
        self._expect(";")

    def _read_ranges(self, smallest: int, largest: int) -> None:
        while True:
            self._integer(smallest, largest)
            if self._accept("to") and not self._accept("max"):
                self._integer(smallest, largest)
            if not self._accept(","):
                break

    def _read_enum(self, siblings: Any, path: tuple[int, ...]) -> None:
        enum, _ = self._add(siblings, path)
        self._expect("{")
        reads: Reads = {
            "option": self._read_option,
            "reserved": lambda: self._read_reserved(_SMALLEST_ENUM_NUMBER, _LARGEST_ENUM_NUMBER),
            ";": lambda: None,
        }
        while not self._accept("}"):
            if self._next.text in reads:
                reads[self._take().text]()
            else:
                self._read_enum_value(enum)

    def _read_enum_value(self, enum: EnumDescriptorProto) -> None:
        name = self._word()
        self._expect("=")
        enum.value.add(name=name, number=self._integer(_SMALLEST_ENUM_NUMBER, _LARGEST_ENUM_NUMBER))
        self._read_options_in_brackets()
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
