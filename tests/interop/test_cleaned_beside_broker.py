"""Our cleaner against a broker's: given the same closed directory and the same clock, both produce the same result.

There are three passes. Between them, a broker loads what we cleaned, serves it, and continues writing: the first time
after a clean stop, the second time without its state files, so that it reads every batch again.

Log files are read batch by batch without the code under test. Compressed records are compared decompressed: two implementations of a codec may encode the same bytes differently.
"""

from __future__ import annotations

import gzip
import shutil
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import cramjam
import pytest

import storage_core
from storage_core import LogDirectory
from storage_core.log import CleanerConfig
from tests.interop.aged import (
    CLEANER_SETTINGS,
    COMPACTED,
    LEGACY,
    UNCLEANABLE,
    WRITING,
    Aged,
    clean_by_broker,
    consume_all,
    copy_root,
)
from tests.interop.broker import KafkaBroker
from tests.interop.broker_start import BrokerStart
from tests.interop.cleaner_log import CleanerRound
from tests.interop.cleaning_workload import CLEANED, IDEMPOTENT, MANY_KEYS, OPEN, OURS, TRANSACTIONS, YOUNG
from tests.interop.clients import ISOLATION_LEVELS, READ_COMMITTED, Row, assert_same_rows, rows_of
from tests.interop.log_bytes import entries_of
from tests.interop.partition_state import (
    PartitionState,
    ProducerEntry,
    leader_epochs_below,
    snapshot_entries_in_order,
    state_of,
)
from tests.interop.placing import read_checkpoint, write_offsets
from tests.interop.raw_produce import OUT_OF_ORDER, Answer, ProducerAnswers, go_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from tests.interop.cleaning_workload import CleaningWorkload
    from tests.interop.clients import Consumed


# The fields after the CRC in a `RecordBatch` of format v2.
_FIELDS = struct.Struct(">hiqqqhii")
_FIELDS_AT = 21
_RECORDS_AT = 61
_CODEC_BITS = 7
DELETE_HORIZON = 0x40
_XERIAL_HEADER = b"\x82SNAPPY\x00"


class CleanedBatch(NamedTuple):
    """An entry of a log file. For formats v0 and v1 only the offset and the bytes are set."""

    base_offset: int
    magic: int
    leader_epoch: int = -1
    attributes: int = 0
    last_offset_delta: int = 0
    base_timestamp_ms: int = 0
    largest_timestamp_ms: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    count: int = 0
    records: bytes = b""

    @property
    def is_empty(self) -> bool:
        return self.magic == 2 and self.count == 0

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value}" for name, value in self._asdict().items() if name != "records")
        return f"CleanedBatch({fields}, {len(self.records)} bytes)"


def batches_in(content: bytes, segment: int) -> Iterator[CleanedBatch]:
    """Yield the entries of a log file; checks every CRC."""
    for entry in entries_of(content, segment):
        if entry.magic < 2:
            yield CleanedBatch(entry.base_offset, entry.magic, records=entry.content)
            continue
        offset, _, leader_epoch, magic = struct.unpack_from(">qiib", entry.content)
        fields = _FIELDS.unpack_from(entry.content, _FIELDS_AT)
        records = _decompressed(entry.content[_RECORDS_AT:], fields[0] & _CODEC_BITS)
        yield CleanedBatch(offset, magic, leader_epoch, *fields, records)


def _decompressed(content: bytes, codec: int) -> bytes:
    if codec == 0:
        return content
    if codec == 1:
        return gzip.decompress(content)
    if codec == 2:
        return _without_snappy(content)
    if codec == 3:
        return bytes(cramjam.lz4.decompress(content))
    return bytes(cramjam.zstd.decompress(content))


def _without_snappy(content: bytes) -> bytes:
    if not content.startswith(_XERIAL_HEADER):
        return bytes(cramjam.snappy.decompress_raw(content))
    plain, position = b"", 16
    while position < len(content):
        (size,) = struct.unpack_from(">i", content, position)
        plain += bytes(cramjam.snappy.decompress_raw(content[position + 4 : position + 4 + size]))
        position += 4 + size
    return plain


