"""The repository as a package: its surface, what an import pulls in, what no file may contain."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest

from tests.marked_text import between_markers
from tests.option_tables import TABLES, TEXTS
from tests.versions import pinned

ROOT = Path(__file__).parent.parent
PACKAGES = ("spark_segmentlog", "storage_core")

# Written in pieces, so that this file does not find itself.
UNWANTED = {
    "a path of somebody's machine": re.compile(r"(?<![\w.$}*-])/(?:work|root|home/\w+|Users/\w+|tmp/dev)/"),
    "the host of a package registry": re.compile(
        "|".join(
            ["py" + r"pi\.org", "python" + r"hosted\.org", r"repo1?\.maven" + r"\.", r"repo\.maven" + r"\."]
        )
    ),
    "a folder outside the repository": re.compile(r"\.\./" + "shared"),
}

# Ruff's D401 asks for a verb in the imperative, and lets words pass that it does not know.
NO_VERBS = {
    "A", "All", "An", "As", "At", "Each", "For", "How", "If", "In", "Like", "None", "Of", "On", "One", "Per", "Some", "The",
    "True", "False", "What", "Where", "Whether", "Which",
}  # fmt: skip

GENERATED_FOLDERS = {
    ".git", ".venv", ".venvs", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".import_linter_cache",
    ".ipynb_checkpoints", "__pycache__", "target", "build", "dist", "spark-warehouse", "metastore_db",
}  # fmt: skip


def repository_files() -> list[Path]:
    files = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(set(folders) - GENERATED_FOLDERS)
        files += [Path(folder, name) for name in sorted(names) if name != ".git"]  # a file in a work tree
    return files


def python_modules() -> list[str]:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    parts = [path.relative_to(ROOT).with_suffix("").parts for path in sorted(files)]
    return [".".join(part for part in path if part != "__init__") for path in parts]


def run_python(code: str, *arguments: str) -> str:
    """Run code in a fresh interpreter, so that what this process has imported does not count."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", *arguments, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False, cwd=ROOT / "tests"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_by(module: str) -> set[str]:
    return set(run_python(f"import sys, {module}; print(*sys.modules)").split())


# -- Surface --------


@pytest.mark.parametrize("name", python_modules())
def test_all_names_what_is_there_in_order(name: str):
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", None)
    if exported is None:
        return
    assert len(set(exported)) == len(exported)
    assert [member for member in exported if not hasattr(module, member)] == []
    assert [member for member in exported if member.startswith("_") and not member.startswith("__")] == []


@pytest.mark.parametrize("name", python_modules())
def test_every_module_and_every_public_object_is_described(name: str):
    path = ROOT / name.replace(".", "/")
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(source.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), f"{source} has no docstring"
    described = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    public = [node for node in tree.body if isinstance(node, described) and not node.name.startswith("_")]
    assert [node.name for node in public if not ast.get_docstring(node)] == []


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("property" in ast.unparse(each) for each in node.decorator_list)


def test_the_description_of_a_function_begins_with_a_verb():
    found = []
    for name in python_modules():
        path = Path(importlib.import_module(name).__file__ or "")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not is_property(node):
                words = (ast.get_docstring(node) or "").split()
                if words and words[0].rstrip(":,;.") in NO_VERBS:
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {words[0]} …")
    assert found == []


