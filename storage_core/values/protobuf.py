"""Columns of Protobuf, by ptars (the extra ``protobuf``).

The types are those of Spark's ``from_protobuf`` with ``upcast.unsigned.ints``. ptars decodes a message made for the
purpose: it has the wanted fields only, and none of the types that ptars would show otherwise than Spark (enums, wrappers,
dates). What ptars may read otherwise than Protobuf's own parser, that one brings into its usual form first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import OptionError, SchemaError
from storage_core.values.decoding import Decoded, RowError
from storage_core.values.halving import decode_by_halves
from storage_core.values.paths import paths_of_fields

try:
    import ptars
    from google.protobuf import duration_pb2, timestamp_pb2
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass
except ModuleNotFoundError as error:
    raise OptionError(
        f"Protobuf needs {error.name}, which is not installed: pip install 'spark-segmentlog[protobuf]'."
    ) from None

from storage_core.values.protobuf_schema import check_resolution, find_message
from storage_core.values.protobuf_schema import message_name as message_name  # noqa: PLC0414  (what planning needs of the extra)

if TYPE_CHECKING:
    import numpy.typing as npt

    from storage_core.values.decoding import Decoder, Paths, Payloads, SchemaSource
    from storage_core.values.protobuf_schema import Message

    Mask: TypeAlias = npt.NDArray[np.bool_]

_MAXIMUM_FIELDS = 20_000
_MAXIMUM_LEVELS = 64  # Protobuf's parsers stop at 100
_LARGEST_PART_ROWS = 1 << 16
# ptars follows unknown groups as deep as they are nested, a byte or two each, until the stack overflows. Protobuf's parser
# stops at 100, and looks at longer values first.
_MOST_TRUSTED_BYTES = 4096
_FILE_NAME = "columns.proto"
_PTARS_OPTIONS: dict[str, Any] = {
    **dict.fromkeys(("timestamp_unit", "duration_unit"), "us"),
    **dict.fromkeys(("list_nullable", "list_value_nullable", "map_nullable", "map_value_nullable"), True),
}
# For Protobuf itself; ptars refuses them by a panic.
_RESERVED_NUMBERS = range(19_000, 20_000)

_Type = FieldDescriptorProto
_LEAF_TYPES = {
    _Type.TYPE_DOUBLE: pa.float64(),
    _Type.TYPE_FLOAT: pa.float32(),
    _Type.TYPE_BOOL: pa.bool_(),
    _Type.TYPE_STRING: pa.string(),
    _Type.TYPE_BYTES: pa.binary(),
    _Type.TYPE_ENUM: pa.string(),
    **dict.fromkeys((_Type.TYPE_INT32, _Type.TYPE_SINT32, _Type.TYPE_SFIXED32), pa.int32()),
    **dict.fromkeys((_Type.TYPE_INT64, _Type.TYPE_SINT64, _Type.TYPE_SFIXED64), pa.int64()),
    **dict.fromkeys((_Type.TYPE_UINT32, _Type.TYPE_FIXED32), pa.int64()),
    **dict.fromkeys((_Type.TYPE_UINT64, _Type.TYPE_FIXED64), pa.decimal128(20, 0)),
}
_TIME_TYPES = {
    "google.protobuf.Timestamp": pa.timestamp("us", "UTC"),
    "google.protobuf.Duration": pa.duration("us"),
}
_HIDDEN_TYPES = {_Type.TYPE_ENUM: _Type.TYPE_INT32, _Type.TYPE_MESSAGE: _Type.TYPE_BYTES}


def protobuf_decoder(
    writer: SchemaSource,
    message: Message,
    reader: SchemaSource | None = None,
    reader_message: Message = None,
    paths: Paths = None,
) -> Decoder:
    """Return a decoder of messages of the writer's schema into the columns of the reader's.

    The reader's schema is the writer's if it is None. Messages are named as in `find_message`.

    Raises:
        OptionError: A path names a field that the message does not have.
        SchemaError: A schema is malformed, lacks the message, or has what is not supported: a recursive message, a group.
        SchemaResolutionError: The messages are not the same, or a field has types that do not go together.
    """
    written = find_message(writer, message)
    if reader is None:
        return _ProtobufDecoder(written, paths)
    read = find_message(reader, reader_message)
    check_resolution(written, read)
    return _ProtobufDecoder(read, paths)


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A value without parts; of an enum the numbers and names, too."""

    arrow_type: pa.DataType
    enum: tuple[pa.Array, pa.Array] | None = None


