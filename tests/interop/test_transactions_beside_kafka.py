"""The views of batches, transactions and producers beside a real broker and Kafka's own tools.

A transaction that hangs is found in the directory of a broker that is down, and the printed line ends it once the broker
is up again.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conformance.archives import case_names, unpack_case

from storage_core.views import read_table
from tests.interop.broker import KafkaBroker
from tests.interop.clients import READ_COMMITTED, consume_partitions, create_topic, new_producer
from tests.interop.dump_log_segments import dumped_batches
from tests.interop.jars import kafka_command
from tests.interop.raw_produce import produce_batch, produced_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent.parent
# Otherwise a broker refuses records of a transaction that its coordinator does not know (KIP-890), as older ones do not.
UNVERIFIED = {"transaction.partition.verification.enable": "false"}
LOST_PRODUCER = 777_000
TIMESTAMP_MS = 1_700_000_000_000
_TIMEOUT_S = 300


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Yield a broker that is down; it has a transaction that no coordinator knows, and one whose producer is gone."""
    with KafkaBroker(tmp_path_factory.mktemp("hanging"), UNVERIFIED) as broker:
        create_topic(broker, "orders", 2)
        transactional = new_producer(broker, transactional_id="payments")
        transactional.init_transactions(_TIMEOUT_S)
        for is_committed in (True, False):
            transactional.begin_transaction()
            transactional.produce("orders", b"value", b"key", 0)
            transactional.flush(_TIMEOUT_S)
            (transactional.commit_transaction if is_committed else transactional.abort_transaction)(
                _TIMEOUT_S
            )
        transactional.begin_transaction()
        transactional.produce("orders", b"pending", b"key", 0)
        transactional.flush(_TIMEOUT_S)
        batch = produced_batch(
            [(b"lost", b"one"), (b"lost", b"two")],
            timestamp_ms=TIMESTAMP_MS,
            producer_id=LOST_PRODUCER,
            producer_epoch=3,
            base_sequence=0,
            is_transactional=True,
        )
        assert produce_batch(broker, "orders", batch, 1, transactional_id="lost").error == 0
        plain = new_producer(broker)
        plain.produce("orders", b"after", b"key", 1)
        plain.flush(_TIMEOUT_S)
        broker.stop()
        yield broker


def segmentlog(*arguments: object) -> str:
    """Return what the command prints, in a process of its own."""
    command = [sys.executable, "-m", "storage_core.cli", *map(str, arguments)]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT, timeout=_TIMEOUT_S
    ).stdout


def rows_of(broker: KafkaBroker, *arguments: str) -> list[dict[str, object]]:
    printed = segmentlog("transactions", broker.log_directory, "--output", "jsonl", *arguments)
    return [json.loads(line) for line in printed.splitlines()]


def transactions_tool(*arguments: str) -> str:
    """Return what Kafka's kafka-transactions.sh prints."""
    command = kafka_command("org.apache.kafka.tools.TransactionsCommand", *arguments)
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_printed_line_ends_what_hangs(hanging: KafkaBroker) -> None:
    left = rows_of(hanging)
    assert [(row["partition"], row["state"], row["recordCount"]) for row in left] == [
        (0, "open", 1),
        (1, "open", 2),
    ]
    lost = left[1]
    assert (lost["producerId"], lost["producerEpoch"], lost["firstOffset"]) == (LOST_PRODUCER, 3, 0)
    assert [(row["partition"], row["state"]) for row in rows_of(hanging, "--committed", "--aborted")] == [
        (0, "committed"),
        (0, "aborted"),
    ]

    # The last line of the table for people.
    printed = segmentlog(
        "transactions", hanging.log_directory, "--bootstrap-server", hanging.bootstrap_servers
    ).splitlines()[-1]
    script, *arguments = shlex.split(printed)
    assert script == "kafka-transactions.sh"
    hanging.start()
    describe = ("--bootstrap-server", hanging.bootstrap_servers, "describe-producers", "--topic", "orders")
    (described,) = described_producers(transactions_tool(*describe, "--partition", "1"))
    known = producers_of(hanging, 1)[LOST_PRODUCER]
    assert described["ProducerId"] == str(LOST_PRODUCER)
    assert described["ProducerEpoch"] == str(known["producerEpoch"])
    assert described["LastSequence"] == str(known["lastSequence"])
    assert described["CurrentTransactionStartOffset"] == str(known["currentTransactionFirstOffset"])

    transactions_tool(*arguments)
    (described,) = described_producers(transactions_tool(*describe, "--partition", "1"))
    assert described["CurrentTransactionStartOffset"] == "None"
    place = ("orders", 1)
    consumed = consume_partitions(hanging, [place], READ_COMMITTED)[place]
    assert [row.value for row in consumed.rows] == [b"after"]
    hanging.stop()
    assert [(row["partition"], row["state"]) for row in rows_of(hanging) if row["partition"] == 1] == []
    (ended,) = (row for row in rows_of(hanging, "--aborted") if row["partition"] == 1)
    assert (ended["firstOffset"], ended["lastOffset"], ended["markerOffset"]) == (0, 1, 3)


def described_producers(printed: str) -> list[dict[str, str]]:
    head, *lines = (line.split() for line in printed.splitlines() if line.strip())
    return [dict(zip(head, line, strict=True)) for line in lines]


def producers_of(broker: KafkaBroker, partition: int) -> dict[int, dict[str, object]]:
    rows = read_table(str(broker.log_directory), view="producers").to_pylist()
    return {row["producerId"]: row for row in rows if row["partition"] == partition}


# In the columns that Kafka's tool prints of a batch, too.
_COMPARED = (
    *(
        "baseOffset",
        "lastOffset",
        "recordCount",
        "baseSequence",
        "lastSequence",
        "producerId",
        "producerEpoch",
    ),
    *("leaderEpoch", "isTransactional", "isControl", "position", "maxTimestampMs", "sizeBytes", "magic"),
    *("compression", "crc", "crcValid"),
)
# The tool ends at damage, and at space that a broker preallocated.
_TOOL_FAILS = {"corrupt-middle", "unclean"}


def test_batches_are_those_that_kafka_dumps(tmp_path: Path) -> None:
    """Every batch of format v2; of older ones, the tool prints messages."""
    found: dict[str, list[tuple[object, ...]]] = {}
    files: list[Path] = []
    for name in sorted({*case_names()} - _TOOL_FAILS):
        logs, _ = unpack_case(name, tmp_path / name)
        for row in read_table(str(logs), view="batches", starting_offsets="earliest").to_pylist():
            file = logs / f"{row['topic']}-{row['partition']}" / str(row["segment"])
            if row["magic"] == 2:
                found.setdefault(str(file), []).append(tuple(row[column] for column in _COMPARED))
        files += [file for file in sorted(logs.glob("*/*.log")) if str(file) in found]
    dumped = dumped_batches(files)
    assert sum(map(len, dumped.values())) > 3_000
    for file, batches in found.items():
        # Deleted records may be in the file.
        start_offset = batches[0][0]
        assert batches == [batch for batch in dumped[file] if batch[0] >= start_offset], file
