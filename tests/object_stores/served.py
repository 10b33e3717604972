"""Object stores that others wrote, each a process of its own on a free port of the loopback interface."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, Self

import obstore

from tests.interop.broker import hold_ports
from tests.object_stores.object_server import files_below

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

_TIMEOUT_S = 120.0


class Served(Protocol):
    """What tells one server from another.

    Attributes:
        scheme: Of its URIs.
    """

    scheme: str

    def command(self, directory: Path, bucket: str, port: int) -> list[str]:
        """Return what starts it, with its files in a directory."""

    def create_bucket(self, bucket: str, url: str) -> None:
        """Create a bucket, if starting it has not."""

    def storage_options(self, url: str) -> dict[str, str]:
        """Return the options of reads."""

    def store(self, bucket: str, url: str) -> Any:
        """Return a client of obstore's."""

    def put(self, store: Any, url: str, key: str, content: bytes) -> None:
        """Upload an object."""


def put_with_obstore(store: Any, url: str, key: str, content: bytes) -> None:
    """Upload an object as most stores want it."""
    obstore.put(store, key, content, use_multipart=False)


class ServedBucket:
    """One server with an empty bucket. Use as a context manager.

    Args:
        served: Which one.
        directory: For its files.
    """

    name = "logs-of-the-tests"

    def __init__(self, served: Served, directory: Path) -> None:
        self._served = served
        self._directory = directory
        self._left = contextlib.ExitStack()
        self.url = ""

    @property
    def storage_options(self) -> dict[str, str]:
        return self._served.storage_options(self.url)

    def uri(self, key: str = "") -> str:
        return f"{self._served.scheme}://{self.name}/{key}".rstrip("/")

    def store(self) -> Any:
        """Return a client of obstore's."""
        return self._served.store(self.name, self.url)

    def put(self, key: str, content: bytes) -> None:
        self._served.put(self.store(), self.url, key, content)

    def delete(self, key: str) -> None:
        obstore.delete(self.store(), key)

    def put_tree(self, directory: str | os.PathLike[str], prefix: str) -> str:
        """Upload a directory; return its URI."""
        store = self.store()

        def put(item: tuple[str, str]) -> None:
            with open(item[1], "rb") as file:
                self._served.put(store, self.url, item[0], file.read())

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(put, files_below(directory, prefix)))
        return self.uri(prefix)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as left:
            (port,) = left.enter_context(hold_ports(1))
            self.url = f"http://127.0.0.1:{port}"
            command = self._served.command(self._directory, self.name, port)
            left.enter_context(_running(command, port, self._directory / "server.log"))
            self._served.create_bucket(self.name, self.url)
            self._left = left.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.close()


@contextlib.contextmanager
def _running(command: list[str], port: int, log_path: Path) -> Iterator[None]:
    """Run a server until the block ends, which begins once it accepts connections."""
    with open(log_path, "wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            deadline = time.monotonic() + _TIMEOUT_S
            while not _accepts(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{command[0]} did not start:\n{log_path.read_text()[-3000:]}")
                time.sleep(0.05)
            yield
        finally:
            process.kill()


def _accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False
