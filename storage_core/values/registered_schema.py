"""A schema that a registry has given an id: its text, what it refers to, and its hash."""

from __future__ import annotations

import hashlib
import json
import uuid
from base64 import b64decode
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


State = Literal["live", "soft-deleted", "tombstoned"]
"""A version that a registry gives out; one that it gives out only if asked for deleted ones; one that it has deleted for good."""
DEFAULT_CONTEXT: Final = "."
_CONTEXT_START, _CONTEXT_END = ":.", ":"
# A tuple, because hostile rules may have a type that cannot be in a set.
_ENCRYPTING: Final = ("ENCRYPT", "ENCRYPT_PAYLOAD")


class SchemaReference(NamedTuple):
    """Reference to another schema, by the name that it has in the text."""

    name: str
    subject: str
    version: int


class RegisteredSchema(NamedTuple):
    """A version of a subject.

    Attributes:
        schema_id: None if only the tombstone of the version is left; so are the type and the text.
        offset: Offset of the record that the schema is from; of the tombstone if only that is left.
        md5: The hash that the registry has stored with it, in base64; None without one.
        metadata: As JSON; None without any.
        rule_set: As JSON; None without any.
    """

    subject: str
    version: int
    schema_id: int | None
    schema_type: str | None
    text: str | None
    references: tuple[SchemaReference, ...]
    state: State
    offset: int = -1
    timestamp_ms: int = -1
    md5: str | None = None
    metadata: str | None = None
    rule_set: str | None = None

    @property
    def context(self) -> str:
        """Context in which its id is unique."""
        return context_and_name(self.subject)[0]

    @property
    def guid(self) -> str | None:
        """GUID of its content, as a serializer computes it; None without a text."""
        return self.guids[0] if self.guids else None

    @property
    def guids(self) -> tuple[str, ...]:
        """GUID of its content, and the one that the registry has stored, if it is another."""
        if self.text is None:
            return ()
        computed = _content_hash(self)
        try:
            stored = computed if self.md5 is None else b64decode(self.md5, validate=True)
        except ValueError:
            stored = computed
        hashes = (computed,) if stored == computed or len(stored) != len(computed) else (computed, stored)
        return tuple(str(uuid.UUID(bytes=each)) for each in hashes)

    @property
    def is_encrypted(self) -> bool:
        """True if a rule that is not disabled encrypts fields or whole payloads (CSFLE)."""
        if self.rule_set is None:
            return False
        return any(
            rule.get("type") in _ENCRYPTING and rule.get("kind") != "CONDITION" and not rule.get("disabled")
            for rule in _rules(_loaded(self.rule_set))
        )

    @property
    def described(self) -> str:
        """Subject, version and id, for messages."""
        if not self.subject:
            # A folder of schema files has ids alone.
            return f"schema id {self.schema_id}"
        return f"{self.subject} version {self.version} (id {self.schema_id}, {self.state})"


def context_and_name(subject: str) -> tuple[str, str]:
    """Divide a subject into its context and its name there (Confluent's ``QualifiedSubject``)."""
    if not subject.startswith(_CONTEXT_START):
        return DEFAULT_CONTEXT, subject
    context, _, name = subject[1:].partition(_CONTEXT_END)
    return context, name


def context_text(context: str) -> str:
    """Name a context in a message."""
    return "the default context" if context == DEFAULT_CONTEXT else f"context {context}"


def qualified(context: str, name: str) -> str:
    """Return the full name of a subject in a context."""
    return name if context == DEFAULT_CONTEXT else f"{_CONTEXT_END}{context}{_CONTEXT_END}{name}"


def _content_hash(schema: RegisteredSchema) -> bytes:
    """Return the MD5 hash of a schema's content (Confluent's ``Schema.updateHash``)."""
    parts: list[Any] = [schema.text]
    for name, subject, version in schema.references:
        parts += [name, subject, version.to_bytes(4, "big", signed=True)]
    if schema.metadata is not None:
        metadata = _loaded(schema.metadata)
        parts += [b"\1", *_pairs(metadata.get("tags")), *_pairs(metadata.get("properties"))]
        parts += _in_java_order(metadata.get("sensitive"))
    if schema.rule_set is not None:
        rule_set = _loaded(schema.rule_set)
        parts.append(b"\1")
        for rule in _rules(rule_set):
            parts += _parts_of_rule(rule)
        parts.append(rule_set.get("enableAt"))
    # A registry hashes texts only: other JSON in their place counts for nothing.
    encoded = [part.encode("utf-8", "replace") if isinstance(part, str) else part for part in parts]
    content = b"".join(part for part in encoded if isinstance(part, bytes))
    return hashlib.md5(content, usedforsecurity=False).digest()


def _parts_of_rule(rule: dict[str, Any]) -> Iterator[Any]:
    """Yield the fields of a rule in the order in which its hash has them (Confluent's ``Rule``)."""
    yield from (rule.get("name"), rule.get("doc"), rule.get("kind") or "TRANSFORM")
    yield from (rule.get("mode") or "WRITEREAD", rule.get("type"))
    yield from _in_java_order(rule.get("tags"))
    yield from _pairs(rule.get("params"))
    yield from (rule.get("expr"), rule.get("onSuccess"), rule.get("onFailure"))
    if rule.get("disabled") is True:
        yield b"\1"


def _pairs(mapping: Any) -> Iterator[Any]:
    """Yield the names of a map in order, each followed by its value or values."""
    for name in _in_java_order(mapping if isinstance(mapping, dict) else None):
        value = mapping[name]
        yield from (name, *_in_java_order(value)) if isinstance(value, list) else (name, value)


def _in_java_order(texts: Any) -> list[str]:
    """Sort the different texts in a JSON value by their UTF-16 code units."""
    found = {text for text in texts if isinstance(text, str)} if isinstance(texts, (list, dict)) else ()
    return sorted(found, key=lambda text: text.encode("utf-16-be", "surrogatepass"))


def _rules(rule_set: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for kind in ("migrationRules", "domainRules", "encodingRules"):
        rules = rule_set.get(kind)
        yield from (rule for rule in rules if isinstance(rule, dict)) if isinstance(rules, list) else ()


def _loaded(text: str) -> dict[str, Any]:
    """Parse a JSON object that was parsed before; return an empty one if the stack has no room for its depth this time."""
    try:
        loaded: dict[str, Any] = json.loads(text)
    except RecursionError:
        return {}
    return loaded
