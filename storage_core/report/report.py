"""What a page about log directories shows, in one value: what checks and views find out about them.

inventory → checks of every file → headers by time → transactions → groups. What fails becomes a finding, and the rest
goes on.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nlargest, nsmallest
from itertools import accumulate
from operator import attrgetter
from typing import Final

import numpy as np
import numpy.typing as npt

from storage_core.check.partition_check import PartitionReport
from storage_core.check.segment_check import SegmentTask
from storage_core.check.verify import Plan, VerifyReport, plan_verification, verify
from storage_core.errors import SegmentLogError
from storage_core.filesystem import ReadableFileSystem
from storage_core.options import ReadOptions
from storage_core.record.batch_header import (
    CONTROL_FLAG,
    NO_TIMESTAMP_MS,
    TRANSACTIONAL_FLAG,
    batch_sizes_bytes,
    wrapper_rows,
)
from storage_core.segment.file_names import log_file_name
from storage_core.views.finding import Finding, Severity, by_severity, has_severity
from storage_core.views.group_offsets import (
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    GroupOffset,
    log_ranges,
    plan_group_offsets,
    read_group_offsets,
)
from storage_core.views.inventory import Inventory, inventory
from storage_core.views.partitions import PartitionSummary
from storage_core.views.roots import LIVE
from storage_core.views.span_headers import HeaderChunk, PartitionSpans
from storage_core.views.texts import duration_text
from storage_core.views.transactions import OPEN, ObservedTransaction, plan_transactions, read_transactions
from storage_core.views.view import resolved_ranges, tolerating_damage

# A broker's default of transaction.max.timeout.ms: an older transaction hangs, or its coordinator is not running.
HANGING_MS: Final = 15 * 60_000
_LONGEST_SHOWN: Final = 10
_OPEN_SHOWN: Final = 200
_MAX_BUCKETS: Final = 120
# Seconds; each divides the next.
_WIDTHS_S: Final = (1, 5, 15, 60, 300, 900, 3_600, 21_600, 86_400, 604_800, 2_419_200, 31_449_600)
_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class TopicHistory:
    """Sizes and record counts of a topic over time, as the headers of its batches tell.

    Attributes:
        first_bucket: The number of the first bucket: it begins at this times the width.
        bytes_by_bucket: How many bytes of batches have their largest timestamp in each bucket.
        records_by_bucket: How many records, markers not counted; None if compressed messages of v0 or v1 do not tell.
    """

    topic: str
    width_ms: int
    first_bucket: int
    bytes_by_bucket: tuple[int, ...]
    records_by_bucket: tuple[int, ...] | None
    untimed_bytes: int
    record_count: int | None

    @property
    def total_bytes(self) -> int:
        """The bytes of all buckets."""
        return sum(self.bytes_by_bucket)


@dataclass(frozen=True, slots=True)
class DamagedBytes:
    """Bytes of a segment that are damaged or suspected to be, and their place in the bytes of all segments of a log."""

    base_offset: int
    start_byte: int
    end_byte: int
    start_in_log: int
    severity: Severity
    reason: str


@dataclass(frozen=True, slots=True)
class LogMap:
    """A log's segments, and their damaged bytes."""

    topic: str
    partition: int
    segments: tuple[SegmentTask, ...]
    damage: tuple[DamagedBytes, ...]
    at_start: str

    @property
    def name(self) -> str:
        """The partition's name."""
        return f"{self.topic}-{self.partition}"

    @property
    def size_bytes(self) -> int:
        """The size of all segments."""
        return sum(each.size_bytes for each in self.segments)


