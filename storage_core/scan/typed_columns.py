"""Plan how columns are decoded: which schema they are read with, and which ones records may have been written with.

The schemas come from the options or from the topic of a schema registry, which is read once. Schemas that tasks may need
travel to them as text. Of those that values cannot be read by, only the reason does.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from storage_core.cached_property import cached_property
from storage_core.errors import OptionError, SchemaError, first_of
from storage_core.options.bounds import EarliestBound, LatestBound
from storage_core.options.values import path_of
from storage_core.record import HEADERS_TYPE
from storage_core.scan.plan import plan_scan
from storage_core.scan.read import read_tasks
from storage_core.scan.resolve import find_directories, select_partitions
from storage_core.scan.schemas_topic import load_registry, schema_directories
from storage_core.values.column_format import (
    HEADER_NAMES,
    ColumnFormat,
    Message,
    ReaderSchema,
    WriterSchema,
    decoder_of,
    message_types,
    pack_writers,
    reader_type,
)
from storage_core.values.decoding import Payloads, SchemaSource
from storage_core.values.frames import NO_FRAME, split_frames
from storage_core.values.schema_registry import AVRO, JSON, PROTOBUF

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from storage_core.filesystem import FileSystem
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


class _FramedRecord(NamedTuple):
    """A record that names a schema of the registry, and its Protobuf message type."""

    schema: RegisteredSchema
    message: Message


class _TopicReader(NamedTuple):
    """The schema that a topic is read with, the contexts of its ids, and what is to be known of the choice."""

    reader: ReaderSchema
    contexts: tuple[str, ...]
    notices: tuple[str, ...]


def plan_formats(
    filesystem: FileSystem,
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
        is_quiet: Whether nothing is logged, because the same is planned again.

    Raises:
        OptionError: The topics have different schemas, or none is known.
        SchemaError: A schema is malformed, or what is named does not exist.
        SegmentLogError: The topic of the registry cannot be read.
    """
    if not options.typed_columns:
        return ()
    planner = _Planner(filesystem, options, kept or {}, is_quiet)
    formats = tuple(planner.plan(choice) for choice in options.typed_columns)
    for notice in (notice for each in formats for notice in each.notices if not is_quiet):
        _log.warning("%s", notice)
    return formats


