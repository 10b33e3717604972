"""What is special about a case: the one table of exceptions.

A case that is not named here is read in full, in every way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

READ_UNCOMMITTED = "read_uncommitted"
READ_COMMITTED = "read_committed"
ISOLATION_LEVELS = (READ_UNCOMMITTED, READ_COMMITTED)

# What a broker answered of each log. Of a directory that a killed broker left, it is what the broker
# answered after its own recovery, when its high watermark was the log end. A read takes the high watermark
# from the checkpoint, within the bounds of the log: in these cases, that is the log end too.
OFFSET_FIELDS = ("log_start_offset", "end_offset", "high_watermark", "last_stable_offset")


@dataclass(frozen=True, slots=True)
class CaseRules:
    """What is expected of one case besides its records.

    Attributes:
        has_time_lookups: Whether the broker was asked for offsets by timestamp.
        aged_by_files: Whether segments without timestamps make answers depend on when files were modified, which a
            bucket does not know.
        damaged: Whether batches are damaged: reads over them fail, reads around them work.
    """

    has_time_lookups: bool = True
    damaged: bool = False
    aged_by_files: bool = False


CASES: Mapping[str, CaseRules] = {
    "corrupt-middle": CaseRules(damaged=True, has_time_lookups=False),
    "internal": CaseRules(has_time_lookups=False),
    "magic0": CaseRules(aged_by_files=True),
    "mixed-magic": CaseRules(aged_by_files=True),
    "upgrade": CaseRules(aged_by_files=True),
}


def rules_of(case_name: str) -> CaseRules:
    """Return the rules of one case."""
    return CASES.get(case_name, CaseRules())
