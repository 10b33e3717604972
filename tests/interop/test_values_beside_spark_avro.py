"""Types and values of Avro are those of Spark's own ``from_avro``, but for the differences that docs/values.md names."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError

from benchmarks.settings import Settings, default_cache_directory
from benchmarks.spark.programs import SPARK_AVRO, jars_of
from spark_segmentlog.schema import spark_type
from storage_core.errors import SchemaResolutionError
from storage_core.values.avro import avro_decoder
from storage_core.values.decoding import SchemaSource
from tests.interop.conftest import sample
from tests.values.canonical import canonical, payloads, source_of_schema, values_with_expected
from tests.values.random_avro import Peer, RandomSchema, evolved, number
from tests.values.typed_logs import expected_values, unpack_typed_logs

pytestmark = pytest.mark.spark

_SCHEMAS = 200
_ROWS = 30
# As many columns as one job of Spark decodes.
_COLUMNS = 20
_FRAME_BYTES = 5


@dataclass
class Case:
    """Values of a schema, and the schema that they are read with; they are sound if all of them decode."""

    name: str
    writer: Any
    reader: Any
    values: list[bytes]
    is_sound: bool = False

    def __post_init__(self):
        sources = [SchemaSource(json.dumps(schema)) for schema in (self.writer, self.reader)]
        self.decoder = avro_decoder(*sources)
        self.spark_type = spark_type(self.decoder.arrow_type)

    def decode(self):
        """Return our values, and the rows that do not decode."""
        decoded = self.decoder.decode(payloads(self.values))
        return canonical(decoded.array), {error.row for error in decoded.errors}

    def expression(self, column, mode):
        """Return the call of Spark's function that reads them."""
        options = f"map('mode', '{mode}', 'avroSchema', r'{json.dumps(self.reader)}')"
        return f"from_avro({column}, r'{json.dumps(self.writer)}', {options}) AS {column}"


class SparkAvro:
    """Spark's own ``from_avro``. It is that of another version, and runs in this Spark, too."""

    def __init__(self, spark):
        settings = Settings(quick=True, repetitions=1, cache_directory=default_cache_directory())
        for jar in jars_of(SPARK_AVRO, settings).split(","):
            spark.sql(f"ADD JAR '{jar}'")
        self._spark = spark

    def read(self, cases):
        """Yield each case with Spark's type and values, which are None where they cannot be transferred."""
        for start in range(0, len(cases), _COLUMNS):
            part = {f"c{index}": case for index, case in enumerate(cases[start : start + _COLUMNS])}
            frame = self._frame(part, "PERMISSIVE")
            moved = [
                name for name, case in part.items() if not _has_nulls_below_list(case.decoder.arrow_type)
            ]
            table = frame.select(*moved).toArrow()
            self._check_failfast(part)
            for name, case in part.items():
                values = canonical(table[name].combine_chunks()) if name in moved else None
                yield case, frame.schema[name].dataType, values and values[: len(case.values)]

    def _check_failfast(self, named):
        """Check that values without an error are read in this mode, too; the types differ in what may be null."""
        fields = self._frame(named, "FAILFAST").schema.fields
        names = [each.dataType.simpleString() for each in fields]
        assert names == [case.spark_type.simpleString() for case in named.values()]
        sound = {name: case for name, case in named.items() if case.is_sound}
        if sound:
            # It fails at a value that does not decode.
            self._frame(sound, "FAILFAST").selectExpr(*(f"count({name})" for name in sound)).collect()

    def value(self, case):
        """Return what Spark's function makes of the first value of a case in mode FAILFAST, as JSON; None if it fails."""
        frame = self._frame({"c0": case}, "FAILFAST")
        try:
            [[text]] = frame.selectExpr("to_json(struct(c0))").collect()
        except Py4JJavaError as error:
            if "Malformed records are detected" in str(error):
                return None
            raise
        return json.loads(text)["c0"]

    def _frame(self, named, mode):
        rows = max(len(case.values) for case in named.values())
        columns = {
            name: pa.array(case.values + [None] * (rows - len(case.values)), pa.binary())
            for name, case in named.items()
        }
        read = [case.expression(name, mode) for name, case in named.items()]
        return self._spark.createDataFrame(pa.table(columns)).selectExpr(*read)


