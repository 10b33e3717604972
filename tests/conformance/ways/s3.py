"""Reads from a bucket: the ways of the other columns, where the case lies in an object store.

The whole reads are from moto, and all others, which are many requests, from the small S3 of the tests.
A bucket keeps no modification times, no empty directories and no links. Only look-ups by time need the first, in logs that
have segments without timestamps.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from conformance.ways import (
    bounds,
    counts,
    damage,
    errors,
    indexes,
    offsets,
    spark,
    splits,
    streams,
    tables,
    topics,
)

if TYPE_CHECKING:
    from conformance.rules import CaseRules
    from conformance.ways.way import Way

_BY_TIME = frozenset({"by time", "lookups", "no index"})


def _applies(rules: CaseRules, way: Way) -> bool:
    return way.applies(rules) and not (rules.aged_by_files and way.column in _BY_TIME)


WAYS = tuple(
    replace(
        way,
        column="s3",
        name=f"{way.column} {way.name}",
        applies=partial(_applies, way=way),
        server="moto_server" if way in tables.WHOLE else "small_server",
        is_quick=way in tables.WHOLE,
    )
    for way in (
        *tables.WAYS,
        *counts.WAYS,
        *offsets.WAYS,
        *bounds.WAYS,
        *topics.WAYS,
        *splits.WAYS,
        *indexes.WAYS,
        *errors.WAYS,
        *damage.WAYS,
        *streams.WAYS,
        *spark.WAYS,
    )
    # A copy with broken indexes is a local one; how a read gets to a bucket does not depend on the kind of session.
    if way.column != "bad index" and way.session != "connect"
)
