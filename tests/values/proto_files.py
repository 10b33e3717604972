"""Random .proto files that are right, for comparisons with protoc and with Protobuf's own parser."""

from __future__ import annotations

from hypothesis import strategies as st

_SCALARS = ["double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"]
_SCALARS += ["fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"]
_KEYS = [name for name in _SCALARS if name not in {"double", "float", "bytes"}]


@st.composite
def proto_files(draw, *, decodable=False):
    """Text of a file; one that is decodable has no groups."""
    return _Writer(draw, decodable=decodable).file()


class _Writer:
    """Writes random files that are right."""

    def __init__(self, draw, *, decodable):
        self.has_groups = not decodable
        self.draw = draw
        self.is_proto3 = draw(st.booleans())
        self.names = 0
        self.types = []

    def new_name(self, prefix):
        self.names += 1
        return f"{prefix}{self.names}"

    def file(self):
        package = self.draw(st.sampled_from(["", "package a;", "package a.b_c;\n"]))
        scope = package.removeprefix("package ").rstrip(";\n")
        parts = [f'syntax = "{"proto3" if self.is_proto3 else "proto2"}";', package]
        options = st.sampled_from([";", "option java_package = 'x' \"y\";", "option optimize_for = SPEED;"])
        parts += self.draw(st.lists(options, max_size=2, unique=True))
        parts += [
            *self.some(lambda: self.enum(scope)),
            self.message(scope, 0),
            *self.some(lambda: self.message(scope, 0)),
        ]
        parts += self.some(self.service)
        return self.spaced(parts)

    def service(self):
        kind = self.types[-1]
        return f"service {self.new_name('S')} {{ rpc A({kind}) returns (stream {kind}) {{ option deprecated = true; }} }}"

    def some(self, make):
        return [make() for _ in range(self.draw(st.integers(0, 2)))]

    def spaced(self, parts):
        gap = st.sampled_from([" ", "\n", "// } x\n", "/* { \n ; */", "\t\r\n"])
        return "".join(part + self.draw(gap) for part in parts)

    def enum(self, scope):
        name = self.new_name("E")
        self.types.append(f".{scope}.{name}" if scope else f".{name}")
        values = [f"{self.new_name('V')} = 0;"]
        values += self.some(
            lambda: f"{self.new_name('V')} = {self.draw(st.integers(-(2**31), -1))} [deprecated = true];"
        )
        values += self.some(
            lambda: f"{self.new_name('V')} = {self.draw(st.sampled_from(['0x7f', '017', '2147483647']))};"
        )
        if len(values) > 1:
            values.insert(0, "option allow_alias = true;")
            values.append(f"{self.new_name('V')} = 0;")
        values += self.draw(
            st.sampled_from([[], [";"], ["reserved 200 to 300, 190;"], ['reserved "a", "b";']])
        )
        return f"enum {name} {{ {self.spaced(values)} }}"

    def message(self, scope, depth):
        name = self.new_name("M")
        inner = f"{scope}.{name}" if scope else name
        numbers = iter(self.draw(st.permutations(range(1, 40))))
        parts = []
        if depth < 3:
            parts += self.some(lambda: self.message(inner, depth + 1))
        parts += self.some(lambda: self.enum(inner))
        self.types.append("." + inner)
        for _ in range(self.draw(st.integers(1, 8))):
            parts.append(self.member(numbers))
        parts += self.draw(
            st.sampled_from([[], [";"], ["reserved 100, 200 to 300;"], ["reserved 'r1', \"r2\";"]])
        )
        if not self.is_proto3:
            parts += self.draw(
                st.sampled_from([[], ["extensions 1000 to 1999, 3000;", "extensions 5000 to max;"]])
            )
            parts += self.some(lambda: self.group(next(numbers))) if self.has_groups else []
        return f"message {name} {{ {self.spaced(self.draw(st.permutations(parts)))} }}"

    def group(self, number):
        return f"optional group {self.new_name('Gr_oup')} = {number} {{ required int32 a = 1; }}"

    def member(self, numbers):
        kind = self.draw(st.sampled_from(["field", "field", "map", "oneof"]))
        number, name = (
            next(numbers),
            self.new_name(self.draw(st.sampled_from(["a_b_", "_c", "message", "Option", "to"]))),
        )
        if kind == "map":
            return f"map < {self.draw(st.sampled_from(_KEYS))}, {self.type()}> {name} = {number};"
        if kind == "oneof":
            members = [f"{self.type()} {self.new_name('m')} = {n};" for n in (number, next(numbers))]
            return f"oneof {name} {{ {self.spaced(members)} }}"
        label = self.draw(
            st.sampled_from(
                ["", "optional", "repeated"] if self.is_proto3 else ["required", "optional", "repeated"]
            )
        )
        options = self.draw(
            st.sampled_from(["", "[deprecated = true]", f"[deprecated=true, json_name = 'x{number}']"])
        )
        return f"{label} {self.type()} {name} = {number} {options};"

    def type(self):
        choices = st.sampled_from(_SCALARS)
        if self.types:
            choices |= st.sampled_from(self.types) | st.sampled_from(self.types).map(
                lambda name: name.removeprefix(".")
            )
        return self.draw(choices)
