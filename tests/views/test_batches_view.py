"""The view ``batches``: a row for each batch, of its header alone where that is enough, also around damage."""

from __future__ import annotations

import datetime as dt
import json
import os
import pickle
import random
import struct

import pyarrow as pa
import pytest

from storage_core import read_table
from storage_core.errors import DataLossError
from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from storage_core.views.batches import BATCHES_VIEW
from storage_core.views.damage import DAMAGE_VIEW
from tests.record.encoding import (
    CODECS,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Batch,
    Record,
)
from tests.record.legacy_encoding import Message, Wrapper
from tests.scan.damaged_log import DamagedLog, damage

ALL = frozenset(BATCHES_VIEW.schema.names)
FROM_HEADERS = ALL - {"crcValid", "uncompressedSizeBytes"}
MARKER_KEYS = {
    "abort": b"\0\0\0\0",
    "commit": b"\0\0\0\1",
    "leaderChange": b"\0\0\0\2",
    "unknown": b"\0\0\0\x09",
}


def batches_of(path, columns=ALL, filesystem=None, **options):
    """Return the rows of the view, of tasks that travelled to another process, and the number of tasks."""
    planned = BATCHES_VIEW.plan(FileSystem(), options_of([str(path)], options))
    tasks, filesystem = pickle.loads(pickle.dumps(planned)), filesystem or FileSystem()
    schema = pa.schema([field for field in BATCHES_VIEW.schema if field.name in columns])
    made = [batch for task in tasks for batch in BATCHES_VIEW.read(filesystem, task, frozenset(columns))]
    return pa.Table.from_batches(made, schema=schema).to_pylist(), len(tasks)


def write_log(root, *batches, base_offset=0, topic="events"):
    path = root / f"{topic}-0"
    path.mkdir(parents=True, exist_ok=True)
    data = b"".join(batch if isinstance(batch, bytes) else batch.encode() for batch in batches)
    (path / f"{base_offset:020d}.log").write_bytes(data)
    return path


def utc(timestamp_ms):
    return dt.datetime.fromtimestamp(timestamp_ms // 1000, dt.UTC) + dt.timedelta(
        milliseconds=timestamp_ms % 1000
    )


def test_a_row_has_every_field_of_the_header(tmp_path):
    records = tuple(Record(number, 1_700_000_000_000 + number, b"key", b"value") for number in range(3))
    first = Batch(records, 5, leader_epoch=7)
    second = Batch(
        records,
        10,
        CODECS["gzip"],
        9,
        TRANSACTIONAL | LOG_APPEND_TIME,
        last_offset_delta=4,
        producer_id=1234567890123,
        producer_epoch=3,
        base_sequence=2**31 - 2,
    )
    data = second.encode()
    write_log(tmp_path, first, data)
    rows, _ = batches_of(tmp_path)
    assert [row["baseOffset"] for row in rows] == [5, 10]
    assert rows[0]["lastOffset"] == 7
    assert rows[0]["uncompressedSizeBytes"] == len(first.encode_records())
    assert (rows[0]["producerId"], rows[0]["baseSequence"], rows[0]["lastSequence"]) == (-1, -1, -1)
    assert rows[1] == {
        "topic": "events",
        "partition": 0,
        "segment": "00000000000000000000.log",
        "position": len(first.encode()),
        "sizeBytes": len(data),
        "baseOffset": 10,
        "lastOffset": 14,
        "recordCount": 3,
        "leaderEpoch": 9,
        "magic": 2,
        "crc": int.from_bytes(data[17:21], "big"),
        "crcValid": True,
        "attributes": 0x19,
        "compression": "gzip",
        "timestampType": "LogAppendTime",
        "isTransactional": True,
        "isControl": False,
        "controlType": None,
        "hasDeleteHorizon": False,
        "deleteHorizon": None,
        "baseTimestamp": utc(1_700_000_000_000),
        "maxTimestamp": utc(1_700_000_000_002),
        "baseTimestampMs": 1_700_000_000_000,
        "maxTimestampMs": 1_700_000_000_002,
        "producerId": 1234567890123,
        "producerEpoch": 3,
        "baseSequence": 2**31 - 2,
        # After the largest integer, sequence numbers continue at 0.
        "lastSequence": 2,
        "uncompressedSizeBytes": len(second.encode_records()),
    }