@dataclass(frozen=True, slots=True)
class _List:
    """A repeated field."""

    item: _Node

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.list_(self.item.arrow_type)


@dataclass(frozen=True, slots=True)
class _Map:
    """A map."""

    key: _Node
    value: _Node

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.map_(self.key.arrow_type, self.value.arrow_type)


@dataclass(frozen=True, slots=True)
class _Struct:
    """A message.

    Attributes:
        fields: Its fields by name; in what ptars returns, a field is named after its number.
        numbers: Number of each field.
        oneofs: Numbers of the members of each oneof with a wanted member.
    """

    fields: dict[str, _Node]
    numbers: dict[str, int]
    oneofs: list[list[int]]

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.struct([(name, field.arrow_type) for name, field in self.fields.items()])


_Node: TypeAlias = _Leaf | _List | _Map | _Struct


class _Expansion:
    """Makes the file with the messages that ptars decodes: one for each place where a message is, with the wanted fields."""

    def __init__(self) -> None:
        dependencies = [timestamp_pb2.DESCRIPTOR.name, duration_pb2.DESCRIPTOR.name]
        self.file = FileDescriptorProto(name=_FILE_NAME, syntax="proto3", dependency=dependencies)
        self._open: list[str] = []
        self._fields = 0

    def add_message(self, message: Descriptor, paths: Paths) -> _Struct:
        """Add a message, and return what it becomes."""
        if message.full_name in self._open or len(self._open) == _MAXIMUM_LEVELS:
            raise SchemaError(
                f"The Protobuf message '{message.full_name}' contains itself, or is nested more than {_MAXIMUM_LEVELS} deep, "
                "so it has no type; name other fields in 'columns'."
            )
        self._open.append(message.full_name)
        target = self.file.message_type.add(name=f"M{len(self.file.message_type)}")
        wanted = paths_of_fields(paths, message.fields_by_name, f"'{message.full_name}'")
        fields = {
            name: self._add_field(target, message.fields_by_name[name], below)
            for name, below in wanted.items()
        }
        oneofs = [oneof for oneof in message.oneofs if any(field.name in wanted for field in oneof.fields)]
        for hidden in (field for oneof in oneofs for field in oneof.fields if field.name not in wanted):
            # Only the last member counts: one that nobody asked for still hides those before it.
            self._declare(target, hidden).type = _HIDDEN_TYPES.get(hidden.type, hidden.type)
        self._open.pop()
        return _Struct(
            fields,
            {name: message.fields_by_name[name].number for name in wanted},
            [[field.number for field in oneof.fields] for oneof in oneofs if len(oneof.fields) > 1],
        )

    def _declare(self, target: DescriptorProto, field: FieldDescriptor) -> FieldDescriptorProto:
        """Add a field whose type is not known yet. A field of proto3 has presence only as a member of a oneof."""
        if field.number in _RESERVED_NUMBERS:
            raise SchemaError(
                f"The Protobuf field '{field.full_name}' has the number {field.number}, which is reserved."
            )
        self._fields += 1
        if self._fields > _MAXIMUM_FIELDS:
            raise SchemaError(
                f"The Protobuf schema has more than {_MAXIMUM_FIELDS:,} fields, its messages written out."
            )
        declared = target.field.add(
            name=f"f{field.number}", number=field.number, label=3 if field.is_repeated else 1
        )
        if field.containing_oneof is not None or (field.has_presence and field.message_type is None):
            name = (
                f"o{field.number}"
                if field.containing_oneof is None
                else f"oneof{field.containing_oneof.index}"
            )
            names = [oneof.name for oneof in target.oneof_decl]
            declared.oneof_index = names.index(name) if name in names else len(names)
            if name not in names:
                target.oneof_decl.add(name=name)
        return declared

    def _add_field(self, target: DescriptorProto, field: FieldDescriptor, paths: Paths) -> _Node:
        declared = self._declare(target, field)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return self._add_map(target, declared, field, paths)
        node = self._set_type(declared, field, paths)
        return _List(node) if field.is_repeated else node

    def _add_map(self, target: DescriptorProto, proto: Any, field: FieldDescriptor, paths: Paths) -> _Node:
        if paths is not None and () not in paths:
            raise OptionError(f"'{field.name}' is a map, and 'columns' does not reach into maps.")
        entry = target.nested_type.add(name=f"F{field.number}Entry")
        entry.options.map_entry = True
        proto.type, proto.type_name = _Type.TYPE_MESSAGE, f".{target.name}.{entry.name}"
        parts = [field.message_type.fields_by_number[number] for number in (1, 2)]
        declared_parts = [entry.field.add(name=part.name, number=part.number, label=1) for part in parts]
        return _Map(*(self._set_type(*pair, None) for pair in zip(declared_parts, parts, strict=True)))

    def _set_type(self, proto: Any, field: FieldDescriptor, paths: Paths) -> _Node:
        proto.type = field.type
        if field.type == _Type.TYPE_GROUP:
            raise SchemaError(f"The Protobuf field '{field.full_name}' is a group, which is not supported.")
        if field.type == _Type.TYPE_MESSAGE:
            name = field.message_type.full_name
            if name in _TIME_TYPES:
                proto.type_name = f".{name}"
                return _Leaf(_TIME_TYPES[name])
            proto.type_name = f".M{len(self.file.message_type)}"
            return self.add_message(field.message_type, paths)
        if paths is not None and () not in paths:
            paths_of_fields(paths, (), f"'{field.name}'")
        if field.type == _Type.TYPE_ENUM:
            proto.type = _Type.TYPE_INT32
            names = {value.number: value.name for value in reversed(field.enum_type.values)}
            return _Leaf(
                pa.string(), (pa.array([*names], pa.int32()), pa.array([*names.values()], pa.string()))
            )
        return _Leaf(_LEAF_TYPES[field.type])


