"""A read that goes on: micro-batches of what is appended, between offsets that the caller keeps.

Nothing is remembered between two runs but the offsets. So a batch that is planned again, from the same start to the same
end, has the same rows, unless retention or compaction has removed some.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from storage_core.config import INT_MAX, LONG_MAX
from storage_core.directory import LogDirectoryFiles
from storage_core.directory.consistent import read_consistently
from storage_core.directory.remote_half import with_present_remote_half
from storage_core.directory.visibility import CommitMonitor
from storage_core.errors import DataLossError, LogDirectoryError, OptionError, first_of
from storage_core.options.bounds import (
    LATEST_OFFSET,
    LatestBound,
    TimestampBound,
    TopicPartition,
    format_topic_partitions,
    warn_of_seconds,
)
from storage_core.options.values import as_integer
from storage_core.scan.isolation import last_stable_offset
from storage_core.scan.offset_ranges import PartitionRange, locate_spans, report_data_loss
from storage_core.scan.plan import ScanPlan, cut_span, plan_ranges
from storage_core.scan.resolve import (
    ReadLimit,
    check_bounds,
    load_log,
    outcomes,
    requested_bound,
    resolve_range,
    resolve_start,
    split_paths,
    without_errors,
)
from storage_core.scan.tail import PartitionMonitor
from storage_core.scan.typed_columns import PinnedFormats

if TYPE_CHECKING:
    from collections.abc import Iterable

    from storage_core.directory import PartitionDirectory, PartitionLog
    from storage_core.filesystem import ReadableFileSystem
    from storage_core.options import StreamOptions


_log = logging.getLogger(__name__)
Offsets = Mapping[TopicPartition, int]
"""By topic and partition, the first offset that is not read yet."""
# While nothing is new, looking takes this part of the time at most.
_POLLING_SHARE: Final = 1 / 20
_LONGEST_PAUSE_S: Final = 0.5
_SHOWN_PARTITIONS: Final = 20
_SHOWN_DIRECTORIES: Final = 5
_PINNED_COLUMNS: Final = {":keySchemaId": "key", ":valueSchemaId": "value"}
_NO_SCHEMA_IDS: Final[Mapping[str, int]] = MappingProxyType({})


def offsets_of_json(value: object) -> dict[TopicPartition, int]:
    """Parse the offsets in a checkpoint, as Spark's Kafka source writes them: ``{"topic":{"0":23}}``.

    What `json_of_offsets` adds to them is left out.

    Raises:
        OptionError: The value is something else.
    """
    return {key: offset for key, offset in _parsed(value).items() if key[0] not in _PINNED_COLUMNS}


def schema_ids_of_json(value: object) -> dict[str, int]:
    """Parse the ids of schemas beside the offsets in a checkpoint, by column.

    Raises:
        OptionError: The value is something else.
    """
    found = _parsed(value).items()
    return {_PINNED_COLUMNS[topic]: number for (topic, _), number in found if topic in _PINNED_COLUMNS}


def _parsed(value: object) -> dict[TopicPartition, int]:
    try:
        return {
            (topic, _checked(int(number), INT_MAX)): _checked(offset, LONG_MAX)
            for topic, by_partition in value.items()  # type: ignore[attr-defined]
            for number, offset in by_partition.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise OptionError(
            f'Expected offsets in the checkpoint as {{"topic":{{"0":23}}}}, found {value!r}. The checkpoint belongs to '
            "another source: start with a new one."
        ) from None


def _checked(value: object, largest: int) -> int:
    number = as_integer(value)
    if number is None or not 0 <= number <= largest:
        raise ValueError
    return number


def json_of_offsets(
    offsets: Offsets, schema_ids: Mapping[str, int] = _NO_SCHEMA_IDS
) -> dict[str, dict[str, int]]:
    """Write offsets as `offsets_of_json` parses them, sorted by topic and number: Spark compares them as text.

    The ids of the schemas that columns are read with look like offsets of topics whose names no topic can have, so that
    other readers of checkpoints can parse them.
    """
    by_topic: dict[str, dict[str, int]] = {
        name: {"0": schema_ids[column]} for name, column in _PINNED_COLUMNS.items() if column in schema_ids
    }
    for topic, number in sorted(offsets):
        by_topic.setdefault(topic, {})[str(number)] = offsets[topic, number]
    return by_topic


class MicroBatchPlanner:
    """Planner of the micro-batches of one query, on its driver.

    Args:
        filesystem: Where to read.
        options: What to read.
        formats: How columns are decoded; planned here if None.

    Attributes:
        formats: How columns are decoded; the ids of their schemas are kept beside the offsets.
    """

    def __init__(
        self,
        filesystem: ReadableFileSystem,
        options: StreamOptions,
        formats: PinnedFormats | None = None,
    ) -> None:
        self._filesystem = filesystem
        self._options = options
        self.formats = formats or PinnedFormats(filesystem, options.read)
        self._monitor = PartitionMonitor(filesystem, options)
        if options.limits.max_offsets == 0:
            _log.warning("maxOffsetsPerTrigger is 0: as with Spark's Kafka source, the stream reads nothing.")
        self._initial: dict[TopicPartition, int] | None = None
        # Partitions that may get another initial offset when the query starts again, and those of them that the first
        # batch takes nothing of.
        self._unrepeatable_starts: set[TopicPartition] = set()
        self._empty_in_first_batch: set[TopicPartition] = set()
        self._has_begun = False
        self._final_ends: dict[TopicPartition, int] | None = None
        self._position: Offsets | None = None
        self._has_planned = False
        self._triggered_s = -math.inf
        self._is_idle = False
        # The partitions that are known to be absent, or behind, and that a warning was about.
        self._reported: set[TopicPartition] = set()
        self._next_poll_s = -math.inf

    def initial_offsets(self) -> dict[TopicPartition, int]:
        """Return the offsets that a new query starts at. The first call decides.

        Raises:
            SegmentLogError: These directories cannot give what the options ask for.
        """
        if self._initial is None:
            warn_of_seconds(self._options.read.starting, LatestBound())
            ends = self._poll()
            check_bounds(self._options.read, [each.directory for each in self._monitor.partitions.values()])
            found = outcomes(self._filesystem, lambda each: self._initial_offset(*each), ends.items())
            self._initial = dict(zip(ends, without_errors(found), strict=True))
        return self._initial

    def _initial_offset(self, key: TopicPartition, latest_offset: int) -> int:
        """Decide where a partition starts, and whether a new start of the query may decide otherwise."""
        options = self._options.read
        log = self._monitor.log_of(key)
        requested = requested_bound(options.starting, log)
        if requested == LATEST_OFFSET:
            offset = latest_offset
        elif isinstance(requested, TimestampBound):
            offset = resolve_start(log, options, self._monitor.limit_of(log))
        else:
            # An offset that is asked for need not be below a high watermark, which may be some seconds old.
            log = load_log(self._filesystem, log.directory, options)
            start_offset = resolve_start(log, options, ReadLimit(log))
            return self._resolved(log, start_offset, log.log_end_offset).start_offset
        self._unrepeatable_starts.add(key)
        if offset >= latest_offset or self._options.is_start_relative:
            self._empty_in_first_batch.add(key)
        return offset

    def stop_at_present_ends(self) -> None:
        """Read up to the present ends, and no further."""
        self._final_ends = self._poll()

    def newest_offsets(self) -> dict[TopicPartition, int]:
        """Return where the partitions ended at the last poll."""
        return {key: each.end_offset for key, each in self._monitor.partitions.items()}

    def latest_offsets(self, start: Offsets | None = None, *, is_limited: bool = True) -> Offsets:
        """Return the end offsets of the next micro-batch; ``start`` itself if there is nothing new.

        Args:
            start: Where the batch before ended. None: where the last batch that was planned ended, or the initial
                offsets.
            is_limited: Whether the limits of a micro-batch apply.

        Raises:
            DataLossError: With ``failOnDataLoss``, a partition that was read is absent, or ends before that.
            SegmentLogError: A log cannot be read.
        """
        if start is None:
            start = self.initial_offsets() if self._position is None else self._position
        is_first = not self._has_begun and start == self._initial
        self._has_begun = True
        self._wait_while_idle()
        ends = self._known_ends(start)
        if self._final_ends is not None:
            known = self._final_ends.keys() | start.keys()
            furthest = {
                key: max(self._final_ends.get(key, 0), start.get(key, 0)) for key in known & ends.keys()
            }
            ends = {key: min(ends[key], furthest_offset) for key, furthest_offset in furthest.items()}
        if is_first:
            # The first batch takes nothing of these, so that the checkpoint has their initial offsets.
            ends |= {key: start[key] for key in self._empty_in_first_batch & ends.keys()}
        if is_limited:
            ends = self._limited(start, ends)
        self._is_idle = ends == start
        return start if self._is_idle else ends

    def _poll(self) -> dict[TopicPartition, int]:
        begun_s = time.monotonic()
        ends = self._monitor.poll()
        polled_s = time.monotonic()
        pause_s = min((polled_s - begun_s) / _POLLING_SHARE, _LONGEST_PAUSE_S)
        self._next_poll_s = polled_s + pause_s
        for (topic, number), tailed in self._monitor.partitions.items():
            if tailed.moved_from_topic_id is not None:
                raise LogDirectoryError(
                    f"Expected the topic id {tailed.moved_from_topic_id} of {topic}-{number}, whose records this stream "
                    f"has read, found {tailed.topic_id}: another volume is mounted here, or the topic was created anew on "
                    "another disk. Mount the right one and start the query again, or read the new topic with a new "
                    "checkpoint.",
                    path=tailed.directory.path,
                )
        return ends

    def _wait_while_idle(self) -> None:
        if self._is_idle:
            time.sleep(max(0.0, self._next_poll_s - time.monotonic()))

    def _known_ends(self, start: Offsets) -> dict[TopicPartition, int]:
        """Return where partitions end for a reader that has read up to ``start``, also those that are not there now.

        Spark writes down what becomes of this before it plans the batch, so no partition leaves the offsets, and none goes
        back unless its records were certainly taken away.
        """
        ends = self._poll()
        if start and not self._monitor.has_log_directory:
            raise LogDirectoryError(
                "The log directory that this stream reads is gone. Mount or restore it, and start the "
                "query again. If it was moved, start the query with its new path.",
                path=", ".join(self._options.read.paths),
            )
        behind = {}
        for key in start.keys() & ends.keys():
            end_offset = self._end_after(key, start[key], ends[key])
            if end_offset is None:
                behind[key] = self._monitor.log_of(key).log_end_offset
            ends[key] = start[key] if end_offset is None else end_offset
        absent = start.keys() - ends.keys()
        self._report_absent({key: start[key] for key in absent - self._reported})
        self._report_behind({key: behind[key] for key in behind.keys() - self._reported}, start)
        self._reported = absent | behind.keys()
        return ends | {key: start[key] for key in absent}

    def _end_after(self, key: TopicPartition, start: int, end: int) -> int | None:
        """Find where a partition ends for a reader that has read up to ``start``.

        Returns:
            The end offset; None if the log ends before ``start``.
        """
        tailed = self._monitor.partitions[key]
        if tailed.truncated_to is not None:
            if tailed.truncated_to < start:
                return tailed.truncated_to
            # The reader has gone back that far.
            tailed.truncated_to = None
        # A high watermark may be older than the offsets of a checkpoint, and a last stable offset lower than they are if
        # the isolation level was another one.
        if end >= start or self._monitor.log_of(key).log_end_offset >= start:
            return max(start, end)
        return None

    def _report_absent(self, offsets: Offsets) -> None:
        """Report partitions that were read up to some offsets, and are not found any more."""
        if not offsets:
            return
        read = json.dumps(json_of_offsets(dict(sorted(offsets.items())[:_SHOWN_PARTITIONS])))
        report_data_loss(
            f"[KAFKA_DATA_LOSS.PARTITIONS_DELETED] Partitions {format_topic_partitions(offsets)} have been deleted, or are "
            f"away; they were read up to {read}.{self._empty_directories()}",
            fails=self._options.read.fail_on_data_loss,
            advice="Nothing of them is skipped: mount or restore them and start the query again, which goes on "
            "there. If they were deleted on purpose, or the options leave them out, set failOnDataLoss to false to go on "
            "without them.",
            then="The stream goes on without them, and will read those that come back from these offsets on",
            path=", ".join(self._options.read.paths),
        )

    def _report_behind(self, log_ends: Offsets, start: Offsets) -> None:
        """Report logs that end before what was read of them."""
        for key, end_offset in log_ends.items():
            report_data_loss(
                f"[KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED] Partition {_name(key)}'s offset was changed from "
                f"{start[key]} to {end_offset}: this is an older copy, or the log was truncated or created anew.",
                fails=self._options.read.fail_on_data_loss,
                advice="Nothing is skipped or read again: if it is an older copy, put the newer one back and start "
                "the query again. Otherwise start a query with a new checkpoint; with failOnDataLoss=false, this one "
                f"goes on at offset {start[key]} once the log has grown past it.",
                then=f"The stream goes on at offset {start[key]} once the log has grown past it, without what is "
                "appended before",
                path=self._monitor.partitions[key].directory.path,
            )

    def _empty_directories(self) -> str:
        """Write a sentence about directories that volumes may have to be mounted on, or nothing if there are none."""
        directories = self._monitor.empty_directories()
        shown = first_of(directories, _SHOWN_DIRECTORIES)
        return f" Nothing is in {shown}: is a volume not mounted?" if directories else ""

    def _limited(self, start: Offsets, ends: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        limits = self._options.limits
        if not limits.are_given:
            return ends
        begins = {key: self._begin(key, start) for key, end in ends.items() if end > start.get(key, -1)}
        sizes = {key: ends[key] - begin for key, begin in begins.items() if ends[key] > begin}
        if limits.min_offsets is not None and self._final_ends is None and self._waits(sum(sizes.values())):
            return {key: start[key] for key in ends if key in start}
        if limits.max_offsets is not None:
            for key, share in shares(sizes, limits.max_offsets).items():
                ends[key] = min(ends[key], begins[key] + share)
        if limits.max_bytes is not None:
            wanted = {key: (begins[key], ends[key]) for key in sizes}
            ends |= self._ends_within(wanted, limits.max_bytes)
        return ends

    def _begin(self, key: TopicPartition, start: Offsets) -> int:
        return start[key] if key in start else self._monitor.log_of(key).log_start_offset

    def _waits(self, new_offsets: int) -> bool:
        """Return True if a batch waits for more records, which the first one of a run never does."""
        limits = self._options.limits
        now_s = time.monotonic()
        is_overdue = now_s - self._triggered_s >= limits.max_delay_ms / 1000
        if new_offsets >= (limits.min_offsets or 0) or is_overdue:
            self._triggered_s = now_s
            return False
        return True

    def _ends_within(
        self, wanted: Mapping[TopicPartition, tuple[int, int]], max_bytes: int
    ) -> dict[TopicPartition, int]:
        """End ranges of offsets within a number of bytes, shared in proportion to what each has."""
        ranges = []
        for key, (begin, end) in wanted.items():
            log = self._monitor.log_of(key)
            ranges.append(PartitionRange(log, max(begin, log.log_start_offset), end))
        sizes = {
            (each.topic, each.partition): sum(span.size_bytes for span in locate_spans(each))
            for each in ranges
        }
        within = shares(sizes, max_bytes)
        return {
            (each.topic, each.partition): _end_within(each, within.get((each.topic, each.partition), 1))
            for each in ranges
        }

    def plan(self, start: Offsets, end: Offsets) -> ScanPlan:
        """Plan the read of a micro-batch.

        Raises:
            DataLossError: With ``failOnDataLoss``, records between the two were deleted or truncated.
            SegmentLogError: A log cannot be read.
        """
        # Of a first batch that is repeated, the initial offsets are looked up again: there may be more partitions, and
        # some may start after its end. Spark 4.0 and 4.1 plan the empty batch at its end before they repeat it.
        is_first = start == self._initial and (self._position is None or self._position == end)
        self._position = end
        may_start_later = self._unrepeatable_starts if is_first else ()
        if not is_first:
            self._check_deleted(start.keys() - end.keys())
        wanted: dict[TopicPartition, tuple[int | None, int]] = {}
        for key, end_offset in end.items():
            start_offset = start.get(key)
            if start_offset is None or start_offset < end_offset:
                wanted[key] = start_offset, end_offset
            elif start_offset > end_offset and key not in may_start_later:
                self._report_loss(
                    "PARTITION_OFFSET_CHANGED",
                    f"Partition {_name(key)}'s offset was changed from {start_offset} to {end_offset}: it was "
                    "truncated, or created anew.",
                )
        plan = self._planned(wanted)
        self._has_planned |= bool(wanted)
        return plan

    def _planned(self, wanted: Mapping[TopicPartition, tuple[int | None, int]]) -> ScanPlan:
        formats = self.formats.plan_anew()
        if not wanted:
            return plan_ranges(self._filesystem, (), self._options.read, formats=formats)

        def planned(watch: CommitMonitor) -> ScanPlan:
            directories = self._directories(wanted.keys(), watch)
            ranges = self._filesystem.map(
                lambda item: self._range(item[1], *wanted[item[0]]), sorted(directories.items())
            )
            present = [each for each in ranges if not each.is_empty]
            return plan_ranges(self._filesystem, present, self._options.read, formats=formats)

        return read_consistently(CommitMonitor(self._filesystem), planned)

    def _directories(
        self, keys: Iterable[TopicPartition], watch: CommitMonitor
    ) -> dict[TopicPartition, PartitionDirectory]:
        """Return the directories of partitions as they are now."""
        if not all(key in self._monitor.partitions for key in keys):
            # Nothing was looked at in this run.
            self._poll()
        found = {}
        roots: dict[str, LogDirectoryFiles] = {}

        def root_of(path: str) -> LogDirectoryFiles:
            if path not in roots:
                watch.observe(path)
                roots[path] = LogDirectoryFiles(self._filesystem, path)
                roots[path].visibility = watch.visibility_of(path)
                roots[path].reported = self._monitor.reported_of(path)
            return roots[path]

        for key in keys:
            tailed = self._monitor.partitions.get(key)
            if tailed is None or not self._exists(tailed.directory):
                self._check_deleted([key])
                continue
            copies = tuple(each for each in tailed.directory.copies if self._exists(each))
            found[key] = dataclasses.replace(tailed.directory, copies=copies).anew(root_of)
        return found

    def _exists(self, directory: PartitionDirectory) -> bool:
        return self._filesystem.status(directory.path, follow_symlinks=True) is not None

    def _range(
        self, directory: PartitionDirectory, start_offset: int | None, end_offset: int
    ) -> PartitionRange:
        """Resolve the range of offsets to read of a partition, and report those that do not exist any more."""
        options = self._options.read
        key = directory.topic_partition
        is_continued = start_offset is not None and start_offset != (self._initial or {}).get(key)
        log = load_log(self._filesystem, directory, options, start_offset=start_offset or 0)
        if options.remote_storage and start_offset is not None and start_offset < log.log_start_offset:
            remote_paths = split_paths(self._filesystem, options.remote_storage)
            directory = with_present_remote_half(self._filesystem, directory, remote_paths)
            log = load_log(self._filesystem, directory, options, start_offset=start_offset)
        if start_offset is None:
            start_offset = log.log_start_offset
            if start_offset:
                self._report_loss(
                    "ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO",
                    f"Added partition {_name(key)} starts from {start_offset} instead of 0.",
                )
            start_offset = min(start_offset, end_offset)
        # The end was decided when the batch was: whatever the isolation level and the high watermark are, it stays.
        wanted = self._resolved(log, start_offset, end_offset)
        if is_continued and wanted.start_offset == start_offset > wanted.log.log_start_offset:
            # Damage that reaches into this batch was described by the one that it began in.
            _warn_of_damage_before(wanted)
            wanted = dataclasses.replace(wanted, is_first=False)
        # A log that is shorter than when the end was chosen is being truncated.
        may_be_unstable = wanted.end_offset < end_offset or self._may_be_unstable(directory)
        if options.isolation_level == "read_committed" and may_be_unstable:
            _require_stable(wanted)
        return wanted

    def _may_be_unstable(self, directory: PartitionDirectory) -> bool:
        """Return True if a transaction may be open below the end of a batch.

        An earlier run, perhaps with other options, chose the end; or a log was truncated since it was chosen.
        """
        return not self._has_planned or self._monitor.was_truncated(directory.topic_partition, directory.root)

    def _resolved(self, log: PartitionLog, start_offset: int, end_offset: int) -> PartitionRange:
        return resolve_range(
            log, start_offset, end_offset, fail_on_data_loss=self._options.read.fail_on_data_loss
        )

    def _check_deleted(self, keys: Iterable[TopicPartition]) -> None:
        deleted = sorted(keys)
        if not deleted:
            return
        directories = self._empty_directories()
        message = f"Partitions {format_topic_partitions(deleted)} have been deleted.{directories}"
        if directories and not self._options.read.fail_on_data_loss:
            # The batch would skip what is only away.
            raise DataLossError(
                f"[KAFKA_DATA_LOSS.PARTITIONS_DELETED] {message} Mount it and start the query again, which repeats this "
                "batch. Or remove the empty directories, also from path, to go on without these partitions.",
                path=", ".join(self._options.read.paths),
            )
        self._report_loss("PARTITIONS_DELETED", message)

    def _report_loss(self, condition: str, message: str) -> None:
        report_data_loss(
            f"[KAFKA_DATA_LOSS.{condition}] {message} Some data may have been missed.",
            fails=self._options.read.fail_on_data_loss,
            then="The stream goes on",
        )


def backlog(
    filesystem: ReadableFileSystem, options: StreamOptions, read: Offsets
) -> dict[TopicPartition, tuple[int, int]]:
    """Measure what a stream has not read yet of the logs as they are now.

    Returns:
        By partition, the number of offsets, and the bytes of log files that they take. Partitions that are read to their
        ends are left out.

    Raises:
        SegmentLogError: A log cannot be read.
    """
    monitor = PartitionMonitor(filesystem, options)
    left = {}
    for key, end_offset in monitor.poll().items():
        log = monitor.log_of(key)
        wanted = PartitionRange(log, max(read.get(key, 0), log.log_start_offset), end_offset)
        if not wanted.is_empty:
            left[key] = wanted.size, sum(span.size_bytes for span in locate_spans(wanted))
    return left


def shares(sizes: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """Share a limit among partitions in proportion to what they have, so that none gets nothing.

    Source: ``KafkaMicroBatchStream.rateLimit`` of Spark's Kafka source.
    """
    total = sum(sizes.values())
    if total <= limit:
        return dict(sizes)
    proportions = {key: limit * (size / total) for key, size in sizes.items()}
    return {key: math.ceil(each) if each < 1 else math.floor(each) for key, each in proportions.items()}


def _end_within(wanted: PartitionRange, max_bytes: int) -> int:
    """Return the end offset of the first batches of a range with about ``max_bytes``, but at least one batch."""
    left_bytes = max_bytes
    for span in locate_spans(wanted):
        if span.size_bytes > left_bytes:
            index = wanted.log.segment_index_for(span.start_offset)
            assert index is not None  # noqa: S101  (the span was located in it)
            segment = wanted.log.read_segment(index, lambda segment: segment)
            pieces = cut_span(span, segment, max(left_bytes, 1))
            return pieces[0].end_offset
        left_bytes -= span.size_bytes
        if left_bytes <= 0:
            return span.end_offset
    return wanted.end_offset


def _warn_of_damage_before(wanted: PartitionRange) -> None:
    """Warn of records that a batch loses to damage from an earlier batch, which may have been whole when it was read."""
    log, start_offset, end_offset = wanted.log, wanted.start_offset, wanted.end_offset
    index = log.segment_index_for(start_offset)
    if index is None or not log.skip_damage:
        return
    damage = log.read_segment(index, lambda segment: segment.locate_offset(start_offset).damage)
    if damage is not None and damage.start_offset < start_offset < damage.end_offset:
        damage_offset, end_offset = damage.start_offset, min(end_offset, damage.end_offset)
    elif log.missing_from is not None and log.missing_from < start_offset:
        damage_offset = log.missing_from
    else:
        return
    _log.warning(
        "%s-%d: offsets %d to %d of a batch are left out: they are in damage that begins at offset %d, in an earlier batch.",
        *(log.topic, log.partition, start_offset, end_offset - 1, damage_offset),
    )


def _require_stable(wanted: PartitionRange) -> None:
    """Require that no transaction is open in what is read of a batch whose end was chosen earlier."""
    log, end_offset = wanted.log, wanted.end_offset
    stable_offset = last_stable_offset(log)
    if not wanted.is_empty and stable_offset < end_offset:
        raise OptionError(
            f"Expected {log.topic}-{log.partition} to have no open transaction below offset {end_offset}, where the "
            f"batch ends, found one from offset {stable_offset} on. Either the batch was begun with "
            "isolationLevel=read_uncommitted, or a truncation has removed the transaction's marker. Commit or abort the "
            "transaction (segmentlog transactions names it) and start the query again. Or finish the batch with "
            "isolationLevel=read_uncommitted, which reads the transaction's records, too."
        )


def _name(key: TopicPartition) -> str:
    return f"{key[0]}-{key[1]}"
