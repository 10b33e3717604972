"""Plan how columns are decoded: which schema they are read with, and which ones records may have been written with.

The schemas come from the options or from the topic of a schema registry, which is read once. Schemas that tasks may need
travel to them as text. Where values cannot be read, only the reason does.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from storage_core.cached_property import cached_property
from storage_core.errors import OptionError, SchemaError, first_of, visible
from storage_core.options.bounds import EarliestBound, LatestBound
from storage_core.options.paths import path_to_read
from storage_core.record import HEADERS_TYPE
from storage_core.scan.plan import plan_scan
from storage_core.scan.read import read_tasks
from storage_core.scan.resolve import find_directories, select_partitions
from storage_core.scan.schemas_topic import load_registry, schema_directories
from storage_core.values.column_format import (
    HEADER_NAMES,
    ColumnFormat,
    ReaderSchema,
    WriterSchema,
    decoder_of,
    pack_writers,
)
from storage_core.values.decoding import Message, Payloads, SchemaSource
from storage_core.values.frames import NO_FRAME, message_types, split_frames
from storage_core.values.registered_schema import context_and_name, qualified
from storage_core.values.schema_registry import AVRO, JSON, PROTOBUF

if TYPE_CHECKING:
    from collections.abc import Mapping

    from storage_core.filesystem import ReadableFileSystem
    from storage_core.options import ReadOptions
    from storage_core.options.column_choice import ColumnChoice
    from storage_core.values.registered_schema import RegisteredSchema
    from storage_core.values.schema_registry import SchemaRegistry


_log = logging.getLogger(__name__)
_SCHEMA_FILE_LIMIT: Final = 4 << 20
# A topic that has a frame at all has one among its first records.
_EXAMINED_ROWS: Final = 65_536
_SHOWN: Final = 10
_KIND_OF_SUFFIX: Final = {".avsc": AVRO, ".proto": PROTOBUF, ".json": JSON}
# Path of the message type that is the first one in a file.
_FIRST_MESSAGE: Final = (0,)


class _TopicReader(NamedTuple):
    """Schema that a topic is read with, contexts of the ids in its frames, and what a user should know of the choice."""

    reader: ReaderSchema
    contexts: tuple[str, ...] = ()
    notice: str = ""


def plan_formats(
    filesystem: ReadableFileSystem,
    options: ReadOptions,
    kept: Mapping[str, ReaderSchema] | None = None,
    *,
    is_quiet: bool = False,
) -> tuple[ColumnFormat, ...]:
    """Plan how the columns are decoded that the options do not read as bytes.

    Args:
        filesystem: Where to look for schemas.
        options: What to read.
        kept: By column, the reader schema that an earlier plan has decided on.
        is_quiet: True to log nothing, because the same is planned again.

    Raises:
        OptionError: The topics have different schemas, or none is known.
        SchemaError: A schema is malformed, or what is named does not exist.
        SegmentLogError: The topic of the registry cannot be read.
    """
    planner = _Planner(filesystem, options, kept or {}, is_quiet)
    formats = tuple(planner.plan(choice) for choice in options.typed_columns)
    for each in formats:
        if each.notice and not is_quiet:
            _log.warning("%s", visible(each.notice))
    return formats


@dataclass(frozen=True)
class _Planner:
    """Plans the formats of one read, with one look at the registry's topic."""

    filesystem: ReadableFileSystem
    options: ReadOptions
    kept: Mapping[str, ReaderSchema]
    is_quiet: bool

    @cached_property
    def registry(self) -> SchemaRegistry:
        """Read the registry's topic."""
        return load_registry(self.filesystem, self.options, is_quiet=self.is_quiet)

    @cached_property
    def topics(self) -> list[str]:
        """List the topics to read that are there."""
        found = find_directories(self.filesystem, self.options)
        return sorted({each.topic for each in select_partitions(found, self.options, may_be_absent=True)})

    def plan(self, choice: ColumnChoice) -> ColumnFormat:
        """Plan the format of one column."""
        is_framed, kind = choice.format == "registry", choice.format.upper()
        if is_framed or choice.names_registered:
            chosen = self._only_reader(choice)
        else:
            chosen = _TopicReader(ReaderSchema(kind, self._given_source(choice), choice.message))
        reader = chosen.reader
        if not is_framed and reader.kind != kind:
            raise OptionError(
                f"{choice.column}Format is {choice.format}, and the schema with id {reader.schema_id} is {reader.kind}. "
                f"Set {choice.column}Format to {reader.kind.lower()}."
            )
        arrow_type = decoder_of(reader, fields=choice.fields).arrow_type
        writers = _writers_by_name(self.registry, reader, chosen.contexts) if is_framed else None
        packed = None if writers is None else pack_writers(writers)
        return ColumnFormat(choice.column, arrow_type, reader, choice.fields, packed, chosen.notice)

    def _only_reader(self, choice: ColumnChoice) -> _TopicReader:
        """Choose the reader schema of all topics."""
        wanted = sorted({*self.topics, *(self.options.subscribe or self.options.assign or ())})
        if not wanted:
            raise OptionError(
                f"{choice.column}Format={choice.format} finds no topic to read, and so no schema. Name topics that exist."
            )
        readers = {topic: self._reader_of(topic, choice) for topic in wanted}
        # A stream may find a topic later; if it has no subject yet, it decides nothing.
        found = {topic: each for topic, each in readers.items() if each is not None or topic in self.topics}
        if len({each and (*each.reader[:3], each.contexts) for each in found.values()}) > 1:
            listed = [
                f"{topic} ({each.reader.described if each else 'no schema'})" for topic, each in found.items()
            ]
            example = next(topic for topic, each in found.items() if each is not None)
            raise OptionError(
                f"The topics have different schemas: {first_of(listed, _SHOWN)}. Read each with a load of its own, as with "
                f"subscribe={example}."
            )
        first = next(iter(found.values()), None)
        if first is None:
            raise self._no_schema(next(iter(found), wanted[0]), choice)
        return first

    def _reader_of(self, topic: str, choice: ColumnChoice) -> _TopicReader | None:
        """Choose the reader schema of a topic: what is named, or that of its subject, or that of its first record.

        Returns:
            The schema; None if the topic has none.
        """
        registry, is_key = self.registry, choice.column == "key"
        contexts = registry.contexts_of(topic, is_key=is_key, subject=choice.subject)
        if choice.column in self.kept:
            return _TopicReader(self.kept[choice.column], contexts, self._newer(topic, choice))
        of_subject = registry.reader_schema(
            topic,
            is_key=is_key,
            subject=choice.subject,
            version=choice.schema_version,
            schema_id=choice.schema_id,
        )
        schema = of_subject
        message: Message = choice.message
        if schema is None or (schema.schema_type == PROTOBUF and message is None):
            first, its_message = self._first_framed(topic, choice, contexts)
            schema, message = schema or first, message or its_message
        if schema is None and choice.schema is None:
            return None
        kind = _kind_of_text(choice) if schema is None else schema.schema_type or AVRO
        if kind != PROTOBUF and message is not None:
            raise OptionError(
                f"{choice.column}Message is for Protobuf, and the {choice.column}s are {kind}. Leave it out."
            )
        if kind == PROTOBUF and message is None:
            message = _FIRST_MESSAGE
        if schema is None or choice.schema is not None:
            return _TopicReader(ReaderSchema(kind, self._given_source(choice), message), contexts)
        source = registry.source_of(schema)
        reader = ReaderSchema(kind, source, message, schema.schema_id, schema.subject, schema.version)
        return _TopicReader(reader, contexts, _notice(topic, choice, reader, of_subject))

    def _newer(self, topic: str, choice: ColumnChoice) -> str:
        """Describe the newer version that a new query would read with; return nothing if there is none."""
        reader = self.kept[choice.column]
        if reader.schema_id is None or choice.chooses_schema:
            return ""
        newest = self.registry.reader_schema(topic, is_key=choice.column == "key", subject=choice.subject)
        if newest is None or newest.schema_id == reader.schema_id:
            return ""
        return (
            f"{newest.described} is newer than the schema that the {choice.column}s of {topic} are read with, "
            f"{reader.described}. Records of both are read with that one; a new query takes the newer one."
        )

    def _no_schema(self, topic: str, choice: ColumnChoice) -> OptionError:
        options = self.options
        # A topic that does not exist is another error.
        select_partitions(find_directories(self.filesystem, options), options)
        column = choice.column
        return OptionError(
            f"Topic {topic} has no subject {_subject(topic, choice)} in the schema registry, and its first records name no schema of it. "
            f"Choose one with {column}SchemaId or {column}Subject, give the schema of records without a frame as "
            f"{column}Format=avro and {column}Schema, or read {column}Format=bytes. schemasPath says where the registry's "
            "schemas are."
        )

    def _given_source(self, choice: ColumnChoice) -> SchemaSource | None:
        """Return the schema that an option holds, or the file that it names.

        Returns:
            The schema; None if the options do not give any.
        """
        file = choice.schema_file
        if file is None:
            return None if choice.schema is None else SchemaSource(choice.schema)
        path = path_to_read(file)
        data = self.filesystem.read_file(path, _SCHEMA_FILE_LIMIT)
        if data is None:
            raise OptionError(f"{choice.column}Schema names the file {path}, which does not exist.")
        try:
            return SchemaSource(data.decode())
        except UnicodeDecodeError as error:
            raise SchemaError(f"Expected text in UTF-8, found {error.reason}.", path=path) from None

    def _first_framed(
        self, topic: str, choice: ColumnChoice, contexts: tuple[str, ...]
    ) -> tuple[RegisteredSchema | None, Message]:
        """Find the first record of a topic that names a schema that is known.

        Returns:
            Its schema, None if there is no such record; and for Protobuf the name of its message type.
        """
        column, examined = choice.column, 0
        options = dataclasses.replace(
            self.options,
            subscribe=(topic,),
            subscribe_pattern=None,
            assign=None,
            starting=EarliestBound(),
            ending=LatestBound(),
            where=None,
        )
        if topic not in self.topics:
            return None, None
        schema = pa.schema([(column, pa.binary()), (HEADER_NAMES[column], HEADERS_TYPE)])
        tasks = plan_scan(self.filesystem, options, formats=()).tasks
        for batch in read_tasks(self.filesystem, tasks, schema):
            found, message = self._first_of(batch, choice, contexts)
            examined += batch.num_rows
            if found is not None or examined >= _EXAMINED_ROWS:
                return found, message
        return None, None

    def _first_of(
        self, batch: pa.RecordBatch, choice: ColumnChoice, contexts: tuple[str, ...]
    ) -> tuple[RegisteredSchema | None, Message]:
        batch = batch.filter(batch.column(0).is_valid())
        payloads = Payloads.of_array(batch.column(0))
        frames = split_frames(payloads, batch.column(1), HEADER_NAMES[choice.column])
        _, rows = np.unique(frames.name_numbers, return_index=True)
        for row in sorted(rows.tolist()):
            number = int(frames.name_numbers[row])
            if number == NO_FRAME:
                continue
            name = frames.names[number]
            schema = self.registry.by_name(name.guid or name.schema_id or 0, contexts, choice.subject)
            if schema is None or schema.text is None:
                continue
            if schema.schema_type != PROTOBUF:
                return schema, None
            from storage_core.values.protobuf import message_name  # noqa: PLC0415  (an extra)

            framed = payloads._replace(starts=frames.starts).take(slice(row, row + 1))
            paths = message_types(name, framed).paths
            return schema, message_name(self.registry.source_of(schema), paths[0]) if paths else None
        return None, None


