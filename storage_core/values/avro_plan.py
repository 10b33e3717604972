"""What to do with each part of a value: the writer's schema, resolved to the reader's once for all rows.

The steps follow the writer's schema, in whose order the bytes are, and each says which column comes out, which is the
reader's. Rules: Avro specification 1.12, "Schema Resolution".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from storage_core.errors import SchemaError, SchemaResolutionError
from storage_core.values.avro_schema import (
    NESTING_LIMIT,
    Array,
    AvroSchema,
    Enum,
    Field,
    Fixed,
    Map,
    Named,
    Record,
    Schema,
    Union,
)
from storage_core.values.avro_types import (
    COLUMNS_LIMIT,
    NOTHING,
    ArrowTypes,
    factor_of,
    number_type,
)
from storage_core.values.decoding import Paths
from storage_core.values.paths import paths_of_fields

_PROMOTIONS: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
# These are encoded alike.
_ENCODED_AS: Final = {"string": "bytes"}
# Bytes of each value; those of other kinds differ.
_WIDTHS: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}


@dataclass(frozen=True, slots=True)
class Leaf:
    """Reads a value without parts.

    Attributes:
        kind: How it is encoded, as ``long``. Strings are bytes.
        arrow_type: What it becomes.
        width: Bytes of each value; None if they differ.
        factor: What its number is multiplied by.
        symbols: The reader's words for the writer's symbols; None for one that the reader does not know.
    """

    kind: str
    arrow_type: pa.DataType
    width: int | None
    factor: int = 1
    symbols: tuple[str | None, ...] = ()


class Child(NamedTuple):
    """A field as the writer has it, and its index among the reader's fields; None for one that is not wanted."""

    name: str
    target: int | None
    step: Step


class Constant(NamedTuple):
    """A field that the writer does not have: its index among the reader's fields, and its default."""

    target: int
    value: Any


@dataclass(frozen=True, slots=True)
class Struct:
    """Reads a record.

    Attributes:
        names: The fields that come out.
        width: Bytes of each value; None if they differ.
    """

    names: tuple[str, ...]
    children: tuple[Child, ...]
    constants: tuple[Constant, ...]
    arrow_type: pa.DataType
    width: int | None


@dataclass(frozen=True, slots=True)
class Sequence:
    """Reads an array, or a map, whose items have keys."""

    item: Step
    has_keys: bool
    arrow_type: pa.DataType
    width: None = None


@dataclass(frozen=True, slots=True)
class Optional:
    """Reads a union of null and another type."""

    null_branch: int
    item: Step
    arrow_type: pa.DataType
    width: None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Reads another union."""

    branches: tuple[Step, ...]
    arrow_type: pa.DataType
    width: None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reads a branch that the reader's schema has no place for: its values do not decode."""

    item: Step
    message: str
    arrow_type: pa.DataType
    width: int | None


@dataclass(frozen=True, slots=True)
class Member:
    """Makes a struct with a field for each branch of a union, of which one is set; None if that is not wanted."""

    item: Step
    target: int | None
    arrow_type: pa.DataType
    width: int | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Text:
    """Reads a recursive record as JSON text, or a record within it.

    Attributes:
        records: How to read each recursive record; shared by all of a plan, as they contain each other.
        key: Which of them this is.
        is_within: Whether it is a part of a text.
    """

    records: dict[tuple[str, str], Struct]
    key: tuple[str, str]
    is_within: bool
    arrow_type: pa.DataType
    width: None = None


Step: TypeAlias = Leaf | Struct | Sequence | Optional | Choice | Refusal | Member | Text
_UNFINISHED: Final = Struct((), (), (), pa.null(), None)


class Plan(NamedTuple):
    """How to read values, and in how many steps."""

    root: Step
    step_count: int


def compile_plan(writer: AvroSchema, reader: AvroSchema, paths: Paths = None) -> Plan:
    """Resolve the writer's schema to the reader's.

    Raises:
        SchemaResolutionError: Values of the one cannot be read as those of the other.
        SchemaError: A type or a default is beyond what is supported.
        OptionError: A path leads to no field.
    """
    # Types are measured quickly: most schemas that are too large end here.
    ArrowTypes(reader).of(reader.root, paths)
    itself = _Resolver(writer, writer)
    resolver = itself if writer is reader else _Resolver(writer, reader, itself)
    root = resolver.resolve(writer.root, reader.root, paths, _Place())
    return Plan(root, resolver.step_count + itself.step_count)


