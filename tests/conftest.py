"""What all tests share: which of them are thorough, the Spark session, the conformance matrix at the end of a run."""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import random
import sys
import time
import zlib
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from hypothesis import HealthCheck

import spark_segmentlog
import storage_core
from storage_core.filesystem import FileSystem, PooledFile
from tests.descriptors import open_below
from tests.faults.soak import SOAK_SECONDS, is_soak, soak_seed
from tests.spark_settings import session_of_this_process

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from conformance.spark_process import ConnectSpark
    from pyspark.sql import SparkSession

    from tests.object_stores.object_server import Bucket, ObjectServer

# The same examples on each run of the same code, so that a commit is green or red; `make soak` draws new ones. There is no
# deadline because how long an example takes depends on what else the machine does. `tests/examples.py` scales the numbers.
_HYPOTHESIS = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
    ],
}
hypothesis.settings.register_profile("quick", derandomize=True, max_examples=15, **_HYPOTHESIS)
hypothesis.settings.register_profile("thorough", derandomize=True, max_examples=60, **_HYPOTHESIS)
hypothesis.settings.register_profile("soak", derandomize=False, max_examples=1000, **_HYPOTHESIS)

# Hypothesis also draws constants from modules that are loaded: which ones must not depend on the tests before.
for _package in (storage_core, spark_segmentlog):
    for _module in pkgutil.walk_packages(_package.__path__, f"{_package.__name__}."):
        importlib.import_module(_module.name)

# At the end of the path: only the package `conformance` is meant to be found there.
sys.path.append(str(Path(__file__).parent))

_INTEROP = Path(__file__).parent / "interop"
_STARTED = time.monotonic()
_NOT_REACHED = f"NOT REACHED in {SOAK_SECONDS:g} seconds"
# Modules whose every test is `thorough`: `make test-all` runs them, `make test` does not. Single tests say it themselves.
_THOROUGH = (
    # Crashes at every call, calls that fail, processes that are killed, and second attempts after them.
    "commit/test_crash_*.py",
    "commit/test_exactly_once*.py",
    "commit/test_readers_of_a_commit.py",
    "log/test_crash_*.py",
    "log/test_damage_while_cleaning.py",
    "log/test_readers_beside_transactions.py",
    "log/test_truncation_beside_reads.py",
    # The servers of other tests.
    "object_stores/test_object_server.py",
    "recover/test_recover_crashes.py",
    "scan/test_isolation_beside_writers.py",
    # Random programs beside a model.
    "log/test_state_machine*.py",
    # Damage of every kind.
    "damage/test_decompression_bombs.py",
    "damage/test_hostile_sizes.py",
    "damage/test_lying_batches.py",
    "damage/test_small_edits.py",
    "scan/test_where_on_damaged_logs.py",
    # What large logs cost.
    "scan/test_where_cost.py",
    # A Spark of their own.
    "spark/test_connect.py",
    "spark/test_killed_drivers.py",
    # Many jobs of Spark: one of each kind is in other modules.
    "spark/test_round_trips.py",
    "spark/test_write_failures.py",
    # What is built and installed.
    "test_distribution.py",
    # Dozens of queries: a few of each kind are in other modules.
    "spark/test_where_equals_spark.py",
)
# How many cases of a parametrised test `make test` tries, and `make test-all`, where `@pytest.mark.cases` does not say it.
_CASES = (4, 8)
# The same for the ways of reading in a cell of the conformance matrix.
_WAYS = (1, 2)


@pytest.fixture(autouse=True)
def closes_what_it_opens(request: pytest.FixtureRequest) -> Generator[None, None, None]:
    """Check that no test leaves files open: the garbage collector would close them in the middle of another one."""
    if "tmp_path" not in request.fixturenames:
        yield
        return
    path = request.getfixturevalue("tmp_path")
    yield
    left = open_below(path)
    assert not left, f"left open: {left}"


@pytest.fixture
def count_descriptors(tmp_path: Path) -> Callable[[], int]:
    """Counts the descriptors that this process has of what is below the test's directory."""
    return lambda: len(open_below(tmp_path))


