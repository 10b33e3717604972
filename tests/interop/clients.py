"""Client operations on a broker: create topics, produce, consume, and look up offsets by time.

Consumed messages and table rows become the same `Row` tuples, so that they can be compared.
"""

from __future__ import annotations

import hashlib
import threading
import time
import warnings
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyarrow as pa
from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from confluent_kafka import Message
    from confluent_kafka.admin import ListOffsetsResultInfo

    from tests.interop.broker import KafkaBroker

READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"
ISOLATION_LEVELS = (READ_UNCOMMITTED, READ_COMMITTED)

# Spark's numbers for librdkafka's timestamp types.
_TIMESTAMP_TYPES = {TIMESTAMP_NOT_AVAILABLE: -1, TIMESTAMP_CREATE_TIME: 0, TIMESTAMP_LOG_APPEND_TIME: 1}
_CLIENT_TIMEOUT_S = 300.0
_TRANSACTION_TIMEOUT_MS = 900_000
# How many consumers try to read what a running broker has, and for how long each of them may stand still.
_CONSUMERS = 3
_PATIENCE_S = 20.0
_NOTHING_MORE = "nothing more came for"
_Answer = TypeVar("_Answer")
Place = tuple[str, int]
_NOT_READY_YET = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}


class Row(NamedTuple):
    """One record, as any reader returned it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int
    timestamp_type: int


def when_it_leads(ask: Callable[[], _Answer]) -> _Answer:
    """Ask until the broker leads the partitions and coordinates the groups.

    A broker that has just started tells clients of partitions before it leads them. Kafka's own clients ask again, and
    so does librdkafka when it produces and consumes, but not, or not often, when it is asked for offsets.
    """
    deadline = time.monotonic() + _CLIENT_TIMEOUT_S
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in _NOT_READY_YET or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def wait_until(is_so: Callable[[], bool], what: str = "", timeout_s: float = _CLIENT_TIMEOUT_S) -> None:
    """Wait for something to become true.

    Raises:
        TimeoutError: It did not, in time.
    """
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(what or "The condition did not come true in time.")
        time.sleep(0.03)


def create_topic(broker: KafkaBroker, name: str, partitions: int = 1, **settings: object) -> None:
    """Create a topic and wait until its directories exist. Settings have ``_`` for ``.``."""
    create_topics(broker, {name: settings}, {name: partitions})


def create_topics(
    broker: KafkaBroker,
    topics: Mapping[str, Mapping[str, object]],
    partitions: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Create topics and wait until their directories exist.

    Args:
        broker: A running broker.
        topics: The settings of each, with ``_`` for ``.``.
        partitions: The number of partitions of each; 1 if it is missing.
    """
    new = [
        NewTopic(
            name,
            partitions.get(name, 1),
            1,
            config={key.replace("_", "."): str(value) for key, value in settings.items()},
        )
        for name, settings in topics.items()
    ]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    for created in admin.create_topics(new).values():
        created.result(_CLIENT_TIMEOUT_S)
    # The controller answers before the broker creates the directories, and their last files.
    for name in topics:
        for number in range(partitions.get(name, 1)):
            path = broker.log_directory / f"{name}-{number}"
            wait_until(
                lambda path=path: (path / f"{0:020}.log").exists() and (path / "partition.metadata").exists(),
                f"The broker did not create {path}.",
            )


def new_producer(broker: KafkaBroker, **settings: object) -> Producer:
    """Return a producer that logs nothing when the broker is killed. Settings have ``_`` for ``.``.

    Unless a setting says otherwise, its transactions stay open for as long as a test may take.
    """
    config: dict[str, object] = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
    if "transactional_id" in settings:
        config["transaction.timeout.ms"] = _TRANSACTION_TIMEOUT_MS
    config.update({key.replace("_", "."): value for key, value in settings.items()})
    return Producer(config)


