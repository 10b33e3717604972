"""Rows that meet a condition: the same as of a whole read, and nothing made for the others."""

from __future__ import annotations

from operator import eq, ge, gt, le, lt

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import storage_core.record.section as sections_module
import storage_core.scan.rows as rows_module
from storage_core.errors import CorruptRecordError, TimestampRangeError
from storage_core.options.predicate import And, Comparison, In, IsNull, Not, Or, StartsWith
from storage_core.record import arrow_columns
from storage_core.scan.rows import schema_with_condition
from storage_core.scan.spans import record_schema
from tests.examples import examples
from tests.record.encoding import GZIP, SNAPPY
from tests.record.legacy_encoding import Message, Wrapper

KEYS = [None, b"", b"a", b"ab", b"b", b"\xff"]
CONDITIONS = {
    "key = 'a'": lambda row: row["key"] == b"a",
    "key <> 'a'": lambda row: row["key"] is not None and row["key"] != b"a",
    "key IS NULL": lambda row: row["key"] is None,
    "key LIKE 'a%'": lambda row: row["key"] is not None and row["key"].startswith(b"a"),
    "value > 'v5'": lambda row: row["value"] > b"v5",
    "value > 'v5' AND key = 'a'": lambda row: row["value"] > b"v5" and row["key"] == b"a",
    "offset IN (3, 17, 40)": lambda row: row["offset"] in (3, 17, 40),
    "offset >= 7 AND offset < 33": lambda row: 7 <= row["offset"] < 33,
    "timestamp >= '1970-01-01 00:00:00.020'": lambda row: row["timestamp"] >= 20_000,
    "timestamp < '1970-01-01 00:00:00.020' OR key = 'b'": lambda row: (
        row["timestamp"] < 20_000 or row["key"] == b"b"
    ),
    "topic = 'events'": lambda row: True,
    "topic = 'others' OR key = 'a'": lambda row: row["key"] == b"a",
    "NOT partition = 0": lambda row: False,
    "TRUE": lambda row: True,
    "FALSE": lambda row: False,
    "NULL": lambda row: False,
    "key = NULL OR offset = 5": lambda row: row["offset"] == 5,
}


@pytest.fixture
def log(log_root, record_of):
    """48 records in batches of six, of every codec, transactional ones among them; keys in turns."""
    log = log_root.rows()
    for number in range(8):
        records = [
            record_of(
                delta,
                6 * number + delta,
                KEYS[(number + delta) % len(KEYS)],
                b"v%d" % ((number * delta) % 10),
                (("h", b"%d" % delta),) * (delta % 2),
            )
            for delta in range(6)
        ]
        log.append(*records, codec=number % 5)
        if number == 4:
            log.roll()
    return log.write()


def chosen(rows, meets):
    return [row for row in rows if meets(row)]


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize(
    "columns",
    [
        None,
        ["offset"],
        ["value"],
        ["key", "offset"],
        ["_metadata", "offset"],
        ["headers"],
        ["topic", "partition"],
        ["timestampType", "timestamp"],
    ],
    ids=str,
)
def test_a_condition_chooses_rows_and_changes_none(log, read_rows, condition, columns):
    expected = chosen(log.rows, CONDITIONS[condition])
    if columns is not None:
        expected = [{name: row[name] for name in columns} for row in expected]
    assert read_rows(log.path, where=condition, columns=columns) == expected


@examples(40)
@given(
    st.integers(0, 48),
    st.integers(0, 48),
    st.sets(st.sampled_from(KEYS[1:])),
    st.booleans(),
    st.sampled_from([1, 3, 1 << 16]),
)
def test_any_rows_may_be_chosen(log, read_rows, start, end, keys, is_negated, task_records):
    membership = In("key", tuple(keys))
    predicate = And((Not(membership) if is_negated else membership, Comparison("offset", ">=", start)))
    expected = [
        row
        for row in log.rows
        if row["key"] is not None and (row["key"] in keys) != is_negated and start <= row["offset"] < end
    ]
    found = read_rows(log.path, where=predicate, end=end, max_records_per_partition=task_records)
    assert found == expected