@pytest.fixture
def closes_pooled_files(monkeypatch: pytest.MonkeyPatch) -> Generator[None, None, None]:
    """Closes what a log closes that owns segments: for tests of these alone."""
    made = []
    open_pooled = FileSystem.open_pooled

    def noting(filesystem: FileSystem, path: str, **options: Any) -> PooledFile:
        made.append(open_pooled(filesystem, path, **options))
        return made[-1]

    monkeypatch.setattr(FileSystem, "open_pooled", noting)
    yield
    for file in made:
        file.close()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield the one classic session of this process: two cores, and a second attempt for every task."""
    with session_of_this_process(tmp_path_factory.mktemp("spark"), attempts=2) as session:
        yield session


@pytest.fixture(scope="session")
def connect_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectSpark]:
    """Yield the one Spark Connect session of this process, in a process of its own."""
    from conformance.spark_process import ConnectSpark

    with ConnectSpark(tmp_path_factory.mktemp("spark-connect")) as session:
        yield session


@pytest.fixture(scope="session")
def moto_server() -> Iterator[ObjectServer]:
    """Yield the one S3 of this process that is moto's."""
    from tests.object_stores.moto_store import MotoStore
    from tests.object_stores.object_server import ObjectServer

    with ObjectServer(MotoStore()) as server:
        yield server


@pytest.fixture(scope="session")
def small_server() -> Iterator[ObjectServer]:
    """Yield the one S3 of this process that is as quick as its clients."""
    from tests.object_stores.object_server import ObjectServer
    from tests.object_stores.small_store import SmallStore

    with ObjectServer(SmallStore()) as server:
        yield server


@pytest.fixture
def bucket(moto_server: ObjectServer) -> Iterator[Bucket]:
    """Yield a bucket of moto, for this test alone."""
    bucket = moto_server.create_bucket()
    yield bucket
    moto_server.delete_bucket(bucket.name)


@pytest.fixture
def quick_bucket(small_server: ObjectServer) -> Iterator[Bucket]:
    """Yield a bucket for a test of many requests."""
    bucket = small_server.create_bucket()
    yield bucket
    small_server.delete_bucket(bucket.name)


@pytest.fixture(scope="session")
def typed_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the log directory of a broker with a schema registry's topic."""
    from tests.values.typed_logs import unpack_typed_logs

    return unpack_typed_logs(tmp_path_factory.mktemp("typed"))


