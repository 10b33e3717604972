"""Checking one partition: its segments, checkpoints, snapshots and file names compared with each other."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from storage_core.check.broker_start import BrokerStart, KnownOfLog, start_of_broker
from storage_core.check.root_check import RootCheck
from storage_core.check.segment_check import SegmentFacts, SegmentTask, Sequence, break_between
from storage_core.checkpoint import (
    CLEANER_OFFSET_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    EpochEntry,
    ProducerStateEntry,
    read_leader_epoch_checkpoint,
    read_partition_metadata,
    read_producer_snapshot,
)
from storage_core.checkpoint.checkpoint_file import parse_integer
from storage_core.config import LONG_MAX
from storage_core.directory.log_directory_files import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS
from storage_core.directory.segment_listing import SegmentFiles
from storage_core.directory.vouched_end import Vouchers
from storage_core.errors import BatchTooLargeError, CorruptError
from storage_core.filesystem import ReadableFileSystem
from storage_core.record.batch_header import MAX_OFFSET
from storage_core.segment.file_names import (
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    base_offset_of,
    log_file_name,
    offset_index_file_name,
    snapshot_file_name,
    transaction_index_file_name,
)
from storage_core.segment.index_file import LARGEST_RELATIVE_OFFSET
from storage_core.views.epochs import EpochRun
from storage_core.views.files import LEFTOVERS, UNKNOWN, name_in_partition
from storage_core.views.finding import Action, Finding, Severity, Verdict, sentence, verdict_of
from storage_core.views.index_comparison import EndedTransaction, ProducerTransactions
from storage_core.views.roots import PartitionLocation
from storage_core.views.texts import count_text

MOST_RANGES: Final = 1_000
"""So many damaged ranges of a segment are described."""
# A log file that somebody compressed.
_ARCHIVED: Final = re.compile(
    r"[0-9]{20}\.log\.(?:gz|tgz|zip|zst|zstd|bz2|xz|lz4|lzo|snappy|sz|br)", re.IGNORECASE
)
# A broker takes every file with one of these for one of a segment, whatever its name.
_BROKER_SUFFIXES: Final = (LOG_SUFFIX, *INDEX_SUFFIXES, SNAPSHOT_SUFFIX)
_Snapshots = dict[int, "tuple[ProducerStateEntry, ...] | None"]


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """Result of the check of one partition.

    Attributes:
        topic_id: Of its ``partition.metadata``; None without one that can be read.
        is_clean: Whether the broker closed the log before it stopped.
        record_count: Records by the headers, markers included; of compressed messages v0 and v1, one for each set.
    """

    topic: str
    partition: int
    path: str
    verdict: Verdict
    topic_id: str | None
    is_clean: bool
    segment_count: int
    batch_count: int
    record_count: int
    size_bytes: int
    log_start_offset: int
    log_end_offset: int
    start: BrokerStart
    findings: tuple[Finding, ...]

    @property
    def at_start(self) -> str:
        """What a broker does with it when it starts, in some words."""
        start = self.start
        if self.verdict == "unreadable":
            return "not known, because it cannot be read"
        if start.refusal is not None:
            return f"refuses it: {start.refusal}"
        if start.unknown is not None:
            return f"not known: {start.unknown}"
        if start.stray is not None:
            return "sets it aside as -stray"
        done = []
        if start.cuts or start.removed:
            done.append(f"truncates it to offset {start.log_end_offset}")
        if start.removed:
            done.append(f"removes {count_text(len(start.removed), 'segment')}")
        if start.recovered:
            what = "rebuilds the indexes of" if self.is_clean else "recovers"
            done.append(f"{what} {count_text(len(start.recovered), 'segment')}")
        return ", ".join(done) or "keeps it as it is"

    def with_findings(self, findings: tuple[Finding, ...]) -> PartitionReport:
        """Return the report with other findings, and the verdict that follows from them."""
        return replace(self, verdict=verdict_of(findings), findings=findings)


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """A partition to verify: its listing, and a task for each of its segments."""

    location: PartitionLocation
    names: tuple[str, ...]
    listing: SegmentFiles
    tasks: tuple[SegmentTask, ...]


def check_partition(
    filesystem: ReadableFileSystem,
    root: RootCheck,
    partition: PlannedPartition,
    facts: Iterable[SegmentFacts | None],
) -> PartitionReport:
    """Judge a partition by the facts about its segments, in order; None stands for one whose file was replaced."""
    return _PartitionCheck(filesystem, root, partition, facts).report()


class _PartitionCheck:
    """Compares the files of one partition with each other."""

    def __init__(
        self,
        filesystem: ReadableFileSystem,
        root: RootCheck,
        partition: PlannedPartition,
        facts: Iterable[SegmentFacts | None],
    ) -> None:
        facts = list(facts)
        self._filesystem = filesystem
        self._root = root
        self._location = partition.location
        self._path = partition.location.path
        self._names = frozenset(partition.names)
        self._listing = partition.listing
        self._facts = [each for each in facts if each is not None]
        self._bases = frozenset(partition.listing.base_offsets)
        self._topic_id: str | None = None
        self._epoch_entries: tuple[EpochEntry, ...] = ()
        self._bad_snapshots: dict[int, str] = {}
        # Base offsets of the segments whose transaction index a broker cannot read.
        self._unreadable: set[int] = set()
        self._findings: list[Finding] = []
        # Why a broker sets the directory aside.
        self._stray: str | None = None
        self._is_changing = None in facts
        key = partition.location.topic_partition
        # Kafka recovers the whole metadata log at each start, whatever the marker says (`KafkaRaftLog.createLog`).
        self._is_clean = root.is_clean and key[0] != CLUSTER_METADATA_TOPIC
        self._recovery_point = root.recovery_points.get(key, 0)
        self._log_start_checkpoint = root.log_start_offsets.get(key, 0)
        self._high_watermark = root.high_watermarks.get(key)
        self._vouchers = Vouchers.of(
            key,
            is_clean=root.is_clean,
            recovery_points=root.recovery_points,
            high_watermarks=root.high_watermarks,
        )
        self._cleaner_offset = root.cleaner_offsets.get(key)
        self._is_compacted = (
            self._cleaner_offset is not None
            or key[0] in INTERNAL_TOPICS
            or any(each.has_holes for each in self._facts)
        )
        self._log_end_offset = self._facts[-1].next_offset if self._facts else self._log_start_checkpoint
        self._start = BrokerStart()

    def report(self) -> PartitionReport:
        if self._is_changing:
            # With a segment unknown, nothing can be said of how the others fit together.
            reason = "Not verified: its files are being replaced or removed by another process. Verify again."
            self._add("note", "file", self._path, reason)
        else:
            self._check()
        location = self._location
        first = self._facts[0].base_offset if self._facts else self._log_start_checkpoint
        return PartitionReport(
            location.topic,
            location.partition,
            self._path,
            verdict_of(self._findings),
            self._topic_id,
            self._root.is_clean,
            len(self._listing.base_offsets),
            sum(each.batch_count for each in self._facts),
            sum(each.record_count for each in self._facts),
            sum(each.size_bytes for each in self._facts),
            max(first, self._log_start_checkpoint),
            self._log_end_offset,
            self._start,
            tuple(self._findings),
        )

    def _check(self) -> None:
        refusals = [*self._check_epoch_file(), *self._check_metadata(), *self._check_names()]
        snapshots = self._read_snapshots()
        refusals += self._unknown_transaction_versions()
        self._start = start_of_broker(self._facts, self._known(snapshots, refusals))
        self._start = replace(self._start, stray=self._stray)
        for facts in self._facts:
            self._check_log(facts)
            self._check_indexes(facts)
        self._check_epochs()
        self._check_producers(snapshots)
        self._check_checkpoints()
        self._check_snapshots(snapshots)

    def _add(self, severity: Severity, kind: str, file: str, reason: str, **more: Any) -> None:
        self._findings.append(Finding(severity, kind, file, reason, **more))

    def _path_of(self, name: str) -> str:
        return os.path.join(self._path, name)

    # The small files, which a broker must be able to read.

    def _check_epoch_file(self) -> list[str]:
        path = self._path_of(LEADER_EPOCH_CHECKPOINT)
        try:
            self._epoch_entries = read_leader_epoch_checkpoint(self._filesystem, path)
        except CorruptError as error:
            self._add("damage", "leader epoch", path, str(error.args[0]), action="refuse")
            return [f"{LEADER_EPOCH_CHECKPOINT} is malformed"]
        return []

    def _check_metadata(self) -> list[str]:
        path = self._path_of(PARTITION_METADATA)
        try:
            self._topic_id = read_partition_metadata(self._filesystem, path)
        except CorruptError as error:
            self._add("damage", "metadata", path, str(error.args[0]), action="refuse")
            return [f"{PARTITION_METADATA} is malformed"]
        if not self._root.is_kraft or self._location.topic == CLUSTER_METADATA_TOPIC:
            return []
        owner = None if self._root.topics is None else self._root.topics.names.get(self._topic_id or "")
        if owner in (None, self._location.topic):
            self._check_stray(path)
            return []
        reason = (
            f"Expected the topic id of {self._location.topic}, found that of {owner}: a broker serves neither this partition "
            "nor, perhaps, others."
        )
        self._add("damage", "metadata", path, reason, action="refuse")
        return [f"its topic id is that of {owner}"]

    def _check_stray(self, path: str) -> None:
        """Determine whether a broker sets the directory aside: it serves only topic ids that its cluster knows."""
        topics, meta = self._root.topics, self._root.meta
        topic, partition = self._location.topic_partition
        if self._topic_id is None:
            has_records = any(each.batch_count for each in self._facts)
            known = [each for each, name in (topics.names if topics else {}).items() if name == topic]
            severity: Severity = "damage" if has_records else "suspect" if self._is_clean else "unclean"
            found, self._stray = "found no file", f"it has no {PARTITION_METADATA}"
            advice = f"Write the topic id, {known[0]}, into it" if known else "Write the topic id into it"
        elif topics is None or meta is None:
            return
        else:
            stray = topics.why_stray(topic, partition, self._topic_id, meta.node_id)
            if stray is None:
                return
            # A controller elsewhere may know more. A replica may have been moved away, or meta.properties is wrong.
            has_other_id = self._topic_id not in topics.names and topic in topics.names.values()
            is_moved = (self._topic_id, partition) in topics.replicas and topics.names.get(
                self._topic_id
            ) == topic
            is_certain = has_other_id or (self._root.is_sole_voter and not is_moved)
            severity, found = "damage" if is_certain else "suspect", f"found {stray}"
            self._stray = stray if is_certain else None
            advice = "Keep a copy of the directory before a broker starts"
        self._add(
            severity, "metadata", path,
            f"Expected the topic id of a partition that the cluster has on this broker, {found}: a broker sets the directory "
            f"aside as -stray, and serves an empty partition if it serves one. {advice}.",
            action="set aside",
        )  # fmt: skip

    def _check_names(self) -> list[str]:
        refusals = []
        for name in sorted(self._names):
            path = self._path_of(name)
            found = name_in_partition(name)
            leftover = None if found.leftover is None else LEFTOVERS[found.leftover]
            if leftover is not None and leftover.action is not None:
                self._add("note", "file", path, sentence(leftover.reason), action=leftover.action)
            elif found.leftover is None and found.kind == UNKNOWN and name.endswith(_BROKER_SUFFIXES):
                # Other digits are those of the file with 20 of them.
                has_offset = parse_integer(name.partition(".")[0], LONG_MAX) is not None
                if not has_offset:
                    refusals.append(f"{name} has no offset in its name")
                self._add(
                    "damage", "file", path,
                    "The name has the suffix of a segment's file, and not 20 digits before it.",
                    action="unnoticed" if has_offset else "refuse",
                )  # fmt: skip
            elif found.leftover is None and found.kind == UNKNOWN and _ARCHIVED.fullmatch(name):
                self._check_archived(name)
            elif found.leftover is None and found.kind == UNKNOWN:
                self._add("note", "file", path, "Neither Kafka nor segmentlog has a file of this name here.")
            elif found.leftover is None and name.endswith(INDEX_SUFFIXES):
                self._check_orphan(name)
        return refusals

    def _check_archived(self, name: str) -> None:
        base_offset = int(name[: -len(LOG_SUFFIX)].partition(".")[0])
        is_here = base_offset in self._bases
        self._add(
            "note" if is_here else "suspect", "file", self._path_of(name),
            "A copy of the log file beside it." if is_here else
            "Somebody compressed this log file: no read and no broker sees its records. "
            "Decompress a copy of the directory, and verify that.",
            start_offset=base_offset,
        )  # fmt: skip

    def _check_orphan(self, name: str) -> None:
        base_offset = base_offset_of(name)
        if base_offset is None or base_offset in self._bases or log_file_name(base_offset) in self._names:
            return
        self._add(
            "damage" if self._is_clean else "suspect", "file", self._path_of(name),
            "The log file of this index is missing: the segment's log was lost.",
            action="remove", start_offset=base_offset,
        )  # fmt: skip

    # What a broker would do.

    def _unknown_transaction_versions(self) -> list[str]:
        """Find the transaction indexes that a broker cannot read: it stops at the first wrong entry."""
        unreadable = [
            facts.base_offset for facts in self._facts if (facts.transactions.refused_version or 0) >> 8 > 0
        ]
        self._unreadable.update(unreadable)
        return [
            f"{transaction_index_file_name(each)} has entries of an unknown version" for each in unreadable
        ]

    def _known(self, snapshots: _Snapshots, refusals: list[str]) -> KnownOfLog:
        kept = _without_strays(list(snapshots), sorted(self._bases))
        return KnownOfLog(
            self._is_clean,
            self._recovery_point,
            self._log_start_checkpoint,
            [offset for offset in kept if snapshots[offset] is not None],
            bool(kept),
            refusals[0] if refusals else None,
            frozenset(
                each.base_offset
                for each in self._facts
                if offset_index_file_name(each.base_offset) + each.task.file.suffix not in self._names
            ),
        )

    def _action_at(self, facts: SegmentFacts, position_bytes: int | None) -> dict[str, Any]:
        """Return what a broker does about bytes of a log file, as arguments of a finding."""
        start, base_offset = self._start, facts.base_offset
        if start.unknown is not None:
            return {"action": "not known"}
        if start.refused_segment == base_offset:
            return {"action": "refuse"}
        if base_offset in start.removed:
            return {"action": "remove"}
        cut_bytes = start.cuts.get(base_offset)
        if cut_bytes is not None and position_bytes is not None and position_bytes >= cut_bytes:
            offset = facts.scan.next_offset if cut_bytes else base_offset
            return {"action": "truncate", "action_offset": offset}
        return {"action": "unnoticed"}

    def _action_on_index(self, facts: SegmentFacts) -> Action:
        if self._start.unknown is not None:
            return "not known"
        if facts.base_offset in self._start.removed:
            return "remove"
        if facts.base_offset in self._start.recovered:
            return "rebuild index"
        return "refuse" if self._start.refused_segment == facts.base_offset else "unnoticed"

    # The log.

    def _check_log(self, facts: SegmentFacts) -> None:
        for kind, ranges in (("batch", facts.damage), ("record", facts.malformed)):
            for found in ranges[:MOST_RANGES]:
                # A batch that is larger than what may be decompressed may be sound: its checksum is right.
                is_unknown = kind == "record" and found.error_type is BatchTooLargeError
                self._add(
                    "suspect" if is_unknown else "damage", kind, facts.log_path, found.reason,
                    start_byte=found.start_bytes, end_byte=found.end_bytes,
                    start_offset=found.start_offset, end_offset=min(found.end_offset, MAX_OFFSET),
                    **self._action_at(facts, found.start_bytes),
                )  # fmt: skip
            if len(ranges) > MOST_RANGES:
                is_unknown = (
                    all(found.error_type is BatchTooLargeError for found in ranges) and kind == "record"
                )
                self._add(
                    "suspect" if is_unknown else "damage", kind, facts.log_path,
                    f"There are {len(ranges) - MOST_RANGES} more damaged ranges: the view damage has "
                    "all of them.",
                )  # fmt: skip
        self._check_tail(facts)
        if facts.overflow_bytes is not None and not facts.damage and facts.tail is None:
            self._add(
                "suspect", "batch", facts.log_path,
                f"Expected offsets up to {facts.base_offset + LARGEST_RELATIVE_OFFSET}, which the segment's indexes can "
                "hold, found larger ones: a broker that recovers the segment splits it if all of them are genuine.",
                start_byte=facts.overflow_bytes, **self._action_at(facts, facts.overflow_bytes),
            )  # fmt: skip
        wrong = facts.wrong_max_timestamps
        if wrong is not None:
            action = self._action_at(facts, wrong.start_byte)
            self._findings.append(replace(wrong, **action))
        if not self._is_compacted:
            self._findings += facts.gaps
            if facts.gap_count > len(facts.gaps):
                reason = f"There are {facts.gap_count - len(facts.gaps)} more gaps between the offsets."
                self._add("suspect", "gap", facts.log_path, reason)

    def _check_tail(self, facts: SegmentFacts) -> None:
        tail = facts.tail
        if tail is None:
            return
        action = self._action_at(facts, tail.start_bytes)
        severity: Severity = "damage"
        reason = tail.reason
        if tail.is_blank:
            reason = "Only zeros follow: preallocated space, or a lost write."
        if tail.is_torn and facts.task.file.end_offset is not None:
            # Nothing is missing before the next segment: preallocated space.
            severity = "note"
        elif tail.is_torn and self._vouchers.is_end_after_crash(facts.next_offset):
            severity = "unclean"
        self._add(
            severity, "tail", facts.log_path, reason,
            start_byte=tail.start_bytes, end_byte=tail.end_bytes, start_offset=facts.next_offset, **action,
        )  # fmt: skip

    def _check_indexes(self, facts: SegmentFacts) -> None:
        for fault in facts.index_faults:
            is_unreadable = fault.kind == "transaction index" and facts.base_offset in self._unreadable
            action: Action = "refuse" if is_unreadable else self._action_on_index(facts)
            self._findings.append(replace(fault, severity=self._severity_of(fault, facts), action=action))

    def _severity_of(self, fault: Finding, facts: SegmentFacts) -> Severity:
        if fault.severity != "unclean":
            return fault.severity
        # An index is on disk when its segment is, which is below the recovery point.
        if self._is_clean or facts.base_offset not in self._start.recovered:
            return "damage"
        # The stop was clean: no broker cares for these indexes of the metadata log.
        return "note" if self._root.is_clean else "unclean"

    # Leader epochs.

    def _check_epochs(self) -> None:
        before: EpochRun | None = None
        for facts in self._facts:
            for run in facts.epochs:
                if before is not None and run.epoch < before.epoch:
                    self._add(
                        "damage", "leader epoch", facts.log_path,
                        f"Expected leader epochs that never fall, found {run.epoch} after {before.epoch}.",
                        start_byte=run.position_bytes, start_offset=run.first_offset,
                        end_offset=run.last_offset + 1, **self._action_at(facts, run.position_bytes),
                    )  # fmt: skip
                before = run
                if self._epoch_entries:
                    self._check_run(facts, run)
        path = self._path_of(LEADER_EPOCH_CHECKPOINT)
        last = self._epoch_entries[-1] if self._epoch_entries else None
        if last is not None and last.start_offset > self._log_end_offset:
            self._add(
                "damage" if self._is_clean else "unclean", "leader epoch", path,
                f"Expected epochs that begin in the log, found epoch {last.epoch} from offset {last.start_offset} on, and "
                f"the log ends at {self._log_end_offset}.",
                action="reset", start_offset=last.start_offset,
            )  # fmt: skip
        if before is not None and not self._epoch_entries and self._start.refusal is None:
            self._add(
                "suspect", "leader epoch", path,
                "The leader epochs of the log are not in this file.",
                action="rebuild index" if self._start.recovered else "unnoticed",
            )  # fmt: skip

    def _check_run(self, facts: SegmentFacts, run: EpochRun) -> None:
        starts = [entry.start_offset for entry in self._epoch_entries]
        first, last = (bisect_right(starts, offset) - 1 for offset in (run.first_offset, run.last_offset))
        known = [self._epoch_entries[number].epoch if number >= 0 else None for number in (first, last)]
        if known == [run.epoch, run.epoch] or run.first_offset < self._log_start_checkpoint:
            return
        entry = self._epoch_entries[0]
        if (
            not self._is_clean
            and run.first_offset < entry.start_offset
            and run.epoch <= entry.epoch
            and (known[1] is None or known[1] == run.epoch)
        ):
            # A raised log start removes epochs at once. Its checkpoint is written a minute later, for metadata never.
            return
        is_rebuilt = facts.base_offset in self._start.recovered and not self._is_clean
        expected = " and ".join(str(epoch) for epoch in dict.fromkeys(known))
        self._add(
            "unclean" if is_rebuilt and run.epoch > self._epoch_entries[-1].epoch else "damage",
            "leader epoch", self._path_of(LEADER_EPOCH_CHECKPOINT),
            f"Expected epoch {run.epoch} for offsets {run.first_offset} to {run.last_offset}, as the log says, found "
            f"{expected}.",
            start_offset=run.first_offset, end_offset=run.last_offset + 1,
        )  # fmt: skip

    # Producers and transactions.

    def _check_producers(self, snapshots: _Snapshots) -> None:
        """Compare sequences, transactions and snapshots over all segments."""
        known: dict[int, Sequence] = {}
        transactions: dict[int, ProducerTransactions] = {}
        for facts in self._facts:
            self._compare_snapshot(facts.base_offset, snapshots, known)
            for found in facts.producers:
                before = known.get(found.producer_id)
                broken = None if before is None else break_between(before, found, facts.log_path)
                # A compaction removes whole batches.
                if broken is not None and not self._is_compacted:
                    self._findings.append(broken)
                known[found.producer_id] = found
            if not self._is_compacted:
                self._findings += facts.breaks
            self._check_aborts(facts, transactions)
            if facts.damage:
                known.clear()
        if self._log_end_offset not in self._bases:
            self._compare_snapshot(self._log_end_offset, snapshots, known)

    def _check_aborts(self, facts: SegmentFacts, transactions: dict[int, ProducerTransactions]) -> None:
        """Find aborts that the transaction index omits, whose records look committed, and update what is known."""
        if facts.damage:
            # Damage may have held markers, and data.
            for producer_id, known in transactions.items():
                transactions[producer_id] = known._replace(first_offset=-1)
            return
        path = self._path_of(transaction_index_file_name(facts.base_offset) + facts.task.file.suffix)
        is_rebuilt = not self._is_clean and facts.base_offset in self._start.recovered
        for aborted in (*_wrong_at_first(facts, transactions), *facts.transactions.wrong):
            indexed_offset = aborted.indexed_offset
            if indexed_offset is None:
                found = "none: its records count as committed"
            elif indexed_offset > aborted.first_offset:
                found = f"one that begins at {indexed_offset}: the records before count as committed"
            else:
                found = (
                    f"one that begins at {indexed_offset}: records of the transaction before count as aborted"
                )
            self._add(
                "unclean" if is_rebuilt and indexed_offset is None else "damage", "transaction index", path,
                f"Expected an entry for the transaction of producer {aborted.producer_id} that begins at "
                f"{aborted.first_offset} and is aborted at {aborted.marker_offset}, found {found}.",
                action=self._action_on_index(facts),
                start_offset=aborted.first_offset, end_offset=aborted.marker_offset + 1,
            )  # fmt: skip

    # Checkpoints.

    def _check_checkpoints(self) -> None:
        end_offset, root = self._log_end_offset, self._root.path
        if self._log_start_checkpoint > end_offset:
            self._add(
                "damage", "checkpoint", os.path.join(root, LOG_START_OFFSET_CHECKPOINT),
                f"Expected a log start up to the log end {end_offset}, found {self._log_start_checkpoint}.",
                action="remove", start_offset=end_offset, end_offset=self._log_start_checkpoint,
            )  # fmt: skip
            return
        for name, offset, what in (
            (RECOVERY_POINT_CHECKPOINT, self._recovery_point, "flushed"),
            (REPLICATION_OFFSET_CHECKPOINT, self._high_watermark, "replicated"),
        ):
            if offset is not None and offset > end_offset:
                self._add(
                    "damage", "checkpoint", os.path.join(root, name),
                    f"Expected an offset up to the log end {end_offset}, found {offset}: records that were {what} are "
                    "missing.",
                    action="reset", start_offset=end_offset, end_offset=offset,
                )  # fmt: skip
            elif offset is not None and offset < 0:
                self._add(
                    "suspect", "checkpoint", os.path.join(root, name),
                    f"The offset {offset} is negative.", action="reset",
                )  # fmt: skip
        if self._cleaner_offset is not None and not 0 <= self._cleaner_offset <= end_offset:
            self._add(
                "suspect", "checkpoint", os.path.join(root, CLEANER_OFFSET_CHECKPOINT),
                f"Expected an offset up to the log end {end_offset}, found {self._cleaner_offset}.", action="reset",
            )  # fmt: skip

    # Producer snapshots.

    def _read_snapshots(self) -> _Snapshots:
        snapshots: _Snapshots = {}
        for name in sorted(self._names):
            offset = base_offset_of(name)
            if offset is None or name != snapshot_file_name(offset):
                continue
            try:
                entries = read_producer_snapshot(self._filesystem, self._path_of(name))
            except CorruptError as error:
                snapshots[offset] = None
                self._bad_snapshots[offset] = str(error.args[0])
            else:
                # A running broker may have removed it since the listing.
                if entries is not None:
                    snapshots[offset] = entries
        return snapshots

    def _check_snapshots(self, snapshots: _Snapshots) -> None:
        for offset, entries in snapshots.items():
            path = self._path_of(snapshot_file_name(offset))
            if entries is None:
                is_crash = not self._is_clean and offset >= self._recovery_point
                is_read = offset >= max(self._bases, default=0)
                self._add(
                    "unclean" if is_crash else "damage", "snapshot", path, self._bad_snapshots[offset],
                    action="remove" if is_read or offset not in self._bases else "unnoticed",
                )  # fmt: skip
            elif offset > self._log_end_offset:
                self._add(
                    "damage" if self._is_clean else "unclean", "snapshot", path,
                    f"Expected a snapshot up to the log end {self._log_end_offset}, found one of offset {offset}.",
                    action="remove", start_offset=offset,
                )  # fmt: skip

    def _compare_snapshot(self, offset: int, snapshots: _Snapshots, known: dict[int, Sequence]) -> None:
        """Compare the snapshot of an offset, if there is one, with the producers of the log before it."""
        entries = snapshots.get(offset) or ()
        path = self._path_of(snapshot_file_name(offset))
        for entry in entries:
            # A compaction removes a producer's batches but for its very last one.
            state = None if self._is_compacted else known.get(entry.producer_id)
            is_wrong = entry.last_offset >= offset or (
                state is not None
                and entry.last_offset >= 0
                and (entry.last_offset, entry.last_sequence) != (state.last_offset, state.last_sequence)
            )
            if is_wrong:
                found = f"sequence {entry.last_sequence} at offset {entry.last_offset}"
                expected = (
                    "an earlier offset"
                    if state is None
                    else f"sequence {state.last_sequence} at offset {state.last_offset}, as the log says"
                )
                self._add(
                    "suspect", "snapshot", path,
                    f"Expected producer {entry.producer_id} to end with {expected}, found {found}.",
                    start_offset=entry.last_offset,
                )  # fmt: skip


def _wrong_at_first(
    facts: SegmentFacts, transactions: dict[int, ProducerTransactions]
) -> Iterator[EndedTransaction]:
    """Find transactions of earlier segments whose abort here this segment's index omits, and update what is known."""
    for ended in facts.transactions.first_ended:
        before = transactions.get(ended.producer_id, ProducerTransactions())
        first_offset = before.then(ProducerTransactions(-1, ended.first_offset)).first_offset
        whole = ended._replace(first_offset=first_offset)
        if ended.indexed_offset is not None and ended.indexed_offset <= before.marker_offset:
            # It reaches into the transaction before.
            yield whole._replace(first_offset=max(first_offset, before.marker_offset + 1))
        elif whole.is_index_wrong:
            yield whole
    for producer_id, known in facts.transactions.producers.items():
        transactions[producer_id] = transactions.get(producer_id, ProducerTransactions()).then(known)


