"""A real Apache Kafka broker (KRaft, one node) on free loopback ports.

Used by the interop tests, the benchmarks and the generator of the example data::

    with KafkaBroker(directory, {"log.segment.bytes": 1 << 20}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        ...
        broker.kill()       # SIGKILL, or stop() for a clean stop
        broker.restart()    # same ports, same log directory
"""

from __future__ import annotations

import base64
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.interop.jars import QUICK_JVM, kafka_command, kept_by_first_start, only_process

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

DEFAULT_CLUSTER_ID = "c2VnbWVudGxvZy1kYXRhMQ"
# A broker aborts a transaction that stays open for longer. Its default maximum is 15 minutes.
MAX_TRANSACTION_TIMEOUT_MS = 6 * 3_600_000

# One small node. Retention is off: tests and examples write records with old timestamps, which a broker would
# delete within minutes. Every setting can be overridden.
DEFAULT_SETTINGS: dict[str, object] = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    # A killed broker can register again only after its old session has expired.
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
    "num.network.threads": 2,
    "num.io.threads": 2,
    "num.recovery.threads.per.data.dir": 1,
    "log.cleaner.dedupe.buffer.size": 8 << 20,
    "log.retention.ms": -1,
    "log.message.timestamp.after.max.ms": (1 << 63) - 1,
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 1,
    "offsets.topic.segment.bytes": 1 << 20,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.segment.bytes": 1 << 20,
    "transaction.max.timeout.ms": MAX_TRANSACTION_TIMEOUT_MS,
    "group.initial.rebalance.delay.ms": 0,
}
_STARTED = "Kafka Server started"
_LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")
_LOG_TAIL_LINES = 25
_PORT_ATTEMPTS = 3
# Of a start or a stop that takes seconds; longer only on a machine that does other things.
_TIMEOUT_S = 300.0
_BOOTSTRAP = "bootstrap.checkpoint"
# Each is given once, to one of the processes that share the tests. Systems take the ports of clients from 32768 on.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 4
_FIRST_PORT = 15_000 + 4_000 * _WORKER
_PORTS = iter(random.sample(range(_FIRST_PORT, _FIRST_PORT + 4_000), 4_000))
_PORT_TAKEN = "Address already in use"


class BrokerError(RuntimeError):
    """The broker did not start or stop; the message holds the end of its log."""


