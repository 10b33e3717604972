"""The schemas of a registry as files named by id: ``17.avsc``, ``18.proto``, ``19.json``.

``schemas.json`` lists them with their subjects, versions, references and states, and all else that a registry is rebuilt from.
It is written last. A read takes the folder as ``schemasPath``.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from storage_core.errors import OptionError
from storage_core.options.values import path_of
from storage_core.values.registered_schema import DEFAULT_CONTEXT
from storage_core.values.schema_registry import INDEX_FILE, OTHER_SUFFIX, SUFFIXES
from storage_core.views.roots import require_outside

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from storage_core.filesystem import FileSystem
    from storage_core.values.registered_schema import RegisteredSchema
    from storage_core.values.schema_registry import SchemaRegistry


_Content: TypeAlias = "tuple[int | None, str]"


@dataclass(frozen=True, slots=True)
class SchemaExport:
    """What was written: how many versions of subjects, in how many files, and how many have only a tombstone."""

    target: str
    versions: int
    files: int
    without_text: int


def export_schemas(
    filesystem: FileSystem, registry: SchemaRegistry, target: str, sources: Sequence[str]
) -> SchemaExport:
    """Write the schemas of a registry to a directory: a new one, or an empty one.

    The directory is created if its parent exists. It must be outside of the sources, the directories and files that the schemas
    are from, and becomes as private as they are.

    Raises:
        OptionError: The directory is not empty, or is in one of the sources.
        StorageError: The file system refused.
    """
    path = os.path.abspath(path_of(target))
    _begin(filesystem, path, sources)
    files = _file_names(registry)
    for (_, text), name in files.items():
        _write(filesystem, os.path.join(path, name), text)
    listed = [_entry(each, files) for each in registry.schemas if each.text is not None]
    _write(filesystem, os.path.join(path, INDEX_FILE), _index(registry, listed))
    filesystem.flush_directory(path)
    return SchemaExport(path, len(listed), len(files), len(registry.schemas) - len(listed))


def _begin(filesystem: FileSystem, path: str, sources: Sequence[str]) -> None:
    status = filesystem.status(path, follow_symlinks=True)
    require_outside(filesystem, path, sources)
    if status is None:
        filesystem.make_directory(path)
        filesystem.make_as_private(path, sources)
    elif not status.is_directory or filesystem.list_directory(path):
        raise OptionError(
            f"Expected a new or an empty directory to write schemas to, found something in {path}."
        )


def _file_names(registry: SchemaRegistry) -> dict[_Content, str]:
    """Name a file for each id and text. A second text of an id gets a number; the default context comes first."""
    names: dict[_Content, str] = {}
    counts: Counter[str] = Counter()
    for schema in sorted(registry.schemas, key=lambda each: (each.context != DEFAULT_CONTEXT, each.offset)):
        if schema.text is None or (schema.schema_id, schema.text) in names:
            continue
        suffix = SUFFIXES.get(schema.schema_type or "", OTHER_SUFFIX)
        stem = str(schema.schema_id)
        counts[stem + suffix] += 1
        count = counts[stem + suffix]
        names[schema.schema_id, schema.text] = stem + (f"-{count}" if count > 1 else "") + suffix
    return names


def _entry(schema: RegisteredSchema, files: Mapping[_Content, str]) -> dict[str, Any]:
    entry = {
        **restorable_fields(schema),
        "guid": schema.guid,
        "md5": schema.md5,
        "state": schema.state,
        "offset": schema.offset if schema.offset >= 0 else None,
        "timestampMs": schema.timestamp_ms if schema.timestamp_ms >= 0 else None,
        "file": files[schema.schema_id, schema.text or ""],
    }
    return {name: value for name, value in entry.items() if value is not None}


def restorable_fields(schema: RegisteredSchema) -> dict[str, Any]:
    """Return what a registry is told of a schema, but its text, in its own words; what is absent is None."""
    return {
        "subject": schema.subject,
        "version": schema.version,
        "id": schema.schema_id,
        "schemaType": schema.schema_type,
        "references": [reference._asdict() for reference in schema.references] or None,
        "metadata": None if schema.metadata is None else json.loads(schema.metadata),
        "ruleSet": None if schema.rule_set is None else json.loads(schema.rule_set),
    }


def _index(registry: SchemaRegistry, listed: Sequence[dict[str, Any]]) -> str:
    settings = {
        name: [{"subject": subject, "value": json.loads(value)} for subject, value in of_kind.items()]
        for name, of_kind in (("configs", registry.configs), ("modes", registry.modes))
    }
    return json.dumps({"schemas": listed, **settings}, indent=1) + "\n"


def _write(filesystem: FileSystem, path: str, text: str) -> None:
    with filesystem.open_for_writing(path, create=True) as file:
        file.write_at([text.encode()], 0)
        file.flush()
