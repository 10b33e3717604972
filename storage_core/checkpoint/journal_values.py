"""What a commit's journal says: the values of `commit_journal`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from storage_core.checkpoint.leader_epoch_checkpoint import EpochEntry

__all__ = ["AppendOperation", "CommitJournal", "JournalledPartition", "LinkOperation", "PackRange"]


@dataclass(frozen=True, slots=True)
class PackRange:
    """Whole batches in a pack file; ``file`` is its name without the suffix."""

    file: str
    position_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class AppendOperation:
    """Ranges of pack files, in this order, to the end of one segment.

    Attributes:
        ranges: What is appended.
        base_offset: The offset of its first batch.
        segment_base_offset: The segment; it is made if it is ``base_offset`` and ``size_before_bytes`` is 0.
        size_before_bytes: Where in its log file the first batch goes.
        index_size_before_bytes: The size of its offset index before.
        time_index_size_before_bytes: The size of its time index before.
    """

    ranges: tuple[PackRange, ...]
    base_offset: int
    segment_base_offset: int
    size_before_bytes: int
    index_size_before_bytes: int
    time_index_size_before_bytes: int


@dataclass(frozen=True, slots=True)
class LinkOperation:
    """A staged segment that becomes one of the log; ``file`` is its name without the suffix."""

    file: str
    base_offset: int
    size_bytes: int
    fingerprint: int


@dataclass(frozen=True, slots=True)
class JournalledPartition:
    """What becomes of one partition: first its bounds before and after, then how.

    Attributes:
        topic: Its topic.
        partition: Its number.
        is_new: Whether the directory is made by this commit.
        topic_id: What a new one's ``partition.metadata`` says; None: it gets none.
        leader_epoch: The epoch of the batches.
        log_start_before: Its log start offset until the commit is visible.
        log_start_after: Its log start offset from then on.
        log_end_before: Its log end offset until the commit is visible.
        log_end_after: Its log end offset from then on.
        epochs_after: Its leader epochs from then on.
        snapshot_from: Where the producer snapshot at the new log end comes from: the offset of another one,
            ``"empty"``, or None if there is to be none.
        operations: What to do in it, in this order.
        keep_offsets: Whether the staged batches have the offsets that they are to keep.
    """

    topic: str
    partition: int
    is_new: bool
    topic_id: str | None
    leader_epoch: int
    log_start_before: int
    log_start_after: int
    log_end_before: int
    log_end_after: int
    epochs_after: tuple[EpochEntry, ...]
    snapshot_from: int | Literal["empty"] | None
    operations: tuple[AppendOperation | LinkOperation, ...]
    keep_offsets: bool = False

    @property
    def topic_partition(self) -> tuple[str, int]:
        """The key of this partition in checkpoints."""
        return self.topic, self.partition


@dataclass(frozen=True, slots=True)
class CommitJournal:
    """A commit that was begun.

    Attributes:
        job_id: 32 hexadecimal digits.
        generation: One more than that of the commit before.
        time_ms: When it was written.
        txn_app_id: The application that numbers its commits, if it does.
        txn_version: The number that it gave to this one.
        clean_shutdown: What the clean-shutdown file held; this commit has deleted it, or will.
        manifests: The manifests of the staged files.
        partitions: Each partition that changes.
        is_flushed: Whether all is flushed before the rows are visible. Otherwise the marker is not put back, and
            the recovery points stay: whoever opens the log directory recovers it.
    """

    job_id: str
    generation: int
    time_ms: int
    txn_app_id: str | None
    txn_version: int | None
    clean_shutdown: bytes
    manifests: tuple[str, ...]
    partitions: tuple[JournalledPartition, ...]
    is_flushed: bool = True
