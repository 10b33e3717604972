"""Rewrite ``examples/data`` with a real Kafka broker.

Run from the root of the repository; needs confluent-kafka, Java 17 and Maven::

    PYTHONPATH=. python -m tests.interop.make_example_data

Records, their timestamps and their grouping into batches follow from a fixed seed. What the broker chooses itself
(topic ids, producer ids, timestamps of transaction markers) differs from run to run.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.interop.broker import KafkaBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SEED = 2026
WEEK_START_MS = int(datetime(2026, 3, 2, tzinfo=UTC).timestamp() * 1000)
ORDER_COUNT = 24_000
DAY_MS = 24 * 60 * 60 * 1000
HOUR_MS = 60 * 60 * 1000

# Transaction markers carry the broker's clock. Without a long segment.ms, the first marker would roll the segment.
TEN_YEARS_MS = 3650 * DAY_MS

ROOT_FILES = (
    ".kafka_cleanshutdown",
    "cleaner-offset-checkpoint",
    "log-start-offset-checkpoint",
    "meta.properties",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
)
# The repository's own files in that directory.
KEPT_FILES = frozenset({"README.md", ".gitattributes"})

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class ExampleRecord:
    """One record to produce."""

    key: str | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, slots=True)
class ExampleTopic:
    """One topic: its configuration and the function that writes it."""

    name: str
    partitions: int
    settings: dict[str, str]
    write: Callable[[str, random.Random], None]


def timestamps_over_a_week(count: int, source: random.Random) -> list[int]:
    """Ascending timestamps over the week, few at night and many in the evening."""
    found: list[int] = []
    while len(found) < count:
        moment = source.randrange(7 * DAY_MS)
        hour = (moment % DAY_MS) / HOUR_MS
        if source.random() < 0.55 + 0.45 * math.sin((hour - 12) / 24 * 2 * math.pi):
            found.append(WEEK_START_MS + moment)
    return sorted(found)


def orders(source: random.Random) -> Iterator[ExampleRecord]:
    """Orders of a web shop as JSON, with headers; some arrive slightly late."""
    countries = ("DE", "FR", "NL", "ES", "IT", "PL", "SE")
    for number, moment in enumerate(timestamps_over_a_week(ORDER_COUNT, source)):
        # Some customers buy far more often than others.
        customer = int(2_000 * source.random() ** 2)
        items = [
            {
                "sku": f"sku-{source.randrange(150):04d}",
                "quantity": source.choice((1, 1, 1, 2, 3)),
                "price_cents": source.randrange(299, 14_999, 50),
            }
            for _ in range(source.choice((1, 1, 2, 3)))
        ]
        order = {
            "order_id": f"order-{number:06d}",
            "customer": customer,
            "country": countries[customer % len(countries)],
            "channel": source.choice(("web", "web", "app", "shop")),
            "items": items,
            "total_cents": sum(int(item["quantity"]) * int(item["price_cents"]) for item in items),
        }
        late_ms = source.randrange(90_000) if source.random() < 0.02 else 0
        headers: list[Header] = [("trace-id", f"{source.getrandbits(64):016x}".encode())]
        if number % 10 == 0:
            headers += [("experiment", b"checkout-b"), ("debug", None)]
        yield ExampleRecord(f"customer-{customer}", _json(order), moment - late_ms, tuple(headers))


def payments(source: random.Random) -> Iterator[list[ExampleRecord]]:
    """Transactions of 25 payments each, as JSON."""
    moments = timestamps_over_a_week(3_000, source)
    for first in range(0, len(moments), 25):
        transaction = []
        for number, moment in enumerate(moments[first : first + 25], start=first):
            payment = {
                "payment_id": f"payment-{number:05d}",
                "order_id": f"order-{source.randrange(ORDER_COUNT):06d}",
                "method": source.choice(("card", "card", "transfer", "wallet")),
                "amount_cents": source.randrange(299, 59_999),
            }
            headers = (("trace-id", f"{source.getrandbits(64):016x}".encode()),)
            transaction.append(ExampleRecord(str(payment["order_id"]), _json(payment), moment, headers))
        yield transaction


def clicks(source: random.Random) -> Iterator[ExampleRecord]:
    """Page views of one hour as short text; anonymous visitors have no key."""
    moment = WEEK_START_MS + 4 * DAY_MS + 18 * HOUR_MS
    for _ in range(1_200):
        moment += source.randrange(6_000)
        visitor = None if source.random() < 0.3 else f"customer-{source.randrange(2_000)}"
        page = source.choice(
            ("/", "/search", f"/product/sku-{source.randrange(150):04d}", "/cart", "/checkout")
        )
        yield ExampleRecord(visitor, page.encode(), moment)


def inventory(source: random.Random) -> Iterator[ExampleRecord]:
    """Stock by product. Later values replace earlier ones; a null value deletes the product."""
    for moment in timestamps_over_a_week(4_000, source):
        product = min(source.randrange(150), source.randrange(150))
        is_deleted = source.random() < 0.01
        stock = {"sku": f"sku-{product:04d}", "in_stock": source.randrange(500)}
        yield ExampleRecord(f"sku-{product:04d}", None if is_deleted else _json(stock), moment)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def producer_for(bootstrap_servers: str, **settings: object) -> Producer:
    """Create a producer whose batches end at each flush."""
    # The long linger leaves the grouping to flush(): in every run, each flush makes one batch per partition.
    defaults: dict[str, object] = {
        "bootstrap.servers": bootstrap_servers,
        "enable.idempotence": True,
        "linger.ms": 20_000,
        "partitioner": "murmur2_random",
    }
    return Producer({**defaults, **settings})


def send(producer: Producer, topic: str, records: list[ExampleRecord]) -> None:
    """Produce records, and wait until the broker has them."""
    for record in records:
        producer.produce(
            topic,
            key=record.key,
            value=record.value,
            timestamp=record.timestamp_ms,
            headers=list(record.headers),
            on_delivery=_fail_if_undelivered,
        )
    producer.flush()


def _fail_if_undelivered(error: object, _message: object) -> None:
    if error is not None:
        raise RuntimeError(f"A record was not delivered: {error}")


def in_groups(records: Iterator[ExampleRecord], size: int) -> Iterator[list[ExampleRecord]]:
    """Yield records in lists of a size; the last one may be shorter."""
    group: list[ExampleRecord] = []
    for record in records:
        group.append(record)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def write_orders(bootstrap_servers: str, source: random.Random) -> None:
    """Write ``orders``: batches of about 60 records, zstd."""
    producer = producer_for(bootstrap_servers, **{"compression.type": "zstd"})
    for group in in_groups(orders(source), 180):
        send(producer, "orders", group)


def write_payments(bootstrap_servers: str, source: random.Random) -> None:
    """Write ``payments``: one transaction per group, lz4; the 41st is aborted and sent again."""
    settings: dict[str, object] = {"compression.type": "lz4", "transactional.id": "payments-writer"}
    producer = producer_for(bootstrap_servers, **settings)
    producer.init_transactions()
    for number, group in enumerate(payments(source)):
        if number == 40:
            producer.begin_transaction()
            send(producer, "payments", group)
            producer.abort_transaction()
        producer.begin_transaction()
        send(producer, "payments", group)
        producer.commit_transaction()


def write_clicks(bootstrap_servers: str, source: random.Random) -> None:
    """Write ``clicks``: not compressed."""
    producer = producer_for(bootstrap_servers, **{"compression.type": "none"})
    for group in in_groups(clicks(source), 100):
        send(producer, "clicks", group)


def write_inventory(bootstrap_servers: str, source: random.Random) -> None:
    """Write ``inventory``: gzip, small batches."""
    producer = producer_for(bootstrap_servers, **{"compression.type": "gzip"})
    for group in in_groups(inventory(source), 40):
        send(producer, "inventory", group)


TOPICS = (
    ExampleTopic("orders", 3, {"internal.segment.bytes": "98304"}, write_orders),
    ExampleTopic(
        "payments", 2, {"internal.segment.bytes": "65536", "segment.ms": str(TEN_YEARS_MS)}, write_payments
    ),
    ExampleTopic("clicks", 1, {}, write_clicks),
    ExampleTopic(
        "inventory",
        1,
        {
            "cleanup.policy": "compact",
            "internal.segment.bytes": "16384",
            "min.cleanable.dirty.ratio": "0.01",
            "file.delete.delay.ms": "1000",
        },
        write_inventory,
    ),
)


def wait_until_compacted(log_directory: Path, topic: str, partition: int, timeout_s: float = 300.0) -> None:
    """Wait until the cleaner has reached the active segment and the replaced files are gone."""
    directory = log_directory / f"{topic}-{partition}"
    checkpoint = log_directory / "cleaner-offset-checkpoint"
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        active_base = max(int(path.name.split(".")[0]) for path in directory.glob("*.log"))
        is_settled = not any(path.suffix in (".cleaned", ".deleted", ".swap") for path in directory.iterdir())
        if is_settled and f"{topic} {partition} {active_base}" in checkpoint.read_text().splitlines():
            return
        time.sleep(0.2)
    raise RuntimeError(f"{directory} was not compacted within {timeout_s} s.")


def make(target: Path) -> None:
    """Replace the broker's files in ``target`` with newly written ones."""
    with tempfile.TemporaryDirectory() as scratch:
        settings = {"log.cleaner.backoff.ms": 200, "log.initial.task.delay.ms": 500}
        with KafkaBroker(scratch, settings) as broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
            for topic in TOPICS:
                created = admin.create_topics(
                    [NewTopic(topic.name, topic.partitions, 1, config=topic.settings)]
                )
                created[topic.name].result(30)
                topic.write(broker.bootstrap_servers, random.Random(f"{SEED} {topic.name}"))
            wait_until_compacted(broker.log_directory, "inventory", 0)
        copy_logs(broker.log_directory, target, TOPICS)


def copy_logs(log_directory: Path, target: Path, topics: Iterable[ExampleTopic]) -> None:
    """Replace the broker's files in ``target`` with those of the topics."""
    target.mkdir(parents=True, exist_ok=True)
    for old in target.iterdir():
        if old.is_dir():
            shutil.rmtree(old)
        elif old.name not in KEPT_FILES:
            old.unlink()
    for name in ROOT_FILES:
        shutil.copy2(log_directory / name, target / name)
    for topic in topics:
        for partition in range(topic.partitions):
            name = f"{topic.name}-{partition}"
            shutil.copytree(log_directory / name, target / name)


def main() -> None:
    """Parse the command line and write the data."""
    parser = argparse.ArgumentParser(description="Write the example data with a real Kafka broker.")
    default = Path(__file__).resolve().parents[2] / "examples" / "data"
    parser.add_argument("--target", type=Path, default=default, help="default: examples/data")
    target = parser.parse_args().target
    make(target)
    files = [path for path in target.rglob("*") if path.is_file()]
    print(f"{target}: {len(files)} files, {sum(path.stat().st_size for path in files):,} bytes")


if __name__ == "__main__":
    main()
