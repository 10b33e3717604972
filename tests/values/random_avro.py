"""Random Avro schemas, values of them, later versions of them, and damage; and what fastavro makes of the values.

All comes from one `random.Random`, so that a seed says everything.
"""

from __future__ import annotations

import base64
import copy
import io
import json
import math
import struct
from decimal import Context, Decimal
from typing import Any

import fastavro
import numpy as np

_LOGICAL = {
    "int": [None, None, "date", "time-millis"],
    "long": [
        None,
        None,
        "timestamp-millis",
        "timestamp-micros",
        "local-timestamp-millis",
        "local-timestamp-micros",
        "time-micros",
    ],
    "string": [None, None, "uuid"],
}
_LEAVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string", "fixed", "enum", "decimal"]
# Types that a decoder in Python tells apart by their values: one of each may be in a union.
_FAMILIES = [
    ["boolean"],
    ["int", "long"],
    ["float", "double"],
    ["string", "enum"],
    ["bytes", "fixed"],
    ["array"],
    ["record", "map"],
]
_PROMOTIONS = {
    "int": ["long", "float", "double"],
    "long": ["double"],
    "float": ["double"],
    "string": ["bytes"],
}
_WORDS = ["", "a", "beta", "gamma delta", "ünïcödé", "漢字", "😀", "x" * 70]