@pytest.fixture(scope="session")
def distribution(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Returns the ``wheel`` or ``sdist`` of this checkout: that of ``--distributions``, or one that it builds."""
    from tests.versions import build, built

    folder = request.config.getoption("--distributions")
    return lambda target: (
        built(target, Path(folder).resolve()) if folder else build(target, tmp_path_factory.mktemp(target))
    )


@pytest.fixture(scope="session")
def wheel(distribution: Callable[[str], Path]) -> Path:
    """Build the wheel of this checkout, unless a distribution is named."""
    return distribution("wheel")


def pytest_configure(config: pytest.Config) -> None:
    if is_soak(config):
        hypothesis.settings.load_profile("soak")
    else:
        hypothesis.settings.load_profile("quick" if _is_quick(config) else "thorough")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import some modules before the others do: in a new checkout, each process compiles a part of them, not all."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    asked = {Path(argument.partition("::")[0]).resolve() for argument in session.config.args}
    modules = [
        path
        for path in sorted(Path(__file__).parent.rglob("test_*.py"))
        if asked.intersection((path, *path.parents)) and _INTEROP not in path.parents
        if not (_is_quick(session.config) and _is_thorough(path))
    ]
    for path in modules[number :: _processes()] if _processes() > 1 else ():
        # The collection tells what is wrong with a module.
        with contextlib.suppress(pytest.Collector.CollectError, pytest.skip.Exception):
            _ = pytest.Module.from_parent(session, path=path).obj


def pytest_runtest_setup(item: pytest.Item) -> None:
    if is_soak(item.config) and time.monotonic() > _STARTED + SOAK_SECONDS:
        pytest.skip(_NOT_REACHED)


def pytest_report_header(config: pytest.Config) -> str | None:
    return f"order of modules: SEGMENTLOG_SOAK_SEED={soak_seed()}" if is_soak(config) else None


def _processes() -> int:
    return int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import what would be deselected as a whole."""
    return True if _is_quick(config) and _is_thorough(collection_path) else None


def _is_quick(config: pytest.Config) -> bool:
    return "not thorough" in config.option.markexpr


@cache
def _is_thorough(module: Path) -> bool:
    return any(module.match(f"tests/{pattern}") for pattern in _THOROUGH)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    for item in items:
        if _is_thorough(item.path):
            item.add_marker(pytest.mark.thorough)
    if not config.getoption("--every-case"):
        _choose_cases(items)
    yield
    items[:] = _in_random_order(items) if is_soak(config) else _dealt_out(items, _processes())


def _choose_cases(items: list[pytest.Item]) -> None:
    """Leave some cases of each parametrised test to the next tier, and the last ones to `make soak`.

    First to stay are cases with a value that none before them has. Names alone decide about the order, so all processes
    of a run choose alike.
    """
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if hasattr(item, "callspec") and _INTEROP not in item.path.parents:
            cell = None if item.get_closest_marker("cases") else _cell_of(item)
            tests.setdefault(cell or item.nodeid.partition("[")[0], []).append(item)
    for items_of_test in tests.values():
        marker = items_of_test[0].get_closest_marker("cases")
        in_test, in_test_all = marker.args if marker else _WAYS if _cell_of(items_of_test[0]) else _CASES
        cases = _those_with_new_values_first(items_of_test)
        quick = [case for case in cases if not case.get_closest_marker("thorough")][:in_test]
        others = [case for case in cases if case not in quick]
        for case in others:
            case.add_marker(pytest.mark.thorough)
        for case in others[in_test_all - len(quick) :]:
            case.add_marker(pytest.mark.soak)


def _cell_of(item: pytest.Item) -> str | None:
    """Return the case and the column of a test of the matrix, None for another test."""
    from conformance.matrix import CELL_PROPERTY

    return next((str(value) for name, value in item.user_properties if name == CELL_PROPERTY), None)


def _those_with_new_values_first(cases: list[pytest.Item]) -> list[pytest.Item]:
    # By identity: values need be neither hashable nor comparable. pytest's own indices number combinations.
    seen: set[tuple[str, int]] = set()
    first, others = [], []
    for case in sorted(cases, key=lambda case: (zlib.crc32(case.name.encode()), case.name)):
        values = {(name, id(value)) for name, value in case.callspec.params.items()}
        (others if values <= seen else first).append(case)
        seen |= values
    return first + others


def _in_random_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests in a random order of modules, the same in all processes."""
    # The time may be up before all have run; another run begins with others.
    modules: dict[Path, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.path, []).append(item)
    order = sorted(modules)
    random.Random(soak_seed()).shuffle(order)
    return [item for path in order for item in modules[path]]


def _dealt_out(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """Return the tests in an order that suits the processes that share them.

    Each process begins with an equal number of tests that follow one another, and takes over half of what another one
    still has, from its end, once it has none. The first one begins with Spark, the second one with Spark Connect, the
    others with what is thorough, and all end with quick tests: no process waits long for the last one, and mostly one
    alone starts a session of each kind.
    """
    spark, connect, own, thorough, quick = [], [], [], [], []
    for item in items:
        if "spark" in item.fixturenames:
            spark.append(item)
        elif "connect_spark" in item.fixturenames:
            connect.append(item)
        elif item.get_closest_marker("spark"):
            # Those that wait for a JVM of their own do so while others compute.
            own.append(item)
        elif item.get_closest_marker("thorough"):
            thorough.append(item)
        else:
            quick.append(item)
    if processes == 1:
        return spark + connect + own + quick + thorough
    thorough = own + thorough
    dealt, share = spark, len(items) // processes
    for number in range(1, processes):
        missing = max(number * share - len(dealt), 0)
        dealt += quick[:missing] + connect + thorough[number - 1 :: processes - 1]
        del quick[:missing]
        connect = []
    return dealt + quick


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--distributions", metavar="FOLDER", help="test the wheel and the sdist in FOLDER, and build none"
    )
    parser.addoption(
        "--every-case", action="store_true", help="try no sample of a parametrised test, but all of it"
    )
    parser.addoption(
        "--matrix-markdown",
        metavar="FILE",
        help="write the conformance matrix as Markdown to FILE, between its conformance-matrix markers if it has them",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # The processes of a run exchange reports in UTF-8, but hostile names in log lines are not.
    report.sections = [
        (title, text.encode("utf-8", "backslashreplace").decode()) for title, text in report.sections
    ]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    from conformance.matrix import Matrix, write_markdown

    skipped = terminalreporter.stats.get("skipped", [])
    if left := sum(_NOT_REACHED in str(report.longrepr) for report in skipped):
        terminalreporter.write_line(f"{left} tests were {_NOT_REACHED}.")
    matrix = Matrix.from_reports(chain.from_iterable(terminalreporter.stats.values()))
    if not matrix.cells:
        return
    terminalreporter.section("conformance matrix")
    for line in matrix.text():
        terminalreporter.write_line(line)
    if path := config.getoption("--matrix-markdown"):
        write_markdown(matrix, Path(path))
        terminalreporter.write_line(f"Markdown written to {path}")