def first_difference(ours: Mapping[str, bytes], theirs: Mapping[str, bytes]) -> str | None:
    """Return the first difference between the log files of two partitions, given by name; None if they are equal."""
    if sorted(ours) != sorted(theirs):
        return f"segments: ours {sorted(ours)}, theirs {sorted(theirs)}"
    for name, content in theirs.items():
        if ours[name] == content:
            continue
        segment = int(name.removesuffix(".log"))
        found = list(batches_in(ours[name], segment))
        expected = list(batches_in(content, segment))
        for our_batch, their_batch in zip(found, expected, strict=False):
            if our_batch != their_batch:
                return f"{name}: ours {our_batch}, theirs {their_batch}"
        if len(found) != len(expected):
            return (
                f"{name}: ours has {len(found)} batches, theirs {len(expected)}; ours ends with {found[-1:]}"
            )
        if all(batch.attributes & _CODEC_BITS == 0 for batch in expected):
            return f"{name}: other bytes in uncompressed batches"
    return None


def horizons_in(logs: Mapping[str, bytes]) -> set[int]:
    """Return the delete horizons in the log files of a partition."""
    return {
        batch.base_timestamp_ms
        for name, content in logs.items()
        for batch in batches_in(content, int(name.removesuffix(".log")))
        if batch.magic == 2 and batch.attributes & DELETE_HORIZON
    }


# The longest time between the start of a pass and the broker's log line for it, on a machine that does other things.
_TOLERANCE_MS = 30_000


def clean_by_us(aged: Aged, target: Path) -> Path:
    """Apply the broker's passes to a copy, in its order and at its times; then clean what the broker could not."""
    copy_root(aged.before, target)
    cleaner = CleanerConfig.from_dict(CLEANER_SETTINGS)
    with LogDirectory.open(target, broker_directory=True, config=aged.configs) as logs:
        for event in aged.events:
            if event.log[0] not in aged.configs:
                continue
            log = logs.get(*event.log)
            if isinstance(event, CleanerRound):
                assert log.clean(cleaner, now_ms=_began_ms(aged, event)) is not None, event
            else:
                log.apply_retention(event.began_ms)
        logs.get(UNCLEANABLE, 0).clean(cleaner)
    return target


def clean_at_once(aged: Aged, target: Path) -> Path:
    """Clean a copy in a different order than the broker did."""
    copy_root(aged.before, target)
    cleaner = CleanerConfig.from_dict(CLEANER_SETTINGS)
    with LogDirectory.open(target, broker_directory=True, config=aged.configs) as logs:
        now_ms = aged.events[-1].began_ms
        assert logs.clean(cleaner, now_ms=now_ms)
        assert not logs.clean(cleaner, now_ms=now_ms)
    return target


def _began_ms(aged: Aged, event: CleanerRound) -> int:
    """Return the time from which the broker computed delete horizons; the new horizons show it exactly."""
    topic, partition = event.log
    before, after = (
        horizons_in({path.name: path.read_bytes() for path in (root / f"{topic}-{partition}").glob("*.log")})
        for root in (aged.before, aged.by_broker)
    )
    new = {horizon - aged.configs[topic].delete_retention_ms for horizon in after - before}
    # A log that was cleaned twice has two new horizons.
    began_ms = min(new, key=lambda each: abs(each - event.began_ms), default=event.began_ms)
    assert abs(began_ms - event.began_ms) < _TOLERANCE_MS
    return began_ms


@dataclass(frozen=True, slots=True)
class Continued:
    """A broker on a root that we cleaned.

    Attributes:
        root: The closed root, after more was written to it.
        start: What the broker logged during its start.
        consumed: What consumers read before further writes, by isolation level and topic.
        answers: The broker's answers to producers that continued.
    """

    root: Path
    start: BrokerStart
    consumed: dict[str, dict[str, Consumed]]
    answers: list[ProducerAnswers]