class RandomSchema:
    """Makes a schema, and values of it."""

    def __init__(self, rnd, depth=4, *, is_evolving=False):
        self.rnd = rnd
        # Of a union's branches that a value may become, Java takes the one of its type, fastavro the first.
        self.families = [f for f in _FAMILIES if not is_evolving or f[0] not in ("float", "bytes")]
        self.named: dict[str, Any] = {}
        self.open: list[str] = []
        self.schema = self._schema(depth, rnd.choice(["record"] * 9 + [None]))

    def _name(self):
        return f"N{len(self.named) + len(self.open)}"

    def _schema(self, depth, kind=None):
        rnd = self.rnd
        kind = kind or rnd.choice(
            _LEAVES + (["record", "array", "map", "union", "union", "used", "recursive"] * 2 if depth else [])
        )
        if kind == "used":
            return rnd.choice(list(self.named)) if self.named else "string"
        if kind == "recursive":
            return self._recursive() if self.open else "int"
        if kind == "record":
            return self._record(depth)
        if kind == "union":
            return self._union(depth)
        if kind in ("array", "map"):
            return {"type": kind, "items" if kind == "array" else "values": self._schema(depth - 1)}
        if kind == "decimal":
            return self._decimal()
        if kind in ("fixed", "enum"):
            return self._named_leaf(kind)
        logical = rnd.choice(_LOGICAL.get(kind, [None]))
        return {"type": kind, "logicalType": logical} if logical else kind

    def _record(self, depth):
        name = self._name()
        self.open.append(name)
        fields = [
            {"name": f"f{i}", "type": self._schema(depth - 1)}
            for i in range(self.rnd.choice([0, 1, 2, 3, 4, 6]))
        ]
        self.open.remove(name)
        return self.named.setdefault(name, {"type": "record", "name": name, "fields": fields})

    def _recursive(self):
        name = self.rnd.choice(self.open)
        return self.rnd.choice(
            [["null", name], {"type": "array", "items": name}, {"type": "map", "values": name}]
        )

    def _named_leaf(self, kind):
        name = self._name()
        rest = (
            {"size": self.rnd.choice([0, 1, 3, 16])}
            if kind == "fixed"
            else {"symbols": list("ABCDE")[: self.rnd.randrange(1, 6)]}
        )
        return self.named.setdefault(name, {"type": kind, "name": name, **rest})

    def _decimal(self):
        precision = self.rnd.randrange(1, 39)
        attributes = {
            "logicalType": "decimal",
            "precision": precision,
            "scale": self.rnd.randrange(precision + 1),
        }
        if self.rnd.random() < 0.5:
            return {"type": "bytes", **attributes}
        size = max(1, math.ceil((precision * 3.33 + 1) / 8))
        name = self._name()
        return self.named.setdefault(
            name, {"type": "fixed", "name": name, "size": min(size, 16), **attributes}
        )

    def _union(self, depth):
        rnd = self.rnd
        if rnd.random() < 0.2:
            return rnd.choice([["int", "long"], ["double", "float"], ["null", "int", "long"]])
        families = rnd.sample(self.families, rnd.choice([1, 1, 1, 2, 3, 4]))
        branches = [self._schema(depth - 1, rnd.choice(family)) for family in families]
        if rnd.random() < 0.7:
            branches.insert(rnd.randrange(len(branches) + 1), "null")
        return branches

    def value(self, schema, depth=0):  # noqa: C901, PLR0911, PLR0912  (a case for each type)
        """Return the bytes of a random value."""
        rnd = self.rnd
        schema = self.named.get(schema, schema) if isinstance(schema, str) else schema
        if isinstance(schema, list):
            index = rnd.randrange(len(schema))
            if depth > 6 and "null" in schema:
                index = schema.index("null")
            return number(index) + self.value(schema[index], depth + 1)
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind == "record":
            return b"".join(self.value(field["type"], depth + 1) for field in schema["fields"])
        if kind in ("array", "map"):
            return self._items(schema, depth)
        if isinstance(schema, dict) and schema.get("logicalType") == "decimal":
            return self._decimal_value(schema)
        match kind:
            case "null":
                return b""
            case "boolean":
                return bytes([rnd.randrange(2)])
            case "int":
                return number(
                    rnd.choice([0, 1, -1, rnd.randrange(-(1 << 31), 1 << 31), (1 << 31) - 1, -(1 << 31)])
                )
            case "long":
                bits = rnd.choice(
                    [3, 7, 20, 40, 52, 62, 63] if "millis" not in str(schema) else [3, 20, 45, 52]
                )
                return number(
                    rnd.choice(
                        [
                            rnd.randrange(1 << bits),
                            -rnd.randrange(1 << bits) - 1,
                            (1 << bits) - 1,
                            -(1 << bits),
                        ]
                    )
                )
            case "float":
                return struct.pack(
                    "<f", rnd.choice([0.0, -1.5, math.inf, math.nan, 3.4e38, rnd.uniform(-9, 9)])
                )
            case "double":
                return struct.pack(
                    "<d", rnd.choice([0.0, -1.5, -math.inf, math.nan, 1.7e308, rnd.uniform(-9, 9)])
                )
            case "fixed":
                return rnd.randbytes(schema["size"])
            case "enum":
                return number(rnd.randrange(len(schema["symbols"])))
            case "string":
                return sized(rnd.choice(_WORDS).encode())
        return sized(rnd.randbytes(rnd.choice([0, 1, 5, 70])))

    def _decimal_value(self, schema):
        digits = self.rnd.randrange(schema["precision"] + 1)
        unscaled = self.rnd.choice([1, -1]) * self.rnd.randrange(10**digits)
        if schema["type"] == "fixed":
            return unscaled.to_bytes(schema["size"], "big", signed=True)
        least = (unscaled.bit_length() + 8) // 8
        return sized(unscaled.to_bytes(min(16, self.rnd.choice([least, least + 1, 16])), "big", signed=True))

    def _items(self, schema, depth):
        result = b""
        for _ in range(self.rnd.choice([0, 0, 1, 1, 2]) if depth < 7 else 0):
            count = self.rnd.choice([1, 1, 2, 3, 40 if depth < 3 else 1])
            items = b""
            for _ in range(count):
                if schema["type"] == "map":
                    items += sized(self.rnd.choice(_WORDS).encode())
                items += self.value(schema["items" if schema["type"] == "array" else "values"], depth + 1)
            result += (
                number(-count) + number(len(items)) + items
                if self.rnd.random() < 0.3
                else number(count) + items
            )
        return result + b"\0"


def number(value):
    raw = (value << 1) ^ (value >> 63)
    raw &= (1 << 64) - 1
    result = bytearray()
    while raw >= 128:
        result.append(raw & 127 | 128)
        raw >>= 7
    return bytes([*result, raw])


def sized(data):
    return number(len(data)) + data


def evolved(rnd, schema):
    """Return a later version of a schema, which reads values of it."""
    later = copy.deepcopy(schema)
    return _evolve(rnd, later)


