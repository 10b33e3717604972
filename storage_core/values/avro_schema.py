"""Parse Avro schemas (Avro specification 1.12, "Schema Declaration")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from storage_core.errors import SchemaError
from storage_core.values.decoding import load_json

if TYPE_CHECKING:
    from storage_core.values.decoding import SchemaSource

# A registry keeps a schema in one Kafka record, which is about a megabyte at most.
_TEXT_LIMIT: Final = 4 << 20
# Arrow files and Spark cannot hold deeper types.
NESTING_LIMIT: Final = 50
_LARGEST_SIZE: Final = (1 << 31) - 1
_PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
# Decimal digits of a bit.
_LOG10_2: Final = 0.30102999566398120


@dataclass(frozen=True, slots=True)
class Primitive:
    """A type without parts.

    Attributes:
        kind: Its name, as ``long``.
        logical: Its logical type; empty if it has none.
        decimal: Precision and scale, if the logical type is a valid decimal.
    """

    kind: str
    logical: str = ""
    decimal: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Fixed:
    """A named type of so many bytes."""

    name: str
    aliases: tuple[str, ...]
    size: int
    decimal: tuple[int, int] | None = None
    kind: str = "fixed"


@dataclass(frozen=True, slots=True)
class Enum:
    """A named list of words."""

    name: str
    aliases: tuple[str, ...]
    symbols: tuple[str, ...]
    default: str | None
    kind: str = "enum"


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record. An empty tuple is no default; a default is the only element."""

    name: str
    aliases: tuple[str, ...]
    schema: Schema
    default: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """A named type with fields. It is recursive if a value can contain another one of it."""

    name: str
    aliases: tuple[str, ...]
    fields: tuple[Field, ...]
    is_recursive: bool
    kind: str = "record"


@dataclass(frozen=True, slots=True)
class Array:
    """Any number of values of one type."""

    items: Schema
    kind: str = "array"


@dataclass(frozen=True, slots=True)
class Map:
    """Values of one type under names."""

    items: Schema
    kind: str = "map"


@dataclass(frozen=True, slots=True)
class Union:
    """A value of one of several types."""

    branches: tuple[Schema, ...]
    kind: str = "union"


@dataclass(frozen=True, slots=True)
class Reference:
    """A named type that is defined elsewhere in the schema."""

    name: str
    kind: str = "reference"


