"""The tables in docs/views.md, made from the views of the code.

Run ``python -m tests.view_tables --write docs/views.md`` after a change of a view.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow as pa

from storage_core.options import VIEWS
from storage_core.views import VIEW_NAMES, View, find_view
from tests.marked_text import write_between_markers


def views_text() -> str:
    """Return a section of Markdown for each view: what a row is, and its columns."""
    return "\n".join(_section(find_view(name)) for name in VIEW_NAMES)


def _section(view: View) -> str:
    names = VIEWS[view.name]
    lines = [f"## {view.name}", "", view.doc, ""]
    meanings = [
        f"`{name}` means `{column}`"
        for name, column in (("offset", names.offset), ("timestamp", names.timestamp))
        if column is not None and column != name
    ]
    if meanings:
        lines += [f"In conditions, {' and '.join(meanings)}.", ""]
    lines += ["| column | type | meaning |", "|---|---|---|"]
    lines += [f"| `{column.name}` | `{sql_type(column.type)}` | {column.doc} |" for column in view.columns]
    return "\n".join(lines) + "\n"


def sql_type(kind: pa.DataType) -> str:
    """Return the name that Spark's SQL has for a type."""
    if pa.types.is_list(kind):
        return f"array<{sql_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {sql_type(field.type)}' for field in kind)}>"
    names = {
        pa.int32(): "int",
        pa.int64(): "bigint",
        pa.bool_(): "boolean",
        pa.string(): "string",
        pa.binary(): "binary",
    }
    return names.get(kind) or ("timestamp" if pa.types.is_timestamp(kind) else str(kind))


def main() -> None:
    """Write the sections between their markers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, required=True, metavar="FILE")
    write_between_markers(parser.parse_args().write, "views", views_text())


if __name__ == "__main__":
    main()
