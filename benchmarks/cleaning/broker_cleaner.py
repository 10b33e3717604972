"""A broker whose cleaner cleans one topic at a time, when it is told to, and says how long it took."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.cleaning.keyed_log import SEGMENT_BYTES, copy_partition
from benchmarks.producing import make_broker
from benchmarks.settings import Settings

if TYPE_CHECKING:
    from tests.interop.broker import KafkaBroker

# One thread, unthrottled and Kafka's default buffer. Between two looks at its logs it does not wait long.
_CLEANER_SETTINGS = {
    "log.cleaner.enable": "true",
    "log.cleaner.threads": 1,
    "log.cleaner.backoff.ms": 200,
    # Cleaned segments stay until the broker ends: no run waits for their removal.
    "log.segment.delete.delay.ms": 3_600_000,
}
_HELD_BACK_MS = (1 << 63) - 1
_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class BrokerCleaning:
    """What the broker's log says of one pass over one topic.

    Attributes:
        seconds: To one decimal, as it is logged.
        end_offset: Where the cleaned part ends.
        megabytes: How much was read, in its count.
    """

    seconds: float
    end_offset: int
    megabytes: float


@contextmanager
def broker_with_logs(
    settings: Settings, directory: Path, sources: Mapping[str, Path], dedupe_buffer_bytes: int
) -> Iterator[KafkaBroker]:
    """Yield a broker that runs with a copy of a partition under each topic, and cleans none of them yet."""
    from tests.interop.clients import create_topic

    cleaner = {**_CLEANER_SETTINGS, "log.cleaner.dedupe.buffer.size": dedupe_buffer_bytes}
    broker = make_broker(settings, directory, cleaner)
    with broker:
        for topic in sources:
            create_topic(
                broker,
                topic,
                cleanup_policy="compact",
                segment_bytes=SEGMENT_BYTES,
                min_compaction_lag_ms=_HELD_BACK_MS,
            )
        broker.stop()
        for topic, source in sources.items():
            copy_partition(source, broker.log_directory / f"{topic}-0")
        broker.start()
        yield broker


def clean_in_broker(broker: KafkaBroker, topic: str) -> BrokerCleaning:
    """Let the cleaner at one topic and wait until it says that it is done.

    Raises:
        TimeoutError: It says nothing.
    """
    _release(broker, topic)
    pattern = re.compile(
        rf"cleaned log {topic}-0 \(dirty section = \[\d+, (?P<end>\d+)\]\)\s+"
        r"(?P<megabytes>[\d,.]+) MB of log processed in (?P<seconds>[\d,.]+) seconds"
    )
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        found = pattern.search(broker.log_path.read_text(encoding="utf-8", errors="replace"))
        if found:
            seconds, megabytes = (float(found[name].replace(",", "")) for name in ("seconds", "megabytes"))
            return BrokerCleaning(seconds, int(found["end"]), megabytes)
        time.sleep(0.2)
    raise TimeoutError(f"The broker did not clean {topic} in {_TIMEOUT_S} s.\n{broker.log_tail()}")


def _release(broker: KafkaBroker, topic: str) -> None:
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

    entry = ConfigEntry("min.compaction.lag.ms", "0", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    # Named, because a client that is collected takes its pending requests with it.
    client = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 3})
    for future in client.incremental_alter_configs([resource]).values():
        future.result(_TIMEOUT_S)
