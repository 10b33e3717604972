"""The columns of a frame that is to be written: those of Spark's Kafka sink, and what they must be.

value      string or binary; null is a tombstone
key        string or binary; optional
topic      string; needed unless the option ``topic`` names one
partition  int; optional, null leaves the choice to the partitioner; needed with ``preserveOffsets``
headers    array<struct<key:string,value:binary>>; optional
timestamp  timestamp; optional, null is the time at which the job began
offset     bigint; only with ``preserveOffsets``, and needed then

Columns are found by their exact names; others are left alone. Everything is checked before a task starts, in the
words of Spark's Kafka sink and in its order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from storage_core.errors import InvalidRecordError

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_segmentlog.write_options import WriteOptions

__all__ = ["WriteColumns", "write_columns"]


@dataclass(frozen=True, slots=True)
class WriteColumns:
    """Where each column stands in the frame; None: it has none, or it does not matter."""

    value: int
    key: int | None = None
    topic: int | None = None
    partition: int | None = None
    headers: int | None = None
    timestamp: int | None = None
    offset: int | None = None

    @property
    def of_records(self) -> tuple[tuple[str, int], ...]:
        """The columns that become part of records, by name and place."""
        places = {
            "value": self.value,
            "key": self.key,
            "timestamp": self.timestamp,
            "headers": self.headers,
            "offset": self.offset,
        }
        return tuple((name, place) for name, place in places.items() if place is not None)


def write_columns(schema: StructType, options: WriteOptions) -> WriteColumns:
    """Find the columns to write.

    Raises:
        InvalidRecordError: A column is missing, or of another type than records can have.
    """
    found = _Columns(schema)
    # A topic that the options name beats the column, whatever that is.
    topic = found.place("topic") if options.topic is None else None
    if options.topic is None and topic is None:
        raise InvalidRecordError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
            f"{found.hint('topic')}"
        )
    key = found.place("key")
    value = found.place("value")
    if value is None:
        raise InvalidRecordError(f"Required attribute 'value' not found.{found.hint('value')}")
    columns = WriteColumns(
        value=value,
        key=key,
        topic=topic,
        headers=found.place("headers"),
        partition=found.place("partition"),
        timestamp=found.place("timestamp"),
        offset=found.place("offset") if options.preserve_offsets else None,
    )
    if options.preserve_offsets:
        for name, place in (("offset", columns.offset), ("partition", columns.partition)):
            if place is None:
                raise InvalidRecordError(
                    f"Required attribute '{name}' not found. With preserveOffsets, each row says its offset and its "
                    f"partition: keep both columns of the read, or leave preserveOffsets out.{found.hint(name)}"
                )
    return columns


class _Columns:
    """The frame's columns by name; of two of one name the first counts."""

    def __init__(self, schema: StructType) -> None:
        self._types: dict[str, tuple[int, DataType]] = {}
        for place, field in enumerate(schema.fields):
            self._types.setdefault(field.name, (place, field.dataType))

    def place(self, name: str) -> int | None:
        """Where a column stands, with its type checked; None: there is none."""
        if name not in self._types:
            return None
        place, found = self._types[name]
        is_allowed, allowed = _ALLOWED[name]
        if not is_allowed(found):
            raise InvalidRecordError(
                f"{name} attribute unsupported type {found.simpleString()}. {name} must be a(n) {allowed}"
                f"{_ADVICE.get(name, '')}"
            )
        return place

    def hint(self, name: str) -> str:
        """A sentence on a column that has the same name in other letters."""
        similar = [other for other in self._types if other.lower() == name]
        return f" There is a column '{similar[0]}': names count exactly." if similar else ""


def _is_bytes(kind: DataType) -> bool:
    return isinstance(kind, StringType | BinaryType)


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, StringType)


def _is_int(kind: DataType) -> bool:
    return isinstance(kind, IntegerType)


def _is_long(kind: DataType) -> bool:
    return isinstance(kind, LongType)


def _is_timestamp(kind: DataType) -> bool:
    return isinstance(kind, TimestampType)


def _is_headers(kind: DataType) -> bool:
    """Whether nulls may be among them does not matter."""
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name, type(field.dataType)) for field in kind.elementType.fields]
    return fields == [("key", StringType), ("value", BinaryType)]


_ALLOWED: Final[dict[str, tuple[Callable[[DataType], bool], str]]] = {
    "topic": (_is_text, "string"),
    "key": (_is_bytes, "string or binary"),
    "value": (_is_bytes, "string or binary"),
    "headers": (_is_headers, "array<struct<key:string,value:binary>>"),
    "partition": (_is_int, "int"),
    "timestamp": (_is_timestamp, "timestamp"),
    "offset": (_is_long, "bigint"),
}
_ADVICE: Final = {
    "timestamp": ". Cast it, or drop it if it is not the time of the record.",
    "value": ". Cast it, or make it one text: to_json(struct(*)).",
}
