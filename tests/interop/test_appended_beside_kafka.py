"""A leader and a follower append and reject the same as Kafka's own log in a JVM, except for what is listed here."""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

import pytest

from storage_core import FileSystem, Log, LogConfig, LogDirectory
from storage_core.checkpoint import (
    RECOVERY_POINT_CHECKPOINT,
    read_offset_checkpoint,
)
from storage_core.errors import (
    AppendError,
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    OffsetOutOfRangeError,
    OffsetsOutOfOrderError,
    SegmentLogError,
)
from storage_core.record.record_batches import RecordBatches
from tests.interop.any_client_batches import any_batches
from tests.interop.kafka_log import Appended, KafkaLog
from tests.log.logs import NOW_MS, Clock, crash
from tests.log.producing import ABORT, COMMIT, data, marker
from tests.record.encoding import LOG_APPEND_TIME, TRANSACTIONAL, Batch
from tests.record.sections import decode_whole_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from storage_core.log.producer_batches import ProducerState

_BATCHES = 150
_CONFIGS: dict[str, dict[str, object]] = {
    "create time": {"message.timestamp.before.max.ms": 2000, "message.timestamp.after.max.ms": 2000},
    "log append time": {"message.timestamp.type": "LogAppendTime"},
    "compacted": {"cleanup.policy": "compact", "message.timestamp.after.max.ms": 1 << 62},
    **{codec: {"compression.type": codec} for codec in ("uncompressed", "gzip", "snappy", "lz4", "zstd")},
}
_KINDS = {"InvalidRecordException": InvalidRecordError, "InvalidTimestampException": InvalidTimestampError}

# Batches that a broker accepts and we reject.
_STRICTER = {
    "unreadable": "records that Kafka's own reader does not read; compressed ones are not looked at closely enough",
    "offsets": "offsets that do not follow one another; a broker stores them so, or numbers them anew",
    "marked": "log append time that a producer claims for a log of create times",
    "producer": "a transaction without a producer id, or a producer id without an epoch",
}
# Batches that a broker accepts only if it need not re-encode the records; we accept them.
_MORE_LENIENT = "re-encoded"


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
    """Return why we reject a batch, whatever a broker does."""
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
    """Return a record whose header keys went through Java strings, which replace invalid UTF-8."""
    *fields, headers = row
    return (*fields, tuple((key.decode(errors="replace").encode(), value) for key, value in headers))


def assert_stored_the_same(ours: bytes, theirs: bytes, codec: int) -> None:
    """Assert the same bytes if the codec did not change; otherwise the same records with the same metadata."""
    if RecordBatches.parse(theirs).headers["attributes"][0] & 7 == codec:
        assert ours == theirs
        return
    assert [as_java_keeps(row) for row in decode_whole_batches(ours)] == decode_whole_batches(theirs)
    (mine,), (yours,) = RecordBatches.parse(ours).headers, RecordBatches.parse(theirs).headers
    for field in ("base_offset", "leader_epoch", "last_offset_delta", "max_timestamp_ms", "producer_id"):
        assert mine[field] == yours[field], field
    for field in ("producer_epoch", "base_sequence", "record_count"):
        assert mine[field] == yours[field], field
    # When it re-encodes, a broker also drops the delete horizon.
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
        reason = _MORE_LENIENT
    assert reason is not None, about
    found[reason] += 1
    # Both continue from the same offset.
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
    assert found.keys() == {"taken", "refused", _MORE_LENIENT, *_STRICTER}
    assert min(found["taken"], found["refused"]) > len(_CONFIGS) * _BATCHES // 4


# -- Random sequences of steps --------

_STEPS = 100
_SEQUENCES = 8
_CONFIG = {"segment.bytes": 1 << 20}
_PRODUCERS = 3
_OF_FOLLOWERS: dict[str, tuple[type[SegmentLogError], ...]] = {
    "UnexpectedAppendOffsetException": (OffsetsOutOfOrderError,),
    "OffsetsOutOfOrderException": (OffsetsOutOfOrderError,),
    "CorruptRecordException": (CorruptRecordError,),
    # For the first two, Kafka's message holds the offsets of all records, if it can read them.
    "InvalidRecordException": (OffsetsOutOfOrderError, CorruptRecordError),
}


