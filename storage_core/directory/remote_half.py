"""A tiered topic's log from its local and its remote half (KIP-405).

The log start is that of the checkpoint beside the local half: what is below it is deleted, though remote storage may still
hold it. Remote segments are read below the first local one, and local ones above, wherever both have the records. Which
remote records belong to the log is told by leader epochs, without a look into a segment: an unclean election leaves
segments in remote storage whose records no broker serves. The local checkpoint has the epochs of the whole log.

A topic that is in no local directory, because it was deleted there, is read from remote storage alone. A partition
that only remote storage has is not read if its topic has others here: it is another broker's, with newer records.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from storage_core.checkpoint import EpochEntry
from storage_core.directory.discovery import choose_replica, find_partitions
from storage_core.directory.joined_log import UP_TO_LOG_END, JoinedLog, Piece, shown_ranges, uncovered
from storage_core.errors import SegmentLogError, first_of, warn_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from storage_core.directory.log_directory_files import PartitionDirectory
    from storage_core.directory.partition_log import PartitionLog
    from storage_core.filesystem import ReadableFileSystem


_log = logging.getLogger(__name__)
_SHOWN_PARTITIONS: Final = 3


def with_remote_halves(
    filesystem: ReadableFileSystem,
    directories: Iterable[PartitionDirectory],
    remote_paths: Sequence[str],
    *,
    is_repeated: bool = False,
) -> list[PartitionDirectory]:
    """Give local directories their remote halves, and add the topics that only remote storage has.

    Args:
        filesystem: Where to look.
        directories: Those that were found in local paths.
        remote_paths: Remote storage, as log directories. Of two that have the same offsets, the first one counts.
        is_repeated: Whether these paths were searched before: what is left out is then no news for the log.

    Raises:
        LogDirectoryError: A path does not exist, or holds no partition.
    """
    if not remote_paths:
        return list(directories)
    halves: dict[tuple[str, int], list[PartitionDirectory]] = {}
    for path in remote_paths:
        for each in find_partitions(
            filesystem, [path], must_be_log_directory=True, is_repeated=is_repeated, is_remote=True
        ):
            halves.setdefault(each.topic_partition, []).append(each)
    found = [replace(each, remote=tuple(halves.pop(each.topic_partition, ()))) for each in directories]
    topics = {directory.topic for directory in found}
    alone = [key for key in halves if key[0] not in topics]
    elsewhere = sorted(f"{topic}-{partition}" for topic, partition in halves if topic in topics)
    level = logging.DEBUG if is_repeated else logging.WARNING
    if elsewhere:
        message = (
            "Left out what only remote storage has, %s: the disk of another broker has the newest records."
        )
        _log.log(level, message, first_of(elsewhere, _SHOWN_PARTITIONS))
    if alone:
        names = sorted({topic for topic, _ in alone})
        message = "Read from remote storage alone, because no local directory has them: %s"
        _log.log(level, message, first_of(names, _SHOWN_PARTITIONS))
    found += [choose_replica(filesystem, halves[key], level) for key in alone]
    return sorted(found, key=lambda each: each.topic_partition)


def with_present_remote_half(
    filesystem: ReadableFileSystem, directory: PartitionDirectory, remote_paths: Sequence[str]
) -> PartitionDirectory:
    """Look again for the remote half of one directory, because retention may have moved segments meanwhile."""
    filesystem.forget_listings()
    found = with_remote_halves(filesystem, [directory], remote_paths, is_repeated=True)
    return next(each for each in found if each.topic_partition == directory.topic_partition)


def join_halves(
    filesystem: ReadableFileSystem,
    local: PartitionLog,
    remote: Sequence[PartitionDirectory],
    load: Callable[[PartitionDirectory], PartitionLog],
) -> PartitionLog:
    """Join a log with what remote storage has of it below its first segment. Notices of the result say what is missing.

    Only listings and checkpoints are read, and the end of the last remote segment if it may be below the first local one.

    Returns:
        The local log itself if remote storage has nothing that it lacks.
    """
    root = local.directory.root
    joined, is_whole = _joined(filesystem, local, [load(each) for each in remote])
    if not is_whole and not root.has_looked_again:
        # Since remote storage was listed, a broker may have moved segments there. One more look serves all partitions.
        root.has_looked_again = True
        filesystem.forget_listings()
        joined, _ = _joined(filesystem, local, [load(each) for each in remote])
    return joined


def _joined(
    filesystem: ReadableFileSystem, local: PartitionLog, remote: Sequence[PartitionLog]
) -> tuple[PartitionLog, bool]:
    """Join a log with remote logs.

    Returns:
        The log, and whether there is no hole between its halves.
    """
    local_start = local.log_start_offset if local.segments else UP_TO_LOG_END
    start_offset = local.directory.root.log_start_offsets.get(local.directory.topic_partition, 0)
    name = f"{local.topic}-{local.partition}"
    pieces: list[Piece] = []
    notices: list[str] = []
    is_one_history = not isinstance(local, JoinedLog)
    for log in remote:
        if None not in (local.topic_id, log.topic_id) and local.topic_id != log.topic_id:
            warn_once(
                _log,
                f"Left out {log.path}: it is of a topic with the id {log.topic_id} that had this name, and {local.path} has "
                f"{local.topic_id}.",
            )
            continue
        log.end_with_valid_batches()
        fork = _fork_offset(_epochs_of(local), _epochs_of(log), start_offset)
        end_offset = _end_below(log, local_start)
        if fork < end_offset:
            is_one_history = False
            notices.append(
                f"{log.path} is not read from offset {fork} of {name} on: by the leader epochs of the local half, its records "
                "there are of a leader whose history was given up."
            )
        pieces += [
            Piece(start, end, log)
            for start, end in uncovered(
                max(start_offset, log.log_start_offset), min(end_offset, fork), pieces
            )
        ]
        pieces.sort(key=lambda piece: piece.start_offset)
    if not pieces:
        return local, local.start_below_segments is None
    missing: list[tuple[int, int]] = []
    if local.segments:
        missing = list(uncovered(pieces[0].start_offset, local_start, pieces))
        if missing:
            notices.append(f"Neither {local.path} nor remote storage has offsets {shown_ranges(missing)}.")
        pieces.append(Piece(local_start, UP_TO_LOG_END, local))
    joined = JoinedLog(filesystem, pieces, [local, *remote], is_one_history=is_one_history)
    joined.notices = [*local.notices, *notices]
    return joined, not missing


def _end_below(log: PartitionLog, limit_offset: int) -> int:
    """Return the end of a remote log, or a limit below it. The end is looked up only if it may be below the limit."""
    if log.segments and log.segments.base_offsets[-1] >= limit_offset:
        return limit_offset
    return min(log.valid_end_offset, limit_offset)


def _epochs_of(log: PartitionLog) -> Sequence[EpochEntry]:
    try:
        return log.leader_epochs
    except SegmentLogError:
        return ()


def _fork_offset(local: Sequence[EpochEntry], remote: Sequence[EpochEntry], start_offset: int) -> int:
    """Find the first offset, from a log start on, that has another leader epoch in remote storage.

    Returns:
        The offset, which may be beyond the end of remote storage; `UP_TO_LOG_END` if there is none.
    """
    if not local or not remote:
        return UP_TO_LOG_END
    starts = sorted({start_offset, *(entry.start_offset for entry in (*local, *remote))})
    known_from = max(start_offset, local[0].start_offset, remote[0].start_offset)
    for offset in starts:
        if offset >= known_from and _epoch_at(local, offset) != _epoch_at(remote, offset):
            return offset
    return UP_TO_LOG_END


def _epoch_at(epochs: Sequence[EpochEntry], offset: int) -> int:
    return epochs[bisect_right(epochs, offset, key=attrgetter("start_offset")) - 1].epoch
