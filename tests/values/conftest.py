"""Fixtures of the tests of typed values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.values.typed_logs import unpack_typed_logs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def typed_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log directory of a broker with a schema registry's topic."""
    return unpack_typed_logs(tmp_path_factory.mktemp("typed"))