def test_old_formats_and_their_wrappers_keep_the_offset_of_their_batch(log_root, record_of, read_rows):
    log = log_root.rows()
    messages = tuple(Message(offset, 100 + offset, b"k%d" % (offset % 3)) for offset in range(3, 12))
    log.old(Message(key=b"k1", magic=0), Wrapper(messages[:4], SNAPPY), Wrapper(messages[4:], GZIP))
    log.append(record_of(0, 5, b"k1"), record_of(1, 6, b"k2"))
    log.write()
    found = read_rows(log.path, where="key = 'k1'")
    assert found == [row for row in log.rows if row["key"] == b"k1"]
    assert len({row["_metadata"]["batchOffset"] for row in found}) > 2


def test_what_no_row_needs_is_not_made(log, read_rows, monkeypatch):
    made = []
    binary_array = arrow_columns.binary_array

    def counting(buffer, column):
        made.append(len(column.starts))
        return binary_array(buffer, column)

    monkeypatch.setattr(rows_module, "binary_array", counting)
    # Keys are made of all rows, values of none.
    assert read_rows(log.path, where="key = 'none'", columns=["value"]) == []
    assert sum(made) == 48
    made.clear()
    assert len(read_rows(log.path, where="key = 'a'", columns=["value"])) == 8
    assert sum(made) == 48 + 8
    made.clear()
    assert len(read_rows(log.path, where="offset IN (3, 17, 40)", columns=["value"])) == 3
    assert sum(made) == 3
    made.clear()
    assert len(read_rows(log.path, where="topic = 'events' AND offset < 100", columns=["value"])) == 48
    assert sum(made) == 48


def test_values_are_not_looked_at_for_offsets(log, scan, monkeypatch):
    # Every batch holds as many records as offsets: their headers tell all that is wanted.
    monkeypatch.delattr(sections_module.SectionMaker, "_decompressed")
    planned = scan(log.path, where="offset IN (3, 17, 40) AND topic LIKE 'ev%'", columns=["offset"])
    assert planned.offsets() == [3, 17, 40]


@pytest.fixture
def decoded(monkeypatch):
    """Return the base offsets of the batches that are decoded."""
    decoded = []
    sections = sections_module.SectionMaker.sections

    def recording(maker, window, indexes):
        decoded.extend(window.headers["base_offset"][indexes].tolist())
        return sections(maker, window, indexes)

    monkeypatch.setattr(sections_module.SectionMaker, "sections", recording)
    return decoded


