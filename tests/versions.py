"""Runs tests with each Spark, Python, Java and set of dependencies that the package claims: ``make versions``.

Each has an environment of its own below ``.venvs``, with the wheel installed and without the checkout: the tests are
copied to a place that has none of the packages.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.marked_text import write_between_markers

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".venvs"
_RESULTS = PLACE / "results.json"
_TREE = PLACE / "tree"
_SPARKS = ROOT / "conf" / "spark-versions.txt"
_OLDEST = ROOT / "conf" / "oldest.txt"
_DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "spark-versions.md")
_MARK = "versions"

_SPARK_TESTS = ("tests/spark",)
# Those of storage_core. Modules beside the folders are about this repository.
_CORE_TESTS = tuple(
    sorted(
        f"tests/{folder.name}"
        for folder in (ROOT / "tests").iterdir()
        if any(folder.glob("test_*.py")) and folder.name not in {"spark", "interop"}
    )
)
_PYTHON_MINORS = (12, 13)
_QUICK_MARKS = "not interop and not soak and not thorough"

# What an environment can import that has the wheel with an extra, or with none, and nothing else.
MODULES_OF_EXTRAS = {
    "": "storage_core, pyspark_segmentlog",
    "spark": "spark_segmentlog.reader, spark_segmentlog.stream_writer, pyspark.sql, pandas",
    "cli": "storage_core.cli.main, jinja2, rich",
    "protobuf": "storage_core.values.protobuf, ptars",
    "tiered": "storage_core.tier, cryptography.hazmat.primitives.ciphers.aead",
    "object-store": "storage_core.filesystem.object_store, obstore.store",
    "notebook": "spark_segmentlog, ipykernel.kernelapp, matplotlib.pyplot",
    "dev": "spark_segmentlog, hypothesis, nbclient, pytest, xdist",
}
_EXTRAS = "extras"


@dataclass(frozen=True)
class Environment:
    """One combination of versions.

    Attributes:
        name: The folder below ``.venvs``, and what ``--only`` takes.
        title: What it is called in the documents.
        subject: What is tested, in the documents.
        pins: The versions that it differs by, as requirements.
        extra: Of the wheel; the default brings what the tests need.
        tests: The folders that run.
        marks: Which of their tests run.
        python: The interpreter.
        java_home: Where its Java is; None: where Spark finds one.
        missing: Why it cannot run on this machine; None if it can.
    """

    name: str
    title: str
    subject: str = "`tests/spark`"
    pins: tuple[str, ...] = ()
    extra: str = "dev"
    tests: tuple[str, ...] = _SPARK_TESTS
    marks: str = "not interop and not soak"
    python: str = sys.executable
    java_home: str | None = None
    missing: str | None = None

    @property
    def folder(self) -> Path:
        """Where it is."""
        return PLACE / self.name

    @property
    def interpreter(self) -> Path:
        """Its own Python."""
        return self.folder / "bin" / "python"

    def install(self, wheel: Path) -> None:
        """Make it, or bring it up to date, with the wheel in it."""
        if not self.interpreter.exists():
            subprocess.run([self.python, "-m", "venv", str(self.folder)], check=True)
        constraints = self.folder / "constraints.txt"
        constraints.write_text("\n".join(self._constraints()), encoding="utf-8")
        extra = f"[{self.extra}]" if self.extra else ""
        self._pip("--constraint", str(constraints), *self.pins, f"{wheel}{extra}")
        # The version is the same after each change.
        self._pip("--no-deps", "--force-reinstall", str(wheel))

    def run(self) -> dict[str, object]:
        """Run its tests, and count them."""
        report = self.folder / "results.xml"
        report.unlink(missing_ok=True)
        command = [
            str(self.interpreter),
            "-m",
            "pytest",
            *self.tests,
            "-m",
            self.marks,
            f"--junitxml={report}",
            "--numprocesses=3",
            "--dist=worksteal",
            "--override-ini=tmp_path_retention_policy=failed",
        ]
        done = subprocess.run(command, cwd=_TREE, env=self.environ(), check=False)
        suite = ET.parse(report).getroot().find("testsuite") if report.exists() else None
        # 0: all passed, 1: some failed; others: it was not run as asked.
        if suite is None or done.returncode not in {0, 1}:
            return {"title": self.title, "passed": 0, "failed": 1, "skipped": 0}
        counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
        failed = counts["failures"] + counts["errors"]
        return {
            "title": self.title,
            "passed": counts["tests"] - failed - counts["skipped"],
            "failed": failed,
            "skipped": counts["skipped"],
        }

    def environ(self) -> dict[str, str]:
        """Return the variables of a process that uses it."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in {"PYTHONPATH", "SPARK_HOME", "PYTHONDONTWRITEBYTECODE"}
        }
        python = str(self.interpreter)
        java = {} if self.java_home is None else {"JAVA_HOME": self.java_home}
        return {**kept, **java, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}

    def _constraints(self) -> list[str]:
        own = {re.split("[=\\[]", pin)[0] for pin in self.pins}
        # Each Spark has the py4j that it wants.
        return [pin for name, pin in pinned("dev").items() if name not in own | {"py4j", "pyspark"}] + [
            pin for pin in self.pins if "[" not in pin
        ]

    def _pip(self, *arguments: str) -> None:
        command = [str(self.interpreter), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        subprocess.run([*command, *arguments], check=True)


def spark_environments() -> list[Environment]:
    """Return one environment for each line of Spark."""
    return [
        Environment(f"spark-{version}", f"Spark {version}", pins=(f"pyspark[connect]=={version}",))
        for version in re.findall(r"^pyspark==(\S+)$", _SPARKS.read_text(encoding="utf-8"), re.MULTILINE)
    ]


def environments() -> list[Environment]:
    """Return all of them, those that cannot run on this machine as well."""
    sparks = spark_environments()
    oldest = tuple(line for line in _OLDEST.read_text(encoding="utf-8").splitlines() if "==" in line)
    return [
        *sparks,
        _with_newest_java(sparks[-1]),
        *map(_with_python, _PYTHON_MINORS),
        Environment(
            "oldest",
            "The oldest dependencies",
            "`storage_core`, `tests/spark`",
            (
                *oldest,
                *(pin.replace("pyspark==", "pyspark[connect]==") for pin in oldest if "pyspark" in pin),
            ),
            tests=(*_CORE_TESTS, *_SPARK_TESTS),
            marks=_QUICK_MARKS,
        ),
    ]


def _with_python(minor: int) -> Environment:
    name = f"python3.{minor}"
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(name), *map(str, sorted(root.glob(f"3.{minor}.*/bin/{name}"), reverse=True))]
    python = next((each for each in candidates if each and _is_python(each, minor)), None)
    return Environment(
        name,
        f"Python 3.{minor}",
        "`storage_core`",
        tests=_CORE_TESTS,
        marks=_QUICK_MARKS,
        python=python or name,
        missing=None if python else f"no {name} on PATH, nor in pyenv",
    )