class Deliveries:
    """Collects acknowledged records by offset from delivery reports.

    Pass the object as ``on_delivery``. Other threads may read it at the same time.
    """

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int, int], tuple[bytes | None, bytes | None]] = {}
        self.errors: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        with self._lock:
            if error is not None:
                self.errors.append(str(error))
                return
            place = (message.topic(), message.partition(), message.offset())
            self.rows[place] = (message.key(), message.value())

    def snapshot(self) -> dict[tuple[str, int, int], tuple[bytes | None, bytes | None]]:
        """Return the records acknowledged so far."""
        with self._lock:
            return dict(self.rows)


def consume(
    broker: KafkaBroker, topics: str | Iterable[str], isolation_level: str = READ_UNCOMMITTED
) -> list[Row]:
    """Return the records of partition 0 that a consumer gets from log start to log end, by topic and offset.

    The end is that of the first fetch, or a later one: a consumer reaches the last record of a topic only while nobody
    writes to it. A consumer that stands still is replaced by a new one, as a client does that restarts.
    """
    places = [(topic, 0) for topic in ([topics] if isinstance(topics, str) else topics)]
    for _ in range(_CONSUMERS):
        # A running broker may delete records that the consumer is about to read.
        found = consume_partitions(
            broker, places, isolation_level, patience_s=_PATIENCE_S, out_of_range="latest", is_growing=True
        )
        errors = [each.error for each in found.values() if each.error]
        if not all(error.startswith(_NOTHING_MORE) for error in errors):
            break
        if not errors:
            return sorted((row for each in found.values() for row in each.rows), key=_place)
    raise RuntimeError(f"The consumer failed: {errors}")


@dataclass(slots=True)
class Consumed:
    """What a consumer got from one partition.

    Attributes:
        rows: In the order received.
        end_offset: The end as the broker reports it: for read_committed, the last stable offset.
        error: Why the consumer stopped; None if it reached the end.
    """

    rows: list[Row] = field(default_factory=list)
    end_offset: int = -1
    error: str | None = None


class _ClientLog:
    """Keeps the last lines that a client logs, which say what it waits for."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=300)

    def log(self, level: int, text: str, *parts: object) -> None:
        """Take a line, as a `logging.Logger` does."""
        del level
        self.lines.append(f"{time.time():.3f} {text % parts}")


def consume_partitions(
    broker: KafkaBroker,
    places: Iterable[tuple[str, int]],
    isolation_level: str = READ_UNCOMMITTED,
    *,
    patience_s: float = 60.0,
    out_of_range: str = "error",
    is_growing: bool = False,
) -> dict[tuple[str, int], Consumed]:
    """Consume partitions from log start to log end; one failure does not affect the other partitions.

    Args:
        broker: A running broker.
        places: Topics and partitions.
        isolation_level: The consumer's isolation level.
        patience_s: Once the first message has come, a partition has failed that delivers nothing for this long.
        out_of_range: What to do at an offset that does not exist: fail, or continue at the ``latest``.
        is_growing: Whether the end that a partition had at its first fetch suffices, because it is written to.
    """
    log = _ClientLog()
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "interop",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation_level,
            "check.crcs": True,
            "auto.offset.reset": out_of_range,
            "fetch.wait.max.ms": 10,
            "debug": "fetch,protocol,topic",
        },
        logger=log,
    )
    consumed = {(topic, partition): Consumed() for topic, partition in places}
    try:
        consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in consumed])
        _consume_all(consumer, consumed, patience_s, is_growing=is_growing)
        if any((each.error or "").startswith(_NOTHING_MORE) for each in consumed.values()):
            # A test that does not fail for it is slow.
            print("A consumer stands still:", *log.lines, sep="\n  ")
        for place, each in consumed.items():
            if each.error is not None:
                _, each.end_offset = consumer.get_watermark_offsets(TopicPartition(*place), _CLIENT_TIMEOUT_S)
    finally:
        consumer.close()
    return consumed


def _consume_all(
    consumer: Consumer,
    consumed: dict[tuple[str, int], Consumed],
    patience_s: float,
    *,
    is_growing: bool,
) -> None:
    unfinished = set(consumed)
    ends: dict[tuple[str, int], int] = {}
    timeout_s = max(patience_s, 60.0)
    while unfinished:
        # Not consume(n): it waits for n messages until its timeout.
        message = consumer.poll(timeout_s)
        if message is None:
            for place in unfinished:
                consumed[place].error = f"{_NOTHING_MORE} {timeout_s} s"
            return
        timeout_s = patience_s
        place = (message.topic(), message.partition())
        error = message.error()
        if place not in unfinished:
            if error is not None and place not in consumed:
                raise RuntimeError(f"The consumer failed: {error}")
            # Fetched before this partition was unassigned.
            continue
        if error is None:
            consumed[place].rows.append(row_of_message(message))
            if is_growing and place not in ends:
                # As the first fetch reported it: the client asks nothing.
                _, ends[place] = consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
                assert ends[place] > message.offset()
            if not is_growing or message.offset() + 1 < ends[place]:
                continue
            consumed[place].end_offset = message.offset() + 1
        elif error.code() == KafkaError._PARTITION_EOF:
            consumed[place].end_offset = message.offset()
        else:
            consumed[place].error = str(error)
            # The consumer would retry forever.
            consumer.incremental_unassign([TopicPartition(*place)])
        unfinished.discard(place)


def row_of_message(message: Message) -> Row:
    """Return a consumer's message as a row."""
    timestamp_type, timestamp_ms = message.timestamp()
    if timestamp_type == TIMESTAMP_NOT_AVAILABLE:
        timestamp_ms = -1
    return Row(
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        tuple((name, value) for name, value in message.headers() or ()),
        timestamp_ms,
        _TIMESTAMP_TYPES[timestamp_type],
    )