class _ProtobufDecoder:
    """Messages into the columns of a message type."""

    def __init__(self, message: Descriptor, paths: Paths) -> None:
        expansion = _Expansion()
        self._name = message.full_name
        self._struct = expansion.add_message(message, paths)
        self.arrow_type = self._struct.arrow_type
        pool = DescriptorPool()
        for file in (timestamp_pb2.DESCRIPTOR, duration_pb2.DESCRIPTOR):
            pool.AddSerializedFile(file.serialized_pb)
        pool.AddSerializedFile(expansion.file.SerializeToString())
        expanded = pool.FindMessageTypeByName("M0")
        self._message_class = GetMessageClass(expanded)
        # The handler borrows from the pool.
        self._handlers = ptars.HandlerPool([expanded.file], ptars.PtarsConfig(**_PTARS_OPTIONS))
        self._handler = self._handlers.get_for_message(expanded)

    def decode(self, payloads: Payloads) -> Decoded:
        return decode_by_halves(payloads.to_array(), self._decode_all, self._decode_each, _LARGEST_PART_ROWS)

    def _decode_all(self, values: pa.Array) -> pa.Array | None:
        long = values.filter(pc.greater(pc.binary_length(values), _MOST_TRUSTED_BYTES))
        if any(self._parse(value) is None for value in long.to_pylist()):
            return None
        read = self._read(values)
        return None if read is None or _doubts(read, self._struct).any() else _finish(read, self._struct)

    def _decode_each(self, values: pa.Array) -> Decoded:
        """Decode each value as it decodes alone; what ptars may read otherwise in the form in which Protobuf's parser writes it."""
        messages = [self._parse(value) for value in values.to_pylist()]
        pairs = zip(values.to_pylist(), messages, strict=True)
        known = [
            value if message is not None or self._is_read_alone(value) else None for value, message in pairs
        ]
        read, doubts = self._read_with_doubts(known)
        if doubts.any():
            for row in np.flatnonzero(doubts):
                known[row] = self._rewritten(messages[row])
            read, doubts = self._read_with_doubts(known)
        rows = [row if value is not None and not doubts[row] else None for row, value in enumerate(known)]
        errors = [
            RowError(row, "malformed", self._problem(messages[row]))
            for row, good in enumerate(rows)
            if good is None
        ]
        return Decoded(_finish(read, self._struct).take(pa.array(rows, pa.int64())), errors)

    def _problem(self, message: Any) -> str:
        if message is None:
            return f"The value is not a message '{self._name}'."
        return f"A message '{self._name}' has a time that does not fit microseconds."

    def _parse(self, value: bytes) -> Any:
        try:
            return self._message_class.FromString(value)
        except DecodeError:
            return None

    def _is_read_alone(self, value: bytes) -> bool:
        """Tell whether ptars reads a value that Protobuf's parser refuses: it is less strict where fields are unknown."""
        return len(value) <= _MOST_TRUSTED_BYTES and self._read(pa.array([value], pa.binary())) is not None

    def _rewritten(self, message: Any) -> bytes | None:
        if message is None:
            return None
        value: bytes = message.SerializeToString(deterministic=True)
        return value if self._read(pa.array([value], pa.binary())) is not None else None

    def _read_with_doubts(self, values: list[bytes | None]) -> tuple[pa.StructArray | None, Mask]:
        read = self._read(pa.array(values, pa.binary()))
        doubts = np.True_ if read is None else _doubts(read, self._struct)
        return read, np.broadcast_to(doubts, len(values))

    def _read(self, values: pa.Array) -> pa.StructArray | None:
        """Return what ptars makes of values; None if it fails, by an error or by a panic, which is no Exception."""
        try:
            return self._handler.array_to_record_batch(values.cast(pa.binary())).to_struct_array()
        except (ValueError, pa.ArrowInvalid):
            return None
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            return None


