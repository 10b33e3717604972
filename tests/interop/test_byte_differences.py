"""Every byte in which our directories differ from a broker's, for the same appends and the same configuration.

`docs/compatibility.md` lists the differences with their reasons. These tests find them again and compare the lists: a
difference missing from the document fails, and so does one that exists only there.

File names lose their numbers (`<base>.log`), and positions of batches and entries are left out. A directory thus
yields a few facts that are the same in every run.
"""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from storage_core import LogDirectory
from tests.conformance.archives import unpack_case
from tests.interop.log_bytes import Entry, entries_of_log
from tests.interop.partition_state import snapshot_entries_in_order
from tests.interop.placing import CHECKPOINTS, read_checkpoint
from tests.interop.produced import CONTINUED, PRODUCED
from tests.interop.writing import Clock, config_of, table_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tests.interop.handed_over import HandedOver
    from tests.interop.workload import Sendable


# Makes each table one batch.
_ONE_BATCH = {"batch_size": 1 << 24}
_LARGEST_TIMESTAMP = 35

Settings = Mapping[str, Mapping[str, object]]


def entries_of_partition(partition: Path) -> list[Entry]:
    """Return all batches of a partition, in order."""
    return entries_of_log({int(path.stem): path.read_bytes() for path in partition.glob("*.log")})


def append_batches_again(
    source: Path, target: Path, settings: Settings, names: Mapping[str, Sequence[str]] | None = None
) -> None:
    """Append the batches of closed partitions to new logs, one by one, as the broker received them.

    Args:
        source: The root with the partitions.
        target: A new log directory.
        settings: By topic.
        names: The partition directories of each topic; partition 0 only if None.
    """
    with LogDirectory.open(target) as logs:
        for topic, topic_settings in settings.items():
            for name in names[topic] if names else [f"{topic}-0"]:
                log = logs.create(topic, int(name.rpartition("-")[2]), config_of(topic_settings))
                for entry in entries_of_partition(source / name):
                    log.append_batches(entry.content)
                # The caller advances a follower's high watermark.
                log.update_high_watermark(log.log_end_offset)


def append_records_again(
    source: Path, target: Path, records: Mapping[str, Sequence[Sendable]], settings: Settings, clock: Clock
) -> None:
    """Append the records of each batch as one table to new logs.

    Args:
        source: The closed partitions. They tell which records made up a batch, and when it was appended.
        target: A new log directory.
        records: By topic, from offset 0.
        settings: By topic.
        clock: The clock of the target; set to the broker's append times.
    """
    with LogDirectory.open(target, clock=clock) as logs:
        for topic, all_records in records.items():
            log = logs.create(topic, 0, config_of({**settings[topic], **_ONE_BATCH}))
            for entry in entries_of_partition(source / f"{topic}-0"):
                (largest_timestamp_ms,) = struct.unpack_from(">q", entry.content, _LARGEST_TIMESTAMP)
                clock.set(largest_timestamp_ms)
                info = log.append(table_of(all_records[entry.base_offset : entry.last_offset + 1]))
                assert (info.first_offset, info.last_offset) == (entry.base_offset, entry.last_offset)
                assert info.batch_count == 1


class Difference(NamedTuple):
    """One fact: this differs in these files."""

    file: str
    what: str


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    start: int
    end: int


# `RecordBatch` of format v2 (KIP-98).
_HEADER = (
    _Field("base offset", 0, 8),
    _Field("length", 8, 12),
    _Field("leader epoch", 12, 16),
    _Field("magic", 16, 17),
    _Field("CRC", 17, 21),
    _Field("attributes", 21, 23),
    _Field("last offset delta", 23, 27),
    _Field("base timestamp", 27, 35),
    _Field("largest timestamp", 35, 43),
    _Field("producer id", 43, 51),
    _Field("producer epoch", 51, 53),
    _Field("base sequence", 53, 57),
    _Field("count", 57, 61),
)
_HEADER_BYTES = 61
_CODEC_BITS = 7
_ENTRY_BYTES = {".index": 8, ".timeindex": 12, ".txnindex": 34}


