"""The oldest line of Spark: a wheel in an environment of its own reads, plans nothing, writes and serves Connect.

`make versions` runs the whole of `tests/spark` with each line.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.marked_text import between_markers
from tests.versions import PLACE, ROOT, spark_environments


@pytest.mark.spark
@pytest.mark.thorough
def test_the_oldest_spark_reads_and_writes(wheel, tmp_path):
    environment = spark_environments()[0]
    PLACE.mkdir(exist_ok=True)
    with (PLACE / f"{environment.name}.lock").open("w") as lock:
        # Another run of the tests may make it at this moment.
        fcntl.flock(lock, fcntl.LOCK_EX)
        environment.install(wheel)
        classic = run(environment, tmp_path / "classic")
        connect = run(environment, tmp_path / "connect", "connect")
    for answers in (classic, connect):
        assert "Did you mean 'startingOffsets'?" in answers.pop("mistake")
    expected = {
        "version": environment.pins[0].partition("==")[2],
        "from": "site-packages",
        "columns": ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"],
        "read": [["0", "v0"], ["1", "v1"], ["2", "v2"], ["3", "v3"], ["4", "v4"]],
        "sql": 2,
        "where": 1,
        "nothing": 0,
    }
    assert (classic, connect) == (expected, expected)


def run(environment, place, *mode):
    answers = place.with_suffix(".json")
    done = subprocess.run(
        [environment.interpreter, ROOT / "tests" / "spark" / "smoke_job.py", place, answers, *mode],
        cwd=place.parent,
        env={**environment.environ(), "SPARK_TESTING": "1", "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert answers.exists(), done.stderr[-3000:]
    return json.loads(answers.read_text(encoding="utf-8"))


def test_the_oldest_dependencies_are_the_bounds_of_the_package():
    project = tomllib.loads(Path(ROOT, "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = {}
    for requirement in [*project["dependencies"], *project["optional-dependencies"]["spark"]]:
        name, _, bound = requirement.partition(">=")
        bounds[name] = bound.partition(",")[0]
    oldest = Path(ROOT, "conf", "oldest.txt").read_text(encoding="utf-8")
    pins = dict(line.split("==") for line in oldest.splitlines() if "==" in line)
    assert {name: f"{bound}.0.0"[: len(pins[name])] for name, bound in bounds.items()} == pins


def test_what_differs_between_versions_is_shown_by_tests_that_exist():
    text = Path(ROOT, "docs", "spark-versions.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and line.endswith("` |")]
    sources = [path.read_text(encoding="utf-8") for path in Path(ROOT, "tests").rglob("test_*.py")]
    names = {path.name for path in Path(ROOT, "tests").rglob("test_*.py")}
    assert len(rows) >= 7
    for row in rows:
        shown_by = row.split("`")[-2]
        assert shown_by in names or any(f"def {shown_by}(" in source for source in sources), shown_by


@pytest.mark.parametrize("document", ["README.md", "docs/spark-versions.md"])
def test_the_documents_have_the_results_of_each_spark(document):
    text = Path(ROOT, document).read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in between_markers(text, "versions").splitlines()[2:]]
    assert [row[0].removeprefix("| ") for row in rows[: len(spark_environments())]] == [
        each.title for each in spark_environments()
    ]
    assert [row for row in rows if row[2] == "0" or row[3] != "0"] == []
