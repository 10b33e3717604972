"""What a leader appends, and refuses, beside Kafka's own log in a JVM: the same but for what is listed here."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from storage_core import LogConfig, LogDirectory
from storage_core.errors import AppendError, InvalidRecordError, InvalidTimestampError
from storage_core.record.record_batches import RecordBatches
from tests.interop.any_client_batches import any_batches
from tests.interop.kafka_log import KafkaLog
from tests.log.logs import NOW_MS, Clock
from tests.record.encoding import LOG_APPEND_TIME, TRANSACTIONAL
from tests.record.sections import decode_whole_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from storage_core import Log
    from tests.interop.kafka_log import Appended
    from tests.record.encoding import Batch

_BATCHES = 250
_CONFIGS: dict[str, dict[str, object]] = {
    "create time": {"message.timestamp.before.max.ms": 2000, "message.timestamp.after.max.ms": 2000},
    "log append time": {"message.timestamp.type": "LogAppendTime"},
    "compacted": {"cleanup.policy": "compact", "message.timestamp.after.max.ms": 1 << 62},
    **{codec: {"compression.type": codec} for codec in ("uncompressed", "gzip", "snappy", "lz4", "zstd")},
}
_KINDS = {"InvalidRecordException": InvalidRecordError, "InvalidTimestampException": InvalidTimestampError}

# What a broker takes and we refuse.
_STRICTER = {
    "unreadable": "records that Kafka's own reader does not read; compressed ones are not looked at closely enough",
    "offsets": "offsets that do not follow one another; a broker stores them so, or numbers them anew",
    "marked": "log append time that a producer claims for a log of create times",
    "producer": "a transaction without a producer id, or a producer id without an epoch",
}
# What a broker takes if it need not encode the records again, and refuses otherwise; we take it.
_MILDER = "re-encoded"


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaLog]:
    with KafkaLog() as log:
        yield log


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogDirectory]:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    with LogDirectory.open(str(tmp_path / "ours"), clock=Clock()) as opened:
        yield opened


def append(log: Log, batch: bytes) -> AppendError | None:
    try:
        log.append_as_leader(batch)
    except AppendError as error:
        return error
    return None


def reason_to_refuse(batch: Batch, theirs: Appended, config: Mapping[str, object]) -> str | None:
    """Why we refuse a batch, whatever a broker does."""
    has_producer = batch.producer_id >= 0
    is_transactional = bool(batch.attributes & TRANSACTIONAL)
    is_marked = bool(batch.attributes & LOG_APPEND_TIME)
    reasons = {
        "unreadable": not theirs.is_readable,
        "offsets": not theirs.are_consecutive,
        "marked": is_marked and config.get("message.timestamp.type") != "LogAppendTime",
        "producer": batch.producer_epoch < 0 if has_producer else is_transactional,
    }
    return next((reason for reason, is_so in reasons.items() if is_so), None)


def assert_refused_for_the_same(ours: AppendError, theirs: Appended) -> None:
    kind = _KINDS.get(str(theirs.refusal))
    if kind is not None:
        assert type(ours) is kind
        assert tuple(each.batch_index for each in ours.record_errors) == theirs.record_errors
        assert ours.record_error_count == len(theirs.record_errors)


def as_java_keeps(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A record whose header keys were texts of Java in between: what is no UTF-8 was replaced."""
    *fields, headers = row
    return (*fields, tuple((key.decode(errors="replace").encode(), value) for key, value in headers))


def assert_stored_the_same(ours: bytes, theirs: bytes, codec: int) -> None:
    """Byte for byte if the codec stayed as it was; otherwise the same records, and the same words about them."""
    if RecordBatches.parse(theirs).headers["attributes"][0] & 7 == codec:
        assert ours == theirs
        return
    assert [as_java_keeps(row) for row in decode_whole_batches(ours)] == decode_whole_batches(theirs)
    (mine,), (yours,) = RecordBatches.parse(ours).headers, RecordBatches.parse(theirs).headers
    for field in ("base_offset", "leader_epoch", "last_offset_delta", "max_timestamp_ms", "producer_id"):
        assert mine[field] == yours[field], field
    for field in ("producer_epoch", "base_sequence", "record_count"):
        assert mine[field] == yours[field], field
    # Encoding anew, a broker drops the delete horizon, too.
    assert mine["attributes"] & 0x3F == yours["attributes"] & 0x3F


def compare(
    kafka: KafkaLog, log: Log, config: Mapping[str, object], given: Batch, found: Counter[str]
) -> None:
    batch = given.encode()
    end_offset = log.log_end_offset
    theirs, ours = kafka.append_as_leader(batch), append(log, batch)
    reason = reason_to_refuse(given, theirs, config)
    about = (ours, theirs, batch.hex())
    if ours is not None and theirs.refusal is not None:
        found["refused"] += 1
        if reason is None:
            assert_refused_for_the_same(ours, theirs)
        return
    if ours is None and theirs.refusal is None:
        found["taken"] += 1
        assert_stored_the_same(log.fetch(end_offset, 1 << 20).data, theirs.stored, given.codec)
        return
    if ours is None:
        assert theirs.refusal == "IllegalArgumentException", about
        has_negative_timestamp = min(row[1] for row in decode_whole_batches(batch)) < -1
        assert has_negative_timestamp or given.producer_id < -1, about
        reason = _MILDER
    assert reason is not None, about
    found[reason] += 1
    # So that both go on from the same offset.
    log.truncate_to(end_offset)
    assert kafka.truncate_to(end_offset) is None


def test_any_batch_of_a_client(kafka: KafkaLog, logs: LogDirectory, tmp_path: Path) -> None:
    found: Counter[str] = Counter()
    for number, config in enumerate(_CONFIGS.values()):
        values = {"segment.bytes": 1 << 24, **config}
        kafka.open(tmp_path / "kafka" / f"any{number}-0", NOW_MS, values)
        log = logs.create(f"any{number}", 0, LogConfig.from_dict(values))
        for given in any_batches(number, _BATCHES):
            compare(kafka, log, config, given, found)
    assert found.keys() == {"taken", "refused", _MILDER, *_STRICTER}
    assert min(found["taken"], found["refused"]) > len(_CONFIGS) * _BATCHES // 4