@dataclass(frozen=True, slots=True)
class TransactionsSummary:
    """The transactions of all logs; of the open ones the oldest, and not all if there are many."""

    counts: dict[str, int]
    open: tuple[ObservedTransaction, ...]
    longest: tuple[ObservedTransaction, ...]


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """A committed offset, and the ends of its log; None if that log is in none of the directories."""

    committed: GroupOffset
    log_start_offset: int | None
    log_end_offset: int | None

    @property
    def lag(self) -> int | None:
        """How far the offset is behind the log's end; None if that is not known."""
        offset, end_offset = self.committed.offset, self.log_end_offset
        return None if offset is None or end_offset is None else end_offset - offset

    @property
    def place(self) -> str:
        """The partition."""
        return f"{self.committed.topic or f'(id {self.committed.topic_id})'}-{self.committed.partition}"


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
    """The state of log directories at some time.

    Attributes:
        is_quick: Whether only names and sizes, and the first and last batches were looked at.
        maps: Of each live directory of a partition; empty if it is quick.
        groups: None if there is no topic of group offsets.
    """

    paths: tuple[str, ...]
    made_at_ms: int
    is_quick: bool
    inventory: Inventory
    findings: tuple[Finding, ...]
    histories: tuple[TopicHistory, ...] = ()
    maps: tuple[LogMap, ...] = ()
    transactions: TransactionsSummary | None = None
    groups: tuple[Group, ...] | None = None

    @property
    def has_damage(self) -> bool:
        """Whether anything contradicts its format or its checksum."""
        return has_severity("damage", self.findings)

    @property
    def is_complete(self) -> bool:
        """Whether everything could be read."""
        return all(each.severity != "unreadable" for each in self.findings)


def make_report(
    filesystem: ReadableFileSystem,
    options: ReadOptions,
    *,
    is_quick: bool = False,
    jobs: int = 1,
    now_ms: int | None = None,
    advance: Callable[[int], object] = lambda _: None,
) -> Report:
    """Look at log directories.

    If it is quick, what reads log files as a whole is left out: checks, rates, transactions. Otherwise they are read twice, as
    a whole and for their headers, and ``advance`` takes how many bytes were read since its last call.

    Raises:
        OptionError: A topic that is named does not exist.
        LogDirectoryError: A path does not exist, or has no log directory.
    """
    examination = _Examination(filesystem, options, int(time.time() * _MS) if now_ms is None else now_ms)
    found = inventory(filesystem, options.paths, options=options)
    # One directory of each partition: the one that a read takes.
    partitions = [each for each in found.partitions if each.is_read and each.state == LIVE]
    maps: tuple[LogMap, ...] | None = None
    histories: tuple[TopicHistory, ...] = ()
    transactions: TransactionsSummary | None = None
    if not is_quick:
        maps = examination.check(jobs, advance)
        histories, transactional = examination.walk_headers(partitions, advance)
        transactions = examination.find_transactions(transactional)
    groups = examination.find_groups(partitions)
    examination.findings += (
        each
        for each in found.findings
        # The checks have found these, too.
        if maps is None or (each.severity, each.kind) != ("damage", "partition")
    )
    return Report(
        options.paths,
        examination.now_ms,
        is_quick,
        found,
        by_severity(examination.findings),
        histories,
        maps or (),
        transactions,
        groups,
    )