def rows_of(table: pa.Table) -> list[Row]:
    """Return the rows of a table with headers, by partition and offset."""
    timestamps_us = table.column("timestamp").cast(pa.int64()).to_pylist()
    columns: list[list[Any]] = [
        table.column(name).to_pylist()
        for name in ("topic", "partition", "offset", "key", "value", "headers", "timestampType")
    ]
    rows = []
    for timestamp_us, topic, partition, offset, key, value, headers, timestamp_type in zip(
        timestamps_us, *columns, strict=True
    ):
        pairs = tuple((header["key"], header["value"]) for header in headers or ())
        rows.append(Row(topic, partition, offset, key, value, pairs, timestamp_us // 1000, timestamp_type))
    return sorted(rows, key=_place)


def _place(row: Row) -> tuple[str, int, int]:
    return row[:3]


def assert_same_rows(actual: Sequence[Row], expected: Sequence[Row]) -> None:
    """Compare rows; report the first difference instead of printing two long lists."""
    for ours, theirs in zip(actual, expected, strict=False):
        assert ours == theirs, f"expected {theirs}, found {ours}"
    longer, shorter = sorted((actual, expected), key=len, reverse=True)
    if len(longer) > len(shorter):
        what = "too many" if longer is actual else "missing"
        raise AssertionError(f"{len(longer) - len(shorter)} rows {what}, from {longer[len(shorter)]} on")


def end_offset(broker: KafkaBroker, topic: str) -> int:
    """Return the broker's high watermark of partition 0."""
    return _watermarks(broker, topic)[1]


def start_offset(broker: KafkaBroker, topic: str) -> int:
    """Return the broker's log start offset of partition 0."""
    return _watermarks(broker, topic)[0]


def delete_records(broker: KafkaBroker, topic: str, before_offset: int) -> None:
    """Raise the log start offset of partition 0 and wait until the root's checkpoint holds it."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    place = TopicPartition(topic, 0, before_offset)
    admin.delete_records([place])[place].result(_CLIENT_TIMEOUT_S)
    checkpoint = broker.log_directory / "log-start-offset-checkpoint"
    wait_until(
        lambda: f"{topic} 0 {before_offset}" in checkpoint.read_text().splitlines(),
        f"{checkpoint} does not name the new log start offset.",
    )


def _watermarks(broker: KafkaBroker, topic: str) -> tuple[int, int]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "interop", "log_level": 0}
    )
    try:
        place = TopicPartition(topic, 0)
        low, high = when_it_leads(lambda: consumer.get_watermark_offsets(place, timeout=_CLIENT_TIMEOUT_S))
    finally:
        consumer.close()
    return low, high


def wait_for_markers(broker: KafkaBroker, places: Iterable[tuple[str, int]]) -> None:
    """Wait until all transactions of partitions have ended: a coordinator answers before it writes the markers."""
    places = list(places)
    deadline = time.monotonic() + _CLIENT_TIMEOUT_S
    while True:
        stable, latest = (
            {
                place: each.offset
                for place, each in offsets_at(broker, places, OffsetSpec.latest(), isolation).items()
            }
            for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        )
        if stable == latest:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"Transactions are open: the last stable offsets are {stable} of {latest}.")
        time.sleep(0.05)


def wait_for_high_watermarks(broker: KafkaBroker, offsets: Mapping[tuple[str, int], int]) -> None:
    """Wait until the checkpoint in the broker's directory has these high watermarks; it is some seconds late."""
    checkpoint = broker.log_directory / "replication-offset-checkpoint"
    wanted = {f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()}
    wait_until(
        lambda: checkpoint.exists() and wanted <= set(checkpoint.read_text().splitlines()),
        f"{checkpoint} does not have {wanted}.",
    )


def offsets_at(
    broker: KafkaBroker,
    places: Iterable[tuple[str, int]],
    spec: OffsetSpec,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[tuple[str, int], ListOffsetsResultInfo]:
    """Return the broker's ListOffsets answers for the earliest, latest or largest timestamp, by topic and partition."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    asked = {TopicPartition(*place): spec for place in places}
    return when_it_leads(
        lambda: {
            (place.topic, place.partition): answer.result(_CLIENT_TIMEOUT_S)
            for place, answer in admin.list_offsets(asked, isolation_level=isolation).items()
        }
    )


def log_offsets(broker: KafkaBroker, places: Iterable[Place]) -> dict[Place, tuple[int, int]]:
    """Return the earliest and latest offsets from ListOffsets."""
    places = list(places)
    earliest = offsets_at(broker, places, OffsetSpec.earliest())
    latest = offsets_at(broker, places, OffsetSpec.latest())
    return {place: (earliest[place].offset, latest[place].offset) for place in places}


def list_offsets(
    broker: KafkaBroker, topic: str, timestamps_ms: Sequence[int]
) -> list[tuple[int, int] | None]:
    """Return the broker's ListOffsets answers for partition 0: (timestamp, offset) or None, one for each timestamp."""
    # Not librdkafka: its lookup by time returns no timestamp, and its admin client, which does, has crashed
    # after some thousand requests.
    with warnings.catch_warnings():
        # kafka-python uses features that newer Python versions deprecate.
        warnings.simplefilter("ignore")
        import kafka

        consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, enable_auto_commit=False)
        place = kafka.TopicPartition(topic, 0)
        try:
            answers = [consumer.offsets_for_times({place: each})[place] for each in timestamps_ms]
        finally:
            consumer.close()
    return [None if answer is None else (answer.timestamp, answer.offset) for answer in answers]


def file_states(directory: Path) -> Mapping[str, tuple[int, str]]:
    """Modification time (ns) and SHA-256 of every file below a directory, and the time of every directory."""
    states = {}
    for path in sorted(directory.rglob("*")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "directory"
        states[str(path.relative_to(directory))] = (path.stat().st_mtime_ns, digest)
    return states
