"""What a dump prints, and what it reports at its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from storage_core.dump.log_text import MAX_INT32

if TYPE_CHECKING:
    from collections.abc import Iterator


DEFAULT_MAX_MESSAGE_BYTES: Final = 5 << 20


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """The parts of a record that are printed.

    Attributes:
        has_content: Whether keys and values are.
        has_metadata: Whether offset, timestamp, sizes, sequence and header keys are.
        decoder: Which of `internal_records.MESSAGE_DECODERS` makes the texts of keys and values; None for UTF-8.
    """

    has_content: bool
    has_metadata: bool = True
    decoder: str | None = None


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """What to print, named as the tool's flags.

    Attributes:
        record_format: How records are printed; None to print batches alone.
        max_bytes: The largest part of a log that is read; `MAX_INT32` for no limit.
        max_message_size: The largest batch that an index entry may point to.
        verify_index_only: Compare indexes with the log, and print no entries.
        index_sanity_check: Look at indexes as a broker's start does, and print no entries.
    """

    record_format: RecordFormat | None = None
    max_bytes: int = MAX_INT32
    max_message_size: int = DEFAULT_MAX_MESSAGE_BYTES
    verify_index_only: bool = False
    index_sanity_check: bool = False


@dataclass(slots=True)
class DumpReport:
    """What the tool prints to standard error, and whether anything is wrong.

    Attributes:
        offset_mismatches: By index file: offsets of entries, and of the batches where they point.
        timestamp_mismatches: By time index: timestamps of entries, and the largest of the batches.
        timestamps_out_of_order: By time index: timestamps of entries, and of the entries before them.
        offsets_not_found: By time index: offsets of entries, and of the batches found instead.
        offset_gaps: By log: offsets, and those that follow them.
        has_damage: Whether a file is damaged, or an index disagrees with its log.
        has_unknown: Whether a file was of no known kind.
    """

    offset_mismatches: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    timestamp_mismatches: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    timestamps_out_of_order: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    offsets_not_found: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    offset_gaps: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    has_damage: bool = False
    has_unknown: bool = False

    def lines(self) -> Iterator[str]:
        """Yield the lines that the tool prints after all files."""
        for path, pairs in self.offset_mismatches.items():
            yield f"Mismatches in :{path}"
            # The tool puts each pair before the others.
            yield from (f"  Index offset: {entry}, log offset: {found}" for entry, found in reversed(pairs))
        for path, pairs in self.timestamp_mismatches.items():
            yield f"Found timestamp mismatch in :{path}"
            yield from (f"  Index timestamp: {entry}, log timestamp: {found}" for entry, found in pairs)
        for path, pairs in self.timestamps_out_of_order.items():
            yield f"Found out of order timestamp in :{path}"
            yield from (
                f"  Index timestamp: {entry}, Previously indexed timestamp: {before}"
                for entry, before in pairs
            )
        for pairs in self.offsets_not_found.values():
            yield "The following indexed offsets are not found in the log."
            yield from (f"Indexed offset: {entry}, found log offset: {found}" for entry, found in pairs)
        for path, pairs in self.offset_gaps.items():
            yield f"Non-consecutive offsets in {path}"
            yield from (f"  {before} is followed by {after}" for before, after in reversed(pairs))
