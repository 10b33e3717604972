"""A directory for the commands of a Kafka installation: `bin/kafka-topics.sh`, `config/server.properties`, ...

The jars do not include the scripts of a Kafka download, so small replacements start the same classes with the same
arguments. Starting and stopping the broker goes through the harness, which always ends the broker. Kafka's own
`kafka-server-stop.sh` would stop every broker on the machine.
"""

from __future__ import annotations

import shlex
import socketserver
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Self

from tests.interop.jars import QUICK_JVM, kafka_command

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from tests.interop.broker import KafkaBroker

_TOOLS = {
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-consumer-groups.sh": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-get-offsets.sh": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
}
# As in Kafka's config/tools-log4j2.yaml: warnings go to standard error.
_TOOLS_LOGGING = """\
status = error
appender.stderr.type = Console
appender.stderr.name = STDERR
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = STDERR
"""
_SERVER_SCRIPTS = {"kafka-server-start.sh": "start", "kafka-server-stop.sh": "stop"}
_ASK = (
    "import socket,sys; s=socket.create_connection(('127.0.0.1',{port})); s.sendall(b'{word}\\n'); s.recv(1)"
)


class KafkaHome:
    """Creates the directory. Use as a context manager: it serves the scripts that start and stop the broker.

    Args:
        directory: Where to create it.
        broker: The broker that the scripts start and stop. Like Kafka's own, they do not wait for it.
    """

    def __init__(self, directory: Path, broker: KafkaBroker) -> None:
        self.directory = directory
        self._broker = broker
        # One worker: a start waits for the previous stop.
        self._worker = ThreadPoolExecutor(max_workers=1)
        self._asked: list[Future[object]] = []
        self._server = _Server(self)
        self._write()

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._worker.shutdown()
        self._broker.kill()

    def start(self) -> None:
        """Start the broker and wait until it is ready."""
        self.ask("start")
        self.settle()

    def stop(self) -> None:
        """Stop the broker and wait until it has stopped."""
        self.ask("stop")
        self.settle()

    def settle(self) -> None:
        """Wait for the requested starts and stops.

        Raises:
            BrokerError: One of them failed.
        """
        for each in self._asked:
            each.result()
        self._asked.clear()

    def ask(self, word: str) -> Future[object]:
        """Start or stop the broker in the background."""
        asked: Future[object] = self._worker.submit(
            self._broker.start if word == "start" else self._broker.stop
        )
        self._asked.append(asked)
        return asked

    def _write(self) -> None:
        scripts = self.directory / "bin"
        for name in ("bin", "config", "logs"):
            (self.directory / name).mkdir(parents=True)
        (self.directory / "config" / "server.properties").symlink_to(
            self._broker.directory / "server.properties"
        )
        (self.directory / "logs" / "server.log").symlink_to(self._broker.log_path)
        logging = self.directory / "config" / "tools-log4j2.properties"
        logging.write_text(_TOOLS_LOGGING)
        options = ["-Xmx256m", *QUICK_JVM, f"-Dlog4j2.configurationFile={logging}"]
        for name, tool in _TOOLS.items():
            _write_script(scripts / name, kafka_command(tool, options=options))
        for name, word in _SERVER_SCRIPTS.items():
            port = self._server.server_address[1]
            _write_script(scripts / name, [sys.executable, "-c", _ASK.format(port=port, word=word)])


def _write_script(path: Path, command: list[str]) -> None:
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, home: KafkaHome) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.home = home


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        word = self.rfile.readline().decode().strip()
        asked = self.server.home.ask(word)
        if word == "start":
            # Tools that follow wait for a minute only.
            wait([asked])
        self.wfile.write(b".")
