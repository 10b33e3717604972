"""The tables in docs/options.md, made from the tables of the code.

Run ``python -m tests.option_tables --write docs/options.md`` after a change of an option.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from storage_core.options.option import READ_OPTIONS, WRITE_OPTIONS, OptionSpec
from tests.marked_text import write_between_markers

# The marker in the page -> the options of the code.
TABLES = {"options": READ_OPTIONS, "write-options": WRITE_OPTIONS}


def options_table(options: Sequence[OptionSpec]) -> str:
    """A Markdown table of options; which of them only batches or only streams have is said before their meaning."""
    rows = ["| option | value | default | meaning |", "|---|---|---|---|"]
    for spec in options:
        names = ", ".join(f"`{name}`" for name in (spec.name, *spec.aliases) if name != "paths")
        default = f"`{spec.default}`" if spec.default else ""
        only = {"batch": "Batches only. ", "stream": "Streams only. "}.get(spec.applies_to, "")
        rows.append(f"| {names} | {spec.kind} | {default} | {only}{spec.doc} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    """Write the tables between their markers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, required=True, metavar="FILE")
    path = parser.parse_args().write
    for marker, options in TABLES.items():
        write_between_markers(path, marker, options_table(options))


if __name__ == "__main__":
    main()
