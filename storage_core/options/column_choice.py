"""Options that give the key and the value of records a type: the format, and the schema that columns are read with."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from storage_core.errors import OptionError
from storage_core.options.option import Option
from storage_core.options.values import choice_kind, parse_count, value_kind

Column: TypeAlias = Literal["key", "value"]
Format = Literal["bytes", "string", "json", "avro", "protobuf", "registry"]
"""How the bytes of keys or values are encoded; ``registry`` if each record names its schema in a frame."""
COLUMNS: Final[tuple[Column, ...]] = ("value", "key")
_WITHOUT_SCHEMA: Final = frozenset({"bytes", "string"})
_SCHEMA_SUFFIXES: Final = (".avsc", ".proto", ".json")


def _parse_schema(option: str, value: object) -> str:
    if isinstance(value, (Mapping, list)):
        return json.dumps(value)
    return _parse_text(option, os.fspath(value) if isinstance(value, os.PathLike) else value)


def _parse_text(option: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise OptionError(f"{option} is {value!r}. Use a text.")
    return value.strip()


_ID: Final = value_kind("number", partial(parse_count, least=0))
_TEXT: Final = value_kind("name", _parse_text)
_SCHEMA: Final = value_kind("text or path", _parse_schema)


def options_of_column(column: Column) -> tuple[Option, ...]:
    """Return the options of one column, for `READ_OPTIONS`."""

    def option(name: str, kind: Any, doc: str, default: str = "") -> Option:
        field = f"{column}_{name[0].lower()}" + "".join(
            f"_{c.lower()}" if c.isupper() else c for c in name[1:]
        )
        return Option(column + name, field, kind, default, views=("records",), doc=doc)

    return (
        option(
            "Format",
            choice_kind(Format),
            f"What the {column} is, and so the type of its column: UTF-8 text, one JSON document, an Avro or Protobuf "
            "message, or a record framed for a schema registry, whose schemas lie in the same backup.",
            "bytes",
        ),
        option(
            "Schema",
            _SCHEMA,
            f"The schema that the column `{column}` is read with: text, or a file that ends in `.avsc`, `.proto` or `.json`. "
            f"With `{column}Format=registry`, the default is the latest live version of the topic's subject; with `json`, "
            "none: a column of text.",
        ),
        option(
            "SchemaId",
            _ID,
            f"The id of the schema that the column `{column}` is read with, as `_schemas` has it.",
        ),
        option(
            "SchemaVersion", _ID, "The version of that schema in its subject, instead of the latest live one."
        ),
        option(
            "Subject",
            _TEXT,
            f"The subject of that schema, if it is not the topic's name and `-{column}`; or the context of ids alone, as "
            "`:.staging:`.",
        ),
        option(
            "Message", _TEXT, "With Protobuf, the name of the message, if frames do not tell it or differ."
        ),
    )


FORMAT_OPTIONS: Final = tuple(option for column in COLUMNS for option in options_of_column(column))
FORMAT_FIELDS: Final = tuple(option.field.removeprefix("value_") for option in options_of_column("value"))


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """What the options say of the type of one column.

    Attributes:
        schema: Text of the reader schema, or the path of its file.
        fields: Paths of the wanted fields within the column; None for all.
    """

    column: Column
    format: Format
    schema: str | None
    schema_id: int | None
    schema_version: int | None
    subject: str | None
    message: str | None
    fields: tuple[tuple[str, ...], ...] | None = None

    @property
    def names_registered(self) -> bool:
        """Return True if the options name a schema of the registry."""
        return (self.schema_id, self.schema_version, self.subject) != (None, None, None)

    @property
    def names_context(self) -> bool:
        """Return True if the subject is a context alone, as ``:.staging:``: that of the ids in frames."""
        subject = self.subject or ""
        return subject.startswith(":.") and subject.find(":", 1) in (-1, len(subject) - 1)

    @property
    def chooses_schema(self) -> bool:
        """Return True if the options choose another schema of the registry than the latest of the topic's subject."""
        is_subject_named = self.subject is not None and not self.names_context
        return is_subject_named or (self.schema_id, self.schema_version) != (None, None)

    @property
    def schema_file(self) -> str | None:
        """Path of the file that holds the schema; None if the schema is given as text, or not at all."""
        schema = self.schema
        is_path = schema is not None and schema.endswith(_SCHEMA_SUFFIXES) and not set(schema) & set("{}\n")
        return schema if is_path else None

    @property
    def _given(self) -> list[str]:
        """Names of the options beside the format that are given, without the column."""
        values = (self.schema, self.schema_id, self.schema_version, self.subject, self.message)
        names = ("Schema", "SchemaId", "SchemaVersion", "Subject", "Message")
        return [name for name, value in zip(names, values, strict=True) if value is not None]

    def check(self) -> None:
        """Raise `OptionError` if options contradict the format or each other."""
        self._check_format()
        given = [name for name in self._given if name != "Message"]
        if self.format == "registry" and self.names_context:
            # Ids of writers are looked up there, whatever the reader's schema is.
            given.remove("Subject")
        if given[:1] == ["Schema"] != given or given[:2] == ["SchemaId", "SchemaVersion"]:
            first, second = (self.column + name for name in given[:2])
            raise OptionError(f"{first} and {second} both choose a schema. Give one of them.")

    def _check_format(self) -> None:
        column, given = self.column, self._given
        if self.format in _WITHOUT_SCHEMA and given:
            raise OptionError(
                f"{column}{given[0]} is for records with a schema, and {column}Format is {self.format}. Set "
                f"{column}Format to registry, avro, protobuf or json, or leave {column}{given[0]} out."
            )
        if self.message is not None and self.format not in ("protobuf", "registry"):
            raise OptionError(
                f"{column}Message is for Protobuf, and {column}Format is {self.format}. Leave it out."
            )
        if self.format in ("avro", "protobuf") and given in ([], ["Message"]):
            raise OptionError(
                f"{column}Format={self.format} needs the schema: its text or file in {column}Schema, or the id of one in "
                f"_schemas in {column}SchemaId. For framed records use {column}Format=registry."
            )
        if self.fields is not None and (
            self.format in _WITHOUT_SCHEMA or (self.format == "json" and not given)
        ):
            path = ".".join((column, *self.fields[0]))
            raise OptionError(
                f"columns names {path}, and {column}Format={self.format} without a schema has no fields. Name {column}."
            )


def split_columns(columns: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Split paths such as ``value.amount`` from names of columns.

    Returns:
        The names of columns, each once, in order; and the paths, which begin with the column.

    Raises:
        OptionError: A column is named as a whole and in parts.
    """
    paths = tuple(
        tuple(name.split(".")) for name in columns if "." in name and name.split(".", 1)[0] in COLUMNS
    )
    for path in paths:
        name = ".".join(path)
        if "" in path:
            raise OptionError(f"columns names '{name}', which is no path of fields.")
        if path[0] in columns:
            raise OptionError(f"columns names '{name}' and all of '{path[0]}'. Name one of them.")
    split = {".".join(path): path[0] for path in paths}
    return tuple(dict.fromkeys(split.get(name, name) for name in columns)), paths