def _finish(array: pa.Array, node: _Node) -> pa.Array:
    """Return what ptars has read as a column of the node's type."""
    match node:
        case _Struct():
            fields = list(node.arrow_type)
            children = [
                _finish(array.field(f"f{node.numbers[name]}"), field) for name, field in node.fields.items()
            ]
            if not fields:
                return (
                    pa.array([{}] * len(array), node.arrow_type)
                    if not array.null_count
                    else array.cast(node.arrow_type)
                )
            return pa.StructArray.from_arrays(
                children, fields=fields, mask=array.is_null() if array.null_count else None
            )
        case _List():
            return pa.ListArray.from_arrays(array.offsets, _finish(array.values, node.item), node.arrow_type)
        case _Map():
            parts = _finish(array.keys, node.key), _finish(array.items, node.value)
            return pa.MapArray.from_arrays(array.offsets, *parts, type=node.arrow_type)
        case _Leaf(enum=(numbers, names)):
            return pc.coalesce(names.take(pc.index_in(array, numbers)), array.cast(pa.string()))
    if array.type == pa.uint64():
        return _to_decimals(array)
    return array if array.type == node.arrow_type else array.cast(node.arrow_type)


def _to_decimals(array: pa.Array) -> pa.Array:
    """Widen 64 bits without sign to the 128 of a decimal."""
    validity, data = array.buffers()
    wide = np.zeros((array.offset + len(array), 2), np.uint64)
    wide[:, 0] = np.frombuffer(data, np.uint64, len(wide)) if data is not None else 0
    return pa.Array.from_buffers(
        pa.decimal128(20, 0), len(array), [validity, pa.py_buffer(wide)], offset=array.offset
    )


def _doubts(array: pa.Array, node: _Node) -> Mask | np.bool_:
    """Tell which values ptars may have read otherwise than Protobuf's own parser does.

    ptars keeps two members of a oneof and two entries of a key, gives no value to an entry without one, and takes the
    largest time for those beyond.

    Returns:
        A mask, or one value for all.
    """
    doubts: Mask | np.bool_ = np.False_
    match node:
        case _Struct():
            for members in node.oneofs:
                present = [
                    array.field(f"f{number}").is_valid().to_numpy(zero_copy_only=False) for number in members
                ]
                doubts = doubts | (np.sum(present, axis=0) > 1)
            for name, field in node.fields.items():
                doubts = doubts | _doubts(array.field(f"f{node.numbers[name]}"), field)
        case _List():
            doubts = _any_of_each(array, _doubts(array.values, node.item))
        case _Map():
            values = array.items.is_null().to_numpy(zero_copy_only=False) | _doubts(array.items, node.value)
            doubts = _any_of_each(array, values | _repeated_keys(array))
        case _Leaf() if node.arrow_type in _TIME_TYPES.values():
            microseconds = array.cast(pa.int64())
            at_limits = pc.is_in(microseconds, pa.array([-(2**63), 2**63 - 1], pa.int64()))
            doubts = at_limits.to_numpy(zero_copy_only=False)
    return doubts


def _any_of_each(array: pa.Array, marks: Mask | np.bool_) -> Mask | np.bool_:
    if not marks.any():
        return np.False_
    counts = np.concatenate((np.zeros(1, np.int64), np.cumsum(marks)))
    offsets = array.offsets.to_numpy()
    marked: Mask = counts[offsets[1:]] > counts[offsets[:-1]]
    return marked


def _repeated_keys(array: pa.Array) -> Mask:
    """Tell which entries of maps have the key of an earlier one of their map."""
    keys = array.keys.dictionary_encode()
    rows = np.repeat(np.arange(len(array)), np.diff(array.offsets.to_numpy()))
    repeated = np.ones(len(keys), np.bool_)
    repeated[np.unique(rows * len(keys.dictionary) + keys.indices.to_numpy(), return_index=True)[1]] = False
    return repeated
