"""The mutation campaign: damaged directories of every format, read in every mode with random options.

To repeat one case, or to run many more, see `tests.damage.campaign`.
"""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest

from tests.damage.campaign import Campaign, Case, all_logs
from tests.damage.measured import can_measure_memory
from tests.damage.unprovable import KINDS
from tests.faults.soak import CAMPAIGN_SECONDS

LOGS = all_logs()
CASES_PER_LOG = 200
# `make test` runs the first part, `make test-all` more, `make soak` all.
PARTS = [
    range(10),
    pytest.param(range(10, 40), marks=pytest.mark.thorough),
    pytest.param(range(40, CASES_PER_LOG), marks=pytest.mark.soak),
]

# What a batch may inflate to by default, and what a read needs besides.
MOST_BYTES_AT_ONCE = 3 * (64 << 20) + (64 << 20)
# Memory that remains after all cases: imports, caches of the interpreter and of Arrow.
MOST_GROWTH_BYTES = 128 << 20


def test_there_are_ten_thousand_cases():
    assert CASES_PER_LOG * len(LOGS) >= 10_000


@pytest.mark.cases(3, 10)
@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("numbers", PARTS, ids=str)
def test_damaged_directories(campaign, name, numbers):
    failures = campaign.run_numbers(LOGS[name], numbers)
    assert failures == [], "\n\n".join(failures)


@pytest.mark.cases(3, 8)
@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize(
    "numbers", [range(2), pytest.param(range(2, 12), marks=pytest.mark.thorough)], ids=str
)
def test_undamaged_directories_are_read_as_they_were_written(campaign, name, numbers):
    """The results to which the campaign compares are right."""
    log = LOGS[name]
    for number in numbers:
        drawn = Case.draw(log, number)
        verdict = campaign.run(Case(log, number, [], drawn.read))
        assert verdict.problems == [], f"{log.name}, read {number}: {drawn.read.options()}"


@pytest.mark.thorough
def test_no_case_allocates_more_than_the_limit(campaign):
    """Memory counts even if it is allocated and never touched."""
    tracemalloc.start()
    try:
        for log in LOGS.values():
            for number in range(1000, 1001):
                tracemalloc.reset_peak()
                case = Case.draw(log, number)
                campaign.run(case)
                assert tracemalloc.get_traced_memory()[1] < MOST_BYTES_AT_ONCE, case.text()
                assert pa.total_allocated_bytes() < MOST_BYTES_AT_ONCE, case.text()
    finally:
        tracemalloc.stop()


@pytest.mark.thorough
@pytest.mark.skipif(not can_measure_memory(), reason="this system does not tell")
def test_memory_stays_within_bounds():
    """Over many cases the resident memory neither grows nor peaks."""
    with Campaign() as campaign:
        for number in range(2):
            list(campaign.run_round(LOGS.values(), number))
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = memory("RssAnon")
        for number in range(2, 5):
            list(campaign.run_round(LOGS.values(), number))
        assert memory("RssAnon") - before < MOST_GROWTH_BYTES
        assert memory("VmHWM") - memory("VmRSS") < MOST_BYTES_AT_ONCE


def memory(name):
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith(f"{name}:")).split()[1]) * 1024


@pytest.mark.soak
def test_damaged_directories_for_a_long_time(capsys):
    """Try new cases for the time of one campaign."""
    end = time.monotonic() + CAMPAIGN_SECONDS
    number = first = int(time.time())
    failures = []
    with Campaign() as campaign:
        while time.monotonic() < end and not failures:
            failures += campaign.run_round(LOGS.values(), number)
            number += 1
        with capsys.disabled():
            print(
                f"\n{campaign.totals.cases:,} cases, numbers {first} to {number - 1}\n{campaign.totals.text()}"
            )
    assert failures == [], "\n\n".join(failures)


def test_the_document_lists_every_undetectable_kind_of_change():
    text = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert [kind for kind in KINDS.values() if f"| {kind} |" not in text] == []
