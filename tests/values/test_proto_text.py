"""Descriptors made of .proto text are those that protoc makes of it; what is no .proto text is one clear error."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import SchemaError
from storage_core.values.proto_text import parse_proto
from tests.examples import examples
from tests.values.proto_files import proto_files

_PROTOC = Path(sys.executable).parent / "protoc"


def descriptor_of_protoc(text, folder):
    (folder / "a.proto").write_text(text, encoding="utf-8")
    command = [_PROTOC, f"--proto_path={folder}", f"--descriptor_set_out={folder / 'out'}", "a.proto"]
    subprocess.run(command, check=True, capture_output=True)
    [file] = FileDescriptorSet.FromString((folder / "out").read_bytes()).file
    return file


def resolved(file):
    """Return a descriptor with its names resolved, without what does not change how bytes decode."""
    pool = DescriptorPool()
    for message in (*file.message_type, DescriptorProto()):
        _strip(message)
    for enum in file.enum_type:
        _strip_enum(enum)
    for name in ("options", "service", "extension", "source_code_info"):
        file.ClearField(name)
    pool.AddSerializedFile(file.SerializeToString())
    copied = FileDescriptorProto()
    pool.FindFileByName(file.name).CopyToProto(copied)
    return copied


def _strip(message):
    for name in ("reserved_range", "reserved_name", "extension_range", "extension"):
        message.ClearField(name)
    if not message.options.map_entry:
        message.ClearField("options")
    for field in message.field:
        for name in ("options", "default_value", "json_name"):
            field.ClearField(name)
        if not field.proto3_optional:
            field.ClearField("proto3_optional")
    for oneof in message.oneof_decl:
        oneof.ClearField("options")
    for nested in message.nested_type:
        _strip(nested)
    for enum in message.enum_type:
        _strip_enum(enum)


def _strip_enum(enum):
    for name in ("options", "reserved_range", "reserved_name"):
        enum.ClearField(name)
    for value in enum.value:
        value.ClearField("options")


@examples(40)
@given(text=proto_files())
def test_descriptors_are_those_of_protoc(text, tmp_path_factory):
    try:
        expected = descriptor_of_protoc(text, tmp_path_factory.getbasetemp())
    except subprocess.CalledProcessError as error:
        raise AssertionError(f"{text}\n{error.stderr.decode()}") from None
    assert resolved(parse_proto(text, "a.proto").descriptor) == resolved(expected)


_EXAMPLE = """// a file with a bit of everything
syntax = "proto2";
package a.b;
import public "x.proto"; import weak "y" ".proto";
option (my.option).sub = { text: "}" list: [1, 2] inner < a: 1 > };
extend .google.protobuf.FieldOptions { optional string my_option = 50000; repeated group G = 5 { } }
message M {
  optional sint32 n = 0x10 [default = -5, (x).y = "a" 'b', deprecated = true];
  optional double inf = 2 [default = -inf];
  repeated M.Inner inners = 3; message Inner { ; }
  extensions 100 to 199 [verification = UNVERIFIED];
  reserved 4, 6 to 7, 1000 to max; reserved "old", "older";
}
"""


def test_what_does_not_change_how_bytes_decode_is_read_over():
    file = parse_proto(_EXAMPLE, "a.proto").descriptor
    assert (list(file.dependency), list(file.public_dependency), file.package) == (
        ["x.proto", "y.proto"],
        [0],
        "a.b",
    )
    [message] = file.message_type
    assert [(f.name, f.number, f.type_name or f.type) for f in message.field] == [("n", 16, 17), ("inf", 2, 1), ("inners", 3, "M.Inner")]  # fmt: skip


def test_a_descriptor_in_base64_is_read():
    file = FileDescriptorProto(name="other", syntax="proto3")
    file.message_type.add(name="M")
    encoded = base64.encodebytes(file.SerializeToString()).decode()
    file.name = "a.proto"
    assert parse_proto(encoded, "a.proto").descriptor == file
    with pytest.raises(SchemaError, match="editions"):
        parse_proto(
            base64.b64encode(FileDescriptorProto(syntax="editions").SerializeToString()).decode(), "a.proto"
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("message M", r"neither \.proto text nor a descriptor"),
        ("AAAA", r"neither \.proto text nor a descriptor"),
        ('{"type": "record"}', "Expected a declaration, found '{': line 1, column 1"),
        ('syntax = "proto3";\nmessage M {\n  int32 a;\n}', "Expected '=', found ';': line 3, column 10"),
        ('syntax = "proto3"; message M {', "Expected a name, found the end: line 1, column 31"),
        ('syntax = "proto3"; message M { int32 a = 0; }', "0 is not from 1 to 536870911: line 1, column 42"),
        ('syntax = "proto3"; message M { int32 a = 08; }', "'08' is not an integer"),
        ('syntax = "proto3"; message M { int32 a = 99999999999999999999999999999999999999999999; }', "is not from 1"),
        ('syntax = "proto3"; message M { required int32 a = 1; }', "proto3 has no required fields: line 1, column 32"),
        ('syntax = "proto3"; message M { oneof x { repeated int32 a = 1; } }', "Expected '=', found 'a'"),
        ("message M { int32 a = 1; }", "Expected 'optional', 'required' or 'repeated'"),
        ("enum E { A = 2147483648; }", "is not from -2147483648 to 2147483647"),
        ('syntax = "proto4";', "The syntax 'proto4' is unknown"),
        ('edition = "2023";', "Editions are not supported: line 1, column 1"),
        ("option a = { ", "Expected '}', found the end"),
        ("option a = 1", "Expected ';', found the end"),
        ('syntax = "proto3"; message M { option a = 1 }', "Expected ';', found '}'"),
        ('syntax = "proto3"; message M { int32 a = 1 [default = {', "Expected '}', found the end"),
        ("/* no end", "Expected a declaration, found '/'"),
        ('import "no end', "'\"' is out of place: line 1, column 8"),
        ("message \N{GREEK SMALL LETTER ALPHA} {}", "is out of place: line 1, column 9"),
        ("message M { message N { " * 50, "nested more than 32 deep"),
        ("message M {" * 50, "nested more than 32 deep"),
        (" " * (5 << 20), "more than 4,194,304 characters"),
    ],
)  # fmt: skip
def test_what_is_no_proto_text_is_one_error_that_says_where(text, message):
    with pytest.raises(SchemaError, match=message):
        parse_proto(text, "a.proto")


@examples(300)
@given(st.data())
def test_damaged_text_is_read_or_is_a_schema_error(data):
    at = data.draw(st.integers(0, len(_EXAMPLE)))
    text = (
        _EXAMPLE[:at]
        + data.draw(st.sampled_from(["", "{", "}", '"', ";", "/*", "=", "\0", "message", "5"]))
        + _EXAMPLE[at + data.draw(st.integers(0, 9)) :]
    )
    try:
        parse_proto(text, "a.proto")
    except SchemaError as error:
        message = str(error)
        assert "line" in message
