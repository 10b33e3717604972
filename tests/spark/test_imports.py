"""What an import loads, and what happens when an import fails."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import spark_segmentlog

REPOSITORY = Path(__file__).resolve().parents[2]
# Where the packages are that are tested: the source tree, or an installed wheel.
PACKAGES = Path(spark_segmentlog.__file__).resolve().parents[1]
HEAVY = ("click", "rich", "pandas", "pyarrow", "numpy")
# Spark 4.0 itself imports numpy, where it can.
BEFORE = "try:\n    import pyspark.sql.datasource\nexcept ImportError:\n    pass\nbefore = set(sys.modules)"
LOADED = f"print([name for name in {HEAVY} if name in set(sys.modules) - before])"


def run(code, *, directory=REPOSITORY):
    """Run Python code in a fresh interpreter that finds the packages in the source tree."""
    program = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\n{code}"
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("module", ["spark_segmentlog", "pyspark_segmentlog"])
def test_an_import_pulls_in_nothing_heavy(module):
    done = run(f"{BEFORE}\nimport {module}\n{LOADED}")
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_asking_for_the_columns_needs_neither_numpy_nor_pyarrow():
    # Spark starts a process for it in every load().
    done = run(
        f"{BEFORE}\n"
        "from spark_segmentlog import SegmentLogDataSource\n"
        "source = SegmentLogDataSource({'path': '/data', 'subscribe': 'clicks', 'startingOffsets': 'earliest'})\n"
        "assert 'offset' in source.schema().names\n"
        f"{LOADED}"
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_the_packages_are_attributes_as_soon_as_the_first_one_is_imported():
    done = run(
        "import storage_core; print(storage_core.scan.explain.__name__, storage_core.log.Log.__name__)"
    )
    assert (done.stdout.strip(), done.stderr) == ("explain Log", "")


def test_reading_and_writing_need_neither_cli_packages_nor_pandas():
    done = run(
        "import spark_segmentlog.reader, spark_segmentlog.reader, spark_segmentlog.options\n"
        "import spark_segmentlog.writer, spark_segmentlog.write_plan\n"
        "print([name for name in ('click', 'rich', 'pandas') if name in sys.modules])"
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_plain_reads_import_neither_compute_functions_nor_encoders_views_or_schemas():
    # Each planning process and each worker imports the reader anew.
    slow = (
        "pyarrow.compute",
        "storage_core.record.encode",
        "storage_core.record.column_encode",
        "storage_core.views.view",
        "storage_core.values.schema_registry",
        "obstore",
    )
    done = run(f"import spark_segmentlog.reader\nprint([name for name in {slow} if name in sys.modules])")
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_a_read_does_not_import_pandas():
    # Arrow would, in `pyarrow.array`: it takes longer than all other imports of a worker.
    done = run(
        "import storage_core\n"
        "print(storage_core.read_table('examples/data', subscribe='clicks').num_rows, 'pandas' in sys.modules)"
    )
    assert (done.stdout.strip(), done.stderr) == ("1200 False", "")


def test_the_module_that_spark_discovers_offers_the_source():
    done = run("import pyspark_segmentlog as m; print(m.__all__, m.DefaultSource.name())")
    assert done.stdout.strip() == "['DefaultSource'] segmentlog"


# A finder that fails the import of one package, whether it is installed or not.
WITHOUT = """
class Without:
    def find_spec(self, name, path=None, target=None):
        if name == {package!r}:
            raise {error}
sys.meta_path.insert(0, Without())
"""


def test_without_pyspark_the_error_names_the_extra():
    hide = WITHOUT.format(package="pyspark", error="ModuleNotFoundError('no pyspark')")
    done = run(hide + "import spark_segmentlog")
    last_line = done.stderr.strip().splitlines()[-1]
    assert last_line.startswith("ImportError: spark_segmentlog needs PySpark 4.0 or newer.")
    assert "pip install 'spark-segmentlog[spark]'" in last_line


@pytest.mark.parametrize(
    ("package", "error"),
    [("pyspark", "ModuleNotFoundError('no pyspark')"), ("spark_segmentlog", "RuntimeError('broken')")],
)
def test_the_discovered_module_never_raises(package, error):
    # If one such module raises, Spark also gives up every other pyspark_* source.
    hide = WITHOUT.format(package=package, error=error)
    done = run(hide + "import pyspark_segmentlog as m\nprint(hasattr(m, 'DefaultSource'))")
    assert (done.returncode, done.stdout.strip()) == (0, "False")
    assert done.stderr.startswith("The format segmentlog is not available: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("name", "warns"), [("segmentlog.whl", True), ("segmentlog.zip", False)])
def test_a_wheel_that_is_not_installed_is_a_warning(tmp_path, name, warns):
    # Spark puts .zip files on the path of its workers, but not .whl files.
    packed = tmp_path / name
    with zipfile.ZipFile(packed, "w") as archive:
        for package in ("spark_segmentlog", "storage_core"):
            for path in (PACKAGES / package).rglob("*.py"):
                archive.write(path, path.relative_to(PACKAGES))
    done = run(
        f"sys.path.insert(0, {str(packed)!r})\n"
        "import types, spark_segmentlog\n"
        "source = types.SimpleNamespace(register=lambda cls: print(cls.name()))\n"
        "spark_segmentlog.register(types.SimpleNamespace(dataSource=source))"
    )
    assert done.stdout.strip() == "segmentlog"
    assert ("rename it to .zip" in done.stderr) == warns
    assert bool(done.stderr) == warns