class Both:
    """One of our logs and one of Kafka's, which go through the same steps."""

    def __init__(self, kafka: KafkaLog, directory: Path, seed: int) -> None:
        self.kafka, self.generator = kafka, random.Random(seed)
        self.directories = (directory / f"ours{seed}", directory / "kafka" / f"steps{seed}-0")
        kafka.open(self.directories[1], NOW_MS, _CONFIG)
        self.deletes = seed % 2 == 0
        self.leader_epoch = 0
        self.open()

    def open(self) -> None:
        config = LogConfig.from_dict(_CONFIG)
        self.logs = LogDirectory.open(str(self.directories[0]), clock=Clock(), config=config)
        self.log = self.logs.get_or_create("steps")

    def steps(self) -> list[Callable[[], str]]:
        """Return the possible steps, repeated by weight."""
        # Kafka cannot recover some logs whose transaction lost its beginning to deletion and its end to truncation.
        other = self.delete if self.deletes else self.crash
        return [*[self.begin_epoch, self.truncate, self.roll, other] * 4, *[self.close] * 2, self.restart]

    def step(self) -> str:
        """Take a random step, compare the logs, and return the outcome."""
        outcome = self.generator.choice(self.steps())()
        self.compare()
        return outcome

    def begin_epoch(self) -> str:
        self.leader_epoch += self.generator.choice([0, 1, 1, 3])
        self.log.assign_epoch_start_offset(self.leader_epoch)
        assert self.kafka.assign_epoch_start_offset(self.leader_epoch, self.log.log_end_offset) is None
        return "an epoch begun"

    def truncate(self) -> str:
        offset = self.log.log_end_offset - self.generator.choice([-3, 0, 1, 2, 5])
        offset = max(self.log.log_start_offset, offset)
        self.log.truncate_to(offset)
        assert self.kafka.truncate_to(offset) is None
        self.compare()
        # A broker records the epoch of an append that it then rejects. A leader's epoch has begun before its appends.
        self.begin_epoch()
        return "truncated"

    def restart(self) -> str:
        offset = max(0, self.log.log_end_offset + self.generator.choice([-20, 0, 100]))
        self.log.truncate_fully_and_start_at(offset)
        assert self.kafka.truncate_fully_and_start_at(offset) is None
        self.compare()
        self.begin_epoch()
        return "begun anew"

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

    def close(self) -> str:
        self.logs.close()
        return self.open_again(is_clean=True)

    def crash(self) -> str:
        crash(self.logs)
        return self.open_again(is_clean=False)

    def open_again(self, *, is_clean: bool) -> str:
        log_start_offset = self.log.log_start_offset
        checkpoint = self.directories[0] / RECOVERY_POINT_CHECKPOINT
        recovery_points = read_offset_checkpoint(FileSystem(), str(checkpoint))
        self.open()
        self.kafka.open(
            self.directories[1],
            NOW_MS,
            _CONFIG,
            is_clean=is_clean,
            log_start_offset=log_start_offset,
            recovery_point=recovery_points.get(("steps", 0), 0),
        )
        # A broker forgets an epoch that has no batch yet, and is told about it again.
        self.begin_epoch()
        return "closed and opened" if is_clean else "crashed and opened"

    def compare(self) -> None:
        self.log.update_high_watermark(self.log.log_end_offset)
        theirs, log = self.kafka.state(), self.log
        assert (log.log_start_offset, log.log_end_offset) == (theirs.log_start_offset, theirs.log_end_offset)
        assert [(entry.epoch, entry.start_offset) for entry in log.leader_epochs] == theirs.leader_epochs
        known = log._state.producers.producers.values()
        assert sorted(map(facts_of, known)) == theirs.producers
        begun = [producer[4] for producer in theirs.producers if producer[4] >= 0]
        # For a transaction that began below the log start, Kafka's is the base offset of the first remaining batch.
        is_cut = min(begun, default=log.log_start_offset) < log.log_start_offset
        assert log.last_stable_offset == (log.log_start_offset if is_cut else theirs.last_stable_offset)
        for epoch in range(self.leader_epoch + 2):
            assert tuple(log.end_offset_for_epoch(epoch)) == self.kafka.end_offset_for_epoch(epoch)
        self.look_up()

    def look_up(self) -> None:
        """Fetch from a random offset, and look up a random time."""
        generator, log = self.generator, self.log
        offset = generator.randrange(max(0, log.log_start_offset - 2), log.log_end_offset + 3)
        max_bytes, has_one = generator.choice([0, 1, 61, 100, 500, 1 << 20]), generator.random() < 0.5
        expected = self.kafka.fetch(offset, max_bytes, min_one_message=has_one)
        if expected is None:
            with pytest.raises(OffsetOutOfRangeError):
                log.fetch(offset, max_bytes, min_one_message=has_one)
        else:
            assert log.fetch(offset, max_bytes, min_one_message=has_one).data == expected
        timestamp_ms = generator.choice([-1, -2, -3, -4, -5, self.time_ms(), self.time_ms(), self.time_ms()])
        found = log.offset_for_timestamp(timestamp_ms)
        theirs = self.kafka.offset_for_timestamp(timestamp_ms)
        if self.deletes and (theirs is None or 0 <= theirs[0] < log.log_start_offset):
            # Kafka searches only one segment, and also finds the largest timestamp below the log start.
            return
        epoch = -1 if found is None or found.leader_epoch is None else found.leader_epoch
        assert (found and (found.offset, found.timestamp_ms, epoch)) == theirs

    def time_ms(self) -> int:
        """Return a timestamp; successive records are not in timestamp order."""
        return NOW_MS - self.generator.randrange(50)


