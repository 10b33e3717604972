"""A small HTTP/1.1 server for tests: quick, and able to break an answer off in any place.

One thread serves each connection. Bodies of files go out with sendfile, so that a benchmark measures its client.
"""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import struct
import threading
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Self
from urllib.parse import parse_qsl, unquote

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

# Names of threads that serve: what counts a client's threads leaves them out.
THREAD_PREFIX = "object-store-server"
_MAX_LINE_BYTES = 1 << 16
_PIECES = 10
_TAIL_BYTES = 1 << 16
_REASONS = {200: "OK", 206: "Partial Content", 304: "Not Modified", 404: "Not Found"}


@dataclass(frozen=True, slots=True)
class FileBytes:
    """Bytes of a file, as a body."""

    path: str
    start: int
    size_bytes: int

    def __len__(self) -> int:
        return self.size_bytes


@dataclass(frozen=True)
class Request:
    """One request; names of headers are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes = b""

    @cached_property
    def path(self) -> str:
        return unquote(self.target.partition("?")[0])

    @cached_property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(self.target.partition("?")[2], keep_blank_values=True))


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, and how much of it is sent.

    Attributes:
        status: The HTTP status.
        headers: Names in lower case. Without a content-length, it is that of the body.
        body: What follows them, if anything does.
        sent_bytes: How much of the body is sent before the connection ends; None: all, and the connection stays.
            -1: not even the status.
        is_reset: Whether the connection ends with a reset.
        pause_s: How long the body takes, which then goes out in pieces.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | FileBytes = b""
    sent_bytes: int | None = None
    is_reset: bool = False
    pause_s: float = 0.0


class HttpServer(socketserver.ThreadingTCPServer):
    """Serves what a function answers, on a free port of the loopback interface. Use as a context manager."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 512

    def __init__(self, answer: Callable[[Request], Answer]) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.answer = answer
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self._connections: set[socket.socket] = set()
        self._thread = threading.Thread(
            target=self.serve_forever, args=(0.05,), name=THREAD_PREFIX, daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
        self._thread.join()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def process_request_thread(self, request: socket.socket, client_address: tuple[str, int]) -> None:
        threading.current_thread().name = f"{THREAD_PREFIX}-{client_address[1]}"
        self._connections.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.discard(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a client that has gone away."""


class _Connection(socketserver.StreamRequestHandler):
    server: HttpServer
    disable_nagle_algorithm = True

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            while (request := self._read_request()) is not None:
                answer = self.server.answer(request)
                if answer.sent_bytes != -1:
                    self._send(request, answer)
                if answer.sent_bytes is not None:
                    self._end(is_reset=answer.is_reset)
                    return

    def _read_request(self) -> Request | None:
        line = self.rfile.readline(_MAX_LINE_BYTES).decode("latin-1").split()
        if len(line) != 3:
            return None
        headers = {}
        while text := self.rfile.readline(_MAX_LINE_BYTES).decode("latin-1").strip():
            name, _, value = text.partition(":")
            headers[name.lower()] = value.strip()
        body = self.rfile.read(int(headers.get("content-length", 0)))
        return Request(line[0], line[1], headers, body)

    def _send(self, request: Request, answer: Answer) -> None:
        lines = [f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, 'Status')}"]
        lines += [f"{name}: {value}" for name, value in answer.headers.items()]
        if "content-length" not in answer.headers:
            lines.append(f"content-length: {len(answer.body)}")
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        size = 0 if request.method == "HEAD" else len(answer.body)
        size = size if answer.sent_bytes is None else min(size, answer.sent_bytes)
        if isinstance(answer.body, FileBytes) or answer.pause_s:
            self.connection.sendall(head)
            self._send_body(answer, size)
        else:
            self.connection.sendall(head + answer.body[:size])

    def _send_body(self, answer: Answer, size: int) -> None:
        if isinstance(answer.body, FileBytes):
            _send_file(self.connection, answer.body, size)
            return
        step = -(-size // _PIECES) or 1
        for start in range(0, size, step):
            time.sleep(answer.pause_s / _PIECES)
            self.connection.sendall(answer.body[start : min(start + step, size)])

    def _end(self, *, is_reset: bool) -> None:
        if is_reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.rfile.close()
            self.connection.close()


def _send_file(connection: socket.socket, body: FileBytes, size: int) -> None:
    tail_bytes = min(size, _TAIL_BYTES)
    with open(body.path, "rb", buffering=0) as file:
        tail = os.pread(file.fileno(), tail_bytes, body.start + size - tail_bytes)
        sent = 0
        while sent < size - tail_bytes:
            count = size - tail_bytes - sent
            count = os.sendfile(connection.fileno(), file.fileno(), body.start + sent, count)
            if count == 0:
                raise ConnectionError(f"{body.path} has become shorter")
            sent += count
    # A client that has all may remove the file: it is closed by then.
    connection.sendall(tail)
