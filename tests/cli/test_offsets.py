"""`segmentlog offsets`: where groups are or were, and the plan that sets them back."""

from __future__ import annotations

import csv
import io
import json

import pytest
from conformance.archives import unpack_case

from storage_core import LogDirectory
from tests.log.logs import NOW_MS, Clock, append
from tests.views.coordinators import Coordinator

_HOSTILE = 'a,"b"\x1b[31m'


@pytest.fixture(scope="module")
def broker_data(tmp_path_factory):
    root, _ = unpack_case("internal", tmp_path_factory.mktemp("case") / "case")
    return root


@pytest.mark.parametrize("flags", [(), ("--output", "jsonl"), ("--reset-plan",)])
def test_a_commit_may_have_any_time(segmentlog, tmp_path, flags):
    clock = Clock()
    with LogDirectory.open(tmp_path / "data", clock=clock) as logs:
        Coordinator(logs, clock).commit("g", "t", 0, 3, commitTimestamp=1_700_000_000_000_000)
    ended = segmentlog("offsets", tmp_path / "data", *flags)
    assert ended.status == 0
    assert ("1700000000000000" in ended.stdout) == ("--reset-plan" not in flags)


@pytest.fixture
def root(tmp_path):
    """Return a group that moved on after `NOW_MS`, and groups that do not fit a plan."""
    clock = Clock()
    with LogDirectory.open(tmp_path / "data", clock=clock) as logs:
        append(logs.create("t"), 9)
        coordinator = Coordinator(logs, clock)
        coordinator.commit(_HOSTILE, "t", 0, 3)
        coordinator.commit("line\nend", "t", 0, 4)
        coordinator.commit("old", "t", 0, 5, version=1, expireTimestamp=NOW_MS)
        share = Coordinator(logs, clock, "__share_group_state")
        share.share("ShareSnapshot", "sharers", "A" * 22, 0, start_offset=6)
        clock.time_ms += 1000
        coordinator.commit(_HOSTILE, "t", 0, 7)
    return tmp_path / "data"


def test_a_table_for_people(segmentlog, broker_data):
    ended = segmentlog("offsets", broker_data, "--group", "new-9", "--group", "txn-group")
    assert ended.stdout.splitlines()[0].split() == [
        *("group", "groupType", "topic", "partition", "offset", "lag", "note", "commitTime")
    ]
    assert [line.split() for line in ended.stdout.splitlines()[1:]] == [
        ["new-9", "consumer", "data", "0", "8", "22", "2026-11-20T12:41:19.085Z"],
        ["new-9", "consumer", "data", "1", "1", "22", "2026-11-20T12:41:19.085Z"],
        ["txn-group", "classic", "data", "0", "3", "27", "2026-11-20T12:41:19.653Z"],
    ]
    assert (ended.status, ended.stderr) == (0, "")


def test_json_lines_have_all_columns_and_are_sorted_over_partitions(segmentlog, broker_data):
    lines = segmentlog("offsets", broker_data, "--output", "jsonl").stdout.splitlines()
    found = [json.loads(line) for line in lines]
    assert [(row["group"], row["partition"]) for row in found] == sorted(
        (row["group"], row["partition"]) for row in found
    )
    assert found[-1] == {
        "group": "txn-group",
        "groupType": "classic",
        "topic": "data",
        "topicId": None,
        "partition": 0,
        "offset": 3,
        "leaderEpoch": None,
        "metadata": "",
        "commitTime": "2026-11-20T12:41:19.653Z",
        "expireTime": None,
        "isExpired": False,
        "logStartOffset": 0,
        "logEndOffset": 30,
        "lag": 27,
        "note": None,
    }


def test_where_a_group_was_at_a_time(segmentlog, broker_data):
    flags = ("--group", "group-1", "--output", "csv")
    then = segmentlog("offsets", broker_data, *flags, "--as-of", "2026-11-20T12:41:18.400Z").stdout
    assert [row["offset"] for row in csv.DictReader(io.StringIO(then))] == ["7", "3"]
    now = segmentlog("offsets", broker_data, *flags).stdout
    assert [row["offset"] for row in csv.DictReader(io.StringIO(now))] == ["0", "2"]


def test_a_plan_sets_all_groups_back_that_the_tool_can_set_back(segmentlog, root):
    ended = segmentlog("offsets", root, "--as-of", NOW_MS, "--reset-plan")
    assert ended.stdout == '"a,""b""\x1b[31m",t,0,3\n'
    assert ended.stderr.splitlines() == [
        (
            r"segmentlog: not in the plan: line\nend: the tool reads plans line by line, and its name has a line end; name it "
            "with --group."
        ),
        "segmentlog: not in the plan: old: its offsets have expired.",
        "segmentlog: not in the plan: sharers: kafka-consumer-groups.sh does not reset share groups.",
    ]
    assert segmentlog("offsets", root, "--reset-plan").stdout == '"a,""b""\x1b[31m",t,0,7\n'


def test_the_plan_of_one_group_does_not_name_it(segmentlog, root):
    assert segmentlog("offsets", root, "--group", "line\nend", "--reset-plan").stdout == "t,0,4\n"
    both = segmentlog("offsets", root, "--group", "line\nend", "--group", _HOSTILE, "--reset-plan")
    assert both.stdout == '"a,""b""\x1b[31m",t,0,7\n'


