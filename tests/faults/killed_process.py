"""A process that works on a log until it is killed, as its tests see it."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["KilledProcess", "warm_processes"]

REPOSITORY = Path(__file__).parents[2]


class KilledProcess:
    """A process from its start to its end. Its imports are done before it is told to begin."""

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module], cwd=REPOSITORY,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
        )  # fmt: skip
        self._said = b""

    def begin(self, root: str, what: str) -> None:
        """Tell it where to work."""
        self._process.stdin.write(f"{root} {what}\n".encode())

    def listen(self, seconds: float) -> None:
        """Take note of what it says, for some time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and select.select([self._process.stdout], [], [], left)[0]:
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            if not data:
                break
            self._said += data

    def wait_until_it_speaks(self, lines: int = 1) -> None:
        """Wait until it has said so many lines; the first is that it is ready."""
        while self._said.count(b"\n") <= lines and self._process.poll() is None:
            self.listen(0.001)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def lines(self) -> list[str]:
        """What it has said since it was last asked, line by line; the first one, that it is ready, is none of them."""
        self.listen(0.001)
        whole, end, self._said = self._said.rpartition(b"\n")
        return [line.decode() for line in (whole + end).split(b"\n")[:-1] if line != b"ready"]

    def end(self) -> None:
        """End it, if it has not ended by itself."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def kill(self) -> list[str]:
        """End it; return the lines that it has said, as far as they are whole."""
        self._process.kill()
        self._said += self._process.stdout.read()
        assert self._process.wait() == -9
        self._process.stdin.close()
        self._process.stdout.close()
        # A line that was cut is an acknowledgement that nobody has heard.
        return [line.decode() for line in self._said.split(b"\n")[1:-1]]


@contextlib.contextmanager
def warm_processes(module: str) -> Iterator[Iterator[KilledProcess]]:
    """Processes, each started while the one before is at work."""
    waiting = [KilledProcess(module)]

    def take() -> Iterator[KilledProcess]:
        while True:
            waiting.append(KilledProcess(module))
            yield waiting.pop(0)

    try:
        yield take()
    finally:
        for process in waiting:
            process.kill()