def test_every_package_says_what_it_exports():
    folders = [path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    for folder in sorted(set(folders)):
        module = importlib.import_module(".".join(folder.relative_to(ROOT).parts))
        assert module.__file__ is not None, f"{folder} has no __init__.py"
        assert hasattr(module, "__all__"), f"{folder}/__init__.py has no __all__"


# -- Imports --------


@pytest.mark.parametrize("module", ["spark_segmentlog", "pyspark_segmentlog"])
def test_importing_the_connector_pulls_in_no_command_line(module: str):
    assert loaded_by(module) & {"click", "jinja2", "rich", "pandas", "grpc", "matplotlib"} == set()


def test_importing_the_core_pulls_in_no_spark():
    assert loaded_by("storage_core") & {"pyspark", "py4j", "click", "jinja2", "rich", "pandas"} == set()


@pytest.mark.parametrize(
    "statement", ["from storage_core import parse_read_options", "import spark_segmentlog.options"]
)
def test_checking_the_options_of_a_read_loads_little(statement: str):
    loaded = run_python(f"import sys\n{statement}\nprint(*sys.modules)").split()
    own = [name for name in loaded if name.partition(".")[0] in PACKAGES]
    assert len(own) <= 25, own
    assert {"storage_core.log", "storage_core.directory"} & set(own) == set()


def test_a_task_of_a_read_loads_no_planning():
    assert (
        loaded_by("storage_core.scan.read") & {"storage_core.scan.plan", "storage_core.scan.resolve"} == set()
    )


def test_the_discovered_module_is_light():
    # Spark imports every pyspark_* module on the path in each session that asks for any Python format.
    assert loaded_by("pyspark_segmentlog") & {"numpy", "pyarrow", "storage_core.scan"} == set()


@pytest.mark.parametrize("missing", ["pyspark", "numpy", "pyarrow", "spark_segmentlog", "storage_core"])
def test_the_discovered_module_never_raises(missing: str):
    # One that raises would switch off the discovery of all others.
    run_python(f"import sys; sys.modules[{missing!r}] = None; import pyspark_segmentlog")


def test_the_discovered_module_is_found_as_spark_looks_for_it():
    names = run_python(
        "import pkgutil; print(*(name for _, name, _ in pkgutil.iter_modules() if name.startswith('pyspark_')))"
    )
    assert "pyspark_segmentlog" in names.split()


# -- Files --------


@pytest.mark.parametrize("what", sorted(UNWANTED))
def test_no_file_mentions(what: str):
    found = []
    for path in repository_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {match.group()}" for match in UNWANTED[what].finditer(text)]
    assert found == []


def test_only_what_a_job_sends_itself_is_unpickled_and_no_text_is_run():
    runs = re.compile(r"\bpickle\.loads?\(|\bUnpickler\b|\b(?:marshal|shelve)\b|(?<![\w.])(?:eval|exec)\(")
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    found = {path.relative_to(ROOT).as_posix() for path in files if runs.search(path.read_text("utf-8"))}
    assert found == {
        "spark_segmentlog/workers.py",
        "storage_core/scan/spans.py",
        "storage_core/values/column_format.py",
    }


def test_every_package_has_its_tests():
    packages = [path.parent.name for path in (ROOT / "storage_core").glob("*/__init__.py")]
    assert len(packages) >= 10
    assert [name for name in packages if not list((ROOT / "tests" / name).glob("test_*.py"))] == []


def names_of(requirements: list[str]) -> set[str]:
    names = {re.split(r"[\[<>=]", requirement)[0] for requirement in requirements}
    return {re.sub(r"[._-]+", "-", name).lower() for name in names} - {"spark-segmentlog"}


def test_every_dependency_is_pinned_once_with_hashes():
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed, extras = pyproject["project"]["dependencies"], pyproject["project"]["optional-dependencies"]
    declared = {
        "build": pyproject["build-system"]["requires"],
        "spark": needed + extras["spark"],
        "dev": needed + list(chain.from_iterable(extras.values())),
    }
    for extra, requirements in declared.items():
        text = (ROOT / "conf" / f"requirements-{extra}.txt").read_text(encoding="utf-8")
        pins = pinned(extra)
        assert names_of(requirements) <= set(pins), f"run make lock: {extra}"
        # A pin is a line with a hash in each of the next ones, and all other lines are comments.
        hashes = r"(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+"
        assert len(re.findall(rf"^[a-z0-9-]+==.+ \\\n{hashes}", text, re.MULTILINE)) == len(pins)
        assert re.sub(rf"^(?:[a-z0-9-]+==.+ \\\n{hashes}|#.*\n)", "", text, flags=re.MULTILINE) == ""
        assert pins.items() <= pinned("dev").items()


@pytest.mark.parametrize("marker", sorted(TEXTS))
def test_the_tables_of_options_are_those_of_the_code(marker: str):
    text = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    again = "run python -m tests.option_tables --write docs/options.md"
    assert between_markers(text, marker) == TEXTS[marker], again


def test_the_ten_options_exist_with_their_defaults():
    text = (ROOT / "docs" / "options.md").read_text(encoding="utf-8").partition("## The ten options")[2]
    rows = re.findall(r"^\| (`.*?) \| (read|write) \| (.*?) \|", text, re.MULTILINE)
    assert len(rows) == 10
    known = {"read": TABLES["options"], "write": TABLES["write-options"]}
    for names, kind, defaults in rows:
        specs = {spec.name: spec for spec in known[kind]}
        expected = [specs[name].default for name in re.findall(r"`([^`]+)`", names)]
        assert re.findall(r"`([^`]+)`", defaults) == list(filter(None, expected)), names


def test_the_readme_shows_the_performance_that_the_benchmarks_found():
    here = between_markers((ROOT / "README.md").read_text(encoding="utf-8"), "performance")
    there = between_markers((ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8"), "performance")
    assert there.count("\n| ") >= 5
    assert here.replace("(docs/", "(") == there


def test_the_page_of_the_benchmarks_shows_no_figure_that_its_tables_lack():
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    ratios = re.findall(r"\*\*([\d.]+ ×)\*\*", between_markers(text, "performance"))
    details = text.partition("<!-- /performance -->")[2]
    chart = (ROOT / "docs" / "benchmarks.svg").read_text(encoding="utf-8")
    assert [ratio for ratio in ratios if f"| {ratio} (" not in details or f">{ratio}<" not in chart] == []


def test_the_map_of_the_packages_follows_the_direction_of_imports():
    """docs/architecture.md lists the packages of the contract in pyproject.toml, in its order."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("## The map")[2].partition("\n\n|")[2].partition("\n\n")[0]
    mapped = re.findall(r"`((?:storage_core/|spark_)\w+)(?:/|\.py)`", table)
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = re.findall(r"[\w.]+", " ".join(contracts["contracts"][0]["layers"]))
    packages = [layer.replace(".", "/") for layer in layers if (ROOT / layer.replace(".", "/")).is_dir()]
    assert [name for name in mapped if name in packages] == packages


def test_logging_configuration_is_valid():
    text = (ROOT / "conf" / "logging.json").read_text(encoding="utf-8")
    run_python(f"import json, logging.config; logging.config.dictConfig(json.loads({text!r}))")
    assert set(json.loads(text)["loggers"]) == {*PACKAGES, "pyspark_segmentlog"}


def test_spark_defaults_give_a_reason_for_each_setting():
    lines = (ROOT / "conf" / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    settings = [index for index, line in enumerate(lines) if line and not line.startswith("#")]
    assert settings
    for index in settings:
        name, value = lines[index].split(maxsplit=1)
        assert name.startswith("spark."), lines[index]
        assert value
        assert lines[index - 1].startswith("#"), f"no reason above {name}"
