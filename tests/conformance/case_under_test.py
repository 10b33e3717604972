"""One case during a test: its directory, what is expected of it, and the checks made so far."""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import storage_core
from conformance.archives import fingerprint
from conformance.expected import PLACE_COLUMNS, ExpectedPartition, comparable, concatenated, first_difference
from conformance.rules import READ_COMMITTED, CaseRules, rules_of
from storage_core.directory import PartitionLog, find_partitions
from storage_core.options import parse_read_options
from storage_core.tier import open_file_system

if TYPE_CHECKING:
    import pyarrow as pa

    from storage_core.filesystem import ReadableFileSystem

# Kafka's, and the KRaft metadata log. Repeated here, so that a topic lost from the
# package's own list is noticed.
INTERNAL_TOPICS = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"}
)

# Read options by their snake_case names, as `read_table` takes them.
Options = dict[str, Any]
# Per partition name: first offset, and the offset after the last.
Span = Mapping[str, tuple[int, int]]


class CaseUnderTest:
    """One unpacked case. Every comparison goes through a ``check_…`` method, which counts it.

    Attributes:
        logs: The log directory. No test may change it: `copied` gives one that may be changed.
        path: What is read: the same directory, or its URI in a bucket.
        access: The options that each read of it needs.
        fingerprint: Content and time of each file as it was unpacked.
        partitions: What the broker and its consumers saw of each partition.
        checks: How many comparisons were made.
    """

    def __init__(self, name: str, logs: Path, expected: Mapping[str, Any], scratch: Path) -> None:
        self.name = name
        self.logs = logs
        self.path = str(logs)
        self.access: Options = {}
        self.fingerprint = fingerprint(logs)
        self.details = expected
        self.rules: CaseRules = rules_of(name)
        self.partitions = [ExpectedPartition.parse(fields) for fields in expected["partitions"].values()]
        self.checks = 0
        self._scratch = scratch

    def in_bucket(self, path: str, access: Options) -> CaseUnderTest:
        """Return the same case, read from where it was uploaded to."""
        case = copy.copy(self)
        case.path, case.access, case.checks = path, access, 0
        return case

    # What to read.

    def spans(self) -> Iterator[Span]:
        """Yield the offsets that reads may ask for: everything, or the offsets before and after damage."""
        whole = {part.name: (part.log_start_offset, part.end_offset) for part in self.partitions}
        if not self.rules.damaged:
            yield whole
            return
        damage = {part.name: part.damaged_offsets or (part.end_offset,) * 2 for part in self.partitions}
        yield {name: (start, damage[name][0]) for name, (start, _) in whole.items()}
        yield {name: (min(damage[name][1] + 1, end), end) for name, (_, end) in whole.items()}

    def selection(self) -> Options:
        """Options that select all partitions; none where a plain read selects them."""
        topics = {partition.topic for partition in self.partitions}
        return {"subscribe": ",".join(sorted(topics))} if topics & INTERNAL_TOPICS else {}

    def bounded(self, span: Span) -> Options:
        """Options that select the partitions of ``span``, and its bounds where they are not the log's."""
        spanned = [partition for partition in self.partitions if partition.name in span]
        options = self.selection() if spanned == self.partitions else {"assign": self.assign(spanned)}
        if any(span[part.name][0] != part.log_start_offset for part in spanned):
            options["starting_offsets"] = offsets_json({name: start for name, (start, _) in span.items()})
        if any(span[part.name][1] != part.end_offset for part in spanned):
            options["ending_offsets"] = offsets_json({name: end for name, (_, end) in span.items()})
        return options

    @staticmethod
    def assign(partitions: list[ExpectedPartition]) -> str:
        """Return the value of ``assign`` for these partitions."""
        topics: dict[str, list[int]] = {}
        for partition in partitions:
            topics.setdefault(partition.topic, []).append(partition.partition)
        return json.dumps(topics)

    # How to read it.

    def read(self, options: Options, isolation_level: str, path: str | None = None) -> pa.Table:
        """Read with `storage_core.read_table`."""
        words = {**options, **self.access, "isolation_level": isolation_level, "include_headers": True}
        return storage_core.read_table(path or self.path, **words)

    def file_system(self) -> ReadableFileSystem:
        """Return what reads of the case look into."""
        return open_file_system(parse_read_options({**self.access, "path": self.path}).storage)

    def partition_logs(self, path: str | None = None, *, use_indexes: bool = True) -> dict[str, PartitionLog]:
        """Return the partitions as `PartitionLog`, by directory name."""
        filesystem = self.file_system()
        wanted = {partition.name for partition in self.partitions}
        found = {}
        for directory in find_partitions(filesystem, [path or self.path]):
            name = f"{directory.topic}-{directory.partition}"
            if name in wanted:
                found[name] = PartitionLog.load(filesystem, directory, use_indexes=use_indexes)
        assert set(found) == wanted, f"partitions not found: {sorted(wanted - set(found))}"
        return found

    @contextmanager
    def copied(self) -> Iterator[Path]:
        """Yield a copy of the log directory that may be changed, modification times included."""
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
            yield Path(shutil.copytree(self.logs, Path(folder, "logs")))

    # What was read.

    def expected_rows(self, span: Span, isolation_level: str) -> pa.Table:
        """Return the consumer's records with the offsets of ``span``."""
        committed_only = isolation_level == READ_COMMITTED
        return concatenated(
            [
                partition.rows(*span[partition.name], committed_only=committed_only)
                for partition in self.partitions
                if partition.name in span
            ]
        )

    def check_rows(self, actual: pa.Table, span: Span, isolation_level: str, what: str) -> None:
        """Check that the rows that were read are the consumer's, byte for byte. Counts as one check a partition."""
        self._compare(
            comparable(actual), self.expected_rows(span, isolation_level), f"{what}, {isolation_level}"
        )
        self.checks += max(len(span), 1)

    def check_places(
        self, options: Options, span: Span, isolation_level: str, what: str, path: str | None = None
    ) -> None:
        """Check that a read with these options gives the rows of ``span``; read only columns that tell rows apart."""
        actual = self.read({**options, "columns": PLACE_COLUMNS}, isolation_level, path)
        expected = self.expected_rows(span, isolation_level).select(PLACE_COLUMNS)
        self._compare(comparable(actual), expected, f"{what}, {options}, {isolation_level}")
        self.checks += max(len(span), 1)

    def _compare(self, actual: pa.Table, expected: pa.Table, what: str) -> None:
        difference = first_difference(actual, expected)
        assert difference is None, f"{self.name}, {what}: {difference}"

    def check_equal(self, actual: object, expected: object, what: str) -> None:
        """Check that a single answer equals the broker's."""
        assert actual == expected, f"{self.name}, {what}: expected {expected}, found {actual}"
        self.checks += 1


def offsets_json(offsets: Mapping[str, int]) -> str:
    """Offsets or timestamps by partition name, in the JSON form of Kafka's options."""
    topics: dict[str, dict[str, int]] = {}
    for name, offset in offsets.items():
        topic, _, partition = name.rpartition("-")
        topics.setdefault(topic, {})[partition] = offset
    return json.dumps(topics)