class _Examination:
    """One look at log directories, and what it found so far."""

    def __init__(self, filesystem: ReadableFileSystem, options: ReadOptions, now_ms: int) -> None:
        self.now_ms = now_ms
        self.findings: list[Finding] = []
        self._filesystem = filesystem
        self._options = options

    def check(self, jobs: int, advance: Callable[[int], object]) -> tuple[LogMap, ...] | None:
        """Verify every file.

        Returns:
            The map of each log; None if the files cannot be verified.
        """
        try:
            plan = plan_verification(self._filesystem, self._options)
            checked = verify(self._filesystem, plan, jobs=jobs, advance=advance)
        except SegmentLogError as error:
            self._add_failure("checks", error)
            return None
        self.findings += checked.findings
        return tuple(_log_maps(plan, checked))

    def _add_failure(self, kind: str, error: SegmentLogError) -> None:
        self.findings.append(Finding("unreadable", kind, error.path or "", str(error.args[0])))

    def walk_headers(
        self, partitions: Iterable[PartitionSummary], advance: Callable[[int], object]
    ) -> tuple[tuple[TopicHistory, ...], list[PartitionSummary]]:
        """Return the history of each topic, and the partitions that have transactions."""
        by_topic: defaultdict[str, _Buckets] = defaultdict(_Buckets)
        transactional = []
        for each in partitions:
            try:
                if self._walk_partition(each, by_topic[each.topic]):
                    transactional.append(each)
            except SegmentLogError as error:
                self._add_failure("headers", error)
            advance(each.log_bytes)
        histories = (buckets.history(topic) for topic, buckets in sorted(by_topic.items()))
        return tuple(histories), transactional

    def _walk_partition(self, summary: PartitionSummary, buckets: _Buckets) -> bool:
        """Account for the batches of a partition; return True if any is transactional."""
        options = self._options_of(summary)
        is_transactional = False
        for wanted in resolved_ranges(self._filesystem, options):
            for chunk in PartitionSpans.of(wanted, options).chunks(self._filesystem):
                buckets.add(chunk)
                is_transactional |= bool((chunk.window.headers["attributes"] & TRANSACTIONAL_FLAG).any())
        return is_transactional

    def _options_of(self, summary: PartitionSummary) -> ReadOptions:
        return dataclasses.replace(
            self._options,
            paths=(summary.directory,),
            subscribe=None,
            subscribe_pattern=None,
            assign={summary.topic: (summary.partition,)},
        )

    def find_transactions(self, partitions: Iterable[PartitionSummary]) -> TransactionsSummary:
        """Count the transactions of some partitions, and pick those that are open or took longest."""
        counts: Counter[str] = Counter()
        open_ones: list[ObservedTransaction] = []

        def ended() -> Iterator[ObservedTransaction]:
            for each in partitions:
                try:
                    for found in self._transactions_of(each):
                        counts[found.state] += 1
                        if found.state == OPEN:
                            open_ones.append(found)
                        else:
                            yield found
                except SegmentLogError as error:
                    self._add_failure("transactions", error)

        longest = nlargest(
            _LONGEST_SHOWN, ended(), key=lambda each: -1 if each.duration_ms is None else each.duration_ms
        )
        oldest = nsmallest(_OPEN_SHOWN, open_ones, key=attrgetter("start_timestamp_ms"))
        for each in oldest:
            age_ms = each.age_ms(self.now_ms)
            if age_ms is not None and age_ms > HANGING_MS:
                self.findings.append(_of_hanging(each, age_ms))
        return TransactionsSummary(dict(counts), tuple(oldest), tuple(longest))

    def _transactions_of(self, summary: PartitionSummary) -> Iterator[ObservedTransaction]:
        for task in plan_transactions(self._filesystem, self._options_of(summary), now_ms=self.now_ms):
            yield from read_transactions(self._filesystem, task)

    def find_groups(self, partitions: Iterable[PartitionSummary]) -> tuple[Group, ...] | None:
        """Find the groups and where they are.

        Returns:
            The groups by name; None if no directory has their offsets.
        """
        if not any(each.topic in (OFFSETS_TOPIC, SHARE_STATE_TOPIC) for each in partitions):
            return None
        try:
            positions = self._positions()
        except SegmentLogError as error:
            self._add_failure("groups", error)
            return None
        by_group: defaultdict[tuple[str, str], list[GroupPosition]] = defaultdict(list)
        for each in positions:
            by_group[each.committed.group, each.committed.group_type].append(each)
            self.findings += _of_position(each)
        return tuple(Group(*key, tuple(found)) for key, found in sorted(by_group.items()))

    def _positions(self) -> list[GroupPosition]:
        options = tolerating_damage(self._options)
        committed = [
            each
            for task in plan_group_offsets(self._filesystem, options, now_ms=self.now_ms)
            for each in read_group_offsets(self._filesystem, task)
        ]
        logs = log_ranges(self._filesystem, options, committed)
        found = ((each, logs.get((each.topic, each.partition))) for each in committed)
        return [
            GroupPosition(each, *((None, None) if log is None else (log.start_offset, log.end_offset)))
            for each, log in found
        ]


def _of_hanging(found: ObservedTransaction, age_ms: int) -> Finding:
    return Finding(
        "warning",
        "open transaction",
        f"{found.topic}-{found.partition}",
        f"Producer {found.producer_id} (epoch {found.producer_epoch}) has a transaction open for "
        f"{duration_text(age_ms)}: consumers with isolation.level=read_committed wait at offset {found.first_offset}.",
    )


