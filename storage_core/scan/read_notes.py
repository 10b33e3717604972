"""What a read logs once for each partition, at its end."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from storage_core.errors import visible

if TYPE_CHECKING:
    from storage_core.values.decoding import RowError


_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Undecoded:
    """Records of a partition that do not decode."""

    column: str
    first_offset: int
    message: str
    reasons: Counter[str] = field(default_factory=Counter)


class ReadNotes:
    """Counts, by partition, of the header keys that are not UTF-8, and of the records that do not decode.

    The threads of a read share it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The first offset, and how many keys.
        self._replaced_keys: dict[tuple[str, int], tuple[int, int]] = {}
        self._undecoded: dict[tuple[str, int], _Undecoded] = {}
        self._effect = ""

    def add_replaced_keys(self, place: tuple[str, int, int], count: int) -> None:
        """Count some header keys that got U+FFFD instead of bytes, the first of them at a topic, partition and offset."""
        topic, partition, offset = place
        with self._lock:
            first_offset, before = self._replaced_keys.get((topic, partition), (offset, 0))
            self._replaced_keys[topic, partition] = min(first_offset, offset), before + count

    def add_undecoded(self, place: tuple[str, int, int], errors: dict[str, RowError], effect: str) -> None:
        """Count a record at a topic, partition and offset. The effect is what becomes of it."""
        topic, partition, offset = place
        column, error = next(iter(errors.items()))
        with self._lock:
            found = self._undecoded.setdefault((topic, partition), _Undecoded(column, offset, error.message))
            if offset < found.first_offset:
                found.column, found.first_offset, found.message = column, offset, error.message
            found.reasons[error.reason] += 1
            self._effect = effect

    def report(self) -> None:
        """Log one line of each kind for each partition, and forget the counts."""
        for (topic, partition), (offset, count) in self._replaced_keys.items():
            _log.warning(
                "%s-%d: found %d header keys that are no UTF-8, the first one at offset %d. They are read with U+FFFD in place "
                "of bytes, so what is written from these rows differs. To keep the bytes, copy the segment files.",
                *(topic, partition, count, offset),
            )
        for (topic, partition), found in self._undecoded.items():
            reasons = ", ".join(f"{number} {reason}" for reason, number in found.reasons.most_common())
            _log.warning(
                "%s-%d: %d records do not decode (%s), the first at offset %d: its %s: %s. %s",
                *(topic, partition, found.reasons.total(), reasons, found.first_offset),
                *(found.column, visible(found.message.rstrip(".")), self._effect),
            )
        self._replaced_keys.clear()
        self._undecoded.clear()
