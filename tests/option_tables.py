"""The tables in docs/options.md, made from the tables of the code.

Run ``python -m tests.option_tables --write docs/options.md`` after a change of an option.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from spark_segmentlog.write_options import WRITE_OPTIONS
from storage_core.options import READ_OPTIONS
from storage_core.options.option import Option
from storage_core.options.storage_options import STORAGE_OPTIONS
from tests.marked_text import write_between_markers

# The marker in the page -> the options of the code.
TABLES = {"options": READ_OPTIONS, "write-options": WRITE_OPTIONS}


def options_table(options: Sequence[Option]) -> str:
    """Make a Markdown table of options; those that only batches or only streams have say so first."""
    rows = ["| option | value | default | meaning |", "|---|---|---|---|"]
    for option in options:
        names = ", ".join(f"`{name}`" for name in (option.name, *option.aliases) if name != "paths")
        default = f"`{option.default}`" if option.default else ""
        only = {"batch": "Batches only. ", "stream": "Streams only. "}.get(option.only, "")
        rows.append(f"| {names} | {option.kind.text} | {default} | {only}{option.doc} |")
    return "\n".join(rows) + "\n"


def storage_options_table() -> str:
    """Make a Markdown table of the options that reach object stores."""
    rows = ["| option | value | meaning |", "|---|---|---|"]
    rows += [
        f"| `{option.name}` | {option.kind} | {option.meaning[0].upper()}{option.meaning[1:]}. |"
        for option in STORAGE_OPTIONS
    ]
    return "\n".join(rows) + "\n"


TEXTS = {marker: options_table(options) for marker, options in TABLES.items()}
TEXTS["storage-options"] = storage_options_table()


def main() -> None:
    """Write the tables between their markers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, required=True, metavar="FILE")
    path = parser.parse_args().write
    for marker, text in TEXTS.items():
        write_between_markers(path, marker, text)


if __name__ == "__main__":
    main()
