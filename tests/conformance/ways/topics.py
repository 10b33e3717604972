"""Which topics and partitions a path and the selecting options give."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from conformance.case_under_test import INTERNAL_TOPICS, CaseUnderTest, Options
from conformance.rules import READ_COMMITTED, READ_UNCOMMITTED
from conformance.ways.way import Way

if TYPE_CHECKING:
    from conformance.expected import ExpectedPartition


def _topics(case: CaseUnderTest) -> None:
    """Check each topic by ``subscribe`` and ``subscribePattern``, each partition by ``assign``."""
    for topic in sorted({partition.topic for partition in case.partitions}):
        partitions = [partition for partition in case.partitions if partition.topic == topic]
        _check(case, partitions, {"subscribe": topic})
        if topic not in INTERNAL_TOPICS:
            _check(case, partitions, {"subscribe_pattern": f"^{re.escape(topic)}$"})
        for partition in partitions[:3]:
            _check(case, [partition], {"assign": case.assign([partition])})


def _paths(case: CaseUnderTest) -> None:
    """Check reads without a selection: every topic but the internal ones, whatever the path names.

    What a deleted topic leaves, and any other directory, is not part of the data.
    """
    visible = [partition for partition in case.partitions if partition.topic not in INTERNAL_TOPICS]
    for path in (case.path, case.path.rpartition("/")[0]):
        _check(case, visible, {}, path)
    # The pattern is found anywhere in a name, and does not reach the internal topics either.
    _check(case, visible, {"subscribe_pattern": "[a-z]"})
    for partition in visible[:3]:
        _check(case, [partition], {}, f"{case.path}/{partition.name}")


def _cluster_metadata(case: CaseUnderTest) -> None:
    """Check that the KRaft metadata log is an internal topic, whose records are read when it is subscribed to."""
    for file_name, counts in case.details.get("metadata_files", {}).items():
        if file_name.endswith(".log"):
            topic, _, _ = file_name.split("/")[0].rpartition("-")
            rows = case.read({"subscribe": topic}, READ_UNCOMMITTED)
            case.check_equal(rows.num_rows, counts["data_records"], f"records of {topic}")


def _check(
    case: CaseUnderTest, partitions: list[ExpectedPartition], options: Options, path: str | None = None
) -> None:
    names = {partition.name for partition in partitions}
    isolation_level = READ_COMMITTED
    for whole in case.spans():
        span = {name: bounds for name, bounds in whole.items() if name in names}
        bounds = {key: value for key, value in case.bounded(span).items() if key.endswith("ing_offsets")}
        case.check_places({**bounds, **options}, span, isolation_level, f"below {path or case.path}", path)


def _all(case: CaseUnderTest) -> None:
    _topics(case)
    _paths(case)
    _cluster_metadata(case)


WAYS = (Way("topics", "selections and paths", _all),)