class Led(Both):
    """Logs of a leader, with appends from clients and coordinators."""

    def __init__(self, kafka: KafkaLog, directory: Path, seed: int) -> None:
        super().__init__(kafka, directory, seed)
        # By producer: its epoch, its next sequence, and its last batches.
        self.producers: dict[int, tuple[int, int, list[bytes]]] = {
            number: (0, 0, []) for number in range(_PRODUCERS)
        }

    def steps(self) -> list[Callable[[], str]]:
        return super().steps() + [self.append] * 32 + [self.append_as_coordinator, self.end] * 16

    def append(self) -> str:
        generator = self.generator
        number = generator.randrange(_PRODUCERS + 1)
        count = generator.choice([1, 1, 3])
        if number == _PRODUCERS:
            return self.append_batch(data(0, count, timestamp_ms=self.time_ms()), "client")
        epoch, sequence, recent = self.producers[number]
        ways = ["next"] * 8 + ["again"] * 3 + ["gap", "old epoch", "new epoch", "new epoch and gap"]
        way = generator.choice(ways)
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
            timestamp_ms=self.time_ms(),
            is_transactional=generator.random() < 0.5,
        )
        outcome = self.append_batch(batch, "client")
        if outcome == "appended":
            self.producers[number] = (epoch, sequence + count, [*recent, batch][-6:])
        return outcome

    def append_as_coordinator(self) -> str:
        generator = self.generator
        number = generator.randrange(_PRODUCERS)
        batch = data(
            generator.choice([0, 0, 7]),
            generator.choice([1, 3]),
            producer=number,
            epoch=max(0, self.producers[number][0] + generator.choice([0, 0, 0, -1, 1])),
            sequence=generator.choice([-1, -1, -1, 50]),
            timestamp_ms=self.time_ms(),
            is_transactional=generator.random() < 0.8,
        )
        return self.append_batch(batch, "coordinator")

    def end(self) -> str:
        generator = self.generator
        number = generator.randrange(_PRODUCERS)
        batch = marker(
            0,
            producer=number,
            epoch=max(0, self.producers[number][0] + generator.choice([0, 0, 1, -1])),
            kind=generator.choice([ABORT, COMMIT]),
            coordinator_epoch=generator.choice([1, 1, 1, 2, 0]),
            timestamp_ms=self.time_ms(),
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

    def truncate(self) -> str:
        outcome = super().truncate()
        self.learn_sequences()
        return outcome

    def restart(self) -> str:
        outcome = super().restart()
        self.learn_sequences()
        return outcome

    def learn_sequences(self) -> None:
        known = self.log._state.producers.producers.values()
        next_sequences = {each.producer_id: each.last_sequence + 1 for each in known}
        self.producers = {
            number: (epoch, next_sequences.get(number, 0), [])
            for number, (epoch, _, _) in self.producers.items()
        }


class Followed(Both):
    """Logs of a follower, to which a leader's batches are appended, some of them invalid."""

    def __init__(self, kafka: KafkaLog, directory: Path, seed: int) -> None:
        super().__init__(kafka, directory, seed)
        self.epochs = Counter[int]()

    def steps(self) -> list[Callable[[], str]]:
        return super().steps() + [self.append] * 80

    def append(self) -> str:
        generator = self.generator
        offset = max(0, self.log.log_end_offset + generator.choice([0, 0, 0, 0, 5, -1]))
        batches = []
        in_transaction = {each.producer_id for each in self.log.open_transactions()}
        for _ in range(generator.choice([1, 1, 2, 4])):
            batch, count = self.batch(offset, in_transaction)
            batches.append(batch)
            offset += count + generator.choice([0, 0, 0, 3])
        if generator.random() < 0.1:
            generator.shuffle(batches)
        whole, leader_epoch = b"".join(batches), self.leader_epoch
        if generator.random() < 0.1:
            whole = whole[: generator.randrange(len(whole))]
        elif generator.random() < 0.05:
            # Kafka skips the CRC check of batches that it ignores because of their epoch.
            whole, leader_epoch = whole[:-1] + bytes([whole[-1] ^ 1]), self.leader_epoch + 9
        refusal = self.kafka.append_as_follower(whole, leader_epoch=leader_epoch)
        if refusal is not None:
            with pytest.raises(_OF_FOLLOWERS[refusal]):
                self.log.append_batches(whole, leader_epoch=leader_epoch)
            return "refused"
        info = self.log.append_batches(whole, leader_epoch=leader_epoch)
        return "appended" if info.batch_count else "nothing"

    def batch(self, offset: int, in_transaction: set[int]) -> tuple[bytes, int]:
        generator = self.generator
        producer = generator.randrange(-1, _PRODUCERS)
        # A leader never accepts an older producer epoch.
        self.epochs[producer] += generator.random() < 0.1
        epoch = self.epochs[producer]
        leader_epoch = self.leader_epoch + generator.choice([0, 0, 0, 0, 0, 0, 1])
        if producer >= 0 and generator.random() < 0.3:
            batch = marker(
                offset,
                producer=producer,
                epoch=epoch,
                kind=generator.choice([ABORT, COMMIT]),
                coordinator_epoch=generator.randrange(3),
                timestamp_ms=self.time_ms(),
                leader_epoch=leader_epoch,
            )
            return batch, 1
        count = generator.choice([1, 3])
        # No broker writes a non-transactional batch inside a transaction; Kafka rejects it once it knows the epoch.
        is_transactional = producer in in_transaction or (producer >= 0 and generator.random() < 0.5)
        if is_transactional:
            in_transaction.add(producer)
        batch = data(
            offset,
            count,
            producer=producer,
            epoch=epoch,
            sequence=generator.randrange(-1, 9),
            timestamp_ms=self.time_ms(),
            is_transactional=is_transactional,
            leader_epoch=leader_epoch,
        )
        return batch, count


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


@pytest.mark.parametrize("kind", [Led, Followed])
def test_any_steps(
    kind: type[Both], kafka: KafkaLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    found: Counter[str] = Counter()
    for seed in range(_SEQUENCES):
        both = kind(kafka, tmp_path, seed)
        found.update(both.step() for _ in range(_STEPS))
        both.logs.close()
    expected = {
        "appended",
        "refused",
        "truncated",
        "deleted",
        "rolled",
        "closed and opened",
        "crashed and opened",
        "begun anew",
    }
    assert expected < found.keys()
    assert min(found["appended"], found["refused"]) > _SEQUENCES * _STEPS // 20
