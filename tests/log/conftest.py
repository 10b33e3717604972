from __future__ import annotations

import os

import pytest

from tests.log.logs import Clock, append, open_directory


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest):
    """Tests of crashes and failing calls flush for real; elsewhere a flush only takes time."""
    if "crash" not in request.path.name:
        monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def root(tmp_path):
    """Return a log directory that was closed: 35 records, ten to a segment, in epochs 0 and 2."""
    with open_directory(tmp_path / "data") as logs:
        log = logs.create("orders")
        append(log, 20, timestamps=range(100, 2100, 100))
        append(log, 15, timestamps=range(2100, 3600, 100), leader_epoch=2)
    return tmp_path / "data"


@pytest.fixture
def path(root):
    return root / "orders-0"


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def logs(tmp_path, clock):
    """Yield an open log directory."""
    with open_directory(tmp_path / "data", clock=clock) as opened:
        yield opened


@pytest.fixture
def log(logs):
    """Return an empty log, ten records to a segment."""
    return logs.create("orders")
