"""A condition in ``where`` means the same as in ``df.filter``: random conditions over random rows."""

from __future__ import annotations

import datetime as dt
import random

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import datasource

from storage_core import read_table
from storage_core.options.where import parse_where
from storage_core.scan.row_filter import evaluate

# Spark 4.0, which has no filters for sources either, reads 'it''s' as two literals: its.
DOUBLES_QUOTES = hasattr(datasource, "Filter")
CONDITIONS_AT_ONCE = 25
EXAMPLES = 50

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
DAY_US = 86_400_000_000
NEW_YEAR_US = 1_767_225_600_000_000
TEXTS = [
    "",
    "a",
    "ab",
    "abc",
    "aB",
    "b",
    "ä",
    "äb",
    "it's",
    "a%b",
    "a_b",
    "a\\b",
    "a\nb",
    "\ufffd",
    "\U0001f600",
    "z" * 20,
]
BINARIES = [
    *(text.encode() for text in TEXTS),
    b"\x00", b"a\x00", b"\x7f", b"\x80", b"\xc3", b"\xff", b"\xff\xfe", b"ab\xff", b"\xed\xa0\x80", b"\xf0\x9f\x98",
]  # fmt: skip
INTEGERS = [0, 1, 2, 3, 7, -1, -2, 100, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63 - 1, -(2**63)]
BEYOND = [2**63, -(2**63) - 1, 10**20, -(10**37)]
TIMES_US = [NEW_YEAR_US + step for step in (0, 1000, -1000, DAY_US, -DAY_US, 3_600_000_000, 123_000)] + [
    0,
    -1000,
]


def random_rows(seed, never_null):
    """Rows with nulls and with values that the conditions mention."""
    chance = random.Random(seed)
    rows = []
    for _ in range(40):
        row = {
            "topic": chance.choice(TEXTS),
            "partition": chance.choice([value for value in INTEGERS if -(2**31) <= value < 2**31]),
            "offset": chance.choice(INTEGERS),
            "timestamp": chance.choice(TIMES_US),
            "key": chance.choice(BINARIES),
            "value": bytes(chance.choices(range(256), k=2))
            if chance.random() < 0.3
            else chance.choice(BINARIES),
        }
        rows.append(
            {
                name: None if name not in never_null and chance.random() < 0.15 else value
                for name, value in row.items()
            }
        )
    return pa.Table.from_pylist(rows, schema=SCHEMA)


# -- Conditions as users write them --------


@st.composite
def column(draw, *names):
    name = draw(st.sampled_from(names))
    spelled = draw(st.sampled_from([name, name, name.upper(), name.capitalize(), f"`{name}`", f"({name})"]))
    return name, spelled


@st.composite
def text_literal(draw, text):
    """Return one of the many SQL spellings of a string."""
    quote = draw(st.sampled_from(["'", "'", '"']))
    plain = text.replace("\\", "\\\\").replace(quote, "\\" + quote)
    ways = [f"{quote}{plain}{quote}"]
    if "'" not in text or DOUBLES_QUOTES:
        ways.append(f"'{text.replace(chr(92), chr(92) * 2).replace(chr(39), chr(39) * 2)}'")
    if "'" not in text and "\\" not in text:
        ways += [f"r'{text}'", f"'{text[:1]}' '{text[1:]}'"]
    escaped = "".join(
        f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}" for letter in text
    )
    ways.append(f"'{escaped}'")
    if all(0 < ord(letter) < 128 for letter in text):
        ways.append("'" + "".join(f"\\{ord(letter):03o}" for letter in text) + "'")
    return draw(st.sampled_from(ways))


@st.composite
def bytes_literal(draw):
    content = draw(st.sampled_from(BINARIES))
    digits = content.hex()
    return draw(st.sampled_from([f"X'{digits}'", f"x'{digits.upper()}'"]))


@st.composite
def number_literal(draw, beyond):
    value = draw(st.sampled_from(INTEGERS + beyond) | st.integers(-5, 10))
    ways = [str(value)]
    if -(2**63) < value < 2**63:
        ways.append(f"{value}L")
    if value > 0:
        ways += [f"+{value}", f"00{value}"]
    if 0 < value < 1000:
        ways.append(f"- -{value}")
    if value < 0:
        ways.append(f"- {-value}")
    return draw(st.sampled_from(ways))


