"""Resolve a writer's schema to a reader's once for all rows: a plan says what to do with each part of a value.

The steps follow the writer's schema, in whose order the bytes are, and each says which column comes out, which is the
reader's. Rules: Avro specification 1.12, "Schema Resolution".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

import pyarrow as pa

from storage_core.errors import SchemaError, SchemaResolutionError
from storage_core.values.avro_plain import Child, Choice, Constant, Leaf, Sequence, Step, Struct, Text
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
from storage_core.values.avro_types import COLUMNS_LIMIT, KINDS, NOTHING, ArrowTypes, factor_of, number_type
from storage_core.values.decoding import Paths, paths_of_fields

_UNFINISHED: Final = Struct((), (), (), pa.null())


class Plan(NamedTuple):
    """Steps to read values, and how many there are."""

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
    resolver = _Resolver(writer, reader)
    root = resolver.plan(writer.root, reader.root, paths)
    return Plan(root, resolver.step_count)


class _Place(NamedTuple):
    """Place of a step in the schemas."""

    path: str = ""
    depth: int = 0

    def within(self, name: str = "") -> _Place:
        return self._replace(path=f"{self.path}.{name}".strip("."), depth=self.depth + 1)

    def __str__(self) -> str:
        return f"field {self.path}: " if self.path else ""


class _Resolver:
    """Resolves the types of one schema to those of another."""

    def __init__(self, writer: AvroSchema, reader: AvroSchema) -> None:
        self._read_count = self._skipped_count = 0
        self._writer = writer
        self._reader = reader
        self._types = ArrowTypes(reader)
        self._records: dict[tuple[str, str], Struct] = {}
        # Recursive records to be moved over.
        self._postponed: list[Record] = []

    @property
    def step_count(self) -> int:
        """Number of steps."""
        return self._read_count + self._skipped_count

    def plan(self, written: Schema, read: Schema, paths: Paths) -> Step:
        """Return the step for whole values."""
        root = self._resolve(written, read, paths, _Place())
        while self._postponed:
            record = self._postponed.pop()
            self._records[record.name, ""] = self._skipped_record(record, _Place())
        return root

    def _resolve(self, written: Schema, read: Schema, paths: Paths, place: _Place) -> Step:
        """Return the step for a type of the writer, and one of the reader."""
        self._read_count += 1
        _check_limits(self._read_count, place)
        written, read = self._writer.look_up(written), self._reader.look_up(read)
        if isinstance(written, Union):
            return self._from_union(written, read, paths, place)
        if isinstance(read, Union):
            return self._into_union(written, read, paths, place)
        if written.kind != read.kind and read.kind not in KINDS[written.kind].promotions:
            raise SchemaResolutionError(f"{place}{written.kind} cannot be read as {read.kind}")
        match written, read:
            case Record(), Record():
                return self._record(written, read, paths, place)
            case (Array() | Map(), Array() | Map()):
                arrow_type = self._types.of(read, paths)
                item = self._resolve(written.items, read.items, paths, place.within())
                walk = self._skipped(written.items, place.within())
                return Sequence(item, walk, isinstance(read, Map), arrow_type)
        return self._leaf(written, read, paths, place)

    def _skipped(self, written: Schema, place: _Place) -> Step:
        """Return the step that moves over a value, and checks only what it needs to find the end."""
        self._skipped_count += 1
        _check_limits(self._skipped_count, place)
        written = self._writer.look_up(written)
        match written:
            case Record(is_recursive=False):
                step = self._skipped_record(written, place)
                widths = [child.step.width for child in step.children if isinstance(child.step, Leaf)]
                known = [width for width in widths if width is not None]
                return Leaf("fixed", pa.null(), sum(known)) if len(known) == len(step.children) else step
            case Record():
                key = (written.name, "")
                if key not in self._records:
                    self._records[key] = _UNFINISHED
                    self._postponed.append(written)
                return Text(self._records, key, pa.null())
            case Array() | Map():
                item = self._skipped(written.items, place.within())
                return Sequence(None, item, isinstance(written, Map), pa.null())
            case Union():
                branches = [self._skipped(branch, place.within()) for branch in written.branches]
                return Choice(tuple(branches), pa.null())
        width = _width(written)
        if width is not None:
            return Leaf("null" if written.kind == "null" else "fixed", pa.null(), width)
        return Leaf("bytes" if KINDS[written.kind].is_bytes else "long", pa.null())

    def _skipped_record(self, written: Record, place: _Place) -> Struct:
        children = [
            Child(field.name, None, self._skipped(field.schema, place.within(field.name)))
            for field in written.fields
        ]
        return Struct((), tuple(children), (), pa.null())

    def _leaf(self, written: Schema, read: Schema, paths: Paths, place: _Place) -> Leaf:
        arrow_type = self._types.of(read, paths)
        if isinstance(written, Enum) and isinstance(read, Enum):
            _check_names(written, read, place)
            default = read.default if read.default in read.symbols else None
            symbols = tuple(symbol if symbol in read.symbols else default for symbol in written.symbols)
            return Leaf("enum", arrow_type, symbols=symbols)
        if isinstance(written, Fixed) and isinstance(read, Fixed):
            _check_names(written, read, place)
            if written.size != read.size:
                raise SchemaResolutionError(f"{place}{written.size} bytes cannot be read as {read.size}")
        before, after = getattr(written, "decimal", None), getattr(read, "decimal", None)
        if before and after and before[1] != after[1]:
            raise SchemaResolutionError(f"{place}decimal{before} cannot be read as decimal{after}")
        kind = "bytes" if KINDS[written.kind].is_bytes else written.kind
        return Leaf(kind, arrow_type, _width(written), factor_of(read))

    def _record(self, written: Record, read: Record, paths: Paths, place: _Place) -> Step:
        _check_names(written, read, place)
        if not read.is_recursive:
            return self._struct(written, read, paths, place)
        key = (written.name, read.name)
        if key not in self._records:
            known = set(self._records)
            self._records[key] = _UNFINISHED
            try:
                self._records[key] = self._struct(written, read, None, place)
            except SchemaResolutionError:
                # Another branch of a union may do; records within this one may refer to it.
                for added in self._records.keys() - known:
                    del self._records[added]
                raise
        return Text(self._records, key, self._types.of(read, paths))

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
            within = place.within(field.name)
            source = sources.get(field.name)
            name = "" if source is None else source.name
            if source is not None:
                # A field that is not wanted has to be readable, too.
                step = self._resolve(field.schema, source.schema, wanted.get(name, NOTHING), within)
            if name not in targets:
                step = self._skipped(field.schema, within)
            children.append(Child(field.name, targets.get(name), step))
        constants = tuple(self._constants(read, sources, targets, place))
        return Struct(tuple(wanted), tuple(children), constants, self._types.of(read, paths))

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
        if all(isinstance(step, Leaf) and step.kind == "refused" for step in steps):
            raise SchemaResolutionError(next(step.message for step in steps if isinstance(step, Leaf)))
        return Choice(tuple(steps), arrow_type)

    def _branch(self, branch: Schema, read: Schema, paths: Paths, place: _Place) -> Step:
        try:
            return self._resolve(branch, read, paths, place.within())
        except SchemaResolutionError as error:
            return Leaf("refused", self._types.of(read, paths), message=str(error))

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
                step = self._resolve(written, members[index], member_paths, place.within())
            except SchemaResolutionError:
                continue
            if is_struct:
                target = list(wanted).index(names[index]) if names[index] in wanted else None
                step = step if target is not None else self._skipped(written, place.within())
                return Struct(tuple(wanted), (Child("", target, step),), (), arrow_type)
            # A union of numbers has no logical type.
            return (
                replace(step, arrow_type=arrow_type, factor=1)
                if isinstance(step, Leaf) and len(members) > 1
                else step
            )
        raise SchemaResolutionError(f"{place}{written.kind} is no type of the reader's union")


def _check_limits(step_count: int, place: _Place) -> None:
    if step_count > COLUMNS_LIMIT:
        raise SchemaError(f"the Avro schema stands for more than {COLUMNS_LIMIT:,} columns")
    if place.depth > NESTING_LIMIT:
        raise SchemaError(f"the Avro schema nests deeper than {NESTING_LIMIT} levels")


def _width(written: Schema) -> int | None:
    """Return the bytes of each value of a type without parts; None if they differ."""
    return written.size if isinstance(written, Fixed) else KINDS[written.kind].width


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
