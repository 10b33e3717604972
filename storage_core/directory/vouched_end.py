"""What says how far a log reached while its files were whole: one rule for reads, views and ``verify``.

What a crash leaves after the last valid batch is the end of the log. Where something says that the log was longer, the
rest is damaged, or missing:

    the marker of a clean stop           every byte of the last file, and what both checkpoints say
    recovery-point-offset-checkpoint     everything below it was on disk, whatever happened afterwards
    replication-offset-checkpoint        everything below it was written; a power cut may have lost it
    a later segment                      everything below its base offset (`SegmentReader.offset_limit`)

docs/decisions/0016-what-vouches-for-a-log-end.md says why, and what else counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from storage_core.directory.log_directory_files import CLUSTER_METADATA_TOPIC

if TYPE_CHECKING:
    from collections.abc import Mapping

    from storage_core.directory.log_directory_files import PartitionDirectory
    from storage_core.segment.damage_scanner import TailKind


class VouchedEnd(NamedTuple):
    """The offset that a log reached, though its valid batches end before.

    ``is_lost_by_crash`` says that a power cut explains it: the records are missing, but no file is damaged.
    """

    offset: int
    is_lost_by_crash: bool


@dataclass(frozen=True, slots=True)
class Vouchers:
    """Checkpointed evidence of how far a log reached, read before its files were listed, to which a broker only adds.

    Attributes:
        is_closed: Whether a clean stop closed its files.
        recovery_point: Everything below it was on disk.
        high_watermark: Everything below it was in the log.
        is_of_this_log: Whether the high watermark is certain to be that of this log. A broker that deletes a topic
            removes its recovery points at once, its high watermarks some seconds later: until then, they may
            belong to the topic that had the name before.
    """

    is_closed: bool
    recovery_point: int
    high_watermark: int
    is_of_this_log: bool = True

    @classmethod
    def of(
        cls,
        topic_partition: tuple[str, int],
        *,
        is_clean: bool,
        recovery_points: Mapping[tuple[str, int], int],
        high_watermarks: Mapping[tuple[str, int], int],
    ) -> Vouchers:
        """Take what the files of a log directory say of one partition."""
        return cls(
            # The controller goes on with its log while the broker beside it has stopped.
            is_clean and topic_partition[0] != CLUSTER_METADATA_TOPIC,
            recovery_points.get(topic_partition, 0),
            high_watermarks.get(topic_partition, 0),
            not recovery_points or topic_partition in recovery_points,
        )

    @property
    def known_offset(self) -> int:
        """Return the offset that the log reached, as far as the checkpoints say."""
        return max(self.recovery_point, self.high_watermark)

    def is_end_after_crash(self, next_offset: int) -> bool:
        """Return True if a log may end here after a crash: nothing says that it was longer."""
        return not self.is_closed and next_offset >= self.known_offset

    def lowered_to(self, later: Vouchers) -> Vouchers:
        """Keep only the ends that still hold, since a broker may have started or truncated the log in the meantime."""
        return Vouchers(
            self.is_closed and later.is_closed,
            min(self.recovery_point, later.recovery_point),
            min(self.high_watermark, later.high_watermark),
            self.is_of_this_log and later.is_of_this_log,
        )

    def end_after(self, next_offset: int, tail: TailKind, declared_offset: int) -> VouchedEnd | None:
        """Return the end that the log had, if it is after that of its valid batches.

        Args:
            next_offset: Where the valid batches end.
            tail: What follows them in the last file.
            declared_offset: Where the headers of what follows say that it ends.
        """
        is_bad = tail in ("cut", "bad")
        if self.is_closed and is_bad:
            known_offset = self.known_offset
            return VouchedEnd(
                known_offset if known_offset > next_offset else max(next_offset + 1, declared_offset),
                is_lost_by_crash=False,
            )
        if next_offset >= self.known_offset:
            return None
        is_damage = self.is_closed or next_offset < self.recovery_point or tail == "bad"
        if is_damage or self.is_of_this_log:
            return VouchedEnd(self.known_offset, is_lost_by_crash=not is_damage)
        return None

    def flushed_end_after(self, next_offset: int, tail: TailKind, declared_offset: int) -> int | None:
        """Return what `end_after` returns, or None if a power cut explains that the log ends before."""
        if next_offset >= self.recovery_point and not self.is_closed:
            return None
        found = self.end_after(next_offset, tail, declared_offset)
        return None if found is None else found.offset


def vouchers_of(directory: PartitionDirectory, *, is_present: bool = False) -> Vouchers:
    """Return what the files of a log directory say of one log: as they were first read, or as they are now."""
    root = directory.root
    return Vouchers.of(
        directory.topic_partition,
        is_clean=root.is_still_clean() if is_present else root.clean_shutdown,
        recovery_points=root.present_recovery_points() if is_present else root.recovery_points,
        high_watermarks=root.present_high_watermarks() if is_present else root.vouching_high_watermarks,
    )
