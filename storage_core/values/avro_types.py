"""Arrow types of Avro's types, the same as with Spark's ``from_avro``, and values of their defaults."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from decimal import Context, Decimal
from typing import Any, Final, NamedTuple

import pyarrow as pa

from storage_core.errors import OptionError, SchemaError
from storage_core.values.avro_schema import (
    NESTING_LIMIT,
    Array,
    AvroSchema,
    Enum,
    Fixed,
    Map,
    Primitive,
    Record,
    Schema,
    Union,
)
from storage_core.values.decoding import Paths, paths_of_fields

# A schema that uses its types again and again may be short, and yet stand for more columns than any memory holds.
COLUMNS_LIMIT: Final = 50_000
# In characters. Each row repeats them.
_DEFAULTS_LIMIT: Final = 1 << 16
MOST_DIGITS: Final = 38
NOTHING: Final[Paths] = ()
"""Paths of a value that is not wanted."""
MICROSECONDS_PER_MILLISECOND: Final = 1000


class Kind(NamedTuple):
    """Facts about an Avro type, such as ``long``.

    Attributes:
        arrow_type: Type of the column, without a logical type.
        width: The bytes of each value; None if they differ.
        promotions: Other types that values can be read as.
        is_bytes: True if a value is its size and its bytes.
    """

    arrow_type: pa.DataType
    width: int | None = None
    promotions: tuple[str, ...] = ()
    is_bytes: bool = False


KINDS: Final = {
    "null": Kind(pa.null(), 0),
    "boolean": Kind(pa.bool_(), 1),
    "int": Kind(pa.int32(), promotions=("long", "float", "double")),
    "long": Kind(pa.int64(), promotions=("float", "double")),
    "float": Kind(pa.float32(), 4, ("double",)),
    "double": Kind(pa.float64(), 8),
    "bytes": Kind(pa.binary(), None, ("string",), is_bytes=True),
    "string": Kind(pa.string(), None, ("bytes",), is_bytes=True),
    "fixed": Kind(pa.binary()),
    "enum": Kind(pa.string()),
    # As text, if it is recursive.
    "record": Kind(pa.string()),
    "array": Kind(pa.null()),
    "map": Kind(pa.null()),
}
_BY_LOGICAL_TYPE: Final = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
# Unions of these are numbers, not structs.
_NUMBERS: Final = {frozenset({"int", "long"}): pa.int64(), frozenset({"float", "double"}): pa.float64()}
_DECIMALS: Final = Context(prec=MOST_DIGITS)
_INTEGERS: Final = {"int": 1 << 31, "long": 1 << 63}


class MapEntries:
    """Entries of a map, in the order of the data: a list of pairs for Arrow, an object for JSON."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: Iterable[tuple[str, Any]]) -> None:
        self.pairs = list(pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[str, Any]:
        return self.pairs[index]


def decimal_of(data: bytes, scale: int) -> Decimal:
    """Return the number that bytes stand for: its digits as a big-endian integer."""
    return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-scale, _DECIMALS)


def factor_of(schema: Schema) -> int:
    """Return what a number is multiplied by to become one of the column."""
    is_millis = isinstance(schema, Primitive) and schema.logical in (
        "timestamp-millis",
        "local-timestamp-millis",
    )
    return MICROSECONDS_PER_MILLISECOND if is_millis and schema.kind == "long" else 1


