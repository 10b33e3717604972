"""The calls of a registry's REST interface that recreate its subjects with their versions and ids.

An empty registry is put into the mode IMPORT, in which a caller names ids and versions and nothing is checked for
compatibility. Schemas come after those that they refer to, then soft deletions, in the opposite order, then the
configuration, and at last the modes. Confluent's registry takes schemas of other contexts only after that context is in
mode IMPORT, and refuses an id that another schema of the context has (``KafkaSchemaRegistry.register``).
"""

from __future__ import annotations

import heapq
import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from storage_core.dump.schema_export import restorable_fields
from storage_core.values.registered_schema import DEFAULT_CONTEXT, qualified
from storage_core.values.schema_registry import layout_free
from storage_core.views.texts import count_text, json_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from storage_core.values.registered_schema import RegisteredSchema
    from storage_core.values.schema_registry import SchemaRegistry


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


class RegistryCall(NamedTuple):
    """A call of a registry's REST interface; its path is encoded for a URL."""

    method: str
    path: str
    body: dict[str, Any] | None = None

    @property
    def as_json(self) -> str:
        """The call as a line of JSON in ASCII."""
        return json_text(
            {name: value for name, value in self._asdict().items() if value is not None}, is_ascii=True
        )

    @property
    def as_shell(self) -> str:
        """The call as lines of a shell script, of which the shell interprets nothing.

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
    calls += _config_calls(registry.configs)
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
    waiting: dict[tuple[str, int], int] = {}
    needed_by: defaultdict[tuple[str, int], list[tuple[str, int]]] = defaultdict(list)
    for place, schema in by_place.items():
        needed = set(_references(registry, schema)) & by_place.keys()
        waiting[place] = len(needed)
        if len(needed) < len({(reference.subject, reference.version) for reference in schema.references}):
            left_out.append(f"a schema that {schema.described} refers to.")
        for other in needed:
            needed_by[other].append(place)
    ready = [(by_place[place].offset, place) for place, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    ordered = []
    while ready:
        _, place = heapq.heappop(ready)
        ordered.append(by_place[place])
        for dependent in needed_by[place]:
            waiting[dependent] -= 1
            if waiting[dependent] == 0:
                heapq.heappush(ready, (by_place[dependent].offset, dependent))
    left_out += [
        f"{by_place[place].described}: it refers to itself through others, or to one that does."
        for place, count in waiting.items()
        if count
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


def _config_calls(configs: Mapping[str | None, str]) -> Iterator[RegistryCall]:
    for subject, value in _sorted(configs):
        yield RegistryCall("PUT", "/config" + _below(subject), value)


def _mode_calls(contexts: Sequence[str], modes: Mapping[str | None, str]) -> Iterator[RegistryCall]:
    """Yield the calls that end the import: the modes of the log, or else READWRITE."""
    scopes = [_scope(context) for context in contexts]
    yield from (_mode_call(scope, {"mode": "READWRITE"}) for scope in scopes if scope not in modes)
    for subject, value in _sorted(modes):
        yield _mode_call(subject, value)


def _mode_call(subject: str | None, value: dict[str, Any], *, is_forced: bool = True) -> RegistryCall:
    # Without force a registry refuses IMPORT where it has schemas.
    forced = "?force=true" if is_forced and value.get("mode") == _IMPORT else ""
    return RegistryCall("PUT", f"/mode{_below(subject)}{forced}", value)


def _sorted(settings: Mapping[str | None, str]) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Yield settings without what only the log needs, those for all subjects first."""
    for subject in sorted(settings, key=lambda subject: (subject is not None, subject or "")):
        loaded = json.loads(settings[subject])
        yield subject, {name: value for name, value in loaded.items() if name not in _OF_THE_LOG}


def _scope(context: str) -> str | None:
    return None if context == DEFAULT_CONTEXT else qualified(context, "")


def _below(subject: str | None) -> str:
    return "" if subject is None else f"/{_encoded(subject)}"


def _encoded(subject: str) -> str:
    return quote(subject, safe="")
