"""Other implementations of the format read what we write, and write the same."""

from __future__ import annotations

import warnings

import aiokafka.record
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given
from hypothesis import strategies as st

from storage_core.record.record_batches import ProducerSequence
from tests.examples import examples
from tests.record.encoding import CODECS, GZIP, NONE, ZSTD
from tests.record.strategies import NOW_MS, byte_strings, header_keys
from tests.record.written import rows_read, table_of, write, write_both_ways

with warnings.catch_warnings():
    # It reads its resources in a way that Python 3.11 warns of.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.record
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

short = examples(20)
long = examples(100)
every_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
# Its other codecs need libraries of their own.
KAFKA_PYTHON_CODECS = (NONE, GZIP, ZSTD)

_rows = st.tuples(
    # More than others' builders take: they take none below 0.
    st.integers(0, NOW_MS * 2) | st.sampled_from([0, (1 << 62) - 1]),
    byte_strings,
    byte_strings,
    st.lists(st.tuples(header_keys, st.none() | st.binary(max_size=20)), max_size=3),
)
tables = st.lists(_rows, min_size=1, max_size=30)
batch_sizes = st.sampled_from([100, 700, 16384])


def rows_by(memory_records):
    """What a peer's MemoryRecords reads, CRCs checked."""
    rows = []
    while memory_records.has_next():
        batch = memory_records.next_batch()
        assert batch.validate_crc()
        for record in batch:
            headers = tuple((key.encode(), value) for key, value in record.headers)
            timestamp_ms = -1 if record.timestamp is None else record.timestamp
            rows.append((record.offset, timestamp_ms, record.key, record.value, headers))
    return rows


def build(builder_class, rows, batch_size_bytes, producer):
    """The batches that a peer's builder makes of rows: a new one whenever it says that there is no room."""
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
    assert rows_by(aiokafka.record.MemoryRecords(data)) == rows_read(rows)
    if codec in KAFKA_PYTHON_CODECS:
        assert rows_by(kafka.record.MemoryRecords(data)) == rows_read(rows)


@every_codec
@given(tables, batch_sizes, st.booleans())
@short
def test_others_read_what_is_written(codec, rows, batch_size_bytes, by_column):
    check_reading(codec, rows, batch_size_bytes, by_column=by_column)


@pytest.mark.soak
@given(st.sampled_from(list(CODECS.values())), tables, batch_sizes, st.booleans())
@long
def test_others_read_what_is_written_at_length(codec, rows, batch_size_bytes, by_column):
    check_reading(codec, rows, batch_size_bytes, by_column=by_column)


@pytest.mark.parametrize(
    "builder_class", [AiokafkaBuilder, KafkaPythonBuilder], ids=["aiokafka", "kafka-python"]
)
@given(tables, batch_sizes)
@short
def test_others_write_the_same_bytes(builder_class, rows, batch_size_bytes):
    producer = ProducerSequence(7, 2, 11)
    written = write_both_ways(table_of(rows), batch_size_bytes=batch_size_bytes, producer=producer)
    assert written == build(builder_class, rows, batch_size_bytes, producer)


@every_codec
def test_a_large_batch_is_read_by_others(codec):
    rows = [(NOW_MS + number, b"key %d" % number, b"value " * (number % 90), []) for number in range(5000)]
    check_reading(codec, rows, 1 << 20, by_column=True)