def _has_nulls_below_list(kind, *, is_below=False):
    """Return True for a type that Spark's Arrow batches have wrong: they lack the length of nulls within lists and maps."""
    if pa.types.is_null(kind):
        return is_below
    is_below |= pa.types.is_list(kind) or pa.types.is_map(kind)
    return any(_has_nulls_below_list(kind.field(i).type, is_below=is_below) for i in range(kind.num_fields))


@pytest.fixture(scope="module")
def spark_avro(spark):
    return SparkAvro(spark)


def random_case(seed):
    """Return values of a random schema, half of which are read with a later one; None if it is recursive."""
    rnd = random.Random(seed)
    is_evolved = rnd.random() < 0.5
    made = RandomSchema(rnd, rnd.choice([1, 2, 3, 4]), is_evolving=is_evolved)
    reader = evolved(rnd, made.schema) if is_evolved else made.schema
    if any(Peer(schema, schema).recursive for schema in (made.schema, reader)):
        return None
    values = [made.value(made.schema) for _ in range(_ROWS)]
    return Case(str(seed), *_comparable(made.schema, reader), values, not is_evolved)


def _comparable(*schemas):
    """Return schemas of the same bytes that Spark can read: without times, and with no union outside a record."""
    schemas = [_without_times(schema) for schema in schemas]
    # The reader's schema may have a union where the writer's has a single type. If either is a union, wrap both: a
    # record does not resolve against another type.
    has_union = any(isinstance(schema, list) for schema in schemas)
    return [record(schema) if has_union else schema for schema in schemas]


def _without_times(schema):
    return json.loads(json.dumps(schema).replace('"time-micros"', '"as it is"'))


def record(kind, name="R", **attributes):
    return {"type": "record", "name": name, "fields": [{"name": "f", "type": kind, **attributes}]}


def logical(kind, logical_type, **attributes):
    return {"type": kind, "logicalType": logical_type, **attributes}


def differences(case, found_type, found):
    """Yield the differences between what Spark has and what we have."""
    if found_type != case.spark_type:
        yield f"{case.name}: type {found_type.simpleString()}, ours {case.spark_type.simpleString()}"
    if found is None:
        return
    values, failed = case.decode()
    for row, (theirs, ours) in enumerate(zip(found, values, strict=True)):
        # Where a record does not decode, Spark has a record of nulls.
        is_same = _is_nulls(theirs) if row in failed else theirs == ours
        if not is_same:
            yield f"{case.name}, row {row}: {theirs}, ours {ours}"


def _is_nulls(value):
    return value is None or (isinstance(value, dict) and not any(each is not None for each in value.values()))


@pytest.mark.parametrize("first", sample(range(0, 10 * _SCHEMAS, _SCHEMAS), 1))
def test_random_values_of_random_schemas(spark_avro, first):
    cases = [case for seed in range(first, first + _SCHEMAS) if (case := random_case(seed)) is not None]
    # About 18 of 100 are recursive. The share of 200 varies: it is 0.795 to 0.865 with these seeds.
    assert len(cases) > _SCHEMAS * 0.7
    found = [text for read in spark_avro.read(cases) for text in differences(*read)]
    assert found == []


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    return str(unpack_typed_logs(tmp_path_factory.mktemp("typed")))


def topic_cases(logs, topic):
    """Return a case for each schema that values of a topic were written with."""
    reader = _inlined(source_of_schema(logs, expected_values()["topics"][topic]["value_schema_id"], topic))
    # Spark refuses recursive records, but may leave them out.
    reader["fields"] = [field for field in reader["fields"] if field["name"] not in ("tree", "chain")]
    values: dict[int, list[bytes]] = {}
    for value, expected in values_with_expected(logs, topic):
        if "v" in expected:
            values.setdefault(int.from_bytes(value[1:_FRAME_BYTES], "big"), []).append(value[_FRAME_BYTES:])
    return [
        Case(
            f"{topic} {schema_id}",
            _inlined(source_of_schema(logs, schema_id, topic)),
            reader,
            written,
            is_sound=True,
        )
        for schema_id, written in values.items()
    ]