class KafkaBroker:
    """One broker that keeps its files in ``directory``. Use as a context manager, or ``start()`` and ``stop()``."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        settings: Mapping[str, object] | None = None,
        *,
        heap_megabytes: int = 512,
        jvm_options: Sequence[str] = QUICK_JVM,
        cluster_id: str = DEFAULT_CLUSTER_ID,
        log_directory: str | os.PathLike[str] | None = None,
        ready_timeout_s: float = _TIMEOUT_S,
    ) -> None:
        """Describe a broker; nothing is started or written yet.

        Args:
            directory: Holds ``server.properties``, ``broker.log`` and, by default, ``logs``.
            settings: Broker settings under Kafka's names; they override the harness's defaults.
            heap_megabytes: Maximum Java heap.
            jvm_options: Further JVM options.
            cluster_id: Written to ``meta.properties`` when the log directory is formatted.
            log_directory: Where the broker keeps its logs; ``logs`` by default. Formatted unless it holds
                ``meta.properties``.
            ready_timeout_s: Limit for a start.
        """
        self.directory = Path(directory).resolve()
        self.log_directory = Path(log_directory).resolve() if log_directory else self.directory / "logs"
        self.log_path = self.directory / "broker.log"
        self.cluster_id = cluster_id
        self._settings = dict(settings or {})
        self._java_options = [f"-Xmx{heap_megabytes}m", *jvm_options]
        self._ready_timeout_s = ready_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[..., KafkaBroker] | None = None
        self._port = 0
        self._controller_port = 0
        self._held_ports = contextlib.ExitStack()
        weakref.finalize(self, self._held_ports.close)
        self._start_of_log_bytes = 0

    @property
    def bootstrap_servers(self) -> str:
        """Host and port for clients; the same after ``restart()``."""
        if not self._port:
            raise BrokerError("The broker has no port before its first start().")
        return f"127.0.0.1:{self._port}"

    @property
    def process_id(self) -> int | None:
        """The broker's process, or None before the first start."""
        return self._process.pid if self._process is not None else None

    @property
    def is_running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the broker and wait until it is ready; format a new log directory first.

        Raises:
            BrokerError: The broker ended, or was not ready in time.
        """
        if self.is_running:
            return self
        if self._port:
            self._start_process()
            return self
        for attempts_left in reversed(range(_PORT_ATTEMPTS)):
            self._port, self._controller_port = self._held_ports.enter_context(hold_ports(2))
            try:
                self._start_process()
            except BrokerError as error:
                # A process that is no test took a port after it was found free.
                if not attempts_left or _PORT_TAKEN not in str(error):
                    raise
            else:
                break
        return self

    def _start_process(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        properties = self._write_properties()
        if not (self.log_directory / "meta.properties").exists():
            self._format()
        with open(self.log_path, "ab") as log:
            self._start_of_log_bytes = log.tell()
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(properties)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                start_new_session=True,
            )
        watcher = _start_watcher(self._process.pid)
        self._finalizer = weakref.finalize(self, _end_processes, self._process, watcher)
        self._wait_until_started()

    def stop(self, timeout_s: float = _TIMEOUT_S) -> None:
        """Stop cleanly (SIGTERM) and check that the clean-shutdown marker exists.

        Raises:
            BrokerError: The broker did not stop in time, or not cleanly.
        """
        process = self._process
        if process is None:
            return
        died_before = process.poll() is not None
        try:
            if not died_before:
                process.terminate()
                process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise BrokerError(f"The broker did not stop within {timeout_s} s.\n{self.log_tail()}") from error
        finally:
            self._end()
        if died_before or not (self.log_directory / ".kafka_cleanshutdown").exists():
            raise BrokerError(f"The broker did not stop cleanly.\n{self.log_tail()}")

    def kill(self) -> None:
        """Kill the broker (SIGKILL), as a crash would."""
        self._end()

    def restart(self) -> Self:
        """Stop cleanly if running, then start again with the same ports and log directory."""
        self.stop()
        return self.start()

    def log_tail(self) -> str:
        """Return the first error since the latest start, with what follows it, and the end of the log."""
        if not self.log_path.exists():
            return "(no log)"
        with open(self.log_path, "rb") as log:
            log.seek(self._start_of_log_bytes)
            lines = log.read().decode(errors="replace").splitlines()
        errors = [number for number, line in enumerate(lines) if "] ERROR " in line or "] FATAL " in line]
        if not errors:
            return "\n".join(lines[-_LOG_TAIL_LINES:])
        # A failing broker logs its whole shutdown after the error.
        first = errors[0]
        end = max(first + _LOG_TAIL_LINES, len(lines) - _LOG_TAIL_LINES)
        return "\n".join([*lines[first : first + _LOG_TAIL_LINES], "...", *lines[end:]])

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self.is_running:
            self.stop()
        else:
            # A failing stop must not hide the original error.
            self.kill()

    def _end(self) -> None:
        self._process = None
        if self._finalizer is not None:
            self._finalizer()

    def _java(self, main_class: str, *arguments: str) -> list[str]:
        options = [*self._java_options, f"-Dlog4j2.configurationFile={_LOG_CONFIGURATION}"]
        return kafka_command(main_class, *arguments, options=options)

    def _all_settings(self) -> dict[str, object]:
        return {
            **DEFAULT_SETTINGS,
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{self._controller_port}",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "log.dirs": str(self.log_directory),
            **self._settings,
        }

    def _write_properties(self) -> Path:
        path = self.directory / "server.properties"
        path.write_text(_properties(self._all_settings()))
        return path

    def _format(self) -> None:
        """Give each log directory what the first broker's got, with an identity of its own."""
        kept = _after_first_start()
        settings = self._all_settings()
        for directory in map(Path, str(settings["log.dirs"]).split(",")):
            directory.mkdir(parents=True, exist_ok=True)
            identity = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
            lines = {
                "node.id": settings["node.id"],
                # Kafka refuses an id that begins like an option.
                "directory.id": f"A{identity[1:]}",
                "version": 1,
                "cluster.id": self.cluster_id,
            }
            shutil.copy(kept / _BOOTSTRAP, directory)
            (directory / "meta.properties").write_text(_properties(lines))

    def _wait_until_started(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + self._ready_timeout_s
        while time.monotonic() < deadline:
            with open(self.log_path, "rb") as log:
                log.seek(self._start_of_log_bytes)
                if _STARTED.encode() in log.read():
                    return
            if self._process.poll() is not None:
                status = self._process.returncode
                self._end()
                raise BrokerError(f"The broker ended with status {status} while starting.\n{self.log_tail()}")
            time.sleep(0.1)
        self._end()
        raise BrokerError(f"The broker was not ready within {self._ready_timeout_s} s.\n{self.log_tail()}")


class _FirstBroker(KafkaBroker):
    """Leaves its classes and the files of its formatted log directory to all later ones, which start in half the time."""

    def __init__(self, directory: Path) -> None:
        self.archive = directory / "classes.jsa"
        super().__init__(directory, jvm_options=[*QUICK_JVM, f"-XX:ArchiveClassesAtExit={self.archive}"])

    def _format(self) -> None:
        properties = str(self.directory / "server.properties")
        command = self._java("kafka.tools.StorageTool", "format", "-t", self.cluster_id, "-c", properties)
        result = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if result.returncode != 0:
            raise BrokerError(f"The log directory could not be formatted.\n{result.stdout[-4000:]}")


def _after_first_start() -> Path:
    """Return the directory with what the first broker has left, which is started here if there was none yet."""
    kept = kept_by_first_start()
    with only_process(kept.parent / ".first-start.lock"):
        if not kept.exists():
            with tempfile.TemporaryDirectory(prefix=".first-", dir=kept.parent) as scratch:
                with _FirstBroker(Path(scratch, "broker")) as broker:
                    pass
                left = Path(scratch, "left")
                left.mkdir()
                broker.archive.rename(left / broker.archive.name)
                shutil.copy(broker.log_directory / _BOOTSTRAP, left)
                left.rename(kept)
    return kept


def _properties(settings: Mapping[str, object]) -> str:
    return "".join(f"{name}={value}\n" for name, value in settings.items())


@contextlib.contextmanager
def hold_ports(count: int) -> Iterator[list[int]]:
    """Yield ports that nothing uses, and that no system and no other test gives away while a broker is down.

    A number is held by a socket of UDP, which has ports of its own.
    """
    with contextlib.ExitStack() as holders:
        ports: list[int] = []
        for port in _PORTS:
            holder = holders.enter_context(socket.socket(type=socket.SOCK_DGRAM))
            with socket.socket() as tried, contextlib.suppress(OSError):
                holder.bind(("127.0.0.1", port))
                tried.bind(("127.0.0.1", port))
                ports.append(port)
            if len(ports) == count:
                break
        else:
            raise BrokerError("No port is free.")
        yield ports


def _start_watcher(process_id: int) -> subprocess.Popen[bytes]:
    """Start a shell that kills the broker when this process ends, for whatever reason.

    It reads from a pipe whose other end only this process holds.
    """
    script = f"read -r _; kill -s KILL -- -{process_id}"
    return subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, start_new_session=True)


def _end_processes(broker: subprocess.Popen[bytes], watcher: subprocess.Popen[bytes]) -> None:
    # The watcher goes first: once the broker is reaped, the kernel may reuse its process id.
    watcher.kill()
    watcher.wait()
    if watcher.stdin is not None:
        watcher.stdin.close()
    if broker.poll() is None:
        os.killpg(broker.pid, signal.SIGKILL)
    broker.wait()
