"""The columns that a write takes from a DataFrame, checked in the words of Spark's Kafka sink, and in its order.

value      string or binary; null is a tombstone
key        string or binary; optional
topic      string; required unless the option ``topic`` names one
partition  int; optional, null leaves the choice to the partitioner; required with ``preserveOffsets``
headers    array<struct<key:string,value:binary>>; optional
timestamp  timestamp; optional, null is the time at which the job began
offset     bigint; only with ``preserveOffsets``, which requires it

Names are matched case-insensitively, unless ``spark.sql.caseSensitive`` is true, which only tasks can see. Other columns
are ignored.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
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
    TimestampNTZType,
    TimestampType,
)

from storage_core.errors import InvalidRecordError

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_segmentlog.write_options import WriteOptions


CASE_SENSITIVE: Final = "spark.sql.caseSensitive"


@dataclass(frozen=True, slots=True)
class WriteColumns:
    """The index of each column in the DataFrame; None if it is missing or unused.

    Attributes:
        in_other_case: Names of the chosen columns that are spelled in another case.
        in_two_cases: Names of the chosen columns, each with the name of another column that differs only in case.
        look_alikes: Columns of the DataFrame that are left out, and the names that they may have been meant to have.
    """

    value: int
    key: int | None = None
    topic: int | None = None
    partition: int | None = None
    headers: int | None = None
    timestamp: int | None = None
    offset: int | None = None
    in_other_case: tuple[str, ...] = ()
    in_two_cases: tuple[tuple[str, str], ...] = ()
    look_alikes: tuple[tuple[str, str], ...] = ()

    @property
    def of_records(self) -> tuple[tuple[str, int], ...]:
        """The columns that become part of records: name and index."""
        places = {
            "value": self.value,
            "key": self.key,
            "timestamp": self.timestamp,
            "headers": self.headers,
            "offset": self.offset,
        }
        return tuple((name, place) for name, place in places.items() if place is not None)

    def check_case(self, case_sensitive: str | None) -> None:
        """Refuse columns that match only in another case if names are case-sensitive, and duplicates if they are not.

        Args:
            case_sensitive: The value of ``spark.sql.caseSensitive``; None if it is not set.

        Raises:
            InvalidRecordError: There are such columns.
        """
        if case_sensitive is not None and case_sensitive.lower() == "true":
            if self.in_other_case:
                raise InvalidRecordError(
                    f"Expected columns named exactly as the Kafka sink's, because {CASE_SENSITIVE} is true, found "
                    f"{', '.join(map(repr, self.in_other_case))}. Rename to lower case, or drop."
                )
        elif self.in_two_cases:
            written, other = self.in_two_cases[0]
            raise InvalidRecordError(
                f"Expected one column '{written}', found '{written}' and '{other}', which are the same name unless "
                f"{CASE_SENSITIVE} is true. Drop or rename the one that is not meant to be written."
            )


def write_columns(schema: StructType, options: WriteOptions) -> WriteColumns:
    """Find the columns to write.

    Raises:
        InvalidRecordError: A column is missing, or of another type than records can have.
    """
    found = _Columns(schema)
    # The option takes precedence over the column, of whatever type.
    topic = found.place("topic") if options.topic is None else None
    if options.topic is None and topic is None:
        raise InvalidRecordError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
        )
    wanted = set(_ALLOWED)
    if options.topic is not None:
        wanted.discard("topic")
    if not options.job.preserve_offsets:
        wanted.discard("offset")
    key = found.place("key")
    value = found.place("value")
    if value is None:
        raise InvalidRecordError("Required attribute 'value' not found.")
    columns = WriteColumns(
        value=value,
        key=key,
        topic=topic,
        headers=found.place("headers"),
        partition=found.place("partition"),
        timestamp=found.place("timestamp"),
        offset=found.place("offset") if options.job.preserve_offsets else None,
        in_other_case=found.in_other_case,
        in_two_cases=found.in_two_cases,
        look_alikes=found.look_alikes(wanted),
    )
    if options.job.preserve_offsets:
        for name, place in (("offset", columns.offset), ("partition", columns.partition)):
            if place is None:
                raise InvalidRecordError(
                    f"Required attribute '{name}' not found. With preserveOffsets, each row must have its offset and "
                    "its partition: keep both columns of the read, or leave preserveOffsets out."
                )
    return columns


class _Columns:
    """The DataFrame's columns by name; of duplicates the first."""

    def __init__(self, schema: StructType) -> None:
        self._types: dict[str, tuple[int, DataType]] = {}
        self._spellings: defaultdict[str, list[str]] = defaultdict(list)
        self._used: dict[str, str] = {}
        for place, column in enumerate(schema.fields):
            if column.name not in self._types:
                self._types[column.name] = (place, column.dataType)
                self._spellings[column.name.lower()].append(column.name)

    def place(self, name: str) -> int | None:
        """Return the index of a column, with its type checked.

        Returns:
            None if it is missing.
        """
        spelling = self._spelling(name)
        if spelling is None:
            return None
        self._used[name] = spelling
        place, found = self._types[spelling]
        is_allowed, allowed = _ALLOWED[name]
        if not is_allowed(found):
            written = "" if spelling == name else f" in column '{spelling}'"
            advice = _OF_LOCAL_TIMES if isinstance(found, TimestampNTZType) else _ADVICE.get(name, "")
            raise InvalidRecordError(
                f"{name} attribute unsupported type {found.simpleString()}{written}. {name} must be a(n) {allowed}"
                f"{advice}"
            )
        return place

    @property
    def in_other_case(self) -> tuple[str, ...]:
        """The columns found so far whose names differ in case."""
        return tuple(spelling for name, spelling in self._used.items() if spelling != name)

    @property
    def in_two_cases(self) -> tuple[tuple[str, str], ...]:
        """The columns found so far beside which there are others whose names differ in case only."""
        return tuple(
            (name, spelling)
            for name in self._used
            for spelling in self._spellings[name]
            if spelling != self._used[name]
        )

    def look_alikes(self, wanted: set[str]) -> tuple[tuple[str, str], ...]:
        """Return the unused columns whose names resemble a wanted one: ``Key`` beside ``key``, or ``header``."""
        unused = [name for name in self._types if name not in self._used.values()]
        found = []
        for name in unused:
            lower = name.lower()
            if lower in self._used:
                found.append((name, lower))
            elif lower not in _COLUMNS_OF_READS:
                missing = wanted - self._used.keys()
                near = difflib.get_close_matches(lower, sorted(missing), n=1, cutoff=_LIKENESS)
                found += [(name, each) for each in near]
        return tuple(found)

    def _spelling(self, name: str) -> str | None:
        """Return a column's name in the DataFrame: the exact one, or else the only one in another case."""
        if name in self._types:
            return name
        spellings = self._spellings[name]
        if len(spellings) > 1:
            raise InvalidRecordError(
                f"Expected one column '{name}', found {' and '.join(map(repr, spellings))}, which differ in case "
                f"only. Name the one to write '{name}', and drop the others."
            )
        return spellings[0] if spellings else None


