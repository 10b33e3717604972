"""Other implementations of the format read what we read and write, and write what we read and write."""

from __future__ import annotations

import warnings

import aiokafka.record
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder as AiokafkaLegacyBuilder
from hypothesis import given
from hypothesis import strategies as st

from storage_core.record.record_batches import ProducerSequence
from tests.examples import examples
from tests.record.encoding import CODECS, GZIP, LZ4, NONE, SNAPPY, ZSTD, Record
from tests.record.golden import GOLDEN
from tests.record.golden_legacy import LEGACY
from tests.record.legacy_strategies import legacy_logs
from tests.record.sections import decode_window
from tests.record.strategies import NOW_MS, byte_strings, header_keys, logs
from tests.record.written import rows_read, table_of, write, write_both_ways

with warnings.catch_warnings():
    # It reads its resources in a way that Python 3.11 warns of.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.record
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
    from kafka.record.legacy_records import LegacyRecordBatchBuilder as KafkaPythonLegacyBuilder

short = examples(20)

# Of the others' writers only: they take a timestamp since 1970, and offsets without gaps.
writable_records = st.lists(
    st.tuples(
        st.integers(0, NOW_MS * 2),
        byte_strings,
        byte_strings,
        st.lists(st.tuples(header_keys, st.none() | st.binary(max_size=10)), max_size=3),
    ),
    min_size=1,
    max_size=20,
).map(
    lambda rows: [
        Record(number, timestamp_ms, key, value, tuple((name.encode(), text) for name, text in headers))
        for number, (timestamp_ms, key, value, headers) in enumerate(rows)
    ]
)


def rows_by(memory_records):
    """Return what a peer's MemoryRecords reads, CRCs checked and control records included."""
    rows = []
    while memory_records.has_next():
        batch = memory_records.next_batch()
        assert batch.validate_crc()
        for record in batch:
            headers = tuple((key.encode(), value) for key, value in record.headers)
            timestamp_ms = -1 if record.timestamp is None else record.timestamp
            rows.append((record.offset, timestamp_ms, record.key, record.value, headers))
    return rows


def rows_by_aiokafka(data):
    return rows_by(aiokafka.record.MemoryRecords(data))


def rows_by_kafka_python(data):
    return rows_by(kafka.record.MemoryRecords(data))


def encode(log):
    return b"".join(batch.encode() for batch in log)


def write_by(builder_class, codec, records, **fields):
    """Return the batch that a peer's builder makes of the records."""
    builder = builder_class(
        2,
        codec,
        fields.get("is_transactional", 0),
        fields.get("producer_id", -1),
        fields.get("producer_epoch", -1),
        fields.get("base_sequence", -1),
        1 << 22,
    )
    for record in records:
        headers = [(key.decode(), value) for key, value in record.headers]
        builder.append(record.offset_delta, record.timestamp_ms, record.key, record.value, headers)
    return bytes(builder.build())


def rows_written(records):
    return [(r.offset_delta, r.timestamp_ms, r.key, r.value, r.headers) for r in records]


@pytest.mark.parametrize("name", [name for name, batch in GOLDEN.items() if batch.rows])
def test_aiokafka_reads_golden_batches_alike(name):
    data = GOLDEN[name].data
    assert decode_window(data) == rows_by_aiokafka(data)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@given(st.data())
@short
def test_aiokafka_reads_any_batches_alike(codec, data):
    encoded = encode(data.draw(logs(codecs=(codec,), max_batches=3)))
    assert decode_window(encoded) == rows_by_aiokafka(encoded)


@given(logs(codecs=(NONE, GZIP, ZSTD), max_batches=3))
@short
def test_kafka_python_reads_any_batches_alike(log):
    encoded = encode(log)
    assert decode_window(encoded) == rows_by_kafka_python(encoded)


# The other codecs of kafka-python need libraries of their own.
KAFKA_PYTHON_CODECS = (NONE, GZIP, ZSTD)
WRITERS = [(AiokafkaBuilder, codec) for codec in CODECS.values()]
WRITERS += [(KafkaPythonBuilder, codec) for codec in KAFKA_PYTHON_CODECS]
every_builder = pytest.mark.parametrize(
    "builder_class", [AiokafkaBuilder, KafkaPythonBuilder], ids=["aiokafka", "kafka-python"]
)


@pytest.mark.parametrize(("builder_class", "codec"), WRITERS)
@given(writable_records)
@short
def test_what_others_write_is_read(builder_class, codec, records):
    assert decode_window(write_by(builder_class, codec, records)) == rows_written(records)


@every_builder
def test_a_transactional_batch_of_another_writer(builder_class):
    records = [Record(0, NOW_MS, b"k", b"v", ((b"h", None),)), Record(1, NOW_MS - 5, None, None)]
    data = write_by(
        builder_class, NONE, records, is_transactional=1, producer_id=7, producer_epoch=1, base_sequence=12
    )
    assert decode_window(data) == rows_written(records)


# -- Messages of older formats --------

