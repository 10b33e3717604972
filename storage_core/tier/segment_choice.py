"""Which uploads of a partition's segments make up its log.

After a change of leaders a tier may hold several uploads of the same offsets: the next leader's segments have other
borders, and an upload that failed is repeated under another id. After an unclean election it also holds offsets that
are no longer part of the log. A segment counts as far as its leader epochs are those of the newest leader's history;
where two that count overlap, the one that begins later is read, as a broker does
(``RemoteLogLeaderEpochState.handleSegmentWithCopySegmentFinishedState``, KIP-405).
"""

from __future__ import annotations

import bisect
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from storage_core.checkpoint import EpochEntry
from storage_core.checkpoint.partition_files import assign_epoch
from storage_core.config import LONG_MAX
from storage_core.errors import warn_once
from storage_core.segment.file_names import LOG_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from storage_core.tier.tier_objects import TierObject


_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UploadedSegment:
    """One complete upload of a segment.

    Attributes:
        end_offset: The offset after the last one.
        epochs: The leader epochs inside, ascending. The first begins with the segment.
        files: What its files are made of, by suffix.
    """

    base_offset: int
    end_offset: int
    epochs: tuple[EpochEntry, ...]
    uploaded_ms: int
    files: Mapping[str, TierObject] = field(repr=False)

    @property
    def log(self) -> TierObject:
        """Return what its log file is made of."""
        return self.files[LOG_SUFFIX]


class ChosenSegment(NamedTuple):
    """A segment that is read up to an offset, which is below its own end if it is cut."""

    segment: UploadedSegment
    end_offset: int


def history_of(segments: Iterable[UploadedSegment]) -> list[EpochEntry]:
    """Return the leader epochs of the newest leader's log: an epoch ends those before it that begin at or above its start."""
    starts: dict[int, int] = {}
    for entry in (entry for segment in segments for entry in segment.epochs):
        starts[entry.epoch] = min(entry.start_offset, starts.get(entry.epoch, LONG_MAX))
    history: list[EpochEntry] = []
    for epoch, start_offset in sorted(starts.items()):
        assign_epoch(history, EpochEntry(epoch, start_offset))
    return history


def choose_segments(
    segments: Iterable[UploadedSegment],
    history: Sequence[EpochEntry],
    check_epoch: Callable[[EpochEntry], None],
) -> list[ChosenSegment]:
    """Choose the segments that make up the log, ascending and without overlaps. What is left out is logged once.

    ``check_epoch`` raises if an epoch that ends another one's segment does not begin where the history says.
    """
    chosen: list[ChosenSegment] = []
    live = [ChosenSegment(segment, _live_end(segment, history, check_epoch)) for segment in segments]
    for each in sorted(live, key=_preference):
        path, base_offset = each.segment.log.source, each.segment.base_offset
        before = chosen[-1] if chosen else None
        if each.end_offset <= base_offset:
            warn_once(_log, f"Left out {path}: its records are those of a leader whose history was given up.")
        elif before is None or before.end_offset == base_offset:
            chosen.append(each)
        elif each.end_offset <= before.end_offset:
            _log.info("Left out %s: %s has its offsets.", path, before.segment.log.source)
        else:
            if before.end_offset < base_offset:
                missing = f"{before.end_offset} to {base_offset - 1}"
                warn_once(
                    _log, f"Expected offsets {missing} before {path}, found no complete upload of them."
                )
            chosen[-1] = before._replace(end_offset=min(before.end_offset, base_offset))
            chosen.append(each)
    return chosen


def _preference(each: ChosenSegment) -> tuple[int, int, int, int]:
    segment = each.segment
    return segment.base_offset, -each.end_offset, -segment.epochs[-1].epoch, -segment.uploaded_ms


def _live_end(
    segment: UploadedSegment, history: Sequence[EpochEntry], check_epoch: Callable[[EpochEntry], None]
) -> int:
    """Return the offset up to which a segment is part of a history."""
    own_ends = [*(entry.start_offset for entry in segment.epochs[1:]), segment.end_offset]
    for entry, own_end in zip(segment.epochs, own_ends, strict=True):
        place = bisect.bisect_right(history, entry.epoch, key=lambda each: each.epoch)
        if place < len(history) and history[place].start_offset < own_end:
            check_epoch(history[place])
            return history[place].start_offset
    return segment.end_offset
