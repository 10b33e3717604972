"""Spark, local and over Spark Connect: few jobs a case, each over all of its partitions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from conformance.rules import READ_COMMITTED, READ_UNCOMMITTED, CaseRules
from conformance.spark_process import ClassicSpark, ConnectSpark, SparkReadError
from conformance.ways.bounds import inner_span
from conformance.ways.way import Way

if TYPE_CHECKING:
    from conformance.case_under_test import CaseUnderTest


def _read(case: CaseUnderTest, session: ClassicSpark | ConnectSpark, isolation_level: str) -> None:
    for span in case.spans():
        options = {**case.bounded(span), "include_headers": True, "isolation_level": isolation_level}
        rows = session.read(case.path, {**options, **case.access})
        case.check_rows(rows, span, isolation_level, f"Spark, {options}")


def _split(case: CaseUnderTest, session: ClassicSpark) -> None:
    """Bounds and splits together, in many tasks."""
    isolation_level = READ_COMMITTED
    for span in case.spans():
        inner = inner_span(case, span, isolation_level, 333, 777)
        options = {
            **case.bounded(inner),
            "include_headers": True,
            "isolation_level": isolation_level,
            "max_bytes_per_partition": 64 * 1024,
            "min_partitions": 7,
        }
        rows = session.read(case.path, {**options, **case.access})
        case.check_rows(rows, inner, isolation_level, f"Spark, {options}")


def _damaged(case: CaseUnderTest, session: ClassicSpark | ConnectSpark) -> None:
    """Check that the error that names file, bytes and offsets reaches the user."""
    partition = case.partitions[0]
    damage = case.details["corrupt"][partition.name]
    try:
        session.read(case.path, {"assign": case.assign([partition]), **case.access})
        message = "no error"
    except SparkReadError as error:
        message = str(error)
    offsets = f"offsets {damage['base_offset']} to {damage['last_offset']}"
    for text in ("CorruptRecordError", damage["file"], f"bytes {damage['batch_position']} to", offsets):
        case.check_equal(text in message, True, f"{text!r} in the error: {message}")


def _is_damaged(rules: CaseRules) -> bool:
    return rules.damaged


def _ways(column: str, session: Literal["classic", "connect"], *, is_quick: bool) -> list[Way]:
    return [
        Way(
            column,
            READ_UNCOMMITTED,
            partial(_read, isolation_level=READ_UNCOMMITTED),
            session=session,
            is_quick=False,
        ),
        Way(
            column,
            READ_COMMITTED,
            partial(_read, isolation_level=READ_COMMITTED),
            session=session,
            is_quick=is_quick,
        ),
        Way("errors", f"damage, {column}", _damaged, _is_damaged, session, is_quick),
    ]


WAYS = (
    *_ways("spark", "classic", is_quick=True),
    # How a read is cut does not depend on the kind of session.
    Way("spark", "splits", _split, session="classic", is_quick=False),
    # Starts a server.
    *_ways("connect", "connect", is_quick=False),
)