def _without_strays(offsets: list[int], bases: list[int]) -> list[int]:
    """Return the snapshots that a broker keeps (``removeStraySnapshots``): those at base offsets, and the last one."""
    strays = [offset for offset in offsets if offset not in bases]
    if strays and (not bases or strays[-1] >= bases[-1]):
        strays.pop()
    return [offset for offset in offsets if offset not in strays]


def with_topic_ids_compared(reports: Iterable[PartitionReport]) -> list[PartitionReport]:
    """Return the reports, with findings where partitions of one topic in one log directory have different topic ids.

    Where one of them has a finding already, the cluster has told which one is right.
    """
    reports = list(reports)
    topics: dict[tuple[str, str], list[PartitionReport]] = {}
    for each in reports:
        topics.setdefault((os.path.dirname(each.path), each.topic), []).append(each)
    ids = {
        key: Counter(each.topic_id for each in members if each.topic_id is not None)
        for key, members in topics.items()
        if not any(
            os.path.basename(finding.file) == PARTITION_METADATA
            for each in members
            for finding in each.findings
        )
    }
    return [_with_topic_id(each, ids.get((os.path.dirname(each.path), each.topic))) for each in reports]


def _with_topic_id(report: PartitionReport, ids: Counter[str] | None) -> PartitionReport:
    if not ids or report.verdict == "unreadable":
        return report
    most = max(ids.values())
    if report.topic_id is not None and ids[report.topic_id] == most and list(ids.values()).count(most) == 1:
        return report
    finding = Finding(
        "suspect",
        "metadata",
        os.path.join(report.path, PARTITION_METADATA),
        f"Expected one topic id for all partitions of {report.topic}, found {report.topic_id or 'none'} here and "
        f"{', '.join(sorted(ids.keys() - {report.topic_id}))} elsewhere: a broker sets the directory of a topic that its "
        "cluster does not have aside as -stray.",
        "set aside",
    )
    return report.with_findings((*report.findings, finding))
