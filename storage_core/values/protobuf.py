"""Columns of Protobuf, by ptars (the extra ``protobuf``).

The types are those of Spark's ``from_protobuf`` with ``upcast.unsigned.ints``. ptars decodes a message made for the
purpose: it has the wanted fields only, and none of the types that ptars would show otherwise than Spark (enums, times,
wrappers, maps).

ptars trusts its input, so Protobuf's own parser decides which values are valid. As that takes as long again, it gets only
values that have more bytes than what ptars has read of them needs. It also rewrites values with two members of a oneof.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import OptionError, SchemaError
from storage_core.values.decoding import Decoded, RowError, paths_of_fields

try:
    import ptars
    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
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
from storage_core.values.protobuf_sizes import least_sizes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from storage_core.values.decoding import Decoder, Message, Paths, Payloads, SchemaSource

    Mask: TypeAlias = npt.NDArray[np.bool_]

_MAXIMUM_FIELDS = 20_000
_MAXIMUM_LEVELS = 64  # Protobuf's parsers stop at 100
# ptars has a table of the numbers up to the highest for each message, 16 bytes a number.
_MOST_NUMBERS = 1 << 25
# For Protobuf itself; ptars refuses them by a panic.
_RESERVED_NUMBERS = range(19_000, 20_000)
_ONES = 2**32 - 1
# ptars follows unknown groups as deep as they are nested, a byte or two each, until the stack overflows.
_MOST_TRUSTED_BYTES = 4096
_LARGEST_PART_ROWS, _LARGEST_PART_BYTES = 1 << 18, 1 << 26
# If Protobuf's parser refuses values that it has got together, it gets each of them alone.
_ROWS_CHECKED_TOGETHER = 256
_MICROSECONDS = 1_000_000

_Type = FieldDescriptorProto
_REPEATED = FieldDescriptorProto.LABEL_REPEATED
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
    """A value without parts; for an enum with its numbers and names."""

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
    """Builder of the file that ptars decodes by: a message for each place of a message in the schema, with the wanted fields.

    A map is a list of entries, as it is on the wire, so that the entries keep their order.
    """

    def __init__(self) -> None:
        self.file = FileDescriptorProto(name="columns.proto", syntax="proto3")
        self._open: list[str] = []
        self._oneofs: dict[tuple[str, str], int] = {}
        self._fields = self._numbers = 0

    def add_message(self, message: Descriptor, paths: Paths) -> _Struct:
        """Add a message, and return what it becomes."""
        if message.full_name in self._open or len(self._open) == _MAXIMUM_LEVELS:
            raise SchemaError(
                f"The Protobuf message '{message.full_name}' contains itself, or is nested more than {_MAXIMUM_LEVELS} deep, "
                "so it has no type; name other fields in 'columns'."
            )
        self._open.append(message.full_name)
        target = self._new_message()
        wanted = paths_of_fields(paths, message.fields_by_name, f"'{message.full_name}'")
        fields = {
            name: self._add_field(target, message.fields_by_name[name], below)
            for name, below in wanted.items()
        }
        oneofs = [oneof for oneof in message.oneofs if any(field.name in wanted for field in oneof.fields)]
        for hidden in (field for oneof in oneofs for field in oneof.fields if field.name not in wanted):
            # Only the last member counts: one that nobody asked for still hides those before it.
            self._declare(target, hidden, _HIDDEN_TYPES.get(hidden.type, hidden.type))
        self._reserve_numbers(message, target)
        self._open.pop()
        return _Struct(
            fields,
            {name: message.fields_by_name[name].number for name in wanted},
            [[field.number for field in oneof.fields] for oneof in oneofs if len(oneof.fields) > 1],
        )

    def _new_message(self) -> DescriptorProto:
        return self.file.message_type.add(name=f"M{len(self.file.message_type)}")

    def _reserve_numbers(self, message: Descriptor, target: DescriptorProto) -> None:
        self._numbers += max((field.number for field in target.field), default=0)
        if self._numbers > _MOST_NUMBERS:
            raise SchemaError(
                f"The Protobuf message '{message.full_name}' has too high numbers of fields, more than {_MOST_NUMBERS:,} "
                "with those of its messages; name other fields in 'columns'."
            )

    def _declare(self, target: DescriptorProto, field: FieldDescriptor, kind: int) -> FieldDescriptorProto:
        """Add a field. One of proto3 has presence only as a member of a oneof; key and value of an entry have none."""
        if field.number in _RESERVED_NUMBERS:
            raise SchemaError(
                f"The Protobuf field '{field.full_name}' has the number {field.number}, which is reserved."
            )
        if kind == _Type.TYPE_GROUP:
            raise SchemaError(f"The Protobuf field '{field.full_name}' is a group, which is not supported.")
        self._fields += 1
        if self._fields > _MAXIMUM_FIELDS:
            raise SchemaError(
                f"The Protobuf schema has more than {_MAXIMUM_FIELDS:,} fields, its messages written out."
            )
        label = _REPEATED if field.is_repeated else _Type.LABEL_OPTIONAL
        declared = target.field.add(name=f"f{field.number}", number=field.number, label=label, type=kind)
        oneof = field.containing_oneof
        if oneof is not None or (
            field.has_presence and field.message_type is None and not _is_map_entry(field.containing_type)
        ):
            name = f"o{field.number}" if oneof is None else f"oneof{oneof.index}"
            index = self._oneofs.setdefault((target.name, name), len(target.oneof_decl))
            if index == len(target.oneof_decl):
                target.oneof_decl.add(name=name)
            declared.oneof_index = index
        return declared

    def _add_field(self, target: DescriptorProto, field: FieldDescriptor, paths: Paths) -> _Node:
        kind = _Type.TYPE_INT32 if field.type == _Type.TYPE_ENUM else field.type
        declared = self._declare(target, field, kind)
        if field.message_type is None:
            node: _Node = _enum_leaf(field.enum_type) if field.enum_type else _Leaf(_LEAF_TYPES[kind])
        else:
            declared.type_name = f".M{len(self.file.message_type)}"
            node = self._add_message_field(field, paths)
        if isinstance(node, _Leaf):
            paths_of_fields(paths, (), f"'{field.name}'")
        return _List(node) if field.is_repeated and not isinstance(node, _Map) else node

    def _add_message_field(self, field: FieldDescriptor, paths: Paths) -> _Node:
        if field.message_type.full_name in _TIME_TYPES:
            time = self._new_message()
            for number, kind in ((1, _Type.TYPE_INT64), (2, _Type.TYPE_INT32)):
                time.field.add(name=f"f{number}", number=number, label=_Type.LABEL_OPTIONAL, type=kind)
            return _Leaf(_TIME_TYPES[field.message_type.full_name])
        if not _is_map_entry(field.message_type):
            return self.add_message(field.message_type, paths)
        if paths is not None and () not in paths:
            raise OptionError(f"'{field.name}' is a map, and 'columns' does not reach into maps.")
        entry = self.add_message(field.message_type, None)
        return _Map(entry.fields["key"], entry.fields["value"])


def _is_map_entry(message: Descriptor) -> bool:
    is_entry: bool = message.GetOptions().map_entry
    return is_entry


def _enum_leaf(enum: EnumDescriptor) -> _Leaf:
    names = {value.number: value.name for value in reversed(enum.values)}
    return _Leaf(pa.string(), (pa.array([*names], pa.int32()), pa.array([*names.values()], pa.string())))


class _ProtobufDecoder:
    """Decoder of messages into the columns of a message type."""

    def __init__(self, message: Descriptor, paths: Paths) -> None:
        expansion = _Expansion()
        self._name = message.full_name
        self._struct = expansion.add_message(message, paths)
        self.arrow_type = self._struct.arrow_type
        rows = expansion.file.message_type.add(name="Rows")
        rows.field.add(name="rows", number=1, label=_REPEATED, type=_Type.TYPE_MESSAGE, type_name=".M0")
        self._rows_class = GetMessageClass(_message_of(expansion.file, "Rows"))
        self._message_class = GetMessageClass(_message_of(expansion.file, "M0"))
        # ptars would look at each string by itself for whether it is UTF-8.
        for field in (field for message in expansion.file.message_type for field in message.field):
            field.type = _Type.TYPE_BYTES if field.type == _Type.TYPE_STRING else field.type
        expanded = _message_of(expansion.file, "M0")
        # The handler borrows from the pool.
        self._handlers = ptars.HandlerPool([expanded.file])
        self._handler = self._handlers.get_for_message(expanded)

    def decode(self, payloads: Payloads) -> Decoded:
        arrays, errors, first = [], [], 0
        for values in _parts(payloads.to_array()):
            array, refused, misfits = self._decode_part(values.cast(pa.binary()))
            arrays.append(array)
            errors += [
                RowError(first + row, "malformed", self._problem(is_refused=refused[row]))
                for row in np.flatnonzero(refused | misfits).tolist()
            ]
            first += len(values)
        return Decoded(arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays), errors)

    def _decode_part(self, values: pa.BinaryArray) -> tuple[pa.StructArray, Mask, Mask]:
        """Decode values.

        Returns:
            The messages; which values are not messages; and which have a time that does not fit microseconds.
        """
        read, is_proven = self._read_and_prove(values)
        refused = self._refused(values, ~is_proven)
        if refused.any():
            values = pc.if_else(pa.array(refused), b"", values)
        if read is None or refused.any():
            read = self._read(values)
        # ptars does not read field 0 of an unknown group, which Protobuf's parser skips.
        doubts = ~refused if read is None else _doubts(read, self._struct) & ~refused
        if doubts.any():
            pairs = zip(values.to_pylist(), doubts, strict=True)
            known = [self._rewritten(value) if doubt else value for value, doubt in pairs]
            read = self._read(pa.array(known, pa.binary()))
            doubts = _doubts(read, self._struct) & ~refused
        array, bad = _finish(read, self._struct), refused | doubts
        return array.take(pa.array(np.arange(len(bad)), mask=bad)) if bad.any() else array, refused, doubts

    def _problem(self, *, is_refused: bool) -> str:
        if is_refused:
            return f"The value is not a message '{self._name}'."
        return f"A message '{self._name}' has a time that does not fit microseconds."

    def _read_and_prove(self, values: pa.BinaryArray) -> tuple[pa.StructArray | None, Mask]:
        """Read values with ptars, if that can do no harm, and compare how many bytes they have and need.

        Returns:
            The values, or None; and which of them Protobuf's parser is known to read in the same way.
        """
        lengths = pc.binary_length(values).to_numpy()
        can_harm = lengths.max(initial=0) > _MOST_TRUSTED_BYTES or _may_panic(values)
        read = None if can_harm else self._read(values)
        if read is not None:
            try:
                return read, least_sizes(read, self._message_class.DESCRIPTOR) == lengths
            except pa.ArrowInvalid:
                pass
        return None, np.zeros(len(values), np.bool_)

    def _read(self, values: pa.BinaryArray) -> pa.StructArray | None:
        try:
            return self._handler.array_to_record_batch(values).to_struct_array()
        except ValueError:
            return None

    def _refused(self, values: pa.BinaryArray, asked: Mask) -> Mask:
        """Ask Protobuf's parser about some of the values, and return which of them it refuses."""
        refused, rows = np.zeros(len(values), np.bool_), np.flatnonzero(asked)
        if len(rows) < len(values):
            values = values.take(pa.array(rows))
        framed, ends = _framed(values)
        for start in range(0, len(rows), _ROWS_CHECKED_TOGETHER):
            stop = min(start + _ROWS_CHECKED_TOGETHER, len(rows))
            try:
                self._rows_class.FromString(framed[ends[start] : ends[stop]])
            except DecodeError:
                alone = values[start:stop].to_pylist()
                refused[rows[start:stop]] = [self._is_refused(value) for value in alone]
        return refused

    def _is_refused(self, value: bytes) -> bool:
        try:
            self._message_class.FromString(value)
        except DecodeError:
            return True
        return False

    def _rewritten(self, value: bytes) -> bytes:
        """Return a value with the last member of each oneof alone, and without unknown fields."""
        message = self._message_class.FromString(value)
        message.DiscardUnknownFields()
        rewritten: bytes = message.SerializeToString()
        return rewritten


