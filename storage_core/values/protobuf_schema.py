"""Messages of Protobuf schemas: loaded with what a schema imports, found by name or index, compared for evolution."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from storage_core.errors import SchemaError, SchemaResolutionError
from storage_core.values.proto_text import parse_proto

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.descriptor import Descriptor

    from storage_core.values.decoding import Message, SchemaSource

_ROOT = "schema.proto"
# Files that come with tools: Confluent's ProtobufSchema adds the same to each schema.
_KNOWN_FILES = {
    "google/protobuf": (
        *("any", "api", "descriptor", "duration", "empty", "field_mask", "source_context"),
        *("struct", "timestamp", "type", "wrappers"),
    ),
    "google/type": (
        *("calendar_period", "color", "date", "datetime", "dayofweek", "expr", "fraction"),
        *("latlng", "money", "month", "postal_address", "quaternion", "timeofday"),
    ),
}
_KNOWN_TEXTS = {
    "confluent/meta.proto": 'syntax = "proto3"; package confluent; '
    "message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }",
    "confluent/type/decimal.proto": 'syntax = "proto3"; package confluent.type; '
    "message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }",
}

# Types whose encodings a reader may take for one another, by https://protobuf.dev/programming-guides/proto3/#updating
_Type = FieldDescriptorProto
_VARINTS = {_Type.TYPE_INT32, _Type.TYPE_INT64, _Type.TYPE_UINT32, _Type.TYPE_UINT64, _Type.TYPE_BOOL}
_ENCODINGS = (
    _VARINTS | {_Type.TYPE_ENUM},
    {_Type.TYPE_SINT32, _Type.TYPE_SINT64},
    {_Type.TYPE_FIXED32, _Type.TYPE_SFIXED32},
    {_Type.TYPE_FIXED64, _Type.TYPE_SFIXED64},
    {_Type.TYPE_STRING, _Type.TYPE_BYTES},
)


def find_message(source: SchemaSource, message: Message) -> Descriptor:
    """Return a message of a schema.

    Args:
        source: The schema, and those that it refers to.
        message: Its name, with or without package, or its path of indexes; None for the only one.

    Raises:
        SchemaError: The schema is malformed, or does not have the message.
    """
    file, types = _load(source)
    messages = {m.full_name.removeprefix(f"{file.package}."): m for m in _all_messages(file)}
    if message is None:
        candidates = list(file.message_types_by_name.values())
    elif isinstance(message, str):
        candidates = [m for name, m in messages.items() if message in (name, m.full_name)]
    else:
        # Confluent's ProtobufSchema.toMessageIndexes counts messages; some serializers count enums, too.
        names = (_name_at([*messages], message), _name_at(types, message))
        candidates = [messages[name] for name in names if name in messages][:1]
    if len(candidates) == 1:
        return candidates[0]
    listed = ", ".join([m.full_name for m in messages.values()][:20]) or "none"
    asked = (
        "Name the message of the values with valueMessage or keyMessage"
        if message is None
        else f"The Protobuf schema has no message {message!r}"
    )
    raise SchemaError(f"{asked}; its messages: {listed}.")


def message_name(schema: SchemaSource, message: Message) -> str:
    """Return the name that a message has within its package.

    Raises:
        SchemaError: The schema has no such message.
    """
    found = find_message(schema, message)
    name: str = found.full_name
    return name.removeprefix(f"{found.file.package}.")


def _name_at(names: list[str], indexes: tuple[int, ...]) -> str:
    """Return the name at a path of indexes, each counting the names within the one before; empty if there is none."""
    name = ""
    for index in indexes:
        level = [inner for inner in names if inner.rpartition(".")[0] == name]
        if not 0 <= index < len(level):
            return ""
        name = level[index]
    return name


def _all_messages(file: Any) -> list[Descriptor]:
    """Return the messages of a file in the order of their text, without the entries of maps."""
    found: list[Descriptor] = []
    waiting = list(file.message_types_by_name.values())[::-1]
    while waiting:
        message = waiting.pop()
        found.append(message)
        waiting += [m for m in message.nested_types if not m.GetOptions().map_entry][::-1]
    return found


def _load(source: SchemaSource) -> tuple[Any, list[str]]:
    """Put a schema and those that it refers to into a pool, and return its file with the names of its types in order."""
    pool = DescriptorPool()
    loaded: set[str] = set()
    missing: list[str] = []
    for name, text in [*source.references, (_ROOT, source.text)]:
        file = parse_proto(text, name)
        for imported in file.descriptor.dependency:
            _load_known(pool, imported, loaded)
        missing += [imported for imported in file.descriptor.dependency if imported not in loaded]
        _add(pool, file.descriptor, loaded, missing)
    return pool.FindFileByName(_ROOT), file.types


def _load_known(pool: Any, name: str, loaded: set[str]) -> None:
    """Load a file that comes with tools, with its imports."""
    folder, _, file_name = name.rpartition("/")
    if name in loaded:
        return
    if name in _KNOWN_TEXTS:
        _add(pool, parse_proto(_KNOWN_TEXTS[name], name).descriptor, loaded, [])
    elif file_name.removesuffix(".proto") in _KNOWN_FILES.get(folder, ()):
        module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
        for imported in module.DESCRIPTOR.dependencies:
            _load_known(pool, imported.name, loaded)
        _add(pool, FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb), loaded, [])


def _add(pool: Any, file: Any, loaded: set[str], missing: list[str]) -> None:
    """Add a file without imports that are missing: many are for options alone. A type that is then missing is an error."""
    if file.name in loaded:
        return
    kept = [name for name in file.dependency if name in loaded]
    public = {file.dependency[index] for index in file.public_dependency if 0 <= index < len(file.dependency)}
    known = FileDescriptorProto(
        name=file.name,
        package=file.package,
        syntax=file.syntax or None,
        dependency=kept,
        public_dependency=[index for index, name in enumerate(kept) if name in public],
        message_type=file.message_type,
        enum_type=file.enum_type,
    )
    try:
        pool.AddSerializedFile(known.SerializeToString())
    except (TypeError, ValueError) as error:
        reason = str(error).removeprefix("Couldn't build proto file into descriptor pool: ")
        hint = ""
        if missing:
            hint = (
                f" It imports {', '.join(missing)}, which is not among its references. A schema that is given as text has "
                "none but Google's and Confluent's own files: copy what it needs into the text."
            )
        raise SchemaError(f"The Protobuf schema '{file.name}' is malformed: {reason}.{hint}") from None
    loaded.add(file.name)


def check_resolution(written: Descriptor, read: Descriptor) -> None:
    """Check that values of one message may be read as those of another: same name, encodings that go together.

    Raises:
        SchemaResolutionError: They may not.
    """
    waiting, seen = [(written, read)], set()
    while waiting:
        pair = waiting.pop()
        names = pair[0].full_name, pair[1].full_name
        if names not in seen:
            seen.add(names)
            waiting += _check_message(*pair)


def _check_message(written: Descriptor, read: Descriptor) -> Iterator[tuple[Descriptor, Descriptor]]:
    """Check the fields of a message, and yield the messages that both have in the same field."""
    if written.name != read.name:
        raise SchemaResolutionError(f"The message '{written.full_name}' is not '{read.full_name}'.")
    for number, field in read.fields_by_number.items():
        other = written.fields_by_number.get(number)
        if other is None:
            continue
        if field.type != other.type and not any(
            {field.type, other.type} <= encoding for encoding in _ENCODINGS
        ):
            raise SchemaResolutionError(
                f"Field {number} of '{read.full_name}' was written with a type that '{field.name}' cannot have."
            )
        if field.message_type is not None:
            yield other.message_type, field.message_type
