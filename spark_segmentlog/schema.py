"""The columns as Spark types, and the columns that a read asks for.

Names, order and types of records are those of Spark's Kafka source; those of other views are theirs. Every column is
nullable, as there: saved tables, unions and schema comparisons depend on the flags.
"""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from storage_core.errors import OptionError
from storage_core.options import RECORDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from storage_core.options import ReadOptions
    from storage_core.values.column_format import ColumnFormat


_HEADERS: Final = "headers"
_METADATA: Final = "_metadata"
_TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    _HEADERS: ArrayType(StructType().add("key", StringType()).add("value", BinaryType())),
    _METADATA: StructType()
    .add("segment", StringType())
    .add("position", LongType())
    .add("batchOffset", LongType())
    .add("leaderEpoch", IntegerType())
    .add("producerId", LongType())
    .add("producerEpoch", IntegerType())
    .add("sequence", IntegerType())
    .add("isTransactional", BooleanType())
    .add("compression", StringType())
    .add("magic", IntegerType())
    .add("timestampMs", LongType()),
}
# A record always has these, so a schema may call them NOT NULL. A row that describes damage has only the first two.
_NEVER_NULL: Final = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})
_NEVER_NULL_WITH_DAMAGE: Final = frozenset({"topic", "partition"})


@dataclass(frozen=True, slots=True)
class ProjectedColumn:
    """A column to read, and whether the schema that Spark expects calls it nullable."""

    name: str
    nullable: bool = True


def planned_formats(options: ReadOptions, *, is_quiet: bool = False) -> tuple[ColumnFormat, ...]:
    """Plan how the columns are decoded that the options do not read as bytes."""
    if not options.typed_columns:
        return ()
    # A read of bytes needs none of this.
    from storage_core.scan.typed_columns import plan_formats  # noqa: PLC0415
    from storage_core.tier import open_file_system  # noqa: PLC0415

    return plan_formats(open_file_system(options.storage), options, is_quiet=is_quiet)


def source_schema(options: ReadOptions, formats: Sequence[ColumnFormat] = ()) -> StructType:
    """Return the schema of the columns that the options ask for."""
    types = _types(options, formats)
    return StructType([StructField(name, types[name]) for name in _option_columns(options)])


def typed_options(schema: StructType, options: ReadOptions) -> tuple[ReadOptions, tuple[ColumnFormat, ...]]:
    """Plan how the columns of a schema are decoded.

    A user's own schema may have only some of the fields of a column; the others are then not decoded.

    Returns:
        The options of a read of these columns and fields, and the formats.
    """
    typed = options.typed_columns
    if not typed:
        return options, ()
    named = {field.name: field.dataType for field in schema.fields}
    if options.columns is None:
        options = dataclasses.replace(options, columns=tuple(named))
    formats = planned_formats(options)
    if all(spark_type(each.arrow_type) == named.get(each.column) for each in formats):
        return options, formats
    changed: dict[str, Any] = {
        choice.column: dataclasses.replace(choice, fields=tuple(_paths_within(named[choice.column])))
        for choice in typed
        if isinstance(named.get(choice.column), StructType)
    }
    options = dataclasses.replace(options, **changed)
    return options, planned_formats(options, is_quiet=True)


def _paths_within(kind: DataType) -> Iterator[tuple[str, ...]]:
    """Yield the path of each field of a type that has no fields itself; lists are passed through."""
    while isinstance(kind, ArrayType):
        kind = kind.elementType
    if not isinstance(kind, StructType) or not kind.fields:
        yield ()
        return
    for field in kind.fields:
        for path in _paths_within(field.dataType):
            yield (field.name, *path)


def projected_columns(
    schema: StructType, options: ReadOptions, formats: Sequence[ColumnFormat] = ()
) -> tuple[ProjectedColumn, ...]:
    """Return the columns to read for a schema, which a user may have written.

    Any subset in any order is accepted; ``headers`` and ``_metadata`` need no option if the
    schema names them.

    Raises:
        OptionError: A column is unknown, duplicate or of another type.
    """
    types = _types(options, formats)
    if not schema.fields:
        raise OptionError(
            "The schema names no column: expected at least one of "
            f"{', '.join(types)}. To count records, the cheapest schema is 'offset bigint'."
        )
    names = schema.fieldNames()
    for position, field in enumerate(schema.fields):
        _check_field(field, types, options)
        if field.name in names[:position]:
            raise OptionError(f"Column {field.name!r} of the schema: expected once, found twice.")
        if options.columns is not None and field.name not in options.columns:
            raise OptionError(
                f"Column {field.name!r} of the schema: expected one of the columns that option 'columns' names "
                f"({', '.join(options.columns)}). Set either a schema or 'columns'."
            )
    return tuple(ProjectedColumn(field.name, field.nullable) for field in schema.fields)