def _evolve(rnd, schema):
    if isinstance(schema, list):
        branches = [_evolve(rnd, branch) if not isinstance(branch, str) else branch for branch in schema]
        if '"name"' not in json.dumps(branches) and rnd.random() < 0.3:
            rnd.shuffle(branches)
        if "null" not in branches and rnd.random() < 0.3:
            branches.append("null")
        return branches
    if isinstance(schema, str):
        if schema in _PROMOTIONS and rnd.random() < 0.3:
            schema = rnd.choice(_PROMOTIONS[schema])
        return ["null", schema] if schema != "null" and rnd.random() < 0.1 else schema
    if schema["type"] in ("array", "map"):
        key = "items" if schema["type"] == "array" else "values"
        return {**schema, key: _evolve(rnd, schema[key])}
    if schema["type"] == "enum":
        if rnd.random() < 0.3:
            symbols = rnd.sample(schema["symbols"], rnd.randrange(1, len(schema["symbols"]) + 1))
            schema |= {"symbols": [*symbols, "NEW"], **({"default": "NEW"} if rnd.random() < 0.5 else {})}
        return schema
    if schema["type"] == "record":
        _evolve_fields(rnd, schema)
    return schema


def _evolve_fields(rnd, record):
    fields = [{**field, "type": _evolve(rnd, field["type"])} for field in record["fields"]]
    # A type that is defined in a field goes with it: then references to it would have no definition.
    fields = [field for field in fields if '"name"' in json.dumps(field["type"]) or rnd.random() < 0.85]
    for field in fields:
        if rnd.random() < 0.1:
            field |= {"aliases": [field["name"]], "name": field["name"] + "_later"}
    movable = [field for field in fields if json.dumps(field["type"]) in ('"int"', '"string"', '"double"')]
    for index in range(rnd.choice([0, 0, 1, 2])):
        kind, default = rnd.choice(_DEFAULTS)
        movable.append({"name": f"new{index}", "type": kind, "default": default})
    rest = [field for field in fields if field not in movable]
    for field in movable:
        rest.insert(rnd.randrange(len(rest) + 1), field)
    record["fields"] = rest


_DEFAULTS = [
    ("int", 7),
    ("string", "dflt"),
    (["null", "string"], None),
    ("bytes", "\u00ff\u0001"),
    ({"type": "array", "items": "long"}, [1, 2]),
    ({"type": "map", "values": "string"}, {"k": "v"}),
    ({"type": "long", "logicalType": "timestamp-millis"}, 5),
    ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "\u0001"),
    (["string", "boolean"], "first"),
    (["null", "long", "boolean"], None),
]


def damaged(rnd, data):
    """Return a value with some bytes changed, lost or added."""
    result = bytearray(data)
    kind = rnd.randrange(6)
    if kind == 0 or not result:
        return bytes(result[: rnd.randrange(len(result) + 1)]) if result else rnd.randbytes(rnd.randrange(4))
    if kind == 1:
        return bytes(result) + rnd.randbytes(rnd.randrange(1, 4))
    if kind == 2:
        at = rnd.randrange(len(result))
        del result[at : at + rnd.randrange(1, 4)]
        return bytes(result)
    if kind == 3:
        at = rnd.randrange(len(result) + 1)
        return bytes(result[:at]) + rnd.randbytes(rnd.randrange(1, 4)) + bytes(result[at:])
    for _ in range(rnd.randrange(1, 4)):
        result[rnd.randrange(len(result))] = rnd.choice([0, 1, 2, 127, 128, 255, rnd.randrange(256)])
    return bytes(result)


