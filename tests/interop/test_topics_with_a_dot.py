"""Topics whose names begin with a dot: brokers and we create them, and both keep their log start offsets.

We delete one of them, and the broker starts with what a crash left of the deletion.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from storage_core import LogDirectory, read_table
from storage_core.errors import OptionError
from tests.interop.broker import KafkaBroker
from tests.interop.broker_start import BrokerStart, start_and_watch
from tests.interop.clients import (
    consume,
    create_topic,
    delete_records,
    new_producer,
    start_offset,
    wait_until,
)
from tests.interop.produced import small_records
from tests.interop.workload import send
from tests.interop.writing import table_of
from tests.spark.writers import batch, write, writer_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HIDDEN = ".hidden"
LIKE_OUR_FILES = f".segmentlog-stage-{'0' * 32}-0"
TOPICS = (HIDDEN, LIKE_OUR_FILES)
GONE = ".gone"
# A broker removes deleted logs when this task first runs, and saves log start offsets right away. By default, the
# task starts after half a minute, and log starts are saved every minute.
SETTINGS = {
    "log.initial.task.delay.ms": 100,
    "log.flush.start.offset.checkpoint.interval.ms": 500,
    "log.segment.delete.delay.ms": 100,
}
DELETED = 20
PRODUCED = 60


@pytest.fixture(scope="module")
def stopped_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    broker = KafkaBroker(tmp_path_factory.mktemp("dotted"), SETTINGS)
    with broker:
        for topic in (*TOPICS, GONE):
            create_topic(broker, topic)
            send(new_producer(broker, linger_ms=1000), topic, iter(small_records(PRODUCED)))
            delete_records(broker, topic, DELETED)
    yield broker
    broker.kill()


@pytest.fixture(scope="module")
def root(stopped_broker: KafkaBroker) -> Path:
    """We opened, appended to and closed it; then two jobs wrote to it."""
    root = stopped_broker.log_directory
    for topic in TOPICS:
        found = read_table(root, subscribe=topic)
        assert found["offset"].to_pylist() == list(range(DELETED, PRODUCED))
    with LogDirectory.open(root, broker_directory=True) as logs:
        for topic in TOPICS:
            assert logs.get(topic).log_start_offset == DELETED
            logs.get(topic).append(table_of(small_records(1, first=PRODUCED)))
        logs.delete(GONE)
        (deleted,) = deleted_logs(root)
        left_over = shutil.copytree(deleted, root.parent / deleted.name)
    assert deleted_logs(root) == []
    for number in range(2):
        write(writer_of(root, "value", topic=HIDDEN, brokerDirectory="true"), [batch(value=[b"%d" % number])])
    # As a crash leaves it.
    left_over.rename(deleted)
    assert GONE not in read_table(root)["topic"].to_pylist()
    return root


def deleted_logs(root: Path) -> list[Path]:
    return list(root.glob(f"{GONE}-0.*-delete"))


def test_jobs_refuse_topics_named_like_our_files(root: Path) -> None:
    with pytest.raises(OptionError, match=r"'\.segmentlog-'"):
        writer_of(root, "value", topic=LIKE_OUR_FILES, brokerDirectory="true")


@pytest.fixture(scope="module")
def start(root: Path, stopped_broker: KafkaBroker) -> BrokerStart:
    assert root == stopped_broker.log_directory
    return start_and_watch(stopped_broker)


@pytest.mark.parametrize(("topic", "added"), [(HIDDEN, 3), (LIKE_OUR_FILES, 1)])
def test_a_broker_keeps_their_log_start_offsets(
    start: BrokerStart, stopped_broker: KafkaBroker, topic: str, added: int
) -> None:
    assert start.skipped_recovery
    assert not start.complaints(topic, 0)
    assert start_offset(stopped_broker, topic) == DELETED
    rows = consume(stopped_broker, topic)
    assert [row.offset for row in rows] == list(range(DELETED, PRODUCED + added))
    expected = [record.value for record in small_records(PRODUCED + 1)][DELETED:]
    assert [row.value for row in rows[: PRODUCED + 1 - DELETED]] == expected


def test_a_broker_completes_the_deletion(start: BrokerStart, stopped_broker: KafkaBroker) -> None:
    """The topic still exists in the cluster, so the broker starts an empty log for it."""
    # Kafka logs the deletion at INFO.
    assert not [line for line in start.complaints(GONE, 0) if " INFO " not in line]
    wait_until(lambda: deleted_logs(stopped_broker.log_directory) == [], "The deletion was not completed.")
    assert start_offset(stopped_broker, GONE) == 0
    assert consume(stopped_broker, GONE) == []
    send(new_producer(stopped_broker, linger_ms=1000), GONE, iter(small_records(3)))
    assert [row.offset for row in consume(stopped_broker, GONE)] == [0, 1, 2]


def test_the_broker_stops_cleanly(start: BrokerStart, stopped_broker: KafkaBroker) -> None:
    assert start.loaded().keys() >= {(topic, 0) for topic in TOPICS}
    stopped_broker.stop()
