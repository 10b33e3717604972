"""What is refused before anything is written (163-167)."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from storage_core import LogConfig, read_table
from storage_core.errors import (
    BatchTooLargeError,
    InvalidRecordError,
    OffsetOverflowError,
    OptionError,
    RecordTooLargeError,
)
from tests.log.logs import (
    NOW_MS,
    append,
    offsets,
    open_directory,
    table,
    value,
    values,
)
from tests.log.producing import data

LARGE = b"x" * (65 << 20)


@pytest.mark.parametrize("codec", ["uncompressed", "zstd"])
def test_what_a_log_takes_it_reads(tmp_path, codec):
    """By default up to 64 MiB, however well it compresses; more if its configuration says so."""
    with open_directory(tmp_path, config=LogConfig(compression_type=codec)) as logs:
        log = logs.create("orders")
        with pytest.raises(RecordTooLargeError, match=r"at most 67108864 bytes.*max\.message\.bytes"):
            log.append(table(LARGE))
        assert log.log_end_offset == 0
    config = LogConfig(compression_type=codec, max_message_bytes=70 << 20)
    with open_directory(tmp_path, config=config) as logs:
        log = logs.get("orders")
        log.append(table(LARGE, timestamps=[NOW_MS]))
        assert values(log) == [LARGE]
        assert log.offset_for_timestamp(NOW_MS).offset == 0
    with open_directory(tmp_path, config=config, read_only=True) as logs:
        assert values(logs.get("orders")) == [LARGE]
        assert logs.get("orders").offset_for_timestamp(NOW_MS).offset == 0
        with pytest.raises(BatchTooLargeError, match="at most 67108864 bytes"):
            values(logs.get("orders"), max_decompressed_batch_bytes="64m")
    # Other readers do not know the configuration.
    with pytest.raises(BatchTooLargeError, match="raise maxDecompressedBatchBytes"):
        read_table(tmp_path)
    assert read_table(tmp_path, max_decompressed_batch_bytes="70m")["value"].to_pylist() == [LARGE]


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
WRONG_RECORDS = {
    "no column value": (pa.table({"key": [b"k"]}), "value"),
    "values of a wrong type": (pa.table({"value": [1, 2]}), "value"),
    "keys of a wrong type": (pa.table({"value": [b"v"], "key": [1.5]}), "key"),
    "timestamps of a wrong type": (pa.table({"value": [b"v"], "timestamp": ["noon"]}), "timestamp"),
    "dates for timestamps": (
        pa.table({"value": [b"v"], "timestamp": [dt.date(2020, 1, 1)]}), "timestamp",
    ),
    "headers of a wrong type": (pa.table({"value": [b"v"], "headers": [["a"]]}), "headers"),
    "a header without a key": (
        pa.table({"value": [b"v"], "headers": pa.array([[{"key": None, "value": b"x"}]], HEADERS)}), "header",
    ),
    "an unknown column": (pa.table({"value": [b"v"], "vlaue": [b"v"]}), "vlaue"),
    "a column twice": (pa.Table.from_arrays([pa.array([b"v"]), pa.array([b"w"])], ["value", "value"]), "value"),
}  # fmt: skip


@pytest.mark.parametrize(("records", "named"), WRONG_RECORDS.values(), ids=WRONG_RECORDS)
@pytest.mark.parametrize("rows", [1, 100])
def test_columns_that_no_log_takes(log, records, named, rows):
    with pytest.raises(InvalidRecordError, match=named):
        log.append(pa.concat_tables([records] * rows))
    assert append(log).first_offset == 0


@pytest.mark.parametrize("records", [None, 7, "text", b"bytes", [b"a"], {"value": [b"a"]}, object()])
def test_what_is_no_table_is_refused(log, records):
    with pytest.raises(InvalidRecordError, match=r"pyarrow\.Table or pyarrow\.RecordBatch"):
        log.append(records)


@pytest.mark.parametrize("acks", [2, -2, "none", None, 1.5])
def test_unknown_acks_are_refused(log, acks):
    with pytest.raises(OptionError, match="acks"):
        append(log, acks=acks)
    assert log.log_end_offset == 0


def test_a_log_that_is_full_to_the_largest_offset_is_not_appended_to(log):
    log.append_batches(data(2**63 - 3))
    with pytest.raises(OffsetOverflowError):
        log.append(table(b"1", b"2", b"3", b"4"))
    assert offsets(log) == [2**63 - 3]


def test_of_a_refused_append_nothing_is_written(logs):
    log = logs.create("small", config=LogConfig(max_message_bytes=1000, batch_size=1))
    with pytest.raises(RecordTooLargeError):
        log.append(table(b"small", b"x" * 2000))
    assert log.log_end_offset == 0


def test_of_a_refused_append_too_large_to_be_held_nothing_is_written(logs, monkeypatch):
    monkeypatch.setattr("storage_core.log.append._MAX_ENCODED_BYTES", 0)
    log = logs.create("small", config=LogConfig(max_message_bytes=5000, batch_size=4000))
    with pytest.raises(RecordTooLargeError):
        log.append(table(*[b"x" * 100] * 200, b"x" * 6000))
    assert log.log_end_offset == 0
    log.append(table(*[b"x" * 100] * 200, b"x" * 4500))
    assert log.log_end_offset == 201


def test_a_large_append_is_written_piece_by_piece(logs, monkeypatch):
    monkeypatch.setattr("storage_core.log.append._MAX_ENCODED_BYTES", 0)
    log = logs.create("large", config=LogConfig(segment_bytes=1 << 20))
    log.append(table(*map(value, range(100_000))))
    assert offsets(log) == list(range(100_000))
