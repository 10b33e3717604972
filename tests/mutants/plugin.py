"""What pytest does in a copy: note which functions each test runs, or stop at the first test that notices a fault."""

from __future__ import annotations

import faulthandler
import json
import mmap
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    # tests/conftest.py imports the product, which looks for the map.
    if folder := os.environ.get("SEGMENTLOG_MUTANTS_REACH"):
        early_config.pluginmanager.register(_Reach(Path(folder)))
    if listed := os.environ.get("SEGMENTLOG_MUTANTS_JUDGE"):
        early_config.pluginmanager.register(_Judge(Path(listed)))


class _Reach:
    """Notes for each test what ran, in this process and those below it; for fixtures that tests share, likewise."""

    def __init__(self, folder: Path) -> None:
        path = folder / f"{os.getpid()}.map"
        path.write_bytes(bytes(int((folder / "functions").read_text())))
        os.environ["SEGMENTLOG_MUTANTS_MAP"] = str(path)
        with path.open("r+b") as file:
            self._ran = mmap.mmap(file.fileno(), 0)
        self._notes = (folder / f"{os.getpid()}.jsonl").open("w", buffering=1)
        self._outcome = ""

    def _take(self) -> list[int]:
        taken = bytes(self._ran)
        self._ran[:] = bytes(len(taken))
        return [place for place, mark in enumerate(taken) if mark]

    def _note(self, **facts: Any) -> None:
        self._notes.write(json.dumps(facts) + "\n")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        before = self._take()
        try:
            return (yield)
        finally:
            ran = self._take()
            if fixturedef.scope != "function":
                self._note(fixture=fixturedef.argname, ran=ran)
                ran = []
            for place in (*before, *ran):
                self._ran[place] = 1

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: Any) -> Generator[None, Any, Any]:
        self._take()
        self._outcome, start = "passed", time.monotonic()
        result = yield
        self._note(
            test=item.nodeid,
            seconds=round(time.monotonic() - start, 3),
            outcome=self._outcome,
            quick=item.get_closest_marker("thorough") is None,
            spark=item.get_closest_marker("spark") is not None,
            fixtures=item.fixturenames,
            ran=self._take(),
        )
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if not report.passed and self._outcome != "failed":
            self._outcome = report.outcome
        return report


class _Judge:
    """Runs the listed tests alone, in their order, and says in a file beside the list which one runs or has failed.

    A test that takes two minutes and ten times as long as without the fault ends the process.
    """

    def __init__(self, listed: Path) -> None:
        self._seconds: dict[str, float] = json.loads(listed.read_text())
        self._said = listed.with_suffix(".said")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        yield
        places = {test: place for place, test in enumerate(self._seconds)}
        items[:] = sorted(
            (each for each in items if each.nodeid in places), key=lambda each: places[each.nodeid]
        )

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._said.write_text(f"{item.nodeid} (hangs, or ends the process)")
        faulthandler.dump_traceback_later(120 + 10 * self._seconds[item.nodeid], exit=True)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed:
            self._said.write_text(item.nodeid)
        return report
