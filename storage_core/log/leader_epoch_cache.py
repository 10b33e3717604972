"""Which offset each leader epoch began with (Kafka's ``LeaderEpochFileCache``).

Epochs and start offsets both ascend. What changes is written to ``leader-epoch-checkpoint`` before
the call returns. A crash may bring back data that a truncation had cut, and with it an older or a
newer checkpoint: whoever loads a log truncates the cache to the log's offsets again, and recovery
assigns what it finds in the batches. An epoch that begins at the log end has no batch yet: it stays.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from storage_core.checkpoint import EpochEntry, read_leader_epoch_checkpoint
from storage_core.checkpoint.partition_files import write_leader_epoch_checkpoint
from storage_core.record.batch_header import MAGIC_V2

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from storage_core.filesystem import FileSystem

__all__ = ["EpochEndOffset", "LeaderEpochCache", "end_offset_for", "epoch_for_offset"]


_UNDEFINED_EPOCH: Final = -1
_UNDEFINED_EPOCH_OFFSET: Final = -1


class EpochEndOffset(NamedTuple):
    """Up to where a replica agrees with a log: the pair (leader epoch, end offset).

    Args:
        leader_epoch: The latest epoch that both know; -1 if there is no telling.
        end_offset: The offset behind its last record in the log; -1 likewise.
    """

    leader_epoch: int
    end_offset: int


class LeaderEpochCache:
    """The leader epochs of one log. One writer; readers may ask at any time.

    Args:
        filesystem: Where the checkpoint stands.
        path: The checkpoint; it need not exist.
        read_only: Changes stay in memory.

    Raises:
        CorruptCheckpointError: The checkpoint cannot be parsed.
        UnreadableError: This user may not read it.
    """

    def __init__(self, filesystem: FileSystem, path: str, *, read_only: bool = False) -> None:
        self._filesystem = filesystem
        self._path = path
        self._read_only = read_only
        # Replaced as a whole by every change, so that a reader sees one state.
        self._entries: tuple[EpochEntry, ...] = read_leader_epoch_checkpoint(filesystem, path)
        self._is_changed = False

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """All epochs, ascending."""
        return self._entries

    @property
    def latest_epoch(self) -> int | None:
        """The last epoch that is known; it may have no batch yet."""
        entries = self._entries
        return entries[-1].epoch if entries else None

    def assign(self, epoch: int, start_offset: int) -> None:
        """Let an epoch begin; nothing happens if it is the latest one and began earlier.

        Entries that are not below it in epoch and start offset make room for it.

        Raises:
            ValueError: A negative epoch or offset.
        """
        self._assign(epoch, start_offset)
        self.flush()

    def assign_batches(self, headers: npt.NDArray[Any]) -> None:
        """Do what every batch of an append says: assign its epoch, or clear, if its format knows none.

        Args:
            headers: The batches' headers, a structured array of `HEADER_DTYPE`.

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
        """Assign what batches say that recovery found: epochs above the latest one only."""
        epochs = headers["leader_epoch"]
        latest = -1 if not self._entries else self._entries[-1].epoch
        added: list[EpochEntry] = []
        for index in _changes(epochs):
            epoch = int(epochs[index])
            if epoch > latest:
                latest = epoch
                added.append(EpochEntry(epoch, int(headers["base_offset"][index])))
        if added:
            # The first may take the place of others; those behind it ascend. There may be as many as batches.
            self._assign(added[0].epoch, added[0].start_offset)
            self._replace((*self._entries, *added[1:]))
        self.flush()

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget the epochs that begin at an offset or behind it."""
        entries = self._entries
        if end_offset >= 0 and entries and entries[-1].start_offset >= end_offset:
            self._replace(entries[: bisect_left(entries, end_offset, key=_start_offset)])
            self.flush()

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget the epochs that end at an offset or before it; the one that holds it begins there."""
        entries = self._entries
        count = bisect_right(entries, start_offset, key=_start_offset)
        if count == 0 or (count == 1 and entries[0].start_offset == start_offset):
            return
        self._replace((EpochEntry(entries[count - 1].epoch, start_offset), *entries[count:]))
        self.flush()

    def clear(self) -> None:
        """Forget all epochs."""
        if self._entries:
            self._replace(())
        self.flush()

    def flush(self) -> None:
        """Write the checkpoint if anything has changed since.

        Raises:
            StorageError: The file could not be written; a later flush tries again.
        """
        if self._is_changed and not self._read_only:
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
    """The epoch up to which a replica with ``epoch`` agrees with this log, and where that one ends.

    Args:
        entries: The epochs of the log, ascending.
        epoch: The last epoch that the replica has.
        log_end_offset: Where the latest epoch ends.

    Returns:
        The epoch and the offset behind its last record. -1 and -1 if the epoch is undefined or above
        all that are known; the epoch itself and where the first one begins if it is below them.
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
    """The epoch in which an offset was, or will be, written; None if it lies before all that are known."""
    count = bisect_right(entries, offset, key=_start_offset)
    return entries[count - 1].epoch if count else None


def _epoch(entry: EpochEntry) -> int:
    return entry.epoch


def _start_offset(entry: EpochEntry) -> int:
    return entry.start_offset


def _changes(values: npt.NDArray[Any]) -> list[int]:
    """Where each run of equal values begins."""
    if len(values) < 2:  # noqa: PLR2004  (one batch, the usual append, is a run)
        return list(range(len(values)))
    is_start = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=is_start[1:])
    return is_start.nonzero()[0].tolist()
