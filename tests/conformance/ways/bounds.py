"""Bounds: a read between two of them is the full read filtered by offset.

Timestamps mean offsets, too: those that the broker answered for them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from conformance.case_under_test import CaseUnderTest, Options, Span, offsets_json
from conformance.rules import ISOLATION_LEVELS, READ_COMMITTED, READ_UNCOMMITTED, CaseRules
from conformance.ways.way import Way
from storage_core.errors import TimestampNotFoundError

if TYPE_CHECKING:
    from conformance.expected import ExpectedPartition, TimeLookup

# Thousandths of a span: its ends, and places that fall inside batches and segments.
_CUTS = (0, 1, 130, 333, 500, 777, 999, 1000)
_STARTS_ALONE = (777, 999)
_ENDS_ALONE = (1, 333)
_LATEST_IF_NONE: Options = {"starting_offsets_by_timestamp_strategy": "latest"}
# A case with many partitions is asked through its first ones where each costs reads of its own.
_PARTITIONS_ALONE = 3
# How many offsets are read on the other side of a timestamp.
_NEAR = 20


def inner_span(case: CaseUnderTest, span: Span, isolation_level: str, first: int, last: int) -> Span:
    """Return the part of ``span`` from ``first`` to ``last`` thousandths of it, below what may be read."""
    limits = {partition.name: _limit(partition, isolation_level) for partition in case.partitions}
    inner = {}
    for name, (start, end) in span.items():
        length = max(min(end, limits[name]) - start, 0)
        inner[name] = (start + length * first // 1000, start + length * last // 1000)
    return inner


def _limit(partition: ExpectedPartition, isolation_level: str) -> int:
    """Return the end of what a consumer may read: read_committed ends below the first open transaction."""
    return partition.last_stable_offset if isolation_level == READ_COMMITTED else partition.end_offset


def _offsets(case: CaseUnderTest) -> None:
    """``startingOffsets`` and ``endingOffsets``: both, and each alone."""
    for isolation_level in ISOLATION_LEVELS:
        for span in case.spans():
            cuts = [*pairwise(_CUTS), (130, 777), (500, 500), (1000, 1000)]
            cuts += [(start, 1000) for start in _STARTS_ALONE] + [(0, end) for end in _ENDS_ALONE]
            for first, last in cuts:
                inner = inner_span(case, span, isolation_level, first, last)
                options = case.bounded(inner)
                rows = case.read(options, isolation_level)
                case.check_rows(rows, inner, isolation_level, f"bounds {options}")


def _symbolic_offsets(case: CaseUnderTest) -> None:
    """-2 is the log start, -1 the end."""
    earliest = offsets_json({partition.name: -2 for partition in case.partitions})
    latest = offsets_json({partition.name: -1 for partition in case.partitions})
    spans = list(case.spans())
    for isolation_level in ISOLATION_LEVELS:
        options = {**case.bounded(spans[0]), "starting_offsets": earliest}
        case.check_places(options, spans[0], isolation_level, "earliest")
        options = {**case.bounded(spans[-1]), "ending_offsets": latest}
        case.check_places(options, spans[-1], isolation_level, "latest")


def _timestamps_by_partition(case: CaseUnderTest) -> None:
    """``…OffsetsByTimestamp``: each partition's own queries, side by side.

    The other bound is an offset nearby, but for the first turn, which reads to the end and from the start.
    """
    partitions = [partition for partition in case.partitions if partition.time_lookups]
    selection = {"assign": case.assign(partitions)}
    for turn in range(max(len(partition.time_lookups) for partition in partitions)):
        lookups = {part.name: part.time_lookups[turn % len(part.time_lookups)] for part in partitions}
        queries = offsets_json({name: lookup.query_ms for name, lookup in lookups.items()})
        starting = {"starting_offsets_by_timestamp": queries, **_LATEST_IF_NONE, **selection}
        ending = {"ending_offsets_by_timestamp": queries, **selection}
        for isolation_level in ISOLATION_LEVELS:
            after, before = _around(partitions, lookups, isolation_level, near=turn > 0)
            if turn > 0:
                starting["ending_offsets"] = offsets_json({name: end for name, (_, end) in after.items()})
                ending["starting_offsets"] = offsets_json(
                    {name: start for name, (start, _) in before.items()}
                )
            case.check_places(starting, after, isolation_level, "from a timestamp")
            case.check_places(ending, before, isolation_level, "up to a timestamp")


def _timestamps_for_all(case: CaseUnderTest) -> None:
    """``startingTimestamp`` and ``endingTimestamp``: one partition at a time, because the answers are its own."""
    isolation_level = READ_COMMITTED
    for partition in case.partitions[:_PARTITIONS_ALONE]:
        selection = {"assign": case.assign([partition])}
        for lookup in partition.time_lookups:
            starting = {"starting_timestamp": lookup.query_ms, **selection}
            ending = {"ending_timestamp": lookup.query_ms, **selection}
            after, before = _around([partition], {partition.name: lookup}, isolation_level, near=False)
            case.check_places({**starting, **_LATEST_IF_NONE}, after, isolation_level, "from a timestamp")
            case.check_places(ending, before, isolation_level, "up to a timestamp")
            if lookup.offset is None:
                _check_not_found(case, partition, starting)


def _around(
    partitions: list[ExpectedPartition], lookups: dict[str, TimeLookup], isolation_level: str, *, near: bool
) -> tuple[Span, Span]:
    """Return the offsets from the broker's answers on, and those before them; all of them, or those nearby."""
    after, before = {}, {}
    for partition in partitions:
        limit = _limit(partition, isolation_level)
        answer = lookups[partition.name].offset
        found = limit if answer is None else min(answer, limit)
        after[partition.name] = (found, min(found + _NEAR, limit) if near else limit)
        start = partition.log_start_offset
        before[partition.name] = (max(found - _NEAR, start) if near else start, found)
    return after, before


def _check_not_found(case: CaseUnderTest, partition: ExpectedPartition, options: Options) -> None:
    """Check that the default strategy for a start that no record reaches is an error, in Kafka's words."""
    try:
        case.read(options, READ_UNCOMMITTED)
        message = "no error"
    except TimestampNotFoundError as error:
        message = str(error)
    wanted = f"No offset matched from request of topic-partition {partition.name} and timestamp"
    case.check_equal(wanted in message, True, f"error of {options}: {message}")


def _lookups_were_recorded(rules: CaseRules) -> bool:
    return rules.has_time_lookups


WAYS = (
    Way("by offset", "JSON", _offsets, is_quick=False),
    Way("by offset", "earliest and latest", _symbolic_offsets),
    Way("by time", "JSON", _timestamps_by_partition, _lookups_were_recorded, is_quick=False),
    Way("by time", "all partitions", _timestamps_for_all, _lookups_were_recorded),
)