def differences(theirs: Path, ours: Path) -> set[Difference]:
    """Compare two partition directories of the same log."""
    names = {path.name for directory in (theirs, ours) for path in directory.iterdir() if path.is_file()}
    found = set()
    for name in names:
        kind = re.sub(r"^\d{20}", "<offset>", name)
        files = (theirs / name, ours / name)
        if not files[0].exists():
            found.add(Difference(kind, "only ours"))
        elif not files[1].exists():
            found.add(Difference(kind, "only Kafka's"))
        else:
            contents = (files[0].read_bytes(), files[1].read_bytes())
            if contents[0] != contents[1]:
                found.update(Difference(kind, what) for what in _what_differs(name, *contents))
    return found


def root_differences(theirs: Path, ours: Path, topics: Collection[str]) -> set[Difference]:
    """Compare the files next to these topics' partition directories."""
    found = set()
    for name in sorted(_names_in_root(theirs) | _names_in_root(ours)):
        files = (theirs / name, ours / name)
        if not files[0].exists():
            found.add(Difference(name, "only ours"))
        elif not files[1].exists():
            found.add(Difference(name, "only Kafka's"))
        elif name in CHECKPOINTS:
            entries = [
                {place: offset for place, offset in read_checkpoint(path).items() if place[0] in topics}
                for path in files
            ]
            if entries[0] != entries[1]:
                found.add(Difference(name, "entries"))
        elif files[0].read_bytes() != files[1].read_bytes():
            found.add(Difference(name, "content"))
    return found


def _names_in_root(root: Path) -> set[str]:
    return {path.name for path in root.iterdir() if path.is_file() or path.name.startswith("__")}


def _what_differs(name: str, theirs: bytes, ours: bytes) -> Iterator[str]:
    suffix = name[name.rfind(".") :] if "." in name else ""
    if suffix == ".log":
        yield from _in_logs(theirs, ours)
    elif suffix in _ENTRY_BYTES:
        yield from _in_entries(theirs, ours, _ENTRY_BYTES[suffix])
    elif suffix == ".snapshot":
        # The CRC covers the order.
        entries = [snapshot_entries_in_order(content) for content in (theirs, ours)]
        yield "order of entries" if sorted(entries[0]) == sorted(entries[1]) else "entries"
    elif name == "partition.metadata":
        # `version: 0\ntopic_id: `
        yield "topic id" if theirs[:21] == ours[:21] and len(theirs) == len(ours) else "content"
    else:
        yield "content"


def _in_logs(theirs: bytes, ours: bytes) -> Iterator[str]:
    pairs = (list(_batches(theirs)), list(_batches(ours)))
    if len(pairs[0]) != len(pairs[1]):
        yield "number of batches"
    for their, our in zip(*pairs, strict=False):
        codec = their[22] & _CODEC_BITS
        for field in _HEADER:
            if their[field.start : field.end] != our[field.start : field.end]:
                yield f"{field.name} (bytes {field.start}-{field.end - 1} of a batch)"
        if their[_HEADER_BYTES:] != our[_HEADER_BYTES:]:
            yield f"records (bytes {_HEADER_BYTES} and on of a batch)" + (", compressed" if codec else "")


def _batches(content: bytes) -> Iterator[bytes]:
    position = 0
    while position + 12 <= len(content):
        (length,) = struct.unpack_from(">i", content, position + 8)
        if length <= 0:
            # The preallocated tail of the file.
            return
        yield content[position : position + 12 + length]
        position += 12 + length


def _in_entries(theirs: bytes, ours: bytes, entry_bytes: int) -> Iterator[str]:
    if theirs.rstrip(b"\0") == ours.rstrip(b"\0"):
        yield "zeros at the end"
        return
    entries = [
        {content[start : start + entry_bytes] for start in range(0, len(content), entry_bytes)}
        for content in (theirs, ours)
    ]
    if entries[0] - entries[1]:
        yield "entries only Kafka's"
    if entries[1] - entries[0]:
        yield "entries only ours"


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
    """Return the broker's stopped root with what the broker got after its next start appended by us; not closed."""
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
