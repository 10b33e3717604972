"""A stock broker loads recovered directories of every kind of damage without recovery, serves what each policy promises,
and continues to append.

A broker is killed, and a partition of its transactions is copied and damaged in each way, once for each policy. Then the
whole root is recovered as an operator would, and the same broker starts on the result.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

import storage_core
from storage_core import LogDirectory
from storage_core.errors import RecoveryWouldDiscardError
from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from storage_core.recover.recover import recover
from tests.conformance.archives import fingerprint
from tests.interop.broker import KafkaBroker
from tests.interop.broker_start import BrokerStart, start_and_watch
from tests.interop.clients import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Consumed,
    Deliveries,
    Row,
    assert_same_rows,
    consume_partitions,
    create_topics,
    new_producer,
    rows_of,
)
from tests.interop.damaged_logs import DAMAGED_LOGS, Checkpointed
from tests.interop.placing import add_offsets, place, write_offsets
from tests.interop.produced import (
    BROKER_SETTINGS,
    PRODUCED,
    TRANSACTIONS,
    Produced,
    small_records,
)

if TYPE_CHECKING:
    from pathlib import Path

    from storage_core.recover.recover import RecoveredPartition, RecoveryReport


POLICIES = ("kafka", "tail", "salvage")
APPENDED = 5


def topic_of(policy: str, way: str) -> str:
    return f"{policy}-{way}"


# What a recovery must notice beside the bytes of logs: what happens to a partition, by topic.
ID_IS_GONE, ID_IS_BROKEN, ID_IS_FOREIGN = "id-is-gone", "id-is-broken", "id-is-foreign"
SEGMENT_IS_GONE = "segment-is-gone"
SERVED = (ID_IS_GONE, ID_IS_BROKEN, ID_IS_FOREIGN, SEGMENT_IS_GONE)
FOREIGN_ID = "abcdefghijklmnopqrstug"
TOPICS = {topic_of(policy, way): way for policy in POLICIES for way in DAMAGED_LOGS}


@dataclass(slots=True, repr=False)
class Recovered:
    """What was recovered, and what the broker did with it.

    Attributes:
        source: The damaged root.
        before: Its files before the recovery.
        after: Its files after the broker had used the recovered root.
        root: The recovered root, which the broker used.
        partitions: The report on each topic that its policy did not refuse.
        served: That on each topic of `SERVED`.
        unserved: Why a broker would not serve a partition, by the name of its directory.
        ids: The topic ids before the damage, by topic.
        expected: The rows that each policy promises, read without the recovery.
        committed: The committed rows in the recovered root, before the broker started.
        start: The broker's start with the recovered root.
        consumed: By isolation level and topic.
        appended: The offsets of the records that a client appended, by topic.
    """

    source: Path
    root: Path
    before: dict[str, tuple[int, str]] = field(default_factory=dict)
    after: dict[str, tuple[int, str]] = field(default_factory=dict)
    partitions: dict[str, RecoveredPartition] = field(default_factory=dict)
    served: dict[str, RecoveredPartition] = field(default_factory=dict)
    unserved: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    expected: dict[str, list[Row]] = field(default_factory=dict)
    committed: dict[str, list[Row]] = field(default_factory=dict)
    start: BrokerStart = field(default_factory=lambda: BrokerStart(""))
    consumed: dict[str, dict[str, Consumed]] = field(default_factory=dict)
    appended: dict[str, list[int]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def recovered(tmp_path_factory: pytest.TempPathFactory) -> Recovered:
    scratch = tmp_path_factory.mktemp("recovered")
    broker = KafkaBroker(scratch / "broker", BROKER_SETTINGS)
    broker.start()
    try:
        topics = dict.fromkeys((*TOPICS, *SERVED), PRODUCED[TRANSACTIONS])
        create_topics(broker, {**PRODUCED, **topics})
        produced = Produced(broker)
        produced.write("first")
        produced.write("second")
    finally:
        broker.kill()
    found = Recovered(scratch / "source", broker.log_directory)
    shutil.move(broker.log_directory, found.source)
    _damage(found.source)
    found.ids = {topic: _id_in(found.source, topic) for topic in SERVED}
    _damage_beside_logs(found.source)
    _expect(found, scratch)
    found.before = fingerprint(found.source)
    _recover(found, scratch)
    for topic in found.partitions:
        found.committed[topic] = _committed(found.root, topic)
    found.start = start_and_watch(broker)
    try:
        for level in (READ_UNCOMMITTED, READ_COMMITTED):
            topics = [*found.partitions, *SERVED]
            consumed = consume_partitions(broker, [(topic, 0) for topic in topics], level)
            found.consumed[level] = {topic: each for (topic, _), each in consumed.items()}
        _append(found, broker)
    finally:
        broker.stop()
    found.after = fingerprint(found.source)
    return found


def _damage(root: Path) -> None:
    recovery_points: dict[str, int] = {}
    log_starts: dict[str, int] = {}
    for topic, way in TOPICS.items():
        place(root, root, topic, source_topic=TRANSACTIONS)
        checkpointed = DAMAGED_LOGS[way](root / f"{topic}-0") or Checkpointed()
        if checkpointed.recovery_point is not None:
            recovery_points[topic] = checkpointed.recovery_point
        if checkpointed.log_start is not None:
            log_starts[topic] = checkpointed.log_start
    write_offsets(root, "recovery-point-offset-checkpoint", recovery_points)
    add_offsets(root, "log-start-offset-checkpoint", log_starts)


def _id_in(root: Path, topic: str) -> str:
    return (root / f"{topic}-0" / "partition.metadata").read_text().rpartition(" ")[2]


def _damage_beside_logs(root: Path) -> None:
    for topic in SERVED:
        place(root, root, topic, source_topic=TRANSACTIONS)
    (root / f"{ID_IS_GONE}-0" / "partition.metadata").unlink()
    (root / f"{ID_IS_BROKEN}-0" / "partition.metadata").write_bytes(b"")
    (root / f"{ID_IS_FOREIGN}-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {FOREIGN_ID}")
    logs = sorted((root / f"{SEGMENT_IS_GONE}-0").glob("*.log"))
    for path in (root / f"{SEGMENT_IS_GONE}-0").glob(f"{logs[1].stem}.*"):
        path.unlink()


def _expect(found: Recovered, scratch: Path) -> None:
    """Note what a broker's recovery keeps, by opening a copy, and what can be read of the damaged logs."""
    copied = scratch / "copied"
    shutil.copytree(found.source, copied)
    with LogDirectory.open(copied, recovery="kafka", broker_directory=True):
        pass
    impossible = {
        topic_of("salvage", way) for way in DAMAGED_LOGS if way == "damaged-log-start-beyond-the-end"
    }
    for topic in (*TOPICS, *SERVED):
        root = found.source if topic.startswith("salvage") else copied
        path = root / f"{topic}-0" if topic not in impossible else _without_checkpoints(root, topic, scratch)
        table = storage_core.read_table(
            str(path), subscribe=topic, include_headers=True, mode="DROPMALFORMED"
        )
        found.expected[topic] = rows_of(table)