@dataclass(frozen=True)
class _Planner:
    """Plans the formats of one read, with one look at the registry's topic."""

    filesystem: FileSystem
    options: ReadOptions
    kept: Mapping[str, ReaderSchema]
    is_quiet: bool

    @cached_property
    def registry(self) -> SchemaRegistry:
        """Read the registry's topic."""
        return load_registry(self.filesystem, _as_bytes(self.options), is_quiet=self.is_quiet)

    @cached_property
    def topics(self) -> list[str]:
        """List the topics to read, also those that a stream may find later."""
        options = self.options
        found = select_partitions(find_directories(self.filesystem, options), options, may_be_absent=True)
        named = options.subscribe or options.assign or ()
        return sorted({*named, *(each.topic for each in found)})

    def plan(self, choice: ColumnChoice) -> ColumnFormat:
        """Plan the format of one column."""
        if choice.format == "registry":
            return self._plan_framed(choice)
        if choice.schema is None and not choice.names_registered:
            return ColumnFormat(choice.column, pa.string(), is_json=choice.format == "json")
        kind = choice.format.upper()
        if choice.schema is not None:
            reader = ReaderSchema(kind, self._given_source(choice), choice.message)
        else:
            reader = self._only_reader(choice).reader
            if reader.kind != kind:
                raise OptionError(
                    f"{choice.column}Format is {choice.format}, and the schema with id {reader.schema_id} is {reader.kind}. "
                    f"Set {choice.column}Format to {reader.kind.lower()}."
                )
        return ColumnFormat(choice.column, reader_type(reader, choice.fields), reader, fields=choice.fields)

    def _plan_framed(self, choice: ColumnChoice) -> ColumnFormat:
        chosen = self._only_reader(choice)
        writers = _Writers(self.registry, chosen.reader, chosen.contexts)
        return ColumnFormat(
            choice.column,
            reader_type(chosen.reader, choice.fields),
            chosen.reader,
            is_framed=True,
            fields=choice.fields,
            packed_writers=pack_writers(writers.by_name()),
            notices=chosen.notices,
            ignored=tuple(writers.ignored()),
        )

    def _only_reader(self, choice: ColumnChoice) -> _TopicReader:
        """Choose the reader schema of all topics."""
        if not self.topics:
            raise OptionError(
                f"{choice.column}Format={choice.format} finds no topic to read, and so no schema. Name topics that exist."
            )
        found = {topic: self._reader_of(topic, choice) for topic in self.topics}
        first = found[self.topics[0]]
        if len({None if each is None else (*each.reader[:3], each.contexts) for each in found.values()}) > 1:
            listed = [
                f"{topic} ({'no schema' if each is None else each.reader.described})"
                for topic, each in found.items()
            ]
            example = next(topic for topic, each in found.items() if each is not None)
            raise OptionError(
                f"The topics have different schemas: {first_of(listed, _SHOWN)}. Read each with a load of its own, as with "
                f"subscribe={example}."
            )
        if first is None:
            raise self._no_schema(self.topics[0], choice)
        return first

    def _reader_of(self, topic: str, choice: ColumnChoice) -> _TopicReader | None:
        """Choose the reader schema of a topic: what is named, or that of its subject, or that of its first record.

        Returns:
            The schema; None if the topic has none.
        """
        registry, is_key = self.registry, choice.column == "key"
        contexts = registry.contexts_of(topic, is_key=is_key, subject=choice.subject)
        if choice.column in self.kept:
            return _TopicReader(self.kept[choice.column], contexts, tuple(self._newer(topic, choice)))
        schema = registry.reader_schema(
            topic,
            is_key=is_key,
            subject=choice.subject,
            version=choice.schema_version,
            schema_id=choice.schema_id,
        )
        first: _FramedRecord | None = None
        if schema is None or (schema.schema_type == PROTOBUF and choice.message is None):
            first = self._first_framed(topic, choice, contexts)
        if choice.schema is not None:
            known = schema or (first and first.schema)
            kind = _kind_of(choice, None if known is None else known.schema_type)
            reader = ReaderSchema(kind, self._given_source(choice), _message_of(choice, kind, first))
            return _TopicReader(reader, contexts, ())
        found = schema or (first and first.schema)
        if found is None:
            return None
        kind = found.schema_type or AVRO
        source, message = registry.source_of(found), _message_of(choice, kind, first)
        reader = ReaderSchema(kind, source, message, found.schema_id, found.subject, found.version)
        return _TopicReader(reader, contexts, tuple(_notices(topic, choice, reader, schema)))

    def _newer(self, topic: str, choice: ColumnChoice) -> Iterator[str]:
        """Say whether a version is there that a new read would be read with."""
        reader, is_key = self.kept[choice.column], choice.column == "key"
        if reader.schema_id is None or choice.chooses_schema:
            return
        newest = self.registry.reader_schema(topic, is_key=is_key, subject=choice.subject)
        if newest is not None and newest.schema_id != reader.schema_id:
            yield (
                f"{newest.described} is newer than the schema that the {choice.column}s of {topic} are read with, "
                f"{reader.described}. Records of both are read with that one; a new query takes the newer one."
            )

    def _no_schema(self, topic: str, choice: ColumnChoice) -> OptionError:
        options = self.options
        # A topic that does not exist is another error.
        select_partitions(find_directories(self.filesystem, options), options)
        column = choice.column
        return OptionError(
            f"Topic {topic} has no subject {topic}-{column} in _schemas, and its first records name no schema there. Choose one "
            f"with {column}SchemaId or {column}Subject, give the schema of records without a frame as {column}Format=avro and "
            f"{column}Schema, or read {column}Format=bytes. schemasPath says where _schemas is."
        )

    def _given_source(self, choice: ColumnChoice) -> SchemaSource:
        """Return the schema that an option holds, or the file that it names."""
        file = choice.schema_file
        if file is None:
            return SchemaSource(choice.schema or "")
        path = path_of(file)
        data = self.filesystem.read_file(path, _SCHEMA_FILE_LIMIT)
        if data is None:
            raise OptionError(f"{choice.column}Schema names the file {path}, which does not exist.")
        try:
            return SchemaSource(data.decode())
        except UnicodeDecodeError as error:
            raise SchemaError(f"Expected text in UTF-8, found {error.reason}.", path=path) from None

    def _first_framed(
        self, topic: str, choice: ColumnChoice, contexts: tuple[str, ...]
    ) -> _FramedRecord | None:
        """Find the first record of a topic that names a schema that is known."""
        column, examined = choice.column, 0
        options = dataclasses.replace(
            _as_bytes(self.options),
            subscribe=(topic,),
            subscribe_pattern=None,
            assign=None,
            starting=EarliestBound(),
            ending=LatestBound(),
            where=None,
        )
        schema = pa.schema([(column, pa.binary()), (HEADER_NAMES[column], HEADERS_TYPE)])
        if not any(each.topic == topic for each in find_directories(self.filesystem, options)):
            return None
        for batch in read_tasks(self.filesystem, plan_scan(self.filesystem, options).tasks, schema):
            found = self._first_of(batch, choice, contexts)
            examined += batch.num_rows
            if found is not None or examined >= _EXAMINED_ROWS:
                return found
        return None

    def _first_of(
        self, batch: pa.RecordBatch, choice: ColumnChoice, contexts: tuple[str, ...]
    ) -> _FramedRecord | None:
        batch = batch.filter(batch.column(0).is_valid())
        payloads = Payloads.of_array(batch.column(0))
        frames = split_frames(payloads, batch.column(1), HEADER_NAMES[choice.column])
        numbers, rows = np.unique(frames.name_numbers, return_index=True)
        for number, row in sorted(zip(numbers.tolist(), rows.tolist(), strict=True), key=itemgetter(1)):
            name = None if number == NO_FRAME else frames.names[number]
            if name is None:
                continue
            if name.guid is not None:
                schema = self.registry.by_guid(name.guid, contexts)
            else:
                schema = self.registry.by_id(name.schema_id or 0, contexts, choice.subject)
            if schema is None or schema.text is None:
                continue
            start, end = frames.starts[row : row + 1], payloads.ends[row : row + 1]
            types = message_types(name, Payloads(payloads.data, start, end))
            is_typed = schema.schema_type == PROTOBUF and types.paths
            return _FramedRecord(schema, self._message_name(schema, types.paths[0]) if is_typed else None)
        return None

    def _message_name(self, schema: RegisteredSchema, path: tuple[int, ...]) -> str:
        from storage_core.values.protobuf import message_name  # noqa: PLC0415  (an extra)

        return message_name(self.registry.source_of(schema), path)