@st.composite
def time_literal(draw):
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(
        microseconds=draw(st.sampled_from(TIMES_US)) + draw(st.sampled_from([0, 0, 0, 1, -1, 500]))
    )
    shifted = moment.astimezone(dt.timezone(dt.timedelta(hours=5, minutes=30)))
    ways = [
        moment.strftime("%Y-%m-%d %H:%M:%S.%f"),
        moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        shifted.strftime("%Y-%m-%d %H:%M:%S.%f +05:30"),
        f"{moment.year}-{moment.month}-{moment.day} {moment.hour}:{moment.minute}:{moment.second}",
        moment.strftime("%Y-%m-%d"),
        moment.strftime("%Y-%m"),
        moment.strftime("%Y"),
        moment.strftime("  %Y-%m-%d %H:%M:%S.%f999UTC+01:00 "),
        moment.strftime("%Y-%m-%d %H:%M:%S.%f Europe/Berlin"),
    ]
    text = draw(st.sampled_from(ways))
    forms = [f"'{text}'", f"'{text}'", f"TIMESTAMP '{text}'", f"CAST('{text}' AS TIMESTAMP)"]
    return draw(st.sampled_from(forms))


ANY_COLUMN = column(*SCHEMA.names)
OPERATORS = ["=", "==", "!=", "<>", "<", "<=", ">", ">=", "<=>"]


def literal(name, beyond):
    if name in ("partition", "offset"):
        value = number_literal(beyond)
    elif name == "timestamp":
        value = time_literal()
    elif name == "topic":
        value = st.sampled_from(TEXTS).flatmap(text_literal)
    else:
        value = st.sampled_from(TEXTS).flatmap(text_literal) | bytes_literal()
    return st.one_of(value, value, value, value, value.map(lambda text: f"({text})"), st.just("NULL"))


@st.composite
def comparison(draw, beyond):
    name, spelled = draw(ANY_COLUMN)
    sides = [spelled, draw(literal(name, beyond))]
    if draw(st.booleans()):
        sides.reverse()
    return f" {draw(st.sampled_from(OPERATORS))} ".join(sides)


@st.composite
def membership(draw, beyond):
    name, spelled = draw(ANY_COLUMN)
    items = draw(st.lists(literal(name, beyond), min_size=1, max_size=4))
    return f"{spelled} {draw(st.sampled_from(['IN', 'in', 'NOT IN']))} ({', '.join(items)})"


@st.composite
def between(draw, beyond):
    name, spelled = draw(ANY_COLUMN)
    low, high = draw(literal(name, beyond)), draw(literal(name, beyond))
    return f"{spelled} {draw(st.sampled_from(['', 'NOT ']))}BETWEEN {low} AND {high}"


@st.composite
def like(draw):
    _, spelled = draw(column("topic", "key", "value"))
    # In some of Spark's plans, invalid UTF-8 matches the replacement character. It does not in Spark's other
    # plans, nor here.
    prefix = draw(st.sampled_from([text for text in TEXTS if text != "\ufffd"]))[: draw(st.integers(1, 20))]
    escape = draw(st.sampled_from(["\\", "\\", "/", "a"]))
    pattern = "".join(escape + letter if letter in ("%", "_", escape) else letter for letter in prefix)
    pattern += draw(st.sampled_from(["%", "%", "%%", ""]))
    spelled_pattern = draw(text_literal(pattern))
    clause = "" if escape == "\\" else f" ESCAPE '{escape}'"
    return f"{spelled} {draw(st.sampled_from(['LIKE', 'NOT LIKE', 'like']))} {spelled_pattern}{clause}"


@st.composite
def null_test(draw):
    _, spelled = draw(ANY_COLUMN)
    return f"{spelled} IS {draw(st.sampled_from(['', 'NOT ']))}NULL"


CONSTANTS = ["TRUE", "false", "NULL", "1 = 1", "NULL IS NULL", "'a' > 'b'", "NULL <=> NULL"]


def conditions(beyond):
    leaf = st.one_of(
        comparison(beyond),
        comparison(beyond),
        membership(beyond),
        between(beyond),
        like(),
        null_test(),
        st.sampled_from(CONSTANTS),
    )
    return st.recursive(
        leaf,
        lambda children: st.one_of(
            st.tuples(children, st.sampled_from([" AND ", " OR ", "\n or ", " and "]), children).map("".join),
            st.tuples(children, st.sampled_from([" AND ", " OR "]), children).map("".join),
            st.sampled_from(["NOT {}", "! ({})", "NOT NOT {}", "({})"]).flatmap(
                lambda form: children.map(form.format)
            ),
        ),
        max_leaves=5,
    )


# -- The same answers --------


