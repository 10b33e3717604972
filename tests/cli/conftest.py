"""Runs commands: in this process where that shows the same, in one of their own where pipes, signals or imports matter."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from storage_core.cli.main import run

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended, and what it printed."""

    status: int
    stdout: str
    stderr: str

    def refused(self, status: int, message: str = "segmentlog: ") -> bool:
        """Return True if nothing but one line with a message was printed, on standard error."""
        assert self.stderr.startswith("segmentlog: ")
        assert message in self.stderr
        return (self.status, self.stdout, self.stderr.count("\n")) == (status, "", 1)


@pytest.fixture(autouse=True)
def _in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Act as in a pipe: pytest's workers say how wide a terminal is, which folds tables."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def segmentlog(capfd: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Runs `segmentlog` with these arguments in this process."""

    def run_here(*arguments: object) -> Ended:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            run([str(argument) for argument in arguments])
        printed = capfd.readouterr()
        return Ended(int(ended.value.code or 0), printed.out, printed.err)

    return run_here


@pytest.fixture
def segmentlog_on_terminal(
    segmentlog_process: Callable[..., subprocess.Popen[bytes]],
) -> Callable[..., bytes]:
    """Runs `segmentlog` with a terminal as its standard output."""

    def run_there(*arguments: object) -> bytes:
        ours, theirs = pty.openpty()
        process = segmentlog_process(*arguments, stdout=theirs)
        os.close(theirs)
        process.wait()
        with open(ours, "rb", buffering=0) as terminal:
            return terminal.read(10_000).replace(b"\r\n", b"\n")

    return run_there


@pytest.fixture
def segmentlog_process() -> Callable[..., subprocess.Popen[bytes]]:
    """Starts `segmentlog` with these arguments in a process of its own, with pipes."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: object, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        # A shell's background jobs ignore Ctrl-C, and so would what they start.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "storage_core.cli", *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        finally:
            signal.signal(signal.SIGINT, before)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def example_data() -> Path:
    """Return a directory that a broker wrote."""
    return ROOT / "examples" / "data"