def _as_bytes(options: ReadOptions) -> ReadOptions:
    return dataclasses.replace(
        options, key_format="bytes", value_format="bytes", columns=None, field_paths=()
    )


def _kind_of(choice: ColumnChoice, known: str | None) -> str:
    """Tell the kind of a schema that is given as text: that of the topic's own one, or what its file or its text says."""
    if known is not None:
        return known
    file = choice.schema_file
    if file is not None:
        return _KIND_OF_SUFFIX["." + file.rpartition(".")[2]]
    return AVRO if (choice.schema or "").startswith(("{", "[", '"')) else PROTOBUF


def _message_of(choice: ColumnChoice, kind: str, first: _FramedRecord | None) -> Message:
    """Choose Protobuf's message type: what is named, or that of the topic's first record, or the first of the file."""
    if kind != PROTOBUF and choice.message is not None:
        raise OptionError(
            f"{choice.column}Message is for Protobuf, and the {choice.column}s are {kind}. Leave it out."
        )
    if kind != PROTOBUF or choice.message is not None:
        return choice.message
    return (0,) if first is None or first.message is None else first.message


def _notices(
    topic: str, choice: ColumnChoice, reader: ReaderSchema, schema: RegisteredSchema | None
) -> Iterator[str]:
    """Say what is unusual about the reader schema of a topic."""
    column = choice.column
    if schema is None:
        yield (
            f"Topic {topic} has no subject {topic}-{column}: its {column}s are read with {reader.described}, that of the "
            f"first record that names a schema. Choose another one with {column}SchemaId or {column}Subject."
        )
    elif schema.state != "live" and not choice.chooses_schema:
        yield f"Subject {schema.subject} has no live version: {column}s are read with {schema.described}."