# aiokafka neither reads nor writes LZ4 in format v0, whose descriptors have another checksum;
# kafka-python's snappy and LZ4 need libraries of their own. Both take the messages in a wrapper for ones of its format.
BY_AIOKAFKA = [(0, NONE), (0, GZIP), (0, SNAPPY), (1, NONE), (1, GZIP), (1, SNAPPY), (1, LZ4)]
BY_KAFKA_PYTHON = [(magic, codec) for magic in (0, 1) for codec in (NONE, GZIP)]


@pytest.mark.parametrize("name", [name for name in LEGACY if name != "v0 lz4"])
def test_aiokafka_reads_golden_messages_alike(name):
    data = LEGACY[name].data
    assert decode_window(data) == rows_by_aiokafka(data)


READERS = [
    *((rows_by_aiokafka, *each) for each in BY_AIOKAFKA),
    *((rows_by_kafka_python, *each) for each in BY_KAFKA_PYTHON),
]


@pytest.mark.parametrize(("read", "magic", "codec"), READERS)
@given(st.data())
@short
def test_others_read_any_messages_alike(read, magic, codec, data):
    encoded = encode(data.draw(legacy_logs((magic,), (codec,), max_entries=4, mixed=False)))
    assert decode_window(encoded) == read(encoded)


def write_messages(builder_class, magic, codec, rows):
    """Return what a peer's builder makes of (timestamp, key, value) rows, from offset 0 on."""
    builder = builder_class(magic, codec, 1 << 22)
    for offset, (timestamp_ms, key, value) in enumerate(rows):
        builder.append(offset, timestamp_ms, key, value)
    data = bytearray(builder.build())
    if codec:
        # As a broker does: the CRC does not cover the offset.
        data[:8] = (len(rows) - 1).to_bytes(8, "big")
    return bytes(data)


writable_rows = st.lists(
    st.tuples(st.integers(0, NOW_MS * 2), byte_strings, byte_strings), min_size=1, max_size=20
)


MESSAGE_WRITERS = [
    *((AiokafkaLegacyBuilder, *each) for each in BY_AIOKAFKA),
    *((KafkaPythonLegacyBuilder, *each) for each in BY_KAFKA_PYTHON),
]


@pytest.mark.parametrize(("builder_class", "magic", "codec"), MESSAGE_WRITERS)
@given(writable_rows)
@short
def test_messages_that_others_write_are_read(builder_class, magic, codec, rows):
    expected = [
        (offset, timestamp_ms if magic else -1, key, value, ())
        for offset, (timestamp_ms, key, value) in enumerate(rows)
    ]
    assert decode_window(write_messages(builder_class, magic, codec, rows)) == expected


# -- What is written here --------

_rows = st.tuples(
    # More than others' builders take: they take none below 0.
    st.integers(0, NOW_MS * 2) | st.sampled_from([0, (1 << 62) - 1]),
    byte_strings,
    byte_strings,
    st.lists(st.tuples(header_keys, st.none() | st.binary(max_size=20)), max_size=3),
)
tables = st.lists(_rows, min_size=1, max_size=30)
batch_sizes = st.sampled_from([100, 700, 16384])


def build(builder_class, rows, batch_size_bytes, producer):
    """Return the batches that a peer's builder makes of rows: a new one whenever it says that there is no room."""
    data, offset = [], 0
    while offset < len(rows):
        first = offset
        builder = builder_class(
            2,
            NONE,
            0,
            producer.producer_id,
            producer.producer_epoch,
            -1 if producer.base_sequence < 0 else producer.base_sequence + first,
            batch_size_bytes,
        )
        while offset < len(rows):
            timestamp_ms, key, value, headers = rows[offset]
            if builder.append(offset - first, timestamp_ms, key, value, headers) is None:
                break
            offset += 1
        batch = bytearray(builder.build())
        # As a log does: neither is covered by the CRC.
        batch[:8] = first.to_bytes(8, "big")
        batch[12:16] = b"\xff" * 4
        data.append(bytes(batch))
    return b"".join(data)


def check_reading(codec, rows, batch_size_bytes, *, by_column):
    data = write(table_of(rows), codec=codec, batch_size_bytes=batch_size_bytes, by_column=by_column)
    assert rows_by_aiokafka(data) == rows_read(rows)
    if codec in KAFKA_PYTHON_CODECS:
        assert rows_by_kafka_python(data) == rows_read(rows)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@given(tables, batch_sizes, st.booleans())
@short
def test_others_read_what_is_written(codec, rows, batch_size_bytes, by_column):
    check_reading(codec, rows, batch_size_bytes, by_column=by_column)


@every_builder
@given(tables, batch_sizes)
@short
def test_others_write_the_same_bytes(builder_class, rows, batch_size_bytes):
    producer = ProducerSequence(7, 2, 11)
    written = write_both_ways(table_of(rows), batch_size_bytes=batch_size_bytes, producer=producer)
    assert written == build(builder_class, rows, batch_size_bytes, producer)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_large_batch_is_read_by_others(codec):
    rows = [(NOW_MS + number, b"key %d" % number, b"value " * (number % 90), []) for number in range(5000)]
    check_reading(codec, rows, 1 << 20, by_column=True)