Named: TypeAlias = Record | Enum | Fixed
Schema: TypeAlias = Primitive | Named | Array | Map | Union | Reference


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A parsed schema, and the named types that it uses."""

    root: Schema
    names: dict[str, Named]

    def look_up(self, schema: Schema) -> Primitive | Named | Array | Map | Union:
        """Return what a schema stands for, if it is a reference."""
        return self.names[schema.name] if isinstance(schema, Reference) else schema


def parse_avro_schema(source: SchemaSource) -> AvroSchema:
    """Parse the text of a schema, after those that it refers to.

    Raises:
        SchemaError: A text is no Avro schema, or beyond what is supported.
    """
    texts = [text for _, text in source.references]
    length = sum(map(len, texts)) + len(source.text)
    if length > _TEXT_LIMIT:
        raise SchemaError(f"an Avro schema of {length:,} characters, at most {_TEXT_LIMIT:,} are supported")
    parser = _Parser()
    for text in texts:
        parser.parse(_load(text), "", 0)
    return AvroSchema(parser.parse(_load(source.text), "", 0), parser.names)


def _load(text: str) -> object:
    try:
        return load_json(text)
    except ValueError as error:
        raise SchemaError(f"the Avro schema is not JSON: {error}") from None
    except RecursionError:
        raise SchemaError(f"the Avro schema nests deeper than {NESTING_LIMIT} levels") from None


class _Parser:
    """Makes schemas of JSON, and remembers the types that have names."""

    def __init__(self) -> None:
        self.names: dict[str, Named] = {}
        # The records around the current place, and by name the outermost of them that a record leads back to.
        self._open: list[str] = []
        self._leads_to: dict[str, str] = {}

    def parse(self, declared: object, namespace: str, depth: int) -> Schema:
        """Parse a schema.

        Args:
            declared: What the JSON says.
            namespace: That of names without one.
            depth: How many schemas are around this one.
        """
        if depth > NESTING_LIMIT:
            raise SchemaError(f"the Avro schema nests deeper than {NESTING_LIMIT} levels")
        if isinstance(declared, str):
            return Primitive(declared) if declared in _PRIMITIVES else self._refer(declared, namespace)
        if isinstance(declared, list):
            return self._parse_union(declared, namespace, depth)
        if not isinstance(declared, dict) or "type" not in declared:
            raise SchemaError(f"{_shown(declared)} is not an Avro type")
        kind = declared["type"]
        if kind in ("array", "map"):
            items = self.parse(
                _attribute(declared, "items" if kind == "array" else "values"), namespace, depth + 1
            )
            return Array(items) if kind == "array" else Map(items)
        if isinstance(kind, str) and kind in _NAMED:
            return self._parse_named(declared, kind, namespace, depth)
        if isinstance(kind, str) and kind in _PRIMITIVES:
            logical = declared.get("logicalType")
            decimal = _decimal(declared, _LARGEST_SIZE) if kind == "bytes" else None
            return Primitive(kind, logical if isinstance(logical, str) else "", decimal)
        return self.parse(kind, namespace, depth + 1)

    def _parse_union(self, declared: list[object], namespace: str, depth: int) -> Union:
        branches = tuple(self.parse(branch, namespace, depth + 1) for branch in declared)
        kinds = [getattr(branch, "name", branch.kind) for branch in branches]
        if "union" in kinds:
            raise SchemaError("a union is directly in another union")
        if len(set(kinds)) < len(kinds) or not kinds:
            raise SchemaError(f"the union of {', '.join(kinds) or 'nothing'} needs different types")
        return Union(branches)

    def _refer(self, name: str, namespace: str) -> Reference:
        full_name = _full_name(name, namespace)
        if full_name not in self.names and full_name not in self._open:
            full_name = name
        if full_name not in self.names and full_name not in self._open:
            raise SchemaError(f"the type {name!r} is not defined before its use")
        self._note_use(full_name)
        return Reference(full_name)

    def _note_use(self, name: str) -> None:
        """Note which open records lead back to themselves by the use of a type."""
        while name not in self._open and self._leads_to.get(name, name) != name:
            name = self._leads_to[name]
        if name in self._open:
            outermost = self._open.index(name)
            for record in self._open[outermost:]:
                known = self._leads_to.get(record, record)
                self._leads_to[record] = self._open[min(outermost, self._open.index(known))]

    def _parse_named(self, declared: dict[str, Any], kind: str, namespace: str, depth: int) -> Named:
        name, inner = _declared_name(declared, namespace)
        if name in self.names or name in self._open or name in _PRIMITIVES:
            raise SchemaError(f"the type {name!r} is defined twice")
        aliases = tuple(_full_name(alias, inner) for alias in _words(declared, "aliases"))
        named: Named
        if kind == "enum":
            default = declared.get("default")
            named = Enum(
                name, aliases, _symbols(declared, name), default if isinstance(default, str) else None
            )
        elif kind == "fixed":
            size = _attribute(declared, "size")
            if not isinstance(size, int) or not 0 <= size <= _LARGEST_SIZE:
                raise SchemaError(f"the size of {name!r} is not a number of bytes: {_shown(size)}")
            named = Fixed(name, aliases, size, _decimal(declared, size))
        else:
            self._open.append(name)
            fields = self._parse_fields(_attribute(declared, "fields"), name, inner, depth)
            self._open.pop()
            named = Record(name, aliases, fields, name in self._leads_to)
        self.names[name] = named
        return named

    def _parse_fields(self, declared: object, record: str, namespace: str, depth: int) -> tuple[Field, ...]:
        if not isinstance(declared, list):
            raise SchemaError(f"the fields of {record!r} are not a list")
        fields = []
        for field in declared:
            if not isinstance(field, dict) or not isinstance(field.get("name"), str):
                raise SchemaError(f"a field of {record!r} has no name: {_shown(field)}")
            schema = self.parse(_attribute(field, "type"), namespace, depth + 1)
            default = (field["default"],) if "default" in field else ()
            fields.append(Field(field["name"], _words(field, "aliases"), schema, default))
        names = {field.name for field in fields}
        if len(names) < len(fields):
            raise SchemaError(f"two fields of {record!r} have the same name")
        return tuple(fields)


def _attribute(declared: dict[str, Any], key: str) -> Any:
    if key not in declared:
        raise SchemaError(f"{_shown(declared)} has no {key!r}")
    return declared[key]


def _words(declared: dict[str, Any], key: str) -> tuple[str, ...]:
    words = declared.get(key) or []
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise SchemaError(f"{key!r} is not a list of words: {_shown(words)}")
    return tuple(words)


def _symbols(declared: dict[str, Any], name: str) -> tuple[str, ...]:
    symbols = _words(declared, "symbols")
    if len(set(symbols)) < len(symbols):
        raise SchemaError(f"two symbols of {name!r} are the same")
    return symbols


def _declared_name(declared: dict[str, Any], namespace: str) -> tuple[str, str]:
    """Return the full name of a type, and the namespace of names in it."""
    name, own = declared.get("name"), declared.get("namespace", namespace)
    if not isinstance(name, str) or not name:
        raise SchemaError(f"{_shown(declared)} has no name")
    full_name = _full_name(name, own if isinstance(own, str) else namespace)
    return full_name, full_name.rpartition(".")[0]


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _decimal(declared: dict[str, Any], size: int) -> tuple[int, int] | None:
    """Return precision and scale; None without them, or if they are invalid, as Avro ignores those."""
    precision, scale = declared.get("precision"), declared.get("scale", 0)
    if declared.get("logicalType") != "decimal" or not (
        isinstance(precision, int) and isinstance(scale, int)
    ):
        return None
    largest = int((8 * size - 1) * _LOG10_2)
    return (precision, scale) if 0 < precision <= largest and 0 <= scale <= precision else None


def _shown(declared: object) -> str:
    text = repr(declared)
    return text if len(text) <= 80 else f"{text[:77]}..."  # noqa: PLR2004  (a line)
