"""Columns of a JSON Schema: which type the values have that it describes (drafts 4 to 2020-12).

Only what gives a type is read; other constraints (``required``, ``pattern``, ``minimum``) are not. Every field may be
null, as a JSON object may leave it out. A schema that allows values of several types gives JSON text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import unquote, urljoin

import pyarrow as pa

from storage_core.errors import SchemaError
from storage_core.values.decoding import load_json, paths_of_fields

if TYPE_CHECKING:
    from storage_core.values.decoding import Paths, SchemaSource

_MAXIMUM_LEVELS = 64
_MAXIMUM_NODES = 20_000

LeafName = Literal["boolean", "integer", "number", "string", "date-time", "date", "text"]
LEAF_TYPES: dict[LeafName, pa.DataType] = {
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "string": pa.string(),
    "date-time": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
    "text": pa.string(),
}


@dataclass(frozen=True, slots=True)
class JsonLeaf:
    """A value that has no parts; `text` is any value, as JSON text."""

    name: LeafName


@dataclass(frozen=True, slots=True)
class JsonArray:
    """Values of one type."""

    item: JsonNode


@dataclass(frozen=True, slots=True)
class JsonMap:
    """An object whose keys the schema does not name."""

    value: JsonNode


@dataclass(frozen=True, slots=True)
class JsonObject:
    """An object with the fields that the schema names."""

    fields: dict[str, JsonNode]


JsonNode: TypeAlias = JsonLeaf | JsonArray | JsonMap | JsonObject
_TEXT = JsonLeaf("text")


def json_node(source: SchemaSource, paths: Paths = None) -> JsonNode:
    """Return what a JSON Schema describes, or the wanted fields of it.

    Raises:
        OptionError: A path names a field that the schema does not have.
        SchemaError: The schema is malformed, refers to one that is not there, or is too large.
    """
    return _prune(_SchemaReader(source).read_root(), paths, "The JSON schema")


def node_type(node: JsonNode) -> pa.DataType:
    """Return the type of a column."""
    match node:
        case JsonLeaf():
            return LEAF_TYPES[node.name]
        case JsonArray():
            return pa.list_(node_type(node.item))
        case JsonMap():
            return pa.map_(pa.string(), node_type(node.value))
        case JsonObject():
            return pa.struct([(name, node_type(field)) for name, field in node.fields.items()])


def _prune(node: JsonNode, paths: Paths, where: str) -> JsonNode:
    if paths is None or () in paths:
        return node
    if isinstance(node, JsonArray):
        return JsonArray(_prune(node.item, paths, where))
    fields = node.fields if isinstance(node, JsonObject) else {}
    wanted = paths_of_fields(paths, fields, where)
    return JsonObject({name: _prune(fields[name], below, f"'{name}'") for name, below in wanted.items()})


class _SchemaReader:
    """Follows the references of a schema, each as far as it does not lead back to itself."""

    def __init__(self, source: SchemaSource) -> None:
        self._root = _parsed(source.text, "The JSON schema")
        self._documents: dict[str, Any] = {}
        for name, text in source.references:
            document = _parsed(text, f"The referenced JSON schema '{name}'")
            self._documents[_identifier(document)] = self._documents[name] = document
        self._open: list[int] = []
        self._nodes = 0

    def read_root(self) -> JsonNode:
        return self._read(self._root, self._root)

    def _read(self, schema: Any, document: Any) -> JsonNode:
        """Read a schema of a document; one that is read already, further out, is recursive."""
        self._nodes += 1
        if self._nodes > _MAXIMUM_NODES or len(self._open) > _MAXIMUM_LEVELS:
            raise SchemaError(
                f"The JSON schema is too large: at most {_MAXIMUM_NODES:,} fields and {_MAXIMUM_LEVELS} levels are read, references included."
            )
        if not isinstance(schema, dict) or id(schema) in self._open:
            return _TEXT
        self._open.append(id(schema))
        node = self._read_object(schema, document)
        self._open.pop()
        return node

    def _read_object(self, schema: dict[str, Any], document: Any) -> JsonNode:
        if isinstance(reference := schema.get("$ref"), str):
            return self._read(*self._resolve(reference, document))
        if alternatives := self._parts(schema, "allOf"):
            own = {key: value for key, value in schema.items() if key != "allOf"}
            parts = alternatives if _kind(own) is None else [own, *alternatives]
            return _merged([self._read(part, document) for part in parts])
        kind = _kind(schema)
        if kind is None:
            alternatives = self._parts(schema, "oneOf") or self._parts(schema, "anyOf")
            return _common([self._read(part, document) for part in alternatives if not _is_null(part)])
        if kind == "object":
            return self._read_fields(schema, document)
        if kind == "array":
            return JsonArray(self._read(schema.get("items"), document))
        return _leaf(kind, schema)

    def _read_fields(self, schema: dict[str, Any], document: Any) -> JsonNode:
        properties, others = schema.get("properties"), schema.get("additionalProperties")
        if isinstance(properties, dict) and properties:
            return JsonObject({name: self._read(field, document) for name, field in properties.items()})
        if isinstance(others, dict) and "patternProperties" not in schema:
            return JsonMap(self._read(others, document))
        return _TEXT

    @staticmethod
    def _parts(schema: dict[str, Any], keyword: str) -> list[Any]:
        parts = schema.get(keyword, [])
        if not isinstance(parts, list):
            raise SchemaError(f"The JSON schema is malformed: '{keyword}' must be a list.")
        return parts

    def _resolve(self, reference: str, document: Any) -> tuple[Any, Any]:
        """Find what a reference means, and the document that it is in."""
        address, fragment = _split_address(reference)
        if address and address != _identifier(document):
            known = [a for a in (address, _joined(_identifier(document), address)) if a in self._documents]
            if not known:
                raise SchemaError(
                    f"The JSON schema refers to '{reference}', which is not among its references."
                )
            document = self._documents[known[0]]
        found = document
        for part in unquote(fragment).split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key in map(str, range(len(found))):
                found = found[int(key)]
            elif isinstance(found, dict) and key in found:
                found = found[key]
            else:
                raise SchemaError(f"The JSON schema refers to '{reference}', which it does not define.")
        if fragment and not fragment.startswith("/"):
            raise SchemaError(
                f"The JSON schema refers to '{reference}': anchors are not supported, use a path."
            )
        return found, document


def _parsed(text: str, what: str) -> Any:
    try:
        document = load_json(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"{what} is not JSON: {error}.") from None
    if not isinstance(document, dict | bool):
        raise SchemaError(f"{what} is neither an object nor true or false.")
    return document


def _identifier(document: Any) -> str:
    name = document.get("$id", document.get("id")) if isinstance(document, dict) else None
    return _split_address(name)[0] if isinstance(name, str) else ""


def _split_address(reference: str) -> tuple[str, str]:
    """Split a reference before its fragment. An address that RFC 3986 does not allow may still be a reference's name."""
    address, _, fragment = reference.partition("#")
    return address, fragment