class _Place(NamedTuple):
    """Where in the schemas a step is."""

    path: str = ""
    depth: int = 0
    is_text: bool = False

    def within(self, name: str = "") -> _Place:
        return self._replace(path=f"{self.path}.{name}".strip("."), depth=self.depth + 1)

    def __str__(self) -> str:
        return f"field {self.path}: " if self.path else ""


class _Resolver:
    """Resolves the types of one schema to those of another."""

    def __init__(self, writer: AvroSchema, reader: AvroSchema, itself: _Resolver | None = None) -> None:
        self.step_count = 0
        self._writer = writer
        self._reader = reader
        self._types = ArrowTypes(reader)
        # For what is only skipped: resolves the writer's schema to itself.
        self._itself = itself or self
        self._records: dict[tuple[str, str], Struct] = {}

    def resolve(self, written: Schema, read: Schema, paths: Paths, place: _Place) -> Step:
        """Return the step for a type of the writer, and one of the reader."""
        self._count(place)
        written, read = self._writer.look_up(written), self._reader.look_up(read)
        if isinstance(written, Union):
            return self._from_union(written, read, paths, place)
        if isinstance(read, Union):
            return self._into_union(written, read, paths, place)
        if written.kind != read.kind and read.kind not in _PROMOTIONS.get(written.kind, ()):
            raise SchemaResolutionError(f"{place}{written.kind} cannot be read as {read.kind}")
        match written, read:
            case Record(), Record():
                return self._record(written, read, paths, place)
            case (Array() | Map(), Array() | Map()):
                arrow_type = self._types.of(read, paths)
                item = self.resolve(written.items, read.items, paths, place.within())
                return Sequence(item, isinstance(read, Map), arrow_type)
        return self._leaf(written, read, paths, place)

    def _count(self, place: _Place) -> None:
        self.step_count += 1
        if self.step_count > COLUMNS_LIMIT:
            raise SchemaError(f"the Avro schema stands for more than {COLUMNS_LIMIT:,} columns")
        if place.depth > NESTING_LIMIT:
            raise SchemaError(f"the Avro schema nests deeper than {NESTING_LIMIT} levels")

    def _skipped(self, written: Schema, place: _Place) -> Step:
        return self._itself.resolve(written, written, NOTHING, place)

    def _leaf(self, written: Schema, read: Schema, paths: Paths, place: _Place) -> Leaf:
        arrow_type = self._types.of(read, paths)
        if isinstance(written, Enum) and isinstance(read, Enum):
            _check_names(written, read, place)
            default = read.default if read.default in read.symbols else None
            symbols = tuple(symbol if symbol in read.symbols else default for symbol in written.symbols)
            return Leaf("enum", arrow_type, None, symbols=symbols)
        if isinstance(written, Fixed) and isinstance(read, Fixed):
            _check_names(written, read, place)
            if written.size != read.size:
                raise SchemaResolutionError(f"{place}{written.size} bytes cannot be read as {read.size}")
        before, after = getattr(written, "decimal", None), getattr(read, "decimal", None)
        if before and after and before[1] != after[1]:
            raise SchemaResolutionError(f"{place}decimal{before} cannot be read as decimal{after}")
        width = written.size if isinstance(written, Fixed) else _WIDTHS.get(written.kind)
        return Leaf(_ENCODED_AS.get(written.kind, written.kind), arrow_type, width, factor_of(read))

    def _record(self, written: Record, read: Record, paths: Paths, place: _Place) -> Step:
        _check_names(written, read, place)
        if not read.is_recursive:
            return self._struct(written, read, paths, place)
        key = (written.name, read.name)
        if key not in self._records:
            known = dict(self._records)
            self._records[key] = _UNFINISHED
            try:
                self._records[key] = self._struct(written, read, None, place._replace(is_text=True))
            except SchemaResolutionError:
                # Another branch of a union may do; records within this one may refer to it.
                self._records = known
                raise
        return Text(self._records, key, place.is_text, self._types.of(read, paths))

    def _struct(self, written: Record, read: Record, paths: Paths, place: _Place) -> Struct:
        wanted = (
            {}
            if paths == NOTHING
            else paths_of_fields(paths, [field.name for field in read.fields], read.name)
        )
        targets = {name: index for index, name in enumerate(wanted)}
        sources = _sources(written, read)
        children = []
        for field in written.fields:
            target = sources.get(field.name)
            if target is None:
                child = Child(field.name, None, self._skipped(field.schema, place.within(field.name)))
            else:
                step = self.resolve(
                    field.schema, target.schema, wanted.get(target.name, NOTHING), place.within(field.name)
                )
                child = Child(field.name, targets.get(target.name), step)
            children.append(child)
        constants = tuple(self._constants(read, sources, targets, place))
        width: int | None = 0
        for child in children:
            width = None if width is None or child.step.width is None else width + child.step.width
        return Struct(tuple(wanted), tuple(children), constants, self._types.of(read, paths), width)

    def _constants(
        self, read: Record, sources: dict[str, Field], targets: dict[str, int], place: _Place
    ) -> Iterator[Constant]:
        found = {field.name for field in sources.values()}
        for field in read.fields:
            if field.name in found:
                continue
            if not field.default:
                raise SchemaResolutionError(
                    f"{place}the writer has no field {field.name!r}, and it has no default"
                )
            if field.name in targets:
                yield Constant(targets[field.name], self._types.default(field.schema, field.default[0]))

    def _from_union(self, written: Union, read: Schema, paths: Paths, place: _Place) -> Step:
        arrow_type = self._types.of(read, paths)
        steps = [self._branch(branch, read, paths, place) for branch in written.branches]
        refused = [step for step in steps if isinstance(step, Refusal)]
        if len(refused) == len(steps):
            raise SchemaResolutionError(refused[0].message)
        nulls = [index for index, step in enumerate(steps) if isinstance(step, Leaf) and step.kind == "null"]
        if len(steps) == 2 and len(nulls) == 1 and not refused:  # noqa: PLR2004  (null and another)
            return Optional(nulls[0], steps[1 - nulls[0]], arrow_type)
        return Choice(tuple(steps), arrow_type)

    def _branch(self, branch: Schema, read: Schema, paths: Paths, place: _Place) -> Step:
        try:
            return self.resolve(branch, read, paths, place.within())
        except SchemaResolutionError as error:
            skipped = self._skipped(branch, place.within())
            return Refusal(skipped, str(error), self._types.of(read, paths), skipped.width)

    def _into_union(self, written: Schema, read: Union, paths: Paths, place: _Place) -> Step:
        arrow_type = self._types.of(read, paths)
        if written.kind == "null" and any(
            self._reader.look_up(branch).kind == "null" for branch in read.branches
        ):
            return Leaf("null", arrow_type, 0)
        members = self._types.members(read)
        is_struct = len(members) > 1 and number_type(members) is None
        names = [f"member{index}" for index in range(len(members))]
        wanted = paths_of_fields(paths, names, "the union") if is_struct and paths != NOTHING else {}
        for index in _by_likeness(written, members):
            member_paths = wanted.get(names[index], NOTHING) if is_struct else paths
            try:
                step = self.resolve(written, members[index], member_paths, place.within())
            except SchemaResolutionError:
                continue
            if is_struct:
                target = list(wanted).index(names[index]) if names[index] in wanted else None
                return Member(step, target, arrow_type, step.width)
            # A union of numbers has no logical type.
            return (
                replace(step, arrow_type=arrow_type, factor=1)
                if isinstance(step, Leaf) and len(members) > 1
                else step
            )
        raise SchemaResolutionError(f"{place}{written.kind} is no type of the reader's union")


def _by_likeness(written: Schema, members: list[Schema]) -> list[int]:
    """Return the order in which to try the reader's branches: those of the writer's type and name first."""
    return sorted(
        range(len(members)),
        key=lambda index: (
            members[index].kind != written.kind,
            getattr(members[index], "name", "") != getattr(written, "name", ""),
        ),
    )


def _sources(written: Record, read: Record) -> dict[str, Field]:
    """Return the reader's fields by the names of the writer's. An alias counts where no name does."""
    names = {field.name for field in written.fields}
    sources = {field.name: field for field in read.fields if field.name in names}
    for field in read.fields:
        if field.name not in names:
            alias = next((alias for alias in field.aliases if alias in names and alias not in sources), None)
            if alias is not None:
                sources[alias] = field
    return sources


def _check_names(written: Named, read: Named, place: _Place) -> None:
    """Check that a type of the reader has the writer's name, unqualified as in the specification, or an alias."""
    names = {name.rpartition(".")[2] for name in (read.name, *read.aliases)}
    if written.name.rpartition(".")[2] not in names:
        raise SchemaResolutionError(f"{place}{written.kind} {written.name} cannot be read as {read.name}")
