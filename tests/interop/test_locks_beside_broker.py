"""One writer per directory: a broker's lock keeps us out, and our lock keeps a broker out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from storage_core import LogDirectory
from storage_core.errors import LogDirectoryError, LogDirectoryLockedError
from tests.interop.broker import BrokerError, KafkaBroker
from tests.interop.clients import consume, create_topic, new_producer
from tests.interop.produced import small_records
from tests.interop.workload import send
from tests.interop.writing import table_of

if TYPE_CHECKING:
    from pathlib import Path

TOPIC = "locked"


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> KafkaBroker:
    broker = KafkaBroker(tmp_path_factory.mktemp("locks"))
    with broker:
        create_topic(broker, TOPIC)
        send(new_producer(broker, linger_ms=1000), TOPIC, iter(small_records(50)))
        with pytest.raises(LogDirectoryLockedError, match="lock"):
            LogDirectory.open(broker.log_directory, broker_directory=True)
        with pytest.raises(LogDirectoryLockedError):
            LogDirectory.open(broker.log_directory, recovery="kafka", broker_directory=True)
        with LogDirectory.open(broker.log_directory, read_only=True) as logs:
            # Reading needs no lock.
            assert logs.get(TOPIC, 0).log_end_offset == 50
        send(new_producer(broker, linger_ms=1000), TOPIC, iter(small_records(50, first=50)))
        assert len(consume(broker, TOPIC)) == 100
    return broker


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_brokers_directory_is_opened_for_writing_only_on_request(own_broker: KafkaBroker) -> None:
    before = contents(own_broker.log_directory)
    with pytest.raises(LogDirectoryError, match="broker_directory"):
        LogDirectory.open(own_broker.log_directory)
    assert contents(own_broker.log_directory) == before


def test_broker_does_not_start_while_we_hold_the_lock(own_broker: KafkaBroker) -> None:
    root = own_broker.log_directory
    with LogDirectory.open(root, broker_directory=True) as logs:
        with pytest.raises(BrokerError, match="Failed to acquire lock"):
            own_broker.start()
        assert logs.get(TOPIC, 0).append(table_of(small_records(1, first=100))).first_offset == 100
    assert (root / ".kafka_cleanshutdown").exists()
    with own_broker:
        assert [row.value for row in consume(own_broker, TOPIC)] == [
            record.value for record in small_records(101)
        ]
