"""Fills the data sets: a real broker, and librdkafka's producer with the batch sizes that are asked for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.data_sets import PARTITIONS, DataSet, data_sets
from benchmarks.log_files import describe_log_files
from benchmarks.progress import tell
from benchmarks.records import FIRST_TIMESTAMP_MS, key_of, make_values, values_of_partition
from benchmarks.settings import Settings

if TYPE_CHECKING:
    from confluent_kafka import Producer

    from tests.interop.broker import KafkaBroker

# What bin/kafka-server-start.sh gives a broker.
_BROKER_HEAP_MEGABYTES = 1024
_BROKER_JVM_OPTIONS = ("-server", "-Xms1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
# Kafka's defaults; the test harness takes fewer threads.
_BROKER_SETTINGS = {"num.network.threads": 3, "num.io.threads": 8}

_TOPIC_SETTINGS = {"max.message.bytes": str(4 << 20), "retention.ms": "-1"}
_CHUNK_RECORDS = 10_000
# Enough queued that every batch fills up, little enough to stay in memory.
_QUEUED_BYTES = 200 << 20
_TIMEOUT_S = 120.0
# Changed when the contents change, so that an older cache is not taken for this one.
_CONTENTS_VERSION = 1


def make_broker(
    settings: Settings, directory: Path | None = None, broker_settings: Mapping[str, object] | None = None
) -> KafkaBroker:
    """Return the broker that holds the data sets, or another one with its files and settings; not started."""
    # Imported late: the tests' harness is only there in a checkout.
    from tests.interop.broker import KafkaBroker

    return KafkaBroker(
        directory or settings.broker_directory,
        {**_BROKER_SETTINGS, **(broker_settings or {})},
        heap_megabytes=_BROKER_HEAP_MEGABYTES,
        jvm_options=_BROKER_JVM_OPTIONS,
    )


def ensure_data_sets(settings: Settings, wanted: Sequence[DataSet] | None = None) -> Path:
    """Produce the data sets that are not there yet; return the broker's log directory.

    The broker has been stopped cleanly when this returns.

    Args:
        settings: The run.
        wanted: Which data sets; by default those of the run.
    """
    wanted = data_sets(settings) if wanted is None else wanted
    log_directory = settings.broker_directory / "logs"
    missing = [data_set for data_set in wanted if not _marker(settings, data_set).exists()]
    if not missing:
        _ensure_clean(settings)
        return log_directory
    # A topic without its marker was left half full: start again rather than guess how far it came.
    if any(data_set.log_files(log_directory) for data_set in missing):
        shutil.rmtree(settings.broker_directory)
        missing = list(wanted)
    with make_broker(settings) as broker:
        for data_set in missing:
            tell(f"producing {data_set.name}, {data_set.records:,} records")
            _produce(broker.bootstrap_servers, data_set)
    for data_set in missing:
        description = describe_log_files(data_set.log_files(log_directory))
        if description["records"] != data_set.records:
            raise RuntimeError(
                f"Expected {data_set.records} records of {data_set.name} on disk, found {description['records']}."
            )
        _marker(settings, data_set).write_text(json.dumps(description))
    return log_directory


def _ensure_clean(settings: Settings) -> None:
    """Let the broker recover if a broken-off run killed it, so that index files have their true size."""
    if not (settings.broker_directory / "logs" / ".kafka_cleanshutdown").exists():
        tell("the broker was killed last time; it recovers its logs")
        with make_broker(settings):
            pass


def _marker(settings: Settings, data_set: DataSet) -> Path:
    return settings.broker_directory / f"{data_set.name}.v{_CONTENTS_VERSION}.json"


def _produce(bootstrap_servers: str, data_set: DataSet) -> None:
    from confluent_kafka import Producer

    _create_topic(bootstrap_servers, data_set)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "compression.type": data_set.compression,
            "batch.size": data_set.batch_size_bytes,
            "batch.num.messages": 1_000_000,
            "message.max.bytes": 4 << 20,
            "linger.ms": 2000,
            "log_level": 3,
            "queue.buffering.max.messages": 10_000_000,
        }
    )
    pool = make_values(*data_set.value_sizes_bytes)
    queued_records = _QUEUED_BYTES // data_set.value_sizes_bytes[1]
    for start in range(0, data_set.records_per_partition, _CHUNK_RECORDS):
        count = min(_CHUNK_RECORDS, data_set.records_per_partition - start)
        for partition in range(PARTITIONS):
            _produce_chunk(producer, data_set.name, partition, pool, start, count)
        while len(producer) > queued_records:
            producer.poll(0.05)
    if producer.flush(_TIMEOUT_S):
        raise RuntimeError(
            f"The broker did not acknowledge all records of {data_set.name} in {_TIMEOUT_S} s."
        )


def _produce_chunk(
    producer: Producer, topic: str, partition: int, pool: Sequence[bytes], start: int, count: int
) -> None:
    # One call a record: the producer's call for many records takes no timestamps.
    values = values_of_partition(pool, partition, start, count)
    for index, value in enumerate(values, start):
        timestamp_ms = FIRST_TIMESTAMP_MS + index
        producer.produce(topic, value, key_of(partition, index), partition, timestamp=timestamp_ms)
    producer.poll(0)


def _create_topic(bootstrap_servers: str, data_set: DataSet) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = NewTopic(data_set.name, num_partitions=PARTITIONS, replication_factor=1, config=_TOPIC_SETTINGS)
    # Named, because a client that is collected takes its pending requests with it.
    client = AdminClient({"bootstrap.servers": bootstrap_servers})
    for future in client.create_topics([topic]).values():
        future.result(_TIMEOUT_S)
