"""What the benchmarks measure does not depend on other guests of the machine, nor on what an earlier round left."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from benchmarks import missed_targets
from benchmarks.report import document, latest_results
from benchmarks.results import Finding, SectionResult, at_most
from benchmarks.scratch import give_back_space, new_directory, section_scratch
from benchmarks.sections import SECTION_NAMES
from benchmarks.settings import Settings
from benchmarks.timing import Series, Spread, Timed, interleave, ratio, share

_HOLD_SCRATCH = """
import sys
from pathlib import Path
from benchmarks.scratch import section_scratch
from benchmarks.settings import Settings
with section_scratch(Settings(False, 1, Path(sys.argv[1]))) as settings:
    print(settings.scratch_directory, flush=True)
    sys.stdin.read()
"""


def _playing(*seconds: float):
    taken = iter(seconds)
    return lambda: Timed(next(taken), 10)


def test_rounds_are_repeated_until_the_peer_was_quiet_often_enough():
    contenders = {"ours": _playing(9, 1, 1, 5, 1), "peer": _playing(9, 2, 4, 2.2, 2.1)}
    series = interleave(contenders, warm_up_rounds=1, rounds=3, peers=["peer"])
    assert series["peer"].seconds == (2, 4, 2.2, 2.1)
    assert ratio(series["peer"], series["ours"]) == Spread(2, 2.2 / 5, 2.1, dropped_rounds=1)


def test_a_machine_that_is_never_quiet_ends_a_section_all_the_same():
    contenders = {"ours": _playing(1, 1, 1, 1), "peer": _playing(2, 4, 8, 16)}
    series = interleave(contenders, warm_up_rounds=0, rounds=2, peers=["peer"])
    assert len(series["ours"].seconds) == 4
    assert ratio(series["peer"], series["ours"]) == Spread(2, 2, 2, dropped_rounds=3)


def test_our_own_times_neither_repeat_nor_drop_a_round():
    contenders = {"ours": _playing(1, 50), "peer": _playing(2, 2)}
    series = interleave(contenders, warm_up_rounds=0, rounds=2, peers=["peer"])
    assert share(series["ours"], series["peer"]) == Spread(12.75, 0.5, 25)


def test_a_ratio_is_the_median_of_those_of_its_rounds():
    peer, ours = Series((100, 101, 102), 10), Series((100, 10, 1), 10)
    assert ratio(peer, ours).median == 10.1


def test_a_section_removes_its_scratch_and_what_a_killed_run_left(tmp_path):
    settings = Settings(quick=False, repetitions=1, cache_directory=tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD_SCRATCH, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        theirs = other.stdout.readline().strip()
        with section_scratch(settings) as ours:
            assert os.path.isdir(theirs)
            assert ours.scratch_directory.is_dir()
        other.kill()
    assert os.path.isdir(theirs)
    assert not ours.scratch_directory.exists()
    with section_scratch(settings):
        assert not os.path.exists(theirs)


@pytest.mark.parametrize(("size_bytes", "left_bytes"), [(1 << 20, 0), (1000, 1000)])
def test_rounds_give_back_space_and_keep_their_inodes(tmp_path, size_bytes, left_bytes):
    directory = new_directory(tmp_path, "round")
    path = directory / "file"
    path.write_bytes(bytes(size_bytes))
    inode = path.stat().st_ino
    give_back_space(directory)
    assert (path.stat().st_ino, path.stat().st_size) == (inode, left_bytes)
    assert new_directory(tmp_path, "round") != directory


def test_the_page_says_why_a_target_is_missed():
    names = (
        "cores",
        "processor",
        "memory_gb",
        "system",
        "python",
        "java",
        "broker",
        "date",
        "commit",
        "repetitions",
    )
    circumstances = {**dict.fromkeys(names, "known"), "packages": {}, "load_average": 0.1}
    findings = [
        Finding(measure, "100,000 segments in 1 log", Spread(seconds, seconds, seconds), "s", at_most(2))
        for measure, seconds in (("everything is due", 6), ("nothing is due", 1), ("another", 3))
    ]
    page = document([SectionResult("retention", "Retention", "", tuple(findings), {}, circumstances)])
    first_screen = page.partition("## How to read")[0]
    assert "1 of 3 targets met." in first_screen
    assert re.findall(
        "^\\| (everything|nothing|another).*? \\| (three files of each segment|not known)",
        first_screen,
        re.MULTILINE,
    ) == [("everything", "three files of each segment"), ("another", "not known")]


def test_the_newest_result_of_each_section_is_taken(tmp_path):
    for section, date in (("values", 1), ("values", 2), ("values-spark", 1), ("decode", 3)):
        result = SectionResult(section, f"{section} {date}", "", ())
        path = tmp_path / f"{section}-2026010{date}T000000Z.json"
        path.write_text(json.dumps(result.to_json()), encoding="utf-8")
    assert [each.title for each in latest_results(tmp_path)] == ["decode 3", "values 2", "values-spark 1"]


def test_causes_are_those_of_sections():
    for cause in missed_targets.CAUSES:
        assert any(name.startswith(cause.section) for name in SECTION_NAMES), cause
