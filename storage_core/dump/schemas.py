"""The schemas of a registry as files, and as the calls that recreate the registry.

Files are named by id: ``17.avsc``, ``18.proto``, ``19.json``. ``schemas.json`` lists them with their subjects, versions,
references and states, and all else that a registry is rebuilt from. It is written last. A read takes the folder as
``schemasPath``.

The calls are those of a registry's REST interface. An empty registry is put into the mode IMPORT, in which a caller names ids
and versions and nothing is checked for compatibility. Schemas come after those that they refer to, then soft deletions, in the
opposite order, then the configuration, and at last the modes. Confluent's registry takes schemas of other contexts only after
that context is in mode IMPORT, and refuses an id that another schema of the context has (``KafkaSchemaRegistry.register``).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from storage_core.errors import OptionError
from storage_core.options.paths import path_to_write
from storage_core.values.registered_schema import DEFAULT_CONTEXT, qualified
from storage_core.values.schema_registry import INDEX_FILE, OTHER_SUFFIX, SUFFIXES, layout_free
from storage_core.views.roots import require_outside
from storage_core.views.texts import count_text, json_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from storage_core.filesystem import FileSystem
    from storage_core.values.registered_schema import RegisteredSchema
    from storage_core.values.schema_registry import SchemaRegistry, Settings


_IMPORT: Final = "IMPORT"
# Fields of settings that only the log needs.
_OF_THE_LOG: Final = frozenset({"subject", "offset", "ts"})
_SCRIPT_START: Final = r"""#!/bin/sh
# Recreates the subjects of a schema registry, with their ids, in an empty one:
#   SCHEMA_REGISTRY_URL=http://localhost:8081 sh restore.sh
# CURL_OPTIONS may hold more options of curl, as --netrc or --cacert FILE. The first call that fails ends it.
set -eu
call() {
  curl --silent --show-error --fail --path-as-is ${CURL_OPTIONS:-} --request "$1" \
    --header 'Content-Type: application/vnd.schemaregistry.v1+json' --data-binary @- "$SCHEMA_REGISTRY_URL$2"
  echo
}
"""


@dataclass(frozen=True, slots=True)
class SchemaExport:
    """Export that was written: versions of subjects, files, and versions of which only a tombstone is left."""

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
    path = os.path.abspath(path_to_write(target))
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


def _file_names(registry: SchemaRegistry) -> dict[tuple[int | None, str], str]:
    """Name a file for each id and text. A second text of an id gets a number; the default context comes first."""
    names: dict[tuple[int | None, str], str] = {}
    counts: Counter[str] = Counter()
    for schema in sorted(registry.schemas, key=lambda each: (each.context != DEFAULT_CONTEXT, each.offset)):
        if schema.text is None or (schema.schema_id, schema.text) in names:
            continue
        suffix = SUFFIXES.get(schema.schema_type or "", OTHER_SUFFIX)
        counts[f"{schema.schema_id}{suffix}"] += 1
        count = counts[f"{schema.schema_id}{suffix}"]
        number = f"-{count}" if count > 1 else ""
        names[schema.schema_id, schema.text] = f"{schema.schema_id}{number}{suffix}"
    return names


def _entry(schema: RegisteredSchema, files: Mapping[tuple[int | None, str], str]) -> dict[str, Any]:
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
    """Return the fields of a schema as a registry names them, without its text; None for what is absent."""
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


class RegistryCall(NamedTuple):
    """A call of a registry's REST interface; its path is encoded for a URL."""

    method: str
    path: str
    body: dict[str, Any] | None = None

    @property
    def as_json(self) -> str:
        """Call as a line of JSON in ASCII."""
        return json_text(
            {name: value for name, value in self._asdict().items() if value is not None}, is_ascii=True
        )

    @property
    def as_shell(self) -> str:
        """Call as lines of a shell script, of which the shell interprets nothing.

        The path has no character that a shell knows. The body is a line that begins with a brace, in ASCII, so it cannot
        end its here-document.
        """
        if self.body is None:
            return f"call {self.method} '{self.path}' </dev/null\n"
        return f"call {self.method} '{self.path}' <<'END'\n{json_text(self.body, is_ascii=True)}\nEND\n"


class RestorePlan(NamedTuple):
    """Calls that recreate a registry, in order, and a sentence about each thing that they leave out."""

    calls: list[RegistryCall]
    left_out: list[str]

    def script(self) -> Iterator[str]:
        """Yield the pieces of a shell script that makes the calls."""
        yield _SCRIPT_START
        for call in self.calls:
            yield call.as_shell


def plan_restore(registry: SchemaRegistry) -> RestorePlan:
    """Plan the calls that recreate the live and soft-deleted schemas of a registry, its configuration and its modes."""
    left_out: list[str] = []
    schemas = _in_dependency_order(registry, _restorable(registry, left_out), left_out)
    contexts = sorted({DEFAULT_CONTEXT, *(schema.context for schema in schemas)})
    calls = [_mode_call(_scope(context), {"mode": _IMPORT}, is_forced=False) for context in contexts]
    calls += map(_registration, schemas)
    calls += _soft_deletions(registry, schemas, left_out)
    calls += [
        RegistryCall("PUT", f"/config{_below(subject)}", value)
        for subject, value in _sorted(registry.configs)
    ]
    calls += _mode_calls(contexts, registry.modes)
    return RestorePlan(calls, left_out)


