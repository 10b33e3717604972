"""Fixtures of the conformance suite. The matrix itself is printed by ``tests/conftest.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from conformance.archives import unpack_case
from conformance.case_under_test import CaseUnderTest
from conformance.matrix import CELL_PROPERTY
from conformance.ways import Way

if TYPE_CHECKING:
    from collections.abc import Callable


def pytest_itemcollected(item: pytest.Item) -> None:
    """Attach the cell to each test before it runs, so that a failing fixture counts for it, too."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    way = parameters.get("way")
    if isinstance(way, Way):
        item.user_properties.append((CELL_PROPERTY, f"{parameters['case_name']}|{way.column}"))
    if "typed_way" in parameters:
        item.user_properties.append((CELL_PROPERTY, f"typed-values|{parameters['typed_way']}"))


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


@pytest.fixture(scope="session")
def open_remote_case(
    open_case: Callable[[str], CaseUnderTest], request: pytest.FixtureRequest
) -> Callable[[str, str], CaseUnderTest]:
    """Upload a case to a server at its first use; all tests share it."""
    uploaded: dict[tuple[str, str], CaseUnderTest] = {}

    def open_one(name: str, server: str) -> CaseUnderTest:
        if (name, server) not in uploaded:
            case = open_case(name)
            # Started where a test needs it.
            bucket = request.getfixturevalue(server).create_bucket()
            bucket.put_tree(case.logs, f"{name}/logs")
            uploaded[name, server] = case.in_bucket(bucket.uri(f"{name}/logs"), bucket.storage_options)
        return uploaded[name, server]

    return open_one
