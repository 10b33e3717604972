"""Fixtures of the conformance suite. The matrix itself is printed by ``tests/conftest.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from conformance.archives import unpack_case
from conformance.case_under_test import CaseUnderTest
from conformance.matrix import CELL_PROPERTY
from conformance.spark_process import SparkProcess
from conformance.ways import Way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def pytest_itemcollected(item: pytest.Item) -> None:
    """Name the matrix's cell on each test before it runs: a failing fixture belongs to it, too."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    way = parameters.get("way")
    if isinstance(way, Way):
        item.user_properties.append((CELL_PROPERTY, f"{parameters['case_name']}|{way.column}"))


@pytest.fixture(scope="session")
def open_case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], CaseUnderTest]:
    """Unpack a case at its first use; all tests share it, because none may change it."""
    folder = tmp_path_factory.mktemp("conformance")
    opened: dict[str, CaseUnderTest] = {}

    def open_one(name: str) -> CaseUnderTest:
        if name not in opened:
            logs, expected = unpack_case(name, folder / name)
            opened[name] = CaseUnderTest(name, logs, expected, folder)
        return opened[name]

    return open_one


@pytest.fixture(scope="module")
def spark_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], SparkProcess]]:
    """The Spark session of one kind. At most one lives: two would need the memory of two.

    It ends with the module: other tests start a Connect server, too.
    """
    current: dict[str, SparkProcess] = {}

    def session(kind: str) -> SparkProcess:
        if kind not in current:
            stop()
            current[kind] = SparkProcess(kind, tmp_path_factory.mktemp(f"spark-{kind}"))
        return current[kind]

    def stop() -> None:
        while current:
            current.popitem()[1].stop()

    yield session
    stop()
