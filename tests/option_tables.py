"""The tables in docs/options.md, and the keywords of reads, made from the tables of the code.

Run ``python -m tests.option_tables --write docs/options.md`` and ``python -m tests.option_tables --write-keywords`` after a
change of an option.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

from spark_segmentlog.write_options import WRITE_OPTIONS
from storage_core.options import READ_OPTIONS
from storage_core.options import __file__ as options_file
from storage_core.options.option import Option, keyword_of
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


# What a keyword takes, by the text of the option's kind, or by the option's name if that lists choices.
KEYWORD_TYPES = {
    "JSON": "Json",
    "Java regex": "Text",
    "boolean": "Flag",
    "column name": "Text",
    "condition": "Predicate | str | None",
    "count": "Number",
    "interval": "dt.timedelta | SupportsIndex | str | None",
    "mapping": "Mapping[str, Any] | None",
    "name": "Text",
    "names": "Names",
    "number": "Number",
    "path, or `id=path` pairs": "Path | None",
    "paths": "Paths",
    "size": "Number",
    "text or path": "Schema",
    "time zone": "dt.tzinfo | str | None",
    "timestamp": "Time",
    "topic": "Text",
    "topics": "Names",
    "endingAt": "EndingAt | None",
    "endingOffsets": "Json",
    "isolationLevel": "IsolationLevel | None",
    "keyFormat": "Format | None",
    "mode": "DamageMode | None",
    "startingOffsets": "Json",
    "startingOffsetsByTimestampStrategy": "StartingStrategy | None",
    "valueFormat": "Format | None",
}
KEYWORDS_FILE = Path(options_file).with_name("keywords.py")
_GENERATED = re.compile(r"(?<=# fmt: off\n).*(?=# fmt: on\n)", re.DOTALL)


def keyword_types() -> dict[str, str]:
    """Return what each keyword of a batch read takes."""
    return {
        keyword_of(name): KEYWORD_TYPES.get(option.name) or KEYWORD_TYPES[option.kind.text]
        for option in READ_OPTIONS
        if option.only != "stream"
        for name in (option.name, *option.aliases)
        # Functions take them by position.
        if name != "paths"
    }


def keywords_source() -> str:
    """Return the source of the `TypedDict` of all keywords."""
    # A blank within an item must not break a line.
    items = (f'"{name}": {kind},'.replace(" ", "\0") for name, kind in keyword_types().items())
    lines = textwrap.wrap(" ".join(items), 106, break_on_hyphens=False)
    body = "".join(f"    {line}\n" for line in lines).replace("\0", " ")
    return (
        f'ReadKeywords = TypedDict("ReadKeywords", {{  # noqa: UP013  (fewer lines)\n{body}}}, total=False)\n'
    )


def keywords_text(text: str) -> str:
    """Return the text of the module of keywords, with the generated part made anew."""
    return _GENERATED.sub(lambda _: keywords_source(), text)


def main() -> None:
    """Write the tables between their markers, or the keywords."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--write-keywords", action="store_true")
    arguments = parser.parse_args()
    if arguments.write_keywords:
        KEYWORDS_FILE.write_text(keywords_text(KEYWORDS_FILE.read_text(encoding="utf-8")), encoding="utf-8")
    path = arguments.write
    for marker, text in TEXTS.items() if path else ():
        write_between_markers(path, marker, text)


if __name__ == "__main__":
    main()