def test_timestamps_that_no_calendar_has_are_null_and_their_milliseconds_are_not(tmp_path):
    nanoseconds = 1_700_000_000_000_000_000
    write_log(
        tmp_path,
        Batch((Record(),), base_timestamp_ms=-1, max_timestamp_ms=nanoseconds),
        Batch((Record(),), 1, attributes=DELETE_HORIZON, base_timestamp_ms=5_000, max_timestamp_ms=4_000),
    )
    (first, second), _ = batches_of(tmp_path)
    assert (first["baseTimestamp"], first["maxTimestamp"]) == (None, None)
    assert (first["baseTimestampMs"], first["maxTimestampMs"]) == (-1, nanoseconds)
    assert (second["hasDeleteHorizon"], second["deleteHorizon"]) == (True, utc(5_000))
    assert (second["baseTimestamp"], second["maxTimestamp"]) == (None, utc(4_000))


@pytest.mark.parametrize("name", MARKER_KEYS)
def test_control_batches_say_what_they_are(tmp_path, name):
    marker = Batch((Record(0, 0, MARKER_KEYS[name], b"\0\0\0\0\0\1"),), attributes=TRANSACTIONAL | CONTROL)
    emptied = Batch((), 1, attributes=TRANSACTIONAL | CONTROL, last_offset_delta=0)
    data = bytearray(marker.at(2).encode())
    data[-1] ^= 1
    write_log(tmp_path, marker, emptied, bytes(data), Batch((Record(),), 3))
    rows, _ = batches_of(tmp_path, FROM_HEADERS)
    assert [row["isControl"] for row in rows] == [True, True, True, False]
    # Nothing is said of one that is damaged.
    assert [row["controlType"] for row in rows] == [name, None, None, None]


def test_an_unknown_codec_has_no_name(tmp_path):
    write_log(tmp_path, Batch((Record(),), attributes=5))
    (row,), _ = batches_of(tmp_path)
    assert (row["compression"], row["attributes"], row["uncompressedSizeBytes"]) == (None, 5, None)
    assert row["crcValid"]


@pytest.mark.parametrize("codec", [0, 1])
def test_messages_of_older_formats_are_batches(tmp_path, codec):
    messages = tuple(Message(offset, 1000 + offset, b"k", b"v" * 20) for offset in range(4, 9))
    path = write_log(
        tmp_path,
        Message(3, magic=0),
        Wrapper(messages, CODECS["gzip"]) if codec else messages[-1],
        Batch((Record(),), 9),
    )
    for columns in (ALL, FROM_HEADERS):
        rows, _ = batches_of(path, columns)
        assert [row["magic"] for row in rows] == [0, 1, 2]
        assert [row["timestampType"] for row in rows] == [None, "CreateTime", "CreateTime"]
        assert [row["lastOffset"] for row in rows] == [3, 8, 9]
        # What a wrapper's header does not say, its messages do.
        assert [row["baseOffset"] for row in rows] == [3, 4 if codec else 8, 9]
        assert [row["recordCount"] for row in rows] == [1, 5 if codec else 1, 1]
    content = Wrapper(messages).encode_set() if codec else messages[-1].encode()
    assert batches_of(path)[0][1]["uncompressedSizeBytes"] == len(content)


@pytest.mark.parametrize("max_bytes", ["1m", "100"])
def test_bounds_within_wrappers_choose_them_whole(tmp_path, max_bytes):
    """Also if compaction has removed messages before them: their headers do not tell where they begin."""
    whole = [(0, 2), (3, 7), (12, 14), (15, 15)]
    wrappers = [
        Wrapper(tuple(Message(offset) for offset in range(first, last + 1)), CODECS["gzip"])
        for first, last in whole
    ]
    write_log(tmp_path, *wrappers)
    for start in range(16):
        for end in range(start + 1, 17):
            bounds = {
                "starting_offsets": {"events": {"0": start}},
                "ending_offsets": {"events": {"0": end}},
                "max_bytes_per_partition": max_bytes,
            }
            rows, _ = batches_of(tmp_path, **bounds)
            found = [(row["baseOffset"], row["lastOffset"]) for row in rows]
            assert found == [(first, last) for first, last in whole if first < end and last >= start]
            assert [row["recordCount"] for row in rows] == [last - first + 1 for first, last in found]


@pytest.mark.parametrize("value_bytes", [10, 5_000, 40_000])
def test_header_columns_read_no_records(tmp_path, value_bytes):
    count = 300
    batch = Batch((Record(value=os.urandom(value_bytes)),))
    size = len(batch.encode())
    write_log(tmp_path, *(batch.at(offset) for offset in range(count)))
    read = {}
    for columns in (FROM_HEADERS, ALL):
        filesystem = FileSystem()
        rows, _ = batches_of(tmp_path, columns, filesystem)
        assert [row["baseOffset"] for row in rows] == list(range(count))
        read[columns] = filesystem.statistics.bytes_read
    assert read[ALL] >= count * size
    if value_bytes == 40_000:
        assert read[FROM_HEADERS] < count * 100 + 100_000
    else:
        assert read[FROM_HEADERS] < count * (size + 100) + 100_000