def _joined(base: str, address: str) -> str:
    try:
        return urljoin(base, address)
    except ValueError:
        return address


def _kind(schema: dict[str, Any]) -> str | None:
    """Return the one type that a schema gives besides null; "text" if it gives several, None if it gives none."""
    declared = schema.get("type")
    if declared is None:
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(values, list) and values:
            return _only({_type_of_value(value) for value in values})
        return next(
            (kind for kind, sign in (("object", "properties"), ("array", "items")) if sign in schema), None
        )
    kinds = declared if isinstance(declared, list) else [declared]
    if not kinds or not all(isinstance(kind, str) for kind in kinds):
        raise SchemaError("The JSON schema is malformed: 'type' must be a name or a list of names.")
    return _only({*kinds})


def _only(kinds: set[str]) -> str:
    kinds = kinds - {"null"}
    if kinds == {"integer", "number"}:
        return "number"
    return kinds.pop() if len(kinds) == 1 else "text"


def _type_of_value(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    return names.get(type(value), "text")


def _leaf(kind: str, schema: dict[str, Any]) -> JsonNode:
    shown = schema.get("format")
    match kind, shown:
        case "string", "date-time" | "date":
            return JsonLeaf(shown)
        case "boolean" | "integer" | "number" | "string" | "text", _:
            return JsonLeaf(kind)
    raise SchemaError(f"The JSON schema is malformed: '{kind}' is not a type.")


def _is_null(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "null"


def _common(nodes: list[JsonNode]) -> JsonNode:
    """Return what values of any of some schemas have in common: their type if all have the same."""
    if nodes and all(node == nodes[0] for node in nodes):
        return nodes[0]
    numbers = (JsonLeaf("integer"), JsonLeaf("number"))
    return numbers[1] if nodes and all(node in numbers for node in nodes) else _TEXT


def _merged(nodes: list[JsonNode]) -> JsonNode:
    """Return what values have that some schemas describe together: the fields of all."""
    if not all(isinstance(node, JsonObject) for node in nodes):
        return _common(nodes)
    return JsonObject(
        {name: field for node in nodes if isinstance(node, JsonObject) for name, field in node.fields.items()}
    )
