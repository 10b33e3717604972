"""Spark limits the addresses of its Python workers with ``spark.executor.pyspark.memory``."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from spark_segmentlog.workers import explained_memory_limit
from storage_core.errors import OptionError

ROOT = Path(__file__).parent.parent.parent
# As a worker: what Spark imports, then the limit, then the rows in batches as large as Spark makes them.
TASK = """
import resource, sys
import pandas, pyarrow as pa, pyspark.worker
limit_bytes = int(sys.argv[2]) << 20
resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
import storage_core
from spark_segmentlog.reader import read_records_of
from storage_core.filesystem import FileSystem
from storage_core.options import parse_read_options
from storage_core.scan.plan import plan_scan
from storage_core.scan.read import read_schema
from tests.spark.writers import writer_of

size, rows = int(sys.argv[3]), int(sys.argv[4])
writer = writer_of(sys.argv[1], "value", topic="t")
value = [b"x" * size] * rows
writer.commit([writer.write(pa.record_batch({"value": pa.array(value)}) for _ in range(3))])
options = parse_read_options({"path": sys.argv[1]})
print(sum(
    batch.num_rows
    for task in plan_scan(FileSystem(), options).tasks
    for batch in read_records_of(task, read_schema(options), "localhost")
))
"""


def run(root, *arguments):
    return subprocess.run(
        [sys.executable, "-c", TASK, str(root), *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def limited(monkeypatch):
    """Set a limit that only these functions see. Arrow's pool is the same again afterwards."""
    pool = pa.default_memory_pool()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (512 << 20, 512 << 20))
    yield
    pa.set_memory_pool(pool)


@pytest.mark.parametrize(
    "error", [MemoryError(), pa.ArrowMemoryError("malloc of size 64"), RuntimeError("can't start new thread")]
)
def test_an_error_for_want_of_addresses_names_the_setting(limited, error):
    message = r"spark\.executor\.pyspark\.memory, found 512 MiB.* set it to 1g"
    with pytest.raises(OptionError, match=message), explained_memory_limit():
        raise error


@pytest.mark.parametrize("error", [ValueError("x"), RuntimeError("x")])
def test_other_errors_stay(limited, error):
    with pytest.raises(type(error), match=r"^x$"), explained_memory_limit():
        raise error


def test_without_a_limit_an_error_stays():
    with pytest.raises(MemoryError), explained_memory_limit():
        raise MemoryError


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("limit_mib", "size", "count"),
    [(512, 100, 10_000), (512, 10_000, 1000), (512, 1_000_000, 8), (1024, 1_000_000, 64)],
)
def test_rows_that_fit_a_limit(tmp_path, limit_mib, size, count):
    done = run(tmp_path / "logs", limit_mib, size, count)
    assert done.stdout == f"{3 * count}\n", done.stderr


@pytest.mark.thorough
def test_rows_that_do_not(tmp_path):
    done = run(tmp_path / "logs", 420, 1_000_000, 16)
    assert done.returncode == 1
    assert "memory" in done.stderr.lower()