class _Writers:
    """The schemas that values may have been written with, resolved to the one that they are read with."""

    def __init__(self, registry: SchemaRegistry, reader: ReaderSchema, contexts: tuple[str, ...]) -> None:
        self._registry = registry
        self._reader = reader
        self._contexts = contexts
        self._known: dict[RegisteredSchema, WriterSchema] = {}
        name, aliases = _record_names(reader.source.text) if reader.kind == AVRO else ("", ())
        self._names = {name, *aliases} if name else set()

    def by_name(self) -> dict[int | str, WriterSchema]:
        """Return the schemas by id, and by each GUID that headers may have."""
        found: dict[int | str, WriterSchema] = {}
        for schema in self._registry.schemas:
            if schema.text is None or schema.schema_id is None:
                continue
            if schema.context in self._contexts and schema.schema_id not in found:
                found[schema.schema_id] = self._of_id(schema.schema_id)
            for guid in (schema.guid, schema.stored_guid):
                if guid is not None:
                    found[guid] = self._writer(self._registry.by_guid(guid, self._contexts) or schema)
        return found

    def ignored(self) -> Iterator[str]:
        """Say of each version of the reader's subject why values of it are not read, and of how many others."""
        others = 0
        for schema, writer in self._known.items():
            if writer.source is None and schema.subject == self._reader.subject:
                yield f"{writer.message} ({writer.reason})"
            else:
                others += writer.source is None
        if others:
            yield f"{others} schemas of other subjects: values of them cannot be read with this one"

    def _of_id(self, schema_id: int) -> WriterSchema:
        try:
            schema = self._registry.by_id(schema_id, self._contexts, self._reader.subject)
        except SchemaError as error:
            return WriterSchema(schema_id, None, message=str(error))
        assert schema is not None  # noqa: S101  (a schema of the contexts has the id)
        return self._writer(schema)

    def _writer(self, schema: RegisteredSchema) -> WriterSchema:
        if schema not in self._known:
            self._known[schema] = self._resolved(schema)
        return self._known[schema]

    def _resolved(self, schema: RegisteredSchema) -> WriterSchema:
        reader, described = self._reader, schema.described
        refused = WriterSchema(schema.schema_id, None)
        if schema.is_encrypted:
            return refused._replace(reason="encrypted", message=f"{described} has rules that encrypt values")
        if schema.schema_type != reader.kind:
            return refused._replace(message=f"{described} is {schema.schema_type}, not {reader.kind}")
        name, _ = _record_names(schema.text or "") if self._names else ("", ())
        if name and name not in self._names:
            return refused._replace(
                message=f"{described}: record {name} cannot be read as {reader.described}"
            )
        try:
            source = self._registry.source_of(schema)
            if reader.kind == AVRO:
                decoder_of(AVRO, source, None, reader.source, None)
        except SchemaError as error:
            return refused._replace(message=f"{described}: {error}")
        return WriterSchema(schema.schema_id, source)


