"""From columns to Arrow batches: values, types and sizes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from storage_core import read_table
from storage_core.errors import TimestampRangeError
from storage_core.record import WantedFields, decode_records
from storage_core.record.section import MAX_ROWS, SectionMaker
from storage_core.scan.rows import RecordBatchBuilder, wanted_fields
from storage_core.scan.spans import project, record_schema
from tests.record.encoding import sized, varint

SCHEMA = record_schema(include_headers=True, include_metadata=True)
LARGEST_MS = (2**63 - 1) // 1000
ZSTD = 4


@pytest.fixture
def batches(window_of, span_of):
    """Makes the Arrow batches of a log, as a read of one window does."""

    def batches(log, *columns, maker=None, **span):
        schema = project(SCHEMA, columns or None)
        maker = maker or RecordBatchBuilder(schema)
        window = window_of(bytes(log.segments[-1].data))
        visible = np.flatnonzero(window.headers["record_count"])
        wanted = wanted_fields(schema)
        fields = {"base_offset": log.segments[-1].base_offset, "end_offset": log.next_offset, **span}
        span = span_of(file_name=f"{fields['base_offset']:020d}.log", **fields)
        for section in SectionMaker(64 << 20, wanted).sections(window, visible):
            for found in maker.batches(section, decode_records(section, wanted), span):
                found.validate(full=True)
                assert found.schema == schema
                yield found

    return batches


@pytest.fixture
def rows(batches):
    return lambda log, *columns, **span: [
        row for each in batches(log, *columns, **span) for row in each.to_pylist()
    ]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (["offset"], WantedFields(timestamp=False, key=False, value=False)),
        (["topic", "partition", "timestampType"], WantedFields(timestamp=False, key=False, value=False)),
        (["timestamp"], WantedFields(timestamp=True, key=False, value=False)),
        (["_metadata"], WantedFields(timestamp=True, key=False, value=False)),
        (["value", "headers"], WantedFields(timestamp=False, key=False, value=True, headers=True)),
        (["key"], WantedFields(timestamp=False, key=True, value=False)),
    ],
)
def test_only_what_the_columns_need_is_decoded(columns, expected):
    assert wanted_fields(project(SCHEMA, tuple(columns))) == expected


# -- Values --------


def test_null_and_empty_are_two_things(log_root, record_of, rows):
    log = log_root.rows().append(
        record_of(0, 0, None, None),
        record_of(1, 0, b"", b""),
        record_of(2, 0, b"k", None),
        record_of(3, 0, None, b"v"),
    )
    found = [(row["key"], row["value"]) for row in rows(log)]
    assert found == [(None, None), (b"", b""), (b"k", None), (None, b"v")]


def test_headers_are_null_where_there_are_none(log_root, record_of, rows):
    log = log_root.rows().append(
        record_of(0, headers=()),
        record_of(1, headers=(("a", b"1"), ("a", None), ("", b""))),
        record_of(2, headers=()),
        record_of(3, headers=(("ключ", b"\xff"),)),
    )
    pairs = [[("a", b"1"), ("a", None), ("", b"")], None, [("ключ", b"\xff")]]
    found = [
        each["headers"] and [(pair["key"], pair["value"]) for pair in each["headers"]] for each in rows(log)
    ]
    assert found == [None, *pairs]
    # Also where a span begins in the middle of a batch.
    found = [
        each["headers"] and [(pair["key"], pair["value"]) for pair in each["headers"]]
        for each in rows(log, "headers", start_offset=1)
    ]
    assert found == pairs


def test_header_keys_that_are_no_text_are_mended_as_java_does(log_root, rows):
    log = log_root.rows()
    # Length, attributes, deltas, null key, null value, one header: key ff, value null.
    log._append([bytes.fromhex("12 00 00 00 01 01 02 02 ff 01")], 1)
    assert rows(log, "headers") == [{"headers": [{"key": "\ufffd", "value": None}]}]


def raw_headers(*keys):
    """Return a record with headers of these keys, without values."""
    body = b"\0\0\0\x01\x01" + varint(len(keys)) + b"".join(sized(key) + b"\x01" for key in keys)
    return sized(body)


def test_one_line_for_each_partition_says_which_header_keys_are_not_what_they_were(log_root, caplog):
    for partition in (0, 1, 2):
        log = log_root.rows("events", partition)
        log._append([raw_headers(b"text")], 1)
        log._append([raw_headers("\ufffd".encode(), b"k" if partition == 2 else b"\xff")], 1).roll()
        log._append([raw_headers(b"a", *([b"\xc3", b"\xed\xa0\x80"] if partition == 1 else []))], 1).write()
    read_table(log_root.path, columns=["offset"])
    assert caplog.messages == []
    # Many tasks are one read.
    table = read_table(log_root.path, include_headers=True, max_records_per_partition=1)
    assert [message.partition(".")[0] for message in caplog.messages] == [
        "events-0: found 1 header keys that are no UTF-8, the first one at offset 1",
        "events-1: found 3 header keys that are no UTF-8, the first one at offset 1",
    ]
    assert table.num_rows == 9
    caplog.clear()
    read_table(log_root.path, include_headers=True, where="partition = 1 AND offset > 1")
    assert [message.partition(".")[0] for message in caplog.messages] == [
        "events-1: found 2 header keys that are no UTF-8, the first one at offset 2"
    ]


def test_timestamp_types_may_be_mixed(log_root, record_of, rows):
    log = log_root.rows()
    log.append(record_of(0, 1000), record_of(1, 1500)).append(record_of(0, 1000), append_time_ms=9000)
    log.append(record_of(0, 2000))
    found = [(row["timestampType"], row["timestamp"].timestamp()) for row in rows(log)]
    assert found == [(0, 1.0), (0, 1.5), (1, 9.0), (0, 2.0)]


def test_metadata_is_what_was_written(log_root, record_of, rows):
    log = log_root.rows(base_offset=500).values(2)
    log.append(
        record_of(0, 10),
        record_of(3, 20),
        codec=3,
        leader_epoch=6,
        producer_id=2**40,
        producer_epoch=32767,
        base_sequence=2**31 - 2,
        transactional=True,
        last_offset_delta=4,
    ).append(record_of(0, -1), leader_epoch=-1)
    found = [row["_metadata"] for row in rows(log, "_metadata")]
    assert found == [row["_metadata"] for row in log.rows]
    assert found[3] == {
        "segment": "00000000000000000500.log",
        "position": log.places[500][1][0],
        "batchOffset": 502,
        "leaderEpoch": 6,
        "producerId": 2**40,
        "producerEpoch": 32767,
        "sequence": 1,
        "isTransactional": True,
        "compression": "lz4",
        "magic": 2,
        "timestampMs": 20,
    }
    assert found[4]["timestampMs"] == found[4]["leaderEpoch"] == found[4]["sequence"] == -1


def test_constants_change_with_the_span(log_root, batches):
    maker = RecordBatchBuilder(project(SCHEMA, ("topic", "_metadata")))
    seen = []
    for topic in ("a", "b", "a"):
        (found,) = batches(log_root.rows().values(3), "topic", "_metadata", maker=maker, topic=topic)
        seen.append((found["topic"].to_pylist(), found["_metadata"][0]["segment"].as_py()))
    assert seen == [([topic] * 3, f"{0:020d}.log") for topic in ("a", "b", "a")]


def test_constants_are_made_once(log_root, batches, monkeypatch):
    maker = RecordBatchBuilder(project(SCHEMA, ("topic", "_metadata")))
    made = []
    repeat = pa.repeat
    monkeypatch.setattr(pa, "repeat", lambda *arguments: made.append(arguments) or repeat(*arguments))
    log = log_root.rows().values(3)
    for _ in range(5):
        list(batches(log, "topic", "_metadata", maker=maker))
    assert len(made) == 2


# -- Rows within the span --------


@pytest.mark.parametrize(("start", "end"), [(0, 10), (3, 7), (9, 10), (0, 1), (4, 4), (20, 30)])
def test_rows_outside_of_the_span_are_left_out(log_root, rows, start, end):
    log = log_root.rows().values(10)
    found = [row["offset"] for row in rows(log, start_offset=start, end_offset=end)]
    assert found == list(range(start, min(end, 10)))


def test_the_largest_offset_of_all(log_root, record_of, rows):
    log = log_root.rows(base_offset=2**63 - 10).append(*(record_of(delta) for delta in range(10)))
    assert log.next_offset == 2**63
    assert [row["offset"] for row in rows(log, "offset")] == list(range(2**63 - 10, 2**63))
    assert rows(log, "offset", start_offset=2**63 - 1) == [{"offset": 2**63 - 1}]


# -- Timestamps --------


@pytest.mark.parametrize("timestamp_ms", [0, -1, LARGEST_MS, -LARGEST_MS])
def test_timestamps_that_fit_microseconds(log_root, record_of, batches, timestamp_ms):
    (found,) = batches(log_root.rows().append(record_of(0, timestamp_ms)), "timestamp")
    assert found["timestamp"].cast(pa.int64()).to_pylist() == [timestamp_ms * 1000]


@pytest.mark.parametrize("timestamp_ms", [LARGEST_MS + 1, -LARGEST_MS - 1, 2**63 - 1, -(2**63)])
def test_timestamps_that_do_not(log_root, record_of, rows, timestamp_ms):
    log = log_root.rows().values(2)
    # Alone in its batch: no delta leads there from an ordinary timestamp.
    log.append(record_of(0, timestamp_ms)).values(1)
    with pytest.raises(TimestampRangeError, match=rf"found {timestamp_ms}: perhaps") as caught:
        rows(log, "offset", "timestamp")
    assert caught.value.offset == 2
    assert caught.value.position_bytes == log.places[0][1][0]
    assert caught.value.path == "/logs/events-0/0.log"
    assert "_metadata.timestampMs" in str(caught.value)
    assert [row["offset"] for row in rows(log, "offset")] == [0, 1, 2, 3]
    assert [row["_metadata"]["timestampMs"] for row in rows(log, "_metadata")] == [0, 1, timestamp_ms, 3]


def test_a_timestamp_outside_of_the_span_does_no_harm(log_root, record_of, rows):
    log = log_root.rows().append(record_of(0, 5), record_of(1, 2**60))
    assert [row["offset"] for row in rows(log, "offset", "timestamp", end_offset=1)] == [0]


# -- Sizes --------


def test_a_batch_of_many_tiny_records_is_cut(log_root, batches):
    found = list(batches(log_root.rows().data(100_000), "offset", "value"))
    assert [each.num_rows for each in found] == [MAX_ROWS, 100_000 - MAX_ROWS]
    assert [each["offset"][0].as_py() for each in found] == [0, MAX_ROWS]


def test_a_large_section_is_cut_at_about_eight_mebibytes(log_root, batches):
    log = log_root.rows().values(200, b"x" * 100_000)
    found = list(batches(log, "value"))
    assert sum(each.num_rows for each in found) == 200
    assert 2 <= len(found) <= 4
    assert max(each.nbytes for each in found) <= 8 << 20


def test_a_count_that_only_a_header_tells_is_made_into_rows_bit_by_bit(log_root, batches):
    # The largest count that is believed without a look at the records: all of its rows at once
    # would have a topic column of 260 MB.
    count = 1 << 20
    log = log_root.rows("t" * 249)
    log._append([], count, attributes=ZSTD, record_count=count)
    found = next(batches(log, "topic", "offset", topic="t" * 249))
    assert 0 < found.num_rows <= MAX_ROWS
    assert found["offset"].to_pylist() == list(range(found.num_rows))


def test_headers_of_a_part_of_the_rows(log_root, record_of, rows):
    records = [record_of(number, headers=(("h", b"%d" % number),) * (number % 3)) for number in range(9)]
    log = log_root.rows().append(*records)
    expected = [[{"key": "h", "value": b"%d" % number}] * (number % 3) or None for number in range(9)]
    assert [row["headers"] for row in rows(log, "headers", start_offset=2, end_offset=8)] == expected[2:8]


def test_a_single_record_is_never_cut(log_root, batches):
    (found,) = batches(log_root.rows().values(1, b"x" * (20 << 20)), "value")
    assert found.num_rows == 1


def test_rows_own_their_bytes(log_root, window_of, span_of):
    """The window's buffer is filled anew while Spark still holds the batches made from it."""
    log = log_root.rows().values(5, b"a value of more than twelve bytes")
    window = window_of(bytes(log.segments[0].data))
    wanted = wanted_fields(SCHEMA)
    (section,) = SectionMaker(64 << 20, wanted).sections(window, np.arange(1))
    (found,) = RecordBatchBuilder(SCHEMA).batches(
        section, decode_records(section, wanted), span_of(end_offset=5)
    )
    before = found.to_pylist()
    window.buffer[:] = 0xEE
    assert found.to_pylist() == before