class ArrowTypes:
    """Types of the columns that values of a schema become."""

    def __init__(self, schema: AvroSchema) -> None:
        self._schema = schema
        # By identity: a type that is used often is asked for often.
        self._known: dict[tuple[int, Paths], tuple[pa.DataType, int]] = {}
        self._default_length = 0

    def of(self, schema: Schema, paths: Paths = None) -> pa.DataType:
        """Return the type of the wanted parts of a value; that of nulls if none is wanted.

        Raises:
            SchemaError: The type is beyond what is supported.
            OptionError: A path leads to no field.
        """
        return self._measured(schema, paths, 0)[0]

    def _measured(self, schema: Schema, paths: Paths, depth: int) -> tuple[pa.DataType, int]:
        """Return a type, and how many types it consists of."""
        if paths == NOTHING:
            return pa.null(), 1
        if depth > NESTING_LIMIT:
            raise SchemaError(f"the Avro schema nests deeper than {NESTING_LIMIT} levels")
        schema = self._schema.look_up(schema)
        key = (id(schema), paths)
        if key not in self._known:
            arrow_type, size = self._made(schema, paths, depth)
            if size > COLUMNS_LIMIT:
                raise SchemaError(f"the Avro schema stands for more than {COLUMNS_LIMIT:,} columns")
            self._known[key] = arrow_type, size
        return self._known[key]

    def _made(self, schema: Schema, paths: Paths, depth: int) -> tuple[pa.DataType, int]:
        match schema:
            case Record(is_recursive=False):
                fields = [(field.name, field.schema) for field in schema.fields]
                return self._struct(schema.name, fields, paths, depth)
            case Union():
                return self._union(schema, paths, depth)
            case Array():
                item, size = self._measured(schema.items, paths, depth + 1)
                return pa.list_(item), size + 1
        if paths is not None:
            kind = (
                "a recursive record, whose column is JSON text"
                if isinstance(schema, Record)
                else f"of type {schema.kind}"
            )
            raise OptionError(f"no field {paths[0][0]!r}: what the path leads to is {kind}")
        if isinstance(schema, Map):
            item, size = self._measured(schema.items, None, depth + 1)
            return pa.map_(pa.string(), item), size + 1
        return _scalar_type(schema), 1

    def _union(self, union: Union, paths: Paths, depth: int) -> tuple[pa.DataType, int]:
        members = self.members(union)
        if len(members) == 1:
            return self._measured(members[0], paths, depth + 1)
        number = number_type(members)
        if number is not None and paths is None:
            return number, 1
        fields = [(f"member{index}", member) for index, member in enumerate(members)]
        return self._struct("the union", fields, paths, depth)

    def _struct(
        self, where: str, fields: list[tuple[str, Schema]], paths: Paths, depth: int
    ) -> tuple[pa.DataType, int]:
        wanted = paths_of_fields(paths, [name for name, _ in fields], where)
        types = [
            (name, *self._measured(schema, wanted[name], depth + 1))
            for name, schema in fields
            if name in wanted
        ]
        return pa.struct([pa.field(name, made) for name, made, _ in types]), sum(
            size for *_, size in types
        ) + 1

    def members(self, union: Union) -> list[Schema]:
        """Return the branches of a union that are not null."""
        branches = map(self._schema.look_up, union.branches)
        return [branch for branch in branches if branch.kind != "null"]

    def default(self, schema: Schema, declared: object) -> Any:
        """Return the default that JSON declares, as a value that Arrow takes for the column.

        Raises:
            SchemaError: It is none of the type, or there are too many of them.
        """
        self._default_length += len(str(declared)) if declared else 0
        if self._default_length > _DEFAULTS_LIMIT:
            raise SchemaError(
                f"the defaults of the Avro schema have more than {_DEFAULTS_LIMIT:,} characters"
            )
        return self._default(self._schema.look_up(schema), declared)

    def _default(self, schema: Schema, declared: Any) -> Any:
        match schema:
            case Record() if isinstance(declared, dict):
                return dict(self._defaults(schema, declared))
            case Array() if isinstance(declared, list):
                return [self.default(schema.items, item) for item in declared]
            case Map() if isinstance(declared, dict):
                return MapEntries((key, self.default(schema.items, item)) for key, item in declared.items())
            case Union():
                return self._union_default(schema, declared)
            case Primitive() | Fixed() | Enum():
                return _scalar_default(schema, declared)
        raise SchemaError(f"the default {str(declared)[:80]!r} is not of type {schema.kind}")

    def _defaults(self, record: Record, declared: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        for field in record.fields:
            if field.name not in declared and not field.default:
                raise SchemaError(f"the default of a {record.name!r} has no field {field.name!r}")
            yield field.name, self.default(field.schema, declared.get(field.name, *field.default))

    def _union_default(self, union: Union, declared: object) -> Any:
        """Return the default of the first branch that it suits: Avro 1.12 allows any, before it was the first."""
        members = self.members(union)
        if declared is None and len(members) < len(union.branches):
            return None
        for index, member in enumerate(members):
            try:
                value = self.default(member, declared)
            except SchemaError:
                continue
            if len(members) == 1 or number_type(members) is not None:
                return value
            return {f"member{other}": value if other == index else None for other in range(len(members))}
        raise SchemaError(f"the default {str(declared)[:80]!r} is of no type of its union")


def number_type(members: list[Schema]) -> pa.DataType | None:
    """Return the type of a union of numbers that differ in size alone; None for other unions."""
    return _NUMBERS.get(frozenset(member.kind for member in members)) if len(members) == 2 else None  # noqa: PLR2004


def _scalar_type(schema: Schema) -> pa.DataType:
    match schema:
        case Primitive(decimal=(precision, scale)) | Fixed(decimal=(precision, scale)):
            if precision > MOST_DIGITS:
                raise SchemaError(
                    f"decimal({precision}, {scale}) has more than {MOST_DIGITS} digits: read it as bytes, by a schema without its logical type"
                )
            return pa.decimal128(precision, scale)
        case Primitive():
            return _BY_LOGICAL_TYPE.get((schema.kind, schema.logical), KINDS[schema.kind].arrow_type)
    return KINDS[schema.kind].arrow_type


def _scalar_default(schema: Primitive | Fixed | Enum, declared: Any) -> Any:
    match schema.kind, declared:
        case ("null", None) | ("boolean", bool()) | ("string", str()):
            return declared
        case (("int" | "long"), int()) if not isinstance(declared, bool):
            if -_INTEGERS[schema.kind] <= declared * factor_of(schema) < _INTEGERS[schema.kind]:
                return declared * factor_of(schema)
        case (("float" | "double"), int() | float()) if not isinstance(declared, bool) and math.isfinite(
            declared
        ):
            return float(declared)
        case "enum", str() if isinstance(schema, Enum) and declared in schema.symbols:
            return declared
        case (("bytes" | "fixed"), str()) if max(declared, default="") <= "\xff":
            return _bytes_default(schema, declared.encode("latin-1"))
    raise SchemaError(f"the default {str(declared)[:80]!r} is not of type {schema.kind}")


def _bytes_default(schema: Primitive | Fixed | Enum, data: bytes) -> bytes | Decimal:
    if isinstance(schema, Fixed) and len(data) != schema.size:
        raise SchemaError(f"the default of {schema.name!r} has {len(data):,} bytes, not {schema.size:,}")
    if isinstance(schema, Enum) or schema.decimal is None:
        return data
    precision, scale = schema.decimal
    if abs(int.from_bytes(data, "big", signed=True)) >= 10**precision:
        raise SchemaError(f"a default has more than the {precision} digits of its decimal")
    return decimal_of(data, scale)
