"""Python workers that Spark forks from a daemon with an open log can read it, but not change it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage_core import LogDirectory

ROOT_VARIABLE = "SEGMENTLOG_TEST_ROOT"

pytestmark = pytest.mark.spark

REPOSITORY = Path(__file__).parents[2]


def test_forked_workers_read_their_daemons_log_and_write_nothing(tmp_path):
    root = tmp_path / "data"
    run = subprocess.run(
        [sys.executable, "-m", "tests.spark.forked_workers"], cwd=REPOSITORY, check=True, capture_output=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
             "PYTHONPATH": str(REPOSITORY), ROOT_VARIABLE: str(root)},
    )  # fmt: skip
    met = json.loads(run.stdout)
    assert len(met) == 4
    for each in met:
        assert each == {
            "read": ["0", "1", "2"],
            **dict.fromkeys(("append", "flush", "roll", "close"), "LogForkedError"),
        }
    assert not (root / ".kafka_cleanshutdown").exists()
    with LogDirectory.open(root) as logs:
        values = [value for batch in logs.get("events").read() for value in batch["value"].to_pylist()]
    assert values == [b"0", b"1", b"2"]