def continue_with_broker(
    cleaned: Path,
    producers: list[ProducerEntry],
    workload: CleaningWorkload,
    scratch: Path,
    occasion: str,
    *,
    is_forgotten: bool = False,
) -> Continued:
    """Start a broker on a copy of a cleaned root, read everything, and write to every topic.

    Args:
        cleaned: The root.
        producers: Idempotent producers that continue.
        workload: Writes the topics.
        scratch: Holds the copy.
        occasion: Which part of the workload is written.
        is_forgotten: Whether the broker gets only the log files, so that it reads every batch.
    """
    root = scratch / f"{occasion}-written"
    copy_root(cleaned, root)
    if is_forgotten:
        _forget_producers(root)
    with KafkaBroker(scratch / f"{occasion}-writing", WRITING, log_directory=root) as broker:
        start = BrokerStart(broker.log_path.read_text(errors="replace"))
        consumed = consume_all(broker)
        answers = [go_on(broker, IDEMPOTENT, entry) for entry in producers]
        workload.write(broker, occasion)
    workload.write_ours(root, occasion)
    return Continued(root, start, consumed, answers)


def _forget_producers(root: Path) -> None:
    (root / ".kafka_cleanshutdown").unlink()
    write_offsets(root, "recovery-point-offset-checkpoint", {})
    for snapshot in (root / f"{IDEMPOTENT}-0").glob("*.snapshot"):
        snapshot.unlink()


def producers_of(root: Path) -> list[ProducerEntry]:
    """Return the idempotent producers in a broker's last snapshots."""
    newest = max((root / f"{IDEMPOTENT}-0").glob("*.snapshot"))
    return sorted(snapshot_entries_in_order(newest.read_bytes()))


PASSES = ("first", "second", "third")
CONTROL = 0x20
# Later passes found nothing old enough, or no new records.
CLEANED_ONCE = {YOUNG, *LEGACY}
CLEANED_AGAIN = tuple(topic for topic in COMPACTED if topic not in CLEANED_ONCE)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Holds every root of this module."""
    directory = tmp_path_factory.mktemp("cleaned")
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def first_cleaned(first_aged: Aged, scratch: Path) -> Path:
    return clean_by_us(first_aged, scratch / "first")


@pytest.fixture(scope="module")
def first_continued(
    first_aged: Aged, first_cleaned: Path, cleaning_workload: CleaningWorkload, scratch: Path
) -> Continued:
    producers = producers_of(first_aged.before)
    return continue_with_broker(first_cleaned, producers, cleaning_workload, scratch, "second")


@pytest.fixture(scope="module")
def second_aged(first_aged: Aged, first_continued: Continued, scratch: Path) -> Aged:
    return clean_by_broker(first_continued.root, scratch, "second", first_aged.configs, CLEANED_AGAIN)


@pytest.fixture(scope="module")
def second_cleaned(second_aged: Aged, scratch: Path) -> Path:
    return clean_by_us(second_aged, scratch / "second")


@pytest.fixture(scope="module")
def second_continued(
    second_aged: Aged, second_cleaned: Path, cleaning_workload: CleaningWorkload, scratch: Path
) -> Continued:
    producers = producers_of(second_aged.before)
    return continue_with_broker(
        second_cleaned, producers, cleaning_workload, scratch, "third", is_forgotten=True
    )


@pytest.fixture(scope="module")
def third_aged(first_aged: Aged, second_continued: Continued, scratch: Path) -> Aged:
    return clean_by_broker(second_continued.root, scratch, "third", first_aged.configs, CLEANED_AGAIN)


@pytest.fixture(scope="module")
def third_cleaned(third_aged: Aged, scratch: Path) -> Path:
    return clean_by_us(third_aged, scratch / "third")


@pytest.fixture(params=PASSES, scope="module")
def passed(request: pytest.FixtureRequest) -> tuple[Aged, Path]:
    """Return one pass: a root as a broker left it, and a copy as we left it."""
    return request.getfixturevalue(f"{request.param}_aged"), request.getfixturevalue(
        f"{request.param}_cleaned"
    )


@pytest.fixture
def states(passed: tuple[Aged, Path], topic: str) -> tuple[PartitionState, PartitionState]:
    """Return one topic: our state and the broker's."""
    aged, cleaned = passed
    return state_of(cleaned / f"{topic}-0"), state_of(aged.by_broker / f"{topic}-0")


@pytest.fixture(params=PASSES[:2], scope="module")
def continued(request: pytest.FixtureRequest) -> Continued:
    """Return a broker on a root that we cleaned."""
    found: Continued = request.getfixturevalue(f"{request.param}_continued")
    return found


