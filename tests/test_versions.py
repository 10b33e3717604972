"""Each older line of Spark: a wheel in an environment of its own reads, plans nothing, writes and serves Connect.

The whole of `tests/spark` runs there with `make versions`.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.versions import PLACE, ROOT, spark_environments

PROGRAM = """
import json, sys, warnings
warnings.simplefilter("ignore")
import pyspark, spark_segmentlog
from pyspark.sql import SparkSession

place, is_remote = sys.argv[1], len(sys.argv) > 2
builder = SparkSession.builder.remote("local[2]") if is_remote else SparkSession.builder.master("local[2]")
for name, value in {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "1g",
    "spark.log.level": "OFF",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
log = spark.read.format("segmentlog")
rows = spark.sql("SELECT 'a' AS topic, CAST(id AS STRING) AS KEY, concat('v', id) AS value FROM range(5)")
rows.write.format("segmentlog").mode("append").option("partitions", "2").save(place)
records = log.load(place)
records.createOrReplaceTempView("records")
answers = {
    "version": pyspark.__version__,
    "from": spark_segmentlog.__file__.split("/")[-3],
    "columns": records.columns,
    "read": sorted([bytes(row.key).decode(), bytes(row.value).decode()] for row in records.collect()),
    "sql": [row.n for row in spark.sql("SELECT count(*) AS n FROM records WHERE key > X'32'").collect()],
    "where": sorted(row.partition for row in log.option("where", "key = '4'").load(place).collect()),
    "nothing": log.option("where", "offset < 0").load(place).count(),
}
try:
    log.option("startingOfset", "earliest").load(place).count()
except Exception as error:
    answers["error"] = "Did you mean 'startingOffsets'?" in str(error)
print("ANSWERS " + json.dumps(answers))
spark.stop()
"""
OLDER = [each for each in spark_environments() if f"=={version('pyspark')}" not in each.pins[0]]


@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.parametrize("environment", OLDER, ids=lambda each: each.name)
def test_an_older_spark_reads_and_writes(wheel, environment, tmp_path):
    PLACE.mkdir(exist_ok=True)
    with (PLACE / f"{environment.name}.lock").open("w") as lock:
        # Another run of the tests may make it at this moment.
        fcntl.flock(lock, fcntl.LOCK_EX)
        environment.install(wheel)
        classic = run(environment, tmp_path / "classic")
        connect = run(environment, tmp_path / "connect", "connect")
    expected = {
        "version": environment.pins[0].partition("==")[2],
        "from": "site-packages",
        "columns": ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"],
        "read": [["0", "v0"], ["1", "v1"], ["2", "v2"], ["3", "v3"], ["4", "v4"]],
        "sql": [2],
        "where": [classic["where"][0]],
        "nothing": 0,
        "error": True,
    }
    assert (classic, connect) == (expected, expected)


def run(environment, place, *arguments):
    done = subprocess.run(
        [environment.interpreter, "-c", PROGRAM, str(place), *arguments],
        cwd=place.parent,
        env={**environment.environ(), "SPARK_TESTING": "1", "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS ")]
    assert lines, done.stderr[-3000:]
    return json.loads(lines[0].removeprefix("ANSWERS "))


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
    table = text.partition("<!-- versions -->\n")[2].partition("<!-- /versions -->")[0]
    rows = [line.split(" | ") for line in table.splitlines()[2:]]
    assert [row[0].removeprefix("| ") for row in rows[: len(spark_environments())]] == [
        each.title for each in spark_environments()
    ]
    assert [row for row in rows if row[3] != "0"] == []
