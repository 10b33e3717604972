"""Fixtures of the damage campaigns."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.damage.campaign import Campaign, fast_folder
from tests.damage.measured import MeasuringProcess


@pytest.fixture(scope="module")
def campaign() -> Iterator[Campaign]:
    """Runs cases in a temporary folder."""
    with Campaign() as running:
        yield running


@pytest.fixture(scope="module")
def measuring_process() -> Iterator[MeasuringProcess]:
    """Reads in a separate process."""
    with MeasuringProcess() as process:
        yield process


@pytest.fixture
def root() -> Iterator[Path]:
    """Yield an empty log directory, in memory if possible: some files are large."""
    folder = Path(tempfile.mkdtemp(prefix="segmentlog-hostile-", dir=fast_folder()))
    yield folder
    shutil.rmtree(folder)
