"""Options that give keys and values a type: what they choose, and which contradict each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_core.errors import OptionError
from storage_core.options import parse_read_options


def parse(**options):
    return parse_read_options({"path": "logs", **options})


def test_keys_and_values_are_bytes_by_default():
    assert parse().value.format == parse().key.format == "bytes"
    assert parse().typed_columns == ()


def test_a_column_that_is_not_read_has_no_type():
    assert parse(valueFormat="json", columns="offset,key").typed_columns == ()


def test_options_of_both_columns():
    options = parse(
        value_format="registry",
        valueSchemaId="17",
        valuesubject="orders",
        KEY_FORMAT="Avro",
        keySchema='"int"',
    )

    value, key = options.typed_columns
    assert (value.column, value.format, value.schema_id, value.subject) == ("value", "registry", 17, "orders")
    assert (key.column, key.format, key.schema, key.names_registered) == ("key", "avro", '"int"', False)


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        ("/data/order.avsc", "/data/order.avsc"),
        (Path("order.proto"), "order.proto"),
        ({"type": "record"}, None),
        ('{"$id": "order.json"}', None),
        ('"string"', None),
        ("message A {}\n// as in order.proto", None),
    ],
)
def test_a_schema_is_a_text_or_a_file(schema, file):
    (choice,) = parse(value_format="avro", value_schema=schema).typed_columns
    assert choice.schema_file == file


def test_paths_name_fields_of_columns():
    options = parse(
        value_format="json", value_schema="{}", columns=["offset", "value.amount", "value.items.price", "key"]
    )

    assert options.columns == ("offset", "value", "key")
    assert options.typed_columns[0].fields == (("amount",), ("items", "price"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"valueSchema": '"int"'}, "valueSchema is for records with a schema, and valueFormat is bytes"),
        ({"keyFormat": "string", "keySchemaId": 1}, "keySchemaId is for records with a schema"),
        ({"valueFormat": "avro"}, "valueFormat=avro needs the schema"),
        ({"valueFormat": "protobuf", "valueMessage": "Order"}, "valueFormat=protobuf needs the schema"),
        ({"valueFormat": "json", "valueMessage": "Order"}, "valueMessage is for Protobuf"),
        ({"valueFormat": "registry", "valueSchema": '"int"', "valueSubject": "a"}, "both choose a schema"),
        ({"valueFormat": "registry", "valueSchemaId": 1, "valueSchemaVersion": 2}, "both choose a schema"),
        ({"valueFormat": "registry", "valueSchemaId": -1}, "must not be negative"),
        ({"valueFormat": "registry", "valueSchema": " "}, "valueSchema is ' '"),
        ({"valueFormat": "json", "where": "value = 'a'"}, "where compares the bytes of the value"),
        ({"keyFormat": "json", "where": "offset > 3 AND key IS NULL"}, "where compares the bytes of the key"),
        ({"columns": "value.amount"}, r"columns names value\.amount, and valueFormat=bytes without a schema"),
        (
            {"valueFormat": "json", "columns": "value.amount"},
            "valueFormat=json without a schema has no fields",
        ),
        ({"valueFormat": "json", "columns": "value,value.amount"}, "and all of 'value'"),
        ({"valueFormat": "json", "columns": "value..amount"}, "no path of fields"),
        ({"columns": "offset.a"}, r"unknown column 'offset\.a'"),
        ({"valueFormat": "json", "view": "batches"}, "valueFormat is for records, and view=batches has none"),
    ],
)
def test_options_that_contradict_each_other(options, message):
    with pytest.raises(OptionError, match=message):
        parse(**options)


def test_a_subject_may_come_with_an_id_or_a_version():
    assert parse(valueFormat="registry", valueSubject=":.ctx:a", valueSchemaId=3).typed_columns
    assert parse(valueFormat="registry", valueSubject="a", valueSchemaVersion=3).typed_columns
