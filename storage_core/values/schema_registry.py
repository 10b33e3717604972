"""What the topic of a schema registry holds: every schema that it has seen, with its id, subject, version and state.

Keys and values are JSON, as Confluent's registry, Karapace and Redpanda write them (Confluent's ``SchemaKey``,
``SchemaValue`` and ``KafkaStoreMessageHandler``). Keys are compared after parsing, because their fields come in different
orders. Fields and kinds of records that are not known are ignored, and records that cannot be read are counted.

Schemas that were deleted are kept, too: records that were written before the deletion still need them. An id is unique in
its context, which a subject names in front: ``:.staging:orders-value``; other subjects are in the context ``.``.
"""

from __future__ import annotations

import bisect
import json
from collections import defaultdict
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from storage_core.cached_property import cached_property
from storage_core.errors import SchemaError, first_of
from storage_core.values.decoding import SchemaSource
from storage_core.values.registered_schema import (
    DEFAULT_CONTEXT,
    RegisteredSchema,
    SchemaReference,
    State,
    context_and_name,
    context_text,
    qualified,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


AVRO, PROTOBUF, JSON = "AVRO", "PROTOBUF", "JSON"
SUFFIXES: Final = {AVRO: ".avsc", PROTOBUF: ".proto", JSON: ".json"}
"""Suffixes of schema files, by type."""
OTHER_SUFFIX: Final = ".schema"
"""Suffix of schema files of other types."""
# One text for all schemas of a type.
_SHARED_TYPES: Final = {schema_type: schema_type for schema_type in SUFFIXES}
_TYPES: Final = {suffix: schema_type for schema_type, suffix in SUFFIXES.items()}
INDEX_FILE: Final = "schemas.json"
"""The file that lists the schemas of a folder with their subjects, versions and references."""
_SCHEMA, _DELETE_SUBJECT, _CONFIG, _MODE = "SCHEMA", "DELETE_SUBJECT", "CONFIG", "MODE"
# Records of these kinds do not matter for decoding.
_IGNORED: Final = frozenset({"NOOP", "CLEAR_SUBJECT", "CONTEXT", "ASSOC"})
_MOST_NUMBER: Final = (1 << 31) - 1
# Confluent's limit in its backups, and one for what a schema refers to in total.
_DEEPEST_REFERENCE: Final = 50
_MOST_REFERENCES: Final = 1_000
_MOST_CHARACTERS: Final = 1 << 30
_CHARACTERS_PER_SCHEMA: Final = 200
_SHOWN: Final = 10
_OF_COLUMNS: Final = ("-key", "-value")
Settings: TypeAlias = "Mapping[str | None, str]"
"""Configuration or modes as JSON, by subject; those of the subject None are for all."""
_Key = TypeVar("_Key")
_Item = TypeVar("_Item")
_KINDS: Final[Mapping[type, str]] = {dict: "a JSON object", list: "a list", str: "a text"}
_DECODER: Final = json.JSONDecoder()
_STATES: Final[tuple[State, ...]] = ("live", "soft-deleted", "tombstoned")


@dataclass(frozen=True)
class SchemaRegistry:
    """Schemas of a registry.

    Attributes:
        schemas: Sorted by subject, version and offset.
        unreadable_offsets: Offsets of the records that no registry writes.
        unknown_count: Number of records of unknown kinds.
    """

    schemas: tuple[RegisteredSchema, ...]
    configs: Settings
    modes: Settings
    unreadable_offsets: tuple[int, ...] = ()
    unknown_count: int = 0

    @cached_property
    def _by_subject(self) -> dict[str, list[RegisteredSchema]]:
        return _grouped((schema.subject, schema) for schema in self.schemas)

    @cached_property
    def _by_version(self) -> dict[tuple[str, int], RegisteredSchema]:
        """Schemas by subject and version; the one to read with, where an earlier one had another id."""
        found: dict[tuple[str, int], RegisteredSchema] = {}
        for schema in self.schemas:
            place = schema.subject, schema.version
            found[place] = min(found.get(place, schema), schema, key=_reading_order)
        return found

    @cached_property
    def _by_id(self) -> dict[str, dict[int, list[RegisteredSchema]]]:
        """Schemas by context and id, in the order of the log."""
        found: defaultdict[str, defaultdict[int, list[RegisteredSchema]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for schema in sorted(self.schemas, key=attrgetter("offset")):
            if schema.schema_id is not None:
                found[schema.context][schema.schema_id].append(schema)
        return {context: dict(of_context) for context, of_context in sorted(found.items())}

    @cached_property
    def _contexts_of_topics(self) -> dict[str, set[str]]:
        """Contexts of the subjects ``T-key``, of ``T-value``, and of ``T-`` and the name of a record, which has no hyphen."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for subject in self._by_subject:
            context, name = context_and_name(subject)
            found[name if name.endswith(_OF_COLUMNS) else name[: name.rfind("-") + 1]].add(context)
        return found

    @cached_property
    def _by_guid(self) -> dict[str, list[RegisteredSchema]]:
        """Schemas by GUID, computed GUIDs before stored ones: a registry may change texts as it reads them."""
        guids = [(each.guids, each) for each in self.schemas]
        return _grouped((of_one[n], each) for n in (0, 1) for of_one, each in guids if n < len(of_one))

    @cached_property
    def duplicate_ids(self) -> dict[tuple[str, int], list[RegisteredSchema]]:
        """Different schemas that share an id, by context and id. A registry that gave it out twice knows the first by it."""
        repeated = [
            (context, schema_id, schemas)
            for context, by_id in self._by_id.items()
            for schema_id, schemas in by_id.items()
            if len(schemas) > 1
        ]
        return {
            (context, schema_id): different
            for context, schema_id, schemas in sorted(repeated)
            if len(different := _different(schemas)) > 1
        }

    def names(self, contexts: Sequence[str]) -> Iterator[int | str]:
        """Yield the ids of contexts, and all GUIDs."""
        yield from sorted({each for context in contexts for each in self._by_id.get(context, ())})
        yield from self._by_guid

    def by_name(
        self, name: int | str, contexts: Sequence[str] = (DEFAULT_CONTEXT,), subject: str | None = None
    ) -> RegisteredSchema | None:
        """Look up a schema by its id in some contexts, or by its GUID: that of its text, or else the one that was stored.

        If different schemas of one context have the id, take that of the subject, or else the first. Contexts matter for GUIDs,
        too: schemas with the same one may refer to others, each to those of its context.

        Returns:
            The schema; None if the name is not known.

        Raises:
            SchemaError: The contexts have different schemas of this name.
        """
        if isinstance(name, str):
            schemas = self._by_guid.get(name, [])
            schemas = [each for each in schemas if each.context in contexts] or schemas
            found = _first_of_each(schemas, lambda each: each.context)
        else:
            of_contexts = [self._by_id.get(context, {}).get(name, []) for context in contexts]
            found = [
                next((each for each in schemas if each.subject == subject), schemas[0])
                for schemas in of_contexts
                if schemas
            ]
        if any(self._content(each) != self._content(found[0]) for each in found[1:]):
            others = [each.context for each in found if each.context != DEFAULT_CONTEXT]
            raise SchemaError(
                f"{'GUID' if isinstance(name, str) else 'Id'} {name} is that of different schemas in several contexts: "
                f"{first_of([each.described for each in found], _SHOWN)}. Name the context of the records, as valueSubject="
                f"{qualified(others[0], '')} or valueSubject=:.: for the default one (keySubject for keys)."
            )
        return found[0] if found else None

    def _content(self, schema: RegisteredSchema) -> tuple[object, ...]:
        """Return what values depend on; equal for a schema that was copied to another context."""
        try:
            source = self.source_of(schema)
        except SchemaError:
            # Nothing says what it refers to: it is like no other.
            return (schema,)
        references = [(name, layout_free(text)) for name, text in source.references]
        return schema.schema_type, layout_free(source.text), references, schema.is_encrypted

    def contexts_of(self, topic: str, *, is_key: bool = False, subject: str | None = None) -> tuple[str, ...]:
        """Return the contexts that the ids in a topic's records may belong to, the default one first.

        They are that of the named subject, or those of the topic's subjects, or else all: subjects may be named after
        records, and then nothing tells which context the topic uses.
        """
        if subject:
            return (context_and_name(subject)[0],)
        every = tuple(self._by_id) or (DEFAULT_CONTEXT,)
        if len(every) == 1:
            return every
        named = (f"{topic}-{'key' if is_key else 'value'}", f"{topic}-")
        own = {context for name in named for context in self._contexts_of_topics.get(name, ())}
        return tuple(sorted(own)) or every

    def reader_schema(
        self,
        topic: str,
        *,
        is_key: bool = False,
        subject: str | None = None,
        version: int | None = None,
        schema_id: int | None = None,
    ) -> RegisteredSchema | None:
        """Choose the schema that a topic's records are read as: the latest live version of the topic's subject.

        Without a live version it is the latest soft-deleted one, and without that the latest tombstoned one in the log.

        Args:
            topic: The topic.
            is_key: Whether keys are read.
            subject: The subject, if it is not the topic's; or a context alone, as ``:.staging:``.
            version: The version, if it is not the latest.
            schema_id: The id, instead of a version, in the contexts of the subject or the topic.

        Returns:
            The schema; None if no subject is named and the topic has none there.

        Raises:
            SchemaError: What is named does not exist, or the topic has subjects in several contexts.
        """
        contexts = self.contexts_of(topic, is_key=is_key, subject=subject)
        column = "key" if is_key else "value"
        name = context_and_name(subject)[1] if subject else ""
        subjects = [qualified(context, name or f"{topic}-{column}") for context in contexts]
        known = [each for each in subjects if each in self._by_subject]
        wanted = known[0] if known else subjects[0]
        if schema_id is not None:
            return self._of_id(schema_id, contexts, wanted)
        if len(known) > 1 and context_and_name(wanted)[0] != DEFAULT_CONTEXT:
            raise SchemaError(
                f"Topic {topic} has subjects in several contexts: {first_of(known, _SHOWN)}. Name one as {column}Subject."
            )
        versions = [each for each in self._by_subject.get(wanted, []) if each.text is not None]
        chosen = [each for each in versions if version in {None, each.version}]
        if not chosen and name and not versions:
            raise SchemaError(
                f"There is no subject {subject}. {_known('subjects', sorted(self._by_subject))}"
            )
        if not chosen and version is not None:
            numbers = [str(each.version) for each in versions]
            raise SchemaError(f"Subject {wanted} has no version {version}. {_known('versions', numbers)}")
        return min(chosen, key=_reading_order, default=None)

    def _of_id(self, schema_id: int, contexts: Sequence[str], subject: str) -> RegisteredSchema:
        found = self.by_name(schema_id, contexts, subject)
        if found is None:
            ids = [str(each) for each in self.names(contexts) if isinstance(each, int)]
            raise SchemaError(
                f"No schema has the id {schema_id} in {' or '.join(map(context_text, contexts))}. {_known('ids', ids)}"
            )
        return found

    def source_of(self, schema: RegisteredSchema) -> SchemaSource:
        """Return the text of a schema, with those that it refers to, directly or not.

        Raises:
            SchemaError: One is missing; or they refer to each other in a circle, too deeply, or are too many.
        """
        if schema.text is None:
            raise SchemaError(f"Only the tombstone of {schema.described} is left in the topic, and no text.")
        found: dict[str, str] = {}
        self._collect(schema, (), found)
        return SchemaSource(schema.text, tuple(found.items()))

    def _collect(
        self, schema: RegisteredSchema, path: tuple[RegisteredSchema, ...], found: dict[str, str]
    ) -> None:
        """Add the texts that a schema refers to, each after those that it needs; the first one of a name counts."""
        path = (*path, schema)
        if len(path) > _DEEPEST_REFERENCE:
            raise SchemaError(f"The references of {path[0].described} are deeper than {_DEEPEST_REFERENCE}.")
        for reference in schema.references:
            if reference.name in found:
                continue
            referred = self.referred(schema, reference)
            if referred is None or referred.text is None:
                raise SchemaError(
                    f"{schema.described} refers to {reference.subject} version {reference.version}, which is not in the "
                    "topic."
                )
            if referred in path:
                names = [each.described for each in (*path, referred)]
                raise SchemaError(f"Schemas refer to each other in a circle: {' → '.join(names)}.")
            self._collect(referred, path, found)
            found.setdefault(reference.name, referred.text)
            if len(found) > _MOST_REFERENCES:
                raise SchemaError(f"{path[0].described} refers to more than {_MOST_REFERENCES:,} schemas.")

    def referred(self, schema: RegisteredSchema, reference: SchemaReference) -> RegisteredSchema | None:
        """Look up what a schema refers to: in its own context, unless the reference names another one.

        Returns:
            The schema; None if it is not in the topic.
        """
        context, name = context_and_name(reference.subject)
        subject = qualified(schema.context, name) if context == DEFAULT_CONTEXT else reference.subject
        return self._by_version.get((subject, reference.version))


def _grouped(pairs: Iterable[tuple[_Key, _Item]]) -> dict[_Key, list[_Item]]:
    found: defaultdict[_Key, list[_Item]] = defaultdict(list)
    for key, item in pairs:
        found[key].append(item)
    return dict(found)


def _known(what: str, names: Sequence[str]) -> str:
    return f"Known {what}: {first_of(names, _SHOWN) or 'none'}."


def _reading_order(schema: RegisteredSchema) -> tuple[int, int, int]:
    return _STATES.index(schema.state), -schema.version, -schema.offset


def _first_of_each(
    schemas: Iterable[RegisteredSchema], key: Callable[[RegisteredSchema], object]
) -> list[RegisteredSchema]:
    found: dict[object, RegisteredSchema] = {}
    for schema in schemas:
        found.setdefault(key(schema), schema)
    return list(found.values())


def _different(schemas: Sequence[RegisteredSchema]) -> list[RegisteredSchema]:
    """Return the first schema of each text; JSON may be laid out differently."""
    different = _first_of_each(schemas, lambda each: each.text)
    return _first_of_each(different, lambda each: layout_free(each.text)) if len(different) > 1 else different


def layout_free(text: str | None) -> str | None:
    """Return JSON without its layout and order; other texts as they are."""
    try:
        return text and json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text


def read_registry(records: Iterable[tuple[int, int, bytes | None, bytes | None]]) -> SchemaRegistry:
    """Read the records of a registry's topic.

    Args:
        records: Offset, timestamp in milliseconds, key and value of each, in the order of the log.

    Raises:
        SchemaError: The texts of its schemas do not fit into memory.
    """
    replay = _Replay()
    for offset, timestamp_ms, key, value in records:
        try:
            replay.apply(offset, timestamp_ms, key, value)
        except (ValueError, RecursionError):
            replay.unreadable_offsets.append(offset)
    return replay.registry()


class _Replay:
    """State of a registry while its log is read.

    Attributes:
        current: The last schema of each subject and version.
        former: Those that had the same subject and version before, but another id.
        deletions: By subject, the offsets and highest versions of deletions that no later one covers.
    """

    def __init__(self) -> None:
        self.current: dict[tuple[str, int], RegisteredSchema] = {}
        self.former: dict[tuple[str, int, int | None], RegisteredSchema] = {}
        self.deletions: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self.settings: dict[str, dict[str | None, str]] = {_CONFIG: {}, _MODE: {}}
        self.unreadable_offsets: list[int] = []
        self.unknown_count = 0
        self.characters = 0

    def apply(self, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None) -> None:
        """Apply a record.

        Raises:
            ValueError: It is not what a registry writes.
            RecursionError: Its JSON is too deep.
            SchemaError: The texts of all schemas have too many characters.
        """
        fields = _object(key)
        kind = _text(fields, "keytype")
        if kind == _SCHEMA:
            self._apply_schema(offset, timestamp_ms, fields, value)
        elif kind == _DELETE_SUBJECT:
            if value is not None:
                self._delete_subject(offset, _object(value))
        elif kind in self.settings:
            subject = _optional_text(fields, "subject")
            if value is None:
                self.settings[kind].pop(subject, None)
            else:
                self.settings[kind][subject] = json.dumps(_object(value))
        elif kind not in _IGNORED:
            self.unknown_count += 1

    def _apply_schema(self, offset: int, timestamp_ms: int, key: dict[str, Any], value: bytes | None) -> None:
        place = _text(key, "subject"), _number(key, "version")
        before = self.current.get(place)
        has_text = before is not None and before.text is not None
        if value is None:
            nothing = RegisteredSchema(*place, None, None, None, (), "tombstoned", offset, timestamp_ms)
            self.current[place] = before._replace(state="tombstoned") if before and has_text else nothing
            return
        schema = _registered(*place, _object(value), offset, timestamp_ms)
        again = self.former.pop((*place, schema.schema_id), None)
        self.current[place] = schema
        if before and has_text and before.schema_id != schema.schema_id:
            self.former[*place, before.schema_id] = before._replace(state="tombstoned")
            before = None
        self.characters += _size(schema) - sum(_size(each) for each in (before, again) if each is not None)
        if self.characters > _MOST_CHARACTERS:
            raise SchemaError(
                f"The schemas in the topic have more than {_MOST_CHARACTERS:,} characters. Name a folder of the files that "
                "are needed as schemasPath."
            )

    def _delete_subject(self, offset: int, value: dict[str, Any]) -> None:
        subject, version = _text(value, "subject"), _number(value, "version")
        deletions = self.deletions[subject]
        while deletions and deletions[-1][1] <= version:
            deletions.pop()
        deletions.append((offset, version))

    def registry(self) -> SchemaRegistry:
        """Return what is known after the last record."""
        # Sorted by the last key first: tuples of all three would take more memory than the schemas.
        schemas = [*map(self._with_state, self.current.values()), *self.former.values()]
        for name in ("offset", "version", "subject"):
            schemas.sort(key=attrgetter(name))
        return SchemaRegistry(
            tuple(schemas),
            self.settings[_CONFIG],
            self.settings[_MODE],
            tuple(self.unreadable_offsets),
            self.unknown_count,
        )

    def _with_state(self, schema: RegisteredSchema) -> RegisteredSchema:
        # Deletions have ascending offsets and descending versions: the first one after the schema reaches furthest.
        deletions = self.deletions.get(schema.subject, ())
        later = bisect.bisect_right(deletions, (schema.offset, _MOST_NUMBER))
        is_deleted = later < len(deletions) and schema.version <= deletions[later][1]
        return schema._replace(state="soft-deleted") if is_deleted and schema.state == "live" else schema


def _registered(
    subject: str, version: int, value: dict[str, Any], offset: int, timestamp_ms: int
) -> RegisteredSchema:
    """Return the schema in a record's value.

    Raises:
        ValueError: It is not what a registry writes.
    """
    text, schema_type = _text(value, "schema"), _optional_text(value, "schemaType") or AVRO
    references = _checked(value.get("references") or [], list, "references")
    return RegisteredSchema(
        subject,
        version,
        _number(value, "id"),
        _SHARED_TYPES.get(schema_type, schema_type),
        text,
        tuple(map(_reference, references)),
        "soft-deleted" if value.get("deleted") is True else "live",
        offset,
        timestamp_ms,
        _optional_text(value, "md5"),
        _optional_json(value, "metadata"),
        _optional_json(value, "ruleSet"),
    )


def _reference(value: Any) -> SchemaReference:
    fields = _checked(value, dict, "a reference")
    return SchemaReference(_text(fields, "name"), _text(fields, "subject"), _number(fields, "version"))


def _object(data: bytes | None) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        ValueError: The bytes are not a JSON object.
        RecursionError: The object is nested too deeply.
    """
    if data is None:
        raise ValueError("it is null")
    # In half the time of `json.loads`, for keys that are short and many.
    text = str(data, "utf-8").strip()
    value, end = _DECODER.raw_decode(text)
    if end != len(text):
        raise ValueError("it is more than one JSON document")
    return _checked(value, dict, "it")


def _checked(value: Any, kind: type[_Item], name: str) -> _Item:
    """Return a JSON value, or raise `ValueError` if it is of another type."""
    if not isinstance(value, kind):
        raise ValueError(f"{name} is not {_KINDS[kind]}")  # noqa: TRY004  (what a caller catches)
    return value


def _text(fields: dict[str, Any], name: str) -> str:
    value = _checked(fields.get(name), str, name)
    if not value.isascii():
        # Raises if there is half of a surrogate pair.
        value.encode()
    return value


def _optional_text(fields: dict[str, Any], name: str) -> str | None:
    return None if fields.get(name) is None else _text(fields, name)


def _optional_json(fields: dict[str, Any], name: str) -> str | None:
    return None if fields.get(name) is None else json.dumps(_checked(fields[name], dict, name))


def _number(fields: dict[str, Any], name: str, most: int = _MOST_NUMBER) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"{name} is not a number from 0 to {most}")
    return value


def _size(schema: RegisteredSchema) -> int:
    """Estimate how many characters a schema takes in memory."""
    texts = len(schema.text or "") + len(schema.metadata or "") + len(schema.rule_set or "")
    return texts + _CHARACTERS_PER_SCHEMA * (1 + len(schema.references))


def registry_of_files(files: Mapping[str, str]) -> SchemaRegistry:
    """Return the schemas in a folder of files that are named by id: ``17.avsc``, ``18.proto``, ``19.json``.

    With an index, as `INDEX_FILE` has it, they have their subjects and versions again. Without one they have neither, and
    each of them may refer to all files that have other names, by those: ``com.acme.Address.avsc``, ``common.proto``.

    Args:
        files: The content of each file, by its name.

    Raises:
        SchemaError: The index is not one, or a file that it lists is missing.
    """
    index = files.get(INDEX_FILE)
    return _registry_without_index(files) if index is None else _registry_with_index(index, files)


def _registry_without_index(files: Mapping[str, str]) -> SchemaRegistry:
    by_id: list[RegisteredSchema] = []
    others: dict[str, RegisteredSchema] = {}
    for file, text in sorted(files.items()):
        stem, dot, suffix = file.rpartition(".")
        schema_type = _TYPES.get(dot + suffix)
        if schema_type is None:
            continue
        if stem.isascii() and stem.isdigit() and int(stem) <= _MOST_NUMBER:
            by_id.append(RegisteredSchema("", int(stem), int(stem), schema_type, text, (), "live"))
        else:
            name = stem if schema_type == AVRO else file
            others[name] = RegisteredSchema(file, 1, None, schema_type, text, (), "live")
    references = {
        of_type: tuple(
            SchemaReference(name, each.subject, 1)
            for name, each in others.items()
            if each.schema_type == of_type
        )
        for of_type in SUFFIXES
    }
    schemas = [each._replace(references=references[each.schema_type or AVRO]) for each in by_id]
    return SchemaRegistry((*schemas, *others.values()), {}, {})


def _registry_with_index(index: str, files: Mapping[str, str]) -> SchemaRegistry:
    try:
        listed = _checked(json.loads(index), dict, "it")
        schemas = [_listed(entry, files) for entry in _checked(listed.get("schemas"), list, "schemas")]
        configs, modes = (
            dict(map(_setting, _checked(listed.get(kind, []), list, kind))) for kind in ("configs", "modes")
        )
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"{INDEX_FILE} is not an index of schemas: {error}.") from error
    return SchemaRegistry(tuple(schemas), configs, modes)


def _setting(entry: Any) -> tuple[str | None, str]:
    """Return the subject and the value of a setting that an index lists."""
    setting = _checked(entry, dict, "a setting")
    if "subject" not in setting:
        raise ValueError("a setting has no subject")
    return _optional_text(setting, "subject"), json.dumps(_checked(setting.get("value"), dict, "its value"))


def _listed(entry: Any, files: Mapping[str, str]) -> RegisteredSchema:
    """Return a schema that an index lists."""
    entry = _checked(entry, dict, "a schema")
    place, state = (_text(entry, "subject"), _number(entry, "version")), entry.get("state")
    if state not in _STATES:
        raise ValueError(f"state {state!r}")
    file = _text(entry, "file")
    if file not in files:
        raise ValueError(f"{file} is missing")
    offset, timestamp_ms = (
        _number(entry, name, 1 << 63) if name in entry else -1 for name in ("offset", "timestampMs")
    )
    return _registered(*place, {**entry, "schema": files[file]}, offset, timestamp_ms)._replace(state=state)
