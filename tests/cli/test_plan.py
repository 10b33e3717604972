"""`segmentlog plan` tells what `explain` does."""

from __future__ import annotations

import json
import re

import pytest
from conformance.archives import unpack_case

from storage_core import explain
from tests.scan.halves import cut, make_whole


def _in_camel_case(value):
    """Return what `explain` has, with keys as JSON has them."""
    if isinstance(value, dict):
        return {
            re.sub("_([a-z])", lambda found: found[1].upper(), key): _in_camel_case(each)
            for key, each in value.items()
        }
    return [_in_camel_case(each) for each in value] if isinstance(value, list) else value


def test_what_is_read_and_what_is_not(segmentlog, example_data):
    ended = segmentlog("plan", example_data, "--where", "topic = 'orders' AND partition < 2 AND offset < 100")
    assert ended.status == 0
    lines = [line.split() for line in ended.stdout.splitlines() if line.strip()]
    assert lines[0] == ["partition", "offsets", "read", "of", "offsets", "segments", "bytes", "batches"]
    assert lines[1] == [
        "orders-0",
        "0",
        "to",
        "1787",
        "0",
        "to",
        "8234",
        "1",
        "of",
        "5",
        "95,419",
        "of",
        "438,786",
        "29",
    ]
    assert lines[2] == [
        "orders-1",
        "0",
        "to",
        "1856",
        "0",
        "to",
        "8632",
        "1",
        "of",
        "5",
        "98,154",
        "of",
        "457,986",
        "28",
    ]
    assert lines[3] == ["Not", "read:"]
    assert ["orders-2", "the", "condition", "rules", "it", "out"] in lines
    assert (
        "2 of 7 partitions, 2 of 10 segments, 193,573 of 896,772 bytes, 57 batches in 2 pieces for 2 tasks."
        in (ended.stdout)
    )


def test_pieces_of_files(segmentlog, example_data):
    ended = segmentlog("plan", example_data, "--subscribe", "clicks", "--pieces")
    assert "clicks-0/00000000000000000000." in ended.stdout
    assert "0 to 31969" in ended.stdout


@pytest.mark.parametrize("form", ["json", "jsonl"])
@pytest.mark.parametrize("case", ["compact", "retention", "txn"])
def test_json_is_the_explanation(segmentlog, tmp_path, case, form):
    logs, _ = unpack_case(case, tmp_path / case)
    ended = segmentlog("plan", logs, "--where", "offset > 5", "--output", form)
    assert json.loads(ended.stdout) == _in_camel_case(explain(logs, where="offset > 5").to_dict())


def test_offsets_that_damage_hides(segmentlog, tmp_path):
    logs, _ = unpack_case("corrupt-middle", tmp_path / "case")
    ended = segmentlog("plan", logs, "--mode", "DROPMALFORMED")
    assert ended.status == 0


def test_what_is_in_remote_storage_has_columns_of_its_own(segmentlog, tmp_path):
    local, remote = cut(make_whole(tmp_path / "whole"), tmp_path, 5, 7)
    headings, orders = segmentlog("plan", local, "--remote-storage", remote).stdout.splitlines()[:2]
    assert headings.split()[5:10] == ["segments", "remote", "segments", "local", "from"]
    assert orders.split()[7:12] == ["14", "of", "14", "5", "30"]
    assert "remote" not in segmentlog("plan", local).stdout