@pytest.mark.parametrize(
    ("condition", "batches"),
    [
        ("offset >= 20", [3, 4, 5, 6, 7]),
        ("offset < 20", [0, 1, 2, 3]),
        ("offset IN (13, 25)", [2, 3, 4]),
        # No header tells the smallest timestamp, nor for sure the largest of a producer.
        ("timestamp >= '1970-01-01 00:00:00.040'", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("timestamp < '1970-01-01 00:00:00.010'", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("key = 'a'", [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_batches_that_their_headers_rule_out_are_not_decoded(log, read_rows, decoded, condition, batches):
    read_rows(log.path, where=condition)
    assert decoded == [6 * number for number in batches]


@pytest.mark.parametrize(
    ("condition", "batches"),
    [
        ("timestamp >= '1970-01-01 00:00:00.040'", [0, 4, 5, 7]),
        # In the segment from 30 on, no offset is 20: there the timestamp decides.
        ("timestamp >= '1970-01-01 00:00:00.040' OR offset = 20", [0, 1, 2, 3, 4, 5, 7]),
    ],
)
def test_headers_with_log_append_time_rule_out_batches(
    log_root, record_of, read_rows, decoded, condition, batches
):
    log = log_root.rows()
    for number in range(8):
        records = [record_of(delta, 1000, b"k") for delta in range(6)]
        # Two batches have timestamps of their producer, which a header does not prove.
        append_time_ms = None if number in (0, 5) else 40 if number in (4, 7) else 39
        log.append(*records, append_time_ms=append_time_ms, claimed_max_ms=-1, codec=number % 5)
        if number == 4:
            log.roll()
    log.write()
    found = read_rows(log.path, where=condition)
    assert [row["offset"] for row in found] == [
        row["offset"]
        for row in log.rows
        if row["timestamp"] >= 40_000 or ("OR" in condition and row["offset"] == 20)
    ]
    assert decoded == [6 * number for number in batches]


CLAIMS = st.sampled_from([None, None, -1, 0, "smaller", "first", "larger"])
# Timestamps of the records of a batch, what its header claims, and whether the broker's clock counts.
BATCHES = st.lists(
    st.tuples(st.lists(st.integers(1, 99), min_size=1, max_size=4), CLAIMS, st.booleans(), st.integers(0, 4)),
    min_size=1,
    max_size=12,
)


@examples(150)
@given(
    BATCHES,
    st.sampled_from([">=", ">", "=", "<", "<="]),
    st.integers(0, 100),
    st.sets(st.integers(1, 11)),
    st.sampled_from(["FAILFAST", "DROPMALFORMED"]),
    st.booleans(),
)
def test_what_a_header_claims_decides_no_row(
    new_log_root, record_of, read_rows, batches, operator, time_ms, rolls, mode, is_promised
):
    log = new_log_root().rows()
    for number, (timestamps_ms, claim, is_append_time, codec) in enumerate(batches):
        if number in rolls:
            log.roll()
        known = {"smaller": max(timestamps_ms) - 1, "first": timestamps_ms[0], "larger": 200}
        records = [record_of(delta, each, b"k") for delta, each in enumerate(timestamps_ms)]
        if is_append_time:
            log.append(*records, append_time_ms=timestamps_ms[0], codec=codec)
        else:
            log.append(*records, claimed_max_ms=known.get(claim, claim), codec=codec)
    log.write(index_interval_bytes=1)
    condition = Comparison("timestamp", operator, time_ms * 1000)
    # A promise that always holds.
    promise = {"max_timestamp_disorder": 100} if is_promised else {}
    found = read_rows(log.path, where=condition, mode=mode, **promise)
    compare = {">=": ge, ">": gt, "=": eq, "<": lt, "<=": le}[operator]
    assert found == [row for row in log.rows if compare(row["timestamp"], time_ms * 1000)]


def test_what_is_not_decoded_is_checked_all_the_same(log, read_rows, overwrite):
    overwrite(log.log_path(), log.places[0][0][1] - 1, b"\xee")
    with pytest.raises(CorruptRecordError, match="CRC"):
        read_rows(log.path, where="offset >= 20")


def test_old_batches_are_decoded_whatever_their_headers_say(log_root, read_rows):
    # Nothing but its records tells where a wrapper begins, nor how young they are.
    log = log_root.rows()
    messages = tuple(Message(offset, 100 + offset, b"k") for offset in range(5))
    log.old(Wrapper(messages, GZIP, timestamp_ms=50)).write()
    assert [row["offset"] for row in read_rows(log.path, where="timestamp >= '1970-01-01 00:00:00.103'")] == [
        3,
        4,
    ]


def test_a_timestamp_that_fits_no_column_fails_only_whoever_needs_it(log_root, record_of, read_rows):
    log = log_root.rows()
    log.append(record_of(0, 5, b"a"), record_of(1, 2**62, b"b")).write()
    columns = ["offset", "timestamp"]
    assert [row["offset"] for row in read_rows(log.path, where="key = 'a'", columns=columns)] == [0]
    with pytest.raises(TimestampRangeError):
        read_rows(log.path, where="key = 'b'", columns=columns)
    with pytest.raises(TimestampRangeError):
        read_rows(log.path, where="timestamp > '2000-01-01'", columns=["offset"])


def test_batches_are_never_empty_and_of_the_schema(log, scan):
    planned = scan(log.path, where="value = 'v4'", columns=["key", "offset"])
    made = list(planned.batches())
    assert made
    assert all(found.num_rows and found.schema == planned.schema for found in made)


@pytest.mark.parametrize(
    ("predicate", "added"),
    [
        (None, []),
        (Comparison("offset", "=", 1), []),
        (Or((IsNull("key"), StartsWith("value", b"a"))), ["key", "value"]),
        (Not(Comparison("timestamp", "=", 1)), ["timestamp"]),
    ],
)
def test_columns_that_only_the_condition_needs_come_last(predicate, added):
    schema = pa.schema([record_schema().field("offset"), record_schema().field("topic")])
    assert schema_with_condition(schema, predicate).names == ["offset", "topic", *added]