def _inlined(source):
    """Return a schema with those that it refers to, each where it is used first."""
    named = {name.rpartition(".")[2]: json.loads(text) for name, text in source.references}

    def inline(schema):
        if isinstance(schema, list):
            return [inline(branch) for branch in schema]
        if isinstance(schema, dict):
            parts = ("type", "items", "values", "fields")
            return {key: inline(value) if key in parts else value for key, value in schema.items()}
        is_referred_to = isinstance(schema, str) and schema.rpartition(".")[2] in named
        return inline(named.pop(schema.rpartition(".")[2])) if is_referred_to else schema

    return _without_times(inline(json.loads(source.text)))


def test_topics_of_a_registry(spark_avro, logs):
    topics = ("avro-simple", "avro-nested", "avro-evolved", "avro-keys", "avro-mixed-bad")
    cases = [case for topic in topics for case in topic_cases(logs, topic)]
    assert sum(len(case.values) for case in cases) > 1500
    assert [text for read in spark_avro.read(cases) for text in differences(*read)] == []


_FIXED = {"type": "fixed", "name": "F", "size": 12}
_ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
_FEWER = {"type": "enum", "name": "E", "symbols": ["A", "Z"]}
_CENTS = logical("bytes", "decimal", precision=4, scale=2)
# What random schemas do not have: a type, the bytes of a value, and the type that it is read with.
_CASES = [
    (logical("string", "uuid"), b"\x02a", None),
    ({**_FIXED, "size": 16, "logicalType": "uuid"}, bytes(range(16)), None),
    ({**_FIXED, "logicalType": "duration"}, bytes(range(12)), None),
    (logical("bytes", "big-decimal"), b"\x06\x02\x01\x02", None),
    (logical("long", "date"), number(5), None),
    (logical("int", "timestamp-millis"), number(5), None),
    (logical("int", "date"), number(-171_000), None),
    (logical("int", "date"), number(-(1 << 31)), None),
    (logical("long", "timestamp-micros"), number((1 << 63) - 1), None),
    (logical("long", "timestamp-millis"), number(1 << 62), None),
    (logical("bytes", "decimal", precision=5), b"\x02\x05", None),
    (logical("bytes", "decimal", precision=0), b"\x02\x05", None),
    (logical("bytes", "decimal", precision=2, scale=3), b"\x02\x01", None),
    (logical("bytes", "decimal", precision=2, scale=1), b"\x04\x7f\xff", None),
    ({**_FIXED, "size": 2, "logicalType": "decimal", "precision": 30, "scale": 2}, b"\x00\x05", None),
    (["int"], b"\x00\x02", None),
    (["null"], b"\x00", None),
    ([logical("int", "date"), "long"], b"\x00\x02", None),
    (["int", logical("long", "timestamp-millis")], b"\x02\x02", None),
    (["long", "float"], b"\x00\x02", None),
    (["int", "long", "string"], b"\x02\x02", None),
    ([_CENTS, "string"], b"\x00\x02\x05", None),
    ({"type": "map", "values": "int"}, b"\x04\x02a\x02\x02a\x04\x00", None),
    ("int", b"", None),
    (_ENUM, b"\x04", None),
    (["null", "int"], b"\x04", None),
    ("int", b"\x02", ["null", "string", "long"]),
    (["null", "int"], b"\x02\x02", "int"),
    (["null", "int"], b"\x00", "int"),
    ("long", number((1 << 62) + 1), "float"),
    ("bytes", b"\x02a", "string"),
    ("int", number(7), logical("long", "timestamp-millis")),
    (logical("long", "timestamp-millis"), number(7), logical("long", "timestamp-micros")),
    (_CENTS, b"\x02\x05", logical("bytes", "decimal", precision=6, scale=2)),
    (_CENTS, b"\x02\x05", "bytes"),
    ("string", b"\x02a", _CENTS),
    (_ENUM, b"\x02", {**_FEWER, "default": "Z"}),
    (_ENUM, b"\x02", _FEWER),
]


