"""README.md and docs/: each command `segmentlog` runs as it is, in order, and prints what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_core.cli.main import COMMANDS
from tests.documented_commands import assert_prints, commands_of, shell_in

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "cli.md"
PAGES = sorted(page for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")) if commands_of(page))


@pytest.mark.parametrize(
    "page",
    [page if page.name == "README.md" else pytest.param(page, marks=pytest.mark.thorough) for page in PAGES],
    ids=lambda page: Path(page).name,
)
def test_the_commands_of_a_page_print_what_it_shows(page: Path, tmp_path: Path):
    shell = shell_in(tmp_path.resolve())
    for block in commands_of(page):
        assert_prints(shell, block)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_command_has_a_section_with_an_example(name: str):
    sections = {block.section for block in commands_of(PAGE) if f"segmentlog {name}" in block.text}
    assert f"`{name}`" in {section.split(":")[0] for section in sections}
