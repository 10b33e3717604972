"""Options as keywords: what type checkers, completion and `help` know of them."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import storage_core
from storage_core.options import READ_OPTIONS
from storage_core.options.keywords import ReadKeywords
from storage_core.options.option import keyword_of
from storage_core.options.read_options import find_option
from tests.option_tables import KEYWORDS_FILE, keywords_text

FUNCTIONS = [
    storage_core.read_table,
    storage_core.read_batches,
    storage_core.count_records,
    storage_core.explain,
]
ACCEPTED = """
import datetime as dt
from pathlib import Path
from storage_core import count_records, explain, read_batches, read_table
from storage_core.options.predicate import Comparison

read_table("a", Path("b"), subscribe="orders", columns=["offset"], where="offset > 1", include_headers=True)
read_table(path=[Path("a"), "b"], subscribe=("a", "b"), starting_timestamp=dt.datetime.now(tz=dt.UTC), mode="PERMISSIVE")
read_table("a", assign={"t": [0, 1]}, starting_offsets={"t": {"0": 1}}, where=Comparison("offset", "=", 1))
read_table("a", ending_offsets="latest", kafka_isolation_level="read_committed", remote_storage=Path("tier"))
count_records("a", view="segments", exact=True, max_timestamp_disorder=dt.timedelta(minutes=10), time_zone=dt.UTC, as_of=5)
explain("a", value_schema={"type": "string"}, value_format="avro", min_partitions="3", use_indexes="false", subscribe=None)
read_batches("a", threads=2, progress=True, subscribe="orders")
rows: int = count_records("a", storage_options={"s3.region": "x"}, ending_timestamp=dt.date(2026, 1, 1))
size: int = count_records("a", max_bytes_per_partition="64m", columns={"offset"}, max_records_per_partition=5)
"""
REFUSED = {
    'read_table("x", subscirbe="y")': "subscirbe",
    'read_batches("x", starting_timestamp=[1])': "starting_timestamp",
    'count_records("x", mode="PERMISIVE")': "mode",
    'count_records("x", max_offsets_per_trigger=1)': "max_offsets_per_trigger",
    'explain("x", columns=5)': "columns",
}


def of_batches():
    return [option for option in READ_OPTIONS if option.only != "stream"]


def test_the_keywords_are_those_of_the_registry():
    again = "run python -m tests.option_tables --write-keywords"
    text = KEYWORDS_FILE.read_text(encoding="utf-8")
    assert keywords_text(text) == text, again
    assert {find_option(name).name for name in ReadKeywords.__annotations__} == {
        option.name for option in of_batches()
    }


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_know_every_option(function):
    assert inspect.signature(function).parameters["options"].annotation == "Unpack[ReadKeywords]"
    text, _, listed = inspect.getdoc(function).partition("\nOptions:\n")
    assert "OptionError" in text
    for option, line in zip(of_batches(), listed.splitlines(), strict=True):
        default = f" ({option.default})" if option.default else ""
        name, _, meaning = line.strip().partition(": ")
        assert name == f"{keyword_of(option.name)}{default}"
        assert len(meaning) > len("false.")
        assert meaning.endswith(".")
        assert "`" not in meaning
        assert "](" not in meaning


def test_the_package_does_not_load_them():
    code = "import sys, storage_core; assert 'storage_core.options.keywords' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.thorough
def test_type_checkers_know_every_option(tmp_path):
    root = Path(storage_core.__file__).parents[1]
    (tmp_path / "accepted.py").write_text(ACCEPTED)
    calls = [f"storage_core.{call}" for call in REFUSED]
    (tmp_path / "refused.py").write_text("\n".join(["import storage_core", *calls]))
    command = [sys.executable, "-m", "mypy", f"--config-file={root / 'pyproject.toml'}", "--no-error-summary"]
    command += [f"--cache-dir={tmp_path / 'cache'}", "--hide-error-context", "accepted.py", "refused.py"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    errors = [line for line in found.splitlines() if ": error: " in line]
    assert [line.split(":")[:2] for line in errors] == [
        ["refused.py", str(number)] for number, _ in enumerate(REFUSED, 2)
    ]
    for line, name in zip(errors, REFUSED.values(), strict=True):
        assert f'"{name}"' in line
