"""Wrappers of formats v0 and v1 around messages of either format, compared with Kafka's own classes in a JVM.

Old cleaners left wrappers around messages of the other format (KAFKA-4298). Kafka's reader, cleaner, recovery and
lookups define how these are interpreted.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from storage_core import LogConfig, LogDirectory, read_table
from storage_core.record.record_batches import RecordBatches
from tests.compaction.segments import clean, open_segment
from tests.interop.conftest import sample
from tests.interop.kafka_log import KafkaLog, KafkaRecord
from tests.log.logs import NOW_MS, Clock
from tests.record.encoding import LOG_APPEND_TIME, Batch, Record
from tests.record.golden_legacy import LEGACY, MISMATCHED
from tests.record.legacy_encoding import CODECS, Message, Wrapper
from tests.record.sections import decode_whole_batches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GOLDEN = {**LEGACY, **MISMATCHED}
SEEDS = sample(range(40), 8)
_COMPRESSED = sorted(set(CODECS.values()) - {0})
_HORIZON_MS = 1024


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaLog]:
    with KafkaLog() as log:
        yield log


def write_log(root: Path, data: bytes, base_offset: int = 0) -> None:
    folder = root / "old-0"
    folder.mkdir(parents=True)
    (folder / f"{base_offset:020d}.log").write_bytes(data)


def read_log(root: Path, base_offset: int) -> list[KafkaRecord]:
    columns = ["offset", "timestamp", "timestampType", "key", "value"]
    table = read_table(str(root), columns=columns)
    timestamps_ms = [value // 1000 for value in table["timestamp"].cast("int64").to_pylist()]
    others = (table[name].to_pylist() for name in ("timestampType", "key", "value"))
    return list(map(KafkaRecord, table["offset"].to_pylist(), timestamps_ms, *others))


def any_wrapper(generator: random.Random, offset: int) -> Wrapper:
    """Return a wrapper that starts at an offset, with unique keys."""
    magic = generator.randrange(2)
    inner_magics = generator.choice([(0,), (1,), (0, 1)])
    messages = []
    for _ in range(generator.choice([1, 2, 7])):
        offset += generator.choice([0, 0, 3])
        value = generator.choice([None, b"", b"value" * generator.randrange(40)])
        time_ms = NOW_MS + generator.randrange(-50, 50)
        inner_magic = generator.choice(inner_magics)
        messages.append(Message(offset, time_ms, b"k%d" % offset, value, inner_magic))
        offset += 1
    return Wrapper(
        tuple(messages),
        generator.choice(_COMPRESSED),
        magic,
        timestamp_ms=generator.choice([-1, NOW_MS, NOW_MS + 100]),
        attributes=generator.choice([0, LOG_APPEND_TIME]),
    )


def any_log(seed: int) -> bytes:
    """Wrappers mixed with messages and batches."""
    generator = random.Random(seed)
    log, offset = b"", 1
    for number in range(30):
        entry: Wrapper | Message | Batch
        if number % 5 == 3:
            entry = Message(offset, NOW_MS + number, b"plain", b"v", number % 2)
            offset += 1
        elif number % 5 == 4:
            entry = Batch((Record(0, NOW_MS + number, b"current", b"v"),), offset)
            offset += 1
        else:
            entry = any_wrapper(generator, offset)
            offset = entry.last_offset + 1
        log += entry.encode()
    return log


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_bytes(kafka: KafkaLog, tmp_path: Path, name: str) -> None:
    write_log(tmp_path, GOLDEN[name].data)
    theirs = kafka.records(GOLDEN[name].data)
    assert [(*record[:2], *record[3:], ()) for record in theirs] == list(GOLDEN[name].rows)
    assert read_log(tmp_path, 0) == theirs


@pytest.mark.parametrize("seed", SEEDS)
def test_any_log_is_read_as_kafka_reads_it(kafka: KafkaLog, tmp_path: Path, seed: int) -> None:
    log = any_log(seed)
    write_log(tmp_path, log)
    assert read_log(tmp_path, 0) == kafka.records(log)


def assert_cleaned_the_same(ours: bytes, theirs: bytes) -> None:
    """Except for the compressed form of equal records."""
    assert decode_whole_batches(ours) == decode_whole_batches(theirs)
    mine, yours = RecordBatches.parse(ours).headers, RecordBatches.parse(theirs).headers
    for field in set(mine.dtype.names) - {"batch_length", "crc"}:
        assert mine[field].tolist() == yours[field].tolist(), field


def check_cleaning(kafka: KafkaLog, directory: Path, data: bytes, dropped: set[int]) -> None:
    records = kafka.records(data)
    assert not isinstance(records, str)
    surviving = [
        record.offset for record in records if record.key is not None and record.offset not in dropped
    ]
    theirs = kafka.clean(data, surviving, _HORIZON_MS)
    keys = {record.key: 10**6 for record in records if record.offset in dropped}
    source = open_segment(directory, data)
    ours = clean(directory, [source], keys, delete_retention_ms=24, legacy_delete_horizon_ms=-1)
    assert_cleaned_the_same(ours.content, theirs)


@pytest.mark.parametrize("name", GOLDEN)
def test_cleaning_golden_bytes(kafka: KafkaLog, tmp_path: Path, name: str) -> None:
    """A wrapper is re-encoded even if all of its records survive."""
    check_cleaning(kafka, tmp_path, GOLDEN[name].data, set())
    check_cleaning(kafka, tmp_path, GOLDEN[name].data, {GOLDEN[name].rows[0][0]})


@pytest.mark.parametrize("seed", SEEDS)
def test_any_wrapper_is_cleaned_as_kafka_cleans_it(kafka: KafkaLog, tmp_path: Path, seed: int) -> None:
    generator = random.Random(seed)
    for _ in range(10):
        wrapper = any_wrapper(generator, 1000)
        dropped = {message.offset for message in wrapper.messages if generator.random() < 0.4}
        check_cleaning(kafka, tmp_path, wrapper.encode(), dropped)


@pytest.mark.parametrize("seed", SEEDS)
def test_recovery_and_lookups(
    kafka: KafkaLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    log = any_log(seed)
    values = {"index.interval.bytes": 200, "segment.bytes": 1 << 20}
    for root in ("ours", "kafka"):
        write_log(tmp_path / root, log)
    kafka.open(tmp_path / "kafka" / "old-0", NOW_MS, values, is_clean=False)
    config = LogConfig.from_dict(values)
    with LogDirectory.open(str(tmp_path / "ours"), clock=Clock(), config=config) as logs:
        ours = logs.get("old", 0)
        assert ours.log_end_offset == kafka.state().log_end_offset
        for offset in range(ours.log_end_offset):
            assert ours.fetch(offset, 1).data == kafka.fetch(offset, 1, min_one_message=True)
        for timestamp_ms in (-1, 0, *range(NOW_MS - 51, NOW_MS + 102)):
            found = ours.offset_for_timestamp(timestamp_ms)
            theirs = kafka.offset_for_timestamp(timestamp_ms)
            # Kafka's epoch is that of the batch; messages have none.
            assert (found and (found.offset, found.timestamp_ms)) == (theirs and theirs[:2]), timestamp_ms
    # Kafka writes the last index entry of a segment when it closes the segment.
    kafka.open(tmp_path / "kafka" / "other-0", NOW_MS, values)
    for suffix in (".index", ".timeindex"):
        mine, yours = (
            (tmp_path / root / "old-0" / f"{0:020d}{suffix}").read_bytes() for root in ("ours", "kafka")
        )
        assert mine == yours, suffix