def _is_python(command: str, minor: int) -> bool:
    # A shim of pyenv may be there without the version.
    check = f"import ensurepip, sys, venv; sys.exit(sys.version_info[:2] != (3, {minor}))"
    return subprocess.run([command, "-c", check], capture_output=True, check=False).returncode == 0


def _with_newest_java(newest: Environment) -> Environment:
    homes = [str(path.parents[1]) for path in Path("/usr/lib/jvm").glob("*/bin/java")]
    versions = {home: major for home in homes if (major := _java_major(f"{home}/bin/java"))}
    usual = os.environ.get("JAVA_HOME")
    used = _java_major(f"{usual}/bin/java" if usual else "java")
    home = max(versions, key=versions.__getitem__, default=None)
    is_newer = home is not None and versions[home] > used
    return Environment(
        "java",
        f"{newest.title} on Java {versions[home]}"
        if home is not None and is_newer
        else f"{newest.title}, newer Java",
        pins=newest.pins,
        java_home=home,
        missing=None if is_newer else f"no Java newer than {used} below /usr/lib/jvm",
    )


def _java_major(java: str) -> int:
    """Return the version of a Java; 0 if it does not start."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return 0
    found = re.search(r'version "(\d+)', done.stderr)
    return int(found[1]) if found else 0


def pinned(extra: str) -> dict[str, str]:
    """Return the pins that ``make lock`` wrote for an extra, without hashes: of each name, ``name==version``.

    A pin for some platforms or Pythons alone ends in that condition.
    """
    text = (ROOT / "conf" / f"requirements-{extra}.txt").read_text(encoding="utf-8")
    pins = re.findall(r"^([a-z0-9-]+)(==[^\s;]+(?: ; .+?)?) \\$", text, re.MULTILINE)
    return {name: name + version for name, version in pins}


def build(target: str, folder: Path, source: Path = ROOT) -> Path:
    """Build a ``wheel`` or an ``sdist`` with the tools of this environment: nothing is fetched.

    Args:
        target: Which of the two.
        folder: Takes it; has no other.
        source: The checkout, or an unpacked sdist.
    """
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    subprocess.run(command, cwd=source, stdout=subprocess.DEVNULL, check=True)
    return built(target, folder)


def built(target: str, folder: Path) -> Path:
    """Return the only ``wheel`` or ``sdist`` of a folder."""
    (found,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return found


def check_extras(wheel: Path) -> list[str]:
    """Install the wheel with each extra into an empty environment, and import what the extra is for.

    Returns:
        The extras that fail.
    """
    failed = []
    for extra, modules in MODULES_OF_EXTRAS.items():
        environment = Environment(f"extra-{extra or 'none'}", "", extra=extra)
        shutil.rmtree(environment.folder, ignore_errors=True)
        environment.install(wheel)
        commands = (["-m", "pip", "check"], ["-I", "-W", "error", "-c", f"import {modules}"])
        if any(subprocess.run([environment.interpreter, *each], check=False).returncode for each in commands):
            failed.append(environment.name)
        shutil.rmtree(environment.folder)
    return failed


def matrix(results: dict[str, dict[str, object]]) -> str:
    """Return the results as a table."""
    lines = ["| tested with | tests | passed | failed | skipped |", "|---|---|--:|--:|--:|"]
    for environment in environments():
        result = results.get(environment.name)
        if result is None:
            lines.append(f"| {environment.title} | not run: {environment.missing or 'not asked for'} | | | |")
        else:
            counts = " | ".join(f"{result[name]:,}" for name in ("passed", "failed", "skipped"))
            lines.append(f"| {result['title']} | {environment.subject} | {counts} |")
    return "\n".join(lines)


def _copy_tests() -> None:
    shutil.rmtree(_TREE, ignore_errors=True)
    for name in ("tests", "examples", "docs"):
        shutil.copytree(ROOT / name, _TREE / name)
    shutil.copy(ROOT / "pyproject.toml", _TREE)


def _is_green(environment: Environment, wheel: Path) -> bool:
    """Install the wheel, run the tests, and keep the result."""
    print(f"===== {environment.title}", flush=True)
    results = _results()
    results.pop(environment.name, None)
    if environment.missing is None:
        environment.install(wheel)
        results[environment.name] = environment.run()
    else:
        print(f"Not run: {environment.missing}.")
    _RESULTS.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return environment.name in results and not results[environment.name]["failed"]


def _results() -> dict[str, dict[str, object]]:
    """Return the newest result of each environment."""
    return json.loads(_RESULTS.read_text(encoding="utf-8")) if _RESULTS.exists() else {}


def main() -> int:
    """Run what the command line asks for; 1 if something failed or is missing."""
    parser = argparse.ArgumentParser(prog="make versions", description=__doc__)
    names = [*(each.name for each in environments()), _EXTRAS]
    parser.add_argument("--only", action="append", metavar="NAME", choices=names)
    parser.add_argument(
        "--write", action="store_true", help="write the newest results into README.md and docs"
    )
    arguments = parser.parse_args()

    PLACE.mkdir(exist_ok=True)
    shutil.rmtree(PLACE / "wheel", ignore_errors=True)
    wheel = build("wheel", PLACE / "wheel")
    _copy_tests()
    chosen = [each for each in environments() if not arguments.only or each.name in arguments.only]
    bad = [each.name for each in chosen if not _is_green(each, wheel)]
    if not arguments.only or _EXTRAS in arguments.only:
        print("===== Each extra", flush=True)
        bad += check_extras(wheel)
    table = matrix(_results())
    print(table)
    if arguments.write:
        for document in _DOCUMENTS:
            write_between_markers(document, _MARK, f"{table}\n")
    if bad:
        print(f"Failed or not run: {', '.join(bad)}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