def _without_checkpoints(root: Path, topic: str, scratch: Path) -> Path:
    shutil.copytree(root / f"{topic}-0", scratch / "alone" / f"{topic}-0")
    return scratch / "alone" / f"{topic}-0"


def _recover(found: Recovered, scratch: Path) -> None:
    """Recover the whole root by the broker's policy, then put partitions recovered by the others in place of its own."""
    report = _run(found.source, found.root, "kafka")
    assert report.target == str(found.root)
    found.unserved = {each.path.rpartition("/")[2]: each.reason for each in report.unserved}
    _note(found, report, "kafka")
    for policy in ("tail", "salvage"):
        for way in DAMAGED_LOGS:
            topic = topic_of(policy, way)
            target = scratch / "parts" / topic
            target.parent.mkdir(exist_ok=True)
            try:
                report = _run(found.source, target, policy, subscribe=topic)
            except RecoveryWouldDiscardError:
                continue
            _note(found, report, policy)
            place(target, found.root, topic)


def _committed(root: Path, topic: str) -> list[Row]:
    table = storage_core.read_table(
        str(root / f"{topic}-0"),
        subscribe=topic,
        include_headers=True,
        isolation_level="read_committed",
        mode="DROPMALFORMED",
    )
    return rows_of(table)


def _run(source: Path, target: Path, policy: str, **options: object) -> RecoveryReport:
    return recover(FileSystem(), options_of([str(source)], options), str(target), policy=policy)  # type: ignore[arg-type]


