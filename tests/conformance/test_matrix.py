"""Each cell of the matrix: one case, read in one way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from conformance.archives import case_names
from conformance.matrix import CHECKS_PROPERTY
from conformance.rules import CASES, rules_of
from conformance.spark_process import ClassicSpark
from conformance.ways import WAYS, Way, tables

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from conformance.case_under_test import CaseUnderTest
    from conformance.spark_process import ConnectSpark

pytestmark = pytest.mark.conformance

# From these cases `make test` draws what it reads in other ways than whole, and with Spark: a plain log, a compacted one,
# transactions, damage, an old format, a torn tail.
SAMPLE = frozenset({"compact-txn", "corrupt-middle", "magic1", "torn-tail", "txn", "v2-none"})


def is_quick(way: Way, case_name: str) -> bool:
    return way.is_quick and (way in tables.WHOLE or case_name in SAMPLE)


def is_on_disk(way: Way) -> bool:
    return way.server is None


def is_in_bucket(way: Way) -> bool:
    return way.server is not None


def is_batch_from_bucket(way: Way) -> bool:
    return is_in_bucket(way) and not is_stream_from_bucket(way)


def is_stream_from_bucket(way: Way) -> bool:
    return is_in_bucket(way) and way.name.startswith("streams")


def cells(session: str | None, is_meant: Callable[[Way], bool] = is_on_disk) -> pytest.MarkDecorator:
    """Choose the cells of the ways that are meant, of those that need this kind of Spark session, or none."""
    return pytest.mark.parametrize(
        ("way", "case_name"),
        [
            pytest.param(
                way,
                case_name,
                id=f"{way.column}-{way.name}-{case_name}".replace(" ", "_"),
                marks=() if is_quick(way, case_name) else pytest.mark.thorough,
            )
            for way in WAYS
            for case_name in case_names()
            if way.session == session and is_meant(way) and way.applies(rules_of(case_name))
        ],
    )


@pytest.fixture
def check(
    way: Way,
    case_name: str,
    open_case: Callable[[str], CaseUnderTest],
    open_remote_case: Callable[[str, str], CaseUnderTest],
    request: pytest.FixtureRequest,
) -> Callable[..., None]:
    """Read the case in this way, with a session if it needs one."""

    def run(*sessions: ClassicSpark | ConnectSpark) -> None:
        case = open_case(case_name) if way.server is None else open_remote_case(case_name, way.server)
        case.checks = 0

        way.run(case, *sessions)

        assert case.checks > 0, "a way that compares nothing must not apply to the case"
        request.node.user_properties.append((CHECKS_PROPERTY, case.checks))

    return run


@cells(None)
def test_cell(check: Callable[..., None]) -> None:
    check()


@pytest.mark.cases(6, 60)
@cells(None, is_in_bucket)
def test_cell_of_bucket(check: Callable[..., None]) -> None:
    check()


@pytest.mark.spark
@pytest.mark.cases(0, 6)
@cells("classic", is_batch_from_bucket)
def test_cell_of_bucket_in_spark(check: Callable[..., None], spark: SparkSession) -> None:
    check(ClassicSpark(spark))


@pytest.mark.spark
@pytest.mark.cases(0, 2)
@cells("classic", is_stream_from_bucket)
def test_cell_of_bucket_in_a_stream(check: Callable[..., None], spark: SparkSession) -> None:
    check(ClassicSpark(spark))


@pytest.mark.spark
@pytest.mark.cases(4, 30)
@cells("classic")
def test_cell_of_spark(check: Callable[..., None], spark: SparkSession) -> None:
    check(ClassicSpark(spark))


@pytest.mark.spark
@pytest.mark.cases(0, 8)
@cells("connect")
def test_cell_of_connect(check: Callable[..., None], connect_spark: ConnectSpark) -> None:
    check(connect_spark)


@pytest.mark.parametrize("case_name", sorted(CASES))
def test_rules_speak_of_the_case(case_name: str, open_case: Callable[[str], CaseUnderTest]) -> None:
    case = open_case(case_name)
    rules = case.rules

    assert rules.damaged == any(partition.damaged_offsets for partition in case.partitions)
    assert rules.has_time_lookups == any(partition.time_lookups for partition in case.partitions)
