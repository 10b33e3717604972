"""The view ``group_offsets`` and ``segmentlog offsets`` beside a broker, its admin client and its tools."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from storage_core import read_table
from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from storage_core.views.group_offsets import offsets_partition, plan_group_offsets, read_group_offsets
from tests.interop.conftest import broker_in
from tests.interop.decoded_records import printed_by_ours, printed_by_the_tool
from tests.interop.grouped import (
    DELETED,
    HOSTILE,
    MEMBERS,
    OFFSETS_PARTITIONS,
    OPEN,
    SETTINGS,
    SHARERS,
    TOPIC,
    TRANSACTIONAL,
    WITH_LINE_END,
    Grouped,
    group_everything,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tests.interop.grouped import Offsets

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