def _kind_of_text(choice: ColumnChoice) -> str:
    """Tell the kind of a given schema from its file's name, or else from its text."""
    file = choice.schema_file
    if file is not None:
        return _KIND_OF_SUFFIX["." + file.rpartition(".")[2]]
    return AVRO if (choice.schema or "").startswith(("{", "[", '"')) else PROTOBUF


def _subject(topic: str, choice: ColumnChoice) -> str:
    """Return the subject that a topic's column has by default, in the context that is named."""
    return qualified(context_and_name(choice.subject or "")[0], f"{topic}-{choice.column}")


def _notice(topic: str, choice: ColumnChoice, reader: ReaderSchema, schema: RegisteredSchema | None) -> str:
    """Say what is unusual about the reader schema of a topic, given that of its subject."""
    column = choice.column
    if schema is None:
        return (
            f"Topic {topic} has no subject {_subject(topic, choice)}: its {column}s are read with {reader.described}, that of "
            f"the first record that names a schema. Choose another one with {column}SchemaId or {column}Subject."
        )
    if schema.state != "live" and not choice.chooses_schema:
        return f"Subject {schema.subject} has no live version: {column}s are read with {schema.described}."
    return ""


def _writers_by_name(
    registry: SchemaRegistry, reader: ReaderSchema, contexts: tuple[str, ...]
) -> dict[int | str, WriterSchema]:
    """Return the schemas that frames may name: by their ids in some contexts, and by all GUIDs.

    If the contexts have different schemas of a name, its values are not read.
    """
    names = _record_names(reader.source.text) if reader.kind == AVRO and reader.source else []
    resolved = cache(partial(_resolved, registry, reader, names))
    found: dict[int | str, WriterSchema] = {}
    for name in registry.names(contexts):
        try:
            schema = registry.by_name(name, contexts, reader.subject)
        except SchemaError as error:
            found[name] = WriterSchema(name if isinstance(name, int) else None, None, message=str(error))
        else:
            found.update({} if schema is None else {name: resolved(schema)})
    return found


