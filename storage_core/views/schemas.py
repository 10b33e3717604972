"""The view ``schemas``: what a schema registry has in its topic, or what is in a folder of schema files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from storage_core.errors import OptionError
from storage_core.scan.schemas_topic import load_registry
from storage_core.views.view import TIMESTAMP, Column, View, batches_of_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.filesystem import ReadableFileSystem
    from storage_core.options import ReadOptions
    from storage_core.values.schema_registry import SchemaRegistry


_REFERENCE: Final = pa.struct([("name", pa.string()), ("subject", pa.string()), ("version", pa.int32())])
_UNREADABLE: Final = "unreadable"
# fmt: off
_COLUMNS: Final = (
    Column("subject", pa.string(), "The subject, as `orders-value` or, in a context, `:.staging:orders-value`."),
    Column("version", pa.int32(), "Its version."),
    Column("id", pa.int32(), "The id of the schema; null if only the tombstone of the version is left."),
    Column("guid", pa.string(), "The GUID of the schema: the hash of its text, references, metadata and rules."),
    Column("type", pa.string(), "`AVRO`, `PROTOBUF` or `JSON`."),
    Column("state", pa.string(),
           "`live`, `soft-deleted`, or `tombstoned`: deleted for good, or its version has another id by now. A record that "
           f"no registry writes has a row, too: `{_UNREADABLE}`, with its offset."),
    Column("references", pa.list_(_REFERENCE), "The schemas that it refers to."),
    Column("offset", pa.int64(), "Offset of the record that the schema is from."),
    Column("timestamp", TIMESTAMP, "Timestamp of that record."),
    Column("isEncrypted", pa.bool_(), "Whether its rules encrypt fields or payloads, which then do not decode."),
    Column("hasDuplicateId", pa.bool_(), "Whether another schema has the same id in the same context."),
    Column("schema", pa.string(), "The schema's text."),
)
# fmt: on


def _plan(_filesystem: ReadableFileSystem, options: ReadOptions) -> list[ReadOptions]:
    if options.names_topics:
        raise OptionError(
            "view=schemas is about the schemas of all topics. Leave out the option that names topics."
        )
    return [options]


def _read(
    filesystem: ReadableFileSystem, options: ReadOptions, _wanted: frozenset[str]
) -> Iterator[pa.RecordBatch]:
    return batches_of_rows(_COLUMNS, _rows(load_registry(filesystem, options)))


def _rows(registry: SchemaRegistry) -> Iterator[tuple[Any, ...]]:
    for schema in registry.schemas:
        yield (
            schema.subject,
            schema.version,
            schema.schema_id,
            schema.guid,
            schema.schema_type,
            schema.state,
            [reference._asdict() for reference in schema.references],
            schema.offset,
            schema.timestamp_ms,
            schema.is_encrypted,
            (schema.context, schema.schema_id) in registry.duplicate_ids,
            schema.text,
        )
    for offset in registry.unreadable_offsets:
        yield (*[None] * 5, _UNREADABLE, None, offset, *[None] * 4)


SCHEMAS_VIEW: Final = View(
    "schemas",
    "A version of a schema in a schema registry, from the registry's topic. A subject is the name under which the registry "
    "keeps the versions of a schema.",
    _COLUMNS,
    _plan,
    _read,
)