def _option_columns(options: ReadOptions) -> tuple[str, ...]:
    types = _types(options)
    if options.columns is not None:
        for name in options.columns:
            if name not in types:
                raise OptionError(_unknown_column(name, "option 'columns'", types))
        return options.columns
    left_out = set()
    if not options.include_headers:
        left_out.add(_HEADERS)
    if not options.include_metadata:
        left_out.add(_METADATA)
    return tuple(name for name in types if name not in left_out)


def _types(options: ReadOptions, formats: Sequence[ColumnFormat] = ()) -> dict[str, DataType]:
    """Return the columns that exist with these options. The one that describes damage is the last."""
    if options.view != RECORDS:
        return _types_of_view(options.view)
    types = {**_TYPES, **{each.column: spark_type(each.arrow_type) for each in formats}}
    if options.mode == "PERMISSIVE":
        types[options.corrupt_record_column] = StringType()
    return types


def _types_of_view(name: str) -> dict[str, DataType]:
    # A read of records needs none of this.
    from storage_core.views import find_view  # noqa: PLC0415

    return {column.name: spark_type(column.type) for column in find_view(name).columns}


def spark_type(kind: pa.DataType) -> DataType:
    """Return Spark's type of a column of a view, or of one that is decoded."""
    import pyarrow as pa  # noqa: PLC0415

    simple = {
        pa.null(): NullType(),
        pa.bool_(): BooleanType(),
        pa.int8(): ByteType(),
        pa.int16(): ShortType(),
        pa.int32(): IntegerType(),
        pa.int64(): LongType(),
        pa.float32(): FloatType(),
        pa.float64(): DoubleType(),
        pa.string(): StringType(),
        pa.binary(): BinaryType(),
        pa.date32(): DateType(),
        pa.timestamp("us", tz="UTC"): TimestampType(),
        pa.timestamp("us"): TimestampNTZType(),
    }
    if kind in simple:
        return simple[kind]
    if pa.types.is_decimal128(kind):
        return DecimalType(kind.precision, kind.scale)
    if pa.types.is_map(kind):
        return MapType(spark_type(kind.key_type), spark_type(kind.item_type))
    if pa.types.is_list(kind):
        return ArrayType(spark_type(kind.value_type))
    if pa.types.is_struct(kind):
        return StructType([StructField(field.name, spark_type(field.type)) for field in kind])
    raise TypeError(f"Expected a type that a view has, found {kind}.")


def _check_field(field: StructField, types: dict[str, DataType], options: ReadOptions) -> None:
    expected = types.get(field.name)
    if expected is None:
        raise OptionError(_unknown_column(field.name, "the schema", types))
    if field.dataType != expected:
        raise OptionError(
            f"Column {field.name!r} of the schema: expected type {expected.simpleString()}, "
            f"found {field.dataType.simpleString()}. Cast it after the read."
        )
    rows, never_null = _rows_and_never_null(options)
    if not field.nullable and field.name not in never_null:
        raise OptionError(
            f"Column {field.name!r} of the schema: expected a nullable column, because {rows} without one "
            "exist, found NOT NULL."
        )


def _rows_and_never_null(options: ReadOptions) -> tuple[str, frozenset[str]]:
    """Return the name of the rows that may lack columns, and the columns that none of them lacks."""
    if options.view != RECORDS:
        return f"rows of view={options.view}", frozenset()
    if options.mode == "PERMISSIVE":
        return "rows that describe damage", _NEVER_NULL_WITH_DAMAGE
    return "records", _NEVER_NULL


def _unknown_column(name: str, where: str, types: dict[str, DataType]) -> str:
    by_lower_case = {known.lower(): known for known in types}
    near = difflib.get_close_matches(name.lower(), by_lower_case, n=1)
    hint = f" Did you mean {by_lower_case[near[0]]!r}?" if near else ""
    return f"Column {name!r} of {where}: expected one of {', '.join(types)}.{hint}"
