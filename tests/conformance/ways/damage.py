"""The modes: a read that continues after damage returns all other records, and says what is lost."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from conformance.rules import ISOLATION_LEVELS
from conformance.ways.way import Way

if TYPE_CHECKING:
    from conformance.case_under_test import CaseUnderTest, Options

_COLUMN = "_corrupt_record"
_SPLITS: tuple[Options, ...] = (
    {},
    {"max_bytes_per_partition": 1 << 12},
    {"max_records_per_partition": 10},
    {"use_indexes": False},
)


def _drop(case: CaseUnderTest, options: Options) -> None:
    """Check the consumer's records, damage or no damage."""
    for isolation_level in ISOLATION_LEVELS:
        words = {**case.selection(), **options, "mode": "DROPMALFORMED"}
        case.check_rows(case.read(words, isolation_level), _whole(case), isolation_level, f"read of {words}")


def _describe(case: CaseUnderTest, options: Options) -> None:
    """Likewise, and one row for each damaged range; none for a torn tail or a preallocated one."""
    for isolation_level in ISOLATION_LEVELS:
        words = {**case.selection(), **options, "mode": "PERMISSIVE"}
        rows = case.read(words, isolation_level)
        is_record = pc.is_null(rows[_COLUMN])
        records = rows.filter(is_record).drop_columns([_COLUMN])
        case.check_rows(records, _whole(case), isolation_level, f"read of {words}")
        described = [json.loads(text) for text in rows.filter(pc.invert(is_record))[_COLUMN].to_pylist()]
        found = [{name: each[name] for name in _NAMED} for each in described]
        case.check_equal(found, _damage(case), f"damage described by {words}, {isolation_level}")


_NAMED = ("file", "topic", "partition", "startByte", "endByte", "startOffset", "endOffset")


def _damage(case: CaseUnderTest) -> list[dict[str, Any]]:
    """Return what the rows for damage say, by topic and partition."""
    if not case.rules.damaged:
        return []
    described = []
    for partition in sorted(case.partitions, key=lambda each: (each.topic, each.partition)):
        damage = case.details["corrupt"][partition.name]
        values = (
            f"{case.path}/{partition.name}/{damage['file']}",
            partition.topic,
            partition.partition,
            damage["batch_position"],
            damage["batch_position"] + damage["batch_size"],
            damage["base_offset"],
            damage["last_offset"] + 1,
        )
        described.append(dict(zip(_NAMED, values, strict=True)))
    return described


def _whole(case: CaseUnderTest) -> dict[str, tuple[int, int]]:
    return {part.name: (part.log_start_offset, part.end_offset) for part in case.partitions}


WAYS = tuple(
    Way("modes", f"{mode} {options}", partial(run, options=options), is_quick=not options)
    for mode, run in (("DROPMALFORMED", _drop), ("PERMISSIVE", _describe))
    for options in _SPLITS
)
