"""The designed errors: what cannot be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.rules import ISOLATION_LEVELS
from conformance.ways.way import Way
from storage_core.errors import CorruptRecordError, SegmentLogError

if TYPE_CHECKING:
    from conformance.case_under_test import CaseUnderTest
    from conformance.rules import CaseRules

__all__ = ["WAYS"]


def _damaged(case: CaseUnderTest) -> None:
    """Check that a read over a damaged batch names the file, its bytes and its offsets."""
    for partition in case.partitions:
        damage = case.details["corrupt"][partition.name]
        path = f"{case.path}/{partition.name}/{damage['file']}"
        start_byte, end_byte = damage["batch_position"], damage["batch_position"] + damage["batch_size"]
        wanted = (path, start_byte, end_byte, damage["base_offset"], damage["last_offset"])
        span = {partition.name: (damage["base_offset"], damage["last_offset"] + 1)}
        for isolation_level in ISOLATION_LEVELS:
            for options in ({"assign": case.assign([partition])}, case.bounded(span)):
                error = _error(case, options, isolation_level)
                case.check_equal(type(error), CorruptRecordError, f"error of {options}: {error!r}")
                assert error is not None
                found = (
                    error.path,
                    error.position_bytes,
                    error.end_position_bytes,
                    error.offset,
                    error.last_offset,
                )
                case.check_equal(found, wanted, f"what the error names: {error}")
                for text in (path, f"{start_byte} to {end_byte - 1}", f"{wanted[3]} to {wanted[4]}"):
                    case.check_equal(text in str(error), True, f"{text!r} in the message: {error}")


def _error(case: CaseUnderTest, options: dict[str, str], isolation_level: str) -> SegmentLogError | None:
    try:
        case.read(options, isolation_level)
    except SegmentLogError as error:
        return error
    return None


def _is_damaged(rules: CaseRules) -> bool:
    return rules.damaged


WAYS = (Way("errors", "damage", _damaged, _is_damaged),)
