"""Command line of the benchmarks: ``python -m benchmarks [section ...] [--quick] [--write-docs]``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from pathlib import Path

from benchmarks.machine import describe_circumstances
from benchmarks.progress import tell
from benchmarks.report import latest_results, text_table, write_documents
from benchmarks.results import SectionResult
from benchmarks.scratch import section_scratch
from benchmarks.sections import SECTION_NAMES, run_section
from benchmarks.settings import QUICK_DIVISOR, Settings, default_cache_directory

_DEFAULT_REPETITIONS = 5


def main() -> int:
    """Run the sections asked for; print and store what they found."""
    arguments = _parse_arguments()
    settings = Settings(
        quick=arguments.quick,
        repetitions=arguments.repetitions,
        cache_directory=arguments.cache.resolve(),
        data_sets=tuple(arguments.data_set),
        parts=tuple(arguments.part),
        earlier=arguments.earlier,
    )
    everything = [name for name in SECTION_NAMES if name != "earlier" or settings.earlier]
    for name in () if arguments.stored else arguments.section or everything:
        circumstances = describe_circumstances()
        started = time.perf_counter()
        tell(f"section {name}")
        with section_scratch(settings) as with_scratch:
            result = run_section(name, with_scratch)
        if not result.findings:
            raise ValueError(
                f"Expected parts that the section {name} has, found {', '.join(settings.parts)}."
            )
        result = dataclasses.replace(
            result,
            circumstances={
                **circumstances,
                "quick": settings.quick,
                "repetitions": settings.repetitions,
                "section_seconds": time.perf_counter() - started,
            },
        )
        _store(result, settings)
        print(text_table(result), flush=True)
    if arguments.write_docs:
        write_documents(latest_results(settings.results_directory))
        tell("wrote docs/benchmarks.md, docs/benchmarks.svg and the table in README.md")
    return 0


def _store(result: SectionResult, settings: Settings) -> None:
    settings.results_directory.mkdir(parents=True, exist_ok=True)
    path = (
        settings.results_directory / f"{result.section}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json"
    )
    path.write_text(json.dumps(result.to_json(), indent=1), encoding="utf-8")
    tell(f"raw results: {path}")


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("section", nargs="*", help=f"of {', '.join(SECTION_NAMES)}; all of them if none")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_DIVISOR} times less data, for trying")
    parser.add_argument(
        "--repetitions", type=int, default=_DEFAULT_REPETITIONS, help="measured rounds (default 5)"
    )
    parser.add_argument("--data-set", action="append", default=[], help="only this data set; may be repeated")
    parser.add_argument(
        "--part", action="append", default=[], help="only this part of write or streaming; may be repeated"
    )
    parser.add_argument(
        "--earlier",
        default="",
        metavar="COMMIT",
        help="what the section earlier compares with",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=default_cache_directory(),
        help="data sets and programs, kept from run to run",
    )
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help="write docs/benchmarks.md, its chart and the table in README.md from the newest full results of each section",
    )
    parser.add_argument(
        "--stored",
        action="store_true",
        help="run no section: --write-docs uses the stored results",
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.section) - set(SECTION_NAMES):
        parser.error(f"expected sections of {', '.join(SECTION_NAMES)}; found {', '.join(sorted(unknown))}")
    if arguments.write_docs and (arguments.quick or arguments.part):
        parser.error("--write-docs takes figures of a full run; leave out --quick and --part")
    return arguments


def _write_bytecode() -> None:
    """Start again where Python would not write bytecode: each process would compile all modules anew, and be timed with it."""
    if sys.dont_write_bytecode:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks", *sys.argv[1:]])


if __name__ == "__main__":
    _write_bytecode()
    sys.exit(main())
