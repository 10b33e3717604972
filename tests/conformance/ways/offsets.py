"""A broker's ListOffsets answers: the log's offsets, and offsets by timestamp."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.rules import OFFSET_FIELDS
from conformance.ways.way import Way
from storage_core.scan.isolation import last_stable_offset

if TYPE_CHECKING:
    from conformance.case_under_test import CaseUnderTest
    from conformance.rules import CaseRules
    from storage_core.directory import PartitionLog


def _offsets(case: CaseUnderTest) -> None:
    logs = case.partition_logs()
    for expected in case.partitions:
        for field in OFFSET_FIELDS:
            actual = offset_of(logs[expected.name], field)
            case.check_equal(actual, getattr(expected, field), f"{field} of {expected.name}")


def offset_of(log: PartitionLog, field: str) -> int | None:
    """Return one of `OFFSET_FIELDS`, as a log directory tells it."""
    if field == "last_stable_offset":
        return last_stable_offset(log)
    if field == "end_offset":
        return log.log_end_offset
    answer: int | None = getattr(log, field)
    return answer


def check_time_lookups(case: CaseUnderTest, path: str | None = None, *, use_indexes: bool = True) -> None:
    """Check every recorded ListOffsets answer by timestamp, asked of the case or of another directory."""
    found = case.partition_logs(path, use_indexes=use_indexes)
    for expected in case.partitions:
        for lookup in expected.time_lookups:
            answer = found[expected.name].offset_for_timestamp(lookup.query_ms)
            actual = (None, None) if answer is None else (answer.offset, answer.timestamp_ms)
            what = f"{expected.name}, offset for timestamp {lookup.query_ms}"
            case.check_equal(actual, (lookup.offset, lookup.timestamp_ms), what)


def _lookups_were_recorded(rules: CaseRules) -> bool:
    return rules.has_time_lookups


WAYS = (
    Way("offsets", "log", _offsets),
    Way("lookups", "ListOffsets", check_time_lookups, _lookups_were_recorded),
)
