"""What the documents and pyproject.toml say about versions is what `make versions` tests with."""

from __future__ import annotations

import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest

from tests.exported_members import MODULES
from tests.marked_text import between_markers
from tests.versions import ROOT, spark_environments


def test_the_oldest_dependencies_are_the_bounds_of_the_package():
    project = tomllib.loads(Path(ROOT, "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = {}
    extras = project["optional-dependencies"]
    for requirement in chain(
        project["dependencies"], extras["spark"], extras["object-store"], extras["tiered"]
    ):
        name, _, bound = requirement.partition(">=")
        bounds[name] = bound.partition(",")[0]
    oldest = Path(ROOT, "conf", "oldest.txt").read_text(encoding="utf-8")
    pins = dict(line.split("==") for line in oldest.splitlines() if "==" in line)
    assert {name: f"{bound}.0.0"[: len(pins[name])] for name, bound in bounds.items()} == pins


def test_the_policy_names_what_is_supported():
    project = tomllib.loads(Path(ROOT, "pyproject.toml").read_text(encoding="utf-8"))["project"]
    sparks = Path(ROOT, "conf", "spark-versions.txt").read_text(encoding="utf-8")
    pythons = [each.rpartition(" ")[2] for each in project["classifiers"] if "Python :: 3." in each]
    bounds = dict(each.split(">=") for each in project["dependencies"])
    policy = Path(ROOT, "docs", "compatibility-policy.md").read_text(encoding="utf-8")
    for name, supported in (
        ("Spark (PySpark)", ", ".join(re.findall(r"^pyspark==(\d+\.\d+)", sparks, re.MULTILINE))),
        ("Python", ", ".join(pythons)),
        ("pyarrow", f"{bounds['pyarrow']} and newer"),
        ("numpy", f"{bounds['numpy']} and newer"),
    ):
        assert f"| {name} | {supported} |" in policy
    assert project["requires-python"] == f">={pythons[0]}"
    # Each module whose names tests/exported_members.txt lists.
    names = {
        word for quoted in re.findall(r"`([\w.]+)`", policy) for word in (quoted, f"storage_core{quoted}")
    }
    assert set(MODULES) <= names


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
