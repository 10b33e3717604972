"""The parts of documents that are generated: those between ``<!-- marker -->`` and ``<!-- /marker -->``."""

from __future__ import annotations

from pathlib import Path


def between_markers(text: str, marker: str) -> str:
    """Return the text between the markers; empty without them."""
    return text.partition(f"<!-- {marker} -->\n")[2].partition(f"<!-- /{marker} -->")[0]


def write_between_markers(path: Path, marker: str, inner: str) -> None:
    """Replace what a document has between the markers.

    Raises:
        ValueError: It does not have them.
    """
    before, start, rest = path.read_text(encoding="utf-8").partition(f"<!-- {marker} -->\n")
    _, end, after = rest.partition(f"<!-- /{marker} -->")
    if not (start and end):
        raise ValueError(f"Expected the markers of {marker} in {path}, found none.")
    path.write_text(before + start + inner + end + after, encoding="utf-8")
