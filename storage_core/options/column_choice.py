"""Options that give the key and the value of records a type: the format, and the schema that columns are read with."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from storage_core.errors import OptionError
from storage_core.options.option import Option
from storage_core.options.values import choice_kind, parse_count, value_kind

Column: TypeAlias = Literal["key", "value"]
Paths: TypeAlias = tuple[tuple[str, ...], ...]
Format = Literal["bytes", "string", "json", "avro", "protobuf", "registry"]
"""Encoding of keys or values; ``registry`` if each record names its schema in a frame."""
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
# Of each column; names and fields are without that of the column here.
# fmt: off
_OPTIONS: Final = (
    Option("Format", "format", choice_kind(Format), "bytes",
           doc="What the {column} is, and so the type of its column: UTF-8 text, one JSON document, an Avro or Protobuf "
               "message, or a record framed for a schema registry, whose schemas lie in the same backup."),
    Option("Schema", "schema", value_kind("text or path", _parse_schema),
           doc="The schema that the column `{column}` is read with: text, or a file that ends in `.avsc`, `.proto` or `.json`. "
               "With `{column}Format=registry`, the default is the latest live version of the topic's subject; with `json`, "
               "none: a column of text."),
    Option("SchemaId", "schema_id", _ID,
           doc="The id of the schema that the column `{column}` is read with, as `_schemas` has it."),
    Option("SchemaVersion", "schema_version", _ID,
           doc="The version of that schema in its subject, instead of the latest live one."),
    Option("Subject", "subject", _TEXT,
           doc="The subject of that schema, if it is not the topic's name and `-{column}`; or only a context in which to look "
               "up ids, such as `:.staging:`."),
    Option("Message", "message", _TEXT,
           doc="With Protobuf, the name of the message, if frames name none, or different ones."),
)
# fmt: on
FORMAT_OPTIONS: Final = tuple(
    replace(
        option,
        name=f"{column}{option.name}",
        field=f"{column}_{option.field}",
        views=("records",),
        doc=option.doc.format(column=column),
    )
    for column in COLUMNS
    for option in _OPTIONS
)


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """Type that the options ask for of one column, as they fill it.

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
    fields: Paths | None = None

    @property
    def names_registered(self) -> bool:
        """True if the options name a schema of the registry."""
        return (self.schema_id, self.schema_version, self.subject) != (None, None, None)

    @property
    def names_context(self) -> bool:
        """True if the subject is a context alone, as ``:.staging:``: that of the ids in frames."""
        subject = self.subject or ""
        return subject.startswith(":.") and subject.find(":", 1) in (-1, len(subject) - 1)

    @property
    def chooses_schema(self) -> bool:
        """True if the options choose another schema of the registry than the latest of the topic's subject."""
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
        return [option.name for option in _OPTIONS[1:] if getattr(self, option.field) is not None]

    def check(self) -> None:
        """Raise `OptionError` if options contradict the format or each other."""
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
        schemas = [name for name in given if name != "Message"]
        if self.format == "registry" and self.names_context:
            # Ids of writers are looked up there, whatever the reader's schema is.
            schemas.remove("Subject")
        if schemas[:1] == ["Schema"] != schemas or schemas[:2] == ["SchemaId", "SchemaVersion"]:
            first, second = (column + name for name in schemas[:2])
            raise OptionError(f"{first} and {second} both choose a schema. Give one of them.")


def take_choice(column: Column, values: dict[str, Any], paths: Paths) -> ColumnChoice:
    """Take the choice of a column out of the values of options, by field.

    Args:
        column: The column.
        values: The values, from which those of the column are removed.
        paths: Paths of wanted fields, which begin with their column.
    """
    chosen = {option.field: values.pop(f"{column}_{option.field}") for option in _OPTIONS}
    fields = tuple(path[1:] for path in paths if path[0] == column)
    return ColumnChoice(column, **chosen, fields=fields or None)


def split_columns(columns: tuple[str, ...]) -> tuple[tuple[str, ...], Paths]:
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
