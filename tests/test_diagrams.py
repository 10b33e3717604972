"""docs/diagrams: the committed drawings are those of the script, and their numbers those of the example data."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from storage_core import read_table

DIAGRAMS = Path(__file__).parent.parent / "docs" / "diagrams"
EXAMPLES = str(Path(__file__).parent.parent / "examples" / "data")
SVG = "{http://www.w3.org/2000/svg}"
SCRIPT: dict[str, Any] = runpy.run_path(str(DIAGRAMS / "draw.py"))
DRAWINGS: dict[str, Callable[[], str]] = SCRIPT["DRAWINGS"]


def rows_of(view: str, *columns: str, where: str = "offset >= 0") -> list[tuple[Any, ...]]:
    table = read_table(EXAMPLES, view=view, assign='{"orders": [0]}', columns=list(columns), where=where)
    return [tuple(row.values()) for row in table.to_pylist()]


def test_the_drawings_are_those_of_the_script():
    assert {path.name: path.read_text("utf-8") for path in DIAGRAMS.glob("*.svg")} == {
        name: draw() for name, draw in DRAWINGS.items()
    }


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_is_small_and_can_be_read_aloud(name: str):
    path = DIAGRAMS / name
    drawing = ET.parse(path).getroot()
    assert path.stat().st_size <= 8 * 1024
    assert drawing.get("role") == "img"
    for label in ("title", "desc"):
        element = drawing.find(SVG + label)
        assert element is not None
        assert (element.text or "").strip()


@pytest.mark.parametrize("name", DRAWINGS)
def test_no_text_leaves_its_drawing(name: str):
    """By the widths of DejaVu, the widest of the fonts that a system has."""
    drawing = ET.parse(DIAGRAMS / name).getroot()
    width = int(drawing.get("width", "0"))
    outside = []
    for text in drawing.iter(SVG + "text"):
        style = (text.get("class") or "").split()
        taken = len(text.text or "") * (8.5 if {"mono", "bold"} & set(style) else 8.0)
        left = float(text.get("x", "0")) - taken * {"middle": 0.5, "end": 1.0}.get(
            text.get("text-anchor", ""), 0
        )
        if left < 0 or left + taken > width:
            outside.append(text.text)
    assert outside == []


def test_the_look_up_shows_the_example_data():
    segments = rows_of("segments", "baseOffset", "maxTimestamp")
    assert [(str(offset), f"{time:%-d %b %H:%M}") for offset, time in segments] == list(
        SCRIPT["LARGEST_TIMES"]
    )
    assert SCRIPT["SEGMENT_BOUNDS"][:-1] == tuple(offset for offset, _ in segments)
    entries = rows_of("index", "segment", "kind", "offset", "position", "timestamp")
    newest = [entry for entry in entries if entry[0] == f"{segments[-1][0]:020d}.log"]
    times = [(f"{time:%H:%M:%S}", str(offset)) for _, kind, offset, _, time in newest if kind == "time"]
    positions = [(str(offset), str(position)) for _, kind, offset, position, _ in newest if kind == "offset"]
    batches = [
        (str(position), f"{first}–{last}", f"{time:%H:%M:%S}")
        for position, first, last, time in rows_of(
            "batches", "position", "baseOffset", "lastOffset", "maxTimestamp", where="offset >= 7679"
        )
    ]
    for shown, there in (("TIME_ENTRIES", times), ("OFFSET_ENTRIES", positions), ("BATCHES", batches)):
        start = there.index(SCRIPT[shown][0])
        assert there[start : start + 3] == list(SCRIPT[shown])


def test_the_look_up_finds_the_record_that_it_shows():
    found = read_table(
        EXAMPLES,
        assign='{"orders": [0]}',
        starting_timestamp="2026-03-08T18:00:00Z",
        columns=["offset", "timestamp"],
    )
    shown = re.search(r"it is offset (\d+), of ([\d:]+)\.", DRAWINGS["look-up.svg"]())
    assert shown is not None
    assert shown.groups() == (str(found["offset"][0]), f"{found['timestamp'][0].as_py():%H:%M:%S}")