def _restorable(registry: SchemaRegistry, left_out: list[str]) -> list[RegisteredSchema]:
    """Return the schemas that an empty registry takes: those that exist, and one for each id."""
    deleted = sum(each.text is not None and each.state == "tombstoned" for each in registry.schemas)
    if deleted:
        left_out.append(f"{count_text(deleted, 'schema')} deleted for good; --export has them.")
    content_of_id: dict[tuple[str, int | None], str | None] = {}
    restorable = []
    for schema in sorted(registry.schemas, key=lambda schema: schema.offset):
        if schema.text is None or schema.state == "tombstoned":
            continue
        content = layout_free(schema.text)
        if not schema.subject:
            left_out.append(f"id {schema.schema_id}: it has no subject.")
        elif content_of_id.setdefault((schema.context, schema.schema_id), content) != content:
            left_out.append(f"{schema.described}: another schema has its id.")
        else:
            restorable.append(schema)
    return restorable


def _in_dependency_order(
    registry: SchemaRegistry, schemas: Sequence[RegisteredSchema], left_out: list[str]
) -> list[RegisteredSchema]:
    """Sort schemas so that each comes after those that it refers to, and else as they were registered."""
    by_place = {(each.subject, each.version): each for each in schemas}
    sorter: TopologicalSorter[tuple[str, int]] = TopologicalSorter()
    for place, schema in by_place.items():
        needed = set(_references(registry, schema)) & by_place.keys()
        sorter.add(place, *needed)
        if len(needed) < len({(reference.subject, reference.version) for reference in schema.references}):
            left_out.append(f"a schema that {schema.described} refers to.")
    # It sorts what is in no circle even so.
    with suppress(CycleError):
        sorter.prepare()
    ready: list[tuple[int, tuple[str, int]]] = []
    ordered = []
    while True:
        for place in sorter.get_ready():
            heappush(ready, (by_place[place].offset, place))
        if not ready:
            break
        _, place = heappop(ready)
        ordered.append(by_place.pop(place))
        sorter.done(place)
    left_out += [
        f"{schema.described}: it refers to itself through others, or to one that does."
        for schema in by_place.values()
    ]
    return ordered


def _references(registry: SchemaRegistry, schema: RegisteredSchema) -> Iterator[tuple[str, int]]:
    for reference in schema.references:
        referred = registry.referred(schema, reference)
        if referred is not None:
            yield referred.subject, referred.version


def _registration(schema: RegisteredSchema) -> RegistryCall:
    fields = {**restorable_fields(schema), "schema": schema.text}
    body = {name: value for name, value in fields.items() if value is not None and name != "subject"}
    return RegistryCall("POST", f"/subjects/{_encoded(schema.subject)}/versions", body)


def _soft_deletions(
    registry: SchemaRegistry, schemas: Sequence[RegisteredSchema], left_out: list[str]
) -> Iterator[RegistryCall]:
    """Yield the deletions, in the order in which a registry allows them: not while a live schema refers to one."""
    needed = {place for each in schemas if each.state == "live" for place in _references(registry, each)}
    for schema in reversed(schemas):
        if schema.state != "soft-deleted":
            continue
        if (schema.subject, schema.version) in needed:
            left_out.append(f"the soft deletion of {schema.described}: a live schema refers to it.")
        else:
            yield RegistryCall("DELETE", f"/subjects/{_encoded(schema.subject)}/versions/{schema.version}")


def _mode_calls(contexts: Sequence[str], modes: Settings) -> Iterator[RegistryCall]:
    """Yield the calls that end the import: the modes of the log, or else READWRITE."""
    scopes = [_scope(context) for context in contexts]
    yield from (_mode_call(scope, {"mode": "READWRITE"}) for scope in scopes if scope not in modes)
    for subject, value in _sorted(modes):
        yield _mode_call(subject, value)


def _mode_call(subject: str | None, value: dict[str, Any], *, is_forced: bool = True) -> RegistryCall:
    # Without force a registry refuses IMPORT where it has schemas.
    forced = "?force=true" if is_forced and value.get("mode") == _IMPORT else ""
    return RegistryCall("PUT", f"/mode{_below(subject)}{forced}", value)


def _sorted(settings: Settings) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Yield settings without what only the log needs, those for all subjects first."""
    for subject in sorted(settings, key=lambda subject: (subject is not None, subject or "")):
        yield (
            subject,
            {name: value for name, value in json.loads(settings[subject]).items() if name not in _OF_THE_LOG},
        )


def _scope(context: str) -> str | None:
    return None if context == DEFAULT_CONTEXT else qualified(context, "")


def _below(subject: str | None) -> str:
    return "" if subject is None else f"/{_encoded(subject)}"


def _encoded(subject: str) -> str:
    return quote(subject, safe="")
