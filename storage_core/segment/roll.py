"""When a segment makes room for a new one (Kafka's ``RollParams`` and ``LogSegment.shouldRoll``)."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage_core.log_config import LogConfig

__all__ = ["RollParameters", "draw_roll_jitter_ms"]


@dataclass(frozen=True, slots=True)
class RollParameters:
    """What is about to be appended, as far as rolling is concerned.

    Args:
        messages_size_bytes: Its size.
        max_timestamp_ms: Its largest timestamp.
        max_offset: Its last offset.
        now_ms: The time.
    """

    messages_size_bytes: int
    max_timestamp_ms: int
    max_offset: int
    now_ms: int


def draw_roll_jitter_ms(config: LogConfig) -> int:
    """How much earlier than ``segment.ms`` says one segment rolls, so that not all of them roll at once."""
    if config.segment_jitter_ms == 0:
        return 0
    # No secret: only spreads load.
    return random.randrange(min(config.segment_jitter_ms, config.segment_ms) or 1)  # noqa: S311  (no secret)