def _record_names(text: str) -> tuple[str, list[str]]:
    """Return the name and the aliases of an Avro record, unqualified; the name is empty for another type.

    A registry may have thousands of records. That most have another name is seen without their fields, which take long.
    """
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return "", []
    if not isinstance(schema, dict) or schema.get("type") != "record":
        return "", []
    name, aliases = schema.get("name"), schema.get("aliases")
    names = [name, *(aliases if isinstance(aliases, list) else ())]
    if not all(isinstance(each, str) for each in names):
        return "", []
    first, *others = (each.rpartition(".")[2] for each in names)
    return first, others


class PinnedFormats:
    """Formats of a read that goes on: columns keep the schema that they are read with, and get new ones of writers.

    Args:
        filesystem: Where to look for schemas.
        options: What to read.
        formats: As planned for the options, if they are already.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        options: ReadOptions,
        formats: tuple[ColumnFormat, ...] | None = None,
    ) -> None:
        self._filesystem = filesystem
        self._options = options
        self._state: object = None
        self._formats = plan_formats(filesystem, options) if formats is None else formats
        self._reported: set[str] = set()

    @property
    def formats(self) -> tuple[ColumnFormat, ...]:
        """The formats as they were planned last."""
        return self._formats

    @property
    def ids(self) -> dict[str, int]:
        """By column, the id of the schema that it is read with, if no option names one."""
        readers = {each.column: each.reader for each in self._formats if each.is_framed}
        return {
            choice.column: reader.schema_id
            for choice in self._options.typed_columns
            if (reader := readers.get(choice.column)) is not None
            and reader.schema_id is not None
            and not choice.chooses_schema
        }

    def pin(self, ids: Mapping[str, int]) -> None:
        """Read columns with the schemas of these ids, with which the read was begun.

        Raises:
            OptionError: A column would have another type than it has now.
        """
        own = self.ids
        changed: dict[str, Any] = {
            f"{column}_schema_id": ids[column]
            for column in own
            if ids.get(column, own[column]) != own[column]
        }
        if not changed:
            return
        pinned = plan_formats(self._filesystem, dataclasses.replace(self._options, **changed), is_quiet=True)
        for now, then in zip(self._formats, pinned, strict=True):
            if now.arrow_type != then.arrow_type:
                raise OptionError(_other_schema(now, then))
        self._formats = pinned

    def plan_anew(self) -> tuple[ColumnFormat, ...]:
        """Look for schemas that were registered meanwhile, and say once if one of them is newer than the reader's."""
        if not any(each.is_framed for each in self._formats):
            return self._formats
        state = _state_of_schemas(self._filesystem, self._options)
        if state != self._state:
            self._state = state
            kept = {each.column: each.reader for each in self._formats if each.reader is not None}
            self._formats = plan_formats(self._filesystem, self._options, kept, is_quiet=True)
            for notice in (notice for each in self._formats for notice in each.notices):
                if notice not in self._reported:
                    self._reported.add(notice)
                    _log.warning("%s", notice)
        return self._formats


def _state_of_schemas(filesystem: FileSystem, options: ReadOptions) -> object:
    """Return what changes when a schema is registered: the files of the registry's topic, or the schema files."""
    folders = schema_directories(filesystem, options)
    return [(folder, list(filesystem.examine_directory(folder))) for folder in folders]


def _other_schema(now: ColumnFormat, then: ColumnFormat) -> str:
    assert now.reader is not None and then.reader is not None  # noqa: S101, PT018  (values are framed)
    column = now.column
    return (
        f"The query was begun with the {column}s read by {then.reader.described}, and the DataFrame has the columns of "
        f"{now.reader.described}. Set {column}SchemaId={then.reader.schema_id} to go on as before; for the other columns, start "
        "a query with a new checkpoint."
    )
