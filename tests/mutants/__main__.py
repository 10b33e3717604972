"""Plant each fault of `faults.toml` in a copy of the tree, and run the tests that reach it until one fails.

python -m tests.mutants list
python -m tests.mutants reach [--tier quick] [--marks "not spark"] [tests/log ...]
python -m tests.mutants judge [--tier quick] [--after RESULTS] [tests/log ...] [--only NAME ...]
python -m tests.mutants compare EARLIER LATER

`reach` runs a tier once and notes which functions each test runs, for `judge`.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tests.mutants.copies import TIERS, Copy
from tests.mutants.faults import ROOT, Fault, functions_that_show, load_faults, text_of

_PLACE = ROOT / "build" / "mutants"


def _reach(arguments: argparse.Namespace) -> None:
    """Run tests in a copy with probes, and write what each one ran."""
    marks = TIERS[arguments.tier] + (f" and ({arguments.marks})" if arguments.marks else "")
    parallel = [f"--numprocesses={arguments.workers}", "--dist=worksteal"]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy(Path(folder, "probed"))
        functions = copy.write_probes(Path(folder))
        Path(folder, "functions").write_text(str(len(functions)))
        paths = arguments.paths or ["tests", "--ignore=tests/interop"]
        copy.pytest(marks, *parallel, *paths, SEGMENTLOG_MUTANTS_REACH=folder)
        tests = _noted_tests(Path(folder))
        # Some look at the code itself, which has probes. Who passes without them is a good test.
        if failed := _failed(tests):
            files = sorted({test.partition("::")[0] for test in failed})
            Copy(Path(folder, "plain")).pytest(marks, *parallel, *files, SEGMENTLOG_MUTANTS_REACH=folder)
            tests = _noted_tests(Path(folder))
    if arguments.add and arguments.reach.exists():
        tests = json.loads(arguments.reach.read_text())["tests"] | tests
    arguments.reach.write_text(json.dumps({"functions": functions, "tests": tests}))
    ran = {place for facts in tests.values() for place in facts["ran"]}
    print(f"{len(tests)} tests run {len(ran)} of {len(functions)} functions.")
    print("Fail without a fault, and do not count:", *_failed(tests), sep="\n  ")


def _noted_tests(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the notes. What a shared fixture ran counts for each test that uses it; a test that passed once is good."""
    notes = [json.loads(line) for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
    ran: dict[str, set[int]] = {}
    for note in notes:
        ran.setdefault(note.get("fixture") or note["test"], set()).update(note["ran"])
    tests: dict[str, dict[str, Any]] = {}
    for note in notes:
        if "test" in note and tests.get(note["test"], {}).get("outcome") != "passed":
            parts = (ran.get(name, set()) for name in (note["test"], *note["fixtures"]))
            tests[note["test"]] = {**note, "fixtures": [], "ran": sorted(set().union(*parts))}
    return tests


def _failed(tests: dict[str, dict[str, Any]]) -> list[str]:
    return sorted(test for test, facts in tests.items() if facts["outcome"] == "failed")


def _judge(arguments: argparse.Namespace) -> None:
    """Plant each fault and run the tests that reach it; write what found it."""
    faults = _usable_faults(arguments)
    reach = json.loads(arguments.reach.read_text())
    tests = {
        test: facts | {"ran": {reach["functions"][place] for place in facts["ran"]}}
        for test, facts in reach["tests"].items()
        if facts["outcome"] == "passed" and (facts["quick"] or arguments.tier == "all")
        if not arguments.paths or test.startswith(tuple(arguments.paths))
    }
    earlier = json.loads(arguments.after.read_text()) if arguments.after else {}
    results = {name: result for name, result in earlier.items() if result["by"]}
    idle: SimpleQueue[Copy] = SimpleQueue()

    def judge(fault: Fault, *, is_near: bool) -> None:
        chosen = _reaching(fault, tests, is_near=is_near)
        copy, start = idle.get(), time.monotonic()
        copy.write(fault.path, _planted(fault))
        by = _first_to_fail(copy, chosen, arguments.tier) if chosen else None
        copy.write(fault.path, text_of(fault.path))
        idle.put(copy)
        seconds = round(time.monotonic() - start)
        results[fault.name] = {"by": by, "tier": arguments.tier, "seconds": seconds}
        arguments.results.write_text(json.dumps(results, indent=1, sort_keys=True))
        print(
            f"{fault.name:36} {arguments.tier:5} {seconds:5} s  {by or f'not by {len(chosen)} tests'}",
            flush=True,
        )

    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as folder,
        ThreadPoolExecutor(arguments.workers) as pool,
    ):
        for number in range(arguments.workers):
            idle.put(Copy(Path(folder, str(number))))
        for is_near in (True, False):
            left = [fault for fault in faults if not results.get(fault.name, {}).get("by")]
            list(pool.map(partial(judge, is_near=is_near), left))
    missed = sorted(name for name, result in results.items() if not result["by"])
    print(f"{len(results) - len(missed)} of {len(results)} are found. Not found:", *missed, sep="\n  ")


