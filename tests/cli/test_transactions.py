"""`segmentlog transactions`: which are shown, in what order, and with which exit status."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from conformance.archives import unpack_case

from storage_core.views.texts import duration_text
from storage_core.views.transactions import ObservedTransaction
from tests.log.logs import write
from tests.record.encoding import TRANSACTIONAL, Batch, Record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOW = "2020-09-13T13:00:00Z"


@pytest.fixture(scope="module")
def ongoing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a broker that stopped while four transactions were open."""
    logs, _ = unpack_case("txn-ongoing", tmp_path_factory.mktemp("ongoing") / "case")
    return logs


@pytest.fixture
def rows(segmentlog: Callable[..., object], ongoing: Path) -> Callable[..., list[dict[str, object]]]:
    """Return the rows that the command prints as JSON."""

    def run(*arguments: str) -> list[dict[str, object]]:
        ended = segmentlog("transactions", ongoing, "--now", NOW, "--output", "jsonl", *arguments)
        assert (ended.status, ended.stderr) == (0, "")
        return [json.loads(line) for line in ended.stdout.splitlines()]

    return run


def places(found):
    return [(row["topic"], row["partition"], row["producerId"], row["firstOffset"]) for row in found]


OPEN = [
    ("ongoing-java", 0, 4, 73),
    ("ongoing-only", 0, 4, 0),
    ("ongoing-rd", 0, 3, 74),
    ("ongoing-rd", 0, 5, 181),
]


def test_open_transactions_are_shown_with_what_aborts_them(segmentlog, ongoing):
    ended = segmentlog("transactions", ongoing, "--now", NOW, "--bootstrap-server", "kafka-1:9093")
    assert (ended.status, ended.stderr) == (0, "")
    head, *lines = ended.stdout.splitlines()
    assert head.split() == [
        *("partition", "producer", "state", "offsets", "started", "(UTC)", "lasted", "records")
    ]
    assert lines[0].split() == [
        *("ongoing-java-0", "4", "(0)", "open", "73-"),
        *("2020-09-13", "12:42", "17", "min", "19", "s", "4"),
    ]
    assert lines[4:] == [
        "",
        "What aborts an open transaction whose producer is gone:",
        *(
            f"kafka-transactions.sh --bootstrap-server kafka-1:9093 abort --topic {topic} --partition {partition} "
            f"--start-offset {offset}"
            for topic, partition, _, offset in OPEN
        ),
    ]


def test_a_table_shows_times_in_the_zone_that_is_asked_for(segmentlog, ongoing):
    head, line, *_ = segmentlog("transactions", ongoing, "--time-zone", "+02:00").stdout.splitlines()
    assert "started (UTC+02:00)" in head
    assert "2020-09-13 14:42" in line


def test_a_topic_that_begins_with_a_dash_is_no_flag_of_the_command():
    command = ObservedTransaction("-t", 0, 1, 1, first_offset=3).abort_command() or ""
    assert command.endswith("abort --topic=-t --partition 0 --start-offset 3")


def test_states_are_chosen_by_flags(rows):
    assert places(rows()) == OPEN
    counts = {flag: len(rows(flag)) for flag in ("--open", "--committed", "--aborted", "--all")}
    assert counts["--open"] == 4
    assert min(counts.values()) > 0
    assert counts["--all"] == sum(counts.values()) - counts["--all"]
    assert len(rows("--committed", "--aborted")) == counts["--committed"] + counts["--aborted"]
    assert {row["state"] for row in rows("--aborted")} == {"aborted"}


def test_the_longest_come_first(rows):
    assert places(rows("--open", "--longest", "2")) == [OPEN[2], OPEN[0]]
    longest = rows("--longest", "5")
    lengths = [row["ageMs"] if row["durationMs"] is None else row["durationMs"] for row in longest]
    assert len(lengths) == 5
    assert lengths == sorted(lengths, reverse=True)
    every = rows("--all")
    assert lengths[0] == max(row["durationMs"] or row["ageMs"] or 0 for row in every)


def test_old_ones_topics_and_offsets_are_chosen(rows):
    assert places(rows("--older-than", "15m")) == [OPEN[0], OPEN[2]]
    assert places(rows("--subscribe", "ongoing-rd", "--where", "offset > 100")) == [OPEN[3]]
    assert places(rows("--older-than", "1 day")) == []


def test_one_that_is_open_too_long_is_a_status(segmentlog, ongoing):
    ended = segmentlog("transactions", ongoing, "--now", NOW, "--max-age", "28 minutes", "--output", "jsonl")
    assert ended.status == 1
    assert len(ended.stdout.splitlines()) == 4
    assert ended.stderr == (
        "segmentlog: Expected no transaction to be open for more than 28 minutes, found one that is open for 28 min 33 s.\n"
    )
    # It counts whatever is shown.
    only_aborted = ("transactions", ongoing, "--now", NOW, "--aborted", "--quiet")
    assert segmentlog(*only_aborted, "--max-age", "28m").status == 1
    assert segmentlog(*only_aborted, "--max-age", "29m").status == 0


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ([], "No open transactions."),
        (["--committed", "--aborted"], "No aborted or committed transactions."),
        (["--all"], "No transactions."),
        (["--longest", "3"], "No transactions."),
        (["--older-than", "10m"], "No open transactions match."),
        (["--all", "--where", "offset > 5"], "No transactions match."),
    ],
)
def test_a_table_without_rows_says_so(segmentlog, tmp_path, flags, text):
    write(tmp_path, 3)
    for output, printed in {"table": f"{text}\n", "jsonl": "", "json": "[]\n"}.items():
        ended = segmentlog("transactions", tmp_path, *flags, "--output", output)
        assert (ended.status, ended.stdout, ended.stderr) == (0, printed, "")


@pytest.mark.parametrize("output", ["table", "jsonl"])
def test_a_producer_may_take_microseconds_for_milliseconds(segmentlog, tmp_path, output):
    batch = Batch((Record(0, 1_700_000_000_000_000, None, b"v"),), 0, attributes=TRANSACTIONAL, producer_id=1)
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "00000000000000000000.log").write_bytes(batch.encode())
    ended = segmentlog("transactions", tmp_path, "--output", output)
    assert (ended.status, ended.stderr) == (0, "")
    assert " 1700000000000000 " in ended.stdout.replace('"', " ")


@pytest.mark.parametrize(
    ("length_ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_500, "1 s 500 ms"),
        (60_000, "1 min"),
        (3_661_000, "1 h 1 min"),
        (90_061_000, "1 d 1 h"),
        (-61_000, "-1 min 1 s"),
    ],
)
def test_lengths_of_time(length_ms, text):
    assert duration_text(length_ms) == text