def _resolved(
    registry: SchemaRegistry, reader: ReaderSchema, names: list[str], schema: RegisteredSchema
) -> WriterSchema:
    """Resolve a schema to the reader's. The names are those of the reader's record; empty for another type."""
    described = schema.described
    refused = WriterSchema(schema.schema_id, None, subject=schema.subject)
    if schema.is_encrypted:
        return refused._replace(reason="encrypted", message=f"{described} has rules that encrypt values")
    if schema.schema_type != reader.kind:
        return refused._replace(message=f"{described} is {schema.schema_type}, not {reader.kind}")
    for name in _record_names(schema.text or "")[:1] if names else ():
        if name not in names:
            return refused._replace(
                message=f"{described}: record {name} cannot be read as {reader.described}"
            )
    try:
        source = registry.source_of(schema)
        if reader.kind == AVRO:
            decoder_of(reader, source)
    except SchemaError as error:
        return refused._replace(message=f"{described}: {error}")
    return WriterSchema(schema.schema_id, source)


def _record_names(text: str) -> list[str]:
    """Return the name of an Avro record, then its aliases, unqualified; none for another type.

    A registry may have thousands of records. Comparing names first is much faster than resolving their fields.
    """
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(schema, dict) or schema.get("type") != "record":
        return []
    aliases = schema.get("aliases")
    names = [schema.get("name"), *(aliases if isinstance(aliases, list) else ())]
    return [each.rpartition(".")[2] for each in names] if all(isinstance(each, str) for each in names) else []