def _message_of(file: FileDescriptorProto, name: str) -> Descriptor:
    pool = DescriptorPool()
    try:
        pool.AddSerializedFile(file.SerializeToString())
    except TypeError as error:
        raise SchemaError(
            f"The Protobuf schema is too large for Protobuf's parser ({error}); name fewer fields in 'columns'."
        ) from None
    return pool.FindMessageTypeByName(name)


def _parts(values: pa.LargeBinaryArray) -> Iterator[pa.LargeBinaryArray]:
    """Halve values until each part can be decoded at once, and yield the parts."""
    if len(values) <= 1 or (len(values) <= _LARGEST_PART_ROWS and values.nbytes <= _LARGEST_PART_BYTES):
        yield values
        return
    middle = len(values) // 2
    yield from _parts(values[:middle])
    yield from _parts(values[middle:])


def _may_panic(values: pa.BinaryArray) -> bool:
    """Tell whether there are four bytes of ones: ptars panics at lengths within ten bytes of 2^64, which have eight."""
    _, offsets, data = values.buffers()
    if data is None:
        return False
    ends = np.frombuffer(offsets, np.int32, len(values) + 1, values.offset * 4)
    words = np.frombuffer(data, np.uint32, len(data) // 4)[ends[0] // 4 : ends[-1] // 4]
    return bool((words == _ONES).any())


def _framed(values: pa.BinaryArray) -> tuple[bytes, npt.NDArray[np.int32]]:
    """Encode values as a repeated field with the number 1; return the message, and where each value ends in it."""
    lengths = pc.binary_length(values).to_numpy()
    # A length may take more bytes than it needs.
    headers = np.full((len(values), 6), 0x0A, np.uint8)
    for place in range(5):
        headers[:, 1 + place] = lengths >> 7 * place & 0x7F | 0x80
    headers[:, -1] &= 0x7F
    starts = pa.py_buffer(np.arange(0, headers.size + 1, 6, dtype=np.int32))
    prefixes = pa.Array.from_buffers(pa.binary(), len(values), [None, starts, pa.py_buffer(headers)])
    _, ends, framed = pc.binary_join_element_wise(prefixes, values, b"").buffers()
    return framed.to_pybytes(), np.frombuffer(ends, np.int32, len(values) + 1)


def _finish(array: pa.Array, node: _Node) -> pa.Array:
    """Return what ptars has read as a column of the node's type."""
    match node:
        case _Struct():
            if not node.fields:
                return pa.Array.from_buffers(node.arrow_type, len(array), array.buffers()[:1])
            children = [
                _finish(array.field(f"f{node.numbers[name]}"), field) for name, field in node.fields.items()
            ]
            mask = array.is_null() if array.null_count else None
            return pa.StructArray.from_arrays(children, fields=list(node.arrow_type), mask=mask)
        case _List():
            return pa.ListArray.from_arrays(array.offsets, _finish(array.values, node.item), node.arrow_type)
        case _Map():
            return _finish_map(array, node)
        case _Leaf():
            return _finish_leaf(array, node)


def _finish_leaf(array: pa.Array, leaf: _Leaf) -> pa.Array:
    if leaf.enum is not None:
        numbers, names = leaf.enum
        return pc.coalesce(names.take(pc.index_in(array, numbers)), array.cast(pa.string()))
    if pa.types.is_string(leaf.arrow_type):
        return array.view(leaf.arrow_type)
    if pa.types.is_temporal(leaf.arrow_type):
        return _finish_time(array).cast(leaf.arrow_type)
    if pa.types.is_decimal(leaf.arrow_type):
        return _to_decimals(array)
    return array if array.type == leaf.arrow_type else array.cast(leaf.arrow_type)


def _finish_map(array: pa.ListArray, node: _Map) -> pa.MapArray:
    """Convert lists of entries to maps. The last entry of a key counts; a missing value has its default."""
    offsets, entries = array.offsets, array.values
    is_last = _are_last_of_their_keys(array)
    if not is_last.all():
        counts = np.concatenate((np.zeros(1, np.int32), np.cumsum(is_last, dtype=np.int32)))
        offsets, entries = pa.array(counts[offsets.to_numpy()]), entries.filter(pa.array(is_last))
    values = entries.field("f2")
    if values.null_count:
        children = [values.field(index) for index in range(values.type.num_fields)]
        values = pa.Array.from_buffers(values.type, len(values), [None], children=children)
    return pa.MapArray.from_arrays(
        offsets, _finish(entries.field("f1"), node.key), _finish(values, node.value), type=node.arrow_type
    )


def _are_last_of_their_keys(array: pa.ListArray) -> Mask:
    """Return a flag for each entry: True if no later entry of its map has its key."""
    keys = array.values.field("f1").dictionary_encode()
    rows = np.repeat(np.arange(len(array)), np.diff(array.offsets.to_numpy()))
    numbers = rows * len(keys.dictionary) + keys.indices.to_numpy()
    is_last = np.zeros(len(numbers), np.bool_)
    is_last[len(numbers) - 1 - np.unique(numbers[::-1], return_index=True)[1]] = True
    return is_last


def _finish_time(array: pa.StructArray) -> pa.Int64Array:
    """Return times in microseconds. Those that do not fit are meaningless; `_doubts` finds them."""
    seconds, nanoseconds = array.field("f1"), array.field("f2")
    microseconds = pc.add(pc.multiply(seconds, _MICROSECONDS), pc.divide(nanoseconds, 1000))
    return pc.if_else(array.is_valid(), microseconds, None) if array.null_count else microseconds


def _to_decimals(array: pa.Array) -> pa.Array:
    """Widen unsigned integers of 64 bits to decimals of 128 bits."""
    validity, data = array.buffers()
    wide = np.zeros((array.offset + len(array), 2), np.uint64)
    wide[:, 0] = np.frombuffer(data, np.uint64, len(wide)) if data is not None else 0
    return pa.Array.from_buffers(
        pa.decimal128(20, 0), len(array), [validity, pa.py_buffer(wide)], offset=array.offset
    )


def _doubts(array: pa.Array, node: _Node) -> Mask | np.bool_:
    """Find values with two members of a oneof, of which the last counts, or with a time that does not fit microseconds.

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
            doubts = _any_of_each(array, _doubts(array.values.field("f2"), node.value))
        case _Leaf() if pa.types.is_temporal(node.arrow_type):
            seconds, nanoseconds = array.field("f1").to_numpy(), array.field("f2").to_numpy()
            whole = seconds * _MICROSECONDS
            added = np.trunc(nanoseconds / 1000).astype(np.int64)
            doubts = (whole // _MICROSECONDS != seconds) | ((whole + added < whole) != (added < 0))
    return doubts


def _any_of_each(array: pa.Array, marks: Mask | np.bool_) -> Mask | np.bool_:
    if not marks.any():
        return np.False_
    counts = np.concatenate((np.zeros(1, np.int64), np.cumsum(marks)))
    offsets = array.offsets.to_numpy()
    marked: Mask = counts[offsets[1:]] > counts[offsets[:-1]]
    return marked
