"""Every byte in which our directories differ from a broker's, for the same appends and the same configuration.

`docs/compatibility.md` lists the differences with their reasons. These tests find them again and compare the lists: a
difference missing from the document fails, and so does one that exists only there.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from storage_core import LogDirectory
from tests.conformance.archives import unpack_case
from tests.interop.appended_again import (
    append_batches_again,
    append_records_again,
    entries_of_partition,
)
from tests.interop.byte_differences import Difference, differences, root_differences
from tests.interop.produced import CONTINUED, PRODUCED
from tests.interop.writing import Clock, config_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.interop.handed_over import HandedOver

DOCUMENT = Path(__file__).parents[2] / "docs" / "compatibility.md"

BATCHES, RECORDS, OPEN = "batches", "records", "open"
EVERY_LOG, ROOT = "every log", "the root"
# The other topics get more records from us than from the broker, or are not written by the broker alone.
TOPICS = {topic: settings for topic, settings in PRODUCED.items() if topic != CONTINUED}


# Recorded with 4.1.0 in one run, without compaction and with constant settings.
RECORDED = ("idempotent", "many-partitions", "timestamps", "txn", "txn-ongoing", "v2-foreign")


class Fact(NamedTuple):
    """A row of the document's table, without its reason column."""

    appended: str
    where: str
    file: str
    what: str


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("differences")


@pytest.fixture(scope="module")
def same_batches(handed_over: HandedOver, scratch: Path) -> Path:
    append_batches_again(handed_over.stopped, scratch / BATCHES, TOPICS)
    return scratch / BATCHES


@pytest.fixture(scope="module")
def same_records(handed_over: HandedOver, scratch: Path) -> Path:
    records = {topic: sent for topic, sent in handed_over.sent.items() if topic in TOPICS}
    append_records_again(handed_over.stopped, scratch / RECORDS, records, TOPICS, Clock())
    return scratch / RECORDS


@pytest.fixture(scope="module")
def still_open(handed_over: HandedOver, scratch: Path) -> Path:
    """The broker's stopped root with what the broker got after its next start appended by us; not closed."""
    root, snapshot = scratch / "continued", scratch / OPEN
    shutil.copytree(handed_over.stopped, root)
    configs = {
        topic: config_of({**settings, "segment_index_bytes": 65_536}) for topic, settings in TOPICS.items()
    }
    with LogDirectory.open(root, broker_directory=True, config=configs) as logs:
        for topic in TOPICS:
            log = logs.get(topic, 0)
            end = log.log_end_offset
            for entry in entries_of_partition(handed_over.killed / f"{topic}-0"):
                if entry.base_offset >= end:
                    log.append_batches(entry.content)
        shutil.copytree(root, snapshot)
    return snapshot


@pytest.fixture(scope="module")
def found(handed_over: HandedOver, same_batches: Path, same_records: Path, still_open: Path) -> set[Fact]:
    facts = set()
    for appended, theirs, ours in (
        (BATCHES, handed_over.stopped, same_batches),
        (RECORDS, handed_over.stopped, same_records),
        (OPEN, handed_over.killed, still_open),
    ):
        facts |= facts_of(appended, theirs, ours)
    for file, what in root_differences(handed_over.stopped, same_batches, TOPICS):
        facts.add(Fact(BATCHES, ROOT, file, what))
    return facts


def facts_of(appended: str, theirs: Path, ours: Path) -> set[Fact]:
    logs: dict[Difference, set[str]] = {}
    names = {topic for topic in TOPICS if (ours / f"{topic}-0").exists()}
    for topic in names:
        for difference in differences(theirs / f"{topic}-0", ours / f"{topic}-0"):
            logs.setdefault(difference, set()).add(topic)
    return {Fact(appended, _where(topics, names), *difference) for difference, topics in logs.items()}


def _where(topics: set[str], all_topics: set[str]) -> str:
    if topics == all_topics:
        return EVERY_LOG
    return ", ".join(sorted(topic.removeprefix("kafka-").removeprefix("codec-") for topic in topics))


@pytest.mark.parametrize("case", RECORDED)
def test_batches_of_recorded_directories(tmp_path: Path, case: str) -> None:
    """Other clients, including Java's, other shapes and transactions cause no further differences."""
    logs, expected = unpack_case(case, tmp_path / case)
    topics = {
        topic: {name.replace(".", "_"): value for name, value in described["config"].items()}
        for topic, described in expected["topics"].items()
    }
    names = {
        topic: [f"{topic}-{number}" for number in range(described["partitions"])]
        for topic, described in expected["topics"].items()
    }
    append_batches_again(logs, tmp_path / "ours", topics, names)
    known = {Difference(fact.file, fact.what) for fact in documented() if fact.appended == BATCHES}
    for name in (name for each in names.values() for name in each):
        assert differences(logs / name, tmp_path / "ours" / name) <= known, name


def documented() -> dict[Fact, str]:
    rows = re.findall(r"^\| (.*) \|$", DOCUMENT.read_text(), re.MULTILINE)
    cells = [[cell.strip().replace("`", "") for cell in row.split(" | ")] for row in rows]
    return {Fact(*row[:4]): row[4] for row in cells if row[0] in {BATCHES, RECORDS, OPEN}}


def test_every_difference_is_documented(found: set[Fact]) -> None:
    unknown = sorted(found - set(documented()))
    assert not unknown, "\n".join(" | ".join(fact) for fact in unknown)


def test_every_documented_difference_was_found(found: set[Fact]) -> None:
    gone = sorted(set(documented()) - found)
    assert not gone, "\n".join(" | ".join(fact) for fact in gone)


def test_each_has_a_reason() -> None:
    assert documented()
    assert all(documented().values())


def test_the_broker_wrote_enough(handed_over: HandedOver) -> None:
    sizes: Mapping[str, int] = {
        topic: len(entries_of_partition(handed_over.stopped / f"{topic}-0")) for topic in TOPICS
    }
    assert sum(sizes.values()) > 100
    assert all(count > 5 for topic, count in sizes.items() if topic != "kafka-empty"), sizes
