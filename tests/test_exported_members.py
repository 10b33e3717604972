"""The surface, name by name: what is added to or taken from it is decided, not slipped in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.exported_members import MODULES, exported_members

SNAPSHOT = Path(__file__).parent / "exported_members.txt"
AGAIN = "If this is meant, run python -m tests.exported_members --write tests/exported_members.txt"


@pytest.mark.parametrize("name", MODULES)
def test_the_exported_members_are_those_of_the_snapshot(name: str):
    expected, found = (
        text.partition(f"# {name}\n")[2].partition("\n\n")[0].splitlines()
        for text in (SNAPSHOT.read_text(encoding="utf-8"), exported_members())
    )
    assert found == expected, AGAIN