def test_types_and_values_that_are_seldom(spark_avro):
    cases = [
        Case(f"{kind} as {read_as}", record(kind), record(kind if read_as is None else read_as), [value])
        for kind, value, read_as in _CASES
    ]
    cases += [
        Case(f"{kind} as {read_as}", kind, read_as, [value])
        for kind, value, read_as in [
            ("null", b"", "null"),
            (["null", "int"], b"\x02\x02", ["null", "int"]),
            ("int", b"\x02", ["null", "double"]),
        ]
    ]
    assert [text for read in spark_avro.read(cases) for text in differences(*read)] == []


def unresolved(writer, reader, value):
    """Return a case for Spark alone, whose schemas do not resolve for us."""
    with pytest.raises(SchemaResolutionError):
        Case("", writer, reader, [])
    case = Case("", writer, writer, [value])
    case.reader = reader
    return case


@pytest.mark.parametrize(
    ("kind", "read_as"),
    [("long", "int"), ("double", "float"), (_ENUM, {**_ENUM, "name": "G"}), (_FIXED, {**_FIXED, "size": 1})],
)
def test_schemas_that_do_not_resolve(spark_avro, kind, read_as):
    assert spark_avro.value(unresolved(record(kind), record(read_as), bytes(12))) is None


@pytest.mark.parametrize(
    ("writer", "reader", "value", "theirs"),
    [
        (record("int"), record("int", "S"), b"\x02", {"f": 1}),
        (record(record("int", "P")), record(record("int", "Q")), b"\x02", {"f": {"f": 1}}),
        (record(_CENTS), record({**_CENTS, "precision": 6, "scale": 3}), b"\x02\x05", {"f": 0.005}),
    ],
)
def test_spark_compares_neither_names_of_records_nor_scales(spark_avro, writer, reader, value, theirs):
    assert spark_avro.value(unresolved(writer, reader, value)) == theirs


# What docs/values.md says is otherwise: a schema, the bytes of a value, what Spark makes of it, and what we do; None: an error.
_DIFFERENCES = {
    "bytes are left": (record("int"), b"\x02\x02", {"f": 1}, None),
    "text that is not UTF-8": (record("string"), b"\x02\xff", {"f": "\ufffd"}, None),
    "a boolean that is neither": (record("boolean"), b"\x02", {"f": False}, None),
    "a decimal without bytes": (record(_CENTS), b"\x00", None, {"f": "0.00"}),
    "a union that is no field": (["int", "string"], b"\x00\x02", None, {"member0": 1, "member1": None}),
    "a time of day": (record(logical("long", "time-micros")), b"\x0a", {"f": "00:00:00.000005"}, {"f": 5}),
    "fields that differ in case": (
        {
            "type": "record",
            "name": "R",
            "fields": [{"name": "a", "type": "int"}, {"name": "A", "type": "int"}],
        },
        b"\x02\x04",
        None,
        {"a": 1, "A": 2},
    ),
}


@pytest.mark.parametrize("name", _DIFFERENCES)
def test_differences(spark_avro, name):
    schema, value, theirs, ours = _DIFFERENCES[name]
    case = Case(name, schema, schema, [value])
    assert spark_avro.value(case) == theirs
    assert case.decode() == ([ours], {0} if ours is None else set())


def test_a_record_that_contains_itself_is_refused_by_spark(spark_avro):
    schema = record(["null", "R"])
    case = Case("recursive", schema, schema, [b"\x00"])
    assert case.decode() == (['{"f":null}'], set())
    with pytest.raises(Exception, match="recursive reference"):
        spark_avro.value(case)
