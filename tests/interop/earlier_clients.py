"""The topics of a broker into which Spark jobs write while it is stopped, and the clients that wrote to them before.

The clients stay alive while the broker is stopped and continue after its restart, with the same producer ids,
sequence numbers and transactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.interop.broker import MAX_TRANSACTION_TIMEOUT_MS
from tests.interop.clients import Deliveries, create_topic, new_producer, wait_for_markers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from confluent_kafka import Producer

    from tests.interop.broker import KafkaBroker
    from tests.interop.source_broker import Place

EMPTY, FILLED, ROLLED = "into-empty", "into-filled", "into-rolled"
TRANSACTIONS, IDEMPOTENT, LOST = "into-transactions", "into-idempotent", "into-lost"
OVERWRITTEN, KILLED, OPEN = "into-overwritten", "into-killed", "into-open"
_SMALL_SEGMENTS: Final = {"internal_segment_bytes": 20_000}
# Topic: partition count and settings.
TOPICS: Final[dict[str, tuple[int, dict[str, object]]]] = {
    EMPTY: (3, {}),
    FILLED: (3, {}),
    ROLLED: (2, _SMALL_SEGMENTS),
    TRANSACTIONS: (2, {}),
    IDEMPOTENT: (2, {}),
    LOST: (2, {}),
    OVERWRITTEN: (3, _SMALL_SEGMENTS),
    KILLED: (2, {}),
    OPEN: (1, {}),
}
# The topics to which jobs append.
GROWN: Final = (EMPTY, FILLED, ROLLED, TRANSACTIONS, IDEMPOTENT, LOST)
# Records per partition and round; topics with small segments get some hundred.
SENT: Final = 40
_MANY: Final = 600
_TIMEOUT_S = 300.0


def places_of(*topics: str) -> list[Place]:
    """Return all partitions of these topics."""
    return [(topic, number) for topic in topics for number in range(TOPICS[topic][0])]


class EarlierClients:
    """Creates the topics and writes to them, once before the jobs and once after the restart."""

    def __init__(self, broker: KafkaBroker) -> None:
        for topic, (count, settings) in TOPICS.items():
            create_topic(broker, topic, count, **settings)
        self._broker = broker
        self._deliveries = Deliveries()
        self._idempotent = new_producer(broker, enable_idempotence=True, linger_ms=5)
        self._transactional, self._open = (
            new_producer(
                broker, transactional_id=name, transaction_timeout_ms=MAX_TRANSACTION_TIMEOUT_MS, linger_ms=5
            )
            for name in ("of-before", "open")
        )
        for producer in (self._transactional, self._open):
            producer.init_transactions()

    def write(self) -> None:
        """Write to every topic except the one that stays empty."""
        plain = new_producer(self._broker, linger_ms=5, batch_num_messages=10)
        for place in places_of(FILLED, ROLLED, LOST, OVERWRITTEN, KILLED):
            count = _MANY if TOPICS[place[0]][1] else SENT
            self._produce(plain, [place], (b"before %d " % number + b"." * 100 for number in range(count)))
        plain.flush()
        self._produce(self._idempotent, places_of(IDEMPOTENT), _values("before"))
        self._idempotent.flush()
        for end in (self._transactional.commit_transaction, self._transactional.abort_transaction) * 2:
            self._transactional.begin_transaction()
            self._produce(self._transactional, places_of(TRANSACTIONS), _values("before"))
            self._transactional.flush()
            end()
        self._open.begin_transaction()
        self._produce(self._open, places_of(OPEN), _values("before"))
        self._open.flush()
        self._delete_some()

    def go_on(self) -> dict[tuple[str, int, int], tuple[bytes | None, bytes | None]]:
        """Write more with the same producers.

        Returns:
            Key and value of each acknowledged record, by topic, partition and offset.
        """
        self._deliveries = Deliveries()
        self._produce(self._idempotent, places_of(IDEMPOTENT), _values("after"))
        self._idempotent.flush()
        self._transactional.begin_transaction()
        self._produce(self._transactional, places_of(TRANSACTIONS), _values("after"))
        self._transactional.commit_transaction()
        self._open.commit_transaction()
        wait_for_markers(self._broker, [*places_of(TRANSACTIONS), *places_of(OPEN)])
        assert not self._deliveries.errors, self._deliveries.errors[0]
        return self._deliveries.snapshot()

    def _produce(self, producer: Producer, places: list[Place], values: Iterable[bytes]) -> None:
        for value in values:
            for topic, partition in places:
                producer.produce(topic, value, partition=partition, on_delivery=self._deliveries)

    def _delete_some(self) -> None:
        """Raise the log start of a partition that will be lost; the root's checkpoint still names it."""
        admin = AdminClient({"bootstrap.servers": self._broker.bootstrap_servers})
        for answer in admin.delete_records([TopicPartition(LOST, 0, SENT // 2)]).values():
            answer.result(_TIMEOUT_S)


def _values(when: str) -> Iterable[bytes]:
    return (f"{when} {number}".encode() for number in range(SENT))
