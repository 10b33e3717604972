"""Kafka's own clients in Java, through Kafka's command-line tools."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from tests.interop.jars import QUICK_JVM, kafka_command

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.interop.broker import KafkaBroker

_TIMEOUT_S = 300


def produce_with_java(broker: KafkaBroker, topic: str, keys: Iterable[str]) -> None:
    """Produce a record for each key with the default partitioner. Keys contain no tabs and no newlines."""
    arguments = ["--bootstrap-server", broker.bootstrap_servers, "--topic", topic]
    arguments += ["--property", "parse.key=true", "--producer-property", "acks=all"]
    lines = "".join(f"{key}\tvalue\n" for key in keys)
    _run("ConsoleProducer", arguments, lines.encode())


def run_transactions_tool(broker: KafkaBroker, *arguments: str) -> str:
    """Return what ``kafka-transactions.sh`` prints."""
    return _run("TransactionsCommand", ["--bootstrap-server", broker.bootstrap_servers, *arguments], b"")


def run_group_tool(broker: KafkaBroker, *arguments: str) -> str:
    """Return what ``kafka-consumer-groups.sh`` prints."""
    servers = ["--bootstrap-server", broker.bootstrap_servers, "--timeout", "60000"]
    return _run("consumer.group.ConsumerGroupCommand", [*servers, *arguments], b"")


def run_share_group_tool(broker: KafkaBroker, *arguments: str) -> str:
    """Return what ``kafka-share-groups.sh`` prints."""
    servers = ["--bootstrap-server", broker.bootstrap_servers, "--timeout", "60000"]
    return _run("consumer.group.ShareGroupCommand", [*servers, *arguments], b"")


def enable_share_groups(broker: KafkaBroker) -> None:
    """Switch on the feature of KIP-932."""
    arguments = ["--bootstrap-server", broker.bootstrap_servers, "upgrade", "--feature", "share.version=1"]
    _run("FeatureCommand", arguments, b"")


def consume_as_share_group(broker: KafkaBroker, topic: str, group: str, count: int) -> None:
    """Consume and acknowledge so many records, from the log start on, with a new share group."""
    servers = ["--bootstrap-server", broker.bootstrap_servers]
    of_group = ["--alter", "--entity-type", "groups", "--entity-name", group]
    from_start = ["--add-config", "share.auto.offset.reset=earliest"]
    _run_class("kafka.admin.ConfigCommand", [*servers, *of_group, *from_start], b"")
    of_what = ["--topic", topic, "--group", group, "--max-messages", str(count), "--timeout-ms", "60000"]
    _run("consumer.ConsoleShareConsumer", [*servers, *of_what], b"")


def _run(tool: str, arguments: Iterable[str], given: bytes) -> str:
    return _run_class(f"org.apache.kafka.tools.{tool}", arguments, given)


def _run_class(name: str, arguments: Iterable[str], given: bytes) -> str:
    result = subprocess.run(
        kafka_command(name, *arguments, options=[*QUICK_JVM, "-Dfile.encoding=UTF-8"]),
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=_TIMEOUT_S,
    )
    printed = result.stdout.decode(errors="replace")
    assert result.returncode == 0, printed[-3000:]
    return printed
