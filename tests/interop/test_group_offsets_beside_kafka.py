"""The view ``group_offsets`` and ``segmentlog offsets`` beside a broker, its admin client and its tools.

Groups of all kinds that commit offsets to a broker, and what the broker says of them at several times.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from storage_core import read_table
from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from storage_core.views.group_offsets import offsets_partition, plan_group_offsets, read_group_offsets
from tests.interop.clients import create_topic, new_producer, wait_for_markers
from tests.interop.conftest import broker_in
from tests.interop.dump_log_segments import printed_by_ours, printed_by_the_tool
from tests.interop.java_clients import (
    consume_as_share_group,
    enable_share_groups,
    run_group_tool,
    run_share_group_tool,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tests.interop.broker import KafkaBroker


TOPIC = "data"
OFFSETS_PARTITIONS = 3
SETTINGS = {
    "offsets.topic.num.partitions": OFFSETS_PARTITIONS,
    "share.coordinator.state.topic.num.partitions": 2,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "group.coordinator.rebalance.protocols": "classic,consumer,share",
}
HOSTILE = ('comma, "quote"', "tab\tescape\x1b[31m", "π 😀 \u202e", "two  spaces", "'#;")
WITH_LINE_END = ("line\nend", "carriage\rreturn")
SHARERS, TRANSACTIONAL, OPEN, DELETED, MEMBERS = "sharers", "transactional", "open", "deleted", "members"
_TIMEOUT_S = 300

Offsets = dict[tuple[str, int], tuple[int, str]]
"""Offset and metadata by topic and partition."""


@dataclass(slots=True)
class Grouped:
    """What was observed.

    Attributes:
        times: A time, and the offsets of all groups but share groups then.
        described: What ``kafka-consumer-groups.sh`` prints, and the same of share groups, while the broker runs.
        rows: The view at the same time.
        copied: A copy of the directory then.
        plan: The plan that sets groups back to the first time, as the tool got it.
        reset: The offsets after the tool executed it.
    """

    times: list[tuple[int, Mapping[str, Offsets]]] = field(default_factory=list)
    described: str = ""
    shares_described: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    copied: Path | None = None
    plan: str = ""
    reset: Mapping[str, Offsets] = field(default_factory=dict)


def group_everything(broker: KafkaBroker, scratch: Path) -> Grouped:
    """Let groups commit, look, and set them back."""
    grouped = Grouped()
    workload = _Workload(broker)
    workload.begin()
    grouped.times.append(workload.observed())
    workload.go_on()
    grouped.times.append(workload.observed())

    grouped.described = run_group_tool(broker, "--describe", "--all-groups", "--offsets")
    grouped.shares_described = run_share_group_tool(broker, "--describe", "--group", SHARERS)
    grouped.rows = read_table(broker.log_directory, view="group_offsets").to_pylist()
    grouped.copied = scratch / "copied"
    # A running broker writes its checkpoints anew, and renames them.
    shutil.copytree(broker.log_directory, grouped.copied, ignore=shutil.ignore_patterns("*.tmp", "*.part"))

    plan = scratch / "plan.csv"
    grouped.plan = _plan(grouped.copied, grouped.times[0][0])
    plan.write_text(grouped.plan, encoding="utf-8", newline="")
    reset = ("--reset-offsets", "--from-file", str(plan), "--execute")
    run_group_tool(broker, "--all-groups", *reset)
    grouped.reset = workload.offsets()
    workload.close()
    return grouped


def _plan(directory: Path, as_of_ms: int) -> str:
    command = [sys.executable, "-m", "storage_core.cli", "offsets", str(directory)]
    command += ["--as-of", str(as_of_ms), "--reset-plan"]
    return subprocess.run(command, capture_output=True, check=True, timeout=_TIMEOUT_S).stdout.decode()


class _Workload:
    def __init__(self, broker: KafkaBroker) -> None:
        self._broker = broker
        self._servers = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
        self._admin = AdminClient(self._servers)
        self._simple = (*HOSTILE, *WITH_LINE_END, DELETED, OPEN)
        self._groups = {*self._simple, TRANSACTIONAL, MEMBERS, f"{MEMBERS}-new"}
        self._open: Producer | None = None

    def begin(self) -> None:
        enable_share_groups(self._broker)
        create_topic(self._broker, TOPIC, 2)
        producer = new_producer(self._broker)
        for number in range(40):
            producer.produce(TOPIC, b"%d" % number, partition=number % 2)
        producer.flush()
        for index, group in enumerate(self._simple):
            self._commit(group, [(0, index, "as it was"), (1, 1, "")])
        self._in_transaction(TRANSACTIONAL, 3, is_committed=True)
        self._poll_and_commit(MEMBERS, "classic")
        self._poll_and_commit(f"{MEMBERS}-new", "consumer")

    def go_on(self) -> None:
        for index, group in enumerate(self._simple):
            self._commit(group, [(0, 10 + index, 'later, "quoted"\n')])
        self._admin.delete_consumer_groups([DELETED])[DELETED].result(_TIMEOUT_S)
        self._in_transaction(TRANSACTIONAL, 5, is_committed=True)
        self._in_transaction(TRANSACTIONAL, 7, is_committed=False)
        self._poll_and_commit(MEMBERS, "classic")
        consume_as_share_group(self._broker, TOPIC, SHARERS, 12)
        self._leave_open(OPEN, 19)

    def close(self) -> None:
        """End the open transaction."""
        if self._open is not None:
            self._open.abort_transaction(_TIMEOUT_S)

    def observed(self) -> tuple[int, Mapping[str, Offsets]]:
        """Return the time, and the offsets; everything that is committed later has a later timestamp."""
        offsets = self.offsets()
        now_ms = int(time.time() * 1000)
        while int(time.time() * 1000) <= now_ms:
            pass
        return now_ms, offsets

    def offsets(self) -> Mapping[str, Offsets]:
        """Return the offsets of all groups, as the admin client lists them."""
        found: dict[str, Offsets] = {}
        for group in self._groups:
            asked = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
            offsets = {
                (each.topic, each.partition): (each.offset, each.metadata or "")
                for each in asked[group].result(_TIMEOUT_S).topic_partitions
            }
            if offsets:
                found[group] = offsets
        return found

    def _commit(self, group: str, offsets: Sequence[tuple[int, int, str]]) -> None:
        consumer = Consumer({**self._servers, "group.id": group})
        positions = [
            TopicPartition(TOPIC, partition, offset, metadata) for partition, offset, metadata in offsets
        ]
        consumer.commit(offsets=positions, asynchronous=False)
        consumer.close()

    def _poll_and_commit(self, group: str, protocol: str) -> None:
        consumer = Consumer(
            {
                **self._servers,
                "group.id": group,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([TOPIC])
        deadline = time.monotonic() + _TIMEOUT_S
        polled = 0
        while polled < 5 and time.monotonic() < deadline:
            message = consumer.poll(1)
            polled += message is not None and message.error() is None
        assert polled == 5
        consumer.commit(asynchronous=False)
        consumer.close()

    def _in_transaction(self, group: str, offset: int, *, is_committed: bool) -> None:
        producer = self._begun_transaction(group, offset)
        if is_committed:
            producer.commit_transaction(_TIMEOUT_S)
        else:
            producer.abort_transaction(_TIMEOUT_S)
        wait_for_markers(
            self._broker, [("__consumer_offsets", number) for number in range(OFFSETS_PARTITIONS)]
        )

    def _leave_open(self, group: str, offset: int) -> None:
        self._open = self._begun_transaction(group, offset)

    def _begun_transaction(self, group: str, offset: int) -> Producer:
        producer = new_producer(self._broker, transactional_id=f"of-{group}", transaction_timeout_ms=900_000)
        producer.init_transactions(_TIMEOUT_S)
        producer.begin_transaction()
        consumer = Consumer({**self._servers, "group.id": group})
        positions = [TopicPartition(TOPIC, 1, offset)]
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), _TIMEOUT_S)
        consumer.close()
        return producer


_DESCRIBED = re.compile(r"^(\S+) +data +([01]) +(\d+|-) +(\d+|-) +(-?\d+|-) ", re.MULTILINE)
_SHARE_DESCRIBED = re.compile(rf"{SHARERS} +data +([01]) +(\d+|-)")
_DECODERS = {
    "__consumer_offsets": "offsets",
    "__share_group_state": "share-group-state",
    "__transaction_state": "transaction-log",
    "__cluster_metadata": "cluster-metadata",
}


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grouped]:
    scratch = tmp_path_factory.mktemp("grouped")
    with broker_in(scratch, SETTINGS) as broker:
        broker.start()
        yield group_everything(broker, scratch)


def _by_group(rows: Iterable[Mapping[str, Any]]) -> dict[str, Offsets]:
    found: dict[str, Offsets] = {}
    for row in rows:
        if row["groupType"] != "share":
            offsets = found.setdefault(row["group"], {})
            offsets[row["topic"], row["partition"]] = (
                row["offset"],
                # confluent-kafka sends the end of C's strings, too.
                row["metadata"].rstrip("\0"),
            )
    return found


def test_the_latest_offsets_are_those_that_the_admin_client_lists(grouped: Grouped) -> None:
    _, offsets = grouped.times[-1]
    assert _by_group(grouped.rows) == offsets
    assert {*HOSTILE, *WITH_LINE_END, OPEN, TRANSACTIONAL, MEMBERS} <= offsets.keys()
    assert DELETED not in offsets


def test_offsets_and_lags_are_those_that_the_tool_describes(grouped: Grouped) -> None:
    # Names with spaces do not fit its table.
    groups = (OPEN, TRANSACTIONAL, MEMBERS, f"{MEMBERS}-new")
    described = {
        found[:2]: found[2:] for found in _DESCRIBED.findall(grouped.described) if found[0] in groups
    }
    ours = {
        (row["group"], str(row["partition"])): (str(row["offset"]), str(row["logEndOffset"]), str(row["lag"]))
        for row in grouped.rows
        if row["group"] in groups
    }
    assert ours == described
    assert {group for group, _ in ours} == set(groups)


def test_groups_have_their_types(grouped: Grouped) -> None:
    types = {row["group"]: row["groupType"] for row in grouped.rows}
    assert (types[MEMBERS], types[f"{MEMBERS}-new"], types[SHARERS]) == ("classic", "consumer", "share")
    assert {types[group] for group in (*HOSTILE, TRANSACTIONAL)} == {"classic"}


def test_share_groups_have_the_start_offsets_that_their_tool_describes(grouped: Grouped) -> None:
    described = {
        int(partition): offset for partition, offset in _SHARE_DESCRIBED.findall(grouped.shares_described)
    }
    ours = {row["partition"]: row["offset"] for row in grouped.rows if row["group"] == SHARERS}
    assert {
        partition: "-" if offset is None else str(offset) for partition, offset in ours.items()
    } == described
    assert {row["topic"] for row in grouped.rows if row["group"] == SHARERS} == {TOPIC}
    assert any(ours.values())


@pytest.mark.parametrize("index", [0, 1])
def test_as_of_a_time_the_offsets_are_those_that_were_listed_then(grouped: Grouped, index: int) -> None:
    as_of_ms, offsets = grouped.times[index]
    rows = read_table(grouped.copied, view="group_offsets", as_of=as_of_ms).to_pylist()
    assert _by_group(rows) == offsets


def test_all_records_of_a_group_are_in_the_partition_of_its_hash(grouped: Grouped) -> None:
    options = options_of([grouped.copied], {"view": "group_offsets"})
    filesystem = FileSystem()
    found = {
        (offset.group, task.part.partition)
        for task in plan_group_offsets(filesystem, options)
        for offset in read_group_offsets(filesystem, task)
        if offset.group != SHARERS
    }
    assert found == {(group, offsets_partition(group, OFFSETS_PARTITIONS)) for group, _ in found}


def test_the_tool_sets_groups_back_by_the_plan(grouped: Grouped) -> None:
    _, before = grouped.times[0]
    _, after = grouped.times[-1]
    # The tool loses metadata, and its plans have no names with line ends.
    expected = {
        group: {place: (offset, "") for place, (offset, _) in offsets.items()}
        for group, offsets in before.items()
        if group not in (*WITH_LINE_END, DELETED)
    }
    reset = {
        group: {place: (offset, "") for place, (offset, _) in offsets.items()}
        for group, offsets in grouped.reset.items()
        if group not in (*WITH_LINE_END, DELETED)
    }
    assert reset == expected
    assert [grouped.reset[group] for group in WITH_LINE_END] == [after[group] for group in WITH_LINE_END]


@pytest.mark.parametrize("topic", list(_DECODERS))
def test_internal_records_of_a_broker_are_printed_as_the_tool_prints_them(
    grouped: Grouped, topic: str
) -> None:
    assert grouped.copied is not None
    rows = read_table(grouped.copied, subscribe=topic).to_pylist()
    assert rows
    for log_file in sorted(grouped.copied.glob(f"{topic}-*/*.log")):
        partition = int(log_file.parent.name.rpartition("-")[2])
        records = [(row["offset"], row["key"], row["value"]) for row in rows if row["partition"] == partition]
        ours = printed_by_ours(_DECODERS[topic], records)
        printed = printed_by_the_tool(_DECODERS[topic], log_file)
        assert ours == {offset: printed[offset] for offset in ours}