def test_bounds_choose_the_batches_that_overlap_them(tmp_path):
    write_log(tmp_path, *(Batch((Record(),), base, last_offset_delta=9) for base in range(0, 100, 10)))

    def bases(start, end, **options):
        bounds = {"starting_offsets": {"events": {"0": start}}, "ending_offsets": {"events": {"0": end}}}
        return [row["baseOffset"] for row in batches_of(tmp_path, {"baseOffset"}, **bounds, **options)[0]]

    assert bases(15, 31) == [10, 20, 30]
    assert bases(20, 30) == [20]
    assert bases(39, 40, max_records_per_partition=1) == [30]
    # Pieces of so few offsets would have the same batch in several.
    assert bases(0, 100, max_records_per_partition=3, min_partitions=40) == list(range(0, 100, 10))


@pytest.mark.parametrize("columns", [ALL, FROM_HEADERS])
def test_each_batch_is_in_one_task(tmp_path, columns):
    log = DamagedLog()
    rng = random.Random(1)
    for _ in range(3):
        for _ in range(40):
            log.batch(rng.randint(1, 5), rng.randbytes(rng.choice((1, 400))), rest=rng.choice((0, 3)))
        log.messages(1, 4, codec=1).messages(0, 2).roll()
    log.batch()
    log.write(tmp_path)
    whole, _ = batches_of(tmp_path, columns)
    cut, tasks = batches_of(tmp_path, columns, max_bytes_per_partition=2_000)
    assert tasks > 3
    assert cut == whole
    assert [row["lastOffset"] for row in whole] == [
        piece.last_offset for segment in log.segments for piece in segment.pieces
    ]


def test_a_damaged_batch_between_others_is_a_row(tmp_path):
    """Its value is damaged, not its header."""
    log = DamagedLog().batch().batch(value=b"x" * 50).batch().roll().batch()
    piece = log.segments[0].pieces[1]
    piece.lose(piece.data[:-5] + b"?" + piece.data[-4:])
    log.write(tmp_path)
    rows, _ = batches_of(tmp_path)
    assert [row["baseOffset"] for row in rows] == [0, 3, 6, 9]
    assert [row["crcValid"] for row in rows] == [True, False, True, True]
    assert [row["baseOffset"] for row in batches_of(tmp_path, FROM_HEADERS)[0]] == [0, 3, 6, 9]


def test_garbage_between_batches_is_skipped(tmp_path):
    log = DamagedLog().batch().batch().batch().batch().roll().batch()
    torn = log.segments[0].pieces[1]
    torn.lose(b"\xff" * len(torn.data))
    # A length that leads to the wrong place.
    stray = log.segments[0].pieces[2]
    stray.lose(stray.data[:8] + struct.pack(">i", 60) + stray.data[12:])
    log.write(tmp_path)
    for columns in (ALL, FROM_HEADERS):
        assert [row["baseOffset"] for row in batches_of(tmp_path, columns)[0]] == [0, 9, 12]


@pytest.mark.parametrize("seed", range(20))
def test_every_undamaged_batch_is_a_row(tmp_path, seed):
    rng = random.Random(seed)
    log = DamagedLog()
    for _ in range(3):
        for _ in range(8):
            log.batch(rng.randint(1, 4), b"x" * rng.choice((1, 300, 9000)), codec=rng.randrange(5))
        if rng.random() < 0.3:
            log.messages(rng.randrange(2), codec=rng.choice((0, 1)))
        log.roll()
    log.batch()
    damage(log, rng, rng.choice((1, 2, 4)))
    log.write(tmp_path)
    left = {
        (f"{segment.base_offset:020d}.log", position): piece.last_offset
        for segment in log.segments
        for position, piece in segment.batches()
    }
    for options in ({}, {"max_bytes_per_partition": 3_000}):
        rows, _ = batches_of(tmp_path, **options)
        places = [(row["segment"], row["position"]) for row in rows]
        assert places == sorted(set(places))
        found = {place: row["lastOffset"] for place, row in zip(places, rows, strict=True) if place in left}
        assert found == left
        # What else is a row is damaged.
        assert [
            row for place, row in zip(places, rows, strict=True) if place not in left and row["crcValid"]
        ] == []