def test_control_characters_of_names_are_escaped_in_a_table_and_kept_in_json(segmentlog, root):
    printed = segmentlog("offsets", root, "--where", "offset = 7").stdout
    assert "\x1b" not in printed
    assert r'a,"b"\e[31m' in printed
    (row,) = json.loads(segmentlog("offsets", root, "--where", "offset = 7", "--output", "json").stdout)
    assert row["group"] == _HOSTILE


@pytest.mark.parametrize(
    ("group", "note"),
    [
        ("nobody", "__consumer_offsets-1 (of 3 partitions) has none of it."),
        ("\x1b[2J", "__consumer_offsets-2 (of 3 partitions) has none of it."),
    ],
)
def test_a_group_that_is_not_found_is_named_with_its_partition(segmentlog, broker_data, group, note):
    ended = segmentlog("offsets", broker_data, "--group", group, "--output", "json")
    assert (ended.status, ended.stdout) == (0, "[]\n")
    shown = group.replace("\x1b", r"\e")
    assert ended.stderr == f"segmentlog: no offset of group {shown} is found: {note}\n"


def test_a_partition_that_is_not_in_the_directories_is_named(segmentlog, tmp_path):
    clock = Clock()
    with LogDirectory.open(tmp_path / "data", clock=clock) as logs:
        Coordinator(logs, clock, partition=7).commit("g", "t", 0, 1)
    ended = segmentlog("offsets", tmp_path / "data", "--group", "a")
    assert ended.stderr == (
        "segmentlog: no offset of group a is found: how many partitions __consumer_offsets has, and so which has the "
        "group, is not known.\n"
    )
    with LogDirectory.open(tmp_path / "data", clock=clock) as logs:
        Coordinator(logs, clock, partition=5).commit("ab", "t", 0, 1)
        logs.delete("__consumer_offsets", 7)
    ended = segmentlog("offsets", tmp_path / "data", "--group", "a")
    assert ended.stderr == (
        "segmentlog: no offset of group a is found: __consumer_offsets-47 (of 50 partitions) is not in these "
        "directories.\n"
    )


def test_one_record_that_cannot_be_read_does_not_hide_the_other_groups(segmentlog, root):
    with LogDirectory.open(root) as logs:
        coordinator = Coordinator(logs, Clock(), partition=1)
        coordinator.log.alter_config({"cleanup.policy": "delete"})
        coordinator.write(None, b"no key")
        coordinator.write(b"\0\1\0\1h\0\1t\0\0\0\0", b"\0\x09")
    ended = segmentlog("offsets", root, "--output", "jsonl")
    assert ended.status == 0
    assert {json.loads(line)["group"] for line in ended.stdout.splitlines()} >= {_HOSTILE, "sharers"}
    assert "2 records of __consumer_offsets-1 cannot be read and are left out" in ended.stderr
    strict = segmentlog("offsets", root, "--mode", "FAILFAST")
    assert (strict.status, strict.stdout) == (1, "")


def test_a_plan_says_which_offsets_its_log_does_not_have(segmentlog, tmp_path):
    clock = Clock()
    with LogDirectory.open(tmp_path / "data", clock=clock) as logs:
        append(logs.create("t"), 3)
        coordinator = Coordinator(logs, clock)
        coordinator.commit("g", "t", 0, 500)
        coordinator.commit("h", "u", 0, 1)
    ended = segmentlog("offsets", tmp_path / "data", "--reset-plan")
    assert ended.stdout == "g,t,0,500\nh,u,0,1\n"
    assert ended.stderr.splitlines() == [
        "segmentlog: in the plan, but check first: beyond log end: group g, t-0, offset 500, log end 3.",
        "segmentlog: in the plan, but check first: log not found: group h, u-0, offset 1.",
    ]


def test_directories_without_groups_are_one_line(segmentlog, example_data):
    ended = segmentlog("offsets", example_data)
    assert (ended.status, ended.stdout, ended.stderr.count("\n")) == (3, "", 1)


def test_a_damaged_log_ends_with_the_status_for_damage(segmentlog, root):
    log_file = root / "__consumer_offsets-0" / "00000000000000000000.log"
    data = bytearray(log_file.read_bytes())
    data[80] ^= 1
    log_file.write_bytes(data)
    ended = segmentlog("offsets", root)
    assert (ended.status, ended.stdout) == (1, "")
    assert "CRC" in ended.stderr
    kept = segmentlog("offsets", root, "--mode", "DROPMALFORMED", "--output", "jsonl")
    assert kept.status == 0
    assert {json.loads(line)["group"] for line in kept.stdout.splitlines()} >= {_HOSTILE, "sharers"}


def test_topics_without_committed_offsets_are_wrong_usage(segmentlog, root):
    ended = segmentlog("offsets", root, "--subscribe-pattern", "nothing-.*", "--quiet")
    assert (ended.status, ended.stdout) == (2, "")
    assert "The chosen topics and partitions have no committed offset here." in ended.stderr
