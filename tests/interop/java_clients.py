"""Kafka's own clients in Java, through the command-line tools that come with it."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from tests.interop.jars import java_command, kafka_jars

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.interop.broker import KafkaBroker

__all__ = ["produce_with_java"]

_TIMEOUT_S = 120


def produce_with_java(broker: KafkaBroker, topic: str, keys: Iterable[str]) -> None:
    """Produce a record with each of these keys, which hold no tab and no newline, with the default partitioner."""
    command = [java_command(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dfile.encoding=UTF-8"]
    command += ["-cp", f"{kafka_jars()}/*", "org.apache.kafka.tools.ConsoleProducer"]
    command += ["--bootstrap-server", broker.bootstrap_servers, "--topic", topic]
    command += ["--property", "parse.key=true", "--producer-property", "acks=all"]
    lines = "".join(f"{key}\tvalue\n" for key in keys)
    result = subprocess.run(
        command,
        input=lines.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=_TIMEOUT_S,
    )
    assert result.returncode == 0, result.stdout.decode(errors="replace")[-3000:]