@pytest.mark.parametrize("topic", COMPACTED)
def test_same_files(states: tuple[PartitionState, PartitionState]) -> None:
    ours, theirs = states
    assert first_difference(ours.logs, theirs.logs) is None
    assert sorted(ours.indexes) == sorted(theirs.indexes)
    # Codecs may produce different sizes for the same records.
    same = {name.removesuffix(".log") for name, content in theirs.logs.items() if ours.logs[name] == content}
    for name, content in theirs.indexes.items():
        if name.partition(".")[0] in same or name.endswith(".txnindex"):
            assert ours.indexes[name].hex() == content.hex(), name
    assert ours.snapshots == theirs.snapshots
    assert ours.others == theirs.others
    assert leader_epochs_below(ours, last_base(theirs)) == leader_epochs_below(theirs, last_base(theirs))


def test_same_checkpoints(passed: tuple[Aged, Path]) -> None:
    aged, cleaned = passed
    for name in ("cleaner-offset-checkpoint", "log-start-offset-checkpoint"):
        ours, theirs = (read_checkpoint(root / name) for root in (cleaned, aged.by_broker))
        for topic in COMPACTED:
            assert ours.get((topic, 0)) == theirs.get((topic, 0)), f"{name}, {topic}"


def test_same_records_in_any_cleaning_order(first_aged: Aged, scratch: Path) -> None:
    root = clean_at_once(first_aged, scratch / "at-once")
    # The segments that were merged before determine what retention deletes. The time between two passes over the same
    # log determines which tombstones are left.
    topics = [topic for topic in COMPACTED if topic not in {"cleaned-and-deleted", MANY_KEYS}]
    for topic in topics:
        ours, theirs = (
            [(batch.base_offset, batch.last_offset_delta, batch.count) for batch in batches_of(each, topic)]
            for each in (root, first_aged.by_broker)
        )
        assert ours == theirs, topic
    name = "cleaner-offset-checkpoint"
    ours, theirs = (read_checkpoint(each / name) for each in (root, first_aged.by_broker))
    for topic in (*topics, MANY_KEYS):
        assert ours[topic, 0] == theirs[topic, 0], topic


def test_log_that_a_broker_cannot_clean(first_aged: Aged, first_cleaned: Path) -> None:
    assert not [event for event in first_aged.events if event.log[0] == UNCLEANABLE]
    before, theirs = (
        list(batches_of(root, UNCLEANABLE)) for root in (first_aged.before, first_aged.by_broker)
    )
    assert theirs == before
    ours = list(batches_of(first_cleaned, UNCLEANABLE))
    end = last_base(state_of(first_cleaned / f"{UNCLEANABLE}-0"))
    cleaned = [batch for batch in ours if batch.base_offset < end]
    assert {batch.magic for batch in cleaned} == {2}
    assert cleaned[-1].is_empty
    assert cleaned[-1].base_offset + cleaned[-1].last_offset_delta == end - 1
    assert read_checkpoint(first_cleaned / "cleaner-offset-checkpoint")[UNCLEANABLE, 0] == end


def test_broker_cleaned_every_topic_in_each_pass(
    first_aged: Aged, second_aged: Aged, third_aged: Aged
) -> None:
    for aged, topics in ((first_aged, COMPACTED), (second_aged, CLEANED_AGAIN), (third_aged, CLEANED_AGAIN)):
        rounds = [event for event in aged.events if isinstance(event, CleanerRound)]
        assert {event.log[0] for event in rounds} >= set(topics)
    # The offset map overflowed once.
    first, second = (each.end_offset for each in first_aged.events if each.log[0] == MANY_KEYS)
    assert 39_321 < first < second


