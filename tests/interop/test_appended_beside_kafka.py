"""What a leader appends, and refuses, beside Kafka's own log in a JVM: the same but for what is listed here."""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

import pytest

from storage_core import LogConfig, LogDirectory
from storage_core.errors import AppendError, InvalidRecordError, InvalidTimestampError
from storage_core.record.record_batches import RecordBatches
from tests.interop.any_client_batches import any_batches
from tests.interop.kafka_log import KafkaLog
from tests.log.logs import NOW_MS, Clock
from tests.log.producing import ABORT, COMMIT, data, marker
from tests.record.encoding import LOG_APPEND_TIME, TRANSACTIONAL
from tests.record.sections import decode_whole_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from storage_core import Log
    from storage_core.log.producer_state_entry import ProducerState
    from tests.interop.kafka_log import Appended
    from tests.record.encoding import Batch

_BATCHES = 200
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


# -- One step after the other --------

_PRODUCERS = 3
_STEPS = 100
_SEQUENCES = 20


class Both:
    """One log of ours and one of Kafka's, to which the same is done."""

    def __init__(self, kafka: KafkaLog, log: Log, generator: random.Random) -> None:
        self.kafka, self.log, self.generator = kafka, log, generator
        self.leader_epoch = 0
        # By producer: its epoch, the number of its next record, and its last batches.
        self.producers = {number: (0, 0, []) for number in range(_PRODUCERS)}

    def step(self) -> str:
        """Do something at random, and compare; return what came of it."""
        steps = [self.append] * 8 + [self.append_as_coordinator] * 4 + [self.end] * 4
        steps += [self.begin_epoch, self.truncate, self.delete, self.roll]
        outcome = self.generator.choice(steps)()
        self.compare()
        return outcome

    def append(self) -> str:
        generator = self.generator
        number = generator.randrange(_PRODUCERS + 1)
        count = generator.choice([1, 1, 3])
        if number == _PRODUCERS:
            return self.append_batch(data(0, count, timestamp_ms=NOW_MS), "client")
        epoch, sequence, recent = self.producers[number]
        way = generator.choice(
            ["next"] * 8 + ["again"] * 3 + ["gap", "old epoch", "new epoch", "new epoch, gap"]
        )
        if way == "again" and recent:
            return self.append_batch(generator.choice(recent), "client")
        if way == "gap":
            sequence += 5
        elif way == "old epoch":
            epoch -= epoch > 0
        elif way.startswith("new epoch"):
            epoch, sequence, recent = epoch + 1, 0 if way == "new epoch" else 4, []
        batch = data(
            0,
            count,
            producer=number,
            epoch=epoch,
            sequence=sequence,
            timestamp_ms=NOW_MS,
            is_transactional=generator.random() < 0.5,
        )
        outcome = self.append_batch(batch, "client")
        if outcome == "appended":
            self.producers[number] = (epoch, sequence + count, [*recent, batch][-6:])
        return outcome

    def append_as_coordinator(self) -> str:
        generator = self.generator
        number = generator.randrange(_PRODUCERS)
        epoch, _, _ = self.producers[number]
        batch = data(
            generator.choice([0, 0, 7]),
            generator.choice([1, 3]),
            producer=number,
            epoch=max(0, epoch + generator.choice([0, 0, 0, -1, 1])),
            sequence=generator.choice([-1, -1, -1, 50]),
            timestamp_ms=NOW_MS,
            is_transactional=generator.random() < 0.8,
        )
        return self.append_batch(batch, "coordinator")

    def end(self) -> str:
        generator = self.generator
        number = generator.randrange(_PRODUCERS)
        epoch, _, _ = self.producers[number]
        epoch = max(0, epoch + generator.choice([0, 0, 1, -1]))
        batch = marker(
            0,
            producer=number,
            epoch=epoch,
            kind=generator.choice([ABORT, COMMIT]),
            coordinator_epoch=generator.choice([1, 1, 1, 2, 0]),
            timestamp_ms=NOW_MS,
        )
        return self.append_batch(batch, "coordinator")

    def append_batch(self, batch: bytes, origin: Literal["client", "coordinator"]) -> str:
        theirs = self.kafka.append_as_leader(batch, leader_epoch=self.leader_epoch, origin=origin.upper())
        end_offset = self.log.log_end_offset
        if theirs.refusal is not None:
            with pytest.raises(AppendError) as refused:
                self.log.append_as_leader(batch, leader_epoch=self.leader_epoch, origin=origin)
            assert theirs.refusal == type(refused.value).__name__.replace("Error", "Exception")
            return "refused"
        ours = self.log.append_as_leader(batch, leader_epoch=self.leader_epoch, origin=origin)
        assert (theirs.first_offset, theirs.last_offset) == (ours.first_offset, ours.last_offset)
        if ours.is_duplicate:
            assert theirs.stored == b""
            return "a duplicate"
        assert self.log.fetch(end_offset, 1 << 20).data == theirs.stored
        return "appended"

    def begin_epoch(self) -> str:
        self.leader_epoch += self.generator.choice([0, 1, 1, 3])
        self.log.assign_epoch_start_offset(self.leader_epoch)
        assert self.kafka.assign_epoch_start_offset(self.leader_epoch, self.log.log_end_offset) is None
        return "an epoch begun"

    def truncate(self) -> str:
        end_offset = self.log.log_end_offset
        offset = max(self.log.log_start_offset, end_offset - self.generator.choice([-3, 0, 1, 2, 5]))
        self.log.truncate_to(offset)
        assert self.kafka.truncate_to(offset) is None
        self.compare()
        self.producers = {number: (epoch, 0, []) for number, (epoch, _, _) in self.producers.items()}
        for known in self.log._state.producers.producers.values():
            epoch = max(known.producer_epoch, self.producers[known.producer_id][0])
            self.producers[known.producer_id] = (epoch, known.last_sequence + 1, [])
        # A broker notes the epoch of an append that it then refuses: here it has begun before, as a leader's has.
        self.begin_epoch()
        return "truncated"

    def delete(self) -> str:
        span = self.log.log_end_offset - self.log.log_start_offset
        offset = self.log.log_start_offset + self.generator.randrange(span // 2 + 1)
        self.log.delete_records(offset)
        assert self.kafka.delete_records(offset) is None
        return "deleted"

    def roll(self) -> str:
        self.log.roll()
        assert self.kafka.roll() is None
        return "rolled"

    def compare(self) -> None:
        theirs, log = self.kafka.state(), self.log
        assert (log.log_start_offset, log.log_end_offset) == (theirs.log_start_offset, theirs.log_end_offset)
        begun = [producer[4] for producer in theirs.producers if producer[4] >= 0]
        # Of a transaction that began below the log start, Kafka's is the base offset of the first batch that is left.
        is_cut = min(begun, default=log.log_start_offset) < log.log_start_offset
        assert log.last_stable_offset == (log.log_start_offset if is_cut else theirs.last_stable_offset)
        assert [(entry.epoch, entry.start_offset) for entry in log.leader_epochs] == theirs.leader_epochs
        known = log._state.producers.producers.values()
        assert sorted(map(facts_of, known)) == theirs.producers
        for epoch in range(self.leader_epoch + 2):
            assert tuple(log.end_offset_for_epoch(epoch)) == self.kafka.end_offset_for_epoch(epoch)


def facts_of(known: ProducerState) -> tuple[int, ...]:
    begins_at = known.current_transaction_first_offset
    return (
        known.producer_id,
        known.producer_epoch,
        known.last_sequence,
        known.coordinator_epoch,
        -1 if begins_at is None else begins_at,
        known.timestamp_ms,
    )


def test_producers_coordinators_and_leader_epochs(
    kafka: KafkaLog, logs: LogDirectory, tmp_path: Path
) -> None:
    found: Counter[str] = Counter()
    for seed in range(_SEQUENCES):
        values = {"segment.bytes": 1 << 20}
        kafka.open(tmp_path / "kafka" / f"steps{seed}-0", NOW_MS, values)
        both = Both(kafka, logs.create(f"steps{seed}", 0, LogConfig.from_dict(values)), random.Random(seed))
        found.update(both.step() for _ in range(_STEPS))
    assert min(found[each] for each in ("appended", "refused", "a duplicate", "truncated")) >= 20
