"""What is refused before anything is written (163-167)."""

from __future__ import annotations

import pytest

from storage_core import LogConfig, read_table
from storage_core.errors import (
    BatchTooLargeError,
    RecordTooLargeError,
)
from tests.log.logs import (
    NOW_MS,
    offsets,
    open_directory,
    table,
    value,
    values,
)

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
