"""Every test of this folder needs a broker and carries the marker ``interop``."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conformance.matrix import CELL_PROPERTY

from tests.interop.aged import Aged, age
from tests.interop.broker import KafkaBroker
from tests.interop.cleaning_workload import CleaningWorkload
from tests.interop.handed_over import HandedOver, hand_over
from tests.interop.loaded_from_spark import LoadedFromSpark, load_from_spark
from tests.interop.produced import BROKER_SETTINGS
from tests.interop.restored_by_spark import Restored, restore
from tests.interop.transactions_of_ours import Transacted, transact
from tests.interop.written import Written, write_everything
from tests.interop.written_into_broker import WrittenIntoBroker, write_into_broker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

    from tests.interop.clients import Row

_HERE = Path(__file__).parent

# Background tasks run early: segments are deleted and compacted while tests read.
EAGER_SETTINGS = {
    "log.cleaner.backoff.ms": 100,
    "log.initial.task.delay.ms": 100,
    "log.retention.check.interval.ms": 200,
    "log.flush.offset.checkpoint.interval.ms": 1000,
    "log.flush.start.offset.checkpoint.interval.ms": 500,
    "replica.high.watermark.checkpoint.interval.ms": 500,
}
# For a broker that compacts before it is stopped.
_EAGER_CLEANER = {"log.cleaner.backoff.ms": 200, "log.initial.task.delay.ms": 500}


# Modules that share a costly fixture: with `--dist=loadfile`, one process runs all of them.
_TOGETHER = (
    ("test_list_offsets", "test_spark", "test_written_directories"),
    ("test_byte_differences", "test_recovery_beside_broker", "test_written_by_log"),
    ("test_restored_by_spark", "test_written_into_broker"),
    ("test_cleaned_beside_broker", "test_retention_beside_broker"),
    # Modules of many tests begin first: with one, a test of minutes is not the last.
    ("test_old_wrappers_beside_kafka", "test_streaming_faults"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.interop)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            module = Path(nodeid.partition("::")[0]).stem
            return next((modules[0] for modules in _TOGETHER if module in modules), module)

    return Together(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give a test of a conformance case its cell in the matrix; this folder has a column of its own."""
    case_name = getattr(getattr(item, "callspec", None), "params", {}).get("case_name")
    if case_name is not None:
        item.user_properties.append((CELL_PROPERTY, f"{case_name}|broker"))


@contextlib.contextmanager
def broker_in(scratch: Path, settings: Mapping[str, object]) -> Iterator[KafkaBroker]:
    """A broker that is not started yet. Teardown kills it and removes all files."""
    broker = KafkaBroker(scratch / "broker", settings)
    try:
        yield broker
    finally:
        broker.kill()
        shutil.rmtree(scratch)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A running broker. Each test that writes creates its own topics."""
    with KafkaBroker(tmp_path_factory.mktemp("broker"), EAGER_SETTINGS) as running:
        yield running


@pytest.fixture(scope="session")
def written(broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The same broker after it was written to, stopped, killed and started again."""
    return write_everything(broker, tmp_path_factory.mktemp("written"))


@pytest.fixture(scope="session")
def handed_over(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandedOver]:
    """Logs of `storage_core` after three starts of a broker."""
    scratch = tmp_path_factory.mktemp("handed-over")
    with broker_in(scratch, BROKER_SETTINGS) as broker:
        yield hand_over(broker, scratch)


@pytest.fixture(scope="session")
def loaded_from_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedFromSpark]:
    """Logs of Spark jobs after three starts of a broker."""
    scratch = tmp_path_factory.mktemp("loaded-from-spark")
    with broker_in(scratch, BROKER_SETTINGS) as broker:
        yield load_from_spark(broker, scratch)


@pytest.fixture(scope="session")
def written_into_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WrittenIntoBroker]:
    """A broker's directory into which Spark jobs wrote while the broker was stopped."""
    scratch = tmp_path_factory.mktemp("written-into-broker")
    with broker_in(scratch, {**BROKER_SETTINGS, **_EAGER_CLEANER}) as broker:
        yield write_into_broker(broker, scratch)


@pytest.fixture(scope="session")
def restored_by_spark(
    written_into_broker: WrittenIntoBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Restored]:
    """A broker's partitions, restored for another broker."""
    scratch = tmp_path_factory.mktemp("restored-by-spark")
    with broker_in(scratch, BROKER_SETTINGS) as broker:
        yield restore(written_into_broker.source, broker, scratch)


@pytest.fixture(scope="session")
def cleaning_workload() -> CleaningWorkload:
    return CleaningWorkload()


@pytest.fixture(scope="session")
def aged(
    cleaning_workload: CleaningWorkload, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Aged, dict[str, list[Row]]]]:
    """A directory that a broker wrote, a copy that a broker cleaned, and what consumers read before."""
    scratch = tmp_path_factory.mktemp("aged")
    yield age(scratch, cleaning_workload)
    shutil.rmtree(scratch)


@pytest.fixture(scope="session")
def first_aged(aged: tuple[Aged, dict[str, list[Row]]]) -> Aged:
    return aged[0]


@pytest.fixture(scope="session")
def transacted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Transacted]:
    """Transactions of `storage_core`, after a broker used them."""
    scratch = tmp_path_factory.mktemp("transacted")
    with broker_in(scratch, BROKER_SETTINGS) as broker:
        yield transact(broker, scratch)
