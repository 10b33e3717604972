"""The start offset of each leader epoch (Kafka's ``LeaderEpochFileCache``).

Both epochs and start offsets ascend. A change is written to ``leader-epoch-checkpoint`` before the call returns. A crash
may restore truncated data, and with it an older or a newer checkpoint: loading a log truncates the cache to the log's
offsets again, and recovery adds the epochs that it finds in batches. An epoch may begin at the log end without a batch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from storage_core.checkpoint import EpochEntry, read_leader_epoch_checkpoint
from storage_core.checkpoint.partition_files import write_leader_epoch_checkpoint
from storage_core.record.batch_header import MAGIC_V2

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from storage_core.filesystem import FileSystem


_UNDEFINED_EPOCH: Final = -1
_UNDEFINED_EPOCH_OFFSET: Final = -1
_epoch = attrgetter("epoch")
_start_offset = attrgetter("start_offset")


class EpochEndOffset(NamedTuple):
    """The latest leader epoch that a replica shares with a log, and where it ends.

    Attributes:
        leader_epoch: The latest epoch that both have; -1 if unknown.
        end_offset: The offset after its last record in the log; -1 if unknown.
    """

    leader_epoch: int
    end_offset: int


class LeaderEpochCache:
    """The leader epochs of one log, for one writer and any number of readers."""

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        self._filesystem = filesystem
        self._path = path
        # Replaced by every change, so that a reader sees one state.
        self._entries: tuple[EpochEntry, ...] = read_leader_epoch_checkpoint(filesystem, path)
        self._is_changed = False

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """The epochs, ascending."""
        return self._entries

    @property
    def latest_epoch(self) -> int | None:
        """The latest epoch, which may have no batch yet, or None."""
        entries = self._entries
        return entries[-1].epoch if entries else None

    def assign(self, epoch: int, start_offset: int) -> None:
        """Add an epoch, unless it is the latest one and began earlier.

        Entries whose epoch or start offset is not below the new one's are removed.

        Raises:
            ValueError: A negative epoch or offset.
        """
        self._assign(epoch, start_offset)
        self.flush()

    def assign_batches(self, headers: npt.NDArray[Any]) -> None:
        """Assign the epoch of every batch of an append.

        A batch of an older format, which has no epoch, clears the cache.

        Raises:
            ValueError: A batch of format v2 has no epoch.
        """
        epochs = headers["leader_epoch"]
        # A message of format v0 or v1 is a header with epoch -1.
        for index in _changes(epochs):
            if headers["magic"][index] >= MAGIC_V2:
                self._assign(int(epochs[index]), int(headers["base_offset"][index]))
            elif self._entries:
                self._replace(())
        self.flush()

    def observe(self, headers: npt.NDArray[Any]) -> None:
        """Assign the epochs of batches that recovery found, if they are above the latest one."""
        epochs = headers["leader_epoch"]
        latest = -1 if not self._entries else self._entries[-1].epoch
        added: list[EpochEntry] = []
        for index in _changes(epochs):
            epoch = int(epochs[index])
            if epoch > latest:
                latest = epoch
                added.append(EpochEntry(epoch, int(headers["base_offset"][index])))
        if added:
            # Only the first can replace entries; the others ascend. There may be one for every batch.
            self._assign(added[0].epoch, added[0].start_offset)
            self._replace((*self._entries, *added[1:]))
        self.flush()

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove the epochs that begin at or after an offset."""
        entries = self._entries
        if end_offset >= 0 and entries and entries[-1].start_offset >= end_offset:
            self._replace(entries[: bisect_left(entries, end_offset, key=_start_offset)])
            self.flush()

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove the epochs that end at or before an offset.

        The epoch that holds the offset begins there.
        """
        entries = self._entries
        count = bisect_right(entries, start_offset, key=_start_offset)
        if count == 0 or (count == 1 and entries[0].start_offset == start_offset):
            return
        self._replace((EpochEntry(entries[count - 1].epoch, start_offset), *entries[count:]))
        self.flush()

    def clear(self) -> None:
        """Remove all epochs."""
        if self._entries:
            self._replace(())
        self.flush()

    def flush(self) -> None:
        """Write the checkpoint if anything has changed.

        Raises:
            StorageError: The file could not be written; a later flush retries it.
        """
        if self._is_changed:
            write_leader_epoch_checkpoint(self._filesystem, self._path, self._entries)
        self._is_changed = False

    def _assign(self, epoch: int, start_offset: int) -> None:
        if epoch < 0 or start_offset < 0:
            message = f"Expected a leader epoch and an offset from 0 on, found {epoch} and {start_offset}."
            raise ValueError(message)
        entries = self._entries
        if entries and epoch == entries[-1].epoch and start_offset >= entries[-1].start_offset:
            return
        kept = min(
            bisect_left(entries, epoch, key=_epoch), bisect_left(entries, start_offset, key=_start_offset)
        )
        self._replace((*entries[:kept], EpochEntry(epoch, start_offset)))

    def _replace(self, entries: tuple[EpochEntry, ...]) -> None:
        self._entries = entries
        self._is_changed = True


def end_offset_for(entries: Sequence[EpochEntry], epoch: int, log_end_offset: int) -> EpochEndOffset:
    """Find the latest epoch that a replica at ``epoch`` shares with this log, and where that epoch ends.

    Returns:
        The epoch and its end offset; -1 and -1 if ``epoch`` is undefined or above all known epochs; ``epoch`` and the
        start of the first known epoch if it is below all of them.
    """
    if epoch == _UNDEFINED_EPOCH:
        return EpochEndOffset(_UNDEFINED_EPOCH, _UNDEFINED_EPOCH_OFFSET)
    if entries and entries[-1].epoch == epoch:
        return EpochEndOffset(epoch, log_end_offset)
    above = bisect_right(entries, epoch, key=_epoch)
    if above == len(entries):
        return EpochEndOffset(_UNDEFINED_EPOCH, _UNDEFINED_EPOCH_OFFSET)
    return EpochEndOffset(entries[above - 1].epoch if above else epoch, entries[above].start_offset)


def epoch_for_offset(entries: Sequence[EpochEntry], offset: int) -> int | None:
    """Find the leader epoch of an offset, which may be one that is not written yet.

    Returns:
        The epoch, or None before all known epochs.
    """
    count = bisect_right(entries, offset, key=_start_offset)
    return entries[count - 1].epoch if count else None


def _changes(values: npt.NDArray[Any]) -> list[int]:
    """Return the start index of each run of equal values."""
    if len(values) < 2:  # noqa: PLR2004  (one batch, the usual append, is a run)
        return list(range(len(values)))
    is_start = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=is_start[1:])
    return is_start.nonzero()[0].tolist()
