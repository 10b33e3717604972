"""Programs that take `read_batches` as it is, from a directory several times as large as the memory that they may take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.record.encoding import Batch, Record

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")

PARTITIONS = 16
BATCHES = 64
RECORDS = 64
VALUE_BYTES = 16 << 10
ROWS = PARTITIONS * BATCHES * RECORDS
DIRECTORY_BYTES = ROWS * VALUE_BYTES
MOST_BYTES = 300 << 20
ALL_VALUES = f"{ROWS} {ROWS * VALUE_BYTES}"
NARROW = f"{ROWS} {PARTITIONS * sum(range(BATCHES * RECORDS))}"

READ = """
import sys
{imports}
import pyarrow, storage_core

def memory(name):
    line = next(line for line in open("/proc/self/status") if line.startswith(name))
    return int(line.split()[1]) << 10

storage_core.read_table  # loads the read path
options = dict(option.split("=") for option in sys.argv[2:])
threads = options.pop("threads", None)
before = memory("VmRSS")
with storage_core.read_batches(sys.argv[1], threads=threads and int(threads), **options) as reader:
{body}
print(rows, total)
print(memory("VmHWM") - before)
"""

BODIES = {
    "batches": (
        "import pyarrow.compute as pc",
        """
rows = total = 0
for batch in reader:
    rows, total = rows + batch.num_rows, total + pc.sum(pc.binary_length(batch["value"])).as_py()
""",
    ),
    "duckdb": (
        "import duckdb",
        'rows, total = duckdb.sql("SELECT count(*), sum(octet_length(value)) FROM reader").fetchall()[0]',
    ),
    "duckdb of a C stream": (
        "import duckdb",
        """
stream = pyarrow.RecordBatchReader.from_stream(reader)
rows, total = duckdb.from_arrow(stream).aggregate("count(*), sum(octet_length(value))").fetchall()[0]
""",
    ),
    "polars, by batch": (
        "import polars",
        """
rows = total = 0
for batch in reader:
    sizes = polars.from_arrow(batch)["value"].bin.size()
    rows, total = rows + len(sizes), total + sizes.sum()
""",
    ),
    "pandas, by batch": (
        "import pandas",
        """
rows = total = 0
for batch in reader:
    frame = batch.to_pandas()
    rows, total = rows + len(frame), total + frame["value"].map(len).sum()
""",
    ),
}
# These keep all rows, so they are given few columns.
NARROW_BODIES = {
    "polars": (
        "import polars",
        'frame = polars.DataFrame(reader); rows, total = len(frame), frame["offset"].sum()',
    ),
    "pandas": (
        "import pandas",
        'frame = reader.read_pandas(); rows, total = len(frame), frame["offset"].sum()',
    ),
    "datafusion": (
        "from datafusion import SessionContext",
        """
context = SessionContext()
frame = context.from_arrow(reader, name="records")
found = context.sql('SELECT count(*) AS rows, sum("offset") AS total FROM records').to_pydict()
rows, total = found["rows"][0], found["total"][0]
""",
    ),
}


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Return a directory whose first partition is written; the others are links to its file."""
    path = tmp_path_factory.mktemp("large")
    first = Path(path, "events-0", f"{0:020}.log")
    first.parent.mkdir(parents=True)
    rows = tuple(Record(delta, 0, None, bytes(VALUE_BYTES)) for delta in range(RECORDS))
    with first.open("wb") as file:
        for number in range(BATCHES):
            file.write(Batch(rows, number * RECORDS).encode())
    for number in range(1, PARTITIONS):
        other = Path(path, f"events-{number}", first.name)
        other.parent.mkdir()
        other.hardlink_to(first)
    return path


def assert_read_in_little_memory(path, imports, body, expected, *options):
    # The oldest versions are tested without these programs.
    pytest.importorskip(imports.split()[1])
    indented = "".join(f"    {line}\n" for line in body.strip().splitlines())
    done = subprocess.run(
        [sys.executable, "-c", READ.format(imports=imports, body=indented), str(path), *options],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # DuckDB shows its progress.
    *_, found, memory_bytes = done.stdout.splitlines()
    assert found == expected
    assert int(memory_bytes) <= MOST_BYTES


@pytest.mark.cases(0, 6)
@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("name", BODIES)
def test_all_values_are_taken_as_they_come(large, name, threads):
    assert DIRECTORY_BYTES > 3 * MOST_BYTES
    assert_read_in_little_memory(large, *BODIES[name], ALL_VALUES, f"threads={threads}")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "datafusion" else pytest.mark.thorough)
        for name in NARROW_BODIES
    ],
)
def test_few_columns_of_all_rows_are_taken_at_once(large, name):
    assert_read_in_little_memory(large, *NARROW_BODIES[name], NARROW, "columns=partition,offset")


@pytest.mark.cases(0, 3)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("batches", "value_bytes"), [(40, 12 << 20), (5_000, 100)])
def test_large_values_and_tiny_segments(tmp_path, threads, batches, value_bytes):
    path = tmp_path / "events-0"
    path.mkdir()
    data = Batch((Record(0, 0, None, bytes(value_bytes)),))
    for offset in range(batches):
        (path / f"{offset:020}.log").write_bytes(data.at(offset).encode())
    expected = f"{batches} {batches * value_bytes}"
    assert_read_in_little_memory(tmp_path, *BODIES["batches"], expected, f"threads={threads}")
