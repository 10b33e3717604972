"""Every test of this folder needs a broker and carries the marker ``interop``."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from conformance.matrix import CELL_PROPERTY

from tests.faults.soak import is_soak
from tests.interop.aged import Aged, age
from tests.interop.broker import KafkaBroker
from tests.interop.cleaning_workload import CleaningWorkload
from tests.interop.clients import ISOLATION_LEVELS, Row, consume, create_topics
from tests.interop.handed_over import HandedOver, hand_over
from tests.interop.produced import BROKER_SETTINGS, READ, Produced
from tests.interop.tiered import Tiered, make_tiered
from tests.spark_settings import session_of_this_process

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from _pytest.mark import ParameterSet
    from pyspark.sql import SparkSession
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling


_Value = TypeVar("_Value")
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


# Modules that share a costly fixture: with `--dist=loadfile`, one process runs all of them.
_TOGETHER = (
    ("test_list_offsets", "test_spark", "test_live_directory", "test_followed_beside_broker"),
    ("test_byte_differences", "test_recovery_beside_broker", "test_written_by_log"),
    ("test_cleaned_beside_broker", "test_retention_beside_broker"),
    ("test_tiered", "test_tiered_halves"),
)
# Those that take longest begin, so that none of them is the last. The others follow by name.
_FIRST = (
    "test_streaming_faults",
    "test_load_into_kafka",
    "test_written_into_broker",
    "test_restored_cases",
    "test_loaded_from_spark",
    "test_live_directory",
    "test_cleaned_beside_broker",
    "test_verify_beside_broker_starts",
    "test_recovered_beside_kafka",
    "test_streaming_checkpoint_move",
)


def sample(values: Iterable[_Value], count: int) -> list[_Value | ParameterSet]:
    """Return values to parametrise with: some for each run, and the others for `make soak` alone."""
    some, others = list(values)[:count], list(values)[count:]
    return [*some, *(pytest.param(value, marks=pytest.mark.soak) for value in others)]


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.interop)
    yield
    if not is_soak(config):
        items.sort(key=lambda item: _FIRST.index(item.path.stem) if item.path.stem in _FIRST else len(_FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            module = Path(nodeid.partition("::")[0]).stem
            return next((modules[0] for modules in _TOGETHER if module in modules), module)

    # Modules of many tests would begin.
    config.option.loadscopereorder = False
    return Together(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give a test of a conformance case its cell in the matrix; this folder has a column of its own."""
    case_name = getattr(getattr(item, "callspec", None), "params", {}).get("case_name")
    if case_name is not None:
        item.user_properties.append((CELL_PROPERTY, f"{case_name}|broker"))


@contextlib.contextmanager
def broker_in(scratch: Path, settings: Mapping[str, object]) -> Iterator[KafkaBroker]:
    """Yield a broker that is not started yet. Teardown kills it and removes all files."""
    broker = KafkaBroker(scratch / "broker", settings)
    try:
        yield broker
    finally:
        broker.kill()
        shutil.rmtree(scratch)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield the one session of this process: two cores, and four attempts for every task."""
    with session_of_this_process(tmp_path_factory.mktemp("spark"), attempts=4) as session:
        yield session


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Yield a running broker. Each test that writes creates its own topics."""
    with KafkaBroker(tmp_path_factory.mktemp("broker"), EAGER_SETTINGS) as running:
        yield running


@pytest.fixture(scope="session")
def consumed(broker: KafkaBroker) -> Iterator[dict[str, dict[str, list[Row]]]]:
    """Yield what consumers get of the topics `READ` of the same broker, by isolation level and topic."""
    create_topics(broker, READ)
    produced = Produced(broker, READ)
    produced.write("first")
    broker.restart()
    produced.write("second")
    found: dict[str, dict[str, list[Row]]] = {}
    for level in ISOLATION_LEVELS:
        rows = consume(broker, READ, level)
        found[level] = {topic: [row for row in rows if row.topic == topic] for topic in READ}
    yield found
    # Earlier, this would end the transaction that it has left open.
    del produced


@pytest.fixture(scope="session")
def handed_over(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandedOver]:
    """Logs of `storage_core` after three starts of a broker."""
    scratch = tmp_path_factory.mktemp("handed-over")
    with broker_in(scratch, BROKER_SETTINGS) as broker:
        yield hand_over(broker, scratch)


@pytest.fixture(scope="session")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiered]:
    """Yield what a broker with tiered storage left in both tiers; no test may change it."""
    scratch = tmp_path_factory.mktemp("tiered")
    yield make_tiered(scratch)
    shutil.rmtree(scratch)


@pytest.fixture(scope="session")
def cleaning_workload() -> CleaningWorkload:
    return CleaningWorkload()


@pytest.fixture(scope="session")
def aged(
    cleaning_workload: CleaningWorkload, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Aged, dict[str, list[Row]]]]:
    """Yield a directory that a broker wrote, a copy that a broker cleaned, and what consumers read before."""
    scratch = tmp_path_factory.mktemp("aged")
    yield age(scratch, cleaning_workload)
    shutil.rmtree(scratch)


@pytest.fixture(scope="session")
def first_aged(aged: tuple[Aged, dict[str, list[Row]]]) -> Aged:
    return aged[0]
