"""A process that works on a log until it is killed, from the view of its tests.

One process, started as ``python -m tests.faults.killed_process <module>``, imports the modules once. Each worker is a
fork of it that calls the module's ``main``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

REPOSITORY = Path(__file__).parents[2]


class KilledProcess:
    """A worker process.

    Attributes:
        said: What it has printed, and `lines` has not returned yet.
    """

    def __init__(self, forks: socket.socket) -> None:
        reading, self._stdin = os.pipe()
        self._stdout, writing = os.pipe()
        self._forks = forks
        socket.send_fds(forks, [b"fork"], [reading, writing])
        os.close(reading)
        os.close(writing)
        self._process_id = int(forks.recv(64))
        self.said = b""
        self._is_silent = False

    def begin(self, root: str, what: str) -> None:
        """Send it its log directory and task."""
        os.write(self._stdin, f"{root} {what}\n".encode())

    def listen(self, seconds: float) -> None:
        """Record its output for some time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and select.select([self._stdout], [], [], left)[0]:
            data = os.read(self._stdout, 1 << 16)
            if not data:
                self._is_silent = True
                break
            self.said += data

    def wait_for_lines(self, lines: int = 1) -> None:
        """Wait until it has printed this many lines; the first one says that it is ready."""
        while self.said.count(b"\n") <= lines and self.is_running:
            self.listen(0.001)

    @property
    def is_running(self) -> bool:
        """Whether it was still running when its output was last read."""
        return not self._is_silent

    def lines(self) -> list[str]:
        """Return the lines printed since the last call, without the first one, which says that it is ready."""
        self.listen(0.001)
        whole, end, self.said = self.said.rpartition(b"\n")
        return [line.decode() for line in (whole + end).split(b"\n")[:-1] if line != b"ready"]

    def end(self) -> int:
        """Kill it if it has not ended yet; return its exit code."""
        os.kill(self._process_id, signal.SIGKILL)
        while not self._is_silent:
            self.listen(1)
        os.close(self._stdin)
        os.close(self._stdout)
        self._forks.send(b"%d" % self._process_id)
        return int(self._forks.recv(64))

    def kill(self) -> list[str]:
        """Kill it; return the complete lines that it has printed."""
        assert self.end() == -signal.SIGKILL
        # An incomplete line is an acknowledgement that no client has received.
        return [line.decode() for line in self.said.split(b"\n")[1:-1]]


@contextlib.contextmanager
def warm_processes(module: str) -> Iterator[Iterator[KilledProcess]]:
    """Processes whose imports are complete."""
    forks, asked = socket.socketpair()
    with forks:
        with asked:
            server = subprocess.Popen([sys.executable, "-m", __name__, module], cwd=REPOSITORY, stdin=asked)
        yield (KilledProcess(forks) for _ in iter(int, None))
    assert server.wait() == 0


def main(module: str) -> None:
    """Fork a process for each pair of descriptors; report the exit status for each process id received."""
    run = importlib.import_module(module).main
    running: set[int] = set()
    with socket.socket(fileno=0) as asked:
        while True:
            message, descriptors, _, _ = socket.recv_fds(asked, 64, 2)
            if not message:
                break
            if not descriptors:
                _, status = os.waitpid(int(message), 0)
                running.remove(int(message))
                asked.send(b"%d" % os.waitstatus_to_exitcode(status))
                continue
            process_id = os.fork()
            if process_id == 0:
                _become(run, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            running.add(process_id)
            asked.send(b"%d" % process_id)
    # Processes left by a failed test.
    for process_id in running:
        os.kill(process_id, signal.SIGKILL)


def _become(run, descriptors: list[int]) -> NoReturn:
    status = 1
    try:
        for standard, descriptor in enumerate(descriptors):
            os.dup2(descriptor, standard)
            os.close(descriptor)
        run()
        status = 0
    except BaseException:  # noqa: BLE001  (no caller would report the child's error)
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1])