def _of_position(position: GroupPosition) -> Iterator[Finding]:
    committed, start, end = position.committed, position.log_start_offset, position.log_end_offset
    if committed.offset is None or start is None or end is None or start <= committed.offset <= end:
        return
    reason = (
        f"the log starts at {start}: records were deleted before it read them."
        if committed.offset < start
        else f"the log ends at {end}: the log was truncated or created anew, and its consumers will reset their position."
    )
    message = f"Group {committed.group} is at offset {committed.offset}, and {reason}"
    yield Finding("warning", "group", position.place, message)


def _log_maps(plan: Plan, checked: VerifyReport) -> Iterator[LogMap]:
    reports = {report.path: report for report in checked.partitions}
    for planned in plan.partitions:
        report = reports.get(planned.location.path)
        if report is None:
            # Deleted since the listing.
            continue
        damage = tuple(_damaged_bytes(report, planned.tasks))
        yield LogMap(report.topic, report.partition, planned.tasks, damage, report.at_start)


def _damaged_bytes(report: PartitionReport, tasks: Sequence[SegmentTask]) -> Iterator[DamagedBytes]:
    starts = accumulate((each.size_bytes for each in tasks), initial=0)
    by_file = {
        f"{report.path}/{log_file_name(each.file.base_offset)}": (each, start)
        for each, start in zip(tasks, starts, strict=False)
    }
    for finding in report.findings:
        if finding.file in by_file and finding.severity != "note":
            segment, start_in_log = by_file[finding.file]
            start_byte = finding.start_byte or 0
            end_byte = segment.size_bytes if finding.start_byte is None else finding.end_byte
            yield DamagedBytes(
                segment.file.base_offset,
                start_byte,
                end_byte or start_byte + 1,
                start_in_log + start_byte,
                finding.severity,
                finding.reason,
            )


def _zeros() -> defaultdict[int, npt.NDArray[np.int64]]:
    return defaultdict(lambda: np.zeros(2, np.int64))


@dataclass(slots=True)
class _Buckets:
    """Bytes and records by time, in buckets that become wider as there are more of them."""

    width: int = 0
    by_number: defaultdict[int, npt.NDArray[np.int64]] = field(default_factory=_zeros)
    untimed_bytes: int = 0
    record_count: int = 0
    is_counted: bool = True

    def add(self, chunk: HeaderChunk) -> None:
        """Account for the batches of a chunk."""
        headers = chunk.window.headers
        # A marker has the coordinator's time, not a producer's.
        headers = headers[(headers["attributes"] & CONTROL_FLAG) == 0]
        timestamps_ms = headers["max_timestamp_ms"].astype(np.int64)
        sizes_bytes = batch_sizes_bytes(headers)
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
        # Sums of doubles are exact up to 2^53 bytes, which is enough.
        sums = np.stack([np.bincount(inverse, sizes_bytes), np.bincount(inverse, counts)], 1).astype(np.int64)
        for number, found in zip(numbers.tolist(), sums, strict=True):
            self.by_number[number] += found
        while self.width + 1 < len(_WIDTHS_S) and max(self.by_number) - min(self.by_number) >= _MAX_BUCKETS:
            factor = _WIDTHS_S[self.width + 1] // _WIDTHS_S[self.width]
            narrow, self.by_number = self.by_number, _zeros()
            for number, found in narrow.items():
                self.by_number[number // factor] += found
            self.width += 1

    def history(self, topic: str) -> TopicHistory:
        """Return what was accounted for; of times over thousands of years, the last part."""
        last = max(self.by_number, default=0)
        first = max(min(self.by_number, default=0), last - _MAX_BUCKETS + 1)
        numbers = range(first, last + 1) if self.by_number else range(0)
        return TopicHistory(
            topic,
            _WIDTHS_S[self.width] * _MS,
            first,
            tuple(int(self.by_number[number][0]) for number in numbers),
            tuple(int(self.by_number[number][1]) for number in numbers) if self.is_counted else None,
            self.untimed_bytes,
            self.record_count if self.is_counted else None,
        )