def test_a_segment_that_is_gone_is_an_error_or_a_warning(tmp_path, caplog):
    path = write_log(tmp_path, Batch((Record(),)))
    write_log(tmp_path, Batch((Record(),), 1), base_offset=1)
    filesystem = FileSystem()
    for tolerates in (False, True):
        options = options_of([str(tmp_path)], {"failOnDataLoss": not tolerates})
        tasks = BATCHES_VIEW.plan(filesystem, options)
        (path / f"{0:020d}.log").rename(path / f"{0:020d}.log.gone")
        rows = (batch for task in tasks for batch in BATCHES_VIEW.read(filesystem, task, ALL))
        if tolerates:
            assert [batch["baseOffset"].to_pylist() for batch in rows] == [[1]]
            assert "deleted by retention" in caplog.text
        else:
            with pytest.raises(DataLossError):
                list(rows)
        (path / f"{0:020d}.log.gone").rename(path / f"{0:020d}.log")


# -- The view of damage --------


def damage_of(path, **options):
    """Return the rows of the view, and the number of tasks."""
    filesystem = FileSystem()
    tasks = DAMAGE_VIEW.plan(filesystem, options_of([str(path)], options))
    batches = [
        batch
        for task in tasks
        for batch in DAMAGE_VIEW.read(filesystem, task, frozenset(DAMAGE_VIEW.schema.names))
    ]
    return pa.Table.from_batches(batches, schema=DAMAGE_VIEW.schema).to_pylist(), len(tasks)


@pytest.fixture
def torn(tmp_path):
    """Return two segments; of the first, one byte of the second batch is changed."""
    log = DamagedLog().batch().batch().batch().roll().batch()
    piece = log.segments[0].pieces[1]
    piece.lose(piece.data[:-1] + b"\x7f")
    log.write(tmp_path)
    return tmp_path


def test_a_row_says_which_bytes_and_offsets_are_damaged_and_why(torn):
    (row,), _ = damage_of(torn)
    size = len(DamagedLog().batch().segments[0].data)
    reason = row.pop("reason")
    assert reason.startswith("Expected a record batch with CRC ")
    assert row == {
        "topic": "events",
        "partition": 0,
        "segment": "00000000000000000000.log",
        "startByte": size,
        "endByte": 2 * size,
        "startOffset": 3,
        "endOffset": 6,
        "error": "CorruptRecordError",
        "file": str(torn / "events-0" / "00000000000000000000.log"),
    }


def test_a_sound_log_has_no_row(tmp_path):
    DamagedLog().batch().roll().batch().write(tmp_path)
    assert damage_of(tmp_path)[0] == []


def test_bounds_limit_the_rows(torn):
    assert damage_of(torn, starting_offsets={"events": {"0": 6}})[0] == []
    assert len(damage_of(torn, ending_offsets={"events": {"0": 4}})[0]) == 1


def test_records_that_contradict_a_right_checksum_are_damage(tmp_path):
    """Only who decodes the records notices: the batch claims more records than it has."""
    log = DamagedLog().batch(3).batch(2).roll().batch()
    log.segments[0].pieces[1].data = _with_record_count(log.segments[0].pieces[1].data, 7)
    log.write(tmp_path)
    ((row,), _) = damage_of(tmp_path)
    assert (row["startOffset"], row["endOffset"], row["error"]) == (3, 5, "CorruptRecordError")


def _with_record_count(data, count):
    from crc32c import crc32c

    checked = data[21:57] + count.to_bytes(4, "big") + data[61:]
    return data[:17] + crc32c(checked).to_bytes(4, "big") + checked


@pytest.mark.parametrize("seed", range(12))
def test_same_ranges_as_a_permissive_read_however_the_work_is_divided(tmp_path, seed):
    rng = random.Random(seed)
    log = DamagedLog()
    for _ in range(3):
        for _ in range(6):
            log.batch(rng.randint(1, 4), b"x" * rng.choice((1, 300)), codec=rng.randrange(5))
        log.roll()
    damage(log, rng, 2)
    log.write(tmp_path)
    table = read_table(str(tmp_path), mode="PERMISSIVE")
    expected = [json.loads(text) for text in table["_corrupt_record"].drop_null().to_pylist()]
    assert expected
    for options in ({}, {"max_records_per_partition": 3}):
        rows, tasks = damage_of(tmp_path, **options)
        assert [{name: row[name] for name in expected[0]} for row in rows] == expected
    assert tasks > 1
