"""Copies of the working tree, each with an environment that imports the copy alone."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import subprocess
import uuid
from contextlib import suppress
from pathlib import Path

from tests.mutants.faults import ROOT, functions_of, product_files, text_of

# The marks of `make test-all` (Makefile) and of `make test` (pyproject.toml).
_ALL = "not interop and not soak and not versions"
TIERS = {"quick": f"{_ALL} and not thorough", "all": _ALL}
_RUN = "SEGMENTLOG_MUTANTS_RUN"
# A module of the copy: each process notes what it runs in the file of the pytest process above it.
_PROBE = '''"""What ran."""
import mmap, os

class _Map(mmap.mmap):
    def __reduce__(self):  # Spark sends functions of the product by value.
        return "ran"

def _map():
    pid, path = os.getpid(), os.environ.get("SEGMENTLOG_MUTANTS_MAP", "")
    while not os.path.exists(path) and pid > 1:
        path = f"{FOLDER}/{pid}.map"
        with open(f"/proc/{pid}/stat") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
    if not os.path.exists(path):
        return bytearray(COUNT)
    with open(path, "r+b") as file:
        return _Map(file.fileno(), 0)

ran = _map()
'''


class Copy:
    """A copy of the working tree, in a folder that does not exist yet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._written = 0
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
        for name in names.split("\0"):
            if (ROOT / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name)
        _copy_environment(ROOT / ".venv", root / ".venv")

    def write(self, path: str, text: str) -> None:
        """Replace a module. Each version gets a time of its own, by which Python tells that a compiled one is stale."""
        (self.root / path).write_text(text)
        self._written += 1
        os.utime(self.root / path, (10**9 + self._written,) * 2)

    def write_probes(self, folder: Path) -> list[str]:
        """Let each function note that it runs.

        Returns:
            The functions, in the order of their notes.
        """
        places: dict[str, int] = {}
        for path in product_files():
            lines = text_of(path).split("\n")
            for function in reversed(functions_of(path)):
                place = places.setdefault(function.key, len(places))
                line = lines[function.body - 1]
                indent = line[: len(line) - len(line.lstrip())]
                lines.insert(function.body - 1, f"{indent}_ran_[{place}] = 1")
            for statement in ast.parse(text_of(path)).body:
                if isinstance(statement, ast.Import | ast.ImportFrom):
                    is_future = getattr(statement, "module", "") == "__future__"
                    lines.insert(
                        statement.lineno - 1 + is_future, "from storage_core._probe import ran as _ran_"
                    )
                    break
            self.write(path, "\n".join(lines))
        self.write(
            "storage_core/_probe.py",
            _PROBE.replace("{FOLDER}", str(folder)).replace("COUNT", str(len(places))),
        )
        return list(places)

    def pytest(
        self, marks: str, *arguments: str, seconds: float | None = None, **environment: str
    ) -> int | None:
        """Run tests, and end all processes that they leave behind.

        Returns:
            The status of pytest; None if it took longer.
        """
        run, python = uuid.uuid4().hex, str(self.root / ".venv" / "bin" / "python")
        variables = {"SPARK_LOCAL_IP": "127.0.0.1", **os.environ}
        for name in ("SPARK_HOME", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV"):
            variables.pop(name, None)
        variables |= {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, _RUN: run, **environment}
        options = [
            "-p",
            "tests.mutants.plugin",
            "-p",
            "no:cacheprovider",
            "-q",
            f"--basetemp={self.root}.tmp",
        ]
        command = [python, "-m", "pytest", "-m", marks, *options, *arguments]
        with self.root.with_suffix(".log").open("ab") as log, suppress(subprocess.TimeoutExpired):
            try:
                return subprocess.run(
                    command,
                    cwd=self.root,
                    env=variables,
                    stdout=log,
                    stderr=log,
                    timeout=seconds,
                    check=False,
                ).returncode
            finally:
                _end_processes(f"{_RUN}={run}".encode())
        return None


def _copy_environment(source: Path, target: Path) -> None:
    """Make an environment with the packages of another one, in which the editable package is the copy."""
    shutil.copytree(source / "bin", target / "bin", symlinks=True)
    for script in (target / "bin").iterdir():
        if script.is_file() and not script.is_symlink():
            script.write_bytes(script.read_bytes().replace(bytes(source), bytes(target)))
    shutil.copy(source / "pyvenv.cfg", target)
    for name in ("include", "share"):
        (target / name).symlink_to(source / name)
    packages = next(source.glob("lib/python*/site-packages"))
    copied = target / packages.relative_to(source)
    copied.mkdir(parents=True)
    for entry in packages.iterdir():
        if entry.suffix == ".pth" and set(entry.read_text().split()) == {str(source.parent)}:
            (copied / entry.name).write_text(f"{target.parent}\n")
        else:
            (copied / entry.name).symlink_to(entry)


def _end_processes(mark: bytes) -> None:
    """Kill what has a mark in its environment: Spark begins process groups of its own."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