def test_workload_covers_every_cleaner_decision(
    first_aged: Aged, second_aged: Aged, third_aged: Aged
) -> None:
    """The compared topics contain every case that a cleaner must decide."""
    after = list(batches_of(first_aged.by_broker, TRANSACTIONS))
    assert count_of(after, is_marker) > 10
    assert count_of(after, has_horizon) >= 2
    # Markers without data got a delete horizon in the second pass, and the third removed them.
    again = list(batches_of(second_aged.by_broker, TRANSACTIONS))
    last = {batch.base_offset for batch in batches_of(third_aged.by_broker, TRANSACTIONS)}
    passing = [batch for batch in again if is_marker(batch) and has_horizon(batch)]
    assert [batch for batch in passing if batch.base_offset not in last]
    emptied = [batch for batch in batches_of(third_aged.by_broker, IDEMPOTENT) if batch.is_empty]
    assert len({batch.producer_id for batch in emptied}) >= 2
    # The marker of a producer without data in this log is the only trace of it.
    assert any(
        batch.is_empty and is_marker(batch) for batch in batches_of(third_aged.by_broker, TRANSACTIONS)
    )


@pytest.mark.parametrize("topic", [topic for topic in CLEANED if topic != OURS])
def test_consumer_finds_the_last_value_of_each_key(
    aged: tuple[Aged, dict[str, list[Row]]], first_continued: Continued, topic: str
) -> None:
    before = aged[1][topic]
    consumed = first_continued.consumed[READ_COMMITTED][topic]
    assert consumed.error is None
    assert set(map(repr, consumed.rows)) <= set(map(repr, before))
    if topic == "cleaned-and-deleted":
        return
    assert last_values(consumed.rows) == last_values(before)
    if topic != OPEN:
        assert len(consumed.rows) < len(before)


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
@pytest.mark.parametrize("topic", [*COMPACTED, UNCLEANABLE])
def test_we_read_what_the_consumer_reads(
    first_cleaned: Path, first_continued: Continued, topic: str, isolation_level: str
) -> None:
    consumed = first_continued.consumed[isolation_level][topic]
    table = storage_core.read_table(
        str(first_cleaned), subscribe=topic, isolation_level=isolation_level, include_headers=True
    )
    assert consumed.error is None
    assert_same_rows(rows_of(table), consumed.rows)


def test_broker_loads_our_work_without_a_warning(first_continued: Continued) -> None:
    assert first_continued.start.skipped_recovery
    assert not warnings_of_loading(first_continued.start)


def test_broker_recovers_our_work_without_a_warning(second_continued: Continued) -> None:
    assert second_continued.start.recovered
    assert not warnings_of_loading(second_continued.start)


def test_recovery_keeps_every_byte(
    second_cleaned: Path, second_aged: Aged, second_continued: Continued
) -> None:
    for topic in COMPACTED:
        ours, theirs = (
            state_of(root / f"{topic}-0").logs for root in (second_cleaned, second_continued.root)
        )
        last = max(ours)
        assert theirs[last].startswith(ours[last])
        assert all(theirs[name] == content for name, content in ours.items() if name != last)


def test_idempotent_producers_continue(continued: Continued) -> None:
    assert len(continued.answers) >= 4
    for answer in continued.answers:
        entry = answer.entry
        assert answer.repeated == Answer(0, entry.last_offset - entry.offset_delta)
        assert answer.gap.error == OUT_OF_ORDER
        assert answer.next == Answer(0, answer.log_end_offset)


def warnings_of_loading(start: BrokerStart) -> list[str]:
    complaints = [line for topic in (*COMPACTED, UNCLEANABLE) for line in start.complaints(topic)]
    # The broker logs this before each check of the log's age.
    future = "partition=retained-old-behind-future-0,"
    return complaints + [line for line in start.unusual() if future not in line]


def last_values(rows: list[Row]) -> dict[bytes, bytes]:
    """Return the value of each key that has one in the end."""
    last = {row.key: row.value for row in rows}
    return {key: value for key, value in last.items() if key is not None and value is not None}


def last_base(state: PartitionState) -> int:
    return int(max(state.logs).removesuffix(".log"))


def batches_of(root: Path, topic: str) -> Iterator[CleanedBatch]:
    for name, content in state_of(root / f"{topic}-0").logs.items():
        yield from batches_in(content, int(name.removesuffix(".log")))


def is_marker(batch: CleanedBatch) -> bool:
    return bool(batch.attributes & CONTROL)


def has_horizon(batch: CleanedBatch) -> bool:
    return bool(batch.attributes & DELETE_HORIZON)


def count_of(batches: Iterable[CleanedBatch], is_such: Callable[[CleanedBatch], bool]) -> int:
    return sum(map(is_such, batches))