def _note(found: Recovered, report: RecoveryReport, policy: str) -> None:
    for each in report.partitions:
        if each.topic in SERVED:
            found.served[each.topic] = each
        if each.topic in TOPICS and each.topic.startswith(f"{policy}-"):
            found.partitions[each.topic] = each


def _append(found: Recovered, broker: KafkaBroker) -> None:
    deliveries = Deliveries()
    producer = new_producer(broker, enable_idempotence=True, linger_ms=5)
    for topic in found.partitions:
        for record in small_records(APPENDED, first=100_000):
            producer.produce(
                topic,
                key=b"key",
                value=record.value,
                timestamp=record.timestamp_ms,
                partition=0,
                on_delivery=deliveries,
            )
    producer.flush()
    assert not deliveries.errors, deliveries.errors[0]
    for topic, _, offset in sorted(deliveries.rows):
        found.appended.setdefault(topic, []).append(offset)


def test_the_source_did_not_change(recovered: Recovered) -> None:
    assert recovered.after == recovered.before


def test_enough_was_recovered(recovered: Recovered) -> None:
    assert set(recovered.partitions) >= {topic for topic in TOPICS if not topic.startswith("tail")}
    kept = [topic for topic in recovered.partitions if topic.startswith("tail")]
    assert 10 < len(kept) < len(DAMAGED_LOGS)
    assert recovered.start.skipped_recovery
    unusual = recovered.start.unusual()
    # A broker may need a second way to rename the directory.
    assert unusual
    assert all(f"/{ID_IS_FOREIGN}-0" in line for line in unusual), unusual


@pytest.mark.parametrize("topic", TOPICS)
def test_the_broker_loads_it_and_serves_what_the_policy_promises(recovered: Recovered, topic: str) -> None:
    partition = recovered.partitions.get(topic)
    if partition is None:
        pytest.skip("the policy refuses to lose complete batches")
    loaded = recovered.start.loaded()[topic, 0]
    assert (loaded.log_start_offset, loaded.log_end_offset) == (
        partition.log_start_offset,
        partition.log_end_offset,
    )
    complaints = recovered.start.complaints(topic)
    if not partition.batch_count:
        # A broker writes an empty snapshot at the end of an empty log, whoever closed it.
        complaints = [line for line in complaints if " with 0 producer ids in " not in line]
    assert complaints == []
    assert recovered.start.recovered_segments(topic) == []
    first = partition.log_end_offset
    assert recovered.appended[topic] == list(range(first, first + APPENDED))
    consumed = recovered.consumed[READ_UNCOMMITTED][topic]
    if partition.damaged:
        # As with the broker itself, a consumer stops at damage that no recovery reads.
        assert consumed.error is not None
        assert_same_rows(consumed.rows, recovered.expected[topic][: len(consumed.rows)])
        return
    assert consumed.error is None
    assert_same_rows(consumed.rows, recovered.expected[topic])
    committed = recovered.consumed[READ_COMMITTED][topic]
    assert committed.error is None
    assert_same_rows(committed.rows, recovered.committed[topic])


@pytest.mark.parametrize("topic", [ID_IS_GONE, ID_IS_BROKEN])
def test_a_partition_is_served_under_the_id_that_the_cluster_knows(recovered: Recovered, topic: str) -> None:
    loaded = recovered.start.loaded()[topic, 0]
    assert loaded.topic_id == recovered.ids[topic]
    assert f"{topic}-0" not in recovered.unserved
    assert_same_rows(recovered.consumed[READ_UNCOMMITTED][topic].rows, recovered.expected[topic])
    assert recovered.expected[topic]


def test_one_with_another_id_is_named_and_a_broker_sets_it_aside(recovered: Recovered) -> None:
    assert set(recovered.unserved) == {f"{ID_IS_FOREIGN}-0"}
    assert recovered.consumed[READ_UNCOMMITTED][ID_IS_FOREIGN].rows == []
    assert list(recovered.root.glob(f"{ID_IS_FOREIGN}-0.*-stray"))


def test_a_hole_is_named_and_a_broker_serves_the_rest(recovered: Recovered) -> None:
    (missing,) = recovered.served[SEGMENT_IS_GONE].left_out
    offsets = [row.offset for row in recovered.consumed[READ_UNCOMMITTED][SEGMENT_IS_GONE].rows]
    assert not set(offsets) & set(range(missing.start_offset, missing.end_offset))
    assert min(offsets) < missing.start_offset < missing.end_offset < max(offsets)
