"""Judges the result of reading a damaged directory. ``docs/reliability.md`` describes the checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from storage_core.errors import (
    CorruptError,
    LogDirectoryError,
    OffsetOutOfRangeError,
    OptionError,
    SegmentLogError,
    TimestampRangeError,
)
from tests.damage.observation import Observation, Verdict
from tests.damage.partition_judge import PartitionJudge
from tests.damage.reads import ROW_COLUMNS

if TYPE_CHECKING:
    from tests.damage.base_log import BaseLog, TopicPartition
    from tests.damage.mutations import Mutation
    from tests.damage.reads import Outcome, Read

# A read scans a file for its end, its transactions, its positions and its rows, and searches after damage. Each piece
# of a split read finds its own start.
_BYTES_READ_FACTOR = 60
_BYTES_READ_FACTOR_SPLIT = 1000
_BYTES_READ_ALLOWANCE = 1 << 20

DERIVED = frozenset({"index", "timeindex", "txnindex", "snapshot", "deleted"})
"""Files whose content follows from the log."""


def judge(
    log: BaseLog,
    mutations: list[Mutation],
    files: Mapping[str, bytes],
    read: Read,
    outcome: Outcome,
    undamaged: Callable[[], Outcome],
) -> Verdict:
    """Judge a read.

    Args:
        log: The directory before the damage.
        mutations: The damage.
        files: The damaged directory.
        read: The options of the read.
        outcome: The result of the read.
        undamaged: Returns the result of the same read on the undamaged directory.
    """
    seen = [Observation(log, root, mutations, files, read, outcome) for root in log.roots]
    # If no log file is left in a root, the reader has no copy there to choose.
    seen = [each for each in seen if each.truths] or seen
    # With several copies, the reader may choose any, and fill what it lacks from the others.
    verdicts = [_verdict(each, undamaged) for each in seen]
    if len(seen) > 1 and outcome.error is None:
        verdicts.append(_verdict_of_copies(seen))
    return min(verdicts, key=lambda verdict: len(verdict.problems))


def _verdict_of_copies(copies: list[Observation]) -> Verdict:
    """Check that each row is whole in some copy, and that each offset that is whole in one is there."""
    verdict = Verdict()
    for key, rows in copies[0].rows.items():
        offsets = [row.offset for row in rows]
        if any(before >= after for before, after in pairwise(offsets)):
            verdict.problem(f"{key}: offsets do not ascend: {offsets}")
    for key in copies[0].truths:
        _check_copies(key, copies, verdict)
    return verdict


def _check_copies(key: TopicPartition, copies: list[Observation], verdict: Verdict) -> None:
    indexes = [ROW_COLUMNS.index(name) for name in copies[0].read.columns]
    out = {row.offset: row.values for row in copies[0].rows.get(key, ())}
    allowed: dict[int, set[object]] = {}
    wanted: set[int] = set()
    is_complete = not any(mutation.is_forged for mutation in copies[0].mutations)
    for copy in copies:
        bounds = copy.bounds(key)
        is_complete &= bounds is not None
        for segment in copy.truths[key].segments:
            is_complete &= not (segment.astray or segment.surplus)
            for found in segment.known:
                for offset, row in found.rows():
                    allowed.setdefault(offset, set()).add(repr(tuple(row[index] for index in indexes)))
            for found in segment.entries:
                wanted |= {
                    offset for offset, row in found.rows()
                    if bounds and offset in range(*bounds) and copy.holds(key, offset, row)
                }  # fmt: skip
    if copies[0].read.mode != "FAILFAST":
        # Damage within a segment is left out and reported, even if another copy has these offsets.
        damage = [each for copy in copies for segment in copy.truths[key].segments for each in segment.damage]
        wanted = {
            offset for offset in wanted if not any(each.first_offset <= offset < each.end_offset for each in damage)
        }  # fmt: skip
    # What an entry with a CRC that was made right holds is not known.
    is_known = not any(mutation.is_forged for mutation in copies[0].mutations)
    never_written = [offset for offset, values in out.items() if repr(values) not in allowed.get(offset, ())]
    if is_known and never_written:
        verdict.problem(f"rows that no copy has at offsets {never_written[:5]}")
    if is_complete and not copies[0].read.committed and (missing := sorted(wanted - out.keys())):
        verdict.problem(f"offsets {missing[:8]} are whole in some copy and were not read")


def _verdict(seen: Observation, undamaged: Callable[[], Outcome]) -> Verdict:
    verdict = Verdict()
    error = seen.outcome.error
    if error is not None and not isinstance(error, SegmentLogError):
        verdict.problem(f"an error that is none of ours: {type(error).__name__}: {error}")
        return verdict
    factor = _BYTES_READ_FACTOR_SPLIT if seen.read.is_split else _BYTES_READ_FACTOR
    limit = factor * sum(map(len, seen.files.values())) + _BYTES_READ_ALLOWANCE
    if seen.outcome.bytes_read > limit:
        verdict.problem(f"{seen.outcome.bytes_read} bytes were read, more than {limit}")
    if seen.touched <= DERIVED:
        _check_same_as_undamaged(seen, undamaged(), verdict)
    if error is not None:
        _check_error(seen, error, verdict)
    else:
        _check_rows(seen, verdict)
    return verdict


def _check_error(seen: Observation, error: SegmentLogError, verdict: Verdict) -> None:
    if not seen.touched <= DERIVED | {"log"}:
        # The read may need a small file whose content is found nowhere else.
        return
    if not seen.truths and isinstance(error, LogDirectoryError):
        # Nothing is left of a log.
        return
    if seen.read.is_bounded and isinstance(error, (OffsetOutOfRangeError, OptionError)):
        return
    if seen.read.mode != "FAILFAST":
        is_forged = any(mutation.is_forged for mutation in seen.mutations)
        if not (is_forged and isinstance(error, TimestampRangeError)):
            verdict.problem(f"{seen.read.mode} raised {type(error).__name__}: {error}")
        return
    has_lost_all = {(topic, partition) for topic, partition in seen.log.rows} - seen.truths.keys()
    if not has_lost_all and not any(
        truth.is_damaged or truth.is_doubtful or truth.has_astray or truth.has_surplus or truth.has_inner
        for truth in seen.truths.values()
    ):
        verdict.problem(f"an error without damage: {type(error).__name__}: {error}")
    elif isinstance(error, CorruptError) and not has_lost_all:
        _check_named_place(seen, error, verdict)


def _check_named_place(seen: Observation, error: CorruptError, verdict: Verdict) -> None:
    """Check that an error about damage names the file, its bytes and its offsets, and that the damage exists."""
    segments = [segment for truth in seen.truths.values() for segment in truth.segments]
    named = next((segment for segment in segments if (error.path or "").endswith(segment.path)), None)
    if named is None or error.position_bytes is None or error.offset is None:
        verdict.problem(f"an error that does not say where: {type(error).__name__}: {error}")
    elif not (named.astray or named.surplus or named.has_inner):
        end = error.position_bytes + 1 if error.end_position_bytes is None else error.end_position_bytes
        damage = (*named.damage, *filter(None, [named.doubtful]))
        if not any(each.meets(error.position_bytes, end) for each in damage):
            verdict.problem(f"an error that names bytes without damage: {error}, not {damage}")


def _check_same_as_undamaged(seen: Observation, expected: Outcome, verdict: Verdict) -> None:
    """Indexes may be lost or wrong, because the log is authoritative."""
    found = seen.outcome
    if (type(found.error), found.rows, found.damage) == (
        type(expected.error),
        expected.rows,
        expected.damage,
    ):
        return
    if seen.read.committed and seen.touched & {"txnindex", "snapshot"}:
        # Trusted where nothing contradicts it: docs/decisions/0002.
        return
    if seen.read.has_times and "timeindex" in seen.touched:
        return
    what = found.error or f"{len(found.rows)} rows, {len(found.damage)} damage rows"
    wanted = expected.error or f"{len(expected.rows)} rows"
    verdict.problem(f"{sorted(seen.touched)} alone changed a read: {what} instead of {wanted}")


def _check_rows(seen: Observation, verdict: Verdict) -> None:
    for key, rows in seen.rows.items():
        offsets = [row.offset for row in rows]
        if any(before >= after for before, after in pairwise(offsets)):
            verdict.problem(f"{key}: offsets do not ascend: {offsets}")
        if key not in seen.truths:
            verdict.problem(f"rows of {key}, which does not exist")
    for truth in seen.truths.values():
        PartitionJudge(seen, truth, verdict).check()
