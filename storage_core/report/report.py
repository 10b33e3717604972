"""All that the other modules find out about log directories, in one value: what a page about them shows.

inventory → checks of every file → headers by time → transactions → groups. What fails becomes a finding, and the rest
goes on.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from heapq import nlargest, nsmallest
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from storage_core.check.verify import plan_verification, verify
from storage_core.errors import SegmentLogError
from storage_core.record.batch_header import (
    CONTROL_FLAG,
    LOG_OVERHEAD_BYTES,
    NO_TIMESTAMP_MS,
    TRANSACTIONAL_FLAG,
    wrapper_rows,
)
from storage_core.report.quantities import duration_text
from storage_core.segment.file_names import log_file_name
from storage_core.views.finding import SEVERITIES
from storage_core.views.group_offsets import (
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    GroupOffsetsTask,
    plan_group_offsets,
)
from storage_core.views.inventory import inventory
from storage_core.views.roots import LIVE
from storage_core.views.span_headers import PartitionSpans
from storage_core.views.transactions import (
    BOOTSTRAP_SERVER,
    OPEN,
    Transaction,
    abort_command,
    plan_transactions,
    read_transactions,
)
from storage_core.views.view import (
    TIMESTAMP,
    ViewTask,
    find_view,
    read_view_task,
    resolved_ranges,
    tolerating_damage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from storage_core.check.partition_check import PartitionReport
    from storage_core.check.verify import Plan, VerifyReport
    from storage_core.filesystem import FileSystem
    from storage_core.options import ReadOptions
    from storage_core.views.finding import Finding, Severity
    from storage_core.views.inventory import Inventory
    from storage_core.views.partitions import PartitionSummary
    from storage_core.views.span_headers import HeaderChunk


# A broker's default of transaction.max.timeout.ms: an older transaction hangs, or its coordinator is not running.
HANGING_MS: Final = 15 * 60_000
_LONGEST_SHOWN: Final = 10
_OPEN_SHOWN: Final = 200
_MOST_KEPT: Final = 10_000
_MAX_BUCKETS: Final = 120
# Seconds; each divides the next.
_WIDTHS_S: Final = (1, 5, 15, 60, 300, 900, 3_600, 21_600, 86_400, 604_800, 2_419_200, 31_449_600)
_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class ReportFinding:
    """Something that needs attention, or is worth knowing.

    Attributes:
        where: A path, perhaps with bytes and offsets; empty if it is in several places.
        action: What a broker would do about it when it starts, or what a person may do; empty if nothing.
    """

    severity: Severity
    kind: str
    message: str
    where: str = ""
    action: str = ""


@dataclass(frozen=True, slots=True)
class TopicHistory:
    """What the headers of a topic's batches say, by time.

    Attributes:
        width_ms: How much time a bucket covers.
        first_bucket: The number of the first bucket: it begins at this times the width.
        bytes_by_bucket: How many bytes of batches have their largest timestamp in each bucket.
        records_by_bucket: How many records, markers not counted; None if compressed messages of v0 or v1 do not tell.
        untimed_bytes: Bytes of batches without a timestamp.
        record_count: All records; None likewise.
    """

    topic: str
    width_ms: int
    first_bucket: int
    bytes_by_bucket: tuple[int, ...]
    records_by_bucket: tuple[int, ...] | None
    untimed_bytes: int
    record_count: int | None


@dataclass(frozen=True, slots=True)
class SegmentBar:
    """A segment in the map of a log."""

    base_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DamagedBytes:
    """Bytes of a segment in the map of a log that are damaged, or suspected to be."""

    base_offset: int
    start_byte: int
    end_byte: int
    severity: Severity
    reason: str


@dataclass(frozen=True, slots=True)
class LogMap:
    """A log as its segments, and the bytes in them that are damaged."""

    topic: str
    partition: int
    path: str
    segments: tuple[SegmentBar, ...]
    damage: tuple[DamagedBytes, ...]
    start_outcome: str

    @property
    def size_bytes(self) -> int:
        """Of all segments."""
        return sum(each.size_bytes for each in self.segments)


@dataclass(frozen=True, slots=True)
class FoundTransaction:
    """A transaction, and where it is."""

    topic: str
    partition: int
    transaction: Transaction
    abort_command: str | None = None


@dataclass(frozen=True, slots=True)
class Transactions:
    """The transactions of all logs.

    Attributes:
        counts: How many there are, by state.
        open: Those without a marker, the oldest first; not all if there are many.
        longest: The committed and aborted ones that took longest.
    """

    counts: dict[str, int]
    open: tuple[FoundTransaction, ...]
    longest: tuple[FoundTransaction, ...]


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """Where a group is in a partition; what is not known is None."""

    topic: str
    partition: int
    offset: int | None
    log_start_offset: int | None
    log_end_offset: int | None
    lag: int | None
    commit_time_ms: int
    metadata: str | None


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer or share group."""

    name: str
    kind: str
    positions: tuple[GroupPosition, ...]

    @property
    def lag(self) -> int | None:
        """The sum of the lags that are known; None if none is."""
        known = [each.lag for each in self.positions if each.lag is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class Report:
    """What is known of log directories at a time.

    Attributes:
        made_at_ms: When the look began.
        is_quick: Whether only names and sizes, and the first and last batches were looked at.
        findings: The most severe first.
        maps: Of each live directory of a partition; empty if it is quick.
        groups: None if there is no topic of group offsets.
    """

    paths: tuple[str, ...]
    made_at_ms: int
    is_quick: bool
    inventory: Inventory
    findings: tuple[ReportFinding, ...]
    histories: tuple[TopicHistory, ...] = ()
    maps: tuple[LogMap, ...] = ()
    transactions: Transactions | None = None
    groups: tuple[Group, ...] | None = None

    @property
    def has_damage(self) -> bool:
        """Whether anything contradicts its format or its checksum."""
        return any(each.severity == "damage" for each in self.findings)

    @property
    def is_complete(self) -> bool:
        """Whether everything could be read."""
        return all(each.severity != "unreadable" for each in self.findings)


def make_report(
    filesystem: FileSystem,
    options: ReadOptions,
    *,
    is_quick: bool = False,
    jobs: int = 1,
    now_ms: int | None = None,
    advance: Callable[[int], object] = lambda _: None,
) -> Report:
    """Look at log directories.

    Args:
        filesystem: Where to look.
        options: Which paths and topics; bounds do not count.
        is_quick: Whether to leave out what reads log files as a whole: checks, rates, transactions.
        jobs: How many processes share the checks.
        now_ms: The time that ages are relative to; the clock if None.
        advance: Takes how many bytes of log files were read since its last call. Unless it is quick, they are read
            twice: as a whole, and their headers.

    Raises:
        OptionError: A topic that is named does not exist.
        LogDirectoryError: A path does not exist, or has no log directory.
    """
    look = _Look(filesystem, options, int(time.time() * _MS) if now_ms is None else now_ms)
    found = inventory(filesystem, options.paths, options=options)
    maps: tuple[LogMap, ...] | None = None
    histories: tuple[TopicHistory, ...] = ()
    transactions: Transactions | None = None
    if not is_quick:
        maps = look.check(jobs, advance)
        histories, transactional = look.walk_headers(found.partitions, advance)
        transactions = look.find_transactions(transactional)
    groups = look.find_groups(found.partitions)
    look.add_inventory_findings(found, is_checked=maps is not None)
    return Report(
        options.paths,
        look.now_ms,
        is_quick,
        found,
        tuple(sorted(look.findings, key=lambda each: SEVERITIES.index(each.severity))),
        histories,
        maps or (),
        transactions,
        groups,
    )


class _Look:
    """One look, and what it found so far."""

    def __init__(self, filesystem: FileSystem, options: ReadOptions, now_ms: int) -> None:
        self.now_ms = now_ms
        self.findings: list[ReportFinding] = []
        self._filesystem = filesystem
        self._options = options

    def add_inventory_findings(self, found: Inventory, *, is_checked: bool) -> None:
        """Take the findings of an inventory, but those that the checks have found, too."""
        for each in found.findings:
            if not (is_checked and each.severity == "damage" and each.kind == "partition"):
                self.findings.append(ReportFinding(each.severity, each.kind, each.reason, each.file))

    def check(self, jobs: int, advance: Callable[[int], object]) -> tuple[LogMap, ...] | None:
        """Verify every file; the map of each log, or None if that cannot be done."""
        try:
            plan = plan_verification(self._filesystem, self._options)
            checked = verify(self._filesystem, plan, jobs=jobs, advance=advance)
        except SegmentLogError as error:
            self._add_failure("checks", error)
            return None
        self.findings += map(_of_check, checked.findings)
        return tuple(_log_maps(self._filesystem, plan, checked))

    def _add_failure(self, kind: str, error: SegmentLogError) -> None:
        self.findings.append(ReportFinding("unreadable", kind, str(error.args[0]), error.path or ""))

    def walk_headers(
        self, partitions: Iterable[PartitionSummary], advance: Callable[[int], object]
    ) -> tuple[tuple[TopicHistory, ...], list[PartitionSummary]]:
        """The history of each topic, and the partitions that have transactions."""
        by_topic: defaultdict[str, _Buckets] = defaultdict(_Buckets)
        transactional = []
        for each in _read_partitions(partitions):
            try:
                if self._walk_partition(each, by_topic[each.topic]):
                    transactional.append(each)
            except SegmentLogError as error:
                self._add_failure("headers", error)
            advance(each.log_bytes)
        histories = (buckets.history(topic) for topic, buckets in sorted(by_topic.items()))
        return tuple(histories), transactional

    def _walk_partition(self, summary: PartitionSummary, buckets: _Buckets) -> bool:
        """Account for the batches of a partition; whether there are transactional ones."""
        options = tolerating_damage(self._options_of(summary))
        is_transactional = False
        for wanted in resolved_ranges(self._filesystem, options):
            for run in PartitionSpans.of(wanted, options).chunks(self._filesystem):
                buckets.add(run)
                is_transactional |= bool((run.headers["attributes"] & TRANSACTIONAL_FLAG).any())
        return is_transactional

    def _options_of(self, summary: PartitionSummary) -> ReadOptions:
        return dataclasses.replace(
            self._options,
            paths=(summary.directory,),
            subscribe=None,
            subscribe_pattern=None,
            assign={summary.topic: (summary.partition,)},
        )

    def find_transactions(self, partitions: Iterable[PartitionSummary]) -> Transactions:
        """The transactions of some partitions."""
        counts: Counter[str] = Counter()
        open_ones: list[FoundTransaction] = []
        longest: list[FoundTransaction] = []
        for each in partitions:
            try:
                for found in self._transactions_of(each):
                    counts[found.transaction.state] += 1
                    (open_ones if found.transaction.state == OPEN else longest).append(found)
                    if len(longest) > _MOST_KEPT:
                        longest = nlargest(_LONGEST_SHOWN, longest, key=_duration_ms)
                    if len(open_ones) > _MOST_KEPT:
                        open_ones = nsmallest(_OPEN_SHOWN, open_ones, key=_begun_ms)
            except SegmentLogError as error:
                self._add_failure("transactions", error)
        open_ones = nsmallest(_OPEN_SHOWN, open_ones, key=_begun_ms)
        hanging = [each for each in open_ones if self._age_ms(each.transaction) > HANGING_MS]
        self.findings += [_of_hanging(each, self._age_ms(each.transaction)) for each in hanging]
        return Transactions(
            dict(counts),
            tuple(open_ones),
            tuple(nlargest(_LONGEST_SHOWN, longest, key=_duration_ms)),
        )

    def _transactions_of(self, summary: PartitionSummary) -> Iterator[FoundTransaction]:
        for task in plan_transactions(self._filesystem, self._options_of(summary), now_ms=self.now_ms):
            for found in read_transactions(self._filesystem, task):
                yield FoundTransaction(
                    summary.topic,
                    summary.partition,
                    found,
                    abort_command(summary.topic, summary.partition, found.first_offset, BOOTSTRAP_SERVER)
                    if found.state == OPEN and found.first_offset is not None
                    else None,
                )

    def _age_ms(self, transaction: Transaction) -> int:
        begun_ms = transaction.start_timestamp_ms
        if begun_ms == NO_TIMESTAMP_MS:
            begun_ms = transaction.last_timestamp_ms
        return -1 if begun_ms == NO_TIMESTAMP_MS else self.now_ms - begun_ms

    def find_groups(self, partitions: Iterable[PartitionSummary]) -> tuple[Group, ...] | None:
        """The groups, by name; None if no directory has their offsets."""
        if not any(each.topic in (OFFSETS_TOPIC, SHARE_STATE_TOPIC) for each in _read_partitions(partitions)):
            return None
        try:
            rows = self._group_rows()
        except SegmentLogError as error:
            self._add_failure("groups", error)
            return None
        by_group: defaultdict[tuple[str, str], list[GroupPosition]] = defaultdict(list)
        for row in rows:
            by_group[row["group"], row["groupType"]].append(_position(row))
        groups = tuple(Group(*key, tuple(positions)) for key, positions in sorted(by_group.items()))
        for group in groups:
            self.findings += _of_group(group)
        return groups

    def _group_rows(self) -> list[dict[str, Any]]:
        options = dataclasses.replace(tolerating_damage(self._options), view="group_offsets", where=None)
        schema = find_view("group_offsets").schema
        tasks: Sequence[GroupOffsetsTask] = plan_group_offsets(self._filesystem, options, now_ms=self.now_ms)
        names = [field.name for field in schema if field.type != TIMESTAMP]
        rows: list[dict[str, Any]] = []
        for task in tasks:
            for batch in read_view_task(self._filesystem, ViewTask("group_offsets", task), schema):
                # A `datetime` cannot hold all of them.
                times_us = batch.column("commitTime").cast("int64").to_pylist()
                rows += [
                    {**row, "commitTime": NO_TIMESTAMP_MS if time_us is None else time_us // 1000}
                    for row, time_us in zip(batch.select(names).to_pylist(), times_us, strict=True)
                ]
        return rows


def _read_partitions(partitions: Iterable[PartitionSummary]) -> Iterator[PartitionSummary]:
    """One directory of each partition: the one that a read takes."""
    return (each for each in partitions if each.is_read and each.state == LIVE)


def _begun_ms(found: FoundTransaction) -> int:
    return found.transaction.start_timestamp_ms


def _of_check(finding: Finding) -> ReportFinding:
    where = finding.file
    if finding.start_byte is not None:
        where += f", bytes {finding.start_byte:,} to {(finding.end_byte or finding.start_byte + 1) - 1:,}"
    if finding.start_offset is not None and (finding.end_offset or 0) > finding.start_offset:
        where += f", offsets {finding.start_offset} to {(finding.end_offset or 0) - 1}"
    action = (
        ""
        if finding.action in ("unnoticed", "not known")
        else f"A broker that starts would {_ACTIONS[finding.action]}"
    )
    if action and finding.action_offset is not None:
        action += f" to offset {finding.action_offset}"
    return ReportFinding(
        finding.severity, finding.kind, finding.reason, where, f"{action}." if action else ""
    )


_ACTIONS: Final = {
    "rebuild index": "rebuild the index",
    "truncate": "truncate the log",
    "remove": "remove it",
    "reset": "reset it",
    "complete": "complete it",
    "set aside": "set the directory aside as -stray",
    "refuse": "refuse the log directory",
}


def _of_hanging(found: FoundTransaction, age_ms: int) -> ReportFinding:
    transaction = found.transaction
    return ReportFinding(
        "warning",
        "open transaction",
        f"Producer {transaction.producer_id} (epoch {transaction.producer_epoch}) has a transaction open for "
        f"{duration_text(age_ms)}: consumers with isolation.level=read_committed wait at offset "
        f"{transaction.first_offset}.",
        f"{found.topic}-{found.partition}",
    )


def _of_group(group: Group) -> Iterator[ReportFinding]:
    for each in group.positions:
        if each.offset is None or each.log_start_offset is None or each.log_end_offset is None:
            continue
        where = f"{each.topic}-{each.partition}"
        if each.offset < each.log_start_offset:
            message = (
                f"Group {group.name} is at offset {each.offset}, and the log starts at {each.log_start_offset}: "
                "records were deleted before it read them."
            )
            yield ReportFinding("warning", "group", message, where)
        elif each.offset > each.log_end_offset:
            message = (
                f"Group {group.name} is at offset {each.offset}, after the log end {each.log_end_offset}: the log was "
                "truncated or created anew, and its consumers will reset their position."
            )
            yield ReportFinding("warning", "group", message, where)


def _position(row: dict[str, Any]) -> GroupPosition:
    return GroupPosition(
        row["topic"] or f"(id {row['topicId']})",
        row["partition"],
        row["offset"],
        row["logStartOffset"],
        row["logEndOffset"],
        row["lag"],
        row["commitTime"],
        row["metadata"],
    )


def _duration_ms(found: FoundTransaction) -> int:
    transaction = found.transaction
    if NO_TIMESTAMP_MS in (transaction.start_timestamp_ms, transaction.end_timestamp_ms):
        return -1
    return transaction.end_timestamp_ms - transaction.start_timestamp_ms


def _log_maps(filesystem: FileSystem, plan: Plan, checked: VerifyReport) -> Iterator[LogMap]:
    for planned, report in zip(plan.partitions, checked.partitions, strict=True):
        segments = []
        for task in planned.tasks:
            status = filesystem.status(task.file.path)
            segments.append(SegmentBar(task.file.base_offset, 0 if status is None else status.size_bytes))
        damage = tuple(_damaged_bytes(report, segments))
        yield LogMap(
            report.topic, report.partition, report.path, tuple(segments), damage, _start_outcome(report)
        )


def _damaged_bytes(report: PartitionReport, segments: Sequence[SegmentBar]) -> Iterator[DamagedBytes]:
    by_file = {f"{report.path}/{log_file_name(each.base_offset)}": each for each in segments}
    for finding in report.findings:
        segment = by_file.get(finding.file)
        if segment is not None and finding.severity != "note":
            end_byte = segment.size_bytes if finding.start_byte is None else finding.end_byte
            start_byte = finding.start_byte or 0
            yield DamagedBytes(
                segment.base_offset, start_byte, end_byte or start_byte + 1, finding.severity, finding.reason
            )


def _start_outcome(report: PartitionReport) -> str:
    """What a broker does with a log when it starts, in a few words."""
    start = report.start
    if report.verdict == "unreadable":
        return "it cannot be read"
    if start.refusal is not None:
        return "a broker refuses it"
    if start.unknown is not None:
        return "what a broker does is not known"
    if start.stray is not None:
        return "a broker sets it aside as -stray"
    counts = (
        ("removes", len(start.removed), "segment", "segments"),
        ("cuts", len(start.cuts), "segment", "segments"),
        ("rebuilds the indexes of", len(start.recovered), "segment", "segments"),
    )
    done = [f"{what} {count:,} {one if count == 1 else many}" for what, count, one, many in counts if count]
    return f"a broker {', '.join(done)}" if done else "a broker keeps it as it is"


@dataclass(slots=True)
class _Buckets:
    """Bytes and records by time, in buckets that become wider as there are more of them."""

    width: int = 0
    bytes: dict[int, int] = field(default_factory=dict)
    records: dict[int, int] = field(default_factory=dict)
    untimed_bytes: int = 0
    record_count: int = 0
    is_counted: bool = True

    def add(self, run: HeaderChunk) -> None:
        """Account for the batches of a run."""
        headers = run.headers
        # Markers have the coordinator's time, not that of a producer.
        headers = headers[(headers["attributes"] & CONTROL_FLAG) == 0]
        timestamps_ms = headers["max_timestamp_ms"].astype(np.int64)
        sizes_bytes = headers["batch_length"].astype(np.int64) + LOG_OVERHEAD_BYTES
        counts = headers["record_count"].astype(np.int64)
        if self.is_counted and wrapper_rows(headers).any():
            self.is_counted = False
        self.record_count += int(counts.sum())
        is_timed = timestamps_ms != NO_TIMESTAMP_MS
        self.untimed_bytes += int(sizes_bytes[~is_timed].sum())
        self._add_timed(timestamps_ms[is_timed] // _MS, sizes_bytes[is_timed], counts[is_timed])

    def _add_timed(
        self,
        times_s: npt.NDArray[np.int64],
        sizes_bytes: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
    ) -> None:
        if not len(times_s):
            return
        numbers, inverse = np.unique(times_s // _WIDTHS_S[self.width], return_inverse=True)
        # Sums of doubles would be exact up to 2^53 bytes, which is enough.
        sizes = np.bincount(inverse, sizes_bytes).astype(np.int64)
        records = np.bincount(inverse, counts).astype(np.int64)
        for number, size_bytes, count in zip(numbers.tolist(), sizes.tolist(), records.tolist(), strict=True):
            self.bytes[number] = self.bytes.get(number, 0) + size_bytes
            self.records[number] = self.records.get(number, 0) + count
        while self.width + 1 < len(_WIDTHS_S) and max(self.bytes) - min(self.bytes) >= _MAX_BUCKETS:
            self._widen()

    def _widen(self) -> None:
        factor = _WIDTHS_S[self.width + 1] // _WIDTHS_S[self.width]
        self.width += 1
        self.bytes = _merged(self.bytes, factor)
        self.records = _merged(self.records, factor)

    def history(self, topic: str) -> TopicHistory:
        """What was accounted for; of times over thousands of years, the last part."""
        last = max(self.bytes, default=0)
        first = max(min(self.bytes, default=0), last - _MAX_BUCKETS + 1)
        numbers = range(first, last + 1) if self.bytes else range(0)
        return TopicHistory(
            topic,
            _WIDTHS_S[self.width] * _MS,
            first,
            tuple(self.bytes.get(number, 0) for number in numbers),
            tuple(self.records.get(number, 0) for number in numbers) if self.is_counted else None,
            self.untimed_bytes,
            self.record_count if self.is_counted else None,
        )


def _merged(by_number: dict[int, int], factor: int) -> dict[int, int]:
    merged: dict[int, int] = {}
    for number, value in by_number.items():
        merged[number // factor] = merged.get(number // factor, 0) + value
    return merged