def _is_headers(kind: DataType) -> bool:
    """Return True if a column has the type of headers, whatever its nullable flags."""
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name, type(field.dataType)) for field in kind.elementType.fields]
    return fields == [("key", StringType), ("value", BinaryType)]


def _is(*kinds: type[DataType]) -> Callable[[DataType], bool]:
    return lambda kind: isinstance(kind, kinds)


_ALLOWED: Final[dict[str, tuple[Callable[[DataType], bool], str]]] = {
    "topic": (_is(StringType), "string"),
    "key": (_is(StringType, BinaryType), "string or binary"),
    "value": (_is(StringType, BinaryType), "string or binary"),
    "headers": (_is_headers, "array<struct<key:string,value:binary>>"),
    "partition": (_is(IntegerType), "int"),
    "timestamp": (_is(TimestampType), "timestamp"),
    "offset": (_is(LongType), "bigint"),
}
# In lower case: what a read returns may be written, and what no record can have is left out without a word.
_COLUMNS_OF_READS: Final = frozenset({*_ALLOWED, "timestamptype", "_metadata"})
# header and headers, keys and key; but not event_timestamp and timestamp.
_LIKENESS: Final = 0.8
# Spark casts them in the time zone of the session, which nobody should find out from wrong times.
_OF_LOCAL_TIMES: Final = (
    ". It has no time zone: cast it to timestamp, which takes it for a time in spark.sql.session.timeZone."
)
_ADVICE: Final = {
    "timestamp": ". Cast it, or drop it if it is not the time of the record.",
    "value": ". Cast it, or make it one text: to_json(struct(*)).",
}
