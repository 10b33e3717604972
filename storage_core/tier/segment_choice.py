"""Which uploads of a partition's segments make up its log.

After a change of leaders a tier may hold several uploads of the same offsets: the next leader's segments have other
borders, and an upload that failed is repeated under another id. After an unclean election it also holds offsets that
are no longer part of the log. A segment counts as far as its leader epochs are those of the newest leader's history;
where two that count overlap, the one that begins later is read, as a broker does
(``RemoteLogLeaderEpochState.handleSegmentWithCopySegmentFinishedState``, KIP-405).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from storage_core.checkpoint.partition_files import EpochEntry, parse_leader_epoch_checkpoint
from storage_core.config import LONG_MAX
from storage_core.segment.file_names import LOG_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from storage_core.tier.tier_objects import TierObject


_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UploadedSegment:
    """One complete upload of a segment.

    Attributes:
        end_offset: The offset after the last one; `LONG_MAX` if that is not known.
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
        """What its log file is made of."""
        return self.files[LOG_SUFFIX]


class ChosenSegment(NamedTuple):
    """A segment that is read up to an offset, which is below its own end if it is cut."""

    segment: UploadedSegment
    end_offset: int


def epochs_text(epochs: Iterable[tuple[int, int]]) -> str:
    """Return the content of a leader epoch checkpoint."""
    lines = [f"{epoch} {start_offset}" for epoch, start_offset in epochs]
    return "".join(f"{line}\n" for line in ("0", str(len(lines)), *lines))


def history_of(segments: Iterable[UploadedSegment]) -> tuple[EpochEntry, ...]:
    """Return the leader epochs of the newest leader's log: an epoch ends those before it that begin at or above its start."""
    starts: dict[int, int] = {}
    for entry in (entry for segment in segments for entry in segment.epochs):
        starts[entry.epoch] = min(entry.start_offset, starts.get(entry.epoch, LONG_MAX))
    return parse_leader_epoch_checkpoint(epochs_text(sorted(starts.items())).encode(), "")


def choose_segments(
    segments: Iterable[UploadedSegment], history: Sequence[EpochEntry]
) -> list[ChosenSegment]:
    """Choose the segments that make up the log, ascending and without overlaps. What is left out is logged once."""
    chosen: list[ChosenSegment] = []
    live = (ChosenSegment(segment, _live_end(segment, history)) for segment in segments)
    for each in sorted(live, key=_preference):
        path, base_offset = each.segment.log.source, each.segment.base_offset
        before = chosen[-1] if chosen else None
        if each.end_offset <= base_offset:
            warn_once(f"Left out {path}: its records are those of a leader whose history was given up.")
            continue
        if before is not None and each.end_offset <= before.end_offset:
            _log.info("Left out %s: %s has its offsets.", path, before.segment.log.source)
            continue
        if before is not None and before.end_offset > base_offset:
            chosen[-1] = before._replace(end_offset=base_offset)
        elif before is not None and before.end_offset < base_offset:
            missing = f"{before.end_offset} to {base_offset - 1}"
            warn_once(f"Expected offsets {missing} before {path}, found no complete upload of them.")
        chosen.append(each)
    return chosen


def _preference(each: ChosenSegment) -> tuple[int, int, int, int]:
    segment = each.segment
    return segment.base_offset, -each.end_offset, -segment.epochs[-1].epoch, -segment.uploaded_ms


def _live_end(segment: UploadedSegment, history: Sequence[EpochEntry]) -> int:
    """Return the end of a segment, or the offset from which on it is not part of a history."""
    ends = [*(entry.start_offset for entry in history[1:]), LONG_MAX]
    ranges = {entry.epoch: (entry.start_offset, end) for entry, end in zip(history, ends, strict=True)}
    own_ends = [*(entry.start_offset for entry in segment.epochs[1:]), segment.end_offset]
    for entry, own_end in zip(segment.epochs, own_ends, strict=True):
        start_offset, end_offset = ranges.get(entry.epoch, (0, 0))
        if not start_offset <= entry.start_offset < end_offset:
            return entry.start_offset
        if own_end > end_offset:
            return end_offset
    return segment.end_offset


@lru_cache(maxsize=1024)
def warn_once(text: str) -> None:
    """Log a warning that would otherwise come with each look at a tier."""
    _log.warning("%s", text)
