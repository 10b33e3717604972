"""Every command on directories of real brokers: it ends as it should, and the directory is as it was."""

from __future__ import annotations

import json

import pytest

from tests.conformance.archives import case_names, fingerprint, unpack_case

QUICK = {"corrupt-middle", "internal", "txn-ongoing"}
# A read returns less than was there, or a broker has to rebuild indexes.
DAMAGED = {"corrupt-middle", "missing-index", "torn-tail"}

COMMANDS = {
    "inventory": ["--exact"],
    "verify": ["--deep"],
    "recover": ["--dry-run", "--to", "{scratch}/recovered"],
    "dump": ["--print-data-log"],
    "cat": ["--json", "--mode", "DROPMALFORMED"],
    "index": ["--to", "{scratch}/indexes"],
    "offsets": [],
    "transactions": ["--all"],
    "plan": ["--mode", "DROPMALFORMED"],
    "convert": ["--to", "{scratch}/parquet", "--mode", "DROPMALFORMED", "--quiet"],
    "report": ["--output", "{scratch}/report.html", "--quiet"],
}


def cases():
    return [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.thorough]) for name in case_names()
    ]


@pytest.fixture(scope="module")
def case_of(tmp_path_factory):
    unpacked = {}

    def unpack(name):
        if name not in unpacked:
            unpacked[name] = unpack_case(name, tmp_path_factory.mktemp(name))
        return unpacked[name]

    return unpack


def expected_statuses(command: str, case: str) -> set[int]:
    if command == "offsets":
        # It reads internal topics, which the others lack.
        return {0} if case == "internal" else {3}
    if command == "dump":
        # As Kafka's tool, it complains of sound indexes of old formats and of compacted logs.
        return {0, 1}
    if command in {"verify", "report"}:
        return {int(case in DAMAGED)}
    if command in {"inventory", "recover", "index"} and case in DAMAGED | {"unclean"}:
        # Each looks for a part of the damage.
        return {0, 1}
    return {0}


@pytest.mark.cases(12, 90)
@pytest.mark.parametrize("case", cases())
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_ends_as_it_should_and_changes_nothing(
    segmentlog, case_of, tmp_path, command: str, case: str
):
    logs, _ = case_of(case)
    before = fingerprint(logs)
    flags = [flag.format(scratch=tmp_path) for flag in COMMANDS[command]]
    ended = segmentlog(command, *(["rebuild"] if command == "index" else []), logs, *flags)
    assert ended.status in expected_statuses(command, case), ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.status or ended.stdout or command in {"cat", "report"}
    assert fingerprint(logs) == before


@pytest.mark.parametrize("case", cases())
def test_cat_prints_what_a_consumer_read(segmentlog, case_of, case: str):
    logs, expected = case_of(case)
    printed = segmentlog("cat", logs, "--json", "--mode", "DROPMALFORMED").stdout.splitlines()
    found = [(row["topic"], row["partition"], row["offset"]) for row in map(json.loads, printed)]
    consumed = [
        (name.rpartition("-")[0], int(name.rpartition("-")[2]), record[0])
        for name, partition in expected["partitions"].items()
        for record in partition["records"]
        if not name.startswith("__")
    ]
    assert found == sorted(consumed)
