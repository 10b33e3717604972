"""Follow logs while others write to them: records as they come, of new segments, partitions and topics too.

A round looks at one status for each directory and active segment, and reads only logs that have changed. What a log did
since the last round is told from its files: what retention deleted is passed over, and what was truncated is read again
from there, which leader epochs and topic ids reveal as they do to consumers (KIP-320, KIP-516).
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from storage_core.checkpoint.truncations_file import truncated_to, truncations_bytes
from storage_core.directory import LogDirectoryFiles, PartitionDirectory
from storage_core.directory.visibility import CommitWatch, read_consistently
from storage_core.errors import DataLossError, LogTruncationError, OptionError, SegmentLogError
from storage_core.log.leader_epoch_cache import end_offset_for, epoch_for_offset
from storage_core.options.bounds import LatestBound, TimestampBound
from storage_core.scan.offset_ranges import PartitionRange
from storage_core.scan.plan import plan_partition
from storage_core.scan.pruning import prune_partition
from storage_core.scan.read import read_task
from storage_core.scan.resolve import (
    ReadLimit,
    load_log,
    resolve,
    resolve_partition,
    resolve_range,
    split_paths,
)
from storage_core.scan.tail import is_settled, present_partitions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from storage_core.directory import PartitionLog
    from storage_core.filesystem import FileStatus, FileSystem
    from storage_core.options import ReadOptions
    from storage_core.options.bounds import TopicPartition


_log = logging.getLogger(__name__)
# A log directory without partitions is not watched, so that its first one shows only in a new search.
_SEARCH_AGAIN_S: Final = 30
# What looks like damage while a broker truncates or replaces files is gone in the next rounds.
_ATTEMPTS: Final = 3
_Mark = tuple["FileStatus | None", "FileStatus | None"]


@dataclass(slots=True)
class _Followed:
    """A partition, and how far it was read.

    Attributes:
        next_offset: The offset after what was read.
        active_path: The segment that grows; empty before the first look.
        mark: The status of directory and active segment before the last look; None to look again in any case.
        topic_id: The topic's id, which a topic that is created anew does not have.
        epoch: The leader epoch of the last record that was read; None if it is not known.
        truncations_bytes: How much of the directory's list of truncations was taken into account.
        failures: How many looks failed, one after the other.
    """

    directory: PartitionDirectory
    next_offset: int
    active_path: str = ""
    mark: _Mark | None = None
    topic_id: str | None = None
    epoch: int | None = None
    truncations_bytes: int = 0
    failures: int = 0

    @property
    def name(self) -> str:
        return f"{self.directory.topic}-{self.directory.partition}"


class LogFollower:
    """Reads what the options ask for, and then what is appended.

    Args:
        filesystem: Where to read.
        options: What to read. They must have no ends. With ``fail_on_data_loss``, records that were deleted or
            truncated are an error; otherwise a warning is logged, and reading goes on.
        schema: The columns to read, the offset among them.
        last: Of each partition, only this many of the offsets that it has at the beginning.
    """

    def __init__(
        self, filesystem: FileSystem, options: ReadOptions, schema: pa.Schema, *, last: int | None = None
    ) -> None:
        if not isinstance(options.ending, LatestBound):
            raise OptionError("What is followed has no end. Leave out the options that end a read.")
        self._filesystem = filesystem
        self._options = replace(options, starting_timestamp_strategy="latest")
        self._schema = schema
        self._last = last
        self._watch = CommitWatch(filesystem)
        self._partitions: dict[TopicPartition, _Followed] | None = None
        # By path, the status of the directories whose entries are partitions or log directories.
        self._places: dict[str, FileStatus | None] = {}
        self._searched_s = time.monotonic()

    def read_new(self) -> Iterator[pa.RecordBatch]:
        """Read what there is, on the first call, and on the others what is new; by topic, partition and offset.

        Raises:
            SegmentLogError: A log cannot be read, in several calls one after the other.
        """
        if self._partitions is None:
            yield from self._read_first()
            return
        changed_roots = self._changed_roots()
        if self._have_places_changed():
            self._partitions = self._found_again(self._partitions)
            if self._options.ending_at == "highWatermark":
                # It is in a file of the root.
                changed_roots = set(self._watch.known)
        for followed in list(self._partitions.values()):
            mark = self._mark_of(followed)
            is_unchanged = mark == followed.mark and followed.directory.root.path not in changed_roots
            if not is_unchanged:
                is_certain = is_settled(*mark) and not followed.directory.copies
                followed.mark = mark if is_certain else None
                yield from self._read_followed(followed)

    def _read_first(self) -> Iterator[pa.RecordBatch]:
        self._note_places(split_paths(self._filesystem, self._options.paths))
        resolution = read_consistently(
            self._watch, lambda watch: resolve(self._filesystem, self._options, self._options.where, watch)
        )
        self._partitions = {}
        ranges = []
        for each in resolution.partitions:
            start_offset = each.start_offset
            if self._last is not None:
                start_offset = max(start_offset, each.end_offset - self._last)
            ranges.append(each.part(start_offset, each.end_offset))
            self._partitions[each.topic, each.partition] = _Followed(each.log.directory, start_offset)
        self._note_places([*self._places, *{each.log.directory.root.path for each in ranges}])
        for each in ranges:
            yield from self._attempt(self._partitions[each.topic, each.partition], each)

    def _changed_roots(self) -> set[str]:
        """The log directories in which commits or truncations became visible."""
        before = dict(self._watch.known)
        self._watch.has_changed()
        return {root for root, visibility in self._watch.known.items() if visibility != before.get(root)}

    def _note_places(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._places.setdefault(path, None)

    def _have_places_changed(self) -> bool:
        """Whether a directory may have other entries than at the last look."""
        found = {path: self._filesystem.status(path, follow_symlinks=True) for path in self._places}
        have_changed = found != self._places
        self._places = {path: status if is_settled(status) else None for path, status in found.items()}
        return have_changed or time.monotonic() - self._searched_s > _SEARCH_AGAIN_S

    def _found_again(self, known: dict[TopicPartition, _Followed]) -> dict[TopicPartition, _Followed]:
        """The partitions that there are now: known ones as far as they were read, and new ones."""
        partitions: dict[TopicPartition, _Followed] = {}
        for directory in self._selected():
            followed = known.get(directory.topic_partition)
            if followed is None:
                followed = _Followed(directory, self._first_offset_of_new(directory))
                _log.info("Follows %s, which is new.", followed.name)
            elif followed.directory.path != directory.path:
                # Moved to another disk.
                followed.mark = None
            followed.directory = directory
            partitions[directory.topic_partition] = followed
        self._note_places(each.directory.root.path for each in partitions.values())
        for gone in known.keys() - partitions.keys():
            _log.warning("%s-%d is gone: its directory was deleted or moved away.", *gone)
        return partitions

    def _selected(self) -> Sequence[PartitionDirectory]:
        self._searched_s = time.monotonic()
        paths = split_paths(self._filesystem, self._options.paths)
        selected = present_partitions(self._filesystem, self._options, paths, self._watch)
        condition = self._options.where
        if condition is None:
            return selected
        return [each for each in selected if not prune_partition(condition, *each.topic_partition).is_empty]

    def _first_offset_of_new(self, directory: PartitionDirectory) -> int:
        if not isinstance(self._options.starting, TimestampBound):
            return 0
        return resolve_partition(self._filesystem, directory, self._options).start_offset

    def _mark_of(self, followed: _Followed) -> _Mark:
        directory_status = self._filesystem.status(followed.directory.path, follow_symlinks=True)
        if not followed.active_path:
            return directory_status, None
        return directory_status, self._filesystem.status(followed.active_path)

    def _read_followed(self, followed: _Followed) -> Iterator[pa.RecordBatch]:
        """Read what a partition has beyond what was read of it."""
        try:
            present = self._present_range(followed)
        except SegmentLogError as error:
            self._note_failure(followed, error)
            return
        yield from self._attempt(followed, present)

    def _attempt(self, followed: _Followed, present: PartitionRange) -> Iterator[pa.RecordBatch]:
        """Read the part of a range that was not read yet. What fails is tried again in the next rounds."""
        root = present.log.directory.root
        if truncations_bytes(self._filesystem, root.path) != root.visibility.truncations_bytes:
            # A truncation that this range does not know: the next round looks again.
            followed.mark = None
            return
        try:
            self._note_start(followed, present)
            yield from self._read_on(followed, present)
        except SegmentLogError as error:
            self._note_failure(followed, error)
        else:
            followed.failures = 0

    def _note_failure(self, followed: _Followed, error: SegmentLogError) -> None:
        followed.mark = None
        if self._filesystem.status(followed.directory.path, follow_symlinks=True) is None:
            # Deleted, or moved away: the next look for partitions will tell.
            self._places = dict.fromkeys(self._places)
            return
        followed.failures += 1
        if followed.failures >= _ATTEMPTS:
            raise error

    def _present_range(self, followed: _Followed) -> PartitionRange:
        """All of a log as it is now."""
        known = followed.directory
        path = known.root.path
        level = logging.DEBUG if followed.active_path else logging.WARNING

        def resolved(watch: CommitWatch) -> PartitionRange:
            def root_of(path: str) -> LogDirectoryFiles:
                root = LogDirectoryFiles(self._filesystem, path)
                root.visibility = watch.visibility_of(path)
                return root

            log = load_log(self._filesystem, known.anew(root_of), self._options)
            for notice in log.notices:
                _log.log(level, "%s", notice)
            limit = ReadLimit(log, self._options.ending_at, self._options.isolation_level)
            return resolve_range(log, log.log_start_offset, limit.offset, limit)

        # A watch of its own: what it notices must not hide from the other partitions that something changed.
        watch = CommitWatch(self._filesystem, {path: self._watch.visibility_of(path)})
        return read_consistently(watch, resolved)

    def _note_start(self, followed: _Followed, present: PartitionRange) -> None:
        """Compare what was read with the log as it is now, and go back or forward where they do not fit."""
        log = present.log
        self._go_back_to(followed, self._truncated_to(followed, log))
        if followed.next_offset < log.log_start_offset:
            self._report_loss(followed, log)
            followed.next_offset = log.log_start_offset
        bases = log.segments.base_offsets
        if bases:
            followed.active_path = log.segments[-1].log_path
        followed.topic_id = log.topic_id or followed.topic_id
        followed.truncations_bytes = log.directory.root.visibility.truncations_bytes

    def _truncated_to(self, followed: _Followed, log: PartitionLog) -> int:
        """The offset up to which the log still has what was read."""
        offset = followed.next_offset
        topic_id = log.topic_id
        if topic_id is not None and followed.topic_id not in (None, topic_id):
            _log.warning("The topic of %s was deleted and created anew.", followed.name)
            return log.log_start_offset if offset else offset
        # Read after the log end, because an epoch is noted before its first record is appended.
        offset = min(offset, max(log.log_end_offset, log.log_start_offset))
        if followed.epoch is not None:
            offset = min(offset, _end_of_epoch(log, followed.epoch))
        if followed.active_path:
            root = log.directory.root.path
            noted = truncated_to(self._filesystem, root, log.topic, log.partition, followed.truncations_bytes)
            offset = offset if noted is None else min(offset, noted)
        return offset

    def _go_back_to(self, followed: _Followed, offset: int) -> None:
        if offset >= followed.next_offset:
            return
        message = (
            f"Expected {followed.name} to keep its records up to offset {followed.next_offset - 1}, which were read, "
            f"found that it was truncated to offset {offset}, or created anew."
        )
        if self._options.fail_on_data_loss:
            raise LogTruncationError(
                f"{message} To read on from there, set failOnDataLoss to false.",
                path=followed.directory.path,
                offset=offset,
                last_offset=followed.next_offset - 1,
            )
        _log.warning("%s Reads on from there.", message)
        followed.next_offset = offset
        followed.epoch = None

    def _report_loss(self, followed: _Followed, log: PartitionLog) -> None:
        if not followed.next_offset and not followed.active_path:
            # New, and its first records are deleted already.
            return
        message = (
            f"Expected to read {followed.name} on from offset {followed.next_offset}, found that it starts at offset "
            f"{log.log_start_offset}: records were deleted before they were read."
        )
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{message} To read on from there, set failOnDataLoss to false.",
                path=log.path,
                offset=followed.next_offset,
                last_offset=log.log_start_offset - 1,
            )
        _log.warning("%s Reads on from there.", message)

    def _read_on(self, followed: _Followed, present: PartitionRange) -> Iterator[pa.RecordBatch]:
        start_offset = followed.next_offset
        if start_offset < present.end_offset:
            wanted = present.part(start_offset, present.end_offset)
            for task in plan_partition(wanted, self._options).tasks:
                for batch in read_task(self._filesystem, task, self._schema):
                    # Before it is handed on: what the caller has must not come again.
                    offset = batch["offset"][-1].as_py()
                    if offset is not None:
                        followed.next_offset = offset + 1
                    yield batch
            followed.next_offset = present.end_offset
        followed.epoch = epoch_for_offset(present.log.leader_epochs, followed.next_offset - 1)


def _end_of_epoch(log: PartitionLog, epoch: int) -> int:
    """Where the records of a leader epoch end in a log, or would."""
    end_offset = end_offset_for(log.leader_epochs, epoch, log.log_end_offset).end_offset
    # None is known of an epoch above all others.
    return log.log_end_offset if end_offset < 0 else end_offset
