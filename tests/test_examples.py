"""The examples run, print what they promise, and leave the data as it is."""

from __future__ import annotations

import hashlib
import json
import re
import runpy
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import nbformat
import pytest
from chispa import assert_df_equality
from nbclient import NotebookClient
from pyspark.sql import functions

from storage_core import read_table
from tests.spark_settings import environment_of_a_user

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def run(*arguments: str) -> str:
    """Run a script as a user does; its standard output."""
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=environment_of_a_user(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def data_stays_as_it_is():
    """Check that reads change neither a byte nor a modification time of the source."""
    before = fingerprint()
    yield
    assert fingerprint() == before


def fingerprint() -> dict[str, tuple[int, str]]:
    return {
        str(path.relative_to(EXAMPLES)): (
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for folder in ("data", "typed")
        for path in sorted((EXAMPLES / folder).rglob("*"))
    }


# One after the other in one interpreter: the second finds a JVM that runs.
RUN_SCRIPTS = """
import runpy, sys

for script in sys.argv[1:]:
    runpy.run_path(script, run_name="__main__")
    print(chr(0), flush=True)
"""


@pytest.mark.spark
@pytest.mark.thorough
def test_scripts_with_spark_print_what_they_promise():
    printed, of_typed_orders, _ = run(
        "-c", RUN_SCRIPTS, "examples/quickstart.py", "examples/typed_orders.py"
    ).split("\0\n")
    assert " |-- value: binary (nullable = true)" in printed
    assert " |-- headers: array (nullable = true)" in printed
    assert "|trace-id|" in printed
    assert "|country|" in printed
    assert "of 24,000" in printed
    skipped = re.search(r"[\d,]+ of [\d,]+ bytes, in \d+ of \d+ segments: (\d+)% skipped", printed)
    assert skipped
    assert int(skipped[1]) > 80
    assert "3,000 payments committed, 25 more aborted" in printed
    assert max(len(line) for line in printed.splitlines()) <= 120

    assert of_typed_orders.startswith("2,997 orders, 9 columns\n")
    assert "|sku-0026|  76|6942.74|" in of_typed_orders
    assert of_typed_orders.count("|unframed|") == 3


def test_the_embedded_log_loses_nothing_that_it_has_acknowledged():
    printed = run("examples/embedded_log.py")
    killed, found, went_on = printed.splitlines()
    last = int(re.fullmatch(r"killed after reading (\d+) was acknowledged", killed)[1])
    count, lost = re.fullmatch(r"found (\d+) readings; lost: (.*)", found).groups()
    assert last >= 999
    assert int(count) >= last + 1
    assert lost == "[]"
    assert went_on == f"went on at offset {count}: a new start"


def test_repeated_records_are_there_once_and_half_a_transfer_is_never_seen():
    assert run("examples/transactions.py").splitlines() == [
        "orders sent again: 3 of 10 were new, 10 are there",
        "written: ['alice -5', 'bob +5', 'bob -3'], committed: ['alice -5', 'bob +5']",
        "left open from offset 3 on",
        "taken back: carol has no 1000",
        "committed: ['alice -5', 'bob +5', 'bob -3', 'carol +3']",
    ]


@pytest.mark.thorough
def test_a_bucket_is_read_as_a_directory():
    assert run("examples/object_store.py").splitlines() == [
        "24,000 orders in s3://backups/monday",
        "of Sunday: 186,507 of 1,282,796 bytes would be read",
        "16,866 orders in a partition of the bucket and one on the disk",
    ]


def test_a_compacted_log_keeps_the_last_of_each_key_and_another_one_the_last_hour():
    assert run("examples/compacted_log.py").splitlines() == [
        "prices before: 0: tea=3, 1: milk=1, 2: tea=4, 3: rum=9, 4: rum=-, 5: tea=5",
        "prices, cleaned: 1: milk=1, 4: rum=-, 5: tea=5",
        "6 records were looked at, 3 are left",
        "prices, half an hour later: 5: tea=5, 6: milk=2",
        "clicks: 2 segments deleted, the log starts at offset 6",
        "clicks of the last hour and of their segments: 6: page=6, 7: page=7, 8: page=8, 9: page=9",
    ]


@pytest.mark.thorough
def test_processes_share_the_partitions():
    printed = run("examples/share_partitions.py", "4").splitlines()
    assert printed[-1] == "28,851 of 28,851 records read, each once"
    assert [line.split()[0] for line in printed[:-1]] == ["reader-0", "reader-1", "reader-2", "reader-3"]
    partitions = [name for line in printed[:-1] for name in line.split("records")[1].replace(",", "").split()]
    assert sorted(partitions) == [
        "clicks-0", "inventory-0", "orders-0", "orders-1", "orders-2", "payments-0", "payments-1",
    ]  # fmt: skip


@pytest.mark.spark
@pytest.mark.thorough
def test_a_query_prints_what_is_appended_after_its_start(spark, capsys):
    runpy.run_path(str(EXAMPLES / "tail_live_directory.py"))["tail_own_log"](spark)
    assert capsys.readouterr().out.splitlines() == [
        "batch 1: readings-0 1: reading 0",
        "batch 2: readings-0 2: reading 1",
        "batch 3: readings-0 3: reading 2",
    ]


@pytest.fixture
def backfill(spark, tmp_path, capsys):
    """Run examples/hourly_backfill.py in the session of the tests; the lines that it prints."""
    main = runpy.run_path(str(EXAMPLES / "hourly_backfill.py"))["main"]

    def lines_of(*arguments):
        main([*arguments, str(tmp_path / "orders")])
        return capsys.readouterr().out.splitlines()

    return lines_of


@pytest.mark.spark
@pytest.mark.thorough
def test_a_backfill_has_each_order_in_its_hour_once_also_after_a_restart(spark, tmp_path, backfill):
    table = tmp_path / "orders"
    hours = ("2026-03-06T18", "2026-03-06T20")
    assert backfill(*hours) == ["2026-03-06 18h: 280 orders", "2026-03-06 19h: 271 orders"]
    # As if it had been killed in the second hour.
    shutil.rmtree(table / "date=2026-03-06/hour=19")
    assert backfill(*hours) == ["2026-03-06 18h: already done", "2026-03-06 19h: 271 orders"]
    assert backfill("--again", "2026-03-06T18", "2026-03-06T19") == ["2026-03-06 18h: 280 orders"]

    start, end = (datetime.strptime(hour, "%Y-%m-%dT%H").replace(tzinfo=UTC) for hour in hours)
    expected = [
        (
            record["timestamp"].strftime("%H"),
            *(json.loads(record["value"])[name] for name in ("order_id", "total_cents")),
        )
        for record in read_table(EXAMPLES / "data", subscribe="orders").to_pylist()
        if start <= record["timestamp"] < end
    ]
    assert_df_equality(
        spark.read.parquet(str(table)).select(
            functions.format_string("%02d", "hour").alias("hour"), "order_id", "total_cents"
        ),
        spark.createDataFrame(expected, "hour string, order_id string, total_cents bigint"),
        ignore_row_order=True,
        ignore_nullable=True,
    )


@pytest.mark.spark
@pytest.mark.thorough
def test_notebook_runs_plots_and_shows_its_progress(monkeypatch: pytest.MonkeyPatch):
    for name, value in environment_of_a_user().items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(EXAMPLES / "explore.ipynb", as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(EXAMPLES)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert any(
        re.search(r"\rorders per hour: \d+ of \d+ tasks", output.get("text", "")) for output in outputs
    )
    assert any("skipped" in output.get("text", "") for output in outputs)