class PinnedFormats:
    """Formats of a continuing read: columns keep their reader schema, and learn new writer schemas.

    Args:
        filesystem: Where to look for schemas.
        options: What to read.
        formats: As planned for the options, if they are already.

    Attributes:
        formats: As they were planned last.
    """

    def __init__(
        self,
        filesystem: ReadableFileSystem,
        options: ReadOptions,
        formats: tuple[ColumnFormat, ...] | None = None,
    ) -> None:
        self._filesystem = filesystem
        self._options = options
        self._state: object = None
        self.formats = plan_formats(filesystem, options) if formats is None else formats
        self._reported: set[str] = set()

    @property
    def ids(self) -> dict[str, int]:
        """By column, the id of the schema that it is read with, if no option names one."""
        unnamed = {choice.column for choice in self._options.typed_columns if not choice.chooses_schema}
        return {
            each.column: each.reader.schema_id
            for each in self.formats
            if each.column in unnamed and each.reader.schema_id is not None
        }

    def pin(self, ids: Mapping[str, int]) -> None:
        """Read columns with the schemas of these ids, with which the read was begun.

        Raises:
            OptionError: A column would have another type than it has now.
            SchemaError: A schema is not known any more.
        """
        own = self.ids
        changed: dict[str, Any] = {
            choice.column: dataclasses.replace(choice, schema_id=ids[choice.column])
            for choice in self._options.typed_columns
            if choice.column in own and ids.get(choice.column, own[choice.column]) != own[choice.column]
        }
        if not changed:
            return
        options = dataclasses.replace(self._options, **changed)
        try:
            pinned = plan_formats(self._filesystem, options, is_quiet=True)
        except (SchemaError, OptionError) as error:
            named = " and ".join(f"the {column}s read by schema id {ids[column]}" for column in changed)
            raise type(error)(
                f"The query was begun with {named}. {error} To read by another schema, start a query with a new checkpoint."
            ) from None
        for now, then in zip(self.formats, pinned, strict=True):
            if now.arrow_type != then.arrow_type:
                column = now.column
                raise OptionError(
                    f"The query was begun with the {column}s read by {then.reader.described}, and the DataFrame has the "
                    f"columns of {now.reader.described}. Set {column}SchemaId={then.reader.schema_id} to go on as before; for "
                    "the other columns, start a query with a new checkpoint."
                )
        self.formats = pinned

    def plan_anew(self) -> tuple[ColumnFormat, ...]:
        """Look for schemas that were registered meanwhile, and say once if one of them is newer than the reader's."""
        if not any(each.is_framed for each in self.formats):
            return self.formats
        # What changes when a schema is registered: the files of the registry's topic, or the schema files.
        folders = schema_directories(self._filesystem, self._options)
        state = [(folder, list(self._filesystem.examine_directory(folder))) for folder in folders]
        if state != self._state:
            self._state = state
            kept = {each.column: each.reader for each in self.formats}
            self.formats = plan_formats(self._filesystem, self._options, kept, is_quiet=True)
            for notice in (each.notice for each in self.formats):
                if notice and notice not in self._reported:
                    self._reported.add(notice)
                    _log.warning("%s", visible(notice))
        return self.formats