# Records always have these.
NEVER_NULL = ["topic", "partition", "offset"]
# Spark 4.3 evaluates comparisons of null with numbers beyond 64 bits to true or false instead of null. So these
# numbers are used only where nothing is null, as in a log.
KINDS = [(NEVER_NULL, BEYOND), (NEVER_NULL, BEYOND), ([], []), ([], [])]
QUESTIONS = st.sampled_from(range(len(KINDS))).flatmap(
    lambda number: st.tuples(
        st.just(number),
        st.lists(conditions(KINDS[number][1]), min_size=CONDITIONS_AT_ONCE, max_size=CONDITIONS_AT_ONCE),
    )
)


class Data:
    """The same rows in Arrow and in Spark."""

    def __init__(self, spark, seed, never_null):
        self.table = random_rows(seed, never_null)
        self.frame = spark.createDataFrame(self.table)


@pytest.fixture(scope="module")
def data(spark):
    return [Data(spark, seed, never_null) for seed, (never_null, _) in enumerate(KINDS)]


def spark_answers(frame, conditions):
    """True, false or null for each row, one column per condition."""
    selected = [f"({condition}) AS c{number}" for number, condition in enumerate(conditions)]
    return frame.selectExpr(*selected).collect()


def our_answers(table, condition):
    (batch,) = table.combine_chunks().to_batches()
    return evaluate(parse_where(condition, dt.UTC, 0).predicate, batch)


@pytest.mark.spark
@pytest.mark.thorough
@settings(
    max_examples=EXAMPLES,
    # Each shrinking step runs a query, so finding the smallest example takes longer than reading this one.
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[*settings.default.suppress_health_check, HealthCheck.large_base_example],
)
@given(QUESTIONS)
def test_spark_gives_the_same_answers(data, question):
    number, asked = question
    theirs = zip(*spark_answers(data[number].frame, asked), strict=True)
    for condition, their in zip(asked, theirs, strict=True):
        assert our_answers(data[number].table, condition).to_pylist() == list(their), condition


# -- End to end --------

END_TO_END = [
    "offset >= 40 AND offset < 60",
    "key LIKE 'k1%' AND value IS NOT NULL OR key = X'6b37'",
    "NOT (key LIKE 'k1%')",
    "topic LIKE 'a%' AND timestamp BETWEEN '2023-11-14 22:13:30' AND TIMESTAMP '2023-11-14T22:13:40+00:00'",
    "partition < 1 AND (offset = 3 OR topic = 'b') OR offset IN (4, NULL)",
    "topic = 'c' OR key <=> NULL AND 99999999999999999999 > offset",
    "key LIKE ('k1%') ESCAPE r'/' OR topic LIKE 'a/_' ESCAPE '/'",
]


@pytest.mark.spark
def test_an_option_a_filter_and_a_table_give_the_same_rows(spark, logs):
    everything = spark.read.format("segmentlog").load(logs).select("topic", "partition", "offset")
    whole = spark.read.format("segmentlog").load(logs)
    for condition in END_TO_END:
        by_option = spark.read.format("segmentlog").option("where", condition).load(logs)
        # In parentheses: after WHERE, "offset" alone begins another clause.
        by_filter = whole.filter(f"({condition})").select(*everything.columns)
        table = read_table(logs, where=condition, columns=everything.columns)
        by_option = by_option.select(*everything.columns)
        assert_df_equality(by_option, by_filter, ignore_row_order=True)
        assert_df_equality(by_option, spark.createDataFrame(table, by_option.schema), ignore_row_order=True)


@pytest.mark.spark
def test_a_condition_and_columns_that_it_does_not_need(spark, logs):
    options = {"where": "key = 'k7' AND timestamp < '2024'", "maxTimestampDisorder": "1 second"}
    reader = spark.read.format("segmentlog").options(**options)
    assert [row.value for row in reader.schema("value binary").load(logs).collect()] == [b"v7"] * 3
    frame = spark.read.format("segmentlog").options(**options, columns="offset").load(logs)
    assert [tuple(row) for row in frame.collect()] == [(7,)] * 3


@pytest.mark.spark
@pytest.mark.skipif(
    not hasattr(datasource, "Filter"), reason="this Spark pushes no filters to Python sources"
)
def test_a_condition_joins_a_filter_that_is_pushed(spark, conf, logs):
    conf("spark.sql.python.filterPushdown.enabled", "true")
    reader = spark.read.format("segmentlog").options(filterPushdown="true", where="key LIKE 'k1%'")
    frame = reader.load(logs).filter("offset < 15 and partition = 0 and topic = 'a'")
    assert sorted(row.key for row in frame.collect()) == [b"k1", b"k10", b"k11", b"k13", b"k14"]