def _reaching(fault: Fault, tests: dict[str, Any], *, is_near: bool) -> dict[str, float]:
    """Choose those of the fault's package that need no Spark, or the others; first what is named like the fault."""
    parts, shown = Path(fault.path).parts, functions_that_show(fault)
    package = f"tests/{parts[1] if parts[0] == 'storage_core' else 'spark'}/"
    about = _stems(" ".join((fault.name, fault.path, fault.breaks, *(shown if len(shown) == 1 else ()))))
    chosen = {
        test: facts
        for test, facts in tests.items()
        if is_near == (test.startswith(package) and not facts["spark"]) and not shown.isdisjoint(facts["ran"])
    }

    def distance(test: str) -> tuple[bool, int, float]:
        return chosen[test]["spark"], -len(_stems(test) & about), chosen[test]["seconds"]

    return {test: chosen[test]["seconds"] for test in sorted(chosen, key=distance)}


def _stems(text: str) -> set[str]:
    return {word[:5] for word in re.findall("[a-z]{4,}", text.lower())}


def _first_to_fail(copy: Copy, tests: dict[str, float], tier: str) -> str | None:
    listed, said = copy.root.with_suffix(".json"), copy.root.with_suffix(".said")
    listed.write_text(json.dumps(tests))
    said.write_text("pytest does not begin")
    files = sorted({test.partition("::")[0] for test in tests})
    limit = 300 + 10 * sum(tests.values())
    status = copy.pytest(TIERS[tier], "-x", *files, seconds=limit, SEGMENTLOG_MUTANTS_JUDGE=str(listed))
    return None if status == 0 else said.read_text()


def _compare(arguments: argparse.Namespace) -> None:
    """Print which faults one of two results finds alone."""
    earlier, later = (
        {name: each["by"] for name, each in json.loads(path.read_text()).items() if each["by"]}
        for path in (arguments.earlier, arguments.later)
    )
    print(f"{len(earlier)} and {len(later)} are found.")
    for title, these, those in (("Lost", earlier, later), ("Gained", later, earlier)):
        print(f"{title}:", *(f"{name}: {these[name]}" for name in sorted(these.keys() - those)), sep="\n  ")


def _list(arguments: argparse.Namespace) -> None:
    """Print the faults."""
    for fault in _usable_faults(arguments):
        print(f"{fault.name:36} {fault.path:46} {fault.breaks}")


def _usable_faults(arguments: argparse.Namespace) -> list[Fault]:
    faults, problems = load_faults(arguments.only)
    for fault in faults:
        ast.parse(_planted(fault))
    if problems:
        print("Repair in tests/mutants/faults.toml:", *problems, sep="\n  ", file=sys.stderr)
        sys.exit(2)
    return faults


def _planted(fault: Fault) -> str:
    return text_of(fault.path).replace(fault.old, fault.new)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    for run in (_list, _reach, _judge, _compare):
        command = commands.add_parser(run.__name__[1:], help=run.__doc__)
        command.set_defaults(run=run)
        if run is _compare:
            command.add_argument("earlier", type=Path)
            command.add_argument("later", type=Path)
            continue
        command.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these faults")
        command.add_argument("--tier", choices=TIERS, default="all", help="`make test` or `make test-all`")
        command.add_argument("--marks", default="", metavar="EXPRESSION", help="these tests of the tier")
        command.add_argument(
            "--add", action="store_true", help="keep the notes of other tests on the same product"
        )
        command.add_argument("--workers", type=int, default=2, help="processes")
        command.add_argument("--reach", type=Path, default=_PLACE / "reach.json", help="the notes")
        command.add_argument("--results", type=Path, default=_PLACE / "results.json")
        command.add_argument(
            "--after", type=Path, help="results of which only what was not found is tried again"
        )
        command.add_argument("paths", nargs="*", help="the only tests that are run")
    return parser.parse_args()


if __name__ == "__main__":
    _PLACE.mkdir(parents=True, exist_ok=True)
    chosen = _arguments()
    chosen.run(chosen)
