"""Other implementations of the format read what we read, and write what we read."""

from __future__ import annotations

import warnings

import aiokafka.record
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder as AiokafkaLegacyBuilder
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.record.encoding import CODECS, GZIP, LZ4, NONE, SNAPPY, ZSTD, Record
from tests.record.golden import GOLDEN
from tests.record.golden_legacy import LEGACY
from tests.record.legacy_strategies import legacy_logs
from tests.record.sections import decode_window
from tests.record.strategies import NOW_MS, byte_strings, header_keys, logs

with warnings.catch_warnings():
    # It reads its resources in a way that Python 3.11 warns of.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.record
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
    from kafka.record.legacy_records import LegacyRecordBatchBuilder as KafkaPythonLegacyBuilder

short = examples(20)
long = examples(200)

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
    """What a peer's MemoryRecords reads; control records included."""
    rows = []
    while memory_records.has_next():
        for record in memory_records.next_batch():
            headers = tuple((key.encode(), value) for key, value in record.headers)
            timestamp_ms = -1 if record.timestamp is None else record.timestamp
            rows.append((record.offset, timestamp_ms, record.key, record.value, headers))
    return rows


def rows_by_aiokafka(data):
    return rows_by(aiokafka.record.MemoryRecords(data))


def encode(log):
    return b"".join(batch.encode() for batch in log)


def write(builder_class, codec, records, **fields):
    """The batch that a peer's builder makes of the records."""
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


@pytest.mark.soak
@given(logs())
@long
def test_aiokafka_reads_any_batches_alike_at_length(log):
    encoded = encode(log)
    assert decode_window(encoded) == rows_by_aiokafka(encoded)


@given(logs(codecs=(NONE, GZIP, ZSTD), max_batches=3))
@short
def test_kafka_python_reads_any_batches_alike(log):
    encoded = encode(log)
    assert decode_window(encoded) == rows_by(kafka.record.MemoryRecords(encoded))


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@given(writable_records)
@short
def test_what_aiokafka_writes_is_read(codec, records):
    assert decode_window(write(AiokafkaBuilder, codec, records)) == rows_written(records)


# Its other codecs need libraries of their own.
@pytest.mark.parametrize("codec", [NONE, GZIP, ZSTD], ids=["none", "gzip", "zstd"])
@given(writable_records)
@short
def test_what_kafka_python_writes_is_read(codec, records):
    assert decode_window(write(KafkaPythonBuilder, codec, records)) == rows_written(records)


@pytest.mark.soak
@given(writable_records, st.sampled_from(list(CODECS.values())))
@long
def test_what_others_write_is_read_at_length(records, codec):
    assert decode_window(write(AiokafkaBuilder, codec, records)) == rows_written(records)
    if codec in {NONE, GZIP, ZSTD}:
        assert decode_window(write(KafkaPythonBuilder, codec, records)) == rows_written(records)


@pytest.mark.parametrize(
    "builder_class", [AiokafkaBuilder, KafkaPythonBuilder], ids=["aiokafka", "kafka-python"]
)
def test_a_transactional_batch_of_another_writer(builder_class):
    records = [Record(0, NOW_MS, b"k", b"v", ((b"h", None),)), Record(1, NOW_MS - 5, None, None)]
    data = write(
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


@pytest.mark.parametrize(("magic", "codec"), BY_AIOKAFKA)
@given(st.data())
@short
def test_aiokafka_reads_any_messages_alike(magic, codec, data):
    encoded = encode(data.draw(legacy_logs((magic,), (codec,), max_entries=4, mixed=False)))
    assert decode_window(encoded) == rows_by_aiokafka(encoded)


@pytest.mark.parametrize(("magic", "codec"), BY_KAFKA_PYTHON)
@given(st.data())
@short
def test_kafka_python_reads_any_messages_alike(magic, codec, data):
    encoded = encode(data.draw(legacy_logs((magic,), (codec,), max_entries=4, mixed=False)))
    assert decode_window(encoded) == rows_by(kafka.record.MemoryRecords(encoded))


@pytest.mark.soak
@pytest.mark.parametrize("magic", [0, 1])
@given(st.data())
@long
def test_aiokafka_reads_any_messages_alike_at_length(magic, data):
    # It takes all messages for ones of the first one's format.
    encoded = encode(data.draw(legacy_logs((magic,), (NONE, GZIP, SNAPPY), mixed=False)))
    assert decode_window(encoded) == rows_by_aiokafka(encoded)


@pytest.mark.soak
@given(legacy_logs(codecs=(NONE, GZIP), current=True, mixed=False))
@long
def test_kafka_python_reads_any_messages_alike_at_length(log):
    encoded = encode([entry for entry in log if getattr(entry, "codec", NONE) in {NONE, GZIP}])
    assert decode_window(encoded) == rows_by(kafka.record.MemoryRecords(encoded))


def write_messages(builder_class, magic, codec, rows):
    """What a peer's builder makes of (timestamp, key, value) rows, from offset 0 on."""
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


def check_messages_of(builder_class, magic, codec, rows):
    expected = [
        (offset, timestamp_ms if magic else -1, key, value, ())
        for offset, (timestamp_ms, key, value) in enumerate(rows)
    ]
    assert decode_window(write_messages(builder_class, magic, codec, rows)) == expected


@pytest.mark.parametrize(("magic", "codec"), BY_AIOKAFKA)
@given(writable_rows)
@short
def test_messages_that_aiokafka_writes_are_read(magic, codec, rows):
    check_messages_of(AiokafkaLegacyBuilder, magic, codec, rows)


@pytest.mark.parametrize(("magic", "codec"), BY_KAFKA_PYTHON)
@given(writable_rows)
@short
def test_messages_that_kafka_python_writes_are_read(magic, codec, rows):
    check_messages_of(KafkaPythonLegacyBuilder, magic, codec, rows)