class Peer:
    """Fastavro, and what a column has for its values."""

    def __init__(self, writer, reader):
        self._reader = reader
        self._writer_schema = fastavro.parse_schema(_without_logical_types(writer))
        self._reader_schema = fastavro.parse_schema(_without_logical_types(reader))
        self._named: dict[str, Any] = {}
        self._collect(reader)
        self.recursive = {name for name in self._named if self._is_recursive(name)}

    def read(self, data):
        """Return a value in the form of `tests/values/README.md`; raise what fastavro raises, or ValueError where bytes are left."""
        stream = io.BytesIO(data)
        value = fastavro.schemaless_reader(stream, self._writer_schema, self._reader_schema)
        if stream.read(1):
            raise ValueError("bytes are left")
        return self._expected(self._reader, value)

    def with_objects(self, value, schema=None):
        """Turn the JSON texts of recursive records in a column's value into objects."""
        schema = self._look_up(self._reader if schema is None else schema)
        if value is None:
            return None
        match schema:
            case {"type": "record", "name": name} if name in self.recursive:
                return json.loads(value, parse_constant=_no_constant)
            case {"type": "record"}:
                return {
                    field["name"]: self.with_objects(value[field["name"]], field["type"])
                    for field in schema["fields"]
                }
            case {"type": "array"}:
                return [self.with_objects(item, schema["items"]) for item in value]
            case {"type": "map"}:
                return {key: self.with_objects(item, schema["values"]) for key, item in value.items()}
            case list():
                members = self._members(schema)
                if len(members) == 1:
                    return self.with_objects(value, members[0])
                if isinstance(value, dict):
                    return {
                        f"member{i}": self.with_objects(value[f"member{i}"], m) for i, m in enumerate(members)
                    }
        return value

    def _look_up(self, schema):
        return self._named.get(schema, schema) if isinstance(schema, str) else schema

    def _collect(self, schema):
        match schema:
            case list():
                for branch in schema:
                    self._collect(branch)
            case dict():
                if "name" in schema:
                    self._named[schema["name"]] = schema
                for inner in (
                    schema.get("items"),
                    schema.get("values"),
                    *(f["type"] for f in schema.get("fields", ())),
                ):
                    self._collect(inner)

    def _is_recursive(self, name):
        reached: set[str] = set()
        names = set(self._used(self._named[name].get("fields", [])))
        while names - reached:
            reached |= names
            names = {used for each in names for used in self._used(self._named[each].get("fields", []))}
        return name in reached

    def _used(self, schema):
        """Yield the named types that fields or a type use."""
        match schema:
            case str() if schema in self._named:
                yield schema
            case {"name": name, "fields": _} | {"name": name, "size": _} | {"name": name, "symbols": _}:
                yield name
            case list():
                for part in schema:
                    yield from self._used(part)
            case {"items": inner} | {"values": inner} | {"type": inner}:
                yield from self._used(inner)

    def _members(self, union):
        return [branch for branch in map(self._look_up, union) if branch != "null"]

    def _expected(self, schema, value):  # noqa: PLR0911  (likewise)
        schema = self._look_up(schema)
        if isinstance(schema, list):
            return self._union(schema, value)
        kind = schema if isinstance(schema, str) else schema["type"]
        logical = schema.get("logicalType") if isinstance(schema, dict) else None
        match kind:
            case "record":
                return {
                    field["name"]: self._expected(field["type"], value[field["name"]])
                    for field in schema["fields"]
                }
            case "array":
                return [self._expected(schema["items"], item) for item in value]
            case "map":
                return {key: self._expected(schema["values"], item) for key, item in value.items()}
            case "float" if math.isfinite(value):
                return float(np.float32(value))
            case "float" | "double":
                return (
                    float(value)
                    if math.isfinite(value)
                    else {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
                )
            case "bytes" | "fixed":
                # Defaults come as text, and strings that are read as bytes, too.
                data = (
                    value
                    if isinstance(value, bytes)
                    else value.encode("latin-1" if value == "\u00ff\u0001" else "utf-8")
                )
                if logical == "decimal":
                    return f"{Decimal(int.from_bytes(data, 'big', signed=True)).scaleb(-schema['scale'], _CONTEXT):f}"
                return base64.b64encode(data).decode()
        return value * 1000 if logical and logical.endswith("timestamp-millis") else value

    def _union(self, union, value):
        members = self._members(union)
        if value is None:
            return None
        kinds = [member if isinstance(member, str) else member["type"] for member in members]
        if len(members) == 1:
            return self._expected(members[0], value)
        if set(kinds) in ({"int", "long"}, {"float", "double"}):
            return self._expected("double" if "float" in kinds else "long", value)
        python = {
            "int": int,
            "long": int,
            "float": float,
            "double": float,
            "string": str,
            "enum": str,
            "bytes": bytes,
            "fixed": bytes,
            "boolean": bool,
            "array": list,
            "map": dict,
            "record": dict,
        }
        [chosen] = [index for index, kind in enumerate(kinds) if type(value) is python[kind]]
        return {
            f"member{index}": self._expected(member, value) if index == chosen else None
            for index, member in enumerate(members)
        }


_CONTEXT = Context(prec=60)


def _no_constant(name):
    raise ValueError(f"{name} is no JSON")


def _without_logical_types(schema):
    if isinstance(schema, list):
        return [_without_logical_types(branch) for branch in schema]
    if isinstance(schema, dict):
        return {
            key: _without_logical_types(value)
            if key in ("type", "items", "values")
            else [{**f, "type": _without_logical_types(f["type"])} for f in value]
            if key == "fields"
            else value
            for key, value in schema.items()
            if key != "logicalType"
        }
    return schema
